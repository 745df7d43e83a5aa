/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The used part of an arena: an ordered set of disjoint extents, each with a count of regions. A treap, so that
 * 100,000 regions of one page each cost O(log n). mapped_lock guards it. */
#ifndef MAPPED_EXTENTS_H
#define MAPPED_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
    uint64_t start, end; /* offsets in the arena, whole pages */
    uint32_t regions;    /* regions that contain it; 0: lingers or waits */
    uint32_t generation;
    bool locked_by_program; /* it was locked before the switch */
    bool in_fork;           /* between fork handlers: the shadow holds the contents */
    bool waits;             /* without a region; switched back when a neighbour is (place.c) */
    /* Address of the shadow of `start`: an empty private mapping that replaces the shared one when the pages are
     * switched back, so that protection, memory policy and merging with neighbours are as before. */
    uintptr_t shadow;
    struct extent *left, *right;
    uint32_t priority;
};

struct extents {
    struct extent *root;
    uint32_t random;
    uint32_t runs;  /* extents that do not continue the one before */
    uint64_t bytes; /* total length */
};

/* The first extent that ends behind the offset, or NULL. */
struct extent *extents_from(const struct extents *set, uint64_t offset);
/* The last extent that ends at or before the offset, or NULL. */
struct extent *extents_before(const struct extents *set, uint64_t offset);
/* Inserts an extent of the caller, whose range is free. */
void extents_insert(struct extents *set, struct extent *extent);
/* Removes an extent; the caller owns it again. */
void extents_remove(struct extents *set, struct extent *extent);
/* Afterwards no extent has `offset` inside. -ENOMEM: nothing has changed. */
int extents_split(struct extents *set, uint64_t offset);

/* To the kernel, both extents are one mapping, and so are their shadows. */
bool extent_continues(const struct extent *before, const struct extent *after);

static inline uint64_t extent_length(const struct extent *extent)
{
    return extent->end - extent->start;
}

#endif
