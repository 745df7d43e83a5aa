/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A router has marked a packet because its queue is getting full (ECN, RFC 3168): the sender is told by a
 * congestion notification packet (IBA annex A17.9.3), as NICs do it. What the sender makes of it is
 * transport_congested(). */
#include <string.h>

#include "base/sys.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "udp/udp.h"

/* One for a QP and so long is enough. */
#define NOTIFY_EVERY (50 * NS_PER_US)
/* A packet with less payload than this is smaller than the notification. */
#define NOTIFIED_FROM 16u
#define HOPS          64

void congestion_notify(struct qp *qp, const struct packet *packet, const struct udp_arrival *arrival)
{
    const bool is_datagram = qp->record->type == IBV_QPT_UD;
    struct udp_path path = {.hop_limit = HOPS};
    ns_t now;

    if (packet->payload_length < NOTIFIED_FROM)
        return;
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
