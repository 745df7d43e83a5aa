/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a program says to the network before it is gone: requests that stayed for others, acknowledgements
 * that gave way to an answer, and for each QP that served a peer its last acknowledgement once more
 * (responder_part()). Programs exit without destroying their QPs, and then nobody could acknowledge again
 * what got lost.
 *
 * The thread that exits may do so in a signal handler, and then it has locks of its own that nobody is going
 * to release: each is tried for a while, as whoever else has it does release it. */
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/engine.h"
#include "engine/internal.h"
#include "udp/udp.h"

#define PATIENCE (20 * NS_PER_MS) /* for all locks together */
#define PAUSE    (50 * NS_PER_US)
/* A program with more of them is not kept at its end. */
#define QPS_MOST 1024u

struct parting {
    ns_t deadline;
    uint32_t lanes;    /* bits: of the network, whose locks are not ours */
    uint32_t to_flush; /* bits */
    unsigned qps;
};

static bool has_patience(const struct parting *parting)
{
    if (sys_now() >= parting->deadline)
        return false;
    (void)sys_poll(NULL, 0, PAUSE);
    return true;
}

static void flush_lanes(struct parting *parting, uint32_t lanes)
{
    for (; lanes; lanes &= lanes - 1) {
        unsigned number = (unsigned)__builtin_ctz(lanes);
        bool flushed;

        do
            flushed = udp_try_flush(udp_lane_by_number(number));
        while (!flushed && has_patience(parting));
        if (flushed)
            parting->lanes |= 1u << number;
    }
}

static bool lock_in_time(const struct parting *parting, struct lock *lock)
{
    while (!lock_try(lock)) {
        if (!has_patience(parting))
            return false;
    }
    return true;
}

static void part(struct qp *qp, void *argument)
{
    struct parting *parting = argument;
    struct qp_kick kick;

    if (parting->qps == QPS_MOST || !lock_in_time(parting, &qp->lock))
        return;
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && qp->route.by_wire &&
        parting->lanes & 1u << udp_lane_number(qp->route.wire)) {
        turn_forget(qp);
        if (responder_owes_only_ack(&qp->transport))
            responder_run(&qp->transport);
        responder_part(&qp->transport);
    }
    kick = qp_take_kick(qp, false);
    lock_release(&qp->lock);
    if (kick.wire) {
        parting->to_flush |= 1u << udp_lane_number(kick.wire);
        parting->qps++;
    }
}

void parting_before_exit(void)
{
    struct parting parting = {.deadline = sys_now() + PATIENCE};

    (void)hold_take();
    flush_lanes(&parting, (1u << UDP_LANES) - 1);
    /* Nothing can have come from the network, maybe no verb was ever used: nothing is begun for that now. */
    if (!atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        return;
    rundown_enter();
    qp_for_each(part, &parting);
    rundown_exit();
    flush_lanes(&parting, parting.to_flush);
}
