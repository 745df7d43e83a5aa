/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a peer writes into a shared ring: ring_read() must stay inside the ring, whatever lies there, and what
 * it returns must be what a writer could have sent: writing it again and reading that gives the same.
 *
 * Input: one byte of choices, two that say where the reader stands, then the bytes from there on. In the word
 * of each record the stamp is turned into its difference from the right one, else no input would ever get
 * past it. */
#include <string.h>

#include "fuzz.h"
#include "local/small.h"
#include "wire/opcode.h"

#define HEAD 3
#define RING (LAYOUT_RINGS - 1) /* the last: behind it the allocation ends */

static char *memory, *other_memory;

static void fix_stamp(struct ring_reader *reader)
{
    uint64_t word = *(const uint64_t *)ring_next_word(reader);

    if (word)
        ring_at(reader->data, reader->position)->word = word ^ record_stamp(reader->position);
}

static void check_again(const struct packet *packet)
{
    struct packet_reference references[PACKET_REFERENCES];
    static struct ring_writer writer;
    static struct ring_reader reader;
    struct iovec gather = {(void *)(uintptr_t)packet->payload, packet->payload ? packet->payload_length : 0};
    struct packet twice;
    uint32_t granules;

    if (!writer.data) {
        ring_writer_init(&writer, other_memory, RING);
        ring_reader_init(&reader, other_memory, RING);
        reader.references = true;
    }
    require(ring_write(&writer, packet, &gather, 1) == 0);
    require(ring_read(&reader, &twice, references, &granules) == 1);
    require(twice.opcode == packet->opcode && twice.flags == packet->flags && twice.pkey == packet->pkey);
    require(twice.dest_qpn == packet->dest_qpn && twice.src_qpn == packet->src_qpn);
    require(psn_equal(twice.psn, packet->psn) && psn_equal(twice.ack_psn, packet->ack_psn));
    require(twice.dest_ifindex == packet->dest_ifindex && twice.syndrome == packet->syndrome);
    require(twice.msn == packet->msn && twice.imm_data == packet->imm_data && twice.qkey == packet->qkey);
    require(twice.invalidate_rkey == packet->invalidate_rkey && twice.rkey == packet->rkey);
    require(twice.dma_length == packet->dma_length && twice.address == packet->address);
    require(twice.swap_add == packet->swap_add && twice.compare == packet->compare);
    require(twice.original == packet->original && twice.payload_length == packet->payload_length);
    require(twice.reference_count == packet->reference_count);
    require(!packet->payload == !twice.payload);
    require(!packet->payload || !memcmp(twice.payload, packet->payload, packet->payload_length));
    require(!packet->reference_count ||
            !memcmp(twice.reference, packet->reference, packet->reference_count * sizeof(references[0])));
    ring_release(&reader, granules);
    ring_publish(&reader, true);
}

static void check(const struct ring_reader *reader, const struct packet *packet)
{
    const char *payload = packet->payload;

    require(packet->dest_qpn <= 0xffffff && packet->src_qpn <= 0xffffff);
    require(packet->reference_count <= PACKET_REFERENCES);
    require(!packet->reference_count || (packet->flags & PACKET_BY_REFERENCE));
    require(reader->references || !packet->reference_count);
    require((packet->flags & PACKET_DROPPED) || opcode_table[packet->opcode].name);
    if (payload) {
        require(packet->payload_length && packet->payload_length <= LOCAL_MTU);
        require(payload >= reader->data && payload + packet->payload_length <= reader->data + RING_SIZE);
    }
    check_again(packet);
}

/* ring_peek() shows exactly the small packets among those that ring_read() returns, and the same of them. */
static void check_peeked(const struct packet *packet, const struct lane_small *small, bool peeked)
{
    bool ack = packet->opcode == OP_ACKNOWLEDGE;
    unsigned flags = ack ? PACKET_COMPLETES : PACKET_SOLICITED | PACKET_ACK_REQUEST;
    bool is_small = (ack || packet->opcode == OP_SEND_ONLY || packet->opcode == OP_SEND_ONLY_IMM) &&
                    !(packet->flags & ~flags) && packet->payload_length <= LANE_SMALL;

    require(peeked == is_small);
    if (!peeked)
        return;
    require(small->opcode == packet->opcode && small->flags == packet->flags && small->pkey == packet->pkey);
    require(small->dest_qpn == packet->dest_qpn && small->src_qpn == packet->src_qpn);
    require(psn_equal(small->psn, packet->psn) && small->syndrome == packet->syndrome);
    require(small->dest_ifindex == packet->dest_ifindex && small->length == packet->payload_length);
    require(!ack || small->argument == packet->msn);
    require(packet->opcode != OP_SEND_ONLY_IMM || small->argument == packet->imm_data);
    require(!small->length || small->payload == packet->payload);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct packet_reference references[PACKET_REFERENCES];
    struct ring_reader reader;
    struct packet packet = {0};
    uint32_t granules;
    size_t start, length, first;

    if (!memory) {
        memory = aligned_alloc(CACHE_LINE, LAYOUT_SIZE);
        other_memory = aligned_alloc(CACHE_LINE, LAYOUT_SIZE);
        require(memory && other_memory);
        memset(memory, 0, LAYOUT_SIZE);
        memset(other_memory, 0, LAYOUT_SIZE);
    }
    if (size < HEAD || size > RING_SIZE)
        return 0;
    ring_reader_init(&reader, memory, RING);
    reader.references = data[0] & 1;
    reader.position = reader.published = ((uint64_t)data[1] << 8 | data[2]) * GRANULE;
    start = (size_t)(reader.position % RING_SIZE);
    length = size - HEAD;
    first = min_of(length, RING_SIZE - start);
    memcpy(reader.data + start, data + HEAD, first);
    memcpy(reader.data, data + HEAD + first, length - first);

    for (;;) {
        uint64_t before = reader.position;
        struct lane_small small = {0};
        bool peeked;
        int found;

        fix_stamp(&reader);
        peeked = ring_peek(&reader, &small);
        require(reader.position == before);
        found = ring_read(&reader, &packet, references, &granules);
        if (found == 0 && reader.position != before)
            continue; /* it has skipped to the beginning, where the stamp is to be turned yet */
        require(found == 1 || !peeked);
        if (found <= 0)
            break;
        if (reader.position == before) {
            check_peeked(&packet, &small, peeked);
            require(!peeked || small.granules == granules);
        }
        check(&reader, &packet);
        ring_release(&reader, granules);
    }
    memset(reader.data + start, 0, first);
    memset(reader.data, 0, length - first);
    return 0;
}

/* --- seeds -----------------------------------------------------------------------------------------------
 */

/* What a writer leaves in the ring, as an input. */
static void add_written(fuzz_add *add, uint64_t granule, const struct packet *packets, size_t count)
{
    static const char payload[200] = "payload";
    struct iovec gather = {(void *)(uintptr_t)payload, sizeof(payload)};
    char *ring = aligned_alloc(CACHE_LINE, LAYOUT_SIZE);
    struct ring_writer writer;
    uint8_t input[256] = {1, (uint8_t)(granule >> 8), (uint8_t)granule};
    size_t start = granule * GRANULE % RING_SIZE, length;
    uint64_t position;

    require(ring);
    memset(ring, 0, LAYOUT_SIZE);
    ring_writer_init(&writer, ring, RING);
    writer.position = writer.consumed = granule * GRANULE;
    atomic_store(&writer.control->consumed, writer.consumed);
    for (size_t i = 0; i < count; i++)
        require(ring_write(&writer, &packets[i], &gather, 1) == 0);
    for (position = granule * GRANULE; position < writer.position;) {
        struct record_header *record = ring_at(writer.data, position);
        uint64_t word = atomic_load(&record->word);

        atomic_store(&record->word, word ^ record_stamp(position));
        position += (word >> 32 & 0xffff) * GRANULE;
    }
    length = (size_t)(writer.position - granule * GRANULE);
    require(HEAD + length <= sizeof(input));
    for (size_t i = 0; i < length; i++)
        input[HEAD + i] = (uint8_t)writer.data[(start + i) % RING_SIZE];
    add(input, HEAD + length);
    free(ring);
}

void fuzz_seeds(fuzz_add *add)
{
    static const struct packet_reference references[] = {{0x1000, 50}, {0x2000, 50}};
    struct packet packet = {
        .pkey = 0xffff, .dest_qpn = 0x123456, .src_qpn = 0x654321, .rkey = 1, .dma_length = 100};

    for (unsigned opcode = 0; opcode < 256; opcode++) {
        if (!opcode_table[opcode].name)
            continue;
        packet.opcode = (uint8_t)opcode;
        packet.payload_length = opcode_table[opcode].properties & OPCODE_HAS_PAYLOAD ? 16 : 0;
        add_written(add, opcode, &packet, 1);
    }
    packet.opcode = SERVICE_RC | OP_WRITE_ONLY;
    packet.flags = PACKET_BY_REFERENCE | PACKET_HAS_ACK;
    packet.reference = references;
    packet.reference_count = 2;
    packet.payload_length = 100;
    add_written(add, 5, &packet, 1);
    packet.opcode = SERVICE_RC | OP_READ_REQUEST;
    packet.payload_length = packet.reference_count = 0;
    add_written(add, RING_SIZE / GRANULE - 1, &packet, 1); /* behind a skip */
    packet.flags = PACKET_DROPPED;
    add_written(add, 0xffff, (struct packet[]){packet, packet}, 2);
}
