/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/local_key.h"

cold_path bool local_key_find(struct local_key *key, const struct key_table *keys, uint32_t pd, uint32_t lkey,
                              bool write)
{
    struct key_view view;

    key->lkey = 0;
    if (!lkey || !keys_try_read(&keys->entry[key_slot(lkey)], &view) || view.kind != KEY_REGION ||
        view.lkey != lkey || view.pd != pd || (write && !(view.access & IBV_ACCESS_LOCAL_WRITE)))
        return false;
    *key = (struct local_key){.lkey = lkey,
                              .generation = view.generation,
                              .start = view.iova,
                              .length = view.length,
                              .base = (uintptr_t)view.address};
    return true;
}
