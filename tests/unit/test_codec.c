/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Opcode table and codec: IBA 9.2-9.3. */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "wire/codec.h"
#include "wire/cursor.h"

#define POSITIONS (OPCODE_FIRST | OPCODE_MIDDLE | OPCODE_LAST | OPCODE_ONLY)
#define KINDS     (OPCODE_SEND | OPCODE_WRITE | OPCODE_READ | OPCODE_ATOMIC | OPCODE_ACK | OPCODE_FLUSH)

static const struct opcode_info *info(unsigned opcode)
{
    return &opcode_table[opcode];
}

/* Calls for every opcode that exists. */
static void for_all(void (*visit)(unsigned opcode, uint32_t properties))
{
    for (unsigned opcode = 0; opcode < 256; opcode++)
        if (info(opcode)->name)
            visit(opcode, info(opcode)->properties);
}

/* --- table --- */

static void exactly_the_opcodes_of_rc_uc_ud_and_xrc_exist(void **state)
{
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        const unsigned operation = BTH_OPERATION(opcode);
        const bool invalidate = operation == OP_SEND_LAST_INVALIDATE || operation == OP_SEND_ONLY_INVALIDATE;
        bool exists = false;

        switch (BTH_SERVICE(opcode)) {
        case SERVICE_RC:
        case SERVICE_XRC:
            exists = operation <= OP_FETCH_ADD || invalidate || operation == OP_FLUSH ||
                     operation == OP_ATOMIC_WRITE;
            break;
        case SERVICE_UC:
            exists = operation <= OP_WRITE_ONLY_IMM || invalidate;
            break;
        case SERVICE_UD:
            exists = operation == OP_SEND_ONLY || operation == OP_SEND_ONLY_IMM;
            break;
        }
        assert_int_equal(info(opcode)->name != NULL, exists);
        if (!exists) {
            assert_int_equal(info(opcode)->properties, 0);
            assert_int_equal(info(opcode)->header_length, 0);
        }
    }
}

static void check_position(unsigned opcode, uint32_t properties)
{
    assert_int_equal(__builtin_popcount(properties & POSITIONS), 1);
}

static void an_opcode_has_one_position_in_its_message(void **state)
{
    for_all(check_position);
}

static void check_kind(unsigned opcode, uint32_t properties)
{
    const uint32_t kinds = properties & KINDS;

    if (kinds != (OPCODE_ATOMIC | OPCODE_ACK))
        assert_int_equal(__builtin_popcount(kinds), 1);
    if (kinds & OPCODE_ACK)
        assert_false(properties & OPCODE_REQUEST);
    if (kinds & (OPCODE_SEND | OPCODE_WRITE))
        assert_true(properties & OPCODE_REQUEST);
}

static void an_opcode_is_of_one_kind(void **state)
{
    for_all(check_kind);
}

static void check_receive(unsigned opcode, uint32_t properties)
{
    const bool first = properties & (OPCODE_FIRST | OPCODE_ONLY);
    const bool expected =
        (properties & OPCODE_SEND && first) || (properties & OPCODE_WRITE && properties & OPCODE_HAS_IMM);

    assert_int_equal(!!(properties & OPCODE_NEEDS_RECEIVE), expected);
}

static void a_send_takes_its_receive_at_the_start_and_a_write_with_immediate_at_the_end(void **state)
{
    for_all(check_receive);
}

static void header_lengths_are_those_of_the_specification(void **state)
{
    static const struct {
        unsigned opcode, length;
    } rows[] = {
        {OP_SEND_FIRST, 12},
        {OP_SEND_MIDDLE, 12},
        {OP_SEND_LAST, 12},
        {OP_SEND_LAST_IMM, 16},
        {OP_SEND_ONLY, 12},
        {OP_SEND_ONLY_IMM, 16},
        {OP_WRITE_FIRST, 28},
        {OP_WRITE_MIDDLE, 12},
        {OP_WRITE_LAST, 12},
        {OP_WRITE_LAST_IMM, 16},
        {OP_WRITE_ONLY, 28},
        {OP_WRITE_ONLY_IMM, 32},
        {OP_READ_REQUEST, 28},
        {OP_READ_RESPONSE_FIRST, 16},
        {OP_READ_RESPONSE_MIDDLE, 12},
        {OP_READ_RESPONSE_LAST, 16},
        {OP_READ_RESPONSE_ONLY, 16},
        {OP_ACKNOWLEDGE, 16},
        {OP_ATOMIC_ACKNOWLEDGE, 24},
        {OP_COMPARE_SWAP, 40},
        {OP_FETCH_ADD, 40},
        {OP_SEND_LAST_INVALIDATE, 16},
        {OP_SEND_ONLY_INVALIDATE, 16},
        {OP_FLUSH, 32},
        {OP_ATOMIC_WRITE, 28},
    };

    for (size_t i = 0; i < array_size(rows); i++) {
        assert_int_equal(info(SERVICE_RC | rows[i].opcode)->header_length, rows[i].length);
        if (info(SERVICE_UC | rows[i].opcode)->name)
            assert_int_equal(info(SERVICE_UC | rows[i].opcode)->header_length, rows[i].length);
    }
    for (size_t i = 0; i < array_size(rows); i++) { /* XRCETH in requests only */
        const struct opcode_info *xrc = info(SERVICE_XRC | rows[i].opcode);

        assert_int_equal(xrc->header_length, rows[i].length + (xrc->properties & OPCODE_REQUEST ? 4 : 0));
    }
    assert_int_equal(info(SERVICE_UD | OP_SEND_ONLY)->header_length, 20);
    assert_int_equal(info(SERVICE_UD | OP_SEND_ONLY_IMM)->header_length, 24);
}

/* --- round trip --- */

static uint64_t random_state;

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Every field that the opcode carries, at random; every other zero. */
static struct packet random_packet(unsigned opcode, const uint8_t *payload)
{
    const uint32_t properties = info(opcode)->properties;
    struct packet packet = {
        .opcode = (uint8_t)opcode,
        .flags = (uint8_t)(draw() & (PACKET_SOLICITED | PACKET_ACK_REQUEST)),
        .pkey = (uint16_t)draw(),
        .dest_qpn = (uint32_t)draw() & 0xffffff,
        .psn = psn_make((uint32_t)draw()),
    };

    if (properties & OPCODE_HAS_DETH) {
        packet.qkey = (uint32_t)draw();
        packet.src_qpn = (uint32_t)draw() & 0xffffff;
    }
    if (properties & (OPCODE_HAS_RETH | OPCODE_HAS_ATOMIC_ETH)) {
        packet.address = draw();
        packet.rkey = (uint32_t)draw();
    }
    if (properties & OPCODE_FLUSH)
        packet.flush = (uint8_t)draw();
    if (properties & OPCODE_HAS_RETH)
        packet.dma_length = (uint32_t)draw();
    if (properties & OPCODE_HAS_ATOMIC_ETH) {
        packet.swap_add = draw();
        packet.compare = draw();
    }
    if (properties & OPCODE_HAS_AETH) {
        packet.syndrome = (uint8_t)draw();
        packet.msn = (uint32_t)draw() & 0xffffff;
    }
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        packet.original = draw();
    if (properties & OPCODE_HAS_IMM)
        packet.imm_data = (uint32_t)draw();
    if (properties & OPCODE_HAS_INVALIDATE)
        packet.invalidate_rkey = (uint32_t)draw();
    if (properties & OPCODE_HAS_PAYLOAD)
        packet.payload_length = (uint32_t)draw() % 64;
    if (packet.payload_length)
        packet.payload = payload;
    return packet;
}

/* Headers, payload and padding, without ICRC. */
static size_t serialise(const struct packet *packet, uint8_t *bytes)
{
    size_t length = codec_encode(packet, bytes);

    if (packet->payload_length)
        memcpy(bytes + length, packet->payload, packet->payload_length);
    length += packet->payload_length;
    memset(bytes + length, 0, codec_pad(packet->payload_length));
    return length + codec_pad(packet->payload_length);
}

static void check_round_trip(unsigned opcode, uint32_t properties)
{
    uint8_t payload[64], bytes[256];

    for (unsigned round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof(payload); i++)
            payload[i] = (uint8_t)draw();

        struct packet packet = random_packet(opcode, payload), decoded;
        const size_t length = serialise(&packet, bytes);

        assert_int_equal(length + ICRC_LENGTH, codec_udp_payload_length(&packet));
        assert_int_equal(codec_decode(bytes, length, &decoded), 0);
        if (packet.payload_length) {
            assert_memory_equal(decoded.payload, payload, packet.payload_length);
            assert_ptr_equal(decoded.payload, bytes + info(opcode)->header_length);
        }
        decoded.payload = packet.payload;
        assert_memory_equal(&decoded, &packet, sizeof(packet));
    }
}

static void every_opcode_comes_back_as_it_was_sent(void **state)
{
    random_state = 0x9e3779b97f4a7c15;
    for_all(check_round_trip);
}

/* --- bytes --- */

/* RC RDMA WRITE only with immediate, by hand. */
static const uint8_t write_imm[] = {
    0x0b, 0xf0, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef, /* BTH: SE, MigReq, 3 of padding
                                                                             */
    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0xaa, 0xbb, 0xcc, 0xdd, 0x00, 0x00, 0x00, 0x01, /* RETH */
    0xde, 0xad, 0xbe, 0xef, /* ImmDt */
    0x5a, 0x00, 0x00, 0x00,
};

static void fields_are_where_the_specification_puts_them(void **state)
{
    struct packet packet;

    assert_int_equal(codec_decode(write_imm, sizeof(write_imm), &packet), 0);
    assert_int_equal(packet.opcode, SERVICE_RC | OP_WRITE_ONLY_IMM);
    assert_int_equal(packet.flags, PACKET_SOLICITED | PACKET_ACK_REQUEST);
    assert_int_equal(packet.pkey, 0xffff);
    assert_int_equal(packet.dest_qpn, 0x123456);
    assert_int_equal(packet.psn.value, 0xabcdef);
    assert_true(packet.address == 0x0102030405060708);
    assert_int_equal(packet.rkey, 0xaabbccdd);
    assert_int_equal(packet.dma_length, 1);
    assert_memory_equal(&packet.imm_data, "\xde\xad\xbe\xef", 4);
    assert_int_equal(packet.payload_length, 1);
    assert_int_equal(*(const uint8_t *)packet.payload, 0x5a);

    uint8_t bytes[64];

    assert_int_equal(serialise(&packet, bytes), sizeof(write_imm));
    assert_memory_equal(bytes, write_imm, sizeof(write_imm));
}

static void deth_and_immediate_of_a_datagram_are_in_order(void **state)
{
    static const uint8_t bytes[] = {
        0x65, 0x40, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x07,
        0x11, 0x22, 0x33, 0x44, 0x00, 0x65, 0x43, 0x21, 0xca, 0xfe, 0xba, 0xbe,
    };
    struct packet packet;

    assert_int_equal(codec_decode(bytes, sizeof(bytes), &packet), 0);
    assert_int_equal(packet.qkey, 0x11223344);
    assert_int_equal(packet.src_qpn, 0x654321);
    assert_memory_equal(&packet.imm_data, "\xca\xfe\xba\xbe", 4);
    assert_int_equal(packet.payload_length, 0);
    assert_null(packet.payload);
}

static void swap_comes_before_compare(void **state)
{
    struct packet packet = {
        .opcode = OP_COMPARE_SWAP, .swap_add = 0x1111111111111111, .compare = 0x2222222222222222};
    uint8_t bytes[HEADER_LENGTH_MAX];

    assert_int_equal(codec_encode(&packet, bytes), 40);
    assert_int_equal(bytes[24], 0x11);
    assert_int_equal(bytes[32], 0x22);
}

static void feth_comes_before_reth(void **state)
{
    struct packet packet = {
        .opcode = OP_FLUSH, .flush = 0x12, .address = 0x1111111111111111, .rkey = 0x22222222};
    uint8_t bytes[HEADER_LENGTH_MAX];

    assert_int_equal(codec_encode(&packet, bytes), 32);
    assert_memory_equal(bytes + 12, "\0\0\0\x12\x11\x11", 6);
    assert_int_equal(bytes[24], 0x22);
}

static void acknowledgements_say_migrated_too(void **state)
{
    const struct packet packet = {.opcode = OP_ACKNOWLEDGE};
    uint8_t bytes[HEADER_LENGTH_MAX];

    assert_int_equal(codec_encode(&packet, bytes), 16);
    assert_int_equal(bytes[1], 0x40);
}

static void numbers_of_24_bits_are_cut_to_size(void **state)
{
    const struct packet packet = {.opcode = SERVICE_UD | OP_SEND_ONLY,
                                  .dest_qpn = 0xff123456,
                                  .src_qpn = 0xff654321,
                                  .psn = {0xff000001}};
    struct packet decoded;
    uint8_t bytes[HEADER_LENGTH_MAX];
    const size_t length = codec_encode(&packet, bytes);

    assert_int_equal(codec_decode(bytes, length, &decoded), 0);
    assert_int_equal(decoded.dest_qpn, 0x123456);
    assert_int_equal(decoded.src_qpn, 0x654321);
    assert_int_equal(decoded.psn.value, 1);
}

/* --- hostile bytes --- */

static void check_truncation(unsigned opcode, uint32_t properties)
{
    uint8_t payload[64] = {0}, bytes[256];
    struct packet packet = random_packet(opcode, payload), decoded;

    packet.payload_length = 0;
    const size_t length = serialise(&packet, bytes);

    memset(&decoded, 0x5a, sizeof(decoded));
    for (size_t shorter = 0; shorter < length; shorter++)
        assert_int_equal(codec_decode(bytes, shorter, &decoded), -EPROTO);
    for (size_t i = 0; i < sizeof(decoded); i++)
        assert_int_equal(((const uint8_t *)&decoded)[i], 0x5a);
}

static void a_packet_that_ends_within_its_headers_is_refused(void **state)
{
    random_state = 1;
    for_all(check_truncation);
}

static void check_stowaway(unsigned opcode, uint32_t properties)
{
    uint8_t bytes[256] = {0};
    struct packet packet = {.opcode = (uint8_t)opcode}, decoded;
    const size_t length = codec_encode(&packet, bytes);

    assert_int_equal(codec_decode(bytes, length + 4, &decoded),
                     properties & OPCODE_HAS_PAYLOAD ? 0 : -EPROTO);
}

static void a_payload_where_none_belongs_is_refused(void **state)
{
    for_all(check_stowaway);
}

static void a_payload_of_broken_words_is_refused(void **state)
{
    uint8_t bytes[64];
    struct packet decoded;

    memcpy(bytes, write_imm, sizeof(write_imm));
    for (size_t more = 1; more < 4; more++)
        assert_int_equal(codec_decode(bytes, sizeof(write_imm) + more, &decoded), -EPROTO);
}

static void more_padding_than_payload_is_refused(void **state)
{
    struct packet decoded;

    assert_int_equal(codec_decode(write_imm, sizeof(write_imm) - 4, &decoded), -EPROTO);
}

static void another_transport_version_is_refused(void **state)
{
    struct packet decoded;

    for (unsigned version = 1; version < 16; version++) {
        uint8_t bytes[sizeof(write_imm)];

        memcpy(bytes, write_imm, sizeof(bytes));
        bytes[1] |= (uint8_t)version;
        assert_int_equal(codec_decode(bytes, sizeof(bytes), &decoded), -EPROTO);
    }
}

static void an_unknown_opcode_is_told_apart(void **state)
{
    uint8_t bytes[64] = {0};
    struct packet decoded, packet = {0};

    for (unsigned opcode = 0; opcode < 256; opcode++) {
        if (info(opcode)->name)
            continue;
        memset(&decoded, 0xee, sizeof(decoded));
        bytes[0] = packet.opcode = (uint8_t)opcode;
        bytes[7] = 5;
        bytes[11] = 9;
        assert_int_equal(codec_decode(bytes, sizeof(bytes), &decoded), -EPROTONOSUPPORT);
        assert_int_equal(decoded.opcode, opcode);
        assert_int_equal(decoded.dest_qpn, 5);
        assert_int_equal(decoded.psn.value, 9);
        assert_int_equal(decoded.payload_length, 0);
        assert_int_equal(codec_encode(&packet, bytes), 0);
    }
}

static void congestion_and_reserved_bits_are_ignored(void **state)
{
    uint8_t bytes[sizeof(write_imm)];
    struct packet plain, noisy;

    memcpy(bytes, write_imm, sizeof(bytes));
    bytes[1] &= (uint8_t)~0x40;
    bytes[4] = 0xff;
    bytes[8] |= 0x7f;
    assert_int_equal(codec_decode(write_imm, sizeof(write_imm), &plain), 0);
    assert_int_equal(codec_decode(bytes, sizeof(bytes), &noisy), 0);
    noisy.payload = plain.payload;
    assert_memory_equal(&plain, &noisy, sizeof(plain));
}

/* --- cursor --- */

static void a_cursor_reads_nothing_past_the_end(void **state)
{
    const uint8_t bytes[3] = {1, 2, 3};
    struct cursor_in in = {bytes, bytes + 3, false};
    uint32_t copy = 0xffffffff;

    assert_int_equal(cursor_get16(&in), 0x0102);
    assert_false(in.failed);
    assert_int_equal(cursor_get16(&in), 0);
    assert_true(in.failed);
    assert_ptr_equal(in.at, bytes + 2);
    cursor_copy_out(&in, &copy, sizeof(copy));
    assert_int_equal(copy, 0);
    assert_int_equal(cursor_get8(&in), 3);
    assert_true(in.failed);
}

static void a_cursor_writes_nothing_past_the_end(void **state)
{
    uint8_t bytes[4] = {0, 0, 0, 0x77};
    struct cursor_out out = {bytes, bytes + 3, false};

    cursor_put16(&out, 0x0102);
    cursor_put32(&out, 0xffffffff);
    assert_true(out.failed);
    out.failed = false;
    cursor_copy_in(&out, "xy", 2);
    assert_true(out.failed);
    out.failed = false;
    cursor_copy_in(&out, "\3", 1);
    assert_false(out.failed);
    cursor_put8(&out, 4);
    assert_true(out.failed);
    assert_memory_equal(bytes, "\1\2\3\x77", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exactly_the_opcodes_of_rc_uc_ud_and_xrc_exist),
        cmocka_unit_test(an_opcode_has_one_position_in_its_message),
        cmocka_unit_test(an_opcode_is_of_one_kind),
        cmocka_unit_test(a_send_takes_its_receive_at_the_start_and_a_write_with_immediate_at_the_end),
        cmocka_unit_test(header_lengths_are_those_of_the_specification),
        cmocka_unit_test(every_opcode_comes_back_as_it_was_sent),
        cmocka_unit_test(fields_are_where_the_specification_puts_them),
        cmocka_unit_test(deth_and_immediate_of_a_datagram_are_in_order),
        cmocka_unit_test(swap_comes_before_compare),
        cmocka_unit_test(feth_comes_before_reth),
        cmocka_unit_test(acknowledgements_say_migrated_too),
        cmocka_unit_test(numbers_of_24_bits_are_cut_to_size),
        cmocka_unit_test(a_packet_that_ends_within_its_headers_is_refused),
        cmocka_unit_test(a_payload_where_none_belongs_is_refused),
        cmocka_unit_test(a_payload_of_broken_words_is_refused),
        cmocka_unit_test(more_padding_than_payload_is_refused),
        cmocka_unit_test(another_transport_version_is_refused),
        cmocka_unit_test(an_unknown_opcode_is_told_apart),
        cmocka_unit_test(congestion_and_reserved_bits_are_ignored),
        cmocka_unit_test(a_cursor_reads_nothing_past_the_end),
        cmocka_unit_test(a_cursor_writes_nothing_past_the_end),
    };

    return run_unit_tests("codec", tests);
}
