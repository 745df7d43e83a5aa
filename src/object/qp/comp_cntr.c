/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion counters: creation, attachment, counting. */
#include "object/qp/comp_cntr.h"

#include <errno.h>
#include <stdlib.h>

#include "object/qp/qp_internal.h"

static _Atomic uint32_t existing, last_handle;

int comp_cntr_create(struct context *context, bool of_bytes, struct comp_cntr **ret_counter)
{
    struct comp_cntr *counter;

    if (context_is_inherited(context))
        return -EIO;
    if (atomic_fetch_add_explicit(&existing, 1, memory_order_relaxed) >= LIMIT_COMP_CNTR)
        goto none;
    counter = calloc(1, sizeof(*counter));
    if (!counter)
        goto none;
    counter->context = context;
    counter->ibv.context = &context->verbs.context;
    counter->ibv.handle = atomic_fetch_add_explicit(&last_handle, 1, memory_order_relaxed);
    counter->of_bytes = of_bytes;
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    *ret_counter = counter;
    return 0;

none:
    atomic_fetch_sub_explicit(&existing, 1, memory_order_relaxed);
    return -ENOMEM;
}

int comp_cntr_destroy(struct comp_cntr *counter)
{
    if (context_is_inherited(counter->context))
        return 0;
    /* Acquire: the QP that was detached last does not count any more. */
    if (atomic_load_explicit(&counter->attached, memory_order_acquire))
        return -EBUSY;
    atomic_fetch_sub_explicit(&counter->context->objects, 1, memory_order_release);
    atomic_fetch_sub_explicit(&existing, 1, memory_order_relaxed);
    free(counter);
    return 0;
}

static uint32_t operations_of(const struct qp *qp)
{
    const uint32_t both = COUNTED_BIT(COUNTED_SEND) | COUNTED_BIT(COUNTED_RECV);
    const uint32_t writes = COUNTED_BIT(COUNTED_WRITE) | COUNTED_BIT(COUNTED_REMOTE_WRITE);

    switch (qp->record->type) {
    case IBV_QPT_RC:
        return COUNTED_ALL;
    case IBV_QPT_UC:
        return both | writes;
    case IBV_QPT_UD:
        return both;
    case IBV_QPT_XRC_SEND:
        return COUNTED_BIT(COUNTED_SEND) | COUNTED_BIT(COUNTED_READ) | COUNTED_BIT(COUNTED_WRITE);
    default:
        return 0;
    }
}

int comp_cntr_attach(struct comp_cntr *counter, struct qp *qp, uint32_t operations)
{
    int error = 0;

    if (context_is_inherited(counter->context))
        return -EIO;
    if (!operations || qp->context != counter->context)
        return -EINVAL;
    if (qp->handle || qp->spreads_over || (operations & ~operations_of(qp)))
        return -EOPNOTSUPP;
    lock_acquire(&qp->lock);
    if (qp_state(qp) != IBV_QPS_RESET && qp_state(qp) != IBV_QPS_INIT)
        error = -EINVAL;
    else if (qp->counted & operations)
        error = -EBUSY;
    if (!error) {
        for (unsigned i = 0; i < COUNTED_OPERATIONS; i++) {
            if (!(operations & COUNTED_BIT(i)))
                continue;
            qp->comp_cntrs[i] = counter;
            atomic_fetch_add_explicit(&counter->attached, 1, memory_order_relaxed);
        }
        qp->counted |= operations;
        qp->transport.counts_remote = (qp->counted & COUNTED_REMOTE) != 0;
    }
    lock_release(&qp->lock);
    return error;
}

void comp_cntr_detach_all(struct qp *qp)
{
    lock_acquire(&qp->lock);
    for (unsigned i = 0; i < COUNTED_OPERATIONS; i++) {
        if (qp->counted & COUNTED_BIT(i))
            atomic_fetch_sub_explicit(&qp->comp_cntrs[i]->attached, 1, memory_order_release);
    }
    qp->counted = 0;
    qp->transport.counts_remote = false;
    lock_release(&qp->lock);
}

void comp_cntr_count(struct comp_cntr *counter, bool succeeded, uint32_t bytes)
{
    /* Release: pairs with the acquire of who reads the value. */
    if (!succeeded)
        atomic_fetch_add_explicit(&counter->failed, 1, memory_order_release);
    else
        atomic_fetch_add_explicit(&counter->completed, counter->of_bytes ? bytes : 1, memory_order_release);
}
