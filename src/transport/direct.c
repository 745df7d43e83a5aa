/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One-sided requests that are executed on this side, with loads and stores in memory of the peer's that is
 * mapped here. No packet is sent and no PSN used: the peer's responder does not learn of it. So nothing is
 * begun like that before all requests in front of it have their verdicts, and whatever is not plain success
 * is sent as packets instead: the responder is the one who judges, and raises what there is to be raised. */
#include "transport/machine.h"
#include "transport/ordered_copy.h"

static enum remote_operation operation_of(enum request_kind kind)
{
    if (kind == REQUEST_READ)
        return REMOTE_READ;
    return kind == REQUEST_ATOMIC ? REMOTE_ATOMIC : REMOTE_WRITE;
}

static bool is_one_sided(const struct transport_qp *qp, const struct send_wqe *wqe, enum request_kind kind)
{
    /* So many at once may have to be refused, which is the responder's to do. */
    if (unlikely(qp->link.rd_atomic_by_packets) && kind != REQUEST_WRITE)
        return false;
    switch (kind) {
    case REQUEST_WRITE:
        return wqe->opcode != IBV_WR_RDMA_WRITE_WITH_IMM;
    case REQUEST_READ:
        return qp->record->attributes.max_rd_atomic != 0;
    case REQUEST_ATOMIC:
    case REQUEST_ATOMIC_WRITE:
        return qp->record->attributes.max_rd_atomic != 0 && wqe->length == sizeof(uint64_t);
    case REQUEST_UNKNOWN:
    case REQUEST_SEND:
    case REQUEST_FLUSH:
    case REQUEST_LOCAL:
        break;
    }
    return false;
}

/* CPU atomics, as the responder's own (IBV_ATOMIC_GLOB). */
static uint64_t execute_atomic(const struct send_wqe *wqe, uint64_t *target)
{
    uint64_t value = wqe->atomic.compare_add;

    if (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        return __atomic_fetch_add(target, value, __ATOMIC_SEQ_CST);
    __atomic_compare_exchange_n(target, &value, wqe->atomic.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return value;
}

static void put(char *there, const struct gather *from)
{
    for (unsigned i = 0; i < from->count; i++) {
        place(there, from->vector[i].iov_base, from->vector[i].iov_len);
        there += from->vector[i].iov_len;
    }
}

enum direct direct_execute(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind)
{
    struct sender *sender = &qp->record->sender;
    struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);
    struct gather gather = {.count = 1};
    uint64_t original = 0;
    bool writes = kind == REQUEST_WRITE || kind == REQUEST_ATOMIC_WRITE;
    void *there;

    if (!wqe->length || wqe->length > qp->link.direct_up_to || !is_one_sided(qp, wqe, kind))
        return DIRECT_NOT;
    /* A program that always has some under way would never come to it. But who sends messages between them is
     * better off without a pause at each. */
    if (sender->completed != sender->begun)
        return (int32_t)(qp->two_sided_end - sender->completed) <= 0 &&
                       qp->ports->direct->can_map(qp, wqe->rkey)
                   ? DIRECT_BEHIND
                   : DIRECT_NOT;
    if (wqe->flags & WQE_INLINE)
        gather.vector[0] = (struct iovec){.iov_base = sge, .iov_len = wqe->length};
    else if (gather_range(qp, sge, wqe->num_sge, qp->record->pd, 0, wqe->length, !writes, &gather) !=
             VERDICT_OK)
        return DIRECT_NOT;
    if (kind == REQUEST_ATOMIC_WRITE && gather.count != 1)
        return DIRECT_NOT; /* several stores */
    there = qp->ports->direct->map(qp, wqe->rkey, wqe->remote_address, wqe->length, operation_of(kind));
    if (!there)
        return qp->map_later ? DIRECT_LATER : DIRECT_NOT;
    if (kind == REQUEST_ATOMIC_WRITE && ((uintptr_t)there & 7)) {
        qp->ports->direct->map_end(qp);
        return DIRECT_NOT;
    }
    if (writes)
        put(there, &gather);
    else if (kind == REQUEST_READ)
        gather_place(&gather, there);
    else
        original = execute_atomic(wqe, there);
    wqe->verdict = VERDICT_OK;
    if (unlikely(!qp->ports->direct->map_end(qp))) {
        if (kind != REQUEST_ATOMIC)
            return DIRECT_NOT;                 /* to do it twice is harmless */
        wqe->verdict = VERDICT_RETRY_EXCEEDED; /* as if its answer had got lost */
    } else if (kind == REQUEST_ATOMIC) {
        gather_place(&gather, &original);
    }
    wqe->by_reference = wqe->exposed = false;
    wqe->read_part = 0;
    wqe->packets = 0;
    sender->begun++;
    return DIRECT_DONE;
}
