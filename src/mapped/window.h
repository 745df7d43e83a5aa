/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The parts that every switch is made of (switch.h): holding up writers, finding what is there, putting pages
 * in place. Keeper only. */
#ifndef MAPPED_WINDOW_H
#define MAPPED_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/maps.h"
#include "mapped/switch.h"

/* Dense memory is switched in pieces, and whoever touches one waits for as long as it takes: a hundred
 * microseconds. Larger ones are hardly faster. Where system calls fail instead of waiting, pieces are
 * smaller. */
size_t dense_chunk(void);
/* What is not populated takes no copying. */
#define SPARSE_CHUNK ((size_t)64 << 20)

/* maps_open(), by either side. */
int window_maps(struct maps *maps);

/* What every step of a switch begins with: 0, or the error that a test asked for. */
int window_step(void);

/* Pages of a range that hold something, as the kernel's page table says. One range at a time. */
int pages_read(uintptr_t address, size_t length);
/* From *at on: false when there is no more. Both are relative to the start of the range. */
bool pages_next(size_t *at, size_t *ret_start, size_t *ret_length);
/* Some of them are guard pages (MADV_GUARD_INSTALL). */
bool pages_guarded(void);
/* The same of a file: the first part with data in [offset, offset + length), relative to offset + *at. */
bool data_next(int fd, uint64_t offset, size_t length, size_t *at, size_t *ret_start, size_t *ret_length);

/* Writers (and, `missing`, whoever needs a page that is not there) of the range wait from now on. 0 or
 * -errno. */
int window_arm(uintptr_t address, size_t length, bool shared);
int window_protect(uintptr_t address, size_t length);
void window_disarm(uintptr_t address, size_t length);
void window_wake(uintptr_t address, size_t length);

/* Moves a mapping over whatever is at `to`, in one step. */
int move_over(uintptr_t from, size_t length, uintptr_t to);
/* As move_over(), but what was at `from` stays there, empty. */
int move_pages_over(uintptr_t from, size_t length, uintptr_t to);
/* Address space that nobody else gets; at `wish` if it is free there. 0: there is none. */
uintptr_t reserve(size_t length, uintptr_t wish);
/* A shared mapping of the file, not yet at its place, readable and writable, not for children, locked on
 * request. 0 or -errno. */
int scratch_map(int fd, uint64_t offset, size_t length, bool lock, uintptr_t *ret_scratch);
bool mapping_is_arena(const struct mapping *mapping, unsigned arena);
/* Is the arena mapped at the address as it should be? Sets the end and protection of that mapping. */
bool is_ours(struct maps *maps, uintptr_t address, unsigned arena, uint64_t offset, uintptr_t *ret_end,
             int *ret_protection);
/* Is the range private and anonymous all over? */
bool is_private(struct maps *maps, uintptr_t address, size_t length, bool writable);
void unmap(uintptr_t address, size_t length);
void punch(int fd, uint64_t offset, size_t length);

/* Around a whole switch: mapped_epoch() is odd in between. */
void epoch_begin(void);
void epoch_end(void);

#endif
