/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which object belongs to a pointer or number of the program's. Lookups take no lock; changes do. */
#ifndef WATCH_TABLE_H
#define WATCH_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/types.h"

/* key 0: never used, and no key lies behind it that was put before it; TABLE_GAP: free, but keys may lie behind it. */
#define TABLE_GAP 1u
struct table_entry {
    _Atomic uint64_t key;
    _Atomic(void *) value;
};

struct table_array {
    unsigned shift;            /* 64 - log2 of the number of entries */
    uint32_t used;             /* entries that are not 0 */
    struct table_array *older; /* kept for readers */
    struct table_entry entry[];
};

struct table {
    struct lock lock; /* of changes; a leaf */
    _Atomic(struct table_array *) array;
};

static inline uint64_t table_place(const struct table_array *array, uint64_t key)
{
    return (key * 0x9e3779b97f4a7c15ull) >> array->shift;
}

/* NULL: none. The key is not 0 or TABLE_GAP. */
void *table_find(const struct table *table, uint64_t key);

/* Replaces what has the key. False: no memory. */
bool table_put(struct table *table, uint64_t key, void *value);
/* Only if the key still has this value. */
void table_drop(struct table *table, uint64_t key, const void *value);
/* For each value; the caller excludes changes. */
void table_each(struct table *table, void (*visit)(void *value, void *argument), void *argument);

#endif
