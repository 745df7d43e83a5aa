/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The functions of the engine that objects call. Installed once, before the first context is opened. */
#ifndef OBJECT_PORTS_H
#define OBJECT_PORTS_H

#include <errno.h>
#include <stdbool.h>

#include "base/types.h"
#include "published/drops.h"
#include "segment/provenance.h"

struct qp;
struct cq;
struct notify_channel;

/* The situation to explain. */
enum explanation {
    EXPLAIN_BUSY,    /* the object's destroy verb returns EBUSY */
    EXPLAIN_BLOCKED, /* the destroy verb has waited for acknowledgements for a second */
    EXPLAIN_RESUMED, /* the acknowledgements that the destroy verb waited for have arrived */
    EXPLAIN_IN_USE,  /* an MR is deregistered: work requests may use it */
    EXPLAIN_LEAKS,   /* a context is closed, maybe with objects in it */
    EXPLAIN_OVERRUN, /* a CQ has overrun */
    EXPLAIN_HANG,    /* the object is in a state that nothing under way will end */
    EXPLAIN_MISUSE,  /* a call got a destroyed object; number: of the record (segment/misuse.h) */
    EXPLAIN_REFUSED, /* a call was refused; number: of the record (segment/refused.h) */
};

/* Which accesses of peers are waited for, and how long. */
enum settle {
    SETTLE_WAIT, /* all. Kernel copies until they have ended: no lock of a QP is held, and the caller is in no rundown
                    section and not the helper thread */
    SETTLE_COPIES,  /* kernel copies only, as SETTLE_WAIT */
    SETTLE_TRY,     /* kernel copies only, for a bounded time. The result is whether one is going on still */
    SETTLE_STORES,  /* accesses to mapped memory only: the wait is bounded */
    SETTLE_BRIEFLY, /* all, for a bounded time. What a peer may still access is noted (mapping_evict_later(),
                       mapping_wait_later()). Locks may be held, except leaves */
};

struct object_ports {
    /* Receives packets, runs senders and timers: an application thread polled an empty CQ. No lock held. */
    void (*progress)(void);
    /* Receives the packets that have arrived, before a CQ is armed: their completions must not count as later
     * than the arming. No lock held, except maybe a CQ's poll_lock. */
    void (*take_arrived)(void);
    /* An application thread has armed a CQ and is about to sleep on its channel: from now on an arriving packet
     * must wake that thread or the helper thread. Locks as take_arrived. */
    void (*expect_sleep)(void);
    /* Allocates a line in the notify page for the channel with this eventfd, so that peers can deliver its
     * events; NULL: none is free, or peers must not. No lock held. */
    struct notify_channel *(*open_channel)(int fd, unsigned *ret_number);
    void (*close_channel)(unsigned number);
    /* A peer has claimed an event (base/notify.h) and has not delivered it yet: the engine calls
     * channels_make_owed() if that takes too long. rung: it has set `rung`, so it has mostly written its token, too. A
     * CQ's lock is held. */
    void (*event_owed)(bool rung);
    /* Moves every QP that uses an overrun CQ to ERR with QP_FATAL. Called with the CQ's lock and maybe a QP's
     * lock held: the engine calls qp_fail_on_overrun() later, without locks, and keeps no pointer to the
     * CQ. */
    void (*cq_overrun)(struct cq *cq);
    /* Makes sure that a thread runs timers. 0 or -errno. No lock held. */
    int (*start_timers)(void);
    /* Calls cq_moderation_due() after `delay`, without locks. Called with the CQ's lock held. */
    void (*moderation_timer)(struct cq *cq, ns_t delay);
    /* The CQ is being destroyed: when this returns, no cq_moderation_due() for it is running or follows. No
     * lock held. */
    void (*moderation_cancel)(struct cq *cq);
    /* Calls late_due() at that time, or earlier, without locks. Called with a QP's lock held. */
    void (*late_at)(ns_t at);
    /* Waits until no peer executes a request by the key in this slot (OBJECT_MR), or as the requester of the QP
     * in this slot (OBJECT_QP). A peer that does not respond is given up, and may still store to mapped memory.
     * Returns whether a peer was given up. The caller has withdrawn the record, so that no new request begins. */
    bool (*settle)(enum object_kind kind, uint32_t slot, enum settle how);
    /* Frees memory that was kept for peers that were given up, and that no peer writes to any more
     * (mapped_forget_orphans()). Called with mapping_lock held. */
    void (*forget_orphans)(void);
    /* Has mapping_evict() called soon, without locks. */
    void (*evict_soon)(void);
    /* The following are called only if explained(). number: of the table in the published segment. No lock
     * held. */
    void (*explain)(enum explanation what, enum object_kind kind, uint32_t number);
    /* A QP has failed, of which the first cause is in its record: told later, without locks. slot: of the QP. Its lock
     * is held. */
    void (*qp_failed)(uint32_t slot);
    /* A QP has dropped its first datagram for that reason: told later, likewise. */
    void (*qp_dropped)(uint32_t slot, enum drop_reason reason);
    /* Tells of such QPs now. No lock held, except maybe a CQ's poll_lock. */
    void (*tell_faults)(void);
    /* Collects the work requests and completions that a destroy discards, before it does so; the object's lock
     * may be held. NULL: there are none; else passed to report_losses() after the destroy, without locks. */
    struct losses *(*note_losses)(enum object_kind kind, uint32_t number);
    void (*report_losses)(struct losses *losses);
};

extern const struct object_ports *object_ports;

/* -EBUSY of a destroy verb, explained if explanations are on. No lock held. */
static inline int busy_because(enum object_kind kind, uint32_t number)
{
    if (explained())
        object_ports->explain(EXPLAIN_BUSY, kind, number);
    return -EBUSY;
}

static inline struct losses *note_losses(enum object_kind kind, uint32_t number)
{
    return explained() ? object_ports->note_losses(kind, number) : NULL;
}

static inline void report_losses(struct losses *losses)
{
    if (unlikely(losses != NULL))
        object_ports->report_losses(losses);
}

#endif
