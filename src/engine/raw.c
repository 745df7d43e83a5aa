/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Layer 2 of this host: a frame that a RAW_PACKET QP sends is offered to every process of the same user that
 * runs here, this one included; each asks its own flow rules (object/flow.h). docs/raw.md. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/engine.h"
#include "engine/internal.h"
#include "object/device.h"
#include "object/flow.h"

_Static_assert(FRAME_LENGTH_MAX == LOCAL_MTU, "a frame is one packet of a ring");

uint32_t raw_frame_limit(const struct qp *qp)
{
    uint32_t mtu = device_mtu(&host_devices, qp->context->device);

    return min_of(mtu + ETHERNET_LENGTH + CVLAN_LENGTH, FRAME_LENGTH_MAX);
}

struct offer {
    const struct packet *packet;
    const struct iovec *gather;
    unsigned gather_count;
    uid_t uid;
};

/* No room is a lost frame, as with a receiver of Ethernet that does not keep up. */
static void offer_to(struct link *link, void *argument)
{
    const struct offer *offer = argument;
    struct lane *lane = link_lane(link, offer->packet->src_qpn);

    if (!link_is_self(link) && link_peer_uid(link) != offer->uid)
        return;
    if (lane_send(lane, offer->packet, offer->gather, offer->gather_count) == 0)
        lane_ring(lane);
}

int raw_transmit(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count)
{
    struct packet out = *packet;
    const struct offer offer = {&out, gather, gather_count, geteuid()};

    if (!multicast_ready()) {
        /* In the list first: the last answer may come while we look. */
        waiting_enter(qp, ROUTE_WAITS_FOR_OWNER);
        if (!multicast_ready())
            return -EAGAIN;
        waiting_enter(qp, ROUTE_WAITS_FOR_NOTHING);
    }
    out.dest_ifindex = device_ifindex(qp->context->device);
    local_for_each_peer(offer_to, (void *)(uintptr_t)&offer);
    return 0;
}

void raw_arrived(struct lane *lane, const struct packet *packet)
{
    const struct link *link = lane_link(lane);
    uint8_t bytes[FRAME_LENGTH_MAX];
    struct steered frame = {
        .ifindex = packet->dest_ifindex, .bytes = bytes, .length = packet->payload_length};

    if (!flows_exist() || packet->payload_length > sizeof(bytes) || !packet->payload)
        return;
    if (link_is_self(link))
        frame.src_qpn = packet->src_qpn;
    else if (link_peer_uid(link) != geteuid())
        return; /* another user's, whom we would not believe */
    memcpy(bytes, packet->payload, packet->payload_length);
    flows_deliver(&frame);
}

void raw_steers(struct qp *qp)
{
    if (flows_exist())
        engine_announce_multicast();
}

void raw_after_fork_in_child(void)
{
}
