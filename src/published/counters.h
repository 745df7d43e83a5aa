/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a process counts of its packets to and from the network. Any thread, relaxed. The udp room counts, the
 * published segment shows. */
#ifndef PUBLISHED_COUNTERS_H
#define PUBLISHED_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

struct network_counters {
    _Atomic uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    _Atomic uint64_t bad_icrc, malformed; /* dropped */
    _Atomic uint64_t unknown_qpn;           /* for QP numbers that nobody serves; dropped */
    _Atomic uint64_t forwarded, forwarded_to_us;  /* for other processes; by other processes */
    _Atomic uint64_t not_sent;            /* the kernel refused: no route, larger than the path's MTU ... */
    _Atomic uint64_t congested;           /* came with ECN's mark */
    _Atomic uint64_t cnps_received, cnps_sent; /* congestion notification packets that came, that went */
};

#endif
