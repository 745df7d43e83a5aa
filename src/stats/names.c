/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/types.h"
#include "stats/stats.h"

const char *stats_kind_name(enum traffic_kind kind)
{
    static const char *const names[] = {
        [TRAFFIC_SEND] = "send",     [TRAFFIC_WRITE] = "write", [TRAFFIC_READ] = "read",
        [TRAFFIC_ATOMIC] = "atomic", [TRAFFIC_FLUSH] = "flush", [TRAFFIC_ATOMIC_WRITE] = "atomic_write",
        [TRAFFIC_LOCAL] = "local",
    };

    return (unsigned)kind < array_size(names) ? names[kind] : NULL;
}
