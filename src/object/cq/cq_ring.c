/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The ring of a CQ: its memory, resizing, and the removal of completions whose QP is gone (verbs.md §5). */
#include "object/cq/cq_ring.h"

#include "base/refusal.h"
#include "object/destroyed.h"

_Static_assert((LIMIT_CQE & (LIMIT_CQE + 1)) == 0, "the largest capacity is one less than a power of two");

uint32_t cq_ring_slots(uint32_t cqe)
{
    return 1u << (32 - __builtin_clz(cqe));
}

int cq_ring_allocate(struct pd *parent, uint32_t slots, struct queue_memory *ret_memory)
{
    return queue_memory_take(parent, QUEUE_COMPLETION, (size_t)slots * sizeof(struct cqe), ret_memory);
}

void cq_ring_install(struct cq *cq, const struct queue_memory *memory, uint32_t slots)
{
    cq->memory = *memory;
    cq->ring = (struct cqe *)memory->at;
    cq->mask = slots - 1;
    cq->capacity = slots - 1;
    cq->ibv.cqe = (int)cq->capacity;
    cq->record->ring_offset = memory->offset;
    cq->record->capacity = cq->capacity;
}

/* Removes purged completions from the ring. The others move towards the newest, so that both counters only
 * grow. Lock held, and no consumer accesses the ring. */
static void compact(struct cq *cq)
{
    uint32_t produced = atomic_load_explicit(&cq->record->produced, memory_order_relaxed);
    uint32_t consumed = atomic_load_explicit(&cq->record->consumed, memory_order_relaxed);
    uint32_t to = produced;

    for (uint32_t from = produced; from != consumed;) {
        const struct cqe *cqe = &cq->ring[--from & cq->mask];

        if (cqe->kind == CQE_PURGED)
            continue;
        to--;
        if (to != from)
            cq->ring[to & cq->mask] = *cqe;
    }
    atomic_store_explicit(&cq->purged, false, memory_order_relaxed);
    cq->consumed_seen = to;
    atomic_store_explicit(&cq->record->consumed, to, memory_order_release);
}

bool cq_ring_try_compact(struct cq *cq)
{
    bool away;

    if (lock_try(&cq->poll_lock)) {
        compact(cq);
        lock_release(&cq->poll_lock);
        return true;
    }
    lock_acquire(&cq->ring_lock);
    away = cq->away;
    if (away)
        compact(cq);
    lock_release(&cq->ring_lock);
    return away;
}

void cq_stay_away(struct cq *cq, bool away)
{
    lock_acquire(&cq->ring_lock);
    cq->away = away;
    lock_release(&cq->ring_lock);
}

int cq_resize(struct cq *cq, uint32_t cqe)
{
    struct queue_memory memory, old;
    uint32_t slots, produced, unpolled;
    int error;

    if (context_is_inherited(cq->context))
        return destroyed_refuse(DESTROYED_CQ, cq, "ibv_resize_cq");
    if (cqe < 1 || cqe > LIMIT_CQE)
        return refused_of(refuse_range("cqe", cqe, 1, LIMIT_CQE), OBJECT_CQ, cq->number);
    slots = cq_ring_slots(cqe);
    error = cq_ring_allocate(cq->parent, slots, &memory);
    if (error)
        return error;

    cq_poll_enter(cq, CQ_IN_RESIZE);
    /* A producer that holds `lock` and needs space can compact the ring while this thread waits for `lock`. */
    cq_stay_away(cq, true);
    lock_acquire(&cq->lock);
    compact(cq);
    old = cq->memory;
    produced = atomic_load_explicit(&cq->record->produced, memory_order_relaxed);
    unpolled = produced - atomic_load_explicit(&cq->record->consumed, memory_order_relaxed);
    if (unpolled > cqe) {
        error = refused_of(refuse(-EINVAL, REFUSAL_HOLDS, "cqe", cqe, unpolled, 0), OBJECT_CQ, cq->number);
    } else {
        struct cqe *ring = (struct cqe *)memory.at;

        for (uint32_t i = produced - unpolled; i != produced; i++)
            ring[i & (slots - 1)] = cq->ring[i & cq->mask];
        cq_ring_install(cq, &memory, slots);
    }
    lock_release(&cq->lock);
    cq_stay_away(cq, false);
    lock_release(&cq->poll_lock);

    queue_memory_give(cq->parent, QUEUE_COMPLETION, error ? &memory : &old);
    return error;
}
