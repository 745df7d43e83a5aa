/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets that arrive at a QP, from a ring (progress.c) or from the network (engine/paths/network.c), and what the QP
 * does next. An acknowledgement waits for the end of the batch, so that it covers what follows in the same batch. */
#include "engine/core/arrivals.h"

#include <string.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "rules/transitions.h"
#include "segment/drops.h"
#include "wire/opcode.h"

bool arrival_is_accepted(const struct qp *qp, const struct packet *packet, bool request)
{
    enum { NO_SERVICE = 0xff };
    const uint32_t word = PACKET_DROPPED | PACKET_LOSSY;
    static const uint8_t service_of[] = {
        [IBV_QPT_RC] = SERVICE_RC,         [IBV_QPT_UC] = SERVICE_UC,       [IBV_QPT_UD] = SERVICE_UD,
        [IBV_QPT_RAW_PACKET] = NO_SERVICE, [IBV_QPT_XRC_SEND] = NO_SERVICE, [IBV_QPT_XRC_RECV] = SERVICE_XRC};

    if (request && BTH_SERVICE(packet->opcode) != service_of[qp->record->type])
        return false;
    switch (qp_state(qp)) {
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
        break;
    case IBV_QPS_RTR:
    case IBV_QPS_SQE:
        /* A word about a packet that gets lost is no response. */
        if (!request && (packet->flags & word) != word)
            return false;
        break;
    case IBV_QPS_ERR:
        if (!request || !responder_has_fatal_nak(&qp->transport))
            return false;
        break;
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_UNKNOWN:
        return false;
    }
    /* (GID, QPN) names a QP: the same number at another device of this host is another QP. */
    return !request || packet->dest_ifindex == device_ifindex(qp->context->device);
}

/* What links of this host do not carry: the source of a connected QP's packet is its QP number. */
static struct packet without_address(const struct packet *packet)
{
    struct packet ret = *packet;

    if (packet->src_qpn)
        memset(&ret.grh, 0, sizeof(ret.grh));
    return ret;
}

static void request_refused(struct qp *qp, const struct packet *from)
{
    const struct packet packet = without_address(from);
    enum ibv_qp_state state;
    struct drop_record *drop;

    if (!qp) {
        stray_note(STRAY_REQUEST, &packet, packet.src_qpn || gid_is_of_host(packet.grh.source));
        return;
    }
    state = qp_state(qp);
    if (!is_connected(qp->record) || transition_takes_requests((uint32_t)state))
        return;
    drop = &qp_rare(&qp->transport)->drops[DROP_STATE];
    drop->count++;
    drop->seen = (uint32_t)state;
    drop->src_qpn = packet.src_qpn;
    memcpy(drop->source, packet.grh.source, sizeof(drop->source));
    drop->local = packet.src_qpn || gid_is_of_host(packet.grh.source);
    drop->ns = sys_now();
}

cold_path void arrival_refused(struct qp *qp, const struct packet *packet)
{
    if (!(opcode_table[packet->opcode].properties & OPCODE_REQUEST))
        return;
    if (BTH_SERVICE(packet->opcode) != SERVICE_UD)
        request_refused(qp, packet);
    else if (!qp)
        stray_note(STRAY_QPN, packet, gid_is_of_host(packet->grh.source));
    else if (qp->record->type == IBV_QPT_UD && qp_state(qp) != IBV_QPS_RTR && qp_state(qp) != IBV_QPS_RTS)
        datagram_dropped(&qp->transport, packet, DROP_STATE, qp_state(qp), 0);
}

/* A QP whose requests go as packets, or is to be one (paths/by_packets.c). */
static cold_path bool receive_recorded(struct qp *qp, const struct packet *packet)
{
    bool captured, received;

    if (by_packets_is_word(qp, packet))
        return true;
    captured = qp->by_packets & QP_CAPTURED;
    if (captured)
        capture_arriving(qp, packet);
    received = transport_receive(&qp->transport, packet);
    if (captured)
        capture_arrived(qp, packet);
    by_packets_received(qp);
    return received;
}

enum arrival_result arrival_receive(struct qp *qp, const struct packet *packet, bool request)
{
    const struct responder *responder = &qp->record->responder;
    const struct sender *sender = &qp->record->sender;
    uint32_t waits_for = qp->transport.link.local ? ACKS_BEFORE_BATCH_END : NETWORK_ACKS_BEFORE_BATCH_END;
    bool ack_waits = false;

    if (unlikely(!(unlikely(qp->by_packets | (packet->flags & PACKET_LOSSY))
                       ? receive_recorded(qp, packet)
                       : transport_receive(&qp->transport, packet))))
        return ARRIVAL_DROPPED;
    if (responder_owes(&qp->transport)) {
        ack_waits = responder_owes_only_ack(&qp->transport) && responder->acks_owed < waits_for &&
                    !tagged_has_posted(&qp->transport);
        if (!ack_waits)
            route_run(qp);
    } else if ((!request || tagged_has_posted(&qp->transport)) &&
               sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed)) {
        route_run(qp); /* a response may have opened a window, a fence or a slot for READs */
    }
    qp_note(qp, true);
    return ack_waits && !qp->ack_due ? ARRIVAL_ACK_DUE : ARRIVAL_TAKEN;
}

void arrivals_add(struct arrivals *batch, struct qp *qp)
{
    if (batch->count == ARRIVALS_MAX) {
        route_run(qp);
        return;
    }
    qp->ack_due = true;
    batch->qps[batch->count++] = qp;
}

void arrivals_receive_multicast(struct qp *qp, const struct packet *packet, bool from_this_host)
{
    if (!arrival_is_accepted(qp, packet, true))
        return;
    if ((qp->create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) && packet->src_qpn == qp->ibv.qp_num &&
        from_this_host)
        return;
    transport_receive(&qp->transport, packet);
}
