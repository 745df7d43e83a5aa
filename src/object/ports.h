/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What objects ask of the engine above them. Filled in once, before the first context exists. */
#ifndef OBJECT_PORTS_H
#define OBJECT_PORTS_H

#include <errno.h>
#include <stdbool.h>

#include "base/types.h"
#include "segment/provenance.h"

struct qp;
struct cq;
struct notify_channel;

/* What is to be explained. */
enum explanation {
    EXPLAIN_BUSY,    /* its destroy is refused */
    EXPLAIN_BLOCKED, /* its destroy waits for acknowledgements, for a second by now */
    EXPLAIN_RESUMED, /* and now they have come */
    EXPLAIN_IN_USE,  /* an MR goes away: work requests may name it */
    EXPLAIN_LEAKS,   /* a context is closed, maybe with objects alive */
    EXPLAIN_OVERRUN, /* a CQ had no room for a completion */
};

struct object_ports {
    /* Moves everything along that can move: an application thread polled an empty CQ. No lock held. */
    void (*progress)(void);
    /* A CQ is about to be armed: what has come by now does not count as coming after that. No lock held, but
     * maybe a CQ's poll_lock. */
    void (*take_arrived)(void);
    /* An application thread is about to sleep on a channel (it armed a CQ): from now on arrivals must wake
     * it, or the helper thread. Likewise. */
    void (*expect_sleep)(void);
    /* A channel with this eventfd may be rung by peers: its line in the notification page, and the line's
     * number; NULL: it may not. No lock held. */
    struct notify_channel *(*open_channel)(int fd, unsigned *ret_number);
    void (*close_channel)(unsigned number);
    /* A peer has taken an event upon itself (base/notify.h), and has not written its token yet:
     * channels_make_owed() is to be called when it may take too long. A CQ's lock is held. */
    void (*event_owed)(void);
    /* An overrun CQ: every QP that uses it goes to ERR with QP_FATAL. Called with the CQ's and maybe a QP's
     * lock held: the engine does it later, holding neither, by cq_fail_users(). */
    void (*cq_overrun)(struct cq *cq);
    /* Somebody is going to want timers: whoever runs them must be there. 0 or -errno. No lock held. */
    int (*start_timers)(void);
    /* Calls cq_moderation_due() after `delay`, without locks. Called with the CQ's lock held. */
    void (*moderation_timer)(struct cq *cq, ns_t delay);
    /* The CQ goes away: no call for it is under way any more or follows, neither of its timer nor of its
     * overrun. No lock held; only for CQs that had one of them. */
    void (*moderation_cancel)(struct cq *cq);
    /* Waits until no peer is in the middle of a request that it executes itself by the key in this slot
     * (OBJECT_MR), or as the requester of this QP (its slot), bounded: one that does not come to an end is
     * given up and may still write: returns whether one was. `evict`: the memory of the keys by which it may
     * is noted (mapping_evict_later()). The caller has made sure that nobody begins another. Locks may be
     * held, but for leaves. */
    bool (*settle)(enum object_kind kind, uint32_t slot, bool evict);
    /* What was given up, and nobody writes to any more, is free again (mapped_forget_orphans()). Called with
     * mapping_lock held, without which nothing is moved. */
    void (*forget_orphans)(void);
    /* mapping_evict() is to be called, without locks. */
    void (*evict_soon)(void);
    /* The rest is called only if explained(). A number is that of the segment's table. No lock held. */
    void (*explain)(enum explanation what, enum object_kind kind, uint32_t number);
    /* Notes down what a destroy throws away, before it does: the lock of the object may be held. NULL if it
     * is nothing, else something to be told when it is done, without locks. */
    struct losses *(*note_losses)(enum object_kind kind, uint32_t number);
    void (*tell_losses)(struct losses *losses);
};

extern const struct object_ports *object_ports;

/* The answer of a destroy that is refused. No lock held. */
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

static inline void tell_losses(struct losses *losses)
{
    if (unlikely(losses != NULL))
        object_ports->tell_losses(losses);
}

#endif
