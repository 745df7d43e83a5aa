/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §7.6 and §7.7: which frame meets which flow rule, what rules do to it, and what they count.
 */
#include "frames.h"

#include <arpa/inet.h>

/* --- specs ---------------------------------------------------------------------------------------- */

static struct rule spec_of(unsigned int number)
{
    struct rule rule = a_rule(IBV_FLOW_ATTR_NORMAL, 1);
    struct ibv_flow_eth_filter eth = {0}, eth_mask = {0};
    struct ibv_flow_spec_ipv4 ipv4 = {.type = IBV_FLOW_SPEC_IPV4, .size = sizeof ipv4};
    struct ibv_flow_spec_ipv4_ext ext = {.type = IBV_FLOW_SPEC_IPV4_EXT, .size = sizeof ext};
    struct ibv_flow_spec_ipv6 ipv6 = {.type = IBV_FLOW_SPEC_IPV6, .size = sizeof ipv6};
    struct ibv_flow_spec_tcp_udp ports = {.type = IBV_FLOW_SPEC_UDP, .size = sizeof ports};

    switch (number) {
    case 0:
        memcpy(eth.src_mac, from_near, MAC_LENGTH);
        memcpy(eth_mask.src_mac, every_bit, MAC_LENGTH);
        return with_eth(rule, &eth, &eth_mask);
    case 1:
        eth.ether_type = htons(0x0800);
        eth_mask.ether_type = 0xffff;
        return with_eth(rule, &eth, &eth_mask);
    case 2:
        eth.vlan_tag = htons(5);
        eth_mask.vlan_tag = htons(0xfff);
        return with_eth(rule, &eth, &eth_mask);
    case 3:
        ipv4.val.src_ip = htonl(0x0a000000);
        ipv4.mask.src_ip = htonl(0xff000000);
        add_spec(&rule, &ipv4, sizeof ipv4);
        return rule;
    case 4:
        ipv4.val.dst_ip = htonl(0x0a000002);
        ipv4.mask.dst_ip = 0xffffffff;
        add_spec(&rule, &ipv4, sizeof ipv4);
        return rule;
    case 5:
        ext.val = (struct ibv_flow_ipv4_ext_filter){.proto = 6, .tos = 0x20, .ttl = 63, .flags = 2};
        ext.mask = (struct ibv_flow_ipv4_ext_filter){.proto = 255, .tos = 255, .ttl = 255, .flags = 7};
        add_spec(&rule, &ext, sizeof ext);
        return rule;
    case 6:
        ipv6.val = (struct ibv_flow_ipv6_filter){
            .flow_label = htonl(0x10011), .next_hdr = 17, .traffic_class = 0xb2, .hop_limit = 64};
        ipv6.mask = (struct ibv_flow_ipv6_filter){
            .flow_label = htonl(0xfffff), .next_hdr = 255, .traffic_class = 255, .hop_limit = 255};
        add_spec(&rule, &ipv6, sizeof ipv6);
        return rule;
    case 7:
        ipv6.val.dst_ip[15] = 8;
        ipv6.mask.dst_ip[15] = 255;
        add_spec(&rule, &ipv6, sizeof ipv6);
        return rule;
    case 8:
        ports.val.dst_port = htons(5678);
        ports.mask.dst_port = 0xffff;
        add_spec(&rule, &ports, sizeof ports);
        return rule;
    default:
        ports.type = IBV_FLOW_SPEC_TCP;
        ports.val.src_port = htons(1234);
        ports.mask.src_port = 0xffff;
        add_spec(&rule, &ports, sizeof ports);
        return rule;
    }
}

static void each_spec_matches_what_it_says(void **state)
{
    struct bytes foreign = a_frame(to_far, 1);
    struct {
        struct bytes yes, no;
    } of_spec[10];
    struct two two;

    foreign.at[6] = 0x12;
    of_spec[0].yes = a_frame(to_far, 1), of_spec[0].no = foreign;
    of_spec[1].yes = ipv4_frame(1, 2, 17, 1, 2), of_spec[1].no = ipv6_frame(1, 2, 17, 1, 2);
    of_spec[2].yes = tagged(a_frame(to_far, 1), 0x2005), of_spec[2].no = tagged(a_frame(to_far, 1), 6);
    of_spec[3].yes = ipv4_frame(0x0a010203, 2, 17, 1, 2), of_spec[3].no = ipv4_frame(0x0b010203, 2, 17, 1, 2);
    of_spec[4].yes = tagged(ipv4_frame(1, 0x0a000002, 6, 1, 2), 9),
    of_spec[4].no = ipv4_frame(0x0a000002, 1, 6, 1, 2);
    of_spec[5].yes = ipv4_frame(1, 2, 6, 1, 2), of_spec[5].no = ipv4_frame(1, 2, 17, 1, 2);
    of_spec[6].yes = ipv6_frame(1, 2, 17, 1, 2), of_spec[6].no = ipv6_frame(1, 2, 6, 1, 2);
    of_spec[7].yes = ipv6_frame(1, 8, 6, 1, 2), of_spec[7].no = ipv6_frame(8, 1, 6, 1, 2);
    of_spec[8].yes = ipv4_frame(1, 2, 17, 1, 5678), of_spec[8].no = ipv4_frame(1, 2, 6, 1, 5678);
    of_spec[9].yes = ipv6_frame(1, 2, 6, 1234, 1), of_spec[9].no = ipv6_frame(1, 2, 6, 1, 1234);

    two_open(&two);
    for (unsigned int i = 0; i < COUNT(of_spec); i++) {
        struct ibv_flow *flow = steer(&two.b, spec_of(i));

        post_slot(&two.b, 0);
        send_frame(&two.a, &of_spec[i].no);
        send_frame(&two.a, &of_spec[i].yes);
        expect_frame(&two.b, 0, &of_spec[i].yes);
        unsteer(&two.b, flow);
    }
    two_close(&two);
}

/* --- order ---------------------------------------------------------------------------------------- */

/* Two QPs of the far end; who has the frame? */
static void the_lower_priority_number_has_the_frame(void **state)
{
    const struct bytes frame = a_frame(to_far, 1);
    struct ibv_flow *low, *high;
    struct end other;
    struct two two;

    two_open(&two);
    end_share(&other, &two.b);
    raw_to_rts(&other);
    low = steer(&two.b, for_mac(to_far, 5));
    high = steer(&other, for_mac(to_far, 2));
    post_slot(&two.b, 0);
    post_slot(&other, 1);
    send_frame(&two.a, &frame);
    expect_frame(&other, 1, &frame);
    expect_nothing_before(&two.a, &two.b, 0);
    unsteer(&other, high);
    post_slot(&two.b, 2);
    send_frame(&two.a, &frame);
    expect_frame(&two.b, 2, &frame);
    unsteer(&two.b, low);
    end_close_qp(&other);
    two_close(&two);
}

static void the_same_unicast_rule_twice_is_eexist(void **state)
{
    struct rule again = for_mac(to_far, 3), elsewhere = for_mac(to_far, 4);
    struct ibv_flow *flow;
    struct two two;

    two_open(&two);
    flow = steer(&two.b, for_mac(to_far, 3));
    assert_int_equal(try_steer(&two.b, &again), EEXIST);
    assert_int_equal(try_steer(&two.b, &elsewhere), 0);
    unsteer(&two.b, elsewhere.flow);
    unsteer(&two.b, flow);
    assert_int_equal(try_steer(&two.b, &again), 0);
    unsteer(&two.b, again.flow);
    two_close(&two);
}

static void every_member_of_a_multicast_address_has_a_copy(void **state)
{
    const struct bytes frame = a_frame(to_group, 1);
    struct ibv_flow *one, *two_, *own;
    struct end other;
    struct two two;

    two_open(&two);
    end_share(&other, &two.b);
    raw_to_rts(&other);
    one = steer(&two.b, for_mac(to_group, 0));
    two_ = steer(&other, for_mac(to_group, 0));
    own = steer(&two.a, for_mac(to_group, 0));
    post_slot(&two.b, 0);
    send_frame(&two.a, &frame);
    expect_frame(&two.b, 0, &frame);
    post_slot(&other, 1);
    post_slot(&two.a, 2);
    send_frame(&two.a, &frame); /* the first has no receive, which is nothing to the others */
    expect_frame(&other, 1, &frame);
    expect_frame(&two.a, 2, &frame);
    unsteer(&two.a, own);
    unsteer(&other, two_);
    unsteer(&two.b, one);
    end_close_qp(&other);
    two_close(&two);
}

static void dont_trap_lets_the_frame_go_on(void **state)
{
    const struct bytes frame = a_frame(to_far, 1);
    struct rule watching = for_mac(to_far, 1);
    struct ibv_flow *flow;
    struct end other;
    struct two two;

    two_open(&two);
    end_share(&other, &two.b);
    raw_to_rts(&other);
    watching.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    flow = steer(&two.b, for_mac(to_far, 2));
    assert_int_equal(try_steer(&other, &watching), 0);
    post_slot(&other, 1);
    send_frame(&two.a, &frame); /* no receive for it behind */
    expect_frame(&other, 1, &frame);
    post_slot(&two.b, 0);
    send_frame(&two.a, &frame);
    expect_frame(&two.b, 0, &frame);
    unsteer(&other, watching.flow);
    unsteer(&two.b, flow);
    end_close_qp(&other);
    two_close(&two);
}

static void defaults_have_what_nobody_else_has(void **state)
{
    const struct bytes unicast = a_frame(to_far, 1), multicast = a_frame(to_group, 2);
    struct ibv_flow *all, *group, *flow;
    struct end other;
    struct two two;

    two_open(&two);
    end_share(&other, &two.b);
    raw_to_rts(&other);
    group = steer(&two.b, a_rule(IBV_FLOW_ATTR_MC_DEFAULT, 0));
    all = steer(&other, a_rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0));
    post_slot(&other, 1);
    send_frame(&two.a, &unicast);
    expect_frame(&other, 1, &unicast);
    post_slot(&two.b, 0);
    send_frame(&two.a, &multicast);
    expect_frame(&two.b, 0, &multicast);
    unsteer(&two.b, group);
    post_slot(&other, 2);
    send_frame(&two.a, &multicast);
    expect_frame(&other, 2, &multicast);
    flow = steer(&two.b, for_mac(to_far, 100));
    post_slot(&two.b, 3);
    send_frame(&two.a, &unicast);
    expect_frame(&two.b, 3, &unicast);
    unsteer(&two.b, flow);
    unsteer(&other, all);
    end_close_qp(&other);
    two_close(&two);
}

static void a_sniffer_sees_what_others_get_and_what_is_dropped(void **state)
{
    const struct bytes taken = a_frame(to_far, 1), dropped = a_frame((const uint8_t[]){2, 9, 9, 9, 9, 9}, 2),
                       nobodys = a_frame((const uint8_t[]){2, 8, 8, 8, 8, 8}, 3);
    struct ibv_flow *sniffer, *flow, *drop;
    struct end other;
    struct two two;

    two_open(&two);
    end_share(&other, &two.b);
    raw_to_rts(&other);
    flow = steer(&two.b, for_mac(to_far, 0));
    drop = steer(&two.b, with_drop(for_mac(dropped.at, 0)));
    sniffer = steer(&other, a_rule(IBV_FLOW_ATTR_SNIFFER, 0));
    /* One completion queue serves both. */
    post_slot(&other, 10);
    send_frame(&two.a, &dropped);
    expect_frame(&other, 10, &dropped);
    post_slot(&other, 11);
    send_frame(&two.a, &nobodys);
    expect_frame(&other, 11, &nobodys);
    post_slot(&two.b, 0);
    send_frame(&two.a, &taken); /* no receive of the sniffer's */
    expect_frame(&two.b, 0, &taken);
    unsteer(&other, sniffer);
    unsteer(&two.b, drop);
    unsteer(&two.b, flow);
    end_close_qp(&other);
    two_close(&two);
}

/* --- actions -------------------------------------------------------------------------------------- */

static void a_dropped_frame_reaches_nobody(void **state)
{
    const struct bytes frame = a_frame(to_far, 1);
    struct ibv_flow *drop, *flow;
    struct two two;

    two_open(&two);
    drop = steer(&two.b, with_drop(for_mac(to_far, 0)));
    flow = steer(&two.b, for_mac(to_far, 1));
    post_slot(&two.b, 0);
    send_frame(&two.a, &frame);
    expect_nothing_before(&two.a, &two.b, 0);
    unsteer(&two.b, drop);
    post_slot(&two.b, 1);
    send_frame(&two.a, &frame);
    expect_frame(&two.b, 1, &frame);
    unsteer(&two.b, flow);
    two_close(&two);
}

struct counting {
    struct ibv_counters *counters;
    uint64_t values[4];
};

static void make_counters_here(struct end *end, void *arg)
{
    struct counting *counting = arg;
    struct ibv_counters_init_attr init = {0};
    static const struct ibv_counter_attach_attr points[] = {
        {IBV_COUNTER_PACKETS, 0, 0}, {IBV_COUNTER_BYTES, 2, 0}, {IBV_COUNTER_PACKETS, 2, 0}};

    counting->counters = ibv_create_counters(end->context, &init);
    CHECK(counting->counters, "ibv_create_counters: %s", strerror(errno));
    for (size_t i = 0; i < COUNT(points); i++) {
        struct ibv_counter_attach_attr point = points[i];

        CHECK_ZERO(ibv_attach_counters_point_flow(counting->counters, &point, NULL));
    }
}

static void read_counters_here(struct end *end, void *arg)
{
    struct counting *counting = arg;

    memset(counting->values, 0xff, sizeof counting->values);
    CHECK_ZERO(
        ibv_read_counters(counting->counters, counting->values, 3, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
}

static void destroy_counters_here(struct end *end, void *arg)
{
    struct counting *counting = arg;

    counting->values[0] = (uint64_t)ibv_destroy_counters(counting->counters);
}

static void counters_count_the_frames_of_their_flows(void **state)
{
    const struct bytes frame = a_frame(to_far, 1), dropped = a_frame(to_group, 1);
    struct counting counting;
    struct ibv_flow *flow, *drop;
    struct two two;

    two_open(&two);
    AT(&two.b, make_counters_here, &counting);
    flow = steer(&two.b, with_count(for_mac(to_far, 0), counting.counters));
    drop = steer(&two.b, with_drop(with_count(for_mac(to_group, 0), counting.counters)));
    for (uint64_t slot = 0; slot < 3; slot++) {
        post_slot(&two.b, slot);
        send_frame(&two.a, &dropped);
        send_frame(&two.a, &frame);
        expect_frame(&two.b, slot, &frame);
    }
    AT(&two.b, read_counters_here, &counting);
    assert_int_equal(counting.values[0], 6);
    assert_int_equal(counting.values[1], 0);
    assert_int_equal(counting.values[2], 6 * 100 + 6); /* two points of one index add up */
    AT(&two.b, destroy_counters_here, &counting);
    assert_int_equal(counting.values[0], EBUSY);
    unsteer(&two.b, drop);
    unsteer(&two.b, flow);
    AT(&two.b, destroy_counters_here, &counting);
    assert_int_equal(counting.values[0], 0);
    two_close(&two);
}

static void counters_refuse_what_is_not_legal(void **state)
{
    struct ibv_counters_init_attr init = {.comp_mask = 1};
    struct ibv_counter_attach_attr point = {IBV_COUNTER_PACKETS, 1, 0};
    struct ibv_counters *counters;
    struct rule rule;
    uint64_t values[2];
    struct end end;

    open_raw(&end, NEAR);
    assert_null(ibv_create_counters(end.context, &init));
    assert_int_equal(errno, EOPNOTSUPP);
    init.comp_mask = 0;
    counters = ibv_create_counters(end.context, &init);
    assert_non_null(counters);
    assert_int_equal(ibv_read_counters(counters, values, 2, 0), EINVAL);
    rule = with_count(for_mac(to_far, 0), counters); /* before it has a point */
    assert_int_equal(try_steer(&end, &rule), EINVAL);
    point.comp_mask = 1;
    assert_int_equal(ibv_attach_counters_point_flow(counters, &point, NULL), EOPNOTSUPP);
    point.comp_mask = 0;
    point.counter_desc = (enum ibv_counter_description)7;
    assert_int_equal(ibv_attach_counters_point_flow(counters, &point, NULL), ENOTSUP);
    point.counter_desc = IBV_COUNTER_BYTES;
    CHECK_ZERO(ibv_attach_counters_point_flow(counters, &point, NULL));
    assert_int_equal(ibv_read_counters(counters, values, 1, 0), EINVAL);
    assert_int_equal(ibv_read_counters(counters, values, 2, 4), EINVAL);
    CHECK_ZERO(ibv_read_counters(counters, values, 2, 0));
    assert_int_equal(try_steer(&end, &rule), 0);
    assert_int_equal(ibv_attach_counters_point_flow(counters, &point, NULL), EBUSY);
    unsteer(&end, rule.flow);
    CHECK_ZERO(ibv_attach_counters_point_flow(counters, &point, NULL));
    CHECK_ZERO(ibv_destroy_counters(counters));
    end_close(&end);
}

static void a_qp_is_busy_while_a_rule_names_it(void **state)
{
    const struct bytes frame = a_frame(to_far, 1);
    struct ibv_flow *flow;
    struct end end;

    open_raw(&end, NEAR);
    flow = steer(&end, for_mac(to_far, 0));
    assert_int_equal(try_destroy_qp(&end), EBUSY);
    post_slot(&end, 0);
    send_frame(&end, &frame);
    expect_frame(&end, 0, &frame);
    unsteer(&end, flow);
    end_close(&end);
}

static void a_rule_is_refused_for_what_is_wrong_with_it(void **state)
{
    static const struct ibv_flow_spec_esp esp = {.type = IBV_FLOW_SPEC_ESP, .size = sizeof esp};
    struct rule bad[7];
    static const int errors[] = {EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EOPNOTSUPP, EOPNOTSUPP};
    struct end end, other;

    open_raw(&end, NEAR);
    for (size_t i = 0; i < COUNT(bad); i++)
        bad[i] = for_mac(to_far, 0);
    bad[0].attr.comp_mask = 1;
    bad[1].attr.port = 2;
    bad[2].attr.size = (uint16_t)(bad[2].attr.size + 4);
    bad[3].attr.type = (enum ibv_flow_attr_type)8;
    bad[4].attr.type = IBV_FLOW_ATTR_SNIFFER;
    bad[5].attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
    add_spec(&bad[6], &esp, sizeof esp);
    for (size_t i = 0; i < COUNT(bad); i++)
        CHECK(try_steer(&end, &bad[i]) == errors[i], "rule %zu: %s", i, strerror(bad[i].error));
    for (int type = 0; type < 2; type++) {
        const struct end_attr attr = attr_of(type ? IBV_QPT_UD : IBV_QPT_RC);
        struct rule rule = for_mac(to_far, 0);

        end_open(&other, NEAR, &attr);
        assert_int_equal(try_steer(&other, &rule), type ? EOPNOTSUPP : EINVAL);
        end_close(&other);
    }
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(each_spec_matches_what_it_says),
        TEST(the_lower_priority_number_has_the_frame),
        TEST(the_same_unicast_rule_twice_is_eexist),
        TEST(every_member_of_a_multicast_address_has_a_copy),
        TEST(dont_trap_lets_the_frame_go_on),
        TEST(defaults_have_what_nobody_else_has),
        TEST(a_sniffer_sees_what_others_get_and_what_is_dropped),
        TEST(a_dropped_frame_reaches_nobody),
        TEST(counters_count_the_frames_of_their_flows),
        TEST(counters_refuse_what_is_not_legal),
        TEST(a_qp_is_busy_while_a_rule_names_it),
        TEST(a_rule_is_refused_for_what_is_wrong_with_it),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
