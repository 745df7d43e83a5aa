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

/* In the order of struct network_counters. */
static const struct {
    const char *name, *help;
} network[STATS_NET] = {
    {"packets_sent", "RoCEv2 packets sent"},
    {"packets_received", "RoCEv2 packets received"},
    {"bytes_sent", "Bytes of RoCEv2 packets sent"},
    {"bytes_received", "Bytes of RoCEv2 packets received"},
    {"bad_icrc", "Packets dropped because their ICRC was wrong"},
    {"malformed", "Packets dropped because they were malformed"},
    {"unknown_qpn", "Packets dropped because no QP has their destination QPN"},
    {"forwarded", "Packets passed on to other processes of this host"},
    {"forwarded_here", "Packets passed on by other processes of this host"},
    {"not_sent", "Packets that the kernel refused to send"},
    {"congested", "Packets received with the ECN mark Congestion Experienced"},
    {"cnps_received", "Congestion notification packets received"},
    {"cnps_sent", "Congestion notification packets sent"},
};
_Static_assert(sizeof(struct network_counters) == STATS_NET * sizeof(uint64_t), "a name for each counter");

const char *stats_network_name(unsigned which)
{
    return which < STATS_NET ? network[which].name : NULL;
}

const char *stats_network_help(unsigned which)
{
    return which < STATS_NET ? network[which].help : NULL;
}
