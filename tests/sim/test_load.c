/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* More than the link can take: what arrives of use is a good share of what it could carry, and everybody has
 * a part of it. */
#include "scenario.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

enum { LENGTH = 65536, IN_FLIGHT = 4 };

/* Keeps a connection busy. */
struct load {
    struct sim_qp *qp;
    struct sim_wr wr;
    unsigned completed;
};

static void post_again(struct sim_qp *qp, const struct sim_completion *completion)
{
    struct load *load = qp->user;

    assert_string_equal(verdict_name(completion->verdict), "ok");
    load->completed++;
    qp->sent_count = 0; /* not checked */
    qp->sent_before = qp->record.sender.completed;
    sim_queue_send(qp, &load->wr);
}

static void begin_load(struct load *load, struct sim_node *from, struct sim_node *to,
                       enum ibv_wr_opcode opcode)
{
    struct sim_buffer *local = sim_buffer(from, LENGTH, ACCESS), *far = sim_buffer(to, LENGTH, ACCESS);
    struct sim_qp *peer = sim_qp(to, IBV_QPT_RC);

    load->qp = sim_qp(from, IBV_QPT_RC);
    sim_connect(load->qp, peer);
    load->qp->user = load;
    load->wr = (struct sim_wr){
        .opcode = opcode,
        .num_sge = 1,
        .sge = {SGE(local, 0, LENGTH)},
        .rkey = far->rkey,
        .remote_address = far->address,
    };
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        sim_queue_send(load->qp, &load->wr);
    sim_kick(load->qp);
}

struct outcome {
    unsigned share;   /* per cent of the link's capacity that was of use */
    unsigned poorest; /* per cent of an equal part that the poorest connection got */
};

static struct outcome run_load(const struct sim_link *link, unsigned connections, enum ibv_wr_opcode opcode)
{
    static const ns_t duration = NS_PER_S / 2;
    struct sim *sim = sim_new(link, connections);
    struct load loads[SIM_QPS / 2] = {0};
    unsigned total = 0, least = UINT32_MAX;
    uint64_t capacity = duration / 1000 * link->rate;
    struct outcome outcome;

    sim->on_sent = post_again;
    for (unsigned i = 0; i < connections; i++) {
        struct sim_node *other = &sim->node[1 + i % (SIM_NODES - 1)];

        begin_load(&loads[i], opcode == IBV_WR_RDMA_READ ? &sim->node[0] : other,
                   opcode == IBV_WR_RDMA_READ ? other : &sim->node[0], opcode);
    }
    sim_run_for(sim, duration);
    for (unsigned i = 0; i < connections; i++) {
        total += loads[i].completed;
        least = min_of(least, loads[i].completed);
    }
    outcome.share = (unsigned)((uint64_t)total * LENGTH * 100 / capacity);
    outcome.poorest = total ? least * connections * 100 / total : 0;
    print_message(
        "# %u connections, %s, rate %u, queue %u, mark %u, loss %u: %u%% of capacity, poorest %u%%; "
        "%llu packets, %llu lost, %llu of them overflowed\n",
        connections, opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE", link->rate, link->queue, link->mark,
        link->loss_percent, outcome.share, outcome.poorest, (unsigned long long)sim->packets,
        (unsigned long long)sim->lost, (unsigned long long)sim->overflowed);
    sim_free(sim);
    return outcome;
}

/* In per cent; poorest: of up to eight connections. */
static void expect(const struct sim_link *link, unsigned connections, enum ibv_wr_opcode opcode,
                   unsigned share, unsigned poorest)
{
    struct outcome outcome = run_load(link, connections, opcode);

    assert_in_range(outcome.share, share, 100);
    assert_in_range(outcome.poorest, connections > 8 ? 0 : poorest, 100);
}

static void expect_of_all(const struct sim_link *link, enum ibv_wr_opcode opcode, unsigned share,
                          unsigned poorest)
{
    for (unsigned connections = 1; connections <= 16; connections *= 2)
        expect(link, connections, opcode, share, poorest);
}

/* 1 GB/s behind a queue of 256 KiB: more than one connection sends, less than many do. */
static const struct sim_link fast = {
    .name = "fast",
    .properties = {.mtu = 4096},
    .delay = 20000,
    .rate = 1000,
    .queue = 256 * 1024,
};
/* 100 MB/s behind a queue of sixteen packets: no more than one for each of many connections. */
static const struct sim_link slow = {
    .name = "slow",
    .properties = {.mtu = 4096},
    .delay = 20000,
    .rate = 100,
    .queue = 64 * 1024,
};

static void fast_writes(void **state)
{
    expect_of_all(&fast, IBV_WR_RDMA_WRITE, 70, 30);
}

static void fast_reads(void **state)
{
    expect_of_all(&fast, IBV_WR_RDMA_READ, 80, 30);
}

static void slow_writes(void **state)
{
    expect_of_all(&slow, IBV_WR_RDMA_WRITE, 50, 20);
}

static void slow_reads(void **state)
{
    expect_of_all(&slow, IBV_WR_RDMA_READ, 50, 5);
}

static void congestion_is_told(void **state)
{
    struct sim_link link = fast;

    link.mark = 64 * 1024;
    expect_of_all(&link, IBV_WR_RDMA_WRITE, 90, 50);
}

static void losses_by_chance(void **state)
{
    struct sim_link link = fast;

    link.loss_percent = 1;
    expect_of_all(&link, IBV_WR_RDMA_WRITE, 50, 30);
    expect_of_all(&link, IBV_WR_RDMA_READ, 20, 30);
    link.loss_percent = 5;
    expect_of_all(&link, IBV_WR_RDMA_WRITE, 5, 0);
    expect_of_all(&link, IBV_WR_RDMA_READ, 1, 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_writes),        cmocka_unit_test(fast_reads),
        cmocka_unit_test(slow_writes),        cmocka_unit_test(slow_reads),
        cmocka_unit_test(congestion_is_told), cmocka_unit_test(losses_by_chance),
    };

    return run_unit_tests("load", tests);
}
