/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/ring.h"

#include <errno.h>
#include <string.h>

#include "base/prefetch.h"
#include "wire/opcode.h"

#define QPN_MASK 0xffffffu
/* Bytes. The reader publishes its position in steps of PUBLISH_STEP, and of PUBLISH_EMPTY when the ring is empty. So
 * the writer sees at least RING_SIZE - PUBLISH_EMPTY bytes of an empty ring as free. */
#define PUBLISH_STEP  (RING_SMALL / 4)
#define PUBLISH_EMPTY (RING_SMALL / 16)
static_assert(RING_SIZE - PUBLISH_EMPTY >= RING_SPACE_FOR_ANY, "an empty ring takes any record");
static_assert(LANE_SMALL < RECORD_ALIGN_FROM, "the payload of a small packet lies behind the header");

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

/* Bytes that are free behind writer->position, as far as the writer knows. */
static inline uint64_t free_bytes(const struct ring_writer *writer)
{
    return RING_SIZE - (writer->position - writer->consumed);
}

static int refresh_consumed(struct ring_writer *writer)
{
    /* Acquire: the reader is done with all bytes before `consumed`. Partner: the release in publish_position(). */
    uint64_t consumed = atomic_load_explicit(&writer->control->consumed, memory_order_acquire);

    /* A valid position is between the last one and what has been written. Positions never wrap. */
    if (consumed - writer->consumed > writer->position - writer->consumed)
        return -EPROTO;
    writer->consumed = consumed;
    return 0;
}

int ring_has_space(struct ring_writer *writer)
{
    int error = refresh_consumed(writer);

    if (error)
        return error;
    return free_bytes(writer) >= RING_SPACE_FOR_ANY;
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
    writer->uses_all =
        length > BULK || refresh_consumed(writer) != 0 || RING_SIZE - free_bytes(writer) > RING_SMALL / 2;
    return !writer->uses_all;
}

static inline void write_header(struct record_header *record, const struct ring_writer *writer,
                                const struct packet *packet, uint32_t properties, uint32_t references)
{
    record->dest_qpn = (packet->dest_qpn & QPN_MASK) | references << 24;
    record->src_qpn = (packet->src_qpn & QPN_MASK) | (uint32_t)packet->syndrome << 24;
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
    if (unlikely(position - writer->position + granules * GRANULE + GRANULE > free_bytes(writer))) {
        int error = refresh_consumed(writer);

        if (error)
            return error;
        if (position - writer->position + granules * GRANULE + GRANULE > free_bytes(writer))
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

static inline uint32_t small_bytes(const struct lane_small *small)
{
    return ((uint32_t)sizeof(struct record_header) + small->length + GRANULE - 1) / GRANULE * GRANULE;
}

/* Is there room for such a record at writer->position, without a skip record? */
static inline bool small_fits(struct ring_writer *writer, uint32_t bytes)
{
    const uint32_t offset = (uint32_t)(writer->position % RING_SIZE);

    if (unlikely(offset >= RING_SMALL)) { /* wraps_early() decides, or has decided */
        if (!writer->uses_all || bytes > RING_SIZE - offset)
            return false;
    } else {
        writer->uses_all = false;
    }
    return likely(bytes + GRANULE <= free_bytes(writer)) ||
           (refresh_consumed(writer) == 0 && bytes + GRANULE <= free_bytes(writer));
}

/* All but the word. */
static inline void write_small(struct record_header *record, const struct ring_writer *writer,
                               const struct lane_small *small)
{
    record->dest_qpn = small->dest_qpn;
    record->src_qpn = small->src_qpn | (uint32_t)small->syndrome << 24;
    record->psn = small->psn.value;
    record->ack_psn = 0;
    record->dest_ifindex = small->dest_ifindex;
    record->payload_length = small->length;
    record->pkey = small->pkey;
    record->reference_epoch = (uint16_t)writer->reference_epoch;
    record->argument = small->argument;
    if (likely(small->length == sizeof(uint64_t)))
        memcpy(record + 1, small->payload, sizeof(uint64_t));
    else if (small->length)
        memcpy(record + 1, small->payload, small->length);
}

static inline void wrote(struct ring_writer *writer, uint32_t bytes)
{
    writer->last = writer->position;
    writer->position += bytes;
}

/* ring_write() with the constants of such a packet. The word of the first record is held back: the reader, which waits for
 * that, touches none of the lines behind it while they are written. */
bool ring_put(struct ring_writer *writer, const struct lane_small *small)
{
    const uint32_t bytes = small_bytes(small);
    struct record_header *record = ring_at(writer->data, writer->position);
    uint64_t word;

    if (unlikely(!small_fits(writer, bytes)))
        return false;
    write_small(record, writer, small);
    word = record_word(writer->position, bytes / GRANULE, small->opcode, small->flags);
    if (!writer->held) {
        writer->held = word;
        writer->held_at = writer->position;
    } else {
        atomic_store_explicit(&record->word, word, memory_order_relaxed);
    }
    wrote(writer, bytes);
    return true;
}

/* A reader that waits for the record takes its line back as soon as the first byte has been written. So all stores follow
 * each other here, that to the next line first, and the line moves once. */
bool ring_put_alone(struct ring_writer *writer, const struct lane_small *small)
{
    const uint32_t bytes = small_bytes(small);
    struct record_header *record = ring_at(writer->data, writer->position);

    if (unlikely(!small_fits(writer, bytes)))
        return false;
    atomic_store_explicit(&ring_at(writer->data, writer->position + bytes)->word, 0, memory_order_relaxed);
    write_small(record, writer, small);
    /* Release, and its partner, as in publish_record(). */
    atomic_store_explicit(&record->word,
                          record_word(writer->position, bytes / GRANULE, small->opcode, small->flags),
                          memory_order_release);
    wrote(writer, bytes);
    return true;
}

void ring_publish_held(struct ring_writer *writer)
{
    if (!writer->held)
        return;
    atomic_store_explicit(&ring_at(writer->data, writer->position)->word, 0, memory_order_relaxed);
    /* Release, and its partner, as in publish_record(). */
    atomic_store_explicit(&ring_at(writer->data, writer->held_at)->word, writer->held, memory_order_release);
    writer->held = 0;
}

/* --- reader --------------------------------------------------------------------------------------------- */

static bool publish_position(struct ring_reader *reader)
{
    reader->published = reader->position;
    /* Release: all reads of the records precede their reuse by the writer. Partner: refresh_consumed(). */
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

/* Decodes the extension. `from` is shared memory, so each byte of it is read once. */
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
        const uint32_t granules = (uint32_t)(word >> 32) & 0xffff;

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
        /* Not by `granules`, which are as many: gcc 14.2 for aarch64 drops the mask of its 16 bits here. */
        reader->position += RING_SIZE - offset;
    }
}

static inline void decode_header(struct packet *packet, const struct header_copy *header, uint32_t properties)
{
    packet->opcode = (uint8_t)(header->word >> 48);
    packet->flags = (uint8_t)(header->word >> 56);
    packet->pkey = header->pkey;
    packet->reference_epoch = header->reference_epoch;
    packet->dest_qpn = header->dest_qpn & QPN_MASK;
    packet->src_qpn = header->src_qpn & QPN_MASK;
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
    granules = (uint32_t)(header.word >> 32) & 0xffff;
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

static inline bool is_small(uint8_t opcode, uint8_t flags)
{
    if (opcode == OP_ACKNOWLEDGE)
        return !(flags & ~PACKET_COMPLETES);
    return (opcode == OP_SEND_ONLY || opcode == OP_SEND_ONLY_IMM) &&
           !(flags & ~(PACKET_SOLICITED | PACKET_ACK_REQUEST));
}

/* ring_read() with the constants of such a packet. */
bool ring_peek(struct ring_reader *reader, struct lane_small *ret_small)
{
    const uint32_t offset = (uint32_t)(reader->position % RING_SIZE);
    const char *record = reader->data + offset;
    struct header_copy header;

    /* Acquire; partner: the release in ring_put() and publish_record(). */
    header.word = atomic_load_explicit(&((const struct record_header *)(const void *)record)->word,
                                       memory_order_acquire);
    ret_small->opcode = (uint8_t)(header.word >> 48);
    ret_small->flags = (uint8_t)(header.word >> 56);
    if ((uint32_t)header.word != record_stamp(reader->position) ||
        !is_small(ret_small->opcode, ret_small->flags))
        return false;
    memcpy((char *)&header + sizeof(header.word), record + sizeof(header.word),
           sizeof(header) - sizeof(header.word));
    ret_small->granules = (uint32_t)(header.word >> 32) & 0xffff;
    ret_small->length = header.payload_length;
    if (unlikely(header.dest_qpn >> 24 || header.payload_length > LANE_SMALL ||
                 (sizeof(header) + header.payload_length + GRANULE - 1) / GRANULE != ret_small->granules ||
                 ret_small->granules > (RING_SIZE - offset) / GRANULE ||
                 (ret_small->opcode == OP_ACKNOWLEDGE && header.payload_length)))
        return false;
    ret_small->dest_qpn = header.dest_qpn;
    ret_small->src_qpn = header.src_qpn & QPN_MASK;
    ret_small->syndrome = (uint8_t)(header.src_qpn >> 24);
    ret_small->pkey = header.pkey;
    ret_small->psn = psn_make(header.psn);
    ret_small->dest_ifindex = header.dest_ifindex;
    ret_small->argument = header.argument;
    ret_small->payload = record + sizeof(header);
    return true;
}
