/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §0.3: threads share a QP and a CQ; registration and traffic race. */
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { THREADS = 8 };

static unsigned int messages(void)
{
    return long_tests() ? 200000 : slowness() > 1 ? 500 : 1500;
}

/* A message: who posted it and its number among his */
struct note {
    uint32_t thread, number;
};

struct crowd {
    struct end *end;
    const struct end *peer;
    unsigned int each;
    atomic_uint next_thread, completed, posted_of[THREADS], completed_of[THREADS];
    unsigned int signal_every;
    bool one_sided;
};

static void poll_some(struct crowd *crowd)
{
    struct ibv_wc wc[4];
    const int got = ibv_poll_cq(crowd->end->send_cq, 4, wc);

    CHECK(got >= 0, "ibv_poll_cq: %d", got);
    for (int i = 0; i < got; i++) {
        CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
        atomic_fetch_add(&crowd->completed_of[wc[i].wr_id], 1);
        atomic_fetch_add(&crowd->completed, 1);
    }
}

/* Posts its messages and polls whatever completes, its own or another's. */
static void *post_and_poll(void *arg)
{
    struct crowd *crowd = arg;
    const unsigned int thread = atomic_fetch_add(&crowd->next_thread, 1);

    for (unsigned int n = 0; n < crowd->each; n++) {
        struct note note = {thread, n};
        struct ibv_sge sge = {.addr = (uintptr_t)&note, .length = sizeof(note)};
        struct ibv_send_wr wr = {.wr_id = thread,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED},
                           *bad;
        int error;

        if (crowd->one_sided) {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.wr.rdma.remote_addr = (uintptr_t)crowd->peer->buf + thread * sizeof(note);
            wr.wr.rdma.rkey = crowd->peer->rkey;
        }
        EVENTUALLY((error = ibv_post_send(crowd->end->qp, &wr, &bad)) != ENOMEM,
                   "room in a send queue that threads share")
        poll_some(crowd);
        CHECK(!error, "ibv_post_send: %s", strerror(error));
        poll_some(crowd);
    }
    EVENTUALLY(atomic_load(&crowd->completed) == THREADS * crowd->each, "all completions of all threads")
    poll_some(crowd);
    return NULL;
}

struct audience {
    unsigned int total;
};

/* Each thread's messages come in its order. */
static void listen(struct end *end, void *arg)
{
    const struct audience *audience = arg;
    unsigned int got = 0, next[THREADS] = {0};

    EVENTUALLY(got == audience->total, "%u messages of a crowd", audience->total)
    {
        struct ibv_wc wc[16];
        const int n = ibv_poll_cq(end->recv_cq, 16, wc);

        for (int i = 0; i < n; i++) {
            struct note note;

            CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].byte_len == sizeof(note), "%s",
                  ibv_wc_status_str(wc[i].status));
            memcpy(&note, end->buf + wc[i].wr_id * 64, sizeof(note));
            CHECK(note.thread < THREADS && note.number == next[note.thread],
                  "message %u of thread %u instead of %u", note.number, note.thread,
                  note.thread < THREADS ? next[note.thread] : 0);
            next[note.thread]++;
            end_recv(end, a_recv(end, wc[i].wr_id, wc[i].wr_id * 64, 64));
        }
        got += (unsigned int)n;
        if (n)
            patience_.until = now_ns() + 20000000000u * slowness();
    }
}

static void run_crowd(struct crowd *crowd)
{
    pthread_t threads[THREADS];

    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_and_poll, crowd), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(crowd->completed_of[i], crowd->each);
}

static void eight_threads_send_on_one_qp_and_poll_one_cq(void **state)
{
    struct crowd crowd = {.each = messages()};
    struct audience audience = {.total = THREADS * crowd.each};
    struct end_call call;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 64; i++)
        end_recv(&p.b, a_recv(&p.b, i, i * 64, 64));
    crowd.end = &p.a;
    end_start(&call, &p.b, listen, &audience, sizeof(audience));
    run_crowd(&crowd);
    end_finish(&call);
    pair_close(&p);
}

static void eight_threads_write_on_one_qp_and_poll_one_cq(void **state)
{
    struct crowd crowd = {.each = messages(), .one_sided = true};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    crowd.end = &p.a;
    crowd.peer = &p.b;
    run_crowd(&crowd);
    for (unsigned int i = 0; i < THREADS; i++) {
        struct note note;

        end_peek(&p.b, i * sizeof(note), &note, sizeof(note));
        assert_int_equal(note.thread, i);
        assert_int_equal(note.number, crowd.each - 1);
    }
    pair_close(&p);
}

/* A QP per thread, all in one CQ: everybody may poll everybody's. */
struct own {
    struct pair pair;
    struct crowd *crowd;
    unsigned int index;
};

static void *use_own_qp(void *arg)
{
    struct own *own = arg;
    struct ibv_send_wr wr = {.wr_id = own->index,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    int error;

    for (unsigned int n = 0; n < own->crowd->each; n++) {
        EVENTUALLY((error = ibv_post_send(own->pair.a.qp, &wr, &bad)) != ENOMEM, "room in a send queue")
        poll_some(own->crowd);
        CHECK(!error, "ibv_post_send: %s", strerror(error));
    }
    EVENTUALLY(atomic_load(&own->crowd->completed) == THREADS * own->crowd->each,
               "all completions of all threads")
    poll_some(own->crowd);
    return NULL;
}

static void threads_with_a_qp_each_share_a_cq(void **state)
{
    struct crowd crowd = {.each = messages()};
    struct own own[THREADS];
    pthread_t threads[THREADS];
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.send_cqe = 64 * (THREADS + 1);
    pair_connect_as(&p, &attr);
    crowd.end = &p.a;
    for (unsigned int i = 0; i < THREADS; i++) {
        own[i].crowd = &crowd;
        own[i].index = i;
        end_share(&own[i].pair.a, &p.a);
        end_share(&own[i].pair.b, &p.b);
        end_connect(&own[i].pair.a, &own[i].pair.b);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_own_qp, &own[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned int i = 0; i < THREADS; i++) {
        assert_int_equal(crowd.completed_of[i], crowd.each);
        end_close_qp(&own[i].pair.a);
        end_close_qp(&own[i].pair.b);
    }
    pair_close(&p);
}

/* --- races ---------------------------------------------------------------------------------------------- */

static atomic_bool over;

struct churn {
    struct end *end;
    unsigned int seed;
    atomic_uint rounds;
};

/* Registers and deregisters pieces of what others send and receive with. */
static void *register_and_deregister(void *arg)
{
    struct churn *churn = arg;
    struct ibv_mr *held[16] = {NULL};

    while (!atomic_load(&over)) {
        const size_t slot = (size_t)rand_r(&churn->seed) % COUNT(held);
        const size_t offset = (size_t)rand_r(&churn->seed) % 32768;

        if (held[slot])
            CHECK_ZERO(ibv_dereg_mr(held[slot]));
        held[slot] =
            ibv_reg_mr(churn->end->pd, churn->end->buf + offset, 1 + (size_t)rand_r(&churn->seed) % 30000,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        CHECK(held[slot], "ibv_reg_mr: %s", strerror(errno));
        atomic_fetch_add(&churn->rounds, 1);
    }
    for (size_t i = 0; i < COUNT(held); i++)
        if (held[i])
            CHECK_ZERO(ibv_dereg_mr(held[i]));
    return NULL;
}

static void registration_races_with_traffic(void **state)
{
    struct churn churn[2] = {{.seed = 1}, {.seed = 2}};
    const unsigned int total = messages() / 3;
    pthread_t threads[2];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    atomic_store(&over, false);
    for (size_t i = 0; i < 2; i++) {
        churn[i].end = &p.a;
        assert_int_equal(pthread_create(&threads[i], NULL, register_and_deregister, &churn[i]), 0);
    }
    /* At least as long as each thread needs for a round. */
    for (unsigned int n = 0; n < total || !atomic_load(&churn[0].rounds) || !atomic_load(&churn[1].rounds);
         n++) {
        const size_t length = 1 + n * 37 % 16000;

        end_fill(&p.a, 0, length, n);
        end_send(&p.a, a_write(&p.a, n, 0, length, &p.b, 0));
        end_send(&p.a, a_read(&p.a, n, 32768, length, &p.b, 0));
        end_expect_success(&p.a, SQ, n, IBV_WC_RDMA_WRITE);
        end_expect_success(&p.a, SQ, n, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 32768, length, n);
    }
    atomic_store(&over, true);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    pair_close(&p);
}

/* b takes its memory away while a writes into it: a's QP fails, b's memory is b's alone from then on. */
struct takeaway {
    uint32_t rkey;
    struct ibv_mr *mr;
    unsigned int writes_seen;
    uint64_t seed;
};

static void offer(struct end *end, void *arg)
{
    struct takeaway *t = arg;

    t->mr = ibv_reg_mr(end->pd, end->buf, 32768,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(t->mr, "ibv_reg_mr: %s", strerror(errno));
    t->rkey = t->mr->rkey;
}

static void take_away(struct end *end, void *arg)
{
    struct takeaway *t = arg;
    volatile uint8_t *first = end->buf;

    /* the first write has begun to arrive */
    EVENTUALLY(*first == 0xaa, "a write that is to be interrupted");
    CHECK_ZERO(ibv_dereg_mr(t->mr));
    fill_pattern(end->buf, 32768, t->seed);
    for (unsigned int i = 0; i < 200; i++)
        CHECK(find_difference(end->buf, 32768, t->seed) == 32768,
              "memory was written after its deregistration");
}

static void deregistration_races_with_remote_writes(void **state)
{
    const unsigned int rounds = long_tests() ? 2000 : 60;

    for (unsigned int round = 0; round < rounds; round++) {
        struct takeaway t = {.seed = round};
        struct ibv_wc wc[60];
        struct end_call call;
        struct send write;
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        AT(&p.b, offer, &t);
        memset(p.a.buf, 0xaa, 32768);
        write = a_write(&p.a, 1, 0, 32768, &p.b, 0);
        write.wr.wr.rdma.rkey = t.rkey;
        end_start(&call, &p.b, take_away, &t, sizeof(t));
        for (unsigned int i = 0; i < 60; i++)
            end_send(&p.a, write);
        end_poll(&p.a, SQ, wc, 60);
        end_finish(&call);
        for (unsigned int i = 0; i < 60; i++)
            assert_true(wc[i].status == IBV_WC_SUCCESS || wc[i].status == IBV_WC_REM_ACCESS_ERR ||
                        wc[i].status == IBV_WC_WR_FLUSH_ERR);
        pair_close(&p);
    }
}

/* QPs are created, connected, used and destroyed by many threads at once. */
static void *live_and_die(void *arg)
{
    struct churn *churn = arg;

    for (unsigned int i = 0; i < churn->rounds; i++) {
        struct end one, two;

        end_share(&one, churn->end);
        end_share(&two, churn->end);
        end_connect(&one, &two);
        for (unsigned int n = 0; n < 4; n++) {
            end_recv(&two, a_recv(&two, 1, 0, 8));
            end_send(&one, a_send(&one, n, 16, 8));
        }
        if (i % 2)
            CHECK_ZERO(end_to_state(&one, IBV_QPS_ERR));
        end_close_qp(&one);
        end_close_qp(&two);
    }
    return NULL;
}

static void qps_live_and_die_in_many_threads(void **state)
{
    struct churn churn[4];
    pthread_t threads[4];
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    attr.send_cqe = attr.recv_cqe = 20000;
    end_open(&end, NEAR, &attr);
    for (size_t i = 0; i < COUNT(threads); i++) {
        churn[i] = (struct churn){.end = &end, .rounds = messages() / 40};
        assert_int_equal(pthread_create(&threads[i], NULL, live_and_die, &churn[i]), 0);
    }
    for (size_t i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    end_close(&end);
}

int main(int argc, char **argv)
{
#define LONG(fn) TEST_WITH(fn, .fars = 1, .seconds = long_tests() ? 1800 : 120)
    const struct test tests[] = {
        LONG(eight_threads_send_on_one_qp_and_poll_one_cq),
        LONG(eight_threads_write_on_one_qp_and_poll_one_cq),
        LONG(threads_with_a_qp_each_share_a_cq),
        LONG(registration_races_with_traffic),
        LONG(deregistration_races_with_remote_writes),
        LONG(qps_live_and_die_in_many_threads),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
