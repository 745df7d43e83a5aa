/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of a fuzzed QP share: fuzz_qp.c is its owner, fuzz_qp_events.c what happens to it. */
#ifndef TESTS_FUZZ_FUZZ_QP_PARTS_H
#define TESTS_FUZZ_FUZZ_QP_PARTS_H

#include "fuzz_qp.h"

enum { PD = 7, SEND_STRIDE = 64 + 64 + 64 };

enum event {
    EVENT_PACKET,
    EVENT_RECEIVE,
    EVENT_SEND,
    EVENT_TIMER,
    EVENT_LINK,
    EVENT_RUN,
    EVENT_KEYS,
    EVENT_STATE,
    EVENT_CONGESTED,
    EVENT_COUNT
};

extern struct key_table *keys;

/* Registers it. */
void publish_memory(enum fuzz_memory which);
struct recv_wqe *receive_at(const struct fuzz_qp *qp, uint32_t counter);
void enter_error(struct fuzz_qp *qp);

/* What the owner does after everything that happens; and what holds then. */
void settle(struct fuzz_qp *qp);
void check(const struct fuzz_qp *qp);

#endif
