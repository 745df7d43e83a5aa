/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completions that the program polls retire the records of what was posted (post.c). Completions of one queue come in
 * its order (IBA 10.8.5.1), so one of a send retires those posted before it; of an SRQ they come in any order.
 *
 * Each completion comes through here: what is likely is a success of the oldest work request of a QP that had one
 * lately, which is found by QP number without the table. */
#include <stddef.h>
#include <string.h>

#include "base/sys.h"
#include "watch/cause.h"
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
struct watched_cq no_cq;

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

/* --- one completion ------------------------------------------------------------------------------------- */

/* The record of the send that completed; NULL: it was not posted through the calls that are watched. */
static struct watched_send *retire_send(struct watched_qp *qp, struct qp_record *record, uint64_t wr_id,
                                        bool error)
{
    uint32_t counter = record->sender.completed;
    uint32_t posted = atomic_load_explicit(&record->sender.posted, memory_order_acquire);

    for (; counter != posted; counter++) {
        struct watched_send *send = send_slot(qp, counter);

        if (send->wr_id != wr_id || (!error && !is_signaled(qp, send->send_flags)))
            continue;
        atomic_store_explicit(&record->sender.retired, counter + 1, memory_order_relaxed);
        __atomic_store_n(&record->sender.completed, counter + 1,
                         __ATOMIC_RELEASE); /* partner: note_sends() */
        return send;
    }
    return NULL;
}

/* NULL: as retire_send(). */
static const struct recv_wqe *retire_receive(struct watched_qp *qp, struct receive_queue *queue,
                                             uint64_t wr_id)
{
    uint32_t counter = atomic_load_explicit(&queue->taken, memory_order_relaxed);
    uint32_t posted = atomic_load_explicit(&queue->posted, memory_order_acquire);

    for (; counter != posted; counter++) {
        const struct recv_wqe *wqe = recv_slot(&qp->receive, counter);

        if (wqe->wr_id == wr_id) {
            atomic_store_explicit(&queue->taken, counter + 1,
                                  memory_order_release); /* partner: note_receives() */
            return wqe;
        }
    }
    return NULL;
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

/* Its opcode, bytes, and what it names. */
static void note_failed_send(const struct watched_qp *qp, struct failure_record *failure,
                             const struct watched_send *send)
{
    struct watched_rest *rest = send_rest(qp, send);
    uint64_t length = send->length;

    failure->opcode = (uint8_t)send->opcode;
    for (int32_t i = 0; send->opcode & WATCHED_REST && i < rest->more_sges; i++)
        length += rest_sges(rest)[i].length;
    failure->length = (uint32_t)length;
    if (watched_send_names_memory(failure->opcode)) {
        failure->rkey = rest->rkey;
        failure->remote_address = rest->remote_address;
    }
}

static cold_path void note_failure(struct watched_qp *qp, struct qp_record *record,
                                   const struct completion *completion, bool receive,
                                   struct watched_send *send)
{
    struct failure_record *failure = &qp->rare->failure;

    record->has_rare = 1;
    failure->wr_id = completion->wr_id;
    failure->status = completion->status;
    failure->vendor_err = completion->vendor_err;
    failure->receive = receive;
    failure->opcode = 0;
    failure->length = failure->rkey = 0;
    failure->remote_address = 0;
    if (send)
        note_failed_send(qp, failure, send);
    if (record->type == IBV_QPT_UD && !receive)
        atomic_store_explicit(&record->state, IBV_QPS_SQE, memory_order_relaxed); /* IBA 10.3.1.6 */
    else
        atomic_store_explicit(&record->state, IBV_QPS_ERR, memory_order_relaxed);
    __atomic_store_n(&failure->ns, sys_now(), __ATOMIC_RELEASE);
}

/* cq->lock held. *ret_qp: whom the news are about. */
static cold_path enum news note_completion(struct watched_cq *cq, const struct completion *completion,
                                           struct watched_qp **ret_qp)
{
    struct watched_qp *qp = *recent_of(cq, completion->qpn);
    const struct recv_wqe *wqe = NULL;
    struct watched_send *send = NULL;
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
        send = qp->send.slots
                   ? retire_send(qp, record, completion->wr_id, completion->status != IBV_WC_SUCCESS)
                   : NULL;
        found = send != NULL;
    } else if (qp->srq) {
        found = qp->srq->unseen || take_from_srq(qp->srq, completion->wr_id);
        qp->srq->unseen |= !found;
    } else if (qp->receive.slots) {
        wqe = retire_receive(qp, &record->receive, completion->wr_id);
        found = wqe != NULL;
    }
    *ret_qp = qp;
    if (completion->status != IBV_WC_SUCCESS && completion->status != IBV_WC_WR_FLUSH_ERR &&
        !(record->has_rare && qp->rare->failure.ns)) {
        note_failure(qp, record, completion, receive, send);
        if (send)
            cause_of_send(qp, completion, send);
        else if (wqe)
            cause_of_receive(qp, completion, wqe);
        return NEWS_FAILURE;
    }
    if (found)
        return NEWS_NONE;
    record->unseen |= receive ? UNSEEN_RECEIVES : UNSEEN_SENDS;
    atomic_store_explicit(receive ? &qp->receive.counted : &qp->send.counted, false, memory_order_relaxed);
    return NEWS_UNSEEN;
}

static cold_path void tell_news(enum news news, const struct watched_qp *qp)
{
    tell(news == NEWS_FAILURE ? TOLD_FAILURE : TOLD_UNSEEN, OBJECT_QP, qp->base.number);
}

/* --- polls ---------------------------------------------------------------------------------------------- */

/* cq->lock held. */
static cold_path void note_one(struct watched_cq *cq, const struct ibv_wc *wc)
{
    struct watched_qp *qp = NULL;
    enum news news = note_completion(cq,
                                     &(struct completion){
                                         .wr_id = wc->wr_id,
                                         .qpn = wc->qp_num,
                                         .status = wc->status,
                                         .vendor_err = wc->vendor_err,
                                         .receive = wc->opcode & IBV_WC_RECV,
                                     },
                                     &qp);

    if (news && !cq->news) {
        cq->news = news;
        cq->news_of = qp;
    }
}

/* So many successes of one queue, from the first on, one by one; between them there may be others. */
static cold_path void note_each(struct watched_cq *cq, const struct ibv_wc *wc, uint32_t count)
{
    const struct ibv_wc *first = wc;

    for (; count; wc++) {
        if (wc->qp_num == first->qp_num && wc->status == IBV_WC_SUCCESS &&
            !((wc->opcode ^ first->opcode) & IBV_WC_RECV)) {
            note_one(cq, wc);
            count--;
        }
    }
}

/* All at once: they are those of the oldest work requests. False: not certain. */
static inline bool count_sends(struct watched_cq *cq, uint32_t qpn, uint64_t wr_id, uint32_t count)
{
    struct watched_qp *qp = *recent_of(cq, qpn);
    struct qp_record *record = qp->record;
    uint32_t oldest;

    if (unlikely(qp->qpn != qpn))
        return false;
    oldest = record->sender.completed;
    /* Acquire: the records; and whether one that is posted before what has completed ends counting. */
    if (unlikely(atomic_load_explicit(&record->sender.posted, memory_order_acquire) - oldest < count ||
                 !atomic_load_explicit(&qp->send.counted, memory_order_relaxed) ||
                 send_slot(qp, oldest)->wr_id != wr_id))
        return false;
    atomic_store_explicit(&record->sender.retired, oldest + count, memory_order_relaxed);
    __atomic_store_n(&record->sender.completed, oldest + count, __ATOMIC_RELEASE); /* partner: note_sends() */
    return true;
}

static inline bool count_receives(struct watched_cq *cq, uint32_t qpn, uint64_t wr_id, uint32_t count)
{
    struct watched_qp *qp = *recent_of(cq, qpn);
    struct receive_queue *queue;
    uint32_t oldest;

    if (unlikely(qp->qpn != qpn))
        return false;
    queue = &qp->record->receive;
    oldest = atomic_load_explicit(&queue->taken, memory_order_relaxed);
    if (unlikely(atomic_load_explicit(&queue->posted, memory_order_acquire) - oldest < count ||
                 !atomic_load_explicit(&qp->receive.counted, memory_order_relaxed) ||
                 recv_slot(&qp->receive, oldest)->wr_id != wr_id))
        return false;
    atomic_store_explicit(&queue->taken, oldest + count, memory_order_release); /* partner: note_receives() */
    return true;
}

static inline void end_sends(struct watched_cq *cq, const struct ibv_wc *first, uint32_t count)
{
    if (count && unlikely(!count_sends(cq, first->qp_num, first->wr_id, count)))
        note_each(cq, first, count);
}

static inline void end_receives(struct watched_cq *cq, const struct ibv_wc *first, uint32_t count)
{
    if (count && unlikely(!count_receives(cq, first->qp_num, first->wr_id, count)))
        note_each(cq, first, count);
}

/* cq->lock held. What failed, and more than one QP of a direction: successes of one queue in a row, apart from those
 * of the other direction, are noted at once. */
static no_inline void note_mixed(struct watched_cq *cq, const struct ibv_wc *wc, uint32_t count)
{
    const struct ibv_wc *end = wc + count, *send = wc, *receive = wc;
    uint32_t sends = 0, receives = 0;

    for (; wc < end; wc++) {
        if (wc->status != IBV_WC_SUCCESS) {
            end_sends(cq, send, sends);
            end_receives(cq, receive, receives);
            sends = receives = 0;
            note_one(cq, wc);
        } else if (wc->opcode & IBV_WC_RECV) {
            if (receives && wc->qp_num != receive->qp_num) {
                end_receives(cq, receive, receives);
                receives = 0;
            }
            if (receives++ == 0)
                receive = wc;
        } else {
            if (sends && wc->qp_num != send->qp_num) {
                end_sends(cq, send, sends);
                sends = 0;
            }
            if (sends++ == 0)
                send = wc;
        }
    }
    end_sends(cq, send, sends);
    end_receives(cq, receive, receives);
}

static inline void produced(struct watched_cq *cq, uint32_t count)
{
    atomic_store_explicit(&cq->record->produced, cq->record->produced + count, memory_order_relaxed);
}

static int end_poll(struct watched_cq *cq, bool locked, int polled)
{
    const struct watched_qp *qp = cq->news_of;
    enum news news = cq->news;

    cq->news = NEWS_NONE;
    bias_release(&cq->lock, locked);
    if (unlikely(news))
        tell_news(news, qp);
    return polled;
}

static no_inline int poll_shared(struct ibv_cq *ibv, int count, struct ibv_wc *wc, struct watched_cq *cq)
{
    bool locked = bias_acquire(&cq->lock);
    int polled = cq->poll(ibv, count, wc);

    cq->record->polled = 1;
    if (polled > 0) {
        produced(cq, (uint32_t)polled);
        note_mixed(cq, wc, (uint32_t)polled);
    }
    return end_poll(cq, locked, polled);
}

/* By the owner of the CQ, who is inside, as the three below. */
static no_inline int end_mixed(struct watched_cq *cq, const struct ibv_wc *wc, int polled)
{
    note_mixed(cq, wc, (uint32_t)polled);
    return end_poll(cq, false, polled);
}

/* Each of these is the last call of the one before: nothing has to be kept. */
static no_inline int end_one(struct watched_cq *cq, const struct ibv_wc *wc)
{
    produced(cq, 1);
    if (unlikely(wc->status != IBV_WC_SUCCESS ||
                 !(wc->opcode & IBV_WC_RECV ? count_receives(cq, wc->qp_num, wc->wr_id, 1)
                                            : count_sends(cq, wc->qp_num, wc->wr_id, 1))))
        return end_mixed(cq, wc, 1);
    bias_leave(&cq->lock);
    return 1;
}

/* Likely of one QP, or one for each direction. Nothing is noted before all is known to be so. */
static no_inline int end_several(struct watched_cq *cq, const struct ibv_wc *wc, int polled)
{
    static const struct ibv_wc none = {.qp_num = UINT32_MAX};
    const struct ibv_wc *send = &none, *receive = &none, *end = wc + polled, *one = wc;
    uint32_t sends = 0, receives;

    produced(cq, (uint32_t)polled);
    do {
        if (unlikely(one->status != IBV_WC_SUCCESS))
            return end_mixed(cq, wc, polled);
        if (one->opcode & IBV_WC_RECV) {
            if (unlikely(one->qp_num != receive->qp_num)) {
                if (receive != &none)
                    return end_mixed(cq, wc, polled);
                receive = one;
            }
        } else {
            if (unlikely(one->qp_num != send->qp_num)) {
                if (send != &none)
                    return end_mixed(cq, wc, polled);
                send = one;
            }
            sends++;
        }
    } while (++one < end);
    receives = (uint32_t)(end - wc) - sends;
    if (sends && unlikely(!count_sends(cq, send->qp_num, send->wr_id, sends)))
        return end_mixed(cq, wc, polled);
    if (receives && unlikely(!count_receives(cq, receive->qp_num, receive->wr_id, receives))) {
        note_each(cq, receive, receives);
        return end_poll(cq, false, polled);
    }
    bias_leave(&cq->lock);
    return polled;
}

static always_inline int poll(struct ibv_cq *ibv, int count, struct ibv_wc *wc, struct watched_cq *cq)
{
    int polled;

    if (unlikely(!bias_enter(&cq->lock)))
        return poll_shared(ibv, count, wc, cq);
    cq->polled_into = wc; /* costs most polls, which find nothing, less than a register that is kept */
    polled = cq->poll(ibv, count, wc);
    cq->record->polled = 1;
    if (polled == 1)
        return end_one(cq, cq->polled_into);
    if (polled > 0)
        return end_several(cq, cq->polled_into, polled);
    bias_leave(&cq->lock);
    return polled;
}

int watched_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc, struct watched_cq *cq)
{
    return poll(ibv, count, wc, cq);
}

static no_inline int poll_other(struct ibv_cq *ibv, int count, struct ibv_wc *wc)
{
    struct watched_cq *cq = (struct watched_cq *)watched_find(ibv, OBJECT_CQ);

    if (unlikely(!cq || watch_thread.inside))
        return originals_of(ibv->context)->ops.poll_cq(ibv, count, wc);
    watch_thread.poller = cq;
    return watched_poll_cq(ibv, count, wc, cq);
}

int op_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc)
{
    struct watched_cq *cq = watch_thread.poller;

    return likely(cq->base.key == ibv) ? poll(ibv, count, wc, cq) : poll_other(ibv, count, wc);
}

void watched_completed(struct watched_cq *cq, const struct completion *completion)
{
    enum news news = NEWS_NONE;
    struct watched_qp *qp = NULL;
    bool locked = bias_acquire(&cq->lock);

    cq->record->polled = 1;
    atomic_store_explicit(&cq->record->produced, cq->record->produced + 1, memory_order_relaxed);
    if (unlikely(completion->status != IBV_WC_SUCCESS ||
                 !(completion->receive ? count_receives(cq, completion->qpn, completion->wr_id, 1)
                                       : count_sends(cq, completion->qpn, completion->wr_id, 1))))
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
    if (record->has_rare)
        qp->rare->failure.ns = qp->rare->fault.ns = 0;
}
