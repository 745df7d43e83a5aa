/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rules/alias.h"

#include <string.h>

/* key is the flag of a valid entry: stored last when an alias is added, cleared first when it is withdrawn. */
struct alias {
    _Atomic uint32_t key;
    uint32_t own;
    struct key_condition condition;
    bool taken;
};

static struct {
    const struct key_table *table;
    _Atomic uint32_t end; /* no valid entry from here on */
    struct alias alias[KEY_ALIASES];
} aliases;

uint32_t key_alias_add(const struct key_table *table, uint32_t key, uint32_t own,
                       const struct key_condition *condition)
{
    for (uint32_t i = 0; i < KEY_ALIASES; i++) {
        struct alias *alias = &aliases.alias[i];

        if (alias->taken)
            continue;
        aliases.table = table;
        alias->taken = true;
        alias->own = own;
        alias->condition = *condition;
        /* Release: the stores above are seen before the key; partner: the acquire load of find(). */
        atomic_store_explicit(&alias->key, key, memory_order_release);
        if (i >= atomic_load_explicit(&aliases.end, memory_order_relaxed))
            atomic_store_explicit(&aliases.end, i + 1, memory_order_release);
        return i;
    }
    return KEY_ALIASES;
}

void key_alias_withdraw(uint32_t number)
{
    atomic_store_explicit(&aliases.alias[number].key, 0, memory_order_release);
}

void key_alias_free(uint32_t number)
{
    aliases.alias[number].taken = false;
}

void key_aliases_reset(void)
{
    memset(&aliases, 0, sizeof(aliases));
}

static bool holds(const struct key_condition *condition)
{
    return (atomic_load_explicit(condition->word, memory_order_acquire) & condition->mask) ==
           condition->value;
}

static uint32_t find(const struct key_table *table, uint32_t key, bool good)
{
    uint32_t end = atomic_load_explicit(&aliases.end, memory_order_acquire);

    if (likely(!end) || table != aliases.table || !key)
        return 0;
    for (uint32_t i = 0; i < end; i++) {
        const struct alias *alias = &aliases.alias[i];

        if (atomic_load_explicit(&alias->key, memory_order_acquire) == key &&
            (!good || holds(&alias->condition)))
            return alias->own;
    }
    return 0;
}

uint32_t key_alias_resolve(const struct key_table *table, uint32_t key)
{
    return find(table, key, true);
}

uint32_t key_alias_slot(const struct key_table *table, uint32_t key)
{
    const struct key_entry *entry = &table->entry[key_slot(key)];
    uint32_t own = 0;

    if (__atomic_load_n(&entry->lkey, __ATOMIC_RELAXED) != key &&
        __atomic_load_n(&entry->rkey, __ATOMIC_RELAXED) != key)
        own = find(table, key, false);
    return key_slot(own ? own : key);
}
