/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of a capture ring -> packets -> frames, and a ring that a hostile process writes. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/types.h"
#include "capture/cut.h"
#include "capture/frame.h"
#include "capture/ring.h"
#include "wire/icrc.h"
#include "wire/opcode.h"

#define ROOM 1100u

static struct {
    struct cut_packet packets[ROOM];
    unsigned count;
} got;

static void keep(const struct cut_packet *packet, void *argument)
{
    assert_true(got.count < ROOM);
    got.packets[got.count++] = *packet;
}

static uint8_t payload[16384];

static struct capture_record record_of(uint8_t opcode, uint32_t psn, uint32_t length)
{
    struct capture_record record = {
        .opcode = opcode,
        .flags = CAPTURE_BY_LINK,
        .psn = psn,
        .mtu = 1024,
        .link_mtu = 8192,
        .pkey = 0xffff,
        .src_qpn = 0x111,
        .dest_qpn = 0x222,
        .payload_length = length,
        .captured = length,
        .packet_flags = PACKET_ACK_REQUEST,
    };

    memcpy(record.source, (const uint8_t[16]){[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}, 16);
    memcpy(record.destination, (const uint8_t[16]){[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 2}, 16);
    return record;
}

static struct capture_record answer_of(uint8_t opcode, uint32_t psn, uint32_t length, uint32_t msn)
{
    struct capture_record record = record_of(opcode, psn, length);

    record.src_qpn = 0x222;
    record.dest_qpn = 0x111;
    record.syndrome = 0x1f;
    record.msn = msn;
    record.packet_flags = 0;
    return record;
}

static void take(struct cutter *cutter, struct capture_record record)
{
    static struct capture_record taken; /* packets refer to it */

    taken = record;
    got.count = 0;
    cutter_take(cutter, &taken, payload, UINT32_MAX);
}

static void expect(unsigned at, uint8_t opcode, uint32_t psn, uint32_t length)
{
    assert_true(at < got.count);
    assert_int_equal(got.packets[at].packet.opcode, opcode);
    assert_int_equal(got.packets[at].packet.psn.value, psn);
    assert_int_equal(got.packets[at].packet.payload_length, length);
}

static void test_a_message_becomes_packets_of_the_path_mtu(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);

    take(cutter, record_of(SERVICE_RC | OP_SEND_ONLY_IMM, 100, 2500));
    assert_int_equal(got.count, 3);
    expect(0, OP_SEND_FIRST, 100, 1024);
    expect(1, OP_SEND_MIDDLE, 101, 1024);
    expect(2, OP_SEND_LAST_IMM, 102, 452);
    assert_int_equal(got.packets[0].packet.flags | got.packets[1].packet.flags, 0);
    assert_int_equal(got.packets[2].packet.flags, PACKET_ACK_REQUEST);
    assert_ptr_equal(got.packets[1].payload, payload + 1024);
    take(cutter, record_of(SERVICE_RC | OP_SEND_FIRST, 101, 8192));
    assert_int_equal(got.count, 8);
    expect(0, OP_SEND_FIRST, 103, 1024);
    expect(7, OP_SEND_MIDDLE, 110, 1024);
    take(cutter, record_of(SERVICE_RC | OP_SEND_LAST, 102, 1));
    expect(0, OP_SEND_LAST, 111, 1);
    take(cutter, record_of(SERVICE_RC | OP_SEND_ONLY, 103, 0));
    expect(0, OP_SEND_ONLY, 112, 0);
    cutter_free(cutter);
}

static void test_answers_name_what_was_cut(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);
    struct capture_record read = record_of(SERVICE_RC | OP_READ_REQUEST, 0xffffff, 0), request;

    read.dma_length = 20000; /* three PSNs of the link, twenty of the path */
    take(cutter, read);
    expect(0, OP_READ_REQUEST, 0xffffff, 0);
    take(cutter, record_of(SERVICE_RC | OP_WRITE_ONLY, 2, 3000));
    expect(0, OP_WRITE_FIRST, 19, 1024);
    expect(2, OP_WRITE_LAST, 21, 952);
    take(cutter, answer_of(SERVICE_RC | OP_READ_RESPONSE_FIRST, 0xffffff, 8192, 1));
    expect(0, OP_READ_RESPONSE_FIRST, 0xffffff, 1024);
    expect(7, OP_READ_RESPONSE_MIDDLE, 6, 1024);
    take(cutter, answer_of(SERVICE_RC | OP_READ_RESPONSE_LAST, 1, 3616, 1));
    expect(0, OP_READ_RESPONSE_MIDDLE, 15, 1024);
    expect(3, OP_READ_RESPONSE_LAST, 18, 544);
    /* An acknowledgement covers the last packet of the message, a NAK names the first. */
    take(cutter, answer_of(SERVICE_RC | OP_ACKNOWLEDGE, 2, 0, 2));
    expect(0, OP_ACKNOWLEDGE, 21, 0);
    take(cutter, record_of(SERVICE_RC | OP_SEND_ONLY, 3, 2000));
    request = answer_of(SERVICE_RC | OP_ACKNOWLEDGE, 3, 0, 2);
    request.syndrome = 0x21; /* RNR NAK */
    take(cutter, request);
    expect(0, OP_ACKNOWLEDGE, 22, 0);
    /* It is sent again. */
    take(cutter, record_of(SERVICE_RC | OP_SEND_ONLY, 3, 2000));
    expect(0, OP_SEND_FIRST, 22, 1024);
    assert_string_equal(got.packets[0].comment, "sent again");
    /* A request of the other direction carries the acknowledgement. */
    request = answer_of(SERVICE_RC | OP_SEND_ONLY, 500, 4, 0);
    request.packet_flags = PACKET_HAS_ACK;
    request.ack_psn = 3;
    take(cutter, request);
    assert_int_equal(got.count, 2);
    expect(0, OP_ACKNOWLEDGE, 23, 0);
    assert_int_equal(got.packets[0].packet.msn, 3);
    assert_int_equal(got.packets[0].packet.dest_qpn, 0x111);
    expect(1, OP_SEND_ONLY, 500, 4);
    cutter_free(cutter);
}

static void test_what_the_link_says_to_itself_is_a_comment(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);
    struct capture_record record = answer_of(SERVICE_RC | OP_ACKNOWLEDGE, 7, 0, 0);

    record.packet_flags = PACKET_DROPPED;
    take(cutter, record);
    assert_int_equal(got.count, 0);
    record = answer_of(SERVICE_RC | OP_ACKNOWLEDGE, 7, 0, 0);
    record.flags |= CAPTURE_UNACKED;
    take(cutter, record);
    assert_int_equal(got.count, 0);
    take(cutter, record_of(SERVICE_RC | OP_SEND_ONLY, 9, 1));
    assert_string_equal(got.packets[0].comment, "SoftHCA's drop notice, which is not a packet of IBA: QP "
                                                "0x000222 told QP 0x000111 that it dropped a request");
    take(cutter, record_of(SERVICE_RC | OP_SEND_ONLY, 14, 1));
    assert_string_equal(got.packets[0].comment, "packets before this one are missing in the capture");
    expect(0, OP_SEND_ONLY, 14, 1);
    cutter_free(cutter);
}

/* Anything may come: nothing is read beyond the payload. */
static void test_records_of_a_hostile_process(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);

    srand(4791);
    for (unsigned round = 0; round < 200000; round++) {
        struct capture_record record = record_of((uint8_t)rand(), (uint32_t)rand(), (uint32_t)rand() % 9000);

        for (unsigned i = 0; i < 3; i++)
            ((uint8_t *)&record)[16 + (unsigned)rand() % (sizeof(record) - 16)] = (uint8_t)rand();
        if (record.captured > sizeof(payload))
            record.captured = sizeof(payload);
        got.count = 0;
        cutter_take(cutter, &record, payload, UINT32_MAX);
        for (unsigned i = 0; i < got.count; i++) {
            const struct cut_packet *packet = &got.packets[i];
            uint8_t frame[FRAME_HEADERS_MAX + CUT_PAYLOAD_MAX + 8];
            size_t length;

            if (!packet->captured)
                continue;
            assert_true(packet->payload >= payload &&
                        packet->payload + packet->captured <= payload + record.captured);
            assert_true(packet->captured <= CUT_PAYLOAD_MAX);
            assert_true(frame_build(packet, frame, &length) <= sizeof(frame));
        }
    }
    cutter_free(cutter);
}

/* IBA A17.9.3: BTH with BECN, and 16 reserved bytes. */
static void test_a_congestion_notification_is_a_packet(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);
    const uint8_t bytes[CNP_LENGTH] = {0x81, 0, 0xff, 0xff, 0x40, 0, 2, 0x22};
    struct capture_record record = record_of(OPCODE_CNP, 0, 0);
    uint8_t frame[FRAME_HEADERS_MAX + CUT_PAYLOAD_MAX + 8];
    size_t length;

    record.flags = 0;
    record.packet_flags = 0;
    take(cutter, record);
    assert_int_equal(got.count, 1);
    assert_int_equal(frame_build(&got.packets[0], frame, &length), 14 + 20 + 8 + CNP_LENGTH + 4);
    assert_memory_equal(frame + 42, bytes, sizeof(bytes));
    record.payload_length = 1; /* no process of ours has recorded that */
    take(cutter, record);
    assert_int_equal(got.count, 0);
    cutter_free(cutter);
}

static void test_an_ethernet_frame_stays_as_it_is(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);
    struct capture_record record = record_of(SERVICE_UC | OP_SEND_ONLY, 0, 8192);
    uint8_t frame[FRAME_HEADERS_MAX + CUT_PAYLOAD_MAX + 8];
    size_t length;

    record.flags = 0;
    record.packet_flags = PACKET_FRAME;
    record.captured = 100;
    memset(payload, 0x5a, 8192);
    take(cutter, record);
    assert_int_equal(got.count, 1);
    assert_int_equal(frame_build(&got.packets[0], frame, &length), 100);
    assert_int_equal(length, 8192);
    assert_memory_equal(frame, payload, 100);
    cutter_free(cutter);
}

static void test_a_frame_has_a_right_icrc(void **state)
{
    struct cutter *cutter = cutter_new(keep, NULL);
    struct icrc_path path = {.destination_port = 4791, .dont_fragment = true};
    struct capture_record record = record_of(SERVICE_RC | OP_SEND_ONLY, 1, 5);
    uint8_t frame[FRAME_HEADERS_MAX + CUT_PAYLOAD_MAX + 8];
    size_t length;

    memcpy(payload, "hello", 5);
    take(cutter, record);
    assert_int_equal(frame_build(&got.packets[0], frame, &length), 14 + 20 + 8 + 12 + 8 + 4);
    assert_int_equal(length, 14 + 20 + 8 + 12 + 8 + 4);
    memcpy(path.source, record.source, 16);
    memcpy(path.destination, record.destination, 16);
    path.source_port = (uint16_t)(frame[34] << 8 | frame[35]);
    assert_true(path.source_port >= 0xc000);
    assert_true(icrc_check(&path, frame + 42, length - 42));
    record.fate = CAPTURE_BROKEN;
    take(cutter, record);
    frame_build(&got.packets[0], frame, &length);
    assert_false(icrc_check(&path, frame + 42, length - 42));
    cutter_free(cutter);
}

/* --- the ring -------------------------------------------------------------------------------------------- */

static void put(struct capture_ring *ring, uint32_t at, uint32_t size, uint32_t captured,
                enum capture_state state)
{
    struct capture_record *entry = (struct capture_record *)(void *)(ring->bytes + at);

    entry->size = size;
    if (size >= sizeof(*entry))
        entry->captured = captured;
    atomic_store(&entry->state, state);
}

static void test_the_reader_takes_what_is_filled_in(void **state)
{
    struct capture_record record;
    struct capture_ring ring;
    const uint8_t *bytes;

    assert_int_equal(capture_ring_make(&ring, CAPTURE_RING_MIN, 100, NULL, 0), 0);
    capture_ring_look(&ring);
    assert_int_equal(capture_ring_peek(&ring, &record, &bytes), CAPTURE_NOTHING);
    atomic_store(&ring.header->head, 16 + 256 + 192);
    put(&ring, 0, 16, 0, CAPTURE_VOID);
    put(&ring, 16, 256, 90, CAPTURE_PACKET);
    capture_ring_look(&ring);
    assert_int_equal(capture_ring_peek(&ring, &record, &bytes), CAPTURE_ENTRY);
    assert_int_equal(record.captured, 90);
    assert_ptr_equal(bytes, ring.bytes + 16 + sizeof(record));
    capture_ring_next(&ring, &record);
    assert_int_equal(atomic_load(&ring.header->tail), 16 + 256);
    assert_int_equal(ring.bytes[16], 0); /* for the next entry there */
    assert_int_equal(capture_ring_peek(&ring, &record, &bytes), CAPTURE_UNFILLED);
    capture_ring_free(&ring);
}

static void test_nonsense_in_the_ring_is_found(void **state)
{
    static const struct {
        uint32_t size, captured;
        enum capture_state state;
    } cases[] = {{0, 0, CAPTURE_PACKET},          {24, 0, CAPTURE_VOID},       {64, 0, CAPTURE_PACKET},
                 {4096, 0, CAPTURE_PACKET},       {256, 4000, CAPTURE_PACKET}, {1u << 31, 0, CAPTURE_VOID},
                 {256, 0, (enum capture_state)77}};

    for (unsigned i = 0; i < array_size(cases); i++) {
        struct capture_record record;
        struct capture_ring ring;
        const uint8_t *bytes;

        assert_int_equal(capture_ring_make(&ring, CAPTURE_RING_MIN, 100, NULL, 0), 0);
        atomic_store(&ring.header->head, 1024);
        put(&ring, 0, cases[i].size, cases[i].captured, cases[i].state);
        capture_ring_look(&ring);
        assert_int_equal(capture_ring_peek(&ring, &record, &bytes), CAPTURE_NONSENSE);
        capture_ring_free(&ring);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_becomes_packets_of_the_path_mtu),
        cmocka_unit_test(test_answers_name_what_was_cut),
        cmocka_unit_test(test_what_the_link_says_to_itself_is_a_comment),
        cmocka_unit_test(test_records_of_a_hostile_process),
        cmocka_unit_test(test_a_congestion_notification_is_a_packet),
        cmocka_unit_test(test_an_ethernet_frame_stays_as_it_is),
        cmocka_unit_test(test_a_frame_has_a_right_icrc),
        cmocka_unit_test(test_the_reader_takes_what_is_filled_in),
        cmocka_unit_test(test_nonsense_in_the_ring_is_found),
    };

    return run_unit_tests("capture", tests);
}
