/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which mistake a refused access is. Only called after an error: it may look at the whole key table. */
#include "rules/fault.h"

#include "rules/alias.h"

static bool is_window(const struct key_view *view)
{
    return view->kind == KEY_MW_TYPE_1 || view->kind == KEY_MW_TYPE_2;
}

static bool is_region(const struct key_view *view)
{
    return view->kind >= KEY_REGION && view->kind <= KEY_REGION_NULL;
}

static void note_region(struct fault_record *fault, const struct key_view *view, enum fault_cause cause)
{
    fault->cause = (uint16_t)cause;
    fault->region_lkey = view->lkey;
    fault->region_rkey = view->rkey;
    fault->region_access = view->access;
    fault->region_address = view->iova;
    fault->region_length = view->length;
    fault->window = is_window(view);
}

/* The address in the region of which the access has the low 32 bits: it went through htonl(), or a 32-bit field. 0:
 * none. */
static uint64_t find_truncated(const struct key_view *view, const struct access *access)
{
    const uint64_t low_half = UINT32_MAX;
    uint64_t ends[] = {view->iova, view->iova + view->length};

    for (unsigned i = 0; i < array_size(ends) && access->address <= low_half; i++) {
        uint64_t address = (ends[i] & ~low_half) | access->address;

        if (address > low_half && key_view_covers(view, address, access->length))
            return address;
    }
    return 0;
}

/* Where does the range lie? false: in the region. */
static bool find_range(const struct key_view *view, const struct access *access, struct fault_record *fault)
{
    uint64_t swapped = __builtin_bswap64(access->address), offset = access->address - view->iova;
    uint64_t truncated = find_truncated(view, access);

    if (key_view_covers(view, access->address, access->length))
        return false;
    if (access->address >= view->iova && offset <= view->length) {
        note_region(fault, view, FAULT_RANGE_END);
        fault->value = access->length - (view->length - offset);
    } else if (key_view_covers(view, swapped, access->length)) {
        note_region(fault, view, FAULT_ADDRESS_SWAPPED);
    } else if (truncated) {
        note_region(fault, view, FAULT_ADDRESS_TRUNCATED);
        fault->value = truncated;
    } else if (access->address < view->iova && view->iova - access->address < access->length) {
        note_region(fault, view, FAULT_RANGE_BEGIN);
        fault->value = view->iova - access->address;
    } else {
        note_region(fault, view, FAULT_RANGE_OUTSIDE);
    }
    return true;
}

/* The key is right: what else is wrong? */
static void diagnose_region(const struct key_view *view, const struct access *access,
                            struct fault_record *fault)
{
    if (is_window(view) && !view->bound) {
        note_region(fault, view, FAULT_WINDOW_UNBOUND);
    } else if (view->pd != access->pd) {
        note_region(fault, view, FAULT_PD);
        fault->value = view->pd;
        fault->wanted = access->pd;
    } else if (access->right & ~view->access) {
        note_region(fault, view, FAULT_ACCESS);
        fault->wanted = access->right & ~view->access;
    } else if (!find_range(view, access, fault)) {
        note_region(fault, view, FAULT_PAGES);
    }
}

/* The key in the slot is another one. false: it does not look as if it was ever right. */
static bool diagnose_slot(const struct key_view *view, const struct access *access,
                          struct fault_record *fault)
{
    if (is_region(view) && (access->remote ? view->lkey : view->rkey) == access->key && access->key) {
        note_region(fault, view, access->remote ? FAULT_KEY_IS_LKEY : FAULT_KEY_IS_RKEY);
        return true;
    }
    if (access->remote && view->kind == KEY_MW_TYPE_2 && view->rkey &&
        !((view->rkey ^ access->key) & ~KEY_TAG_MASK)) {
        note_region(fault, view, view->bound ? FAULT_WINDOW_REBOUND : FAULT_WINDOW_UNBOUND);
        return true;
    }
    if (access->remote && view->kind == KEY_MW_TYPE_1 && (access->key & KEY_REMOTE)) {
        note_region(fault, view, view->bound ? FAULT_WINDOW_REBOUND : FAULT_WINDOW_UNBOUND);
        return true;
    }
    return false;
}

static bool names(const struct key_view *view, uint32_t key, bool remote)
{
    return view->kind != KEY_FREE && key && (remote ? view->rkey : view->lkey) == key;
}

bool fault_diagnose_one(const struct key_view *view, const struct access *access, struct fault_record *fault)
{
    uint32_t swapped = __builtin_bswap32(access->key);

    if (names(view, access->key, access->remote)) {
        diagnose_region(view, access, fault);
        return true;
    }
    if (diagnose_slot(view, access, fault))
        return true;
    if (!names(view, swapped, access->remote) && !names(view, swapped, !access->remote))
        return false;
    note_region(fault, view, FAULT_KEY_SWAPPED);
    return true;
}

void fault_diagnose(const struct key_table *table, const struct access *access, struct fault_record *fault)
{
    uint32_t swapped = __builtin_bswap32(access->key), own;
    struct key_view view;

    fault->cause = FAULT_KEY_UNKNOWN;
    if (!keys_read(table, key_slot(access->key), &view))
        return;
    if (!names(&view, access->key, access->remote) && (own = key_alias_resolve(table, access->key)) != 0 &&
        keys_read(table, key_slot(own), &view) && names(&view, own, access->remote)) {
        diagnose_region(&view, access, fault);
        return;
    }
    if (!keys_read(table, key_slot(access->key), &view))
        return;
    if (names(&view, access->key, access->remote)) {
        diagnose_region(&view, access, fault);
        return;
    }
    if (diagnose_slot(&view, access, fault))
        return;
    if (view.kind == KEY_FREE && access->key && (view.rkey == access->key || view.lkey == access->key)) {
        note_region(fault, &view, FAULT_KEY_WITHDRAWN);
        return;
    }
    if (view.kind != KEY_FREE && !((access->key ^ (access->remote ? view.rkey : view.lkey)) & KEY_REMOTE) &&
        (view.rkey || view.lkey))
        note_region(fault, &view, FAULT_KEY_REPLACED);
    if (keys_read(table, key_slot(swapped), &view) &&
        (names(&view, swapped, access->remote) || names(&view, swapped, !access->remote)))
        note_region(fault, &view, FAULT_KEY_SWAPPED);
}
