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

#define ANSWERS_TO_TRUST 8u

enum wire_turn {
    TURN_NONE,
    TURN_TAKEN, /* the acknowledgement has just left */
    TURN_GIVEN, /* it waits */
};

/* The QP of whose acknowledgement that holds. Written under the receive lock. */
static _Atomic(struct qp *) single;

static enum wire_turn turn_of(const struct qp *qp)
{
    return (enum wire_turn)atomic_load_explicit(&route_of(qp)->turn, memory_order_relaxed);
}

/* QP lock held. */
static void set_turn(struct qp *qp, enum wire_turn turn)
{
    atomic_store_explicit(&route_of(qp)->turn, (uint8_t)turn, memory_order_relaxed);
}

/* Looks of the helper thread at what waits, and at which of them it began to. */
static _Atomic uint32_t looks, given_at;

bool turn_gives_way(struct qp *qp)
{
    if (!responder_owes_only_ack(&qp->transport) || qp->record->responder.acks_owed != 1)
        return false;
    atomic_store_explicit(&single, qp, memory_order_relaxed);
    set_turn(qp, route_of(qp)->answers < ANSWERS_TO_TRUST ? TURN_TAKEN : TURN_GIVEN);
    atomic_store_explicit(&given_at, atomic_load_explicit(&looks, memory_order_relaxed),
                          memory_order_relaxed);
    return turn_of(qp) == TURN_GIVEN;
}

bool turn_is_overdue(void)
{
    uint32_t now = atomic_load_explicit(&looks, memory_order_relaxed) + 1;

    atomic_store_explicit(&looks, now, memory_order_relaxed);
    return turn_is_on() && now - atomic_load_explicit(&given_at, memory_order_relaxed) >= 2;
}

/* Of the request that is being sent. */
static bool is_last_posted(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return atomic_load_explicit(&sender->posted, memory_order_relaxed) == sender->next + 1;
}

void turn_sent(struct qp *qp, const struct packet *packet)
{
    if (turn_of(qp) != TURN_GIVEN || !hold_is_whole_request(packet->opcode))
        return; /* others wait for turn_posted() */
    set_turn(qp, TURN_NONE);
    if (responder_owes_only_ack(&qp->transport))
        responder_run(&qp->transport);
    if (is_last_posted(qp)) {
        route_of(qp)->kick_wire = false;
        udp_flush(route_of(qp)->wire);
    }
}

struct udp_lane *turn_posted(struct qp *qp)
{
    struct qp_kick kick;

    if (likely(turn_of(qp) == TURN_NONE))
        return NULL;
    lock_acquire(&qp->lock);
    if (turn_of(qp) != TURN_NONE && route_of(qp)->answers < ANSWERS_TO_TRUST)
        route_of(qp)->answers++;
    if (turn_of(qp) == TURN_GIVEN && responder_owes(&qp->transport))
        responder_run(&qp->transport);
    set_turn(qp, TURN_NONE);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    return kick.wire;
}

bool turn_is_on(void)
{
    return atomic_load_explicit(&single, memory_order_relaxed) != NULL;
}

struct qp *turn_take(void)
{
    struct qp *qp = atomic_load_explicit(&single, memory_order_relaxed);

    if (likely(!qp))
        return NULL;
    atomic_store_explicit(&single, NULL, memory_order_relaxed);
    return turn_of(qp) == TURN_NONE ? NULL : qp;
}

void turn_end(struct qp *qp)
{
    if (turn_of(qp) == TURN_NONE)
        return; /* it was answered, reset or destroyed meanwhile */
    turn_forget(qp);
    if (responder_owes(&qp->transport))
        route_run(qp);
}

void turn_forget(struct qp *qp)
{
    set_turn(qp, TURN_NONE);
    route_of(qp)->answers = 0;
}

void turn_start(void)
{
    atomic_store_explicit(&single, NULL, memory_order_relaxed);
}
