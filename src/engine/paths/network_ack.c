/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delayed acknowledgements: what engine/paths/ack_delay.h decides, done to QPs under their locks. At most one
 * QP of the process has a delay under way, because a delay begins only where it alone owes an acknowledgement
 * at the end of a batch. */
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/ack_delay.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

/* The QP whose delay began last; NULL: it has been ended. A QP that was replied on, reset or destroyed since
 * stays here, in ACK_DELAY_NONE. Written under the udp receive lock; the helper thread reads it without. */
static _Atomic(struct qp *) delayed_qp;
static struct ack_delay_clock delay_clock;

bool network_ack_delay(struct qp *qp)
{
    if (!responder_owes_only_ack(&qp->transport) || qp->record->responder.acks_owed != 1)
        return false;
    atomic_store_explicit(&delayed_qp, qp, memory_order_relaxed);
    ack_delay_clock_begin(&delay_clock);
    return ack_delay_step(&route_of(qp)->ack_delay, ACK_DELAY_RECEIVED) == ACK_LATER;
}

void network_ack_request(struct qp *qp, uint32_t next)
{
    if (likely(ack_delay_state(&route_of(qp)->ack_delay) == ACK_DELAY_NONE) ||
        ack_delay_step(&route_of(qp)->ack_delay, ACK_DELAY_REQUEST) == ACK_LATER)
        return;
    if (responder_owes_only_ack(&qp->transport))
        responder_run(&qp->transport);
    if (atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed) == next) {
        route_of(qp)->kick_network = false;
        udp_flush(route_of(qp)->network_lane);
    }
}

struct udp_lane *network_ack_posted(struct qp *qp)
{
    struct qp_kick kick;

    if (likely(ack_delay_state(&route_of(qp)->ack_delay) == ACK_DELAY_NONE))
        return NULL;
    lock_acquire(&qp->lock);
    if (ack_delay_step(&route_of(qp)->ack_delay, ACK_DELAY_POSTED) == ACK_NOW &&
        responder_owes(&qp->transport))
        responder_run(&qp->transport);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    return kick.network_lane;
}

bool network_ack_is_pending(void)
{
    return atomic_load_explicit(&delayed_qp, memory_order_relaxed) != NULL;
}

bool network_ack_tick(void)
{
    return ack_delay_clock_tick(&delay_clock, network_ack_is_pending());
}

struct qp *network_ack_take(void)
{
    struct qp *qp = atomic_load_explicit(&delayed_qp, memory_order_relaxed);

    if (likely(!qp))
        return NULL;
    atomic_store_explicit(&delayed_qp, NULL, memory_order_relaxed);
    return ack_delay_state(&route_of(qp)->ack_delay) == ACK_DELAY_NONE ? NULL : qp;
}

void network_ack_end(struct qp *qp)
{
    if (ack_delay_step(&route_of(qp)->ack_delay, ACK_DELAY_POLLED) == ACK_NOW &&
        responder_owes(&qp->transport))
        route_run(qp);
}

void network_ack_exit(struct qp *qp)
{
    if (ack_delay_step(&route_of(qp)->ack_delay, ACK_DELAY_EXIT) == ACK_NOW &&
        responder_owes_only_ack(&qp->transport))
        responder_run(&qp->transport);
}

void network_ack_reset(struct qp *qp)
{
    (void)ack_delay_step(&route_of(qp)->ack_delay, ACK_DELAY_RESET);
}

void network_ack_start(void)
{
    atomic_store_explicit(&delayed_qp, NULL, memory_order_relaxed);
}
