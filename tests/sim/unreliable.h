/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Work of UC and UD: whatever gets lost, what is received is a whole message as it was sent, and nothing is
 * written that was not. */
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
