/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What drives everything: progress in whichever thread polls, the helper thread, timers, and the lists of QPs that
 * wait.
 *
 * Lock order (docs/locking.md): lane receive lock > QP lock > the leaves here: lane_state.lock, waiting_lock,
 * timers_lock. */
#ifndef ENGINE_CORE_CORE_H
#define ENGINE_CORE_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/timer.h"
#include "engine/core/arrivals.h"
#include "engine/core/route.h"
#include "local/local.h"
#include "object/cq/cq.h"
#include "object/qp/qp.h"

/* --- waiting.c: QPs that wait --------------------------------------------------------------------------- */

enum route_wait { ROUTE_WAITS_FOR_NOTHING, ROUTE_WAITS_FOR_OWNER, ROUTE_WAITS_FOR_RUN };

/* QPs that wait for space in a lane (blocked.c). */
struct blocked_list {
    struct lock lock;  /* a leaf; guards qps */
    struct list qps;   /* qp_route.blocked, in the order in which they came */
    struct lane *lane; /* the lane of a link; NULL: a lane to the network */
};

/* What the engine keeps per lane (lane_owner_data). Allocated when first needed, freed with the link. */
struct lane_state {
    struct arrivals arrivals; /* the lane's reader only (its receive lock) */
    struct blocked_list blocked;
    struct lock lock;       /* guards notices, mads and openings; the lane transmit lock is below it */
    struct notice *notices; /* notices.c: what must not get lost and found the ring full, in order */
    uint32_t notice_count, notice_capacity;
    struct list mads;     /* gsi.c: MADs that wait for room, in order */
    struct list openings; /* remote_open.c: messages, likewise */
    _Atomic bool kick;    /* something was sent from a batch: look at the doorbell at its end */
    _Atomic bool stalled; /* raw.c: its reader did not take frames for long, and is not waited for */
    _Atomic bool gave_up; /* exit_flush.c: nor did it make room for QPs that were about to end */
};

struct lane_state *lane_state(struct lane *lane);

/* Into the list of those who wait for it, out of the other one. QP lock held. */
void waiting_enter(struct qp *qp, enum route_wait what);
/* Answers what a QP owes, sends what it may send; QP lock held. Queues the QP where it must wait. */
void route_run(struct qp *qp);
/* Rings the doorbells of lanes that a QP sent on; without its lock, inside a rundown section. */
void route_ring(const struct qp_kick *kick);
/* Runs QPs that asked for another turn. */
void route_run_ready(void);
bool route_has_ready(void);
/* local_ops. */
void route_resolved(uint32_t block, struct link *link);
void route_settled(void);
void route_lane_writable(struct lane *lane);
void waiting_after_fork_in_child(void);

/* --- blocked.c: QPs that wait for space in a lane --------------------------------------------------------- */

void blocked_list_init(struct blocked_list *list, struct lane *lane);
/* To the end of the list, unless the QP is in a list already. QP lock held. */
void blocked_enter(struct qp *qp, struct blocked_list *list);
/* Out of the list that the QP is in, if any. QP lock held. */
void blocked_leave(struct qp *qp);
/* The lane that the QP waits for; NULL: none, or one to the network. QP lock held. */
static inline struct lane *blocked_lane(const struct qp *qp)
{
    const struct blocked_list *list = route_of(qp)->blocked_in;

    return list ? list->lane : NULL;
}

enum blocked_run { BLOCKED_NONE, BLOCKED_RAN, BLOCKED_AGAIN };
/* Runs the QP that has waited longest. BLOCKED_NONE: the list is empty; BLOCKED_AGAIN: the lane had no space for all
 * of the QP's packets, and the QP is at the end of the list. Without QP locks, in a rundown section. */
enum blocked_run blocked_run_next(struct blocked_list *list);

/* --- progress.c ----------------------------------------------------------------------------------------- */

extern const struct local_ops engine_local_ops;
/* A request for this QP, which is locked: what it comes to owe leaves now or at the end of the batch. */
void progress_receive(struct qp *qp, struct lane *lane, const struct packet *packet);
/* Doorbells: of the lane whose batch is under way at its end, of others now. */
void progress_note_kick(struct lane *lane, const struct qp_kick *kick);
/* A packet has come, whatever of it. */
void progress_count_packet(void);
/* Polls, flushes, runs the ready. Returns the number of packets. Any thread. */
unsigned progress_run(void);
/* Called by application threads: also says that somebody polls. */
void progress_from_application(void);
/* Is it in that function that this thread takes packets? */
bool progress_is_application(void);
void progress_expect_sleep(void);
void progress_take_arrived(void);
void progress_cq_overrun(struct cq *cq);
/* Counts application polls; the helper compares. */
extern _Atomic uint32_t progress_application_polls;
/* Counts packets, by whomever; likewise. */
extern _Atomic uint32_t progress_packets;

/* Counts armings of CQs, by whomever; likewise. */
extern _Atomic uint32_t progress_armings;

/* --- timers.c ------------------------------------------------------------------------------------------- */

int timers_open(void);
int timers_fd(void);
void timers_close(void);
void timers_after_fork_in_child(void);
void timers_set_qp(struct qp *qp, ns_t delay);
void timers_set_moderation(struct cq *cq, ns_t delay);
void timers_cancel_moderation(struct cq *cq);
/* communication_due(), or gsi_due(), is to be called then, by the helper thread; a point of time. */
void timers_set_communication(ns_t at);
void timers_set_gsi(ns_t at);
/* The timerfd is readable: fires what is due. Helper thread. */
void timers_run(void);
/* Is a timer armed? Then timers_run_due() fires what is due; any thread, no lock held. */
bool timers_armed(void);
void timers_run_due(void);

/* --- helper.c ------------------------------------------------------------------------------------------- */

/* Starts the thread if it does not run. 0 or -errno. */
int helper_start(void);
/* It calls packet_socket_receive() when the descriptor is readable, until that is closed. -errno. */
int helper_watch(int fd);
/* Was a CQ armed since the helper thread has looked? */
bool helper_saw_arming(void);
/* Has a batch of this thread completed a receive, whose program sleeps? Then its acknowledgement may wait for
 * an answer. Once for each batch. */
bool progress_expects_answer(void);
/* object_ports.event_owed */
void helper_event_owed(void);
/* Wakes it: there is something for route_run_ready() or a CQ failed. */
void helper_kick(void);
void helper_after_fork_in_child(void);

#endif
