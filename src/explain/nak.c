/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a NAK says of a request, where the peer's record cannot be read. The code stands for several causes (IBA
 * 9.7.5.2.8); those that a request of that opcode cannot have are left out. */
#include "explain/explain.h"

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
    return opcode == WR_FLUSH ? "IBV_ACCESS_FLUSH_GLOBAL or IBV_ACCESS_FLUSH_PERSISTENT"
                              : "IBV_ACCESS_REMOTE_WRITE";
}

static void add_invalid_request(struct words *words, const struct object *qp)
{
    uint8_t opcode = qp->rare.fault.opcode;

    if ((is_atomic(opcode) || opcode == IBV_WR_ATOMIC_WRITE) && qp->rare.fault.address % sizeof(uint64_t)) {
        words_add(words, ": the address is not a multiple of 8");
        return;
    }
    words_add(words, ": probably ");
    if (is_send(opcode)) {
        if (qp->qp.type == IBV_QPT_XRC_SEND)
            words_add(words, "no SRQ there has the number of the work request, or ");
        words_add(words, "the receive posted there has fewer than %u bytes", qp->rare.fault.length);
    } else {
        words_add(words, "qp_access_flags of that QP lack %s", access_flag(opcode));
    }
    if (is_send(opcode) || is_write(opcode)) {
        if (qp->rare.fault.length > 256 /* the smallest path MTU */)
            words_add(words, ", or path_mtu of that QP is not %u bytes, which it is here", qp_mtu_bytes(qp));
    } else {
        words_add(words, ", or max_dest_rd_atomic of that QP is less than %u, which is max_rd_atomic here",
                  qp->qp.attributes.max_rd_atomic);
    }
}

static void add_remote_access(struct words *words, uint8_t opcode)
{
    if (is_send(opcode))
        words_add(words, ": the rkey to invalidate names no bound type 2 MW of the PD of that QP (nor, where "
                         "the peer is a "
                         "kernel, an MR that can be invalidated)");
    else
        words_add(
            words,
            ": either no MR or bound MW there has this rkey (a wrong value, an lkey, or it was deregistered, "
            "invalidated, bound again or never bound), or it is of another PD than that QP, or it lacks %s, "
            "or "
            "the range is not inside of it",
            access_flag(opcode));
}

static void add_remote_operation(struct words *words, uint8_t opcode)
{
    if (is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        words_add(
            words,
            ": that process could not write into the buffer of its posted receive: either the MR of an lkey "
            "no longer exists, or it is of another PD than that QP, or it lacks IBV_ACCESS_LOCAL_WRITE, or "
            "the buffer is not inside of it");
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
        words_add(
            words,
            ". If the peer runs SoftHCA, run softhca why PID of its process on that host to see the cause");
    else
        words_add(words, ". Run softhca why %d as the user of that process to see the cause",
                  (int)qp->qp.path.peer_pid);
}
