/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion queues and channels (verbs.md §5). */
#ifndef OBJECT_CQ_CQ_H
#define OBJECT_CQ_CQ_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/notify.h"
#include "base/timer.h"
#include "base/verbs.h"
#include "object/device/context.h"
#include "object/event/event.h"
#include "object/pd/pd.h"
#include "segment/segment.h"

struct channel {
    struct ibv_comp_channel ibv; /* refcnt: CQs on this channel, under queue.lock */
    struct event_queue queue;    /* entries: struct cq.event */
    struct context *context;
    uint32_t number;
    uint32_t item; /* its record in the published segment */
    struct notify_channel
        *line; /* its line in the notify page, which peers write (base/notify.h); NULL: none */
    unsigned line_number;
    struct cq *cqs[NOTIFY_CQS]; /* by their bit in the line; under queue.lock */
};

struct cq {
    union {
        struct ibv_cq ibv;
        struct ibv_cq_ex ex;
    };
    struct context *context;
    struct channel *channel;
    struct cq_record *record;
    struct pd *parent;          /* the parent domain it was created in, or NULL */
    struct queue_memory memory; /* of the ring; changes under lock and poll_lock, like ring */
    struct cqe *ring;
    uint32_t mask; /* slots - 1; changes under lock and poll_lock */
    uint32_t number;
    uint32_t flags;    /* enum ibv_create_cq_attr_flags */
    uint64_t wc_flags; /* extended CQ: enum ibv_create_cq_wc_flags */
    bool is_extended;
    struct ack_account completion_events, async_events;
    unsigned bit; /* in the channel's line; NOTIFY_CQS: none */
    /* Peers' claims that were seen, minus events delivered for them (channel.c); under
     * channel->queue.lock. */
    int32_t debt;
    struct list event;      /* in channel->queue.entries while events are queued; under channel->queue.lock */
    uint32_t events_queued; /* events not read yet; under channel->queue.lock */

    /* The producers' lock: all that add completions. Below a QP's lock. Guards record->produced, armed, failed,
     * state, and the fields up to poll_lock. */
    struct lock lock cache_aligned;
    uint32_t consumed_seen; /* record->consumed as producers last saw it */
    uint32_t capacity;      /* = ibv.cqe; changes under lock and poll_lock */
    bool armed_for_peers;   /* the arming is written to the channel's line, where peers see it */
    uint32_t since_event;   /* completions since arming that count for moderation */
    uint16_t moderation_count, moderation_period; /* period in us; 0: off */
    bool moderation_timer_runs, moderation_timer_used;
    struct timer moderation_timer; /* the engine's, under its lock */

    /* The consumers' lock. Held from start to end of extended polling, and so above a QP's lock, because
     * applications post between the two. Guards record->consumed (compact() may write it instead, under
     * `lock` and ring_lock, while `away` is set) and the fields below that name no other lock. */
    struct lock poll_lock cache_aligned;
    _Atomic bool purged; /* the ring may contain purged completions; set and cleared under `lock` */
    /* Extended polling: the current completion, or NULL. A copy, because its slot is already consumed. */
    const struct cqe *current;
    struct cqe copy;
    /* Access to the ring while extended polling holds poll_lock: taken by load_next(), cq_stay_away(),
     * cq_purge_qp() and cq_ring_try_compact(). cq_poll() reads the ring under poll_lock alone. A leaf. */
    struct lock ring_lock;
    bool away; /* the holder of poll_lock does not access the ring: producers may compact it */
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
/* A CQ is created on the channel. -EINVAL if the channel belongs to another context. */
int channel_use(struct channel *channel, const struct context *context);
void channel_unuse(struct channel *channel);
/* Queues one completion event of the CQ. The CQ's lock is held. */
void channel_post(struct channel *channel, struct cq *cq);
/* Notes that a peer has claimed the event and delivers it: its token is on the way. The CQ's lock is held. */
void channel_owe(struct channel *channel, struct cq *cq);
/* Has a peer claimed or delivered an event of the CQ that is not read yet? */
bool channel_is_rung(struct channel *channel, const struct cq *cq);
/* Drops unread events of the CQ and frees its bit in the line. */
void channel_purge(struct channel *channel, struct cq *cq);
/* Allocates a bit in the channel's line for the CQ, if one is free. */
void channel_allocate_bit(struct channel *channel, struct cq *cq);
/* Has a peer claimed an event and not delivered it? *ret_changes counts changes: if two calls return true with
 * the same count, the event is late. */
bool channels_owe(uint32_t *ret_changes);
/* Delivers the events that peers have claimed and not delivered. No lock held. */
void channels_make_owed(void);
void channels_after_fork_in_child(void);

/* How many CQs with a channel are armed; the count may decrease late. */
extern _Atomic uint32_t cq_armed_count;

int cq_create(struct context *context, const struct cq_attributes *attributes, struct cq **ret_cq);
int cq_resize(struct cq *cq, uint32_t cqe);
/* Event moderation (ibv_modify_cq()); a period of 0 turns it off, whatever the count. */
int cq_moderate(struct cq *cq, uint16_t count, uint16_t period_us);
int cq_arm(struct cq *cq, bool solicited_only);
/* -EBUSY while used; blocks on unacknowledged events. */
int cq_destroy(struct cq *cq);
void cq_ack_events(struct cq *cq, unsigned count);

/* Polls up to `count` completions, and frees the send slots of those it returns. An empty CQ runs progress
 * first. */
int cq_poll(struct cq *cq, int count, struct ibv_wc *wc);
/* Extended polling: 0 or -ENOENT; poll_lock is held from start to end. A completion is consumed, and its send
 * slot is free, as soon as it is the current one. */
int cq_start_poll(struct cq *cq);
int cq_next_poll(struct cq *cq);
void cq_end_poll(struct cq *cq);

/* Takes poll_lock. */
void cq_poll_enter(struct cq *cq, enum cq_poll_call call);
/* The holder of poll_lock does not (away) or does access the ring from now on. */
void cq_stay_away(struct cq *cq, bool away);

/* Adds a completion, and a completion event if one is due. The QP's lock is held. On overrun: CQ_ERR and
 * object_ports->cq_overrun(). */
void cq_push(struct cq *cq, const struct cqe *cqe, bool solicited);
/* The same for requests, or receives, of one QP that have succeeded, in their order. src_qpn: 0 for requests. */
struct cq_success {
    uint64_t wr_id;
    uint32_t retires, byte_len, imm_or_rkey; /* as in struct cqe */
    uint8_t opcode, wc_flags;
    bool solicited;
};
void cq_push_run(struct cq *cq, const struct cq_success *run, uint32_t count, enum cqe_kind kind,
                 uint32_t qpn, uint32_t src_qpn);
/* Removes the completions of a QP that is destroyed or reset. The order of the others and the arming do not
 * change. With or without the QP's lock. */
void cq_purge_qp(struct cq *cq, uint32_t qpn);
/* The moderation timer has expired. */
void cq_moderation_due(struct cq *cq);

/* A QP or WQ starts or ends using the CQ. -EINVAL if the CQ is being destroyed. */
int cq_use(struct cq *cq, const char *verb);
void cq_unuse(struct cq *cq);

/* Frees send slots of a QP after its completion was polled (object/qp/qp.c). The CQ's poll_lock, which is above
 * the QP's lock, is held; the function takes no QP lock. */
void qp_retire_sends(uint32_t qpn, uint32_t retires);

#endif
