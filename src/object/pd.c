/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Protection domains. */
#include "object/pd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "object/dm.h"
#include "object/life.h"
#include "object/ports.h"

/* PDs of this process by their handles, so that another context finds them. */
static struct lock handles_lock = LOCK_INIT;
static struct pd *by_handle[LIMIT_PD];

static void note_handle(struct pd *pd)
{
    lock_acquire(&handles_lock);
    by_handle[pd->record_number] = pd;
    lock_release(&handles_lock);
}

static void forget_handle(const struct pd *pd)
{
    lock_acquire(&handles_lock);
    by_handle[pd->record_number] = NULL;
    lock_release(&handles_lock);
}

struct lock keys_lock = LOCK_INIT;

/* Fetched in batches: a system call for each key would be half of a registration. */
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
    lock_init(&handles_lock);
    randomness.left = 0;
}

int pd_allocate(struct context *context, struct pd **ret_pd)
{
    struct pd *pd;

    if (context_is_inherited(context))
        return -EIO;
    pd = calloc(1, sizeof(*pd));
    if (!pd)
        return -ENOMEM;
    pd->record_number = number_take(&pool_pds);
    if (pd->record_number == NO_OBJECT) {
        free(pd);
        return -ENOMEM;
    }
    pd->context = context;
    pd->number = pd->record_number;
    pd->record = segment_pd(pd->record_number);
    memset(pd->record, 0, sizeof(*pd->record));
    pd->record->context = context->number;
    pd->record->protects = pd->record->td = NO_OBJECT;
    life_begin(&pd->record->life);
    atomic_store_explicit(&pd->record->state, OBJECT_ALIVE, memory_order_release);
    pd->ibv.context = &context->verbs.context;
    pd->ibv.handle = pd->record_number;
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    note_handle(pd);
    *ret_pd = pd;
    return 0;
}

/* --- imported
 * ------------------------------------------------------------------------------------------------ */

int pd_import(struct context *context, uint32_t handle, struct pd **ret_pd)
{
    struct pd *original, *pd;
    int error = -EINVAL;

    lock_acquire(&handles_lock);
    original = handle < LIMIT_PD ? by_handle[handle] : NULL;
    if (original && !original->protects && share_is_same(original->context->share, context->share))
        error = pd_use(original);
    lock_release(&handles_lock);
    if (error)
        return error;
    error = pd_allocate(context, &pd);
    if (error) {
        pd_unuse(original);
        return error;
    }
    pd->protects = original;
    pd->number = pd->record->protects = original->number;
    pd->record->imported = 1;
    pd->ibv.handle = original->ibv.handle;
    pd->imported = true;
    *ret_pd = pd;
    return 0;
}

void pd_unimport(struct pd *pd)
{
    bool idle;

    if (!pd->imported || context_is_inherited(pd->context))
        return;
    lock_acquire(&pd->lock);
    idle = atomic_load_explicit(&pd->record->users, memory_order_relaxed) == 0;
    pd->abandoned = true;
    lock_release(&pd->lock);
    if (idle)
        pd_deallocate(pd);
}

int pd_use(struct pd *pd)
{
    int error = 0;

    /* Everything that is made of an inherited PD is refused here. */
    if (context_is_inherited(pd->context))
        return -EIO;
    lock_acquire(&pd->lock);
    if (atomic_load_explicit(&pd->record->state, memory_order_relaxed) != OBJECT_ALIVE)
        error = -EINVAL;
    else
        atomic_fetch_add_explicit(&pd->record->users, 1, memory_order_relaxed);
    lock_release(&pd->lock);
    return error;
}

void pd_unuse(struct pd *pd)
{
    bool last;

    lock_acquire(&pd->lock);
    last = atomic_fetch_sub_explicit(&pd->record->users, 1, memory_order_relaxed) == 1 && pd->abandoned;
    lock_release(&pd->lock);
    if (last)
        pd_deallocate(pd);
}

int pd_deallocate(struct pd *pd)
{
    bool busy;

    if (context_is_inherited(pd->context))
        return 0;
    lock_acquire(&pd->lock);
    busy = atomic_load_explicit(&pd->record->users, memory_order_relaxed) != 0;
    if (!busy)
        atomic_store_explicit(&pd->record->state, OBJECT_FREE, memory_order_release);
    lock_release(&pd->lock);
    if (busy)
        return busy_because(OBJECT_PD, pd->record_number);
    forget_handle(pd);
    number_return(&pool_pds, pd->record_number);
    if (pd->td)
        atomic_fetch_sub_explicit(&pd->td->users, 1, memory_order_relaxed);
    if (pd->protects)
        pd_unuse(pd->protects);
    atomic_fetch_sub_explicit(&pd->context->objects, 1, memory_order_release);
    free(pd);
    return 0;
}
