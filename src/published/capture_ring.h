/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The capture ring: a sealed memfd by which a process tells `softhca capture` of the packets of its QPs. The tool
 * makes the file and passes it with a control request (published/control_request.h); the process maps it and writes,
 * the tool reads. Neither trusts the other: each copies what the other has written, checks it, and uses the copy.
 *
 *   0                     struct capture_header
 *   CAPTURE_DATA          the ring: header.ring_bytes, a power of two
 *
 * Positions count bytes from the beginning of the capture; they are never reduced. An entry begins with a struct
 * capture_record, takes a multiple of CAPTURE_ALIGNMENT bytes, and does not wrap: one that would is preceded by an
 * entry of state CAPTURE_VOID up to the end of the ring. A writer reserves an entry by moving `head`, takes the time,
 * sends the packet, fills the entry in, and stores its state with release order. So entries of one connection have
 * the order in which they were reserved, and whoever has seen the answer to a packet sees at least the reservation of
 * that packet. The tool sets all bytes of an entry to zero before it moves `tail`: a reserved entry is
 * CAPTURE_RESERVED at first.
 *
 * The writer never waits. Without room the packet is counted in `dropped`. */
#ifndef PUBLISHED_CAPTURE_RING_H
#define PUBLISHED_CAPTURE_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"

#define CAPTURE_MAGIC     0x0050414341434853ull /* "SHCACAP" */
#define CAPTURE_VERSION   2u
#define CAPTURE_DATA      4096u
#define CAPTURE_ALIGNMENT 16u
#define CAPTURE_QPNS      32u
#define CAPTURE_RING_MIN  (64u << 10)
#define CAPTURE_RING_MAX  (1u << 30)
#define CAPTURE_BLOCKS    65536u /* of QP numbers */

struct capture_header {
    /* The tool's, before it passes the file: */
    uint64_t magic;
    uint32_t version;
    uint32_t ring_bytes;
    uint32_t snap;      /* bytes of payload that are wanted of each packet of the path MTU */
    uint32_t qpn_count; /* 0: all QPs; else packets from or to these: */
    uint32_t qpns[CAPTURE_QPNS];
    /* The process's, before it accepts: */
    uint64_t attached_at; /* CLOCK_MONOTONIC */
    int32_t pid;          /* in its own pid namespace */
    uint32_t reserved;
    char program[16];

    _Atomic uint64_t tail cache_aligned; /* the tool's: up to here all is read */

    /* The process's: */
    _Atomic uint64_t head cache_aligned; /* up to here all is reserved */
    _Atomic uint64_t dropped;            /* packets */
};
_Static_assert(sizeof(struct capture_header) <= CAPTURE_DATA, "the ring is behind it");

enum capture_state { CAPTURE_RESERVED, CAPTURE_PACKET, CAPTURE_VOID };

enum capture_flags {
    CAPTURE_ARRIVED = 1,   /* the process has received the packet, else sent it */
    CAPTURE_FROM_HOST = 2, /* arrived: the sender is on this host, and records the packet if it is captured */
    CAPTURE_BY_LINK = 4,   /* between processes of one host: PSNs count packets of `link_mtu` */
    CAPTURE_UNACKED = 8,   /* UC: an acknowledgement is the link's own */
    CAPTURE_NOT_FETCHED = 16, /* arrived: the payload was not taken */
};

/* What a fault that the user asked for has done to the packet. */
enum capture_fate {
    CAPTURE_PASSED,
    CAPTURE_LOST,
    CAPTURE_TWICE,
    CAPTURE_BROKEN,
    CAPTURE_HELD,
    CAPTURE_MARKED,
    CAPTURE_FATES
};

struct capture_record {
    _Atomic uint32_t state; /* enum capture_state; written last */
    uint32_t size;          /* of the entry */
    uint64_t time;          /* CLOCK_MONOTONIC, ns */

    uint32_t captured; /* bytes of payload in the entry */
    uint32_t mtu;      /* path MTU in bytes: captured is `snap` bytes of each so many; 0: not cut */
    uint32_t link_mtu;
    uint32_t sender_block; /* of QP numbers, whose process has sent the packet */
    uint32_t flow_label;
    uint16_t source_port; /* UDP; 0: not known */
    uint8_t flags;        /* enum capture_flags */
    uint8_t fate;         /* enum capture_fate */
    uint8_t traffic_class, hop_limit, service_level, reserved;
    uint8_t source[16], destination[16]; /* GIDs */

    /* As in struct packet (wire/packet.h). OPCODE_CNP: a congestion notification, whose QPs are all that it has.
     * PACKET_FRAME: the payload is an Ethernet frame, and what is above it in this record is not used. */
    uint8_t opcode, packet_flags;
    uint16_t pkey;
    uint32_t dest_qpn, src_qpn, psn, ack_psn;
    uint8_t syndrome, flush;
    uint16_t reserved2;
    uint32_t msn, imm_data, invalidate_rkey, qkey, rkey, dma_length;
    uint32_t payload_length;
    uint64_t address, swap_add, compare, original;
};
_Static_assert(sizeof(struct capture_record) % CAPTURE_ALIGNMENT == 0, "the payload is aligned");

#endif
