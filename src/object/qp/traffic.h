/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counting failures and latencies of a QP, in its published record (published/counters.h). What it sends and receives
 * is counted by transport. The QP's lock is held. */
#ifndef OBJECT_QP_TRAFFIC_H
#define OBJECT_QP_TRAFFIC_H

#include "object/qp/qp.h"

void traffic_begin_timing(struct qp *qp, uint32_t posted);
void traffic_end_timing(struct qp *qp, enum verdict verdict);
void traffic_count_failure(struct qp *qp, enum verdict verdict);
/* A plain request, which is complete when its post returns. begin: the time, 0 if this one is not measured; end: takes
 * that time. */
ns_t traffic_begin_plain(struct qp *qp, uint32_t posted);
void traffic_end_plain(struct qp *qp, ns_t began);
/* The QP goes to RESET: the request that is being measured never completes, and another one is chosen. */
void traffic_reset(struct qp *qp);

/* posted: sender.posted with the requests of this call. */
static inline bool traffic_is_due(const struct qp *qp, uint32_t posted)
{
    return unlikely((int32_t)(posted - qp->time_from) > 0);
}

static inline void traffic_posted(struct qp *qp, uint32_t posted)
{
    if (traffic_is_due(qp, posted))
        traffic_begin_timing(qp, posted);
}

/* counter: as in transport_ports.complete_send, of a request that makes a completion. */
static inline void traffic_completed(struct qp *qp, uint32_t counter, enum verdict verdict)
{
    if (unlikely(counter == qp->timed))
        traffic_end_timing(qp, verdict);
    if (unlikely(verdict != VERDICT_OK))
        traffic_count_failure(qp, verdict);
}

#endif
