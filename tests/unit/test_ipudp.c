/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The 40 bytes in front of a UD receive: verbs.md §8.1. The judge of IPv4 against IPv6 is the rule that
 * ibv_init_ah_from_wc() applies. */
#include "unit.h"

#include <stdbool.h>
#include <string.h>

#include "wire/ipudp.h"

static uint8_t area[GRH_AREA_LENGTH];

static struct packet_grh ipv4_grh(void)
{
    struct packet_grh grh = {.flow_label = 0xabcde, .traffic_class = 0x2e, .hop_limit = 64};

    memcpy(grh.source, (uint8_t[16]){[10] = 0xff, [11] = 0xff, 192, 168, 77, 1}, 16);
    memcpy(grh.destination, (uint8_t[16]){[10] = 0xff, [11] = 0xff, 192, 168, 77, 2}, 16);
    return grh;
}

static struct packet_grh ipv6_grh(void)
{
    struct packet_grh grh = {.flow_label = 0xabcde, .traffic_class = 0x2e, .hop_limit = 17};

    for (unsigned i = 0; i < 16; i++) {
        grh.source[i] = (uint8_t)(0x20 + i);
        grh.destination[i] = (uint8_t)(0xf0 + i);
    }
    return grh;
}

static void build(const struct packet_grh *grh, uint32_t length)
{
    memset(area, 0x5a, sizeof(area));
    ipudp_build_grh_area(grh, length, area);
}

static void an_ipv4_header_stands_in_the_last_twenty_bytes(void **state)
{
    static const uint8_t expected[20] = {0x45, 0x2e, 0x00, 0x7c, 0,  0, 0x40, 0,   64, 17,
                                         0,    0,    192,  168,  77, 1, 192,  168, 77, 2};
    const struct packet_grh grh = ipv4_grh();

    build(&grh, 96);
    assert_memory_equal(area + 20, expected, 10);
    assert_memory_equal(area + 32, expected + 12, 8);
}

static void the_first_twenty_bytes_of_ipv4_are_zero(void **state)
{
    static const uint8_t zeros[20];
    const struct packet_grh grh = ipv4_grh();

    build(&grh, 96);
    assert_memory_equal(area, zeros, sizeof(zeros));
}

static void the_ipv4_checksum_is_valid_for_every_length(void **state)
{
    struct packet_grh grh = ipv4_grh();

    for (uint32_t length = 0; length < 9000; length++) {
        grh.source[15] = (uint8_t)length;
        grh.hop_limit = (uint8_t)(length >> 3);
        build(&grh, length);
        assert_int_equal(ipudp_checksum(area + 20, 20), 0);
    }
}

static void the_checksum_is_that_of_rfc_1071(void **state)
{
    /* From a packet of Linux. */
    static const uint8_t header[20] = {0x45, 0x00, 0x00, 0x90, 0x4c, 0x1c, 0x40, 0x00, 0x40, 0x11,
                                       0x00, 0x00, 0xc0, 0xa8, 0x4d, 0x01, 0xc0, 0xa8, 0x4d, 0x02};

    assert_int_equal(ipudp_checksum(header, 20), 0xd2ec);
}

static void an_ipv6_header_fills_the_forty_bytes(void **state)
{
    const struct packet_grh grh = ipv6_grh();

    build(&grh, 96);
    assert_memory_equal(area, "\x62\xea\xbc\xde\x00\x68\x11\x11", 8);
    assert_memory_equal(area + 8, grh.source, 16);
    assert_memory_equal(area + 24, grh.destination, 16);
}

static void a_flow_label_of_more_than_twenty_bits_is_cut(void **state)
{
    struct packet_grh grh = ipv6_grh();

    grh.flow_label = 0xfff12345;
    grh.traffic_class = 0;
    build(&grh, 0);
    assert_memory_equal(area, "\x60\x01\x23\x45", 4);
}

/* Version nibble 6 in byte 0, unless version 4 and a valid checksum stand at byte 20. */
static unsigned version_seen_by_a_receiver(void)
{
    if (area[20] == 0x45 && !ipudp_checksum(area + 20, 20))
        return 4;
    return area[0] >> 4;
}

static void a_receiver_can_tell_the_versions_apart(void **state)
{
    struct packet_grh grh = ipv4_grh();

    build(&grh, 300);
    assert_int_equal(version_seen_by_a_receiver(), 4);
    grh = ipv6_grh();
    build(&grh, 300);
    assert_int_equal(version_seen_by_a_receiver(), 6);
}

static void one_ipv6_address_makes_the_header_ipv6(void **state)
{
    struct packet_grh grh = ipv4_grh();

    grh.destination[0] = 0xff;
    build(&grh, 300);
    assert_int_equal(area[0] >> 4, 6);
}

static void only_the_mapped_prefix_is_ipv4(void **state)
{
    struct packet_grh grh = ipv4_grh();

    assert_true(ipudp_gid_is_ipv4(grh.source));
    for (unsigned i = 0; i < 12; i++) {
        grh.source[i] ^= 1;
        assert_false(ipudp_gid_is_ipv4(grh.source));
        grh.source[i] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ipv4_header_stands_in_the_last_twenty_bytes),
        cmocka_unit_test(the_first_twenty_bytes_of_ipv4_are_zero),
        cmocka_unit_test(the_ipv4_checksum_is_valid_for_every_length),
        cmocka_unit_test(the_checksum_is_that_of_rfc_1071),
        cmocka_unit_test(an_ipv6_header_fills_the_forty_bytes),
        cmocka_unit_test(a_flow_label_of_more_than_twenty_bits_is_cut),
        cmocka_unit_test(a_receiver_can_tell_the_versions_apart),
        cmocka_unit_test(one_ipv6_address_makes_the_header_ipv6),
        cmocka_unit_test(only_the_mapped_prefix_is_ipv4),
    };

    return run_unit_tests("ipudp", tests);
}
