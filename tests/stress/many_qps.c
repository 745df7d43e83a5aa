/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Thousands of RC QPs between two processes; what they cost. */
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 10000, BATCH = 500 };

struct batch {
    unsigned int first, count;
    struct end peer;
    uint32_t numbers[BATCH];
    uint64_t bytes;
};

static struct ibv_qp *qps[MANY]; /* of this side */

static void create_here(struct end *end, void *arg)
{
    struct batch *batch = arg;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };

    for (unsigned int i = 0; i < batch->count; i++) {
        struct ibv_qp *qp = ibv_create_qp(end->pd, &init);

        CHECK(qp, "QP %u: %s", batch->first + i, strerror(errno));
        qps[batch->first + i] = qp;
        batch->numbers[i] = qp->qp_num;
    }
}

static void connect_here(struct end *end, void *arg)
{
    const struct batch *batch = arg;

    for (unsigned int i = 0; i < batch->count; i++) {
        struct end to = batch->peer;
        struct ibv_qp *qp = qps[batch->first + i];
        struct ibv_recv_wr recv = {.wr_id = batch->first + i}, *bad;
        struct ibv_qp_attr attr;
        int mask = attr_for_init(end, &attr);

        to.qp_num = batch->numbers[i];
        CHECK_ZERO(ibv_modify_qp(qp, &attr, mask));
        CHECK_ZERO(ibv_post_recv(qp, &recv, &bad));
        mask = attr_for_rtr(end, &to, &attr);
        CHECK_ZERO(ibv_modify_qp(qp, &attr, mask));
        mask = attr_for_rts(end, &attr);
        CHECK_ZERO(ibv_modify_qp(qp, &attr, mask));
    }
}

static void destroy_here(struct end *end, void *arg)
{
    const unsigned int *count = arg;

    for (unsigned int i = 0; i < *count; i++)
        CHECK_ZERO(ibv_destroy_qp(qps[i]));
}

/* Every QP sends its number as immediate; the others' must all come. */
static void send_all(struct end *end, void *arg)
{
    const unsigned int *count = arg;
    unsigned int posted = 0, done = 0;

    EVENTUALLY(done == *count, "%u sends", *count)
    {
        struct ibv_wc wc[64];
        int got;

        while (posted < *count && posted - done < 1000) {
            struct ibv_send_wr send = {.wr_id = posted,
                                       .opcode = IBV_WR_SEND_WITH_IMM,
                                       .imm_data = posted,
                                       .send_flags = IBV_SEND_SIGNALED},
                               *bad;

            CHECK_ZERO(ibv_post_send(qps[posted], &send, &bad));
            posted++;
        }
        got = ibv_poll_cq(end->send_cq, 64, wc);
        for (int i = 0; i < got; i++)
            CHECK(wc[i].status == IBV_WC_SUCCESS, "send %llu: %s", (unsigned long long)wc[i].wr_id,
                  ibv_wc_status_str(wc[i].status));
        done += (unsigned int)got;
    }
}

static void receive_all(struct end *end, void *arg)
{
    const unsigned int *count = arg;
    unsigned int done = 0;

    EVENTUALLY(done == *count, "%u messages", *count)
    {
        struct ibv_wc wc[64];
        const int got = ibv_poll_cq(end->recv_cq, 64, wc);

        for (int i = 0; i < got; i++)
            CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].imm_data == wc[i].wr_id, "QP %llu received %u: %s",
                  (unsigned long long)wc[i].wr_id, wc[i].imm_data, ibv_wc_status_str(wc[i].status));
        done += (unsigned int)got;
    }
}

static void connect_many(struct pair *p, unsigned int count)
{
    for (unsigned int first = 0; first < count; first += BATCH) {
        struct batch of_a = {.first = first, .count = count - first < BATCH ? count - first : BATCH},
                     of_b = of_a;

        AT(&p->a, create_here, &of_a);
        AT(&p->b, create_here, &of_b);
        of_a.peer = p->a;
        of_b.peer = p->b;
        AT(&p->a, connect_here, &of_b);
        AT(&p->b, connect_here, &of_a);
    }
}

static void open_for(struct pair *p, int cqe)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.send_cqe = attr.recv_cqe = cqe;
    attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 0;
    pair_open(p, &attr, &attr);
}

static void ten_thousand_qps_between_two_processes(void **state)
{
    unsigned int count = MANY;
    struct end_call call;
    struct pair p;

    open_for(&p, MANY);
    connect_many(&p, count);
    end_start(&call, &p.b, receive_all, &count, sizeof(count));
    AT(&p.a, send_all, &count);
    end_finish(&call);
    AT(&p.a, destroy_here, &count);
    AT(&p.b, destroy_here, &count);
    pair_close(&p);
}

/* VmRSS of this process without what is mapped from files */
static void measure_memory(struct end *end, void *arg)
{
    struct batch *batch = arg;
    FILE *file = fopen("/proc/self/status", "re");
    unsigned long kib;
    char line[128];

    batch->bytes = 0;
    CHECK(file, "/proc/self/status");
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "RssAnon: %lu", &kib) == 1 || sscanf(line, "RssShmem: %lu", &kib) == 1)
            batch->bytes += kib * 1024;
    fclose(file);
}

static void an_idle_qp_costs_at_most_4_kib_beyond_its_queues(void **state)
{
    enum { QPS = 2000 };
    unsigned int count = QPS;
    struct batch before = {0}, after = {0};
    struct pair p;

    if (slowness() > 1)
        skip_because("a sanitizer's memory is not the library's");
    open_for(&p, 100);
    connect_many(&p, 1);
    qps[0] = NULL; /* the first of its kind pays for tables; it is destroyed with the context */
    AT(&p.b, measure_memory, &before);
    connect_many(&p, count);
    AT(&p.b, measure_memory, &after);
    print_message("%llu bytes per QP\n", (unsigned long long)(after.bytes - before.bytes) / QPS);
    /* the queues: a page each */
    assert_true((after.bytes - before.bytes) / QPS <= 4096 + 2 * 4096);
    AT(&p.a, destroy_here, &count);
    AT(&p.b, destroy_here, &count);
}

/* What of CPU time a far side used while it was left alone for a second */
static void be_idle(struct end *end, void *arg)
{
    struct batch *batch = arg;
    struct timespec used, second = {.tv_sec = 1};
    uint64_t before;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    before = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
    nanosleep(&second, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    batch->bytes = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec - before;
}

static void an_idle_process_with_100_qps_uses_no_cpu_time(void **state)
{
    unsigned int count = 100;
    struct batch idle = {0};
    struct end_call call;
    struct pair p;

    open_for(&p, 1000);
    connect_many(&p, count);
    end_start(&call, &p.b, receive_all, &count, sizeof(count));
    AT(&p.a, send_all, &count);
    end_finish(&call);
    AT(&p.b, be_idle, &idle); /* it falls asleep */
    AT(&p.b, be_idle, &idle);
    print_message("%llu ns of CPU time in a second\n", (unsigned long long)idle.bytes);
    assert_true(idle.bytes < 1000000u * slowness());
    AT(&p.a, destroy_here, &count);
    AT(&p.b, destroy_here, &count);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(ten_thousand_qps_between_two_processes, .fars = 1, .needs = NEEDS_TWO_PROCESSES,
                  .seconds = 300),
        TEST_WITH(an_idle_qp_costs_at_most_4_kib_beyond_its_queues, .fars = 1, .needs = NEEDS_TWO_PROCESSES,
                  .seconds = 120),
        TEST_WITH(an_idle_process_with_100_qps_uses_no_cpu_time, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
