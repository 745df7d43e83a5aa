/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "watch/table.h"

#include <stdlib.h>

#define SMALLEST 10 /* log2 of entries */

static uint32_t entries(const struct table_array *array)
{
    return (uint32_t)(1ull << (64 - array->shift));
}

void *table_find(const struct table *table, uint64_t key)
{
    /* Acquire: the entries; partner: the release in grow(). */
    const struct table_array *array = atomic_load_explicit(&table->array, memory_order_acquire);
    uint64_t mask, place;

    if (!array)
        return NULL;
    mask = entries(array) - 1;
    place = table_place(array, key);
    for (;;) {
        uint64_t found = atomic_load_explicit(&array->entry[place].key, memory_order_acquire);

        if (found == key)
            return atomic_load_explicit(&array->entry[place].value, memory_order_relaxed);
        if (found == 0)
            return NULL;
        place = (place + 1) & mask;
    }
}

static struct table_array *make(unsigned log)
{
    struct table_array *array = calloc(1, sizeof(*array) + (sizeof(struct table_entry) << log));

    if (array)
        array->shift = 64 - log;
    return array;
}

/* The key is not there. */
static void add(struct table_array *array, uint64_t key, void *value)
{
    uint64_t mask = entries(array) - 1, place = table_place(array, key);

    while (atomic_load_explicit(&array->entry[place].key, memory_order_relaxed) > TABLE_GAP)
        place = (place + 1) & mask;
    if (atomic_load_explicit(&array->entry[place].key, memory_order_relaxed) == 0)
        array->used++;
    atomic_store_explicit(&array->entry[place].value, value, memory_order_relaxed);
    /* Release: who sees the key sees the value; partner: table_find(). */
    atomic_store_explicit(&array->entry[place].key, key, memory_order_release);
}

static struct table_entry *entry_of(struct table_array *array, uint64_t key)
{
    uint64_t mask = entries(array) - 1, place = table_place(array, key);
    uint64_t found;

    while ((found = atomic_load_explicit(&array->entry[place].key, memory_order_relaxed)) != 0) {
        if (found == key)
            return &array->entry[place];
        place = (place + 1) & mask;
    }
    return NULL;
}

/* A quarter is the most, also of gaps: most lookups take one step. */
static struct table_array *grow(struct table *table, struct table_array *old)
{
    struct table_array *array = make(old ? 64 - old->shift + 1 : SMALLEST);

    if (!array)
        return NULL;
    for (uint32_t i = 0; old && i < entries(old); i++) {
        uint64_t key = atomic_load_explicit(&old->entry[i].key, memory_order_relaxed);

        if (key > TABLE_GAP)
            add(array, key, atomic_load_explicit(&old->entry[i].value, memory_order_relaxed));
    }
    array->older =
        old; /* not freed: a reader may be in it. All of them together are no larger than the newest */
    atomic_store_explicit(&table->array, array, memory_order_release);
    return array;
}

bool table_put(struct table *table, uint64_t key, void *value)
{
    struct table_array *array;
    struct table_entry *entry;

    lock_acquire(&table->lock);
    array = atomic_load_explicit(&table->array, memory_order_relaxed);
    entry = array ? entry_of(array, key) : NULL;
    if (entry) {
        atomic_store_explicit(&entry->value, value, memory_order_release);
    } else {
        if (!array || array->used >= entries(array) / 4)
            array = grow(table, array);
        if (array)
            add(array, key, value);
    }
    lock_release(&table->lock);
    return entry || array;
}

void table_drop(struct table *table, uint64_t key, const void *value)
{
    struct table_array *array;
    struct table_entry *entry;

    lock_acquire(&table->lock);
    array = atomic_load_explicit(&table->array, memory_order_relaxed);
    entry = array ? entry_of(array, key) : NULL;
    if (entry && atomic_load_explicit(&entry->value, memory_order_relaxed) == value) {
        uint64_t mask = entries(array) - 1, place = (uint64_t)(entry - array->entry);

        atomic_store_explicit(&entry->key, TABLE_GAP, memory_order_release);
        /* A gap that no key lies behind is an end. */
        if (atomic_load_explicit(&array->entry[(place + 1) & mask].key, memory_order_relaxed) == 0) {
            while (atomic_load_explicit(&array->entry[place].key, memory_order_relaxed) == TABLE_GAP) {
                atomic_store_explicit(&array->entry[place].key, 0, memory_order_release);
                array->used--;
                place = (place - 1) & mask;
            }
        }
    }
    lock_release(&table->lock);
}

void table_each(struct table *table, void (*visit)(void *value, void *argument), void *argument)
{
    struct table_array *array = atomic_load_explicit(&table->array, memory_order_relaxed);

    for (uint32_t i = 0; array && i < entries(array); i++) {
        if (atomic_load_explicit(&array->entry[i].key, memory_order_relaxed) > TABLE_GAP)
            visit(atomic_load_explicit(&array->entry[i].value, memory_order_relaxed), argument);
    }
}
