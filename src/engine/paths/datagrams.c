/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams that are sent: to a QP of this host, to the members of a group on it, and to the network. */
#include <errno.h>

#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"

struct multicast_copy {
    const struct packet *packet;
    const struct iovec *gather;
    unsigned gather_count;
};

static void send_multicast_copy(struct link *link, void *argument)
{
    const struct multicast_copy *copy = argument;
    struct lane *lane = link_lane(link, copy->packet->src_qpn);

    /* Without space the copy is lost: a slow member must not stop the others. */
    if (lane_send(lane, copy->packet, copy->gather, copy->gather_count) == 0)
        lane_ring(lane);
}

void datagram_send_to_group(const struct packet *packet, const struct iovec *gather, unsigned gather_count)
{
    struct multicast_copy copy = {packet, gather, gather_count};

    local_for_each_peer(send_multicast_copy, &copy);
}

/* Is this process linked to all others? If not, the QP waits. */
static bool is_ready_for_groups(struct qp *qp)
{
    if (likely(multicast_ready()))
        return true;
    /* In the list first: the last link may come between the check and the list. */
    waiting_enter(qp, ROUTE_WAITS_FOR_OWNER);
    if (!multicast_ready())
        return false;
    waiting_enter(qp, ROUTE_WAITS_FOR_NOTHING);
    return true;
}

/* The packet leaves the port once, so a fault strikes it for all members. on_network: its part for the network has
 * met it. */
static cold_path void spread_with_faults(struct qp *qp, const struct packet *packet,
                                         const struct iovec *gather, unsigned gather_count, bool on_network)
{
    struct packet_fate fate = on_network ? packet_fault_of_last(qp) : packet_fault(qp, packet);

    if (packet_faults_spread(qp, packet, gather, gather_count, &fate)) {
        for (unsigned i = 0, copies = fate.twice ? 2 : 1; i < copies; i++)
            datagram_send_to_group(packet, gather, gather_count);
        if (!on_network)
            held_packets_passed(qp);
    }
}

static void send_to_group(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                          unsigned gather_count, const struct path_address *to, bool on_network)
{
    struct packet out = *packet;

    out.dest_ifindex = to->source_ifindex;
    if (unlikely(qp->by_packets & QP_LOSES))
        spread_with_faults(qp, &out, gather, gather_count, on_network);
    else
        datagram_send_to_group(&out, gather, gather_count);
}

static int send_on_host(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                        unsigned gather_count, const struct path_address *to)
{
    struct packet out = *packet;
    struct link *link;
    struct lane *lane;
    int error;

    out.dest_ifindex = to->destination_ifindex;
    link = local_resolve(packet->dest_qpn);
    if (!link) {
        if (route_of(qp)->missing_block == packet->dest_qpn / LOCAL_BLOCK_QPNS + 1) {
            route_of(qp)->missing_block =
                0; /* no process owns the number; the next datagram resolves again */
            datagram_dropped(&qp->transport, packet, DROP_NOBODY, packet->dest_qpn, 0);
            return 0;
        }
        link = route_resolve_or_wait(qp, packet->dest_qpn);
        if (!link)
            return -EAGAIN;
    }
    lane = link_lane(link, packet->src_qpn);
    error = unlikely(qp->by_packets & QP_LOSES) ? packet_faults_send(qp, lane, &out, gather, gather_count)
                                                : route_send_on(qp, lane, &out, gather, gather_count);
    if (!error) {
        /* qp_route.kick covers one lane, and datagrams take many: the others are rung at once. */
        if (lane == route_of(qp)->lane)
            route_of(qp)->kick = true;
        else if (!route_of(qp)->lane) {
            route_of(qp)->lane = lane;
            route_of(qp)->kick = true;
        } else {
            lane_ring(lane);
        }
    }
    return error == -EHOSTUNREACH ? 0 : error;
}

int datagram_transmit(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                      unsigned gather_count, const struct path_address *to)
{
    bool local = to->is_multicast || to->destination_ifindex;
    bool by_network = to->is_multicast ? network_has_groups(qp) : !local || network_is_forced();
    int error = 0;

    if (unlikely(port_is_down(qp)))
        return 0;
    local = local && !(by_network && network_is_forced());
    /* Before the network's part, which would leave again with the next try. */
    if (local && to->is_multicast && !is_ready_for_groups(qp))
        return -EAGAIN;
    if (by_network)
        error = network_send(qp, packet, gather, gather_count, to);
    if (local && error != -EAGAIN && to->is_multicast)
        send_to_group(qp, packet, gather, gather_count, to, by_network && !error);
    else if (local && error != -EAGAIN)
        error = send_on_host(qp, packet, gather, gather_count, to);
    return error == -EAGAIN ? -EAGAIN : 0; /* an undeliverable datagram is lost, like on a network */
}
