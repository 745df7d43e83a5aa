/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connections that have something to send at any time, through one bottleneck: the adapter of node 0, into which all
 * WRITEs and all READ responses go. */
#ifndef TESTS_SIM_LOAD_H
#define TESTS_SIM_LOAD_H

#include "scenario.h"

struct load_outcome {
    unsigned share;   /* per cent of the link's capacity that was of use */
    unsigned poorest; /* per cent of an equal part that the poorest connection got */
    uint64_t packets, lost, overflowed;
};

struct load_outcome load_run(const struct sim_link *link, unsigned connections, enum ibv_wr_opcode opcode);

#endif
