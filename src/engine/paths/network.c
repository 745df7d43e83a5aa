/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The network path: packets to other hosts, and with SOFTHCA_PATH=wire all packets. Outgoing packets go to
 * the lanes of src/udp, arriving ones to the QPs. Lost packets are the transport's concern. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/gid_text.h"
#include "base/log.h"
#include "base/rundown.h"
#include "engine/cm/gsi.h"
#include "engine/core/arrivals.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/core/faults.h"
#include "engine/core/route.h"
#include "engine/paths/ack_delay.h"
#include "engine/paths/paths.h"
#include "engine/paths/tx_batch.h"
#include "object/device/device.h"
#include "object/qp/qp_table.h"
#include "segment/drops.h"
#include "segment/segment.h"
#include "udp/udp.h"
#include "wire/mad.h"
#include "wire/opcode.h"

_Static_assert(UDP_SHARDS == LOCAL_SHARDS && UDP_BLOCK_QPNS == LOCAL_BLOCK_QPNS, "shards differ");

/* How long network_open_for_mads() waits for the UDP port. The port may open later: the CM retransmits. */
#define OPEN_LIMIT (1 * NS_PER_S)

static bool forced;

/* QPs that wait for space in a network lane, by the number of the lane. */
static struct blocked_list waiting[UDP_LANES];

_Atomic uint32_t network_batched_lanes;
static _Atomic uint32_t batch_flushes; /* how often those were flushed */

/* Of the batch of packets that is being received, under the udp receive lock: QPs that owe an acknowledgement,
 * lanes (bits) to flush, and whether a MAD was among the packets. */
static struct arrivals arrivals;
static uint32_t to_flush;
static bool mads_came;
/* Destination of the last packet if that was a READ, atomic or FLUSH request; else 0. udp receive lock. */
static uint32_t last_asked;

/* The QP that stays locked from one packet to the next: the packets of a UDP datagram are mostly for one QP,
 * and so is the end of the batch. The lock is released after LOCKED_MAX_PACKETS, because threads that post
 * wait for it. udp receive lock. */
#define LOCKED_MAX_PACKETS 16u
static struct {
    struct qp *qp; /* NULL: none */
    uint32_t qpn;
    unsigned packets;
} locked;

/* Caches of interface_of(): valid for one generation of the device table. udp receive lock. */
static struct address_cache {
    uint64_t generation;
    uint8_t gid[16];
    uint32_t ifindex;
} last_destination, last_source;

bool network_is_forced(void)
{
    return forced;
}

/* --- sending ------------------------------------------------------------------------------------- */

/* For a multicast group of the other address family: the device's first address of that family. */
static bool change_source(const struct qp *qp, struct udp_path *path)
{
    bool is_ipv4 = gid_is_ipv4_mapped(path->destination);
    uint8_t gid[16];
    uint32_t ifindex;

    for (uint32_t i = 0; i < LIMIT_GIDS; i++) {
        if (device_query_gid(&host_devices, qp->context->device, i, gid, &ifindex) == 0 &&
            gid_is_ipv4_mapped(gid) == is_ipv4) {
            memcpy(path->source, gid, sizeof(path->source));
            return true;
        }
    }
    return false;
}

bool network_fill_path(const struct qp *qp, const struct path_address *to, struct udp_path *path)
{
    bool needs_interface = to->is_multicast || gid_is_link_local(to->destination_gid);

    *path = (struct udp_path){
        .flow_label = to->flow_label,
        .ifindex = needs_interface ? to->source_ifindex : 0,
        .traffic_class = to->traffic_class,
        .hop_limit = to->hop_limit,
    };
    memcpy(path->source, to->source_gid, sizeof(path->source));
    memcpy(path->destination, to->destination_gid, sizeof(path->destination));
    return likely(gid_is_ipv4_mapped(path->source) == gid_is_ipv4_mapped(path->destination)) ||
           change_source(qp, path);
}

/* Is the packet a whole request, which the peer acknowledges? */
static bool is_single_request(uint8_t opcode)
{
    uint32_t wanted = OPCODE_REQUEST | OPCODE_ONLY;

    return (opcode_table[opcode].properties & wanted) == wanted &&
           (BTH_SERVICE(opcode) == SERVICE_RC || BTH_SERVICE(opcode) == SERVICE_XRC);
}

static struct tx_batch_counters counters_at(const struct qp *qp, psn_t psn)
{
    return (struct tx_batch_counters){
        .polls = atomic_load_explicit(&progress_application_polls, memory_order_relaxed),
        .flushes = atomic_load_explicit(&batch_flushes, memory_order_relaxed),
        .inflight = psn_diff(psn, qp->record->sender.unacked_psn),
    };
}

/* If the bit is set, whoever clears it flushes the lane behind that, and with it packets that were put there under the
 * lane's lock. */
static void wait_for_flush(const struct udp_lane *lane)
{
    uint32_t bit = 1u << udp_lane_number(lane);

    if (!(atomic_load_explicit(&network_batched_lanes, memory_order_relaxed) & bit))
        atomic_fetch_or_explicit(&network_batched_lanes, bit, memory_order_relaxed);
}

/* The packet is in the QP's lane: it waits there for others, or is flushed when the QP's lock is released. QP lock
 * held. */
static void note_sent(struct qp *qp, const struct packet *packet)
{
    struct qp_route *route = route_of(qp);
    enum tx_batch_event event = is_single_request(packet->opcode) ? TX_BATCH_REQUEST : TX_BATCH_OTHER;
    struct tx_batch_counters counters = counters_at(qp, packet->psn);

    if (tx_batch_step(&route->tx_batch, event, &counters) == TX_BATCH_WAIT) {
        wait_for_flush(route->network_lane);
        return;
    }
    route->kick_network = true;
    if (event == TX_BATCH_REQUEST)
        network_ack_request(qp, qp->record->sender.next + 1);
}

void network_note_requests(struct qp *qp, psn_t first, uint32_t count)
{
    struct qp_route *route = route_of(qp);
    struct tx_batch_counters counters = counters_at(qp, first);
    bool waits = false;

    for (uint32_t i = 0; i < count; i++, counters.inflight++) {
        if (tx_batch_step(&route->tx_batch, TX_BATCH_REQUEST, &counters) == TX_BATCH_WAIT)
            waits = true;
        else
            route->kick_network = true;
    }
    if (waits)
        wait_for_flush(route->network_lane);
    qp->record->traffic.packets_sent += count;
    if (route->kick_network)
        network_ack_request(qp, qp->record->sender.next);
}

void network_flush_lanes(uint32_t lanes)
{
    for (; lanes; lanes &= lanes - 1)
        udp_flush(udp_lane_by_number((unsigned)__builtin_ctz(lanes)));
}

uint32_t network_take_batched(void)
{
    if (likely(!atomic_load_explicit(&network_batched_lanes, memory_order_relaxed)))
        return 0;
    atomic_fetch_add_explicit(&batch_flushes, 1, memory_order_relaxed);
    return atomic_exchange_explicit(&network_batched_lanes, 0, memory_order_relaxed);
}

static int send_packet(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                       unsigned gather_count, const struct udp_path *path)
{
    for (;;) {
        struct udp_lane *lane = route_of(qp)->network_lane;
        int error = udp_send(lane, path, packet, gather, gather_count);
        struct blocked_list *list;

        if (likely(!error)) {
            note_sent(qp, packet);
            qp->record->traffic.packets_sent++;
            return 0;
        }
        if (error != -EAGAIN)
            return error;
        list = &waiting[udp_lane_number(lane)];
        blocked_enter(qp, list);
        /* The lane may have become writable before the QP was in the list. */
        if (udp_is_blocked(lane))
            return -EAGAIN;
        if (route_of(qp)->blocked_in == list)
            blocked_leave(qp);
    }
}

#define ECN_CE 3u /* of the traffic class: congestion experienced (RFC 3168) */

/* As if the network had done it. */
static cold_path int send_with_faults(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                                      unsigned gather_count, struct udp_path *path)
{
    struct packet_fate fate = {.lost = port_is_down(qp)};
    struct packet sent = *packet;
    int error;

    if (fate.lost)
        route_of(qp)->fate = CAPTURE_LOST;
    else if (inject_has(INJECT_PACKET))
        fate = packet_fault(qp, packet);
    if (fate.broken)
        sent.flags |= PACKET_BAD_ICRC;
    if (fate.marked)
        path->traffic_class |= ECN_CE;
    if (fate.lost || fate.wait) {
        for (unsigned i = 0; !fate.lost && i <= fate.twice; i++)
            held_packets_add(qp, NULL, path, &sent, gather, gather_count, &fate);
        note_sent(qp, packet);
        return 0;
    }
    if (fate.twice && !send_packet(qp, &sent, gather, gather_count, path))
        fate.twice = false;
    error = send_packet(qp, &sent, gather, gather_count, path);
    if (error == -EAGAIN)
        packet_fault_keep(qp, packet, &fate);
    if (!error)
        held_packets_passed(qp);
    return error;
}

int network_send(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count, const struct path_address *to)
{
    struct udp_path path;

    if (unlikely(!network_fill_path(qp, to, &path)))
        return -EHOSTUNREACH;
    if (unlikely(inject_loaded() != NULL))
        return send_with_faults(qp, packet, gather, gather_count, &path);
    return send_packet(qp, packet, gather, gather_count, &path);
}

/* udp_ops.writable: runs waiting QPs until the lane is full again. A QP that has to wait again goes to the end
 * of the list. */
static void on_writable(struct udp_lane *lane)
{
    struct blocked_list *list = &waiting[udp_lane_number(lane)];

    rundown_enter();
    while (!udp_is_blocked(lane) && blocked_run_next(list) != BLOCKED_NONE) {
    }
    rundown_exit();
}

/* A MAD that cannot be sent now is dropped: the CM retransmits. */
void network_send_mad(const struct cm_path *to, const uint8_t mad[MAD_LENGTH])
{
    static _Atomic uint32_t psn;
    const struct iovec payload = {(void *)(uintptr_t)mad, MAD_LENGTH};
    struct packet packet = {
        .opcode = SERVICE_UD | OP_SEND_ONLY,
        .pkey = MAD_PKEY,
        .dest_qpn = MAD_QPN,
        .src_qpn = MAD_QPN,
        .qkey = MAD_QKEY,
        .payload_length = MAD_LENGTH,
    };
    struct udp_path path = {
        .flow_label = to->flow_label,
        .traffic_class = to->traffic_class,
        .hop_limit = to->hop_limit,
    };
    char gid[GID_TEXT];
    uint32_t ifindex;
    int error;

    packet.psn = psn_make(atomic_fetch_add_explicit(&psn, 1, memory_order_relaxed));
    if (gid_is_link_local(to->remote_gid) && device_table_is_local(&host_devices, to->local_gid, &ifindex))
        path.ifindex = ifindex;
    memcpy(path.source, to->local_gid, sizeof(path.source));
    memcpy(path.destination, to->remote_gid, sizeof(path.destination));
    error = udp_send(udp_lane(MAD_QPN), &path, &packet, &payload, 1);
    if (error)
        log_info("CM message (MAD) to %s dropped: %s", gid_text(to->remote_gid, gid), strerror(-error));
}

void network_flush_mads(void)
{
    udp_flush(udp_lane(MAD_QPN));
}

/* --- receiving ----------------------------------------------------------------------------------- */

/* The interface of this host that has that address; 0: none. */
static uint32_t interface_of(struct address_cache *last, const uint8_t gid[16])
{
    uint64_t generation = device_table_generation(&host_devices);

    if (last->generation != generation || memcmp(last->gid, gid, 16) != 0) {
        last->generation = generation;
        memcpy(last->gid, gid, 16);
        if (!device_table_is_local(&host_devices, gid, &last->ifindex))
            last->ifindex = 0;
    }
    return last->ifindex;
}

/* Within a host datagrams come over links, unless SOFTHCA_PATH=wire: any program can send one to the port. */
static bool is_from_this_host(const struct packet *packet)
{
    return !forced && interface_of(&last_source, packet->grh.source);
}

/* A connected QP takes packets only from the addresses of its primary path (IBA 9.6.1.2). */
static bool is_from_peer(const struct qp *qp, const struct packet *packet)
{
    const struct path_address *path = &qp->record->attributes.path;

    return route_of(qp)->by_network && memcmp(packet->grh.source, path->destination_gid, 16) == 0 &&
           memcmp(packet->grh.destination, path->source_gid, 16) == 0;
}

static void note_kick(const struct qp_kick *kick)
{
    const struct qp_kick others = {.lane = kick->lane, .reply_lane = kick->reply_lane};

    if (kick->network_lane)
        to_flush |= 1u << udp_lane_number(kick->network_lane);
    if (unlikely(kick->lane || kick->reply_lane)) /* a UD QP sends on lanes, too */
        route_ring(&others);
}

static void unlock_qp(void)
{
    struct qp *qp = locked.qp;
    struct qp_kick kick;

    if (!qp)
        return;
    locked.qp = NULL;
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    note_kick(&kick);
}

/* NULL: no QP has that number. */
static struct qp *lock_number(uint32_t qpn)
{
    if (locked.qp && locked.qpn == qpn && locked.packets < LOCKED_MAX_PACKETS) {
        locked.packets++;
        return locked.qp;
    }
    unlock_qp();
    locked.qp = qp_lock_number(qpn);
    locked.qpn = qpn;
    locked.packets = 1;
    return locked.qp;
}

static void lock_qp(struct qp *qp)
{
    if (locked.qp == qp)
        return;
    unlock_qp();
    lock_acquire(&qp->lock);
    locked.qp = qp;
    locked.packets =
        LOCKED_MAX_PACKETS; /* lock_number() looks the QP up anew: its number may have been released */
}

static void receive_multicast(struct qp *qp, void *argument)
{
    const struct packet *packet = argument;

    if (port_is_down(qp))
        return;
    qp->record->traffic.packets_received++;
    arrivals_receive_multicast(qp, packet,
                               packet->src_qpn == qp->ibv.qp_num && gid_is_of_host(packet->grh.source));
}

/* udp_ops.packet */
static void on_packet(struct packet *packet, const struct udp_arrival *arrival)
{
    uint32_t properties = opcode_table[packet->opcode].properties;
    bool request =
        (properties & OPCODE_REQUEST) || !properties; /* 0: an undefined opcode, NAKed as a request */
    bool question = request && (properties & (OPCODE_READ | OPCODE_ATOMIC | OPCODE_FLUSH));
    struct qp *qp;

    if (unlikely(question && arrival->follows && last_asked == packet->dest_qpn))
        packet->syndrome = PACKET_TOGETHER;
    last_asked = question ? packet->dest_qpn : 0;

    progress_count_packets(1);
    if (unlikely(gid_is_multicast(packet->grh.destination))) {
        unlock_qp();
        packet->dest_ifindex = arrival->ifindex;
        if (capture_is_attached() && packet->dest_qpn == PSN_MASK && !is_from_this_host(packet))
            capture_group_arrived(packet, gid_is_of_host(packet->grh.source));
        if (packet->dest_qpn == PSN_MASK && !is_from_this_host(packet) &&
            !multicast_deliver(packet->grh.destination, receive_multicast, packet))
            stray_note(STRAY_GROUP, packet, false);
        return;
    }
    if (unlikely(packet->dest_qpn == MAD_QPN)) {
        unlock_qp();
        gsi_receive_from_network(packet);
        mads_came = true;
        return;
    }
    packet->dest_ifindex = interface_of(&last_destination, packet->grh.destination);
    qp = lock_number(packet->dest_qpn);
    if (unlikely(!qp || !arrival_is_accepted(qp, packet, request))) {
        arrival_refused(qp, packet);
        return;
    }
    if (likely(!port_is_down(qp)) &&
        likely(qp->record->type == IBV_QPT_UD ? !is_from_this_host(packet) : is_from_peer(qp, packet))) {
        qp->record->traffic.packets_received++;
        if (unlikely(arrival->congested))
            congestion_notify(qp, packet, arrival);
        if (arrival_receive(qp, packet, request) == ARRIVAL_ACK_DUE)
            arrivals_add(&arrivals, qp);
    }
}

/* udp_ops.congestion */
static void on_congestion(const struct packet *packet)
{
    struct qp *qp = lock_number(packet->dest_qpn);

    if (!qp || !is_connected(qp->record) || !is_from_peer(qp, packet))
        return;
    if (unlikely(qp->by_packets & QP_CAPTURED))
        capture_cnp_arrived(qp, &packet->grh);
    transport_congested(&qp->transport);
}

static __thread bool flushing_delayed __attribute__((tls_model("initial-exec")));

/* udp_ops.batch_end */
static void on_batch_end(void)
{
    /* The helper thread, too, may have completed a receive for which a thread of the program sleeps. */
    bool sleeps = progress_expects_reply(), polled = progress_is_application();
    bool may_delay = ack_delay_may_begin(arrivals.count, polled, sleeps);
    struct qp *qp, *unanswered = ack_delay_ends(polled, flushing_delayed, helper_saw_arming())
                                     ? network_ack_take()
                                     : NULL;

    if (unlikely(unanswered != NULL)) {
        lock_qp(unanswered);
        network_ack_end(unanswered);
    }
    while ((qp = arrivals_next(&arrivals))) {
        lock_qp(qp);
        if (arrivals_take_due(qp) && (!may_delay || !network_ack_delay(qp)))
            route_run(qp);
    }
    unlock_qp();
    network_flush_lanes(to_flush | network_take_batched());
    to_flush = 0;
    if (unlikely(mads_came)) {
        mads_came = false;
        gsi_flush();
    }
}

void network_flush_delayed(void)
{
    network_flush_batched();
    if (likely(!network_ack_is_pending()))
        return;
    rundown_enter();
    flushing_delayed = true;
    udp_end_batch();
    flushing_delayed = false;
    rundown_exit();
}

/* udp_ops.is_ours */
static bool is_ours(uint32_t qpn)
{
    /* QP1 belongs to no process: the port owner receives its MADs. */
    return qpn == MAD_QPN || qp_table_has_block(qpn) || qpn == PSN_MASK;
}

/* udp_ops.unclaimed */
static void on_unclaimed(const struct packet *packet)
{
    if ((opcode_table[packet->opcode].properties & OPCODE_REQUEST) &&
        BTH_SERVICE(packet->opcode) != SERVICE_UD)
        stray_note(STRAY_UNCLAIMED, packet, gid_is_of_host(packet->grh.source));
}

/* --- the port ------------------------------------------------------------------------------------ */

/* IPv6 cannot send to multicast groups over lo. */
bool network_has_groups(const struct qp *qp)
{
    return !device_is_loopback(qp->context->device);
}

/* A datagram QP can receive from the network without having sent, a connected QP if its peer is on another
 * host. A device on lo receives nothing from the network. */
static bool needs_port(const struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    uint32_t ifindex;

    if (!(mask & IBV_QP_STATE) || attributes->qp_state != IBV_QPS_RTR)
        return false;
    if (forced || qp->record->type == IBV_QPT_UD)
        return forced || !device_is_loopback(qp->context->device);
    return (mask & IBV_QP_AV) && attributes->ah_attr.is_global &&
           !device_table_is_local(&host_devices, attributes->ah_attr.grh.dgid.raw, &ifindex);
}

/* Without the port the QP still works on this host. */
static void open_port(const struct qp *qp)
{
    uint32_t block = qp->ibv.qp_num / LOCAL_BLOCK_QPNS;
    int error;

    if (udp_serves(block))
        return;
    error = udp_serve(block, local_block_socket(block));
    if (error)
        log_warn("QP 0x%06x cannot receive from the network (UDP port 4791): %s; run softhca doctor",
                 qp->ibv.qp_num, strerror(-error));
}

void network_open_for_mads(uint32_t block)
{
    if (!udp_serves(block))
        (void)udp_serve_within(block, local_block_socket(block), OPEN_LIMIT); /* logs failures */
}

void network_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    if (qp->record->type == IBV_QPT_RAW_PACKET)
        raw_prepare(qp, attributes, mask);
    else if (needs_port(qp, attributes, mask))
        open_port(qp);
}

void network_attached(struct qp *qp, const uint8_t gid[16])
{
    if (!network_has_groups(qp) || !forced)
        engine_announce_multicast();
    if (!network_has_groups(qp))
        return;
    open_port(qp);
    (void)udp_join(gid, device_ifindex(qp->context->device)); /* logs failures */
}

void network_detached(struct qp *qp, const uint8_t gid[16])
{
    if (network_has_groups(qp))
        udp_leave(gid, device_ifindex(qp->context->device));
}

static const struct udp_ops ops = {
    .packet = on_packet,
    .congestion = on_congestion,
    .batch_end = on_batch_end,
    .writable = on_writable,
    .is_ours = is_ours,
    .is_proof = local_is_block_socket,
    .unclaimed = on_unclaimed,
};

static void clear(void)
{
    for (unsigned i = 0; i < UDP_LANES; i++)
        blocked_list_init(&waiting[i], NULL);
    arrivals.count = 0;
    to_flush = 0;
    mads_came = false;
    last_asked = 0;
    locked.qp = NULL;
    network_ack_start();
    (void)network_take_batched();
    last_destination.generation = last_source.generation = 0;
}

void network_start(void)
{
    const char *path = secure_getenv("SOFTHCA_PATH");
    struct udp_options options;

    forced = path && strcmp(path, "wire") == 0;
    if (path && !forced && strcmp(path, "auto") != 0)
        log_warn("SOFTHCA_PATH=%s: invalid (valid: auto, wire); using auto", path);
    options = (struct udp_options){.multicast_loops = forced, .counters = &segment_header()->network};
    clear();
    udp_start(&ops, &options);
}

void network_after_fork_in_child(void)
{
    udp_after_fork_in_child();
    clear();
}
