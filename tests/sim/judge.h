/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Checks every packet that a QP sends on a link that may lose packets, by the specification (IBA 9.7) and without
 * code of src/transport: new packets follow those before them, repeated packets are unchanged, and responses belong
 * to requests. */
#ifndef TESTS_SIM_JUDGE_H
#define TESTS_SIM_JUDGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "wire/packet.h"

enum { JUDGE_MEMORY = 1024, JUDGE_RD_ATOMIC = 256 };

/* A request packet that was sent. */
struct judged_packet {
    psn_t psn;
    uint8_t opcode, flags;
    uint32_t length, hash, srqn;
};

/* A READ or atomic: of the requester, sent; of the responder, received. */
struct judged_rd_atomic {
    psn_t first;
    uint32_t psns, length, rkey;
    uint64_t address;
    uint8_t opcode;
    uint32_t srqn;
    psn_t answered; /* responder: end of the part of the response that was sent at least once */
    /* PSN that continues the response. A response begins with "first" or "only", again after each repeated request. */
    psn_t next;
    bool goes_on;
};

struct judge {
    bool begun;
    psn_t next;       /* PSN of the next new packet */
    unsigned message; /* properties of the first packet of the current message; 0: none */
    struct judged_packet sent[JUDGE_MEMORY];
    struct judged_rd_atomic asked[JUDGE_RD_ATOMIC], received[JUDGE_RD_ATOMIC];
    uint32_t asked_count, received_count;
    uint32_t msn;
};

struct sim_qp;

void judge_sent(struct sim_qp *qp, const struct packet *packet, const struct iovec *gather, unsigned count);
void judge_received(struct sim_qp *qp, const struct packet *packet);
/* The QP is connected anew. */
void judge_reset_sender(struct sim_qp *qp);
void judge_reset_responder(struct sim_qp *qp);

#endif
