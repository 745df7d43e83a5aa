/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The allocator of the segment's arena: a buddy allocator of power of two extents. Its state is in bitmaps
 * outside of the arena, because freed extents are punched out. The lowest free extent is taken, so that the
 * used part of the arena stays short. Not locked: segment.c calls it under segment.lock.
 *
 * Extents smaller than a page share pages, or a process with many QPs would have a page for each of their queues
 * (docs/design/many-qps.md). They are pieces of a page that is taken as a whole, up to page ARENA_SHARED_PAGES. */
#ifndef SEGMENT_ARENA_H
#define SEGMENT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_UNIT_SHIFT 12
#define ARENA_UNIT       ((size_t)1 << ARENA_UNIT_SHIFT)
#define ARENA_ORDERS     26
#define ARENA_LEVELS     5 /* 64^5 > 2^25 units */

#define ARENA_PIECE        ((size_t)64) /* the smallest extent: a cache line */
#define ARENA_PIECES       64           /* of a page */
#define ARENA_PIECE_ORDERS 6            /* extents of 1, 2, 4 to 32 pieces */
#define ARENA_SHARED_PAGES (1u << 20)

/* The free extents of one size. Bit i of level 0: extent i is free. Bit i of level n + 1: word i of level n
 * is not zero. */
struct arena_order {
    uint64_t *level[ARENA_LEVELS];
    unsigned levels;
};

struct arena {
    unsigned top; /* the arena is one extent of this order */
    struct arena_order order[ARENA_ORDERS];
    struct arena_order room[ARENA_PIECE_ORDERS]; /* by page: does a shared one have such an extent? */
    uint64_t *taken;                             /* by page: pieces; 0: the page is not shared */
    uint64_t shared_pages;                       /* pages from here on are never shared */
    void *maps;
    size_t maps_size;
    uint64_t high_water; /* end of the highest extent ever taken */
};

/* size: a power of two, at least a unit, at most 2^25 units. 0 or -ENOMEM. */
int arena_init(struct arena *arena, uint64_t size);
void arena_fini(struct arena *arena);
/* Offset from the start of the arena; -ENOMEM. An extent is aligned to its size, to at most a page. */
int64_t arena_take(struct arena *arena, size_t size);
/* Of an extent that is no piece (below). */
void arena_return(struct arena *arena, uint64_t offset, size_t size);
/* Is it in a page with others? Constant while the extent is taken. */
bool arena_is_piece(const struct arena *arena, uint64_t offset, size_t size);
/* Returns such an extent. True: the page has none left, and is still taken; the caller returns it as one extent of
 * ARENA_UNIT bytes. */
bool arena_return_piece(struct arena *arena, uint64_t offset, size_t size);
/* The size of the extent that a request of this size takes. */
size_t arena_extent(size_t size);

#endif
