/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The link: carries packets as structures, or as RoCEv2 bytes with an ICRC, at the rate of the destination's adapter
 * and through a queue of limited length. */
#include "sim_events.h"

#include <errno.h>
#include <stdio.h>

#include "wire/codec.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

/* Around the UDP payload: Ethernet with FCS, preamble and gap, IPv4, UDP. */
#define FRAME_LENGTH (38 + 20 + 8)
/* At most one congestion notification per QP in this time, as adapters do. */
#define CONGESTION_INTERVAL (50 * NS_PER_US)

bool sim_chance(struct sim *sim, unsigned percent)
{
    return percent && sim_below(sim, 100) < percent;
}

struct sim_qp *sim_find_qp(struct sim *sim, uint32_t qpn)
{
    for (unsigned i = 0; i < sim->qp_count; i++) {
        if (sim->qps[i]->record.qpn == qpn)
            return sim->qps[i];
    }
    return NULL;
}

/* --- bytes ---------------------------------------------------------------------------------------- */

static struct icrc_path path_of(const struct sim *sim, const struct sim_node *from, const struct sim_node *to,
                                uint16_t identification)
{
    struct icrc_path path = {
        .source_port = 0xc000,
        .destination_port = ROCE_UDP_PORT,
        .identification = identification,
        .dont_fragment = true,
    };

    if (!sim->link.ipv6)
        path.source[10] = path.source[11] = path.destination[10] = path.destination[11] = 0xff;
    path.source[15] = (uint8_t)(from->number + 1);
    path.destination[15] = (uint8_t)(to->number + 1);
    return path;
}

static void encode(struct sim *sim, struct sim_event *event)
{
    struct icrc_path path = path_of(sim, event->from, event->to, event->identification);
    const struct packet *packet = &event->packet;
    uint32_t length = codec_udp_payload_length(packet), covered = length - ICRC_LENGTH;
    unsigned char *bytes = calloc(1, length);
    size_t headers = codec_encode(packet, bytes);
    uint32_t crc;

    assert_int_equal(headers, opcode_table[packet->opcode].header_length);
    assert_false(packet->flags & (PACKET_HAS_ACK | PACKET_BY_REFERENCE | PACKET_DROPPED));
    if (packet->payload_length)
        memcpy(bytes + headers, event->bytes, packet->payload_length);
    crc = icrc_add_headers(icrc_begin(&path, length), bytes, headers);
    icrc_store(icrc_add(crc, bytes + headers, covered - headers), bytes + covered);
    free(event->bytes);
    event->bytes = bytes;
    event->length = length;
}

/* Flips up to three bits, which an ICRC always detects, except bits that routers may change. */
static void corrupt(struct sim *sim, struct sim_event *event)
{
    for (unsigned bits = 1 + sim_below(sim, 3); bits; bits--)
        event->bytes[sim_below(sim, event->length)] ^= (unsigned char)(1u << sim_below(sim, 8));
}

/* false: the packet is damaged. */
static bool decode(struct sim *sim, struct sim_event *event)
{
    struct icrc_path path = path_of(sim, event->from, event->to, event->identification);
    struct packet_grh grh = event->packet.grh;

    if (!icrc_check(&path, event->bytes, event->length))
        return false;
    assert_int_equal(codec_decode(event->bytes, event->length - ICRC_LENGTH, &event->packet), 0);
    event->packet.grh = grh; /* of the IP header */
    return true;
}

/* --- sending -------------------------------------------------------------------------------------- */

/* Enters the queue in front of the adapter. false: it is full. */
static bool queue_up(struct sim *sim, struct sim_event *event, ns_t *delay, bool may_be_dropped)
{
    const struct sim_link *link = &sim->link;
    ns_t arrival = sim->now + *delay;
    struct sim_node *to = event->to;
    uint64_t queued;

    if (!link->rate)
        return true;
    to->free_at = max_of(to->free_at, arrival);
    queued = (to->free_at - arrival) * link->rate / 1000;
    if (may_be_dropped && link->queue && queued + event->length > link->queue)
        return false;
    event->marked = link->mark && queued > link->mark;
    to->free_at += (event->length + FRAME_LENGTH) * 1000ull / link->rate;
    *delay = to->free_at - sim->now;
    return true;
}

void sim_free_event(struct sim_event *event)
{
    free(event->bytes);
    free(event->reference);
}

static struct sim_event event_of(struct sim_qp *from, struct sim_node *to, const struct packet *packet,
                                 const struct iovec *gather, unsigned count)
{
    struct sim *sim = from->node->sim;
    struct sim_event event = {
        .kind = EVENT_PACKET, .qp = from, .from = from->node, .to = to, .packet = *packet};

    event.packet.reference_epoch = from->node->reference_epoch;
    for (unsigned i = 0; i < count; i++)
        event.length += (uint32_t)gather[i].iov_len;
    assert_true((packet->flags & PACKET_BY_REFERENCE) ? !count : event.length == packet->payload_length);
    if (count) {
        size_t at = 0;

        event.bytes = malloc(event.length ? event.length : 1);
        for (unsigned i = 0; i < count; i++) {
            memcpy(event.bytes + at, gather[i].iov_base, gather[i].iov_len);
            at += gather[i].iov_len;
        }
    }
    if (packet->reference_count) {
        event.reference = malloc(packet->reference_count * sizeof(*event.reference));
        memcpy(event.reference, packet->reference, packet->reference_count * sizeof(*event.reference));
    }
    if (sim->link.encoded) {
        event.identification = (uint16_t)sim->packets;
        encode(sim, &event);
    }
    return event;
}

struct sim_event sim_copy_of_event(const struct sim_event *event)
{
    struct sim_event copy = *event;

    if (event->bytes) {
        copy.bytes = malloc(event->length ? event->length : 1);
        memcpy(copy.bytes, event->bytes, event->length);
    }
    copy.reference = NULL; /* of reliable links, where nothing is copied */
    return copy;
}

void sim_put_on_link(struct sim *sim, struct sim_event event, ns_t delay)
{
    event.qp->in_flight++;
    sim_push_event(sim, delay, event);
}

bool sim_may_hit(struct sim_qp *from, const struct packet *packet)
{
    struct sim *sim = from->node->sim;
    struct sim_qp *sender =
        opcode_table[packet->opcode].properties & OPCODE_REQUEST ? from : sim_find_qp(sim, packet->dest_qpn);

    if (!sim->link.patience || !sender || !is_reliable(&sender->record))
        return true;
    if (!psn_equal(sender->hits_at, sender->record.sender.unacked_psn)) {
        sender->hits_at = sender->record.sender.unacked_psn;
        sender->hits = 0;
    }
    if (sender->hits >= sim->link.patience)
        return false;
    sender->hits++;
    return true;
}

static void trace(const struct sim *sim, const struct packet *packet)
{
    fprintf(stderr, "# %8llu  %u -> %u  %-32s psn %u flags %u syndrome %02x length %u\n",
            (unsigned long long)sim->now, packet->src_qpn, packet->dest_qpn,
            opcode_table[packet->opcode].name, packet->psn.value, packet->flags, packet->syndrome,
            packet->payload_length);
}

/* Sends on a link that may lose the packet. */
static void send_lossy(struct sim_qp *qp, struct sim_event event, uint64_t number)
{
    struct sim *sim = qp->node->sim;
    const struct sim_link *link = &sim->link;
    const struct packet *packet = &event.packet;
    ns_t delay = link->delay;
    bool lost = (number < 64 && (link->loss_mask >> number & 1)) || (sim->loses && sim->loses(sim, packet)) ||
                (sim_chance(sim, link->loss_percent) && sim_may_hit(qp, packet));

    if (!lost && !queue_up(sim, &event, &delay, true)) {
        lost = sim_may_hit(qp, packet) || !queue_up(sim, &event, &delay, false);
        sim->overflowed += lost;
    }
    if (lost) {
        sim->lost++;
        sim_free_event(&event);
        return;
    }
    if (sim_chance(sim, link->corrupt_percent) && sim_may_hit(qp, packet))
        corrupt(sim, &event);
    if (link->jitter)
        delay += sim_below(sim, (uint32_t)link->jitter);
    if (sim_chance(sim, link->reorder_percent) && sim_may_hit(qp, packet)) {
        delay += link->delay * (1 + sim_below(sim, 8));
        sim->reordered++;
    }
    if (sim_chance(sim, link->duplicate_percent) && sim_may_hit(qp, packet)) {
        sim_put_on_link(sim, sim_copy_of_event(&event), delay + sim_below(sim, 100000));
        sim->duplicated++;
    }
    sim_put_on_link(sim, event, delay);
}

int sim_port_send(struct transport_qp *transport, const struct packet *packet, const struct iovec *gather,
                  unsigned count, const struct path_address *to)
{
    struct sim_qp *qp = container_of(transport, struct sim_qp, transport), *peer;
    struct sim *sim = qp->node->sim;
    const struct sim_link *link = &sim->link;
    uint64_t number = sim->packets++;
    struct sim_event event;

    if (sim->trace)
        trace(sim, packet);
    if (link->capacity && qp->in_flight >= link->capacity) {
        qp->blocked = true;
        return -EAGAIN;
    }
    if (!link->properties.reliable && !sim->unjudged)
        judge_sent(qp, packet, gather, count);
    if (link->blackhole)
        return link->properties.reliable ? -EHOSTUNREACH : (sim->lost++, 0);
    peer = sim_find_qp(sim, packet->dest_qpn);
    event = event_of(qp, peer ? peer->node : &sim->node[!qp->node->number], packet, gather, count);
    if (qp->loses)
        sim_send_losing(qp, event);
    else if (link->properties.reliable)
        sim_put_on_link(sim, event, link->delay);
    else
        send_lossy(qp, event, number);
    return 0;
}

/* The link stores a notice that it has no room for. */
void sim_port_send_notice(struct transport_qp *transport, const struct packet *packet)
{
    struct sim *sim = container_of(transport, struct sim_qp, transport)->node->sim;
    uint32_t capacity = sim->link.capacity;

    assert_true(sim->link.properties.reliable);
    sim->link.capacity = 0;
    (void)sim_port_send(transport, packet, NULL, 0, NULL);
    sim->link.capacity = capacity;
}

/* --- delivery ------------------------------------------------------------------------------------- */

/* The drop notice that the engine sends for a request which the QP's state dropped. */
static void say_dropped(struct sim_qp *by, struct sim_node *to, const struct packet *packet)
{
    struct sim *sim = by->node->sim;
    struct packet word = {
        .opcode = OP_ACKNOWLEDGE,
        .flags = PACKET_DROPPED,
        .dest_qpn = packet->src_qpn,
        .src_qpn = packet->dest_qpn,
        .psn = packet->psn,
    };

    if (!sim->link.properties.reliable || !(opcode_table[packet->opcode].properties & OPCODE_REQUEST) ||
        (!is_reliable(&by->record) && !(packet->flags & PACKET_BY_REFERENCE)))
        return;
    sim->silenced++;
    sim_put_on_link(sim, event_of(by, to, &word, NULL, 0), sim->link.delay);
}

/* The destination's adapter notifies the sender of packets marked in a long queue (RoCEv2 congestion management, IBA
 * annex A17.9). */
static void notify_congestion(struct sim *sim, const struct sim_event *event)
{
    if (!event->marked || sim->now < event->qp->congestion_at)
        return;
    event->qp->congestion_at = sim->now + CONGESTION_INTERVAL;
    sim_push_event(sim, sim->link.delay, (struct sim_event){.kind = EVENT_CONGESTION, .qp = event->qp});
}

void sim_congestion(struct sim_event *event)
{
    event->qp->congestions++;
    transport_congested(&event->qp->transport);
}

void sim_deliver(struct sim *sim, struct sim_event *event)
{
    struct packet *packet = &event->packet;
    struct sim_qp *qp;

    event->qp->in_flight--;
    if (event->qp->blocked) {
        event->qp->blocked = false;
        sim_kick_later(event->qp);
    }
    if (sim->link.encoded && !decode(sim, event)) {
        sim->corrupted++;
        sim_free_event(event);
        return;
    }
    notify_congestion(sim, event);
    if (!sim->link.encoded)
        packet->payload = event->bytes;
    packet->reference = event->reference;
    if (sim->on_packet)
        sim->on_packet(sim, packet);
    sim->delivered[packet->opcode & 31]++;
    sim->piggybacked += !!(packet->flags & PACKET_HAS_ACK);
    sim->arrives_from = event->from;
    qp = sim_find_qp(sim, packet->dest_qpn);
    if (qp && !sim->link.properties.reliable)
        judge_received(qp, packet);
    if (qp && event->marked && opcode_is_read_response(packet->opcode))
        transport_response_congested(&qp->transport);
    if (qp && !sim_is_word(qp, packet) && !transport_receive(&qp->transport, packet))
        say_dropped(qp, event->from, packet);
    if (qp)
        sim_received_losing(qp);
    if (qp)
        sim_settle(qp, qp->lazy_ack);
    sim_free_event(event);
}
