/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random work in both directions of connections, with a model of the expected memory and completions: each request is
 * executed exactly once, in order, and writes nothing else. */
#ifndef TESTS_SIM_WORKLOAD_H
#define TESTS_SIM_WORKLOAD_H

#include "sim.h"

enum { WORK_MAX = 256, WORK_LENGTH_MAX = 70000, WORK_RECEIVES = 48, WORK_PAIRS = 12, WORK_PLACES = 4 };

struct work_shape {
    unsigned requests;  /* of each direction */
    uint32_t longest;   /* message; at most WORK_LENGTH_MAX */
    bool late_receives; /* receivers are not ready now and then */
    bool one_direction;
    bool xrc;        /* in one direction only, as XRC_SEND and XRC_RECV are */
    unsigned places; /* XRC: processes with an SRQ, at most WORK_PLACES; 0: one */
    bool lazy;       /* delayed acknowledgements */
};

struct work_request {
    enum ibv_wr_opcode opcode;
    unsigned num_sge;
    struct wqe_sge sge[SIM_SGE];
    uint32_t length;
    uint64_t remote_offset; /* WRITE: in the target arena; READ: in the peer's source */
    uint32_t imm;
    uint64_t expected; /* atomic: value before */
    bool tells;        /* takes a receive */
    unsigned place;    /* where it is executed */
};

/* Where requests are executed: by the QP that they are sent to, or (XRC) in another process. */
struct work_place {
    struct sim_qp *qp;
    struct sim_buffer *source; /* of READs */
    struct sim_buffer *target; /* of SENDs and WRITEs */
    struct sim_buffer *receive;
    struct sim_buffer *counter; /* atomics */
    unsigned char *target_model;
    size_t target_used;
    uint64_t counter_model;
    unsigned receives_posted, received;
};

/* One direction: requests of `from`. */
struct work_direction {
    struct work *work;
    struct sim_qp *from, *to;
    struct sim_buffer *source;  /* at `from`: payload of SENDs and WRITEs; READs of the other direction */
    struct sim_buffer *results; /* at `from`: of READs and atomics */
    unsigned char *results_model;
    size_t results_used;
    struct work_place place[WORK_PLACES];
    unsigned places;
    struct work_request request[WORK_MAX];
    unsigned posted, completed, received, next_told;
    uint32_t window;
    bool window_bound;
};

struct work {
    struct sim *sim;
    struct work_shape shape;
    struct work_direction direction[2];
    uint32_t arena, receive_length;
};

/* A connection between two adapters, and its work. */
struct work_pair {
    struct work_shape shape;
    unsigned node[2];
};

/* Posts, runs and checks; fails the test at the first difference from the model. */
void work_run_all(struct sim *sim, const struct work_pair *pairs, unsigned count);
/* One connection. */
void work_run(struct sim *sim, const struct work_shape *shape);

#endif
