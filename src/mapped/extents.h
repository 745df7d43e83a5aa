/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is in use of an arena: an ordered set of extents that do not overlap, each with its count of regions.
 * A treap: 100,000 regions of a page each are as quick as ten. Guarded by the room's lock. */
#ifndef MAPPED_EXTENTS_H
#define MAPPED_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
    uint64_t start, end; /* offsets in the arena, whole pages */
    uint32_t regions;    /* that it belongs to; 0: it lingers */
    uint32_t generation;
    bool locked_by_program; /* it was locked before we came */
    bool in_fork;           /* between fork handlers: the shadow holds its contents */
    bool waits;             /* without a region, until a neighbour is given back */
    /* Where start has its shadow: an empty private mapping that takes the place of the shared one when the
     * pages are switched back, so that protections, policies and merging with the neighbours are as they
     * were. */
    uintptr_t shadow;
    struct extent *left, *right;
    uint32_t priority;
};

struct extents {
    struct extent *root;
    uint32_t random;
    uint32_t runs;  /* extents that do not simply continue the one before */
    uint64_t bytes; /* of all */
};

/* The first that ends behind the offset, NULL if there is none. */
struct extent *extents_from(const struct extents *set, uint64_t offset);
/* The last that ends at or before the offset, NULL if there is none. */
struct extent *extents_before(const struct extents *set, uint64_t offset);
/* Links in an extent of the caller's, whose range is free. */
void extents_insert(struct extents *set, struct extent *extent);
/* Takes it out; it is the caller's again. */
void extents_remove(struct extents *set, struct extent *extent);
/* After this no extent has `offset` inside. -ENOMEM: nothing has changed. */
int extents_split(struct extents *set, uint64_t offset);

/* Both belong to one mapping in the kernel's eyes, and so do their shadows. */
bool extent_continues(const struct extent *before, const struct extent *after);

static inline uint64_t extent_length(const struct extent *extent)
{
    return extent->end - extent->start;
}

#endif
