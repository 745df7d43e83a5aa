/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The rare part of counting: failures, and latencies. To read the clock twice for each request would take a tenth of
 * the rate of small ones. So one request at a time is measured on a QP, and what a process measures is limited to
 * about one in MEASURE_NS: where requests come more slowly than that, nearly every one is measured. */
#include "object/qp/traffic.h"

#include "base/sys.h"

/* Longer than any queue: nothing is measured before traffic_end_timing() says so. */
#define NOT_BEFORE_COMPLETION (1u << 30)
#define GAP_MAX               255u
#define MEASURE_NS            (100 * NS_PER_US)
#define RARE_NS               (10 * MEASURE_NS)

/* When a request of this process was measured last. Threads that race measure one more. */
static _Atomic ns_t measured_ns;

/* Has the process measured nothing for so long? posted: the counter behind the request. */
static bool is_measured(struct qp *qp, ns_t now, uint32_t posted)
{
    ns_t since = now - atomic_load_explicit(&measured_ns, memory_order_relaxed);

    if (since < MEASURE_NS) {
        qp->time_gap = min_of(2 * qp->time_gap + 1, GAP_MAX);
        qp->time_from = posted + qp->time_gap;
        return false;
    }
    if (since > RARE_NS)
        qp->time_gap /= 2;
    atomic_store_explicit(&measured_ns, now, memory_order_relaxed);
    return true;
}

static void add_latency(struct qp *qp, ns_t latency)
{
    struct qp_record *record = qp->record;
    unsigned bucket = latency >> LATENCY_SHIFT ? 64 - (unsigned)__builtin_clzll(latency >> LATENCY_SHIFT) : 0;

    bucket = min_of(bucket, LATENCY_BUCKETS - 1);
    record->traffic.latency_ns += latency;
    if (unlikely(record->latency[bucket] == UINT32_MAX)) {
        qp_rare(&qp->transport)->traffic.latency[bucket] += record->latency[bucket];
        record->latency[bucket] = 0;
    }
    record->latency[bucket]++;
}

cold_path void traffic_begin_timing(struct qp *qp, uint32_t posted)
{
    ns_t now;

    /* It would complete without notice, so the next post is looked at instead. The clock is read only after this: where
     * few requests are signaled, as in perftest, nearly every post comes here. */
    if (!(send_wqe_at(&qp->transport, posted - 1)->flags & WQE_SIGNALED))
        return;
    now = sys_now();
    if (!is_measured(qp, now, posted))
        return;
    qp->timed_ns = now;
    qp->timed = posted - qp->record->sender.own_posted - 1;
    qp->time_from = posted + NOT_BEFORE_COMPLETION;
}

cold_path void traffic_end_timing(struct qp *qp, enum verdict verdict)
{
    if (!qp->timed_ns)
        return;
    if (verdict == VERDICT_OK)
        add_latency(qp, sys_now() - qp->timed_ns);
    traffic_reset(qp);
}

cold_path ns_t traffic_begin_plain(struct qp *qp, uint32_t posted)
{
    ns_t now = sys_now();

    return is_measured(qp, now, posted) ? now : 0;
}

cold_path void traffic_end_plain(struct qp *qp, ns_t began)
{
    add_latency(qp, sys_now() - began);
    traffic_reset(qp);
}

void traffic_reset(struct qp *qp)
{
    qp->timed_ns = 0;
    qp->time_from = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed) + qp->time_gap;
}

cold_path void traffic_count_failure(struct qp *qp, enum verdict verdict)
{
    qp_rare(&qp->transport)->traffic.failed[(unsigned)verdict_wc_status(verdict) % TRAFFIC_STATUSES]++;
}
