/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.1 to §3.4, §3.7 and §3.13: what can be posted, what is refused at once, when slots are
 * free again. */
#include "work.h"

static void try_one(struct end *end, struct send send, int error)
{
    unsigned int posted = 99;
    const int got = end_try_send(end, &send, 1, &posted);

    CHECK(got == error, "posting opcode %d on type %d: %d instead of %d", send.wr.opcode, end->attr.type, got,
          error);
    if (error)
        assert_int_equal(posted, 0);
}

static void opcodes_that_the_type_lacks_are_einval(void **state)
{
    const struct {
        enum ibv_qp_type type;
        enum ibv_wr_opcode opcode;
    } refused[] = {
        {IBV_QPT_UD, IBV_WR_RDMA_WRITE},
        {IBV_QPT_UD, IBV_WR_RDMA_WRITE_WITH_IMM},
        {IBV_QPT_UD, IBV_WR_RDMA_READ},
        {IBV_QPT_UD, IBV_WR_ATOMIC_CMP_AND_SWP},
        {IBV_QPT_UD, IBV_WR_ATOMIC_FETCH_AND_ADD},
        {IBV_QPT_UD, IBV_WR_SEND_WITH_INV},
        {IBV_QPT_UD, IBV_WR_LOCAL_INV},
        {IBV_QPT_UD, IBV_WR_BIND_MW},
        {IBV_QPT_UC, IBV_WR_RDMA_READ},
        {IBV_QPT_UC, IBV_WR_ATOMIC_CMP_AND_SWP},
        {IBV_QPT_UC, IBV_WR_ATOMIC_FETCH_AND_ADD},
        {IBV_QPT_UC, IBV_WR_TSO},
        {IBV_QPT_RC, IBV_WR_TSO},
        {IBV_QPT_RC, IBV_WR_DRIVER1},
        {IBV_QPT_UC, IBV_WR_DRIVER1},
        {IBV_QPT_UD, IBV_WR_DRIVER1},
        {IBV_QPT_RC, (enum ibv_wr_opcode)200},
    };

    for (size_t i = 0; i < COUNT(refused); i++) {
        struct send send;
        struct pair p;

        pair_connect(&p, refused[i].type);
        send = refused[i].type == IBV_QPT_UD ? a_datagram(&p.a, 1, 0, 8, &p.b) : a_send(&p.a, 1, 0, 8);
        send.wr.opcode = refused[i].opcode;
        try_one(&p.a, send, EINVAL);
        assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
        pair_marker(&p.a, &p.b);
        pair_close(&p);
    }
}

static void too_many_sges_are_einval(void **state)
{
    struct ibv_sge sge[40] = {0};
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .sg_list = sge}, *bad_send = NULL;
    struct ibv_recv_wr recv = {.sg_list = sge}, *bad_recv = NULL;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    send.num_sge = (int)p.a.attr.cap.max_send_sge + 1;
    recv.num_sge = (int)p.a.attr.cap.max_recv_sge + 1;
    assert_int_equal(ibv_post_send(p.a.qp, &send, &bad_send), EINVAL);
    assert_ptr_equal(bad_send, &send);
    assert_int_equal(ibv_post_recv(p.a.qp, &recv, &bad_recv), EINVAL);
    assert_ptr_equal(bad_recv, &recv);
    send.num_sge = recv.num_sge = -1;
    assert_int_equal(ibv_post_send(p.a.qp, &send, &bad_send), EINVAL);
    assert_int_equal(ibv_post_recv(p.a.qp, &recv, &bad_recv), EINVAL);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void inline_longer_than_granted_is_einval(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    send = with_flags(a_send(&p.a, 1, 0, p.a.attr.cap.max_inline_data + 1), IBV_SEND_INLINE);
    try_one(&p.a, send, EINVAL);
    send = with_flags(a_send(&p.a, 2, 0, p.a.attr.cap.max_inline_data), IBV_SEND_INLINE);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 4096));
    try_one(&p.a, send, 0);
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    pair_close(&p);
}

static void inline_reads_and_atomics_are_einval(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    try_one(&p.a, with_flags(a_read(&p.a, 1, 0, 8, &p.b, 0), IBV_SEND_INLINE), EINVAL);
    try_one(&p.a, with_flags(a_fetch_add(&p.a, 1, 0, &p.b, 0, 1), IBV_SEND_INLINE), EINVAL);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void atomics_that_are_short_or_misaligned_are_einval(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    send = a_fetch_add(&p.a, 1, 0, &p.b, 0, 1);
    send.sge[0].length = 4;
    try_one(&p.a, send, EINVAL);
    try_one(&p.a, a_fetch_add(&p.a, 1, 0, &p.b, 4, 1), EINVAL);
    try_one(&p.a, a_cas(&p.a, 1, 0, &p.b, 1, 0, 1), EINVAL);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void ip_checksum_offload_is_einval_without_the_capability(void **state)
{
    struct ibv_device_attr device;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    assert_int_equal(ibv_query_device(p.a.context, &device), 0);
    if (!(device.device_cap_flags & IBV_DEVICE_UD_IP_CSUM))
        try_one(&p.a, with_flags(a_datagram(&p.a, 1, 0, 8, &p.b), IBV_SEND_IP_CSUM), EINVAL);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void ud_without_an_address_handle_fails(void **state)
{
    struct send send;
    struct pair p;
    int error;

    pair_connect(&p, IBV_QPT_UD);
    send = a_datagram(&p.a, 1, 0, 8, &p.b);
    send.wr.wr.ud.ah = NULL;
    error = end_try_send(&p.a, &send, 1, NULL);
    assert_true(error == 0 || error == EINVAL);
    if (!error)
        end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_QP_OP_ERR);
    pair_close(&p);
}

static void ud_with_an_address_handle_of_another_pd_fails(void **state)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = TEST_PORT};
    struct ibv_pd *pd;
    struct send send;
    struct pair p;
    int error;

    pair_connect(&p, IBV_QPT_UD);
    pd = ibv_alloc_pd(p.a.context);
    attr.grh.dgid = p.b.gid;
    send = a_datagram(&p.a, 1, 0, 8, &p.b);
    send.wr.wr.ud.ah = ibv_create_ah(pd, &attr);
    assert_non_null(send.wr.wr.ud.ah);
    error = end_try_send(&p.a, &send, 1, NULL);
    assert_true(error == 0 || error == EINVAL);
    if (!error)
        end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_QP_OP_ERR);
    assert_int_equal(ibv_destroy_ah(send.wr.wr.ud.ah), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    pair_close(&p);
}

static void requests_before_the_bad_one_stay_posted(void **state)
{
    struct send sends[4];
    struct recv recvs[3];
    struct ibv_wc wc[2];
    unsigned int posted;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 3; i++)
        recvs[i] = a_recv(&p.b, i, i * 64, 64);
    recvs[2].wr.num_sge = -1;
    assert_int_equal(end_try_recv(&p.b, recvs, 3, &posted), EINVAL);
    assert_int_equal(posted, 2);
    for (unsigned int i = 0; i < 4; i++)
        sends[i] = a_send(&p.a, i, 0, 64);
    sends[2].wr.opcode = IBV_WR_TSO;
    assert_int_equal(end_try_send(&p.a, sends, 4, &posted), EINVAL);
    assert_int_equal(posted, 2);
    end_poll(&p.a, SQ, wc, 2);
    check_success(&wc[0], 0, IBV_WC_SEND);
    check_success(&wc[1], 1, IBV_WC_SEND);
    end_poll(&p.b, RQ, wc, 2);
    check_success(&wc[1], 1, IBV_WC_RECV);
    pair_marker(&p.a, &p.b); /* neither the bad one nor its successor came */
    pair_close(&p);
}

static void an_empty_list_is_accepted(void **state)
{
    struct ibv_send_wr *bad_send;
    struct ibv_recv_wr *bad_recv;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    assert_int_equal(ibv_post_send(p.a.qp, NULL, &bad_send), 0);
    assert_int_equal(ibv_post_recv(p.a.qp, NULL, &bad_recv), 0);
    pair_close(&p);
}

static void success_does_not_write_bad_wr(void **state)
{
    struct ibv_send_wr send = {.opcode = IBV_WR_RDMA_WRITE}, *bad_send = NULL;
    struct ibv_recv_wr recv = {0}, *bad_recv = NULL;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    bad_send = NULL;
    bad_recv = NULL;
    assert_int_equal(ibv_post_send(p.a.qp, &send, &bad_send), 0);
    assert_int_equal(ibv_post_recv(p.a.qp, &recv, &bad_recv), 0);
    assert_null(bad_send);
    assert_null(bad_recv);
    pair_close(&p);
}

static void exactly_the_granted_depth_can_be_posted(void **state)
{
    struct ibv_wc wc[8];
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct send send;
    struct recv recv;
    struct pair p;

    attr.cap.max_send_wr = attr.cap.max_recv_wr = 5;
    attr.send_cqe = attr.recv_cqe = 4096;
    pair_connect_as(&p, &attr);
    recv = a_recv(&p.a, 1, 0, 8);
    for (unsigned int i = 0; i < p.a.attr.cap.max_recv_wr; i++)
        assert_int_equal(end_try_recv(&p.a, &recv, 1, NULL), 0);
    assert_int_equal(end_try_recv(&p.a, &recv, 1, NULL), ENOMEM);
    send = a_write(&p.a, 1, 0, 8, &p.b, 0);
    for (unsigned int i = 0; i < p.a.attr.cap.max_send_wr; i++)
        assert_int_equal(end_try_send(&p.a, &send, 1, NULL), 0);
    assert_int_equal(end_try_send(&p.a, &send, 1, NULL), ENOMEM);
    end_poll(&p.a, SQ, wc, 1);
    assert_int_equal(end_try_send(&p.a, &send, 1, NULL), 0);
    assert_int_equal(end_try_send(&p.a, &send, 1, NULL), ENOMEM);
    pair_close(&p);
}

/* §3.7 */

static void a_slot_is_free_when_its_completion_is_polled_not_when_it_is_made(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc;
    struct pair p;

    attr.cap.max_send_wr = 4;
    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < p.a.attr.cap.max_send_wr; i++)
        end_send(&p.a, a_write(&p.a, i, 0, 8, &p.b, 0));
    /* all executed: b has seen a marker that the last write carries */
    end_poke64(&p.a, 0, 77);
    EVENTUALLY(end_poll_once(&p.a, SQ, &wc, 1) == 1, "the first completion");
    for (unsigned int i = 1; i < p.a.attr.cap.max_send_wr; i++) {
        const struct send send = a_write(&p.a, 100 + i, 0, 8, &p.b, 0);

        assert_int_equal(end_try_send(&p.a, &send, 1, NULL), 0);
        assert_int_equal(end_try_send(&p.a, &send, 1, NULL), ENOMEM);
        end_poll(&p.a, SQ, &wc, 1);
        check_success(&wc, i, IBV_WC_RDMA_WRITE);
    }
    pair_close(&p);
}

static void unsignaled_sends_free_their_slots_when_a_later_completion_is_polled(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    unsigned int depth;
    struct pair p;

    attr.cap.max_send_wr = 8;
    pair_connect_as(&p, &attr);
    depth = p.a.attr.cap.max_send_wr;
    for (unsigned int round = 0; round < 10; round++) {
        const struct send send = a_write(&p.a, 1000 + round, 0, 8, &p.b, 0);

        for (unsigned int i = 0; i < depth - 1; i++)
            end_send(&p.a, unsignaled(a_write(&p.a, i, 0, 8, &p.b, 0)));
        end_send(&p.a, send);
        assert_int_equal(end_try_send(&p.a, &send, 1, NULL), ENOMEM);
        end_expect_success(&p.a, SQ, 1000 + round, IBV_WC_RDMA_WRITE);
    }
    pair_close(&p);
}

static void a_queue_full_of_unsignaled_sends_stays_full(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc;
    struct send send;
    struct pair p;

    attr.cap.max_send_wr = 8;
    pair_connect_as(&p, &attr);
    send = unsignaled(a_write(&p.a, 1, 0, 8, &p.b, 0));
    end_poke64(&p.a, 0, 4711);
    for (unsigned int i = 0; i < p.a.attr.cap.max_send_wr; i++)
        end_send(&p.a, send);
    EVENTUALLY(end_peek64(&p.b, 0) == 4711, "the writes to arrive");
    assert_int_equal(end_poll_once(&p.a, SQ, &wc, 1), 0);
    assert_int_equal(end_try_send(&p.a, &send, 1, NULL), ENOMEM);
    pair_close(&p);
}

static void sq_sig_all_signals_every_send(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[10];
    struct pair p;

    attr.sq_sig_all = true;
    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < 10; i++)
        end_send(&p.a, unsignaled(a_write(&p.a, i, 0, 8, &p.b, 0)));
    end_poll(&p.a, SQ, wc, 10);
    for (unsigned int i = 0; i < 10; i++)
        check_success(&wc[i], i, IBV_WC_RDMA_WRITE);
    pair_close(&p);
}

static void receive_slots_are_free_again_when_completions_are_polled(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.cap.max_recv_wr = 4;
    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < p.b.attr.cap.max_recv_wr; i++)
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
    for (unsigned int i = 0; i < 100; i++) {
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        end_recv(&p.b, a_recv(&p.b, i + p.b.attr.cap.max_recv_wr, 0, 64));
    }
    pair_close(&p);
}

static void requests_may_be_reused_as_soon_as_post_returns(void **state)
{
    struct ibv_sge sge, rsge;
    struct ibv_send_wr send, *bad;
    struct ibv_recv_wr recv, *bad_recv;
    struct ibv_wc wc[8];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 8; i++) {
        rsge = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + 4096 + i * 64, .length = 64, .lkey = p.a.lkey};
        recv = (struct ibv_recv_wr){.wr_id = i, .sg_list = &rsge, .num_sge = 1};
        assert_int_equal(ibv_post_recv(p.a.qp, &recv, &bad_recv), 0);
        memset(&rsge, 0xee, sizeof rsge);
        memset(&recv, 0xee, sizeof recv);
        end_recv(&p.b, a_recv(&p.b, i, i * 64, 64));
        end_fill(&p.a, i * 64, 64, i);
        sge = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + i * 64, .length = 64, .lkey = p.a.lkey};
        send = (struct ibv_send_wr){.wr_id = i,
                                    .sg_list = &sge,
                                    .num_sge = 1,
                                    .opcode = IBV_WR_SEND,
                                    .send_flags = IBV_SEND_SIGNALED};
        assert_int_equal(ibv_post_send(p.a.qp, &send, &bad), 0);
        memset(&sge, 0xee, sizeof sge);
        memset(&send, 0xee, sizeof send);
    }
    end_poll(&p.a, SQ, wc, 8);
    end_poll(&p.b, RQ, wc, 8);
    for (unsigned int i = 0; i < 8; i++) {
        end_expect_data(&p.b, i * 64, 64, i);
        end_send(&p.b, a_send(&p.b, i, i * 64, 64));
    }
    end_poll(&p.a, RQ, wc, 8);
    for (unsigned int i = 0; i < 8; i++) {
        check_success(&wc[i], i, IBV_WC_RECV);
        end_expect_data(&p.a, 4096 + i * 64, 64, i);
    }
    pair_close(&p);
}

static void inline_data_may_be_reused_as_soon_as_post_returns_and_needs_no_lkey(void **state)
{
    uint64_t value = 1;
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 32; i++) {
        value = 1000 + i;
        send = with_flags(a_write(&p.a, i, 0, 8, &p.b, i * 8ul), IBV_SEND_INLINE);
        send.sge[0].addr = (uintptr_t)&value; /* registered nowhere */
        send.sge[0].lkey = 0xdeadbeef;
        end_send(&p.a, send);
    }
    value = 0;
    for (unsigned int i = 0; i < 32; i++)
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
    for (unsigned int i = 0; i < 32; i++)
        assert_int_equal(end_peek64(&p.b, i * 8ul), 1000 + i);
    pair_close(&p);
}

static void an_inline_message_gathers_its_sges(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_fill(&p.a, 0, 30, 1);
    send = with_flags(a_send(&p.a, 1, 0, 10), IBV_SEND_INLINE);
    send.wr.num_sge = 3;
    send.sge[1] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + 10, .length = 3};
    send.sge[2] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + 13, .length = 17};
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    assert_int_equal(end_expect_success(&p.b, RQ, 2, IBV_WC_RECV).byte_len, 30);
    end_expect_data(&p.b, 0, 30, 1);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(opcodes_that_the_type_lacks_are_einval),
        TEST(too_many_sges_are_einval),
        TEST(inline_longer_than_granted_is_einval),
        TEST(inline_reads_and_atomics_are_einval),
        TEST(atomics_that_are_short_or_misaligned_are_einval),
        TEST(ip_checksum_offload_is_einval_without_the_capability),
        TEST(ud_without_an_address_handle_fails),
        TEST(ud_with_an_address_handle_of_another_pd_fails),
        TEST(requests_before_the_bad_one_stay_posted),
        TEST(an_empty_list_is_accepted),
        TEST(success_does_not_write_bad_wr),
        TEST(exactly_the_granted_depth_can_be_posted),
        TEST(a_slot_is_free_when_its_completion_is_polled_not_when_it_is_made),
        TEST(unsignaled_sends_free_their_slots_when_a_later_completion_is_polled),
        TEST(a_queue_full_of_unsignaled_sends_stays_full),
        TEST(sq_sig_all_signals_every_send),
        TEST(receive_slots_are_free_again_when_completions_are_polled),
        TEST(requests_may_be_reused_as_soon_as_post_returns),
        TEST(inline_data_may_be_reused_as_soon_as_post_returns_and_needs_no_lkey),
        TEST(an_inline_message_gathers_its_sges),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
