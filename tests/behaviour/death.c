/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A peer that is killed or stopped at any moment looks like one whose cable was pulled.
 */
#include "work.h"

#include <stdio_ext.h>
#include <stdlib.h>

static struct end_attr mortal(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    /* Over the network a peer that is only slow is suspected, too. */
    attr.timeout = over_wire() ? 13 : 10; /* 34 ms, 4 ms */
    attr.retry_cnt = over_wire() ? 7 : 2;
    return attr;
}

static void a_killed_peer_gives_retry_exceeded_then_flush(void **state)
{
    const struct end_attr attr = mortal();
    struct ibv_wc wc[8];
    struct pair p;

    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    side_kill(FAR);
    for (unsigned int i = 0; i < 4; i++) {
        end_recv(&p.a, a_recv(&p.a, 100 + i, 0, 64));
        end_send(&p.a, unsignaled(a_write(&p.a, i, 0, 64, &p.b, 0)));
    }
    end_poll(&p.a, SQ, wc, 4);
    check_status(&wc[0], 0, IBV_WC_RETRY_EXC_ERR);
    for (unsigned int i = 1; i < 4; i++)
        check_status(&wc[i], i, IBV_WC_WR_FLUSH_ERR);
    end_poll(&p.a, RQ, wc, 4);
    for (unsigned int i = 0; i < 4; i++)
        check_status(&wc[i], 100 + i, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    end_close(&p.a);
}

static void a_send_that_waits_for_a_receive_fails_when_the_peer_dies(void **state)
{
    const struct end_attr attr = mortal();
    struct pair p;

    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    end_send(&p.a, a_send(&p.a, 1, 0, 64)); /* RNR, for ever */
    side_kill(FAR);
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    end_close(&p.a);
}

static void a_large_transfer_fails_when_the_peer_dies_in_its_middle(void **state)
{
    for (unsigned int i = 0; i < 6; i++) {
        struct end_attr attr = mortal();
        struct ibv_wc wc;
        struct end a, b;

        attr.size = 32u << 20;
        end_open(&a, NEAR, &attr);
        end_open(&b, &sides[1 + i], &attr);
        end_connect(&a, &b);
        end_fill(&a, 0, attr.size, 1);
        for (unsigned int k = 0; k < 8; k++)
            end_send(&a, i % 2 ? a_read(&a, k, 0, attr.size, &b, 0) : a_write(&a, k, 0, attr.size, &b, 0));
        if (i > 1)
            end_poll(&a, SQ, &wc, 1); /* in the middle of the second, maybe */
        side_kill(&sides[1 + i]);
        for (unsigned int k = i > 1; k < 8; k++) {
            end_poll(&a, SQ, &wc, 1);
            assert_int_equal(wc.wr_id, k);
        }
        assert_true(wc.status == IBV_WC_WR_FLUSH_ERR || wc.status == IBV_WC_RETRY_EXC_ERR ||
                    wc.status == IBV_WC_SUCCESS);
        end_close(&a);
    }
}

static void timeout_0_waits_for_ever_also_for_a_dead_peer(void **state)
{
    struct end_attr attr = mortal();
    struct end a2, nobody;
    struct pair p;

    attr.timeout = 0;
    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    end_share(&a2, &p.a);
    side_kill(FAR);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    /* a QP with a timeout gives up next to it, several times over */
    a2.attr.timeout = 8;
    nobody = p.b;
    nobody.qp_num ^= 0x3c0000;
    for (unsigned int i = 0; i < 5; i++) {
        end_to_init(&a2);
        end_to_rtr(&a2, &nobody);
        end_to_rts(&a2);
        end_send(&a2, a_send(&a2, 100, 0, 64));
        end_expect_status(&a2, SQ, 100, IBV_WC_RETRY_EXC_ERR);
        CHECK_ZERO(end_to_state(&a2, IBV_QPS_RESET));
    }
    assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_expect_status(&p.a, SQ, 1, IBV_WC_WR_FLUSH_ERR);
    end_close_qp(&a2);
    end_close(&p.a);
}

static void an_idle_qp_does_not_notice_a_death(void **state)
{
    const struct end_attr attr = mortal();
    struct pair p;

    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    side_kill(FAR);
    assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
    assert_int_equal(end_poll_once(&p.a, RQ, (struct ibv_wc[1]){0}, 1), 0);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_expect_status(&p.a, RQ, 1, IBV_WC_WR_FLUSH_ERR);
    end_close(&p.a);
}

static void the_death_of_one_peer_does_not_disturb_another(void **state)
{
    const struct end_attr attr = mortal();
    struct end_attr stable_attr = attr_of(IBV_QPT_RC);
    struct pair dies, stays;

    stable_attr.timeout = 0;
    end_open(&dies.a, NEAR, &attr);
    end_open(&dies.b, &sides[1], &attr);
    end_connect(&dies.a, &dies.b);
    end_open(&stays.a, NEAR, &stable_attr);
    end_open(&stays.b, &sides[2], &stable_attr);
    end_connect(&stays.a, &stays.b);
    for (unsigned int i = 0; i < 20; i++) {
        pair_marker(&stays.a, &stays.b);
        if (i < 10)
            pair_marker(&dies.a, &dies.b);
        if (i == 10) {
            end_send(&dies.a, a_send(&dies.a, 7, 0, 64));
            side_kill(&sides[1]);
        }
    }
    end_expect_status(&dies.a, SQ, 7, IBV_WC_RETRY_EXC_ERR);
    pair_marker(&stays.b, &stays.a);
    pair_close(&stays);
    end_close(&dies.a);
}

/* A pair whose far side is about to be stopped, and others for what comes after: several, so that one of them
 * shares whatever the pair goes by. */
enum { BESIDE = 4 };

struct company {
    struct pair p, beside[BESIDE];
};

static void connect_company(struct company *c, size_t size)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    for (unsigned int i = 0; i < BESIDE; i++)
        pair_connect(&c->beside[i], IBV_QPT_RC);
    attr.size = size;
    pair_connect_as(&c->p, &attr);
    pair_marker(&c->p.a, &c->p.b);
}

static void close_company(struct company *c)
{
    for (unsigned int i = 0; i < BESIDE; i++)
        pair_close(&c->beside[i]);
    pair_close(&c->p);
}

/* What the far side had been asked before is done, or never will be. */
static void exchange_markers(struct company *c)
{
    for (unsigned int i = 0; i < 12 * BESIDE; i++) {
        pair_marker(&c->beside[i % BESIDE].a, &c->beside[i % BESIDE].b);
        pair_marker(&c->beside[i % BESIDE].b, &c->beside[i % BESIDE].a);
    }
}

/* verbs.md §2.6: what a stopped peer finds to do when it goes on does not concern a QP that is in ERR. */
static void a_read_of_a_stopped_peer_is_over_with_its_qp(void **state)
{
    enum { LENGTH = 1 << 20, SIZE = LENGTH + 4096 };
    static const size_t lengths[] = {64, 5000, 300000, LENGTH};
    struct company c;
    struct pair *const p = &c.p;

    connect_company(&c, SIZE);
    for (unsigned int i = 0; i < COUNT(lengths); i++) {
        end_fill(&p->b, 0, LENGTH, 1);
        side_stop(FAR);
        for (unsigned int k = 0; k < 3; k++)
            end_send(&p->a, a_read(&p->a, k, 0, lengths[i], &p->b, 0));
        CHECK_ZERO(end_to_state(&p->a, i % 2 ? IBV_QPS_RESET : IBV_QPS_ERR));
        for (unsigned int k = 0; k < 3 && i % 2 == 0; k++) {
            struct ibv_wc wc = end_wc(&p->a, SQ);

            /* In mapped memory, or by the kernel's copy, it takes nothing of the peer. */
            if ((path_under_test() != PATH_MAPPED && path_under_test() != PATH_COPY &&
                 path_under_test() != PATH_AUTO) ||
                wc.status != IBV_WC_SUCCESS)
                check_status(&wc, k, IBV_WC_WR_FLUSH_ERR);
        }
        end_fill(&p->a, 0, LENGTH, 2);
        side_continue(FAR);
        exchange_markers(&c);
        end_expect_data(&p->a, 0, LENGTH, 2);
        CHECK_ZERO(end_to_state(&p->a, IBV_QPS_RESET));
        CHECK_ZERO(end_to_state(&p->b, IBV_QPS_RESET));
        end_connect(&p->a, &p->b);
    }
    close_company(&c);
}

/* The same of a SEND: the peer never takes for a message what the program has put there since. */
static void a_send_to_a_stopped_peer_is_over_with_its_qp(void **state)
{
    enum { LENGTH = 1 << 20, SIZE = LENGTH + 4096 };
    static const size_t lengths[] = {64, 5000, 300000, LENGTH};
    struct company c;
    struct pair *const p = &c.p;

    connect_company(&c, SIZE);
    for (unsigned int i = 0; i < 2 * COUNT(lengths); i++) {
        const size_t length = lengths[i / 2];
        struct ibv_wc wc;
        bool received;

        end_recv(&p->b, a_recv(&p->b, 7, 0, LENGTH));
        end_fill(&p->a, 0, LENGTH, 1);
        side_stop(FAR);
        end_send(&p->a, a_send(&p->a, 1, 0, length));
        CHECK_ZERO(end_to_state(&p->a, i % 2 ? IBV_QPS_RESET : IBV_QPS_ERR));
        if (i % 2 == 0)
            end_expect_status(&p->a, SQ, 1, IBV_WC_WR_FLUSH_ERR);
        end_fill(&p->a, 0, LENGTH, 2);
        side_continue(FAR);
        exchange_markers(&c);
        CHECK_ZERO(end_to_state(&p->b, IBV_QPS_ERR));
        wc = end_wc(&p->b, RQ);
        assert_int_equal(wc.wr_id, 7);
        received = wc.status == IBV_WC_SUCCESS;
        if (received)
            end_expect_data(&p->b, 0, length, 1);
        else
            check_status(&wc, 7, IBV_WC_WR_FLUSH_ERR);
        CHECK_ZERO(end_to_state(&p->a, IBV_QPS_RESET));
        CHECK_ZERO(end_to_state(&p->b, IBV_QPS_RESET));
        end_connect(&p->a, &p->b);
    }
    close_company(&c);
}

/* … but what goes to it on other QPs arrives, although they share their way, and no retry is there to use. */
static void a_qp_that_gives_up_leaves_others_alone(void **state)
{
    enum { LENGTH = 1 << 17, OTHERS = 8, SIZE = OTHERS * LENGTH + 4096 };
    struct end a[OTHERS], b[OTHERS];
    struct ibv_wc wc[OTHERS];
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p, beside;

    attr.size = SIZE;
    pair_connect_as(&p, &attr);
    end_share(&beside.a, &p.a);
    end_share(&beside.b, &p.b);
    end_connect(&beside.a, &beside.b);
    for (unsigned int i = 0; i < OTHERS; i++) {
        end_share(&a[i], &p.a);
        end_share(&b[i], &p.b);
        a[i].attr.retry_cnt = b[i].attr.retry_cnt = 0;
        end_connect(&a[i], &b[i]);
        end_recv(&b[i], a_recv(&b[i], i, i * LENGTH, LENGTH));
        end_fill(&p.a, i * LENGTH, LENGTH, i);
    }
    end_recv(&p.b, a_recv(&p.b, 7, 0, 64));
    side_stop(FAR);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_send(&beside.a, a_send(&beside.a, 2, 0, 64));
    for (unsigned int i = 0; i < OTHERS; i++)
        end_send(&a[i], a_send(&a[i], 10, i * LENGTH, LENGTH));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
    CHECK_ZERO(end_to_state(&beside.a, IBV_QPS_RESET));
    side_continue(FAR);
    end_poll(&p.a, SQ, wc, OTHERS);
    for (unsigned int i = 0; i < OTHERS; i++)
        assert_int_equal(wc[i].status, IBV_WC_SUCCESS);
    for (unsigned int i = 0; i < OTHERS; i++) {
        end_expect_data(&p.b, i * LENGTH, LENGTH, i);
        end_close_qp(&a[i]);
        end_close_qp(&b[i]);
    }
    end_close_qp(&beside.a);
    end_close_qp(&beside.b);
    pair_close(&p);
}

enum { ANSWERS = 40 };

static void take_and_answer(struct end *end, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        end_expect_success(end, RQ, i, IBV_WC_RECV);
        end_recv(end, a_recv(end, i + 1, 0, 64));
        end_send(end, unsignaled(a_send(end, i, 64, 8)));
    }
    end_expect_success(end, RQ, count, IBV_WC_RECV);
}

static void answer_and_exit(struct end *end, void *arg)
{
    take_and_answer(end, ANSWERS);
    __fpurge(stdout); /* what is in the buffer is the other process's */
    exit(0);
}

static void answer_and_rest(struct end *end, void *arg)
{
    take_and_answer(end, ANSWERS);
}

static void be_answered(struct end *end)
{
    end_recv(end, a_recv(end, 0, 0, 64));
    for (unsigned int i = 0; i < ANSWERS; i++) {
        end_send(end, a_send(end, i, 64, 8));
        end_expect_success(end, SQ, i, IBV_WC_SEND);
        end_expect_success(end, RQ, i, IBV_WC_RECV);
        end_recv(end, a_recv(end, i + 1, 0, 64));
    }
    /* This one is taken, and not answered. */
    end_send(end, a_send(end, ANSWERS, 64, 8));
    end_expect_success(end, SQ, ANSWERS, IBV_WC_SEND);
}

/* What it has taken it has taken. */
static void a_program_that_takes_its_last_message_and_exits_is_no_error(void **state)
{
    struct end_call call;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 0, 0, 64));
    end_start(&call, &p.b, answer_and_exit, NULL, 0);
    be_answered(&p.a);
    side_kill(FAR);
    end_close(&p.a);
}

static void a_program_that_takes_its_last_message_and_rests_is_no_error(void **state)
{
    struct end_call call;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 0, 0, 64));
    end_start(&call, &p.b, answer_and_rest, NULL, 0);
    be_answered(&p.a);
    end_finish(&call);
    pair_close(&p);
}

/* What a far side does until it is killed */
struct traffic {
    struct end to;
    unsigned int seed;
};

static void send_until_killed(struct end *end, void *arg)
{
    struct traffic *traffic = arg;
    unsigned int seed = traffic->seed, posted = 0, done = 0;

    for (;;) {
        struct ibv_wc wc[16];

        while (posted - done < 32) {
            const size_t length = (size_t)1 << rand_r(&seed) % 15;

            switch (rand_r(&seed) % 4) {
            case 0:
                end_send(end, a_send(end, posted, 0, length));
                break;
            case 1:
                end_send(end, a_write(end, posted, 0, length, &traffic->to, 0));
                break;
            case 2:
                end_send(end, a_read(end, posted, 0, length, &traffic->to, 0));
                break;
            default:
                end_send(end, a_fetch_add(end, posted, 0, &traffic->to, 0, 1));
                break;
            }
            posted++;
        }
        done += (unsigned int)end_poll_once(end, SQ, wc, 16);
    }
}

static void a_peer_killed_at_a_random_moment_leaves_us_whole(void **state)
{
    enum { VICTIMS = 24 };
    const unsigned int victims = over_wire() ? VICTIMS / 3 : VICTIMS; /* each costs its retries */

    srand((unsigned int)now_ns());
    for (unsigned int i = 1; i <= victims; i++) {
        const struct end_attr attr = mortal(), patient = attr_of(IBV_QPT_RC);
        const unsigned int moment = (unsigned int)rand() % 200;
        struct traffic traffic;
        struct end_call call;
        unsigned int received = 0;
        struct ibv_wc wc[16];
        struct end a, b;

        end_open(&a, NEAR, &attr);
        end_open(&b, &sides[i], &patient);
        end_connect(&a, &b);
        for (unsigned int k = 0; k < 64; k++)
            end_recv(&a, a_recv(&a, k, 16384, 16384));
        traffic = (struct traffic){.to = a, .seed = i};
        end_start(&call, &b, send_until_killed, &traffic, sizeof(traffic));
        EVENTUALLY(received >= moment, "%u messages of a peer that is going to die", moment)
        {
            const int n = end_poll_once(&a, RQ, wc, 16);

            for (int k = 0; k < n; k++) {
                assert_int_equal(wc[k].status, IBV_WC_SUCCESS);
                end_recv(&a, a_recv(&a, 0, 16384, 16384));
            }
            received += (unsigned int)n;
        }
        side_kill(&sides[i]);
        free(call.box);
        end_send(&a, a_write(&a, 1, 0, 64, &b, 0));
        end_expect_status(&a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
        end_close(&a);
    }
}

static void a_stopped_peer_loses_nothing(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[64];
    struct pair p;

    attr.timeout =
        8; /* a stopped peer is a slow one, not a silent one: on a link that loses nothing no timer runs */
    attr.retry_cnt = 1;
    if (path_under_test() == PATH_WIRE)
        attr.timeout = 0;
    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    for (unsigned int round = 0; round < 5; round++) {
        for (unsigned int i = 0; i < 60; i++) {
            end_recv(&p.b, a_recv(&p.b, i, i * 1024, 1024));
            end_fill(&p.a, i * 1024, 1000, round * 100 + i);
        }
        side_stop(FAR);
        for (unsigned int i = 0; i < 60; i++)
            end_send(&p.a, a_send(&p.a, i, i * 1024, 1000));
        assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
        side_continue(FAR);
        end_poll(&p.b, RQ, wc, 60);
        end_poll(&p.a, SQ, wc, 60);
        for (unsigned int i = 0; i < 60; i++) {
            check_success(&wc[i], i, IBV_WC_SEND);
            end_expect_data(&p.b, i * 1024, 1000, round * 100 + i);
        }
    }
    pair_close(&p);
}

static void teardown_does_not_wait_for_a_stopped_peer(void **state)
{
    const struct end_attr attr = mortal();
    struct pair p;

    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    side_stop(FAR);
    for (unsigned int i = 0; i < 8; i++)
        end_send(&p.a, a_write(&p.a, i, 0, 8192, &p.b, 0));
    end_close(&p.a);
    side_continue(FAR);
    end_close(&p.b);
}

/* verbs.md §2.6: memory is the program's again when its QP is in ERR or its MR is gone, whatever the peer
 * does. */
static void memory_is_not_touched_after_dereg_by_a_peer_that_was_stopped(void **state)
{
    struct traffic traffic;
    struct end_call call;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int k = 0; k < 64; k++)
        end_recv(&p.a, a_recv(&p.a, k, 16384, 16384));
    traffic = (struct traffic){.to = p.a, .seed = 5};
    end_start(&call, &p.b, send_until_killed, &traffic, sizeof(traffic));
    end_wc(&p.a, RQ);
    side_stop(FAR);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    CHECK_ZERO(ibv_dereg_mr(p.a.mr));
    p.a.mr = NULL;
    end_fill(&p.a, 0, 65536, 99);
    side_continue(FAR);
    for (unsigned int i = 0; i < 100; i++)
        end_expect_data(&p.a, 0, 65536, 99);
    side_kill(FAR);
    free(call.box);
    end_close(&p.a);
}

static void a_new_process_is_reached_after_the_death_of_another(void **state)
{
    enum { GENERATIONS = 8 };

    for (unsigned int i = 1; i <= GENERATIONS; i++) {
        const struct end_attr attr = mortal();
        struct end a, b;

        end_open(&a, NEAR, &attr);
        end_open(&b, &sides[i], &attr);
        end_connect(&a, &b);
        pair_marker(&a, &b);
        pair_marker(&b, &a);
        side_kill(&sides[i]);
        end_close(&a);
    }
}

int main(int argc, char **argv)
{
#define MORTAL(fn, count) TEST_WITH(fn, .fars = count, .needs = NEEDS_TWO_PROCESSES)
    static const struct test tests[] = {
        MORTAL(a_killed_peer_gives_retry_exceeded_then_flush, 1),
        MORTAL(a_send_that_waits_for_a_receive_fails_when_the_peer_dies, 1),
        MORTAL(a_large_transfer_fails_when_the_peer_dies_in_its_middle, 6),
        MORTAL(timeout_0_waits_for_ever_also_for_a_dead_peer, 1),
        MORTAL(an_idle_qp_does_not_notice_a_death, 1),
        MORTAL(the_death_of_one_peer_does_not_disturb_another, 2),
        MORTAL(a_program_that_takes_its_last_message_and_exits_is_no_error, 1),
        MORTAL(a_program_that_takes_its_last_message_and_rests_is_no_error, 1),
        MORTAL(a_peer_killed_at_a_random_moment_leaves_us_whole, 24),
        MORTAL(a_stopped_peer_loses_nothing, 1),
        MORTAL(a_read_of_a_stopped_peer_is_over_with_its_qp, 1),
        MORTAL(a_send_to_a_stopped_peer_is_over_with_its_qp, 1),
        MORTAL(a_qp_that_gives_up_leaves_others_alone, 1),
        MORTAL(teardown_does_not_wait_for_a_stopped_peer, 1),
        MORTAL(memory_is_not_touched_after_dereg_by_a_peer_that_was_stopped, 1),
        MORTAL(a_new_process_is_reached_after_the_death_of_another, 8),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
