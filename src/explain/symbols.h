/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names of functions, read out of ELF files. The file may belong to any user: everything in it is checked. */
#ifndef EXPLAIN_SYMBOLS_H
#define EXPLAIN_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The function that an address lies in; address: as the file has it. *ret_offset: from the function's start.
 * False: the file cannot be read, or does not say. */
bool symbol_find(const char *path, uint64_t address, char *ret_name, size_t size, uint64_t *ret_offset);

#endif
