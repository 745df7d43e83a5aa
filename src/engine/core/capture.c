/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/capture_attached.h"

#include <string.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "udp/udp.h"
#include "wire/cm_mad.h"
#include "wire/codec.h"
#include "wire/mad.h"
#include "wire/opcode.h"

/* --- the ring -------------------------------------------------------------------------------------------- */

/* The tool may write anything into the header, so positions are reduced to places in the ring that hold the entry. */
static void reserve(struct capture_slot *slot)
{
    const struct capture *capture = slot->capture;
    struct capture_header *header = capture->header;
    uint64_t head = atomic_load_explicit(&header->head, memory_order_relaxed), tail;
    uint32_t at, pad;

    slot->record = NULL;
    if (slot->size > capture->ring_bytes / 4)
        return;
    do {
        at = (uint32_t)(head & (capture->ring_bytes - 1)) & ~(CAPTURE_ALIGNMENT - 1);
        pad = slot->size > capture->ring_bytes - at ? capture->ring_bytes - at : 0;
        tail = atomic_load_explicit(&header->tail,
                                    memory_order_acquire); /* partner: the tool, which has zeroed */
        slot->end = head + pad + slot->size;
        if (slot->end - tail > capture->ring_bytes)
            return;
    } while (!atomic_compare_exchange_weak_explicit(&header->head, &head, slot->end, memory_order_release,
                                                    memory_order_relaxed));
    slot->record = (struct capture_record *)(void *)(capture->ring + (pad ? 0 : at));
    if (pad) {
        struct capture_record *padding = (struct capture_record *)(void *)(capture->ring + at);

        padding->size = pad;
        atomic_store_explicit(&padding->state, CAPTURE_VOID, memory_order_release);
    }
}

static uint32_t captured_of(const struct capture *capture, uint32_t length, uint32_t mtu)
{
    if (!mtu || length <= mtu)
        return min_of(length, capture->snap);
    return length / mtu * min_of(mtu, capture->snap) + min_of(length % mtu, capture->snap);
}

static void begin(struct capture_slot *slot, uint32_t length, uint32_t mtu)
{
    const uint32_t bytes = (uint32_t)sizeof(struct capture_record) + captured_of(slot->capture, length, mtu);

    slot->size = (bytes + CAPTURE_ALIGNMENT - 1) & ~(CAPTURE_ALIGNMENT - 1);
    reserve(slot);
    slot->time = sys_now();
}

static void count_drop(const struct capture_slot *slot)
{
    atomic_fetch_add_explicit(&slot->capture->header->dropped, 1, memory_order_relaxed);
}

static void commit(const struct capture_slot *slot, const struct capture_record *filled)
{
    const size_t behind_state = offsetof(struct capture_record, size);

    memcpy((char *)slot->record + behind_state, (const char *)filled + behind_state,
           sizeof(*filled) - behind_state);
    atomic_store_explicit(&slot->record->state, CAPTURE_PACKET, memory_order_release);
}

void capture_cancel(struct capture_slot *slot)
{
    uint64_t end = slot->end;

    if (!slot->record)
        return;
    /* Mostly nobody has reserved after it: a full lane is tried again and again. */
    if (atomic_compare_exchange_strong_explicit(&slot->capture->header->head, &end, end - slot->size,
                                                memory_order_release, memory_order_relaxed))
        return;
    slot->record->size = slot->size;
    atomic_store_explicit(&slot->record->state, CAPTURE_VOID, memory_order_release);
}

/* What this process has sent to itself is recorded once. */
static void note_sender(struct capture *capture, uint32_t block)
{
    _Atomic uint64_t *word = &capture->blocks[block % CAPTURE_BLOCKS / 64];
    const uint64_t bit = 1ull << block % 64;

    if (!(atomic_load_explicit(word, memory_order_relaxed) & bit))
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
}

static bool is_sender(const struct capture *capture, uint32_t block)
{
    const _Atomic uint64_t *word = &capture->blocks[block % CAPTURE_BLOCKS / 64];

    return atomic_load_explicit(word, memory_order_relaxed) >> block % 64 & 1;
}

/* --- payload --------------------------------------------------------------------------------------------- */

/* Copies the first `snap` bytes of each `mtu` bytes. Returns how many. */
static uint32_t copy_payload(const struct capture *capture, uint8_t *to, uint32_t room, uint32_t mtu,
                             const struct iovec *from, unsigned count)
{
    uint32_t in_packet = 0, copied = 0;

    for (unsigned i = 0; i < count; i++) {
        const uint8_t *bytes = from[i].iov_base;
        size_t left = from[i].iov_len;

        while (left) {
            uint32_t part = mtu ? (uint32_t)min_of(left, (size_t)(mtu - in_packet)) : (uint32_t)left;
            uint32_t wanted = in_packet < capture->snap ? min_of(part, capture->snap - in_packet) : 0;

            wanted = min_of(wanted, room - copied);
            memcpy(to + copied, bytes, wanted);
            copied += wanted;
            bytes += part;
            left -= part;
            in_packet += part;
            if (in_packet == mtu)
                in_packet = 0;
        }
    }
    return copied;
}

/* Where the payload of a packet that is sent lies; one by reference names memory of this process. */
static unsigned payload_of(const struct packet *packet, const struct iovec *gather, unsigned gather_count,
                           struct iovec own[PACKET_REFERENCES], const struct iovec **ret)
{
    *ret = gather;
    if (!(packet->flags & PACKET_BY_REFERENCE) || !packet->reference_count)
        return gather_count;
    for (unsigned i = 0; i < packet->reference_count && i < PACKET_REFERENCES; i++)
        own[i] = (struct iovec){
            (void *)(uintptr_t)packet->reference[i].address, // NOLINT(performance-no-int-to-ptr)
            packet->reference[i].length};
    *ret = own;
    return min_of(packet->reference_count, (uint32_t)PACKET_REFERENCES);
}

/* --- records --------------------------------------------------------------------------------------------- */

static void fill(const struct capture_slot *slot, const struct packet *packet, struct capture_record *record)
{
    *record = (struct capture_record){
        .size = slot->size,
        .time = slot->time,
        .opcode = packet->opcode,
        .packet_flags = packet->flags,
        .pkey = packet->pkey,
        .dest_qpn = packet->dest_qpn,
        .src_qpn = packet->src_qpn,
        .psn = packet->psn.value,
        .ack_psn = packet->ack_psn.value,
        .syndrome = packet->syndrome,
        .flush = packet->flush,
        .msn = packet->msn,
        .imm_data = packet->imm_data,
        .invalidate_rkey = packet->invalidate_rkey,
        .qkey = packet->qkey,
        .rkey = packet->rkey,
        .dma_length = packet->dma_length,
        .payload_length = packet->payload_length,
        .address = packet->address,
        .swap_add = packet->swap_add,
        .compare = packet->compare,
        .original = packet->original,
    };
}

static uint32_t path_mtu(const struct qp *qp)
{
    return is_connected(qp->record) ? 128u << qp->record->attributes.path_mtu : 0;
}

static void fill_link(const struct qp *qp, const struct packet *packet, struct capture_record *record)
{
    const struct link_properties *link = &qp->transport.link;

    record->mtu = path_mtu(qp);
    if (!is_connected(qp->record) || !link->local)
        return;
    record->flags |= CAPTURE_BY_LINK;
    record->link_mtu = packet->flags & PACKET_BY_REFERENCE ? link->reference_mtu : link->mtu;
    if (BTH_OPERATION(packet->opcode) == OP_READ_REQUEST && (packet->syndrome & PACKET_BY_PATH_MTU))
        record->link_mtu = record->mtu;
    if (qp->record->type == IBV_QPT_UC)
        record->flags |= CAPTURE_UNACKED;
}

static void fill_path(struct capture_record *record, const struct path_address *path, bool arrived)
{
    memcpy(record->source, arrived ? path->destination_gid : path->source_gid, sizeof(record->source));
    memcpy(record->destination, arrived ? path->source_gid : path->destination_gid,
           sizeof(record->destination));
    record->flow_label = path->flow_label;
    record->traffic_class = path->traffic_class;
    record->hop_limit = path->hop_limit;
    record->service_level = path->service_level;
}

static void fill_grh(struct capture_record *record, const struct packet_grh *grh)
{
    memcpy(record->source, grh->source, sizeof(record->source));
    memcpy(record->destination, grh->destination, sizeof(record->destination));
    record->flow_label = grh->flow_label;
    record->traffic_class = grh->traffic_class;
    record->hop_limit = grh->hop_limit;
    record->service_level = grh->service_level;
}

/* --- packets that are sent ------------------------------------------------------------------------------- */

void capture_begin(struct qp *qp, uint32_t payload_length, struct capture_slot *ret_slot)
{
    ret_slot->capture = capture_current();
    route_of(qp)->fate = CAPTURE_PASSED;
    note_sender(capture_current(), qp->ibv.qp_num / LOCAL_BLOCK_QPNS);
    begin(ret_slot, payload_length, path_mtu(qp));
}

void capture_sent(struct qp *qp, struct capture_slot *slot, const struct packet *packet,
                  const struct iovec *gather, unsigned gather_count, const struct path_address *to)
{
    struct iovec own[PACKET_REFERENCES];
    struct capture_record record;
    const struct iovec *payload;
    unsigned count;

    if (!slot->record) {
        count_drop(slot);
        return;
    }
    fill(slot, packet, &record);
    fill_link(qp, packet, &record);
    fill_path(&record, to ? to : &qp->record->attributes.path, false);
    record.sender_block = qp->ibv.qp_num / LOCAL_BLOCK_QPNS;
    record.fate = route_of(qp)->fate;
    if (!(record.flags & CAPTURE_BY_LINK) && !(packet->flags & PACKET_FRAME))
        record.source_port = udp_source_port(route_of(qp)->network_lane, record.destination);
    count = payload_of(packet, gather, gather_count, own, &payload);
    record.captured = copy_payload(slot->capture, (uint8_t *)(slot->record + 1),
                                   slot->size - (uint32_t)sizeof(record), record.mtu, payload, count);
    commit(slot, &record);
}

void capture_sent_notice(struct qp *qp, const struct packet *packet)
{
    struct capture_slot slot;

    capture_begin(qp, 0, &slot);
    capture_sent(qp, &slot, packet, NULL, 0, NULL);
}

/* --- packets that arrive --------------------------------------------------------------------------------- */

static bool is_from_host(const struct qp *qp, const struct packet *packet)
{
    if (is_connected(qp->record))
        return !route_of(qp)->by_network || gid_is_of_host(qp->record->attributes.path.destination_gid);
    return gid_is_of_host(packet->grh.source);
}

/* On the network, headers of connected QPs do not have it. */
static uint32_t source_qpn(const struct qp *qp, const struct packet *packet)
{
    return is_connected(qp->record) ? qp->record->attributes.dest_qpn : packet->src_qpn;
}

void capture_arriving(struct qp *qp, const struct packet *packet)
{
    struct capture_slot *slot = &route_of(qp)->arriving;

    slot->capture = capture_current();
    slot->record = NULL;
    /* What this process has sent is recorded already. */
    if (is_sender(slot->capture, source_qpn(qp, packet) / LOCAL_BLOCK_QPNS) && is_from_host(qp, packet)) {
        slot->capture = NULL;
        return;
    }
    begin(slot, packet->payload_length, path_mtu(qp));
}

static void commit_arrived(struct qp *qp, const struct packet *packet, const struct iovec *payload,
                           unsigned count, uint8_t flags)
{
    struct capture_slot *slot = &route_of(qp)->arriving;
    struct capture_record record;

    fill(slot, packet, &record);
    fill_link(qp, packet, &record);
    if (is_connected(qp->record))
        fill_path(&record, &qp->record->attributes.path, true);
    else
        fill_grh(&record, &packet->grh);
    record.src_qpn = source_qpn(qp, packet);
    record.sender_block = record.src_qpn / LOCAL_BLOCK_QPNS;
    record.flags |= (uint8_t)(flags | CAPTURE_ARRIVED | (is_from_host(qp, packet) ? CAPTURE_FROM_HOST : 0));
    record.captured = copy_payload(slot->capture, (uint8_t *)(slot->record + 1),
                                   slot->size - (uint32_t)sizeof(record), record.mtu, payload, count);
    commit(slot, &record);
    slot->record = NULL;
    slot->capture = NULL;
}

void capture_fetched(struct qp *qp, const struct packet *packet, const struct iovec *payload, unsigned count)
{
    if (route_of(qp)->arriving.record)
        commit_arrived(qp, packet, payload, count, 0);
}

void capture_arrived(struct qp *qp, const struct packet *packet)
{
    const struct capture_slot *slot = &route_of(qp)->arriving;
    const struct iovec payload = {(void *)(uintptr_t)packet->payload, packet->payload_length};
    const bool is_fetched = packet->flags & PACKET_BY_REFERENCE;

    if (!slot->capture)
        return; /* capture_fetched() has written it, or the sender has */
    if (!slot->record)
        count_drop(slot);
    else
        commit_arrived(qp, packet, &payload, is_fetched || !packet->payload_length ? 0 : 1,
                       is_fetched && packet->payload_length ? CAPTURE_NOT_FETCHED : 0);
    route_of(qp)->arriving.capture = NULL;
}

/* --- packets without a QP -------------------------------------------------------------------------------- */

static void write_reserved(const struct capture_slot *slot, const struct packet *packet, const void *payload,
                           uint32_t sender_block, uint8_t flags)
{
    const struct iovec bytes = {(void *)(uintptr_t)payload, packet->payload_length};
    struct capture_record record;

    if (!slot->record) {
        count_drop(slot);
        return;
    }
    fill(slot, packet, &record);
    fill_grh(&record, &packet->grh);
    record.sender_block = sender_block;
    record.flags = flags;
    record.captured = copy_payload(slot->capture, (uint8_t *)(slot->record + 1),
                                   slot->size - (uint32_t)sizeof(record), 0, &bytes, 1);
    commit(slot, &record);
}

static void write_datagram(const struct capture *capture, const struct packet *packet, const void *payload,
                           uint32_t sender_block, uint8_t flags)
{
    struct capture_slot slot = {.capture = capture};

    begin(&slot, packet->payload_length, 0);
    write_reserved(&slot, packet, payload, sender_block, flags);
}

void capture_group_arrived(const struct packet *packet, bool from_host)
{
    const struct capture *capture = capture_current();
    const uint32_t block = packet->src_qpn / LOCAL_BLOCK_QPNS;

    if (!capture || !capture_wants_qpn(capture, packet->src_qpn) || (packet->flags & PACKET_BY_REFERENCE) ||
        (from_host && is_sender(capture, block)))
        return;
    write_datagram(capture, packet, packet->payload, block,
                   (uint8_t)(CAPTURE_ARRIVED | (from_host ? CAPTURE_FROM_HOST : 0)));
}

/* The block of the process by whose connection id the MAD was sent; 0: the MAD does not say. */
static uint32_t block_of_mad(const uint8_t *mad)
{
    uint32_t comm_id;

    return cm_mad_claim(mad, MAD_LENGTH, &comm_id) ? comm_id >> 16 : 0;
}

void capture_mad_sent(const struct cm_path *to, const uint8_t *mad)
{
    struct capture *capture = capture_current();
    struct packet packet = {.opcode = SERVICE_UD | OP_SEND_ONLY,
                            .pkey = MAD_PKEY,
                            .dest_qpn = MAD_QPN,
                            .src_qpn = MAD_QPN,
                            .qkey = MAD_QKEY,
                            .payload_length = MAD_LENGTH,
                            .grh = {.flow_label = to->flow_label,
                                    .traffic_class = to->traffic_class,
                                    .hop_limit = to->hop_limit,
                                    .service_level = to->service_level}};

    if (!capture || !capture_wants_qpn(capture, MAD_QPN))
        return;
    memcpy(packet.grh.source, to->local_gid, sizeof(packet.grh.source));
    memcpy(packet.grh.destination, to->remote_gid, sizeof(packet.grh.destination));
    note_sender(capture, block_of_mad(mad));
    write_datagram(capture, &packet, mad, block_of_mad(mad), 0);
}

void capture_mad_arrived(const struct packet *packet, const uint8_t *mad, bool from_host)
{
    const struct capture *capture = capture_current();
    const uint32_t block = block_of_mad(mad);

    if (!capture || !capture_wants_qpn(capture, MAD_QPN) || (from_host && is_sender(capture, block)))
        return;
    write_datagram(capture, packet, mad, block,
                   (uint8_t)(CAPTURE_ARRIVED | (from_host ? CAPTURE_FROM_HOST : 0)));
}

/* --- congestion notifications ------------------------------------------------------------------------------ */

void capture_cnp_sent(struct qp *qp, const struct packet_grh *path, uint32_t dest_qpn)
{
    struct capture *capture = capture_current();
    const struct packet packet = {.opcode = OPCODE_CNP,
                                  .pkey = CNP_PKEY,
                                  .dest_qpn = dest_qpn,
                                  .src_qpn = qp->ibv.qp_num,
                                  .grh = *path};

    note_sender(capture, qp->ibv.qp_num / LOCAL_BLOCK_QPNS);
    write_datagram(capture, &packet, NULL, qp->ibv.qp_num / LOCAL_BLOCK_QPNS, 0);
}

void capture_cnp_arrived(struct qp *qp, const struct packet_grh *path)
{
    const struct capture *capture = capture_current();
    const struct packet packet = {.opcode = OPCODE_CNP,
                                  .pkey = CNP_PKEY,
                                  .dest_qpn = qp->ibv.qp_num,
                                  .src_qpn = qp->record->attributes.dest_qpn,
                                  .grh = *path};
    const uint32_t block = packet.src_qpn / LOCAL_BLOCK_QPNS;
    const bool from_host = gid_is_of_host(path->source);

    if (!(from_host && is_sender(capture, block)))
        write_datagram(capture, &packet, NULL, block,
                       (uint8_t)(CAPTURE_ARRIVED | (from_host ? CAPTURE_FROM_HOST : 0)));
}

void capture_path_of(const struct qp *qp, bool arrived, struct packet_grh *ret_path)
{
    const struct path_address *path = &qp->record->attributes.path;

    *ret_path = (struct packet_grh){.flow_label = path->flow_label,
                                    .traffic_class = path->traffic_class,
                                    .hop_limit = path->hop_limit,
                                    .service_level = path->service_level};
    memcpy(ret_path->source, arrived ? path->destination_gid : path->source_gid, sizeof(ret_path->source));
    memcpy(ret_path->destination, arrived ? path->source_gid : path->destination_gid,
           sizeof(ret_path->destination));
}

/* --- frames that arrive ------------------------------------------------------------------------------------ */

/* Is it recorded? A frame has no QP for which it is. */
static bool wants_frame(const struct capture *capture, uint32_t src_qpn)
{
    if (!src_qpn)
        return !capture->qpn_count;
    return capture_wants_qpn(capture, src_qpn) && !is_sender(capture, src_qpn / LOCAL_BLOCK_QPNS);
}

/* Reserved before, so that an answer is recorded behind it. */
static cold_path bool steer_recorded(const struct steered *frame, uint32_t src_qpn)
{
    const struct packet packet = {.opcode = SERVICE_UC | OP_SEND_ONLY,
                                  .flags = PACKET_FRAME,
                                  .src_qpn = src_qpn,
                                  .payload_length = frame->length};
    struct capture_slot slot = {.capture = capture_current()};
    bool taken;

    if (!slot.capture || !wants_frame(slot.capture, src_qpn))
        return flows_deliver(frame);
    begin(&slot, frame->length, 0);
    taken = flows_deliver(frame);
    if (taken)
        write_reserved(&slot, &packet, frame->bytes, src_qpn / LOCAL_BLOCK_QPNS,
                       (uint8_t)(CAPTURE_ARRIVED | (src_qpn ? CAPTURE_FROM_HOST : 0)));
    else
        capture_cancel(&slot);
    return taken;
}

bool capture_steer(const struct steered *frame, uint32_t src_qpn)
{
    return capture_is_attached() ? steer_recorded(frame, src_qpn) : flows_deliver(frame);
}
