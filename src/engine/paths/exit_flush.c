/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The flush before a QP ends, and before the process exits.
 *
 * An adapter sends a posted request within microseconds, before the program can destroy the QP. Here the
 * request may still wait for the link to the peer, for space in a lane, or to be scheduled again. So the
 * thread that ends the QP waits until the request has left, for FLUSH_LIMIT at most.
 *
 * A process that exits also flushes the network lanes: batched requests (tx_batch.h), delayed acknowledgements
 * (ack_delay.h), and the last acknowledgement of each responder once more. Programs exit without destroying
 * their QPs, and afterwards nobody could acknowledge a request again whose acknowledgement was lost.
 *
 * exit() may be called in a signal handler that has interrupted the holder of a lock. Then waiting for that
 * lock would never end, so each lock is only tried, for LOCK_LIMIT altogether. */
#include <linux/futex.h>
#include <stdatomic.h>

#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

#define FLUSH_LIMIT (100 * NS_PER_MS) /* of a QP; at exit of all QPs together */
/* A response of the peer or another thread that posts runs the sender without exit_flush_sender_ran(). */
#define RECHECK_EVERY (2 * NS_PER_MS)
#define LOCK_LIMIT    (20 * NS_PER_MS) /* at exit, all locks together */
#define RETRY_EVERY   (50 * NS_PER_US)
/* QPs that are flushed at exit; the rest is left to the peers' retries. */
#define MAX_QPS 1024u

/* A bit for each block of QP numbers whose owner was waited for in vain, until the owner is known. A program
 * with many QPs to a stopped process waits once, not once for each QP. */
static _Atomic uint64_t unanswered_blocks[65536 / 64];
/* Futex: counts runs of senders with qp_route.end_waiters. */
static _Atomic uint32_t runs;

struct exit_flush {
    ns_t deadline;
    uint32_t lanes;    /* bits: network lanes whose lock this thread does not hold */
    uint32_t to_flush; /* bits: network lanes */
    unsigned qps;      /* that have sent something */
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

/* --- before a QP ends ----------------------------------------------------------------------------------- */

/* Does a posted request wait for the path to the peer, and not for a response or for the program? QP lock
 * held. */
static bool waits_for_path(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && qp_state(qp) == IBV_QPS_RTS &&
           (sender->waiting == SENDER_WAITS_FOR_LINK || sender->waiting == SENDER_WAITS_FOR_MAPPING ||
            sender->waiting == SENDER_WAITS_AFTER_LOSSES || sender->waiting == SENDER_RUNS) &&
           sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed);
}

static _Atomic uint64_t *unanswered_word(uint32_t block)
{
    return &unanswered_blocks[block / 64 % array_size(unanswered_blocks)];
}

/* Does the next request wait until the process that owns the destination QP number is found? QP lock held. */
static bool waits_for_owner(const struct qp *qp, uint32_t *ret_block)
{
    const struct send_wqe *wqe = send_wqe_at(&qp->transport, qp->record->sender.next);
    uint32_t qpn = is_connected(qp->record) ? qp->record->attributes.dest_qpn : wqe->ud.remote_qpn;

    *ret_block = qpn / LOCAL_BLOCK_QPNS;
    return route_of(qp)->waits_for == ROUTE_WAITS_FOR_OWNER && qp->record->type != IBV_QPT_RAW_PACKET &&
           qpn != PSN_MASK; /* multicast waits for all processes, not for an owner */
}

/* Has a thread waited in vain for the same lane or owner? QP lock held. */
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

/* QP lock held. */
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

    rundown_enter(); /* for the lane in has_given_up() */
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

/* --- at exit -------------------------------------------------------------------------------------------- */

void exit_flush_process(void)
{
    struct exit_flush flush = {.deadline = sys_now() + FLUSH_LIMIT};

    /* Inside a rundown section this is a signal handler that has interrupted the library: a thread that would
     * send the requests may wait for a lock that the interrupted code holds. */
    if (!rundown_self || !rundown_self->depth)
        qp_for_each(wait_until_sent, &flush);
    flush.deadline = sys_now() + LOCK_LIMIT;
    (void)network_take_batched();
    flush_lanes(&flush, (1u << UDP_LANES) - 1);
    /* Without sockets no packet has come from the network, and no QP owes an acknowledgement. The process may
     * not have used the library at all. */
    if (!atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        return;
    rundown_enter();
    qp_for_each(flush_qp, &flush);
    rundown_exit();
    flush_lanes(&flush, flush.to_flush);
}
