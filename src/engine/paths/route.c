/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which path the packets of a QP take: the transport ports that send, how a QP finds the link to its peer, and
 * how the link is lost. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/cm/agent_events.h"
#include "engine/cm/gsi.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "engine/xrc/relay.h"
#include "engine/xrc/remote_open.h"
#include "object/cq/cq.h"
#include "object/device/device.h"
#include "object/xrc/delegate.h"
#include "udp/udp.h"
#include "wire/opcode.h"

/* --- sending -------------------------------------------------------------------------------------------- */

/* Why peers' memory is not mapped. */
static enum path_why why_of(const struct qp *qp, enum path_kind kind, const struct link *link)
{
    if (qp->by_packets & QP_LOSES)
        return PATH_WHY_FAULTS;
    if (qp->by_packets & (QP_PEER_LOSES | QP_RECOVERS))
        return PATH_WHY_PEER_FAULTS;
    if (qp->by_packets & QP_CAPTURED)
        return PATH_WHY_CAPTURE;
    return kind == PATH_RING || kind == PATH_CMA ? direct_why_not(link) : PATH_WHY_UNKNOWN;
}

/* For explanations: where the peer of a connected QP is. QP lock held. */
static void publish_path(struct qp *qp, enum path_kind kind, const struct link *link)
{
    struct path_record *path = &qp->record->path;

    if (path->kind == kind && !link)
        return;
    *path = (struct path_record){.kind = (uint16_t)kind,
                                 .why = (uint16_t)why_of(qp, kind, link),
                                 .peer_pid = link                ? link_peer_pid(link)
                                             : kind != PATH_WIRE ? path->peer_pid
                                                                 : 0,
                                 .peer_uid = link ? link_peer_uid(link) : path->peer_uid,
                                 .since = provenance_stamp_now()};
}

static enum path_kind path_of(const struct qp *qp, const struct link *link)
{
    if (link_is_self(link))
        return PATH_SELF;
    if (qp->by_packets)
        return PATH_RING;
    return link_can_reference(link) || link_can_pull(link) ? PATH_CMA : PATH_RING;
}

/* A peer that sends to the QP may ring the completion channel of its receive CQ (local/notify.c). QP lock held,
 * in a rundown section. */
static void offer_channel(const struct qp *qp, struct lane *lane)
{
    const struct cq *cq = qp->recv_cq;

    if (cq && cq->channel && cq->bit < NOTIFY_CQS)
        local_offer_channel(lane_link(lane), cq->channel->line_number);
}

/* Writes into the notification page at which CQ messages for this QP complete, so that their writer can
 * ring its channel. Only where each message makes exactly one completion, on that CQ. */
static void show_receives(const struct qp *qp)
{
    const struct cq *cq = qp->recv_cq;
    uint32_t type = qp->record->type;

    if (cq && cq->channel && cq->bit < NOTIFY_CQS && !qp->transport.tag_matching && !qp->origin &&
        (type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD))
        local_show_qp(qp->ibv.qp_num, cq->channel->line_number, cq->bit);
}

/* SENDs that go by reference are not plain. */
static uint32_t plain_limit(const struct link_properties *link, uint32_t type)
{
    uint32_t limit = min_of(LANE_SMALL, link->reference_from - 1);

    if (type != IBV_QPT_RC)
        return 0;
    return link->fetched_from ? min_of(limit, link->fetched_from - 1) : limit;
}

/* A request may carry an acknowledgement only in the ring of the READ responses: in another ring the acknowledgement could
 * overtake them. Where packets get lost, requests and responses are packets of their own. */
static void set_piggyback(struct qp *qp)
{
    qp->transport.link.piggyback_acks =
        route_of(qp)->lane && route_of(qp)->lane == route_of(qp)->reply_lane && qp->transport.link.reliable;
}

/* Sets the lane for requests, and what the transport may do on it. QP lock held. */
static void set_lane(struct qp *qp, struct lane *lane)
{
    /* An XRC request may be executed by a process that has no link to this one (engine/xrc/relay.c), and a captured QP sends
     * its bytes. */
    bool exposes = qp->record->type != IBV_QPT_XRC_SEND && !qp->by_packets;

    route_of(qp)->lane = lane;
    route_of(qp)->direct.peer = NULL;
    route_of(qp)->direct.misses = route_of(qp)->direct.next_retry = 0;
    /* They were found for the PD of whoever had the structure before. */
    route_of(qp)->read_key.lkey = route_of(qp)->receive_key.lkey = 0;
    qp->transport.link.rd_atomic_by_packets = false;
    qp->transport.link.direct_up_to = lane && !qp->by_packets ? direct_limit(qp, lane_link(lane)) : 0;
    set_piggyback(qp);
    qp->transport.link.reference_from =
        lane && exposes && link_can_reference(lane_link(lane)) ? local_reference_from() : UINT32_MAX;
    qp->transport.link.fetched_from =
        lane && exposes && link_can_reference(lane_link(lane)) ? direct_fetched_from(lane_link(lane)) : 0;
    qp->transport.link.deposits = qp->transport.link.fetched_from && direct_deposits(qp, lane_link(lane));
    qp->transport.link.read_reference_from =
        lane && exposes && link_can_pull(lane_link(lane)) ? local_reference_from() : UINT32_MAX;
    qp->transport.link.plain_send_up_to =
        lane && !qp->by_packets ? plain_limit(&qp->transport.link, qp->record->type) : 0;
    if (!is_connected(qp->record))
        return;
    if (lane) {
        publish_path(qp, path_of(qp, lane_link(lane)), lane_link(lane));
        offer_channel(qp, lane);
    } else {
        publish_path(qp, PATH_UNKNOWN, NULL);
    }
}

void route_path_changed(struct qp *qp)
{
    if (is_connected(qp->record) && route_of(qp)->lane)
        set_lane(qp, route_of(qp)->lane);
}

void route_note_direct(struct qp *qp)
{
    if (qp->record->path.kind != PATH_MAPPED)
        publish_path(qp, PATH_MAPPED, lane_link(route_of(qp)->lane));
}

void route_note_refused(struct qp *qp)
{
    publish_path(qp, PATH_RING, lane_link(route_of(qp)->lane));
    qp->record->path.why = PATH_WHY_REFUSED;
}

/* Both QPs of a connection use the same lane, so that packets of either arrive in the order of their writing:
 * an acknowledgement arrives before the request that the program posts in reply. Programs that wait for the
 * completion of their send before they poll for the reply rely on that order. */
static struct lane *connection_lane(struct link *link, uint32_t qpn, uint32_t dest_qpn)
{
    return link_lane(link, min_of(qpn, dest_qpn));
}

void route_set_reply_lane(struct qp *qp, struct lane *lane)
{
    if (likely(route_of(qp)->reply_lane == lane))
        return;
    route_of(qp)->reply_lane = lane;
    set_piggyback(qp);
    offer_channel(qp, lane);
}

int route_send_on(struct qp *qp, struct lane *lane, const struct packet *packet, const struct iovec *gather,
                  unsigned gather_count)
{
    for (;;) {
        int error = lane_send(lane, packet, gather, gather_count);

        if (likely(error != -EAGAIN))
            return error;
        blocked_enter(qp, &lane_state(lane)->blocked);
        /* The lane may have become writable before the QP was in the list. */
        if (lane_is_blocked(lane))
            return -EAGAIN;
        if (blocked_lane(qp) == lane)
            blocked_leave(qp);
    }
}

void route_kick(struct qp *qp, struct lane *lane)
{
    if (lane == route_of(qp)->lane)
        route_of(qp)->kick = true;
    else if (lane == route_of(qp)->reply_lane)
        route_of(qp)->kick_reply = true;
    else
        lane_ring(lane);
}

/* Resolves again once the QP is in the list: route_resolved() may have run before, and found the list without
 * the QP. QP lock held. */
struct link *route_resolve_or_wait(struct qp *qp, uint32_t qpn)
{
    struct link *link;

    waiting_enter(qp, ROUTE_WAITS_FOR_OWNER);
    link = local_resolve(qpn);
    if (link)
        waiting_enter(qp, ROUTE_WAITS_FOR_NOTHING);
    return link;
}

/* The lane for requests, which is not known. 0 or -errno. QP lock held. */
static cold_path int find_lane(struct qp *qp, const struct packet *packet)
{
    struct link *link = admission_find_peer(qp, packet->dest_qpn);

    if (!link && route_of(qp)->peer_process)
        return -EHOSTUNREACH; /* whoever has the number now */
    if (!link) {
        if (route_of(qp)->missing_block == packet->dest_qpn / LOCAL_BLOCK_QPNS + 1) {
            route_of(qp)->missing_block = 0;
            publish_path(qp, PATH_NOBODY, NULL);
            return -EHOSTUNREACH;
        }
        link = route_resolve_or_wait(qp, packet->dest_qpn);
        if (!link) {
            publish_path(qp, PATH_SEARCHED, NULL);
            return -EAGAIN;
        }
        route_of(qp)->peer_process = link_process(link);
    }
    set_lane(qp, connection_lane(link, packet->src_qpn, packet->dest_qpn));
    return 0;
}

/* The packet takes the path of the QP. QP lock held. */
static inline __attribute__((always_inline)) int send_by_path(struct qp *qp, const struct packet *packet,
                                                              const struct iovec *gather,
                                                              unsigned gather_count,
                                                              const struct path_address *to)
{
    struct packet relayed;
    int error;

    if (unlikely(packet->flags & PACKET_FRAME))
        return raw_transmit(qp, packet, gather, gather_count);
    if (to)
        return datagram_send(qp, packet, gather, gather_count, to);
    if (unlikely(qp->origin)) {
        relayed = *packet;
        relayed.flags |= PACKET_RELAYED;
        packet = &relayed;
    }
    if (route_of(qp)->by_network)
        return network_send(qp, packet, gather, gather_count, &qp->record->attributes.path);
    if (!(opcode_table[packet->opcode].properties & OPCODE_REQUEST)) {
        if (!route_of(qp)->reply_lane)
            return -EHOSTUNREACH;
        error = route_send_on(qp, route_of(qp)->reply_lane, packet, gather, gather_count);
        route_of(qp)->kick_reply |= !error;
        return error;
    }
    if (unlikely(!route_of(qp)->lane)) {
        error = find_lane(qp, packet);
        if (error)
            return error;
    }
    error = route_send_on(qp, route_of(qp)->lane, packet, gather, gather_count);
    route_of(qp)->kick |= !error;
    return error;
}

/* A packet of a connected QP to this host; others meet their faults in datagrams.c and network.c. */
static int send_with_faults(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                            unsigned gather_count)
{
    const bool request = opcode_table[packet->opcode].properties & OPCODE_REQUEST;
    int error = request && !route_of(qp)->lane ? find_lane(qp, packet) : 0;
    struct lane *lane = request ? route_of(qp)->lane : route_of(qp)->reply_lane;

    if (error)
        return error;
    return lane ? packet_faults_send(qp, lane, packet, gather, gather_count) : -EHOSTUNREACH;
}

static cold_path int send_recorded(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                                   unsigned gather_count, const struct path_address *to)
{
    const bool loses = (qp->by_packets & QP_LOSES) && !to && !(packet->flags & PACKET_FRAME);
    const bool captured = qp->by_packets & QP_CAPTURED;
    struct capture_slot slot;
    int error;

    if (captured)
        capture_begin(qp, packet->payload_length, &slot);
    error = loses ? send_with_faults(qp, packet, gather, gather_count)
                  : send_by_path(qp, packet, gather, gather_count, to);
    if (captured && error)
        capture_cancel(&slot);
    else if (captured)
        capture_sent(qp, &slot, packet, gather, gather_count, to);
    return error;
}

/* transport_ports.send */
static int engine_send(struct transport_qp *transport, const struct packet *packet,
                       const struct iovec *gather, unsigned gather_count, const struct path_address *to)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    if (unlikely(qp->by_packets))
        return send_recorded(qp, packet, gather, gather_count, to);
    return send_by_path(qp, packet, gather, gather_count, to);
}

/* transport_reference_ports.pull: from the process that wrote the packet; route.lane may have changed
 * since. A copy in mapped memory first; if the mapping changed meanwhile, or does not exist,
 * process_vm_readv(). */
static int pull(struct qp *qp, const struct packet *packet, const struct iovec *to, unsigned to_count)
{
    struct direct_mapped mapped;
    uint32_t epoch;
    int error;

    if (direct_was_deposited(qp, packet))
        return 0;
    if (direct_find_mapped(qp, packet, &mapped)) {
        if (unlikely(qp->record->path.kind != PATH_MAPPED))
            publish_path(qp, PATH_MAPPED, lane_link(route_of(qp)->arrival_lane));
        error = lane_pull(route_of(qp)->arrival_lane, packet, mapped.here, to, to_count);
        if (error || direct_still_mapped(&mapped))
            return error;
    }
    do {
        epoch = mapped_epoch();
        error = lane_pull(route_of(qp)->arrival_lane, packet, NULL, to, to_count);
    } while (unlikely(error == -EFAULT) && mapped_disturbed(epoch));
    return error;
}

static int engine_pull(struct transport_qp *transport, const struct packet *packet, const struct iovec *to,
                       unsigned to_count)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    int error = pull(qp, packet, to, to_count);

    if (unlikely(qp->by_packets & QP_CAPTURED) && !error)
        capture_fetched(qp, packet, to, to_count);
    return error;
}

/* transport_reference_ports.revoke: requests left on `lane`, responses on `reply_lane`. */
static void engine_revoke(struct transport_qp *transport)
{
    const struct qp *qp = container_of(transport, struct qp, transport);

    if (route_of(qp)->lane)
        lane_revoke(route_of(qp)->lane);
    if (route_of(qp)->reply_lane && route_of(qp)->reply_lane != route_of(qp)->lane)
        lane_revoke(route_of(qp)->reply_lane);
}

static void engine_set_timer(struct transport_qp *transport, ns_t delay)
{
    timers_set_qp(container_of(transport, struct qp, transport), delay);
}

static ns_t engine_now(struct transport_qp *transport)
{
    return sys_now();
}

static uint32_t engine_random(struct transport_qp *transport)
{
    uint32_t bits;

    sys_random(&bits, sizeof(bits));
    return bits;
}

/* --- connecting and disconnecting ------------------------------------------------------------------------ */

/* qp_ports.take_arrived. A packet arrives when it is written into the ring, so one that lies there came too
 * early for a QP that is not in RTR yet. Taken later, packets of an earlier connection with the same PSNs would
 * be in sequence and the new ones duplicates, and neither side would detect a loss. A QP that is destroyed has
 * received what was written before, as with hardware. */
static void engine_take_arrived(uint32_t qpn, uint32_t dest_qpn, bool by_lane, bool by_network)
{
    struct link *link = by_lane && !network_is_forced() ? local_resolve(dest_qpn) : NULL;

    if (by_network && atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        udp_drain();
    if (link)
        lane_drain(connection_lane(link, qpn, dest_qpn));
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
static void engine_connect(struct qp *qp)
{
    const struct path_address *path = &qp->record->attributes.path;
    struct link *link = NULL;

    port_connect(qp);
    route_of(qp)->by_network =
        is_connected(qp->record) && (!path->destination_ifindex || network_is_forced());
    route_of(qp)->network_lane = udp_lane(qp->ibv.qp_num);
    qp->transport.link.mtu = link_mtu(qp);
    /* The same on both sides, so also where this QP exposes nothing (reference_from in set_lane()). */
    qp->transport.link.reference_mtu = route_of(qp)->by_network ? 0 : LOCAL_REFERENCE_MTU;
    qp->transport.link.reliable = qp->transport.link.local = !route_of(qp)->by_network;
    if (!route_of(qp)->by_network && is_connected(qp->record))
        link = admission_find_peer(qp, qp->record->attributes.dest_qpn);
    by_packets_choose(qp);
    if (link)
        notice_mark_stale(qp, connection_lane(link, qp->ibv.qp_num, qp->record->attributes.dest_qpn));
    set_lane(qp, link ? connection_lane(link, qp->ibv.qp_num, qp->record->attributes.dest_qpn) : NULL);
    if (unlikely(route_of(qp)->peer_process == PEER_CUT_OFF))
        publish_path(qp, PATH_PORT_DOWN, NULL);
    else if (route_of(qp)->by_network)
        publish_path(qp, PATH_WIRE, NULL);
    if (!route_of(qp)->by_network)
        show_receives(qp);
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

/* qp_ports.disconnect: RESET; destroy (engine_forget()). QP lock held. */
static void engine_disconnect(struct qp *qp)
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
    set_lane(qp, NULL);
}

void route_cut_off(struct qp *qp)
{
    route_of(qp)->kick = route_of(qp)->kick_reply = false;
    route_of(qp)->reply_lane = route_of(qp)->arrival_lane = NULL;
    set_lane(qp, NULL);
    publish_path(qp, PATH_PORT_DOWN, NULL);
}

void route_bring_back(struct qp *qp)
{
    publish_path(qp, route_of(qp)->by_network ? PATH_WIRE : PATH_UNKNOWN, NULL);
}

/* qp_ports.forget: the QP has lost its number. No lock held; the caller may be outside every rundown section. */
static void engine_forget(struct qp *qp)
{
    rundown_enter();
    lock_acquire(&qp->lock);
    timers_set_qp(qp, NS_NEVER);
    engine_disconnect(qp);
    lock_release(&qp->lock);
    rundown_exit();
}

/* qp_ports.unlock: after a post, or after the QP was changed. QP lock held, and released here. */
static void engine_unlock(struct qp *qp, bool more)
{
    struct qp_kick kick = qp_take_kick(qp);
    struct udp_lane *network_lane;

    lock_release(&qp->lock);
    network_lane = network_ack_posted(qp);
    route_ring(&kick);
    if (unlikely(network_lane && network_lane != kick.network_lane))
        udp_flush(network_lane);
    if (unlikely(more)) {
        lock_acquire(&qp->lock);
        waiting_enter(qp, ROUTE_WAITS_FOR_RUN);
        lock_release(&qp->lock);
        helper_kick();
    }
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
        set_lane(qp, NULL);
        publish_path(qp, PATH_GONE, NULL);
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

/* The helper thread answers processes that resolve the number, so it runs from the first QP on. */
static int engine_allocate_number(uint32_t *ret_qpn)
{
    int error = helper_start();

    return error ? error : local_qpn_allocate(ret_qpn);
}

static void init_private(struct qp *qp)
{
    struct qp_route *route = route_of(qp);

    list_init(&route->blocked);
    list_init(&route->waiting);
    route->timer_at = route->timer_queued_at = NS_NEVER;
}

static const struct transport_reference_ports engine_reference_ports = {
    .pull = engine_pull,
    .revoke = engine_revoke,
};

static const struct transport_direct_ports engine_direct_ports = {
    .map = direct_map,
    .map_end = direct_map_end,
    .copy = direct_copy,
    .can_execute = direct_can_execute,
    .peek_remote_receive = direct_peek_remote_receive,
    .deposit = direct_deposit,
};

const struct qp_ports engine_qp_ports = {
    .private_size = sizeof(struct qp_route),
    .init_private = init_private,
    .transport =
        {
            .send = engine_send,
            .send_notice = notice_send,
            .now = engine_now,
            .set_timer = engine_set_timer,
            .random = engine_random,
            .reference = &engine_reference_ports,
            .direct = &engine_direct_ports,
        },
    .prepare = network_prepare,
    .flush_before_end = exit_flush_qp,
    .take_arrived = engine_take_arrived,
    .connect = engine_connect,
    .disconnect = engine_disconnect,
    .prefetch = direct_prefetch,
    .unlock = engine_unlock,
    .post_plain = plain_post,
    .run_plain = plain_run,
    .hand_over = relay_hand_over,
    .end_relay = relay_end,
    .open_elsewhere = remote_open_qp,
    .request_elsewhere = remote_open_request,
    .close_elsewhere = remote_open_close,
    .send_opener_event = remote_open_send_event,
    .forget = engine_forget,
    .attached = network_attached,
    .detached = network_detached,
    .steers = raw_steers,
    .allocate_number = engine_allocate_number,
    .release_number = local_qpn_release,
};
