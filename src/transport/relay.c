/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of an XRC_RECV QP for an SRQ of another process (verbs.md §6.4). This process stays the responder that the
 * requester knows: it checks the PSNs and sends the acknowledgements. The other process executes, as the responder of
 * a connection whose only requester is this process, over a link that loses nothing.
 *
 * Requests are executed in the order of their PSNs, wherever that happens: a request for another process waits until
 * all before it are executed. Nothing is queued meanwhile: a request that cannot be forwarded is dropped, and asked
 * for again (NAK sequence error) when it can. `done` is the first PSN that is not executed; requests from there up to
 * expected_psn have been forwarded. */
#include <errno.h>

#include "transport/machine.h"

/* --- which process executes -------------------------------------------------------------------------- */

enum relay_event {
    FORWARDED,           /* a request in sequence went to another process */
    RETURNED,            /* a request in sequence is executed here */
    DUPLICATE_FORWARDED, /* a duplicate went to another process */
    POSTPONED,           /* a request was dropped because those before it are not executed */
    DUPLICATE_ENDED,     /* the response to the duplicate is complete, or was given up */
    AWAY_ENDED,          /* a duplicate is executed here, or no process executes elsewhere any more */
    RELAY_EVENTS
};

/* clang-format off */
static const uint8_t transitions[][RELAY_EVENTS] = {
    /*                                           DUPLICATE_                      DUPLICATE_ */
    /*                   FORWARDED   RETURNED    FORWARDED        POSTPONED      ENDED       AWAY_ENDED */
    [RELAY_HERE]      = {RELAY_AWAY, RELAY_HERE, RELAY_DUPLICATE, RELAY_HERE,    RELAY_HERE, RELAY_HERE},
    [RELAY_AWAY]      = {RELAY_AWAY, RELAY_HERE, RELAY_DUPLICATE, RELAY_AWAY,    RELAY_AWAY, RELAY_HERE},
    [RELAY_DUPLICATE] = {RELAY_AWAY, RELAY_HERE, RELAY_DUPLICATE, RELAY_OVERDUE, RELAY_AWAY, RELAY_HERE},
    [RELAY_OVERDUE]   = {RELAY_AWAY, RELAY_HERE, RELAY_DUPLICATE, RELAY_OVERDUE, RELAY_AWAY, RELAY_HERE},
};
/* clang-format on */

static void step(struct relay *relay, enum relay_event event)
{
    relay->state = transitions[relay->state][event];
    if (event == FORWARDED || event == RETURNED)
        relay->displaced = false;
    if (event == FORWARDED)
        relay->in_sequence = true;
    else if (event == RETURNED || event == DUPLICATE_FORWARDED || event == AWAY_ENDED)
        relay->in_sequence = false;
}

void relay_move_failed(struct transport_qp *qp)
{
    step(&qp->relay, AWAY_ENDED);
}

/* Is everything executed that a request for another process could overtake? */
static bool is_idle(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    if (relay_is_away(&qp->relay))
        return psn_equal(qp->relay.done, responder->expected_psn);
    return responder->resource_next == responder->resource_tail && !responder->owed_syndrome;
}

/* The response to a duplicate must not be overtaken either. But the duplicate may be too old to get one: a request
 * that was postponed for it once (RELAY_OVERDUE) does not wait a second time. */
static bool may_move(const struct transport_qp *qp)
{
    return is_idle(qp) && qp->relay.state != RELAY_DUPLICATE;
}

/* --- dropped requests are asked for again ------------------------------------------------------------ */

void relay_postpone(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;

    responder->drops++;
    responder->nak_sent = NAK_OF_PACKET;
    qp->relay.retry = RELAY_RETRY_DUE;
    step(&qp->relay, POSTPONED);
}

static void request_again(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;

    qp->relay.retry = RELAY_RETRY_NONE;
    responder->nak_sent = NAK_OF_PACKET;
    responder->owed_syndrome = SYNDROME_NAK << 5 | NAK_SEQUENCE;
}

void relay_settle(struct transport_qp *qp)
{
    const struct relay *relay = &qp->relay;

    if (relay->retry == RELAY_RETRY_DUE && !qp->record->responder.fails && is_idle(qp) &&
        !relay_has_duplicate(relay))
        request_again(qp);
}

static void unblock_retry(struct relay *relay)
{
    if (relay->retry == RELAY_RETRY_BLOCKED)
        relay->retry = RELAY_RETRY_DUE;
}

void relay_again(struct transport_qp *qp)
{
    unblock_retry(&qp->relay);
    relay_settle(qp);
}

bool relay_postpones_gap(struct transport_qp *qp)
{
    if (!relay_is_away(&qp->relay) || may_move(qp))
        return false;
    relay_postpone(qp);
    return true;
}

/* --- requests ------------------------------------------------------------------------------------- */

static void invalid(struct transport_qp *qp, psn_t psn)
{
    responder_violation(qp, psn, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
}

/* As the process that executes the READ finds it. */
static uint32_t relayed_mtu(const struct transport_qp *qp, const struct packet *packet)
{
    const uint8_t asked = packet->syndrome & PACKET_BY_PATH_MTU ? responder_asked_mtu(qp, packet) : 0;

    return asked ? 128u << asked : qp->link.mtu;
}

/* PSNs of a request; 0: the packet contradicts itself. */
static uint32_t psns_of(const struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    /* Only this process could read memory that the requester names. An honest requester on such a link names none. */
    if (packet->flags & PACKET_BY_REFERENCE)
        return 0;
    if (properties & OPCODE_READ)
        return packet->dma_length <= LIMIT_MESSAGE ? packets_of(packet->dma_length, relayed_mtu(qp, packet))
                                                   : 0;
    if ((properties & (OPCODE_SEND | OPCODE_WRITE)) && responder_is_segmented_wrong(qp, packet, properties))
        return 0;
    return 1;
}

/* The request is executed here. true: not yet, it was dropped. */
static bool come_back(struct transport_qp *qp, bool duplicate)
{
    if (relay_is_away(&qp->relay) && !may_move(qp)) {
        relay_postpone(qp);
        return true;
    }
    step(&qp->relay, duplicate ? AWAY_ENDED : RETURNED);
    return false;
}

/* Does a packet in the middle of a message continue one that another process executes? */
static bool continues_away(const struct transport_qp *qp, const struct packet *packet)
{
    const struct relay *relay = &qp->relay;

    return (relay_is_away(relay) || relay->displaced) && (relay->srqn_unknown || packet->srqn == relay->srqn);
}

static void forwarded(struct transport_qp *qp, const struct packet *packet, uint32_t psns, bool duplicate)
{
    struct responder *responder = &qp->record->responder;
    struct relay *relay = &qp->relay;

    if (!relay_is_away(relay))
        relay->done = responder->expected_psn;
    step(relay, duplicate ? DUPLICATE_FORWARDED : FORWARDED);
    if (duplicate) {
        relay->duplicate_psn = psn_add(packet->psn, psns - 1);
        return;
    }
    unblock_retry(relay);
    relay->srqn_unknown = false;
    relay->srqn = packet->srqn;
    if (packet->flags & PACKET_ACK_REQUEST) {
        relay->ack_due = true;
        relay->ack_psn = packet->psn;
    }
    responder_accepted(responder, psns);
}

/* true: the request went to another process, or is dropped until it can. false: the SRQ is of this process, or of
 * none. A duplicate may be for another process than the message that is being received, which continues afterwards. */
static bool relay(struct transport_qp *qp, const struct packet *packet, uint32_t properties, bool duplicate)
{
    struct packet copy;
    uint32_t psns;
    bool moves;
    int error;

    if (!qp->relay.possible)
        return false;
    if (!duplicate && qp->record->responder.message != MESSAGE_NONE)
        return come_back(qp, false); /* of a message that is being received here */
    if (!(properties & (OPCODE_FIRST | OPCODE_ONLY)) && !continues_away(qp, packet)) {
        if (!relay_is_away(&qp->relay))
            return false;
        invalid(qp, packet->psn);
        return true;
    }
    psns = psns_of(qp, packet, properties);
    copy = *packet;
    copy.flags &= PACKET_SOLICITED;
    copy.flags |= PACKET_ACK_REQUEST; /* `done` follows each acknowledgement */
    copy.syndrome = 0;
    moves = may_move(qp);
    if (duplicate && qp->relay.in_sequence)
        qp->relay.displaced = true;
    error = psns ? qp->ports->xrc->hand_over(qp, &copy, moves) : -EINVAL;
    switch (error) {
    case 0:
        forwarded(qp, packet, psns, duplicate);
        return true;
    case -ENOENT:
        return come_back(qp, duplicate);
    case -EINVAL:
        invalid(qp, packet->psn);
        return true;
    default:
        relay_postpone(qp);
        if (moves)
            qp->relay.retry = RELAY_RETRY_BLOCKED; /* the owner calls relay_again() */
        return true;
    }
}

bool relay_request(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    return relay(qp, packet, properties, false);
}

bool relay_duplicate(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    return (properties & (OPCODE_READ | OPCODE_ATOMIC | OPCODE_FLUSH)) && relay(qp, packet, properties, true);
}

/* --- responses ------------------------------------------------------------------------------------ */

/* Every request from `psn` on has to come again. */
static void rewind_to(struct transport_qp *qp, psn_t psn)
{
    qp->record->responder.expected_psn = qp->relay.done = psn;
    qp->relay.retry = RELAY_RETRY_NONE;
    qp->relay.srqn_unknown = true;
}

static void take_nak(struct transport_qp *qp, const struct packet *packet)
{
    struct responder *responder = &qp->record->responder;
    uint8_t code = SYNDROME_VALUE(packet->syndrome);

    if (SYNDROME_KIND(packet->syndrome) == SYNDROME_RNR || code == NAK_SEQUENCE) {
        rewind_to(qp, packet->psn);
        responder->nak_sent = NAK_OF_PACKET;
        responder->owed_syndrome = packet->syndrome;
        return;
    }
    if (code != NAK_REMOTE_OPERATION)
        qp->ports->raise_event(qp,
                               code == NAK_REMOTE_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    responder_fail(qp, packet->psn, code);
}

/* The link to the requester has no space for a packet of a response. The packet is dropped, since a READ response may
 * be too long to be stored, and the request is asked for again. */
static void response_lost(struct transport_qp *qp, psn_t psn)
{
    bool duplicate = psn_diff(psn, qp->relay.done) < 0;

    /* The rest of a duplicate's response is asked for by the requester's timer, where that runs. */
    rewind_to(qp, duplicate ? qp->relay.done : psn);
    if (duplicate && qp->link.reliable) {
        qp->relay.duplicate_lost = true;
        qp->relay.lost_psn = psn;
    }
    qp->relay.epoch++; /* what is on its way of this response, and of those behind it, is void */
    qp->relay.resumes = true;
    step(&qp->relay, DUPLICATE_ENDED);
    request_again(qp);
}

/* A packet of a response goes on to the requester. */
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
        response_lost(qp, packet->psn);
        return;
    }
    if (relay_has_duplicate(&qp->relay) && psn_diff(packet->psn, qp->relay.duplicate_psn) >= 0)
        step(&qp->relay, DUPLICATE_ENDED);
    if (psn_diff(packet->psn, qp->relay.done) >= 0)
        qp->relay.done = psn_add(packet->psn, 1);
}

/* Everything up to `psn` is executed. After rewind_to() that may be more than has come again. */
static void take_ack(struct transport_qp *qp, psn_t psn)
{
    struct responder *responder = &qp->record->responder;

    if (psn_diff(psn, responder->expected_psn) >= 0)
        psn = psn_add(responder->expected_psn, PSN_MASK);
    if (psn_diff(psn, qp->relay.done) >= 0)
        qp->relay.done = psn_add(psn, 1);
    if (qp->relay.ack_due && psn_diff(psn, qp->relay.ack_psn) >= 0) {
        responder->ack_owed = ACK_OWED;
        qp->relay.ack_due = false;
    }
}

void relay_response(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    struct responder *responder = &qp->record->responder;
    bool responds = properties & (OPCODE_READ | OPCODE_HAS_ATOMIC_ACK);

    if (!relay_is_away(&qp->relay) || responder->fails)
        return;
    /* The other process is not trusted: no packet that the requester's link could not carry. */
    if ((packet->flags & PACKET_BY_REFERENCE) || packet->payload_length > qp->link.mtu)
        return;
    if (packet->flags & PACKET_DROPPED) {
        if (packet->syndrome == DROPPED_DUPLICATE)
            responder_send_drop_notice(qp, packet->psn, DROPPED_DUPLICATE);
        else /* the other process has no such QP any more */
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
    if (relay_is_away(&qp->relay) && !is_idle(qp)) {
        if (!qp->record->responder.fails)
            invalid(qp, qp->relay.done);
        return;
    }
    step(&qp->relay, AWAY_ENDED);
    relay_again(qp);
}

/* The QP is connected anew, or ends. A process that executed for it learns that by `connection`. */
void relay_reset(struct transport_qp *qp)
{
    struct relay *relay = &qp->relay;

    *relay = (struct relay){.possible = relay->possible,
                            .used = relay->used,
                            .connection = relay->connection + 1,
                            .epoch = relay->epoch + 1};
}
