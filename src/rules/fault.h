/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What sent a QP to ERR: the first cause, kept in its published record, in numbers of which explain/fault.c makes a
 * sentence. The causes are also vendor_err of the completion (docs/teardown.md): a value keeps its meaning. */
#ifndef RULES_FAULT_H
#define RULES_FAULT_H

#include <stdint.h>

#include "rules/keys.h"

enum fault_cause {
    FAULT_NONE,
    /* --- of a key: `key`, `address`, `length` of the access, region_* of the MR or MW that is meant */
    FAULT_KEY_UNKNOWN = 1,   /* no MR or MW has, or lately had, this key */
    FAULT_KEY_IS_LKEY,       /* of a remote access: an MR's lkey */
    FAULT_KEY_IS_RKEY,       /* of a local access: an MR's rkey */
    FAULT_KEY_SWAPPED,       /* in the other byte order it is an MR's */
    FAULT_KEY_WITHDRAWN,     /* of an MR that was deregistered, or an MW that was deallocated */
    FAULT_KEY_REPLACED,      /* its slot is another MR's now */
    FAULT_WINDOW_UNBOUND,    /* the MW is not bound; region_access has ACCESS_WAS_BOUND if it was */
    FAULT_WINDOW_REBOUND,    /* the MW has been bound again, with another rkey */
    FAULT_PD,                /* value: the MR's PD, wanted: the QP's */
    FAULT_ACCESS,            /* wanted: the enum ibv_access_flags that the MR lacks */
    FAULT_ADDRESS_SWAPPED,   /* in the other byte order the address is in the MR */
    FAULT_RANGE_END,         /* value: bytes beyond the end */
    FAULT_RANGE_BEGIN,       /* value: bytes in front of the begin */
    FAULT_RANGE_OUTSIDE,     /* no byte of the range is in the MR */
    FAULT_PAGES,             /* the key permits it, and the memory is not there (on demand, or unmapped) */
    FAULT_ADDRESS_TRUNCATED, /* the low 32 bits of an address in the MR. value: that address */
    /* --- of the request and the QP that receives it */
    FAULT_QP_ACCESS = 32,   /* wanted: the flag that qp_access_flags lacks */
    FAULT_ATOMIC_ALIGNMENT, /* address is no multiple of 8 */
    FAULT_TOO_MANY_READS,   /* wanted: max_dest_rd_atomic */
    FAULT_RECEIVE_SHORT,    /* value: bytes that came (at least), wanted: bytes of the receive */
    FAULT_PACKET_LENGTH,    /* a packet is not as long as path_mtu asks. value: its bytes, wanted: the MTU */
    FAULT_MESSAGE_SHORT,    /* WRITE: value: bytes that came, wanted: bytes that the request announced */
    FAULT_SEQUENCE,         /* a packet continues another kind of message */
    FAULT_OPCODE,           /* value: opcode of the packet */
    FAULT_SRQ,              /* XRC: no SRQ of that number. value: it */
    FAULT_INVALIDATE,       /* SEND with invalidate: key names no bound MW of this PD */
    /* --- of the requester */
    FAULT_NAK = 64,     /* the peer refused the request. value: enum nak_code */
    FAULT_NO_RECEIVE,   /* RNR NAKs. value: rnr_retry */
    FAULT_SILENCE,      /* value: enum path_kind at the end of the retries; wanted: process of the peer */
    FAULT_RESPONSE,     /* a response that does not fit its request */
    FAULT_READ_DEPTH,   /* READ or atomic with max_rd_atomic 0, or on a QP that is not reliable */
    FAULT_LENGTH,       /* value: bytes of the message, wanted: bytes that it may have */
    FAULT_WORK_REQUEST, /* the opcode does not fit the QP */
    FAULT_BIND,         /* a bind. value: enum bind_fault (rules/keys.h) */
    FAULT_REFERENCE,    /* the peer could not read the memory of the message */
    FAULT_PSN,          /* as FAULT_SILENCE, but for NAKs of a PSN that was never sent */
    FAULT_INJECTED,     /* the user asked for it (softhca-fault(7)) */
    /* --- of the owner */
    FAULT_MODIFIED = 96, /* ibv_modify_qp(IBV_QPS_ERR), or librdmacm for the program */
    FAULT_OVERRUN,       /* a CQ of the QP. value: its number */
    FAULT_CLOSED,        /* ibv_close_device() with the QP in it */
    FAULT_UNSPECIFIED,
};

enum fault_side { FAULT_OF_OWNER, FAULT_OF_REQUESTER, FAULT_OF_RESPONDER, FAULT_OF_RECEIVE };

/* Written under the QP's lock, when an error happens; ns is stored last. It stays until RESET. A format between
 * processes: segment/segment.h. */
struct fault_record {
    uint64_t ns;    /* CLOCK_MONOTONIC: when the QP went to ERR (UD, UC: SQE); 0: it did not */
    uint64_t wr_id; /* of a requester, or of a receive */
    uint64_t address;
    uint64_t region_address, region_length; /* as work requests name it */
    uint64_t value, wanted;                 /* see enum fault_cause */
    uint64_t withdrawn_ns;                  /* FAULT_KEY_WITHDRAWN: when; 0: not recorded */
    uint32_t length;                        /* of the message or access */
    uint32_t key, region_lkey, region_rkey, region_access;
    uint32_t withdrawn_by, withdrawn_stack; /* thread and stack that deregistered */
    uint32_t by, stack;                     /* FAULT_MODIFIED: thread and stack of the call */
    uint16_t cause;                         /* enum fault_cause */
    uint8_t side;                           /* enum fault_side */
    uint8_t opcode;                         /* enum ibv_wr_opcode of the message */
    uint8_t verdict;                        /* enum verdict of the completion or NAK */
    uint8_t window;                         /* region_*: an MW's */
    uint8_t by_srq;                         /* a receive of the SRQ */
    uint8_t injected;                       /* an injected fault has changed this work request */
    uint8_t reserved[4];
};
_Static_assert(sizeof(struct fault_record) == 112, "readable by other builds");

/* An access that a check of rules/keys.h has refused: why? Fills in cause, value, wanted and region_*. */
struct access {
    uint32_t pd, key, length;
    uint64_t address;
    uint32_t right; /* enum ibv_access_flags that it needs; 0: local read */
    bool remote;
};
void fault_diagnose(const struct key_table *table, const struct access *access, struct fault_record *fault);
/* The same of one region, whose key or whose other key it may be. False: the access means another one. FAULT_PAGES:
 * the region permits it. */
bool fault_diagnose_one(const struct key_view *view, const struct access *access, struct fault_record *fault);

/* Has the owner moved the QP to ERR as the program wanted it? */
static inline bool fault_is_wanted(const struct fault_record *fault)
{
    return fault->side == FAULT_OF_OWNER && fault->cause != FAULT_OVERRUN && fault->cause != FAULT_INJECTED;
}

/* What a completion has as vendor_err. */
static inline uint32_t fault_vendor_err(uint8_t verdict, uint16_t cause)
{
    return (uint32_t)cause << 8 | verdict;
}

#endif
