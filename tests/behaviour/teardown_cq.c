/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The promises of ibv_destroy_cq's page (verbs.md §1.2, §1.3, §5.4): what keeps a CQ and a channel,
 * what may be left in them, and what a destroy waits for. What a WQ does to its CQ is in wq.c. */
#include "threads.h"
#include "work.h"

#include <poll.h>

static struct end_attr with_channel(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.channel = true;
    return attr;
}

/* A message that the near side receives; nobody polls its completion. */
static void receive_one(struct pair *p, uint64_t id)
{
    end_recv(&p->a, a_recv(&p->a, id, 0, 64));
    end_send(&p->b, a_send(&p->b, id, 0, 64));
    end_expect_success(&p->b, SQ, id, IBV_WC_SEND);
}

static void wait_readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    CHECK(poll(&ready, 1, 60000) == 1, "no event");
}

static bool readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    return poll(&ready, 1, 0) == 1;
}

/* One event more on the receive CQ of p.a, and its completion polled. */
static void raise_event(struct pair *p, uint64_t id)
{
    CHECK_ZERO(ibv_req_notify_cq(p->a.recv_cq, 0));
    receive_one(p, id);
    wait_readable(p->a.channel->fd);
    end_expect_success(&p->a, RQ, id, IBV_WC_RECV);
}

static void read_event(struct end *end, struct ibv_cq *expected)
{
    struct ibv_cq *cq;
    void *context;

    CHECK(!ibv_get_cq_event(end->channel, &cq, &context), "ibv_get_cq_event: %s", strerror(errno));
    assert_ptr_equal(cq, expected);
}

static int call_destroy_cq(void *cq)
{
    return ibv_destroy_cq(cq);
}

/* The receive CQ is gone: what closes the end must not know it. */
static void forget_recv_cq(struct end *end)
{
    end->recv_cq = end->send_cq;
}

/* --- busy ----------------------------------------------------------------------------------------- */

static void ebusy_while_a_qp_uses_it_on_either_side_and_the_qp_goes_on(void **state)
{
    struct end_attr attr = with_channel();
    struct ibv_cq *unused;
    struct pair p;

    for (attr.one_cq = false;; attr.one_cq = true) {
        pair_connect_as(&p, &attr);
        unused = ibv_create_cq(p.a.context, 4, NULL, p.a.channel, 0);
        assert_non_null(unused);
        CHECK_ZERO(ibv_req_notify_cq(p.a.recv_cq, 0));
        assert_int_equal(ibv_destroy_cq(p.a.send_cq), EBUSY);
        assert_int_equal(ibv_destroy_cq(p.a.recv_cq), EBUSY);
        assert_int_equal(ibv_destroy_cq(unused), 0); /* nobody uses that one */
        receive_one(&p, 1);
        assert_int_equal(ibv_destroy_cq(p.a.recv_cq), EBUSY);
        /* nothing has changed: it was armed, it has its event and its completion */
        wait_readable(p.a.channel->fd);
        read_event(&p.a, p.a.recv_cq);
        ibv_ack_cq_events(p.a.recv_cq, 1);
        end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
        pair_marker(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        /* also for a QP that is no good any more */
        CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
        assert_int_equal(ibv_destroy_cq(p.a.send_cq), EBUSY);
        pair_close(&p);
        if (attr.one_cq)
            break;
    }
}

static void ebusy_until_the_last_of_many_qps_is_gone(void **state)
{
    struct end others[5];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (size_t i = 0; i < COUNT(others); i++)
        end_share(&others[i], &p.a);
    end_close_qp(&p.a);
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_int_equal(ibv_destroy_cq(p.a.recv_cq), EBUSY);
        end_close_qp(&others[i]);
    }
    assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
    forget_recv_cq(&p.a);
    pair_close(&p);
}

static void a_channel_is_ebusy_until_its_last_cq_is_gone_and_goes_on(void **state)
{
    const struct end_attr attr = with_channel();
    struct ibv_cq *other;
    struct pair p;

    pair_connect_as(&p, &attr);
    other = ibv_create_cq(p.a.context, 4, NULL, p.a.channel, 0);
    assert_non_null(other);
    raise_event(&p, 1);
    assert_int_equal(ibv_destroy_comp_channel(p.a.channel), EBUSY);
    read_event(&p.a, p.a.recv_cq); /* what waited there still does */
    ibv_ack_cq_events(p.a.recv_cq, 1);
    raise_event(&p, 2);
    end_close_qp(&p.a);
    CHECK_ZERO(ibv_destroy_cq(p.a.recv_cq));
    CHECK_ZERO(ibv_destroy_cq(p.a.send_cq));
    assert_int_equal(ibv_destroy_comp_channel(p.a.channel), EBUSY);
    assert_int_equal(p.a.channel->refcnt, 1);
    CHECK_ZERO(ibv_destroy_cq(other));
    assert_int_equal(p.a.channel->refcnt, 0);
    assert_int_equal(ibv_destroy_comp_channel(p.a.channel), 0);
    p.a.channel = NULL;
    p.a.send_cq = p.a.recv_cq = ibv_create_cq(p.a.context, 1, NULL, NULL, 0);
    pair_close(&p);
}

/* --- what may be left ----------------------------------------------------------------------------- */

static void destroyed_with_unpolled_completions_and_a_notification_requested(void **state)
{
    const struct end_attr attr = with_channel();

    for (unsigned int solicited = 0; solicited <= 1; solicited++) {
        struct pair p;

        pair_connect_as(&p, &attr);
        for (uint64_t i = 0; i < 20; i++)
            receive_one(&p, i);
        CHECK_ZERO(ibv_req_notify_cq(p.a.recv_cq, (int)solicited));
        CHECK_ZERO(ibv_req_notify_cq(p.a.send_cq, (int)solicited));
        end_close_qp(&p.a);
        assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
        forget_recv_cq(&p.a);
        assert_false(readable(p.a.channel->fd));
        pair_close(&p);
    }
}

static void destroyed_while_moderation_holds_its_event_back(void **state)
{
    struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE,
                                          .moderate = {.cq_count = 1000, .cq_period = 60000}};
    const struct end_attr attr = with_channel();

    for (unsigned int round = 0; round < 20; round++) {
        struct pair p;
        int error;

        pair_connect_as(&p, &attr);
        error = ibv_modify_cq(p.a.recv_cq, &moderate);
        if (error == EOPNOTSUPP)
            skip_because("no moderation");
        CHECK_ZERO(error);
        CHECK_ZERO(ibv_req_notify_cq(p.a.recv_cq, 0));
        receive_one(&p, 1); /* the period begins */
        end_close_qp(&p.a);
        assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
        forget_recv_cq(&p.a);
        assert_false(readable(p.a.channel->fd));
        pair_close(&p);
    }
}

static void an_overrun_cq_is_destroyed_like_any_other(void **state)
{
    struct end_attr near = attr_of(IBV_QPT_RC), far = attr_of(IBV_QPT_RC);
    struct end_event event;
    struct pair p;

    near.recv_cqe = 1;
    far.timeout = 8;
    far.retry_cnt = 2;
    pair_open(&p, &near, &far);
    end_connect(&p.a, &p.b);
    for (int i = 0; i <= p.a.recv_cq->cqe; i++) {
        end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
        end_send(&p.b, a_send(&p.b, 1, 0, 64));
    }
    event = end_event(&p.a);
    assert_int_equal(event.type, IBV_EVENT_CQ_ERR);
    assert_true(event.of_recv_cq);
    end_expect_event(&p.a, IBV_EVENT_QP_FATAL);
    assert_int_equal(ibv_destroy_cq(p.a.recv_cq), EBUSY);
    end_close_qp(&p.a);
    assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
    forget_recv_cq(&p.a);
    pair_close(&p);
}

/* --- blocking ------------------------------------------------------------------------------------- */

static int read_one(void *arg)
{
    struct ibv_comp_channel *channel = arg;
    struct ibv_cq *cq;
    void *context;

    return ibv_get_cq_event(channel, &cq, &context);
}

static void blocks_until_completion_events_read_by_many_threads_are_acked(void **state)
{
    enum { READERS = 4 };
    const struct end_attr attr = with_channel();
    struct caller readers[READERS], destroyer;
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < READERS; i++)
        caller_start(&readers[i], read_one, p.a.channel);
    for (uint64_t i = 0; i < READERS; i++) {
        CHECK_ZERO(ibv_req_notify_cq(p.a.recv_cq, 0));
        receive_one(&p, i);
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
    }
    for (size_t i = 0; i < READERS; i++)
        assert_int_equal(caller_finish(&readers[i]), 0);
    end_close_qp(&p.a);
    caller_start(&destroyer, call_destroy_cq, p.a.recv_cq);
    for (unsigned int acked = 0; acked < READERS; acked += 2) {
        assert_true(caller_is_blocked(&destroyer));
        assert_int_equal(ibv_destroy_comp_channel(p.a.channel), EBUSY); /* it is not gone yet */
        ibv_ack_cq_events(p.a.recv_cq, 2);
    }
    assert_int_equal(caller_finish(&destroyer), 0);
    forget_recv_cq(&p.a);
    pair_close(&p);
}

static void blocks_on_both_kinds_of_events_in_either_order(void **state)
{
    for (unsigned int order = 0; order < 2; order++) {
        struct end_attr near = with_channel(), far = attr_of(IBV_QPT_RC);
        struct ibv_async_event event;
        struct caller destroyer;
        struct pair p;

        near.recv_cqe = 1;
        far.timeout = 8;
        far.retry_cnt = 2;
        pair_open(&p, &near, &far);
        end_connect(&p.a, &p.b);
        raise_event(&p, 1);
        read_event(&p.a, p.a.recv_cq);
        for (int i = 0; i <= p.a.recv_cq->cqe; i++) {
            end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
            end_send(&p.b, a_send(&p.b, 1, 0, 64));
        }
        CHECK(!ibv_get_async_event(p.a.context, &event), "ibv_get_async_event: %s", strerror(errno));
        assert_int_equal(event.event_type, IBV_EVENT_CQ_ERR);
        end_expect_event(&p.a, IBV_EVENT_QP_FATAL);
        end_close_qp(&p.a);
        caller_start(&destroyer, call_destroy_cq, p.a.recv_cq);
        assert_true(caller_is_blocked(&destroyer));
        if (order)
            ibv_ack_async_event(&event);
        else
            ibv_ack_cq_events(p.a.recv_cq, 1);
        assert_true(caller_is_blocked(&destroyer));
        if (order)
            ibv_ack_cq_events(p.a.recv_cq, 1);
        else
            ibv_ack_async_event(&event);
        assert_int_equal(caller_finish(&destroyer), 0);
        forget_recv_cq(&p.a);
        pair_close(&p);
    }
}

/* Programs in the field acknowledge once per completion instead of once per event, for days. */
static void acking_more_than_was_read_never_hangs(void **state)
{
    const unsigned int counts[] = {1, 1000, 1u << 31, UINT32_MAX};
    const struct end_attr attr = with_channel();
    struct pair p;

    for (size_t i = 0; i < COUNT(counts); i++) {
        pair_connect_as(&p, &attr);
        raise_event(&p, 1);
        read_event(&p.a, p.a.recv_cq);
        ibv_ack_cq_events(p.a.recv_cq, 1);
        for (unsigned int times = 0; times < 3; times++)
            ibv_ack_cq_events(p.a.recv_cq, counts[i]);
        raise_event(&p, 2); /* read, and acknowledged long ago */
        read_event(&p.a, p.a.recv_cq);
        end_close_qp(&p.a);
        assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
        forget_recv_cq(&p.a);
        pair_close(&p);
    }
}

static void an_event_that_was_acked_before_does_not_block(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    for (uint64_t i = 0; i < 5; i++) {
        raise_event(&p, i);
        read_event(&p.a, p.a.recv_cq);
    }
    ibv_ack_cq_events(p.a.recv_cq, 5);
    end_close_qp(&p.a);
    assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
    forget_recv_cq(&p.a);
    pair_close(&p);
}

/* --- events that nobody read ---------------------------------------------------------------------- */

static void unread_events_vanish_and_those_of_other_cqs_stay_in_order(void **state)
{
    const struct end_attr attr = with_channel();
    struct ibv_cq *cqs[3];
    struct end users[3];
    struct pair p;

    pair_connect_as(&p, &attr);
    for (size_t i = 0; i < COUNT(cqs); i++) {
        cqs[i] = ibv_create_cq(p.a.context, 8, NULL, p.a.channel, 0);
        assert_non_null(cqs[i]);
        p.a.recv_cq = cqs[i]; /* of the next that shares */
        end_share(&users[i], &p.a);
        end_to_init(&users[i]);
        CHECK_ZERO(end_to_state(&users[i], IBV_QPS_ERR));
    }
    p.a.recv_cq = p.a.qp->recv_cq;
    for (unsigned int times = 0; times < 2; times++) {
        for (size_t i = 0; i < COUNT(cqs); i++) {
            CHECK_ZERO(ibv_req_notify_cq(cqs[i], 0));
            end_recv(&users[i], a_recv(&users[i], 1, 0, 8));
            end_expect_status(&users[i], RQ, 1, IBV_WC_WR_FLUSH_ERR);
        }
    }
    end_close_qp(&users[1]);
    assert_int_equal(ibv_destroy_cq(cqs[1]), 0);
    for (unsigned int times = 0; times < 2; times++) {
        for (size_t i = 0; i < COUNT(cqs); i += 2) {
            wait_readable(p.a.channel->fd);
            read_event(&p.a, cqs[i]);
            ibv_ack_cq_events(cqs[i], 1);
        }
    }
    assert_false(readable(p.a.channel->fd));
    for (size_t i = 0; i < COUNT(cqs); i += 2) {
        end_close_qp(&users[i]);
        assert_int_equal(ibv_destroy_cq(cqs[i]), 0);
    }
    pair_close(&p);
}

/* A thread that reads events while CQs come and go: it never reads one of a CQ whose destroy has returned,
 * since that waits for the acknowledgement. */
enum { ROUNDS = 150 };
struct watch {
    struct ibv_comp_channel *channel;
    atomic_uint gone; /* rounds */
};

static int read_and_watch(void *arg)
{
    struct watch *watch = arg;
    uintptr_t round;

    do {
        struct ibv_cq *cq;
        void *context;

        CHECK(!ibv_get_cq_event(watch->channel, &cq, &context), "ibv_get_cq_event: %s", strerror(errno));
        round = (uintptr_t)context;
        CHECK(round >= atomic_load(&watch->gone), "an event of a CQ that was destroyed before");
        ibv_ack_cq_events(cq, 1);
    } while (round != ROUNDS);
    return 0;
}

static void no_event_of_a_destroyed_cq_is_ever_read(void **state)
{
    const struct end_attr attr = with_channel();
    static struct watch watch;
    struct ibv_cq *plain;
    struct caller reader;
    struct end end;

    end_open(&end, NEAR, &attr);
    plain = end.recv_cq;
    watch.channel = end.channel;
    caller_start(&reader, read_and_watch, &watch);
    for (uintptr_t round = 0; round <= ROUNDS; round++) {
        struct ibv_cq *cq = ibv_create_cq(end.context, 4, (void *)round, end.channel, 0);
        struct end user;

        assert_non_null(cq);
        end.recv_cq = cq;
        end_share(&user, &end);
        end_to_init(&user);
        CHECK_ZERO(end_to_state(&user, IBV_QPS_ERR));
        CHECK_ZERO(ibv_req_notify_cq(cq, 0));
        end_recv(&user, a_recv(&user, 1, 0, 8));
        if (round == ROUNDS) { /* the last one is read */
            end_expect_status(&user, RQ, 1, IBV_WC_WR_FLUSH_ERR);
            caller_finish(&reader);
        }
        end_close_qp(&user);
        CHECK_ZERO(ibv_destroy_cq(cq));
        atomic_store(&watch.gone, (unsigned int)round + 1);
    }
    end.recv_cq = plain;
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(ebusy_while_a_qp_uses_it_on_either_side_and_the_qp_goes_on),
        TEST(ebusy_until_the_last_of_many_qps_is_gone),
        TEST(a_channel_is_ebusy_until_its_last_cq_is_gone_and_goes_on),
        TEST(destroyed_with_unpolled_completions_and_a_notification_requested),
        TEST(destroyed_while_moderation_holds_its_event_back),
        TEST(an_overrun_cq_is_destroyed_like_any_other),
        TEST(blocks_until_completion_events_read_by_many_threads_are_acked),
        TEST(blocks_on_both_kinds_of_events_in_either_order),
        TEST(acking_more_than_was_read_never_hangs),
        TEST(an_event_that_was_acked_before_does_not_block),
        TEST(unread_events_vanish_and_those_of_other_cqs_stay_in_order),
        TEST(no_event_of_a_destroyed_cq_is_ever_read),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
