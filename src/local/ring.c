/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/ring.h"

#include <errno.h>
#include <string.h>

#include "base/prefetch.h"
#include "wire/opcode.h"

#define QPN_MASK 0xffffffu
/* Positions are made visible in steps, or when the ring is empty and it is worth it. The writer then always
 * sees at least RING_SIZE - PUBLISH_EMPTY of an empty ring as free. */
#define PUBLISH_STEP  (RING_HOME / 4)
#define PUBLISH_EMPTY (RING_HOME / 16)
static_assert(RING_SIZE - PUBLISH_EMPTY >= RING_ROOM_FOR_ANY, "an empty ring takes any record");

static struct ring_control *control_of(void *memory, unsigned ring)
{
    return (struct ring_control *)memory + ring;
}

static char *data_of(void *memory, unsigned ring)
{
    return (char *)memory + LAYOUT_CONTROL + (size_t)ring * RING_SIZE;
}

void ring_writer_init(struct ring_writer *writer, void *memory, unsigned ring)
{
    *writer = (struct ring_writer){.data = data_of(memory, ring), .control = control_of(memory, ring)};
}

void ring_reader_init(struct ring_reader *reader, void *memory, unsigned ring)
{
    *reader = (struct ring_reader){.data = data_of(memory, ring), .control = control_of(memory, ring)};
}

/* What follows the header for an opcode. A drop notice is no packet and has no extension. */
static inline uint32_t base_extension_size(uint32_t properties)
{
    if (!(properties & (OPCODE_HAS_RETH | OPCODE_HAS_ATOMIC_ETH | OPCODE_HAS_ATOMIC_ACK | OPCODE_HAS_DETH)))
        return 0;
    if (properties & OPCODE_HAS_RETH)
        return sizeof(struct record_reth);
    if (properties & OPCODE_HAS_ATOMIC_ETH)
        return sizeof(struct record_atomic);
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        return sizeof(struct record_atomic_ack);
    return sizeof(struct record_deth);
}

static inline uint32_t extension_size(uint32_t properties)
{
    return base_extension_size(properties) +
           (unlikely(properties & OPCODE_HAS_XRCETH) ? (uint32_t)sizeof(struct record_xrc) : 0);
}

static inline uint32_t payload_offset(uint32_t header, uint32_t carried)
{
    return carried >= RECORD_ALIGN_FROM ? (header + GRANULE - 1) / GRANULE * GRANULE : header;
}

/* --- writer --------------------------------------------------------------------------------------------- */

/* Bytes that may be written at writer->position. */
static inline uint64_t room_seen(const struct ring_writer *writer)
{
    return RING_SIZE - (writer->position - writer->consumed);
}

static int refresh_consumed(struct ring_writer *writer)
{
    /* Pairs with the release in publish_position(): the reader has done with what is before. */
    uint64_t consumed = atomic_load_explicit(&writer->control->consumed, memory_order_acquire);

    /* Between what was seen last and what has been written; unsigned distances, positions never wrap. */
    if (consumed - writer->consumed > writer->position - writer->consumed)
        return -EPROTO;
    writer->consumed = consumed;
    return 0;
}

int ring_has_room(struct ring_writer *writer)
{
    int error = refresh_consumed(writer);

    if (error)
        return error;
    return room_seen(writer) >= RING_ROOM_FOR_ANY;
}

static void write_extension(char *to, const struct packet *packet, uint32_t properties)
{
    if (properties & OPCODE_HAS_XRCETH)
        *(struct record_xrc *)(to + base_extension_size(properties)) =
            (struct record_xrc){.srqn = packet->srqn};
    if (properties & OPCODE_HAS_RETH) {
        *(struct record_reth *)to = (struct record_reth){
            .address = packet->address, .rkey = packet->rkey, .dma_length = packet->dma_length};
    } else if (properties & OPCODE_HAS_ATOMIC_ETH) {
        *(struct record_atomic *)to = (struct record_atomic){
            .address = packet->address, .swap_add = packet->swap_add, .compare = packet->compare};
    } else if (properties & OPCODE_HAS_ATOMIC_ACK) {
        *(struct record_atomic_ack *)to = (struct record_atomic_ack){.original = packet->original};
    } else if (properties & OPCODE_HAS_DETH) {
        struct record_deth *deth = (struct record_deth *)to;

        deth->qkey = packet->qkey;
        deth->flow_label = packet->grh.flow_label;
        memcpy(deth->source, packet->grh.source, sizeof(deth->source));
        memcpy(deth->destination, packet->grh.destination, sizeof(deth->destination));
        deth->traffic_class = packet->grh.traffic_class;
        deth->hop_limit = packet->grh.hop_limit;
        deth->service_level = packet->grh.service_level;
    }
}

static inline uint32_t argument_of(const struct packet *packet, uint32_t properties)
{
    if (properties & OPCODE_HAS_IMM)
        return packet->imm_data;
    if (properties & OPCODE_HAS_INVALIDATE)
        return packet->invalidate_rkey;
    if (properties & OPCODE_HAS_AETH)
        return packet->msn;
    if (properties & OPCODE_HAS_ATOMIC_ETH)
        return packet->rkey;
    if (properties & OPCODE_FLUSH)
        return packet->flush;
    return 0;
}

/* The lines of the ring lie in the reader's cache, and each has to be fetched from there before it can be
 * written. Asking for a stretch of them while the one before is copied takes a quarter off the time of a
 * large payload. */
#define AHEAD 512u
#define BULK  2048u

static inline void copy_into_ring(char *to, const char *from, size_t length)
{
    if (length <= CACHE_LINE) {
        memcpy(to, from, length);
        return;
    }
    while (length) {
        size_t part = min_of(length, (size_t)AHEAD), ahead = min_of(length - part, (size_t)AHEAD);

        for (size_t line = 0; line < ahead; line += CACHE_LINE)
            prefetch_for_write(to + part + line);
        /* A compiler that sees how short it is makes it a string instruction, which takes its time to begin.
         */
        __asm__("" : "+r"(part));
        memcpy(to, from, part);
        to += part;
        from += part;
        length -= part;
    }
}

/* Large records use the whole ring; small ones, of which few are on the way, go back to its beginning, so
 * that a ring of small records never touches the rest of its memory. Asked when the beginning ends, once a
 * lap. */
static inline bool goes_home(struct ring_writer *writer, uint32_t length, uint32_t to_end)
{
    if (likely(RING_SIZE - to_end < RING_HOME)) {
        writer->roams = false;
        return false;
    }
    if (writer->roams)
        return false;
    writer->roams =
        length > BULK || refresh_consumed(writer) != 0 || RING_SIZE - room_seen(writer) > RING_HOME / 2;
    return !writer->roams;
}

int ring_write(struct ring_writer *writer, const struct packet *packet, const struct iovec *gather,
               unsigned gather_count)
{
    const bool dropped = packet->flags & PACKET_DROPPED, by_reference = packet->flags & PACKET_BY_REFERENCE;
    const uint32_t properties = dropped ? 0 : opcode_table[packet->opcode].properties;
    const uint32_t references = by_reference ? packet->reference_count : 0;
    const uint32_t carried = by_reference || dropped ? 0 : packet->payload_length;
    const uint32_t references_at = (uint32_t)sizeof(struct record_header) + extension_size(properties);
    const uint32_t payload_at =
        payload_offset(references_at + references * (uint32_t)sizeof(struct packet_reference), carried);
    const uint32_t granules = (payload_at + carried + GRANULE - 1) / GRANULE;
    const uint32_t to_end = RING_SIZE - (uint32_t)(writer->position % RING_SIZE);
    uint64_t position = writer->position;
    struct record_header *record;
    char *next;
    size_t left = carried;

    if (unlikely(carried > LOCAL_MTU || references > PACKET_REFERENCES))
        return -EMSGSIZE;
    if (unlikely(granules * GRANULE > to_end) || unlikely(goes_home(writer, granules * GRANULE, to_end)))
        position += to_end;
    if (unlikely(position - writer->position + granules * GRANULE + GRANULE > room_seen(writer))) {
        int error = refresh_consumed(writer);

        if (error)
            return error;
        if (position - writer->position + granules * GRANULE + GRANULE > room_seen(writer))
            return -EAGAIN;
    }

    record = ring_at(writer->data, position);
    record->dest_qpn = (packet->dest_qpn & QPN_MASK) | references << 24;
    record->src_qpn = (packet->src_qpn & QPN_MASK) | (uint32_t)packet->syndrome << 24;
    record->psn = packet->psn.value;
    record->ack_psn = packet->ack_psn.value;
    record->dest_ifindex = packet->dest_ifindex;
    record->payload_length = dropped ? 0 : packet->payload_length;
    record->pkey = packet->pkey;
    record->reference_epoch = (uint16_t)writer->reference_epoch;
    record->argument = argument_of(packet, properties);
    if (references_at != sizeof(struct record_header))
        write_extension((char *)record + sizeof(struct record_header), packet, properties);
    if (references)
        memcpy((char *)record + references_at, packet->reference,
               references * sizeof(struct packet_reference));
    next = (char *)record + payload_at;
    for (unsigned i = 0; i < gather_count && left; i++) {
        size_t part = min_of(gather[i].iov_len, left);

        if (!part)
            continue;
        copy_into_ring(next, gather[i].iov_base, part);
        next += part;
        left -= part;
    }
    if (unlikely(left))
        return -EINVAL; /* nothing was published: the place is written again */

    atomic_store_explicit(&ring_at(writer->data, position + granules * GRANULE)->word, 0,
                          memory_order_relaxed);
    /* Release: record, payload and the zero behind it before the word that shows them. Partner: ring_read(),
     * peek by the poller. */
    atomic_store_explicit(&record->word, record_word(position, granules, packet->opcode, packet->flags),
                          memory_order_release);
    writer->last = position;
    if (unlikely(position != writer->position))
        atomic_store_explicit(&ring_at(writer->data, writer->position)->word,
                              record_word(writer->position, to_end / GRANULE, RECORD_SKIP, 0),
                              memory_order_release);
    writer->position = position + granules * GRANULE;
    return 0;
}

/* --- reader --------------------------------------------------------------------------------------------- */

static bool publish_position(struct ring_reader *reader)
{
    reader->published = reader->position;
    /* Release: we are done with the records before the writer overwrites them. Partner: refresh_consumed().
     */
    atomic_store_explicit(&reader->control->consumed, reader->position, memory_order_release);
    return true;
}

bool ring_release(struct ring_reader *reader, uint32_t granules)
{
    reader->position += granules * GRANULE;
    if (likely(reader->position - reader->published < PUBLISH_STEP))
        return false;
    return publish_position(reader);
}

bool ring_publish(struct ring_reader *reader, bool all)
{
    uint64_t unpublished = reader->position - reader->published;

    if (!unpublished || (!all && unpublished < PUBLISH_EMPTY))
        return false;
    return publish_position(reader);
}

/* Copies what the header says and checks it; only `from` is shared memory, and each byte of it is read once.
 */
static void read_extension(const char *from, struct packet *packet, uint32_t properties)
{
    if (properties & OPCODE_HAS_XRCETH) {
        struct record_xrc xrc;

        memcpy(&xrc, from + base_extension_size(properties), sizeof(xrc));
        packet->srqn = xrc.srqn & QPN_MASK;
    }
    if (properties & OPCODE_HAS_RETH) {
        struct record_reth reth;

        memcpy(&reth, from, sizeof(reth));
        packet->address = reth.address;
        packet->rkey = reth.rkey;
        packet->dma_length = reth.dma_length;
    } else if (properties & OPCODE_HAS_ATOMIC_ETH) {
        struct record_atomic atomic;

        memcpy(&atomic, from, sizeof(atomic));
        packet->address = atomic.address;
        packet->swap_add = atomic.swap_add;
        packet->compare = atomic.compare;
    } else if (properties & OPCODE_HAS_ATOMIC_ACK) {
        struct record_atomic_ack ack;

        memcpy(&ack, from, sizeof(ack));
        packet->original = ack.original;
    } else if (properties & OPCODE_HAS_DETH) {
        struct record_deth deth;

        memcpy(&deth, from, sizeof(deth));
        packet->qkey = deth.qkey;
        packet->grh.flow_label = deth.flow_label;
        memcpy(packet->grh.source, deth.source, sizeof(deth.source));
        memcpy(packet->grh.destination, deth.destination, sizeof(deth.destination));
        packet->grh.traffic_class = deth.traffic_class;
        packet->grh.hop_limit = deth.hop_limit;
        packet->grh.service_level = deth.service_level;
    }
}

/* Copies the references and checks that they add up to what the packet says it brings. */
static bool read_references(const char *from, struct packet *packet, struct packet_reference *references)
{
    uint64_t total = 0;

    memcpy(references, from, packet->reference_count * sizeof(*references));
    for (uint32_t i = 0; i < packet->reference_count; i++)
        total += references[i].length;
    packet->reference = references;
    return total == packet->payload_length;
}

int ring_read(struct ring_reader *reader, struct packet *packet, struct packet_reference *references,
              uint32_t *ret_granules)
{
    char *record;
    struct {
        uint64_t word;
        uint32_t dest_qpn, src_qpn, psn, ack_psn, dest_ifindex, payload_length;
        uint16_t pkey, reference_epoch;
        uint32_t argument;
    } header;
    uint32_t granules, properties, carried, references_at, payload_at;
    uint8_t opcode, flags;

    static_assert(sizeof(header) == sizeof(struct record_header), "a private copy of it");
    for (;;) {
        const uint32_t offset = (uint32_t)(reader->position % RING_SIZE);

        record = reader->data + offset;
        /* Pairs with the release in ring_write(). */
        header.word = atomic_load_explicit(&((struct record_header *)record)->word, memory_order_acquire);
        if (header.word == 0)
            return 0;
        granules = (uint32_t)(header.word >> 32) & 0xffff;
        opcode = (uint8_t)(header.word >> 48);
        flags = (uint8_t)(header.word >> 56);
        if (unlikely((uint32_t)header.word != record_stamp(reader->position) || granules == 0 ||
                     granules > (RING_SIZE - offset) / GRANULE))
            return -EPROTO;
        if (likely(opcode != RECORD_SKIP))
            break;
        /* A skip leads to the beginning of the ring, so the loop ends: there offset is 0, and one that skips
         * the whole ring is false. */
        if (granules != (RING_SIZE - offset) / GRANULE || offset == 0 || flags)
            return -EPROTO;
        reader->position += granules * GRANULE;
    }

    memcpy((char *)&header + sizeof(header.word), record + sizeof(header.word),
           sizeof(header) - sizeof(header.word));
    properties = flags & PACKET_DROPPED ? 0 : opcode_table[opcode].properties;
    /* Every bit is a flag; a frame is nobody's request. */
    if (unlikely((flags & (PACKET_RELAYED | PACKET_FRAME)) == (PACKET_RELAYED | PACKET_FRAME) ||
                 (!(flags & PACKET_DROPPED) && !opcode_table[opcode].name)))
        return -EPROTO;
    references_at = (uint32_t)sizeof(header) + extension_size(properties);
    packet->opcode = opcode;
    packet->flags = flags;
    packet->pkey = header.pkey;
    packet->reference_epoch = header.reference_epoch;
    packet->dest_qpn = header.dest_qpn & QPN_MASK;
    packet->src_qpn = header.src_qpn & QPN_MASK;
    packet->psn = psn_make(header.psn);
    packet->ack_psn = psn_make(header.ack_psn);
    packet->dest_ifindex = header.dest_ifindex;
    packet->syndrome = (uint8_t)(header.src_qpn >> 24);
    packet->msn = properties & OPCODE_HAS_AETH ? header.argument : 0;
    packet->imm_data = properties & OPCODE_HAS_IMM ? header.argument : 0;
    packet->invalidate_rkey = properties & OPCODE_HAS_INVALIDATE ? header.argument : 0;
    packet->qkey = 0;
    packet->rkey = properties & OPCODE_HAS_ATOMIC_ETH ? header.argument : 0;
    packet->flush = (uint8_t)(properties & OPCODE_FLUSH ? header.argument : 0);
    packet->dma_length = 0;
    packet->address = packet->swap_add = packet->compare = packet->original = 0;
    packet->payload_length = header.payload_length;
    packet->payload = NULL;
    packet->reference_count = header.dest_qpn >> 24;
    packet->reference = NULL;

    if (unlikely(flags & PACKET_BY_REFERENCE)) {
        /* Without any it is a request that may be answered by reference. */
        if ((!reader->references && packet->reference_count) || packet->reference_count > PACKET_REFERENCES ||
            packet->payload_length > LOCAL_REFERENCE_MTU)
            return -EPROTO;
        carried = 0;
    } else {
        if (unlikely(packet->reference_count != 0 || packet->payload_length > LOCAL_MTU))
            return -EPROTO;
        carried = packet->payload_length;
    }
    if (unlikely(packet->payload_length && !(properties & OPCODE_HAS_PAYLOAD)))
        return -EPROTO;
    payload_at = payload_offset(
        references_at + packet->reference_count * (uint32_t)sizeof(struct packet_reference), carried);
    if (unlikely((payload_at + carried + GRANULE - 1) / GRANULE != granules))
        return -EPROTO;
    if (references_at != sizeof(header))
        read_extension(record + sizeof(header), packet, properties);
    if (unlikely(flags & PACKET_BY_REFERENCE)) {
        if (!read_references(record + references_at, packet, references))
            return -EPROTO;
    } else {
        packet->payload = carried ? record + payload_at : NULL;
    }
    *ret_granules = granules;
    return 1;
}
