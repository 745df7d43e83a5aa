/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Keys of regions of other processes that this one has imported (object/memory/imported.c). Each stands for the key
 * of a region of its own that is of the same memory, as long as a word says so that both processes see. They
 * are looked for where a key is not in the table, so whoever has none pays nothing. */
#ifndef RULES_ALIAS_H
#define RULES_ALIAS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rules/keys.h"

#define KEY_ALIASES 512u

/* (*word & mask) == value: it is good. */
struct key_condition {
    const _Atomic uint64_t *word;
    uint64_t mask, value;
};

/* The owner's side, under the lock of the table, of which a process has one. Returns the number; KEY_ALIASES:
 * none is left. */
uint32_t key_alias_add(const struct key_table *table, uint32_t key, uint32_t own,
                       const struct key_condition *condition);
/* Nobody finds it from now on; its number is free once everybody is out who did (key_alias_free()). */
void key_alias_withdraw(uint32_t number);
void key_alias_free(uint32_t number);
/* In the child of a fork. */
void key_aliases_reset(void);

/* The key that is in the table, in a rundown section; 0: it stands for none. */
uint32_t key_alias_resolve(const struct key_table *table, uint32_t key);
/* Slot of the region or window that the key names, or named while it was good. */
uint32_t key_alias_slot(const struct key_table *table, uint32_t key);

#endif
