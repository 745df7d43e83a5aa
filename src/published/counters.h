/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packet counters of a process's network path, in the header of the published segment: part of its format
 * (SEGMENT_VERSION in segment/segment.h). src/udp increments them from any thread, relaxed. */
#ifndef PUBLISHED_COUNTERS_H
#define PUBLISHED_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

struct network_counters {
    _Atomic uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    _Atomic uint64_t bad_icrc, malformed; /* received and dropped */
    _Atomic uint64_t unknown_qpn;         /* received for an unknown QPN and dropped */
    _Atomic uint64_t forwarded,
        forwarded_to_us;        /* forwarded to, and forwarded by, other processes of this host */
    _Atomic uint64_t not_sent;  /* the kernel refused to send: no route, larger than the path MTU ... */
    _Atomic uint64_t congested; /* received with ECN's congestion experienced mark */
    _Atomic uint64_t cnps_received, cnps_sent; /* congestion notification packets (CNP) received, sent */
};

#endif
