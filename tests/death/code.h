/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The adapter's code. Victim and tracer are forks of one process, so that it lies at the same addresses in both, and
 * what the victim executes can be read here, without breakpoints in it. */
#ifndef DEATH_CODE_H
#define DEATH_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct function {
    uintptr_t at;
    const char *name;
    bool watched; /* a short window that is named: access slots, epochs, publishing, rings */
};

/* Once, before the first trial. */
void code_note(void);
bool code_is_ours(uint64_t address);
/* Of the adapter, the C library or the loader. */
bool code_is_known(uint64_t address);
const struct function *code_functions(unsigned *ret_count);
/* "ring_write+0x1c", or "libc.so.6+0x9d2f0". */
void code_place(uint64_t address, char *place, size_t size);
/* From the beginning of the library. */
uint64_t code_offset(uint64_t address);
/* The first name of a window that no function of the libraries has: it is part of another one, or was renamed. Or
 * NULL. */
const char *code_missing(void);

#endif
