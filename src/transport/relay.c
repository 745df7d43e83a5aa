/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of an XRC_RECV QP for an SRQ that another process has (verbs.md §6.4). This side stays the
 * responder that the requester knows: it checks the PSNs and says what is acknowledged. The other process
 * executes, as a responder of its own that this one is the only requester of, over a link that loses nothing.
 *
 * Execution is in order of PSNs wherever it happens: a request for another process waits until those before
 * it are done. Nothing is kept meanwhile; what cannot go is dropped, and asked for again (NAK sequence error)
 * when it can. Requests from `done` on are on their way, or dropped; expected_psn is what comes next from the
 * requester. */
#include <errno.h>

#include "transport/machine.h"

/* Nothing is under way that a request for another place could overtake. */
static bool is_idle(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    if (qp->relay.away)
        return psn_equal(qp->relay.done, responder->expected_psn);
    return responder->resource_next == responder->resource_tail && !responder->owed_syndrome;
}

/* Nor is there an answer to come of a duplicate. That one may be from long ago and get none, so what is
 * waiting for it and comes once more does not wait again. */
static bool may_move(const struct transport_qp *qp)
{
    return is_idle(qp) && (!qp->relay.visits || qp->relay.impatient);
}

void relay_postpone(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;

    responder->drops++;
    responder->nak_sent = NAK_OF_PACKET;
    qp->relay.due = true;
    qp->relay.waits = false;
    qp->relay.impatient = qp->relay.visits;
}

static void request_again(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;

    qp->relay.due = qp->relay.waits = false;
    responder->nak_sent = NAK_OF_PACKET;
    responder->owed_syndrome = SYNDROME_NAK << 5 | NAK_SEQUENCE;
}

void relay_settle(struct transport_qp *qp)
{
    const struct relay *relay = &qp->relay;

    if (relay->due && !relay->waits && !qp->record->responder.fails && is_idle(qp) && !relay->visits)
        request_again(qp);
}

void relay_again(struct transport_qp *qp)
{
    qp->relay.waits = false;
    relay_settle(qp);
}

bool relay_lacks(struct transport_qp *qp)
{
    if (!qp->relay.away || may_move(qp))
        return false;
    relay_postpone(qp);
    return true;
}

/* --- requests ------------------------------------------------------------------------------------- */

static void invalid(struct transport_qp *qp, psn_t psn)
{
    responder_violation(qp, psn, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
}

/* PSNs of a request; 0: it contradicts itself. */
static uint32_t psns_of(const struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    /* Memory of the requester's that only this process could read: an honest one does not offer it. */
    if (packet->flags & PACKET_BY_REFERENCE)
        return 0;
    if (properties & OPCODE_READ)
        return packet->dma_length <= LIMIT_MESSAGE ? packets_of(packet->dma_length, qp->link.mtu) : 0;
    if ((properties & (OPCODE_SEND | OPCODE_WRITE)) && responder_is_cut_wrong(qp, packet, properties))
        return 0;
    return 1;
}

/* It is executed here. Returns false, or true: not yet. */
static bool come_back(struct transport_qp *qp, bool duplicate)
{
    if (qp->relay.away && !may_move(qp)) {
        relay_postpone(qp);
        return true;
    }
    if (!duplicate)
        qp->relay.left = false;
    qp->relay.away = qp->relay.visits = false;
    return false;
}

/* A packet in the middle of a message: is that under way in another process? */
static bool goes_on(const struct transport_qp *qp, const struct packet *packet)
{
    const struct relay *relay = &qp->relay;

    return (relay->away || relay->left) && (relay->back || packet->srqn == relay->srqn);
}

/* In its turn, or (question) a duplicate: that may be for another process than a message that is under way,
 * which goes on afterwards. Returns false: it is for an SRQ of this process, or of nobody. */
static bool relay(struct transport_qp *qp, const struct packet *packet, uint32_t properties, bool duplicate)
{
    struct responder *responder = &qp->record->responder;
    struct packet copy;
    uint32_t psns;
    bool moves;
    int error;

    if (!qp->relay.possible)
        return false;
    if (!duplicate && responder->message != MESSAGE_NONE)
        return come_back(qp, false); /* a message is under way here */
    if (!(properties & (OPCODE_FIRST | OPCODE_ONLY)) && !goes_on(qp, packet)) {
        if (!qp->relay.away)
            return false;
        invalid(qp, packet->psn);
        return true;
    }
    psns = psns_of(qp, packet, properties);
    copy = *packet;
    copy.flags = (packet->flags & PACKET_SOLICITED) | PACKET_ACK_REQUEST; /* we want to know of each */
    copy.syndrome = 0;
    moves = may_move(qp);
    if (duplicate)
        qp->relay.left = qp->relay.away || qp->relay.left;
    error = psns ? qp->ports->xrc->hand_over(qp, &copy, moves) : -EINVAL;
    switch (error) {
    case 0:
        break;
    case -ENOENT:
        return come_back(qp, duplicate);
    case -EINVAL:
        invalid(qp, packet->psn);
        return true;
    default:
        relay_postpone(qp);
        qp->relay.waits = moves; /* whoever has said no will say when */
        qp->relay.visits = qp->relay.visits && qp->relay.away;
        return true;
    }
    if (duplicate) {
        qp->relay.visits = true;
        qp->relay.impatient = false;
        qp->relay.visit_psn = psn_add(packet->psn, psns - 1);
    }
    if (!qp->relay.away)
        qp->relay.done = responder->expected_psn;
    qp->relay.away = true;
    if (duplicate)
        return true;
    qp->relay.left = qp->relay.back = qp->relay.visits = qp->relay.waits = false;
    qp->relay.srqn = packet->srqn;
    if (packet->flags & PACKET_ACK_REQUEST) {
        qp->relay.ack_due = true;
        qp->relay.ack_psn = packet->psn;
    }
    responder_accepted(responder, psns);
    return true;
}

bool relay_request(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    return relay(qp, packet, properties, false);
}

bool relay_duplicate(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    return (properties & (OPCODE_READ | OPCODE_ATOMIC | OPCODE_FLUSH)) && relay(qp, packet, properties, true);
}

/* --- answers -------------------------------------------------------------------------------------- */

/* Everything from here on has to come again. */
static void go_back(struct transport_qp *qp, psn_t psn)
{
    qp->record->responder.expected_psn = qp->relay.done = psn;
    qp->relay.due = false;
    qp->relay.back = true;
}

static void take_nak(struct transport_qp *qp, const struct packet *packet)
{
    struct responder *responder = &qp->record->responder;
    uint8_t code = SYNDROME_VALUE(packet->syndrome);

    if (SYNDROME_KIND(packet->syndrome) == SYNDROME_RNR || code == NAK_SEQUENCE) {
        go_back(qp, packet->psn);
        responder->nak_sent = NAK_OF_PACKET;
        responder->owed_syndrome = packet->syndrome;
        return;
    }
    if (code != NAK_REMOTE_OPERATION)
        qp->ports->raise_event(qp,
                               code == NAK_REMOTE_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    responder_fail(qp, packet->psn, code);
}

/* A packet of an answer goes on to the requester. What finds no room there is lost, and asked for again: the
 * answer to a READ may be longer than what anybody wants to keep. */
static void pass_on(struct transport_qp *qp, const struct packet *packet)
{
    struct iovec payload = {.iov_base = (void *)(uintptr_t)packet->payload,
                            .iov_len = packet->payload_length};
    struct packet out = *packet;
    int error;

    out.flags = 0;
    out.dest_qpn = qp->record->attributes.dest_qpn;
    out.src_qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed);
    out.dest_ifindex = qp->record->attributes.path.destination_ifindex;
    error = qp->ports->send(qp, &out, &payload, packet->payload_length ? 1 : 0, NULL);
    if (error == -EAGAIN) {
        bool duplicate = psn_diff(packet->psn, qp->relay.done) < 0;

        /* Of a duplicate, what is lost is asked for by the requester's timer, where that runs; but not what
         * is behind it. */
        go_back(qp, duplicate ? qp->relay.done : packet->psn);
        if (duplicate && qp->link.reliable) {
            qp->relay.lost = true;
            qp->relay.lost_psn = packet->psn;
        }
        qp->relay.epoch++; /* what else is on its way of this answer, and of those behind it, is void */
        qp->relay.resumes = true;
        qp->relay.visits = false;
        request_again(qp);
        return;
    }
    if (qp->relay.visits && psn_diff(packet->psn, qp->relay.visit_psn) >= 0)
        qp->relay.visits = false;
    if (psn_diff(packet->psn, qp->relay.done) >= 0)
        qp->relay.done = psn_add(packet->psn, 1);
}

/* Everything up to there has been executed. After going back that may be more than has come again. */
static void take_ack(struct transport_qp *qp, psn_t psn)
{
    struct responder *responder = &qp->record->responder;

    if (psn_diff(psn, responder->expected_psn) >= 0)
        psn = psn_add(responder->expected_psn, PSN_MASK);
    if (psn_diff(psn, qp->relay.done) >= 0)
        qp->relay.done = psn_add(psn, 1);
    if (qp->relay.ack_due && psn_diff(psn, qp->relay.ack_psn) >= 0) {
        responder->ack_owed = true;
        qp->relay.ack_due = false;
    }
}

void relay_response(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    struct responder *responder = &qp->record->responder;
    bool responds = properties & (OPCODE_READ | OPCODE_HAS_ATOMIC_ACK);

    if (!qp->relay.away || responder->fails)
        return;
    /* Another process's word: an answer that the requester could not be given is none. */
    if ((packet->flags & PACKET_BY_REFERENCE) || packet->payload_length > qp->link.mtu)
        return;
    if (packet->flags & PACKET_DROPPED) {
        if (packet->syndrome == DROPPED_DUPLICATE)
            responder_send_drop_notice(qp, packet->psn, DROPPED_DUPLICATE);
        else /* there is nobody any more */
            invalid(qp, qp->relay.done);
        return;
    }
    if (!(properties & (OPCODE_ACK | OPCODE_READ | OPCODE_ATOMIC)))
        return;
    if (!responds && SYNDROME_KIND(packet->syndrome) == SYNDROME_ACK) {
        responder->msn = packet->msn;
        take_ack(qp, packet->psn);
    } else if (psn_diff(packet->psn, responder->expected_psn) >= 0) {
        return;
    } else {
        responder->msn = packet->msn;
        if (responds)
            pass_on(qp, packet);
        else if (psn_diff(packet->psn, qp->relay.done) >= 0)
            take_nak(qp, packet);
    }
    relay_settle(qp);
}

void relay_lost(struct transport_qp *qp)
{
    if (qp->relay.away && !is_idle(qp)) {
        if (!qp->record->responder.fails)
            invalid(qp, qp->relay.done);
        return;
    }
    qp->relay.away = qp->relay.visits = false;
    relay_again(qp);
}

/* The QP begins anew, or ends: who executed for it hears of another life. */
void relay_reset(struct transport_qp *qp)
{
    struct relay *relay = &qp->relay;

    *relay = (struct relay){
        .possible = relay->possible, .used = relay->used, .life = relay->life + 1, .epoch = relay->epoch + 1};
}
