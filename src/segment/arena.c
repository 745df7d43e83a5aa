/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The buddy allocator of the segment's arena. */
#include "segment/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/sys.h"
#include "base/types.h"

static unsigned order_of(size_t size)
{
    size_t units = (size + ARENA_UNIT - 1) >> ARENA_UNIT_SHIFT;

    return units <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(units - 1);
}

static void mark_free(struct arena_order *order, uint64_t index)
{
    for (unsigned level = 0; level < order->levels; level++, index /= 64)
        order->level[level][index / 64] |= 1ull << (index % 64);
}

static void mark_taken(struct arena_order *order, uint64_t index)
{
    for (unsigned level = 0; level < order->levels; level++, index /= 64) {
        order->level[level][index / 64] &= ~(1ull << (index % 64));
        if (order->level[level][index / 64] != 0)
            break;
    }
}

static bool is_free(const struct arena_order *order, uint64_t index)
{
    return (order->level[0][index / 64] >> (index % 64)) & 1;
}

/* The lowest free extent of an order that has one. */
static uint64_t lowest_free(const struct arena_order *order)
{
    uint64_t index = 0;

    for (unsigned level = order->levels; level-- > 0;)
        index = index * 64 + (unsigned)__builtin_ctzll(order->level[level][index]);
    return index;
}

static bool has_free(const struct arena_order *order)
{
    return order->level[order->levels - 1][0] != 0;
}

static unsigned piece_order(size_t size)
{
    size_t pieces = (size + ARENA_PIECE - 1) / ARENA_PIECE;

    return pieces <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(pieces - 1);
}

static bool is_small(size_t size)
{
    return size <= ARENA_PIECE << (ARENA_PIECE_ORDERS - 1);
}

size_t arena_extent(size_t size)
{
    return is_small(size) ? ARENA_PIECE << piece_order(size) : ARENA_UNIT << order_of(size);
}

/* Returns how many words the levels of one order take; places the levels at `words` unless that is NULL. */
static size_t lay_out(struct arena_order *order, uint64_t extents, uint64_t *words)
{
    size_t total = 0;

    order->levels = 0;
    do {
        size_t count = (size_t)((extents + 63) / 64);

        if (words)
            order->level[order->levels] = words + total;
        order->levels++;
        total += count;
        extents = count;
    } while (extents > 1);
    return total;
}

int arena_init(struct arena *arena, uint64_t size)
{
    size_t words = 0;
    int error = -EINVAL;

    memset(arena, 0, sizeof(*arena));
    arena->top = order_of(size);
    if (arena->top >= ARENA_ORDERS)
        return error;
    arena->shared_pages = min_of(1ull << arena->top, (uint64_t)ARENA_SHARED_PAGES);
    for (unsigned i = 0; i <= arena->top; i++)
        words += lay_out(&arena->order[i], 1ull << (arena->top - i), NULL);
    for (unsigned i = 0; i < ARENA_PIECE_ORDERS; i++)
        words += lay_out(&arena->room[i], arena->shared_pages, NULL);
    arena->maps_size = words * sizeof(uint64_t) + arena->shared_pages * sizeof(*arena->taken);
    /* By mmap() and not malloc(): of these megabytes only the pages of used extents are ever touched. */
    arena->maps = sys_mmap(NULL, arena->maps_size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &error);
    if (!arena->maps)
        return error;
    words = 0;
    for (unsigned i = 0; i <= arena->top; i++)
        words += lay_out(&arena->order[i], 1ull << (arena->top - i), (uint64_t *)arena->maps + words);
    for (unsigned i = 0; i < ARENA_PIECE_ORDERS; i++)
        words += lay_out(&arena->room[i], arena->shared_pages, (uint64_t *)arena->maps + words);
    arena->taken = (uint64_t *)arena->maps + words;
    mark_free(&arena->order[arena->top], 0);
    return 0;
}

void arena_fini(struct arena *arena)
{
    if (arena->maps)
        sys_munmap(arena->maps, arena->maps_size);
    arena->maps = NULL;
}

static int64_t take_pages(struct arena *arena, size_t size)
{
    unsigned wanted = order_of(size), from = wanted;
    uint64_t index, offset;

    while (from <= arena->top && !has_free(&arena->order[from]))
        from++;
    if (from > arena->top)
        return -ENOMEM;
    index = lowest_free(&arena->order[from]);
    mark_taken(&arena->order[from], index);
    while (from > wanted) { /* keep the lower half, free the upper */
        from--;
        index *= 2;
        mark_free(&arena->order[from], index + 1);
    }
    offset = index << (wanted + ARENA_UNIT_SHIFT);
    arena->high_water = max_of(arena->high_water, offset + (ARENA_UNIT << wanted));
    return (int64_t)offset;
}

/* --- pieces of a page ----------------------------------------------------------------------------------- */

static uint64_t pieces_mask(unsigned order, unsigned first)
{
    return ((1ull << (1u << order)) - 1) << first;
}

/* The first of free pieces for an extent of this order; ARENA_PIECES: there are none. */
static unsigned free_pieces(uint64_t taken, unsigned order)
{
    unsigned first = 0;

    while (first < ARENA_PIECES && (taken & pieces_mask(order, first)))
        first += 1u << order;
    return first;
}

/* Changes which pieces of the page are taken. A page without any is not shared, and has room for nobody. */
static void set_pieces(struct arena *arena, uint64_t page, uint64_t taken)
{
    arena->taken[page] = taken;
    for (unsigned order = 0; order < ARENA_PIECE_ORDERS; order++) {
        bool has_room = taken && free_pieces(taken, order) < ARENA_PIECES;

        if (has_room && !is_free(&arena->room[order], page))
            mark_free(&arena->room[order], page);
        else if (!has_room && is_free(&arena->room[order], page))
            mark_taken(&arena->room[order], page);
    }
}

int64_t arena_take(struct arena *arena, size_t size)
{
    unsigned order = piece_order(size), first;
    int64_t offset;
    uint64_t page;

    if (!is_small(size))
        return take_pages(arena, size);
    if (has_free(&arena->room[order])) {
        page = lowest_free(&arena->room[order]);
    } else {
        offset = take_pages(arena, ARENA_UNIT);
        page = (uint64_t)offset >> ARENA_UNIT_SHIFT;
        if (offset < 0 || page >= arena->shared_pages)
            return offset;
    }
    first = free_pieces(arena->taken[page], order);
    set_pieces(arena, page, arena->taken[page] | pieces_mask(order, first));
    return (int64_t)(page * ARENA_UNIT + first * ARENA_PIECE);
}

bool arena_is_piece(const struct arena *arena, uint64_t offset, size_t size)
{
    return is_small(size) && offset >> ARENA_UNIT_SHIFT < arena->shared_pages;
}

bool arena_return_piece(struct arena *arena, uint64_t offset, size_t size)
{
    uint64_t page = offset >> ARENA_UNIT_SHIFT;
    unsigned first = (unsigned)(offset % ARENA_UNIT / ARENA_PIECE);

    set_pieces(arena, page, arena->taken[page] & ~pieces_mask(piece_order(size), first));
    return !arena->taken[page];
}

void arena_return(struct arena *arena, uint64_t offset, size_t size)
{
    unsigned order = order_of(size);
    uint64_t index = offset >> (order + ARENA_UNIT_SHIFT);

    for (; order < arena->top && is_free(&arena->order[order], index ^ 1); order++, index /= 2)
        mark_taken(&arena->order[order], index ^ 1);
    mark_free(&arena->order[order], index);
}
