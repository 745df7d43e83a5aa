/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Frames of RAW_PACKET QPs (docs/raw.md). A frame is offered to every process of the same user on this host,
 * this one included, and each process applies its own flow rules (object/steering/flow.h). Where the process
 * may open a packet socket, the frame also leaves by the device's interface (engine/host/packet_socket.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/host/packet_socket.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "object/steering/flow.h"
#include "segment/drops.h"

_Static_assert(FRAME_LENGTH_MAX == LOCAL_MTU, "a frame is one packet of a ring");

uint32_t raw_frame_limit(const struct qp *qp)
{
    uint32_t mtu = device_mtu(&host_devices, qp->context->device);

    return min_of(mtu + ETHERNET_LENGTH + CVLAN_LENGTH, FRAME_LENGTH_MAX);
}

/* How long a new flow rule waits for links to all processes. Frames of a process that is not linked yet are
 * lost, and unlike multicast datagrams programs do not repeat them: hence more time than DISCOVERY_LIMIT_NS. */
#define ANNOUNCE_NS (5 * NS_PER_S)

/* How long a frame waits for space in the ring of a process. The frame waits, as with Ethernet flow control,
 * because programs count on the last frame to arrive; the limit is for processes that are stopped. */
#define STALL_NS (10 * NS_PER_S)

struct offer {
    struct qp *qp;
    const struct packet *packet;
    const struct iovec *gather;
    unsigned gather_count;
    uid_t uid;
    struct lane *full; /* a lane without space; NULL: none */
};

/* Frames of another user are not trusted. */
static bool is_of_user(const struct link *link, uid_t uid)
{
    return link_is_self(link) || link_peer_uid(link) == uid;
}

static bool has_it(const struct qp *qp, uint64_t serial)
{
    for (uint32_t i = 0; i < route_of(qp)->offered_count; i++) {
        if (route_of(qp)->offered[i] == serial)
            return true;
    }
    return false;
}

/* Out of memory, a process may get the frame twice, as a receiver on Ethernet may. */
static void note_offered(struct qp *qp, uint64_t serial)
{
    struct qp_route *route = route_of(qp);

    if (route->offered_count == route->offered_room) {
        uint32_t room = route->offered_room ? route->offered_room * 2 : 8;
        uint64_t *more = realloc(route->offered, room * sizeof(*more));

        if (!more)
            return;
        route->offered = more;
        route->offered_room = room;
    }
    route->offered[route->offered_count++] = serial;
}

static void offer_to(struct link *link, void *argument)
{
    struct offer *offer = argument;
    struct lane *lane = link_lane(link, offer->packet->src_qpn);
    struct lane_state *state;
    int error;

    if (!is_of_user(link, offer->uid) || has_it(offer->qp, link_serial(link)))
        return;
    error = lane_send(lane, offer->packet, offer->gather, offer->gather_count);
    state = lane_state(lane);
    if (!error) {
        lane_ring(lane);
        if (unlikely(atomic_load_explicit(&state->stalled, memory_order_relaxed)))
            atomic_store_explicit(&state->stalled, false, memory_order_relaxed);
    } else if (error == -EAGAIN && !atomic_load_explicit(&state->stalled, memory_order_relaxed)) {
        offer->full = lane;
        return;
    }
    note_offered(offer->qp, link_serial(link));
}

void raw_forget(struct qp *qp)
{
    route_of(qp)->offered_count = 0;
}

void raw_timer(struct qp *qp)
{
    struct lane *lane = blocked_lane(qp);

    if (!lane)
        return;
    atomic_store_explicit(&lane_state(lane)->stalled, true, memory_order_relaxed);
    blocked_leave(qp);
}

/* To all processes of the user, and by the interface. -EAGAIN: one of them has no space, and the QP waits for it. */
static int offer_to_all(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                        unsigned gather_count)
{
    struct offer offer = {qp, packet, gather, gather_count, geteuid(), NULL};

    for (;;) {
        offer.full = NULL;
        local_for_each_peer(offer_to, &offer);
        if (likely(!offer.full)) {
            if (unlikely(route_of(qp)->timer_at != NS_NEVER))
                timers_set_qp(qp, NS_NEVER);
            raw_forget(qp);
            packet_socket_send(packet->dest_ifindex, gather, gather_count);
            return 0;
        }
        blocked_enter(qp, &lane_state(offer.full)->blocked);
        /* The lane may have become writable before the QP was in the list. */
        if (lane_is_blocked(offer.full)) {
            if (route_of(qp)->timer_at == NS_NEVER)
                timers_set_qp(qp, STALL_NS);
            return -EAGAIN;
        }
        blocked_leave(qp);
    }
}

static cold_path int offer_with_faults(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                                       unsigned gather_count)
{
    struct packet_fate fate = packet_fault(qp, packet);
    int error = 0;

    if (!packet_faults_spread(qp, packet, gather, gather_count, &fate))
        return 0;
    if (fate.twice) {
        error = offer_to_all(qp, packet, gather, gather_count);
        fate.twice = error != 0;
    }
    if (!error)
        error = offer_to_all(qp, packet, gather, gather_count);
    if (error)
        packet_fault_keep(qp, packet, &fate);
    else
        held_packets_passed(qp);
    return error;
}

int raw_transmit(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count)
{
    struct packet out = *packet;

    if (port_is_down(qp))
        return 0;
    if (!multicast_ready()) {
        /* In the list first: the last link may come between the check and the list. */
        waiting_enter(qp, ROUTE_WAITS_FOR_OWNER);
        if (!multicast_ready())
            return -EAGAIN;
        waiting_enter(qp, ROUTE_WAITS_FOR_NOTHING);
    }
    out.dest_ifindex = device_ifindex(qp->context->device);
    if (unlikely(qp->by_packets & QP_LOSES))
        return offer_with_faults(qp, &out, gather, gather_count);
    return offer_to_all(qp, &out, gather, gather_count);
}

struct late_frame {
    const struct packet *packet;
    const struct iovec *frame;
    uid_t uid;
};

static void send_late_to(struct link *link, void *argument)
{
    const struct late_frame *late = argument;
    struct lane *lane = link_lane(link, late->packet->src_qpn);

    if (is_of_user(link, late->uid) && lane_send(lane, late->packet, late->frame, 1) == 0)
        lane_ring(lane);
}

void raw_send_late(const struct packet *packet, const struct iovec *frame)
{
    struct late_frame late = {packet, frame, geteuid()};

    local_for_each_peer(send_late_to, &late);
    packet_socket_send(packet->dest_ifindex, frame, 1);
}

void raw_arrived(struct lane *lane, const struct packet *packet)
{
    const struct link *link = lane_link(lane);
    uint8_t bytes[FRAME_LENGTH_MAX];
    struct steered frame = {
        .ifindex = packet->dest_ifindex, .bytes = bytes, .length = packet->payload_length};

    if (packet->payload_length > sizeof(bytes) || !packet->payload)
        return;
    if (link_is_self(link))
        frame.src_qpn = packet->src_qpn;
    else if (link_peer_uid(link) != geteuid())
        return; /* frames of another user are not trusted */
    memcpy(bytes, packet->payload, packet->payload_length);
    if (!capture_steer(&frame, packet->src_qpn))
        stray_note(STRAY_FRAME, packet, true);
}

void raw_steers(struct qp *qp)
{
    if (flows_exist())
        multicast_announce(ANNOUNCE_NS);
    packet_socket_listen(qp->context->device);
}

void raw_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    if ((mask & IBV_QP_STATE) && attributes->qp_state == IBV_QPS_RTR)
        packet_socket_open(qp->context->device);
}

void raw_after_fork_in_child(void)
{
    packet_socket_after_fork_in_child();
}
