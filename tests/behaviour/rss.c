/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §7.1 and §7.4: QPs that spread frames over receive work queues, and what the flags of those
 * do to frames. */
#include "frames.h"

#include <stdlib.h>

enum { WQS = 4, KEY_LENGTH = 40 };

/* The key that Microsoft publishes to verify a hash with. */
static uint8_t key[KEY_LENGTH] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                                  0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                                  0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                                  0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

/* Near: a stand whose CQ all WQs complete in. */
struct spread {
    struct stand stand;
    struct ibv_wq *wqs[WQS];
    struct ibv_rwq_ind_table *table;
    struct ibv_qp *qp;
    struct ibv_flow *flow;
};

static struct ibv_qp_init_attr_ex rss_init(struct stand *stand, struct ibv_rwq_ind_table *table,
                                           uint64_t fields)
{
    return (struct ibv_qp_init_attr_ex){
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = stand->end.pd,
        .rwq_ind_tbl = table,
        .rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
                         .rx_hash_key_len = KEY_LENGTH,
                         .rx_hash_key = key,
                         .rx_hash_fields_mask = fields},
    };
}

static struct ibv_wq *a_wq(struct stand *stand, uint32_t flags)
{
    struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ,
                                    .max_wr = 16,
                                    .max_sge = 1,
                                    .pd = stand->end.pd,
                                    .cq = ibv_cq_ex_to_cq(stand->cq),
                                    .comp_mask = IBV_WQ_INIT_ATTR_FLAGS,
                                    .create_flags = flags};
    struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
    struct ibv_wq *wq = ibv_create_wq(stand->end.context, &init);

    CHECK(wq, "ibv_create_wq: %s", strerror(errno));
    CHECK_ZERO(ibv_modify_wq(wq, &ready));
    return wq;
}

static void post_wq(struct ibv_wq *wq, struct stand *stand, uint64_t slot)
{
    struct recv recv = a_recv(&stand->end, slot, slot * SLOT, SLOT);
    struct ibv_recv_wr *bad;

    recv.wr.sg_list = recv.sge;
    CHECK_ZERO(ibv_post_wq_recv(wq, &recv.wr, &bad));
}

/* Without a table of flags every WQ has none; log_size 0: all of it is wqs[0]. */
static void spread_open(struct spread *spread, uint64_t fields, uint32_t flags, uint32_t log_size)
{
    struct ibv_rwq_ind_table_init_attr table = {.log_ind_tbl_size = log_size, .ind_tbl = spread->wqs};
    struct ibv_qp_init_attr_ex init;

    stand_open(&spread->stand);
    for (int i = 0; i < WQS; i++)
        spread->wqs[i] = a_wq(&spread->stand, flags);
    spread->table = ibv_create_rwq_ind_table(spread->stand.end.context, &table);
    CHECK(spread->table, "ibv_create_rwq_ind_table: %s", strerror(errno));
    init = rss_init(&spread->stand, spread->table, fields);
    spread->qp = ibv_create_qp_ex(spread->stand.end.context, &init);
    CHECK(spread->qp, "ibv_create_qp_ex: %s", strerror(errno));
    spread->flow = flow_on(spread->qp, with_tag(for_mac(to_far, 0), 77));
}

static void spread_close(struct spread *spread)
{
    CHECK_ZERO(ibv_destroy_flow(spread->flow));
    CHECK_ZERO(ibv_destroy_qp(spread->qp));
    CHECK_ZERO(ibv_destroy_rwq_ind_table(spread->table));
    for (int i = 0; i < WQS; i++)
        CHECK_ZERO(ibv_destroy_wq(spread->wqs[i]));
    stand_close(&spread->stand);
}

/* The last two bits of the published hashes of these addresses and ports are the WQ. */
static void frames_go_to_the_wq_that_their_hash_names(void **state)
{
    static const struct {
        uint32_t source, destination;
        uint16_t source_port, destination_port;
        uint32_t of_addresses, with_ports;
    } published[] = {
        {0x420995bb, 0xa18e6450, 2794, 1766, 0x323e8fc2, 0x51ccc178},
        {0xc75c6f02, 0x41458c53, 14230, 4739, 0xd718262a, 0xc626b0ea},
        {0x1813c65f, 0x0c16cfb8, 12898, 38024, 0xd2d0a5de, 0x5c2b394a},
        {0x261bcd1e, 0xd18ea306, 48228, 2217, 0x82989176, 0xafc7327f},
        {0x9927a3bf, 0xcabc7f02, 44251, 1303, 0x5d1809c5, 0x10e828a2},
    };
    const uint64_t addresses = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
    const uint64_t fields[] = {addresses, addresses | IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP,
                               addresses | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP, 0};

    for (size_t i = 0; i < COUNT(fields); i++) {
        struct spread spread;

        spread_open(&spread, fields[i], 0, 2);
        for (size_t j = 0; j < COUNT(published); j++) {
            const struct bytes frame = ipv4_frame(published[j].source, published[j].destination, 6,
                                                  published[j].source_port, published[j].destination_port);
            /* of a frame without UDP there is nothing to hash */
            const uint32_t hash = i == 0 ? published[j].of_addresses : i == 1 ? published[j].with_ports : 0;
            struct seen seen;

            post_wq(spread.wqs[hash % WQS], &spread.stand, 1 + j);
            send_frame(&spread.stand.end, &frame);
            seen = next_seen(&spread.stand);
            assert_int_equal(seen.id, 1 + j);
            assert_int_equal(seen.qp_num, spread.wqs[hash % WQS]->wq_num);
            assert_int_equal(seen.length, frame.length);
            assert_int_equal(seen.tag, 77);
            expect_bytes(&spread.stand.end, 1 + j, &frame);
        }
        spread_close(&spread);
    }
}

static void an_rss_qp_is_made_of_what_belongs_together(void **state)
{
    static const int errors[] = {EINVAL, EINVAL,     EINVAL, EOPNOTSUPP, EINVAL,
                                 EINVAL, EOPNOTSUPP, EINVAL, EINVAL};
    struct ibv_qp_init_attr_ex init;
    struct spread spread;

    spread_open(&spread, 0, 0, 2);
    for (size_t i = 0; i < COUNT(errors); i++) {
        init = rss_init(&spread.stand, spread.table, IBV_RX_HASH_SRC_IPV4);
        switch (i) {
        case 0:
            init.comp_mask &= ~(uint32_t)IBV_QP_INIT_ATTR_RX_HASH;
            break;
        case 1:
            init.comp_mask &= ~(uint32_t)IBV_QP_INIT_ATTR_IND_TABLE;
            break;
        case 2:
            init.rx_hash_conf.rx_hash_key_len = KEY_LENGTH - 1;
            break;
        case 3:
            init.rx_hash_conf.rx_hash_function = 2;
            break;
        case 4:
            init.rx_hash_conf.rx_hash_fields_mask |= IBV_RX_HASH_DST_IPV6;
            break;
        case 5:
            init.rx_hash_conf.rx_hash_fields_mask |= IBV_RX_HASH_DST_PORT_TCP | IBV_RX_HASH_DST_PORT_UDP;
            break;
        case 6:
            init.rx_hash_conf.rx_hash_fields_mask |= (uint64_t)IBV_RX_HASH_INNER;
            break;
        case 7:
            init.cap.max_recv_wr = 1;
            break;
        default:
            init.recv_cq = ibv_cq_ex_to_cq(spread.stand.cq);
            break;
        }
        CHECK(!ibv_create_qp_ex(spread.stand.end.context, &init) && errno == errors[i], "case %zu: %s", i,
              strerror(errno));
    }
    spread_close(&spread);
}

static void an_rss_qp_has_no_states_and_no_queues(void **state)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_recv_wr recv = {0}, *bad_recv;
    struct spread spread;

    spread_open(&spread, 0, 0, 2);
    assert_int_equal(ibv_modify_qp(spread.qp, &attr, IBV_QP_STATE | IBV_QP_PORT), EOPNOTSUPP);
    assert_int_equal(ibv_post_send(spread.qp, &send, &bad_send), EINVAL);
    assert_ptr_equal(bad_send, &send);
    assert_int_equal(ibv_post_recv(spread.qp, &recv, &bad_recv), EINVAL);
    assert_ptr_equal(bad_recv, &recv);
    spread_close(&spread);
}

static void a_table_is_busy_while_a_qp_spreads_over_it(void **state)
{
    struct spread spread;

    spread_open(&spread, 0, 0, 2);
    assert_int_equal(ibv_destroy_rwq_ind_table(spread.table), EBUSY);
    assert_int_equal(ibv_destroy_wq(spread.wqs[3]), EBUSY);
    assert_int_equal(ibv_destroy_qp(spread.qp), EBUSY);
    spread_close(&spread);
}

static void a_wq_strips_and_scatters_as_it_was_made(void **state)
{
    const struct bytes plain = a_frame(to_far, 1), frame = tagged(plain, 0xa123);
    static const uint32_t flags[] = {0, IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_SCATTER_FCS,
                                     IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS};
    const struct bytes expected[] = {frame, plain, with_fcs(frame, &frame), with_fcs(plain, &frame)};

    for (size_t i = 0; i < COUNT(flags); i++) {
        struct spread spread;
        struct seen seen;

        spread_open(&spread, 0, flags[i] | IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, 0);
        post_wq(spread.wqs[0], &spread.stand, 1);
        send_frame(&spread.stand.end, &frame);
        seen = next_seen(&spread.stand);
        assert_int_equal(seen.length, expected[i].length);
        assert_int_equal(seen.vlan, i & 1 ? 0xa123 : 0);
        expect_bytes(&spread.stand.end, 1, &expected[i]);
        spread_close(&spread);
    }
}

static void stripping_can_be_changed_on_the_way(void **state)
{
    const struct bytes plain = a_frame(to_far, 1), frame = tagged(plain, 7);
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_FLAGS,
                               .flags = IBV_WQ_FLAGS_CVLAN_STRIPPING,
                               .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING};
    struct spread spread;

    spread_open(&spread, 0, 0, 0);
    post_wq(spread.wqs[0], &spread.stand, 1);
    post_wq(spread.wqs[0], &spread.stand, 2);
    send_frame(&spread.stand.end, &frame);
    assert_int_equal(next_seen(&spread.stand).length, frame.length);
    CHECK_ZERO(ibv_modify_wq(spread.wqs[0], &attr));
    send_frame(&spread.stand.end, &frame);
    assert_int_equal(next_seen(&spread.stand).length, plain.length);
    spread_close(&spread);
}

/* A frame of another flow, behind the others: they have come by now. */
static void expect_marker(struct spread *spread, struct ibv_qp *qp, uint64_t slot)
{
    const struct bytes marker = a_frame(to_marker, 9);
    struct ibv_flow *flow = flow_on(qp, for_mac(to_marker, 0));

    post_on(qp, &spread->stand, slot);
    send_frame(&spread->stand.end, &marker);
    assert_int_equal(next_seen(&spread->stand).id, slot);
    CHECK_ZERO(ibv_destroy_flow(flow));
}

static void a_wq_that_delays_keeps_frames_until_there_is_a_receive(void **state)
{
    const struct bytes first = a_frame(to_far, 1), second = a_frame(to_far, 2);
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RESET};

    for (unsigned int delays = 0; delays < 2; delays++) {
        struct spread spread;
        struct ibv_qp *qp;

        spread_open(&spread, 0, delays ? IBV_WQ_FLAGS_DELAY_DROP : 0, 0);
        qp = qp_with_flags(&spread.stand, 0);
        send_frame(&spread.stand.end, &first);
        send_frame(&spread.stand.end, &second);
        expect_marker(&spread, qp, 1);
        post_wq(spread.wqs[0], &spread.stand, 2);
        post_wq(spread.wqs[0], &spread.stand, 3);
        if (delays) {
            assert_int_equal(next_seen(&spread.stand).id, 2);
            assert_int_equal(next_seen(&spread.stand).id, 3);
            expect_bytes(&spread.stand.end, 2, &first);
            expect_bytes(&spread.stand.end, 3, &second);
        } else {
            expect_marker(&spread, qp, 4); /* nothing else is in the CQ */
        }
        /* What waits goes with the state. */
        send_frame(&spread.stand.end, &first);
        if (delays) {
            expect_marker(&spread, qp, 5);
            CHECK_ZERO(ibv_modify_wq(spread.wqs[0], &attr));
            attr.wq_state = IBV_WQS_RDY;
            CHECK_ZERO(ibv_modify_wq(spread.wqs[0], &attr));
            post_wq(spread.wqs[0], &spread.stand, 6);
            expect_marker(&spread, qp, 7);
        } else {
            assert_int_equal(next_seen(&spread.stand).id, 2);
        }
        CHECK_ZERO(ibv_destroy_qp(qp));
        spread_close(&spread);
    }
}

static void frames_for_a_wq_that_is_not_ready_are_lost(void **state)
{
    const struct bytes frame = a_frame(to_far, 1);
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RESET};
    struct spread spread;
    struct ibv_qp *qp;

    spread_open(&spread, 0, 0, 0);
    qp = qp_with_flags(&spread.stand, 0);
    CHECK_ZERO(ibv_modify_wq(spread.wqs[0], &attr));
    send_frame(&spread.stand.end, &frame);
    expect_marker(&spread, qp, 1);
    attr.wq_state = IBV_WQS_RDY;
    CHECK_ZERO(ibv_modify_wq(spread.wqs[0], &attr));
    post_wq(spread.wqs[0], &spread.stand, 2);
    send_frame(&spread.stand.end, &frame);
    assert_int_equal(next_seen(&spread.stand).id, 2);
    CHECK_ZERO(ibv_destroy_qp(qp));
    spread_close(&spread);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(frames_go_to_the_wq_that_their_hash_names),
        TEST(an_rss_qp_is_made_of_what_belongs_together),
        TEST(an_rss_qp_has_no_states_and_no_queues),
        TEST(a_table_is_busy_while_a_qp_spreads_over_it),
        TEST(a_wq_strips_and_scatters_as_it_was_made),
        TEST(stripping_can_be_changed_on_the_way),
        TEST(a_wq_that_delays_keeps_frames_until_there_is_a_receive),
        TEST(frames_for_a_wq_that_is_not_ready_are_lost),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
