/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Progress in threads that poll, the helper thread, timers, and the lists of QPs that wait.
 *
 * Lock order (docs/locking.md): lane receive lock > QP lock > the leaves here: lane_state.lock, blocked_list.lock,
 * waiting_lock, timers_lock. */
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

/* State of the engine per lane of a link (lane_owner_data()). */
struct lane_state {
    struct arrivals arrivals; /* of the batch under way; under the lane's receive lock */
    struct blocked_list blocked;
    struct lock lock;       /* guards notices, mads and remote_opens; the lane transmit lock is below it */
    struct notice *notices; /* notices.c: notices that wait for space in the ring, oldest first */
    uint32_t notice_count, notice_capacity;
    struct list mads;         /* gsi.c: MADs that wait for space, oldest first */
    struct list remote_opens; /* remote_open.c: messages that wait for space, oldest first */
    /* What admission_of_source() has found to be the peer's: block of the last source, and address of this host. Under
     * the receive lock. */
    uint32_t source_block;
    uint8_t source_gid[16];
    bool notices_charged; /* notice_capacity counts in the budget of the peer's user; under `lock` */
    _Atomic bool kick;    /* packets were sent during the batch: ring at its end if the reader sleeps */
    /* plain_receive.c: SENDs in a row behind which nothing had come when they were taken; under the receive lock */
    uint8_t sends_alone;
    bool kick_acks;       /* the same of acknowledgements, whose doorbell may wait; under the receive lock */
    _Atomic bool stalled; /* raw.c: the peer took no frames for long: RAW_PACKET QPs do not wait for space */
    _Atomic bool gave_up; /* exit_flush.c: a QP that was to end has waited for space without success */
};

static inline struct lane_state *lane_state(struct lane *lane)
{
    return lane_owner_data(lane);
}

void lane_states_init(struct link *link);

/* Puts the QP into the list of those that wait for `what`, and takes it out of the other. QP lock held. */
void waiting_enter(struct qp *qp, enum route_wait what);
/* Runs the responder if it owes something, then the sender; a QP that has to wait is put into the list for that. QP
 * lock held. */
void route_run(struct qp *qp);
/* Rings the doorbells that qp_take_kick() returned. QP lock not held; in a rundown section. */
void route_ring(const struct qp_kick *kick);
/* Runs the QPs that wait to be scheduled again (ROUTE_WAITS_FOR_RUN). */
void route_run_ready(void);
/* Such a QP is in the list; written under its lock. */
extern _Atomic bool route_any_waits_for_run;
static inline bool route_has_ready(void)
{
    return atomic_load_explicit(&route_any_waits_for_run, memory_order_relaxed);
}

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
/* Runs the QP that has waited longest. BLOCKED_NONE: the list is empty; BLOCKED_AGAIN: the lane has no space for all of
 * the QP's packets, and the QP is at the end of the list. No QP lock held; in a rundown section. */
enum blocked_run blocked_run_next(struct blocked_list *list);

/* --- progress.c ----------------------------------------------------------------------------------------- */

extern const struct local_ops engine_local_ops;
/* Receives a request: the QP acknowledges or responds now, or at the end of the batch. QP lock held. */
void progress_receive(struct qp *qp, struct lane *lane, const struct packet *packet);
/* Rings the doorbells that are pending, that of `lane`, whose batch is under way, at the end of the batch. */
void progress_note_kick(struct lane *lane, const struct qp_kick *kick);
/* Counts packets that have arrived, in progress_packets. */
void progress_count_packets(unsigned count);
/* Takes packets from all lanes and sockets, and runs the QPs that are ready. Returns the number of packets. Any thread,
 * no lock held. */
unsigned progress_run(void);
/* object_ports.progress: progress_run() in a thread of the application, counted in progress_application_polls. */
void progress_from_application(void);
/* In progress_run(): is it for a poll of the application, who polls again, and did the poll before find nothing? */
bool progress_has_waited(void);
/* Is this thread in progress_run() for a call of the application? */
bool progress_is_application(void);
/* Has this thread completed a receive since the last call, while the program sleeps on channels and the
 * helper thread is awake? Then a reply of the program is likely, and the acknowledgement may wait for it.
 * Called once per batch. */
bool progress_expects_reply(void);
/* object_ports. */
void progress_expect_sleep(void);
void progress_take_arrived(void);
void progress_cq_overrun(struct cq *cq);
/* Counters that the helper thread compares from one look to the next: polls by the application, packets that arrived,
 * CQs that were armed. Written without a lock: an increment may be lost. */
extern _Atomic uint32_t progress_application_polls, progress_packets, progress_armings;

/* --- plain_receive.c ------------------------------------------------------------------------------------- */

/* local_ops.small: takes plain SENDs and acknowledgements, up to the first packet that is neither. */
unsigned plain_receive(struct lane *lane, unsigned budget, bool *ret_ends);
/* route_run() of a QP that owes a mere acknowledgement by that lane, and has nothing else to do. False: it is not
 * such a QP, or the ring is full. QP lock held. */
bool plain_acknowledge(struct qp *qp, struct lane *lane);

/* --- timers.c ------------------------------------------------------------------------------------------- */

int timers_open(void);
int timers_fd(void);
void timers_close(void);
void timers_after_fork_in_child(void);
void timers_set_qp(struct qp *qp, ns_t delay);
void timers_set_moderation(struct cq *cq, ns_t delay);
void timers_cancel_moderation(struct cq *cq);
/* What the helper thread alone does when its time comes, not application threads: cm_agent_due(), gsi_due(),
 * hangs_look(), held_packets_due(), ports_due() and late_due(). */
enum late { LATE_CM_AGENT, LATE_GSI, LATE_HANGS, LATE_PACKETS, LATE_PORTS, LATE_COMPLETIONS, LATES };
/* Replaces the time set before. NS_NEVER: not at all. */
void timers_set_late(enum late which, ns_t at);
/* LATE_COMPLETIONS: at that time at the latest. */
void timers_lower_completions(ns_t at);
/* The timerfd is readable: fires the timers that are due. Helper thread. */
void timers_run(void);
/* Of all timers of QPs and CQs; NS_NEVER: none is armed. Written under the lock of timers.c. */
extern _Atomic ns_t timers_next_deadline;
/* Is a timer of a QP or CQ armed? timers_run_due() fires those that are due. Any thread, no lock held. */
static inline bool timers_armed(void)
{
    return atomic_load_explicit(&timers_next_deadline, memory_order_relaxed) != NS_NEVER;
}

void timers_run_due(void);

/* --- hangs.c -------------------------------------------------------------------------------------------- */

/* Explanations are on: looks every second from now on, once the helper thread runs. */
void hangs_start(void);
/* Helper thread, no lock held. */
void hangs_look(void);
void hangs_after_fork_in_child(void);

/* --- helper.c ------------------------------------------------------------------------------------------- */

/* Starts the thread if it does not run. 0 or -errno. */
int helper_start(void);
/* Is this the helper thread? */
bool helper_is_thread(pid_t thread);
/* The helper thread calls packet_socket_receive() when the descriptor is readable, until it is closed. 0 or -errno. */
int helper_watch(int fd);
/* Was a CQ armed within the last two looks of the helper thread (busy_poll.h)? */
bool helper_saw_arming(void);
/* The helper thread is awake, or looks within GLANCE_SHORT (busy_poll.h). */
bool helper_looks_soon(void);
/* object_ports.event_owed */
void helper_event_owed(bool rung);
/* Wakes the helper thread, which calls progress_run(). */
void helper_kick(void);
void helper_after_fork_in_child(void);

#endif
