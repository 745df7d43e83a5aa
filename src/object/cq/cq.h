/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion queues and channels (verbs.md §5). */
#ifndef OBJECT_CQ_CQ_H
#define OBJECT_CQ_CQ_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/notify.h"
#include "base/timer.h"
#include "object/device/context.h"
#include "object/event/event.h"
#include "object/pd/pd.h"
#include "segment/segment.h"

struct channel {
    struct ibv_comp_channel ibv; /* refcnt: CQs that name it, under queue.lock */
    struct event_queue queue;    /* of struct cq.event */
    struct context *context;
    uint32_t number;
    uint32_t item;
    struct notify_channel *line; /* what peers see of it, NULL: nothing */
    unsigned line_number;
    struct cq *cqs[NOTIFY_CQS]; /* that have a bit in the line; under queue.lock */
};

struct cq {
    union {
        struct ibv_cq ibv;
        struct ibv_cq_ex ex;
    };
    struct context *context;
    struct channel *channel;
    struct cq_record *record;
    struct pd *parent;          /* parent domain that it was made in, or NULL */
    struct queue_memory memory; /* of the ring; changes under both locks, like ring */
    struct cqe *ring;
    uint32_t mask; /* slots - 1; likewise */
    uint32_t number;
    uint32_t flags;    /* enum ibv_create_cq_attr_flags */
    uint64_t wc_flags; /* cq_ex: what completions must carry */
    bool is_extended;
    struct ack_account completion_events, async_events;
    unsigned bit;           /* in the channel's line; NOTIFY_CQS: none */
    int32_t debt;           /* events that peers have taken upon themselves; under channel->queue.lock */
    struct list event;      /* in channel->queue.entries while events are queued, under channel->queue.lock */
    uint32_t events_queued; /* firings that nobody has read; under channel->queue.lock */

    /* Producers: everything that makes completions. Below a QP's lock. */
    struct lock lock
        cache_aligned;      /* guards record->produced, armed, failed, state, and down to the next lock */
    uint32_t consumed_seen; /* record->consumed as producers last saw it */
    uint32_t capacity;      /* = ibv.cqe; changes under both locks */
    bool shown;             /* the channel's line has been told of the arming */
    uint32_t since_event;   /* completions since arming that would have fired, for moderation */
    uint16_t moderation_count, moderation_period; /* period 0: off */
    bool moderation_timer_runs, moderation_timer_used;
    struct timer moderation_timer; /* of the engine, under its lock */

    /* Consumers. Held between start and end of extended polling, so above a QP's lock: applications post in
     * that window. Guards record->consumed and what follows. */
    struct lock poll_lock cache_aligned;
    _Atomic bool purged; /* there may be dead completions in the ring; set and cleared under `lock` */
    /* Extended polling: the completion being read, or NULL. A copy: it is consumed already. */
    const struct cqe *current;
    struct cqe copy;
    /* Held by the holder of poll_lock while it is at the ring or says that it stays away from it; a leaf. */
    struct lock ring_lock;
    bool away; /* producers may close the gaps that dead completions left */
};

static inline struct cq *cq_of(struct ibv_cq *cq)
{
    return container_of(cq, struct cq, ibv);
}
static inline struct channel *channel_of(struct ibv_comp_channel *channel)
{
    return container_of(channel, struct channel, ibv);
}

struct cq_attributes {
    uint32_t cqe;
    void *user_context;
    struct channel *channel;
    uint32_t comp_vector;
    uint64_t wc_flags; /* extended only */
    uint32_t flags;
    bool extended;
    struct pd *parent; /* or NULL */
};

int channel_create(struct context *context, struct channel **ret_channel);
int channel_destroy(struct channel *channel);                       /* -EBUSY */
int channel_get_event(struct channel *channel, struct cq **ret_cq); /* blocks like async_get() */
/* For the CQ: -EINVAL if the channel is of another context. */
int channel_use(struct channel *channel, const struct context *context);
void channel_unuse(struct channel *channel);
/* The CQ fires: one event more. Called with the CQ's lock held. */
void channel_post(struct channel *channel, struct cq *cq);
/* The same, but a peer has taken it upon itself, and its token is on the way. */
void channel_owe(struct channel *channel, struct cq *cq);
/* Has a peer made an event of the CQ that nobody has read? */
bool channel_is_rung(struct channel *channel, const struct cq *cq);
/* Drops unread events of a CQ, and its bit in the line. */
void channel_purge(struct channel *channel, struct cq *cq);
/* The CQ gets a bit in the channel's line, if one is left. */
void channel_give_bit(struct channel *channel, struct cq *cq);
/* Is an event owed by a peer? How often that has changed: what two looks find alike is late. */
bool channels_owe(uint32_t *ret_changes);
/* Makes the events that peers owe. No lock held. */
void channels_make_owed(void);
void channels_after_fork_in_child(void);

/* How many CQs with a channel are armed; one may be counted longer than it is. */
extern _Atomic uint32_t cq_armed_count;

int cq_create(struct context *context, const struct cq_attributes *attributes, struct cq **ret_cq);
int cq_resize(struct cq *cq, uint32_t cqe);
/* Both 0: off. A period of 0 is over at once, whatever the count. */
int cq_moderate(struct cq *cq, uint16_t count, uint16_t period_us);
int cq_arm(struct cq *cq, bool solicited_only);
/* -EBUSY while used; blocks on unacknowledged events. */
int cq_destroy(struct cq *cq);
void cq_ack_events(struct cq *cq, unsigned count);

/* Polls up to `count`: progress first if empty. Frees send slots of what it returns. */
int cq_poll(struct cq *cq, int count, struct ibv_wc *wc);
/* Extended polling: 0, -ENOENT; between start and end the CQ's poll_lock is held. A completion is consumed,
 * and its send slot free, as soon as it is the current one. */
int cq_start_poll(struct cq *cq);
int cq_next_poll(struct cq *cq);
void cq_end_poll(struct cq *cq);

/* The holder of poll_lock stays away from the ring, until it says otherwise. */
void cq_stay_away(struct cq *cq, bool away);

/* Adds a completion and fires a notification if due. Called with the QP's lock held. On overrun: CQ_ERR,
 * object_ports->cq_overrun(). */
void cq_push(struct cq *cq, const struct cqe *cqe, bool solicited);
/* Removes completions of a QP that is destroyed or reset; others keep their order, the arm state stays. With
 * or without the QP's lock. */
void cq_purge_qp(struct cq *cq, uint32_t qpn);
/* The moderation timer ran out. */
void cq_moderation_due(struct cq *cq);

/* A QP or WQ starts or ends using the CQ. -EINVAL if it is being destroyed. */
int cq_use(struct cq *cq);
void cq_unuse(struct cq *cq);

/* Frees send slots of a QP after its completion was polled: object/qp/qp.c. The CQ's poll_lock is held, so it
 * must not take the QP's lock. */
void qp_retire_sends(uint32_t qpn, uint32_t retires);

#endif
