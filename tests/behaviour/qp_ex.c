/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.8 and §3.9: posting through ibv_wr_…(). */
#include "work.h"

#include <arpa/inet.h>

static const uint64_t rc_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                               IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                               IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                               IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
                               IBV_QP_EX_WITH_SEND_WITH_INV;

static void connect_ex(struct pair *p, enum ibv_qp_type type)
{
    const struct end_attr attr_b = attr_of(type);
    struct end_attr attr_a = attr_b;

    attr_a.send_ops = rc_ops;
    if (type != IBV_QPT_RC)
        attr_a.send_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (type == IBV_QPT_UC)
        attr_a.send_ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    attr_a.mr_access |= IBV_ACCESS_MW_BIND;
    pair_open(p, &attr_a, &attr_b);
    end_connect(&p->a, &p->b);
}

static void set_buffer(struct pair *p, size_t offset, size_t length)
{
    ibv_wr_set_sge(p->a.qpx, p->a.lkey, (uintptr_t)p->a.buf + offset, (uint32_t)length);
}

static uint64_t at_b(const struct pair *p, size_t offset)
{
    return (uintptr_t)p->b.buf + offset;
}

static void every_builder_does_what_its_opcode_does(void **state)
{
    struct ibv_wc wc;
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    end_fill(&p.a, 0, 1000, 1);

    end_recv(&p.b, a_recv(&p.b, 1, 0, 1000));
    ibv_wr_send(begin_signaled(&p.a, 1));
    set_buffer(&p, 0, 1000);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, 1000);
    end_expect_data(&p.b, 0, 1000, 1);

    end_recv(&p.b, a_recv(&p.b, 2, 0, 1000));
    ibv_wr_send_imm(begin_signaled(&p.a, 2), htonl(22));
    set_buffer(&p, 0, 10);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    wc = end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
    assert_int_equal(wc.imm_data, htonl(22));
    assert_true(wc.wc_flags & IBV_WC_WITH_IMM);

    ibv_wr_rdma_write(begin_signaled(&p.a, 3), p.b.rkey, at_b(&p, 4096));
    set_buffer(&p, 0, 1000);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 4096, 1000, 1);

    end_recv(&p.b, a_recv(&p.b, 4, 0, 0));
    ibv_wr_rdma_write_imm(begin_signaled(&p.a, 4), p.b.rkey, at_b(&p, 8192), htonl(44));
    set_buffer(&p, 0, 1000);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 4, IBV_WC_RDMA_WRITE);
    assert_int_equal(end_expect_success(&p.b, RQ, 4, IBV_WC_RECV_RDMA_WITH_IMM).imm_data, htonl(44));
    end_expect_data(&p.b, 8192, 1000, 1);

    ibv_wr_rdma_read(begin_signaled(&p.a, 5), p.b.rkey, at_b(&p, 4096));
    set_buffer(&p, 16384, 1000);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 5, IBV_WC_RDMA_READ);
    end_expect_data(&p.a, 16384, 1000, 1);

    end_poke64(&p.b, 0, 100);
    ibv_wr_atomic_fetch_add(begin_signaled(&p.a, 6), p.b.rkey, at_b(&p, 0), 11);
    set_buffer(&p, 2000, 8);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 6, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(&p.a, 2000), 100);

    ibv_wr_atomic_cmp_swp(begin_signaled(&p.a, 7), p.b.rkey, at_b(&p, 0), 111, 5);
    set_buffer(&p, 2000, 8);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 7, IBV_WC_COMP_SWAP);
    assert_int_equal(end_peek64(&p.a, 2000), 111);
    assert_int_equal(end_peek64(&p.b, 0), 5);
    pair_close(&p);
}

static void windows_are_bound_and_invalidated(void **state)
{
    struct ibv_mw_bind_info info = {.length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_mw *mw;
    struct send send;
    uint32_t rkey;
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    mw = ibv_alloc_mw(p.a.pd, IBV_MW_TYPE_2);
    assert_non_null(mw);
    rkey = ibv_inc_rkey(mw->rkey);
    info.mr = p.a.mr;
    info.addr = (uintptr_t)p.a.buf;
    ibv_wr_bind_mw(begin_signaled(&p.a, 1), mw, rkey, &info);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 1, IBV_WC_BIND_MW);
    send = a_write(&p.b, 2, 0, 64, &p.a, 0);
    send.wr.wr.rdma.rkey = rkey;
    end_send(&p.b, send);
    end_expect_success(&p.b, SQ, 2, IBV_WC_RDMA_WRITE);
    ibv_wr_local_inv(begin_signaled(&p.a, 3), rkey);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 3, IBV_WC_LOCAL_INV);
    end_send(&p.b, send);
    end_expect_status(&p.b, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(ibv_dealloc_mw(mw), 0);
    pair_close(&p);
}

/* §3.9 */
static void atomic_write_stores_8_aligned_bytes_at_once(void **state)
{
    const struct end_attr attr_b = attr_of(IBV_QPT_RC);
    struct end_attr attr_a = attr_b;
    uint64_t value = 0x1122334455667788;
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_RC,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE};
    struct pair p;

    end_open(&p.a, NEAR, &attr_a);
    init.pd = p.a.pd;
    init.send_cq = init.recv_cq = p.a.send_cq;
    init.cap = p.a.attr.cap;
    {
        struct ibv_qp *probe = ibv_create_qp_ex(p.a.context, &init);

        if (!probe && errno == EOPNOTSUPP)
            skip_because("no atomic writes");
        assert_non_null(probe);
        assert_int_equal(ibv_destroy_qp(probe), 0);
    }
    end_close(&p.a);
    attr_a.send_ops = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_SEND;
    pair_open(&p, &attr_a, &attr_b);
    end_connect(&p.a, &p.b);
    ibv_wr_atomic_write(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 64), &value);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    value = 0; /* copied in the call */
    end_expect_success(&p.a, SQ, 1, IBV_WC_ATOMIC_WRITE);
    assert_int_equal(end_peek64(&p.b, 64), 0x1122334455667788);
    ibv_wr_atomic_write(begin_signaled(&p.a, 2), p.b.rkey, at_b(&p, 68), &value);
    if (ibv_wr_complete(p.a.qpx) == 0)
        end_expect_status(&p.a, SQ, 2, IBV_WC_REM_INV_REQ_ERR);
    assert_int_equal(end_peek64(&p.b, 64), 0x1122334455667788);
    pair_close(&p);
}

static void every_data_setter_gathers(void **state)
{
    struct ibv_data_buf bufs[3];
    struct ibv_sge sges[3];
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    end_fill(&p.a, 0, 3000, 1);

    sges[0] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf, .length = 1, .lkey = p.a.lkey};
    sges[1] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + 1, .length = 999, .lkey = p.a.lkey};
    sges[2] = (struct ibv_sge){.addr = (uintptr_t)p.a.buf + 1000, .length = 2000, .lkey = p.a.lkey};
    ibv_wr_rdma_write(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0));
    ibv_wr_set_sge_list(p.a.qpx, 3, sges);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 0, 3000, 1);

    ibv_wr_rdma_write(begin_signaled(&p.a, 2), p.b.rkey, at_b(&p, 4096));
    p.a.qpx->wr_flags |= IBV_SEND_INLINE;
    ibv_wr_set_inline_data(p.a.qpx, p.a.buf, 60);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 4096, 60, 1);

    bufs[0] = (struct ibv_data_buf){p.a.buf, 8};
    bufs[1] = (struct ibv_data_buf){p.a.buf + 8, 3};
    bufs[2] = (struct ibv_data_buf){p.a.buf + 11, 30};
    ibv_wr_rdma_write(begin_signaled(&p.a, 3), p.b.rkey, at_b(&p, 8192));
    ibv_wr_set_inline_data_list(p.a.qpx, 3, bufs);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 8192, 41, 1);
    pair_close(&p);
}

static void inline_setters_copy_in_the_call(void **state)
{
    uint64_t value;
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    begin_signaled(&p.a, 1);
    for (uint64_t i = 0; i < 5; i++) {
        value = 500 + i;
        ibv_wr_rdma_write(p.a.qpx, p.b.rkey, at_b(&p, i * 8));
        ibv_wr_set_inline_data(p.a.qpx, &value, sizeof value);
        value = 0;
    }
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    for (unsigned int i = 0; i < 5; i++)
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(end_peek64(&p.b, i * 8), 500 + i);
    pair_close(&p);
}

static void a_builder_without_a_setter_sends_nothing(void **state)
{
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 100));
    ibv_wr_send(begin_signaled(&p.a, 1));
    ibv_wr_set_sge_list(p.a.qpx, 0, NULL);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, 0);
    pair_close(&p);
}

static void id_and_flags_are_sampled_at_the_builder_and_flags_persist(void **state)
{
    struct ibv_wc wc[2];
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    begin_signaled(&p.a, 10);
    ibv_wr_rdma_write(p.a.qpx, p.b.rkey, at_b(&p, 0));
    p.a.qpx->wr_id = 11; /* too late for the first */
    set_buffer(&p, 0, 8);
    ibv_wr_rdma_write(p.a.qpx, p.b.rkey, at_b(&p, 0)); /* signaled as well */
    set_buffer(&p, 0, 8);
    p.a.qpx->wr_id = 12;
    p.a.qpx->wr_flags = 0;
    ibv_wr_rdma_write(p.a.qpx, p.b.rkey, at_b(&p, 0));
    set_buffer(&p, 0, 8);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_poll(&p.a, SQ, wc, 2);
    check_success(&wc[0], 10, IBV_WC_RDMA_WRITE);
    check_success(&wc[1], 11, IBV_WC_RDMA_WRITE);
    pair_marker(&p.a, &p.b); /* and no completion of the third before it */
    pair_close(&p);
}

static void a_batch_is_posted_whole_and_in_order(void **state)
{
    struct ibv_wc wc[30];
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 30; i++) {
        end_recv(&p.b, a_recv(&p.b, i, i * 64, 64));
        end_fill(&p.a, i * 64, 64, i);
    }
    begin_signaled(&p.a, 0);
    for (unsigned int i = 0; i < 30; i++) {
        p.a.qpx->wr_id = i;
        ibv_wr_send(p.a.qpx);
        set_buffer(&p, i * 64, 64);
    }
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_poll(&p.a, SQ, wc, 30);
    end_poll(&p.b, RQ, wc, 30);
    for (unsigned int i = 0; i < 30; i++) {
        check_success(&wc[i], i, IBV_WC_RECV);
        end_expect_data(&p.b, i * 64, 64, i);
    }
    pair_close(&p);
}

static void abort_discards_the_batch_and_leaves_the_section(void **state)
{
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 200; i++) { /* more than the queue holds: no slot is lost */
        begin_signaled(&p.a, i);
        ibv_wr_send(p.a.qpx);
        set_buffer(&p, 0, 8);
        ibv_wr_abort(p.a.qpx);
    }
    pair_marker(&p.a, &p.b); /* the first that arrives, and through ibv_post_send */
    pair_close(&p);
}

/* Every failure: nothing of the batch is posted, and the next batch works. */
static void batch_fails(struct pair *p, int error)
{
    const int got = ibv_wr_complete(p->a.qpx);

    CHECK(got == error, "ibv_wr_complete: %d instead of %d", got, error);
    pair_marker(&p->a, &p->b);
}

static void a_batch_with_a_mistake_posts_nothing(void **state)
{
    struct ibv_sge sges[40] = {0};
    uint8_t bytes[8192] = {0};
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    /* too many SGEs */
    ibv_wr_send(begin_signaled(&p.a, 1));
    set_buffer(&p, 0, 8);
    ibv_wr_send(p.a.qpx);
    ibv_wr_set_sge_list(p.a.qpx, p.a.attr.cap.max_send_sge + 1, sges);
    ibv_wr_send(p.a.qpx);
    set_buffer(&p, 0, 8);
    batch_fails(&p, EINVAL);
    /* inline too long */
    assert_true(p.a.attr.cap.max_inline_data < sizeof bytes);
    ibv_wr_send(begin_signaled(&p.a, 1));
    set_buffer(&p, 0, 8);
    ibv_wr_send(p.a.qpx);
    ibv_wr_set_inline_data(p.a.qpx, bytes, p.a.attr.cap.max_inline_data + 1);
    batch_fails(&p, ENOSPC);
    /* more than the queue holds */
    begin_signaled(&p.a, 1);
    for (unsigned int i = 0; i <= p.a.attr.cap.max_send_wr; i++) {
        ibv_wr_rdma_write(p.a.qpx, p.b.rkey, at_b(&p, 0));
        set_buffer(&p, 0, 8);
    }
    batch_fails(&p, ENOMEM);
    pair_close(&p);
}

static void the_whole_queue_fits_in_a_batch(void **state)
{
    struct ibv_wc wc;
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    for (unsigned int round = 0; round < 3; round++) {
        begin_signaled(&p.a, 1);
        for (unsigned int i = 0; i < p.a.attr.cap.max_send_wr; i++) {
            p.a.qpx->wr_flags = i + 1 == p.a.attr.cap.max_send_wr ? IBV_SEND_SIGNALED : 0;
            ibv_wr_rdma_write(p.a.qpx, p.b.rkey, at_b(&p, 0));
            set_buffer(&p, 0, 8);
        }
        assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
        end_poll(&p.a, SQ, &wc, 1);
    }
    pair_close(&p);
}

static void complete_in_reset_is_einval(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.send_ops = rc_ops;
    end_open(&p.a, NEAR, &attr);
    ibv_wr_send(begin_signaled(&p.a, 1));
    set_buffer(&p, 0, 8);
    assert_int_equal(ibv_wr_complete(p.a.qpx), EINVAL);
    end_to_init(&p.a);
    ibv_wr_send(begin_signaled(&p.a, 1));
    set_buffer(&p, 0, 8);
    assert_int_equal(ibv_wr_complete(p.a.qpx), EINVAL);
    end_close(&p.a);
}

static void complete_in_error_posts_and_flushes(void **state)
{
    struct pair p;

    connect_ex(&p, IBV_QPT_RC);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    ibv_wr_send(begin_signaled(&p.a, 1));
    set_buffer(&p, 0, 8);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_status(&p.a, SQ, 1, IBV_WC_WR_FLUSH_ERR);
    pair_close(&p);
}

static void uc_and_ud_have_their_builders(void **state)
{
    struct ibv_wc wc;
    struct pair p;

    connect_ex(&p, IBV_QPT_UC);
    end_fill(&p.a, 0, 500, 1);
    ibv_wr_rdma_write(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0));
    set_buffer(&p, 0, 500);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    pair_marker(&p.a, &p.b);
    end_expect_data(&p.b, 0, 500, 1);
    pair_close(&p);

    connect_ex(&p, IBV_QPT_UD);
    end_fill(&p.a, 0, 500, 2);
    for (unsigned int i = 0; i < 2; i++) { /* the setters in either order */
        end_recv(&p.b, a_recv(&p.b, i, 0, 1000));
        ibv_wr_send_imm(begin_signaled(&p.a, i), htonl(3));
        if (i)
            set_buffer(&p, 0, 500);
        ibv_wr_set_ud_addr(p.a.qpx, p.a.ah, p.b.qp_num, p.b.attr.qkey);
        if (!i)
            set_buffer(&p, 0, 500);
        assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        wc = end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        assert_int_equal(wc.byte_len, 540);
        assert_int_equal(wc.imm_data, htonl(3));
        end_expect_data(&p.b, 40, 500, 2);
    }
    pair_close(&p);
}

static void send_inv_invalidates_the_window_of_the_peer(void **state)
{
    struct ibv_wc wc;
    struct pair p;

    /* a plain MR cannot be invalidated: the request is refused, and only that is looked at here; mw.c has the
     * rest */
    connect_ex(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    ibv_wr_send_inv(begin_signaled(&p.a, 1), p.b.rkey);
    set_buffer(&p, 0, 64);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_poll(&p.a, SQ, &wc, 1);
    assert_int_not_equal(wc.status, IBV_WC_SUCCESS);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(every_builder_does_what_its_opcode_does),
        TEST(windows_are_bound_and_invalidated),
        TEST(atomic_write_stores_8_aligned_bytes_at_once),
        TEST(every_data_setter_gathers),
        TEST(inline_setters_copy_in_the_call),
        TEST(a_builder_without_a_setter_sends_nothing),
        TEST(id_and_flags_are_sampled_at_the_builder_and_flags_persist),
        TEST(a_batch_is_posted_whole_and_in_order),
        TEST(abort_discards_the_batch_and_leaves_the_section),
        TEST(a_batch_with_a_mistake_posts_nothing),
        TEST(the_whole_queue_fits_in_a_batch),
        TEST(complete_in_reset_is_einval),
        TEST(complete_in_error_posts_and_flushes),
        TEST(uc_and_ud_have_their_builders),
        TEST(send_inv_invalidates_the_window_of_the_peer),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
