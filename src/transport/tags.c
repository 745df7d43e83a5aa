/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "transport/tags.h"

#include <errno.h>

/* The slot in the low half, its generation in the high one. */
#define HANDLE_SLOT_BITS 16
#define NONE             UINT32_MAX
_Static_assert(LIMIT_TAGS <= 1u << HANDLE_SLOT_BITS, "a handle has space for any slot");

static uint32_t slot_of(const struct tag_list *list, const struct tag_entry *entry)
{
    return (uint32_t)(entry - list->entries);
}

void tag_list_init(struct tag_list *list, struct tag_entry *entries, uint32_t capacity)
{
    *list = (struct tag_list){
        .entries = entries, .capacity = capacity, .first = NONE, .last = NONE, .free = NONE};
}

uint32_t tag_list_handle(const struct tag_list *list, const struct tag_entry *entry)
{
    return (uint32_t)entry->generation << HANDLE_SLOT_BITS | slot_of(list, entry);
}

static struct tag_entry *take_free(struct tag_list *list)
{
    struct tag_entry *entry;

    if (list->free == NONE)
        return list->used < list->capacity ? &list->entries[list->used++] : NULL;
    entry = &list->entries[list->free];
    list->free = entry->next;
    return entry;
}

struct tag_entry *tag_list_add(struct tag_list *list, uint64_t tag, uint64_t mask)
{
    struct tag_entry *entry = take_free(list);
    uint32_t slot;

    if (!entry)
        return NULL;
    slot = slot_of(list, entry);
    entry->tag = tag;
    entry->mask = mask;
    entry->state = tag_list_in_sync(list) ? TAG_LISTED : TAG_DORMANT;
    list->dormant += entry->state == TAG_DORMANT;
    entry->next = NONE;
    entry->previous = list->last;
    if (list->last == NONE)
        list->first = slot;
    else
        list->entries[list->last].next = slot;
    list->last = slot;
    return entry;
}

static void unlink_entry(struct tag_list *list, const struct tag_entry *entry)
{
    if (entry->previous == NONE)
        list->first = entry->next;
    else
        list->entries[entry->previous].next = entry->next;
    if (entry->next == NONE)
        list->last = entry->previous;
    else
        list->entries[entry->next].previous = entry->previous;
    list->dormant -= entry->state == TAG_DORMANT;
}

void tag_list_release(struct tag_list *list, struct tag_entry *entry)
{
    entry->generation++;
    entry->state = TAG_FREE;
    entry->next = list->free;
    list->free = slot_of(list, entry);
}

int tag_list_remove(struct tag_list *list, uint32_t handle)
{
    uint32_t slot = handle & ((1u << HANDLE_SLOT_BITS) - 1);
    struct tag_entry *entry;

    if (slot >= list->used)
        return -EINVAL;
    entry = &list->entries[slot];
    if (entry->generation != handle >> HANDLE_SLOT_BITS ||
        (entry->state != TAG_LISTED && entry->state != TAG_DORMANT))
        return -ENOENT;
    unlink_entry(list, entry);
    tag_list_release(list, entry);
    return 0;
}

static void wake(struct tag_list *list)
{
    for (uint32_t slot = list->last; list->dormant && slot != NONE; slot = list->entries[slot].previous) {
        if (list->entries[slot].state != TAG_DORMANT)
            continue;
        list->entries[slot].state = TAG_LISTED;
        list->dormant--;
    }
}

void tag_list_sync(struct tag_list *list, uint32_t handled)
{
    list->handled = handled;
    if (tag_list_in_sync(list))
        wake(list);
}

struct tag_entry *tag_list_match(struct tag_list *list, uint64_t tag)
{
    for (uint32_t slot = list->first; slot != NONE; slot = list->entries[slot].next) {
        struct tag_entry *entry = &list->entries[slot];

        if (entry->state == TAG_DORMANT || (tag & entry->mask) != entry->tag)
            continue;
        unlink_entry(list, entry);
        entry->state = TAG_MATCHED;
        return entry;
    }
    return NULL;
}

void tag_list_count(struct tag_list *list)
{
    list->unexpected++;
}

void tag_list_discount(struct tag_list *list)
{
    list->unexpected--;
    if (tag_list_in_sync(list))
        wake(list);
}
