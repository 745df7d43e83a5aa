/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mapped/internal.h"

struct mapped_region *region_new(uint64_t address, uint64_t length, unsigned access)
{
    struct mapped_region *region = calloc(1, sizeof(*region));

    if (!region)
        return NULL;
    region->address = address;
    region->length = length;
    region->access = access;
    region->process = owner.process;
    list_init(&region->node);
    return region;
}

void region_free(struct mapped_region *region)
{
    free(region->pieces);
    free(region->refusals);
    free(region);
}

/* Makes space for one more element of `size` bytes. */
static int make_space(void **array, unsigned count, unsigned *room, size_t size)
{
    unsigned more = *room ? 2 * *room : 1;
    void *bigger;

    if (count < *room)
        return 0;
    bigger = realloc(*array, more * size);
    if (!bigger)
        return -ENOMEM;
    *array = bigger;
    *room = more;
    return 0;
}

static bool continues(const struct mapped_piece *before, const struct mapped_piece *after)
{
    return before->file == after->file && before->address + before->length == after->address &&
           before->offset + before->length == after->offset;
}

int region_add_piece(struct mapped_region *region, const struct mapped_piece *piece)
{
    int error;

    if (region->piece_count && continues(&region->pieces[region->piece_count - 1], piece)) {
        region->pieces[region->piece_count - 1].length += piece->length;
        return 0;
    }
    error = make_space((void **)&region->pieces, region->piece_count, &region->piece_room, sizeof(*piece));
    if (!error)
        region->pieces[region->piece_count++] = *piece;
    return error;
}

int region_add_refusal(struct mapped_region *region, uint64_t address, uint64_t length,
                       enum mapped_reason reason)
{
    struct mapped_refusal *last = region->refusal_count ? &region->refusals[region->refusal_count - 1] : NULL;
    int error;

    if (!length)
        return 0;
    if (last && last->reason == reason && last->address + last->length == address) {
        last->length += length;
        return 0;
    }
    /* There may be one per page; the first ones suffice for diagnosis. */
    if (region->refusal_count == PIECES_MAX)
        return 0;
    error =
        make_space((void **)&region->refusals, region->refusal_count, &region->refusal_room, sizeof(*last));
    if (!error)
        region->refusals[region->refusal_count++] = (struct mapped_refusal){address, length, reason};
    return error;
}

int region_reserve(struct mapped_region *region)
{
    int error = 0;

    while (region->piece_room < region->piece_count + 2 && !error)
        error = make_space((void **)&region->pieces, region->piece_room, &region->piece_room,
                           sizeof(region->pieces[0]));
    return error;
}

/* Splits piece `index`; the first part gets that length. */
static void split_piece(struct mapped_region *region, unsigned index, uint64_t length)
{
    struct mapped_piece *piece = &region->pieces[index];

    memmove(piece + 1, piece, (region->piece_count - index) * sizeof(*piece));
    region->piece_count++;
    piece[0].length = length;
    piece[1].address += length;
    piece[1].offset += length;
    piece[1].length -= length;
}

void region_relocate(struct mapped_region *region, uint32_t file, uint64_t from, uint64_t length, uint64_t to,
                     uint32_t generation)
{
    for (unsigned i = 0; i < region->piece_count; i++) {
        struct mapped_piece *piece = &region->pieces[i];

        if (piece->file != file || piece->offset >= from + length || piece->offset + piece->length <= from)
            continue;
        if (piece->offset < from) { /* the part before `from` stays; the rest is the next piece */
            split_piece(region, i, from - piece->offset);
            continue;
        }
        if (piece->offset + piece->length > from + length)
            split_piece(region, i, from + length - piece->offset);
        piece->offset = to + (piece->offset - from);
        piece->generation = generation;
    }
}

unsigned mapped_pieces(const struct mapped_region *region, struct mapped_piece *ret_pieces, unsigned max)
{
    unsigned count = 0;

    if (!owner_enter())
        return 0;
    if (region && region->process == owner.process) {
        count = region->piece_count;
        for (unsigned i = 0; i < min_of(count, max); i++)
            ret_pieces[i] = region->pieces[i];
    }
    owner_leave();
    return count;
}

unsigned mapped_refusals(const struct mapped_region *region, struct mapped_refusal *ret_refusals,
                         unsigned max)
{
    unsigned count = 0;

    if (!owner_enter())
        return 0;
    if (region) {
        count = region->refusal_count;
        for (unsigned i = 0; i < min_of(count, max); i++)
            ret_refusals[i] = region->refusals[i];
    }
    owner_leave();
    return count;
}
