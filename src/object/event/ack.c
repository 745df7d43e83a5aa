/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Acknowledging events (verbs.md §1.3). The counters in the public structs are ABI, guarded by the mutex next
 * to them. */
#include <errno.h>
#include <time.h>

#include "base/sys.h"
#include "object/cq/cq.h"
#include "object/event/event.h"
#include "object/ports.h"
#include "object/qp/qp.h"
#include "object/receive/srq.h"
#include "object/receive/wq.h"
#include "segment/provenance.h"

/* How far acknowledgements may be ahead of reported events. Programs that acknowledge once per completion get
 * ahead without limit (compatibility.md §7), and beyond half of the counter's range "ahead" would compare as
 * "behind". */
#define ACKS_AHEAD_LIMIT (1u << 30)

void ack_account_add(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                     uint32_t *completed, uint32_t count)
{
    pthread_mutex_lock(mutex);
    uint32_t reported = __atomic_load_n(&account->reported, __ATOMIC_RELAXED);
    uint32_t ahead = *completed - reported;

    if ((int32_t)ahead > 0 && count > ACKS_AHEAD_LIMIT - min_of(ahead, ACKS_AHEAD_LIMIT))
        *completed = reported + ACKS_AHEAD_LIMIT;
    else
        *completed += min_of(count, ACKS_AHEAD_LIMIT);
    if (account->record) {
        account->record->acked_by = explained() ? (uint32_t)sys_gettid() : 0;
        __atomic_store_n(&account->record->acked, *completed, __ATOMIC_RELAXED);
    }
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}

static void unlock(void *mutex)
{
    pthread_mutex_unlock(mutex);
}

static bool wait_for_acks_locked(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
                                 uint32_t reported, const struct timespec *deadline)
{
    int error = 0;

    while ((int32_t)(*completed - reported) < 0 && error != ETIMEDOUT)
        error = deadline ? pthread_cond_timedwait(cond, mutex, deadline) : pthread_cond_wait(cond, mutex);
    return error != ETIMEDOUT;
}

/* True: all reported events are acknowledged; false: the deadline has passed (NULL: no deadline). */
static bool wait_for_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
                          uint32_t reported, const struct timespec *deadline)
{
    bool all;

    pthread_mutex_lock(mutex);
    pthread_cleanup_push(unlock, mutex); /* waiting is a cancellation point */
    all = wait_for_acks_locked(mutex, cond, completed, reported, deadline);
    pthread_cleanup_pop(1);
    return all;
}

/* The waiting thread makes the explanation itself, so it does not depend on the helper thread. */
void ack_account_wait(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                      const uint32_t *completed, const struct destroying *destroying)
{
    uint32_t reported = __atomic_load_n(&account->reported, __ATOMIC_RELAXED);
    struct timespec now;
    bool waits;

    pthread_mutex_lock(mutex);
    waits = (int32_t)(*completed - reported) < 0;
    pthread_mutex_unlock(mutex);
    if (likely(!waits))
        return;
    provenance_destroying(destroying->provenance);
    if (!explained()) {
        wait_for_acks(mutex, cond, completed, reported, NULL);
    } else {
        clock_gettime(CLOCK_MONOTONIC, &now);
        now.tv_sec++;
        if (!wait_for_acks(mutex, cond, completed, reported, &now)) {
            object_ports->explain(EXPLAIN_BLOCKED, destroying->kind, destroying->number);
            wait_for_acks(mutex, cond, completed, reported, NULL);
            object_ports->explain(EXPLAIN_RESUMED, destroying->kind, destroying->number);
        }
    }
    provenance_destroy_unblocked(destroying->provenance);
}

void async_ack(const struct ibv_async_event *event)
{
    switch ((int)event->event_type) {
    case IBV_EVENT_CQ_ERR: {
        struct cq *cq = cq_of(event->element.cq);

        ack_account_add(&cq->async_events, &cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.async_events_completed, 1);
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

        ack_account_add(&qp->async_events, &qp->ibv.mutex, &qp->ibv.cond, &qp->ibv.events_completed, 1);
        break;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
        struct srq *srq = srq_of(event->element.srq);

        ack_account_add(&srq->async_events, &srq->ibv.mutex, &srq->ibv.cond, &srq->ibv.events_completed, 1);
        break;
    }
    case IBV_EVENT_WQ_FATAL: {
        struct wq *wq = wq_of(event->element.wq);

        ack_account_add(&wq->async_events, &wq->ibv.mutex, &wq->ibv.cond, &wq->ibv.events_completed, 1);
        break;
    }
    default: /* port and device events need no acknowledgement (verbs.md §9.2) */
        break;
    }
}
