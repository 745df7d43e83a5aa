/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counters of a process's packets to and from the network. Written by any thread of the process (src/udp), relaxed;
 * read by other processes in the published segment: the layout is a format. */
#ifndef PUBLISHED_COUNTERS_H
#define PUBLISHED_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

struct network_counters {
    _Atomic uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    _Atomic uint64_t bad_icrc, malformed;        /* dropped on arrival */
    _Atomic uint64_t unknown_qpn;                /* for QPNs that no known process owns; dropped */
    _Atomic uint64_t forwarded, forwarded_to_us; /* datagrams forwarded to, received from other processes */
    _Atomic uint64_t not_sent;  /* refused by the kernel: no route, larger than the path MTU ... */
    _Atomic uint64_t congested; /* arrived with ECN CE */
    _Atomic uint64_t cnps_received, cnps_sent; /* congestion notification packets */
};

#endif
