/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A link between processes begins to lose packets in the middle of outstanding requests, and ends to, again and
 * again, at either end: each request is executed and completes once, in order, with its bytes
 * (docs/design/faults.md). */
#include <stdio.h>

#include "seeds.h"
#include "workload.h"

enum { SEEDS = 200, SEEDS_LONG = 10000, SEEDS_PER_TEST = 40, CHANGES = 30 };

/* Outstanding requests when losses began and ended, in all seeds. */
static unsigned begun_with[IBV_WR_ATOMIC_WRITE + 1], ended_with;

struct changes {
    unsigned left;
    uint32_t apart; /* ns, at most */
};

static void count_outstanding(const struct sim_qp *qp)
{
    const struct sender *sender = &qp->record.sender;

    if (qp->loses)
        ended_with += sender->completed != sender->begun;
    else
        for (uint32_t i = sender->completed; i != sender->begun; i++) {
            unsigned opcode = send_wqe_at(&qp->transport, i)->opcode;

            if (opcode < array_size(begun_with))
                begun_with[opcode]++;
        }
}

static void change(struct sim *sim, void *argument)
{
    struct changes *changes = argument;
    struct sim_qp *qp = sim->qps[sim_below(sim, 2)]; /* not the delegates behind them */

    count_outstanding(qp);
    sim_lose(qp, !qp->loses);
    if (--changes->left) {
        sim_at(sim, 1 + sim_below(sim, changes->apart), change, changes);
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        sim_lose(sim->qps[i], false);
}

static void run_seed(uint64_t seed, bool traced)
{
    static const uint32_t apart[] = {500, 20000, 20 * (uint32_t)NS_PER_MS};
    struct sim *sim = sim_new(seed % 2 ? &sim_ring : &sim_ring_cma, seed * 0x2545f4914f6cdd1d + 1);
    struct changes changes = {.left = CHANGES};
    struct work_shape shape = {
        .requests = sim_below(sim, 2) ? 40 + sim_below(sim, 100) : 1 + sim_below(sim, 8),
        .longest = sim_below(sim, 2) ? 5000 : 50000,
        .late_receives = sim_below(sim, 2),
        .one_direction = !sim_below(sim, 3),
        .lazy = sim_below(sim, 2),
    };

    shape.xrc = shape.one_direction && sim_below(sim, 2);
    shape.places = shape.xrc && sim_below(sim, 2) ? 2 : 0;
    if (shape.xrc) /* never by reference (route_set_lane()) */
        sim->link = sim_ring;
    sim->trace = traced;
    sim->link.capacity = 4 + sim_below(sim, 40);
    if (sim->link.properties.reference_mtu) {
        sim->link.properties.reference_from = 1 + sim_below(sim, 20000);
        sim->link.properties.read_reference_from = 1 + sim_below(sim, 20000);
    }
    sim->link.loss_percent = sim_below(sim, sim_below(sim, 2) ? 20 : 80);
    sim->link.reorder_percent = sim_below(sim, 10);
    sim->link.duplicate_percent = sim_below(sim, 10);
    sim->link.patience = 5;
    changes.apart = apart[sim_below(sim, array_size(apart))];
    print_message("# seed %llu: %s, loss %u%%, later %u%%, twice %u%%\n", (unsigned long long)seed,
                  sim->link.name, sim->link.loss_percent, sim->link.reorder_percent,
                  sim->link.duplicate_percent);
    sim_at(sim, sim_below(sim, 2000), change, &changes);
    work_run(sim, &shape);
    assert_int_equal(changes.left, 0);
    for (unsigned i = 0; i < 2; i++) /* its peer's last packet may have said that it loses */
        assert_true(sim->qps[i]->transport.link.reliable != sim->qps[i]->peer_loses &&
                    !sim->qps[i]->recovers);
    sim_free(sim);
}

/* Of each kind of request one was outstanding when losses began. */
static bool were_met(void)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,      IBV_WR_RDMA_WRITE,           IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE};

    for (size_t i = 0; i < array_size(opcodes); i++) {
        if (!begun_with[opcodes[i]]) {
            fprintf(stderr, "no request with opcode %u was outstanding when losses began\n", opcodes[i]);
            return false;
        }
    }
    return ended_with != 0;
}

int main(int argc, char **argv)
{
    static const struct seeds seeds = {"lossy", SEEDS, SEEDS_LONG, SEEDS_PER_TEST, run_seed};
    int failed = run_seeds(&seeds, argc, argv);

    return failed || (argc == 1 && !were_met());
}
