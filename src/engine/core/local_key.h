/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* keys_check_local() for plain requests: the region that a QP has used last, as long as its key means the same. QP lock
 * held, in a rundown section: until its end the memory is not the program's again. */
#ifndef ENGINE_CORE_LOCAL_KEY_H
#define ENGINE_CORE_LOCAL_KEY_H

#include "engine/core/route.h"

/* Finds the region of an lkey: of the PD, in memory that is there, and writable if `write`. */
bool local_key_find(struct local_key *key, const struct key_table *keys, uint32_t pd, uint32_t lkey,
                    bool write);

/* Where the range is. 0: it is not known to be allowed. */
static inline uintptr_t local_key_address(struct local_key *key, const struct key_table *keys, uint32_t pd,
                                          uint32_t lkey, uint64_t address, uint32_t length, bool write)
{
    uint64_t offset;

    if (unlikely(key->lkey != lkey || atomic_load_explicit(&keys->entry[key_slot(lkey)].generation,
                                                           memory_order_acquire) != key->generation) &&
        !local_key_find(key, keys, pd, lkey, write))
        return 0;
    offset = address - key->start;
    if (unlikely(offset >= key->length || length > key->length - offset)) /* below `start`, it wraps */
        return 0;
    return key->base + offset;
}

#endif
