/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A packet after decoding, as every link hands it to transport and takes it from there. Links differ in how
 * they carry it: as RoCEv2 bytes, or as a record in a shared ring. All numbers are in host byte order but
 * imm_data, which nobody interprets. */
#ifndef WIRE_PACKET_H
#define WIRE_PACKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/psn.h"

enum packet_flags {
    PACKET_SOLICITED = 1,    /* BTH SE */
    PACKET_ACK_REQUEST = 2,  /* BTH AckReq */
    PACKET_HAS_ACK = 4,      /* local links: ack_psn acknowledges the other direction of this QP pair */
    PACKET_BY_REFERENCE = 8, /* local links: the payload stays in the sender's memory, at reference[]; of a
                                READ request: the answer may come so */
    PACKET_DROPPED =
        16, /* local links: not a packet but the word that dest_qpn's packet psn was dropped silently */
    PACKET_FROM_NETWORK = 32, /* local links, to QP1: handed on by whoever reads the port; grh as it came */
    PACKET_FRAME = 64, /* local links: no packet of a QP but an Ethernet frame, the payload; dest_qpn is 0 */
    PACKET_RELAYED = 128, /* local links: of XRC, from the process that has the QP to the one that has the
                             SRQ, or an answer back (engine/xrc/relay.c) */
    PACKET_TERMS = PACKET_RELAYED | PACKET_FROM_NETWORK, /* its payload says on what terms requests follow */
    PACKET_OPENING = PACKET_TERMS | PACKET_SOLICITED, /* or what is to be done to a QP that two processes have
                                                         open (engine/xrc/remote_open.c) */
};

/* What a request on a local link says of how it was sent, in the place of the syndrome, which requests have
 * not. */
enum packet_manner {
    PACKET_MTU = 7,    /* enum ibv_mtu: its path MTU, however the link cuts; 0: it does not say */
    PACKET_BEGINS = 8, /* the first after RTS, or after going back: nothing that was sent before is still on
                          its way */
    PACKET_TOGETHER = 16, /* a READ, atomic or FLUSH that was begun right behind another one. Of what comes
                             from the network: that came in one piece with it */
};

/* Global routing information of UD packets; GIDs as on the wire. */
struct packet_grh {
    uint8_t source[16], destination[16];
    uint32_t flow_label;
    uint8_t traffic_class, hop_limit, service_level;
};

/* Memory of the peer process. Sender-chosen numbers: only ever given to process_vm_readv(), or looked up in
 * what of that memory is mapped here; never dereferenced. */
struct packet_reference {
    uint64_t address;
    uint32_t length;
    uint32_t slot; /* of the key by which the peer checked it, in the peer's table */
};
#define PACKET_REFERENCES 32

struct packet {
    uint8_t opcode; /* enum bth_opcode */
    uint8_t flags;  /* enum packet_flags */
    uint16_t pkey;
    uint32_t dest_qpn;
    uint32_t src_qpn; /* DETH; on local links always */
    psn_t psn;
    psn_t ack_psn;         /* with PACKET_HAS_ACK */
    uint32_t dest_ifindex; /* local links: interface of the destination GID; 0 on the wire */

    uint8_t syndrome;         /* AETH; requests, not as bytes: enum packet_manner */
    uint8_t flush;            /* FETH: placement types, above them two bits of selectivity level */
    uint16_t reference_epoch; /* received by reference: when it was written, for the link (local/layout.h) */
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
    const void
        *payload; /* received packets, without PACKET_BY_REFERENCE; may change under the reader: copy once */
    uint32_t reference_count;
    const struct packet_reference *reference; /* received: a private copy; sent: built by the sender */
};

/* All zero. An initializer of this size is compiled to "rep stos", which takes longer than all the rest of
 * sending a small message. */
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
