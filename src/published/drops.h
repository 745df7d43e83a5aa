/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams, multicast copies, frames and requests of connected QPs that were dropped, by reason, each with the last
 * one as a sample: part of the published segment's format (SEGMENT_VERSION in segment/segment.h). Datagrams are not
 * acknowledged, and the requester of the others sees silence only. */
#ifndef PUBLISHED_DROPS_H
#define PUBLISHED_DROPS_H

#include <stdint.h>

/* By a QP; written under its lock. seen and wanted: */
enum drop_reason {
    DROP_QKEY,       /* the datagram's Q_Key; the QP's */
    DROP_NO_RECEIVE, /* bytes of the datagram; 0 */
    DROP_TOO_SMALL,  /* bytes with the 40 for the GRH; bytes of the receive, which completed in error */
    DROP_STATE,      /* the state of the QP; 0. Of a connected QP: requests, since it changed its state */
    DROP_NOBODY,     /* to be sent: the QP number that no process of this host owns; 0 */
};
#define DROP_REASONS 5

/* By the process: no QP takes it. Written under a lock of segment/drops.c. seen: */
enum stray_reason {
    STRAY_QPN,       /* the QP number */
    STRAY_GROUP,     /* 0; `group` is the multicast group to which no QP is attached */
    STRAY_FRAME,     /* bytes of a frame that no flow rule matches */
    STRAY_REQUEST,   /* of a connected QP: the QP number, which is of this process and of no QP */
    STRAY_UNCLAIMED, /* likewise, of a number that no process of this host owns: at the owner of the UDP port */
};
#define STRAY_REASONS 5

struct drop_record {
    uint64_t count;
    uint64_t ns; /* of the last one, CLOCK_MONOTONIC; 0: none. The sample may be of two, while it changes */
    uint32_t seen, wanted;
    uint32_t src_qpn;   /* 0: not known, as connected QPs' packets of the network do not carry it */
    uint32_t local;     /* 1: the sender is on this host, so that its QP number says who it is */
    uint8_t source[16]; /* GID; all zero: not known */
    uint8_t group[16];
};
_Static_assert(sizeof(struct drop_record) == 64, "readable by other builds");

#endif
