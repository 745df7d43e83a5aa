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
    return opcode == WR_FLUSH ? "the access flag for FLUSH" : "IBV_ACCESS_REMOTE_WRITE";
}

static void add_invalid_request(struct words *words, const struct object *qp)
{
    uint8_t opcode = qp->qp.fault.opcode;

    words_add(words, "(invalid request): ");
    if (is_send(opcode)) {
        if (qp->qp.type == IBV_QPT_XRC_SEND)
            words_add(words, "no SRQ there has that number, or ");
        words_add(words, "the receive posted there has less than %u bytes", qp->qp.fault.length);
    } else {
        words_add(words, "qp_access_flags of that QP lack %s", access_flag(opcode));
    }
    if (is_send(opcode) || is_write(opcode))
        words_add(words, ", or path_mtu of the two ends differs (%u bytes here)", qp_mtu_bytes(qp));
    else
        words_add(words,
                  ", or more READs and atomics were in flight than its max_dest_rd_atomic permits "
                  "(max_rd_atomic here is %u)",
                  qp->qp.attributes.max_rd_atomic);
    if (is_atomic(opcode) || opcode == IBV_WR_ATOMIC_WRITE)
        words_add(words, ", or the address is no multiple of 8");
}

static void add_remote_access(struct words *words, uint8_t opcode)
{
    words_add(words, "(remote access error): ");
    if (is_send(opcode))
        words_add(words, "the rkey to invalidate names no bound type 2 MW of the PD of that QP");
    else
        words_add(
            words,
            "no MR or bound MW there has this rkey (it is wrong, or was deregistered, invalidated or "
            "bound again), or the MR or MW is of another PD than that QP, lacks %s, or does not contain "
            "the range",
            access_flag(opcode));
}

static void add_remote_operation(struct words *words, uint8_t opcode)
{
    words_add(words, "(remote operational error): ");
    if (is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        words_add(
            words,
            "the buffer of the receive posted there is not usable: its MR lacks IBV_ACCESS_LOCAL_WRITE, "
            "has another lkey or PD, does not contain it, or was deregistered");
    else
        words_add(words, "a fault of that end, which this request did not cause");
}

void words_add_nak(struct words *words, const struct object *qp)
{
    const struct fault_record *fault = &qp->qp.fault;

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
        words_add(words, "(NAK code %llu)", (unsigned long long)fault->value);
        break;
    }
    words_add(words, "; the process of the peer says which%s",
              qp->qp.path.kind == PATH_WIRE ? ", if it runs SoftHCA" : "");
}
