/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §2.1 and §2.5 to §2.9: what a state, and entering it, does to the work requests. */
#include "work.h"

#include <poll.h>

static struct end_attr rc_with_srq(uint32_t wrs)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.srq_wr = wrs;
    return attr;
}

static struct end_attr short_timeouts(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.timeout = 8; /* 1 ms */
    attr.retry_cnt = 1;
    return attr;
}

static bool event_pending(struct end *end)
{
    struct pollfd ready = {.fd = end->context->async_fd, .events = POLLIN};

    return poll(&ready, 1, 0) == 1;
}

static void posts_in_reset_are_einval(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct send send;
    struct recv recv;
    struct end end;

    end_open(&end, NEAR, &attr);
    send = a_send(&end, 1, 0, 8);
    recv = a_recv(&end, 1, 0, 8);
    assert_int_equal(end_try_send(&end, &send, 1, NULL), EINVAL);
    assert_int_equal(end_try_recv(&end, &recv, 1, NULL), EINVAL);
    end_close(&end);
}

static void sends_in_init_and_rtr_are_einval_and_receives_are_accepted(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct send send;
    struct recv recv;
    struct end end;

    end_open(&end, NEAR, &attr);
    send = a_send(&end, 1, 0, 8);
    recv = a_recv(&end, 1, 0, 8);
    end_to_init(&end);
    assert_int_equal(end_try_send(&end, &send, 1, NULL), EINVAL);
    assert_int_equal(end_try_recv(&end, &recv, 1, NULL), 0);
    end_to_rtr(&end, &end);
    assert_int_equal(end_try_send(&end, &send, 1, NULL), EINVAL);
    assert_int_equal(end_try_recv(&end, &recv, 1, NULL), 0);
    end_close(&end);
}

static void receives_posted_in_init_are_used_in_rtr(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    end_to_init(&p.b);
    end_recv(&p.b, a_recv(&p.b, 7, 0, 64));
    end_to_rtr(&p.b, &p.a); /* b stays there: its responder works */
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    end_fill(&p.a, 0, 64, 3);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 7, IBV_WC_RECV);
    end_expect_data(&p.b, 0, 64, 3);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTR);
    pair_close(&p);
}

static void comm_est_is_raised_once_by_the_first_message_in_rtr(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end_event event;
    struct pair p;

    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    end_to_init(&p.b);
    end_to_rtr(&p.b, &p.a);
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    for (unsigned int i = 0; i < 3; i++) {
        end_send(&p.a, a_write(&p.a, i, 0, 64, &p.b, 0));
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
    }
    event = end_event(&p.b);
    assert_int_equal(event.type, IBV_EVENT_COMM_EST);
    assert_true(event.of_qp);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTR);
    /* no second one, neither here nor in RTS: the next event is another */
    end_to_rts(&p.b);
    pair_marker(&p.a, &p.b);
    CHECK_ZERO(end_modify(&p.b, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    end_expect_event(&p.b, IBV_EVENT_SQ_DRAINED);
    pair_close(&p);
}

static void comm_est_is_not_raised_in_rts(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    CHECK_ZERO(end_modify(&p.b, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    end_expect_event(&p.b, IBV_EVENT_SQ_DRAINED);
    pair_close(&p);
}

static void uc_raises_comm_est_too(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UC);
    struct pair p;

    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    end_to_init(&p.b);
    end_to_rtr(&p.b, &p.a);
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_event(&p.b, IBV_EVENT_COMM_EST);
    pair_close(&p);
}

/* A peer that is not there yet is a silent one: the requester tries until its own limits. */
static void a_qp_in_init_drops_silently_and_the_peer_exhausts_its_retries(void **state)
{
    const struct end_attr attr = short_timeouts();
    struct pair p;

    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    end_to_init(&p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    assert_int_equal(end_state(&p.b), IBV_QPS_INIT);
    pair_close(&p);
}

static void a_send_posted_before_the_peer_reaches_rtr_arrives_by_retry(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.timeout = 12;
    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    end_to_init(&p.b);
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    end_recv(&p.b, a_recv(&p.b, 5, 0, 64));
    end_fill(&p.a, 0, 64, 4);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_to_rtr(&p.b, &p.a);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 5, IBV_WC_RECV);
    end_expect_data(&p.b, 0, 64, 4);
    pair_close(&p);
}

static void to_error_flushes_both_queues_in_order_and_unsignaled_too(void **state)
{
    struct ibv_wc wc[40];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 20; i++) {
        const struct send send = a_send(&p.a, 100 + i, 0, 64); /* the peer has no receive */

        end_recv(&p.a, a_recv(&p.a, 200 + i, 0, 64));
        end_send(&p.a, i % 2 ? unsignaled(send) : send);
    }
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_poll(&p.a, SQ, wc, 20);
    for (unsigned int i = 0; i < 20; i++)
        check_status(&wc[i], 100 + i, IBV_WC_WR_FLUSH_ERR);
    end_poll(&p.a, RQ, wc, 20);
    for (unsigned int i = 0; i < 20; i++) {
        check_status(&wc[i], 200 + i, IBV_WC_WR_FLUSH_ERR);
        assert_true(wc[i].opcode & IBV_WC_RECV);
        assert_int_equal(wc[i].qp_num, p.a.qp_num);
    }
    pair_close(&p);
}

static void posts_in_error_are_accepted_and_flushed_behind_earlier_ones(void **state)
{
    struct ibv_wc wc[8];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 4; i++) {
        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        end_send(&p.a, a_send(&p.a, i, 0, 64));
    }
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    for (unsigned int i = 4; i < 8; i++) {
        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        end_send(&p.a, unsignaled(a_send(&p.a, i, 0, 64)));
    }
    for (int q = SQ; q <= RQ; q++) {
        end_poll(&p.a, (enum queue)q, wc, 8);
        for (unsigned int i = 0; i < 8; i++)
            check_status(&wc[i], i, IBV_WC_WR_FLUSH_ERR);
    }
    pair_close(&p);
}

static void completions_in_the_cq_survive_the_move_to_error(void **state)
{
    struct ibv_wc wc[3];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 2; i++) {
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    }
    end_send(&p.a, a_write(&p.a, 2, 0, 8, &p.b, 0));
    end_expect_success(&p.a, SQ, 0, IBV_WC_SEND);
    pair_marker(&p.b, &p.a); /* a's second completion is there, not polled */
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_poll(&p.a, SQ, wc, 2);
    check_success(&wc[0], 1, IBV_WC_SEND);
    assert_int_equal(wc[1].wr_id, 2);
    pair_close(&p);
}

static void the_failing_request_is_reported_first_and_what_follows_is_flushed(void **state)
{
    struct ibv_wc wc[4];
    struct send list[4];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    list[0] = unsignaled(a_write(&p.a, 0, 0, 8, &p.b, 0));
    list[1] = unsignaled(a_write(&p.a, 1, 0, 8, &p.b, 0));
    list[1].wr.wr.rdma.rkey ^= 0x5a5a00;
    list[2] = unsignaled(a_write(&p.a, 2, 0, 8, &p.b, 0));
    list[3] = a_write(&p.a, 3, 0, 8, &p.b, 0);
    end_send_list(&p.a, list, 4);
    end_poll(&p.a, SQ, wc, 3);
    check_status(&wc[0], 1, IBV_WC_REM_ACCESS_ERR);
    check_status(&wc[1], 2, IBV_WC_WR_FLUSH_ERR);
    check_status(&wc[2], 3, IBV_WC_WR_FLUSH_ERR);
    pair_close(&p);
}

static void error_to_error_changes_nothing(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 8));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_expect_status(&p.a, RQ, 1, IBV_WC_WR_FLUSH_ERR);
    end_recv(&p.a, a_recv(&p.a, 2, 0, 8));
    end_expect_status(&p.a, RQ, 2, IBV_WC_WR_FLUSH_ERR);
    pair_close(&p);
}

static void a_qp_in_error_is_silent_and_the_peer_exhausts_its_retries(void **state)
{
    const struct end_attr attr = short_timeouts();
    struct pair p;

    pair_connect_as(&p, &attr);
    CHECK_ZERO(end_to_state(&p.b, IBV_QPS_ERR));
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    pair_close(&p);
}

static void reset_drops_requests_without_completions(void **state)
{
    struct ibv_wc wc[4];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 8; i++) {
        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        end_send(&p.a, a_send(&p.a, i, 0, 64));
    }
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
    /* what follows in the same CQs comes first */
    end_to_init(&p.a);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_recv(&p.a, a_recv(&p.a, 50, 0, 64));
    end_send(&p.a, a_send(&p.a, 60, 0, 64));
    end_expect_status(&p.a, RQ, 50, IBV_WC_WR_FLUSH_ERR);
    end_expect_status(&p.a, SQ, 60, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_poll_once(&p.a, SQ, wc, 4), 0);
    pair_close(&p);
}

static void reset_removes_unpolled_completions_of_the_qp(void **state)
{
    struct pair p;
    struct end other;

    pair_connect(&p, IBV_QPT_RC);
    end_share(&other, &p.a);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    pair_marker(&p.b, &p.a); /* uses a's receive CQ: the send completion stays */
    end_to_init(&other);
    CHECK_ZERO(end_to_state(&other, IBV_QPS_ERR));
    end_send(&other, a_send(&other, 2, 0, 64));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
    end_expect_status(&other, SQ, 2, IBV_WC_WR_FLUSH_ERR);
    end_close_qp(&other);
    pair_close(&p);
}

static void a_qp_works_again_after_error_and_reset(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int round = 0; round < 3; round++) {
        pair_marker(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
        CHECK_ZERO(end_to_state(&p.b, IBV_QPS_ERR));
        CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
        CHECK_ZERO(end_to_state(&p.b, IBV_QPS_RESET));
        p.a.psn = (p.a.psn + 12345) & 0xffffff;
        p.b.psn = (p.b.psn + 54321) & 0xffffff;
        end_connect(&p.a, &p.b);
    }
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

/* SQD */

static void sqd_holds_new_sends_and_rts_starts_them_in_order(void **state)
{
    struct ibv_wc wc[8];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_SQD));
    for (unsigned int i = 0; i < 8; i++) {
        end_recv(&p.b, a_recv(&p.b, i, i * 64, 64));
        end_fill(&p.a, i * 64, 64, i);
        end_send(&p.a, a_send(&p.a, i, i * 64, 64));
    }
    /* the receive side goes on */
    end_recv(&p.a, a_recv(&p.a, 90, 4096, 64));
    end_send(&p.b, a_send(&p.b, 91, 4096, 64));
    end_expect_success(&p.a, RQ, 90, IBV_WC_RECV);
    end_expect_success(&p.b, SQ, 91, IBV_WC_SEND);
    assert_int_equal(end_poll_once(&p.a, SQ, wc, 8), 0);
    assert_int_equal(end_poll_once(&p.b, RQ, wc, 8), 0);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RTS));
    end_poll(&p.b, RQ, wc, 8);
    for (unsigned int i = 0; i < 8; i++) {
        check_success(&wc[i], i, IBV_WC_RECV);
        end_expect_data(&p.b, i * 64, 64, i);
    }
    end_poll(&p.a, SQ, wc, 8);
    pair_close(&p);
}

static void sq_drained_comes_when_what_was_begun_has_ended(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr now;
    struct end_event event;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_send(&p.a, a_send(&p.a, 1, 0, 64)); /* waits for a receive of b: begun, not ended */
    end_send(&p.b, a_write(&p.b, 9, 0, 8, &p.a, 128));
    end_expect_success(&p.b, SQ, 9, IBV_WC_RDMA_WRITE);
    CHECK_ZERO(end_modify(&p.a, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    assert_int_equal(ibv_query_qp(p.a.qp, &now, IBV_QP_STATE, &init), 0);
    assert_int_equal(now.qp_state, IBV_QPS_SQD);
    assert_int_equal(now.sq_draining, 1);
    assert_false(event_pending(&p.a));
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    event = end_event(&p.a);
    assert_int_equal(event.type, IBV_EVENT_SQ_DRAINED);
    assert_true(event.of_qp);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    assert_int_equal(ibv_query_qp(p.a.qp, &now, IBV_QP_STATE, &init), 0);
    assert_int_equal(now.sq_draining, 0);
    pair_close(&p);
}

static void sqd_attributes_change_only_when_drained(void **state)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .timeout = 5};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_send(&p.a, a_send(&p.a, 1, 0, 64)); /* no receive: does not drain */
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_SQD));
    assert_int_equal(end_modify(&p.a, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT), EINVAL);
    assert_int_equal(end_to_state(&p.a, IBV_QPS_RTS), EINVAL);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
    assert_int_equal(end_modify(&p.a, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT), 0);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RTS));
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void sqd_to_error_flushes_held_sends(void **state)
{
    struct ibv_wc wc[3];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_SQD));
    for (unsigned int i = 0; i < 3; i++)
        end_send(&p.a, a_send(&p.a, i, 0, 64));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_poll(&p.a, SQ, wc, 3);
    for (unsigned int i = 0; i < 3; i++)
        check_status(&wc[i], i, IBV_WC_WR_FLUSH_ERR);
    pair_close(&p);
}

/* SQE */

static void a_send_error_takes_uc_and_ud_to_sqe_and_only_the_send_queue(void **state)
{
    const enum ibv_qp_type types[] = {IBV_QPT_UC, IBV_QPT_UD};

    for (size_t t = 0; t < COUNT(types); t++) {
        const struct ibv_qp_attr heal = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};
        const bool ud = types[t] == IBV_QPT_UD;
        struct send bad, good;
        struct ibv_wc wc;
        struct pair p;

        pair_connect(&p, types[t]);
        good = ud ? a_datagram(&p.a, 2, 0, 64, &p.b) : a_send(&p.a, 2, 0, 64);
        bad = good;
        bad.wr.wr_id = 1;
        bad.sge[0].lkey ^= 0x5a5a00;
        end_recv(&p.a, a_recv(&p.a, 5, 1024, 128));
        end_send_list(&p.a, (struct send[]){bad, good}, 2);
        end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_PROT_ERR);
        end_expect_status(&p.a, SQ, 2, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(end_state(&p.a), IBV_QPS_SQE);
        end_send(&p.a, good); /* flushed as well */
        end_expect_status(&p.a, SQ, 2, IBV_WC_WR_FLUSH_ERR);
        /* the receive side works */
        end_send(&p.b, ud ? a_datagram(&p.b, 6, 0, 64, &p.a) : a_send(&p.b, 6, 0, 64));
        end_expect_success(&p.a, RQ, 5, IBV_WC_RECV);
        end_expect_success(&p.b, SQ, 6, IBV_WC_SEND);
        /* and RTS brings the send side back */
        assert_int_equal(end_modify(&p.a, &heal, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
        pair_marker(&p.a, &p.b);
        assert_int_equal(end_poll_once(&p.a, SQ, &wc, 1), 0);
        pair_close(&p);
    }
}

/* LAST_WQE_REACHED (§2.7) */

static void last_wqe_is_reached_once_when_an_srq_qp_is_moved_to_error(void **state)
{
    const struct end_attr attr = rc_with_srq(8);
    struct ibv_srq_attr limit = {.srq_limit = 5};
    struct end_event event;
    struct end end;

    end_open(&end, NEAR, &attr);
    end_recv(&end, a_recv(&end, 1, 0, 8));
    end_to_init(&end);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_ERR));
    CHECK_ZERO(end_to_state(&end, IBV_QPS_ERR));
    event = end_event(&end);
    assert_int_equal(event.type, IBV_EVENT_QP_LAST_WQE_REACHED);
    assert_true(event.of_qp);
    /* no second one: the next is another */
    assert_int_equal(ibv_modify_srq(end.srq, &limit, IBV_SRQ_LIMIT), 0);
    end_expect_event(&end, IBV_EVENT_SRQ_LIMIT_REACHED);
    /* and nothing of the SRQ was flushed */
    assert_int_equal(end_poll_once(&end, RQ, (struct ibv_wc[1]){0}, 1), 0);
    end_close(&end);
}

static void last_wqe_is_reached_when_an_error_moves_the_qp(void **state)
{
    const struct end_attr attr = rc_with_srq(8);
    struct send bad;
    struct pair p;

    pair_connect_as(&p, &attr);
    bad = a_write(&p.a, 1, 0, 8, &p.b, 0);
    bad.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.a, bad);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    end_expect_event(&p.a, IBV_EVENT_QP_LAST_WQE_REACHED);
    /* the target: its access error, and the last WQE, in either order */
    for (unsigned int seen = 0; seen != 3;) {
        const struct end_event event = end_event(&p.b);

        assert_true(event.type == IBV_EVENT_QP_ACCESS_ERR || event.type == IBV_EVENT_QP_LAST_WQE_REACHED);
        seen |= event.type == IBV_EVENT_QP_ACCESS_ERR ? 1 : 2;
    }
    assert_int_equal(end_state(&p.b), IBV_QPS_ERR);
    pair_close(&p);
}

static void last_wqe_is_not_reached_on_reset_or_destroy(void **state)
{
    const struct end_attr attr = rc_with_srq(8);
    struct ibv_srq_attr limit = {.srq_limit = 5};
    struct end end, other;

    end_open(&end, NEAR, &attr);
    end_share(&other, &end);
    end_to_init(&end);
    end_to_init(&other);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RESET));
    end_close_qp(&other);
    assert_int_equal(ibv_modify_srq(end.srq, &limit, IBV_SRQ_LIMIT), 0);
    end_expect_event(&end, IBV_EVENT_SRQ_LIMIT_REACHED);
    end_close(&end);
}

static void last_wqe_comes_again_on_the_next_entry_into_error(void **state)
{
    const struct end_attr attr = rc_with_srq(8);
    struct end end;

    end_open(&end, NEAR, &attr);
    for (unsigned int i = 0; i < 2; i++) {
        end_to_init(&end);
        CHECK_ZERO(end_to_state(&end, IBV_QPS_ERR));
        end_expect_event(&end, IBV_EVENT_QP_LAST_WQE_REACHED);
        CHECK_ZERO(end_to_state(&end, IBV_QPS_RESET));
    }
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(posts_in_reset_are_einval),
        TEST(sends_in_init_and_rtr_are_einval_and_receives_are_accepted),
        TEST(receives_posted_in_init_are_used_in_rtr),
        TEST(comm_est_is_raised_once_by_the_first_message_in_rtr),
        TEST(comm_est_is_not_raised_in_rts),
        TEST(uc_raises_comm_est_too),
        TEST(a_qp_in_init_drops_silently_and_the_peer_exhausts_its_retries),
        TEST(a_send_posted_before_the_peer_reaches_rtr_arrives_by_retry),
        TEST(to_error_flushes_both_queues_in_order_and_unsignaled_too),
        TEST(posts_in_error_are_accepted_and_flushed_behind_earlier_ones),
        TEST(completions_in_the_cq_survive_the_move_to_error),
        TEST(the_failing_request_is_reported_first_and_what_follows_is_flushed),
        TEST(error_to_error_changes_nothing),
        TEST(a_qp_in_error_is_silent_and_the_peer_exhausts_its_retries),
        TEST(reset_drops_requests_without_completions),
        TEST(reset_removes_unpolled_completions_of_the_qp),
        TEST(a_qp_works_again_after_error_and_reset),
        TEST(sqd_holds_new_sends_and_rts_starts_them_in_order),
        TEST(sq_drained_comes_when_what_was_begun_has_ended),
        TEST(sqd_attributes_change_only_when_drained),
        TEST(sqd_to_error_flushes_held_sends),
        TEST(a_send_error_takes_uc_and_ud_to_sqe_and_only_the_send_queue),
        TEST(last_wqe_is_reached_once_when_an_srq_qp_is_moved_to_error),
        TEST(last_wqe_is_reached_when_an_error_moves_the_qp),
        TEST(last_wqe_is_not_reached_on_reset_or_destroy),
        TEST(last_wqe_comes_again_on_the_next_entry_into_error),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
