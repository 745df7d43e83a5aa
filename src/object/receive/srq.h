/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Shared receive queues (verbs.md §6.1-6.2). */
#ifndef OBJECT_RECEIVE_SRQ_H
#define OBJECT_RECEIVE_SRQ_H

#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/verbs.h"
#include "object/pd/pd.h"

struct cq;
struct xrcd;

struct srq {
    struct ibv_srq ibv;
    struct lock lock; /* guards the ring and the record; below the QP's lock, above the CQ's */
    struct pd *pd;
    struct srq_record *record;
    uint32_t number;
    struct queue_memory memory; /* of the ring */
    char *ring;
    uint32_t mask;
    struct ack_account async_events;
    /* XRC (object/xrc/xrc.c): */
    struct xrcd *xrcd; /* NULL: not an XRC SRQ */
    struct cq *cq;     /* of an XRC or tag matching SRQ, for its completions */
    uint32_t srqn;
    struct list by_number; /* in the list of XRC SRQs */
    struct tm_srq *tm;     /* tag matching (object/receive/tm.c), or NULL */
    /* XRC and tag matching: called when the SRQ is destroyed; no QP finds or uses it afterwards. No lock held. */
    void (*leave)(struct srq *srq);
};

static inline struct srq *srq_of(struct ibv_srq *srq)
{
    return container_of(srq, struct srq, ibv);
}

/* attributes->max_wr and max_sge are updated with what was granted. arm_limit: extended create honours
 * srq_limit. */
int srq_create(struct pd *pd, void *user_context, struct ibv_srq_attr *attributes, bool arm_limit,
               struct srq **ret_srq);
/* An XRC SRQ. */
int srq_create_xrc(struct pd *pd, struct xrcd *xrcd, struct cq *cq, void *user_context,
                   struct ibv_srq_attr *attributes, bool arm_limit, struct srq **ret_srq);
int srq_modify(struct srq *srq, const struct ibv_srq_attr *attributes, int mask);
int srq_query(struct srq *srq, struct ibv_srq_attr *ret_attributes);
/* An injected fault: raises SRQ_LIMIT_REACHED, as if the limit had been met, and disarms it. */
void srq_inject_limit(struct srq *srq);
int srq_destroy(struct srq *srq); /* -EBUSY; blocks on unacknowledged events */
/* Posts a list: 0 or -errno with *bad_wr set. */
int srq_post(struct srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
/* Takes the oldest WQE into `copy` (RECV_WQE_SIZE(LIMIT_SRQ_SGE) bytes): 0 or -ENOENT. Notes in `taker`, a queue
 * of the published segment, which WQE was taken, and raises SRQ_LIMIT_REACHED if due. A QP's lock is held. */
int srq_take(struct srq *srq, struct recv_wqe *copy, struct receive_queue *taker);
/* The same with the SRQ's lock held. */
int srq_take_locked(struct srq *srq, struct recv_wqe *copy, struct receive_queue *taker);
int srq_use(struct srq *srq);
void srq_unuse(struct srq *srq);

#endif
