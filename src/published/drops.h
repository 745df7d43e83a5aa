/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams, multicast copies and frames that were dropped, by reason, each with the last one as a sample: part of the
 * published segment's format (SEGMENT_VERSION in segment/segment.h). Nobody else hears of them: datagrams are not
 * acknowledged. */
#ifndef PUBLISHED_DROPS_H
#define PUBLISHED_DROPS_H

#include <stdint.h>

/* By a QP; written under its lock. seen and wanted: */
enum drop_reason {
    DROP_QKEY,       /* the datagram's Q_Key; the QP's */
    DROP_NO_RECEIVE, /* bytes of the datagram; 0 */
    DROP_TOO_SMALL,  /* bytes with the 40 for the GRH; bytes of the receive, which completed in error */
    DROP_STATE,      /* the state of the QP; 0 */
    DROP_NOBODY,     /* to be sent: the QP number that no process of this host owns; 0 */
};
#define DROP_REASONS 5

/* By the process: no QP takes it. Written under a lock of segment/drops.c. seen: */
enum stray_reason {
    STRAY_QPN,   /* the QP number */
    STRAY_GROUP, /* 0; `group` is the multicast group to which no QP is attached */
    STRAY_FRAME, /* bytes of a frame that no flow rule matches */
};
#define STRAY_REASONS 3

struct drop_record {
    uint64_t count;
    uint64_t ns; /* of the last one, CLOCK_MONOTONIC; 0: none. The sample may be of two, while it changes */
    uint32_t seen, wanted;
    uint32_t src_qpn;
    uint32_t local;     /* 1: the sender is on this host, so that its QP number says who it is */
    uint8_t source[16]; /* GID; all zero: not known */
    uint8_t group[16];
};
_Static_assert(sizeof(struct drop_record) == 64, "readable by other builds");

#endif
