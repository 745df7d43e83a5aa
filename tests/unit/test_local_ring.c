/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The ring of a lane, both sides in one process over private memory (local/ring.h, local/layout.h). */
#include "unit.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "local/small.h"
#include "wire/opcode.h"

struct fixture {
    char *memory;
    struct ring_writer writer;
    struct ring_reader reader;
    struct packet got;
    struct packet_reference references[PACKET_REFERENCES];
    uint32_t granules;
};

static void begin(struct fixture *f)
{
    *f = (struct fixture){
        .memory = mmap(NULL, LAYOUT_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
    assert_true(f->memory != MAP_FAILED);
    ring_writer_init(&f->writer, f->memory, 3);
    ring_reader_init(&f->reader, f->memory, 3);
    f->reader.references = true;
}

static void end(struct fixture *f)
{
    munmap(f->memory, LAYOUT_SIZE);
}

static int take(struct fixture *f)
{
    return ring_read(&f->reader, &f->got, f->references, &f->granules);
}

static struct packet send_only(uint32_t payload_length)
{
    return (struct packet){.opcode = SERVICE_RC | OP_SEND_ONLY,
                           .pkey = 0xffff,
                           .dest_qpn = 0x123456,
                           .src_qpn = 0x654321,
                           .psn = psn_make(7),
                           .payload_length = payload_length};
}

static int put(struct fixture *f, const struct packet *packet, const void *payload)
{
    struct iovec gather = {(void *)(uintptr_t)payload, packet->payload_length};

    return ring_write(&f->writer, packet, &gather, 1);
}

static struct lane_small small_send(uint32_t length, const void *payload)
{
    return (struct lane_small){.opcode = length % 2 ? OP_SEND_ONLY_IMM : OP_SEND_ONLY,
                               .flags =
                                   length % 3 ? PACKET_ACK_REQUEST : PACKET_SOLICITED | PACKET_ACK_REQUEST,
                               .syndrome = 0x0d,
                               .pkey = 0x8001,
                               .dest_qpn = 0xfedcba,
                               .src_qpn = 0xabcdef,
                               .psn = psn_make(0xffffff - length),
                               .dest_ifindex = 0x80000001,
                               .argument = length % 2 ? 0x12345678 : 0,
                               .length = length,
                               .payload = payload};
}

/* --- what is carried ------------------------------------------------------------------------------------ */

static void test_every_opcode_brings_its_fields(void **state)
{
    struct fixture f;
    char payload[100];

    begin(&f);
    memset(payload, 0x5a, sizeof(payload));
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        const uint32_t has = opcode_table[opcode].properties;
        struct packet packet = {.opcode = (uint8_t)opcode,
                                .flags = PACKET_SOLICITED | PACKET_HAS_ACK,
                                .pkey = 0x8001,
                                .dest_qpn = 0xfedcba,
                                .src_qpn = 0xabcdef,
                                .psn = psn_make(0xffffff),
                                .ack_psn = psn_make(0x800000),
                                .dest_ifindex = 0x80000001,
                                .syndrome = 0xe3,
                                .flush = 0x13,
                                .msn = 0xfffffe,
                                .imm_data = 0x11223344,
                                .invalidate_rkey = 0x55667788,
                                .qkey = 0x80010000,
                                .rkey = 0x99aabbcc,
                                .dma_length = 0x80000000,
                                .address = 0x1122334455667788,
                                .swap_add = 0x0102030405060708,
                                .compare = 0xf1f2f3f4f5f6f7f8,
                                .original = 0xa1a2a3a4a5a6a7a8,
                                .grh = {.source = {1, 2, 3},
                                        .destination = {4, 5, 6},
                                        .flow_label = 0xfffff,
                                        .traffic_class = 9,
                                        .hop_limit = 10,
                                        .service_level = 11}};

        if (!opcode_table[opcode].name)
            continue;
        packet.payload_length = has & OPCODE_HAS_PAYLOAD ? (uint32_t)sizeof(payload) : 0;
        assert_int_equal(put(&f, &packet, payload), 0);
        assert_int_equal(take(&f), 1);
        assert_int_equal(f.got.opcode, opcode);
        assert_int_equal(f.got.flags, packet.flags);
        assert_int_equal(f.got.pkey, packet.pkey);
        assert_int_equal(f.got.dest_qpn, packet.dest_qpn);
        assert_int_equal(f.got.src_qpn, packet.src_qpn);
        assert_true(psn_equal(f.got.psn, packet.psn));
        assert_true(psn_equal(f.got.ack_psn, packet.ack_psn));
        assert_int_equal(f.got.dest_ifindex, packet.dest_ifindex);
        assert_int_equal(f.got.payload_length, packet.payload_length);
        if (packet.payload_length)
            assert_memory_equal(f.got.payload, payload, packet.payload_length);
        assert_int_equal(f.got.reference_count, 0);
        if (has & OPCODE_HAS_AETH) {
            assert_int_equal(f.got.syndrome, packet.syndrome);
            assert_int_equal(f.got.msn, packet.msn);
        }
        if (has & OPCODE_HAS_IMM)
            assert_int_equal(f.got.imm_data, packet.imm_data);
        if (has & OPCODE_HAS_INVALIDATE)
            assert_int_equal(f.got.invalidate_rkey, packet.invalidate_rkey);
        if (has & (OPCODE_HAS_RETH | OPCODE_HAS_ATOMIC_ETH)) {
            assert_int_equal(f.got.rkey, packet.rkey);
            assert_true(f.got.address == packet.address);
        }
        if (has & OPCODE_HAS_RETH)
            assert_int_equal(f.got.dma_length, packet.dma_length);
        if (has & OPCODE_HAS_ATOMIC_ETH) {
            assert_true(f.got.swap_add == packet.swap_add);
            assert_true(f.got.compare == packet.compare);
        }
        if (has & OPCODE_FLUSH)
            assert_int_equal(f.got.flush, packet.flush);
        if (has & OPCODE_HAS_ATOMIC_ACK)
            assert_true(f.got.original == packet.original);
        if (has & OPCODE_HAS_DETH) {
            assert_int_equal(f.got.qkey, packet.qkey);
            assert_memory_equal(f.got.grh.source, packet.grh.source, 16);
            assert_memory_equal(f.got.grh.destination, packet.grh.destination, 16);
            assert_int_equal(f.got.grh.flow_label, packet.grh.flow_label);
            assert_int_equal(f.got.grh.traffic_class, packet.grh.traffic_class);
            assert_int_equal(f.got.grh.hop_limit, packet.grh.hop_limit);
            assert_int_equal(f.got.grh.service_level, packet.grh.service_level);
        }
        ring_release(&f.reader, f.granules);
        assert_int_equal(take(&f), 0);
    }
    end(&f);
}

static void test_eight_bytes_fill_one_granule(void **state)
{
    static const uint8_t opcodes[] = {
        SERVICE_RC | OP_SEND_ONLY,      SERVICE_RC | OP_SEND_ONLY_IMM, SERVICE_RC | OP_WRITE_ONLY,
        SERVICE_RC | OP_WRITE_ONLY_IMM, SERVICE_RC | OP_ACKNOWLEDGE,   SERVICE_RC | OP_FETCH_ADD,
        SERVICE_RC | OP_READ_REQUEST,   SERVICE_RC | OP_FLUSH,         SERVICE_RC | OP_ATOMIC_WRITE};
    struct fixture f;

    begin(&f);
    for (size_t i = 0; i < array_size(opcodes); i++) {
        bool carries = opcode_table[opcodes[i]].properties & OPCODE_HAS_PAYLOAD;
        struct packet packet = send_only(carries ? 8 : 0);

        packet.opcode = opcodes[i];
        assert_int_equal(put(&f, &packet, "12345678"), 0);
        assert_int_equal(take(&f), 1);
        assert_int_equal(f.granules, 1);
        ring_release(&f.reader, f.granules);
    }
    end(&f);
}

static void small_packets_are_read(bool alone)
{
    struct fixture f;
    struct lane_small peeked;
    char payload[LANE_SMALL];

    begin(&f);
    for (uint32_t i = 0; i < LANE_SMALL; i++)
        payload[i] = (char)i;
    for (uint32_t length = 1; length <= LANE_SMALL; length++) {
        struct lane_small small = small_send(length, payload);

        if (alone) {
            assert_true(ring_put_alone(&f.writer, &small));
        } else {
            assert_true(ring_put(&f.writer, &small));
            assert_int_equal(take(&f), 0);
            ring_publish_held(&f.writer);
        }
        assert_true(ring_peek(&f.reader, &peeked));
        assert_int_equal(take(&f), 1);
        assert_int_equal(f.got.opcode, small.opcode);
        assert_int_equal(f.got.flags, small.flags);
        assert_int_equal(f.got.syndrome, small.syndrome);
        assert_int_equal(f.got.pkey, small.pkey);
        assert_int_equal(f.got.dest_qpn, small.dest_qpn);
        assert_int_equal(f.got.src_qpn, small.src_qpn);
        assert_int_equal(f.got.psn.value, small.psn.value);
        assert_int_equal(f.got.dest_ifindex, small.dest_ifindex);
        assert_int_equal(f.got.imm_data, small.argument);
        assert_int_equal(f.got.payload_length, length);
        assert_memory_equal(f.got.payload, payload, length);
        assert_int_equal(peeked.granules, f.granules);
        assert_int_equal(peeked.length, length);
        assert_memory_equal(peeked.payload, payload, length);
        ring_release(&f.reader, f.granules);
        assert_int_equal(take(&f), 0);
    }
    end(&f);
}

static void test_small_packets_are_read_as_any_other(void **state)
{
    small_packets_are_read(false);
}

static void test_small_packets_alone_are_read_as_any_other(void **state)
{
    small_packets_are_read(true);
}

static void test_small_packets_are_published_together(void **state)
{
    struct lane_small small, peeked;
    struct fixture f;
    uint64_t payload;

    begin(&f);
    /* More than a lap: at the end of the small part ring_put() leaves the record to ring_write(). */
    for (uint32_t sent = 0, taken = 0; taken < 5000;) {
        unsigned put_together = 0;

        for (; put_together < 16; put_together++, sent++) {
            payload = sent;
            small = small_send(sizeof(payload), &payload);
            if (!ring_put(&f.writer, &small))
                break;
            assert_int_equal(take(&f), 0);
        }
        ring_publish_held(&f.writer);
        if (put_together < 16) {
            const struct packet packet = send_only(sizeof(payload));

            payload = sent++;
            assert_int_equal(put(&f, &packet, &payload), 0);
        }
        while (taken != sent) {
            assert_true(ring_peek(&f.reader, &peeked) || put_together < 16);
            assert_int_equal(take(&f), 1);
            memcpy(&payload, f.got.payload, sizeof(payload));
            assert_int_equal(payload, taken++);
            if (ring_release(&f.reader, f.granules))
                (void)ring_take_writer_waits(f.reader.control);
        }
        assert_int_equal(take(&f), 0);
    }
    end(&f);
}

static void test_a_full_ring_takes_no_small_packet(void **state)
{
    uint64_t payload = 0;
    const struct lane_small small = small_send(sizeof(payload), &payload);
    struct lane_small peeked;
    struct fixture f;
    unsigned count = 0;

    begin(&f);
    while (ring_put(&f.writer, &small))
        count++;
    ring_publish_held(&f.writer);
    assert_false(ring_put_alone(&f.writer, &small));
    assert_true(count && count <= RING_SMALL / GRANULE);
    for (; ring_peek(&f.reader, &peeked); count--)
        ring_release(&f.reader, peeked.granules);
    assert_int_equal(count, 0);
    end(&f);
}

static void test_small_packets_alone_go_round_the_ring(void **state)
{
    struct lane_small small, peeked;
    struct fixture f;
    uint64_t payload, got;

    begin(&f);
    /* More than a lap: at the end of the small part it is ring_write()'s turn. */
    for (payload = 0; payload < 5000; payload++) {
        const struct packet packet = send_only(sizeof(payload));

        small = small_send(sizeof(payload), &payload);
        if (!ring_put_alone(&f.writer, &small))
            assert_int_equal(put(&f, &packet, &payload), 0);
        assert_int_equal(take(&f), 1);
        memcpy(&got, f.got.payload, sizeof(got));
        assert_true(got == payload);
        ring_release(&f.reader, f.granules);
        assert_false(ring_peek(&f.reader, &peeked));
        assert_int_equal(take(&f), 0);
    }
    end(&f);
}

static void test_payload_is_gathered(void **state)
{
    char a[] = "gathered ", b[] = "from ", c[] = "three and then some";
    struct iovec gather[] = {{a, 9}, {NULL, 0}, {b, 5}, {c, sizeof(c)}};
    struct packet packet = send_only(19);
    struct fixture f;

    begin(&f);
    assert_int_equal(ring_write(&f.writer, &packet, gather, array_size(gather)), 0);
    assert_int_equal(take(&f), 1);
    assert_memory_equal(f.got.payload, "gathered from three", 19);
    end(&f);
}

static void test_references_travel(void **state)
{
    struct packet_reference references[PACKET_REFERENCES];
    struct packet packet = send_only(0);
    struct fixture f;

    begin(&f);
    for (uint32_t i = 0; i < PACKET_REFERENCES; i++) {
        references[i] = (struct packet_reference){0x1000 * i, i + 1};
        packet.payload_length += i + 1;
    }
    packet.flags = PACKET_BY_REFERENCE;
    packet.reference = references;
    packet.reference_count = PACKET_REFERENCES;
    assert_int_equal(ring_write(&f.writer, &packet, NULL, 0), 0);
    assert_int_equal(take(&f), 1);
    assert_int_equal(f.got.reference_count, PACKET_REFERENCES);
    assert_ptr_equal(f.got.reference, f.references);
    assert_memory_equal(f.got.reference, references, sizeof(references));
    assert_null(f.got.payload);
    ring_release(&f.reader, f.granules);

    /* As long as nobody takes them back; over and over. */
    for (unsigned i = 0; i < 3; i++) {
        f.writer.reference_epoch = i == 1 ? 0xffff : 0xffffffff;
        ring_revoke(&f.writer);
        assert_int_equal(ring_write(&f.writer, &packet, NULL, 0), 0);
        assert_int_equal(take(&f), 1);
        ring_release(&f.reader, f.granules);
        assert_false(ring_has_revoked(&f.reader, f.got.reference_epoch));
        ring_revoke(&f.writer);
        assert_true(ring_has_revoked(&f.reader, f.got.reference_epoch));
    }

    packet.reference_count = PACKET_REFERENCES + 1;
    assert_int_equal(ring_write(&f.writer, &packet, NULL, 0), -EMSGSIZE);
    end(&f);
}

/* It asks for references, and brings none. */
static void test_a_read_by_reference_needs_no_right_to_refer(void **state)
{
    struct packet packet = {.opcode = SERVICE_RC | OP_READ_REQUEST,
                            .flags = PACKET_BY_REFERENCE,
                            .address = 0x1000,
                            .dma_length = 100000};
    struct fixture f;

    begin(&f);
    f.reader.references = false;
    assert_int_equal(ring_write(&f.writer, &packet, NULL, 0), 0);
    assert_int_equal(take(&f), 1);
    assert_int_equal(f.got.flags, PACKET_BY_REFERENCE);
    assert_int_equal(f.got.dma_length, 100000);
    assert_int_equal(f.got.reference_count, 0);
    end(&f);
}

static void test_a_drop_notice_has_no_payload(void **state)
{
    struct packet packet = send_only(0);
    struct fixture f;

    begin(&f);
    packet.flags = PACKET_DROPPED;
    packet.opcode = SERVICE_RC | OP_WRITE_ONLY;
    packet.payload_length = 500;
    assert_int_equal(ring_write(&f.writer, &packet, NULL, 0), 0);
    assert_int_equal(take(&f), 1);
    assert_int_equal(f.got.flags, PACKET_DROPPED);
    assert_int_equal(f.got.payload_length, 0);
    assert_int_equal(f.granules, 1);
    end(&f);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    static char payload[LOCAL_MTU + 1];
    struct packet packet = send_only(LOCAL_MTU + 1);
    struct iovec half = {payload, 100};
    struct fixture f;

    begin(&f);
    assert_int_equal(put(&f, &packet, payload), -EMSGSIZE);
    packet.payload_length = 200;
    assert_int_equal(ring_write(&f.writer, &packet, &half, 1), -EINVAL);
    assert_int_equal(take(&f), 0); /* nothing of it can be seen */
    packet.payload_length = LOCAL_MTU;
    assert_int_equal(put(&f, &packet, payload), 0);
    assert_int_equal(take(&f), 1);
    assert_int_equal(f.got.payload_length, LOCAL_MTU);
    end(&f);
}

/* --- going round ---------------------------------------------------------------------------------------- */

static void fill(char *payload, uint32_t length, uint32_t seed)
{
    for (uint32_t i = 0; i < length; i++)
        payload[i] = (char)(seed * 31 + i * 7);
}

static void expect(const struct packet *packet, uint32_t seed)
{
    char wanted[LOCAL_MTU];

    fill(wanted, packet->payload_length, seed);
    assert_memory_equal(packet->payload, wanted, packet->payload_length);
}

static void test_records_keep_order_around_the_ring(void **state)
{
    static char payload[LOCAL_MTU];
    unsigned random = 1;
    uint32_t written = 0, read = 0;
    struct fixture f;

    begin(&f);
    while (read < 20000) {
        for (int burst = rand_r(&random) % 12; burst > 0; burst--) {
            /* Mostly small, sometimes anything: the end of the ring is met at every place. */
            uint32_t length = (uint32_t)rand_r(&random) % (rand_r(&random) % 4 ? 200 : LOCAL_MTU + 1);
            struct packet packet = send_only(length);
            int result;

            packet.psn = psn_make(written);
            fill(payload, length, written);
            result = put(&f, &packet, payload);
            if (result == -EAGAIN)
                break;
            assert_int_equal(result, 0);
            written++;
        }
        for (int burst = rand_r(&random) % 12; burst > 0; burst--) {
            int result = take(&f);

            if (result == 0) {
                assert_int_equal(read, written);
                ring_publish(&f.reader, false);
                break;
            }
            assert_int_equal(result, 1);
            assert_int_equal(f.got.psn.value, read);
            expect(&f.got, read);
            ring_release(&f.reader, f.granules);
            read++;
        }
    }
    assert_true(f.reader.position > 100 * RING_SMALL);
    end(&f);
}

static void test_small_records_stay_in_the_beginning(void **state)
{
    static char payload[LOCAL_MTU];
    struct packet small = send_only(8), large = send_only(LOCAL_MTU);
    struct fixture f;

    begin(&f);
    for (unsigned i = 0; i < 4 * RING_SIZE / GRANULE; i++) {
        assert_int_equal(put(&f, &small, "12345678"), 0);
        assert_true((f.writer.position - 1) % RING_SIZE < RING_SMALL + GRANULE);
        assert_int_equal(take(&f), 1);
        assert_memory_equal(f.got.payload, "12345678", 8);
        ring_release(&f.reader, f.granules);
    }
    /* Large ones take it all, and so do small ones that nobody reads. */
    while (f.writer.position % RING_SIZE < RING_SIZE / 2) {
        assert_int_equal(put(&f, &large, payload), 0);
        assert_int_equal(take(&f), 1);
        ring_release(&f.reader, f.granules);
    }
    while (put(&f, &small, "12345678") == 0)
        ;
    assert_true(f.writer.position - f.reader.position > RING_SIZE - RING_SPACE_FOR_ANY - RING_SMALL);
    end(&f);
}

static unsigned fill_up(struct fixture *f, const struct packet *packet, const void *payload)
{
    unsigned count = 0;
    int result;

    while ((result = put(f, packet, payload)) == 0)
        count++;
    assert_int_equal(result, -EAGAIN);
    return count;
}

static void test_a_full_ring_takes_no_more_until_it_is_read(void **state)
{
    struct packet packet = send_only(8);
    struct fixture f;

    begin(&f);
    /* One granule stays free: it is where the next word will be. */
    assert_int_equal(fill_up(&f, &packet, "12345678"), RING_SIZE / GRANULE - 1);
    assert_int_equal(ring_has_space(&f.writer), 0);
    for (unsigned i = 0; i < RING_SIZE / GRANULE - 1; i++) {
        assert_int_equal(take(&f), 1);
        ring_release(&f.reader, f.granules);
    }
    assert_int_equal(take(&f), 0);
    ring_publish(&f.reader, false);
    assert_int_equal(ring_has_space(&f.writer), 1);
    assert_int_equal(put(&f, &packet, "12345678"), 0);
    assert_int_equal(take(&f), 1);
    end(&f);
}

static void test_an_empty_ring_takes_the_largest_record_anywhere(void **state)
{
    static char payload[LOCAL_MTU];
    struct packet small = send_only(8), large = send_only(LOCAL_MTU);
    struct fixture f;

    begin(&f);
    for (unsigned at = 0; at < 2 * RING_SIZE / GRANULE; at++) {
        assert_int_equal(put(&f, &large, payload), 0);
        assert_int_equal(take(&f), 1);
        ring_release(&f.reader, f.granules);
        assert_int_equal(take(&f), 0);
        ring_publish(&f.reader, false); /* and no more than that: the writer may not see all of it */
        assert_int_equal(put(&f, &small, payload), 0);
        assert_int_equal(take(&f), 1);
        ring_release(&f.reader, f.granules);
        assert_int_equal(take(&f), 0);
        ring_publish(&f.reader, false);
    }
    end(&f);
}

static void test_payload_that_looks_like_records_is_never_one(void **state)
{
    static uint64_t payload[LOCAL_MTU / 8];
    struct packet large = send_only(LOCAL_MTU), small = send_only(8);
    struct fixture f;

    begin(&f);
    for (unsigned lap = 0; lap < 50; lap++) {
        /* In each granule the word that a record would have there one lap later. */
        for (unsigned i = 0; i < array_size(payload); i++)
            payload[i] = record_word(f.writer.position / GRANULE * GRANULE + i / 8 * GRANULE + RING_SIZE, 1,
                                     SERVICE_RC | OP_SEND_ONLY, 0);
        assert_int_equal(put(&f, &large, payload), 0);
        assert_int_equal(take(&f), 1);
        ring_release(&f.reader, f.granules);
        assert_int_equal(take(&f), 0);
        ring_publish(&f.reader, true);
        assert_int_equal(put(&f, &small, "12345678"), 0);
        assert_int_equal(take(&f), 1);
        assert_memory_equal(f.got.payload, "12345678", 8);
        ring_release(&f.reader, f.granules);
        assert_int_equal(take(&f), 0);
        ring_publish(&f.reader, true);
    }
    end(&f);
}

/* --- hostile -------------------------------------------------------------------------------------------- */

static void test_a_position_that_cannot_be_breaks_the_link(void **state)
{
    static const int64_t offsets[] = {-1, RING_SIZE + 1, INT64_MAX, INT64_MIN};
    struct packet packet = send_only(8);

    for (size_t i = 0; i < array_size(offsets); i++) {
        struct fixture f;

        begin(&f);
        fill_up(&f, &packet, "12345678");
        atomic_store(&f.writer.control->consumed, (uint64_t)offsets[i]);
        assert_int_equal(put(&f, &packet, "12345678"), -EPROTO);
        assert_int_equal(ring_has_space(&f.writer), -EPROTO);
        end(&f);
    }
}

struct forgery {
    const char *name;
    uint64_t word;
    uint32_t dest_qpn, payload_length;
};

static void test_records_that_no_writer_writes_are_refused(void **state)
{
    const uint8_t send = SERVICE_RC | OP_SEND_ONLY;
    const struct forgery forgeries[] = {
        {"stamp of the lap before", record_word(RING_SIZE, 1, SERVICE_RC | OP_SEND_ONLY, 0), 1, 8},
        {"stamp of the next granule", record_word(64, 1, send, 0), 1, 8},
        {"length zero", record_word(0, 0, send, 0), 1, 8},
        {"longer than the ring", record_word(0, 1025, send, 0), 1, 8},
        {"longer than the packet", record_word(0, 2, send, 0), 1, 8},
        {"shorter than the packet", record_word(0, 1, send, 0), 1, 500},
        {"payload over the limit", record_word(0, 200, send, 0), 1, LOCAL_MTU + 1},
        {"payload of 4 GB", record_word(0, 1, send, 0), 1, UINT32_MAX},
        {"payload of an acknowledgement", record_word(0, 1, SERVICE_RC | OP_ACKNOWLEDGE, 0), 1, 8},
        {"payload of a drop notice", record_word(0, 1, send, PACKET_DROPPED), 1, 8},
        {"a skip at the beginning", record_word(0, 1024, RECORD_SKIP, 0), 0, 0},
        {"a short skip", record_word(0, 1, RECORD_SKIP, 0), 0, 0},
        {"unknown opcode", record_word(0, 1, 0x1f, 0), 1, 8},
        {"a frame that is relayed", record_word(0, 1, send, PACKET_RELAYED | PACKET_FRAME), 1, 8},
        {"references without the flag", record_word(0, 1, send, 0), 1u << 24, 0},
        {"33 references", record_word(0, 9, send, PACKET_BY_REFERENCE), 33u << 24, 0},
        {"references that do not add up", record_word(0, 1, send, PACKET_BY_REFERENCE), 1u << 24, 1},
        {"payload and no references", record_word(0, 1, send, PACKET_BY_REFERENCE), 0, 1},
        {"references of a READ request", record_word(0, 2, SERVICE_RC | OP_READ_REQUEST, PACKET_BY_REFERENCE),
         1u << 24, 8},
    };

    for (size_t i = 0; i < array_size(forgeries); i++) {
        struct fixture f;
        struct record_header *record;

        begin(&f);
        record = ring_at(f.reader.data, 0);
        record->dest_qpn = forgeries[i].dest_qpn;
        record->payload_length = forgeries[i].payload_length;
        atomic_store(&record->word, forgeries[i].word);
        if (take(&f) != -EPROTO)
            fail_msg("%s is taken", forgeries[i].name);
        end(&f);
    }
}

static void test_references_are_refused_where_they_are_not_allowed(void **state)
{
    struct packet_reference reference = {0x1000, 4};
    struct packet packet = send_only(4);
    struct fixture f;

    begin(&f);
    f.reader.references = false;
    packet.flags = PACKET_BY_REFERENCE;
    packet.reference = &reference;
    packet.reference_count = 1;
    assert_int_equal(ring_write(&f.writer, &packet, NULL, 0), 0);
    assert_int_equal(take(&f), -EPROTO);
    end(&f);
}

static void test_random_bytes_stay_inside_the_ring(void **state)
{
    static char payload[LOCAL_MTU];
    unsigned random = 2, taken = 0, refused = 0;
    struct fixture f;

    for (int round = 0; round < 3000; round++) {
        begin(&f);
        for (int i = 0; i < 12; i++) {
            struct packet packet = send_only((uint32_t)rand_r(&random) % (LOCAL_MTU + 1));

            if (put(&f, &packet, payload) != 0)
                break;
        }
        for (int i = 0; i < 24; i++) {
            int result;

            /* In the words and headers mostly, else nothing would ever get past the first check. */
            for (int flips = rand_r(&random) % 3; flips > 0; flips--)
                *((char *)ring_at(f.reader.data, f.reader.position) + rand_r(&random) % 64) ^=
                    (char)(1 << rand_r(&random) % 8);
            result = take(&f);
            if (result == 0)
                break;
            if (result < 0) {
                assert_int_equal(result, -EPROTO);
                refused++;
                break;
            }
            taken++;
            if (f.got.payload) {
                assert_true((const char *)f.got.payload >= f.reader.data);
                assert_true((const char *)f.got.payload + f.got.payload_length <= f.reader.data + RING_SIZE);
            }
            ring_release(&f.reader, f.granules);
        }
        end(&f);
    }
    assert_true(taken > 1000 && refused > 1000); /* else the test says nothing */
}

/* --- two threads ---------------------------------------------------------------------------------------- */

#define STREAM 200000

static void *stream_writer(void *argument)
{
    struct fixture *f = argument;
    char payload[300];

    for (uint32_t i = 0; i < STREAM; i++) {
        struct packet packet = send_only(i % 300);
        int result;

        packet.psn = psn_make(i);
        fill(payload, packet.payload_length, i);
        while ((result = put(f, &packet, payload)) == -EAGAIN)
            sched_yield();
        if (result)
            return (void *)1;
    }
    return NULL;
}

static void test_a_stream_between_threads(void **state)
{
    struct fixture f;
    pthread_t writer;
    void *failed;

    begin(&f);
    assert_int_equal(pthread_create(&writer, NULL, stream_writer, &f), 0);
    for (uint32_t i = 0; i < STREAM;) {
        int result = take(&f);

        if (result == 0) {
            ring_publish(&f.reader, false);
            sched_yield();
            continue;
        }
        assert_int_equal(result, 1);
        assert_int_equal(f.got.psn.value, i);
        expect(&f.got, i);
        ring_release(&f.reader, f.granules);
        i++;
    }
    pthread_join(writer, &failed);
    assert_null(failed);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_opcode_brings_its_fields),
        cmocka_unit_test(test_eight_bytes_fill_one_granule),
        cmocka_unit_test(test_small_packets_are_read_as_any_other),
        cmocka_unit_test(test_small_packets_alone_are_read_as_any_other),
        cmocka_unit_test(test_small_packets_are_published_together),
        cmocka_unit_test(test_a_full_ring_takes_no_small_packet),
        cmocka_unit_test(test_small_packets_alone_go_round_the_ring),
        cmocka_unit_test(test_payload_is_gathered),
        cmocka_unit_test(test_references_travel),
        cmocka_unit_test(test_a_read_by_reference_needs_no_right_to_refer),
        cmocka_unit_test(test_a_drop_notice_has_no_payload),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_records_keep_order_around_the_ring),
        cmocka_unit_test(test_small_records_stay_in_the_beginning),
        cmocka_unit_test(test_a_full_ring_takes_no_more_until_it_is_read),
        cmocka_unit_test(test_an_empty_ring_takes_the_largest_record_anywhere),
        cmocka_unit_test(test_payload_that_looks_like_records_is_never_one),
        cmocka_unit_test(test_a_position_that_cannot_be_breaks_the_link),
        cmocka_unit_test(test_records_that_no_writer_writes_are_refused),
        cmocka_unit_test(test_references_are_refused_where_they_are_not_allowed),
        cmocka_unit_test(test_random_bytes_stay_inside_the_ring),
        cmocka_unit_test(test_a_stream_between_threads),
    };

    return run_unit_tests("local_ring", tests);
}
