/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random work of UC and UD: whatever is lost, each message received is one that was sent, and whole; other memory is
 * unchanged. */
#ifndef TESTS_SIM_UNRELIABLE_H
#define TESTS_SIM_UNRELIABLE_H

#include "sim.h"

enum { UNRELIABLE_MAX = 256 };

struct unreliable_shape {
    enum ibv_qp_type type;
    unsigned requests;
    uint32_t longest;
    bool late_receives;
};

void unreliable_run(struct sim *sim, const struct unreliable_shape *shape);

#endif
