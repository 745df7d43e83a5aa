/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Both ends of each connection of a process, compared: what cannot work, what works here and would fail on a NIC,
 * what is risky. */
#ifndef EXPLAIN_CONNECTION_H
#define EXPLAIN_CONNECTION_H

#include "explain/out.h"
#include "explain/view.h"

struct connection_findings {
    unsigned connections, alone; /* looked at; those of which one end alone could be */
    unsigned wrong, nic, risks;  /* cannot work; would fail on a NIC; works, and may surprise */
};

/* A paragraph for each finding. */
void explain_connections(const struct view *view, struct out *out, struct connection_findings *ret);

#endif
