/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random work on random links. */
#include "seeds.h"
#include "unreliable.h"
#include "workload.h"

enum { SEEDS = 400, SEEDS_LONG = 10000, SEEDS_PER_TEST = 40 };

static void random_link(struct sim *sim, struct sim_link *link)
{
    static const uint32_t mtus[] = {256, 512, 1024, 2048, 4096};

    switch (sim_below(sim, 4)) {
    case 0:
        *link = sim_ring;
        link->capacity = 1 + sim_below(sim, 40);
        link->properties.piggyback_acks = sim_below(sim, 2);
        return;
    case 1:
        *link = sim_ring_cma;
        link->capacity = 1 + sim_below(sim, 40);
        link->properties.reference_from = 1 + sim_below(sim, 20000);
        link->properties.read_reference_from = 1 + sim_below(sim, 20000);
        link->void_percent = sim_below(sim, 2) ? 0 : sim_below(sim, 50);
        link->properties.reference_mtu = sim_below(sim, 2) ? 256 * 1024 : 4096 * (1 + sim_below(sim, 8));
        return;
    default:
        *link = sim_wire;
        link->properties.mtu = mtus[sim_below(sim, array_size(mtus))];
        link->delay = 1000 + sim_below(sim, 100000);
        link->jitter = sim_below(sim, 2) ? 0 : sim_below(sim, (uint32_t)link->delay) / 4;
        link->loss_percent = sim_below(sim, 15);
        link->corrupt_percent = sim_below(sim, 5);
        link->duplicate_percent = sim_below(sim, 10);
        link->reorder_percent = sim_below(sim, 10);
        link->patience = 5;
        if (link->jitter) /* reorders without end: not a link that go-back-N is for */
            link->jitter = link->reorder_percent ? 0 : 200;
        link->capacity = sim_below(sim, 2) ? 0 : 8 + sim_below(sim, 100);
        link->ipv6 = sim_below(sim, 2);
        if (!sim_below(sim, 3)) {
            link->rate = 10 + sim_below(sim, 2000);
            link->queue = 20000 + sim_below(sim, 200000);
            link->mark = sim_below(sim, 2) ? link->queue / 3 : 0;
        }
    }
}

/* One connection, or several among up to eight adapters. */
static void run_connections(struct sim *sim)
{
    struct work_pair pairs[WORK_PAIRS];
    unsigned count = 1, nodes = 2;

    if (!sim->link.properties.reference_mtu && !sim_below(sim, 4)) {
        count = 2 + sim_below(sim, 5);
        nodes = 2 + sim_below(sim, SIM_NODES - 1);
    }
    for (unsigned i = 0; i < count; i++) {
        pairs[i].shape = (struct work_shape){
            .requests = (20 + sim_below(sim, 60)) / count + 1,
            .longest = sim_below(sim, 2) ? 5000 : 50000,
            .late_receives = sim_below(sim, 2),
            .one_direction = !sim_below(sim, 4),
            .lazy = sim_below(sim, 2),
        };
        pairs[i].shape.xrc = pairs[i].shape.one_direction && sim_below(sim, 2);
        pairs[i].node[0] = i % nodes;
        pairs[i].node[1] = count == 1 ? 1 : sim_below(sim, nodes);
    }
    print_message("# %u connections, %u adapters\n", count, nodes);
    work_run_all(sim, pairs, count);
}

static void run_unreliable(struct sim *sim)
{
    struct unreliable_shape shape = {
        .type = sim_below(sim, 2) ? IBV_QPT_UC : IBV_QPT_UD,
        .requests = 20 + sim_below(sim, 200),
        .late_receives = sim_below(sim, 2),
    };

    shape.longest = shape.type == IBV_QPT_UD ? min_of(sim->link.properties.mtu, 4096u) : 5000;
    print_message("# %s\n", shape.type == IBV_QPT_UD ? "UD" : "UC");
    unreliable_run(sim, &shape);
}

static void run_seed(uint64_t seed, bool traced)
{
    struct sim *sim = sim_new(&sim_ring, seed * 0x2545f4914f6cdd1d + 1);

    random_link(sim, &sim->link);
    sim->trace = traced;
    print_message("# seed %llu: %s, mtu %u, loss %u%%, corruption %u%%, rate %u\n", (unsigned long long)seed,
                  sim->link.name, sim->link.properties.mtu, sim->link.loss_percent, sim->link.corrupt_percent,
                  sim->link.rate);
    if (sim_below(sim, 8))
        run_connections(sim);
    else
        run_unreliable(sim);
    sim_free(sim);
}

int main(int argc, char **argv)
{
    static const struct seeds seeds = {"random", SEEDS, SEEDS_LONG, SEEDS_PER_TEST, run_seed};

    return run_seeds(&seeds, argc, argv);
}
