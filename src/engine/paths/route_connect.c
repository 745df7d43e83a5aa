/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How a QP finds the link to its peer when it is connected, and how it leaves it: RESET, destroy, a port that goes
 * down, a peer process that ends. */
#include "base/rundown.h"
#include "engine/cm/agent_events.h"
#include "engine/cm/gsi.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "engine/xrc/relay.h"
#include "engine/xrc/remote_open.h"
#include "object/device/device.h"
#include "object/xrc/delegate.h"
#include "udp/udp.h"

/* Writes into the notification page at which CQs messages for this QP and acknowledgements complete, so that their
 * writer can ring the channel. Only where each message makes exactly one completion, on that CQ. */
static void show_cqs(const struct qp *qp)
{
    struct notify_cq receives = route_notify_cq(qp->recv_cq), sends = route_notify_cq(qp->send_cq);
    uint32_t type = qp->record->type;

    if (min_of(receives.channel, sends.channel) < NOTIFY_CHANNELS && !qp->transport.tag_matching &&
        !qp->origin && (type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD))
        local_show_qp(qp->ibv.qp_num, receives, sends);
}

/* qp_ports.take_arrived. A packet arrives when it is written into the ring, so one that lies there came too
 * early for a QP that is not in RTR yet. Taken later, packets of an earlier connection with the same PSNs would
 * be in sequence and the new ones duplicates, and neither side would detect a loss. A QP that is destroyed has
 * received what was written before, as with hardware. */
void route_take_arrived(uint32_t qpn, uint32_t dest_qpn, bool by_lane, bool by_network)
{
    struct link *link = by_lane && !network_is_forced() ? local_resolve(dest_qpn) : NULL;

    if (by_network && atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        udp_drain();
    if (link)
        lane_drain(route_connection_lane(link, qpn, dest_qpn));
}

/* A datagram has the device's MTU on every path (verbs.md §3.4). A connected QP segments by the ring's MTU, or
 * on the network path by the path MTU. */
static uint32_t link_mtu(const struct qp *qp)
{
    if (qp->record->type == IBV_QPT_RAW_PACKET)
        return raw_frame_limit(qp);
    if (qp->record->type == IBV_QPT_UD)
        return 128u << device_active_mtu(&host_devices, qp->context->device);
    return route_of(qp)->by_network ? 128u << qp->record->attributes.path_mtu : LOCAL_MTU;
}

/* qp_ports.connect: the QP has entered RTR, or its path has changed. QP lock held. */
void route_connect(struct qp *qp)
{
    const struct path_address *path = &qp->record->attributes.path;
    struct link *link = NULL;

    port_connect(qp);
    route_of(qp)->by_network =
        is_connected(qp->record) && (!path->destination_ifindex || network_is_forced());
    route_of(qp)->network_lane = udp_lane(qp->ibv.qp_num);
    qp->transport.link.mtu = link_mtu(qp);
    /* The same on both sides, so also where this QP exposes nothing (reference_from in route_set_lane()). */
    qp->transport.link.reference_mtu = route_of(qp)->by_network ? 0 : LOCAL_REFERENCE_MTU;
    qp->transport.link.reliable = qp->transport.link.local = !route_of(qp)->by_network;
    if (!route_of(qp)->by_network && is_connected(qp->record))
        link = admission_find_peer(qp, qp->record->attributes.dest_qpn);
    by_packets_choose(qp);
    if (link)
        notice_mark_stale(qp, route_connection_lane(link, qp->ibv.qp_num, qp->record->attributes.dest_qpn));
    route_set_lane(qp, link ? route_connection_lane(link, qp->ibv.qp_num, qp->record->attributes.dest_qpn)
                            : NULL);
    if (unlikely(route_of(qp)->peer_process == PEER_CUT_OFF))
        route_publish_path(qp, PATH_PORT_DOWN, NULL);
    else if (route_of(qp)->by_network)
        route_publish_path(qp, PATH_WIRE, NULL);
    if (!route_of(qp)->by_network)
        show_cqs(qp);
}

static void leave_lists(struct qp *qp)
{
    if (route_of(qp)->tx_batch.batched)
        network_flush_batched();
    qp->ack_due = false;
    network_ack_reset(qp);
    blocked_leave(qp);
    waiting_enter(qp, ROUTE_WAITS_FOR_NOTHING);
}

/* qp_ports.disconnect: RESET; destroy (route_forget()). QP lock held. */
void route_disconnect(struct qp *qp)
{
    local_hide_qp(qp->ibv.qp_num);
    transport_revoke(&qp->transport);
    /* The last packets of the QP are in these lanes, and the reader may sleep. */
    if (route_of(qp)->kick && route_of(qp)->lane)
        lane_ring(route_of(qp)->lane);
    if (route_of(qp)->kick_reply && route_of(qp)->reply_lane)
        lane_ring(route_of(qp)->reply_lane);
    route_of(qp)->kick = route_of(qp)->kick_reply = false;
    raw_forget(qp);
    packet_faults_forget(qp);
    relay_end(qp);
    leave_lists(qp);
    route_of(qp)->relay_lane = NULL;
    route_of(qp)->reply_lane = route_of(qp)->arrival_lane = NULL;
    route_of(qp)->peer_process = 0;
    route_of(qp)->missing_block = 0;
    route_of(qp)->by_network = false;
    qp->by_packets &= (uint8_t) ~(QP_PEER_LOSES | QP_RECOVERS);
    qp->transport.holds = false;
    route_set_lane(qp, NULL);
}

void route_cut_off(struct qp *qp)
{
    route_of(qp)->kick = route_of(qp)->kick_reply = false;
    route_of(qp)->reply_lane = route_of(qp)->arrival_lane = NULL;
    route_set_lane(qp, NULL);
    route_publish_path(qp, PATH_PORT_DOWN, NULL);
}

void route_bring_back(struct qp *qp)
{
    route_publish_path(qp, route_of(qp)->by_network ? PATH_WIRE : PATH_UNKNOWN, NULL);
}

/* qp_ports.forget: the QP has lost its number. No lock held; the caller may be outside every rundown section. */
void route_forget(struct qp *qp)
{
    rundown_enter();
    lock_acquire(&qp->lock);
    timers_set_qp(qp, NS_NEVER);
    route_disconnect(qp);
    lock_release(&qp->lock);
    rundown_exit();
}

/* --- a peer process ends -------------------------------------------------------------------------------- */

static void leave_link(struct qp *qp, void *argument)
{
    struct link *link = argument;
    struct qp_kick kick;

    lock_acquire(&qp->lock);
    if (blocked_lane(qp) && lane_link(blocked_lane(qp)) == link)
        blocked_leave(qp);
    relay_leave(qp, link);
    /* The process may still run, and read exposed memory until it sees that the link is down. */
    if ((route_of(qp)->reply_lane && lane_link(route_of(qp)->reply_lane) == link) ||
        (route_of(qp)->lane && lane_link(route_of(qp)->lane) == link))
        transport_revoke(&qp->transport);
    if (route_of(qp)->arrival_lane && lane_link(route_of(qp)->arrival_lane) == link)
        route_of(qp)->arrival_lane = NULL;
    if (route_of(qp)->reply_lane && lane_link(route_of(qp)->reply_lane) == link) {
        route_of(qp)->reply_lane = NULL;
        route_of(qp)->kick_reply = false;
    }
    if (route_of(qp)->lane && lane_link(route_of(qp)->lane) == link) {
        enum ibv_qp_state state = qp_state(qp);

        route_of(qp)->kick = false;
        route_set_lane(qp, NULL);
        route_publish_path(qp, PATH_GONE, NULL);
        /* No response will come: the ACK timer decides, as with hardware (a timeout of 0 waits for ever). */
        if (is_connected(qp->record) && (state == IBV_QPS_RTS || state == IBV_QPS_SQD))
            sender_peer_silent(&qp->transport);
        qp_note(qp, false);
    }
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    route_ring(&kick);
}

/* local_ops.link_down: the link cannot be found any more, but threads that found it before may still put it
 * into a QP. So the QPs are visited twice, the second time after rundown_wait(). */
void route_link_down(struct link *link)
{
    bool gone;

    for (int pass = 0; pass < 2; pass++) {
        rundown_enter();
        qp_for_each(leave_link, link);
        rundown_exit();
        if (pass == 0)
            rundown_wait();
    }
    delegates_leave(link);
    for (uint32_t i = 0; i < LOCAL_LANES; i++) {
        struct lane_state *state = lane_state(link_lane(link, i));

        gsi_lane_down(state);
        remote_open_lane_down(state);
        notices_lane_down(link_lane(link, i), state);
    }
    remote_open_link_down(link_serial(link));
    direct_link_down(link);
    rundown_enter();
    gone = !local_link_of_process(link_process(link));
    rundown_exit();
    if (gone)
        cm_agent_peer_gone(link_process(link));
}
