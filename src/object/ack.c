/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Acknowledging events (verbs-contract §1.3): the counters of the public structs are ABI, guarded by the
 * mutex next to them. */
#include "object/cq.h"
#include "object/event.h"
#include "object/qp.h"
#include "object/srq.h"

/* How far acknowledgements may run ahead of events. Programs that acknowledge once per completion get here in
 * time (compat §9), and beyond half the counter's range "ahead" would read as "behind". */
#define ACKS_AHEAD_LIMIT (1u << 30)

void ack_account_add(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                     uint32_t *completed, uint32_t count, uint32_t *published)
{
    pthread_mutex_lock(mutex);
    uint32_t reported = __atomic_load_n(&account->reported, __ATOMIC_RELAXED);
    uint32_t ahead = *completed - reported;

    if ((int32_t)ahead > 0 && count > ACKS_AHEAD_LIMIT - min_of(ahead, ACKS_AHEAD_LIMIT))
        *completed = reported + ACKS_AHEAD_LIMIT;
    else
        *completed += min_of(count, ACKS_AHEAD_LIMIT);
    if (published)
        __atomic_store_n(published, *completed, __ATOMIC_RELAXED);
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}

static void unlock(void *mutex)
{
    pthread_mutex_unlock(mutex);
}

void ack_account_wait(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                      const uint32_t *completed)
{
    uint32_t reported = __atomic_load_n(&account->reported, __ATOMIC_RELAXED);

    pthread_mutex_lock(mutex);
    pthread_cleanup_push(unlock, mutex); /* waiting is a cancellation point */
    while ((int32_t)(*completed - reported) < 0)
        pthread_cond_wait(cond, mutex);
    pthread_cleanup_pop(1);
}

void async_ack(const struct ibv_async_event *event)
{
    switch ((int)event->event_type) {
    case IBV_EVENT_CQ_ERR: {
        struct cq *cq = cq_of(event->element.cq);

        ack_account_add(&cq->async_events, &cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.async_events_completed, 1,
                        &cq->record->async_acked);
        break;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
        struct qp *qp = qp_of(event->element.qp);

        ack_account_add(&qp->async_events, &qp->ibv.mutex, &qp->ibv.cond, &qp->ibv.events_completed, 1,
                        &qp->record->events_acked);
        break;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
        struct srq *srq = srq_of(event->element.srq);

        ack_account_add(&srq->async_events, &srq->ibv.mutex, &srq->ibv.cond, &srq->ibv.events_completed, 1,
                        &srq->record->events_acked);
        break;
    }
    default: /* ports and the device count nothing (§9.2) */
        break;
    }
}
