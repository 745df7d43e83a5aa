/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which path the packets of a QP take: the transport ports that send, and the table of the QP's ports. */
#include <errno.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "engine/xrc/relay.h"
#include "engine/xrc/remote_open.h"
#include "object/cq/cq.h"
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

void route_publish_path(struct qp *qp, enum path_kind kind, const struct link *link)
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

struct notify_cq route_notify_cq(const struct cq *cq)
{
    return cq && cq->channel && cq->bit < NOTIFY_CQS ? (struct notify_cq){cq->channel->line_number, cq->bit}
                                                     : (struct notify_cq){.channel = NOTIFY_CHANNELS};
}

/* A peer that sends to the QP, or acknowledges, may ring the completion channels of its CQs (local/notify.c). QP lock
 * held, in a rundown section. */
static void offer_channels(const struct qp *qp, struct lane *lane)
{
    struct notify_cq receives = route_notify_cq(qp->recv_cq), sends = route_notify_cq(qp->send_cq);

    if (receives.channel < NOTIFY_CHANNELS)
        local_offer_channel(lane_link(lane), receives.channel);
    if (sends.channel < NOTIFY_CHANNELS)
        local_offer_channel(lane_link(lane), sends.channel);
}

/* SENDs that go by reference are not plain. */
static uint32_t plain_limit(const struct link_properties *link, uint32_t type)
{
    uint32_t limit = min_of(LANE_SMALL, link->reference_from - 1);

    if (type != IBV_QPT_RC)
        return 0;
    return link->fetched_from ? min_of(limit, link->fetched_from - 1) : limit;
}

/* A request may carry an acknowledgement only in the ring of the READ responses: in another ring the acknowledgement
 * could overtake them. Where packets get lost, requests and responses are packets of their own. */
static void set_piggyback(struct qp *qp)
{
    qp->transport.link.piggyback_acks =
        route_of(qp)->lane && route_of(qp)->lane == route_of(qp)->reply_lane && qp->transport.link.reliable;
}

/* Sets the lane for requests, and what the transport may do on it. QP lock held. */
void route_set_lane(struct qp *qp, struct lane *lane)
{
    /* An XRC request may be executed by a process that has no link to this one (engine/xrc/relay.c), and a captured
     * QP sends its bytes. */
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
    qp->transport.link.awaited =
        lane && qp->record->type == IBV_QPT_RC && route_notify_cq(qp->send_cq).channel < NOTIFY_CHANNELS
            ? PACKET_AWAITED
            : 0;
    qp->transport.link.plain_send_up_to =
        lane && !qp->by_packets ? plain_limit(&qp->transport.link, qp->record->type) : 0;
    if (!is_connected(qp->record))
        return;
    if (lane) {
        route_publish_path(qp, path_of(qp, lane_link(lane)), lane_link(lane));
        offer_channels(qp, lane);
    } else {
        route_publish_path(qp, PATH_UNKNOWN, NULL);
    }
}

void route_path_changed(struct qp *qp)
{
    if (is_connected(qp->record) && route_of(qp)->lane)
        route_set_lane(qp, route_of(qp)->lane);
}

void route_note_direct(struct qp *qp)
{
    if (qp->record->path.kind != PATH_MAPPED)
        route_publish_path(qp, PATH_MAPPED, lane_link(route_of(qp)->lane));
}

void route_note_refused(struct qp *qp)
{
    route_publish_path(qp, PATH_RING, lane_link(route_of(qp)->lane));
    qp->record->path.why = PATH_WHY_REFUSED;
}

/* Both QPs of a connection use the same lane, so that packets of either arrive in the order of their writing:
 * an acknowledgement arrives before the request that the program posts in reply. Programs that wait for the
 * completion of their send before they poll for the reply rely on that order. */
struct lane *route_connection_lane(struct link *link, uint32_t qpn, uint32_t dest_qpn)
{
    return link_lane(link, min_of(qpn, dest_qpn));
}

void route_set_reply_lane(struct qp *qp, struct lane *lane)
{
    if (likely(route_of(qp)->reply_lane == lane))
        return;
    route_of(qp)->reply_lane = lane;
    set_piggyback(qp);
    offer_channels(qp, lane);
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
            route_publish_path(qp, PATH_NOBODY, NULL);
            return -EHOSTUNREACH;
        }
        link = route_resolve_or_wait(qp, packet->dest_qpn);
        if (!link) {
            route_publish_path(qp, PATH_SEARCHED, NULL);
            return -EAGAIN;
        }
        route_of(qp)->peer_process = link_process(link);
    }
    route_set_lane(qp, route_connection_lane(link, packet->src_qpn, packet->dest_qpn));
    return 0;
}

/* The packet takes the path of the QP. QP lock held. */
static always_inline int send_by_path(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                                      unsigned gather_count, const struct path_address *to)
{
    struct packet relayed;
    int error;

    if (unlikely(packet->flags & PACKET_FRAME))
        return raw_transmit(qp, packet, gather, gather_count);
    if (to)
        return datagram_transmit(qp, packet, gather, gather_count, to);
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
            route_publish_path(qp, PATH_MAPPED, lane_link(route_of(qp)->arrival_lane));
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
    .goes_by_packets = direct_goes_by_packets,
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
            .plain = &network_plain_ports,
        },
    .prepare = network_prepare,
    .flush_before_end = exit_flush_qp,
    .take_arrived = route_take_arrived,
    .connect = route_connect,
    .disconnect = route_disconnect,
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
    .forget = route_forget,
    .attached = network_attached,
    .detached = network_detached,
    .steers = raw_steers,
    .allocate_number = engine_allocate_number,
    .release_number = local_qpn_release,
};
