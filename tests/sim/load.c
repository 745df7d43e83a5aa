/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "load.h"

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

struct load_outcome load_run(const struct sim_link *link, unsigned connections, enum ibv_wr_opcode opcode)
{
    static const ns_t duration = NS_PER_S / 2;
    struct sim *sim = sim_new(link, connections);
    struct load loads[SIM_QPS / 2] = {0};
    unsigned total = 0, least = UINT32_MAX;
    uint64_t capacity = duration / 1000 * link->rate;
    struct load_outcome outcome;

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
    outcome.packets = sim->packets;
    outcome.lost = sim->lost;
    outcome.overflowed = sim->overflowed;
    sim_free(sim);
    return outcome;
}
