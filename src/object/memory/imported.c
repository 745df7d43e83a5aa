/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Importing regions of other processes (verbs.md §10.8). A process accesses only its own memory, so a region can
 * be imported if its memory is in this process, too: by a shared mapping of the same file, or as device memory.
 * Importing makes a second mapping of the memory, which the program does not know and so cannot unmap, and a
 * region over it. The keys of the original are aliases of the new region's keys (rules/alias.h) as long as the
 * original's word in the device file says that it is alive (share_internal.h). */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rundown.h"
#include "object/memory/memory.h"
#include "object/memory/share.h"
#include "object/pd/pd.h"
#include "rules/alias.h"
#include "rules/flush.h"

#define ACCESS_OF_REGIONS                                                                                    \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |  \
     IBV_ACCESS_ZERO_BASED | ACCESS_FLUSH_GLOBAL)

/* --- export --------------------------------------------------------------------------------------------- */

/* If the table in the device file is full, the region cannot be imported. */
void region_export(struct mr *mr, const struct memory_file *file)
{
    const struct pd *pd = mr->pd->protects ? mr->pd->protects : mr->pd;
    struct share_region region = {
        .handle = mr->ibv.handle,
        .lkey = mr->ibv.lkey,
        .rkey = mr->ibv.rkey,
        .access = mr->access & (uint32_t)ACCESS_OF_REGIONS,
        .pd = pd->shared->handle,
        .pd_generation = pd->shared->generation,
        .iova = mr->iova,
        .length = mr->ibv.length,
        .file = *file,
    };

    if (!file->inode || shared_create(pd->context->share, SHARE_MR, 0, &mr->exported) != 0)
        return;
    share_region_fill(mr->exported, &region);
    shared_publish(mr->exported);
}

void region_unexport(struct mr *mr)
{
    if (!mr->exported)
        return;
    if (shared_end(mr->exported) == 0)
        shared_give_handle(mr->exported);
    shared_drop(mr->exported);
    mr->exported = NULL;
}

/* --- import --------------------------------------------------------------------------------------------- */

static int refuse(const struct pd *pd, uint32_t handle, bool exists)
{
    uint32_t pid;

    if (!share_knows_process(pd->context->share, handle / LIMIT_KEY_SLOTS, &pid))
        return -EINVAL;
    if (exists)
        log_warn("ibv_import_mr: the memory of the MR with handle %u of process %u is not mapped in this "
                 "process: map it "
                 "MAP_SHARED here, or register an MR of this process in the imported PD",
                 handle, pid);
    else
        log_warn(
            "ibv_import_mr: process %u shares no MR with handle %u: it has none, or the memory is not mapped "
            "MAP_SHARED there",
            pid, handle);
    return -EOPNOTSUPP;
}

/* The entry may have been written by any process that has the device file. */
static int check(const struct share *share, const struct share_region *region)
{
    uint64_t end;

    if (!region->length || (region->access & ~(uint32_t)ACCESS_OF_REGIONS) || !region->lkey ||
        ((region->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
         !(region->access & IBV_ACCESS_LOCAL_WRITE)) ||
        __builtin_add_overflow(region->iova, region->length, &end) ||
        __builtin_add_overflow(region->file.offset, region->length, &end) || region->length > INT64_MAX)
        return -EINVAL;
    /* Another user's entry may only name device memory, not other memory of this process. */
    return share->owner == geteuid() || share_is_file(share, &region->file) ? 0 : -EOPNOTSUPP;
}

static bool is_taken(uint32_t key)
{
    const struct key_entry *entry = &segment_keys()->entry[key_slot(key)];

    return key && entry->kind != KEY_FREE && (entry->lkey == key || entry->rkey == key);
}

/* Makes the original's keys aliases of mr's keys; keys_lock held. */
static int stand_for(struct mr *mr, const struct share_region *region)
{
    struct key_condition condition;

    condition.word = shared_word(mr->imported, &condition.mask, &condition.value);
    /* A region of this process has, by chance, the same key. */
    if (is_taken(region->lkey) || is_taken(region->rkey))
        return -EAGAIN;
    mr->aliases[0] = key_alias_add(segment_keys(), region->lkey, mr->ibv.lkey, &condition);
    if (mr->aliases[0] == KEY_ALIASES)
        return -ENOMEM;
    mr->aliases[1] = key_alias_add(segment_keys(), region->rkey, mr->ibv.rkey, &condition);
    return mr->aliases[1] == KEY_ALIASES ? -ENOMEM : 0;
}

static void withdraw_aliases(struct mr *mr)
{
    for (unsigned i = 0; i < array_size(mr->aliases); i++) {
        if (mr->aliases[i] != KEY_ALIASES)
            key_alias_withdraw(mr->aliases[i]);
    }
    rundown_wait();
    lock_acquire(&keys_lock);
    for (unsigned i = 0; i < array_size(mr->aliases); i++) {
        if (mr->aliases[i] != KEY_ALIASES)
            key_alias_free(mr->aliases[i]);
    }
    lock_release(&keys_lock);
}

void region_release_import(struct mr *mr)
{
    withdraw_aliases(mr);
    memory_unalias(mr->second, mr->second_length);
    shared_drop(mr->imported);
}

int region_import(struct pd *pd, uint32_t handle, struct mr **ret_mr)
{
    struct share *share = pd->context->share;
    struct share_region region;
    struct shared *shared;
    struct mr *mr;
    char *at;
    int error = share_region_find(pd->shared, handle, &region, &shared);

    if (error)
        return refuse(pd, handle, false);
    error = check(share, &region);
    if (!error)
        error = memory_alias(&region.file, region.length, region.access & IBV_ACCESS_LOCAL_WRITE, &at);
    if (error == -ENOENT || error == -EOPNOTSUPP)
        error = refuse(pd, handle, true);
    if (error)
        goto drop;
    error = mr_publish(pd, KEY_REGION, false, at, region.length, region.iova, region.access, &mr);
    if (error) {
        memory_unalias(at, region.length);
        goto drop;
    }
    mr->fixed = true;
    mr->imported = shared;
    mr->second = at;
    mr->second_length = region.length;
    mr->aliases[0] = mr->aliases[1] = KEY_ALIASES;
    lock_acquire(&keys_lock);
    error = stand_for(mr, &region);
    lock_release(&keys_lock);
    if (error) {
        mr_unimport(mr);
        return error;
    }
    mr->ibv.lkey = region.lkey;
    mr->ibv.rkey = region.rkey;
    mr->ibv.addr = NULL;
    mr->ibv.length = 0;
    mr->ibv.handle = handle;
    *ret_mr = mr;
    return 0;

drop:
    shared_drop(shared);
    return error;
}
