/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory regions (verbs-contract §4.1, §4.8). */
#include <errno.h>
#include <stdlib.h>

#include "base/rundown.h"
#include "object/life.h"
#include "object/memory.h"
#include "object/pd.h"
#include "object/ports.h"
#include "object/qp.h"

#define ACCESS_KNOWN                                                                                         \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |  \
     IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB)

static _Atomic uint32_t regions;

/* Optional flags that we do not know are to be ignored (§0.2): they leave *access. */
static int check_access(unsigned *access)
{
    *access &= ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
    if (*access & IBV_ACCESS_ON_DEMAND)
        return -EOPNOTSUPP;
    if (*access & ~(unsigned)ACCESS_KNOWN)
        return -EINVAL;
    if ((*access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(*access & IBV_ACCESS_LOCAL_WRITE))
        return -EINVAL;
    return 0;
}

/* A range may be empty: such a region is good for messages without bytes (compat-surface §9). */
static int check_range(const void *address, size_t length, uint64_t iova, unsigned access)
{
    uint64_t end;

    if (__builtin_add_overflow((uintptr_t)address, length, &end) ||
        __builtin_add_overflow(iova, length, &end))
        return -EINVAL;
    return memory_check((uintptr_t)address, length, access & IBV_ACCESS_LOCAL_WRITE);
}

int mr_register(struct pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
                struct mr **ret_mr)
{
    const struct key_entry *entry;
    struct mr *mr;
    int error = check_access(&access);

    if (error)
        return error;
    error = check_range(address, length, iova, access);
    if (error)
        return error;
    error = pd_use(pd);
    if (error)
        return error;
    mr = malloc(sizeof(*mr));
    if (!mr) {
        error = -ENOMEM;
        goto unuse_pd;
    }
    if (atomic_fetch_add_explicit(&regions, 1, memory_order_relaxed) >= LIMIT_MR) {
        error = -ENOMEM;
        goto free_mr;
    }
    mr->slot = number_take(&pool_keys);
    if (mr->slot == NO_OBJECT) {
        error = -ENOMEM;
        goto free_mr;
    }
    mapping_begin(&mr->mapping, (uintptr_t)address, length, access);
    mr->pd = pd;
    mr->access = access;
    mr->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
    entry = &segment_keys()->entry[mr->slot];
    lock_acquire(&keys_lock);
    keys_publish_region(segment_keys(), mr->slot, KEY_REGION, pd->number, access, mr->iova, length,
                        (uintptr_t)address, key_random());
    mr->ibv.lkey = entry->lkey;
    mr->ibv.rkey = entry->rkey;
    lock_release(&keys_lock);
    life_of_key(mr->slot);
    mr->ibv.context = pd->ibv.context;
    mr->ibv.pd = &pd->ibv;
    mr->ibv.addr = address;
    mr->ibv.length = length;
    mr->ibv.handle = mr->slot;
    mapping_publish(mr);
    *ret_mr = mr;
    return 0;

free_mr:
    atomic_fetch_sub_explicit(&regions, 1, memory_order_relaxed);
    free(mr);
unuse_pd:
    pd_unuse(pd);
    return error;
}

int mr_deregister(struct mr *mr)
{
    bool busy;

    if (context_is_inherited(mr->pd->context))
        return 0;
    if (explained())
        object_ports->explain(EXPLAIN_IN_USE, OBJECT_MR, mr->slot);
    lock_acquire(&keys_lock);
    busy = segment_keys()->entry[mr->slot].windows != 0;
    if (!busy)
        keys_withdraw(segment_keys(), mr->slot);
    lock_release(&keys_lock);
    if (busy)
        return busy_because(OBJECT_MR, mr->slot);
    /* Nobody finds it any more; whoever found it before is inside a section. The program may free its memory
     * as soon as we return. */
    rundown_wait();
    lending_take_back(mr->slot, false);
    mapping_end(mr);
    number_return(&pool_keys, mr->slot);
    atomic_fetch_sub_explicit(&regions, 1, memory_order_relaxed);
    pd_unuse(mr->pd);
    free(mr);
    return 0;
}

/* --- changing
 * ----------------------------------------------------------------------------------------------- */

#define REREG_KNOWN (IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS)

/* What the region shall be. */
struct change {
    struct pd *pd;
    void *address;
    size_t length;
    uint64_t iova;
    unsigned access;
};

static int check_change(const struct mr *mr, int flags, struct pd *pd, void *address, size_t length,
                        int access, struct change *ret_change)
{
    int error = 0;

    if ((flags & ~REREG_KNOWN) || (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS)))
        return -EINVAL;
    if (flags & IBV_REREG_MR_CHANGE_PD) {
        if (!pd || pd->context != mr->pd->context)
            return -EINVAL;
        ret_change->pd = pd;
    }
    if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
        ret_change->access = (unsigned)access;
        error = check_access(&ret_change->access);
    }
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        if (!address || !length)
            return -EINVAL;
        ret_change->address = address;
        ret_change->length = length;
        ret_change->iova = (uintptr_t)address;
    }
    if (!error && (flags & (IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS)))
        error = check_range(ret_change->address, ret_change->length, ret_change->iova, ret_change->access);
    return error;
}

int mr_reregister(struct mr *mr, int flags, struct pd *pd, void *address, size_t length, int access,
                  int *ret_error)
{
    struct change change = {mr->pd, mr->ibv.addr, mr->ibv.length, mr->iova, mr->access};
    struct pd *old_pd = mr->pd;
    struct mapping mapping;
    int error = context_is_inherited(mr->pd->context)
                    ? -EIO
                    : check_change(mr, flags, pd, address, length, access, &change);

    if (!error)
        error = pd_use(change.pd);
    if (error) {
        *ret_error = error;
        return IBV_REREG_MR_ERR_INPUT; /* the region is as it was */
    }
    /* Before the old one goes: what is in both stays where it is. */
    mapping_begin(&mapping, (uintptr_t)change.address, change.length, change.access);
    lock_acquire(&keys_lock);
    if (segment_keys()->entry[mr->slot].windows) /* their rights rest on what would change (IBA 10.6.7.2.1) */
        error = -EBUSY;
    else
        keys_change_region(segment_keys(), mr->slot, change.pd->number, change.access, change.iova,
                           change.length, (uintptr_t)change.address);
    lock_release(&keys_lock);
    if (error) {
        mapping_drop(&mapping);
        pd_unuse(change.pd);
        *ret_error = error;
        return IBV_REREG_MR_ERR_INPUT;
    }
    /* The old memory is the program's again. */
    rundown_wait();
    lending_take_back(mr->slot, false);
    mapping_end(mr);
    mr->mapping = mapping;
    mr->pd = change.pd;
    mr->access = change.access;
    mr->iova = change.iova;
    mr->ibv.pd = &change.pd->ibv;
    mr->ibv.addr = change.address;
    mr->ibv.length = change.length;
    mapping_publish(mr);
    pd_unuse(old_pd);
    return 0;
}
