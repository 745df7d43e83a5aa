/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs that wait for the owner of a QP number to be found, or to be scheduled again; and what runs a QP that waited.
 * A QP is in at most one of the two lists here, and in at most one list of blocked.c. */
#include "base/rundown.h"
#include "engine/cm/gsi.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "engine/xrc/remote_open.h"
#include "udp/udp.h"

/* A leaf; guards the two lists and qp_route.waiting. */
static struct lock waiting_lock = LOCK_INIT;
static struct list waiting_for_owner = {&waiting_for_owner, &waiting_for_owner};
static struct list waiting_for_run = {&waiting_for_run, &waiting_for_run};
_Atomic bool route_any_waits_for_run;

_Static_assert(sizeof(struct lane_state) <= LANE_OWNER_BYTES && _Alignof(struct lane_state) <= CACHE_LINE,
               "a lane has room for its state");

/* local_ops.link_made */
void lane_states_init(struct link *link)
{
    for (uint32_t i = 0; i < LOCAL_LANES; i++) {
        struct lane *lane = link_lane(link, i);
        struct lane_state *state = lane_state(lane);

        blocked_list_init(&state->blocked, lane);
        lock_init(&state->lock);
        list_init(&state->mads);
        list_init(&state->remote_opens);
        state->source_block = UINT32_MAX;
    }
}

/* --- waiting -------------------------------------------------------------------------------------------- */

void waiting_enter(struct qp *qp, enum route_wait what)
{
    lock_acquire(&waiting_lock);
    if (list_linked(&route_of(qp)->waiting))
        list_remove(&route_of(qp)->waiting);
    route_of(qp)->waits_for = (uint8_t)what;
    if (what == ROUTE_WAITS_FOR_OWNER)
        list_push_back(&waiting_for_owner, &route_of(qp)->waiting);
    else if (what == ROUTE_WAITS_FOR_RUN)
        list_push_back(&waiting_for_run, &route_of(qp)->waiting);
    atomic_store_explicit(&route_any_waits_for_run, !list_empty(&waiting_for_run), memory_order_relaxed);
    lock_release(&waiting_lock);
}

/* --- running QPs that waited ---------------------------------------------------------------------------- */

void route_ring(const struct qp_kick *kick)
{
    if (kick->lane)
        lane_ring(kick->lane);
    if (unlikely(kick->reply_lane && kick->reply_lane != kick->lane))
        lane_ring(kick->reply_lane);
    if (kick->network_lane)
        udp_flush(kick->network_lane);
}

void route_run(struct qp *qp)
{
    bool more;

    if (unlikely(qp->transport.relay.retry != RELAY_RETRY_NONE))
        relay_again(&qp->transport);
    if (responder_owes(&qp->transport))
        responder_run(&qp->transport);
    more = qp_run_sender(qp, STAMP_NONE);
    /* A QP that was stopped by the link is in the list of a lane. A sender or responder that was stopped by its
     * budget is scheduled again; such a responder still owes. */
    if ((more || responder_owes(&qp->transport)) && !route_of(qp)->blocked_in &&
        route_of(qp)->waits_for != ROUTE_WAITS_FOR_OWNER)
        waiting_enter(qp, ROUTE_WAITS_FOR_RUN);
    if (unlikely(route_of(qp)->end_waiters))
        exit_flush_sender_ran();
}

static void run_unlocked(struct qp *qp)
{
    struct qp_kick kick;

    lock_acquire(&qp->lock);
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed))
        route_run(qp);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    route_ring(&kick);
}

/* Runs each QP that is in the list now once; a QP that enters the list meanwhile is run by the next call. */
void route_run_ready(void)
{
    struct list ready;
    struct list *node;

    if (!route_has_ready())
        return;
    list_init(&ready);
    lock_acquire(&waiting_lock);
    while ((node = list_pop_front(&waiting_for_run)))
        list_push_back(&ready, node);
    atomic_store_explicit(&route_any_waits_for_run, false, memory_order_relaxed);
    lock_release(&waiting_lock);
    for (;;) {
        struct qp *qp;

        lock_acquire(&waiting_lock); /* a thread that destroys a QP takes it out of `ready` under this lock */
        node = list_pop_front(&ready);
        lock_release(&waiting_lock);
        if (!node)
            break;
        qp = qp_of_route(list_entry(node, struct qp_route, waiting));
        run_unlocked(qp);
    }
}

/* Runs the QPs that wait for the owner of a number. missing_block: 1 + a block that turned out to have no owner; 0:
 * none. Helper thread, not in a rundown section: QPs that run read registered memory, so this enters one. */
static void run_waiting_for_owner(uint32_t missing_block)
{
    struct list found;
    struct list *node;

    list_init(&found);
    rundown_enter();
    lock_acquire(&waiting_lock);
    while ((node = list_pop_front(&waiting_for_owner)))
        list_push_back(&found, node);
    lock_release(&waiting_lock);
    for (;;) {
        struct qp_kick kick;
        struct qp *qp;

        lock_acquire(&waiting_lock);
        node = list_pop_front(&found);
        lock_release(&waiting_lock);
        if (!node)
            break;
        qp = qp_of_route(list_entry(node, struct qp_route, waiting));
        lock_acquire(&qp->lock);
        if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed)) {
            route_of(qp)->waits_for = ROUTE_WAITS_FOR_NOTHING;
            /* A QP that waits for another block looks for it again, and enters the list again. */
            if (missing_block)
                route_of(qp)->missing_block = missing_block;
            route_run(qp);
        }
        kick = qp_take_kick(qp);
        lock_release(&qp->lock);
        route_ring(&kick);
    }
    rundown_exit();
}

/* local_ops.resolved */
void route_resolved(uint32_t block, struct link *link)
{
    multicast_resolved();
    exit_flush_resolved(block);
    remote_open_resolved(block, link);
    run_waiting_for_owner(link ? 0 : block + 1);
}

/* local_ops.settled */
void route_settled(void)
{
    run_waiting_for_owner(0);
}

/* local_ops.lane_writable: runs blocked QPs until the ring is full again. */
void route_lane_writable(struct lane *lane)
{
    struct lane_state *state = lane_state(lane);

    atomic_store_explicit(&state->gave_up, false, memory_order_relaxed);
    notice_flush(lane, state);
    gsi_lane_writable(lane, state);
    remote_open_lane_writable(lane, state);
    lane_ring(lane);
    while (blocked_run_next(&state->blocked) == BLOCKED_RAN) {
    } /* after BLOCKED_AGAIN the lane becomes writable again, which calls this function again */
}

/* The lists hold QPs of the parent. */
void waiting_after_fork_in_child(void)
{
    lock_init(&waiting_lock);
    list_init(&waiting_for_owner);
    list_init(&waiting_for_run);
    atomic_store_explicit(&route_any_waits_for_run, false, memory_order_relaxed);
}
