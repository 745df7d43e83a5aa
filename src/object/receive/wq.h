/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Receive work queues and the indirection tables that name them (verbs.md §7.1-7.3). */
#ifndef OBJECT_RECEIVE_WQ_H
#define OBJECT_RECEIVE_WQ_H

#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/verbs.h"
#include "object/cq/cq.h"
#include "object/pd/pd.h"

struct wq {
    struct ibv_wq ibv;
    struct lock lock; /* guards state, flags, ring and pending frames; above the CQ's */
    struct context *context;
    struct pd *pd;
    struct cq *cq;
    struct wq_record *record;
    uint32_t number;
    struct queue_memory memory; /* of the ring */
    char *ring;
    uint32_t mask;
    struct ack_account async_events;
    struct list all;     /* in the list of all WQs; under wqs_lock */
    struct list pending; /* frames that wait for a receive (IBV_WQ_FLAGS_DELAY_DROP) */
    unsigned pending_count;
    struct transport_qp reach; /* only keys and ports are set, for raw_place() */
};

static inline struct wq *wq_of(struct ibv_wq *wq)
{
    return container_of(wq, struct wq, ibv);
}

/* attributes->max_wr and max_sge are updated with what was granted. */
int wq_create(struct context *context, struct ibv_wq_init_attr *attributes, struct wq **ret_wq);
/* Changes all attributes or none. -EINVAL; -EOPNOTSUPP: a flag that cannot be changed. */
int wq_modify(struct wq *wq, const struct ibv_wq_attr *attributes);
int wq_destroy(struct wq *wq); /* -EBUSY; blocks on unacknowledged events */
static inline uint32_t wq_flags(const struct wq *wq)
{
    return __atomic_load_n(&wq->record->flags, __ATOMIC_RELAXED);
}
struct arrival;
/* Receives a frame. Without a posted receive the frame is dropped, or waits if the WQ has DELAY_DROP. */
void wq_receive(struct wq *wq, const struct arrival *arrival);
/* Posts a list: 0 or -errno with *bad_wr set. */
int wq_post(struct wq *wq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
/* Counts an entry of an indirection table as a user. -EINVAL if the WQ is being destroyed. */
int wq_use(struct wq *wq);
void wq_unuse(struct wq *wq);
/* Moves every WQ whose CQ has overrun to ERR with WQ_FATAL. No lock held. */
void wq_fail_on_overrun(void);
/* In the child of a fork. */
void wq_after_fork_in_child(void);

struct ind_table {
    struct ibv_rwq_ind_table ibv;
    struct context *context;
    struct ind_table_record *record;
    uint32_t number;
    uint32_t count;
    struct wq *wqs[];
};

static inline struct ind_table *ind_table_of(struct ibv_rwq_ind_table *table)
{
    return container_of(table, struct ind_table, ibv);
}

int ind_table_create(struct context *context, const struct ibv_rwq_ind_table_init_attr *attributes,
                     struct ind_table **ret_table);
int ind_table_destroy(struct ind_table *table); /* -EBUSY */
/* An RSS QP starts or ends using the table. */
static inline void ind_table_use(struct ind_table *table)
{
    atomic_fetch_add_explicit(&table->record->users, 1, memory_order_relaxed);
}
static inline void ind_table_unuse(struct ind_table *table)
{
    atomic_fetch_sub_explicit(&table->record->users, 1, memory_order_relaxed);
}

#endif
