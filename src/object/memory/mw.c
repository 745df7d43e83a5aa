/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Allocating memory windows. Binding is a work request; its rules are in keys_bind_mw() (rules/keys.h). */
#include <errno.h>
#include <stdlib.h>

#include "base/refusal.h"
#include "base/rundown.h"
#include "object/destroyed.h"
#include "object/pd/pd.h"
#include "object/qp/qp.h"
#include "segment/provenance.h"

static _Atomic uint32_t windows;

int mw_allocate(struct pd *pd, enum ibv_mw_type type, struct mw **ret_mw)
{
    struct mw *mw;
    int error;

    if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
        return refuse_invalid("type of the MW", type);
    error = pd_use(pd, "ibv_alloc_mw");
    if (error)
        return error;
    mw = malloc(sizeof(*mw));
    if (!mw) {
        error = refuse_memory();
        goto unuse_pd;
    }
    if (atomic_fetch_add_explicit(&windows, 1, memory_order_relaxed) >= LIMIT_MW) {
        error = refuse_count("MWs", LIMIT_MW);
        goto free_mw;
    }
    mw->slot = number_take(&pool_keys);
    if (mw->slot == NO_OBJECT) {
        error = refuse_count("MRs and MWs together", LIMIT_KEY_SLOTS);
        goto free_mw;
    }
    mw->pd = pd;
    lock_acquire(&keys_lock);
    keys_publish_mw(segment_keys(), mw->slot, type == IBV_MW_TYPE_1 ? KEY_MW_TYPE_1 : KEY_MW_TYPE_2,
                    pd->number, key_random());
    mw->ibv.rkey = segment_keys()->entry[mw->slot].rkey;
    lock_release(&keys_lock);
    provenance_key_created(mw->slot, pd->record_number);
    mw->ibv.context = pd->ibv.context;
    mw->ibv.pd = &pd->ibv;
    mw->ibv.handle = mw->slot;
    mw->ibv.type = type;
    *ret_mw = mw;
    return 0;

free_mw:
    atomic_fetch_sub_explicit(&windows, 1, memory_order_relaxed);
    free(mw);
unuse_pd:
    pd_unuse(pd);
    return error;
}

int mw_deallocate(struct mw *mw)
{
    if (destroyed_has(DESTROYED_MW, mw, "ibv_dealloc_mw"))
        return -EINVAL;
    if (context_is_inherited(mw->pd->context))
        return 0;
    lock_acquire(&keys_lock);
    keys_unbind_mw(segment_keys(), mw->slot);
    keys_withdraw(segment_keys(), mw->slot);
    lock_release(&keys_lock);
    /* The program may deregister the region next: accesses by the window must be over. */
    rundown_wait();
    exposed_revoke(mw->slot, true);
    number_return(&pool_keys, mw->slot);
    atomic_fetch_sub_explicit(&windows, 1, memory_order_relaxed);
    pd_unuse(mw->pd);
    mw->pd = &destroyed_pd;
    destroyed_keep(DESTROYED_MW, mw, mw->ibv.rkey);
    return 0;
}
