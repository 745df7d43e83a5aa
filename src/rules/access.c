/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The slow path of the access checks: entries that are being changed, and aliases. */
#include "rules/keys.h"

#include "base/sys.h"
#include "rules/alias.h"
#include "rules/flush.h"

/* An owner changes an entry within nanoseconds, unless it is preempted in the middle. A reader spins for some tens of
 * milliseconds at most: the owner of a mapped table may be stopped or dead. */
#define READ_ATTEMPTS (1u << 20)

bool keys_read(const struct key_table *table, uint32_t slot, struct key_view *ret_view)
{
    const struct key_entry *entry = &table->entry[slot & (LIMIT_KEY_SLOTS - 1)];

    for (uint32_t attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        if (keys_try_read(entry, ret_view))
            return true;
        cpu_relax();
    }
    return false;
}

cold_path enum verdict keys_check_local_again(const struct key_table *table, uint32_t pd, uint32_t lkey,
                                              uint64_t address, uint32_t length, bool write,
                                              struct memory_range *ret_range)
{
    struct key_view view;
    uint32_t own;

    if (!keys_read(table, key_slot(lkey), &view) ||
        !key_view_allows_local(&view, pd, lkey, address, length, write)) {
        own = view.lkey != lkey ? key_alias_resolve(table, lkey) : 0;
        return own ? keys_check_local_again(table, pd, own, address, length, write, ret_range)
                   : VERDICT_LOCAL_PROTECTION;
    }
    memory_range_set(ret_range, &view, lkey, address);
    return VERDICT_OK;
}

cold_path enum verdict keys_check_remote_again(const struct key_table *table, uint32_t pd, uint32_t rkey,
                                               uint64_t address, uint32_t length,
                                               enum remote_operation operation,
                                               struct memory_range *ret_range)
{
    struct key_view view;
    uint32_t own;

    if (!keys_read(table, key_slot(rkey), &view) ||
        !key_view_allows_remote(&view, pd, rkey, address, length, operation)) {
        own = view.rkey != rkey ? key_alias_resolve(table, rkey) : 0;
        return own ? keys_check_remote_again(table, pd, own, address, length, operation, ret_range)
                   : VERDICT_REMOTE_ACCESS;
    }
    memory_range_set(ret_range, &view, rkey, address);
    return VERDICT_OK;
}

cold_path enum verdict keys_check_flush(const struct key_table *table, uint32_t pd, uint32_t qp_access,
                                        uint32_t rkey, uint64_t address, uint32_t length, uint32_t types,
                                        uint32_t level)
{
    uint32_t wanted = flush_access(types), own;
    struct key_view view;

    if (!types || (types & ~FLUSH_TYPES) || level > FLUSH_REGION || (qp_access & wanted) != wanted)
        return VERDICT_INVALID_REQUEST;
    if (!keys_read(table, key_slot(rkey), &view) ||
        (view.rkey != rkey && (own = key_alias_resolve(table, rkey)) != 0 &&
         !keys_read(table, key_slot(rkey = own), &view)) ||
        (view.kind != KEY_REGION && view.kind != KEY_REGION_ON_DEMAND) || view.rkey != rkey ||
        view.pd != pd || (view.access & wanted) != wanted)
        return VERDICT_REMOTE_ACCESS;
    if (level == FLUSH_RANGE && length && !key_view_covers(&view, address, length))
        return VERDICT_REMOTE_ACCESS;
    return VERDICT_OK;
}
