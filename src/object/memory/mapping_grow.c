/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Switches the memory of regions after their registration, in the background or in calls of a single thread
 * (docs/mapped.md).
 *
 * The window of a region is the part that was switched so far, contiguous, because a record describes one part. It
 * grows by steps towards what peers have asked for. Peers have the kernel copy meanwhile. A step is switched in
 * portions, and while one is, the records of all regions on its pages are closed, and say which pages are moving,
 * because a copy into those would be lost. A requester that needs them waits for a moment (direct_copy()). */
#include "mapped/mapped.h"
#include "object/device/device.h"
#include "object/memory/mapping_internal.h"
#include "object/pd/pd.h"

/* Bytes. A portion takes some tens of microseconds, mostly for system calls. */
#define PORTION ((uint64_t)16 << 10)
/* Bytes that a call of the program switches besides its own work: some 0.1 ms. */
#define STEP_IN_CALL ((uint64_t)128 << 10)
/* Regions that mapping_connected() switches at most: each takes some 0.2 ms, however small. */
#define REGIONS_AT_ONCE 64u

static struct list growing = {&growing,
                              &growing}; /* mr.mapping.growing: the window is smaller than what is wanted */
_Atomic uint32_t mapping_growing;        /* how many; changes under mapping_lock */
/* With MAPPING_IN_CALLS: published regions that mapping_connected() has not seen. Changes under mapping_lock. */
static _Atomic uint32_t untried;

/* mapping_lock held. */
static void note_tried(struct mr *mr)
{
    if (mr->mapping.untried)
        atomic_fetch_sub_explicit(&untried, 1, memory_order_relaxed);
    mr->mapping.untried = false;
}

/* Peers get to know before the first step begins. mapping_lock held. */
static void count_growing(uint32_t count)
{
    atomic_store_explicit(&segment_header()->growing, count, memory_order_relaxed);
    atomic_store_explicit(&mapping_growing, count, memory_order_release);
}

/* mapping_lock held. */
static void stop_growing(struct mr *mr)
{
    if (!list_linked(&mr->mapping.growing))
        return;
    list_remove(&mr->mapping.growing);
    count_growing(atomic_load_explicit(&mapping_growing, memory_order_relaxed) - 1);
}

void mapping_grow_begin(struct mr *mr)
{
    list_init(&mr->mapping.growing);
    if (mapping_when == MAPPING_IN_CALLS) {
        mr->mapping.untried = true;
        atomic_fetch_add_explicit(&untried, 1, memory_order_relaxed);
    }
}

void mapping_grow_end(struct mr *mr)
{
    note_tried(mr);
    stop_growing(mr);
}

void mapping_grow_after_fork_in_child(void)
{
    list_init(&growing);
    atomic_store_explicit(&mapping_growing, 0, memory_order_relaxed);
    atomic_store_explicit(&untried, 0, memory_order_relaxed);
}

/* --- in steps -------------------------------------------------------------------------------------------- */

static void ask_for(struct mr *mr, uint64_t start, uint64_t end)
{
    struct mapping *mapping = &mr->mapping;

    if (mapping->wanted_from == mapping->wanted_to) {
        mapping->wanted_from = mapping->from = mapping->to = start;
        mapping->wanted_to = end;
    } else {
        mapping->wanted_from = min_of(mapping->wanted_from, start);
        mapping->wanted_to = max_of(mapping->wanted_to, end);
    }
    if (list_linked(&mapping->growing) ||
        (mapping->from == mapping->wanted_from && mapping->to == mapping->wanted_to))
        return;
    list_push_back(&growing, &mapping->growing);
    count_growing(atomic_load_explicit(&mapping_growing, memory_order_relaxed) + 1);
}

bool mapping_want(uint32_t slot, uint32_t step)
{
    struct mr *mr;
    uint64_t start, end;

    if (!mapping_on_demand() || slot >= LIMIT_KEY_SLOTS)
        return false;
    lock_acquire(&mapping_lock);
    mr = mapping_region_in(slot);
    if (mr && !mr->mapping.refused) {
        start = mapping_step_start((uintptr_t)mr->ibv.addr, step);
        end = min_of(start + MAPPING_STEP, (uintptr_t)mr->ibv.addr + mr->ibv.length);
        start = max_of(start, (uint64_t)(uintptr_t)mr->ibv.addr);
        if (start < end)
            ask_for(mr, start, end);
    }
    lock_release(&mapping_lock);
    return mapping_is_growing();
}

/* The next window, by a step of that length; false: it is as large as wanted. */
static bool next_window(const struct mapping *mapping, uint64_t step, uint64_t *ret_from, uint64_t *ret_to)
{
    *ret_from = mapping->from;
    *ret_to = mapping->to;
    if (mapping->to < mapping->wanted_to)
        *ret_to = min_of((mapping->to & ~(step - 1)) + step, mapping->wanted_to);
    else if (mapping->from > mapping->wanted_from)
        *ret_from = max_of((mapping->from - 1) & ~(step - 1), mapping->wanted_from);
    else
        return false;
    return true;
}

/* A copy into the portion has not ended in time. mapping_lock held. */
static bool copies_hinder;

/* mapped_portions.before; mapping_lock held. */
static bool close_all(uint64_t start, uint64_t end)
{
    bool ended = mapping_close_records(start, end);

    copies_hinder = !ended;
    return ended;
}

/* A portion changes nothing of what the records say: they are opened again. */
static const struct mapped_portions portions = {
    .size = PORTION, .unhindered = true, .before = close_all, .after = mapping_open_records};

/* Until a peer asks again. */
static void ask_for_no_more(struct mr *mr)
{
    mr->mapping.wanted_from = mr->mapping.from;
    mr->mapping.wanted_to = mr->mapping.to;
}

/* Switches what is new in the window; mapping_lock held. */
static void grow(struct mr *mr, uint64_t from, uint64_t to)
{
    struct mapped_region *before = mr->mapping.region, *grown;
    uint64_t start = to > mr->mapping.to ? mr->mapping.to : from;
    uint64_t end = to > mr->mapping.to ? to : mr->mapping.from;
    uint64_t mapped = mapping_largest_piece(before).length;

    /* The record stays as it is, so that peers ask for it more and more seldom. */
    mr->mapping.hindrance = (uint32_t)mapped_hindrance();
    if (mr->mapping.hindrance) {
        __atomic_store_n(&segment_mapped(mr->slot)->reason, mr->mapping.hindrance, __ATOMIC_RELAXED);
        ask_for_no_more(mr);
        return;
    }
    copies_hinder = false;
    grown = mapped_add_in_portions(from, to - from, mapping_peers_access(mr->access), &portions);
    if (grown) {
        mr->mapping.region = grown;
        mapped_remove(before, false); /* its pages are those of the larger one, too */
    }
    if (copies_hinder) { /* what is switched already is found by the next step */
        ask_for_no_more(mr);
    } else {
        mr->mapping.from = from;
        mr->mapping.to = to;
        mr->mapping.refused = mapping_largest_piece(mr->mapping.region).length <= mapped;
    }
    if (mr->mapping.refused)
        stop_growing(mr);
    mapping_write_records(start, end);
}

/* One step; mapping_lock held. False: there are no more. */
static bool grow_once(uint64_t step)
{
    struct mr *mr;
    uint64_t from, to;

    if (list_empty(&growing))
        return false;
    mr = list_entry(growing.next, struct mr, mapping.growing);
    if (next_window(&mr->mapping, step, &from, &to))
        grow(mr, from, to);
    else
        stop_growing(mr);
    return !list_empty(&growing);
}

static bool grow_by(uint64_t step)
{
    bool more;

    lock_acquire(&mapping_lock);
    more = grow_once(step);
    lock_release(&mapping_lock);
    return more;
}

bool mapping_grow(void)
{
    return mapping_is_growing() && mapping_when == MAPPING_IN_BACKGROUND && grow_by(MAPPING_STEP);
}

void mapping_grow_in_call(void)
{
    if (mapping_when == MAPPING_IN_CALLS)
        grow_by(STEP_IN_CALL);
}

/* --- before a peer asks ---------------------------------------------------------------------------------- */

/* As much of a region as there is room for, from its beginning on. Bytes that were taken; mapping_lock held. */
static uint64_t ask_for_beginning(struct mr *mr, uint64_t room)
{
    uint64_t start = (uintptr_t)mr->ibv.addr, length = min_of((uint64_t)mr->ibv.length, room);

    note_tried(mr);
    if (!(mr->access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)) || mr->mapping.refused ||
        mr->mapping.ending || !length)
        return 0;
    ask_for(mr, start, start + length);
    return length;
}

/* What is switched before a peer has accessed it takes three quarters of the room: the rest is for what peers turn out
 * to access often. */
static uint64_t room_of_the_untried(void)
{
    struct mapped_means means;
    struct mapped_counts counts;
    uint64_t most;

    mapped_probe(&means);
    if (means.reason != MAPPED_YES)
        return 0;
    mapped_count(&counts);
    most = means.lock_limit / 4 * 3;
    return most - min_of(most, counts.bytes);
}

void mapping_connected(void)
{
    unsigned tried = 0;
    uint64_t room;

    if (likely(!atomic_load_explicit(&untried, memory_order_relaxed)))
        return;
    room = room_of_the_untried();
    lock_acquire(&mapping_lock);
    list_for_each (node, &mapping_regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (!mr->mapping.untried)
            continue;
        if (tried++ < REGIONS_AT_ONCE)
            room -= ask_for_beginning(mr, room);
        else
            note_tried(mr); /* if peers access it often */
    }
    while (grow_once(MAPPING_STEP))
        ;
    lock_release(&mapping_lock);
}
