/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* 2 to 64 senders and one bottleneck: a switch port with a queue, which marks packets or drops them, or the socket of a
 * receiver that is half as quick as the link. With "figures" as its argument the program prints what each number of
 * senders gets: situation, operation, senders, per cent of the bottleneck, per cent of an equal part that the poorest
 * has, packets, packets lost. scripts/plot-congestion.py draws them. */
#include <stdio.h>
#include <string.h>

#include "load.h"

enum { MOST_SENDERS = 64 };

struct situation {
    const char *name;
    struct sim_link link;
};

/* 1 GB/s, a round trip of 40 us. */
#define BOTTLENECK(...)                                                                                      \
    {                                                                                                        \
        .name = "bottleneck", .properties = {.mtu = 4096}, .delay = 20000, __VA_ARGS__                       \
    }

#define MARKED "marks from 64 KiB on"

static const struct situation situations[] = {
    {"queue of 256 KiB", BOTTLENECK(.rate = 1000, .queue = 256 * 1024)},
    {MARKED, BOTTLENECK(.rate = 1000, .queue = 256 * 1024, .mark = 64 * 1024)},
    {"1 % lost", BOTTLENECK(.rate = 1000, .queue = 256 * 1024, .loss_percent = 1)},
    {"marks, and 1 % lost",
     BOTTLENECK(.rate = 1000, .queue = 256 * 1024, .mark = 64 * 1024, .loss_percent = 1)},
    {"half as quick, socket of 4 MiB", BOTTLENECK(.rate = 500, .queue = 4 * 1024 * 1024)},
    {"half as quick, socket of 208 KiB", BOTTLENECK(.rate = 500, .queue = 208 * 1024)},
};

static const char *name_of(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE";
}

static void print_figures(void)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (unsigned i = 0; i < array_size(situations); i++) {
        for (unsigned o = 0; o < array_size(opcodes); o++) {
            for (unsigned senders = 2; senders <= MOST_SENDERS; senders *= 2) {
                struct load_outcome outcome = load_run(&situations[i].link, senders, opcodes[o]);

                printf("%s\t%s\t%u\t%u\t%u\t%llu\t%llu\n", situations[i].name, name_of(opcodes[o]), senders,
                       outcome.share, outcome.poorest, (unsigned long long)outcome.packets,
                       (unsigned long long)outcome.lost);
                fflush(stdout);
            }
        }
    }
}

/* In per cent: of the bottleneck, and of an equal part. */
static void expect(const char *name, enum ibv_wr_opcode opcode, unsigned senders, unsigned share,
                   unsigned poorest)
{
    struct load_outcome outcome = {0};

    for (unsigned i = 0; i < array_size(situations); i++)
        if (!strcmp(situations[i].name, name))
            outcome = load_run(&situations[i].link, senders, opcode);
    print_message("# %s, %u x %s: %u%% of the bottleneck, poorest %u%%\n", name, senders, name_of(opcode),
                  outcome.share, outcome.poorest);
    assert_in_range(outcome.share, share, 100);
    assert_in_range(outcome.poorest, poorest, 100);
}

/* Whatever the bottleneck is, and whether it marks or drops: none has less than half of the mean. */
static void sixteen_share_the_bottleneck(void **state)
{
    for (unsigned i = 0; i < array_size(situations); i++) {
        expect(situations[i].name, IBV_WR_RDMA_WRITE, 16, 80, 50);
        expect(situations[i].name, IBV_WR_RDMA_READ, 16, 80, 50);
    }
}

static void marks_slow_all_alike(void **state)
{
    for (unsigned senders = 2; senders <= MOST_SENDERS; senders *= 2) {
        expect(MARKED, IBV_WR_RDMA_WRITE, senders, 90, 50);
        expect(MARKED, IBV_WR_RDMA_READ, senders, 90, 0);
    }
}

static void nothing_collapses(void **state)
{
    for (unsigned i = 0; i < array_size(situations); i++) {
        expect(situations[i].name, IBV_WR_RDMA_WRITE, MOST_SENDERS, 75, 0);
        expect(situations[i].name, IBV_WR_RDMA_READ, MOST_SENDERS, 75, 0);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_share_the_bottleneck),
        cmocka_unit_test(marks_slow_all_alike),
        cmocka_unit_test(nothing_collapses),
    };

    if (argc > 1 && !strcmp(argv[1], "figures")) {
        print_figures();
        return 0;
    }
    return run_unit_tests("congestion", tests);
}
