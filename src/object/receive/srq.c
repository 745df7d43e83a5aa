/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Shared receive queues (verbs.md §6.1-6.2). */
#include "object/receive/srq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "base/thread.h"
#include "base/types.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "object/qp/qp_internal.h"
#include "segment/provenance.h"

/* A power of two; one less is granted, as for a CQ. So a CQ created with the same number holds a completion for
 * each receive. */
static uint32_t slots_for(uint32_t max_wr)
{
    return 1u << (32 - __builtin_clz(max_wr));
}

_Static_assert((LIMIT_SRQ_WR & (LIMIT_SRQ_WR + 1)) == 0, "the largest is one less than a power of two");

static struct recv_wqe *wqe_at(const struct srq *srq, uint32_t counter)
{
    return (struct recv_wqe *)(srq->ring + (size_t)(counter & srq->mask) * srq->record->stride);
}

/* How many WQEs are posted and not taken; lock held. */
static uint32_t waiting(const struct srq *srq)
{
    return atomic_load_explicit(&srq->record->posted, memory_order_relaxed) -
           atomic_load_explicit(&srq->record->taken, memory_order_relaxed);
}

/* Raises SRQ_LIMIT_REACHED once, and disarms the limit (verbs.md §6.2). Lock held. */
static void check_limit(struct srq *srq)
{
    const struct ibv_async_event event = {.element.srq = &srq->ibv,
                                          .event_type = IBV_EVENT_SRQ_LIMIT_REACHED};

    if (waiting(srq) >= srq->record->limit)
        return;
    srq->record->limit = 0;
    async_raise(&srq->pd->context->events, &event, &srq->async_events);
}

void srq_inject_limit(struct srq *srq)
{
    const struct ibv_async_event event = {.element.srq = &srq->ibv,
                                          .event_type = IBV_EVENT_SRQ_LIMIT_REACHED};

    lock_acquire(&srq->lock);
    srq->record->limit = 0;
    async_raise(&srq->pd->context->events, &event, &srq->async_events);
    lock_release(&srq->lock);
}

/* --- creating and destroying ---------------------------------------------------------------------------- */

static void install_ring(struct srq *srq, const struct queue_memory *memory, uint32_t slots)
{
    srq->memory = *memory;
    srq->ring = memory->at;
    srq->mask = slots - 1;
    srq->record->ring_offset = memory->offset;
    srq->record->max_wr = slots - 1;
}

static int check_attributes(const struct ibv_srq_attr *attributes, uint32_t limit)
{
    if (attributes->max_wr < 1 || attributes->max_wr > LIMIT_SRQ_WR)
        return refuse_range("attr.max_wr", attributes->max_wr, 1, LIMIT_SRQ_WR);
    if (attributes->max_sge > LIMIT_SRQ_SGE)
        return refuse_range("attr.max_sge", attributes->max_sge, 0, LIMIT_SRQ_SGE);
    if (limit > attributes->max_wr)
        return refuse_range("attr.srq_limit", limit, 0, attributes->max_wr);
    return 0;
}

static void fill(struct srq *srq, struct pd *pd, void *user_context, uint32_t max_sge)
{
    srq->pd = pd;
    srq->record = segment_srq(srq->number);
    memset(srq->record, 0, sizeof(*srq->record));
    srq->record->context = pd->context->number;
    srq->record->pd = pd->number;
    srq->record->max_sge = max_sge;
    srq->record->stride = (uint32_t)RECV_WQE_SIZE(max_sge);
    srq->record->cq = NO_OBJECT;
    provenance_created(&srq->record->provenance);
    provenance_in_domain(&srq->record->provenance, pd->record_number);
    ack_account_init(&srq->async_events, &srq->record->events);
    srq->ibv.context = pd->ibv.context;
    srq->ibv.srq_context = user_context;
    srq->ibv.pd = &pd->ibv;
    srq->ibv.handle = srq->number;
    pthread_mutex_init(&srq->ibv.mutex, NULL);
    thread_cond_init(&srq->ibv.cond);
}

int srq_create(struct pd *pd, void *user_context, struct ibv_srq_attr *attributes, bool arm_limit,
               struct srq **ret_srq)
{
    uint32_t slots, max_sge = max_of(attributes->max_sge, 1u);
    uint32_t limit = arm_limit ? attributes->srq_limit : 0;
    struct queue_memory memory;
    struct srq *srq;
    int error;

    error = check_attributes(attributes, limit);
    if (error)
        return error;
    slots = slots_for(attributes->max_wr);
    error = pd_use(pd, "ibv_create_srq");
    if (error)
        return error;
    error = -ENOMEM;
    srq = calloc(1, sizeof(*srq));
    if (!srq)
        goto unuse_pd;
    srq->number = number_take(&pool_srqs);
    if (srq->number == NO_OBJECT)
        goto free_srq;
    error = queue_memory_take(pd, QUEUE_SHARED_RECEIVE, (size_t)slots * RECV_WQE_SIZE(max_sge), &memory);
    if (error)
        goto return_number;
    fill(srq, pd, user_context, max_sge);
    install_ring(srq, &memory, slots);
    atomic_store_explicit(&srq->record->state, OBJECT_ALIVE, memory_order_release);
    attributes->max_wr = slots - 1;
    attributes->max_sge = max_sge;
    if (limit) { /* an empty queue is below any limit */
        srq->record->limit = limit;
        check_limit(srq);
    }
    *ret_srq = srq;
    return 0;

return_number:
    number_return(&pool_srqs, srq->number);
free_srq:
    free(srq);
unuse_pd:
    pd_unuse(pd);
    return error;
}

int srq_destroy(struct srq *srq)
{
    struct destroying destroying = {.kind = OBJECT_SRQ};
    struct losses *losses = NULL;
    bool busy;

    if (destroyed_has(DESTROYED_SRQ, srq, "ibv_destroy_srq"))
        return -EINVAL;
    if (context_is_inherited(srq->pd->context))
        return 0;
    destroying.number = srq->number;
    destroying.provenance = &srq->record->provenance;
    lock_acquire(&srq->lock);
    busy = atomic_load_explicit(&srq->record->users, memory_order_relaxed) != 0;
    if (!busy) {
        losses = note_losses(OBJECT_SRQ, srq->number);
        atomic_store_explicit(&srq->record->state, OBJECT_DESTROYING, memory_order_relaxed);
    }
    lock_release(&srq->lock);
    if (busy)
        return busy_because(OBJECT_SRQ, srq->number);
    if (srq->leave)
        srq->leave(srq);
    async_purge(&srq->pd->context->events, &srq->async_events);
    ack_account_wait(&srq->async_events, &srq->ibv.mutex, &srq->ibv.cond, &srq->ibv.events_completed,
                     &destroying);

    atomic_store_explicit(&srq->record->state, OBJECT_FREE, memory_order_release);
    queue_memory_give(srq->pd, QUEUE_SHARED_RECEIVE, &srq->memory);
    number_return(&pool_srqs, srq->number);
    pd_unuse(srq->pd);
    pthread_cond_destroy(&srq->ibv.cond);
    pthread_mutex_destroy(&srq->ibv.mutex);
    srq->pd = &destroyed_pd;
    destroyed_keep(DESTROYED_SRQ, srq, srq->number);
    report_losses(losses);
    return 0;
}

int srq_use(struct srq *srq)
{
    int error = 0;

    if (context_is_inherited(srq->pd->context))
        return destroyed_refuse(DESTROYED_SRQ, srq, "ibv_create_qp");
    lock_acquire(&srq->lock);
    if (atomic_load_explicit(&srq->record->state, memory_order_relaxed) != OBJECT_ALIVE)
        error = -EINVAL;
    else
        atomic_fetch_add_explicit(&srq->record->users, 1, memory_order_relaxed);
    lock_release(&srq->lock);
    return error;
}

void srq_unuse(struct srq *srq)
{
    lock_acquire(&srq->lock);
    atomic_fetch_sub_explicit(&srq->record->users, 1, memory_order_relaxed);
    lock_release(&srq->lock);
}

/* --- attributes ----------------------------------------------------------------------------------------- */

/* Moves the posted WQEs to another ring; both counters keep their values. *memory becomes the old ring's. Lock
 * held. */
static void move_ring(struct srq *srq, struct queue_memory *memory, uint32_t slots)
{
    uint32_t posted = atomic_load_explicit(&srq->record->posted, memory_order_relaxed);
    struct queue_memory old = srq->memory;
    char *ring = memory->at;

    for (uint32_t i = posted - waiting(srq); i != posted; i++)
        memcpy(ring + (size_t)(i & (slots - 1)) * srq->record->stride, wqe_at(srq, i), srq->record->stride);
    install_ring(srq, memory, slots);
    *memory = old;
}

int srq_modify(struct srq *srq, const struct ibv_srq_attr *attributes, int mask)
{
    bool resize = mask & IBV_SRQ_MAX_WR, arm = mask & IBV_SRQ_LIMIT;
    struct queue_memory memory;
    uint32_t slots = 0, max_wr;
    int error = 0;

    if (context_is_inherited(srq->pd->context))
        return destroyed_refuse(DESTROYED_SRQ, srq, "ibv_modify_srq");
    if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
        return refused_of(
            refuse_bits(-EINVAL, "srq_attr_mask", BITS_PLAIN, (unsigned)mask, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT),
            OBJECT_SRQ, srq->number);
    if (resize) {
        if (attributes->max_wr < 1 || attributes->max_wr > LIMIT_SRQ_WR)
            return refused_of(refuse_range("max_wr", attributes->max_wr, 1, LIMIT_SRQ_WR), OBJECT_SRQ,
                              srq->number);
        slots = slots_for(attributes->max_wr);
        error =
            queue_memory_take(srq->pd, QUEUE_SHARED_RECEIVE, (size_t)slots * srq->record->stride, &memory);
        if (error)
            return error;
    }
    lock_acquire(&srq->lock);
    max_wr = resize ? slots - 1 : srq->record->max_wr;
    if (resize && attributes->max_wr < waiting(srq))
        error = refuse(-EINVAL, REFUSAL_HOLDS, "max_wr", attributes->max_wr, waiting(srq), 0);
    else if (arm && attributes->srq_limit > max_wr)
        error = refuse_range("srq_limit", attributes->srq_limit, 0, max_wr);
    refused_of(error, OBJECT_SRQ, srq->number);
    if (!error && resize)
        move_ring(srq, &memory, slots);
    if (!error && arm) {
        srq->record->limit = attributes->srq_limit;
        check_limit(srq);
    }
    lock_release(&srq->lock);
    if (resize) /* the old ring, or after an error the new one */
        queue_memory_give(srq->pd, QUEUE_SHARED_RECEIVE, &memory);
    return error;
}

int srq_query(struct srq *srq, struct ibv_srq_attr *ret_attributes)
{
    lock_acquire(&srq->lock);
    ret_attributes->max_wr = srq->record->max_wr;
    ret_attributes->max_sge = srq->record->max_sge;
    ret_attributes->srq_limit = srq->record->limit;
    lock_release(&srq->lock);
    return 0;
}

/* --- receives ------------------------------------------------------------------------------------------- */

static int post_one(struct srq *srq, const struct ibv_recv_wr *wr, uint32_t stamp)
{
    uint32_t posted = atomic_load_explicit(&srq->record->posted, memory_order_relaxed);
    struct recv_wqe *wqe = wqe_at(srq, posted);

    if (unlikely(wr->num_sge < 0 || (uint32_t)wr->num_sge > srq->record->max_sge))
        return refused_of(refuse_range("num_sge", wr->num_sge, 0, srq->record->max_sge), OBJECT_SRQ,
                          srq->number);
    if (unlikely(waiting(srq) >= srq->record->max_wr))
        return refused_of(refuse(-ENOMEM, REFUSAL_FULL, "SRQ", srq->record->max_wr, srq->record->max_wr, 0),
                          OBJECT_SRQ, srq->number);
    recv_wqe_fill(wqe, wr, (uint32_t)wr->num_sge, stamp);
    atomic_store_explicit(&srq->record->posted, posted + 1, memory_order_release);
    return 0;
}

int srq_post(struct srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    uint32_t stamp = provenance_stamp();
    int error = 0;

    if (context_is_inherited(srq->pd->context)) {
        *bad_wr = wr;
        return destroyed_refuse(DESTROYED_SRQ, srq, "ibv_post_srq_recv");
    }
    lock_acquire(&srq->lock);
    for (; wr; wr = wr->next) {
        error = post_one(srq, wr, stamp);
        if (unlikely(error)) {
            *bad_wr = wr;
            break;
        }
    }
    lock_release(&srq->lock);
    return error;
}

int srq_take_locked(struct srq *srq, struct recv_wqe *copy, struct receive_queue *taker)
{
    const struct recv_wqe *wqe;
    uint32_t taken;

    if (unlikely(waiting(srq) == 0))
        return -ENOENT;
    taken = atomic_load_explicit(&srq->record->taken, memory_order_relaxed);
    wqe = wqe_at(srq, taken);
    memcpy(copy, wqe, RECV_WQE_SIZE(wqe->num_sge));
    taker->srq_wr_id = wqe->wr_id;
    taker->from_srq = true;
    atomic_store_explicit(&srq->record->taken, taken + 1, memory_order_release);
    if (unlikely(srq->record->limit))
        check_limit(srq);
    return 0;
}

int srq_take(struct srq *srq, struct recv_wqe *copy, struct receive_queue *taker)
{
    int error;

    lock_acquire(&srq->lock);
    error = srq_take_locked(srq, copy, taker);
    lock_release(&srq->lock);
    return error;
}
