/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Hands a packet that has arrived to the sender (responses and acknowledgements), the responder (requests) or the
 * datagram receive. The state of the QP decides which packets it takes (verbs.md §2.1). */
#include "base/pkey.h"
#include "transport/machine.h"

/* An unknown opcode with the expected PSN is an invalid request (verbs.md §3.10). */
static cold_path void receive_unknown(struct transport_qp *qp, const struct packet *packet)
{
    struct responder *responder = &qp->record->responder;

    if (is_reliable(qp->record) && !responder->fails && psn_equal(packet->psn, responder->expected_psn)) {
        fault_request(qp, packet, FAULT_OPCODE, packet->opcode, 0);
        responder_violation(qp, packet->psn, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
    }
}

void transport_acknowledged(struct transport_qp *qp, psn_t psn)
{
    sender_piggybacked(qp, psn);
}

static bool receive_response(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    enum ibv_qp_state state = qp_state(qp);

    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD)
        return false;
    if (packet->flags & PACKET_DROPPED) {
        if (qp->record->type == IBV_QPT_UC)
            sender_exposure_ended(qp, packet->psn);
        else
            sender_peer_silent(qp);
    } else if (is_reliable(qp->record) || (qp->link.reliable && packet->opcode == OP_ACKNOWLEDGE)) {
        sender_receive(qp, packet, properties);
    }
    return true;
}

static bool receive_connected(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    const struct qp_record *record = qp->record;
    uint8_t service = service_of(record);

    if (qp->link.local && unlikely(packet->src_qpn != record->attributes.dest_qpn))
        return false; /* of another connection */
    if (packet->flags & PACKET_HAS_ACK) {
        sender_piggybacked(qp, packet->ack_psn);
        if (unlikely(qp_state(qp) == IBV_QPS_ERR))
            return false; /* the acknowledgement made the sender fail */
    }
    if ((properties && !(properties & OPCODE_REQUEST)) || (packet->flags & PACKET_DROPPED))
        return receive_response(qp, packet, properties);
    if (unlikely(BTH_SERVICE(packet->opcode) != service))
        return false;
    if (unlikely(!properties)) {
        receive_unknown(qp, packet);
        return true;
    }
    responder_receive(qp, packet, properties);
    /* In ERR the responder acknowledges nothing, and UC still has to end the exposure of the peer's buffer. False: the
     * caller sends a drop notice. */
    return service != SERVICE_UC || qp_state(qp) != IBV_QPS_ERR;
}

static bool resend_fatal_nak(struct transport_qp *qp, uint32_t properties)
{
    if (!responder_has_fatal_nak(qp) || !(properties & OPCODE_REQUEST))
        return false;
    qp->record->responder.owed_syndrome = qp->record->responder.fatal_nak;
    return true;
}

static bool receive(struct transport_qp *qp, const struct packet *packet)
{
    uint32_t properties = opcode_table[packet->opcode].properties;

    switch (qp_state(qp)) {
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
        break;
    case IBV_QPS_ERR:
        return resend_fatal_nak(qp, properties);
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_UNKNOWN:
        return false;
    }
    if (unlikely(!pkey_is_ours(packet->pkey)) && !(packet->flags & PACKET_DROPPED)) {
        if (qp->counters)
            atomic_fetch_add_explicit(&qp->counters->bad_pkeys, 1, memory_order_relaxed);
        return false;
    }
    if (likely(qp->record->type != IBV_QPT_UD))
        return receive_connected(qp, packet, properties);
    ud_receive(qp, packet, properties);
    return true;
}

bool transport_receive(struct transport_qp *qp, const struct packet *packet)
{
    /* A drop notice that is dropped causes no drop notice: two QPs would exchange them for ever. */
    return receive(qp, packet) || (packet->flags & PACKET_DROPPED);
}
