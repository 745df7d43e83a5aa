/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Frames, flow rules and the receive hash, without a device. */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "steering/rule.h"
#include "steering/toeplitz.h"

/* --- the hash ------------------------------------------------------------------------------------- */

/* What Microsoft publishes to verify an RSS hash with: its key, addresses and ports, and the results. */
static const uint8_t published_key[TOEPLITZ_KEY_LENGTH] = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
    0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
    0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

static const struct {
    const char *source, *destination;
    uint16_t source_port, destination_port;
    uint32_t of_addresses, with_ports;
} published[] = {
    {"66.9.149.187", "161.142.100.80", 2794, 1766, 0x323e8fc2, 0x51ccc178},
    {"199.92.111.2", "65.69.140.83", 14230, 4739, 0xd718262a, 0xc626b0ea},
    {"24.19.198.95", "12.22.207.184", 12898, 38024, 0xd2d0a5de, 0x5c2b394a},
    {"38.27.205.30", "209.142.163.6", 48228, 2217, 0x82989176, 0xafc7327f},
    {"153.39.163.191", "202.188.127.2", 44251, 1303, 0x5d1809c5, 0x10e828a2},
    {"3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1", 2794, 1766, 0x2cc18cd5, 0x40207d3d},
    {"3ffe:501:8::260:97ff:fe40:efab", "ff02::1", 14230, 4739, 0x0f0c461c, 0xdde51bbf},
    {"3ffe:1900:4545:3:200:f8ff:fe21:67cf", "fe80::200:f8ff:fe21:67cf", 44251, 38024, 0x4b61e985, 0x02d1feef},
};

static void the_hash_is_the_published_one(void **state)
{
    const uint64_t ipv4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
    const uint64_t ipv6 = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6;
    const uint64_t tcp = IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP;
    const uint64_t udp = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;

    for (size_t i = 0; i < array_size(published); i++) {
        struct frame frame = {.layers = FRAME_TCP,
                              .ports = {.src_port = htons(published[i].source_port),
                                        .dst_port = htons(published[i].destination_port)}};
        uint64_t addresses = ipv4;

        if (inet_pton(AF_INET, published[i].source, &frame.ipv4.src_ip) == 1) {
            assert_int_equal(inet_pton(AF_INET, published[i].destination, &frame.ipv4.dst_ip), 1);
            frame.layers |= FRAME_IPV4;
        } else {
            assert_int_equal(inet_pton(AF_INET6, published[i].source, frame.ipv6.src_ip), 1);
            assert_int_equal(inet_pton(AF_INET6, published[i].destination, frame.ipv6.dst_ip), 1);
            frame.layers |= FRAME_IPV6;
            addresses = ipv6;
        }
        assert_int_equal(toeplitz_of_frame(published_key, addresses, &frame), published[i].of_addresses);
        assert_int_equal(toeplitz_of_frame(published_key, addresses | tcp, &frame), published[i].with_ports);
        assert_int_equal(toeplitz_of_frame(published_key, addresses | udp, &frame), 0);
        assert_int_equal(toeplitz_of_frame(published_key, 0, &frame), 0);
        frame.layers ^= FRAME_TCP | FRAME_UDP;
        assert_int_equal(toeplitz_of_frame(published_key, addresses | udp, &frame), published[i].with_ports);
    }
}

static void fields_that_no_frame_has_together_are_refused(void **state)
{
    assert_int_equal(toeplitz_check(0), 0);
    assert_int_equal(toeplitz_check(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_PORT_TCP), 0);
    assert_int_equal(toeplitz_check(IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_IPSEC_SPI), 0);
    assert_int_equal(toeplitz_check(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV6), -EINVAL);
    assert_int_equal(toeplitz_check(IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_UDP), -EINVAL);
    assert_int_equal(toeplitz_check(IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_IPSEC_SPI), -EINVAL);
    assert_int_equal(toeplitz_check(IBV_RX_HASH_SRC_IPV4 | (uint64_t)IBV_RX_HASH_INNER), -EOPNOTSUPP);
    assert_int_equal(toeplitz_check(1ull << 40), -EOPNOTSUPP);
}

/* --- frames --------------------------------------------------------------------------------------- */

static const uint8_t udp_in_ipv4[] = {
    2,    0,    0,    0,    0,    1, 2,    0,    0,    0,    0, 2, /* to, from */
    0x81, 0,    0xac, 0x0c, 0x08, 0,                               /* C-VLAN, IPv4 */
    0x46, 0x10, 0,    36,   0,    1, 0x40, 0,    64,   17,   0, 0,  1, 1, 1,   1,   2,   2,
    2,    2,    0,    0,    0,    0, 0x04, 0xd2, 0x16, 0x2e, 0, 12, 0, 0, 'd', 'a', 't', 'a',
};

static const uint8_t tcp_in_ipv6[] = {
    1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x6a, 0xb1, 0x23, 0x45, 0, 20, 6, 55, 0xa0, 0xa1, 0, 0,
    0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0, 9, 0xb0, 0xb1, 0,    0,    0,    0,    0, 0,  0, 0,  0,    0,    0, 0,
    0, 8, 0,    1, 0, 2, 0, 0, 0, 0, 0, 0, 0,    0,    0x50, 0,    0xff, 0xff, 0, 0,  0, 0,
};

static void a_frame_is_taken_apart(void **state)
{
    struct frame frame;

    assert_true(frame_dissect(udp_in_ipv4, sizeof(udp_in_ipv4), &frame));
    assert_int_equal(frame.layers, FRAME_CVLAN | FRAME_IPV4 | FRAME_UDP);
    assert_int_equal(frame.eth.ether_type, htons(0x0800));
    assert_int_equal(frame.eth.vlan_tag, htons(0xac0c));
    assert_int_equal(frame.ipv4.src_ip, htonl(0x01010101));
    assert_int_equal(frame.ipv4.dst_ip, htonl(0x02020202));
    assert_int_equal(frame.ipv4.proto, 17);
    assert_int_equal(frame.ipv4.tos, 0x10);
    assert_int_equal(frame.ipv4.ttl, 64);
    assert_int_equal(frame.ipv4.flags, 2);
    assert_int_equal(frame.ports.src_port, htons(1234));
    assert_int_equal(frame.ports.dst_port, htons(5678));
    assert_false(frame_is_multicast(&frame));

    assert_true(frame_dissect(tcp_in_ipv6, sizeof(tcp_in_ipv6), &frame));
    assert_int_equal(frame.layers, FRAME_IPV6 | FRAME_TCP);
    assert_int_equal(frame.ipv6.flow_label, htonl(0x12345));
    assert_int_equal(frame.ipv6.traffic_class, 0xab);
    assert_int_equal(frame.ipv6.next_hdr, 6);
    assert_int_equal(frame.ipv6.hop_limit, 55);
    assert_int_equal(frame.ipv6.src_ip[15], 9);
    assert_int_equal(frame.ports.src_port, htons(1));
    assert_int_equal(frame.ports.dst_port, htons(2));
    assert_true(frame_is_multicast(&frame));
}

static void a_header_that_is_cut_off_is_not_there(void **state)
{
    struct frame frame;

    for (size_t length = 0; length < sizeof(udp_in_ipv4); length++) {
        assert_int_equal(frame_dissect(udp_in_ipv4, length, &frame), length >= 14);
        assert_int_equal(!!(frame.layers & FRAME_CVLAN), length >= 18);
        assert_int_equal(!!(frame.layers & FRAME_IPV4), length >= 18 + 24);
        assert_int_equal(!!(frame.layers & FRAME_UDP), length >= 18 + 24 + 8);
    }
    for (size_t length = 0; length < sizeof(tcp_in_ipv6); length++) {
        assert_int_equal(frame_dissect(tcp_in_ipv6, length, &frame), length >= 14);
        assert_int_equal(!!(frame.layers & FRAME_IPV6), length >= 54);
        assert_false(frame.layers & FRAME_TCP);
    }
}

static void a_later_fragment_has_no_ports_and_a_false_header_length_no_ip(void **state)
{
    uint8_t bytes[sizeof(udp_in_ipv4)];
    struct frame frame;

    memcpy(bytes, udp_in_ipv4, sizeof(bytes));
    bytes[24] = 0x20;
    bytes[25] = 5;
    assert_true(frame_dissect(bytes, sizeof(bytes), &frame));
    assert_int_equal(frame.layers, FRAME_CVLAN | FRAME_IPV4);
    assert_int_equal(frame.ipv4.flags, 4);
    bytes[18] = 0x44;
    assert_true(frame_dissect(bytes, sizeof(bytes), &frame));
    assert_int_equal(frame.layers, FRAME_CVLAN);
}

static void the_check_sequence_is_that_of_ethernet(void **state)
{
    /* CRC-32 of "123456789", as every table of CRCs has it */
    uint8_t fcs[FCS_LENGTH];

    frame_check_sequence("123456789", 9, fcs);
    assert_memory_equal(fcs, "\x26\x39\xf4\xcb", 4);
}

/* --- rules ---------------------------------------------------------------------------------------- */

struct attributes {
    struct ibv_flow_attr attr;
    char specs[256];
};

static void add(struct attributes *attributes, const void *spec, uint16_t size)
{
    memcpy((char *)attributes + attributes->attr.size, spec, size);
    attributes->attr.size = (uint16_t)(attributes->attr.size + size);
    attributes->attr.num_of_specs++;
}

static struct attributes a_rule(uint16_t priority)
{
    return (struct attributes){.attr = {.type = IBV_FLOW_ATTR_NORMAL,
                                        .size = sizeof(struct ibv_flow_attr),
                                        .priority = priority,
                                        .port = 1}};
}

static void add_mac(struct attributes *attributes, uint8_t first, uint8_t last)
{
    const struct ibv_flow_spec_eth eth = {.type = IBV_FLOW_SPEC_ETH,
                                          .size = sizeof(eth),
                                          .val = {.dst_mac = {first, 0, 0, 0, 0, last}, .src_mac = {7}},
                                          .mask = {.dst_mac = {255, 255, 255, 255, 255, 255}}};

    add(attributes, &eth, sizeof(eth));
}

static struct rule parsed(const struct attributes *attributes)
{
    struct rule rule;

    assert_int_equal(rule_parse(&attributes->attr, &rule), 0);
    return rule;
}

static void what_contradicts_itself_is_einval(void **state)
{
    struct ibv_flow_spec_tcp_udp tcp = {.type = IBV_FLOW_SPEC_TCP, .size = sizeof(tcp)};
    struct ibv_flow_spec_ipv6 ipv6 = {.type = IBV_FLOW_SPEC_IPV6, .size = sizeof(ipv6)};
    struct ibv_flow_spec_ipv4 ipv4 = {.type = IBV_FLOW_SPEC_IPV4, .size = sizeof(ipv4)};
    struct ibv_flow_spec_esp esp = {.type = IBV_FLOW_SPEC_ESP, .size = sizeof(esp)};
    struct ibv_flow_spec_action_drop drop = {.type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof(drop)};
    struct rule rule;

    for (int i = 0; i < 15; i++) {
        struct attributes a = a_rule(0);

        switch (i) {
        case 0:
            a.attr.comp_mask = 1;
            break;
        case 1:
            a.attr.port = 0;
            break;
        case 2:
            a.attr.port = 2;
            break;
        case 3:
            a.attr.type = (enum ibv_flow_attr_type)9;
            break;
        case 4:
            a.attr.flags = 8;
            break;
        case 5: /* less than it says */
            add_mac(&a, 2, 1);
            a.attr.size--;
            break;
        case 6: /* more */
            add_mac(&a, 2, 1);
            a.attr.size++;
            break;
        case 7: /* a spec of another size */
            add_mac(&a, 2, 1);
            ((struct ibv_flow_spec_eth *)(&a.attr + 1))->size -= 2;
            a.attr.size = (uint16_t)(a.attr.size - 2);
            break;
        case 8: /* a layer twice */
            add(&a, &ipv4, sizeof(ipv4));
            add(&a, &ipv4, sizeof(ipv4));
            break;
        case 9: /* two that exclude each other */
            add(&a, &ipv4, sizeof(ipv4));
            add(&a, &ipv6, sizeof(ipv6));
            break;
        case 10:
            add(&a, &tcp, sizeof(tcp));
            tcp.type = IBV_FLOW_SPEC_UDP;
            add(&a, &tcp, sizeof(tcp));
            break;
        case 11: /* a sniffer with specs */
            a.attr.type = IBV_FLOW_ATTR_SNIFFER;
            add(&a, &drop, sizeof(drop));
            break;
        case 12: /* defaults that match */
            a.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
            add_mac(&a, 2, 1);
            break;
        case 13: /* only normal rules let through */
            a.attr.type = IBV_FLOW_ATTR_MC_DEFAULT;
            a.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
            break;
        case 14: /* keeps and lets through */
            a.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
            add(&a, &drop, sizeof(drop));
            break;
        default:
            break;
        }
        if (rule_parse(&a.attr, &rule) != -EINVAL)
            fail_msg("case %d", i);
    }
    for (int i = 0; i < 2; i++) {
        struct attributes a = a_rule(0);

        if (i == 0)
            add(&a, &esp, sizeof(esp));
        else
            a.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
        assert_int_equal(rule_parse(&a.attr, &rule), -EOPNOTSUPP);
    }
}

static struct refusal reason_of(const struct attributes *a)
{
    struct refusal why;
    struct rule rule;

    assert_int_equal(rule_parse(&a->attr, &rule), -EINVAL);
    assert_true(refusal_take(-EINVAL, &why));
    return why;
}

/* What is told is what is wrong, and not another argument that is right. */
static void reasons_of_refused_rules(void **state)
{
    struct ibv_flow_spec_action_drop drop = {.type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof(drop)};
    struct attributes a = a_rule(0);
    struct refusal why;

    a.attr.type = IBV_FLOW_ATTR_SNIFFER;
    a.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    why = reason_of(&a);
    assert_int_equal(why.form, REFUSAL_SENTENCE);
    assert_non_null(strstr(why.argument, "IBV_FLOW_ATTR_FLAGS_DONT_TRAP"));
    add(&a, &drop, sizeof(drop));
    why = reason_of(&a);
    assert_string_equal(why.argument, "num_of_specs of a sniffer");
    for (unsigned i = 0; i < 3; i++) {
        a = a_rule(0);
        add_mac(&a, 2, 1);
        a.attr.size = (uint16_t)(i < 2 ? a.attr.size - 1 + 2 * i : sizeof(a.attr) + 1);
        why = reason_of(&a);
        assert_int_equal(why.form, REFUSAL_SPECS);
        assert_int_equal(why.value, a.attr.size);
        assert_int_equal(why.low, 1);
    }
}

static void a_size_that_leaves_out_the_specs_is_taken(void **state)
{
    struct attributes a = a_rule(0);
    struct rule rule;

    add_mac(&a, 2, 1);
    a.attr.size = sizeof(a.attr);
    rule = parsed(&a);
    assert_int_equal(rule.mask.eth.dst_mac[5], 255);
    assert_int_equal(rule.value.eth.src_mac[0], 0); /* outside of its mask */
}

static void every_field_is_compared_under_its_mask(void **state)
{
    const struct ibv_flow_spec_ipv4_ext ext = {
        .type = IBV_FLOW_SPEC_IPV4_EXT,
        .size = sizeof(ext),
        .val = {.src_ip = htonl(0x01010000), .proto = 17, .flags = 2},
        .mask = {.src_ip = htonl(0xffff0000), .proto = 255, .flags = 2}};
    const struct ibv_flow_spec_tcp_udp udp = {.type = IBV_FLOW_SPEC_UDP,
                                              .size = sizeof(udp),
                                              .val = {.dst_port = htons(5678)},
                                              .mask = {.dst_port = 0xffff}};
    struct attributes a = a_rule(0);
    struct frame frame, other;
    struct rule rule;

    add(&a, &ext, sizeof(ext));
    add(&a, &udp, sizeof(udp));
    rule = parsed(&a);
    assert_true(frame_dissect(udp_in_ipv4, sizeof(udp_in_ipv4), &frame));
    assert_true(rule_matches(&rule, &frame));
    other = frame;
    other.ipv4.src_ip = htonl(0x01010207);
    assert_true(rule_matches(&rule, &other));
    other.ipv4.src_ip = htonl(0x01020207);
    assert_false(rule_matches(&rule, &other));
    other = frame;
    other.ports.dst_port = htons(5679);
    assert_false(rule_matches(&rule, &other));
    other = frame;
    other.ipv4.flags = 0;
    assert_false(rule_matches(&rule, &other));
    assert_true(frame_dissect(tcp_in_ipv6, sizeof(tcp_in_ipv6), &other));
    assert_false(rule_matches(&rule, &other));
}

struct table {
    const struct rule *rules[8];
    unsigned met; /* bits */
};

static const struct rule *at(void *argument, unsigned index)
{
    return ((struct table *)argument)->rules[index];
}

static void note(void *argument, unsigned index)
{
    ((struct table *)argument)->met |= 1u << index;
}

static unsigned met(struct table *table, unsigned count, const struct frame *frame)
{
    table->met = 0;
    rules_classify(at, count, frame, note, table);
    return table->met;
}

static void the_first_that_matches_has_the_frame(void **state)
{
    struct attributes a0 = a_rule(0), a1 = a_rule(1), a1_other = a_rule(1), a2 = a_rule(2),
                      sniffer = a_rule(0), mc = a_rule(7), all = a_rule(3);
    struct rule r0, r1, r1_other, r2, rs, rm, ra;
    struct table table = {.rules = {&rs, &r0, &r1, &r1_other, &r2, &rm, &ra}};
    struct frame frame = {.eth = {.dst_mac = {2, 0, 0, 0, 0, 1}}};

    sniffer.attr.type = IBV_FLOW_ATTR_SNIFFER;
    mc.attr.type = IBV_FLOW_ATTR_MC_DEFAULT;
    all.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
    add_mac(&a0, 2, 9);
    add_mac(&a1, 2, 1);
    add_mac(&a1_other, 2, 1);
    rs = parsed(&sniffer), r0 = parsed(&a0), r1 = parsed(&a1), r1_other = parsed(&a1_other), r2 = parsed(&a2);
    rm = parsed(&mc), ra = parsed(&all);
    for (int i = 0; i < 6; i++)
        assert_true(rule_compare(table.rules[i], table.rules[i + 1]) <= 0);
    assert_true(rule_excludes(&r1, &r1_other));
    assert_false(rule_excludes(&r0, &r1));

    assert_int_equal(met(&table, 7, &frame), 1u << 0 | 1u << 2);
    r1.dont_trap = true;
    assert_int_equal(met(&table, 7, &frame), 1u << 0 | 1u << 2 | 1u << 3);
    frame.eth.dst_mac[5] = 3;
    assert_int_equal(met(&table, 7, &frame), 1u << 0 | 1u << 4); /* r2 has no specs: everything */
    table.rules[4] = NULL;
    assert_int_equal(met(&table, 7, &frame), 1u << 0 | 1u << 6);
    frame.eth.dst_mac[0] = 1;
    assert_int_equal(met(&table, 7, &frame), 1u << 0 | 1u << 5);
}

static void a_multicast_frame_goes_to_all_that_stand_level(void **state)
{
    struct attributes a = a_rule(1), b = a_rule(1), below = a_rule(2);
    struct rule ra, rb, rbelow;
    struct table table = {.rules = {&ra, &rb, &rbelow}};
    const struct frame frame = {.eth = {.dst_mac = {1, 0, 0, 0, 0, 1}}};

    add_mac(&a, 1, 1);
    add_mac(&b, 1, 1);
    add_mac(&below, 1, 1);
    ra = parsed(&a), rb = parsed(&b), rbelow = parsed(&below);
    assert_false(rule_excludes(&ra, &rb));
    assert_int_equal(met(&table, 3, &frame), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_is_the_published_one),
        cmocka_unit_test(fields_that_no_frame_has_together_are_refused),
        cmocka_unit_test(a_frame_is_taken_apart),
        cmocka_unit_test(a_header_that_is_cut_off_is_not_there),
        cmocka_unit_test(a_later_fragment_has_no_ports_and_a_false_header_length_no_ip),
        cmocka_unit_test(the_check_sequence_is_that_of_ethernet),
        cmocka_unit_test(what_contradicts_itself_is_einval),
        cmocka_unit_test(reasons_of_refused_rules),
        cmocka_unit_test(a_size_that_leaves_out_the_specs_is_taken),
        cmocka_unit_test(every_field_is_compared_under_its_mask),
        cmocka_unit_test(the_first_that_matches_has_the_frame),
        cmocka_unit_test(a_multicast_frame_goes_to_all_that_stand_level),
    };

    return run_unit_tests("steering", tests);
}
