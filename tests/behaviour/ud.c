/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §8.1, §8.2, §8.4 to §8.6: datagrams. */
#include "work.h"

#include <arpa/inet.h>

enum { GRH = 40 };

static uint16_t ones_sum(const uint8_t *bytes, size_t length)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < length; i += 2)
        sum += (uint32_t)(bytes[i] << 8 | bytes[i + 1]);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static bool is_v4_mapped(const union ibv_gid *gid)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

    return !memcmp(gid->raw, prefix, sizeof prefix);
}

/* The first GID of the wanted kind, −1 if there is none */
static int find_gid(bool v4)
{
    struct ibv_context *context = open_the_device();
    static const union ibv_gid none;
    struct ibv_port_attr port;
    int found = -1;

    CHECK_ZERO(ibv_query_port(context, TEST_PORT, &port));
    for (int i = 0; i < port.gid_tbl_len && found < 0; i++) {
        union ibv_gid gid;

        CHECK_ZERO(ibv_query_gid(context, TEST_PORT, i, &gid));
        if (memcmp(&gid, &none, sizeof gid) && is_v4_mapped(&gid) == v4)
            found = i;
    }
    ibv_close_device(context);
    return found;
}

static void connect_by_gid(struct pair *p, bool v4)
{
    struct end_attr attr = attr_of(IBV_QPT_UD);

    attr.gid_index = find_gid(v4);
    if (attr.gid_index < 0)
        skip_because("the device has no %s GID", v4 ? "IPv4" : "IPv6");
    pair_connect_as(p, &attr);
}

static void payload_starts_at_40_and_byte_len_counts_the_40(void **state)
{
    static const size_t lengths[] = {1, 8, 100, 500, 1024};
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct ibv_wc wc;

        end_fill(&p.a, 0, lengths[i], i);
        end_recv(&p.b, a_recv(&p.b, i, 0, 2048));
        end_send(&p.a, a_datagram(&p.a, i, 0, lengths[i], &p.b));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        wc = end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        assert_int_equal(wc.byte_len, lengths[i] + GRH);
        assert_true(wc.wc_flags & IBV_WC_GRH);
        assert_int_equal(wc.src_qp, p.a.qp_num);
        assert_int_equal(wc.slid, 0);
        assert_int_equal(wc.pkey_index, 0);
        end_expect_data(&p.b, GRH, lengths[i], i);
    }
    pair_close(&p);
}

static void the_sl_of_a_completion_tells_the_kind_of_packet(void **state)
{
    /* compatibility.md §7: the low 3 bits are 2 for IPv4, 1 for IPv6 */
    for (int v4 = 0; v4 < 2; v4++) {
        struct pair p;

        if (find_gid(v4) < 0)
            continue;
        connect_by_gid(&p, v4);
        end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
        end_send(&p.a, a_datagram(&p.a, 1, 0, 8, &p.b));
        assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).sl & 7, v4 ? 2 : 1);
        pair_close(&p);
    }
}

static void an_ipv4_header_stands_in_bytes_20_to_39_and_0_to_19_are_untouched(void **state)
{
    uint8_t header[GRH];
    struct pair p;

    connect_by_gid(&p, true);
    end_fill(&p.b, 0, GRH, 77);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 100, &p.b));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    end_expect_data(&p.b, 0, 20, 77);
    end_peek(&p.b, 0, header, sizeof header);
    assert_int_equal(header[20], 0x45); /* version 4, 5 words */
    assert_int_equal(ones_sum(header + 20, 20), 0xffff);
    assert_int_equal(header[29], 17); /* UDP */
    assert_true((header[22] << 8 | header[23]) >= 20 + 8 + 12 + 8 + 100 + 4);
    assert_memory_equal(header + 32, p.a.gid.raw + 12, 4);
    assert_memory_equal(header + 36, p.b.gid.raw + 12, 4);
    pair_close(&p);
}

static void an_ipv6_header_stands_in_bytes_0_to_39(void **state)
{
    uint8_t header[GRH];
    struct pair p;

    connect_by_gid(&p, false);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 100, &p.b));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    end_peek(&p.b, 0, header, sizeof header);
    assert_int_equal(header[0] >> 4, 6);
    assert_int_equal(header[6], 17);
    assert_memory_equal(header + 8, p.a.gid.raw, 16);
    assert_memory_equal(header + 24, p.b.gid.raw, 16);
    pair_close(&p);
}

static void the_40_bytes_may_be_split_over_sges(void **state)
{
    struct recv recv;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    end_fill(&p.a, 0, 100, 1);
    recv = a_recv(&p.b, 1, 0, 30);
    recv.wr.num_sge = 3;
    recv.sge[1] = (struct ibv_sge){.addr = (uintptr_t)p.b.buf + 1000, .length = 20, .lkey = p.b.lkey};
    recv.sge[2] = (struct ibv_sge){.addr = (uintptr_t)p.b.buf + 2000, .length = 200, .lkey = p.b.lkey};
    end_recv(&p.b, recv);
    end_send(&p.a, a_datagram(&p.a, 1, 0, 100, &p.b));
    assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, 140);
    /* 10 bytes of payload follow the header in the second, the rest is in the third */
    end_peek(&p.b, 1010, p.a.buf + 4096, 10);
    end_peek(&p.b, 2000, p.a.buf + 4106, 90);
    end_expect_data(&p.a, 4096, 100, 1);
    pair_close(&p);
}

static void a_datagram_may_carry_an_immediate(void **state)
{
    struct send send;
    struct ibv_wc wc;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    send = a_datagram(&p.a, 1, 0, 0, &p.b);
    send.wr.opcode = IBV_WR_SEND_WITH_IMM;
    send.wr.imm_data = htonl(0xfeedface);
    end_recv(&p.b, a_recv(&p.b, 1, 0, GRH));
    end_send(&p.a, send);
    wc = end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    assert_int_equal(wc.byte_len, GRH);
    assert_int_equal(wc.imm_data, htonl(0xfeedface));
    assert_int_equal(wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_GRH), IBV_WC_WITH_IMM | IBV_WC_GRH);
    pair_close(&p);
}

static void a_receive_too_short_is_a_length_error_and_the_qp_stays_alive(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    end_fill(&p.b, GRH + 50, 200, 4);
    end_recv(&p.b, a_recv(&p.b, 1, 0, GRH + 50));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 51, &p.b));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_LEN_ERR);
    end_expect_data(&p.b, GRH + 50, 200, 4);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTS);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void a_message_longer_than_the_mtu_is_a_local_length_error(void **state)
{
    const struct ibv_qp_attr heal = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};
    struct ibv_port_attr port;
    size_t mtu;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    assert_int_equal(ibv_query_port(p.a.context, p.a.port, &port), 0);
    mtu = 128ul << port.active_mtu;
    end_recv(&p.b, a_recv(&p.b, 1, 0, mtu + GRH));
    end_send(&p.a, a_datagram(&p.a, 1, 0, mtu, &p.b));
    assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, mtu + GRH);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_send(&p.a, a_datagram(&p.a, 2, 0, mtu + 1, &p.b));
    end_expect_status(&p.a, SQ, 2, IBV_WC_LOC_LEN_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_SQE);
    CHECK_ZERO(end_modify(&p.a, &heal, IBV_QP_STATE | IBV_QP_CUR_STATE));
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void a_wrong_qkey_is_dropped_silently(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    send = a_datagram(&p.a, 1, 0, 64, &p.b);
    send.wr.wr.ud.remote_qkey ^= 1;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    pair_marker(&p.a, &p.b); /* the first that arrives */
    pair_close(&p);
}

static void a_new_qkey_counts_at_once(void **state)
{
    struct ibv_qp_attr attr = {.qkey = 0x7777};
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    CHECK_ZERO(end_modify(&p.b, &attr, IBV_QP_QKEY));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 64, &p.b)); /* the old one */
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    p.b.attr.qkey = 0x7777;
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void a_remote_qkey_with_the_top_bit_means_the_senders_own(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD); /* both have the same */
    send = a_datagram(&p.a, 1, 0, 64, &p.b);
    send.wr.wr.ud.remote_qkey = 0x80010000;
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    end_send(&p.a, send);
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    pair_close(&p);
}

static void without_a_receive_a_datagram_is_dropped(void **state)
{
    struct end other;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    end_share(&other, &p.b);
    end_to_init(&other);
    end_to_rtr(&other, &p.a);
    for (unsigned int i = 0; i < 10; i++) {
        end_send(&p.a, a_datagram(&p.a, i, 0, 64, &p.b));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    }
    /* of the same sender, behind them: when it is there they are gone */
    pair_marker(&p.a, &other);
    pair_marker(&p.a, &p.b);
    end_close_qp(&other);
    pair_close(&p);
}

static void datagrams_to_nobody_complete(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    send = a_datagram(&p.a, 1, 0, 64, &p.b);
    send.wr.wr.ud.remote_qpn ^= 0x3c0000;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void a_ud_qp_does_not_listen_to_a_connected_one(void **state)
{
    struct end_attr rc = attr_of(IBV_QPT_RC);
    struct pair p, q;

    rc.timeout = 8;
    rc.retry_cnt = 1;
    pair_connect(&p, IBV_QPT_UD);
    end_open(&q.a, NEAR, &rc);
    end_to_init(&q.a);
    end_to_rtr(&q.a, &p.b);
    end_to_rts(&q.a);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    end_send(&q.a, a_send(&q.a, 1, 0, 8));
    end_expect_status(&q.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    end_send(&p.a, a_datagram(&p.a, 2, 0, 100, &p.b));
    assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, 140);
    end_close(&q.a);
    pair_close(&p);
}

static void datagrams_of_one_flow_come_in_order(void **state)
{
    struct ibv_wc wc[60];
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    for (unsigned int i = 0; i < 60; i++)
        end_recv(&p.b, a_recv(&p.b, i, i * 1024, 1024));
    for (unsigned int i = 0; i < 60; i++) {
        end_fill(&p.a, i * 512, 512, i);
        end_send(&p.a, a_datagram(&p.a, i, i * 512, 512, &p.b));
    }
    end_poll(&p.b, RQ, wc, 60);
    for (unsigned int i = 0; i < 60; i++) {
        check_success(&wc[i], i, IBV_WC_RECV);
        end_expect_data(&p.b, i * 1024 + GRH, 512, i);
    }
    end_poll(&p.a, SQ, wc, 60);
    pair_close(&p);
}

static void one_qp_talks_to_many(void **state)
{
    struct end more[4];
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    for (size_t i = 0; i < COUNT(more); i++) {
        end_share(&more[i], &p.b);
        end_to_init(&more[i]);
        end_to_rtr(&more[i], &p.a);
        end_to_rts(&more[i]);
    }
    for (unsigned int round = 0; round < 8; round++) {
        for (size_t i = 0; i < COUNT(more); i++) {
            end_recv(&more[i], a_recv(&more[i], 10 * round + i, 0, 256));
            end_send(&p.a, a_datagram(&p.a, i, 0, 8 + i, &more[i]));
            assert_int_equal(end_expect_success(&more[i], RQ, 10 * round + i, IBV_WC_RECV).byte_len, 48 + i);
            end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        }
    }
    for (size_t i = 0; i < COUNT(more); i++)
        end_close_qp(&more[i]);
    pair_close(&p);
}

/* §8.2: an address handle that turns a receive around */

struct answer {
    struct ibv_wc wc;
    int result;
    bool create;
};

static void answer_here(struct end *end, void *arg)
{
    struct answer *answer = arg;
    struct ibv_grh *grh = (struct ibv_grh *)(void *)end->buf;
    struct ibv_ah_attr attr;

    if (end->ah)
        CHECK_ZERO(ibv_destroy_ah(end->ah));
    end->ah = NULL;
    if (answer->create) {
        end->ah = ibv_create_ah_from_wc(end->pd, &answer->wc, grh, end->port);
        CHECK(end->ah, "ibv_create_ah_from_wc: %s", strerror(errno));
        return;
    }
    answer->result = ibv_init_ah_from_wc(end->context, end->port, &answer->wc, grh, &attr);
    if (!answer->result) {
        CHECK(attr.is_global == 1 && attr.port_num == end->port, "the attributes of the answer");
        CHECK(attr.grh.sgid_index == end->attr.gid_index, "sgid_index %u", attr.grh.sgid_index);
        end->ah = ibv_create_ah(end->pd, &attr);
        CHECK(end->ah, "ibv_create_ah: %s", strerror(errno));
    }
}

static void a_receive_can_be_answered_through_its_completion(void **state)
{
    for (unsigned int i = 0; i < 4; i++) {
        struct answer answer = {.create = i & 1};
        struct pair p;

        if (find_gid(i & 2) < 0)
            continue;
        connect_by_gid(&p, i & 2);
        end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
        end_send(&p.a, a_datagram(&p.a, 1, 0, 100, &p.b));
        end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
        answer.wc = end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
        AT(&p.b, answer_here, &answer);
        assert_int_equal(answer.result, 0);
        end_recv(&p.a, a_recv(&p.a, 2, 1024, 256));
        end_fill(&p.b, 512, 64, 9);
        end_send(&p.b, a_datagram(&p.b, 2, 512, 64, &p.a));
        end_expect_success(&p.b, SQ, 2, IBV_WC_SEND);
        assert_int_equal(end_expect_success(&p.a, RQ, 2, IBV_WC_RECV).src_qp, p.b.qp_num);
        end_expect_data(&p.a, 1024 + GRH, 64, 9);
        pair_close(&p);
    }
}

static void init_ah_from_wc_checks_the_header(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
    struct ibv_ah_attr ah_attr;
    struct ibv_grh grh;
    struct end end;

    end_open(&end, NEAR, &attr);
    memset(&grh, 0x11, sizeof grh); /* neither version 4 nor 6 */
    assert_int_not_equal(ibv_init_ah_from_wc(end.context, end.port, &wc, &grh, &ah_attr), 0);
    memset(&grh, 0, sizeof grh);
    grh.version_tclass_flow = htonl(6u << 28);
    grh.next_hdr = 6; /* TCP */
    grh.dgid = end.gid;
    grh.sgid = end.gid;
    assert_int_not_equal(ibv_init_ah_from_wc(end.context, end.port, &wc, &grh, &ah_attr), 0);
    grh.next_hdr = 17;
    grh.dgid = (union ibv_gid){.raw = {0x20, 0x01, [15] = 9}}; /* not ours */
    assert_int_not_equal(ibv_init_ah_from_wc(end.context, end.port, &wc, &grh, &ah_attr), 0);
    wc.wc_flags = 0; /* then there is no header to look at */
    wc.slid = 0;
    assert_int_equal(ibv_init_ah_from_wc(end.context, end.port, &wc, NULL, &ah_attr), 0);
    assert_int_equal(ah_attr.is_global, 0);
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(payload_starts_at_40_and_byte_len_counts_the_40),
        TEST(the_sl_of_a_completion_tells_the_kind_of_packet),
        TEST(an_ipv4_header_stands_in_bytes_20_to_39_and_0_to_19_are_untouched),
        TEST(an_ipv6_header_stands_in_bytes_0_to_39),
        TEST(the_40_bytes_may_be_split_over_sges),
        TEST(a_datagram_may_carry_an_immediate),
        TEST(a_receive_too_short_is_a_length_error_and_the_qp_stays_alive),
        TEST(a_message_longer_than_the_mtu_is_a_local_length_error),
        TEST(a_wrong_qkey_is_dropped_silently),
        TEST(a_new_qkey_counts_at_once),
        TEST(a_remote_qkey_with_the_top_bit_means_the_senders_own),
        TEST(without_a_receive_a_datagram_is_dropped),
        TEST(datagrams_to_nobody_complete),
        TEST(a_ud_qp_does_not_listen_to_a_connected_one),
        TEST(datagrams_of_one_flow_come_in_order),
        TEST(one_qp_talks_to_many),
        TEST(a_receive_can_be_answered_through_its_completion),
        TEST(init_ah_from_wc_checks_the_header),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
