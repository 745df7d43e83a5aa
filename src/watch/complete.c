/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completions that the program polls retire the records of what was posted (post.c). Completions of one queue come in
 * its order (IBA 10.8.5.1), so one of a send retires those posted before it; of an SRQ they come in any order.
 *
 * Each completion comes through here: what is likely is a success of the oldest work request of a QP that had one
 * lately, which is found by QP number without the table. */
#include <string.h>

#include "base/sys.h"
#include "watch/ring.h"
#include "watch/state.h"

static struct table qpns; /* QPs by context and QP number */

static uint64_t qpn_key(const struct watched_context *context, uint32_t qpn)
{
    return (uint64_t)(context->base.number + 1) << 32 | qpn;
}

void work_after_fork_in_child(void)
{
    lock_init(&qpns.lock);
}

void work_know_qp(struct watched_qp *qp, uint32_t qpn)
{
    table_put(&qpns, qpn_key(qp->base.context, qpn), qp);
}

struct watched_qp no_qp = {.qpn = UINT32_MAX};

static inline struct watched_qp **recent_of(struct watched_cq *cq, uint32_t qpn)
{
    return &cq->recent[qpn % RECENT_QPS];
}

static void forget_in(struct watched_cq *cq, const struct watched_qp *qp)
{
    struct watched_qp **recent;
    bool locked;

    if (!cq)
        return;
    locked = bias_acquire(&cq->lock);
    recent = recent_of(cq, qp->qpn);
    if (*recent == qp)
        *recent = &no_qp;
    bias_release(&cq->lock, locked);
}

/* Behind this no thread that polls finds it. */
void work_forget_qp(struct watched_qp *qp)
{
    table_drop(&qpns, qpn_key(qp->base.context, qp->qpn), qp);
    forget_in(qp->send_cq, qp);
    forget_in(qp->recv_cq, qp);
}

/* --- one completion --------------------------------------------------------------------------------------------- */

/* The record of the send that completed; NULL: it was not posted through the calls that are watched. */
static struct send_wqe *retire_send(struct watched_qp *qp, struct qp_record *record, uint64_t wr_id,
                                    bool error)
{
    uint32_t counter = record->sender.completed;
    uint32_t posted = atomic_load_explicit(&record->sender.posted, memory_order_acquire);

    for (; counter != posted; counter++) {
        struct send_wqe *wqe = send_slot(qp, counter);

        if (wqe->wr_id != wr_id || (!error && !(wqe->flags & WQE_SIGNALED)))
            continue;
        atomic_store_explicit(&record->sender.retired, counter + 1, memory_order_relaxed);
        __atomic_store_n(&record->sender.completed, counter + 1,
                         __ATOMIC_RELEASE); /* partner: note_sends() */
        return wqe;
    }
    return NULL;
}

static bool retire_receive(struct watched_qp *qp, struct receive_queue *queue, uint64_t wr_id)
{
    uint32_t counter = atomic_load_explicit(&queue->taken, memory_order_relaxed);
    uint32_t posted = atomic_load_explicit(&queue->posted, memory_order_acquire);

    for (; counter != posted; counter++) {
        if (recv_slot(&qp->receive, counter)->wr_id == wr_id) {
            atomic_store_explicit(&queue->taken, counter + 1,
                                  memory_order_release); /* partner: note_receives() */
            return true;
        }
    }
    return false;
}

/* In any order: the oldest takes the place of the one that completed. */
static bool take_from_srq(struct watched_srq *srq, uint64_t wr_id)
{
    struct srq_record *record = segment_srq(srq->base.number);
    uint32_t first, posted, counter;

    lock_acquire(&srq->take_lock);
    first = atomic_load_explicit(&record->taken, memory_order_relaxed);
    posted = atomic_load_explicit(&record->posted, memory_order_acquire);
    for (counter = first; counter != posted && recv_slot(&srq->ring, counter)->wr_id != wr_id; counter++) {
    }
    if (counter != posted) {
        if (counter != first)
            memcpy(recv_slot(&srq->ring, counter), recv_slot(&srq->ring, first), srq->ring.stride);
        atomic_store_explicit(&record->taken, first + 1, memory_order_release);
    }
    lock_release(&srq->take_lock);
    return counter != posted;
}

static bool is_next_send(struct watched_qp *qp, const struct qp_record *record, uint64_t wr_id)
{
    return record->sender.completed != record->sender.posted && qp->send.slots &&
           send_slot(qp, record->sender.completed)->wr_id == wr_id;
}

/* Of a completion in error only wr_id, status, qp_num and vendor_err are valid (ibv_poll_cq(3)). Adapters set the
 * opcode all the same, mostly; what it says counts where queue and wr_id leave both possible. */
static bool is_receive(struct watched_qp *qp, const struct watched_cq *cq, const struct qp_record *record,
                       const struct completion *completion)
{
    if (completion->status == IBV_WC_SUCCESS)
        return completion->receive;
    if (qp->send_cq != qp->recv_cq)
        return qp->recv_cq == cq;
    if (!completion->receive && !is_next_send(qp, record, completion->wr_id))
        return qp->receive.slots && record->receive.taken != record->receive.posted &&
               recv_slot(&qp->receive, record->receive.taken)->wr_id == completion->wr_id;
    return completion->receive;
}

static cold_path void note_failure(struct watched_qp *qp, struct qp_record *record,
                                   const struct completion *completion, bool receive,
                                   const struct send_wqe *wqe)
{
    struct failure_record *failure = &record->failure;

    failure->wr_id = completion->wr_id;
    failure->status = completion->status;
    failure->vendor_err = completion->vendor_err;
    failure->receive = receive;
    failure->opcode = wqe ? wqe->opcode : 0;
    failure->length = wqe ? wqe->length : 0;
    failure->rkey = wqe ? wqe->rkey : 0;
    failure->remote_address = wqe ? wqe->remote_address : 0;
    if (record->type == IBV_QPT_UD && !receive)
        atomic_store_explicit(&record->state, IBV_QPS_SQE, memory_order_relaxed); /* IBA 10.3.1.6 */
    else
        atomic_store_explicit(&record->state, IBV_QPS_ERR, memory_order_relaxed);
    __atomic_store_n(&failure->ns, sys_now(), __ATOMIC_RELEASE);
}

enum news { NEWS_NONE, NEWS_FAILURE, NEWS_UNSEEN };

/* The success of the oldest work request. False: it is another, or something else is to be noted. */
static inline bool note_oldest(struct watched_cq *cq, uint32_t qpn, uint64_t wr_id, bool receive)
{
    struct watched_qp *qp = *recent_of(cq, qpn);
    struct qp_record *record;
    uint32_t oldest;

    if (unlikely(qp->qpn != qpn))
        return false;
    record = qp->record;
    if (receive) {
        struct receive_queue *queue = &record->receive;

        oldest = atomic_load_explicit(&queue->taken, memory_order_relaxed);
        if (unlikely(oldest == atomic_load_explicit(&queue->posted, memory_order_acquire) ||
                     recv_slot(&qp->receive, oldest)->wr_id != wr_id))
            return false;
        atomic_store_explicit(&queue->taken, oldest + 1, memory_order_release); /* partner: note_receives() */
    } else {
        const struct send_wqe *wqe;

        oldest = record->sender.completed;
        if (unlikely(oldest == atomic_load_explicit(&record->sender.posted, memory_order_acquire)))
            return false;
        wqe = send_slot(qp, oldest);
        if (unlikely(wqe->wr_id != wr_id || !(wqe->flags & WQE_SIGNALED)))
            return false;
        atomic_store_explicit(&record->sender.retired, oldest + 1, memory_order_relaxed);
        __atomic_store_n(&record->sender.completed, oldest + 1, __ATOMIC_RELEASE); /* partner: note_sends() */
    }
    return true;
}

/* cq->lock held. *ret_qp: whom the news are about. */
static cold_path enum news note_completion(struct watched_cq *cq, const struct completion *completion,
                                           struct watched_qp **ret_qp)
{
    struct watched_qp *qp = *recent_of(cq, completion->qpn);
    struct send_wqe *wqe = NULL;
    struct qp_record *record;
    bool receive, found = true;

    if (qp->qpn != completion->qpn) {
        qp = table_find(&qpns, qpn_key(cq->base.context, completion->qpn));
        if (!qp || is_stale(&qp->base))
            return NEWS_NONE;
        *recent_of(cq, completion->qpn) = qp;
    }
    record = qp->record;
    receive = is_receive(qp, cq, record, completion);
    if (record->unseen & (receive ? UNSEEN_RECEIVES : UNSEEN_SENDS)) {
        /* its records say nothing */
    } else if (!receive) {
        wqe = qp->send.slots
                  ? retire_send(qp, record, completion->wr_id, completion->status != IBV_WC_SUCCESS)
                  : NULL;
        found = wqe != NULL;
    } else if (qp->srq) {
        found = qp->srq->unseen || take_from_srq(qp->srq, completion->wr_id);
        qp->srq->unseen |= !found;
    } else if (qp->receive.slots) {
        found = retire_receive(qp, &record->receive, completion->wr_id);
    }
    *ret_qp = qp;
    if (completion->status != IBV_WC_SUCCESS && completion->status != IBV_WC_WR_FLUSH_ERR &&
        !record->failure.ns) {
        note_failure(qp, record, completion, receive, wqe);
        return NEWS_FAILURE;
    }
    if (found)
        return NEWS_NONE;
    record->unseen |= receive ? UNSEEN_RECEIVES : UNSEEN_SENDS;
    return NEWS_UNSEEN;
}

static cold_path void tell_news(enum news news, const struct watched_qp *qp)
{
    tell(news == NEWS_FAILURE ? TOLD_FAILURE : TOLD_UNSEEN, OBJECT_QP, qp->base.number);
}

/* --- polls -------------------------------------------------------------------------------------------------------- */

static inline void note_poll(struct cq_record *record, uint32_t polled)
{
    if (!record->polled)
        record->polled = 1;
    atomic_store_explicit(&record->produced, record->produced + polled, memory_order_relaxed);
}

/* cq->lock held. The first news of a poll are told. */
static cold_path enum news note_wc(struct watched_cq *cq, const struct ibv_wc *wc, struct watched_qp **ret_qp)
{
    const struct completion completion = {
        .wr_id = wc->wr_id,
        .qpn = wc->qp_num,
        .status = wc->status,
        .vendor_err = wc->vendor_err,
        .receive = wc->opcode & IBV_WC_RECV,
    };

    return note_completion(cq, &completion, ret_qp);
}

int watched_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc, struct watched_cq *cq)
{
    struct watched_qp *qp = NULL, *told = NULL;
    enum news news = NEWS_NONE, latest;
    bool locked = bias_acquire(&cq->lock);
    int polled = cq->poll(ibv, count, wc);

    note_poll(cq->record, polled > 0 ? (uint32_t)polled : 0);
    for (const struct ibv_wc *one = wc; one < wc + polled; one++) {
        if (likely(one->status == IBV_WC_SUCCESS &&
                   note_oldest(cq, one->qp_num, one->wr_id, one->opcode & IBV_WC_RECV)))
            continue;
        latest = note_wc(cq, one, &qp);
        if (latest && !news) {
            news = latest;
            told = qp;
        }
    }
    bias_release(&cq->lock, locked);
    if (unlikely(news))
        tell_news(news, told);
    return polled;
}

void watched_completed(struct watched_cq *cq, const struct completion *completion)
{
    enum news news = NEWS_NONE;
    struct watched_qp *qp = NULL;
    bool locked = bias_acquire(&cq->lock);

    note_poll(cq->record, 1);
    if (unlikely(completion->status != IBV_WC_SUCCESS ||
                 !note_oldest(cq, completion->qpn, completion->wr_id, completion->receive)))
        news = note_completion(cq, completion, &qp);
    bias_release(&cq->lock, locked);
    if (unlikely(news))
        tell_news(news, qp);
}

void work_forget(struct watched_qp *qp)
{
    struct qp_record *record = qp->record;

    __atomic_store_n(&record->sender.completed, record->sender.posted, __ATOMIC_RELEASE);
    atomic_store_explicit(&record->sender.retired, record->sender.posted, memory_order_relaxed);
    atomic_store_explicit(&record->receive.taken, record->receive.posted, memory_order_release);
    record->failure.ns = 0;
}
