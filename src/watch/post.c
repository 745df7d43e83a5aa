/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Posts: work requests are recorded before the original post, so that a completion which another thread polls finds
 * them (complete.c). A post is under its ring's lock, a completion under the lock of its CQ; posted is the former's,
 * completed and taken the latter's.
 *
 * Each post of the program comes through here: what is likely is one work request with one SGE. */
#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "base/sys.h"
#include "explain/names.h"
#include "explain/out.h"
#include "rules/transitions.h"
#include "watch/ring.h"
#include "watch/state.h"

/* Of what posts do, each has a path of its own: a SEND, which has no rest, and what has its rkey where a WRITE has
 * it. */
enum shape { SEND_SHAPE, WRITE_SHAPE };

static inline bool is_send(const struct ibv_send_wr *wr)
{
    _Static_assert(IBV_WR_SEND_WITH_IMM == IBV_WR_SEND + 1, "one comparison");
    return (uint32_t)wr->opcode - IBV_WR_SEND <= 1;
}

/* Does it break a rule that does not depend on the adapter? Notes which (base/refusal.h). */
static cold_path bool send_breaks_rules(const struct watched_qp *qp, const struct ibv_send_wr *wr)
{
    const struct qp_record *record = qp->record;
    uint64_t bytes = 0;

    if (transition_check_post_send((enum ibv_qp_type)record->type, (enum ibv_qp_state)record->state))
        return true;
    if (!wr)
        return false;
    if (record->type == IBV_QPT_UD && !is_send(wr))
        return refuse(-EINVAL, REFUSAL_OPCODE, "opcode", wr->opcode, record->type, 0);
    if (wr->num_sge > (int)record->max_send_sge)
        return refuse_range("num_sge", wr->num_sge, 0, record->max_send_sge);
    if ((wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) &&
        wr->wr.atomic.remote_addr % sizeof(uint64_t))
        return refuse(-EINVAL, REFUSAL_UNALIGNED, "wr.atomic.remote_addr", (int64_t)wr->wr.atomic.remote_addr,
                      sizeof(uint64_t), 0);
    for (int i = 0; wr->send_flags & IBV_SEND_INLINE && i < wr->num_sge; i++)
        bytes += wr->sg_list[i].length;
    return bytes > record->max_inline &&
           refuse_range("length of the inline data", (int64_t)bytes, 0, record->max_inline);
}

static cold_path bool receive_breaks_rules(const struct watched_qp *qp, const struct ibv_recv_wr *wr)
{
    const struct qp_record *record = qp->record;

    if (transition_check_post_recv((enum ibv_qp_type)record->type, (enum ibv_qp_state)record->state))
        return true;
    if (qp->srq)
        return refuse(-EINVAL, REFUSAL_HAS_SRQ, "", 0, 0, 0);
    return wr && wr->num_sge > (int)record->receive.max_sge &&
           refuse_range("num_sge", wr->num_sge, 0, record->receive.max_sge);
}

/* A queue of unsignaled work requests has words of its own: which of them have ended only the adapter knows. */
static cold_path void tell_refused_post(const struct watched_qp *qp, const char *call, int error,
                                        uint32_t depth, uint32_t outstanding, bool any_signaled)
{
    struct words words = {.length = 0};
    bool send = call[9] == 's';

    if (error == ENOMEM && outstanding >= depth && send && !any_signaled)
        words_add(&words,
                  "all %u slots of the send queue hold unsignaled work requests, so no completion frees them "
                  "(unless one fails): signal at least one in every %u (IBV_SEND_SIGNALED)",
                  depth, depth);
    else if (error == ENOMEM && outstanding >= depth)
        refuse(-ENOMEM, REFUSAL_FULL, send ? "send queue" : "receive queue", depth, depth, !send);
    if (tell_reason(call, error, OBJECT_QP, qp->qpn))
        return;
    tell_refused(call, OBJECT_QP, qp->base.number, error, words.length ? words.text : NULL);
}

/* --- sends ---------------------------------------------------------------------------------------------- */

static void fill_send(const struct watched_qp *qp, struct watched_send *send, const struct ibv_send_wr *wr,
                      uint32_t stamp)
{
    bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    struct watched_rest *rest = send_rest(qp, send);

    *send = (struct watched_send){
        .wr_id = wr->wr_id, .opcode = wr->opcode | WATCHED_REST, .send_flags = wr->send_flags};
    rest->stamp = stamp;
    rest->remote_address = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
    rest->rkey = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
    record_sges(send, rest, wr->sg_list, min_of((uint32_t)wr->num_sge, qp->send.max_sge));
}

/* One work request of that shape, with one SGE? */
static inline bool is_small(const struct watched_qp *qp, const struct ibv_send_wr *wr, enum shape shape)
{
    return wr && !wr->next && wr->num_sge == 1 &&
           (shape == SEND_SHAPE ? is_send(wr) : (uint32_t)wr->opcode <= IBV_WR_RDMA_READ) &&
           likely((wr->send_flags & IBV_SEND_SIGNALED) || !qp->unsignaled_is_first);
}

/* Its time is not recorded. */
static inline void fill_small_send(const struct watched_qp *qp, struct watched_send *send,
                                   const struct ibv_send_wr *wr, enum shape shape)
{
    const struct ibv_sge *sge = wr->sg_list;

    send->wr_id = wr->wr_id;
    memcpy(&send->opcode, &wr->opcode, sizeof(send->opcode) + sizeof(send->send_flags));
    memcpy(&send->address, sge, sizeof(*sge));
    if (shape == WRITE_SHAPE) {
        struct watched_rest *rest = send_rest(qp, send);

        rest->remote_address = wr->wr.rdma.remote_addr;
        rest->rkey = wr->wr.rdma.rkey;
    }
}

/* Records as many of the chain as there are slots; returns the counter behind the last. */
static uint32_t note_sends(struct watched_qp *qp, struct qp_record *record, const struct ibv_send_wr **chain)
{
    const struct ibv_send_wr *wr = *chain;
    uint32_t posted = atomic_load_explicit(&record->sender.posted, memory_order_relaxed);
    uint32_t end = __atomic_load_n(&record->sender.completed, __ATOMIC_ACQUIRE) + qp->send.depth;
    /* Of what is posted behind others the time is not recorded, unless all is to be told. */
    uint32_t stamp = end - posted == qp->send.depth || watch_times ? provenance_stamp_now() : STAMP_NONE;

    for (; wr && posted != end; wr = wr->next, posted++) {
        send_is_to_be(qp, wr->send_flags);
        fill_send(qp, send_slot(qp, posted), wr, stamp);
    }
    *chain = wr;
    /* Release: who polls a completion of them sees the records; partner: retire_send(). */
    atomic_store_explicit(&record->sender.posted, posted, memory_order_release);
    return posted;
}

static bool has_signaled(const struct watched_qp *qp, const struct qp_record *record)
{
    for (uint32_t i = record->sender.completed; i != record->sender.posted; i++) {
        if (is_signaled(qp, send_slot(qp, i)->send_flags))
            return true;
    }
    return false;
}

/* More than fits: the adapter frees slots of its own accord, without a completion, or refuses. The lock of the CQ
 * keeps completions of what is not recorded yet away. */
static cold_path int post_past_the_end(struct watched_qp *qp, struct qp_record *record, struct ibv_qp *ibv,
                                       struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    uint32_t start = record->sender.posted, posted;
    const struct ibv_send_wr *end;
    bool locked = false;
    int result;

    if (qp->send_cq)
        locked = bias_acquire(&qp->send_cq->lock);
    /* Completions of those that are forgotten come, too. */
    qp->unsignaled_is_first = false;
    atomic_store_explicit(&qp->send.counted, false, memory_order_relaxed);
    result = qp->post_send(ibv, wr, bad);
    end = result ? *bad : NULL;
    posted = start;
    for (; wr && wr != end; wr = wr->next) {
        if (posted - record->sender.completed > qp->send.mask)
            record->sender.completed++; /* the oldest is forgotten */
        fill_send(qp, send_slot(qp, posted++), wr, provenance_stamp_now());
        atomic_store_explicit(&record->sender.posted, posted, memory_order_release);
    }
    if (qp->send_cq)
        bias_release(&qp->send_cq->lock, locked);
    return result;
}

static cold_path void post_failed(struct watched_qp *qp, const struct qp_record *record, int result,
                                  bool locked, const struct ibv_send_wr *bad)
{
    uint32_t outstanding = record->sender.posted - record->sender.completed;
    bool any_signaled = has_signaled(qp, record);
    int error = result < 0 ? -result : result;

    bias_release(&qp->send.lock, locked);
    if (error == EINVAL && send_breaks_rules(qp, bad) &&
        tell_reason("ibv_post_send", error, OBJECT_QP, qp->qpn))
        return;
    tell_refused_post(qp, "ibv_post_send", error, record->send_depth, outstanding, any_signaled);
}

/* As many as there are, by whichever thread. */
static no_inline int post_any(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                              struct watched_qp *qp)
{
    struct qp_record *record = qp->record;
    const struct ibv_send_wr *rest = wr;
    uint32_t start, end;
    bool locked;
    int result;

    if (!qp->send.depth)
        return qp->post_send(ibv, wr, bad);
    locked = bias_acquire(&qp->send.lock);
    start = atomic_load_explicit(&record->sender.posted, memory_order_relaxed);
    end = note_sends(qp, record, &rest);
    if (rest) {
        atomic_store_explicit(&record->sender.posted, start, memory_order_release);
        result = post_past_the_end(qp, record, ibv, wr, bad);
    } else {
        result = qp->post_send(ibv, wr, bad);
        /* Those from *bad on were not posted. */
        for (const struct ibv_send_wr *one = wr; result && one && one != *bad && start != end;
             one = one->next)
            start++;
        if (result)
            atomic_store_explicit(&record->sender.posted, start, memory_order_release);
    }
    if (result)
        post_failed(qp, record, result, locked, *bad);
    else
        bias_release(&qp->send.lock, locked);
    return result;
}

/* The program's work request was not kept across the call: what was recorded of it says enough. */
static cold_path int post_one_failed(struct watched_qp *qp, int result)
{
    struct qp_record *record = qp->record;
    const struct watched_send *send = send_slot(qp, record->sender.posted - 1);
    struct ibv_sge sge = {send->address, send->length, send->lkey};
    struct ibv_send_wr wr = {.opcode = (enum ibv_wr_opcode)(send->opcode & ~WATCHED_REST),
                             .send_flags = send->send_flags,
                             .sg_list = &sge,
                             .num_sge = 1};

    atomic_store_explicit(&record->sender.posted, record->sender.posted - 1, memory_order_release);
    post_failed(qp, record, result, false, &wr);
    return result;
}

/* By the owner of the queue, who is inside, and into a queue that is empty or full. */
static no_inline int post_first(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                                struct watched_qp *qp)
{
    struct qp_record *record = qp->record;
    uint32_t posted = atomic_load_explicit(&record->sender.posted, memory_order_relaxed);
    struct watched_send *send;
    struct watched_rest *rest;
    int result;

    if (qp->send.plain == 0 || posted != __atomic_load_n(&record->sender.completed, __ATOMIC_ACQUIRE)) {
        bias_leave(&qp->send.lock);
        return post_any(ibv, wr, bad, qp);
    }
    send = send_slot(qp, posted);
    fill_small_send(qp, send, wr, is_send(wr) ? SEND_SHAPE : WRITE_SHAPE);
    send->opcode |= WATCHED_REST;
    rest = send_rest(qp, send);
    rest->stamp = STAMP_NONE;
    rest->more_sges = 0;
    /* Release: as in note_sends(). */
    atomic_store_explicit(&record->sender.posted, posted + 1, memory_order_release);
    result = qp->post_send(ibv, wr, bad);
    if (unlikely(result))
        return post_one_failed(qp, result);
    rest->stamp = provenance_stamp_now();
    bias_leave(&qp->send.lock);
    return 0;
}

static no_inline int post_write(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                                struct watched_qp *qp);

/* One small work request, by the thread that owns the queue; little is kept across the call. */
static always_inline int post_small(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                                    struct watched_qp *qp, enum shape shape)
{
    struct qp_record *record;
    uint32_t posted;
    int result;

    if (!is_small(qp, wr, shape))
        return shape == SEND_SHAPE ? post_write(ibv, wr, bad, qp) : post_any(ibv, wr, bad, qp);
    if (unlikely(!bias_enter(&qp->send.lock)))
        return post_any(ibv, wr, bad, qp);
    record = qp->record;
    posted = atomic_load_explicit(&record->sender.posted, memory_order_relaxed);
    /* Neither empty nor full. Relaxed: the slot is written behind the comparison (partner: count_sends()). */
    if (unlikely(posted - 1 - record->sender.completed >= qp->send.room))
        return post_first(ibv, wr, bad, qp);
    fill_small_send(qp, send_slot(qp, posted), wr, shape);
    /* Release: as in note_sends(). */
    atomic_store_explicit(&record->sender.posted, posted + 1, memory_order_release);
    result = qp->post_send(ibv, wr, bad);
    if (unlikely(result))
        return post_one_failed(qp, result);
    keep_register(result);
    bias_leave(&qp->send.lock);
    return result;
}

static no_inline int post_write(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                                struct watched_qp *qp)
{
    return post_small(ibv, wr, bad, qp, WRITE_SHAPE);
}

int watched_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                      struct watched_qp *qp)
{
    return post_small(ibv, wr, bad, qp, SEND_SHAPE);
}

static no_inline int post_send_other(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct watched_qp *qp = (struct watched_qp *)watched_find(ibv, OBJECT_QP);

    if (unlikely(!qp || watch_thread.inside))
        return originals_of(ibv->context)->ops.post_send(ibv, wr, bad);
    watch_thread.sender = qp;
    return watched_post_send(ibv, wr, bad, qp);
}

int op_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct watched_qp *qp = watch_thread.sender;

    return likely(qp->base.key == ibv) ? post_small(ibv, wr, bad, qp, SEND_SHAPE)
                                       : post_send_other(ibv, wr, bad);
}

/* --- receives ------------------------------------------------------------------------------------------- */

static void fill_receive(const struct watched_ring *ring, struct recv_wqe *wqe, const struct ibv_recv_wr *wr,
                         uint32_t stamp)
{
    uint32_t count = min_of((uint32_t)wr->num_sge, ring->max_sge);

    if (count)
        memcpy(wqe->sge, wr->sg_list, count * sizeof(struct wqe_sge));
    wqe->wr_id = wr->wr_id;
    wqe->num_sge = count;
    wqe->stamp = stamp;
}

static uint32_t note_receives(struct watched_ring *ring, uint32_t posted, uint32_t taken,
                              const struct ibv_recv_wr *wr)
{
    uint32_t end = taken + ring->depth, stamp = watch_times ? provenance_stamp_now() : STAMP_NONE;

    for (; wr && posted != end; wr = wr->next, posted++)
        fill_receive(ring, recv_slot(ring, posted), wr, stamp);
    return posted;
}

static uint32_t accepted(uint32_t start, uint32_t end, const struct ibv_recv_wr *wr,
                         const struct ibv_recv_wr *bad)
{
    for (; wr && wr != bad && start != end; wr = wr->next)
        start++;
    return start;
}

static cold_path void tell_refused_receive(const struct watched_qp *qp, int error, uint32_t outstanding,
                                           const struct ibv_recv_wr *bad)
{
    if (error == EINVAL && receive_breaks_rules(qp, bad) &&
        tell_reason("ibv_post_recv", error, OBJECT_QP, qp->qpn))
        return;
    tell_refused_post(qp, "ibv_post_recv", error, qp->record->receive.depth, outstanding, true);
}

static cold_path int receive_refused(struct watched_qp *qp, uint32_t posted, int result, bool locked,
                                     const struct ibv_recv_wr *bad)
{
    struct receive_queue *queue = &qp->record->receive;
    uint32_t outstanding = posted - atomic_load_explicit(&queue->taken, memory_order_acquire);

    atomic_store_explicit(&queue->posted, posted, memory_order_release);
    qp->receive.limit = posted;
    bias_release(&qp->receive.lock, locked);
    tell_refused_receive(qp, result, outstanding, bad);
    return result;
}

static no_inline int receive_any(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                                 struct watched_qp *qp)
{
    struct receive_queue *queue = &qp->record->receive;
    uint32_t start, end;
    bool locked;
    int result;

    if (!qp->receive.depth) {
        result = qp->post_recv(ibv, wr, bad);
        if (result)
            tell_refused_receive(qp, result, 0, *bad);
        return result;
    }
    locked = bias_acquire(&qp->receive.lock);
    start = atomic_load_explicit(&queue->posted, memory_order_relaxed);
    end = note_receives(&qp->receive, start, atomic_load_explicit(&queue->taken, memory_order_acquire), wr);
    qp->receive.limit = end;
    atomic_store_explicit(&queue->posted, end, memory_order_release); /* partner: retire_receive() */
    result = qp->post_recv(ibv, wr, bad);
    if (result)
        return receive_refused(qp, accepted(start, end, wr, *bad), result, locked, *bad);
    bias_release(&qp->receive.lock, locked);
    return 0;
}

static no_inline int receive_at_limit(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                                      struct watched_qp *qp);

/* Are there free slots, as far as plain posts may use them? */
static bool receive_limit_rises(struct watched_qp *qp, uint32_t posted)
{
    uint32_t taken = atomic_load_explicit(&qp->record->receive.taken, memory_order_acquire);

    if (posted - taken >= qp->receive.plain)
        return false;
    qp->receive.limit = taken + qp->receive.plain;
    return true;
}

/* As post_small(). */
static always_inline int receive_small(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                                       struct watched_qp *qp)
{
    struct receive_queue *queue;
    struct recv_wqe *wqe;
    uint32_t posted;
    int result;

    if (unlikely(!wr || wr->next || wr->num_sge != 1 || !bias_enter(&qp->receive.lock)))
        return receive_any(ibv, wr, bad, qp);
    queue = &qp->record->receive;
    posted = atomic_load_explicit(&queue->posted, memory_order_relaxed);
    if (unlikely(posted == qp->receive.limit))
        return receive_at_limit(ibv, wr, bad, qp);
    wqe = recv_slot(&qp->receive, posted);
    wqe->wr_id = wr->wr_id;
    wqe->num_sge = 1;
    wqe->stamp = STAMP_NONE;
    memcpy(wqe->sge, wr->sg_list, sizeof(struct wqe_sge));                   /* each slot has room for one */
    atomic_store_explicit(&queue->posted, posted + 1, memory_order_release); /* partner: count_receives() */
    result = qp->post_recv(ibv, wr, bad);
    if (unlikely(result))
        return receive_refused(qp, qp->record->receive.posted - 1, result, false, NULL);
    keep_register(result);
    bias_leave(&qp->receive.lock);
    return result;
}

/* The owner of the queue is inside. */
static no_inline int receive_at_limit(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                                      struct watched_qp *qp)
{
    bool rises =
        receive_limit_rises(qp, atomic_load_explicit(&qp->record->receive.posted, memory_order_relaxed));

    bias_leave(&qp->receive.lock);
    return rises ? receive_small(ibv, wr, bad, qp) : receive_any(ibv, wr, bad, qp);
}

int watched_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                      struct watched_qp *qp)
{
    return receive_small(ibv, wr, bad, qp);
}

static no_inline int post_recv_other(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct watched_qp *qp = (struct watched_qp *)watched_find(ibv, OBJECT_QP);

    if (unlikely(!qp || watch_thread.inside))
        return originals_of(ibv->context)->ops.post_recv(ibv, wr, bad);
    watch_thread.receiver = qp;
    return watched_post_recv(ibv, wr, bad, qp);
}

int op_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct watched_qp *qp = watch_thread.receiver;

    return likely(qp->base.key == ibv) ? receive_small(ibv, wr, bad, qp) : post_recv_other(ibv, wr, bad);
}

int watched_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                          struct watched_srq *srq)
{
    struct srq_record *record = segment_srq(srq->base.number);
    uint32_t start, end;
    bool locked;
    int result;

    if (unlikely(srq->unseen || !wr))
        return srq->post(ibv, wr, bad);
    locked = bias_acquire(&srq->ring.lock);
    start = atomic_load_explicit(&record->posted, memory_order_relaxed);
    end = note_receives(&srq->ring, start, atomic_load_explicit(&record->taken, memory_order_acquire), wr);
    atomic_store_explicit(&record->posted, end, memory_order_release); /* partner: take_from_srq() */
    result = srq->post(ibv, wr, bad);
    if (unlikely(result))
        atomic_store_explicit(&record->posted, accepted(start, end, wr, *bad), memory_order_release);
    bias_release(&srq->ring.lock, locked);
    if (unlikely(result)) {
        if (result == EINVAL && *bad && (*bad)->num_sge > (int)srq->ring.max_sge)
            refuse_range("num_sge", (*bad)->num_sge, 0, srq->ring.max_sge);
        if (!tell_reason("ibv_post_srq_recv", result, OBJECT_SRQ, srq->base.number))
            tell_refused("ibv_post_srq_recv", OBJECT_SRQ, srq->base.number, result, NULL);
    }
    return result;
}

int op_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct watched_srq *srq = (struct watched_srq *)watched_find(ibv, OBJECT_SRQ);

    if (unlikely(!srq || watch_thread.inside))
        return originals_of(ibv->context)->ops.post_srq_recv(ibv, wr, bad);
    return watched_post_srq_recv(ibv, wr, bad, srq);
}
