/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Events that the program reads and acknowledges. */
#include "base/sys.h"
#include "watch/state.h"

static struct lock lock = LOCK_INIT; /* guards all event records; a leaf */

void events_after_fork_in_child(void)
{
    lock_init(&lock);
}

void watched_event_read(struct event_record *record, uint32_t type)
{
    lock_acquire(&lock);
    record->raised++; /* more may be raised, which only the adapter knows */
    provenance_event_read(record, type, record->reported + 1);
    lock_release(&lock);
}

void watched_events_acked(struct event_record *record, uint32_t count, uint32_t type)
{
    lock_acquire(&lock);
    record->acked_by = (uint32_t)sys_gettid();
    __atomic_store_n(&record->acked, record->acked + count, __ATOMIC_RELAXED);
    if (type)
        provenance_event_acked(record, type);
    lock_release(&lock);
}

struct event_record *watched_async_record(const struct ibv_async_event *event)
{
    struct watched *object;

    switch ((int)event->event_type) {
    case IBV_EVENT_CQ_ERR:
        object = watched_find(event->element.cq, OBJECT_CQ);
        return object ? &segment_cq(object->number)->async_events : NULL;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        object = watched_find(event->element.qp, OBJECT_QP);
        return object ? &segment_qp(object->number)->events : NULL;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        object = watched_find(event->element.srq, OBJECT_SRQ);
        return object ? &segment_srq(object->number)->events : NULL;
    case IBV_EVENT_WQ_FATAL:
        object = watched_find(event->element.wq, OBJECT_WQ);
        return object ? &segment_wq(object->number)->events : NULL;
    default: /* of ports and devices: nothing waits for their acknowledgement */
        return NULL;
    }
}
