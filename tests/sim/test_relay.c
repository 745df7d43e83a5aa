/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of XRC for SRQs of several processes of a host (transport/relay.c), through links that lose,
 * repeat and reorder: each is executed once, in order, by the process that has its SRQ. */
#include "seeds.h"
#include "workload.h"

enum { SEEDS = 200, SEEDS_LONG = 10000, SEEDS_PER_TEST = 40 };

static void random_link(struct sim *sim, struct sim_link *link)
{
    static const uint32_t mtus[] = {256, 512, 1024, 2048, 4096};

    if (!sim_below(sim, 4)) {
        *link = sim_ring;
        link->capacity = 1 + sim_below(sim, 40);
        link->properties.piggyback_acks = sim_below(sim, 2);
        return;
    }
    *link = sim_wire;
    link->properties.mtu = mtus[sim_below(sim, array_size(mtus))];
    link->delay = 1000 + sim_below(sim, 100000);
    link->loss_percent = sim_below(sim, 15);
    link->corrupt_percent = sim_below(sim, 5);
    link->duplicate_percent = sim_below(sim, 10);
    link->reorder_percent = sim_below(sim, 10);
    link->patience = 3; /* requests that wait for others are repeated as well */
    link->capacity = sim_below(sim, 2) ? 0 : 8 + sim_below(sim, 100);
    link->ipv6 = sim_below(sim, 2);
}

static void run_seed(uint64_t seed, bool traced)
{
    struct sim *sim = sim_new(&sim_ring, seed * 0x2545f4914f6cdd1d + 2);
    struct work_pair pairs[3];
    unsigned count;

    random_link(sim, &sim->link);
    sim->trace = traced;
    count = 1 + sim_below(sim, array_size(pairs));
    print_message("# seed %llu: %s, mtu %u, loss %u%%, corruption %u%%, %u connections\n",
                  (unsigned long long)seed, sim->link.name, sim->link.properties.mtu, sim->link.loss_percent,
                  sim->link.corrupt_percent, count);
    for (unsigned i = 0; i < count; i++) {
        pairs[i] = (struct work_pair){
            .shape = {.requests = (20 + sim_below(sim, 60)) / count + 1,
                      .longest = sim_below(sim, 2) ? 5000 : 50000,
                      .late_receives = sim_below(sim, 2),
                      .one_direction = true,
                      .xrc = true,
                      .places = 2 + sim_below(sim, WORK_PLACES - 1),
                      .lazy = sim_below(sim, 2)},
            .node = {i, i + 1},
        };
    }
    work_run_all(sim, pairs, count);
    sim_free(sim);
}

int main(int argc, char **argv)
{
    static const struct seeds seeds = {"relay", SEEDS, SEEDS_LONG, SEEDS_PER_TEST, run_seed};

    return run_seeds(&seeds, argc, argv);
}
