/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Keys of imported regions of other processes (object/memory/imported.c). Each is an alias of the key of this
 * process's own region over the same memory, while a condition on a word in memory that both processes share holds.
 * Aliases are looked up only after a key was not found in the table, so a process without any pays nothing. */
#ifndef RULES_ALIAS_H
#define RULES_ALIAS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rules/keys.h"

#define KEY_ALIASES 512u

/* The alias is valid while (*word & mask) == value. */
struct key_condition {
    const _Atomic uint64_t *word;
    uint64_t mask, value;
};

/* The owner's side, under the lock of the table, of which a process has one. Returns the number of the alias;
 * KEY_ALIASES: none is free. */
uint32_t key_alias_add(const struct key_table *table, uint32_t key, uint32_t own,
                       const struct key_condition *condition);
/* No lookup finds the alias from now on. The caller waits for those in progress (rundown_wait()), then calls
 * key_alias_free(). */
void key_alias_withdraw(uint32_t number);
void key_alias_free(uint32_t number);
/* In the child of a fork. */
void key_aliases_reset(void);

/* The key in the table that `key` is a valid alias of; 0: none. Inside a rundown section. */
uint32_t key_alias_resolve(const struct key_table *table, uint32_t key);
/* Slot of the region or MW that the key names, also if the alias is not valid any more. */
uint32_t key_alias_slot(const struct key_table *table, uint32_t key);

#endif
