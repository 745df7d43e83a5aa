/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef TESTS_SIM_STAGE_H
#define TESTS_SIM_STAGE_H

#include "scenario.h"

#define ACCESS                                                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Fixture: a connection, memory on both sides, and a work request that would succeed. */
struct stage {
    struct sim_qp *a, *b;
    struct sim_buffer *local, *far;
    struct sim_wr wr;
};

enum { SIZE = 60000 };

static inline struct stage set_stage(struct sim *sim, enum ibv_wr_opcode opcode, uint32_t length)
{
    struct stage stage;

    sim_pair(sim, IBV_QPT_RC, &stage.a, &stage.b);
    stage.local = sim_buffer(&sim->node[0], SIZE, ACCESS);
    stage.far = sim_buffer(&sim->node[1], SIZE, ACCESS);
    sim_pattern(stage.local->bytes, SIZE, 1);
    stage.wr = (struct sim_wr){
        .wr_id = 2,
        .opcode = opcode,
        .num_sge = 1,
        .sge = {SGE(stage.local, 0, length)},
        .rkey = stage.far->rkey,
        .remote_address = stage.far->address,
    };
    return stage;
}

#endif
