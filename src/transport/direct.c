/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One-sided requests executed by the requester: with loads and stores in memory of the peer that is mapped here, or
 * by the kernel's copy. No packet is sent and no PSN is used: the peer's responder does not take part. So a request
 * is executed like that only when all requests before it are complete. A request that would not simply succeed
 * travels as packets, because only the responder may reject it and raise events. */
#include "transport/cpu_atomic.h"
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
    /* The responder has to reject more requests at once than it granted. */
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

static uint64_t execute_atomic(const struct send_wqe *wqe, uint64_t *target)
{
    if (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        return cpu_fetch_add(target, wqe->atomic.compare_add);
    return cpu_compare_swap(target, wqe->atomic.compare_add, wqe->atomic.swap);
}

static void put(char *target, const struct gather *from)
{
    for (unsigned i = 0; i < from->count; i++) {
        place(target, from->vector[i].iov_base, from->vector[i].iov_len);
        target += from->vector[i].iov_len;
    }
}

/* The request has been executed: it is begun and has its verdict, and no packet. */
static enum direct done(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind,
                        enum verdict verdict)
{
    wqe->verdict = (uint8_t)verdict;
    wqe->carriage = WQE_BY_BYTES;
    wqe->exposed = false;
    wqe->read_part = 0;
    wqe->packets = 0;
    qp->record->sender.begun++;
    traffic_add(&qp->record->traffic.requested[TRAFFIC_BY_REQUESTER][kind], wqe->length);
    return DIRECT_DONE;
}

/* Memory that is not mapped here. */
static enum direct copy(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind,
                        const struct gather *gather)
{
    if (qp->map_later)
        return DIRECT_LATER;
    if ((kind != REQUEST_WRITE && kind != REQUEST_READ) ||
        !qp->ports->direct->copy(qp, wqe->rkey, wqe->remote_address, wqe->length, operation_of(kind),
                                 gather->vector, gather->count))
        return DIRECT_NOT;
    return done(qp, wqe, kind, VERDICT_OK);
}

static __attribute__((noinline)) enum direct execute(struct transport_qp *qp, struct send_wqe *wqe,
                                                     enum request_kind kind)
{
    struct sender *sender = &qp->record->sender;
    struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);
    struct gather gather; /* large: not initialised as a whole */
    uint64_t original = 0;
    bool writes = kind == REQUEST_WRITE || kind == REQUEST_ATOMIC_WRITE;
    void *target;

    /* A program that always has requests in flight would never get direct execution unless the request waits
     * for them here. If one of them takes a receive, waiting would cost a pause per message: the request
     * goes as packets. */
    if (sender->completed != sender->begun)
        return (int32_t)(qp->two_sided_end - sender->completed) <= 0 &&
                       qp->ports->direct->can_execute(qp, wqe->rkey, wqe->remote_address, wqe->length)
                   ? DIRECT_BEHIND
                   : DIRECT_NOT;
    gather.count = 1;
    if (wqe->flags & WQE_INLINE)
        gather.vector[0] = (struct iovec){.iov_base = sge, .iov_len = wqe->length};
    else if (gather_range(qp, sge, wqe->num_sge, qp->record->pd, 0, wqe->length, !writes, &gather) !=
             VERDICT_OK)
        return DIRECT_NOT;
    if (kind == REQUEST_ATOMIC_WRITE && gather.count != 1)
        return DIRECT_NOT; /* would take several stores */
    target = qp->ports->direct->map(qp, wqe->rkey, wqe->remote_address, wqe->length, operation_of(kind));
    if (!target)
        return copy(qp, wqe, kind, &gather);
    if (kind == REQUEST_ATOMIC_WRITE && ((uintptr_t)target & 7)) {
        qp->ports->direct->map_end(qp);
        return DIRECT_NOT;
    }
    if (writes)
        put(target, &gather);
    else if (kind == REQUEST_READ)
        gather_place(&gather, target);
    else
        original = execute_atomic(wqe, target);
    if (unlikely(!qp->ports->direct->map_end(
            qp))) /* executing it twice is harmless, or as if its response was lost */
        return kind != REQUEST_ATOMIC ? DIRECT_NOT : done(qp, wqe, kind, VERDICT_RETRY_EXCEEDED);
    if (kind == REQUEST_ATOMIC)
        gather_place(&gather, &original);
    return done(qp, wqe, kind, VERDICT_OK);
}

enum direct direct_execute(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind)
{
    const struct sender *sender = &qp->record->sender;

    if (unlikely(qp->atomic_unknown)) {
        qp->atomic_unknown = false;
        return done(qp, wqe, kind, VERDICT_RETRY_EXCEEDED);
    }
    /* Whoever is to take what is under way takes this with it. */
    if (qp->unasked && sender->completed != sender->begun && wqe->length <= DIRECT_SMALL) {
        qp->unasked--;
        return DIRECT_NOT;
    }
    if (!wqe->length || wqe->length > qp->link.direct_up_to || !is_one_sided(qp, wqe, kind) ||
        qp->ports->direct->goes_by_packets(qp, wqe->rkey, wqe->remote_address, wqe->length))
        return DIRECT_NOT;
    return execute(qp, wqe, kind);
}
