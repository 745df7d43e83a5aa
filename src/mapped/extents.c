/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "mapped/extents.h"

#include <errno.h>
#include <stdlib.h>

bool extent_continues(const struct extent *before, const struct extent *after)
{
    return before->end == after->start && before->shadow + extent_length(before) == after->shadow;
}

static uint32_t next_random(struct extents *set)
{
    uint32_t x = set->random ? set->random : 0x9e3779b9u;

    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return set->random = x;
}

struct extent *extents_from(const struct extents *set, uint64_t offset)
{
    struct extent *extent = set->root, *found = NULL;

    while (extent) {
        if (extent->end > offset) {
            found = extent;
            extent = extent->left;
        } else {
            extent = extent->right;
        }
    }
    return found;
}

struct extent *extents_before(const struct extents *set, uint64_t offset)
{
    struct extent *extent = set->root, *found = NULL;

    while (extent) {
        if (extent->end <= offset) {
            found = extent;
            extent = extent->right;
        } else {
            extent = extent->left;
        }
    }
    return found;
}

/* The expected depth is logarithmic. */
static void cut(struct extent *extent, uint64_t offset, struct extent **ret_below, struct extent **ret_above)
{
    while (extent) {
        if (extent->start < offset) {
            *ret_below = extent;
            ret_below = &extent->right;
            extent = extent->right;
        } else {
            *ret_above = extent;
            ret_above = &extent->left;
            extent = extent->left;
        }
    }
    *ret_below = *ret_above = NULL;
}

static struct extent *join(struct extent *below, struct extent *above)
{
    struct extent *root = NULL, **place = &root;

    while (below && above) {
        if (below->priority > above->priority) {
            *place = below;
            place = &below->right;
            below = below->right;
        } else {
            *place = above;
            place = &above->left;
            above = above->left;
        }
    }
    *place = below ? below : above;
    return root;
}

static void link_in(struct extents *set, struct extent *extent)
{
    struct extent **place = &set->root;

    while (*place && (*place)->priority >= extent->priority)
        place = extent->start < (*place)->start ? &(*place)->left : &(*place)->right;
    cut(*place, extent->start, &extent->left, &extent->right);
    *place = extent;
}

/* How many of the extent (if `with`) and its successor begin a run. */
static uint32_t runs_around(const struct extents *set, const struct extent *extent, bool with)
{
    const struct extent *before = extents_before(set, extent->start), *after = extents_from(set, extent->end);
    uint32_t runs = 0;

    if (with && !(before && extent_continues(before, extent)))
        runs++;
    if (with)
        before = extent;
    if (after && !(before && extent_continues(before, after)))
        runs++;
    return runs;
}

void extents_insert(struct extents *set, struct extent *extent)
{
    extent->priority = next_random(set);
    set->runs -= runs_around(set, extent, false);
    link_in(set, extent);
    set->runs += runs_around(set, extent, true);
    set->bytes += extent_length(extent);
}

int extents_split(struct extents *set, uint64_t offset)
{
    struct extent *below = extents_from(set, offset), *above;

    if (!below || below->start >= offset)
        return 0;
    above = malloc(sizeof(*above));
    if (!above)
        return -ENOMEM;
    *above = *below;
    above->start = offset;
    above->shadow = below->shadow + (offset - below->start);
    above->priority = next_random(set);
    below->end = offset; /* one run as before */
    link_in(set, above);
    return 0;
}

void extents_remove(struct extents *set, struct extent *extent)
{
    struct extent **place = &set->root;

    while (*place != extent)
        place = extent->start < (*place)->start ? &(*place)->left : &(*place)->right;
    set->runs -= runs_around(set, extent, true);
    *place = join(extent->left, extent->right);
    set->runs += runs_around(set, extent, false);
    set->bytes -= extent_length(extent);
}
