/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/ring.h"

#include <errno.h>
#include <string.h>

#include "base/prefetch.h"
#include "wire/opcode.h"

static_assert(RING_SIZE - RING_PUBLISH_EMPTY >= RING_SPACE_FOR_ANY, "an empty ring takes any record");

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

/* Bytes between header and record_xrc, references or payload. Drop notices have no extension (properties 0). */
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

int ring_refresh_consumed(struct ring_writer *writer)
{
    /* Acquire: the reader is done with all bytes before `consumed`. Partner: the release in ring_publish_position(). */
    uint64_t consumed = atomic_load_explicit(&writer->control->consumed, memory_order_acquire);

    /* A valid position is between the last one and what has been written. Positions never wrap. */
    if (consumed - writer->consumed > writer->position - writer->consumed)
        return -EPROTO;
    writer->consumed = consumed;
    return 0;
}

int ring_has_space(struct ring_writer *writer)
{
    int error = ring_refresh_consumed(writer);

    if (error)
        return error;
    return ring_free_bytes(writer) >= RING_SPACE_FOR_ANY;
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

/* The lines of the ring are in the cache of the reader's core, and have to be fetched from there before they can be
 * written. Prefetching the next PREFETCH_BYTES while the previous ones are copied saves a quarter of the time of a
 * large payload. */
#define PREFETCH_BYTES 512u
#define BULK           2048u /* bytes: a record that makes the writer use the whole ring */

static inline void copy_into_ring(char *to, const char *from, size_t length)
{
    if (length <= CACHE_LINE) {
        memcpy(to, from, length);
        return;
    }
    while (length) {
        size_t part = min_of(length, (size_t)PREFETCH_BYTES),
               ahead = min_of(length - part, (size_t)PREFETCH_BYTES);

        for (size_t line = 0; line < ahead; line += CACHE_LINE)
            prefetch_for_write(to + part + line);
        /* Hides the bound of `part`: gcc would expand the short memcpy to a string instruction, which starts slowly. */
        __asm__("" : "+r"(part));
        memcpy(to, from, part);
        to += part;
        from += part;
        length -= part;
    }
}

/* Decides once per lap (one pass through the RING_SIZE bytes), at the end of the first RING_SMALL bytes,
 * whether the writer returns to the start of the ring. True while the records are small and few of them
 * are unread: such a ring never touches the rest of its memory. */
static inline bool wraps_early(struct ring_writer *writer, uint32_t length, uint32_t to_end)
{
    if (likely(RING_SIZE - to_end < RING_SMALL)) {
        writer->uses_all = false;
        return false;
    }
    if (writer->uses_all)
        return false;
    writer->uses_all = length > BULK || ring_refresh_consumed(writer) != 0 ||
                       RING_SIZE - ring_free_bytes(writer) > RING_SMALL / 2;
    return !writer->uses_all;
}

static inline void write_header(struct record_header *record, const struct ring_writer *writer,
                                const struct packet *packet, uint32_t properties, uint32_t references)
{
    record->dest_qpn = (packet->dest_qpn & RECORD_QPN_MASK) | references << 24;
    record->src_qpn = (packet->src_qpn & RECORD_QPN_MASK) | (uint32_t)packet->syndrome << 24;
    record->psn = packet->psn.value;
    record->ack_psn = packet->ack_psn.value;
    record->dest_ifindex = packet->dest_ifindex;
    record->payload_length = packet->flags & PACKET_DROPPED ? 0 : packet->payload_length;
    record->pkey = packet->pkey;
    record->reference_epoch = (uint16_t)writer->reference_epoch;
    record->argument = argument_of(packet, properties);
}

/* False: the gather list is shorter than `length`. */
static inline bool write_payload(char *to, const struct iovec *gather, unsigned gather_count, size_t length)
{
    for (unsigned i = 0; i < gather_count && length; i++) {
        size_t part = min_of(gather[i].iov_len, length);

        if (!part)
            continue;
        copy_into_ring(to, gather[i].iov_base, part);
        to += part;
        length -= part;
    }
    return length == 0;
}

/* Publishes the record at `position`. If the record is not at writer->position, a skip record up to the
 * end of the ring leads to it; the skip record is published last, because the reader follows it at once. */
static inline void publish_record(struct ring_writer *writer, uint64_t position, uint32_t granules,
                                  const struct packet *packet)
{
    atomic_store_explicit(&ring_at(writer->data, position + granules * GRANULE)->word, 0,
                          memory_order_relaxed);
    /* Release: record, payload and the zero behind the record are visible before the word. Partner: the acquire in
     * find_record(). */
    atomic_store_explicit(&ring_at(writer->data, position)->word,
                          record_word(position, granules, packet->opcode, packet->flags),
                          memory_order_release);
    writer->last = position;
    if (unlikely(position != writer->position)) {
        const uint32_t to_end = RING_SIZE - (uint32_t)(writer->position % RING_SIZE);

        /* Release: the record at `position` is visible before the skip record that leads to it. Partner:
         * the acquire in find_record(). */
        atomic_store_explicit(&ring_at(writer->data, writer->position)->word,
                              record_word(writer->position, to_end / GRANULE, RECORD_SKIP, 0),
                              memory_order_release);
    }
    writer->position = position + granules * GRANULE;
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

    if (unlikely(carried > LOCAL_MTU || references > PACKET_REFERENCES))
        return -EMSGSIZE;
    if (unlikely(granules * GRANULE > to_end) || unlikely(wraps_early(writer, granules * GRANULE, to_end)))
        position += to_end;
    if (unlikely(position - writer->position + granules * GRANULE + GRANULE > ring_free_bytes(writer))) {
        int error = ring_refresh_consumed(writer);

        if (error)
            return error;
        if (position - writer->position + granules * GRANULE + GRANULE > ring_free_bytes(writer))
            return -EAGAIN;
    }

    record = ring_at(writer->data, position);
    write_header(record, writer, packet, properties, references);
    if (references_at != sizeof(struct record_header))
        write_extension((char *)record + sizeof(struct record_header), packet, properties);
    if (references)
        memcpy((char *)record + references_at, packet->reference,
               references * sizeof(struct packet_reference));
    if (unlikely(!write_payload((char *)record + payload_at, gather, gather_count, carried)))
        return -EINVAL; /* nothing was published: the next record overwrites this one */
    publish_record(writer, position, granules, packet);
    return 0;
}

/* --- reader --------------------------------------------------------------------------------------------- */

bool ring_publish_position(struct ring_reader *reader)
{
    reader->published = reader->position;
    /* Release: all reads of the records precede their reuse by the writer. Partner: ring_refresh_consumed(). */
    atomic_store_explicit(&reader->control->consumed, reader->position, memory_order_release);
    return true;
}

/* Decodes the extension. `from` is shared memory, so each byte of it is read once. */
static void read_extension(const char *from, struct packet *packet, uint32_t properties)
{
    if (properties & OPCODE_HAS_XRCETH) {
        struct record_xrc xrc;

        memcpy(&xrc, from + base_extension_size(properties), sizeof(xrc));
        packet->srqn = xrc.srqn & RECORD_QPN_MASK;
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

/* Copies the references; false: their lengths do not add up to payload_length. */
static bool read_references(const char *from, struct packet *packet, struct packet_reference *references)
{
    uint64_t total = 0;

    memcpy(references, from, packet->reference_count * sizeof(*references));
    for (uint32_t i = 0; i < packet->reference_count; i++)
        total += references[i].length;
    packet->reference = references;
    return total == packet->payload_length;
}

/* The part of struct record_header that the reader copies and checks. */
struct header_copy {
    uint64_t word;
    uint32_t dest_qpn, src_qpn, psn, ack_psn, dest_ifindex, payload_length;
    uint16_t pkey, reference_epoch;
    uint32_t argument;
};
static_assert(sizeof(struct header_copy) == sizeof(struct record_header), "a private copy of the header");

/* Finds the next record behind skip records. 1, with the record's word; 0: no record; -EPROTO. */
static inline int find_record(struct ring_reader *reader, char **ret_record, uint64_t *ret_word)
{
    for (;;) {
        const uint32_t offset = (uint32_t)(reader->position % RING_SIZE);
        char *record = reader->data + offset;
        /* Partner: the release in publish_record(). */
        const uint64_t word =
            atomic_load_explicit(&((struct record_header *)record)->word, memory_order_acquire);
        const uint32_t granules = record_granules(word);

        if (word == 0)
            return 0;
        if (unlikely((uint32_t)word != record_stamp(reader->position) || granules == 0 ||
                     granules > (RING_SIZE - offset) / GRANULE))
            return -EPROTO;
        if (likely((uint8_t)(word >> 48) != RECORD_SKIP)) {
            *ret_record = record;
            *ret_word = word;
            return 1;
        }
        /* A valid skip record ends at the end of the ring, and does not skip the whole ring. So the loop ends. */
        if (granules != (RING_SIZE - offset) / GRANULE || offset == 0 || word >> 56)
            return -EPROTO;
        reader->position += RING_SIZE - offset;
    }
}

static inline void decode_header(struct packet *packet, const struct header_copy *header, uint32_t properties)
{
    packet->opcode = (uint8_t)(header->word >> 48);
    packet->flags = (uint8_t)(header->word >> 56);
    packet->pkey = header->pkey;
    packet->reference_epoch = header->reference_epoch;
    packet->dest_qpn = header->dest_qpn & RECORD_QPN_MASK;
    packet->src_qpn = header->src_qpn & RECORD_QPN_MASK;
    packet->psn = psn_make(header->psn);
    packet->ack_psn = psn_make(header->ack_psn);
    packet->dest_ifindex = header->dest_ifindex;
    packet->syndrome = (uint8_t)(header->src_qpn >> 24);
    packet->msn = properties & OPCODE_HAS_AETH ? header->argument : 0;
    packet->imm_data = properties & OPCODE_HAS_IMM ? header->argument : 0;
    packet->invalidate_rkey = properties & OPCODE_HAS_INVALIDATE ? header->argument : 0;
    packet->qkey = 0;
    packet->rkey = properties & OPCODE_HAS_ATOMIC_ETH ? header->argument : 0;
    packet->flush = (uint8_t)(properties & OPCODE_FLUSH ? header->argument : 0);
    packet->dma_length = 0;
    packet->address = packet->swap_add = packet->compare = packet->original = 0;
    packet->payload_length = header->payload_length;
    packet->payload = NULL;
    packet->reference_count = header->dest_qpn >> 24;
    packet->reference = NULL;
}

int ring_read(struct ring_reader *reader, struct packet *packet, struct packet_reference *references,
              uint32_t *ret_granules)
{
    char *record;
    struct header_copy header;
    uint32_t granules, properties, carried, references_at, payload_at;
    uint8_t opcode, flags;
    int found = find_record(reader, &record, &header.word);

    if (found <= 0)
        return found;
    granules = record_granules(header.word);
    opcode = (uint8_t)(header.word >> 48);
    flags = (uint8_t)(header.word >> 56);
    memcpy((char *)&header + sizeof(header.word), record + sizeof(header.word),
           sizeof(header) - sizeof(header.word));
    properties = flags & PACKET_DROPPED ? 0 : opcode_table[opcode].properties;
    /* All eight flag bits are assigned, so only the combination can be invalid: no frame is relayed. */
    if (unlikely((flags & (PACKET_RELAYED | PACKET_FRAME)) == (PACKET_RELAYED | PACKET_FRAME) ||
                 (!(flags & PACKET_DROPPED) && !opcode_table[opcode].name)))
        return -EPROTO;
    references_at = (uint32_t)sizeof(header) + extension_size(properties);
    decode_header(packet, &header, properties);

    if (unlikely(flags & PACKET_BY_REFERENCE)) {
        /* A request without references has the flag, too: its response may come by reference. */
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
