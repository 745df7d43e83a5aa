/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names of functions, read out of ELF files. The file may belong to any user: everything in it is checked, and what is
 * read of all files for one report has a budget. */
#ifndef EXPLAIN_SYMBOLS_H
#define EXPLAIN_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The function that an address of a process lies in. in_file: the address as the file has it; path: as
 * code_file_open(). *spent: what the report has read so far, 0 at first. *ret_offset: from the function's start. False:
 * the file cannot be read, or does not say. */
bool symbol_find(pid_t pid, uint64_t address, const char *path, uint64_t in_file, uint64_t *spent,
                 char *ret_name, size_t size, uint64_t *ret_offset);

#endif
