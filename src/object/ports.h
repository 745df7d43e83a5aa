/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What objects ask of the engine above them. Filled in once, before the first context exists. */
#ifndef OBJECT_PORTS_H
#define OBJECT_PORTS_H

#include <stdbool.h>

#include "base/types.h"

struct qp;
struct cq;

struct object_ports {
    /* Moves everything along that can move: an application thread polled an empty CQ. No lock held. */
    void (*progress)(void);
    /* An application thread is about to sleep on a channel (it armed a CQ): from now on arrivals must wake
     * the helper thread. */
    void (*expect_sleep)(void);
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
};

extern const struct object_ports *object_ports;

#endif
