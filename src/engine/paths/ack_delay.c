/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Whose turn it is where two programs answer each other. An acknowledgement leaves with the batch that it is
 * for, because a program may take its last receive and be gone. But it takes a system call, and where two
 * programs answer each other the answer waits for it, and the peer's processor has another datagram to take.
 * So where a program has time and again answered a single packet before it polled again, the acknowledgement
 * gives way to the next answer, and leaves in the same datagram. If there is none it leaves with the next
 * poll, by whomever (the helper thread's comes at a tick at which it finds that the program does not poll) or
 * when the program exits, and for this QP that was the last time for a while. */
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

#define REPLIES_TO_TRUST 8u

enum ack_delay_state {
    ACK_DELAY_NONE,
    ACK_DELAY_SENT,  /* the acknowledgement has just left */
    ACK_DELAY_WAITS, /* it waits */
};

/* The QP of whose acknowledgement that holds. Written under the receive lock. */
static _Atomic(struct qp *) delayed_qp;

static enum ack_delay_state state_of(const struct qp *qp)
{
    return (enum ack_delay_state)atomic_load_explicit(&route_of(qp)->ack_delay, memory_order_relaxed);
}

/* QP lock held. */
static void set_state(struct qp *qp, enum ack_delay_state state)
{
    atomic_store_explicit(&route_of(qp)->ack_delay, (uint8_t)state, memory_order_relaxed);
}

/* Looks of the helper thread at what waits, and at which of them it began to. */
static _Atomic uint32_t ticks, delayed_at;

bool ack_delay_begin(struct qp *qp)
{
    if (!responder_owes_only_ack(&qp->transport) || qp->record->responder.acks_owed != 1)
        return false;
    atomic_store_explicit(&delayed_qp, qp, memory_order_relaxed);
    set_state(qp, route_of(qp)->replies < REPLIES_TO_TRUST ? ACK_DELAY_SENT : ACK_DELAY_WAITS);
    atomic_store_explicit(&delayed_at, atomic_load_explicit(&ticks, memory_order_relaxed),
                          memory_order_relaxed);
    return state_of(qp) == ACK_DELAY_WAITS;
}

bool ack_delay_is_overdue(void)
{
    uint32_t now = atomic_load_explicit(&ticks, memory_order_relaxed) + 1;

    atomic_store_explicit(&ticks, now, memory_order_relaxed);
    return ack_delay_is_pending() && now - atomic_load_explicit(&delayed_at, memory_order_relaxed) >= 2;
}

/* Of the request that is being sent. */
static bool is_last_posted(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return atomic_load_explicit(&sender->posted, memory_order_relaxed) == sender->next + 1;
}

void ack_delay_sent(struct qp *qp, const struct packet *packet)
{
    if (state_of(qp) != ACK_DELAY_WAITS || !tx_batch_is_single_request(packet->opcode))
        return; /* others wait for ack_delay_posted() */
    set_state(qp, ACK_DELAY_NONE);
    if (responder_owes_only_ack(&qp->transport))
        responder_run(&qp->transport);
    if (is_last_posted(qp)) {
        route_of(qp)->kick_network = false;
        udp_flush(route_of(qp)->network_lane);
    }
}

struct udp_lane *ack_delay_posted(struct qp *qp)
{
    struct qp_kick kick;

    if (likely(state_of(qp) == ACK_DELAY_NONE))
        return NULL;
    lock_acquire(&qp->lock);
    if (state_of(qp) != ACK_DELAY_NONE && route_of(qp)->replies < REPLIES_TO_TRUST)
        route_of(qp)->replies++;
    if (state_of(qp) == ACK_DELAY_WAITS && responder_owes(&qp->transport))
        responder_run(&qp->transport);
    set_state(qp, ACK_DELAY_NONE);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    return kick.network_lane;
}

bool ack_delay_is_pending(void)
{
    return atomic_load_explicit(&delayed_qp, memory_order_relaxed) != NULL;
}

struct qp *ack_delay_take(void)
{
    struct qp *qp = atomic_load_explicit(&delayed_qp, memory_order_relaxed);

    if (likely(!qp))
        return NULL;
    atomic_store_explicit(&delayed_qp, NULL, memory_order_relaxed);
    return state_of(qp) == ACK_DELAY_NONE ? NULL : qp;
}

void ack_delay_end(struct qp *qp)
{
    if (state_of(qp) == ACK_DELAY_NONE)
        return; /* it was answered, reset or destroyed meanwhile */
    ack_delay_reset(qp);
    if (responder_owes(&qp->transport))
        route_run(qp);
}

void ack_delay_reset(struct qp *qp)
{
    set_state(qp, ACK_DELAY_NONE);
    route_of(qp)->replies = 0;
}

void ack_delay_init(void)
{
    atomic_store_explicit(&delayed_qp, NULL, memory_order_relaxed);
}
