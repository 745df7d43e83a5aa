/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A fuzz target is one function. With clang, libFuzzer calls it (ninja fuzz_codec); the normal test calls it
 * from drive.c: seeds, and a fixed number of mutations of them, the same ones every time. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Calls add(bytes, length) for each input worth starting from. */
typedef void fuzz_add(const uint8_t *bytes, size_t length);
void fuzz_seeds(fuzz_add *add);

#define require(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

#endif
