/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Threads that get in each other's way. What they do is all allowed; what each of them must see is said by
 * the contract whatever the order of events is, so nothing here depends on time. Most of the worth is in the
 * sanitizer builds.
 */
#include "threads.h"
#include "work.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned int rounds(unsigned int count)
{
    return long_tests() ? count * 50 : count;
}

/* xorshift: each thread has its own */
static uint32_t dice(uint32_t *state, uint32_t faces)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state % faces;
}

static void open_two(struct end *a, struct end *b, const struct end_attr *attr)
{
    end_open(a, NEAR, attr);
    end_open(b, NEAR, attr);
}

static int poll_any(struct ibv_cq *cq, struct ibv_wc *wc, int count)
{
    const int polled = ibv_poll_cq(cq, count, wc);

    CHECK(polled >= 0, "ibv_poll_cq is %d", polled);
    return polled;
}

/* --- QPs that come and go */

struct churn {
    uint32_t seed;
    struct end a, b; /* what the short-lived QPs share */
};

static void live_shortly(struct churn *churn)
{
    struct end a, b;
    struct ibv_wc wc[8];

    end_share(&a, &churn->a);
    end_share(&b, &churn->b);
    end_connect(&a, &b);
    for (uint32_t i = dice(&churn->seed, 8); i > 0; i--) {
        const size_t length = dice(&churn->seed, 2) ? 100 : 40000;

        if (dice(&churn->seed, 2))
            end_recv(&b, a_recv(&b, i, 0, length));
        end_send(&a, dice(&churn->seed, 3) ? a_write(&a, i, 0, length, &b, 0) : a_send(&a, i, 0, length));
    }
    if (dice(&churn->seed, 2))
        poll_any(a.send_cq, wc, 8);
    if (dice(&churn->seed, 3) == 0)
        CHECK_ZERO(end_to_state(&b, dice(&churn->seed, 2) ? IBV_QPS_ERR : IBV_QPS_RESET));
    if (dice(&churn->seed, 2)) {
        end_close_qp(&b);
        end_close_qp(&a);
    } else {
        end_close_qp(&a);
        end_close_qp(&b);
    }
    /* whatever it was, it is nobody's any more */
    CHECK(poll_any(churn->a.send_cq, wc, 8) == 0, "a completion of QP %#x, which is destroyed", wc[0].qp_num);
    CHECK(poll_any(churn->b.recv_cq, wc, 8) == 0, "a completion of QP %#x, which is destroyed", wc[0].qp_num);
}

static int churn_qps(void *arg)
{
    struct churn *churn = arg;

    for (unsigned int i = rounds(150); i > 0; i--)
        live_shortly(churn);
    return 0;
}

static void qps_come_and_go_beside_traffic(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct churn churns[2];
    struct caller callers[COUNT(churns)];
    bool busy = true;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (size_t i = 0; i < COUNT(churns); i++) {
        open_two(&churns[i].a, &churns[i].b, &attr);
        end_close_qp(&churns[i].a);
        end_close_qp(&churns[i].b);
        churns[i].seed = 1 + (uint32_t)i;
        caller_start(&callers[i], churn_qps, &churns[i]);
    }
    for (uint64_t id = 0; busy; id++) {
        const size_t length = id % 8 ? 64 : 30000;

        end_fill(&p.a, 0, length, id);
        end_send(&p.a, a_write(&p.a, id, 0, length, &p.b, 0));
        end_expect_success(&p.a, SQ, id, IBV_WC_RDMA_WRITE);
        end_send(&p.a, a_read(&p.a, id, 32768, length, &p.b, 0));
        end_expect_success(&p.a, SQ, id, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 32768, length, id);
        busy = false;
        for (size_t i = 0; i < COUNT(churns); i++)
            busy = busy || !atomic_load(&callers[i].done);
    }
    for (size_t i = 0; i < COUNT(churns); i++) {
        caller_finish(&callers[i]);
        end_close(&churns[i].a);
        end_close(&churns[i].b);
    }
    pair_close(&p);
}

/* --- one QP that others post to and poll while it goes through its states */

struct cycled {
    struct end a, b;
    atomic_bool done;
};

static int post_whatever_the_state(void *arg)
{
    struct cycled *cycled = arg;
    unsigned int posted;

    for (uint64_t id = 0; !atomic_load(&cycled->done); id++) {
        const struct send send = id % 3 ? a_write(&cycled->a, id, 0, id % 2 ? 20000 : 200, &cycled->b, 0)
                                        : a_send(&cycled->a, id, 0, 100);
        const struct recv recv = a_recv(&cycled->b, id, 0, 100);
        int error = end_try_recv(&cycled->b, &recv, 1, &posted);

        CHECK(!error || error == EINVAL || error == ENOMEM, "ibv_post_recv is %d", error);
        error = end_try_send(&cycled->a, &send, 1, &posted);
        CHECK(!error || error == EINVAL || error == ENOMEM, "ibv_post_send is %d", error);
        if (error)
            sched_yield();
    }
    return 0;
}

static int poll_until_done(void *arg)
{
    struct cycled *cycled = arg;
    struct ibv_wc wc[16];

    while (!atomic_load(&cycled->done)) {
        int count = poll_any(cycled->a.send_cq, wc, 16);

        for (int i = 0; i < count; i++)
            CHECK(wc[i].qp_num == cycled->a.qp_num &&
                      (wc[i].status == IBV_WC_SUCCESS || wc[i].status == IBV_WC_WR_FLUSH_ERR ||
                       wc[i].status == IBV_WC_RETRY_EXC_ERR),
                  "%s for work request %llu", ibv_wc_status_str(wc[i].status),
                  (unsigned long long)wc[i].wr_id);
        count = poll_any(cycled->b.recv_cq, wc, 16);
        for (int i = 0; i < count; i++)
            CHECK(wc[i].qp_num == cycled->b.qp_num, "a completion of QP %#x", wc[i].qp_num);
    }
    return 0;
}

static void states_change_under_posting_and_polling(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct cycled cycled = {0};
    struct caller callers[3];

    open_two(&cycled.a, &cycled.b, &attr);
    caller_start(&callers[0], post_whatever_the_state, &cycled);
    caller_start(&callers[1], post_whatever_the_state, &cycled);
    caller_start(&callers[2], poll_until_done, &cycled);
    for (unsigned int i = rounds(100); i > 0; i--) {
        end_connect(&cycled.a, &cycled.b);
        sched_yield();
        if (i % 2) {
            CHECK_ZERO(end_to_state(&cycled.a, IBV_QPS_ERR));
            CHECK_ZERO(end_to_state(&cycled.b, IBV_QPS_ERR));
        }
        CHECK_ZERO(end_to_state(&cycled.a, IBV_QPS_RESET));
        CHECK_ZERO(end_to_state(&cycled.b, IBV_QPS_RESET));
    }
    atomic_store(&cycled.done, true);
    for (size_t i = 0; i < COUNT(callers); i++)
        caller_finish(&callers[i]);
    /* Nothing of all that occupies the queues of a QP that starts anew. */
    end_connect(&cycled.a, &cycled.b);
    for (uint64_t id = 0; id < attr.cap.max_send_wr; id++)
        end_send(&cycled.a, a_write(&cycled.a, id, 0, 8, &cycled.b, 0));
    for (uint64_t id = 0; id < attr.cap.max_send_wr; id++)
        end_expect_success(&cycled.a, SQ, id, IBV_WC_RDMA_WRITE);
    end_close(&cycled.a);
    end_close(&cycled.b);
}

/* --- memory that comes and goes */

enum { AREA = 200 * 1024, UNTOUCHED = 0x5a };

struct region {
    struct ibv_pd *pd;
    uint8_t *area;
    atomic_uint key;             /* 0: gone */
    atomic_uint begun, finished; /* operations on it */
    bool remote;
};

/* Every operation that was begun before now is over. */
static void await_operations(struct region *region)
{
    const unsigned int begun = atomic_load(&region->begun);

    EVENTUALLY((int)(atomic_load(&region->finished) - begun) >= 0, "operations on a region to end")
    {
    }
}

static int register_and_deregister(void *arg)
{
    struct region *region = arg;

    for (unsigned int i = rounds(150); i > 0; i--) {
        struct ibv_mr *mr =
            ibv_reg_mr(region->pd, region->area, AREA,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
        unsigned int begun = atomic_load(&region->begun);

        CHECK(mr, "ibv_reg_mr: %s", strerror(errno));
        atomic_store(&region->key, region->remote ? mr->rkey : mr->lkey);
        EVENTUALLY(atomic_load(&region->begun) - begun >= 1 + i % 3, "operations on a new region")
        {
        }
        CHECK_ZERO(ibv_dereg_mr(mr));
        /* From here on not one byte changes, though operations are under way and go on being posted. */
        memset(region->area, UNTOUCHED, AREA);
        await_operations(region);
        for (size_t at = 0; at < AREA; at++)
            CHECK(region->area[at] == UNTOUCHED, "byte %zu changed after the region was gone", at);
    }
    atomic_store(&region->key, 0);
    return 0;
}

static void reconnect(struct end *a, struct end *b)
{
    CHECK_ZERO(end_to_state(a, IBV_QPS_RESET));
    CHECK_ZERO(end_to_state(b, IBV_QPS_RESET));
    end_connect(a, b);
}

static size_t some_length(uint32_t *seed)
{
    static const size_t lengths[] = {1, 8, 300, 5000, 16384, 60000, AREA};

    return lengths[dice(seed, COUNT(lengths))];
}

static struct end_attr attr_with_room(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = AREA;
    return attr;
}

/* The other end's memory is read into the region. */
static void no_read_arrives_after_deregistration(void **state)
{
    const struct end_attr attr = attr_with_room();
    struct region region = {.remote = false};
    struct caller caller;
    uint32_t seed = 7, key;
    struct pair p;

    pair_connect_as(&p, &attr);
    region.pd = p.a.pd;
    region.area = malloc(AREA);
    memset(region.area, 0, AREA);
    caller_start(&caller, register_and_deregister, &region);
    EVENTUALLY(atomic_load(&region.key), "the first region")
    {
    }
    while ((key = atomic_load(&region.key)) != 0) {
        struct send send = a_read(&p.a, 1, 0, some_length(&seed), &p.b, 0);
        struct ibv_wc wc;

        send.sge[0].addr = (uintptr_t)region.area;
        send.sge[0].lkey = key;
        atomic_fetch_add(&region.begun, 1);
        end_send(&p.a, send);
        wc = end_wc(&p.a, SQ);
        CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_LOC_PROT_ERR, "%s",
              ibv_wc_status_str(wc.status));
        atomic_fetch_add(&region.finished, 1);
        if (wc.status != IBV_WC_SUCCESS)
            reconnect(&p.a, &p.b);
    }
    caller_finish(&caller);
    free(region.area);
    pair_close(&p);
}

/* The region is written by the other end. */
static void no_write_arrives_after_deregistration(void **state)
{
    const struct end_attr attr = attr_with_room();
    struct region region = {.remote = true};
    struct caller caller;
    uint32_t seed = 9, key;
    struct end a, b;

    open_two(&a, &b, &attr);
    end_connect(&a, &b);
    region.pd = b.pd;
    region.area = malloc(AREA);
    memset(region.area, 0, AREA);
    caller_start(&caller, register_and_deregister, &region);
    EVENTUALLY(atomic_load(&region.key), "the first region")
    {
    }
    while ((key = atomic_load(&region.key)) != 0) {
        const size_t length = some_length(&seed);
        struct send send =
            dice(&seed, 4) ? a_write(&a, 1, 0, length, &b, 0) : a_read(&a, 1, 0, length, &b, 0);
        struct ibv_wc wc;

        send.wr.wr.rdma.remote_addr = (uintptr_t)region.area;
        send.wr.wr.rdma.rkey = key;
        atomic_fetch_add(&region.begun, 1);
        end_send(&a, send);
        wc = end_wc(&a, SQ);
        CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_REM_ACCESS_ERR, "%s",
              ibv_wc_status_str(wc.status));
        atomic_fetch_add(&region.finished, 1);
        if (wc.status != IBV_WC_SUCCESS)
            reconnect(&a, &b);
    }
    caller_finish(&caller);
    free(region.area);
    end_close(&a);
    end_close(&b);
}

/* A program may use its buffer again the moment its QP is in ERR. */
static void no_read_arrives_after_an_error(void **state)
{
    const struct end_attr attr = attr_with_room();
    uint32_t seed = 11;
    struct pair p;

    pair_connect_as(&p, &attr);
    for (unsigned int i = rounds(100); i > 0; i--) {
        struct ibv_wc wc[4];
        unsigned int count = 1 + dice(&seed, 3);
        uint8_t *untouched = p.a.buf;

        for (uint64_t id = 0; id < count; id++)
            end_send(&p.a, a_read(&p.a, id, 0, some_length(&seed), &p.b, 0));
        for (uint32_t pause = dice(&seed, 3000); pause > 0; pause--)
            atomic_signal_fence(memory_order_seq_cst);
        CHECK_ZERO(end_to_state(&p.a, dice(&seed, 2) ? IBV_QPS_ERR : IBV_QPS_RESET));
        memset(untouched, UNTOUCHED, AREA);
        /* The other end has seen all requests when it answers on another QP behind them. */
        reconnect(&p.a, &p.b);
        for (int polled = 1; polled > 0;)
            polled = poll_any(p.a.send_cq, wc, 4);
        for (size_t at = 0; at < AREA; at++)
            CHECK(untouched[at] == UNTOUCHED, "byte %zu changed after the QP was stopped", at);
    }
    pair_close(&p);
}

/* --- one extended QP, several posters */

struct posters {
    struct end *a, *b;
    struct ibv_mw *mw;
    atomic_uint next, polled;
    unsigned int total;
};

static int build_and_post(void *arg)
{
    struct posters *posters = arg;
    struct ibv_qp_ex *qp = posters->a->qpx;
    unsigned int id;

    while ((id = atomic_fetch_add(&posters->next, 2)) < posters->total) {
        int error;

        do {
            ibv_wr_start(qp);
            for (unsigned int i = id; i < id + 2; i++) {
                qp->wr_id = i;
                qp->wr_flags = IBV_SEND_SIGNALED;
                ibv_wr_rdma_write(qp, posters->b->rkey, (uintptr_t)posters->b->buf + 8 * (i % 1000));
                ibv_wr_set_inline_data(qp, &(uint64_t){i}, sizeof(uint64_t));
            }
            error = ibv_wr_complete(qp);
            CHECK(!error || error == ENOMEM, "ibv_wr_complete is %d", error);
            if (error)
                sched_yield();
        } while (error);
    }
    return 0;
}

static int bind_in_between(void *arg)
{
    struct posters *posters = arg;
    unsigned int bound = 0;

    while (atomic_load(&posters->polled) < posters->total) {
        struct ibv_mw_bind bind = {
            .wr_id = UINT64_MAX,
            .send_flags = IBV_SEND_SIGNALED, /* else nothing would ever free a queue full of binds */
            .bind_info = {.mr = posters->a->mr,
                          .addr = (uintptr_t)posters->a->buf,
                          .length = 64,
                          .mw_access_flags = IBV_ACCESS_REMOTE_READ},
        };
        const int error = ibv_bind_mw(posters->a->qp, posters->mw, &bind);

        CHECK(!error || error == ENOMEM, "ibv_bind_mw is %d", error);
        bound += !error;
        sched_yield();
    }
    return (int)bound;
}

static void several_threads_post_to_one_extended_qp(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct posters posters = {.total = rounds(4000)};
    uint8_t *seen = calloc(posters.total, 1);
    struct caller callers[3];
    struct ibv_wc wc[16];
    struct end a, b;

    attr.send_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW;
    attr.mr_access |= IBV_ACCESS_MW_BIND;
    open_two(&a, &b, &attr);
    end_connect(&a, &b);
    posters.a = &a;
    posters.b = &b;
    posters.mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1);
    CHECK(posters.mw, "ibv_alloc_mw: %s", strerror(errno));
    caller_start(&callers[0], build_and_post, &posters);
    caller_start(&callers[1], build_and_post, &posters);
    caller_start(&callers[2], bind_in_between, &posters);
    while (atomic_load(&posters.polled) < posters.total) {
        int count = 0;

        EVENTUALLY((count = poll_any(a.send_cq, wc, 16)) > 0, "completions of what several threads post")
        {
        }
        for (int i = 0; i < count; i++) {
            CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
            if (wc[i].wr_id == UINT64_MAX)
                continue;
            CHECK(wc[i].opcode == IBV_WC_RDMA_WRITE && wc[i].wr_id < posters.total && !seen[wc[i].wr_id],
                  "work request %llu completed twice, or never was", (unsigned long long)wc[i].wr_id);
            seen[wc[i].wr_id] = 1;
            atomic_fetch_add(&posters.polled, 1);
        }
    }
    for (size_t i = 0; i < COUNT(callers); i++)
        caller_finish(&callers[i]);
    end_close_qp(&a);
    CHECK_ZERO(ibv_dealloc_mw(posters.mw));
    end_close(&a);
    end_close(&b);
    free(seen);
}

/* --- completion queues */

struct resized {
    struct ibv_cq *cq;
    atomic_bool done;
};

static int resize_up_and_down(void *arg)
{
    struct resized *resized = arg;
    uint32_t seed = 5;

    while (!atomic_load(&resized->done)) {
        const int error = ibv_resize_cq(resized->cq, 64 << dice(&seed, 5));

        CHECK(!error || error == EINVAL, "ibv_resize_cq is %d", error); /* EINVAL: more wait to be polled */
        CHECK(ibv_destroy_cq(resized->cq) == EBUSY, "a CQ with a QP was destroyed");
    }
    return 0;
}

static void a_cq_is_resized_under_traffic(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct resized resized = {0};
    uint64_t posted = 0, polled = 0;
    struct caller caller;
    struct pair p;

    pair_connect_as(&p, &attr);
    resized.cq = p.a.send_cq;
    caller_start(&caller, resize_up_and_down, &resized);
    while (polled < rounds(5000)) {
        struct ibv_wc wc[8];
        int count = 0;

        /* Never more than the smallest size holds. */
        for (; posted - polled < 60 && posted < rounds(5000); posted++)
            end_send(&p.a, a_write(&p.a, posted, 0, 8, &p.b, 0));
        EVENTUALLY((count = poll_any(p.a.send_cq, wc, 8)) > 0, "completions in a CQ that is resized")
        {
        }
        for (int i = 0; i < count; i++)
            check_success(&wc[i], polled++, IBV_WC_RDMA_WRITE);
    }
    atomic_store(&resized.done, true);
    caller_finish(&caller);
    pair_close(&p);
}

/* --- threads that sleep for each other */

struct sleeper {
    struct end *end;
    unsigned int count;
    bool begins;
};

static void sleep_for_event(struct end *end)
{
    struct ibv_cq *cq;
    void *context;

    CHECK_ZERO(ibv_get_cq_event(end->channel, &cq, &context));
    ibv_ack_cq_events(cq, 1);
}

static void await_receive(struct end *end, uint64_t id)
{
    struct ibv_wc wc;

    for (;;) {
        if (poll_any(end->recv_cq, &wc, 1))
            break;
        CHECK_ZERO(ibv_req_notify_cq(end->recv_cq, 0));
        if (poll_any(end->recv_cq, &wc, 1))
            break;
        sleep_for_event(end);
    }
    check_success(&wc, id, IBV_WC_RECV);
}

static int toss_the_ball(void *arg)
{
    const struct sleeper *sleeper = arg;
    struct end *end = sleeper->end;

    for (uint64_t id = 0; id < sleeper->count; id++) {
        struct ibv_wc wc;

        end_recv(end, a_recv(end, id + 1, 0, 64));
        if (!sleeper->begins)
            await_receive(end, id);
        end_send(end, a_send(end, id, 64, 64));
        if (sleeper->begins)
            await_receive(end, id);
        wc = end_wc(end, SQ);
        check_success(&wc, id, IBV_WC_SEND);
    }
    return 0;
}

static void play(unsigned int count)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct sleeper sleepers[2];
    struct caller callers[2];
    struct end a, b;

    attr.channel = true;
    open_two(&a, &b, &attr);
    end_connect(&a, &b);
    end_recv(&a, a_recv(&a, 0, 0, 64));
    end_recv(&b, a_recv(&b, 0, 0, 64));
    sleepers[0] = (struct sleeper){&a, count, true};
    sleepers[1] = (struct sleeper){&b, count, false};
    for (size_t i = 0; i < 2; i++)
        caller_start(&callers[i], toss_the_ball, &sleepers[i]);
    for (size_t i = 0; i < 2; i++)
        caller_finish(&callers[i]);
    end_close(&a);
    end_close(&b);
}

static void sleepers_wake_each_other(void **state)
{
    play(rounds(1000));
}

static int play_often(void *arg)
{
    for (unsigned int i = rounds(10); i > 0; i--)
        play(20);
    return 0;
}

static void many_sleepers_come_and_go(void **state)
{
    struct caller callers[4];

    for (size_t i = 0; i < COUNT(callers); i++)
        caller_start(&callers[i], play_often, NULL);
    for (size_t i = 0; i < COUNT(callers); i++)
        caller_finish(&callers[i]);
}

/* --- fork of a busy process */

struct busy {
    struct end a, b;
    atomic_bool done;
};

static int be_busy(void *arg)
{
    struct busy *busy = arg;

    for (uint64_t id = 0; !atomic_load(&busy->done); id++) {
        struct ibv_mr *mr = ibv_reg_mr(busy->a.pd, busy->a.buf, 100, IBV_ACCESS_LOCAL_WRITE);
        struct end more;

        CHECK(mr, "ibv_reg_mr: %s", strerror(errno));
        end_send(&busy->a, a_write(&busy->a, id, 0, id % 4 ? 8 : 20000, &busy->b, 0));
        end_expect_success(&busy->a, SQ, id, IBV_WC_RDMA_WRITE);
        end_share(&more, &busy->a);
        end_close_qp(&more);
        CHECK_ZERO(ibv_dereg_mr(mr));
    }
    return 0;
}

/* The child of a fork in the middle of everything; no threads of the parent are there to let a lock go. */
static int live_anew(const struct busy *busy)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end a, b;

    struct ibv_wc wc;

    alarm(20 * slowness());
    if (ibv_destroy_qp(busy->a.qp) || ibv_destroy_cq(busy->a.send_cq) || ibv_dereg_mr(busy->a.mr))
        return 1;
    if (ibv_reg_mr(busy->a.pd, busy->a.buf, 100, 0) || ibv_alloc_pd(busy->a.context))
        return 2; /* nothing new can be had of what is inherited */
    if (ibv_poll_cq(busy->a.send_cq, 1, &wc) > 0 || !ibv_req_notify_cq(busy->b.send_cq, 0))
        return 3;
    open_two(&a, &b, &attr);
    end_connect(&a, &b);
    end_fill(&a, 0, 20000, 3);
    end_send(&a, a_write(&a, 1, 0, 20000, &b, 0));
    while (poll_any(a.send_cq, &wc, 1) == 0)
        ; /* until the alarm: a lock of the tests' own may be held for ever, too */
    check_success(&wc, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(&b, 0, 20000, 3);
    end_close(&a);
    end_close(&b);
    return 0;
}

static void children_of_a_busy_process_live_anew(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct busy busies[2];
    struct caller callers[COUNT(busies)];

#ifdef __SANITIZE_ADDRESS__
    skip_because("the address sanitizer's allocator may be locked for ever in a child of several threads");
#endif
    for (size_t i = 0; i < COUNT(busies); i++) {
        open_two(&busies[i].a, &busies[i].b, &attr);
        end_connect(&busies[i].a, &busies[i].b);
        atomic_init(&busies[i].done, false);
        caller_start(&callers[i], be_busy, &busies[i]);
    }
    for (unsigned int i = rounds(20); i > 0; i--) {
        const pid_t pid = fork();
        int status;

        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0)
            _exit(live_anew(&busies[i % COUNT(busies)]));
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a child ended with status %#x", status);
    }
    for (size_t i = 0; i < COUNT(busies); i++) {
        atomic_store(&busies[i].done, true);
        caller_finish(&callers[i]);
        end_close(&busies[i].a);
        end_close(&busies[i].b);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(qps_come_and_go_beside_traffic),
        TEST_WITH(states_change_under_posting_and_polling, .fars = 0),
        TEST(no_read_arrives_after_deregistration),
        TEST_WITH(no_write_arrives_after_deregistration, .fars = 0),
        TEST(no_read_arrives_after_an_error),
        TEST_WITH(several_threads_post_to_one_extended_qp, .fars = 0),
        TEST(a_cq_is_resized_under_traffic),
        TEST_WITH(sleepers_wake_each_other, .fars = 0),
        TEST_WITH(many_sleepers_come_and_go, .fars = 0),
        TEST_WITH(children_of_a_busy_process_live_anew, .fars = 0),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
