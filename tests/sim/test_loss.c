/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Every single packet lost, and every pair, of a small mixed workload. */
#include "workload.h"

static const struct work_shape small = {.requests = 14, .longest = 3000};

static void run_masked(uint64_t seed, uint64_t mask)
{
    struct sim_link link = sim_wire;
    struct sim *sim;

    link.loss_mask = mask;
    sim = sim_new(&link, seed);
    work_run(sim, &small);
    sim_free(sim);
}

static void no_packet_lost(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        run_masked(seed, 0);
}

static void any_packet_lost(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        for (unsigned i = 0; i < 64; i++)
            run_masked(seed, 1ull << i);
    }
}

static void any_burst_lost(void **state)
{
    for (unsigned i = 0; i < 60; i++)
        run_masked(4, 0x1full << i);
}

static void any_packet_of_xrc_lost(void **state)
{
    const struct work_shape xrc = {.requests = 20, .longest = 3000, .one_direction = true, .xrc = true};

    for (unsigned i = 0; i < 64; i++) {
        struct sim_link link = sim_wire;
        struct sim *sim;

        link.loss_mask = 1ull << i;
        sim = sim_new(&link, 7 + i % 3);
        work_run(sim, &xrc);
        sim_free(sim);
    }
}

static void any_two_packets_lost(void **state)
{
    for (unsigned i = 0; i < 40; i++) {
        for (unsigned j = 0; j < i; j++)
            run_masked(5, 1ull << i | 1ull << j);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_packet_lost),       cmocka_unit_test(any_packet_lost),
        cmocka_unit_test(any_burst_lost),       cmocka_unit_test(any_packet_of_xrc_lost),
        cmocka_unit_test(any_two_packets_lost),
    };

    return run_unit_tests("loss", tests);
}
