/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counters of the ports of this network namespace: sums over its processes, also those that have ended. For the
 * command, and for the path shim. */
#ifndef SOFTHCA_COUNTERS_H
#define SOFTHCA_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

#include "stats/stats.h"

/* All processes that let us look, hidden: how many more there are; -errno. by_sockets: as attach_all(). own_space:
 * only those of our network namespace. */
struct counted {
    struct stats_process *list;
    unsigned count, hidden;
};
int counted_read(bool by_sockets, bool own_space, bool with_qps, struct counted *ret);
void counted_free(struct counted *counted);

/* How old the counters of a port may be; also its hw_counters/lifespan. */
#define COUNTERS_LIFE_MS 10

/* Sums by device, at most `room`; how many there are, or -errno. directory: where the ledger is kept; error: why it
 * could not be (0: it was). */
int counters_ports(int directory, bool by_sockets, struct ledger_port *ret_ports, unsigned room,
                   int *ret_error);

#endif
