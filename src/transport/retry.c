/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Go-back-N: what the sender does when packets are lost, the receiver is not ready, or the peer does not respond
 * (verbs.md §3.11, §3.12).
 *
 * On a link that may lose packets the local ACK timer runs whenever a packet is unacknowledged. Acknowledgements do
 * not re-arm it each time: when it expires and there were some, it is armed again. It thus reports a loss between one
 * and two timeouts T after the last acknowledgement, where IBA allows T to 4 T (9.7.6.1.3). Repeated timeouts last T,
 * 2 T and then 3 T, plus a random part: packets that do not get through may be a burden on others.
 *
 * T is made for long paths, tens of milliseconds, and no later packet reveals the loss of the last packet of a burst.
 * So a QP probes: after a few round trips without an acknowledgement (or a fixed time, before the first one) it
 * repeats one packet, which does not count as a retry. To the responder the probe is a duplicate. If more than that
 * packet is acknowledged, nothing was lost and the peer was only slow: nothing else is repeated.
 *
 * On a link that loses nothing the timer runs only after a drop notice (sender_peer_silent()), or after the peer has
 * acknowledged a PSN that is not outstanding (sender_psn_mismatch()): a slow peer causes no retry. The first packet
 * after the timeout carries PACKET_BEGINS, so that the responder acknowledges it in any case. */
#include "rules/timing.h"
#include "transport/machine.h"

/* Long enough that one timer event per active QP is cheap, and that a peer which waits for a processor is mostly not
 * probed. */
#define PROBE_LEAST  (2 * NS_PER_MS)
#define PROBE_FIRST  (20 * NS_PER_MS) /* before the first acknowledgement: the round trip time is unknown */
#define PROBES_MOST  2
#define RTT_GUESS    ((uint32_t)NS_PER_MS)
#define BACKOFF_MOST 3u /* times T */
/* Reading the clock twice is a good part of the cost of a small message. While round trips are so short that
 * PROBE_LEAST decides, only one in so many is measured. */
#define MEASURE_EVERY 8u

static void set_timer(struct transport_qp *qp, enum sender_timer timer, ns_t delay)
{
    struct sender *sender = &qp->record->sender;

    sender->timer_armed = (uint8_t)timer;
    if (timer != SENDER_TIMER_ACK)
        sender->timeout_left = 0;
    qp->ports->set_timer(qp, delay);
}

/* --- round trips ---------------------------------------------------------------------------------- */

void sender_measure(struct transport_qp *qp, psn_t psn)
{
    struct sender *sender = &qp->record->sender;

    if (sender->rtt_runs)
        return;
    if (sender->rtt_rest) {
        sender->rtt_rest--;
        return;
    }
    sender->rtt_runs = true;
    sender->rtt_psn = psn;
    sender->rtt_at = qp->ports->now(qp);
}

static ns_t longest_round_trip(const struct sender *sender)
{
    return sender->rtt + 4ull * sender->rtt_deviation;
}

/* Smoothed round trip time and deviation as in RFC 6298. */
static void measured(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    uint32_t rtt, error;

    if (!sender->rtt_runs && !sender->rtt)
        sender->rtt = sender->rtt_deviation = RTT_GUESS; /* every packet so far had to be repeated */
    if (!sender->rtt_runs || psn_diff(sender->unacked_psn, sender->rtt_psn) <= 0)
        return;
    sender->rtt_runs = false;
    rtt = (uint32_t)min_of(qp->ports->now(qp) - sender->rtt_at, 4 * NS_PER_S) + 1;
    qp->rtt_least = qp->rtt_least ? min_of(qp->rtt_least, rtt) : rtt;
    if (!sender->rtt) {
        sender->rtt = rtt;
        sender->rtt_deviation = rtt / 2;
        return;
    }
    error = rtt > sender->rtt ? rtt - sender->rtt : sender->rtt - rtt;
    sender->rtt_deviation = sender->rtt_deviation - sender->rtt_deviation / 4 + error / 4;
    sender->rtt = sender->rtt - sender->rtt / 8 + rtt / 8;
    if (longest_round_trip(sender) < PROBE_LEAST / 2)
        sender->rtt_rest = MEASURE_EVERY - 1;
}

/* --- timer ---------------------------------------------------------------------------------------- */

/* Up to a quarter more, at random: QPs that timed out together must not retry together. */
static ns_t back_off(struct transport_qp *qp, ns_t timeout)
{
    timeout *= min_of(qp->record->sender.timeouts + 0u, BACKOFF_MOST);
    return timeout + (timeout >> 12) * (qp->ports->random(qp) & 1023);
}

static ns_t ack_timeout(struct transport_qp *qp)
{
    ns_t timeout = timing_ack_timeout(qp->record->attributes.timeout);

    if (timeout == NS_NEVER || qp->link.reliable || !qp->record->sender.timeouts)
        return timeout;
    return back_off(qp, timeout);
}

static ns_t probe_delay(const struct sender *sender)
{
    if (sender->timeouts || sender->probes == PROBES_MOST)
        return NS_NEVER;
    if (!sender->rtt)
        return PROBE_FIRST << sender->probes;
    return max_of(longest_round_trip(sender), PROBE_LEAST) << sender->probes;
}

/* Timeout code 0 means no timer: NS_NEVER. timer_armed is set all the same, so that no other timer is armed. */
static void set_ack_timer(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    ns_t delay = sender->timeout_left;

    if (delay != NS_NEVER && !qp->link.reliable)
        delay = min_of(delay, probe_delay(sender));
    sender->timer_delay = delay;
    sender->timer_moved = false;
    set_timer(qp, SENDER_TIMER_ACK, delay);
}

static void start_ack_timer(struct transport_qp *qp)
{
    qp->record->sender.timeout_left = ack_timeout(qp);
    set_ack_timer(qp);
}

void sender_arm(struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    if (sender->timer_armed != SENDER_TIMER_NONE)
        return;
    if (sender->timeout_left)
        set_ack_timer(qp); /* after a probe */
    else
        start_ack_timer(qp);
}

static bool has_outstanding(const struct sender *sender)
{
    return sender->completed != sender->begun;
}

/* Transmission continues where it was before sender_go_back(). */
static void go_forward(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    for (; sender->next != sender->begun; sender->next++, sender->next_offset = 0) {
        const struct send_wqe *wqe = send_wqe_at(qp, sender->next);
        uint32_t sent = psn_distance(wqe->first_psn, sender->sent_psn);

        if (wqe->verdict != VERDICT_OK)
            return;
        if (wqe->packets && sent < wqe->packets) {
            sender->next_offset = sent;
            return;
        }
    }
}

static void probe_acknowledged(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    bool other = psn_diff(sender->unacked_psn, psn_add(sender->probe_psn, 1)) > 0;
    /* More than a round trip after the probe: this acknowledges a packet sent before it. */
    bool late = qp->ports->now(qp) - sender->repeated_at > longest_round_trip(sender);

    sender->probe_runs = false;
    /* The delay of a slow peer is measured as a round trip, so that it is probed later next time. After a loss the
     * time until the probe is no round trip. */
    if (!late)
        sender->rtt_runs = false;
    if (other || late)
        go_forward(qp);
    else if (!psn_equal(sender->unacked_psn, sender->sent_psn))
        window_lost(qp);
}

/* Arms the ACK timer again, or cancels it if nothing is outstanding. */
static void restart_ack_timer(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (has_outstanding(sender)) {
        start_ack_timer(qp);
        return;
    }
    set_timer(qp, SENDER_TIMER_NONE, NS_NEVER);
    if (sender->waiting == SENDER_WAITS_FOR_RETRY)
        sender->waiting = SENDER_RUNS;
}

static void progressed_on_lossy_link(struct transport_qp *qp, uint32_t psns)
{
    struct sender *sender = &qp->record->sender;
    bool was_silent = sender->timeouts || sender->probes || !sender->rtt;

    window_acknowledged(qp, psns);
    if (unlikely(sender->probe_runs))
        probe_acknowledged(qp);
    measured(qp);
    sender->timeouts = sender->probes = 0;
    sender->timer_moved = true;
    /* The timer has a longer delay than a few round trips, or was not armed because the link had no space. */
    if ((was_silent || sender->waiting == SENDER_WAITS_FOR_RETRY) && sender->timer_armed != SENDER_TIMER_RNR)
        restart_ack_timer(qp);
}

void sender_progressed(struct transport_qp *qp, uint32_t psns)
{
    struct sender *sender = &qp->record->sender;

    sender->retries_left = qp->record->attributes.retry_count;
    sender->rnr_retries_left = qp->record->attributes.rnr_retry;
    sender->read_gap_seen = false;
    if (unlikely(!qp->link.reliable)) {
        if (is_reliable(qp->record))
            progressed_on_lossy_link(qp, psns);
    } else if (unlikely(sender->timer_armed == SENDER_TIMER_ACK)) {
        restart_ack_timer(qp);
    }
}

void sender_go_back(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    qp->deposits = false;
    qp->next_hints |= PACKET_BEGINS;
    sender->next = sender->completed;
    sender->next_offset = 0;
    if (has_outstanding(sender))
        sender->next_offset = psn_distance(send_wqe_at(qp, sender->next)->first_psn, sender->unacked_psn);
    sender->retransmissions++;
    sender->rtt_runs = sender->probe_runs = false;
    sender->waiting = SENDER_RUNS;
    if (unlikely(!qp->link.reliable)) {
        sender->repeated_psn = sender->unacked_psn;
        sender->repeated_at = qp->ports->now(qp);
    }
}

/* A NAK for the PSN that has just been repeated, sooner than a round trip later, was caused by packets sent before. */
static bool is_stale(struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return !qp->link.reliable && psn_equal(sender->repeated_psn, sender->unacked_psn) &&
           qp->ports->now(qp) - sender->repeated_at < sender->rtt - sender->rtt / 8;
}

void sender_repeat(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return; /* the RNR timer goes back to the same place, when the receiver may be ready */
    if (!qp->link.reliable)
        sender->timer_moved = true;
    else if (sender->timer_armed != SENDER_TIMER_NONE)
        set_timer(qp, SENDER_TIMER_NONE, NS_NEVER);
    sender_go_back(qp);
    sender_run(qp);
}

/* false: none was left, and the sender has failed. */
static bool use_retry(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (!sender->retries_left) {
        sender_fail_oldest(qp, VERDICT_RETRY_EXCEEDED);
        return false;
    }
    sender->retries_left--;
    return true;
}

/* A packet that was repeated is missing again. NAKs come as often as round trips end, so they would use up all
 * retries within one timeout, while the packet is only late: the ACK timer, which goes on, counts instead. Without a
 * timeout they count. */
static bool is_missing_again(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return !qp->link.reliable && qp->record->attributes.timeout &&
           psn_equal(sender->repeated_psn, sender->unacked_psn);
}

void sender_retry(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    bool again = is_missing_again(qp);

    if (sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return; /* as above */
    if (is_stale(qp) || (!again && !use_retry(qp)))
        return;
    window_lost(qp);
    /* Packets in flight behind the gap delay the repeated ones and their acknowledgement: only two are repeated until
     * then, the second so that a second loss of the first is noticed. */
    sender->probing = 2;
    if (!again) {
        sender_repeat(qp);
        return;
    }
    sender_go_back(qp);
    sender_run(qp);
}

static void probe(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    bool rtt_runs = sender->rtt_runs;

    sender->probes++;
    sender->probes_sent++;
    sender_go_back(qp);
    sender->rtt_runs =
        rtt_runs && sender->rtt; /* a first measurement would mostly be the time until the probe */
    sender->rtt_rest = 0;
    sender->probe_runs = true;
    sender->probe_psn = sender->unacked_psn;
    sender->probing = 1;
    sender_run(qp);
}

static void expired(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender->expirations++;
    if (!use_retry(qp))
        return;
    window_expired(qp);
    if (sender->timeouts != UINT8_MAX)
        sender->timeouts++;
    sender_go_back(qp);
    sender_run(qp);
}

void sender_receiver_not_ready(struct transport_qp *qp, uint8_t timer_code)
{
    struct sender *sender = &qp->record->sender;

    if (sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return; /* a second RNR NAK for the same packet */
    /* 7: no limit; counted down all the same, for sender_is_refused(). */
    if (!sender->rnr_retries_left && qp->record->attributes.rnr_retry != 7) {
        sender_fail_oldest(qp, VERDICT_RNR_RETRY_EXCEEDED);
        return;
    }
    if (sender->rnr_retries_left)
        sender->rnr_retries_left--;
    sender_go_back(qp);
    sender->probing = 1;
    sender->waiting = SENDER_WAITS_FOR_RNR_TIMER;
    set_timer(qp, SENDER_TIMER_RNR, timing_rnr(timer_code));
}

static void not_acknowledged(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (sender->timer_moved) {
        start_ack_timer(qp);
        return;
    }
    sender->timeout_left -= sender->timer_delay;
    if (sender->timeout_left)
        probe(qp);
    else
        expired(qp);
}

void sender_timer(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    enum sender_timer timer = sender->timer_armed;

    sender->timer_armed = SENDER_TIMER_NONE;
    switch (timer) {
    case SENDER_TIMER_NONE:
        return; /* expired while it was being cancelled */
    case SENDER_TIMER_ACK:
        if (has_outstanding(sender)) {
            not_acknowledged(qp);
            return;
        }
        sender->timeout_left = 0;
        if (sender->waiting == SENDER_WAITS_FOR_RETRY) {
            sender->waiting = SENDER_RUNS;
            sender_run(qp);
        }
        return;
    case SENDER_TIMER_RNR:
        sender->waiting = SENDER_RUNS;
        sender_run(qp);
        return;
    }
}

/* UC, the peer is gone: no acknowledgement will end the exposure of the buffers, so they are revoked. */
static void give_up_exposed(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender_revoke(qp);
    sender->unacked_psn = sender->next_psn;
    if (sender->next != sender->begun)
        sender->unacked_psn = psn_add(send_wqe_at(qp, sender->next)->first_psn, sender->next_offset);
    sender_complete_unacknowledged(qp);
}

void sender_psn_mismatch(struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    if (qp->link.reliable && has_outstanding(sender) && sender->waiting != SENDER_WAITS_FOR_RNR_TIMER)
        sender_arm(qp);
}

void sender_peer_silent(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    switch ((enum ibv_qp_type)qp->record->type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
        break;
    case IBV_QPT_UC:
        give_up_exposed(qp);
        return;
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
    case IBV_QPT_XRC_RECV:
    case IBV_QPT_DRIVER:
        return;
    }
    if (!has_outstanding(sender) || sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return;
    sender_arm(qp);
    sender->waiting = SENDER_WAITS_FOR_RETRY;
}
