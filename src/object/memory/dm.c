/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Device memory: allocating, importing and copying (verbs.md §4.9). */
#include "object/memory/dm.h"
#include "base/refusal.h"
#include "object/destroyed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "object/memory/share.h"
#include "object/ports.h"
#include "rules/limits.h"
#include "segment/provenance.h"
#include "segment/segment.h"

/* A forked child publishes nothing for an inherited context. */
static uint32_t publish(const struct dm *dm)
{
    const uint64_t place[2] = {(uintptr_t)dm->at, dm->length};

    if (context_is_inherited(dm->context))
        return NO_OBJECT;
    return item_take(OBJECT_DM, 0, dm->context->number, NO_OBJECT, place);
}

/* Fills the structure from the device file's entry of dm->shared. */
static int fill(struct dm *dm)
{
    int error = share_memory_find(dm->context->share, dm->shared->handle, &dm->at, &dm->length);

    if (error)
        return error;
    dm->generation = process_generation();
    dm->ibv.context = &dm->context->verbs.context;
    dm->ibv.memcpy_to_dm = dm_copy_to;
    dm->ibv.memcpy_from_dm = dm_copy_from;
    dm->newest.handle = dm->shared->handle;
    dm->item = publish(dm);
    atomic_fetch_add_explicit(&dm->context->objects, 1, memory_order_relaxed);
    return 0;
}

int dm_allocate(struct context *context, const struct ibv_alloc_dm_attr *attributes, struct dm **ret_dm)
{
    struct dm *dm;
    int error;

    if (attributes->comp_mask)
        return refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, 0);
    if (!attributes->length || attributes->length > LIMIT_DM_SIZE)
        return refuse_range("length", (int64_t)attributes->length, 1, LIMIT_DM_SIZE);
    if (attributes->log_align_req > LIMIT_DM_LOG_ALIGNMENT)
        return refuse_range("log_align_req", attributes->log_align_req, 0, LIMIT_DM_LOG_ALIGNMENT);
    dm = calloc(1, sizeof(*dm));
    if (!dm)
        return -ENOMEM;
    dm->context = context;
    error = shared_create(context->share, SHARE_DM, 0, &dm->shared);
    if (error)
        goto free_dm;
    error = share_memory_take(context->share, dm->shared->handle, attributes->length);
    if (!error)
        error = fill(dm);
    if (error)
        goto give_handle;
    shared_publish(dm->shared);
    *ret_dm = dm;
    return 0;

give_handle:
    shared_give_handle(dm->shared);
    shared_drop(dm->shared);
free_dm:
    free(dm);
    return error;
}

static void forget(struct dm *dm)
{
    item_return(dm->item);
    shared_drop(dm->shared);
    atomic_fetch_sub_explicit(&dm->context->objects, 1, memory_order_release);
    dm->context = &destroyed_context;
    destroyed_keep(DESTROYED_DM, dm, dm->item);
}

int dm_free(struct dm *dm)
{
    bool busy;
    int error = 0;

    if (destroyed_has(DESTROYED_DM, dm, "ibv_free_dm"))
        return -EINVAL;
    if (dm->generation != process_generation())
        return 0; /* the parent's device memory */
    lock_acquire(&dm->lock);
    busy = dm->users != 0;
    if (!busy)
        error = shared_end(dm->shared);
    lock_release(&dm->lock);
    if (busy)
        return busy_because(OBJECT_DM, dm->item);
    if (error)
        return error;
    share_memory_give(dm->context->share, dm->context->verbs.context.cmd_fd, dm->at, dm->length);
    shared_give_handle(dm->shared);
    forget(dm);
    return 0;
}

int dm_import(struct context *context, uint32_t handle, struct dm **ret_dm)
{
    struct dm *dm;
    int error;

    if (context_is_inherited(context))
        return destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_import_dm");
    dm = calloc(1, sizeof(*dm));
    if (!dm)
        return -ENOMEM;
    dm->context = context;
    error = shared_find(context->share, SHARE_DM, handle, 0, &dm->shared);
    if (!error) {
        error = fill(dm);
        if (error)
            shared_drop(dm->shared);
    }
    if (error) {
        free(dm);
        return error;
    }
    *ret_dm = dm;
    return 0;
}

void dm_unimport(struct dm *dm)
{
    bool idle;

    if (dm->generation != process_generation())
        return;
    lock_acquire(&dm->lock);
    dm->abandoned = true;
    idle = dm->users == 0;
    lock_release(&dm->lock);
    if (idle)
        forget(dm);
}

int dm_use(struct dm *dm)
{
    int error;

    lock_acquire(&dm->lock);
    error = shared_use(dm->shared);
    if (!error)
        dm->users++;
    lock_release(&dm->lock);
    return error;
}

void dm_unuse(struct dm *dm)
{
    bool last;

    lock_acquire(&dm->lock);
    shared_unuse(dm->shared);
    last = --dm->users == 0 && dm->abandoned;
    lock_release(&dm->lock);
    if (last)
        forget(dm);
}

static int check_copy(const struct dm *dm, uint64_t offset, size_t length)
{
    if (offset % 4 || length % 4)
        return EINVAL;
    if (!shared_is_alive(dm->shared))
        return ENOENT;
    return offset > dm->length || length > dm->length - offset ? EFAULT : 0;
}

int dm_copy_to(struct ibv_dm *ibv, uint64_t offset, const void *from, size_t length)
{
    int error = check_copy(dm_of(ibv), offset, length);

    if (error) {
        errno = error;
        return error;
    }
    memcpy(dm_of(ibv)->at + offset, from, length);
    return 0;
}

int dm_copy_from(void *to, struct ibv_dm *ibv, uint64_t offset, size_t length)
{
    int error = check_copy(dm_of(ibv), offset, length);

    if (error) {
        errno = error;
        return error;
    }
    memcpy(to, dm_of(ibv)->at + offset, length);
    return 0;
}
