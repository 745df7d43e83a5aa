/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Work requests: recorded before the original post, so that a completion which another thread polls finds them, and
 * retired by the completions that the program polls. Completions of one queue come in its order (IBA 10.8.5.1), so
 * one of a send retires those posted before it; of an SRQ they come in any order.
 *
 * A post is under its ring's lock, a completion under the lock of its CQ; posted is the former's, completed and taken
 * the latter's. */
#include <errno.h>
#include <string.h>

#include "base/sys.h"
#include "explain/names.h"
#include "explain/out.h"
#include "rules/transitions.h"
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

static void forget_in(struct watched_cq *cq, const struct watched_qp *qp)
{
    bool locked;

    if (!cq)
        return;
    locked = bias_acquire(&cq->lock);
    if (cq->last_qp == qp)
        cq->last_qp = NULL;
    bias_release(&cq->lock, locked);
}

/* Behind this no thread that polls finds it. */
void work_forget_qp(struct watched_qp *qp)
{
    uint32_t qpn = qp->record->qpn;

    table_drop(&qpns, qpn_key(qp->base.context, qpn), qp);
    forget_in(qp->send_cq, qp);
    forget_in(qp->recv_cq, qp);
}

/* --- sends ---------------------------------------------------------------------------------------------------- */

static inline struct send_wqe *send_slot(const struct watched_qp *qp, uint32_t counter)
{
    return (struct send_wqe *)(qp->send.slots + (size_t)(counter & qp->send.mask) * qp->send.stride);
}

static inline struct wqe_sge *send_sges(const struct qp_record *record, struct send_wqe *wqe)
{
    return (struct wqe_sge *)(void *)((char *)(wqe + 1) +
                                      (record->type == IBV_QPT_UD ? sizeof(struct path_address) : 0));
}

static inline uint8_t wqe_flags(const struct watched_qp *qp, unsigned send_flags)
{
    return (uint8_t)((send_flags & IBV_SEND_SIGNALED || qp->signal_all ? WQE_SIGNALED : 0) |
                     (send_flags & IBV_SEND_INLINE ? WQE_INLINE : 0) |
                     (send_flags & IBV_SEND_FENCE ? WQE_FENCE : 0));
}

static inline void fill_send(const struct watched_qp *qp, const struct qp_record *record,
                             struct send_wqe *wqe, const struct ibv_send_wr *wr, uint32_t stamp)
{
    uint32_t count = min_of((uint32_t)wr->num_sge, qp->send.max_sge), length = 0;
    struct wqe_sge *sges = send_sges(record, wqe);

    for (uint32_t i = 0; i < count; i++) {
        sges[i] = (struct wqe_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
        length += wr->sg_list[i].length;
    }
    wqe->wr_id = wr->wr_id;
    wqe->opcode = (uint8_t)wr->opcode;
    wqe->flags = wqe_flags(qp, wr->send_flags);
    wqe->num_sge = (uint8_t)(wqe->flags & WQE_INLINE ? 0 : count);
    wqe->length = length;
    wqe->stamp = stamp;
    if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM)
        return;
    wqe->rkey = wr->wr.rdma.rkey;
    wqe->remote_address = wr->wr.rdma.remote_addr;
}

/* Records as many of the chain as there are slots; returns the counter behind the last. */
static inline uint32_t note_sends(struct watched_qp *qp, struct qp_record *record,
                                  const struct ibv_send_wr **chain)
{
    const struct ibv_send_wr *wr = *chain;
    uint32_t posted = atomic_load_explicit(&record->sender.posted, memory_order_relaxed);
    uint32_t end = __atomic_load_n(&record->sender.completed, __ATOMIC_ACQUIRE) + qp->send.mask + 1;
    /* The clock takes as long as the rest: of what is posted behind others the time is not recorded, unless all is to
     * be told. */
    uint32_t stamp =
        unlikely(end - posted == qp->send.mask + 1 || watch_times) ? provenance_stamp_now() : STAMP_NONE;

    for (; wr && posted != end; wr = wr->next, posted++)
        fill_send(qp, record, send_slot(qp, posted), wr, stamp);
    *chain = wr;
    /* Release: who polls a completion of them sees the records; partner: retire_send(). */
    atomic_store_explicit(&record->sender.posted, posted, memory_order_release);
    return posted;
}

static cold_path void tell_refused_post(const struct watched_qp *qp, const char *call, int error,
                                        uint32_t depth, uint32_t outstanding, bool any_signaled)
{
    const struct qp_record *record = qp->record;
    struct words words = {.length = 0};
    bool send = call[9] == 's';

    if (error == ENOMEM && outstanding >= depth && send && !any_signaled)
        words_add(
            &words,
            "all %u slots of the send queue hold unsignaled work requests: no completion will free them "
            "(IBV_SEND_SIGNALED)",
            depth);
    else if (error == ENOMEM && outstanding >= depth)
        words_add(&words, "all %u slots of the %s queue are in use: of none a completion was polled", depth,
                  send ? "send" : "receive");
    else if (error == EINVAL && (send ? transition_check_post_send((enum ibv_qp_type)record->type,
                                                                   (enum ibv_qp_state)record->state)
                                      : transition_check_post_recv((enum ibv_qp_type)record->type,
                                                                   (enum ibv_qp_state)record->state)))
        words_add(&words, "not possible in the state of the QP, %s", name_qp_state(record->state));
    tell_refused(call, OBJECT_QP, qp->base.number, error, words.length ? words.text : NULL);
}

static bool has_signaled(const struct watched_qp *qp, const struct qp_record *record)
{
    for (uint32_t i = record->sender.completed; i != record->sender.posted; i++) {
        if (send_slot(qp, i)->flags & WQE_SIGNALED)
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
    result = qp->post_send(ibv, wr, bad);
    end = result ? *bad : NULL;
    posted = start;
    for (; wr && wr != end; wr = wr->next) {
        if (posted - record->sender.completed > qp->send.mask)
            record->sender.completed++; /* the oldest is forgotten */
        fill_send(qp, record, send_slot(qp, posted++), wr, provenance_stamp_now());
        atomic_store_explicit(&record->sender.posted, posted, memory_order_release);
    }
    if (qp->send_cq)
        bias_release(&qp->send_cq->lock, locked);
    return result;
}

static cold_path void post_failed(struct watched_qp *qp, const struct qp_record *record, int result,
                                  bool locked)
{
    uint32_t outstanding = record->sender.posted - record->sender.completed;
    bool any_signaled = has_signaled(qp, record);

    bias_release(&qp->send.lock, locked);
    tell_refused_post(qp, "ibv_post_send", result < 0 ? -result : result, record->send_depth, outstanding,
                      any_signaled);
}

int watched_post_send(struct watched_qp *qp, struct ibv_qp *ibv, struct ibv_send_wr *wr,
                      struct ibv_send_wr **bad)
{
    struct qp_record *record = qp->record;
    const struct ibv_send_wr *rest = wr;
    uint32_t start, end;
    bool locked;
    int result;

    if (unlikely(!qp->send.slots))
        return qp->post_send(ibv, wr, bad);
    locked = bias_acquire(&qp->send.lock);
    start = atomic_load_explicit(&record->sender.posted, memory_order_relaxed);
    end = note_sends(qp, record, &rest);
    if (unlikely(rest)) {
        atomic_store_explicit(&record->sender.posted, start, memory_order_release);
        result = post_past_the_end(qp, record, ibv, wr, bad);
        if (result) {
            post_failed(qp, record, result, locked);
            return result;
        }
    } else {
        result = qp->post_send(ibv, wr, bad);
    }
    if (likely(!result)) {
        bias_release(&qp->send.lock, locked);
        return 0;
    }
    /* Those from *bad on were not posted. */
    for (; wr && wr != *bad && start != end; wr = wr->next)
        start++;
    atomic_store_explicit(&record->sender.posted, start, memory_order_release);
    post_failed(qp, record, result, locked);
    return result;
}

/* --- ibv_wr_*() */

void build_begin(struct watched_qp *qp)
{
    /* Again without a wr_complete(): the thread has the lock. */
    if (!qp->building)
        qp->build_locked = bias_acquire(&qp->send.lock);
    qp->building = true;
    qp->built = 0;
}

static struct send_wqe *last_built(struct watched_qp *qp, const struct qp_record *record)
{
    return qp->built ? send_slot(qp, record->sender.posted + qp->built - 1) : NULL;
}

struct send_wqe *build_send(struct watched_qp *qp, uint64_t wr_id, unsigned flags, uint8_t opcode)
{
    struct qp_record *record = qp->record;
    struct send_wqe *wqe;

    if (!qp->send.slots ||
        record->sender.posted + qp->built - __atomic_load_n(&record->sender.completed, __ATOMIC_ACQUIRE) >
            qp->send.mask)
        return NULL;
    qp->built++;
    wqe = last_built(qp, record);
    wqe->wr_id = wr_id;
    wqe->opcode = opcode;
    wqe->flags = wqe_flags(qp, flags);
    wqe->num_sge = 0;
    wqe->length = 0;
    wqe->rkey = 0;
    wqe->remote_address = 0;
    wqe->stamp = STAMP_NONE;
    return wqe;
}

void build_sge(struct watched_qp *qp, const struct ibv_sge *from, size_t count)
{
    struct qp_record *record = qp->record;
    struct send_wqe *wqe = last_built(qp, record);
    uint32_t kept = (uint32_t)min_of(count, (size_t)qp->send.max_sge);

    if (!wqe)
        return;
    for (uint32_t i = 0; i < kept; i++) {
        send_sges(record, wqe)[i] = (struct wqe_sge){from[i].addr, from[i].length, from[i].lkey};
        wqe->length += from[i].length;
    }
    wqe->num_sge = (uint8_t)kept;
}

void build_inline(struct watched_qp *qp, size_t length)
{
    struct send_wqe *wqe = last_built(qp, qp->record);

    if (!wqe)
        return;
    wqe->flags |= WQE_INLINE;
    wqe->length = (uint32_t)length;
}

uint32_t build_publish(struct watched_qp *qp)
{
    struct qp_record *record = qp->record;
    uint32_t built = qp->built, stamp = built ? provenance_stamp_now() : STAMP_NONE;

    for (uint32_t i = 0; i < built; i++)
        send_slot(qp, record->sender.posted + i)->stamp = stamp;
    qp->built = 0;
    atomic_store_explicit(&record->sender.posted, record->sender.posted + built, memory_order_release);
    return built;
}

void build_end(struct watched_qp *qp, uint32_t published, bool failed)
{
    struct qp_record *record = qp->record;

    if (failed)
        atomic_store_explicit(&record->sender.posted, record->sender.posted - published,
                              memory_order_release);
    qp->built = 0;
    if (qp->building) {
        qp->building = false;
        bias_release(&qp->send.lock, qp->build_locked);
    }
}

/* --- receives --------------------------------------------------------------------------------------------------- */

static inline struct recv_wqe *recv_slot(const struct watched_ring *ring, uint32_t counter)
{
    return (struct recv_wqe *)(void *)(ring->slots + (size_t)(counter & ring->mask) * ring->stride);
}

static inline uint32_t note_receives(struct watched_ring *ring, uint32_t posted, uint32_t taken,
                                     const struct ibv_recv_wr *wr)
{
    uint32_t end = taken + ring->mask + 1,
             stamp = unlikely(watch_times) ? provenance_stamp_now() : STAMP_NONE;

    for (; wr && posted != end; wr = wr->next, posted++) {
        struct recv_wqe *wqe = recv_slot(ring, posted);
        uint32_t count = min_of((uint32_t)wr->num_sge, ring->max_sge);

        wqe->wr_id = wr->wr_id;
        wqe->num_sge = count;
        wqe->stamp = stamp;
        for (uint32_t i = 0; i < count; i++)
            wqe->sge[i] = (struct wqe_sge){wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
    }
    return posted;
}

static uint32_t accepted(uint32_t start, uint32_t end, const struct ibv_recv_wr *wr,
                         const struct ibv_recv_wr *bad)
{
    for (; wr && wr != bad && start != end; wr = wr->next)
        start++;
    return start;
}

int watched_post_recv(struct watched_qp *qp, struct ibv_qp *ibv, struct ibv_recv_wr *wr,
                      struct ibv_recv_wr **bad)
{
    struct receive_queue *queue = &qp->record->receive;
    uint32_t start, end, taken;
    bool locked;
    int result;

    if (unlikely(!qp->receive.slots))
        return qp->post_recv(ibv, wr, bad);
    locked = bias_acquire(&qp->receive.lock);
    start = atomic_load_explicit(&queue->posted, memory_order_relaxed);
    taken = atomic_load_explicit(&queue->taken, memory_order_acquire);
    end = note_receives(&qp->receive, start, taken, wr);
    atomic_store_explicit(&queue->posted, end, memory_order_release); /* partner: retire_receive() */
    result = qp->post_recv(ibv, wr, bad);
    if (likely(!result)) {
        bias_release(&qp->receive.lock, locked);
        return 0;
    }
    end = accepted(start, end, wr, *bad);
    atomic_store_explicit(&queue->posted, end, memory_order_release);
    bias_release(&qp->receive.lock, locked);
    tell_refused_post(qp, "ibv_post_recv", result, queue->depth, end - taken, true);
    return result;
}

int watched_post_srq_recv(struct watched_srq *srq, struct ibv_srq *ibv, struct ibv_recv_wr *wr,
                          struct ibv_recv_wr **bad)
{
    struct srq_record *record = segment_srq(srq->base.number);
    uint32_t start, end;
    bool locked;
    int result;

    if (unlikely(srq->unseen))
        return srq->post(ibv, wr, bad);
    locked = bias_acquire(&srq->ring.lock);
    start = atomic_load_explicit(&record->posted, memory_order_relaxed);
    end = note_receives(&srq->ring, start, atomic_load_explicit(&record->taken, memory_order_acquire), wr);
    atomic_store_explicit(&record->posted, end, memory_order_release); /* partner: take_from_srq() */
    result = srq->post(ibv, wr, bad);
    if (unlikely(result))
        atomic_store_explicit(&record->posted, accepted(start, end, wr, *bad), memory_order_release);
    bias_release(&srq->ring.lock, locked);
    if (unlikely(result))
        tell_refused("ibv_post_srq_recv", OBJECT_SRQ, srq->base.number, result, NULL);
    return result;
}

/* --- completions ------------------------------------------------------------------------------------------------ */

/* The record of the send that completed; NULL: it was not posted through the calls that are watched. */
static inline struct send_wqe *retire_send(struct watched_qp *qp, struct qp_record *record, uint64_t wr_id,
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

static inline bool retire_receive(struct watched_qp *qp, struct receive_queue *queue, uint64_t wr_id)
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

/* cq->lock held. *ret_qp: whom the news are about. */
static inline enum news note_completion(struct watched_cq *cq, const struct completion *completion,
                                        struct watched_qp **ret_qp)
{
    struct watched_qp *qp = cq->last_qp;
    struct send_wqe *wqe = NULL;
    struct qp_record *record;
    bool receive, found = true;

    if (unlikely(!qp || cq->last_qpn != completion->qpn)) {
        qp = table_find(&qpns, qpn_key(cq->base.context, completion->qpn));
        if (!qp || qp->base.stale)
            return NEWS_NONE;
        cq->last_qp = qp;
        cq->last_qpn = completion->qpn;
    }
    record = qp->record;
    receive = likely(completion->status == IBV_WC_SUCCESS) ? completion->receive
                                                           : is_receive(qp, cq, record, completion);
    if (unlikely(record->unseen & (receive ? UNSEEN_RECEIVES : UNSEEN_SENDS))) {
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
    if (unlikely(completion->status != IBV_WC_SUCCESS && completion->status != IBV_WC_WR_FLUSH_ERR &&
                 !record->failure.ns)) {
        note_failure(qp, record, completion, receive, wqe);
        return NEWS_FAILURE;
    }
    if (likely(found))
        return NEWS_NONE;
    record->unseen |= receive ? UNSEEN_RECEIVES : UNSEEN_SENDS;
    return NEWS_UNSEEN;
}

static cold_path void tell_news(enum news news, const struct watched_qp *qp)
{
    tell(news == NEWS_FAILURE ? TOLD_FAILURE : TOLD_UNSEEN, OBJECT_QP, qp->base.number);
}

static inline void note_poll(struct watched_cq *cq)
{
    struct cq_record *record = cq->record;

    if (!record->polled)
        record->polled = 1;
}

int watched_poll_cq(struct watched_cq *cq, struct ibv_cq *ibv, int count, struct ibv_wc *wc)
{
    struct watched_qp *qp = NULL, *told = NULL;
    enum news news = NEWS_NONE, latest;
    bool locked;
    int polled;

    locked = bias_acquire(&cq->lock);
    polled = cq->poll(ibv, count, wc);
    note_poll(cq);
    for (int i = 0; i < polled; i++) {
        const struct completion completion = {
            .wr_id = wc[i].wr_id,
            .qpn = wc[i].qp_num,
            .status = wc[i].status,
            .vendor_err = wc[i].vendor_err,
            .receive = wc[i].opcode & IBV_WC_RECV,
        };

        latest = note_completion(cq, &completion, &qp);
        if (unlikely(latest && !news)) {
            news = latest;
            told = qp;
        }
    }
    if (likely(polled >= 0))
        atomic_store_explicit(&cq->record->produced, cq->record->produced + (uint32_t)polled,
                              memory_order_relaxed);
    bias_release(&cq->lock, locked);
    if (unlikely(news))
        tell_news(news, told);
    return polled;
}

void watched_completed(struct watched_cq *cq, const struct completion *completion)
{
    struct watched_qp *qp = NULL;
    enum news news;
    bool locked;

    locked = bias_acquire(&cq->lock);
    note_poll(cq);
    news = note_completion(cq, completion, &qp);
    cq->record->produced++;
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
