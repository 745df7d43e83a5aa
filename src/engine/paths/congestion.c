/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Congestion notification packets (CNP, IBA annex A17.9.3): the answer to a packet that a router has marked
 * (ECN, RFC 3168). The sender of the packet reduces its rate in transport_congested(). Of a READ response it is the
 * requester whose window bounds the rate, so it reduces its own as well; the CNP is for responders that pace. */
#include <string.h>

#include "base/sys.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "segment/segment.h"
#include "udp/udp.h"
#include "wire/opcode.h"

/* At most one CNP per QP in this time, as NICs do. */
#define NOTIFY_EVERY (50 * NS_PER_US)
/* Payload, in bytes, from which on a packet is larger than the CNP for it. */
#define NOTIFIED_FROM 16u
#define HOPS          64 /* hop limit of a CNP */

bool congestion_is_notified(const struct packet *packet)
{
    return packet->payload_length >= NOTIFIED_FROM;
}

static bool may_notify(struct qp *qp)
{
    ns_t now = sys_now();

    if (now < route_of(qp)->notify_from)
        return false;
    route_of(qp)->notify_from = now + NOTIFY_EVERY;
    return true;
}

static cold_path void record(struct qp *qp, const struct udp_path *path, uint32_t dest_qpn)
{
    struct packet_grh grh = {.hop_limit = path->hop_limit};

    memcpy(grh.source, path->source, sizeof(grh.source));
    memcpy(grh.destination, path->destination, sizeof(grh.destination));
    capture_cnp_sent(qp, &grh, dest_qpn);
}

void congestion_notify(struct qp *qp, const struct packet *packet, const struct udp_arrival *arrival)
{
    const bool is_datagram = qp->record->type == IBV_QPT_UD;
    const uint32_t dest_qpn = is_datagram ? packet->src_qpn : qp->record->attributes.dest_qpn;
    struct udp_path path = {.hop_limit = HOPS};

    if (!congestion_is_notified(packet))
        return;
    if (opcode_is_read_response(packet->opcode))
        transport_response_congested(&qp->transport);
    if (!may_notify(qp))
        return;
    memcpy(path.source, packet->grh.destination, sizeof(path.source));
    memcpy(path.destination, packet->grh.source, sizeof(path.destination));
    if (gid_is_link_local(path.destination))
        path.ifindex = arrival->ifindex;
    if (udp_notify(route_of(qp)->network_lane, &path, dest_qpn) && unlikely(qp->by_packets & QP_CAPTURED))
        record(qp, &path, dest_qpn);
    route_of(qp)->kick_network = true;
}

void congestion_notify_on_host(struct qp *qp, bool read_response)
{
    struct lane *lane = route_of(qp)->arrival_lane;

    if (read_response)
        transport_response_congested(&qp->transport);
    if (!may_notify(qp))
        return;
    if (qp->by_packets & QP_CAPTURED) {
        struct packet_grh path;

        capture_path_of(qp, false, &path);
        capture_cnp_sent(qp, &path, qp->record->attributes.dest_qpn);
    }
    notice_send_word(qp, lane, psn_make(0), false, LOSSY_CNP);
    atomic_fetch_add_explicit(&segment_header()->network.cnps_sent, 1, memory_order_relaxed);
}
