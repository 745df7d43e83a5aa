/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ICRC: IBA annex A17.3.3. Two judges: packets of Linux' rdma_rxe, and a CRC bit by bit over the masked bytes
 * written out. */
#include "unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/codec.h"
#include "wire/crc.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

/* rxe, RC SEND only of 100 bytes 'z' + 1: from the IPv4 header on. */
static const uint8_t rxe_headers[] = {
    0x45, 0x00, 0x00, 0x90, 0x4c, 0x1c, 0x40, 0x00, 0x40, 0x11, 0xd2, 0xec, 0xc0, 0xa8,
    0x4d, 0x01, 0xc0, 0xa8, 0x4d, 0x02, 0xc1, 0x21, 0x12, 0xb7, 0x00, 0x7c, 0x00, 0x00,
    0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x62, 0xeb, 0x49,
};
static const uint8_t rxe_icrc[4] = {0x37, 0x75, 0x13, 0x50};
#define RXE_PAYLOAD     100
#define RXE_UDP_PAYLOAD (BTH_LENGTH + RXE_PAYLOAD + ICRC_LENGTH)

static uint8_t udp_payload[65536];

static void set_ipv4(uint8_t gid[16], const uint8_t address[4])
{
    memset(gid, 0, 10);
    gid[10] = gid[11] = 0xff;
    memcpy(gid + 12, address, 4);
}

/* The UDP payload goes to udp_payload. */
static struct icrc_path rxe_packet(void)
{
    struct icrc_path path = {.source_port = 0xc121,
                             .destination_port = ROCE_UDP_PORT,
                             .identification = 0x4c1c,
                             .dont_fragment = true};

    set_ipv4(path.source, rxe_headers + 12);
    set_ipv4(path.destination, rxe_headers + 16);
    memcpy(udp_payload, rxe_headers + 28, BTH_LENGTH);
    memset(udp_payload + BTH_LENGTH, 0x7b, RXE_PAYLOAD);
    memcpy(udp_payload + BTH_LENGTH + RXE_PAYLOAD, rxe_icrc, 4);
    return path;
}

static uint32_t crc_bit_by_bit(const uint8_t *bytes, size_t length)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static uint32_t random_state = 1;

static uint32_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* A packet of random bytes with a valid ICRC; headers and payload are added in pieces. */
static void make_packet(const struct icrc_path *path, size_t length)
{
    uint32_t crc = icrc_begin(path, length);
    size_t at = BTH_LENGTH;

    for (size_t i = 0; i < length - ICRC_LENGTH; i++)
        udp_payload[i] = (uint8_t)draw();
    crc = icrc_add_headers(crc, udp_payload, at);
    while (at < length - ICRC_LENGTH) {
        const size_t piece = min_of(length - ICRC_LENGTH - at, (size_t)(draw() % 50 + 1));

        crc = icrc_add(crc, udp_payload + at, piece);
        at += piece;
    }
    icrc_store(crc, udp_payload + length - ICRC_LENGTH);
}

static struct icrc_path random_path(bool ipv6)
{
    struct icrc_path path = {.source_port = (uint16_t)draw(),
                             .destination_port = ROCE_UDP_PORT,
                             .identification = (uint16_t)draw(),
                             .dont_fragment = draw() & 1};

    for (unsigned i = 0; i < 16; i++) {
        path.source[i] = (uint8_t)draw();
        path.destination[i] = (uint8_t)draw();
    }
    if (!ipv6) {
        set_ipv4(path.source, path.source + 12);
        set_ipv4(path.destination, path.destination + 12);
    }
    return path;
}

static void a_packet_of_rxe_is_valid(void **state)
{
    const struct icrc_path path = rxe_packet();

    assert_true(icrc_check(&path, udp_payload, RXE_UDP_PAYLOAD));
}

static void the_icrc_of_a_packet_of_rxe_is_computed(void **state)
{
    const struct icrc_path path = rxe_packet();
    uint8_t bytes[4];
    uint32_t crc = icrc_begin(&path, RXE_UDP_PAYLOAD);

    crc = icrc_add_headers(crc, udp_payload, BTH_LENGTH);
    icrc_store(icrc_add(crc, udp_payload + BTH_LENGTH, RXE_PAYLOAD), bytes);
    assert_memory_equal(bytes, rxe_icrc, 4);
}

/* Of any length and alignment, in one piece or in two; bit by bit as the judge. */
static void the_crc_is_that_of_the_pieces(void **state)
{
    static uint8_t bytes[600];
    uint32_t expected = ~0u;

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)draw();
    for (size_t length = 0; length <= sizeof(bytes) - 8; length++) {
        size_t first = draw() % (length + 1);
        uint8_t moved[sizeof(bytes)];
        size_t at = draw() % 8;

        assert_int_equal(crc_of(0, bytes, length), ~expected);
        memcpy(moved + at, bytes, length);
        assert_int_equal(crc_of(crc_of(0, moved + at, first), moved + at + first, length - first), ~expected);
        expected ^= bytes[length];
        for (int bit = 0; bit < 8; bit++)
            expected = expected >> 1 ^ (expected & 1 ? 0xedb88320 : 0);
    }
}

static uint64_t no_time_passes(void)
{
    return 0;
}

/* Whoever has said which keeps it, and where both cost the same libdeflate does it. */
static void the_crc_is_chosen_by_its_cost(void **state)
{
    enum crc_method method = crc_method();

    crc_choose(no_time_passes);
    assert_int_equal(crc_method(), method);
}

static void each_wrong_bit_of_a_packet_is_noticed(void **state)
{
    const struct icrc_path path = rxe_packet();

    for (size_t bit = 0; bit < 8 * RXE_UDP_PAYLOAD; bit++) {
        udp_payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
        /* All of it is covered but the byte that has FECN and BECN. */
        assert_int_equal(icrc_check(&path, udp_payload, RXE_UDP_PAYLOAD), bit / 8 == 4);
        udp_payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void each_field_of_the_path_is_covered(void **state)
{
    const struct icrc_path path = rxe_packet();
    struct icrc_path wrong;

#define assert_covered(statement)                                                                            \
    do {                                                                                                     \
        wrong = path;                                                                                        \
        statement;                                                                                           \
        assert_false(icrc_check(&wrong, udp_payload, RXE_UDP_PAYLOAD));                                      \
    } while (0)
    assert_covered(wrong.source[15]++);
    assert_covered(wrong.destination[15]++);
    assert_covered(wrong.source_port++);
    assert_covered(wrong.destination_port++);
    assert_covered(wrong.identification++);
    assert_covered(wrong.dont_fragment = false);
    assert_covered(wrong.source[0]++); /* no longer IPv4 */
}

static void what_is_too_short_or_too_long_for_a_packet_is_refused(void **state)
{
    struct icrc_path path = rxe_packet();

    for (size_t length = 0; length < BTH_LENGTH + ICRC_LENGTH; length++) {
        assert_false(icrc_check(&path, udp_payload, length));
        assert_false(icrc_check_unidentified(&path, udp_payload, length));
    }
    assert_false(icrc_check(&path, udp_payload, 65536));
    assert_false(icrc_check_unidentified(&path, udp_payload, SIZE_MAX));
}

static void the_shortest_and_the_longest_packet_are_checked(void **state)
{
    static const size_t lengths[] = {BTH_LENGTH + ICRC_LENGTH, UINT16_MAX - UDP_LENGTH};

    for (size_t i = 0; i < array_size(lengths); i++) {
        struct icrc_path path = random_path(false);

        make_packet(&path, lengths[i]);
        assert_true(icrc_check(&path, udp_payload, lengths[i]));
        assert_true(icrc_check_unidentified(&path, udp_payload, lengths[i]));
        udp_payload[0] ^= 1;
        assert_false(icrc_check(&path, udp_payload, lengths[i]));
    }
}

/* The masked headers as the annex prints them. */
static void over_ipv6_the_icrc_is_the_crc_of_the_masked_packet(void **state)
{
    static uint8_t masked[8 + 40 + 8 + 1024];
    const size_t length = 1024;
    const struct icrc_path path = random_path(true);
    uint8_t *p = masked;

    make_packet(&path, length);
    memset(p, 0xff, 8);
    memcpy(p + 8, "\x6f\xff\xff\xff\x04\x08\x11\xff", 8); /* UDP length 1032 */
    memcpy(p + 16, path.source, 16);
    memcpy(p + 32, path.destination, 16);
    p[48] = (uint8_t)(path.source_port >> 8);
    p[49] = (uint8_t)path.source_port;
    memcpy(p + 50, "\x12\xb7\x04\x08\xff\xff", 6);
    memcpy(p + 56, udp_payload, length - 4);
    p[56 + 4] = 0xff;

    uint8_t bytes[4];

    icrc_store(crc_bit_by_bit(masked, 56 + length - 4), bytes);
    assert_memory_equal(bytes, udp_payload + length - 4, 4);
    assert_true(icrc_check(&path, udp_payload, length));
}

static void over_ipv4_the_icrc_is_the_crc_of_the_masked_packet(void **state)
{
    static uint8_t masked[8 + 20 + 8 + 1024];
    const size_t length = 1024;
    struct icrc_path path = random_path(false);
    uint8_t *p = masked;

    path.dont_fragment = true;
    make_packet(&path, length);
    memset(p, 0xff, 8);
    memcpy(p + 8, "\x45\xff\x04\x1c", 4); /* total length 1052 */
    p[12] = (uint8_t)(path.identification >> 8);
    p[13] = (uint8_t)path.identification;
    memcpy(p + 14, "\x40\x00\xff\x11\xff\xff", 6);
    memcpy(p + 20, path.source + 12, 4);
    memcpy(p + 24, path.destination + 12, 4);
    p[28] = (uint8_t)(path.source_port >> 8);
    p[29] = (uint8_t)path.source_port;
    memcpy(p + 30, "\x12\xb7\x04\x08\xff\xff", 6);
    memcpy(p + 36, udp_payload, length - 4);
    p[36 + 4] = 0xff;

    uint8_t bytes[4];

    icrc_store(crc_bit_by_bit(masked, 36 + length - 4), bytes);
    assert_memory_equal(bytes, udp_payload + length - 4, 4);
}

static void a_hidden_identification_is_found(void **state)
{
    struct icrc_path path = rxe_packet();

    path.identification = 0;
    path.dont_fragment = false;
    assert_true(icrc_check_unidentified(&path, udp_payload, RXE_UDP_PAYLOAD));
    assert_int_equal(path.identification, 0x4c1c);
    assert_true(path.dont_fragment);
}

static void a_hidden_identification_is_found_in_packets_of_any_length(void **state)
{
    unsigned ambiguous = 0;

    for (unsigned round = 0; round < 2000; round++) {
        const size_t length = BTH_LENGTH + ICRC_LENGTH + draw() % 16000;
        const struct icrc_path sent = random_path(false);
        struct icrc_path received = sent;

        make_packet(&sent, length);
        received.identification = (uint16_t)draw();
        received.dont_fragment = draw() & 1;
        assert_true(icrc_check_unidentified(&received, udp_payload, length));
        /* What was found explains the packet; now and then there is another explanation with DF set. */
        assert_true(icrc_check(&received, udp_payload, length));
        ambiguous += received.identification != sent.identification;
    }
    assert_in_range(ambiguous, 0, 2);
}

static void corruption_is_noticed_without_the_identification(void **state)
{
    const struct icrc_path path = rxe_packet();
    unsigned accepted = 0;

    for (unsigned round = 0; round < 100000; round++) {
        struct icrc_path received = path;
        const size_t at = draw() % RXE_UDP_PAYLOAD;
        const uint8_t before = udp_payload[at], other = udp_payload[RXE_UDP_PAYLOAD - 1];

        udp_payload[at] ^= (uint8_t)(draw() % 255 + 1);
        udp_payload[RXE_UDP_PAYLOAD - 1] ^= (uint8_t)draw();
        accepted += icrc_check_unidentified(&received, udp_payload, RXE_UDP_PAYLOAD) && at != 4;
        udp_payload[RXE_UDP_PAYLOAD - 1] = other;
        udp_payload[at] = before;
    }
    /* 100,000 / 32,768 are to be expected. */
    assert_in_range(accepted, 0, 15);
}

static void over_ipv6_nothing_is_hidden(void **state)
{
    struct icrc_path path = random_path(true);

    make_packet(&path, 200);
    assert_true(icrc_check_unidentified(&path, udp_payload, 200));
    udp_payload[20] ^= 1;
    assert_false(icrc_check_unidentified(&path, udp_payload, 200));
}

/* Paths that differ in little, in any order, and lengths on both sides of what is remembered. */
static void what_is_remembered_of_paths_changes_nothing(void **state)
{
    struct icrc_memory sending = {0}, receiving = {0};
    struct icrc_path path = random_path(false);

    for (unsigned round = 0; round < 20000; round++) {
        const size_t length = BTH_LENGTH + ICRC_LENGTH + draw() % (draw() % 4 ? 60 : 4300);
        struct icrc_path received;

        switch (draw() % 8) {
        case 0:
            path = random_path(draw() & 1);
            break;
        case 1:
            path.source[12 + draw() % 4] ^= 1;
            path.start_length = 0;
            break;
        case 2:
            path.destination[12 + draw() % 4] ^= 1;
            path.start_length = 0;
            break;
        case 3:
            path.source_port ^= 1;
            path.start_length = 0;
            break;
        case 4:
            path.dont_fragment = !path.dont_fragment;
            path.start_length = 0;
            break;
        default:
            path.identification = (uint16_t)(draw() & 1 ? draw() : draw() % 3);
        }
        make_packet(&path, length);
        assert_int_equal(icrc_of_next(&sending, &path, udp_payload, length),
                         icrc_of(&path, udp_payload, length));
        received = path;
        received.identification = (uint16_t)(draw() % 3);
        assert_true(icrc_check_next(&receiving, &received, udp_payload, length));
        assert_true(icrc_check(&received, udp_payload, length));
        udp_payload[length - 1 - draw() % ICRC_LENGTH] ^= (uint8_t)(draw() % 255 + 1);
        assert_false(icrc_check(&received, udp_payload, length));
        assert_int_equal(icrc_check_next(&receiving, &received, udp_payload, length),
                         icrc_check_unidentified(&received, udp_payload, length));
    }
    assert_false(icrc_check_next(&receiving, &path, udp_payload, BTH_LENGTH + ICRC_LENGTH - 1));
}

/* --- a recording: what the kernel's Soft-RoCE (Linux 6.1) sent for an RC SEND of 100 bytes and its
 * repetitions --- */

static uint8_t recording[1 << 20];
static size_t recording_length;

static void load_recording(void)
{
    char path[4096];
    const char *root = getenv("SOFTHCA_SOURCE_ROOT");

    snprintf(path, sizeof(path), "%s/tests/unit/vectors/rxe-rc-send.pcapng", root ? root : ".");
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    recording_length = fread(recording, 1, sizeof(recording), file);
    fclose(file);
}

static uint32_t little32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* An Ethernet frame: true if it is RoCEv2 over IPv4, whose ICRC must then be valid. */
static bool check_frame(const uint8_t *frame, size_t length)
{
    const uint8_t *ip = frame + 14, *udp = ip + IPV4_LENGTH;
    struct icrc_path path = {.destination_port = ROCE_UDP_PORT};
    struct packet packet;

    if (length < 14 + IPV4_LENGTH + UDP_LENGTH || memcmp(frame + 12, "\x08\x00\x45", 3) != 0 || ip[9] != 17 ||
        memcmp(udp + 2, "\x12\xb7", 2) != 0)
        return false;
    set_ipv4(path.source, ip + 12);
    set_ipv4(path.destination, ip + 16);
    path.source_port = (uint16_t)(udp[0] << 8 | udp[1]);

    struct icrc_path known = path;
    const size_t payload = (size_t)(udp[4] << 8 | udp[5]) - UDP_LENGTH;

    known.identification = (uint16_t)(ip[4] << 8 | ip[5]);
    known.dont_fragment = ip[6] & 0x40;
    assert_true(payload <= length - 14 - IPV4_LENGTH - UDP_LENGTH);
    assert_true(icrc_check(&known, udp + UDP_LENGTH, payload));
    assert_true(icrc_check_unidentified(&path, udp + UDP_LENGTH, payload));
    assert_int_equal(path.identification, known.identification);
    assert_int_equal(codec_decode(udp + UDP_LENGTH, payload - ICRC_LENGTH, &packet), 0);
    assert_int_equal(packet.opcode, OP_SEND_ONLY);
    assert_int_equal(packet.payload_length, 100);
    return true;
}

static void every_recorded_packet_of_rxe_is_valid(void **state)
{
    enum { ENHANCED_PACKET_BLOCK = 6 };
    unsigned packets = 0;

    load_recording();
    for (size_t at = 0; at + 32 <= recording_length;) {
        const uint32_t length = little32(recording + at + 4);

        assert_in_range(length, 12, recording_length - at);
        if (little32(recording + at) == ENHANCED_PACKET_BLOCK) {
            const uint32_t captured = little32(recording + at + 20);

            assert_in_range(captured, 0, length - 32);
            packets += check_frame(recording + at + 28, captured);
        }
        at += length;
    }
    assert_in_range(packets, 50, 100);
}

static enum crc_method method_called(const char *name)
{
    for (enum crc_method method = 0; method < CRC_METHODS; method++)
        if (!strcmp(crc_method_name(method), name))
            return method;
    fail_msg("no CRC method %s", name);
    return CRC_METHODS;
}

/* Runs the tests with the CRC method that the argument names. */
int main(int argc, char **argv)
{
    const char *method = argc > 1 ? argv[1] : "libdeflate";
    char name[32];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packet_of_rxe_is_valid),
        cmocka_unit_test(the_icrc_of_a_packet_of_rxe_is_computed),
        cmocka_unit_test(the_crc_is_that_of_the_pieces),
        cmocka_unit_test(the_crc_is_chosen_by_its_cost),
        cmocka_unit_test(each_wrong_bit_of_a_packet_is_noticed),
        cmocka_unit_test(each_field_of_the_path_is_covered),
        cmocka_unit_test(what_is_too_short_or_too_long_for_a_packet_is_refused),
        cmocka_unit_test(over_ipv6_the_icrc_is_the_crc_of_the_masked_packet),
        cmocka_unit_test(over_ipv4_the_icrc_is_the_crc_of_the_masked_packet),
        cmocka_unit_test(a_hidden_identification_is_found),
        cmocka_unit_test(a_hidden_identification_is_found_in_packets_of_any_length),
        cmocka_unit_test(corruption_is_noticed_without_the_identification),
        cmocka_unit_test(over_ipv6_nothing_is_hidden),
        cmocka_unit_test(what_is_remembered_of_paths_changes_nothing),
        cmocka_unit_test(every_recorded_packet_of_rxe_is_valid),
        cmocka_unit_test(the_shortest_and_the_longest_packet_are_checked),
    };

    snprintf(name, sizeof(name), "icrc_%s", method);
    if (!crc_use(method_called(method))) {
        print_message("%s: this processor does not know it\n", name);
        return 77;
    }
    return run_unit_tests(name, tests);
}
