/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §7.5: RAW_PACKET QPs, what they send and how they receive it. */
#include "frames.h"

/* --- QPs ------------------------------------------------------------------------------------------ */

static void a_raw_qp_takes_a_port_and_nothing_else(void **state)
{
    const struct end_attr attr = raw_attr();
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct end end;

    end_open(&end, NEAR, &attr);
    assert_int_equal(end_modify(&end, &to, IBV_QP_STATE), EINVAL);
    assert_int_equal(end_modify(&end, &to, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY), EINVAL);
    assert_int_equal(end_modify(&end, &to, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX), EINVAL);
    CHECK_ZERO(end_modify(&end, &to, IBV_QP_STATE | IBV_QP_PORT));
    to.qp_state = IBV_QPS_RTR;
    assert_int_equal(end_modify(&end, &to, IBV_QP_STATE | IBV_QP_AV), EINVAL);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RTR));
    to.qp_state = IBV_QPS_RTS;
    /* No such capability: who asks tells that from a mistake. */
    assert_int_equal(end_modify(&end, &to, IBV_QP_STATE | IBV_QP_RATE_LIMIT), EOPNOTSUPP);
    assert_int_equal(end_modify(&end, &to, IBV_QP_STATE | IBV_QP_RATE_LIMIT | IBV_QP_AV), EINVAL);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RTS));
    CHECK_ZERO(end_to_state(&end, IBV_QPS_SQD));
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RTS));
    CHECK_ZERO(end_to_state(&end, IBV_QPS_ERR));
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RESET));
    end_close(&end);
}

static void a_raw_qp_sends_and_does_nothing_else(void **state)
{
    static const enum ibv_wr_opcode others[] = {
        IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_LOCAL_INV,     IBV_WR_BIND_MW,    IBV_WR_TSO};
    struct end end;

    open_raw(&end, NEAR);
    for (size_t i = 0; i < COUNT(others); i++) {
        struct send send = a_send(&end, 1, 0, 64);
        unsigned int posted;

        send.wr.opcode = others[i];
        assert_int_equal(end_try_send(&end, &send, 1, &posted), EINVAL);
    }
    end_close(&end);
}

static void a_raw_qp_has_no_srq(void **state)
{
    const struct end_attr ud = attr_of(IBV_QPT_UD);
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RAW_PACKET, .cap = {1, 1, 1, 1, 0}};
    struct end end;

    end_open(&end, NEAR, &ud);
    init.send_cq = end.send_cq;
    init.recv_cq = end.recv_cq;
    init.srq = ibv_create_srq(end.pd, &srq_init);
    assert_non_null(init.srq);
    assert_null(ibv_create_qp(end.pd, &init));
    assert_int_equal(errno, EINVAL);
    CHECK_ZERO(ibv_destroy_srq(init.srq));
    end_close(&end);
}

static void the_device_says_what_there_is(void **state)
{
    struct ibv_device_attr_ex device;
    struct end end;

    open_raw(&end, NEAR);
    CHECK_ZERO(ibv_query_device_ex(end.context, NULL, &device));
    assert_true(device.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
    assert_true(device.orig_attr.max_raw_ethy_qp > 0);
    assert_true(device.device_cap_flags_ex & IBV_DEVICE_RAW_SCATTER_FCS);
    assert_int_equal(device.raw_packet_caps, IBV_RAW_PACKET_CAP_CVLAN_STRIPPING |
                                                 IBV_RAW_PACKET_CAP_SCATTER_FCS |
                                                 IBV_RAW_PACKET_CAP_DELAY_DROP);
    assert_int_equal(device.rss_caps.supported_qpts, 1u << IBV_QPT_RAW_PACKET);
    assert_int_equal(device.rss_caps.rx_hash_function, IBV_RX_HASH_FUNC_TOEPLITZ);
    assert_int_equal(device.rss_caps.rx_hash_fields_mask, 0x1ff);
    assert_int_equal(device.tso_caps.max_tso, 0);
    assert_int_equal(device.packet_pacing_caps.supported_qpts, 0);
    end_close(&end);
}

/* --- delivery ------------------------------------------------------------------------------------- */

static void only_what_a_rule_names_is_received(void **state)
{
    const struct bytes wanted = a_frame(to_far, 3), other = a_frame((const uint8_t[]){2, 0, 0, 0, 0, 9}, 4);
    struct ibv_flow *flow;
    struct two two;

    two_open(&two);
    for (uint64_t slot = 0; slot < 3; slot++)
        post_slot(&two.b, slot);
    send_frame(&two.a, &wanted); /* there is no rule for it yet */
    expect_nothing_before(&two.a, &two.b, 0);
    flow = steer(&two.b, for_mac(to_far, 0));
    send_frame(&two.a, &other);
    send_frame(&two.a, &wanted);
    expect_frame(&two.b, 1, &wanted);
    unsteer(&two.b, flow);
    send_frame(&two.a, &wanted);
    expect_nothing_before(&two.a, &two.b, 2);
    two_close(&two);
}

static void a_short_frame_is_padded_and_one_without_a_header_is_an_error(void **state)
{
    struct bytes frame = a_frame(to_far, 3), padded = frame;
    struct ibv_flow *flow;
    struct two two;

    two_open(&two);
    flow = steer(&two.b, for_mac(to_far, 0));
    frame.length = 14;
    padded.length = 60;
    memset(padded.at + 14, 0, 46);
    post_slot(&two.b, 0);
    send_frame(&two.a, &frame);
    expect_frame(&two.b, 0, &padded);

    end_send(&two.a, a_send(&two.a, 2, 0, 13));
    end_expect_status(&two.a, SQ, 2, IBV_WC_LOC_LEN_ERR);
    assert_int_equal(end_state(&two.a), IBV_QPS_SQE);
    CHECK_ZERO(end_to_state(&two.a, IBV_QPS_RTS));
    post_slot(&two.b, 1);
    send_frame(&two.a, &frame);
    expect_frame(&two.b, 1, &padded);
    unsteer(&two.b, flow);
    two_close(&two);
}

static void a_frame_that_is_too_long_is_an_error(void **state)
{
    struct two two;

    two_open(&two);
    end_send(&two.a, a_send(&two.a, 1, 0, FRAMES_BUFFER));
    end_expect_status(&two.a, SQ, 1, IBV_WC_LOC_LEN_ERR);
    two_close(&two);
}

static void gathered_and_inline_frames_arrive_whole(void **state)
{
    const struct bytes frame = a_frame(to_far, 9);
    struct ibv_flow *flow;
    struct send send;
    struct two two;

    two_open(&two);
    flow = steer(&two.b, for_mac(to_far, 0));
    end_poke(&two.a, 0, frame.at, 10);
    end_poke(&two.a, 512, frame.at + 10, frame.length - 10);
    send = a_send(&two.a, 1, 0, 10);
    send.sge[1] = send.sge[0];
    send.sge[1].addr = (uintptr_t)two.a.buf + 512;
    send.sge[1].length = (uint32_t)frame.length - 10;
    send.wr.num_sge = 2;
    post_slot(&two.b, 0);
    end_send(&two.a, send);
    end_expect_success(&two.a, SQ, 1, IBV_WC_SEND);
    expect_frame(&two.b, 0, &frame);
    if (two.a.attr.cap.max_inline_data >= frame.length) {
        post_slot(&two.b, 1);
        end_send(&two.a, with_flags(send, IBV_SEND_SIGNALED | IBV_SEND_INLINE));
        end_expect_success(&two.a, SQ, 1, IBV_WC_SEND);
        expect_frame(&two.b, 1, &frame);
    }
    unsteer(&two.b, flow);
    two_close(&two);
}

static void a_receive_that_is_too_short_is_an_error_and_the_qp_goes_on(void **state)
{
    const struct bytes frame = a_frame(to_far, 9);
    struct ibv_flow *flow;
    struct two two;

    two_open(&two);
    flow = steer(&two.b, for_mac(to_far, 0));
    end_recv(&two.b, a_recv(&two.b, 5, 0, 99));
    post_slot(&two.b, 1);
    send_frame(&two.a, &frame);
    send_frame(&two.a, &frame);
    end_expect_status(&two.b, RQ, 5, IBV_WC_LOC_LEN_ERR);
    expect_frame(&two.b, 1, &frame);
    unsteer(&two.b, flow);
    two_close(&two);
}

static void a_frame_without_a_receive_is_lost(void **state)
{
    const struct bytes frame = a_frame(to_far, 9);
    struct ibv_flow *flow;
    struct end other;
    struct two two;

    two_open(&two);
    end_share(&other, &two.b);
    raw_to_rts(&other);
    flow = steer(&other, for_mac(to_far, 0));
    post_slot(&two.b, 0);
    send_frame(&two.a, &frame);
    expect_nothing_before(&two.a, &two.b, 0);
    post_slot(&other, 1);
    post_slot(&two.b, 2);
    expect_nothing_before(&two.a, &two.b, 2);
    unsteer(&other, flow);
    end_close_qp(&other);
    two_close(&two);
}

/* Many more bytes than a ring holds. */
static void frames_wait_for_a_process_that_does_not_read_for_a_moment(void **state)
{
    enum { FRAMES = 2000, LENGTH = 1000 };
    struct end_attr attr = raw_attr();
    struct bytes frame = a_frame(to_far, 1);
    struct ibv_flow *flow;
    struct end a, b;

    attr.cap.max_send_wr = attr.cap.max_recv_wr = FRAMES;
    attr.send_cqe = attr.recv_cqe = FRAMES;
    end_open(&a, NEAR, &attr);
    end_open(&b, FAR, &attr);
    raw_to_rts(&a);
    raw_to_rts(&b);
    flow = steer(&b, for_mac(to_far, 0));
    for (uint64_t i = 0; i < FRAMES; i++)
        end_recv(&b, a_recv(&b, i, 0, SLOT));
    frame.length = LENGTH;
    send_frame(&a, &frame); /* the two know each other */
    end_expect_success(&b, RQ, 0, IBV_WC_RECV);
    side_stop(FAR);
    for (uint64_t i = 1; i < FRAMES; i++)
        end_send(&a, i + 1 == FRAMES ? a_send(&a, i, 0, LENGTH) : unsignaled(a_send(&a, i, 0, LENGTH)));
    side_continue(FAR);
    end_expect_success(&a, SQ, FRAMES - 1, IBV_WC_SEND);
    for (uint64_t i = 1; i < FRAMES; i++)
        assert_int_equal(end_expect_success(&b, RQ, i, IBV_WC_RECV).byte_len, LENGTH);
    unsteer(&b, flow);
    end_close(&b);
    end_close(&a);
}

static void a_sender_receives_its_own_frames_by_its_own_rules(void **state)
{
    const struct bytes frame = a_frame(to_far, 9);
    struct ibv_flow *flow;
    struct end end;

    open_raw(&end, NEAR);
    flow = steer(&end, for_mac(to_far, 0));
    post_slot(&end, 1);
    send_frame(&end, &frame);
    expect_frame(&end, 1, &frame);
    unsteer(&end, flow);
    end_close(&end);
}

static void a_tag_is_read_with_the_completion(void **state)
{
    const struct bytes frame = a_frame(to_far, 1);
    struct ibv_flow *flow;
    struct stand stand;
    struct ibv_qp *qp;

    stand_open(&stand);
    qp = qp_with_flags(&stand, 0);
    flow = flow_on(qp, with_tag(for_mac(to_far, 0), 0xabcdef12));
    post_on(qp, &stand, 1);
    send_frame(&stand.end, &frame);
    assert_int_equal(next_seen(&stand).tag, 0xabcdef12);
    CHECK_ZERO(ibv_destroy_flow(flow));
    CHECK_ZERO(ibv_destroy_qp(qp));
    stand_close(&stand);
}

static void a_qp_strips_and_scatters_as_it_was_made(void **state)
{
    const struct bytes plain = a_frame(to_far, 1), frame = tagged(plain, 0xa123);
    static const uint32_t flags[] = {0, IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_SCATTER_FCS,
                                     IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SCATTER_FCS |
                                         IBV_QP_CREATE_PCI_WRITE_END_PADDING};
    const struct bytes expected[] = {frame, plain, with_fcs(frame, &frame), with_fcs(plain, &frame)};
    struct stand stand;

    stand_open(&stand);
    for (size_t i = 0; i < COUNT(flags); i++) {
        struct ibv_qp *qp = qp_with_flags(&stand, flags[i]);
        struct ibv_flow *flow = flow_on(qp, for_mac(to_far, 0));
        struct seen seen;

        post_on(qp, &stand, i + 1);
        send_frame(&stand.end, &frame);
        seen = next_seen(&stand);
        assert_int_equal(seen.length, expected[i].length);
        assert_int_equal(seen.vlan, i & 1 ? 0xa123 : 0);
        assert_int_equal(seen.qp_num, qp->qp_num);
        expect_bytes(&stand.end, i + 1, &expected[i]);
        CHECK_ZERO(ibv_destroy_flow(flow));
        CHECK_ZERO(ibv_destroy_qp(qp));
    }
    stand_close(&stand);
}

static void post_frame(struct ibv_qp *qp, struct stand *stand, const struct bytes *frame, uint64_t id)
{
    struct send send = a_send(&stand->end, id, 0, frame->length);
    struct ibv_send_wr *bad;

    end_poke(&stand->end, 0, frame->at, frame->length);
    send.wr.sg_list = send.sge;
    CHECK_ZERO(ibv_post_send(qp, &send.wr, &bad));
}

/* The completion of a send says nothing of when its frame comes back. */
static void own_multicast_frames_stay_away_where_that_was_asked_for(void **state)
{
    const struct bytes frame = a_frame(to_group, 1), marker = a_frame(to_marker, 2);

    for (unsigned int blocked = 0; blocked < 2; blocked++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
        struct ibv_flow *flow, *marked;
        struct stand stand;
        struct ibv_qp *qp;
        unsigned int frames = 0;

        stand_open(&stand);
        qp = qp_with_flags(&stand, blocked ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0);
        CHECK_ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
        flow = flow_on(qp, for_mac(to_group, 0));
        marked = flow_on(qp, with_tag(for_mac(to_marker, 0), 5));
        post_on(qp, &stand, 1);
        post_on(qp, &stand, 2);
        post_frame(qp, &stand, &frame, 8);
        while (next_seen(&stand).id != 8)
            frames++;
        post_frame(qp, &stand, &marker, 9);
        for (bool sent = false, came = false; !sent || !came;) {
            const struct seen seen = next_seen(&stand);

            sent |= seen.id == 9;
            came |= seen.id != 9 && seen.tag == 5;
            frames += seen.id != 9 && seen.tag != 5;
        }
        assert_int_equal(frames, !blocked);
        CHECK_ZERO(ibv_destroy_flow(flow));
        CHECK_ZERO(ibv_destroy_flow(marked));
        CHECK_ZERO(ibv_destroy_qp(qp));
        stand_close(&stand);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_raw_qp_takes_a_port_and_nothing_else),
        TEST(a_raw_qp_sends_and_does_nothing_else),
        TEST(a_raw_qp_has_no_srq),
        TEST(the_device_says_what_there_is),
        TEST(only_what_a_rule_names_is_received),
        TEST(a_short_frame_is_padded_and_one_without_a_header_is_an_error),
        TEST(a_frame_that_is_too_long_is_an_error),
        TEST(gathered_and_inline_frames_arrive_whole),
        TEST(a_receive_that_is_too_short_is_an_error_and_the_qp_goes_on),
        TEST(a_frame_without_a_receive_is_lost),
        TEST_WITH(frames_wait_for_a_process_that_does_not_read_for_a_moment, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST(a_sender_receives_its_own_frames_by_its_own_rules),
        TEST(a_tag_is_read_with_the_completion),
        TEST(a_qp_strips_and_scatters_as_it_was_made),
        TEST(own_multicast_frames_stay_away_where_that_was_asked_for),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
