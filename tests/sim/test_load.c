/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* More than the link can take: what arrives of use is a good share of what it could carry, and everybody has
 * a part of it. */
#include "load.h"

/* In per cent; poorest: of up to eight connections. */
static void expect(const struct sim_link *link, unsigned connections, enum ibv_wr_opcode opcode,
                   unsigned share, unsigned poorest)
{
    struct load_outcome outcome = load_run(link, connections, opcode);

    print_message(
        "# %u connections, %s, rate %u, queue %u, mark %u, loss %u: %u%% of capacity, poorest %u%%; "
        "%llu packets, %llu lost, %llu of them overflowed\n",
        connections, opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE", link->rate, link->queue, link->mark,
        link->loss_percent, outcome.share, outcome.poorest, (unsigned long long)outcome.packets,
        (unsigned long long)outcome.lost, (unsigned long long)outcome.overflowed);
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
