/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who may speak to a QP over the links of this host, and which process a connected QP speaks to (docs/trust.md, "Who
 * speaks for a QP number").
 *
 * A connected QP is pinned to the first process that its destination number leads to: found by this side's lookup, or
 * because that process sends first. Packets from other processes are for nobody. If the process ends, its number may
 * get another owner, who is none of this QP's concern: the peer is dead until the QP is reset. */
#include <string.h>

#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"

struct link *admission_find_peer(struct qp *qp, uint32_t dest_qpn)
{
    struct link *link;

    if (route_of(qp)->peer_process)
        return local_link_of_process(route_of(qp)->peer_process);
    link = local_resolve(dest_qpn);
    if (link)
        route_of(qp)->peer_process = link_process(link);
    return link;
}

bool admission_of_lane(struct qp *qp, struct lane *lane)
{
    struct qp_route *route = route_of(qp);
    struct link *link = lane_link(lane);
    uint32_t peer_block = qp->record->attributes.dest_qpn / LOCAL_BLOCK_QPNS;

    if (qp->origin) { /* a delegate, whose QP's process sends what has arrived for it */
        if (qp->origin != link || port_is_down(qp))
            return false;
    } else {
        if (!is_connected(qp->record) || route->by_network)
            return false;
        if (!route->peer_process && local_is_owner(link, peer_block))
            route->peer_process = link_process(link);
        if (route->peer_process != link_process(link))
            return false;
    }
    route->arrival_lane = lane;
    return true;
}

bool admission_of_source(struct lane *lane, const struct packet *packet)
{
    struct lane_state *state = lane_state(lane);
    uint32_t block = packet->src_qpn / LOCAL_BLOCK_QPNS, ifindex;
    struct link *link;

    if (unlikely(state->source_block != block)) {
        link = lane_link(lane);
        if (!local_is_owner(link, block))
            return false;
        if (link_owns_for_good(link))
            state->source_block = block;
    }
    if (unlikely(memcmp(state->source_gid, packet->grh.source, sizeof(state->source_gid)) != 0)) {
        if (!device_table_is_local(&host_devices, packet->grh.source, &ifindex))
            return false;
        memcpy(state->source_gid, packet->grh.source, sizeof(state->source_gid));
    }
    return true;
}
