/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Acknowledgements and responses -> completions of sends. They come in PSN order, and each acknowledges all PSNs
 * before it. A READ or atomic is completed by its own response only (IBA 9.7.5): an acknowledgement beyond one
 * without response means that the response was lost. */
#include <errno.h>
#include <string.h>

#include "transport/machine.h"
#include "transport/ordered_copy.h"

void sender_fail_oldest(struct transport_qp *qp, enum verdict verdict)
{
    struct sender *sender = &qp->record->sender;
    uint32_t counter;

    sender_revoke(qp);
    counter = sender->completed++;
    fault_send(qp, send_wqe_at(qp, counter), verdict);
    complete_request(qp, send_wqe_at(qp, counter), counter, verdict, 0);
    qp->ports->sender_failed(qp);
}

/* While the sender retransmits, an acknowledgement of the first transmission has come: skips what it covers. */
static void skip_acknowledged(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if ((int32_t)(sender->next - sender->completed) < 0) {
        sender->next = sender->completed;
        sender->next_offset = 0;
    }
    if (sender->next == sender->completed && sender->next != sender->begun) {
        uint32_t acknowledged = psn_distance(send_wqe_at(qp, sender->next)->first_psn, sender->unacked_psn);

        sender->next_offset = max_of(sender->next_offset, acknowledged);
    }
}

static void rd_atomic_done(struct sender *sender)
{
    if (sender->rd_atomic_packets)
        sender->rd_atomic_packets--;
}

/* The requests from this counter on have succeeded. Together, because a lock of the CQ for each takes longer than the
 * rest. Of a tag matching QP each has been completed: some are the adapter's own. */
static inline void complete_until_now(struct transport_qp *qp, uint32_t from)
{
    uint32_t count = qp->record->sender.completed - from;

    if (count && likely(!qp->tag_matching))
        qp->ports->complete_sends(qp, from, count);
}

bool sender_advance(struct transport_qp *qp, psn_t limit)
{
    struct sender *sender = &qp->record->sender;
    uint32_t completed = sender->completed;
    psn_t before = sender->unacked_psn;

    while (sender->completed != sender->begun) {
        struct send_wqe *wqe = send_wqe_at(qp, sender->completed);

        if (unlikely(wqe->verdict != VERDICT_OK)) {
            complete_until_now(qp, completed);
            sender_fail_oldest(qp, wqe->verdict);
            return false;
        }
        if (likely(wqe->packets)) {
            psn_t end = psn_add(wqe->first_psn, wqe->packets);
            bool rd_atomic = awaits_response(wqe);

            /* Only its response moves unacked_psn past a READ or atomic. */
            if (psn_diff(rd_atomic ? sender->unacked_psn : limit, end) < 0) {
                if (!rd_atomic && psn_diff(limit, sender->unacked_psn) > 0)
                    sender->unacked_psn = limit;
                break;
            }
            sender->unacked_psn = end;
            if (rd_atomic) {
                sender->rd_atomic_wqes--;
                sender->references_requested -= goes_by_reference(wqe);
                sender->read_offset = 0;
                rd_atomic_done(sender);
            }
        }
        sender->completed++;
        if (unlikely(qp->tag_matching))
            complete_request(qp, wqe, sender->completed - 1, VERDICT_OK, wqe->length);
    }
    complete_until_now(qp, completed);
    skip_acknowledged(qp);
    if (!psn_equal(before, sender->unacked_psn))
        sender_progressed(qp, psn_distance(before, sender->unacked_psn));
    if (unlikely(qp_state(qp) == IBV_QPS_SQD) && sender->completed != completed &&
        sender->completed == sender->begun)
        qp->ports->drained(qp);
    return true;
}

/* An event may have ended what WQE `next` waited for: continues to transmit. */
static void go_on(struct transport_qp *qp)
{
    switch ((enum sender_wait)qp->record->sender.waiting) {
    case SENDER_WAITS_FOR_FENCE:
    case SENDER_WAITS_FOR_READ_DEPTH:
    case SENDER_WAITS_FOR_WINDOW:
        sender_run(qp);
        return;
    case SENDER_RUNS: /* the wait for a retry may just have ended */
        if (sender_wants_to_run(qp))
            sender_run(qp);
        return;
    case SENDER_WAITS_FOR_LINK:
    case SENDER_WAITS_FOR_MAPPING:
    case SENDER_WAITS_AFTER_LOSSES:
    case SENDER_WAITS_FOR_RNR_TIMER:
    case SENDER_WAITS_FOR_RETRY:
    case SENDER_WAITS_IN_SQD:
    case SENDER_WAITS_TO_FAIL:
        return;
    }
}

/* Is there an unacknowledged packet with this PSN in flight? If not, the acknowledgement is a ghost (IBA 9.7.5.1.1):
 * an old one, of an earlier connection with these numbers, or forged. */
static bool is_outstanding(const struct transport_qp *qp, psn_t psn)
{
    const struct sender *sender = &qp->record->sender;
    psn_t end = likely(qp->link.reliable) ? sender->next_psn : sender->sent_psn;

    return psn_distance(sender->unacked_psn, psn) < psn_distance(sender->unacked_psn, end);
}

/* The responder has executed requests behind a READ or atomic whose response never came. */
static bool response_is_missing(const struct sender *sender, psn_t acknowledged)
{
    return psn_diff(acknowledged, sender->unacked_psn) > 0;
}

/* The packet `seen` came instead of the missing response. Further packets behind the same gap cause no further retry;
 * but if the packet right behind the missing one comes twice, both were repeated and the response was lost again. */
static void retry_missing_response(struct transport_qp *qp, psn_t seen)
{
    struct sender *sender = &qp->record->sender;

    if (sender->read_gap_seen && (qp->link.reliable || !psn_equal(seen, psn_add(sender->unacked_psn, 1))))
        return;
    sender->read_gap_seen = true;
    sender_retry(qp);
}

static void acknowledged(struct transport_qp *qp, psn_t psn)
{
    struct sender *sender = &qp->record->sender;
    psn_t limit = psn_add(psn, 1);

    if (unlikely(!is_outstanding(qp, psn))) {
        /* A request that arrived twice is acknowledged twice. */
        if (!psn_equal(limit, sender->unacked_psn))
            sender_psn_mismatch(qp);
        return;
    }
    if (!sender_advance(qp, limit))
        return;
    if (unlikely(response_is_missing(sender, limit)))
        retry_missing_response(qp, psn);
    else
        go_on(qp);
}

/* Not a packet of IBA: the peer will not read the exposed buffers up to this PSN any more. */
void sender_exposure_ended(struct transport_qp *qp, psn_t psn)
{
    struct sender *sender = &qp->record->sender;

    if (!is_outstanding(qp, psn))
        return;
    sender->unacked_psn = psn_add(psn, 1);
    sender_complete_unacknowledged(qp);
}

void sender_piggybacked(struct transport_qp *qp, psn_t psn)
{
    if (likely(is_reliable(qp->record)))
        acknowledged(qp, psn);
    else
        sender_exposure_ended(qp, psn);
}

/* A peer that cannot read memory which a packet by reference names sends NAK_INVALID_RD, a code that RC has no other
 * use for: the fault is on this side. */
static enum verdict verdict_of(const struct send_wqe *wqe, uint8_t code)
{
    if (code == NAK_INVALID_RD && goes_by_reference(wqe) && !awaits_response(wqe))
        return VERDICT_LOCAL_PROTECTION;
    return verdict_of_nak(code);
}

/* After such a NAK the responder is in error and responds to nothing. */
static bool is_fatal_nak(const struct packet *packet)
{
    uint8_t code = SYNDROME_VALUE(packet->syndrome);

    return SYNDROME_KIND(packet->syndrome) == SYNDROME_NAK && code != NAK_SEQUENCE && code != NAK_INVALID_RD;
}

static void negatively_acknowledged(struct transport_qp *qp, const struct packet *packet)
{
    struct sender *sender = &qp->record->sender;
    uint8_t code = SYNDROME_VALUE(packet->syndrome);

    if (unlikely(!is_outstanding(qp, packet->psn))) {
        /* The responder expects a PSN that was not sent: counted, because it explains its silence. */
        sender->sequence_naks += SYNDROME_KIND(packet->syndrome) == SYNDROME_NAK && code == NAK_SEQUENCE;
        sender_psn_mismatch(qp);
        return;
    }
    if (!sender_advance(qp, packet->psn))
        return;
    /* Link that loses nothing: the response came and was void (place_response()). After a fatal NAK none follows. */
    if (response_is_missing(sender, packet->psn) && !(qp->link.reliable && is_fatal_nak(packet))) {
        retry_missing_response(qp, packet->psn);
        return;
    }
    if (SYNDROME_KIND(packet->syndrome) == SYNDROME_RNR) {
        sender->rnr_naks++;
        sender_receiver_not_ready(qp, code);
    } else if (code == NAK_SEQUENCE) {
        sender->sequence_naks++;
        /* A link that loses nothing has gaps only where references were revoked, or after a drop notice has armed the
         * ACK timer, which counts the retry. */
        if (qp->link.reliable)
            sender_repeat(qp);
        else
            sender_retry(qp);
    } else {
        sender_fail_oldest(qp, verdict_of(send_wqe_at(qp, sender->completed), code));
    }
}

/* The responder may repeat its last acknowledgement to grant credits (IBA 9.7.7.2.2). */
static void take_credits(struct transport_qp *qp, const struct packet *packet)
{
    bool repeated = psn_equal(psn_add(packet->psn, 1), qp->record->sender.unacked_psn);

    if (!repeated && !is_outstanding(qp, packet->psn))
        return;
    window_credits(qp, packet);
    if (repeated)
        go_on(qp);
}

static void acknowledge(struct transport_qp *qp, const struct packet *packet)
{
    if (qp->record->type == IBV_QPT_UC) {
        sender_exposure_ended(qp, packet->psn);
        return;
    }
    switch (SYNDROME_KIND(packet->syndrome)) {
    case SYNDROME_ACK:
        if (unlikely(!qp->link.reliable))
            take_credits(qp, packet);
        acknowledged(qp, packet->psn);
        return;
    case SYNDROME_RNR:
    case SYNDROME_NAK:
        negatively_acknowledged(qp, packet);
        return;
    default:
        return; /* reserved */
    }
}

/* The WQE that the response belongs to: the oldest one, with everything before acknowledged by the response. NULL:
 * the response does not fit, and is dealt with. */
static struct send_wqe *request_of_response(struct transport_qp *qp, psn_t psn)
{
    struct sender *sender = &qp->record->sender;
    struct send_wqe *wqe;

    if (!is_outstanding(qp, psn) || !sender_advance(qp, psn))
        return NULL;
    if (response_is_missing(sender, psn)) {
        retry_missing_response(qp, psn); /* IBA 9.7.5.2.8: implied NAK */
        return NULL;
    }
    wqe = send_wqe_at(qp, sender->completed);
    if (!awaits_response(wqe)) {
        sender_fail_oldest(qp, VERDICT_BAD_RESPONSE);
        return NULL;
    }
    return wqe;
}

static void finish_response(struct transport_qp *qp, psn_t psn)
{
    struct sender *sender = &qp->record->sender;
    psn_t before = sender->unacked_psn;

    sender->unacked_psn = psn_add(psn, 1);
    if (!sender_advance(qp, sender->unacked_psn))
        return;
    if (!psn_equal(before, sender->unacked_psn))
        sender_progressed(qp, 1);
    go_on(qp);
}

/* Is this the packet that has to come at this place of the response? The response to a request for the rest of a READ
 * begins with a "first", and that for a part of a READ ends with a "last". */
static bool response_fits(const struct transport_qp *qp, const struct send_wqe *wqe,
                          const struct packet *packet, uint32_t properties, uint32_t index)
{
    uint32_t mtu = packet_mtu(qp, wqe);
    bool last = index + 1 == wqe->packets;

    if (((properties & OPCODE_HAS_AETH) && SYNDROME_KIND(packet->syndrome) != SYNDROME_ACK))
        return false;
    if (wqe->opcode == WR_FLUSH || wqe->opcode == IBV_WR_ATOMIC_WRITE)
        return (properties & OPCODE_ONLY) && !packet->payload_length &&
               !(packet->flags & PACKET_BY_REFERENCE);
    if (wqe->opcode != IBV_WR_RDMA_READ)
        return false;
    if (goes_by_reference(wqe) != !!(packet->flags & PACKET_BY_REFERENCE) ||
        (goes_by_reference(wqe) && gather_referenced(packet) != packet->payload_length))
        return false;
    if (!last)
        return ((properties & (OPCODE_FIRST | OPCODE_MIDDLE)) || wqe->read_part) &&
               packet->payload_length == mtu;
    return (properties & (OPCODE_LAST | OPCODE_ONLY)) && packet->payload_length == wqe->length - index * mtu;
}

/* Copies the payload of a response into the program's memory. By reference it is fetched now, under the QP's lock
 * and with keys that were just checked: after the QP is in ERR or the region is deregistered, nothing is written any
 * more. false: not copied; the consequences are dealt with. */
static bool place_response(struct transport_qp *qp, const struct packet *packet, const struct gather *gather)
{
    int error;

    if (!(packet->flags & PACKET_BY_REFERENCE)) {
        gather_place(gather, packet->payload);
        return true;
    }
    error = qp->ports->reference->pull(qp, packet, gather->vector, gather->count);
    if (likely(!error))
        return true;
    if (error == -ESTALE) {
        /* A QP of the peer process revoked its references, which all QPs on the link share. The request is repeated;
         * if it was this QP's peer, it gets no response. Responses behind this one are repeated, too. */
        qp->record->sender.read_gap_seen = true;
        sender_repeat(qp);
        return false;
    }
    /* -ESRCH: the peer is dead and the response lost; sender_peer_silent() follows when the link goes down. Otherwise
     * the peer has sent a response with memory that cannot be read, its own fault. */
    if (error != -ESRCH)
        sender_fail_oldest(qp, VERDICT_REMOTE_OPERATION);
    return false;
}

static void read_response(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    struct sender *sender = &qp->record->sender;
    struct send_wqe *wqe = request_of_response(qp, packet->psn);
    struct gather gather;
    enum verdict verdict;
    uint32_t index, offset;

    if (!wqe)
        return;
    index = psn_distance(wqe->first_psn, packet->psn);
    if (!response_fits(qp, wqe, packet, properties, index)) {
        sender_fail_oldest(qp, VERDICT_BAD_RESPONSE);
        return;
    }
    offset = index * packet_mtu(qp, wqe);
    if (packet->payload_length) {
        verdict = gather_range(qp, send_wqe_body(wqe, IBV_QPT_RC), wqe->num_sge, qp->record->pd, offset,
                               packet->payload_length, true, &gather);
        if (verdict != VERDICT_OK) {
            sender_fail_oldest(qp, verdict);
            return;
        }
        if (!place_response(qp, packet, &gather))
            return;
    }
    sender->read_offset = offset + packet->payload_length;
    if (wqe->read_part && index + 1 != wqe->packets && (index + 1) % wqe->read_part == 0)
        rd_atomic_done(sender);
    if (unlikely(!qp->link.reliable) && (properties & OPCODE_HAS_AETH))
        window_credits(qp, packet);
    finish_response(qp, packet->psn);
}

static void atomic_acknowledge(struct transport_qp *qp, const struct packet *packet)
{
    struct send_wqe *wqe = request_of_response(qp, packet->psn);
    struct gather gather;
    enum verdict verdict;

    if (!wqe)
        return;
    if (!wqe_is_atomic(wqe) || SYNDROME_KIND(packet->syndrome) != SYNDROME_ACK) {
        sender_fail_oldest(qp, VERDICT_BAD_RESPONSE);
        return;
    }
    verdict = gather_range(qp, send_wqe_body(wqe, IBV_QPT_RC), wqe->num_sge, qp->record->pd, 0,
                           sizeof(uint64_t), true, &gather);
    if (verdict != VERDICT_OK) {
        sender_fail_oldest(qp, verdict);
        return;
    }
    gather_place(&gather, &packet->original);
    if (unlikely(!qp->link.reliable))
        window_credits(qp, packet);
    finish_response(qp, packet->psn);
}

void sender_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    if (properties & OPCODE_READ)
        read_response(qp, packet, properties);
    else if (properties & OPCODE_ATOMIC)
        atomic_acknowledge(qp, packet);
    else
        acknowledge(qp, packet);
}
