/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Extents: which offset of an arena pages get, and how pages are switched back or moved. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/sys.h"
#include "mapped/internal.h"
#include "mapped/window.h"

static void switch_in_call(void *argument)
{
    switch_in(argument);
}

static void switch_out_call(void *argument)
{
    switch_out(argument);
}

static void switch_over_call(void *argument)
{
    switch_over(argument);
}

struct hole {
    unsigned arena;
    uint64_t offset, length;
};

static void punch_call(void *argument)
{
    const struct hole *hole = argument;

    punch(keeper.arena[hole->arena], hole->offset, hole->length);
}

static bool is_free(const struct extents *set, uint64_t start, uint64_t end)
{
    const struct extent *extent = extents_from(set, start);

    return !extent || extent->start >= end;
}

/* Upper limit of the guard pages in an extent (guard_piece()). */
static uint32_t guards_in(const struct extent *extent)
{
    return (uint32_t)((extent->end + MAY_GROW - 1) / MAY_GROW - (extent->start + MAY_GROW - 1) / MAY_GROW);
}

/* An extent without a region counts as lingering or waiting. */
static void count_idle(const struct extent *extent)
{
    *(extent->waits ? &owner.waiting : &owner.lingering) += extent_length(extent);
    owner.guards_waiting += extent->waits ? guards_in(extent) : 0;
}

static void uncount_idle(struct extent *extent)
{
    *(extent->waits ? &owner.waiting : &owner.lingering) -= extent_length(extent);
    owner.guards_waiting -= extent->waits ? guards_in(extent) : 0;
    extent->waits = false;
}

/* The lowest layer in which the range is free; nearly always the first. In one layer, neighbours in the address space
 * are neighbours in the arena, and the kernel merges them into one mapping. */
static bool find_layer(const struct arena *arena, uint64_t address, uint64_t length, uint64_t *ret_offset)
{
    for (uint64_t layer = 0; layer < MAPPED_LAYERS_COUNT; layer++) {
        uint64_t offset = layer << MAPPED_ADDRESS_BITS | address;

        if (is_free(&arena->live, offset, offset + length) &&
            is_free(&arena->orphans, offset, offset + length)) {
            *ret_offset = offset;
            return true;
        }
    }
    return false;
}

/* Shadows mirror the address space, in a part of it that the kernel does not allocate by itself, so that shadows of
 * neighbours are neighbours. If the address is taken, the shadow goes elsewhere. */
#define SHADOW_BIT ((uint64_t)1 << 46)

static uintptr_t preferred_shadow(uint64_t address)
{
    return (uintptr_t)(address ^ SHADOW_BIT);
}

bool place_continues(uint64_t start, uint64_t end, unsigned arena)
{
    const struct extents *live = &owner.arena[arena].live;
    const struct extent *before = extents_before(live, start), *after = extents_from(live, start);

    return (before && before->end == start &&
            before->shadow + extent_length(before) == preferred_shadow(start)) ||
           (after && after->start == end && after->shadow == preferred_shadow(end));
}

/* The only thread of the program must not write to its memory in a signal handler either. */
static void block_signals(bool alone, sigset_t *ret_before)
{
    sigset_t all;

    if (!alone)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, ret_before);
}

static void unblock_signals(bool alone, const sigset_t *before)
{
    if (alone)
        pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* *ret_before: for end_alone(). */
static void begin_alone(bool alone, sigset_t *ret_before)
{
    block_signals(alone, ret_before);
    if (alone && owner.ports)
        owner.ports->pause();
}

static void end_alone(bool alone, const sigset_t *before)
{
    if (alone && owner.ports)
        owner.ports->resume();
    unblock_signals(alone, before);
}

enum mapped_reason place_in(uint64_t start, uint64_t end, unsigned arena, bool locked_by_program, bool alone,
                            const struct mapped_portions *portions, uint64_t *ret_done, uint64_t *ret_offset)
{
    struct extents *live = &owner.arena[arena].live;
    struct switch_in request = {.address = start,
                                .length = end - start,
                                .arena = arena,
                                .locked_by_program = locked_by_program,
                                .alone = alone,
                                .portions = portions,
                                .ports = alone && portions ? owner.ports : NULL};
    struct extent *extent;
    sigset_t signals;

    *ret_done = 0;
    if (end > ADDRESS_MASK)
        return MAPPED_SPECIAL;
    if (!find_layer(&owner.arena[arena], start, end - start, &request.offset))
        return MAPPED_LAYERS;
    extent = calloc(1, sizeof(*extent));
    if (!extent)
        return MAPPED_NO_MEMORY;
    request.preferred = preferred_shadow(start);
    /* The keeper pauses other threads for one portion after the other, so that they get on in between. */
    if (portions)
        block_signals(alone, &signals);
    else
        begin_alone(alone, &signals);
    keeper_call(switch_in_call, &request);
    if (portions)
        unblock_signals(alone, &signals);
    else
        end_alone(alone, &signals);
    if (!request.done) {
        free(extent);
        return request.reason;
    }
    extent->start = request.offset;
    extent->end = request.offset + request.done;
    extent->shadow = request.shadow;
    extent->regions = 1;
    extent->generation = ++owner.generation;
    extent->locked_by_program = locked_by_program;
    extents_insert(live, extent);
    if (!locked_by_program)
        owner.locked_bytes += request.done;
    *ret_done = request.done;
    *ret_offset = request.offset;
    return request.reason;
}

uint32_t place_generation(unsigned arena, uint64_t offset)
{
    const struct extent *extent = extents_from(&owner.arena[arena].live, offset);

    return extent ? extent->generation : 0;
}

static int split_at_ends(struct extents *set, uint64_t start, uint64_t end)
{
    int error = extents_split(set, start);

    return error ? error : extents_split(set, end);
}

int place_use(unsigned arena, uint64_t offset, uint64_t length)
{
    struct extents *live = &owner.arena[arena].live;
    uint64_t end = offset + length;
    int error = split_at_ends(live, offset, end);

    if (error)
        return error;
    for (uint64_t at = offset; at < end;) {
        const struct extent *extent = extents_from(live, at);

        if (!extent || extent->start > at)
            return -ESTALE;
        at = extent->end;
    }
    for (uint64_t at = offset; at < end;) {
        struct extent *extent = extents_from(live, at);

        if (extent->regions++ == 0)
            uncount_idle(extent);
        at = extent->end;
    }
    return 0;
}

/* --- giving back ------------------------------------------------------------------------------------- */

/* The arena is no longer mapped at its address. The program may have moved it (mremap()): shared memory that no child
 * inherits must not remain at any address. */
static void release_moved(unsigned arena, const struct extent *extent, uint64_t start, uint64_t end,
                          bool alone)
{
    struct maps maps;
    struct mapping mapping;

    if (window_maps(&maps) != 0)
        return;
    for (uintptr_t next = 0; maps_find(&maps, next, &mapping) == 0; next = mapping.end) {
        uint64_t first = max_of(mapping.offset, start);
        uint64_t last = min_of(mapping.offset + (mapping.end - mapping.start), end);

        if (!mapping_is_arena(&mapping, arena) || first >= last ||
            is_view(mapping.start + (first - mapping.offset)))
            continue;
        struct switch_out request = {.address = mapping.start + (first - mapping.offset),
                                     .length = last - first,
                                     .arena = arena,
                                     .offset = first,
                                     .shadow = extent->shadow + (first - extent->start),
                                     .locked_by_program = extent->locked_by_program,
                                     .alone = alone};
        keeper_call(switch_out_call, &request);
    }
    maps_close(&maps);
    unmap(extent->shadow + (start - extent->start), end - start);
}

/* The first offset at or after `at` that is mapped at its own address. */
static uint64_t next_in_place(unsigned arena, const struct extent *extent, uint64_t at)
{
    uint64_t home = extent->start & ADDRESS_MASK;
    struct maps maps;
    struct mapping mapping;
    uint64_t found = extent->end;

    if (window_maps(&maps) != 0)
        return found;
    for (uintptr_t next = home + (at - extent->start);
         found == extent->end && maps_find(&maps, next, &mapping) == 0 &&
         mapping.start < home + extent_length(extent);
         next = mapping.end) {
        uint64_t address = max_of((uint64_t)mapping.start, (uint64_t)next);
        uint64_t offset = extent->start + (address - home);

        if (mapping_is_arena(&mapping, arena) && mapping.offset + (address - mapping.start) == offset &&
            !is_view(address))
            found = offset;
    }
    maps_close(&maps);
    return found;
}

/* Returns the offset that was reached: extent->end if all is done. */
static uint64_t release_pages(unsigned arena, const struct extent *extent, bool alone)
{
    uint64_t at = extent->start;

    while (at < extent->end) {
        struct switch_out request = {.address = at & ADDRESS_MASK,
                                     .length = extent->end - at,
                                     .arena = arena,
                                     .offset = at,
                                     .shadow = extent->shadow + (at - extent->start),
                                     .locked_by_program = extent->locked_by_program,
                                     .alone = alone};

        if (is_view(request.address)) /* the program moved the mapping, and a view took its address */
            request.error = -ESTALE;
        else
            keeper_call(switch_out_call, &request);
        at += request.done;
        if (request.error == -ESTALE) {
            uint64_t next = next_in_place(arena, extent, at);

            /* No progress: the program changes the mapping concurrently. */
            next = next > at ? next : min_of(at + page_size(), extent->end);
            release_moved(arena, extent, at, next, alone);
            at = next;
        } else if (request.error) {
            log_warn("memory at 0x%llx was registered and mapped for peers, and cannot become private memory "
                     "again: %s; it stays shared with children of fork(), so parent and child see each "
                     "other's writes there. SOFTHCA_MAPPED=0 avoids this",
                     (unsigned long long)request.address, strerror(-request.error));
            return at;
        }
    }
    return at;
}

/* Removes [extent->start, end) from the set of live extents and frees its file pages. */
static void forget(unsigned arena, struct extent *extent, uint64_t end, bool stores_may_come)
{
    struct extents *live = &owner.arena[arena].live;
    struct hole hole = {arena, extent->start, end - extent->start};
    uint64_t left = extent->end - end;

    if (end == extent->start || extents_split(live, end) != 0) {
        count_idle(extent);
        return;
    }
    owner.lingering += left;
    extents_remove(live, extent);
    if (!extent->locked_by_program)
        owner.locked_bytes -= extent_length(extent);
    keeper_call(punch_call, &hole);
    if (stores_may_come) {
        extent->shadow = 0;
        extents_insert(&owner.arena[arena].orphans, extent);
    } else {
        free(extent);
    }
}

/* Switches an extent without regions back. It lingers if pages are pinned, or if the program has got threads since it
 * was switched in a call. */
static void release(unsigned arena, struct extent *extent, bool pinned, bool stores_may_come)
{
    enum switch_means means = pinned ? SWITCH_NOT : switch_means(stores_may_come);
    uint64_t done = extent->start;
    sigset_t signals;

    if (means != SWITCH_NOT) {
        begin_alone(means == SWITCH_ALONE, &signals);
        done = release_pages(arena, extent, means == SWITCH_ALONE);
        end_alone(means == SWITCH_ALONE, &signals);
    }
    forget(arena, extent, done, stores_may_come);
}

/* --- waiting for neighbours -------------------------------------------------------------------------- */

/* Adjacent extents are one mapping. Switching back one in the middle would leave two, and 100,000 regions that end in
 * random order would exceed the limit of mappings. Such an extent waits until one of its neighbours is switched back.
 */
static bool must_wait(unsigned arena, const struct extent *extent)
{
    const struct extents *live = &owner.arena[arena].live;
    const struct extent *before, *after;

    if (budget_has_a_run(map_limit()))
        return false;
    before = extents_before(live, extent->start);
    after = extents_from(live, extent->end);
    return before && after && extent_continues(before, extent) && extent_continues(extent, after);
}

/* Two adjacent waiting extents become one. */
static struct extent *join_waiting(struct extents *live, struct extent *before, struct extent *after)
{
    if (!before || !after || !before->waits || !after->waits || !extent_continues(before, after) ||
        before->locked_by_program != after->locked_by_program || before->in_fork != after->in_fork)
        return NULL;
    extents_remove(live, before);
    extents_remove(live, after);
    before->end = after->end;
    before->generation = ++owner.generation;
    extents_insert(live, before);
    free(after);
    return before;
}

static void let_wait(unsigned arena, struct extent *extent)
{
    struct extents *live = &owner.arena[arena].live;
    struct extent *joined;

    extent->waits = true;
    count_idle(extent);
    joined = join_waiting(live, extents_before(live, extent->start), extent);
    extent = joined ? joined : extent;
    join_waiting(live, extent, extents_from(live, extent->end));
}

/* [start, end) has been switched back: waiting neighbours are no longer in the middle of a mapping. */
static void end_waiting(unsigned arena, uint64_t start, uint64_t end, bool pinned)
{
    struct extents *live = &owner.arena[arena].live;
    struct extent *extent;

    while ((extent = extents_before(live, start)) != NULL && extent->waits && extent->end == start) {
        start = extent->start;
        uncount_idle(extent);
        release(arena, extent, pinned, false);
    }
    while ((extent = extents_from(live, end)) != NULL && extent->waits && extent->start == end) {
        end = extent->end;
        uncount_idle(extent);
        release(arena, extent, pinned, false);
    }
}

void place_unuse(unsigned arena, uint64_t offset, uint64_t length, bool stores_may_come)
{
    struct extents *live = &owner.arena[arena].live;
    uint64_t end = offset + length;
    bool pinned = pages_are_pinned();

    if (split_at_ends(live, offset, end) != 0)
        return;
    for (uint64_t at = offset; at < end;) {
        struct extent *extent = extents_from(live, at);

        if (!extent || extent->start >= end)
            break;
        at = extent->end;
        if (--extent->regions != 0)
            continue;
        if (!stores_may_come && must_wait(arena, extent)) {
            let_wait(arena, extent);
        } else {
            uint64_t start = extent->start;

            release(arena, extent, pinned, stores_may_come);
            end_waiting(arena, start, at, pinned);
        }
    }
}

void place_sweep(void)
{
    bool relaxed = owner.waiting && maps_used() <= map_limit() / 2;

    if ((!owner.lingering && !relaxed) || pages_are_pinned() || switch_means(false) == SWITCH_NOT)
        return;
    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++) {
        struct extents *live = &owner.arena[arena].live;
        struct extent *extent;

        for (uint64_t at = 0; (extent = extents_from(live, at)) != NULL;) {
            at = extent->end;
            if (extent->regions || (extent->waits && !(relaxed && budget_has_a_run(map_limit() / 4 * 3))))
                continue;
            uncount_idle(extent);
            release(arena, extent, false, false);
        }
    }
}

uint64_t place_lingering_bytes(unsigned arena)
{
    const struct extents *live = &owner.arena[arena].live;
    uint64_t bytes = 0;

    if (!owner.lingering && !owner.waiting)
        return 0;
    for (const struct extent *extent = extents_from(live, 0); extent;
         extent = extents_from(live, extent->end))
        bytes += extent->regions ? 0 : extent_length(extent);
    return bytes;
}

void place_forget_orphans(unsigned arena)
{
    struct extents *orphans = &owner.arena[arena].orphans;
    struct extent *extent;

    while ((extent = orphans->root) != NULL) {
        struct hole hole = {arena, extent->start, extent_length(extent)};

        extents_remove(orphans, extent);
        keeper_call(punch_call, &hole);
        free(extent);
    }
}

/* --- moving ------------------------------------------------------------------------------------------ */

/* Updates extents and regions: [from, from + length) is at `to` now. */
static void relocate(unsigned arena, uint64_t from, uint64_t length, uint64_t to, struct extent *orphan)
{
    struct extents *live = &owner.arena[arena].live;
    uint32_t generation = ++owner.generation;

    for (uint64_t at = from; at < from + length;) {
        struct extent *extent = extents_from(live, at);

        at = extent->end;
        extents_remove(live, extent);
        extent->start = to + (extent->start - from);
        extent->end = to + (extent->end - from);
        extent->generation = generation;
        extents_insert(live, extent);
    }
    list_for_each (node, &owner.regions)
        region_relocate(list_entry(node, struct mapped_region, node), arena, from, length, to, generation);
    orphan->start = from;
    orphan->end = from + length;
    extents_insert(&owner.arena[arena].orphans, orphan);
}

static int reserve_books(unsigned arena, uint64_t from, uint64_t length)
{
    int error = split_at_ends(&owner.arena[arena].live, from, from + length);

    list_for_each (node, &owner.regions) {
        if (!error)
            error = region_reserve(list_entry(node, struct mapped_region, node));
    }
    return error;
}

int place_move(unsigned arena, uint64_t address, uint64_t offset, uint64_t length)
{
    enum switch_means means = switch_means(true);
    struct switch_over request = {
        .address = address, .length = length, .arena = arena, .from = offset, .alone = means == SWITCH_ALONE};
    struct hole hole = {arena, offset, 0};
    struct extent *orphan;
    int error = reserve_books(arena, offset, length);
    sigset_t signals;

    if (error)
        return error;
    if (means == SWITCH_NOT)
        return -EBUSY;
    if (!find_layer(&owner.arena[arena], offset & ADDRESS_MASK, length, &request.to))
        return -ENOSPC;
    orphan = calloc(1, sizeof(*orphan));
    if (!orphan)
        return -ENOMEM;
    begin_alone(request.alone, &signals);
    keeper_call(switch_over_call, &request);
    end_alone(request.alone, &signals);
    hole.length = request.done;
    if (request.done && extents_split(&owner.arena[arena].live, offset + request.done) == 0) {
        keeper_call(punch_call, &hole);
        relocate(arena, offset, request.done, request.to, orphan);
    } else {
        free(orphan);
    }
    return request.error;
}
