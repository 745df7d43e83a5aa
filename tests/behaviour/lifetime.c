/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.1 to §1.3 and §1.6: who holds whom, and what a destroy waits for. */
#include "threads.h"
#include "work.h"

#include <poll.h>

static void open_near(struct end *end, enum ibv_qp_type type)
{
    const struct end_attr attr = attr_of(type);

    end_open(end, NEAR, &attr);
}

/* A QP in ERR completes what is posted to it, without a peer (§2.6 8). */
static void into_error(struct end *end)
{
    end_to_init(end);
    CHECK_ZERO(end_to_state(end, IBV_QPS_ERR));
}

static void dealloc_pd_is_ebusy_while_an_mr_uses_it(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    static char buffer[4096];
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);

    assert_non_null(mr);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    assert_int_equal(ibv_close_device(context), 0);
}

static void dealloc_pd_is_ebusy_while_a_memory_window_uses_it(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

    assert_non_null(mw);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_dealloc_mw(mw), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

static void dealloc_pd_is_ebusy_while_an_address_handle_uses_it(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = TEST_PORT};
    struct ibv_ah *ah;

    assert_int_equal(ibv_query_gid(context, TEST_PORT, 0, &attr.grh.dgid), 0);
    ah = ibv_create_ah(pd, &attr);
    assert_non_null(ah);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_destroy_ah(ah), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

static void dealloc_pd_is_ebusy_while_a_qp_or_srq_uses_it(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.srq_wr = 8;
    end_open(&end, NEAR, &attr);
    assert_int_equal(ibv_dereg_mr(end.mr), 0);
    end.mr = NULL;
    assert_int_equal(ibv_dealloc_pd(end.pd), EBUSY);
    end_close_qp(&end);
    assert_int_equal(ibv_dealloc_pd(end.pd), EBUSY);
    end_close(&end);
}

static void a_refused_dealloc_pd_has_no_effect(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    assert_int_equal(ibv_dealloc_pd(p.a.pd), EBUSY);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void parent_domain_holds_its_pd_and_its_thread_domain(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_td *td = ibv_alloc_td(context, &td_attr);
    struct ibv_parent_domain_init_attr attr = {.pd = pd, .td = td};
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);

    if (!parent && errno == EOPNOTSUPP)
        skip_because("no parent domains");
    assert_non_null(td);
    assert_non_null(parent);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_dealloc_td(td), EBUSY);
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    assert_int_equal(ibv_dealloc_td(td), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

static void parent_domain_is_busy_while_a_qp_uses_it(void **state)
{
    struct ibv_parent_domain_init_attr attr = {0};
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_send_sge = 1}};
    struct end end;
    struct ibv_pd *parent;
    struct ibv_qp *qp;

    open_near(&end, IBV_QPT_RC);
    attr.pd = end.pd;
    parent = ibv_alloc_parent_domain(end.context, &attr);
    if (!parent && errno == EOPNOTSUPP)
        skip_because("no parent domains");
    assert_non_null(parent);
    init.send_cq = end.send_cq;
    init.recv_cq = end.recv_cq;
    qp = ibv_create_qp(parent, &init);
    assert_non_null(qp);
    assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    end_close(&end);
}

static void destroy_cq_is_ebusy_while_a_qp_uses_it(void **state)
{
    struct end end;

    open_near(&end, IBV_QPT_RC);
    assert_int_equal(ibv_destroy_cq(end.send_cq), EBUSY);
    assert_int_equal(ibv_destroy_cq(end.recv_cq), EBUSY);
    end_close(&end);
}

static void a_refused_destroy_cq_has_no_effect(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    assert_int_equal(ibv_destroy_cq(p.a.send_cq), EBUSY);
    assert_int_equal(ibv_destroy_cq(p.a.recv_cq), EBUSY);
    pair_marker(&p.a, &p.b);
    pair_marker(&p.b, &p.a);
    pair_close(&p);
}

static void destroy_comp_channel_is_ebusy_while_a_cq_names_it(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);

    assert_non_null(cq);
    assert_int_equal(ibv_destroy_comp_channel(channel), EBUSY);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
    ibv_close_device(context);
}

static void destroy_srq_is_ebusy_while_a_qp_is_associated(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.srq_wr = 8;
    end_open(&end, NEAR, &attr);
    assert_int_equal(ibv_destroy_srq(end.srq), EBUSY);
    end_recv(&end, a_recv(&end, 1, 0, 64)); /* still usable */
    end_close(&end);
}

static void destroy_srq_discards_posted_receives(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.srq_wr = 8;
    end_open(&end, NEAR, &attr);
    for (unsigned int i = 0; i < 8; i++)
        end_recv(&end, a_recv(&end, i, 0, 64));
    end_close_qp(&end);
    assert_int_equal(ibv_destroy_srq(end.srq), 0);
    end.srq = NULL;
    assert_int_equal(end_poll_once(&end, RQ, (struct ibv_wc[1]){0}, 1), 0);
    end_close(&end);
}

static void destroy_cq_discards_unpolled_completions_and_an_armed_notification(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    assert_int_equal(ibv_req_notify_cq(end.recv_cq, 0), 0);
    assert_int_equal(ibv_req_notify_cq(end.send_cq, 0), 0);
    into_error(&end);
    for (unsigned int i = 0; i < 8; i++)
        end_recv(&end, a_recv(&end, i, 0, 64));
    end_close(&end); /* the event of the receive CQ was never read, the send CQ is still armed */
}

static void destroy_qp_is_legal_in_every_state(void **state)
{
    for (unsigned int stop = 0; stop < 6; stop++) {
        struct end end;

        open_near(&end, IBV_QPT_RC);
        if (stop >= 1)
            end_to_init(&end);
        if (stop >= 2)
            end_to_rtr(&end, &end);
        if (stop >= 3)
            end_to_rts(&end);
        if (stop >= 4)
            CHECK_ZERO(end_to_state(&end, stop == 4 ? IBV_QPS_SQD : IBV_QPS_ERR));
        assert_int_equal(ibv_destroy_qp(end.qp), 0);
        end.qp = NULL;
        end_close(&end);
    }
}

static void completions_of_a_destroyed_qp_are_gone(void **state)
{
    struct ibv_wc wc[16];
    struct end one, two;

    open_near(&one, IBV_QPT_RC);
    end_share(&two, &one);
    into_error(&one);
    into_error(&two);
    for (unsigned int i = 0; i < 4; i++) {
        end_recv(&one, a_recv(&one, 100 + i, 0, 8));
        end_recv(&two, a_recv(&two, 200 + i, 0, 8));
    }
    /* a flush happens soon, not at once: see the first of each before the destroy */
    for (unsigned int seen = 0; seen < 2;)
        seen += (unsigned int)end_poll_once(&one, RQ, wc, 1);
    end_close_qp(&one);
    for (bool last = false; !last;) {
        const int n = end_poll_once(&two, RQ, wc, 16);

        for (int i = 0; i < n; i++) {
            assert_int_equal(wc[i].qp_num, two.qp_num);
            last = wc[i].wr_id == 203;
        }
    }
    end_close_qp(&two);
    end_close(&one);
}

static void destroy_ah_after_posting_lets_the_send_complete(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    end_fill(&p.a, 0, 256, 1);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 1024));
    end_send(&p.a, a_datagram(&p.a, 2, 0, 256, &p.b));
    assert_int_equal(ibv_destroy_ah(p.a.ah), 0);
    p.a.ah = NULL;
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    end_expect_data(&p.b, 40, 256, 1);
    pair_close(&p);
}

static void a_qp_number_is_not_reused_soon(void **state)
{
    uint32_t seen[200];
    struct end end;

    open_near(&end, IBV_QPT_RC);
    seen[0] = end.qp_num;
    for (unsigned int i = 1; i < COUNT(seen); i++) {
        struct end other;

        end_share(&other, &end);
        seen[i] = other.qp_num;
        for (unsigned int j = 0; j < i; j++)
            assert_int_not_equal(seen[j], seen[i]);
        end_close_qp(&other);
    }
    end_close(&end);
}

static void a_qp_number_has_24_bits_and_is_not_reserved(void **state)
{
    struct end end;

    open_near(&end, IBV_QPT_RC);
    assert_true(end.qp_num > 1);
    assert_true(end.qp_num < 0xffffff);
    assert_int_equal(end.qp->qp_num, end.qp_num);
    end_close(&end);
}

/* Tear-down recipe of §1.6: every step ends. */
static void the_tear_down_recipe_terminates_with_traffic_outstanding(void **state)
{
    struct pair p;
    struct ibv_wc wc[17];

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 16; i++) {
        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        end_send(&p.a, a_send(&p.a, i, 0, 64)); /* no receive over there: they wait */
    }
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_recv(&p.a, a_recv(&p.a, 99, 0, 64));
    end_send(&p.a, a_send(&p.a, 99, 0, 64));
    end_poll(&p.a, SQ, wc, 17);
    assert_int_equal(wc[16].wr_id, 99);
    end_poll(&p.a, RQ, wc, 17);
    assert_int_equal(wc[16].wr_id, 99);
    pair_close(&p);
}

/* §1.3 */

static int call_destroy_cq(void *cq)
{
    return ibv_destroy_cq(cq);
}

static int call_destroy_qp(void *qp)
{
    return ibv_destroy_qp(qp);
}

static int call_destroy_srq(void *srq)
{
    return ibv_destroy_srq(srq);
}

static void read_cq_event(struct ibv_comp_channel *channel, struct ibv_cq *expected)
{
    struct ibv_cq *cq;
    void *context;

    assert_int_equal(ibv_get_cq_event(channel, &cq, &context), 0);
    assert_ptr_equal(cq, expected);
}

/* An event on the receive CQ of an end in ERR */
static void raise_cq_event(struct end *end)
{
    assert_int_equal(ibv_req_notify_cq(end->recv_cq, 0), 0);
    end_recv(end, a_recv(end, 1, 0, 8));
    end_expect_status(end, RQ, 1, IBV_WC_WR_FLUSH_ERR);
}

static void destroy_cq_waits_until_every_read_completion_event_is_acked(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct caller destroy;
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    into_error(&end);
    for (unsigned int i = 0; i < 3; i++) {
        raise_cq_event(&end);
        read_cq_event(end.channel, end.recv_cq);
    }
    ibv_ack_cq_events(end.recv_cq, 1);
    end_close_qp(&end);
    caller_start(&destroy, call_destroy_cq, end.recv_cq);
    assert_true(caller_is_blocked(&destroy));
    ibv_ack_cq_events(end.recv_cq, 1);
    assert_true(caller_is_blocked(&destroy));
    ibv_ack_cq_events(end.recv_cq, 1);
    assert_int_equal(caller_finish(&destroy), 0);
    end.recv_cq = end.send_cq;
    end_close(&end);
}

static void destroy_cq_accepts_one_ack_of_many_events(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    into_error(&end);
    for (unsigned int i = 0; i < 5; i++) {
        raise_cq_event(&end);
        read_cq_event(end.channel, end.recv_cq);
    }
    ibv_ack_cq_events(end.recv_cq, 5);
    end_close(&end);
}

/* compatibility.md §7: programs in the field ack once per completion */
static void destroy_cq_does_not_hang_when_more_was_acked_than_read(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    into_error(&end);
    raise_cq_event(&end);
    read_cq_event(end.channel, end.recv_cq);
    ibv_ack_cq_events(end.recv_cq, 7);
    end_close(&end);
}

static void destroy_cq_drops_its_unread_events_from_the_channel(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_cq *other;
    struct pollfd ready;
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    other = ibv_create_cq(end.context, 4, NULL, end.channel, 0);
    assert_non_null(other);
    into_error(&end);
    raise_cq_event(&end);
    ready = (struct pollfd){.fd = end.channel->fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 20000), 1);
    end_close_qp(&end);
    assert_int_equal(ibv_destroy_cq(end.recv_cq), 0);
    assert_int_equal(poll(&ready, 1, 0), 0);
    end.recv_cq = end.send_cq;
    assert_int_equal(ibv_destroy_cq(other), 0);
    end_close(&end);
}

static void get_async_event(struct ibv_context *context, struct ibv_async_event *event,
                            enum ibv_event_type type)
{
    assert_int_equal(ibv_get_async_event(context, event), 0);
    assert_int_equal(event->event_type, type);
}

static void destroy_qp_waits_until_its_read_async_events_are_acked(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    struct ibv_async_event event;
    struct caller destroy;
    struct end end;

    open_near(&end, IBV_QPT_RC);
    end_to_init(&end);
    end_to_rtr(&end, &end);
    end_to_rts(&end);
    CHECK_ZERO(end_modify(&end, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    get_async_event(end.context, &event, IBV_EVENT_SQ_DRAINED);
    assert_ptr_equal(event.element.qp, end.qp);
    caller_start(&destroy, call_destroy_qp, end.qp);
    assert_true(caller_is_blocked(&destroy));
    ibv_ack_async_event(&event);
    assert_int_equal(caller_finish(&destroy), 0);
    end.qp = NULL;
    end_close(&end);
}

static void destroy_qp_drops_its_unread_async_events(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    struct pollfd ready;
    struct end end;

    open_near(&end, IBV_QPT_RC);
    end_to_init(&end);
    end_to_rtr(&end, &end);
    end_to_rts(&end);
    CHECK_ZERO(end_modify(&end, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    ready = (struct pollfd){.fd = end.context->async_fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 20000), 1);
    end_close_qp(&end);
    assert_int_equal(poll(&ready, 1, 0), 0);
    end_close(&end);
}

static void destroy_srq_waits_until_its_read_async_events_are_acked(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_srq_attr limit = {.srq_limit = 4};
    struct ibv_async_event event;
    struct caller destroy;
    struct end end;

    attr.srq_wr = 8;
    end_open(&end, NEAR, &attr);
    assert_int_equal(ibv_modify_srq(end.srq, &limit, IBV_SRQ_LIMIT), 0); /* already below: at once (§6.2) */
    get_async_event(end.context, &event, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_ptr_equal(event.element.srq, end.srq);
    end_close_qp(&end);
    caller_start(&destroy, call_destroy_srq, end.srq);
    assert_true(caller_is_blocked(&destroy));
    ibv_ack_async_event(&event);
    assert_int_equal(caller_finish(&destroy), 0);
    end.srq = NULL;
    end_close(&end);
}

static void destroy_cq_waits_until_its_read_async_events_are_acked(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_async_event events[8];
    unsigned int count = 0;
    struct caller destroy;
    struct end end;

    attr.recv_cqe = 1;
    attr.cap.max_recv_wr = 1024;
    end_open(&end, NEAR, &attr);
    into_error(&end);
    if (end.recv_cq->cqe >= (int)end.attr.cap.max_recv_wr)
        skip_because("the smallest CQ has room for a whole receive queue");
    for (int i = 0; i <= end.recv_cq->cqe; i++)
        end_recv(&end, a_recv(&end, 1, 0, 8)); /* one more than it holds */
    do {
        assert_int_equal(ibv_get_async_event(end.context, &events[count]), 0);
    } while (events[count++].event_type != IBV_EVENT_CQ_ERR && count < COUNT(events));
    assert_ptr_equal(events[count - 1].element.cq, end.recv_cq);
    for (unsigned int i = 0; i < count - 1; i++)
        ibv_ack_async_event(&events[i]);
    end_close_qp(&end);
    caller_start(&destroy, call_destroy_cq, end.recv_cq);
    assert_true(caller_is_blocked(&destroy));
    ibv_ack_async_event(&events[count - 1]);
    assert_int_equal(caller_finish(&destroy), 0);
    end.recv_cq = end.send_cq;
    end_close(&end);
}

static void busy_is_decided_before_waiting_for_acks(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    into_error(&end);
    raise_cq_event(&end);
    read_cq_event(end.channel, end.recv_cq);
    assert_int_equal(ibv_destroy_cq(end.recv_cq), EBUSY);
    ibv_ack_cq_events(end.recv_cq, 1);
    end_close(&end);
}

static void acks_are_counted_in_the_public_structures(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_async_event event;
    struct end end;

    attr.channel = true;
    end_open(&end, NEAR, &attr);
    assert_int_equal(end.recv_cq->comp_events_completed, 0);
    assert_int_equal(end.qp->events_completed, 0);
    ibv_ack_cq_events(end.recv_cq, 3);
    assert_int_equal(end.recv_cq->comp_events_completed, 3);
    event = (struct ibv_async_event){.event_type = IBV_EVENT_COMM_EST, .element.qp = end.qp};
    ibv_ack_async_event(&event);
    assert_int_equal(end.qp->events_completed, 1);
    event = (struct ibv_async_event){.event_type = IBV_EVENT_CQ_ERR, .element.cq = end.recv_cq};
    ibv_ack_async_event(&event);
    assert_int_equal(end.recv_cq->async_events_completed, 1);
    event = (struct ibv_async_event){.event_type = IBV_EVENT_PORT_ACTIVE, .element.port_num = 1};
    ibv_ack_async_event(&event);
    end_close(&end);
}

static void close_device_frees_what_the_program_left_behind(void **state)
{
    struct end end;

    open_near(&end, IBV_QPT_RC);
    into_error(&end);
    assert_int_equal(ibv_close_device(end.context), 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(dealloc_pd_is_ebusy_while_an_mr_uses_it),
        TEST(dealloc_pd_is_ebusy_while_a_memory_window_uses_it),
        TEST(dealloc_pd_is_ebusy_while_an_address_handle_uses_it),
        TEST(dealloc_pd_is_ebusy_while_a_qp_or_srq_uses_it),
        TEST(a_refused_dealloc_pd_has_no_effect),
        TEST(parent_domain_holds_its_pd_and_its_thread_domain),
        TEST(parent_domain_is_busy_while_a_qp_uses_it),
        TEST(destroy_cq_is_ebusy_while_a_qp_uses_it),
        TEST(a_refused_destroy_cq_has_no_effect),
        TEST(destroy_comp_channel_is_ebusy_while_a_cq_names_it),
        TEST(destroy_srq_is_ebusy_while_a_qp_is_associated),
        TEST(destroy_srq_discards_posted_receives),
        TEST(destroy_cq_discards_unpolled_completions_and_an_armed_notification),
        TEST(destroy_qp_is_legal_in_every_state),
        TEST(completions_of_a_destroyed_qp_are_gone),
        TEST(destroy_ah_after_posting_lets_the_send_complete),
        TEST(a_qp_number_is_not_reused_soon),
        TEST(a_qp_number_has_24_bits_and_is_not_reserved),
        TEST(the_tear_down_recipe_terminates_with_traffic_outstanding),
        TEST(destroy_cq_waits_until_every_read_completion_event_is_acked),
        TEST(destroy_cq_accepts_one_ack_of_many_events),
        TEST(destroy_cq_does_not_hang_when_more_was_acked_than_read),
        TEST(destroy_cq_drops_its_unread_events_from_the_channel),
        TEST(destroy_qp_waits_until_its_read_async_events_are_acked),
        TEST(destroy_qp_drops_its_unread_async_events),
        TEST(destroy_srq_waits_until_its_read_async_events_are_acked),
        TEST(destroy_cq_waits_until_its_read_async_events_are_acked),
        TEST(busy_is_decided_before_waiting_for_acks),
        TEST(acks_are_counted_in_the_public_structures),
        TEST(close_device_frees_what_the_program_left_behind),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
