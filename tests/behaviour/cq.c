/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §5.1 to §5.5: polling, overrun, resize, notification, moderation. */
#include "threads.h"
#include "work.h"

#include <fcntl.h>
#include <poll.h>

static struct end_attr with_channel(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.channel = true;
    return attr;
}

/* An end in ERR whose receive CQ gets a completion for every receive posted */
static void open_flushing(struct end *end, const struct end_attr *attr)
{
    end_open(end, NEAR, attr);
    end_to_init(end);
    CHECK_ZERO(end_to_state(end, IBV_QPS_ERR));
}

static void complete_one(struct end *end, uint64_t id)
{
    end_recv(end, a_recv(end, id, 0, 8));
    end_expect_status(end, RQ, id, IBV_WC_WR_FLUSH_ERR);
}

static bool has_event(struct end *end)
{
    struct pollfd ready = {.fd = end->channel->fd, .events = POLLIN};

    return poll(&ready, 1, 0) == 1;
}

static void take_event(struct end *end, struct ibv_cq *expected)
{
    struct pollfd ready = {.fd = end->channel->fd, .events = POLLIN};
    struct patience patience = patience_begin("a completion event");
    struct ibv_cq *cq = NULL;
    void *context = NULL;

    while (poll(&ready, 1, patience_left_ms(&patience)) != 1)
        patience_wait(&patience, __FILE__, __LINE__);
    patience_end();
    assert_int_equal(ibv_get_cq_event(end->channel, &cq, &context), 0);
    assert_ptr_equal(cq, expected);
    assert_ptr_equal(context, expected->cq_context);
    ibv_ack_cq_events(cq, 1);
}

static void poll_returns_what_is_there_and_never_more_than_asked(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[16];
    unsigned int got = 0;
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(ibv_poll_cq(end.recv_cq, 16, wc), 0);
    for (unsigned int i = 0; i < 10; i++)
        end_recv(&end, a_recv(&end, i, 0, 8));
    EVENTUALLY(got == 10, "ten completions, three at a time")
    {
        const int n = ibv_poll_cq(end.recv_cq, 3, wc);

        assert_true(n >= 0 && n <= 3);
        for (int i = 0; i < n; i++)
            assert_int_equal(wc[i].wr_id, got++);
    }
    assert_int_equal(ibv_poll_cq(end.recv_cq, 16, wc), 0); /* consumed */
    assert_int_equal(ibv_poll_cq(end.recv_cq, 0, wc), 0);
    end_close(&end);
}

static void one_cq_may_serve_many_queues(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    unsigned int sends = 0, recvs = 0;
    struct pair p;

    attr.one_cq = true;
    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < 20; i++) {
        end_recv(&p.a, a_recv(&p.a, 100 + i, 0, 64));
        end_recv(&p.b, a_recv(&p.b, 100 + i, 0, 64));
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_send(&p.b, a_send(&p.b, i, 0, 64));
    }
    for (unsigned int i = 0; i < 40; i++) {
        const struct ibv_wc wc = end_wc(&p.a, SQ);

        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        if (wc.opcode & IBV_WC_RECV)
            assert_int_equal(wc.wr_id, 100 + recvs++);
        else
            assert_int_equal(wc.wr_id, sends++);
    }
    assert_int_equal(sends, 20);
    pair_close(&p);
}

/* §5.2 */

static void overrun_raises_cq_err_and_takes_its_qps_to_error(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    bool cq_err = false, fatal = false;
    struct send send;
    struct pair p;
    int room;

    attr.send_cqe = 1;
    attr.cap.max_send_wr = 512;
    pair_connect_as(&p, &attr);
    room = p.a.send_cq->cqe;
    if (room >= (int)p.a.attr.cap.max_send_wr)
        skip_because("the smallest CQ has room for a whole send queue");
    send = a_write(&p.a, 1, 0, 8, &p.b, 0);
    for (int i = 0; i <= room; i++)
        assert_int_equal(end_try_send(&p.a, &send, 1, NULL), 0);
    while (!cq_err || !fatal) {
        const struct end_event event = end_event(&p.a);

        if (event.type == IBV_EVENT_CQ_ERR) {
            assert_true(event.of_send_cq);
            cq_err = true;
        } else {
            assert_int_equal(event.type, IBV_EVENT_QP_FATAL);
            assert_true(event.of_qp);
            fatal = true;
        }
    }
    end_wait_state(&p.a, IBV_QPS_ERR);
    pair_close(&p);
}

static void a_cq_holds_what_it_says_without_overrun(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[256];
    struct pair p;
    int room;

    attr.recv_cqe = 20;
    attr.cap.max_recv_wr = 256;
    open_flushing(&p.a, &attr);
    room = p.a.recv_cq->cqe;
    if (room > 256)
        room = 256;
    for (int i = 0; i < room; i++)
        end_recv(&p.a, a_recv(&p.a, (uint64_t)i, 0, 8));
    end_poll(&p.a, RQ, wc, (unsigned int)room);
    for (int i = 0; i < room; i++)
        check_status(&wc[i], (uint64_t)i, IBV_WC_WR_FLUSH_ERR);
    end_close(&p.a);
}

/* §5.3 */

static void resize_keeps_unpolled_completions_and_updates_cqe(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[20];
    struct end end;

    attr.recv_cqe = 20;
    open_flushing(&end, &attr);
    for (unsigned int i = 0; i < 20; i++)
        end_recv(&end, a_recv(&end, i, 0, 8));
    end_poll(&end, RQ, wc, 5);
    assert_int_equal(ibv_resize_cq(end.recv_cq, 500), 0);
    assert_true(end.recv_cq->cqe >= 500);
    end_poll(&end, RQ, wc, 5);
    check_status(&wc[0], 5, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(ibv_resize_cq(end.recv_cq, 30), 0);
    assert_true(end.recv_cq->cqe >= 30);
    end_poll(&end, RQ, wc, 10);
    check_status(&wc[0], 10, IBV_WC_WR_FLUSH_ERR);
    check_status(&wc[9], 19, IBV_WC_WR_FLUSH_ERR);
    end_close(&end);
}

static void resize_refuses_bad_sizes(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_device_attr device;
    struct end end;
    int before;

    end_open(&end, NEAR, &attr);
    assert_int_equal(ibv_query_device(end.context, &device), 0);
    before = end.recv_cq->cqe;
    assert_int_equal(ibv_resize_cq(end.recv_cq, 0), EINVAL);
    assert_int_equal(ibv_resize_cq(end.recv_cq, -1), EINVAL);
    assert_int_equal(ibv_resize_cq(end.recv_cq, device.max_cqe + 1), EINVAL);
    assert_int_equal(end.recv_cq->cqe, before);
    end_close(&end);
}

static void resize_below_the_unpolled_completions_is_einval(void **state)
{
    const struct end_attr attr = with_channel();
    struct ibv_wc wc[40];
    struct send bad;
    struct pair p;

    /* only the failure at the end is solicited: its event says that all before it are there */
    pair_connect_as(&p, &attr);
    assert_int_equal(ibv_req_notify_cq(p.a.send_cq, 1), 0);
    for (unsigned int i = 0; i < 40; i++)
        end_send(&p.a, a_write(&p.a, i, 0, 8, &p.b, 0));
    bad = a_write(&p.a, 40, 0, 8, &p.b, 0);
    bad.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.a, bad);
    take_event(&p.a, p.a.send_cq);
    assert_int_equal(ibv_resize_cq(p.a.send_cq, 30), EINVAL);
    end_poll(&p.a, SQ, wc, 40);
    check_success(&wc[39], 39, IBV_WC_RDMA_WRITE);
    pair_close(&p);
}

static void resize_keeps_the_arm_state(void **state)
{
    struct end_attr attr = with_channel();
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    assert_int_equal(ibv_resize_cq(end.recv_cq, 1000), 0);
    complete_one(&end, 1);
    take_event(&end, end.recv_cq);
    end_close(&end);
}

static void resize_during_traffic_loses_nothing(void **state)
{
    unsigned int sent = 0, done = 0;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    while (done < 2000) {
        struct ibv_wc wc[16];
        int n;

        while (sent < 2000 && sent - done < 60) {
            end_send(&p.a, a_write(&p.a, sent, 0, 64, &p.b, 0));
            sent++;
            if (sent % 50 == 0)
                assert_int_equal(ibv_resize_cq(p.a.send_cq, sent % 100 ? 300 : 100), 0);
        }
        n = ibv_poll_cq(p.a.send_cq, 16, wc);
        for (int i = 0; i < n; i++)
            check_success(&wc[i], done++, IBV_WC_RDMA_WRITE);
    }
    pair_close(&p);
}

/* §5.4 */

static void an_armed_cq_gives_one_event_until_armed_again(void **state)
{
    const struct end_attr attr = with_channel();
    struct end end;

    open_flushing(&end, &attr);
    complete_one(&end, 1);
    assert_false(has_event(&end)); /* never armed */
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    assert_false(has_event(&end));
    complete_one(&end, 2);
    take_event(&end, end.recv_cq);
    complete_one(&end, 3);
    assert_false(has_event(&end));
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    complete_one(&end, 4);
    take_event(&end, end.recv_cq);
    end_close(&end);
}

static void completions_that_are_already_there_do_not_trigger(void **state)
{
    const struct end_attr attr = with_channel();
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    end_recv(&end, a_recv(&end, 1, 0, 8));
    take_event(&end, end.recv_cq); /* so it is there */
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    assert_false(has_event(&end));
    end_expect_status(&end, RQ, 1, IBV_WC_WR_FLUSH_ERR);
    assert_false(has_event(&end));
    complete_one(&end, 2);
    take_event(&end, end.recv_cq);
    end_close(&end);
}

static void a_cq_without_a_channel_can_be_armed(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    complete_one(&end, 1);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 1), 0);
    complete_one(&end, 2);
    end_close(&end);
}

static void only_solicited_and_failed_completions_trigger_a_solicited_arm(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    /* a is near: it receives, and its events are looked at */
    pair_connect_as(&p, &attr);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 1), 0);
    assert_int_equal(ibv_req_notify_cq(p.a.send_cq, 1), 0);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    end_send(&p.b, a_send(&p.b, 1, 0, 64));
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    end_send(&p.a, with_flags(a_write(&p.a, 1, 0, 8, &p.b, 0), IBV_SEND_SOLICITED));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE); /* a successful send is never solicited */
    assert_false(has_event(&p.a));
    end_recv(&p.a, a_recv(&p.a, 2, 0, 64));
    end_send(&p.b, with_flags(a_send(&p.b, 2, 0, 64), IBV_SEND_SOLICITED));
    end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
    take_event(&p.a, p.a.recv_cq);
    /* write with immediate */
    {
        struct send send = with_flags(a_write(&p.b, 3, 0, 8, &p.a, 0), IBV_SEND_SOLICITED);

        send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 1), 0);
        end_recv(&p.a, a_recv(&p.a, 3, 0, 64));
        end_send(&p.b, send);
        end_expect_success(&p.a, RQ, 3, IBV_WC_RECV_RDMA_WITH_IMM);
        take_event(&p.a, p.a.recv_cq);
    }
    /* failures, on both queues */
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 1), 0);
    end_recv(&p.a, a_recv(&p.a, 4, 0, 64));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_expect_status(&p.a, RQ, 4, IBV_WC_WR_FLUSH_ERR);
    take_event(&p.a, p.a.recv_cq);
    end_send(&p.a, a_send(&p.a, 5, 0, 64));
    end_expect_status(&p.a, SQ, 5, IBV_WC_WR_FLUSH_ERR);
    take_event(&p.a, p.a.send_cq);
    pair_close(&p);
}

static void armed_for_any_wins_over_a_later_solicited_arm(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 0), 0);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 1), 0);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    end_send(&p.b, a_send(&p.b, 1, 0, 64));
    take_event(&p.a, p.a.recv_cq);
    /* and the other way round */
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 1), 0);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 0), 0);
    end_recv(&p.a, a_recv(&p.a, 2, 0, 64));
    end_send(&p.b, a_send(&p.b, 2, 0, 64));
    take_event(&p.a, p.a.recv_cq);
    pair_close(&p);
}

static void successful_sends_trigger_an_arm_for_any(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    assert_int_equal(ibv_req_notify_cq(p.a.send_cq, 0), 0);
    end_send(&p.a, a_write(&p.a, 1, 0, 8, &p.b, 0));
    take_event(&p.a, p.a.send_cq);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    pair_close(&p);
}

static void get_cq_event_is_eagain_on_a_nonblocking_channel(void **state)
{
    const struct end_attr attr = with_channel();
    struct ibv_cq *cq;
    void *context;
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(fcntl(end.channel->fd, F_SETFL, fcntl(end.channel->fd, F_GETFL) | O_NONBLOCK), 0);
    errno = 0;
    assert_int_equal(ibv_get_cq_event(end.channel, &cq, &context), -1);
    assert_int_equal(errno, EAGAIN);
    end_close(&end);
}

struct getter {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    void *context;
};

static int get_event(void *arg)
{
    struct getter *getter = arg;

    return ibv_get_cq_event(getter->channel, &getter->cq, &getter->context);
}

static void get_cq_event_blocks_until_there_is_one(void **state)
{
    const struct end_attr attr = with_channel();
    struct getter getter = {0};
    struct caller caller;
    struct pair p;

    pair_connect_as(&p, &attr);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 0), 0);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    getter.channel = p.a.channel;
    caller_start(&caller, get_event, &getter);
    assert_true(caller_is_blocked(&caller));
    end_send(&p.b, a_send(&p.b, 1, 0, 64)); /* nobody polls at a: its helper must wake the reader */
    assert_int_equal(caller_finish(&caller), 0);
    assert_ptr_equal(getter.cq, p.a.recv_cq);
    assert_ptr_equal(getter.context, p.a.recv_cq->cq_context);
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    ibv_ack_cq_events(getter.cq, 1);
    pair_close(&p);
}

static void arm_poll_wait_never_misses_a_completion(void **state)
{
    const struct end_attr attr = with_channel();
    unsigned int got = 0;
    struct pair p;

    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < 400; i++) {
        struct ibv_wc wc;

        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 0), 0);
        end_send(&p.b, a_send(&p.b, i, 0, 64));
        take_event(&p.a, p.a.recv_cq);
        assert_int_equal(end_poll_once(&p.a, RQ, &wc, 1), 1);
        check_success(&wc, got++, IBV_WC_RECV);
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
    }
    pair_close(&p);
}

static void two_cqs_share_a_channel(void **state)
{
    const struct end_attr attr = with_channel();
    bool of_send = false, of_recv = false;
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(ibv_req_notify_cq(end.send_cq, 0), 0);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    end_recv(&end, a_recv(&end, 1, 0, 8));
    end_send(&end, a_send(&end, 1, 0, 8));
    for (unsigned int i = 0; i < 2; i++) {
        struct ibv_cq *cq;
        void *context;

        assert_int_equal(ibv_get_cq_event(end.channel, &cq, &context), 0);
        of_send |= cq == end.send_cq;
        of_recv |= cq == end.recv_cq;
        ibv_ack_cq_events(cq, 1);
    }
    assert_true(of_send && of_recv);
    end_close(&end);
}

/* §5.5 */

static void moderation_is_checked_and_does_not_delay_for_ever(void **state)
{
    const struct end_attr attr = with_channel();
    struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE,
                                          .moderate = {.cq_count = 100, .cq_period = 10}};
    struct ibv_modify_cq_attr unknown = {.attr_mask = 1u << 20};
    struct ibv_device_attr_ex device;
    struct end end;

    open_flushing(&end, &attr);
    assert_int_equal(ibv_query_device_ex(end.context, NULL, &device), 0);
    if (!device.cq_mod_caps.max_cq_count) {
        assert_int_equal(ibv_modify_cq(end.recv_cq, &moderate), EOPNOTSUPP);
        end_close(&end);
        return;
    }
    assert_int_equal(ibv_modify_cq(end.recv_cq, &unknown), EINVAL);
    if (device.cq_mod_caps.max_cq_count < UINT16_MAX) {
        moderate.moderate.cq_count = (uint16_t)(device.cq_mod_caps.max_cq_count + 1);
        assert_int_equal(ibv_modify_cq(end.recv_cq, &moderate), EINVAL);
        moderate.moderate.cq_count = 100;
    }
    assert_int_equal(ibv_modify_cq(end.recv_cq, &moderate), 0);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    complete_one(&end, 1);         /* visible at once */
    take_event(&end, end.recv_cq); /* by the period */
    end_close(&end);
}

static void many_events_are_all_delivered(void **state)
{
    enum { CQS = 50 };
    struct ibv_cq *cqs[CQS];
    bool seen[CQS] = {false};
    struct ibv_qp *qps[CQS];
    const struct end_attr attr = with_channel();
    struct end end;

    open_flushing(&end, &attr);
    for (size_t i = 0; i < CQS; i++) {
        struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_recv_wr = 1, .max_recv_sge = 1}};
        struct ibv_qp_attr qp_attr = {.qp_state = IBV_QPS_INIT, .port_num = TEST_PORT};
        struct ibv_recv_wr recv = {.wr_id = i}, *bad;

        init.send_cq = init.recv_cq = cqs[i] = ibv_create_cq(end.context, 4, &seen[i], end.channel, 0);
        assert_non_null(cqs[i]);
        qps[i] = ibv_create_qp(end.pd, &init);
        assert_non_null(qps[i]);
        assert_int_equal(ibv_req_notify_cq(cqs[i], 0), 0);
        assert_int_equal(ibv_modify_qp(qps[i], &qp_attr,
                                       IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS),
                         0);
        assert_int_equal(ibv_post_recv(qps[i], &recv, &bad), 0);
        qp_attr.qp_state = IBV_QPS_ERR;
        assert_int_equal(ibv_modify_qp(qps[i], &qp_attr, IBV_QP_STATE), 0);
    }
    for (size_t i = 0; i < CQS; i++) {
        struct ibv_cq *cq;
        void *context;

        assert_int_equal(ibv_get_cq_event(end.channel, &cq, &context), 0);
        assert_false(*(bool *)context);
        *(bool *)context = true;
        ibv_ack_cq_events(cq, 1);
    }
    for (size_t i = 0; i < CQS; i++) {
        assert_true(seen[i]);
        assert_int_equal(ibv_destroy_qp(qps[i]), 0);
        assert_int_equal(ibv_destroy_cq(cqs[i]), 0);
    }
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(poll_returns_what_is_there_and_never_more_than_asked),
        TEST(one_cq_may_serve_many_queues),
        TEST(overrun_raises_cq_err_and_takes_its_qps_to_error),
        TEST(a_cq_holds_what_it_says_without_overrun),
        TEST(resize_keeps_unpolled_completions_and_updates_cqe),
        TEST(resize_refuses_bad_sizes),
        TEST(resize_below_the_unpolled_completions_is_einval),
        TEST(resize_keeps_the_arm_state),
        TEST(resize_during_traffic_loses_nothing),
        TEST(an_armed_cq_gives_one_event_until_armed_again),
        TEST(completions_that_are_already_there_do_not_trigger),
        TEST(a_cq_without_a_channel_can_be_armed),
        TEST(only_solicited_and_failed_completions_trigger_a_solicited_arm),
        TEST(armed_for_any_wins_over_a_later_solicited_arm),
        TEST(successful_sends_trigger_an_arm_for_any),
        TEST(get_cq_event_is_eagain_on_a_nonblocking_channel),
        TEST(get_cq_event_blocks_until_there_is_one),
        TEST(arm_poll_wait_never_misses_a_completion),
        TEST(two_cqs_share_a_channel),
        TEST(moderation_is_checked_and_does_not_delay_for_ever),
        TEST(many_events_are_all_delivered),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
