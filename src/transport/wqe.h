/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Work queue elements. They lie in the published segment without pointers, so that `softhca why` can read from
 * outside where a work request is: a format shared between processes. */
#ifndef TRANSPORT_WQE_H
#define TRANSPORT_WQE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/psn.h"
#include "base/verbs.h"
#include "rules/flush.h"
#include "rules/keys.h"

/* Layout of struct ibv_sge, which it is copied from. */
struct wqe_sge {
    uint64_t address;
    uint32_t length, lkey;
};
_Static_assert(sizeof(struct wqe_sge) == sizeof(struct ibv_sge), "copied from struct ibv_sge as a whole");

/* Destination of a UD packet, copied from the address handle when the work request is posted, so that the handle may
 * be destroyed at once (verbs.md §1.2). Also the path of a connected QP. */
struct path_address {
    uint8_t source_gid[16], destination_gid[16]; /* as on the wire */
    uint32_t flow_label;
    uint32_t source_ifindex;
    uint32_t destination_ifindex; /* 0: the destination is not on this host */
    uint8_t traffic_class, hop_limit, service_level, is_multicast;
    uint8_t reserved[16];
};
_Static_assert(sizeof(struct path_address) == 64, "one cache line of a UD WQE");

enum send_wqe_flags {
    WQE_SIGNALED = 1,
    WQE_SOLICITED = 2,
    WQE_FENCE = 4,
    WQE_INLINE = 8,
    WQE_OWN = 16,     /* the adapter's own request, of a rendezvous (tagged.c): no completion */
    WQE_CHAINED = 32, /* posted by one call together with the one before it */
    /* A datagram that waits: its payload was copied into transport_qp.copies; or there was no memory for that, and
     * the datagram is lost. */
    WQE_COPIED = 64,
    WQE_LOST = 128,
};

/* How packets of the message carry its bytes; of a READ those of its response. Set when the WQE is begun. */
enum wqe_carriage {
    WQE_BY_BYTES,
    WQE_BY_REFERENCE, /* PACKET_BY_REFERENCE */
    WQE_BY_PATH_MTU,  /* on one host, where packets may get lost: no longer than the path MTU */
};

struct send_wqe {
    uint64_t wr_id;
    uint8_t opcode;       /* enum ibv_wr_opcode */
    uint8_t flags;        /* enum send_wqe_flags; WQE_SIGNALED already includes sq_sig_all */
    uint8_t num_sge;      /* 0 with WQE_INLINE */
    uint8_t carriage;     /* enum wqe_carriage */
    uint32_t length;      /* of the message */
    uint32_t imm_or_rkey; /* immediate (network order), rkey to invalidate, or FETH */
    uint32_t rkey;
    uint64_t remote_address;
    union {
        struct {
            uint64_t compare_add, swap;
        } atomic;
        struct {
            uint32_t remote_qpn, remote_qkey;
        } ud;
        struct {
            uint32_t remote_srqn; /* not for atomics (wqe_srqn()) */
        } xrc;
    };
    /* Set when the WQE is begun: */
    psn_t first_psn;    /* kept for retransmission */
    uint32_t packets;   /* PSNs that the message takes; 0: not begun */
    uint8_t verdict;    /* enum verdict: an error found on this side, reported when the WQE is the oldest */
    uint8_t exposed;    /* sent by reference and not acknowledged: the peer may read the memory */
    uint16_t read_part; /* READ: packets of the response that one request asks for; 0: all */
    /* Time when the WQE was posted, later when it was begun; STAMP_NONE: not recorded. */
    uint32_t stamp;
    /* The rest of the slot: for UD a struct path_address, then
     *   WQE_INLINE           length bytes of payload
     *   IBV_WR_BIND_MW       a struct mw_bind
     *   otherwise            num_sge struct wqe_sge */
};
_Static_assert(sizeof(struct send_wqe) == 64, "header of a slot");

/* A request that is complete before its call returns: what explanations tell of those that are (explain/work.c). */
static inline void send_wqe_note(struct send_wqe *wqe, uint64_t wr_id, uint8_t opcode, uint8_t flags,
                                 uint32_t length)
{
    wqe->wr_id = wr_id;
    wqe->opcode = opcode;
    wqe->flags = flags;
    wqe->num_sge = wqe->carriage = 0;
    wqe->length = length;
    wqe->stamp = 0; /* STAMP_NONE: times are not recorded */
}

/* READ, atomics, FLUSH and atomic write: completed by a response, not by an acknowledgement. */
#define WRS_WITH_RESPONSE                                                                                    \
    (1u << IBV_WR_RDMA_READ | 1u << IBV_WR_ATOMIC_CMP_AND_SWP | 1u << IBV_WR_ATOMIC_FETCH_AND_ADD |          \
     1u << WR_FLUSH | 1u << IBV_WR_ATOMIC_WRITE)
static inline bool awaits_response(const struct send_wqe *wqe)
{
    return WRS_WITH_RESPONSE >> (wqe->opcode & 31) & 1; /* the WQE may be what another process wrote */
}

/* XRC: the SRQ that the request is for. In an atomic, whose operands take the space of the union, it stands in place
 * of the immediate data, which atomics do not have. */
static inline bool wqe_is_atomic(const struct send_wqe *wqe)
{
    return wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
static inline uint32_t wqe_srqn(const struct send_wqe *wqe)
{
    return wqe_is_atomic(wqe) ? wqe->imm_or_rkey : wqe->xrc.remote_srqn;
}
static inline void wqe_set_srqn(struct send_wqe *wqe, uint32_t srqn)
{
    *(wqe_is_atomic(wqe) ? &wqe->imm_or_rkey : &wqe->xrc.remote_srqn) = srqn & PSN_MASK;
}

struct recv_wqe {
    uint64_t wr_id;
    uint32_t num_sge;
    uint32_t stamp; /* when it was posted */
    struct wqe_sge sge[];
};

/* The opcode of a request that a fault was injected into (front/verbs/injected.c), as no verb has it: it ends on this
 * side with the verdict in the low byte of imm_or_rkey. The next byte is the opcode that the program posted. */
#define WR_INJECTED 12u
static inline uint8_t wqe_posted_opcode(const struct send_wqe *wqe)
{
    return wqe->opcode == WR_INJECTED ? (uint8_t)(wqe->imm_or_rkey >> 8) : wqe->opcode;
}

#define RECV_WQE_SIZE(max_sge) (sizeof(struct recv_wqe) + (max_sge) * sizeof(struct wqe_sge))

static inline void *send_wqe_body(struct send_wqe *wqe, enum ibv_qp_type type)
{
    return (char *)(wqe + 1) + (type == IBV_QPT_UD ? sizeof(struct path_address) : 0);
}

static inline struct path_address *send_wqe_address(struct send_wqe *wqe)
{
    return (struct path_address *)(wqe + 1);
}

#endif
