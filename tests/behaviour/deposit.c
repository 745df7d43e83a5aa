/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Large SENDs whose second half their sender puts into the receive (docs/mapped.md): that it does, that what
 * arrives is the message, and what a receiver may rely on when it takes its memory back.
 */
#include "taking.h"
#include "work.h"

#include <stdlib.h>
#include <sys/uio.h>

enum { CHUNK = 1 << 20, RECEIVES = 4 };

static void connect_mapped(struct pair *p, struct side *receiver, struct side *sender, size_t size)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = size;
    attr.timeout = 10;
    attr.retry_cnt = 1;
    end_open(&p->a, receiver, &attr);
    end_open(&p->b, sender, &attr);
    end_connect(&p->a, &p->b);
    if (!is_mapped(p->a.side->pid, p->a.buf))
        skip_because("memory is not mapped on this machine (softhca doctor says why)");
}

static void close_both(struct pair *p)
{
    end_close(&p->a);
    end_close(&p->b);
}

/* --- what arrives ------------------------------------------------------------------------------------ */

/* Of a process that may be stopped. */
static uint64_t word_of(const struct end *end, size_t at)
{
    uint64_t word;
    struct iovec here = {&word, sizeof(word)}, there = {end->buf + at, sizeof(word)};

    CHECK(process_vm_readv(end->side->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof(word),
          "process_vm_readv: %s", strerror(errno));
    return word;
}

static bool arrives_at_a_receiver_that_is_stopped(struct pair *p)
{
    static unsigned int id;
    bool arrives;

    id++;
    end_fill(&p->b, 0, CHUNK, id);
    end_recv(&p->a, a_recv(&p->a, id, 0, CHUNK));
    side_stop(FAR);
    end_send(&p->b, a_send(&p->b, id, 0, CHUNK));
    arrives = word_of(&p->a, CHUNK - 8) == end_peek64(&p->b, CHUNK - 8);
    side_continue(FAR);
    end_expect_success(&p->b, SQ, id, IBV_WC_SEND);
    end_expect_success(&p->a, RQ, id, IBV_WC_RECV);
    end_expect_data(&p->a, 0, CHUNK, id);
    return arrives;
}

static void the_sender_puts_half_of_it_there(void **state)
{
    struct pair p;

    connect_mapped(&p, FAR, NEAR, CHUNK);
    EVENTUALLY(arrives_at_a_receiver_that_is_stopped(&p), "the end of a message in its receive");
    close_both(&p);
}

/* Sizes around those where another mechanism begins, and places that are aligned to nothing; several on the
 * way at once. */
static void messages_of_all_sizes_arrive(void **state)
{
    static const uint32_t sizes[] = {CHUNK - 64,    8,          (256 << 10) + 1, 300001,
                                     CHUNK / 2 + 1, 65536,      CHUNK - 71,      256 << 10,
                                     100,           CHUNK - 65, 777777};
    struct pair p;
    uint64_t id = 0;

    connect_mapped(&p, FAR, NEAR, RECEIVES * CHUNK);
    for (unsigned int round = 0; round < 25; round++) {
        for (unsigned int i = 0; i < RECEIVES; i++)
            end_recv(&p.a, a_recv(&p.a, id + i, i * (size_t)CHUNK + round % 9, CHUNK - 64));
        for (unsigned int i = 0; i < RECEIVES; i++) {
            uint32_t length = sizes[(id + i) % COUNT(sizes)];

            end_fill(&p.b, i * (size_t)CHUNK + round % 7, length, (unsigned int)(id + i));
            end_send(&p.b, a_send(&p.b, id + i, i * (size_t)CHUNK + round % 7, length));
        }
        for (unsigned int i = 0; i < RECEIVES; i++) {
            uint32_t length = sizes[(id + i) % COUNT(sizes)];

            end_expect_success(&p.b, SQ, id + i, IBV_WC_SEND);
            end_expect_success(&p.a, RQ, id + i, IBV_WC_RECV);
            end_expect_data(&p.a, i * (size_t)CHUNK + round % 9, length, (unsigned int)(id + i));
        }
        id += RECEIVES;
    }
    close_both(&p);
}

/* What was posted when the message began is not what it takes. */
static void a_receive_that_comes_late_is_filled(void **state)
{
    struct pair p;

    connect_mapped(&p, FAR, NEAR, 2 * CHUNK);
    for (unsigned int i = 0; i < 12; i++) {
        if (i % 3 == 0)
            end_recv(&p.a, a_recv(&p.a, i, 0, CHUNK));
        end_fill(&p.b, 0, CHUNK, i);
        end_send(&p.b, a_send(&p.b, i, 0, CHUNK));
        if (i % 3 != 0)
            end_recv(&p.a, a_recv(&p.a, i, i % 2 * (size_t)CHUNK, CHUNK));
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
        end_expect_data(&p.a, i % 3 ? i % 2 * (size_t)CHUNK : 0, CHUNK, i);
    }
    close_both(&p);
}

/* --- what is taken back ------------------------------------------------------------------------------ */

/* Until one fails. */
static void send_all(struct end *end, void *arg)
{
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};

    for (uint64_t i = 0; wc.status == IBV_WC_SUCCESS; i++) {
        end_send(end, a_send(end, i, 0, CHUNK));
        /* What waits with patience gives the processor away, and would be stopped there. */
        while (ibv_poll_cq(end->send_cq, 1, &wc) == 0) {
        }
    }
}

/* Ways to take it back, beside those of taking.h. */
enum { FAILS = TAKINGS, WAYS };

static void take_back_by(struct end *end, unsigned int how)
{
    struct send bad = a_send(end, 99, 0, 8);
    struct ibv_wc wc;

    if (how != FAILS) {
        take_back(end, (enum taking)how);
        return;
    }
    /* A request that is not allowed; what was not received comes back flushed. */
    bad.sge[0].lkey ^= 0xff;
    end_send(end, bad);
    for (unsigned int i = 0; i < RECEIVES; i++)
        end_poll(end, RQ, &wc, 1);
}

static void receive_some(struct end *end, unsigned int count)
{
    struct ibv_wc wc;

    for (unsigned int i = 0; i < count; i++) {
        end_poll(end, RQ, &wc, 1);
        CHECK(wc.status == IBV_WC_SUCCESS, "receive: %s", ibv_wc_status_str(wc.status));
        end_recv(end, a_recv(end, wc.wr_id, wc.wr_id * (size_t)CHUNK, CHUNK));
    }
}

/* Mostly it is stopped in the middle of a copy. */
static void a_stopped_sender_changes_nothing(unsigned int how)
{
    for (unsigned int round = 1; round <= (long_tests() ? 200 : 4); round++) {
        struct end_call call;
        struct pair p;

        connect_mapped(&p, NEAR, FAR, RECEIVES * CHUNK);
        end_fill(&p.b, 0, CHUNK, round);
        for (unsigned int i = 0; i < RECEIVES; i++)
            end_recv(&p.a, a_recv(&p.a, i, i * (size_t)CHUNK, CHUNK));
        end_start(&call, &p.b, send_all, NULL, 0);
        receive_some(&p.a, 12 + round % 16);
        side_stop(FAR);
        take_back_by(&p.a, how);
        end_fill(&p.a, 0, RECEIVES * CHUNK, 1000 + round);
        side_continue(FAR);
        /* A sender that finds no receive left tries for ever. */
        if (how == DEREGISTERS || how == REREGISTERS)
            CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
        end_finish(&call);
        end_expect_data(&p.a, 0, RECEIVES * CHUNK, 1000 + round);
        close_both(&p);
    }
}

#define STOPPED(name, how)                                                                                   \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        a_stopped_sender_changes_nothing(how);                                                               \
    }
STOPPED(a_stopped_sender_changes_nothing_after_dereg, DEREGISTERS)
STOPPED(a_stopped_sender_changes_nothing_after_rereg, REREGISTERS)
STOPPED(a_stopped_sender_changes_nothing_after_err, ENTERS_ERR)
STOPPED(a_stopped_sender_changes_nothing_once_receives_are_flushed, FAILS)
STOPPED(a_stopped_sender_changes_nothing_after_reset, ENTERS_RESET)
STOPPED(a_stopped_sender_changes_nothing_after_destroy, DESTROYS_QP)

static void a_killed_sender_holds_nothing_up(void **state)
{
    for (unsigned int i = 1; i <= (long_tests() ? 20 : WAYS); i++) {
        struct end_call call;
        struct pair p;

        connect_mapped(&p, NEAR, &sides[i], RECEIVES * CHUNK);
        end_fill(&p.b, 0, CHUNK, i);
        for (unsigned int k = 0; k < RECEIVES; k++)
            end_recv(&p.a, a_recv(&p.a, k, k * (size_t)CHUNK, CHUNK));
        end_start(&call, &p.b, send_all, NULL, 0);
        receive_some(&p.a, 12 + i);
        side_kill(&sides[i]);
        take_back_by(&p.a, i % WAYS);
        end_fill(&p.a, 0, RECEIVES * CHUNK, 1000 + i);
        end_expect_data(&p.a, 0, RECEIVES * CHUNK, 1000 + i);
        free(call.box);
        end_close(&p.a);
    }
}

int main(int argc, char **argv)
{
#define DEPOSIT(fn, count)                                                                                   \
    TEST_WITH(fn, .fars = count, .needs = NEEDS_TWO_PROCESSES, .seconds = long_tests() ? 600 : 0)
    const struct test tests[] = {
        DEPOSIT(the_sender_puts_half_of_it_there, 1),
        DEPOSIT(messages_of_all_sizes_arrive, 1),
        DEPOSIT(a_receive_that_comes_late_is_filled, 1),
        DEPOSIT(a_stopped_sender_changes_nothing_after_dereg, 1),
        DEPOSIT(a_stopped_sender_changes_nothing_after_rereg, 1),
        DEPOSIT(a_stopped_sender_changes_nothing_after_err, 1),
        DEPOSIT(a_stopped_sender_changes_nothing_once_receives_are_flushed, 1),
        DEPOSIT(a_stopped_sender_changes_nothing_after_reset, 1),
        DEPOSIT(a_stopped_sender_changes_nothing_after_destroy, 1),
        DEPOSIT(a_killed_sender_holds_nothing_up, long_tests() ? 20 : WAYS),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
