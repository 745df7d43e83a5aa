/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a NAK says of a request, where the peer's record cannot be read. The code stands for several causes (IBA
 * 9.7.5.2.8); those that a request of that opcode cannot have are left out. */
#include "explain/explain.h"

#define CHECK ". Check that "

static bool is_send(uint8_t opcode)
{
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}

static bool is_write(uint8_t opcode)
{
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_atomic(uint8_t opcode)
{
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* The access flag that such a request needs at the responder. */
static const char *access_flag(uint8_t opcode)
{
    if (opcode == IBV_WR_RDMA_READ)
        return "IBV_ACCESS_REMOTE_READ";
    if (is_atomic(opcode))
        return "IBV_ACCESS_REMOTE_ATOMIC";
    return opcode == WR_FLUSH ? "the access flag for FLUSH" : "IBV_ACCESS_REMOTE_WRITE";
}

static void add_invalid_request(struct words *words, const struct object *qp)
{
    uint8_t opcode = qp->rare.fault.opcode;

    if ((is_atomic(opcode) || opcode == IBV_WR_ATOMIC_WRITE) && qp->rare.fault.address % sizeof(uint64_t)) {
        words_add(words, ": the address is not a multiple of 8");
        return;
    }
    words_add(words, "%s", CHECK);
    if (is_send(opcode)) {
        if (qp->qp.type == IBV_QPT_XRC_SEND)
            words_add(words, "an SRQ there has the number of the work request; ");
        words_add(words, "the receive posted there has at least %u bytes", qp->rare.fault.length);
    } else {
        words_add(words, "qp_access_flags of that QP have %s", access_flag(opcode));
    }
    if (is_send(opcode) || is_write(opcode))
        words_add(words, "; path_mtu of that QP is %u bytes, as it is here", qp_mtu_bytes(qp));
    else
        words_add(words, "; max_dest_rd_atomic of that QP is at least %u, which is max_rd_atomic here",
                  qp->qp.attributes.max_rd_atomic);
}

static void add_remote_access(struct words *words, uint8_t opcode)
{
    if (is_send(opcode))
        words_add(words, ": the rkey to invalidate names no bound type 2 MW of the PD of that QP");
    else
        words_add(words,
                  CHECK
                  "an MR or bound MW there has this rkey now (it was not deregistered, invalidated or bound "
                  "again); it is of the PD of that QP; it has %s; it contains the whole range",
                  access_flag(opcode));
}

static void add_remote_operation(struct words *words, uint8_t opcode)
{
    if (is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        words_add(
            words,
            ": that process could not write into the buffer of its posted receive" CHECK
            "the MR of each lkey still exists, is of the PD of that QP, has IBV_ACCESS_LOCAL_WRITE, and "
            "contains the whole buffer");
    else
        words_add(words,
                  ": the responder had an internal error, which this request did not cause (see the log "
                  "of that host)");
}

const char *name_nak(uint64_t code)
{
    switch (code) {
    case NAK_INVALID_REQUEST:
        return "invalid request";
    case NAK_REMOTE_ACCESS:
        return "remote access error";
    case NAK_REMOTE_OPERATION:
        return "remote operational error";
    default:
        return "a code that IBA does not define";
    }
}

void words_add_nak(struct words *words, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    words_add(words, "(%s)", name_nak(fault->value));
    switch (fault->value) {
    case NAK_INVALID_REQUEST:
        add_invalid_request(words, qp);
        break;
    case NAK_REMOTE_ACCESS:
        add_remote_access(words, fault->opcode);
        break;
    case NAK_REMOTE_OPERATION:
        add_remote_operation(words, fault->opcode);
        break;
    default:
        words_add(words, ": NAK code %llu", (unsigned long long)fault->value);
        break;
    }
    if (qp->qp.path.kind == PATH_WIRE)
        words_add(words, ". Which of these it is: softhca why on that host, if the peer runs SoftHCA");
    else
        words_add(words, ". Which of these it is: softhca why %d, as the user of that process",
                  (int)qp->qp.path.peer_pid);
}
