/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Congestion notification packets (CNP, IBA annex A17.9.3): the answer to a packet that a router has marked
 * (ECN, RFC 3168). The sender of the packet reduces its rate in transport_congested(). Of a READ response it is the
 * requester whose window bounds the rate, so it reduces its own as well; the CNP is for responders that pace. */
#include <string.h>

#include "base/sys.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "udp/udp.h"
#include "wire/opcode.h"

/* At most one CNP per QP in this time, as NICs do. */
#define NOTIFY_EVERY (50 * NS_PER_US)
/* Payload, in bytes, from which on a packet is larger than the CNP for it. */
#define NOTIFIED_FROM 16u
#define HOPS          64 /* hop limit of a CNP */

void congestion_notify(struct qp *qp, const struct packet *packet, const struct udp_arrival *arrival)
{
    const bool is_datagram = qp->record->type == IBV_QPT_UD;
    const uint32_t kind = opcode_table[packet->opcode].properties & (OPCODE_READ | OPCODE_REQUEST);
    struct udp_path path = {.hop_limit = HOPS};
    ns_t now;

    if (packet->payload_length < NOTIFIED_FROM)
        return;
    if (kind == OPCODE_READ)
        transport_response_congested(&qp->transport);
    now = sys_now();
    if (now < route_of(qp)->notify_from)
        return;
    route_of(qp)->notify_from = now + NOTIFY_EVERY;
    memcpy(path.source, packet->grh.destination, sizeof(path.source));
    memcpy(path.destination, packet->grh.source, sizeof(path.destination));
    if (gid_is_link_local(path.destination))
        path.ifindex = arrival->ifindex;
    udp_notify(route_of(qp)->network_lane, &path,
               is_datagram ? packet->src_qpn : qp->record->attributes.dest_qpn);
    route_of(qp)->kick_network = true;
}
