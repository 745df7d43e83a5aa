/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Protection domains (verbs.md §1.4), and the random bits of keys. */
#include "object/pd/pd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "base/sys.h"
#include "object/destroyed.h"
#include "object/memory/share.h"
#include "object/ports.h"
#include "rules/alias.h"
#include "segment/provenance.h"

struct lock keys_lock = LOCK_INIT;
struct pd destroyed_pd = {.context = &destroyed_context, .number = NO_OBJECT};

/* Random bits in batches: a system call per key would take half of the time of a registration. */
static struct {
    uint32_t bits[64];
    unsigned left;
} randomness;

uint32_t key_random(void)
{
    if (randomness.left == 0) {
        sys_random(randomness.bits, sizeof(randomness.bits));
        randomness.left = array_size(randomness.bits);
    }
    return randomness.bits[--randomness.left];
}

void keys_after_fork_in_child(void)
{
    lock_init(&keys_lock);
    randomness.left = 0;
    key_aliases_reset();
}

/* Allocates a structure and its record. */
static int make(struct context *context, struct pd **ret_pd)
{
    struct pd *pd;

    if (context_is_inherited(context))
        return destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_alloc_pd");
    pd = calloc(1, sizeof(*pd));
    if (!pd)
        return -ENOMEM;
    pd->record_number = number_take(&pool_pds);
    if (pd->record_number == NO_OBJECT) {
        free(pd);
        return refuse_count("PDs", LIMIT_PD);
    }
    pd->context = context;
    pd->number = pd->record_number;
    pd->record = segment_pd(pd->record_number);
    memset(pd->record, 0, sizeof(*pd->record));
    pd->record->context = context->number;
    pd->record->protects = pd->record->td = NO_OBJECT;
    pd->ibv.context = &context->verbs.context;
    *ret_pd = pd;
    return 0;
}

static void publish(struct pd *pd)
{
    provenance_created(&pd->record->provenance);
    atomic_store_explicit(&pd->record->state, OBJECT_ALIVE, memory_order_release);
    atomic_fetch_add_explicit(&pd->context->objects, 1, memory_order_relaxed);
}

static void unmake(struct pd *pd)
{
    number_return(&pool_pds, pd->record_number);
    free(pd);
}

int pd_allocate(struct context *context, struct pd **ret_pd)
{
    struct pd *pd;
    int error = make(context, &pd);

    if (error)
        return error;
    error = shared_create(context->share, SHARE_PD, pd->number, &pd->shared);
    if (error) {
        unmake(pd);
        return error;
    }
    pd->ibv.handle = pd->shared->handle;
    publish(pd);
    shared_publish(pd->shared);
    *ret_pd = pd;
    return 0;
}

int pd_import(struct context *context, uint32_t handle, struct pd **ret_pd)
{
    struct pd *pd;
    int error = make(context, &pd);

    if (error)
        return error;
    error = shared_find(context->share, SHARE_PD, handle, pd->record_number, &pd->shared);
    if (error) {
        unmake(pd);
        return error;
    }
    pd->number = pd->shared->number;
    if (pd->number != pd->record_number)
        pd->record->protects = pd->number;
    pd->record->imported = 1;
    pd->ibv.handle = handle;
    publish(pd);
    *ret_pd = pd;
    return 0;
}

int pd_make_parent(struct context *context, struct pd *protects, struct pd **ret_pd)
{
    int error = make(context, ret_pd);

    if (error)
        return error;
    (*ret_pd)->protects = protects;
    (*ret_pd)->number = (*ret_pd)->record->protects = protects->number;
    publish(*ret_pd);
    return 0;
}

/* Frees a structure that has no users and whose record is OBJECT_FREE. */
static void forget(struct pd *pd)
{
    uint32_t number = pd->number;

    if (pd->td)
        atomic_fetch_sub_explicit(&pd->td->users, 1, memory_order_relaxed);
    if (pd->protects)
        pd_unuse(pd->protects);
    /* The PD's number, the record number of its first structure, is in use until the last structure is freed. */
    if (pd->protects || pd->record_number != number)
        number_return(&pool_pds, pd->record_number);
    if (pd->shared && shared_drop(pd->shared))
        number_return(&pool_pds, number);
    atomic_fetch_sub_explicit(&pd->context->objects, 1, memory_order_release);
    pd->context = &destroyed_context;
    destroyed_keep(DESTROYED_PD, pd, pd->record_number);
}

void pd_unimport(struct pd *pd)
{
    bool idle;

    if (!pd->shared || context_is_inherited(pd->context))
        return;
    lock_acquire(&pd->lock);
    idle = atomic_load_explicit(&pd->record->users, memory_order_relaxed) == 0;
    if (idle)
        atomic_store_explicit(&pd->record->state, OBJECT_FREE, memory_order_release);
    pd->abandoned = true;
    lock_release(&pd->lock);
    if (idle)
        forget(pd);
}

int pd_use(struct pd *pd, const char *verb)
{
    int error = 0;

    /* This refuses the creation of all objects in an inherited PD. */
    if (context_is_inherited(pd->context))
        return destroyed_refuse(DESTROYED_PD, pd, verb);
    lock_acquire(&pd->lock);
    if (atomic_load_explicit(&pd->record->state, memory_order_relaxed) != OBJECT_ALIVE)
        error = -EINVAL;
    else if (pd->shared && !atomic_load_explicit(&pd->record->users, memory_order_relaxed))
        error = shared_use(pd->shared);
    if (!error)
        atomic_fetch_add_explicit(&pd->record->users, 1, memory_order_relaxed);
    lock_release(&pd->lock);
    return error;
}

void pd_unuse(struct pd *pd)
{
    bool idle, last;

    lock_acquire(&pd->lock);
    idle = atomic_fetch_sub_explicit(&pd->record->users, 1, memory_order_relaxed) == 1;
    if (idle && pd->shared)
        shared_unuse(pd->shared);
    last = idle && pd->abandoned;
    if (last)
        atomic_store_explicit(&pd->record->state, OBJECT_FREE, memory_order_release);
    lock_release(&pd->lock);
    if (last)
        forget(pd);
}

int pd_deallocate(struct pd *pd)
{
    bool busy;
    int error = 0;

    if (destroyed_has(DESTROYED_PD, pd, "ibv_dealloc_pd"))
        return -EINVAL;
    if (context_is_inherited(pd->context))
        return 0;
    lock_acquire(&pd->lock);
    busy = atomic_load_explicit(&pd->record->users, memory_order_relaxed) != 0;
    if (!busy && pd->shared)
        error = shared_end(pd->shared);
    if (!busy && !error)
        atomic_store_explicit(&pd->record->state, OBJECT_FREE, memory_order_release);
    lock_release(&pd->lock);
    if (busy)
        return busy_because(OBJECT_PD, pd->record_number);
    if (error)
        return error;
    if (pd->shared)
        shared_give_handle(pd->shared);
    forget(pd);
    return 0;
}
