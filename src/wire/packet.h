/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A decoded packet, the form in which transport exchanges packets with every path. The network carries it as
 * RoCEv2 bytes (wire/codec.h), a local link as a record in a shared ring (src/local). All numbers are in host byte
 * order except imm_data, which is opaque. */
#ifndef WIRE_PACKET_H
#define WIRE_PACKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/psn.h"

/* Bits of the BTH, and of local links only (marked "local"), where they are a format between processes. */
enum packet_flags {
    PACKET_SOLICITED = 1, /* BTH SE */
    /* local, in an acknowledgement: of a request with PACKET_AWAITED, so a thread may sleep until it comes. */
    PACKET_COMPLETES = PACKET_SOLICITED,
    PACKET_ACK_REQUEST = 2, /* BTH AckReq */
    PACKET_HAS_ACK = 4,     /* local: ack_psn acknowledges the opposite direction of this QP pair */
    /* local: the payload stays in the sender's memory, described by reference[]. READ request: the responder may
     * send the response that way. */
    PACKET_BY_REFERENCE = 8,
    PACKET_DROPPED = 16, /* local: drop notice, no packet: the receiver dropped packet `psn` of dest_qpn */
    PACKET_FROM_NETWORK = 32, /* local, to QP1: forwarded by the owner of UDP port 4791, with grh */
    /* local, to a connected QP: its sender may lose packets, because the user asks for it (docs/design/faults.md). With
     * PACKET_DROPPED it is a word about a packet (enum lossy_word). */
    PACKET_LOSSY = PACKET_FROM_NETWORK,
    PACKET_FRAME = 64, /* local: an Ethernet frame of a RAW_PACKET QP in the payload; dest_qpn is 0 */
    /* local, XRC: between the process with the QP and the one with the SRQ, in either direction
     * (engine/xrc/relay.c). */
    PACKET_RELAYED = 128,
    /* Combinations. The payload has the terms of the requests that follow, or an operation on a QP that two
     * processes have open (engine/xrc/remote_open.c). */
    PACKET_TERMS = PACKET_RELAYED | PACKET_FROM_NETWORK,
    PACKET_REMOTE_OPEN = PACKET_TERMS | PACKET_SOLICITED,
};

/* How the requester sent a request: in `syndrome`, which is otherwise unused in requests. Local links carry it, the
 * network does not. */
enum packet_hints {
    PACKET_MTU = 7, /* enum ibv_mtu of the QP, whatever the link's segmentation; 0: not specified */
    /* The first request after the transition to RTS or after a retransmission: no earlier request is in flight. */
    PACKET_BEGINS = 8,
    /* A READ, atomic or FLUSH request that directly follows another one. From the network: a packet of the same
     * datagram as the one before. */
    PACKET_TOGETHER = 16,
    /* A READ request: the packets of the response are to have the path MTU. */
    PACKET_BY_PATH_MTU = 32,
    /* The request is signaled, and its CQ has a completion channel that peers can ring. */
    PACKET_AWAITED = 64,
};

/* In `syndrome`, with PACKET_LOSSY | PACKET_DROPPED. */
enum lossy_word {
    LOSSY_LOST = 1, /* packet `psn` does not come, or comes later */
    LOSSY_BROKEN,   /* it would have arrived with a wrong ICRC */
    LOSSY_MARKED,   /* it comes next, as a router has marked it (ECN); msn 1: it is a READ response */
    LOSSY_CNP,      /* congestion notification: the answer to a marked packet */
};

/* Global route header of UD packets; GIDs in network byte order. */
struct packet_grh {
    uint8_t source[16], destination[16];
    uint32_t flow_label;
    uint8_t traffic_class, hop_limit, service_level;
};

/* Memory of the peer process. The sender chooses the numbers, so they are never dereferenced, only passed to
 * process_vm_readv() or looked up among the peer's memory mapped here. */
struct packet_reference {
    uint64_t address;
    uint32_t length;
    uint32_t slot; /* index of the memory key in the peer's table */
};
#define PACKET_REFERENCES 32

struct packet {
    uint8_t opcode; /* enum bth_opcode */
    uint8_t flags;  /* enum packet_flags */
    uint16_t pkey;
    uint32_t dest_qpn;
    uint32_t src_qpn; /* DETH; always set on local links */
    psn_t psn;
    psn_t ack_psn;         /* with PACKET_HAS_ACK */
    uint32_t dest_ifindex; /* local links: interface of the destination GID; 0 on the wire */

    uint8_t syndrome; /* AETH; requests: enum packet_hints */
    uint8_t flush;    /* FETH: placement types, above them 2 bits of selectivity level (IBA annex A19) */
    uint16_t reference_epoch; /* local: when a payload by reference was written (local/layout.h) */
    uint32_t msn;             /* AETH */
    uint32_t imm_data;        /* ImmDt, network byte order */
    uint32_t invalidate_rkey; /* IETH */
    union {
        uint32_t qkey; /* DETH */
        uint32_t srqn; /* XRCETH */
    };

    uint32_t rkey;              /* RETH, AtomicETH */
    uint32_t dma_length;        /* RETH */
    uint64_t address;           /* RETH, AtomicETH */
    uint64_t swap_add, compare; /* AtomicETH */
    uint64_t original;          /* AtomicAckETH */

    struct packet_grh grh; /* UD only */

    uint32_t payload_length;
    /* Received packets without PACKET_BY_REFERENCE. A peer may change the bytes at any time: read them once. */
    const void *payload;
    uint32_t reference_count;
    const struct packet_reference *reference; /* received: a private copy; sent: built by the sender */
};

/* Sets all fields to zero. The compiler turns an initializer of this size into "rep stos", which takes longer than
 * the rest of sending a small message. */
static inline void packet_clear(struct packet *packet)
{
    typedef uint64_t words __attribute__((vector_size(16), may_alias, aligned(8)));
    words *to = (words *)packet;
    const words zero = {0};

    _Static_assert(sizeof(struct packet) == 10 * sizeof(words), "all of it");
    to[0] = zero;
    to[1] = zero;
    to[2] = zero;
    to[3] = zero;
    to[4] = zero;
    to[5] = zero;
    to[6] = zero;
    to[7] = zero;
    to[8] = zero;
    to[9] = zero;
}

#endif
