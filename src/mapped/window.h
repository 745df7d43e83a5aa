/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The steps that every switch consists of (switch.h): stopping writers, looking up mappings and pages, replacing
 * pages. "Window" is the time in which accesses to a chunk are stopped. Keeper only. */
#ifndef MAPPED_WINDOW_H
#define MAPPED_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/maps.h"
#include "mapped/switch.h"

/* Populated memory is switched in chunks, and an access to a chunk waits until the chunk is done: about a hundred
 * microseconds. Larger chunks are hardly faster. Where system calls fail instead of waiting, chunks are smaller. */
size_t dense_chunk(void);
/* Memory that is not populated needs no copying. */
#define SPARSE_CHUNK ((size_t)64 << 20)

/* maps_open() or, for tests, maps_open_text(). */
int window_maps(struct maps *maps);

/* Called at the start of every step: returns 0, or the error that a test injects. */
int window_step(void);

/* Reads which pages of a range are populated, from /proc/self/pagemap. One range at a time. */
int pages_read(uintptr_t address, size_t length);
/* The next populated part at or after *at; false: there is none. *at and *ret_start are relative to the range. */
bool pages_next(size_t *at, size_t *ret_start, size_t *ret_length);
/* Some of the pages are guard pages (MADV_GUARD_INSTALL). */
bool pages_guarded(void);
/* The same for a file: the first part with data in [offset, offset + length), at or after offset + *at. */
bool data_next(int fd, uint64_t offset, size_t length, size_t *at, size_t *ret_start, size_t *ret_length);

/* From now on, accesses that fault in the range wait: writes to protected pages, and accesses to pages that are
 * missing (window_arm()). Return 0 or -errno. */
int window_arm(uintptr_t address, size_t length, bool shared);
int window_protect(uintptr_t address, size_t length);
void window_disarm(uintptr_t address, size_t length);
void window_wake(uintptr_t address, size_t length);

/* Moves a mapping over the mappings at `to`, in one step. */
int move_over(uintptr_t from, size_t length, uintptr_t to);
/* As move_over(), but `from` stays mapped, without pages. */
int move_pages_over(uintptr_t from, size_t length, uintptr_t to);
/* Reserves address space, at `preferred` if that is free. 0: failed. */
uintptr_t reserve(size_t length, uintptr_t preferred);
/* Makes a shared mapping of the file at a temporary address: readable and writable, MADV_DONTFORK, locked on request.
 * 0 or -errno. */
int scratch_map(int fd, uint64_t offset, size_t length, bool lock, uintptr_t *ret_scratch);
bool mapping_is_arena(const struct mapping *mapping, unsigned arena);
/* Is `offset` of the arena mapped at the address? Sets the end and the protection of that mapping. */
bool is_ours(struct maps *maps, uintptr_t address, unsigned arena, uint64_t offset, uintptr_t *ret_end,
             int *ret_protection);
/* Is the whole range private anonymous memory? */
bool is_private(struct maps *maps, uintptr_t address, size_t length, bool writable);
void unmap(uintptr_t address, size_t length);
void punch(int fd, uint64_t offset, size_t length);

/* Called around a whole switch: mapped_epoch() is odd in between. */
void epoch_begin(void);
void epoch_end(void);

#endif
