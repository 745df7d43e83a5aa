/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a QP sends before it ends, and a program before it is gone.
 *
 * An adapter has sent what was posted within microseconds, before the program can have done anything about
 * the QP. Here it may wait still: for the link to the peer, for room in a lane, for a turn. So whoever ends
 * the QP waits for that, a moment at most.
 *
 * A program that ends says to the network, too: requests that stayed for others, acknowledgements that gave
 * way to an answer, and for each QP that served a peer its last acknowledgement once more (responder_resend_last_ack()).
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

#define FLUSH_LIMIT (100 * NS_PER_MS) /* at most; of a program that ends, all QPs together */
/* An answer of the peer's may have run the sender, or another thread that posts. */
#define RECHECK_EVERY (2 * NS_PER_MS)
#define LOCK_LIMIT    (20 * NS_PER_MS) /* for all locks together */
#define RETRY_EVERY   (50 * NS_PER_US)
/* A program with more of them is not kept at its end. */
#define MAX_QPS 1024u

/* Blocks whose owner did not answer in time, a bit each, until it does: a program with many QPs to a process
 * that is stopped waits for it once. */
static _Atomic uint64_t unanswered_blocks[65536 / 64];
static _Atomic uint32_t runs; /* of senders that are watched; waited for as a futex */

struct exit_flush {
    ns_t deadline;
    uint32_t lanes;    /* bits: of the network, whose locks are not ours */
    uint32_t to_flush; /* bits */
    unsigned qps;
};

static bool retry_later(const struct exit_flush *flush)
{
    if (sys_now() >= flush->deadline)
        return false;
    (void)sys_poll(NULL, 0, RETRY_EVERY);
    return true;
}

static void flush_lanes(struct exit_flush *flush, uint32_t lanes)
{
    for (; lanes; lanes &= lanes - 1) {
        unsigned number = (unsigned)__builtin_ctz(lanes);
        bool flushed;

        do
            flushed = udp_try_flush(udp_lane_by_number(number));
        while (!flushed && retry_later(flush));
        if (flushed)
            flush->lanes |= 1u << number;
    }
}

static bool lock_in_time(const struct exit_flush *flush, struct lock *lock)
{
    while (!lock_try(lock)) {
        if (!retry_later(flush))
            return false;
    }
    return true;
}

static void flush_qp(struct qp *qp, void *argument)
{
    struct exit_flush *flush = argument;
    struct qp_kick kick;

    if (flush->qps == MAX_QPS || !lock_in_time(flush, &qp->lock))
        return;
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && route_of(qp)->by_network &&
        flush->lanes & 1u << udp_lane_number(route_of(qp)->network_lane)) {
        network_ack_exit(qp);
        responder_resend_last_ack(&qp->transport);
    }
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    if (kick.network_lane) {
        flush->to_flush |= 1u << udp_lane_number(kick.network_lane);
        flush->qps++;
    }
}

/* --- what was posted ------------------------------------------------------------------------------------ */

/* It is not the peer that the QP waits for, nor the program. QP lock held. */
static bool waits_for_path(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && qp_state(qp) == IBV_QPS_RTS &&
           (sender->waiting == SENDER_WAITS_FOR_LINK || sender->waiting == SENDER_RUNS) &&
           sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed);
}

static _Atomic uint64_t *unanswered_word(uint32_t block)
{
    return &unanswered_blocks[block / 64 % array_size(unanswered_blocks)];
}

/* Does the next request look for the owner of a number? QP lock held. */
static bool waits_for_owner(const struct qp *qp, uint32_t *ret_block)
{
    const struct send_wqe *wqe = send_wqe_at(&qp->transport, qp->record->sender.next);
    uint32_t qpn = is_connected(qp->record) ? qp->record->attributes.dest_qpn : wqe->ud.remote_qpn;

    *ret_block = qpn / LOCAL_BLOCK_QPNS;
    return route_of(qp)->waits_for == ROUTE_WAITS_FOR_OWNER && qp->record->type != IBV_QPT_RAW_PACKET &&
           qpn != PSN_MASK; /* multicast looks for all */
}

/* Has somebody waited for that in vain? QP lock held. */
static bool has_given_up(const struct qp *qp)
{
    uint32_t block;

    if (blocked_lane(qp))
        return atomic_load_explicit(&lane_state(blocked_lane(qp))->gave_up, memory_order_relaxed);
    return waits_for_owner(qp, &block) &&
           atomic_load_explicit(unanswered_word(block), memory_order_relaxed) >> block % 64 & 1;
}

/* QP lock held. */
static void note_given_up(const struct qp *qp)
{
    uint32_t block;

    if (blocked_lane(qp))
        atomic_store_explicit(&lane_state(blocked_lane(qp))->gave_up, true, memory_order_relaxed);
    else if (waits_for_owner(qp, &block))
        atomic_fetch_or_explicit(unanswered_word(block), 1ull << block % 64, memory_order_relaxed);
}

void exit_flush_resolved(uint32_t block)
{
    atomic_fetch_and_explicit(unanswered_word(block), ~(1ull << block % 64), memory_order_relaxed);
}

/* The child has other peers, or none. */
void exit_flush_after_fork_in_child(void)
{
    for (unsigned i = 0; i < array_size(unanswered_blocks); i++)
        atomic_store_explicit(&unanswered_blocks[i], 0, memory_order_relaxed);
}

void exit_flush_sender_ran(void)
{
    atomic_fetch_add_explicit(&runs, 1, memory_order_release);
    sys_futex((uint32_t *)&runs, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

/* Is there still something to wait for? QP lock held. */
static bool keeps_waiting(const struct qp *qp, ns_t now, ns_t deadline)
{
    if (!waits_for_path(qp) || has_given_up(qp))
        return false;
    if (now < deadline)
        return true;
    note_given_up(qp);
    return false;
}

void exit_flush_qp(struct qp *qp)
{
    ns_t now, deadline;

    rundown_enter(); /* lanes are looked at */
    lock_acquire(&qp->lock);
    if (likely(!waits_for_path(qp)))
        goto out;
    now = sys_now();
    deadline = now + FLUSH_LIMIT;
    route_of(qp)->end_waiters++;
    for (; keeps_waiting(qp, now, deadline); now = sys_now()) {
        uint32_t seen = atomic_load_explicit(&runs, memory_order_acquire);

        lock_release(&qp->lock);
        rundown_exit();
        sys_futex((uint32_t *)&runs, FUTEX_WAIT_PRIVATE, seen, min_of(deadline - now, RECHECK_EVERY));
        rundown_enter();
        lock_acquire(&qp->lock);
    }
    route_of(qp)->end_waiters--;
out:
    lock_release(&qp->lock);
    rundown_exit();
}

static void wait_until_sent(struct qp *qp, void *argument)
{
    const struct exit_flush *flush = argument;
    bool waits;

    do {
        if (!atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) || !lock_in_time(flush, &qp->lock))
            return;
        waits = waits_for_path(qp);
        lock_release(&qp->lock);
    } while (waits && retry_later(flush));
}

/* --- the end of the program ----------------------------------------------------------------------------- */

void exit_flush_process(void)
{
    struct exit_flush flush = {.deadline = sys_now() + FLUSH_LIMIT};

    /* In a signal handler that has interrupted the library nobody can be waited for who needs its locks. */
    if (!rundown_self || !rundown_self->depth)
        qp_for_each(wait_until_sent, &flush);
    flush.deadline = sys_now() + LOCK_LIMIT;
    (void)network_take_batched();
    flush_lanes(&flush, (1u << UDP_LANES) - 1);
    /* Nothing can have come from the network, maybe no verb was ever used: nothing is begun for that now. */
    if (!atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        return;
    rundown_enter();
    qp_for_each(flush_qp, &flush);
    rundown_exit();
    flush_lanes(&flush, flush.to_flush);
}
