/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Slots of the table of QP records: for programs' QPs, handles of ibv_open_qp() (xrc/open_qp.h) and delegates
 * (xrc/delegate.h). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/thread.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/qp/qp_internal.h"
#include "object/qp/qp_table.h"

#define CHUNK          ((size_t)2 << 20) /* a huge page */
#define FEW_CHUNK      ((size_t)64 << 10)
#define FEW_STRUCTURES 4096u /* so many are in smaller chunks */

/* The structure in each slot; NULL: free. A struct qp is allocated once and reused (type-stable, see qp.h), in
 * any slot, but only after the program has destroyed many others (object/destroyed.h). */
static _Atomic(struct qp *) slots[LIMIT_QP];
/* Guards the list of structures that may be reused, and the memory for new ones; a leaf. */
static struct lock idle_lock = LOCK_INIT;
static struct qp *idle;
static uint32_t structures; /* carved so far */
static char *chunk_end;     /* of the chunk that they are carved from */
static size_t chunk_left;
static _Atomic uint32_t slots_used; /* slots from here on were never used */

void qp_for_each(void (*visit)(struct qp *qp, void *argument), void *argument)
{
    uint32_t used = atomic_load_explicit(&slots_used, memory_order_acquire);

    for (uint32_t slot = 0; slot < used; slot++) {
        struct qp *qp = atomic_load_explicit(&slots[slot], memory_order_acquire);

        if (qp)
            visit(qp, argument);
    }
}

static void raise_slots_used(uint32_t used)
{
    uint32_t seen = atomic_load_explicit(&slots_used, memory_order_relaxed);

    while (seen < used && !atomic_compare_exchange_weak_explicit(
                              &slots_used, &seen, used, memory_order_release, memory_order_relaxed)) {
    }
}

/* Memory for a structure, aligned so that what belongs together lies in one cache line; NULL: there is none. A
 * process with many QPs has its structures in huge pages, where the kernel has any: one translation (TLB entry) then
 * serves a thousand QPs and not two. idle_lock held. */
static void *carve(size_t size)
{
    char *at;

    if (chunk_left < size) {
        bool many = structures >= FEW_STRUCTURES;
        size_t bytes = many ? CHUNK : FEW_CHUNK;
        char *chunk = aligned_alloc(many ? CHUNK : CACHE_LINE, bytes);

        if (!chunk)
            return NULL;
        if (many)
            (void)madvise(chunk, bytes, MADV_HUGEPAGE);
        chunk_end = chunk + bytes;
        chunk_left = bytes;
    }
    structures++;
    at = chunk_end - chunk_left;
    chunk_left -= size;
    return at;
}

static struct qp *new_structure(void)
{
    size_t lines = (sizeof(struct qp) + qp_ports->private_size + CACHE_LINE - 1) / CACHE_LINE;
    void *qp;

    lock_acquire(&idle_lock);
    qp = carve(lines * CACHE_LINE);
    lock_release(&idle_lock);
    return qp ? memset(qp, 0, lines * CACHE_LINE) : NULL;
}

struct qp *qp_take_slot(uint32_t *ret_slot)
{
    uint32_t slot = number_take(&pool_qps);
    struct qp *qp;

    if (slot == NO_OBJECT)
        return NULL;
    if (segment_open_qp(slot)) {
        number_return(&pool_qps, slot);
        return NULL;
    }
    lock_acquire(&idle_lock);
    qp = idle;
    if (qp)
        idle = qp->next_idle;
    lock_release(&idle_lock);
    if (!qp) {
        qp = new_structure();
        if (!qp) {
            number_return(&pool_qps, slot);
            return NULL;
        }
        lock_init(&qp->lock);
        pthread_mutex_init(&qp->ibv.mutex, NULL);
        thread_cond_init(&qp->ibv.cond);
        list_init(&qp->exposing);
        list_init(&qp->by_origin);
        list_init(&qp->by_xrcd);
        qp_ports->init_private(qp);
    }
    /* A thread that found the previous QP by its number may hold the lock. */
    lock_acquire(&qp->lock);
    qp->slot = slot;
    qp->record = segment_qp(slot);
    lock_release(&qp->lock);
    atomic_store_explicit(&slots[slot], qp, memory_order_release);
    raise_slots_used(slot + 1);
    *ret_slot = slot;
    return qp;
}

void qp_give_slot(struct qp *qp, bool destroyed)
{
    uint32_t slot = qp->slot;

    atomic_store_explicit(&slots[slot], NULL, memory_order_relaxed);
    number_return(&pool_qps, slot);
    if (destroyed) {
        lock_acquire(&qp->lock); /* as assemble() does: a thread that has found the QP may look at it still */
        qp->context = &destroyed_context;
        lock_release(&qp->lock);
        qp = destroyed_exchange(DESTROYED_QP, qp, qp->ibv.qp_num);
    }
    if (!qp)
        return;
    lock_acquire(&idle_lock);
    qp->next_idle = idle;
    idle = qp;
    lock_release(&idle_lock);
}

void qp_make_blank(struct qp *qp, uint32_t slot)
{
    struct qp_record *record = qp->record;

    if (record->has_rare)
        memset(segment_qp_rare(slot), 0, sizeof(struct qp_rare));
    memset(record, 0, sizeof(*record));
    memset(&qp->transport, 0, sizeof(qp->transport));
    lock_init(&qp->post_lock);
    qp->slot = slot;
    qp->pd = NULL;
    qp->send_cq = qp->recv_cq = NULL;
    qp->srq = NULL;
    qp->spreads_over = NULL;
    qp->origin = NULL;
    qp->handle = NULL;
    qp->keeping = NULL;
    qp->holders = qp->opener_count = 0;
    list_init(&qp->openers);
    qp->flows = qp->counted = 0;
    qp->receive_taken = qp->settle_due = qp->is_extended = qp->creator_closed = false;
    qp->by_packets = 0;
    qp->stamp = qp->noted_begun = 0;
    atomic_store_explicit(&qp->prefetch_wqe, NULL, memory_order_relaxed);
    qp->noted_waiting = SENDER_RUNS;
    qp->time_from = qp->timed = qp->time_gap = 0;
    qp->timed_ns = 0;
    qp->create_flags = 0;
    qp->receive_ring = NULL;
    qp->queues = (struct qp_queues){0};
    ack_account_init(&qp->async_events, NULL);
    qp->transport.record = record;
    qp->transport.rare = segment_qp_rare(slot);
    qp->transport.ports = &qp_transport_ports;
    qp->transport.keys = segment_keys();
    qp->transport.receive_pd = NO_OBJECT;
    record->type = IBV_QPT_XRC_RECV;
    record->pd = record->send_cq = record->recv_cq = record->srq = NO_OBJECT;
}

void qp_slots_after_fork_in_child(void)
{
    for (uint32_t slot = 0; slot < atomic_load_explicit(&slots_used, memory_order_relaxed); slot++) {
        struct qp *qp = atomic_exchange_explicit(&slots[slot], NULL, memory_order_relaxed);

        if (qp)
            qp_table_remove(qp->ibv.qp_num);
    }
    atomic_store_explicit(&slots_used, 0, memory_order_relaxed);
    lock_init(&idle_lock);
    idle = NULL;
    chunk_left = 0; /* leaks the rest: another thread may have been carving it */
    destroyed_after_fork_in_child();
}
