/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The congestion window of a QP, on links that may lose packets. IBA has credits for receives and retransmission, but
 * no congestion control; on Ethernet and behind a UDP socket, retransmission at full speed keeps a queue that
 * overflowed overflowing. So the number of PSNs between the oldest unacknowledged one and the next is bounded by a
 * window. It grows while it is what the QP waits for, and is halved when packets were lost or met congestion (RFC
 * 5681 in outline, without duplicate acknowledgements: losses are reported by NAK).
 *
 * READ responses take PSNs of the requester and count in its window: a READ is requested in parts. To the responder
 * each part is a READ of its own, and may be repeated from any packet to its end (IBA 9.4.4); no request spans two
 * parts. */
#include "transport/machine.h"

#define WINDOW_INITIAL 16u
#define WINDOW_LEAST   1u
/* A window below WINDOW_SMALL grows by one in SMALL_GROWTH round trips, not in each, while queues make these much
 * longer than the shortest one. Where many QPs share a queue that has room for a few packets of each, every growth by
 * one overflows it, and what is behind the lost packet is sent again (go-back-N). All of them grow alike, or those
 * with large windows would keep them. Losses without a queue are not by overflow. */
#define WINDOW_SMALL 8u
#define SMALL_GROWTH 3u
/* Requests for parts of READs that fill the window: the others are on their way or wait at the responder while one is
 * responded to. More, of smaller parts, would cut the responses into more datagrams: the first and the last packet of a
 * response are four bytes longer than those between them, and UDP_SEGMENT wants equal ones. */
#define READ_PARTS_WANTED 4u
/* Parts are not smaller than this because of READ_PARTS_WANTED: a READ keeps the size of its parts, and the window may
 * grow after its beginning. */
#define READ_PART_USUAL 8u

static uint32_t power_of_two_below(uint32_t n)
{
    return 1u << (31 - __builtin_clz(n));
}

static uint16_t most(const struct transport_qp *qp)
{
    return qp->link.window ? (uint16_t)max_of(qp->link.window, WINDOW_LEAST) : WINDOW_DEFAULT;
}

static uint32_t window_of(const struct sender *sender)
{
    return sender->probing && sender->probing < sender->window ? sender->probing : sender->window;
}

/* --- its size ------------------------------------------------------------------------------------- */

void window_start(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender->sent_psn = sender->unacked_psn;
    sender->repeated_psn = psn_add(sender->unacked_psn, PSN_MASK); /* nothing was repeated */
    sender->window = (uint16_t)min_of(most(qp), WINDOW_INITIAL);
    sender->window_threshold = most(qp);
    sender->window_acked = 0;
    sender->rd_atomic_packets = 0;
    sender->recovering = sender->limited = sender->probe_runs = false;
    sender->probing = 0;
    sender->ssn = psn_make(0);
    qp->rtt_least = 0;
}

/* Acknowledged packets after which the window grows by one. */
static uint32_t growth_after(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;
    bool queued = sender->rtt - sender->rtt / 8 > qp->rtt_least;

    return queued && sender->window < WINDOW_SMALL ? SMALL_GROWTH * sender->window : sender->window;
}

void window_acknowledged(struct transport_qp *qp, uint32_t psns)
{
    struct sender *sender = &qp->record->sender;

    if (sender->recovering && psn_diff(sender->unacked_psn, sender->recovery_psn) >= 0)
        sender->recovering = false;
    if (sender->probing) {
        sender->probing = 0;
        return;
    }
    /* A window that was not used up tells nothing about the capacity of the path. */
    if (sender->waiting != SENDER_WAITS_FOR_WINDOW && sender->waiting != SENDER_WAITS_FOR_READ_DEPTH)
        return;
    if (sender->window < sender->window_threshold) {
        sender->window = (uint16_t)min_of(sender->window + psns, (uint32_t)sender->window_threshold);
    } else if (sender->window < most(qp)) {
        sender->window_acked = (uint16_t)(sender->window_acked + min_of(psns, (uint32_t)sender->window));
        if (sender->window_acked >= growth_after(qp)) {
            sender->window_acked = 0;
            sender->window++;
        }
    }
}

static void halve(struct sender *sender)
{
    /* Once for all packets that are in flight. */
    if (sender->recovering)
        return;
    sender->recovering = true;
    sender->recovery_psn = sender->sent_psn;
    sender->window = sender->window_threshold = (uint16_t)max_of(sender->window / 2, WINDOW_LEAST);
    sender->window_acked = 0;
}

void window_lost(struct transport_qp *qp)
{
    halve(&qp->record->sender);
}

void transport_congested(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender->congestions++;
    if (!qp->link.reliable && is_reliable(qp->record))
        halve(sender);
}

void transport_response_congested(struct transport_qp *qp)
{
    if (!qp->link.reliable && is_reliable(qp->record))
        halve(&qp->record->sender);
}

void window_expired(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (!sender->timeouts)
        sender->window_threshold = (uint16_t)max_of(sender->window / 2, WINDOW_LEAST);
    sender->window = WINDOW_LEAST;
    sender->window_acked = 0;
    sender->recovering = true;
    sender->recovery_psn = sender->sent_psn;
}

/* --- credits -------------------------------------------------------------------------------------- */

/* AETH (IBA 9.7.7.2, table 46): a count of receives in five bits, growing by halves of powers of two. */
#define CREDITS_UNKNOWN 0x1fu

static uint32_t credits_of(uint32_t code)
{
    if (code < 2)
        return code;
    return (code & 1 ? 3u : 2u) << (code / 2 - 1);
}

void window_credits(struct transport_qp *qp, const struct packet *packet)
{
    struct sender *sender = &qp->record->sender;
    uint32_t code = SYNDROME_VALUE(packet->syndrome);

    sender->limited = code != CREDITS_UNKNOWN;
    sender->lsn = psn_make(packet->msn + credits_of(code));
}

/* Messages of a WQE as the responder counts them: each part of a READ is one. */
static uint32_t messages_of(const struct send_wqe *wqe)
{
    return wqe->read_part ? (wqe->packets + wqe->read_part - 1) / wqe->read_part : wqe->packets != 0;
}

/* SSN of WQE `next`: counted back from the last WQE begun, since it is rarely needed. */
static psn_t ssn_of_next(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t behind = 0;

    for (uint32_t i = sender->begun - 1; i != sender->next; i--)
        behind += messages_of(send_wqe_at(qp, i));
    return psn_make(sender->ssn.value - behind);
}

/* Without credit, one packet of a message that takes a receive may be sent, and the next one when that is
 * acknowledged (IBA 9.7.7.2): the acknowledgement may bring credits. */
static bool lacks_credit(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;

    if (!sender->limited || sender->next_offset)
        return false;
    if (wqe->opcode != IBV_WR_SEND && wqe->opcode != IBV_WR_SEND_WITH_IMM &&
        wqe->opcode != IBV_WR_SEND_WITH_INV && wqe->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        return false;
    return psn_diff(ssn_of_next(qp), sender->lsn) > 0;
}

/* --- what may be sent ----------------------------------------------------------------------------- */

void window_number(struct transport_qp *qp, struct send_wqe *wqe)
{
    struct sender *sender = &qp->record->sender;

    if (wqe->opcode == IBV_WR_RDMA_READ) {
        uint32_t requests = min_of((uint32_t)qp->record->attributes.max_rd_atomic, READ_PARTS_WANTED);
        uint32_t window = sender->window;
        uint32_t ask = max_of(window / requests, min_of(window, READ_PART_USUAL));

        wqe->read_part = (uint16_t)power_of_two_below(min_of(max_of(ask, READ_PART_MIN), READ_PART_MAX));
    }
    sender->ssn = psn_add(sender->ssn, messages_of(wqe));
}

static psn_t position(const struct sender *sender, const struct send_wqe *wqe)
{
    return psn_add(wqe->first_psn, sender->next_offset);
}

static uint32_t ahead(const struct sender *sender, const struct send_wqe *wqe)
{
    return psn_distance(sender->unacked_psn, position(sender, wqe));
}

/* Was this packet never sent, or this part of a READ never requested? */
static bool is_fresh(const struct sender *sender, const struct send_wqe *wqe)
{
    return psn_diff(position(sender, wqe), sender->sent_psn) >= 0;
}

uint32_t window_read_part(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t at = sender->next_offset;

    if (!wqe->read_part)
        return wqe->packets - at;
    return min_of(wqe->packets, (at / wqe->read_part + 1) * wqe->read_part) - at;
}

enum sender_wait window_admits(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t used = ahead(sender, wqe), packets = 1;

    if (awaits_response(wqe)) {
        if (is_fresh(sender, wqe) && sender->rd_atomic_packets >= qp->record->attributes.max_rd_atomic &&
            sender->rd_atomic_packets)
            return SENDER_WAITS_FOR_READ_DEPTH;
        packets = window_read_part(qp, wqe);
    }
    if (!used)
        return SENDER_RUNS;
    if (used + packets > window_of(sender) || lacks_credit(qp, wqe))
        return SENDER_WAITS_FOR_WINDOW;
    return SENDER_RUNS;
}

uint32_t window_room(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t used = psn_distance(sender->unacked_psn, sender->sent_psn), window = window_of(sender);
    uint32_t room = window > used ? window - used : 0;

    if (sender->limited) {
        bool begun = sender->begun != sender->next;
        int32_t credits = psn_diff(sender->lsn, begun ? psn_make(sender->ssn.value - 1) : sender->ssn);

        room = min_of(room, (uint32_t)max_of(credits, 0));
    }
    return used ? room : max_of(room, 1u);
}

/* Several times per window, so that packets follow without a pause, and so often that a window which has just been
 * halved is not full of packets without AckReq. */
bool window_wants_ack(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t window = window_of(sender), every = window < 8 ? 1 : power_of_two_below(window / 4);

    return !((position(sender, wqe).value + 1) & (every - 1));
}

void window_sent(struct transport_qp *qp, const struct send_wqe *wqe, uint32_t packets, bool acknowledged)
{
    struct sender *sender = &qp->record->sender;

    if (!is_fresh(sender, wqe))
        return;
    if (acknowledged)
        sender_measure(qp, position(sender, wqe));
    sender->sent_psn = psn_add(position(sender, wqe), packets);
    sender->rd_atomic_packets = (uint16_t)(sender->rd_atomic_packets + awaits_response(wqe));
}
