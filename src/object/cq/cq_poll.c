/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion queues: the consumers' side (verbs.md §5.1, §5.6). */
#include <errno.h>

#include "base/sys.h"
#include "object/cq/cq.h"
#include "object/destroyed.h"
#include "object/memory/mapping.h"
#include "object/ports.h"

/* Waits for poll_lock. If a thread is in extended polling, which takes as long as the program likes, and for ever if it
 * forgets to end it or polls again, the wait is published for explanations. */
static cold_path void wait_for_polling(struct cq *cq, enum cq_poll_call call)
{
    struct cq_record *record = cq->record;
    bool told = atomic_load_explicit(&record->window_by, memory_order_relaxed) &&
                !atomic_load_explicit(&record->window_waits_ns, memory_order_relaxed);

    if (told) {
        atomic_store_explicit(&record->window_waits_by, (uint32_t)sys_gettid(), memory_order_relaxed);
        atomic_store_explicit(&record->window_waits_in, call, memory_order_relaxed);
        /* Release: a reader that sees the time also sees the thread and its call. */
        atomic_store_explicit(&record->window_waits_ns, sys_now(), memory_order_release);
    }
    lock_acquire(&cq->poll_lock);
    if (told)
        atomic_store_explicit(&record->window_waits_ns, 0, memory_order_relaxed);
}

void cq_poll_enter(struct cq *cq, enum cq_poll_call call)
{
    if (unlikely(!lock_try(&cq->poll_lock)))
        wait_for_polling(cq, call);
}

static void set_window(struct cq *cq, uint32_t thread)
{
    atomic_store_explicit(&cq->record->window_by, thread, memory_order_relaxed);
}

/* Without a lock, so only a hint: a completion that is added meanwhile is found by the next poll. */
static bool looks_empty(const struct cq *cq)
{
    return atomic_load_explicit(&cq->record->produced, memory_order_relaxed) ==
           atomic_load_explicit(&cq->record->consumed, memory_order_relaxed);
}

static uint8_t cqe_kind(const struct cqe *cqe)
{
    return __atomic_load_n(&cqe->kind, __ATOMIC_RELAXED); /* cq_purge_qp() writes it without poll_lock */
}

static void fill_wc(struct ibv_wc *wc, const struct cqe *cqe, uint8_t kind)
{
    wc->wr_id = cqe->wr_id;
    wc->status = (enum ibv_wc_status)cqe->status;
    wc->opcode = (enum ibv_wc_opcode)cqe->opcode;
    wc->vendor_err = cqe->vendor_err;
    wc->byte_len = cqe->byte_len;
    wc->imm_data = cqe->imm_or_rkey; /* a union with invalidated_rkey */
    wc->qp_num = cqe->qpn;
    wc->src_qp = kind == CQE_OPERATION ? 0 : cqe->src_qpn;
    wc->wc_flags = cqe->wc_flags;
    wc->pkey_index = 0;
    wc->slid = 0;
    wc->sl = cqe->service_level;
    wc->dlid_path_bits = 0;
}

/* The completion of a list operation frees a slot of the tag matching SRQ's list. The number of the SRQ may be
 * another SRQ's by now, which tm_number tells. */
static cold_path void retire_operation(const struct cqe *cqe)
{
    struct srq_record *record = segment_srq(cqe->src_qpn);

    if (record->tm_number == cqe->qpn)
        atomic_store_explicit(&record->ops_retired, cqe->retires, memory_order_release);
}

/* The memory of a flushed receive belongs to the program again. If a peer that does not respond may still write
 * to it (mapping_settle_qp()), the memory moves to other pages before the program sees the completion. */
static void before_error_completion(void)
{
    if (mapping_must_evict())
        mapping_evict();
}

static int take(struct cq *cq, int count, struct ibv_wc *wc)
{
    struct cq_record *record = cq->record;
    const struct cqe *last_send = NULL;
    uint32_t produced, consumed;
    bool error = false;
    int taken = 0;

    cq_poll_enter(cq, CQ_IN_POLL);
    /* Partner: the release in cq_push(). */
    produced = atomic_load_explicit(&record->produced, memory_order_acquire);
    consumed = atomic_load_explicit(&record->consumed, memory_order_relaxed);
    while (taken < count && consumed != produced) {
        const struct cqe *cqe = &cq->ring[consumed++ & cq->mask];
        uint8_t kind = cqe_kind(cqe);

        if (kind == CQE_PURGED)
            continue;
        error |= cqe->status != IBV_WC_SUCCESS;
        fill_wc(&wc[taken++], cqe, kind);
        if (kind == CQE_SEND) {
            /* `retires` is cumulative: of consecutive completions of one QP only the last is applied. */
            if (last_send && last_send->qpn != cqe->qpn)
                qp_retire_sends(last_send->qpn, last_send->retires);
            last_send = cqe;
        } else if (unlikely(kind == CQE_OPERATION)) {
            retire_operation(cqe);
        }
    }
    if (last_send)
        qp_retire_sends(last_send->qpn, last_send->retires);
    /* Release: the slots were read. Partner: make_space() in cq.c. */
    atomic_store_explicit(&record->consumed, consumed, memory_order_release);
    lock_release(&cq->poll_lock);
    if (unlikely(error)) {
        before_error_completion();
        if (explained())
            object_ports->tell_faults(); /* before the program goes on, which may end it */
    }
    return taken;
}

int cq_poll(struct cq *cq, int count, struct ibv_wc *wc)
{
    int taken;

    if (unlikely(count <= 0))
        return 0;
    if (unlikely(context_is_inherited(cq->context)))
        return destroyed_refuse(
            DESTROYED_CQ, cq,
            "ibv_poll_cq"); /* its locks may be held by threads that the child does not have */
    if (!looks_empty(cq)) {
        taken = take(cq, count, wc);
        if (likely(taken > 0))
            return taken;
    }
    object_ports->progress();
    return looks_empty(cq) ? 0 : take(cq, count, wc);
}

/* --- extended polling ----------------------------------------------------------------------------------- */

/* Makes the next completion the current one; poll_lock held. */
static bool load_next(struct cq *cq)
{
    struct cq_record *record = cq->record;
    uint8_t kind = CQE_PURGED;
    uint32_t produced, consumed;

    lock_acquire(&cq->ring_lock);
    produced = atomic_load_explicit(&record->produced, memory_order_acquire);
    consumed = atomic_load_explicit(&record->consumed, memory_order_relaxed);
    while (kind == CQE_PURGED && consumed != produced) {
        const struct cqe *cqe = &cq->ring[consumed++ & cq->mask];

        kind = cqe_kind(cqe);
        if (kind != CQE_PURGED)
            cq->copy = *cqe;
    }
    /* Release: the completion was read. Partner: make_space() in cq.c. */
    atomic_store_explicit(&record->consumed, consumed, memory_order_release);
    cq->away = true;
    lock_release(&cq->ring_lock);
    if (kind == CQE_PURGED)
        return false;
    if (unlikely(cq->copy.status != IBV_WC_SUCCESS)) {
        before_error_completion();
        if (explained())
            object_ports->tell_faults();
    }
    cq->current = &cq->copy;
    /* Now, and not in cq_end_poll(): applications post before that and need the slot. */
    if (kind == CQE_SEND)
        qp_retire_sends(cq->copy.qpn, cq->copy.retires);
    else if (unlikely(kind == CQE_OPERATION))
        retire_operation(&cq->copy);
    return true;
}

static void close_window(struct cq *cq)
{
    cq->current = NULL;
    set_window(cq, 0);
    cq_stay_away(cq, false);
    lock_release(&cq->poll_lock);
}

static bool open_window(struct cq *cq)
{
    if (looks_empty(cq))
        return false;
    cq_poll_enter(cq, CQ_IN_START_POLL);
    set_window(cq, (uint32_t)sys_gettid());
    if (load_next(cq))
        return true;
    close_window(cq);
    return false;
}

int cq_start_poll(struct cq *cq)
{
    if (unlikely(context_is_inherited(cq->context)))
        return destroyed_refuse(DESTROYED_CQ, cq, "ibv_start_poll");
    if (open_window(cq))
        return 0;
    object_ports->progress();
    return open_window(cq) ? 0 : -ENOENT;
}

int cq_next_poll(struct cq *cq)
{
    return load_next(cq) ? 0 : -ENOENT;
}

void cq_end_poll(struct cq *cq)
{
    close_window(cq);
}
