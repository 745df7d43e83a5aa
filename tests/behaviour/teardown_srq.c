/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The promises of ibv_destroy_srq's page (verbs.md §1.2, §1.3, §6): what keeps an SRQ, what may be left
 * in it, and what its destroy waits for. The near side has the SRQ. That none of its requests is lost when
 * its QPs go is in teardown_qp.c. */
#include "threads.h"
#include "work.h"

#include <poll.h>

enum { DEPTH = 8 };

static void open_pair(struct pair *p, enum ibv_qp_type type)
{
    struct end_attr near = attr_of(type), far = attr_of(type);

    near.srq_wr = DEPTH;
    pair_open(p, &near, &far);
}

static void arm(struct end *end, uint32_t limit)
{
    struct ibv_srq_attr attr = {.srq_limit = limit};

    CHECK_ZERO(ibv_modify_srq(end->srq, &attr, IBV_SRQ_LIMIT));
}

static uint32_t armed(struct end *end)
{
    struct ibv_srq_attr attr;

    CHECK_ZERO(ibv_query_srq(end->srq, &attr));
    return attr.srq_limit;
}

static void post(struct end *end, uint64_t first, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++)
        end_recv(end, a_recv(end, first + i, 0, 256));
}

/* A message of the far side that takes the request `id`. */
static void consume(struct pair *p, uint64_t id)
{
    end_send(&p->b,
             p->b.attr.type == IBV_QPT_UD ? a_datagram(&p->b, id, 0, 64, &p->a) : a_send(&p->b, id, 0, 64));
    end_expect_success(&p->a, RQ, id, IBV_WC_RECV);
    end_expect_success(&p->b, SQ, id, IBV_WC_SEND);
}

static int destroy(struct end *end)
{
    const int error = ibv_destroy_srq(end->srq);

    if (!error)
        end->srq = NULL;
    return error;
}

static void ebusy_while_any_qp_is_associated_and_the_qps_go_on(void **state)
{
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    for (size_t t = 0; t < COUNT(types); t++) {
        struct pair p, q;

        open_pair(&p, types[t]);
        end_share(&q.a, &p.a);
        end_share(&q.b, &p.b);
        end_connect(&p.a, &p.b);
        end_connect(&q.a, &q.b);
        post(&p.a, 0, 6);
        arm(&p.a, 1);
        assert_int_equal(destroy(&p.a), EBUSY);
        /* nothing has changed: neither what was posted nor the limit */
        assert_int_equal(armed(&p.a), 1);
        consume(&p, 0);
        consume(&q, 1);
        end_close_qp(&q.a);
        assert_int_equal(destroy(&p.a), EBUSY);
        consume(&p, 2);
        /* in whatever state */
        CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
        assert_int_equal(destroy(&p.a), EBUSY);
        CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
        assert_int_equal(destroy(&p.a), EBUSY);
        end_close_qp(&p.a);
        assert_int_equal(destroy(&p.a), 0);
        end_close_qp(&q.b);
        pair_close(&p);
    }
}

static void destroyed_empty_or_with_requests_or_with_its_limit_armed(void **state)
{
    for (unsigned int left = 0; left <= DEPTH; left += DEPTH / 2) {
        for (unsigned int limit = 0; limit <= left; limit += DEPTH / 4) {
            struct ibv_wc wc;
            struct pollfd ready;
            struct pair p;

            open_pair(&p, IBV_QPT_RC);
            end_connect(&p.a, &p.b);
            /* neither fresh: it has been used before */
            post(&p.a, 100, 2);
            consume(&p, 100);
            consume(&p, 101);
            post(&p.a, 0, left);
            arm(&p.a, limit);
            ready = (struct pollfd){.fd = p.a.context->async_fd, .events = POLLIN};
            end_close_qp(&p.a);
            assert_int_equal(destroy(&p.a), 0);
            /* neither its requests complete nor is its limit reached */
            assert_int_equal(end_poll_once(&p.a, RQ, &wc, 1), 0);
            assert_int_equal(poll(&ready, 1, 0), 0);
            pair_close(&p);
        }
    }
}

static int call_destroy_srq(void *srq)
{
    return ibv_destroy_srq(srq);
}

static struct ibv_async_event read_limit_event(struct end *end)
{
    struct ibv_async_event event;

    CHECK(!ibv_get_async_event(end->context, &event), "ibv_get_async_event: %s", strerror(errno));
    assert_int_equal(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_ptr_equal(event.element.srq, end->srq);
    return event;
}

static void blocks_until_each_event_that_was_read_is_acked(void **state)
{
    struct ibv_async_event events[2];
    struct caller destroyer;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    end_connect(&p.a, &p.b);
    post(&p.a, 0, 4);
    for (uint64_t i = 0; i < COUNT(events); i++) {
        arm(&p.a, (uint32_t)(4 - i)); /* the next message takes it below */
        consume(&p, i);
        events[i] = read_limit_event(&p.a);
    }
    end_close_qp(&p.a);
    caller_start(&destroyer, call_destroy_srq, p.a.srq);
    assert_true(caller_is_blocked(&destroyer));
    assert_int_equal(ibv_dealloc_pd(p.a.pd), EBUSY); /* it is not gone yet */
    ibv_ack_async_event(&events[1]);
    assert_true(caller_is_blocked(&destroyer));
    ibv_ack_async_event(&events[0]);
    assert_int_equal(caller_finish(&destroyer), 0);
    p.a.srq = NULL;
    pair_close(&p);
}

static void busy_is_decided_before_waiting(void **state)
{
    struct ibv_async_event event;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    end_connect(&p.a, &p.b);
    arm(&p.a, 1); /* below already */
    event = read_limit_event(&p.a);
    assert_int_equal(destroy(&p.a), EBUSY);
    ibv_ack_async_event(&event);
    pair_close(&p);
}

static void unread_events_vanish(void **state)
{
    struct pollfd ready;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    end_connect(&p.a, &p.b);
    post(&p.a, 0, 1);
    arm(&p.a, 1);
    consume(&p, 0);
    ready = (struct pollfd){.fd = p.a.context->async_fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 60000), 1);
    end_close_qp(&p.a);
    assert_int_equal(destroy(&p.a), 0);
    assert_int_equal(poll(&ready, 1, 0), 0);
    pair_close(&p);
}

/* Each QP of an SRQ may end while another is in the midst of taking from it. */
static void its_qps_come_and_go_while_another_receives(void **state)
{
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    end_connect(&p.a, &p.b);
    for (uint64_t i = 0; i < 100; i++) {
        struct end passing;

        end_share(&passing, &p.a);
        post(&p.a, i, 1);
        if (i % 2)
            end_to_init(&passing);
        end_send(&p.b, a_send(&p.b, i, 0, 64));
        end_close_qp(&passing);
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
    }
    end_close_qp(&p.a);
    assert_int_equal(destroy(&p.a), 0);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(ebusy_while_any_qp_is_associated_and_the_qps_go_on),
        TEST(destroyed_empty_or_with_requests_or_with_its_limit_armed),
        TEST(blocks_until_each_event_that_was_read_is_acked),
        TEST(busy_is_decided_before_waiting),
        TEST(unread_events_vanish),
        TEST(its_qps_come_and_go_while_another_receives),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
