/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a QP sends before it ends, and a program before it is gone.
 *
 * An adapter has sent what was posted within microseconds, before the program can have done anything about
 * the QP. Here it may wait still: for the link to the peer, for room in a lane, for a turn. So whoever ends
 * the QP waits for that, a moment at most.
 *
 * A program that ends says to the network, too: requests that stayed for others, acknowledgements that gave
 * way to an answer, and for each QP that served a peer its last acknowledgement once more (responder_part()).
 * Programs exit without destroying their QPs, and then nobody could acknowledge again what got lost.
 *
 * The thread that exits may do so in a signal handler, and then it has locks of its own that nobody is going
 * to release: each is tried for a while, as whoever else has it does release it. */
#include <linux/futex.h>
#include <stdatomic.h>

#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

#define SEE_OFF (100 * NS_PER_MS) /* at most; of a program that ends, all QPs together */
/* An answer of the peer's may have run the sender, or another thread that posts. */
#define LOOK_AGAIN (2 * NS_PER_MS)
#define PATIENCE   (20 * NS_PER_MS) /* for all locks together */
#define PAUSE      (50 * NS_PER_US)
/* A program with more of them is not kept at its end. */
#define QPS_MOST 1024u

/* Blocks whose owner did not answer in time, a bit each, until it does: a program with many QPs to a process
 * that is stopped waits for it once. */
static _Atomic uint64_t blocks_in_vain[65536 / 64];
static _Atomic uint32_t runs; /* of senders that are watched; waited for as a futex */

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
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && route_of(qp)->by_wire &&
        parting->lanes & 1u << udp_lane_number(route_of(qp)->wire)) {
        ack_delay_reset(qp);
        if (responder_owes_only_ack(&qp->transport))
            responder_run(&qp->transport);
        responder_part(&qp->transport);
    }
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    if (kick.wire) {
        parting->to_flush |= 1u << udp_lane_number(kick.wire);
        parting->qps++;
    }
}

/* --- what was posted ------------------------------------------------------------------------------------ */

/* It is not the peer that the QP waits for, nor the program. QP lock held. */
static bool waits_for_way(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && qp_state(qp) == IBV_QPS_RTS &&
           (sender->waiting == SENDER_WAITS_FOR_LINK || sender->waiting == SENDER_RUNS) &&
           sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed);
}

static _Atomic uint64_t *block_word(uint32_t block)
{
    return &blocks_in_vain[block / 64 % array_size(blocks_in_vain)];
}

/* Does the next request look for the owner of a number? QP lock held. */
static bool looks_for(const struct qp *qp, uint32_t *ret_block)
{
    const struct send_wqe *wqe = send_wqe_at(&qp->transport, qp->record->sender.next);
    uint32_t qpn = is_connected(qp->record) ? qp->record->attributes.dest_qpn : wqe->ud.remote_qpn;

    *ret_block = qpn / LOCAL_BLOCK_QPNS;
    return route_of(qp)->waits_for == ROUTE_WAITS_FOR_OWNER && qp->record->type != IBV_QPT_RAW_PACKET &&
           qpn != PSN_MASK; /* multicast looks for all */
}

/* Has somebody waited for that in vain? QP lock held. */
static bool is_in_vain(const struct qp *qp)
{
    uint32_t block;

    if (route_of(qp)->blocked_lane)
        return atomic_load_explicit(&lane_state(route_of(qp)->blocked_lane)->in_vain, memory_order_relaxed);
    return looks_for(qp, &block) &&
           atomic_load_explicit(block_word(block), memory_order_relaxed) >> block % 64 & 1;
}

/* QP lock held. */
static void note_in_vain(const struct qp *qp)
{
    uint32_t block;

    if (route_of(qp)->blocked_lane)
        atomic_store_explicit(&lane_state(route_of(qp)->blocked_lane)->in_vain, true, memory_order_relaxed);
    else if (looks_for(qp, &block))
        atomic_fetch_or_explicit(block_word(block), 1ull << block % 64, memory_order_relaxed);
}

void parting_resolved(uint32_t block)
{
    atomic_fetch_and_explicit(block_word(block), ~(1ull << block % 64), memory_order_relaxed);
}

/* The child has other peers, or none. */
void parting_after_fork_in_child(void)
{
    for (unsigned i = 0; i < array_size(blocks_in_vain); i++)
        atomic_store_explicit(&blocks_in_vain[i], 0, memory_order_relaxed);
}

void parting_has_run(void)
{
    atomic_fetch_add_explicit(&runs, 1, memory_order_release);
    sys_futex((uint32_t *)&runs, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

/* Is there still something to wait for? QP lock held. */
static bool goes_on(const struct qp *qp, ns_t now, ns_t deadline)
{
    if (!waits_for_way(qp) || is_in_vain(qp))
        return false;
    if (now < deadline)
        return true;
    note_in_vain(qp);
    return false;
}

void parting_see_off(struct qp *qp)
{
    ns_t now, deadline;

    rundown_enter(); /* lanes are looked at */
    lock_acquire(&qp->lock);
    if (likely(!waits_for_way(qp)))
        goto out;
    now = sys_now();
    deadline = now + SEE_OFF;
    route_of(qp)->watchers++;
    for (; goes_on(qp, now, deadline); now = sys_now()) {
        uint32_t seen = atomic_load_explicit(&runs, memory_order_acquire);

        lock_release(&qp->lock);
        rundown_exit();
        sys_futex((uint32_t *)&runs, FUTEX_WAIT_PRIVATE, seen, min_of(deadline - now, LOOK_AGAIN));
        rundown_enter();
        lock_acquire(&qp->lock);
    }
    route_of(qp)->watchers--;
out:
    lock_release(&qp->lock);
    rundown_exit();
}

static void see_off_in_time(struct qp *qp, void *argument)
{
    const struct parting *parting = argument;
    bool waits;

    do {
        if (!atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) ||
            !lock_in_time(parting, &qp->lock))
            return;
        waits = waits_for_way(qp);
        lock_release(&qp->lock);
    } while (waits && has_patience(parting));
}

/* --- the end of the program ----------------------------------------------------------------------------- */

void parting_before_exit(void)
{
    struct parting parting = {.deadline = sys_now() + SEE_OFF};

    /* In a signal handler that has interrupted the library nobody can be waited for who needs its locks. */
    if (!rundown_self || !rundown_self->depth)
        qp_for_each(see_off_in_time, &parting);
    parting.deadline = sys_now() + PATIENCE;
    (void)tx_batch_take();
    flush_lanes(&parting, (1u << UDP_LANES) - 1);
    /* Nothing can have come from the network, maybe no verb was ever used: nothing is begun for that now. */
    if (!atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        return;
    rundown_enter();
    qp_for_each(part, &parting);
    rundown_exit();
    flush_lanes(&parting, parting.to_flush);
}
