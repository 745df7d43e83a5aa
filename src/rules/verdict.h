/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The result of a check. It decides the status of the requester's completion, the NAK code on the link, and the
 * completion or asynchronous event of the responder (verbs.md §3.10, IBA 9.7.4.1 and 9.9). */
#ifndef RULES_VERDICT_H
#define RULES_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/verbs.h"

enum verdict {
    VERDICT_OK,
    VERDICT_LOCAL_LENGTH,       /* the receive is too short, or the message too long */
    VERDICT_LOCAL_QP_OPERATION, /* the WR contradicts its QP */
    VERDICT_LOCAL_PROTECTION,   /* lkey, range, PD or right of a local buffer */
    VERDICT_LOCAL_ACCESS,       /* the local buffer of a receive consumed by RDMA WRITE with immediate */
    VERDICT_MW_BIND,            /* bind or local invalidate refused */
    VERDICT_INVALID_REQUEST,    /* responder: opcode, length, QP access flags, alignment, resources */
    VERDICT_REMOTE_ACCESS,      /* responder: rkey, PD, right or range */
    VERDICT_REMOTE_OPERATION,   /* responder: its own receive WQE is at fault */
    VERDICT_RECEIVER_NOT_READY, /* responder: no receive WQE; RNR NAK */
    VERDICT_RETRY_EXCEEDED,
    VERDICT_RNR_RETRY_EXCEEDED,
    VERDICT_BAD_RESPONSE,
    VERDICT_FLUSHED,
    VERDICT_FATAL,
    VERDICT_RENDEZVOUS_INCOMPLETE, /* the adapter cannot fetch the data that the message announces */
    VERDICT_TAG,                   /* a list operation names a tagged buffer that was matched or removed */
    VERDICT_COUNT
};

/* AETH syndrome (IBA 9.7.5.1.2, table 45): two bits of kind and five of value. */
#define SYNDROME_KIND(s)  ((uint8_t)(((s) >> 5) & 3))
#define SYNDROME_VALUE(s) ((uint8_t)((s)&0x1f))
enum { SYNDROME_ACK = 0, SYNDROME_RNR = 1, SYNDROME_NAK = 3 };
/* An acknowledgement without end-to-end flow control information (IBA 9.7.7.2). */
#define SYNDROME_ACK_NO_CREDITS (SYNDROME_ACK << 5 | 0x1f)
enum nak_code { NAK_SEQUENCE, NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATION, NAK_INVALID_RD };

const char *verdict_name(enum verdict verdict);
/* Completion status on the side whose work request it is. */
enum ibv_wc_status verdict_wc_status(enum verdict verdict);
/* NAK code that the responder sends for this verdict; -1: none. */
int verdict_nak_code(enum verdict verdict);
/* Verdict of the requester for a NAK code received. NAK_SEQUENCE has none (VERDICT_OK: retransmit). */
enum verdict verdict_of_nak(uint8_t code);

#endif
