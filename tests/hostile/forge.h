/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Published segments (segment/segment.h) in which somebody has written. In a file of its own, because the names of
 * paths are other ones in the tests. */
#ifndef TESTS_HOSTILE_FORGE_H
#define TESTS_HOSTILE_FORGE_H

#include <stdbool.h>
#include <stdint.h>

struct segment_header;
/* The segment of this process, as it is mapped; NULL: none. */
struct segment_header *forge_find(void);
/* The size of what peers take for an arena. */
uint64_t forge_arena_size(void);
/* Writes into this process's segment that the region with that rkey is mapped from the beginning of the file
 * `arena`. */
bool forge_mapped_region(int arena, uint32_t rkey, uint64_t address, uint64_t length);
/* Writes into this process's segment that all stacks consist of that address, and that it lies in the file of that
 * name, at the address without the bias. False: there is no stack. */
bool forge_stacks(const char *path, uint64_t address, uint64_t bias);
/* e_machine of ELF files that names are looked for in. */
uint16_t forge_machine(void);

#endif
