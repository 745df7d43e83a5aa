/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Allocations that are counted, and that fail when the input says so. The target is linked with --wrap=calloc and
 * --wrap=free; one whose code calls malloc() wraps it, too. */
#ifndef TESTS_FUZZ_ALLOCATIONS_H
#define TESTS_FUZZ_ALLOCATIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "simulated.h"

static bool allocations_fail;
static unsigned live; /* not freed */

void *__real_calloc(size_t count, size_t size);
void __real_free(void *memory);
void *__wrap_calloc(size_t count, size_t size);
void __wrap_free(void *memory);

static inline bool allocation_fails(void)
{
    return allocations_fail && input_8(&input) % 2;
}

void *__wrap_calloc(size_t count, size_t size)
{
    void *memory = allocation_fails() ? NULL : __real_calloc(count, size);

    live += memory != NULL;
    return memory;
}

void __wrap_free(void *memory)
{
    live -= memory != NULL;
    __real_free(memory);
}

#endif
