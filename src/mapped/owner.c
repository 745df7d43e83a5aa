/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Owner side of the public header: regions. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/sys.h"
#include "mapped/internal.h"
#include "mapped/window.h"

struct lock mapped_lock = LOCK_INIT;
struct owner owner;

/* --- adding ------------------------------------------------------------------------------------------ */

struct adding {
    struct mapped_region *region;
    struct maps maps;
    enum mapped_reason switching; /* why no private pages at all can be switched */
    bool switching_known;
    bool alone;
    const struct mapped_portions *portions; /* NULL: all at once */
};

static unsigned wanted_arena(const struct adding *adding)
{
    return adding->region->access & MAPPED_PEERS_WRITE ? ARENA_WRITABLE : ARENA_READ_ONLY;
}

/* Conditions that do not depend on the pages; checked once, and only if there are pages to switch. */
static enum mapped_reason may_switch(struct adding *adding)
{
    if (!adding->switching_known) {
        bool unhindered = adding->portions && adding->portions->unhindered;
        enum switch_means means = unhindered ? switch_means_unhindered() : switch_means(false);

        adding->switching_known = true;
        adding->alone = means == SWITCH_ALONE;
        adding->switching = pages_are_pinned()    ? MAPPED_PINNED
                            : means == SWITCH_NOT ? not_alone()
                                                  : MAPPED_YES;
    }
    return adding->switching;
}

/* madvise(MADV_COLD) fails on locked memory; on other memory, one page that is reclaimed earlier does no harm. */
static bool is_locked(uint64_t address)
{
    return sys_madvise((void *)address, page_size(), MADV_COLD) == -EINVAL;
}

static int add_piece(struct adding *adding, uint64_t address, uint64_t length, uint32_t file, uint64_t offset,
                     uint32_t generation)
{
    const struct mapped_piece piece = {address, length, offset, file, generation};

    return region_add_piece(adding->region, &piece);
}

/* Private pages up to the next stack, or a stack: *end moves to the end of that part. */
static enum mapped_reason add_private(struct adding *adding, const struct mapping *mapping, uint64_t start,
                                      uint64_t *end, uint64_t *ret_done)
{
    enum mapped_reason reason = may_switch(adding);
    uint64_t stack, stack_end, offset;
    unsigned arena = wanted_arena(adding);
    bool locked;

    if (reason != MAPPED_YES)
        return reason;
    stack = stack_in(mapping, start, *end, &stack_end);
    *end = stack == start ? stack_end : stack;
    if (stack == start)
        return MAPPED_STACK;
    locked = is_locked(start);
    reason = allowed_by_budget(*end - start, locked, !place_continues(start, *end, arena));
    if (reason == MAPPED_YES)
        reason = place_in(start, *end, arena, locked, adding->alone, adding->portions, ret_done, &offset);
    /* Cannot fail: region_reserve() has made space for the piece. */
    if (*ret_done)
        add_piece(adding, start, *ret_done, arena, offset, place_generation(arena, offset));
    return reason;
}

/* Pages that an earlier region has switched. They may have different generations. */
static enum mapped_reason add_switched(struct adding *adding, unsigned arena, const struct mapping *mapping,
                                       uint64_t start, uint64_t end)
{
    uint64_t offset = mapping->offset + (start - mapping->start);
    int error = place_use(arena, offset, end - start);

    if (error)
        return error == -ENOMEM ? MAPPED_NO_MEMORY : MAPPED_CHANGED;
    while (start < end && !error) {
        const struct extent *extent = extents_from(&owner.arena[arena].live, offset);
        uint64_t length = min_of(extent->end - offset, end - start);

        error = add_piece(adding, start, length, arena, offset, extent->generation);
        if (error) /* pages without a piece would never be switched back */
            place_unuse(arena, offset, end - start, false);
        start += length;
        offset += length;
    }
    return error ? MAPPED_NO_MEMORY : MAPPED_YES;
}

static enum mapped_reason add_shared(struct adding *adding, const struct mapping *mapping, uint64_t start,
                                     uint64_t end)
{
    enum mapped_reason reason;
    uint32_t file;

    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++) {
        if (mapping_is_arena(mapping, arena))
            return add_switched(adding, arena, mapping, start, end);
    }
    reason = file_use(mapping, adding->region->access & MAPPED_PEERS_WRITE, &file);
    if (reason == MAPPED_YES &&
        add_piece(adding, start, end - start, file, mapping->offset + (start - mapping->start), 0) != 0)
        reason = MAPPED_NO_MEMORY;
    return reason;
}

/* [start, *end) of one mapping, or the first part of it: *end moves to where the result no longer holds. *ret_done:
 * how many bytes from the start are mapped now. */
static enum mapped_reason add_mapping(struct adding *adding, const struct mapping *mapping, uint64_t start,
                                      uint64_t *end, uint64_t *ret_done)
{
    enum mapped_reason reason;

    *ret_done = 0;
    if (region_reserve(adding->region) != 0)
        return MAPPED_NO_MEMORY;
    if (adding->region->piece_count >= PIECES_MAX)
        return MAPPED_PIECES;
    if (mapping->executable)
        return MAPPED_EXECUTABLE;
    if (mapping->shared && mapping->readable &&
        (mapping->writable || !(adding->region->access & MAPPED_PEERS_WRITE))) {
        reason = add_shared(adding, mapping, start, *end);
        *ret_done = reason == MAPPED_YES ? *end - start : 0;
        return reason;
    }
    if (!mapping->readable || !mapping->writable)
        return MAPPED_NOT_WRITABLE;
    if (mapping->inode)
        return MAPPED_PRIVATE_FILE;
    return add_private(adding, mapping, start, end, ret_done);
}

/* --- mappings that must not grow ---------------------------------------------------------------------- */

/* mremap() would grow a mapping of the arena into offsets of other memory. For a range of several mappings mremap()
 * fails, and realloc() copies instead. So one page of every mapping that is as long as malloc()'s own mappings gets
 * different advice (MADV_RANDOM), which splits the mapping. */

static bool guard_piece(const struct mapped_piece *piece)
{
    uint64_t page = piece->address, end = piece->address + piece->length;

    if (piece->length < MAY_GROW) /* with its neighbours, the mapping may reach MAY_GROW */
        page = (page + MAY_GROW - 1) & ~(uint64_t)(MAY_GROW - 1);
    return page < end && sys_madvise((void *)page, page_size(), MADV_RANDOM) == 0;
}

static void guard_region(struct mapped_region *region)
{
    owner.guards -= region->guards;
    region->guards = 0;
    for (unsigned i = 0; i < region->piece_count; i++)
        region->guards += region->pieces[i].file < KEEPER_ARENAS && guard_piece(&region->pieces[i]);
    owner.guards += region->guards;
}

static void refuse(struct adding *adding, uint64_t start, uint64_t end, enum mapped_reason reason)
{
    if (start < end)
        region_add_refusal(adding->region, start, end - start, reason);
}

static void add_pages(struct adding *adding, uint64_t start, uint64_t end)
{
    uint64_t next = start;

    while (next < end) {
        enum mapped_reason reason;
        struct mapping mapping;
        uint64_t stop, done;

        if (maps_find(&adding->maps, next, &mapping) != 0 || mapping.start >= end) {
            refuse(adding, next, end, MAPPED_NOTHING_THERE);
            return;
        }
        refuse(adding, next, mapping.start, MAPPED_NOTHING_THERE);
        next = max_of(next, (uint64_t)mapping.start);
        stop = min_of(end, (uint64_t)mapping.end);
        reason = add_mapping(adding, &mapping, next, &stop, &done);
        if (reason != MAPPED_YES)
            refuse(adding, next + done, stop, reason);
        next = stop;
    }
}

static void add_range(struct adding *adding)
{
    struct mapped_region *region = adding->region;
    uint64_t page = page_size(), end = region->address + region->length;
    uint64_t first = (region->address + page - 1) & ~(page - 1), last = end & ~(page - 1);
    enum mapped_reason reason;

    if (end < region->address || first >= last) {
        refuse(adding, region->address, end, MAPPED_PARTIAL_PAGE);
        return;
    }
    /* Between the fork handlers, the shadows hold the child's copies. */
    reason = owner_is_forking() ? MAPPED_CHANGED : allowed_at_all();
    if (reason == MAPPED_YES && window_maps(&adding->maps) != 0)
        reason = MAPPED_KERNEL;
    if (reason != MAPPED_YES) {
        refuse(adding, region->address, end, reason);
        return;
    }
    place_sweep();
    refuse(adding, region->address, first, MAPPED_PARTIAL_PAGE);
    add_pages(adding, first, last);
    refuse(adding, last, end, MAPPED_PARTIAL_PAGE);
    maps_close(&adding->maps);
}

static void ready_regions(void)
{
    if (!owner.regions_ready)
        list_init(&owner.regions);
    owner.regions_ready = true;
}

struct mapped_region *mapped_add(uint64_t address, uint64_t length, unsigned access)
{
    return mapped_add_in_portions(address, length, access, NULL);
}

struct mapped_region *mapped_add_in_portions(uint64_t address, uint64_t length, unsigned access,
                                             const struct mapped_portions *portions)
{
    struct adding adding = {.portions = portions};
    int saved = errno;

    if (!owner_enter())
        return NULL;
    ready_regions();
    adding.region = region_new(address, length, access);
    if (adding.region) {
        add_range(&adding);
        guard_region(adding.region);
        list_push_back(&owner.regions, &adding.region->node);
    }
    owner_leave();
    errno = saved;
    return adding.region;
}

void mapped_remove(struct mapped_region *region, bool stores_may_come)
{
    int saved = errno;

    if (!region)
        return;
    if (!owner_enter()) {
        region_free(region);
        return;
    }
    if (region->process == owner.process) {
        list_remove(&region->node);
        owner.guards -= region->guards;
        for (unsigned i = 0; i < region->piece_count; i++) {
            const struct mapped_piece *piece = &region->pieces[i];

            if (piece->file < KEEPER_ARENAS)
                place_unuse(piece->file, piece->offset, piece->length, stores_may_come);
            else
                file_unuse(piece->file);
        }
        place_sweep();
    }
    owner_leave();
    region_free(region);
    errno = saved;
}

/* --- moving ------------------------------------------------------------------------------------------ */

/* Adjacent mappings that are also adjacent in the file move together. */
struct moving {
    uint64_t start, end, offset;
    unsigned arena;
};

static bool continues_move(const struct moving *moving, const struct moving *next)
{
    return moving->end == next->start && moving->arena == next->arena &&
           moving->offset + (moving->end - moving->start) == next->offset;
}

static int move_now(const struct moving *moving)
{
    if (moving->start == moving->end)
        return 0;
    return place_move(moving->arena, moving->start, moving->offset, moving->end - moving->start);
}

static int move_range(uint64_t start, uint64_t end)
{
    struct moving moving = {0};
    struct maps maps;
    struct mapping mapping;
    int error = window_maps(&maps), failed = 0;

    if (error)
        return error;
    for (uint64_t at = start; at < end && maps_find(&maps, at, &mapping) == 0; at = mapping.end) {
        uint64_t first = max_of(at, (uint64_t)mapping.start), last = min_of(end, (uint64_t)mapping.end);

        for (unsigned arena = 0; arena < KEEPER_ARENAS && first < last; arena++) {
            struct moving next = {first, last, mapping.offset + (first - mapping.start), arena};

            if (!mapping_is_arena(&mapping, arena))
                continue;
            if (continues_move(&moving, &next)) {
                moving.end = last;
                continue;
            }
            error = move_now(&moving);
            if (error && !failed)
                failed = error;
            moving = next;
        }
    }
    error = move_now(&moving);
    maps_close(&maps);
    return failed ? failed : error;
}

static void guard_moved(uint64_t start, uint64_t end)
{
    list_for_each (node, &owner.regions) {
        struct mapped_region *region = list_entry(node, struct mapped_region, node);

        if (region->address < end && start < region->address + region->length)
            guard_region(region);
    }
}

int mapped_move(uint64_t address, uint64_t length)
{
    uint64_t page = page_size(), start = address & ~(page - 1);
    uint64_t end = (address + length + page - 1) & ~(page - 1);
    int saved = errno, error = 0;

    if (!owner_enter())
        return 0;
    ready_regions();
    if (keeper.thread) {
        error = move_range(start, end);
        guard_moved(start, end);
    }
    owner_leave();
    errno = saved;
    return error;
}

void mapped_forget_orphans(void)
{
    int saved = errno;

    if (!owner_enter())
        return;
    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++)
        place_forget_orphans(arena);
    owner_leave();
    errno = saved;
}

/* --- the rest of the public header --------------------------------------------------------------- */

void mapped_set_ports(const struct mapped_ports *ports)
{
    lock_acquire(&mapped_lock);
    owner.ports = ports;
    lock_release(&mapped_lock);
}

enum mapped_reason mapped_hindrance(void)
{
    enum mapped_reason reason = MAPPED_YES;
    int saved = errno;

    if (!owner_enter())
        return MAPPED_CHANGED;
    if (owner.in_calls)
        reason = not_alone();
    owner_leave();
    errno = saved;
    return reason;
}

void mapped_probe(struct mapped_means *ret_means)
{
    int saved = errno;

    *ret_means = (struct mapped_means){.reason = MAPPED_CHANGED};
    if (!owner_enter())
        return;
    ret_means->reason = allowed_at_all();
    if (ret_means->reason == MAPPED_YES) {
        enum switch_means means = switch_means(false);

        ret_means->single_thread = means != SWITCH_BY_FAULTS;
        ret_means->system_calls_wait = keeper.uffd >= 0 && keeper.uffd_full;
        ret_means->lock_limit = lock_limit();
        ret_means->map_limit = map_limit();
        if (means == SWITCH_NOT)
            ret_means->reason = not_alone();
        else if (pages_are_pinned())
            ret_means->reason = MAPPED_PINNED;
    }
    owner_leave();
    errno = saved;
}

void mapped_count(struct mapped_counts *ret_counts)
{
    memset(ret_counts, 0, sizeof(*ret_counts));
    if (!owner_enter())
        return;
    for (unsigned arena = 0; arena < KEEPER_ARENAS; arena++) {
        ret_counts->bytes += owner.arena[arena].live.bytes;
        ret_counts->orphaned += owner.arena[arena].orphans.bytes;
        ret_counts->lingering += place_lingering_bytes(arena);
    }
    ret_counts->maps = maps_used();
    owner_leave();
}
