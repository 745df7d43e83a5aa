/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The promises of ibv_destroy_qp's page (verbs.md §1.2, §1.3, §1.6): what becomes of the requests, the
 * completions, the events and the memory of a QP that goes away, while its peer and its CQs go on. */
#include "threads.h"
#include "work.h"

#include <poll.h>

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

static struct end_attr short_lived(enum ibv_qp_type type)
{
    struct end_attr attr = attr_of(type);

    /* The peer of a QP that is gone soon gives up. Over the network so does one whose peer is kept from a
     * processor for so long: a millisecond elsewhere, some tens there. */
    attr.timeout = over_wire() ? 12 : 8;
    attr.retry_cnt = 2;
    return attr;
}

/* A second pair on the CQs of the first. */
static void share_pair(struct pair *q, const struct pair *p)
{
    end_share(&q->a, &p->a);
    end_share(&q->b, &p->b);
}

static struct send send_to_peer(const struct end *end, const struct end *peer, uint64_t id, size_t length)
{
    return end->attr.type == IBV_QPT_UD ? a_datagram(end, id, 0, length, peer) : a_send(end, id, 0, length);
}

/* Nothing is in the CQs of p.a but what this exchange puts there. */
static void expect_only_my_own(struct pair *p)
{
    pair_marker(&p->a, &p->b);
    pair_marker(&p->b, &p->a);
    assert_int_equal(end_poll_once(&p->a, SQ, (struct ibv_wc[1]){0}, 1), 0);
    assert_int_equal(end_poll_once(&p->a, RQ, (struct ibv_wc[1]){0}, 1), 0);
}

/* --- states --------------------------------------------------------------------------------------- */

enum { OUTSTANDING = 4 };

static void post_receives(struct end *end)
{
    for (uint64_t i = 0; i < OUTSTANDING; i++)
        end_recv(end, a_recv(end, 1000 + i, 1024 * i, 512));
}

/* Nobody receives them: those of RC stay outstanding, others complete and nobody polls. */
static void post_sends(struct end *end, const struct end *peer)
{
    for (uint64_t i = 0; i < OUTSTANDING; i++)
        end_send(end, send_to_peer(end, peer, 2000 + i, 64));
}

/* With requests on both queues, as far as the state takes them. false: the type has no such state. */
static bool bring_to(struct pair *q, enum ibv_qp_state state)
{
    struct end *end = &q->a;

    if (state == IBV_QPS_RESET)
        return true;
    if (state == IBV_QPS_INIT || state == IBV_QPS_RTR) {
        end_to_init(end);
        post_receives(end);
        if (state == IBV_QPS_RTR)
            end_to_rtr(end, &q->b);
        return true;
    }
    if (state == IBV_QPS_SQE && end->attr.type == IBV_QPT_RC)
        return false;
    end_connect(end, &q->b);
    post_receives(end);
    post_sends(end, &q->b);
    if (state == IBV_QPS_SQE) {
        struct send bad = send_to_peer(end, &q->b, 3000, 64);

        bad.sge[0].lkey ^= 0x5a5a00;
        end_send(end, bad);
        end_wait_state(end, IBV_QPS_SQE);
        post_sends(end, &q->b);
    } else if (state == IBV_QPS_SQD || state == IBV_QPS_ERR) {
        CHECK_ZERO(end_to_state(end, state));
        post_sends(end, &q->b); /* held, or flushed */
    }
    return true;
}

static void destroyed_in_any_state_outstanding_requests_never_complete(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct pair p;

        pair_connect(&p, types[t]);
        for (enum ibv_qp_state in = IBV_QPS_RESET; in <= IBV_QPS_ERR; in++) {
            struct pair q;

            share_pair(&q, &p);
            if (bring_to(&q, in))
                CHECK(!ibv_destroy_qp(q.a.qp), "in state %d", in);
            else
                CHECK_ZERO(ibv_destroy_qp(q.a.qp));
            q.a.qp = NULL;
            expect_only_my_own(&p);
            end_close_qp(&q.a);
            end_close_qp(&q.b);
        }
        pair_close(&p);
    }
}

/* Not legal, but a QP that comes later must not suffer from it. */
static void destroyed_in_a_batch_that_was_never_completed_it_holds_up_no_other(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.send_ops = IBV_QP_EX_WITH_SEND;
    end_open(&end, NEAR, &attr);
    for (unsigned int i = 0; i < 300; i++) {
        struct end passing;

        end_share(&passing, &end);
        ibv_wr_start(passing.qpx);
        if (i)
            ibv_wr_abort(passing.qpx);
        end_close_qp(&passing);
    }
    end_close(&end);
}

/* --- traffic -------------------------------------------------------------------------------------- */

struct stream {
    unsigned int count; /* messages; RC: or until one fails */
    size_t length;
    enum ibv_wr_opcode opcode;
    struct end peer;
    enum ibv_wc_status failure; /* of the first that failed */
};

/* Sends as fast as it goes, and polls. */
static void stream_here(struct end *end, void *arg)
{
    struct stream *stream = arg;
    unsigned int sent = 0, done = 0;
    struct ibv_wc wc[16];

    stream->failure = IBV_WC_SUCCESS;
    EVENTUALLY(done == sent && (sent == stream->count || stream->failure), "%u messages of a stream",
               stream->count)
    {
        const int got = end_poll_once(end, SQ, wc, COUNT(wc));

        for (int i = 0; i < got; i++)
            if (wc[i].status && !stream->failure)
                stream->failure = wc[i].status;
        done += (unsigned int)got;
        while (sent < stream->count && sent - done < 16 && !stream->failure) {
            end_send(end, stream->opcode == IBV_WR_RDMA_WRITE
                              ? a_write(end, sent, 0, stream->length, &stream->peer, 0)
                              : send_to_peer(end, &stream->peer, sent, stream->length));
            sent++;
        }
    }
}

static void destroyed_while_the_peer_keeps_sending_the_rest_goes_on(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        const struct end_attr attr = short_lived(types[t]);
        struct stream stream = {.count = types[t] == IBV_QPT_RC ? 100000 : 2000, .length = 1000};
        struct end_call far;
        struct ibv_wc wc[8];
        struct pair p, q;

        stream.opcode = IBV_WR_SEND;
        pair_connect_as(&p, &attr);
        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        for (uint64_t i = 0; i < 64; i++)
            end_recv(&q.a, a_recv(&q.a, i, 0, 2048));
        stream.peer = q.a;
        end_start(&far, &q.b, stream_here, &stream, sizeof stream);
        end_poll(&q.a, RQ, wc, COUNT(wc)); /* it is in the midst of it */
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        assert_int_equal(end_poll_once(&p.a, RQ, wc, COUNT(wc)), 0);
        end_finish(&far);
        /* to the peer it has fallen silent; UC and UD do not notice */
        assert_int_equal(stream.failure, types[t] == IBV_QPT_RC ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS);
        expect_only_my_own(&p);
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        pair_close(&p);
    }
}

static void the_peers_writes_end_before_destroy_returns(void **state)
{
    const size_t lengths[] = {4096, 32768};

    for (unsigned int round = 0; round < 10; round++) {
        const struct end_attr attr = short_lived(round % 2 ? IBV_QPT_UC : IBV_QPT_RC);
        struct stream stream = {.opcode = IBV_WR_RDMA_WRITE, .length = lengths[round / 2 % 2]};
        const size_t length = stream.length;
        struct end_call far;
        struct pair p, q;

        stream.count = attr.type == IBV_QPT_RC ? 100000 : 300;
        pair_connect_as(&p, &attr);
        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        end_fill(&q.b, 0, length, 1);
        end_fill(&q.a, 0, length, 2);
        stream.peer = q.a;
        end_start(&far, &q.b, stream_here, &stream, sizeof stream);
        /* UC may be through before anybody looked */
        EVENTUALLY(find_difference(q.a.buf, length, 1) == length, "a write to arrive")
        {
            end_poll_once(&p.a, SQ, (struct ibv_wc[1]){0}, 1);
        }
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        end_fill(&p.a, 0, length, 3); /* it is the program's again */
        end_finish(&far);
        expect_only_my_own(&p);
        end_expect_data(&p.a, 0, length, 3);
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        pair_close(&p);
    }
}

static void answers_to_its_reads_end_before_destroy_returns(void **state)
{
    for (unsigned int round = 0; round < 10; round++) {
        const size_t length = round % 2 ? 512 : 48 * 1024;
        struct pair p, q;

        pair_connect(&p, IBV_QPT_RC);
        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        end_fill(&q.b, 0, length, 1);
        for (uint64_t i = 0; i < 16; i++)
            end_send(&q.a, a_read(&q.a, i, 0, length, &q.b, 0));
        for (unsigned int i = 0; i < round; i++) /* some have begun to arrive */
            end_poll_once(&q.a, SQ, (struct ibv_wc[1]){0}, 1);
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        end_fill(&p.a, 0, length, 3);
        expect_only_my_own(&p);
        end_expect_data(&p.a, 0, length, 3);
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        pair_close(&p);
    }
}

static void what_it_was_sending_arrives_as_it_was_or_not_at_all(void **state)
{
    enum { MESSAGES = 8, LENGTH = 7000 };

    for (unsigned int round = 0; round < 10; round++) {
        struct ibv_wc wc[MESSAGES];
        struct pair p, q;

        pair_connect(&p, round % 2 ? IBV_QPT_UC : IBV_QPT_RC);
        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        for (uint64_t i = 0; i < MESSAGES; i++)
            end_recv(&q.b, a_recv(&q.b, i, i * LENGTH, LENGTH));
        end_fill(&q.a, 0, LENGTH, round);
        for (uint64_t i = 0; i < MESSAGES; i++)
            end_send(&q.a, a_send(&q.a, i, 0, LENGTH));
        if (round % 4 >= 2)
            end_wc(&q.a, SQ);
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        end_fill(&p.a, 0, LENGTH, ~0ull);
        /* what has not arrived by now never will: the rest comes back */
        CHECK_ZERO(end_to_state(&q.b, IBV_QPS_ERR));
        end_poll(&q.b, RQ, wc, MESSAGES);
        for (unsigned int i = 0; i < MESSAGES; i++) {
            assert_int_equal(wc[i].wr_id, i);
            if (wc[i].status == IBV_WC_SUCCESS)
                end_expect_data(&q.b, i * LENGTH, LENGTH, round);
            else
                assert_int_equal(wc[i].status, IBV_WC_WR_FLUSH_ERR);
        }
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        expect_only_my_own(&p);
        pair_close(&p);
    }
}

/* --- completions ---------------------------------------------------------------------------------- */

static void unpolled_completions_are_never_returned_and_others_keep_their_order(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    for (attr.one_cq = false;; attr.one_cq = true) {
        uint64_t next[2] = {0, 0};
        unsigned int seen = 0;
        struct ibv_wc wc[32];
        struct pair p, q;

        pair_connect_as(&p, &attr);
        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        for (uint64_t i = 0; i < 6; i++) {
            struct pair *of = i % 2 ? &q : &p;

            end_recv(&of->b, a_recv(&of->b, i, 0, 64));
            end_recv(&of->a, a_recv(&of->a, i, 0, 64));
            end_send(&of->a, a_send(&of->a, i, 0, 64));
            end_expect_success(&of->b, RQ, i, IBV_WC_RECV);
            end_send(&of->b, a_send(&of->b, i, 0, 64));
            end_expect_success(&of->b, SQ, i, IBV_WC_SEND); /* so it has arrived */
        }
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        EVENTUALLY(seen == 6, "the completions of the other QP")
        {
            int got = end_poll_once(&p.a, SQ, wc, COUNT(wc) / 2);

            got += end_poll_once(&p.a, RQ, wc + got, COUNT(wc) / 2);
            for (int i = 0; i < got; i++) {
                uint64_t *expected = &next[wc[i].opcode == IBV_WC_RECV];

                assert_int_equal(wc[i].qp_num, p.a.qp_num);
                assert_int_equal(wc[i].wr_id, *expected);
                *expected += 2;
            }
            seen += (unsigned int)got;
        }
        expect_only_my_own(&p);
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        pair_close(&p);
        if (attr.one_cq)
            break;
    }
}

/* A thread that polls while QPs come and go: what it gets is never of one whose destroy had returned before
 * it asked. */
enum { ROUNDS = 150 };
struct watch {
    struct ibv_cq *cq;
    struct ibv_cq_ex *cq_ex; /* polled in windows */
    uint32_t numbers[ROUNDS];
    atomic_uint begun, gone; /* rounds */
    atomic_uint seen;        /* completions */
    atomic_bool stop;
};

static void check_number(struct watch *watch, uint32_t number, unsigned int gone_before)
{
    const unsigned int begun = atomic_load(&watch->begun);

    atomic_fetch_add(&watch->seen, 1);
    for (unsigned int i = 0; i < begun; i++)
        if (watch->numbers[i] == number)
            CHECK(i >= gone_before, "a completion of QP 0x%x, which was destroyed before the poll", number);
}

static int poll_and_watch(void *arg)
{
    struct watch *watch = arg;
    struct ibv_wc wc;

    while (!atomic_load(&watch->stop)) {
        const unsigned int gone = atomic_load(&watch->gone);

        if (ibv_poll_cq(watch->cq, 1, &wc) == 1)
            check_number(watch, wc.qp_num, gone);
    }
    return 0;
}

static int poll_in_windows_and_watch(void *arg)
{
    struct watch *watch = arg;
    struct ibv_poll_cq_attr attr = {0};

    while (!atomic_load(&watch->stop)) {
        unsigned int gone = atomic_load(&watch->gone);

        if (ibv_start_poll(watch->cq_ex, &attr))
            continue;
        do {
            check_number(watch, ibv_wc_read_qp_num(watch->cq_ex), gone);
            gone = atomic_load(&watch->gone);
        } while (!ibv_next_poll(watch->cq_ex));
        ibv_end_poll(watch->cq_ex);
    }
    return 0;
}

static void post_many(struct end *end, unsigned int count)
{
    struct recv recvs[64];

    for (unsigned int i = 0; i < COUNT(recvs); i++)
        recvs[i] = a_recv(end, i, 0, 8);
    for (unsigned int now; count; count -= now) {
        now = count < COUNT(recvs) ? count : COUNT(recvs);
        CHECK_ZERO(end_try_recv(end, recvs, now, NULL));
    }
}

/* Each goes when some of its completions were polled, and many were not: as many as the CQ holds, so that
 * there must be no room left to those of the one before. */
static void come_and_go(struct end *end, struct watch *watch)
{
    for (unsigned int round = 0; round < ROUNDS; round++) {
        const unsigned int seen = atomic_load(&watch->seen);
        struct end passing;

        end_share(&passing, end);
        watch->numbers[round] = passing.qp_num;
        atomic_store(&watch->begun, round + 1);
        end_to_init(&passing);
        CHECK_ZERO(end_to_state(&passing, IBV_QPS_ERR));
        post_many(&passing, 8);
        EVENTUALLY(atomic_load(&watch->seen) != seen, "the thread that polls");
        post_many(&passing, (unsigned int)end->recv_cq->cqe - 8);
        end_close_qp(&passing);
        atomic_store(&watch->gone, round + 1);
    }
    atomic_store(&watch->stop, true);
}

static void no_poll_of_another_thread_returns_a_completion_of_a_qp_that_is_gone(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    static struct watch watch;
    struct caller poller;
    struct end end;

    end_open(&end, NEAR, &attr);
    watch = (struct watch){.cq = end.recv_cq};
    caller_start(&poller, poll_and_watch, &watch);
    come_and_go(&end, &watch);
    caller_finish(&poller);
    end_close(&end);
}

static struct ibv_cq_ex *make_cq_ex(struct ibv_context *context)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 255, .wc_flags = IBV_WC_EX_WITH_QP_NUM};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);

    CHECK(cq, "ibv_create_cq_ex: %s", strerror(errno));
    return cq;
}

static void no_polling_window_shows_a_completion_of_a_qp_that_is_gone(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    static struct watch watch;
    struct ibv_cq *plain;
    struct caller poller;
    struct end end;

    end_open(&end, NEAR, &attr);
    watch = (struct watch){.cq_ex = make_cq_ex(end.context)};
    plain = end.recv_cq;
    end.recv_cq = ibv_cq_ex_to_cq(watch.cq_ex); /* of the QPs that share it from now on */
    caller_start(&poller, poll_in_windows_and_watch, &watch);
    come_and_go(&end, &watch);
    caller_finish(&poller);
    end.recv_cq = plain;
    CHECK_ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(watch.cq_ex)));
    end_close(&end);
}

static int call_destroy_qp(void *qp)
{
    return ibv_destroy_qp(qp);
}

static void destroyed_inside_a_polling_window_its_completions_are_passed_over(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_poll_cq_attr poll_attr = {0};
    struct ibv_cq *plain;
    struct ibv_cq_ex *cq;
    struct caller destroy;
    struct end end, one, two;

    end_open(&end, NEAR, &attr);
    cq = make_cq_ex(end.context);
    plain = end.recv_cq;
    end.recv_cq = ibv_cq_ex_to_cq(cq);
    end_share(&one, &end);
    end_share(&two, &end);
    end_to_init(&one);
    end_to_init(&two);
    for (uint64_t i = 0; i < 3; i++) {
        end_recv(&one, a_recv(&one, 10 + i, 0, 8));
        end_recv(&two, a_recv(&two, 20 + i, 0, 8));
    }
    CHECK_ZERO(end_to_state(&one, IBV_QPS_ERR));
    EVENTUALLY(ibv_start_poll(cq, &poll_attr) == 0, "the first completion");
    assert_int_equal(cq->wr_id, 10);
    caller_start(&destroy, call_destroy_qp, one.qp);
    assert_int_equal(caller_finish(&destroy), 0); /* also while the window is open */
    one.qp = NULL;
    assert_int_equal(ibv_wc_read_qp_num(cq), one.qp_num); /* this one was returned before */
    CHECK_ZERO(end_to_state(&two, IBV_QPS_ERR));
    for (uint64_t i = 0; i < 3; i++) {
        EVENTUALLY(ibv_next_poll(cq) == 0, "completion %llu", (unsigned long long)(20 + i));
        assert_int_equal(cq->wr_id, 20 + i);
    }
    assert_int_equal(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
    end_close_qp(&one);
    end_close_qp(&two);
    CHECK_ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    end.recv_cq = plain;
    end_close(&end);
}

/* While a window is open, too, a completion of a QP that is gone takes no room from others. */
static void destroyed_inside_a_polling_window_it_leaves_its_room_to_others(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_poll_cq_attr poll_attr = {0};
    unsigned int live = 0;
    struct ibv_cq *plain;
    struct ibv_cq_ex *cq;
    struct end end, last;

    end_open(&end, NEAR, &attr);
    cq = make_cq_ex(end.context);
    plain = end.recv_cq;
    end.recv_cq = ibv_cq_ex_to_cq(cq);
    for (unsigned int round = 0; round < 5; round++) {
        end_share(&last, &end);
        end_to_init(&last);
        CHECK_ZERO(end_to_state(&last, IBV_QPS_ERR));
        post_many(&last, (unsigned int)end.recv_cq->cqe);
        if (round == 0) {
            EVENTUALLY(ibv_start_poll(cq, &poll_attr) == 0, "the first completion");
        }
        if (round < 4)
            end_close_qp(&last);
    }
    while (!ibv_next_poll(cq)) {
        assert_int_equal(ibv_wc_read_qp_num(cq), last.qp_num);
        live++;
    }
    ibv_end_poll(cq);
    assert_int_equal(live, end.recv_cq->cqe);
    end_close_qp(&last);
    CHECK_ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    end.recv_cq = plain;
    end_close(&end);
}

static void expect_cq_event(struct end *end, struct ibv_cq *expected)
{
    struct pollfd ready = {.fd = end->channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;

    assert_int_equal(poll(&ready, 1, 60000), 1);
    assert_int_equal(ibv_get_cq_event(end->channel, &cq, &context), 0);
    assert_ptr_equal(cq, expected);
    ibv_ack_cq_events(cq, 1);
}

static void completion_events_stay_with_the_cq_and_so_does_its_arm_state(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pollfd ready;
    struct pair p, q;

    attr.channel = true;
    pair_connect_as(&p, &attr);
    ready = (struct pollfd){.fd = p.a.channel->fd, .events = POLLIN};
    share_pair(&q, &p);
    end_connect(&q.a, &q.b);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 0), 0);
    end_recv(&q.a, a_recv(&q.a, 1, 0, 64));
    end_send(&q.b, a_send(&q.b, 1, 0, 64));
    assert_int_equal(poll(&ready, 1, 60000), 1);
    CHECK_ZERO(ibv_destroy_qp(q.a.qp));
    q.a.qp = NULL;
    /* the event was the CQ's: it is read, and there is nothing to poll */
    expect_cq_event(&p.a, p.a.recv_cq);
    assert_int_equal(end_poll_once(&p.a, RQ, (struct ibv_wc[1]){0}, 1), 0);
    end_close_qp(&q.a);
    end_close_qp(&q.b);

    share_pair(&q, &p);
    end_connect(&q.a, &q.b);
    end_recv(&q.a, a_recv(&q.a, 1, 0, 64));
    end_send(&q.b, a_send(&q.b, 1, 0, 64));
    end_expect_success(&q.b, SQ, 1, IBV_WC_SEND);
    assert_int_equal(ibv_req_notify_cq(p.a.recv_cq, 0), 0);
    CHECK_ZERO(ibv_destroy_qp(q.a.qp));
    q.a.qp = NULL;
    assert_int_equal(poll(&ready, 1, 0), 0); /* that was no completion */
    end_recv(&p.a, a_recv(&p.a, 2, 0, 64));
    end_send(&p.b, a_send(&p.b, 2, 0, 64));
    expect_cq_event(&p.a, p.a.recv_cq); /* still armed */
    end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
    end_close_qp(&q.a);
    end_close_qp(&q.b);
    pair_close(&p);
}

/* --- events --------------------------------------------------------------------------------------- */

struct provocation {
    enum ibv_event_type event;
    void (*provoke)(struct pair *q, struct end *other);
    bool srq;
};

static void drain_sends(struct pair *q, struct end *other)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};

    end_connect(&q->a, &q->b);
    CHECK_ZERO(end_modify(&q->a, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
}

static void let_the_peer_begin(struct pair *q, struct end *other)
{
    end_to_init(&q->a);
    end_to_init(&q->b);
    end_to_rtr(&q->a, &q->b);
    end_to_rtr(&q->b, &q->a);
    end_to_rts(&q->b);
    end_recv(&q->a, a_recv(&q->a, 1, 0, 64));
    end_send(&q->b, a_send(&q->b, 1, 0, 64));
}

static void let_the_peer_trespass(struct pair *q, struct end *other)
{
    struct send bad;

    end_connect(&q->a, &q->b);
    bad = a_write(&q->b, 1, 0, 64, &q->a, 0);
    bad.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&q->b, bad);
    end_expect_status(&q->b, SQ, 1, IBV_WC_REM_ACCESS_ERR);
}

static void fail_with_an_srq(struct pair *q, struct end *other)
{
    end_connect(&q->a, &q->b);
    CHECK_ZERO(end_to_state(&q->a, IBV_QPS_ERR));
}

static void overrun_its_cq(struct pair *q, struct end *other)
{
    end_connect(&q->a, &q->b);
    end_to_init(other);
    CHECK_ZERO(end_to_state(other, IBV_QPS_ERR));
    for (int i = 0; i <= other->recv_cq->cqe; i++)
        end_recv(other, a_recv(other, 1, 0, 8));
}

/* Acknowledges what comes before. */
static struct ibv_async_event read_event(struct end *end, enum ibv_event_type type)
{
    struct ibv_async_event event;

    for (;;) {
        CHECK(!ibv_get_async_event(end->context, &event), "ibv_get_async_event: %s", strerror(errno));
        if (event.event_type == type)
            return event;
        ibv_ack_async_event(&event);
    }
}

static void blocks_on_every_kind_of_event_that_was_read_until_it_is_acked(void **state)
{
    static const struct provocation provocations[] = {
        {IBV_EVENT_SQ_DRAINED, drain_sends, false},
        {IBV_EVENT_COMM_EST, let_the_peer_begin, false},
        {IBV_EVENT_QP_ACCESS_ERR, let_the_peer_trespass, false},
        {IBV_EVENT_QP_LAST_WQE_REACHED, fail_with_an_srq, true},
        {IBV_EVENT_QP_FATAL, overrun_its_cq, false},
    };

    for (size_t i = 0; i < COUNT(provocations); i++) {
        struct end_attr near = attr_of(IBV_QPT_RC), far = attr_of(IBV_QPT_RC);
        struct ibv_async_event event;
        struct caller destroy;
        struct end other;
        struct pair q;

        near.srq_wr = provocations[i].srq ? 8 : 0;
        near.recv_cqe = 3; /* small enough to overrun */
        pair_open(&q, &near, &far);
        end_share(&other, &q.a);
        provocations[i].provoke(&q, &other);
        event = read_event(&q.a, provocations[i].event);
        assert_ptr_equal(event.element.qp, q.a.qp);
        end_close_qp(&other);
        caller_start(&destroy, call_destroy_qp, q.a.qp);
        CHECK(caller_is_blocked(&destroy), "%s does not block", ibv_event_type_str(event.event_type));
        /* it is not gone yet: what it is made of is in use */
        assert_int_equal(ibv_destroy_cq(q.a.recv_cq), EBUSY);
        assert_int_equal(ibv_destroy_cq(q.a.send_cq), EBUSY);
        assert_int_equal(ibv_dealloc_pd(q.a.pd), EBUSY);
        if (q.a.srq)
            assert_int_equal(ibv_destroy_srq(q.a.srq), EBUSY);
        ibv_ack_async_event(&event);
        assert_int_equal(caller_finish(&destroy), 0);
        q.a.qp = NULL;
        pair_close(&q);
    }
}

static void while_it_blocks_it_is_out_of_service_and_all_else_goes_on(void **state)
{
    const struct end_attr attr = short_lived(IBV_QPT_RC);
    struct ibv_async_event event;
    struct caller destroy;
    struct pair p, q;

    pair_connect_as(&p, &attr);
    share_pair(&q, &p);
    let_the_peer_begin(&q, NULL);
    event = read_event(&q.a, IBV_EVENT_COMM_EST);
    end_expect_success(&q.b, SQ, 1, IBV_WC_SEND);
    caller_start(&destroy, call_destroy_qp, q.a.qp);
    assert_true(caller_is_blocked(&destroy));
    end_send(&q.b, a_send(&q.b, 2, 0, 64)); /* nobody is there */
    end_expect_status(&q.b, SQ, 2, IBV_WC_RETRY_EXC_ERR);
    expect_only_my_own(&p); /* nor is its receive: the completion that nobody polled is gone */
    ibv_ack_async_event(&event);
    assert_int_equal(caller_finish(&destroy), 0);
    q.a.qp = NULL;
    end_close_qp(&q.a);
    end_close_qp(&q.b);
    expect_only_my_own(&p);
    pair_close(&p);
}

static int ack_event(void *event)
{
    ibv_ack_async_event(event);
    return 0;
}

static void blocks_until_the_last_of_many_events_is_acked_by_whomever(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_async_event events[4];
    struct caller destroy, acker;
    struct pair q;

    pair_connect_as(&q, &attr);
    for (size_t i = 0; i < COUNT(events); i++) {
        CHECK_ZERO(end_modify(&q.a, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
        events[i] = read_event(&q.a, IBV_EVENT_SQ_DRAINED);
        CHECK_ZERO(end_to_state(&q.a, IBV_QPS_RTS));
    }
    ibv_ack_async_event(&events[2]); /* one before, in any order */
    caller_start(&destroy, call_destroy_qp, q.a.qp);
    for (size_t i = COUNT(events); i-- > 0;) {
        if (i == 2)
            continue;
        assert_true(caller_is_blocked(&destroy));
        caller_start(&acker, ack_event, &events[i]);
        caller_finish(&acker);
    }
    assert_int_equal(caller_finish(&destroy), 0);
    q.a.qp = NULL;
    pair_close(&q);
}

static void unread_events_vanish_and_only_those_that_were_read_count(void **state)
{
    const struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_async_event read, next;
    struct pollfd ready;
    struct caller destroy;
    struct end other;
    struct pair q;

    pair_connect_as(&q, &attr);
    end_share(&other, &q.a);
    for (unsigned int i = 0; i < 3; i++) {
        CHECK_ZERO(end_modify(&q.a, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
        CHECK_ZERO(end_to_state(&q.a, IBV_QPS_RTS));
    }
    read = read_event(&q.a, IBV_EVENT_SQ_DRAINED);
    ready = (struct pollfd){.fd = q.a.context->async_fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 0), 1);
    caller_start(&destroy, call_destroy_qp, q.a.qp);
    assert_true(caller_is_blocked(&destroy));
    assert_int_equal(poll(&ready, 1, 0), 0);
    ibv_ack_async_event(&read);
    assert_int_equal(caller_finish(&destroy), 0);
    q.a.qp = NULL;
    /* the next event is another QP's */
    end_to_init(&other);
    end_to_rtr(&other, &q.b);
    end_to_rts(&other);
    CHECK_ZERO(end_modify(&other, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    CHECK(!ibv_get_async_event(q.a.context, &next), "ibv_get_async_event: %s", strerror(errno));
    assert_ptr_equal(next.element.qp, other.qp);
    ibv_ack_async_event(&next);
    end_close_qp(&other);
    pair_close(&q);
}

/* A thread that reads events while QPs come and go: what it reads is never of one whose destroy has returned,
 * since that waits for the acknowledgement. */
static int read_and_watch(void *arg)
{
    struct watch *watch = arg;
    struct ibv_context *context = watch->cq->context;
    struct ibv_async_event event;

    for (;;) {
        CHECK(!ibv_get_async_event(context, &event), "ibv_get_async_event: %s", strerror(errno));
        if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
            break;
        check_number(watch, event.element.qp->qp_num, atomic_load(&watch->gone));
        ibv_ack_async_event(&event);
    }
    ibv_ack_async_event(&event);
    return 0;
}

static void no_event_of_a_destroyed_qp_is_ever_read(void **state)
{
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct end_attr attr = attr_of(IBV_QPT_RC);
    static struct watch watch;
    struct caller reader;
    struct end end;

    attr.srq_wr = 8;
    end_open(&end, NEAR, &attr);
    watch = (struct watch){.cq = end.recv_cq};
    caller_start(&reader, read_and_watch, &watch);
    for (unsigned int round = 0; round < ROUNDS; round++) {
        struct end passing;

        end_share(&passing, &end);
        watch.numbers[round] = passing.qp_num;
        atomic_store(&watch.begun, round + 1);
        end_to_init(&passing);
        CHECK_ZERO(end_to_state(&passing, IBV_QPS_ERR)); /* LAST_WQE_REACHED, now */
        end_close_qp(&passing);
        atomic_store(&watch.gone, round + 1);
    }
    CHECK_ZERO(ibv_modify_srq(end.srq, &limit, IBV_SRQ_LIMIT)); /* the last word */
    caller_finish(&reader);
    end_close(&end);
}

/* --- the recipe ----------------------------------------------------------------------------------- */

/* ERR, poll until empty, destroy; the CQ then serves another QP, is resized, and serves again. */
static void the_recipe_step_by_step_and_the_cq_is_fit_for_the_next(void **state)
{
    enum { BOTH = 20 };
    struct end_attr attr = short_lived(IBV_QPT_RC);
    struct pair p;

    attr.one_cq = true;
    pair_connect_as(&p, &attr);
    for (unsigned int round = 0; round < 6; round++) {
        bool seen[2][BOTH] = {{false}};
        unsigned int total = 0;
        struct pair q;
        int got;

        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        for (uint64_t i = 0; i < BOTH; i++) {
            end_recv(&q.a, a_recv(&q.a, i, 64 * i, 64));
            end_send(&q.a, i % 3 ? a_send(&q.a, 100 + i, 0, 64) : unsignaled(a_send(&q.a, 100 + i, 0, 64)));
            if (i < round)
                end_recv(&q.b, a_recv(&q.b, i, 0, 64)); /* some arrive, the others wait */
        }
        CHECK_ZERO(end_to_state(&q.a, IBV_QPS_ERR));
        do {
            struct ibv_wc wc[7];

            got = end_poll_once(&q.a, SQ, wc, COUNT(wc));
            for (int i = 0; i < got; i++) {
                bool *mine = &seen[wc[i].wr_id >= 100][wc[i].wr_id % 100];

                assert_int_equal(wc[i].qp_num, q.a.qp_num);
                assert_false(*mine);
                *mine = true;
            }
            total += (unsigned int)got;
            assert_true(total <= (unsigned int)q.a.send_cq->cqe);
        } while (got);
        for (unsigned int i = 0; i < BOTH; i++) {
            assert_true(seen[0][i]);
            /* an unsignaled one that succeeded is the only one without a completion */
            assert_true(seen[1][i] || (i % 3 == 0 && i < round));
        }
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        CHECK_ZERO(ibv_resize_cq(p.a.send_cq, round % 2 ? 300 : 1));
        CHECK_ZERO(ibv_resize_cq(p.a.send_cq, 256));
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        expect_only_my_own(&p);
    }
    pair_close(&p);
}

static void one_more_request_that_comes_back_flushed_ends_the_drain(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        const struct end_attr attr = short_lived(types[t]);
        struct pair q;

        pair_connect_as(&q, &attr);
        post_receives(&q.a);
        post_sends(&q.a, &q.b);
        CHECK_ZERO(end_to_state(&q.a, IBV_QPS_ERR));
        end_recv(&q.a, a_recv(&q.a, 99, 0, 0));
        end_send(&q.a, send_to_peer(&q.a, &q.b, 99, 0));
        for (enum queue queue = SQ; queue <= RQ; queue++)
            EVENTUALLY(end_wc(&q.a, queue).wr_id == 99, "the last request of a drained queue");
        /* nothing comes behind it */
        assert_int_equal(end_poll_once(&q.a, SQ, (struct ibv_wc[1]){0}, 1), 0);
        assert_int_equal(end_poll_once(&q.a, RQ, (struct ibv_wc[1]){0}, 1), 0);
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        pair_close(&q);
    }
}

/* Of an SRQ that serves one QP after the other, each torn down in the midst of messages, no request is ever
 * lost: each has a completion, or is still there for the next. */
static void the_recipe_with_an_srq_loses_none_of_its_requests(void **state)
{
    enum { DEPTH = 16, ROUNDS_OF_QPS = 12, SHORT = 1000, LONG = 20000 };
    /* The far side has to be heard, however long the near one is kept from a processor: its retries last. */
    struct end_attr near = short_lived(IBV_QPT_RC), far = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[DEPTH];
    bool posted[DEPTH] = {false};
    struct pair p;

    near.srq_wr = DEPTH;
    far.rnr_retry = 0;
    pair_open(&p, &near, &far);
    end_connect(&p.a, &p.b);
    for (unsigned int round = 0; round <= ROUNDS_OF_QPS; round++) {
        unsigned int done = 0;
        struct pair q;
        int got;

        for (uint64_t i = 0; i < DEPTH; i++) {
            if (!posted[i])
                end_recv(&p.a, a_recv(&p.a, i, 0, LONG));
            posted[i] = true;
        }
        if (round == ROUNDS_OF_QPS)
            break;
        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        for (uint64_t i = 0; i < DEPTH / 2; i++)
            end_send(&q.b, a_send(&q.b, i, 0, i % 2 ? LONG : SHORT));
        for (unsigned int i = 0; i < round % 4; i++) {
            struct ibv_wc one = end_wc(&q.a, RQ);

            CHECK(posted[one.wr_id], "request %llu completed twice", (unsigned long long)one.wr_id);
            posted[one.wr_id] = false;
            done++;
        }
        if (round % 3 == 2) { /* ends by an error of its own: a message longer than its receive */
            end_send(&q.b, a_send(&q.b, 50, 0, LONG + 1));
            end_wait_state(&q.a, IBV_QPS_ERR);
        } else {
            CHECK_ZERO(end_to_state(&q.a, IBV_QPS_ERR));
        }
        end_expect_event(&q.a, IBV_EVENT_QP_LAST_WQE_REACHED);
        do {
            got = end_poll_once(&q.a, RQ, wc, COUNT(wc));
            for (int i = 0; i < got; i++) {
                CHECK(posted[wc[i].wr_id], "request %llu completed twice", (unsigned long long)wc[i].wr_id);
                posted[wc[i].wr_id] = false;
                done++;
            }
        } while (got);
        assert_true(done <= DEPTH / 2 + 1);
        CHECK_ZERO(ibv_destroy_qp(q.a.qp));
        q.a.qp = NULL;
        end_close_qp(&q.a);
        end_close_qp(&q.b);
    }
    /* All of them are there now: so many messages are received, each into another one, and not one more. */
    {
        struct pair q;

        share_pair(&q, &p);
        end_connect(&q.a, &q.b);
        for (unsigned int i = 0; i < DEPTH; i++) {
            struct ibv_wc one;

            end_send(&q.b, a_send(&q.b, i, 0, SHORT));
            one = end_wc(&q.a, RQ);
            assert_int_equal(one.status, IBV_WC_SUCCESS);
            CHECK(posted[one.wr_id], "request %llu completed twice", (unsigned long long)one.wr_id);
            posted[one.wr_id] = false;
            end_expect_success(&q.b, SQ, i, IBV_WC_SEND);
        }
        end_send(&q.b, a_send(&q.b, 77, 0, SHORT));
        end_expect_status(&q.b, SQ, 77, IBV_WC_RNR_RETRY_EXC_ERR);
        end_close_qp(&q.a);
        end_close_qp(&q.b);
    }
    pair_close(&p);
}

/* Room that completions of QPs took which are gone is room again, also for a CQ that nobody ever polls. */
static void a_cq_serves_many_qps_whose_completions_nobody_polled(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pollfd ready;
    struct end end, passing;
    struct ibv_wc wc[256];
    int room;

    attr.recv_cqe = 64;
    attr.cap.max_recv_wr = 64;
    end_open(&end, NEAR, &attr);
    ready = (struct pollfd){.fd = end.context->async_fd, .events = POLLIN};
    for (unsigned int round = 0; round < 100; round++) {
        end_share(&passing, &end);
        end_to_init(&passing);
        CHECK_ZERO(end_to_state(&passing, IBV_QPS_ERR));
        for (uint64_t i = 0; i < 64; i++)
            end_recv(&passing, a_recv(&passing, i, 0, 8));
        end_close_qp(&passing);
    }
    /* what they left does not stand in the way of a smaller CQ */
    CHECK_ZERO(ibv_resize_cq(end.recv_cq, 1));
    CHECK_ZERO(ibv_resize_cq(end.recv_cq, 100));
    room = end.recv_cq->cqe;
    assert_in_range(room, 100, COUNT(wc));
    end_share(&passing, &end);
    end_to_init(&passing);
    CHECK_ZERO(end_to_state(&passing, IBV_QPS_ERR));
    for (int i = 0; i < room; i++)
        end_recv(&passing, a_recv(&passing, (uint64_t)i, 0, 8));
    assert_int_equal(poll(&ready, 1, 0), 0); /* not overrun */
    end_poll(&passing, RQ, wc, (unsigned int)room);
    for (int i = 0; i < room; i++)
        check_status(&wc[i], (uint64_t)i, IBV_WC_WR_FLUSH_ERR);
    end_close_qp(&passing);
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(destroyed_in_any_state_outstanding_requests_never_complete),
        TEST(destroyed_in_a_batch_that_was_never_completed_it_holds_up_no_other),
        TEST(destroyed_while_the_peer_keeps_sending_the_rest_goes_on),
        TEST(the_peers_writes_end_before_destroy_returns),
        TEST(answers_to_its_reads_end_before_destroy_returns),
        TEST(what_it_was_sending_arrives_as_it_was_or_not_at_all),
        TEST(unpolled_completions_are_never_returned_and_others_keep_their_order),
        TEST(no_poll_of_another_thread_returns_a_completion_of_a_qp_that_is_gone),
        TEST(no_polling_window_shows_a_completion_of_a_qp_that_is_gone),
        TEST(destroyed_inside_a_polling_window_its_completions_are_passed_over),
        TEST(destroyed_inside_a_polling_window_it_leaves_its_room_to_others),
        TEST(completion_events_stay_with_the_cq_and_so_does_its_arm_state),
        TEST(blocks_on_every_kind_of_event_that_was_read_until_it_is_acked),
        TEST(while_it_blocks_it_is_out_of_service_and_all_else_goes_on),
        TEST(blocks_until_the_last_of_many_events_is_acked_by_whomever),
        TEST(unread_events_vanish_and_only_those_that_were_read_count),
        TEST(no_event_of_a_destroyed_qp_is_ever_read),
        TEST(the_recipe_step_by_step_and_the_cq_is_fit_for_the_next),
        TEST(one_more_request_that_comes_back_flushed_ends_the_drain),
        TEST(the_recipe_with_an_srq_loses_none_of_its_requests),
        TEST(a_cq_serves_many_qps_whose_completions_nobody_polled),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
