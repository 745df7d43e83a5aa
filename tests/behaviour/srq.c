/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §6.1 and §6.2: shared receive queues. b has the SRQ. */
#include "work.h"

static struct end_attr with_srq(enum ibv_qp_type type, uint32_t wrs)
{
    struct end_attr attr = attr_of(type);

    attr.srq_wr = wrs;
    return attr;
}

static void connect_srq(struct pair *p, enum ibv_qp_type type, uint32_t wrs)
{
    const struct end_attr attr_a = attr_of(type), attr_b = with_srq(type, wrs);

    pair_open(p, &attr_a, &attr_b);
    end_connect(&p->a, &p->b);
}

struct srq_state {
    struct ibv_srq_attr attr;
    int mask, result;
};

static void modify_here(struct end *end, void *arg)
{
    struct srq_state *srq = arg;

    srq->result = ibv_modify_srq(end->srq, &srq->attr, srq->mask);
}

static void query_here(struct end *end, void *arg)
{
    struct srq_state *srq = arg;

    srq->result = ibv_query_srq(end->srq, &srq->attr);
}

static void arm(struct end *end, uint32_t limit, int result)
{
    struct srq_state srq = {.attr = {.srq_limit = limit}, .mask = IBV_SRQ_LIMIT};

    AT(end, modify_here, &srq);
    assert_int_equal(srq.result, result);
}

static uint32_t armed(struct end *end)
{
    struct srq_state srq = {.result = -1};

    AT(end, query_here, &srq);
    assert_int_equal(srq.result, 0);
    return srq.attr.srq_limit;
}

static void receives_are_taken_in_post_order_by_whichever_qp_needs_one(void **state)
{
    struct pair p, q;

    connect_srq(&p, IBV_QPT_RC, 64);
    end_share(&q.a, &p.a);
    end_share(&q.b, &p.b);
    end_connect(&q.a, &q.b);
    for (unsigned int i = 0; i < 20; i++)
        end_recv(&p.b, a_recv(&p.b, i, i * 64, 64));
    for (unsigned int i = 0; i < 20; i++) {
        struct end *from = i % 3 ? &p.a : &q.a, *to = i % 3 ? &p.b : &q.b;

        end_fill(from, 0, 64, i);
        end_send(from, a_send(from, i, 0, 64));
        end_expect_success(to, RQ, i, IBV_WC_RECV); /* checks qp_num: the QP that took it */
        end_expect_success(from, SQ, i, IBV_WC_SEND);
        end_expect_data(&p.b, i * 64, 64, i);
    }
    end_close_qp(&q.a);
    end_close_qp(&q.b);
    pair_close(&p);
}

static void uc_and_ud_take_from_an_srq_too(void **state)
{
    struct pair p;

    connect_srq(&p, IBV_QPT_UC, 8);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
    connect_srq(&p, IBV_QPT_UD, 8);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void an_empty_srq_gives_rnr_and_a_later_receive_is_found(void **state)
{
    struct pair p;

    connect_srq(&p, IBV_QPT_RC, 8);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    pair_close(&p);
}

static void an_empty_srq_runs_rnr_retries_out(void **state)
{
    const struct end_attr attr_b = with_srq(IBV_QPT_RC, 8);
    struct end_attr attr_a = attr_of(IBV_QPT_RC);
    struct pair p;

    attr_a.rnr_retry = 1;
    pair_open(&p, &attr_a, &attr_b);
    end_connect(&p.a, &p.b);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    pair_close(&p);
}

static void write_with_immediate_takes_from_the_srq(void **state)
{
    struct send send;
    struct pair p;

    connect_srq(&p, IBV_QPT_RC, 8);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 0));
    send = a_write(&p.a, 1, 0, 64, &p.b, 0);
    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    end_send(&p.a, send);
    end_expect_success(&p.b, RQ, 2, IBV_WC_RECV_RDMA_WITH_IMM);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    pair_close(&p);
}

static void exactly_the_granted_depth_can_be_posted(void **state)
{
    struct srq_state srq = {.result = -1};
    struct recv recv;
    struct pair p;

    connect_srq(&p, IBV_QPT_RC, 10);
    AT(&p.b, query_here, &srq);
    recv = a_recv(&p.b, 1, 0, 8);
    for (unsigned int i = 0; i < srq.attr.max_wr; i++)
        assert_int_equal(end_try_recv(&p.b, &recv, 1, NULL), 0);
    assert_int_equal(end_try_recv(&p.b, &recv, 1, NULL), ENOMEM);
    end_send(&p.a, a_send(&p.a, 1, 0, 8));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    assert_int_equal(end_try_recv(&p.b, &recv, 1, NULL), 0);
    assert_int_equal(end_try_recv(&p.b, &recv, 1, NULL), ENOMEM);
    pair_close(&p);
}

static struct ibv_srq *make_srq(const struct end *end, uint32_t wrs)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = wrs, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(end->pd, &init);

    CHECK(srq, "ibv_create_srq: %s", strerror(errno));
    return srq;
}

static uint32_t granted(struct ibv_srq *srq)
{
    struct ibv_srq_attr attr;

    assert_int_equal(ibv_query_srq(srq, &attr), 0);
    return attr.max_wr;
}

/* Programs make both with the same number, and fill the SRQ with as many as it has. */
static void a_cq_of_as_many_entries_holds_the_completions_of_an_srq(void **state)
{
    const uint32_t sizes[] = {1, 2, 3, 4, 15, 16, 17, 1000, 4095, 4096, 4097};
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_srq_attr more = {0};
    struct end end;

    end_open(&end, NEAR, &attr);
    for (unsigned int i = 0; i < COUNT(sizes); i++) {
        struct ibv_cq *cq = ibv_create_cq(end.context, (int)sizes[i], NULL, NULL, 0);
        struct ibv_srq *srq = make_srq(&end, sizes[i]), *resized = make_srq(&end, 1);

        more.max_wr = sizes[i];
        CHECK_ZERO(ibv_modify_srq(resized, &more, IBV_SRQ_MAX_WR));
        CHECK(granted(srq) >= sizes[i] && granted(srq) <= (uint32_t)cq->cqe,
              "asked for %u: %u receives, %d completions", sizes[i], granted(srq), cq->cqe);
        assert_int_equal(granted(resized), granted(srq));
        CHECK_ZERO(ibv_destroy_srq(resized));
        CHECK_ZERO(ibv_destroy_srq(srq));
        CHECK_ZERO(ibv_destroy_cq(cq));
    }
    end_close(&end);
}

static void posting_obeys_the_bad_wr_rule(void **state)
{
    struct recv recvs[3];
    unsigned int posted;
    struct ibv_sge sge[40] = {0};
    struct ibv_recv_wr wr = {.sg_list = sge}, *bad = NULL;
    struct ibv_srq_attr attr;
    struct end_attr end_attr = with_srq(IBV_QPT_RC, 10);
    struct end end;

    end_open(&end, NEAR, &end_attr);
    assert_int_equal(ibv_query_srq(end.srq, &attr), 0);
    wr.num_sge = (int)attr.max_sge + 1;
    assert_int_equal(ibv_post_srq_recv(end.srq, &wr, &bad), EINVAL);
    assert_ptr_equal(bad, &wr);
    for (unsigned int i = 0; i < 3; i++)
        recvs[i] = a_recv(&end, i, 0, 8);
    recvs[1].wr.num_sge = -1;
    assert_int_equal(end_try_recv(&end, recvs, 3, &posted), EINVAL);
    assert_int_equal(posted, 1);
    end_close(&end);
}

static void posting_is_legal_while_the_qps_are_in_any_state(void **state)
{
    struct pair p;

    connect_srq(&p, IBV_QPT_RC, 10);
    CHECK_ZERO(end_to_state(&p.b, IBV_QPS_ERR));
    end_recv(&p.b, a_recv(&p.b, 1, 0, 8));
    CHECK_ZERO(end_to_state(&p.b, IBV_QPS_RESET));
    end_recv(&p.b, a_recv(&p.b, 2, 0, 8));
    pair_close(&p);
}

static void receives_survive_the_error_of_a_qp_and_serve_another(void **state)
{
    struct pair p, q;

    connect_srq(&p, IBV_QPT_RC, 8);
    end_share(&q.a, &p.a);
    end_share(&q.b, &p.b);
    end_connect(&q.a, &q.b);
    for (unsigned int i = 0; i < 4; i++)
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_success(&p.b, RQ, 0, IBV_WC_RECV);
    CHECK_ZERO(end_to_state(&p.b, IBV_QPS_ERR));
    end_expect_event(&p.b, IBV_EVENT_QP_LAST_WQE_REACHED);
    for (unsigned int i = 1; i < 4; i++) {
        end_send(&q.a, a_send(&q.a, i, 0, 64));
        end_expect_success(&q.b, RQ, i, IBV_WC_RECV);
    }
    end_close_qp(&q.a);
    end_close_qp(&q.b);
    pair_close(&p);
}

static void a_failed_receive_takes_the_qp_and_leaves_the_srq(void **state)
{
    struct pair p, q;

    connect_srq(&p, IBV_QPT_RC, 8);
    end_share(&q.a, &p.a);
    end_share(&q.b, &p.b);
    end_connect(&q.a, &q.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_send(&p.a, a_send(&p.a, 1, 0, 65));
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_LEN_ERR);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    end_expect_event(&p.b, IBV_EVENT_QP_LAST_WQE_REACHED);
    end_send(&q.a, a_send(&q.a, 1, 0, 64));
    end_expect_success(&q.b, RQ, 2, IBV_WC_RECV);
    end_close_qp(&q.a);
    end_close_qp(&q.b);
    pair_close(&p);
}

struct second_pd {
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

static void close_qp_of(struct end *end)
{
    CHECK_ZERO(ibv_destroy_qp(end->qp));
    end->qp = NULL;
}

/* A QP in another PD than its SRQ */
static void qp_in_second_pd(struct end *end, void *arg)
{
    struct second_pd *second = arg;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .cap = end->attr.cap,
    };

    close_qp_of(end);
    second->pd = ibv_alloc_pd(end->context);
    end->qp = ibv_create_qp(second->pd, &init);
    CHECK(end->qp, "ibv_create_qp: %s", strerror(errno));
    end->qp_num = end->qp->qp_num;
    second->mr =
        ibv_reg_mr(second->pd, end->buf, end->attr.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(second->mr, "ibv_reg_mr: %s", strerror(errno));
    end->rkey = second->mr->rkey;
}

static void drop_second_pd(struct end *end, void *arg)
{
    struct second_pd *second = arg;

    close_qp_of(end);
    CHECK_ZERO(ibv_dereg_mr(second->mr));
    CHECK_ZERO(ibv_dealloc_pd(second->pd));
}

static void receive_buffers_belong_to_the_srqs_pd_and_remote_keys_to_the_qps(void **state)
{
    const struct end_attr attr_a = attr_of(IBV_QPT_RC), attr_b = with_srq(IBV_QPT_RC, 8);
    struct second_pd second = {0};
    struct pair p;

    pair_open(&p, &attr_a, &attr_b);
    AT(&p.b, qp_in_second_pd, &second);
    end_connect(&p.a, &p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64)); /* lkey of the SRQ's PD */
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_send(&p.a, a_write(&p.a, 2, 0, 64, &p.b, 0)); /* rkey of the QP's PD */
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_WRITE);
    AT(&p.b, drop_second_pd, &second);
    pair_close(&p);
}

/* §6.2 */

static void the_limit_event_comes_once_when_fewer_are_posted_and_disarms(void **state)
{
    struct end_event event;
    struct pair p;

    connect_srq(&p, IBV_QPT_RC, 16);
    for (unsigned int i = 0; i < 10; i++)
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
    arm(&p.b, 7, 0);
    assert_int_equal(armed(&p.b), 7);
    for (unsigned int i = 0; i < 3; i++) {
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    }
    assert_int_equal(armed(&p.b), 7); /* 7 posted is not below 7 */
    for (unsigned int i = 3; i < 6; i++) {
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    }
    event = end_event(&p.b);
    assert_int_equal(event.type, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_true(event.of_srq);
    assert_int_equal(armed(&p.b), 0);
    /* once: the next event is another */
    CHECK_ZERO(end_to_state(&p.b, IBV_QPS_ERR));
    end_expect_event(&p.b, IBV_EVENT_QP_LAST_WQE_REACHED);
    pair_close(&p);
}

static void arming_a_limit_that_is_already_crossed_gives_the_event_at_once(void **state)
{
    const struct end_attr attr = with_srq(IBV_QPT_RC, 16);
    struct end end;

    end_open(&end, NEAR, &attr);
    end_recv(&end, a_recv(&end, 1, 0, 64));
    arm(&end, 2, 0);
    end_expect_event(&end, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_int_equal(armed(&end), 0);
    end_close(&end);
}

static void limit_0_disarms(void **state)
{
    struct pair p;

    connect_srq(&p, IBV_QPT_RC, 16);
    for (unsigned int i = 0; i < 3; i++)
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
    arm(&p.b, 3, 0);
    arm(&p.b, 0, 0);
    assert_int_equal(armed(&p.b), 0);
    for (unsigned int i = 0; i < 2; i++) {
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    }
    CHECK_ZERO(end_to_state(&p.b, IBV_QPS_ERR));
    end_expect_event(&p.b, IBV_EVENT_QP_LAST_WQE_REACHED);
    pair_close(&p);
}

static void modify_srq_refuses_bad_limits_and_bits(void **state)
{
    const struct end_attr attr = with_srq(IBV_QPT_RC, 16);
    struct srq_state srq = {.result = -1};
    struct end end;

    end_open(&end, NEAR, &attr);
    AT(&end, query_here, &srq);
    arm(&end, srq.attr.max_wr + 1, EINVAL);
    srq.mask = 1 << 5;
    AT(&end, modify_here, &srq);
    assert_int_equal(srq.result, EINVAL);
    assert_int_equal(armed(&end), 0);
    end_close(&end);
}

static void an_srq_can_be_resized_if_the_device_says_so(void **state)
{
    const struct end_attr attr = with_srq(IBV_QPT_RC, 16);
    struct srq_state srq = {.attr = {.max_wr = 1000}, .mask = IBV_SRQ_MAX_WR};
    struct ibv_device_attr device;
    struct end end;

    end_open(&end, NEAR, &attr);
    assert_int_equal(ibv_query_device(end.context, &device), 0);
    for (unsigned int i = 0; i < 10; i++)
        end_recv(&end, a_recv(&end, i, 0, 64));
    AT(&end, modify_here, &srq);
    if (!(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE)) {
        assert_true(srq.result == EINVAL || srq.result == EOPNOTSUPP);
    } else {
        assert_int_equal(srq.result, 0);
        AT(&end, query_here, &srq);
        assert_true(srq.attr.max_wr >= 1000);
        srq.attr.max_wr = 9; /* fewer than are posted */
        srq.mask = IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT;
        srq.attr.srq_limit = 5;
        AT(&end, modify_here, &srq);
        assert_int_equal(srq.result, EINVAL);
        assert_int_equal(armed(&end), 0); /* all or nothing */
    }
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(receives_are_taken_in_post_order_by_whichever_qp_needs_one),
        TEST(uc_and_ud_take_from_an_srq_too),
        TEST(an_empty_srq_gives_rnr_and_a_later_receive_is_found),
        TEST(an_empty_srq_runs_rnr_retries_out),
        TEST(write_with_immediate_takes_from_the_srq),
        TEST(exactly_the_granted_depth_can_be_posted),
        TEST(a_cq_of_as_many_entries_holds_the_completions_of_an_srq),
        TEST(posting_obeys_the_bad_wr_rule),
        TEST(posting_is_legal_while_the_qps_are_in_any_state),
        TEST(receives_survive_the_error_of_a_qp_and_serve_another),
        TEST(a_failed_receive_takes_the_qp_and_leaves_the_srq),
        TEST(receive_buffers_belong_to_the_srqs_pd_and_remote_keys_to_the_qps),
        TEST(the_limit_event_comes_once_when_fewer_are_posted_and_disarms),
        TEST(arming_a_limit_that_is_already_crossed_gives_the_event_at_once),
        TEST(limit_0_disarms),
        TEST(modify_srq_refuses_bad_limits_and_bits),
        TEST(an_srq_can_be_resized_if_the_device_says_so),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
