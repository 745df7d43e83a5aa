/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Entries of foreign queues. */
#include <stddef.h>

#include "explain/explain.h"

uint32_t slots_for(uint32_t depth)
{
    return depth <= 1 ? 1 : 1u << (32 - __builtin_clz(depth - 1));
}

uint32_t entries_between(uint32_t from, uint32_t to, uint32_t depth)
{
    return min_of(to - from, depth);
}

static bool entry_read(const struct view *view, uint64_t queue, uint32_t stride, uint32_t slots,
                       uint32_t counter, void *ret, size_t size)
{
    if (queue == 0 || stride < size)
        return false;
    /* Below 2^64: slots and stride are 32 bits each, and what is beyond the segment is refused. */
    return queue <= view->size &&
           view_copy(view, queue + (uint64_t)(counter & (slots - 1)) * stride, ret, size);
}

static uint32_t send_slots(const struct qp_record *qp)
{
    return slots_for(qp->send_depth + min_of(qp->own_depth, OWN_REQUESTS));
}

uint64_t send_sges(const struct view *view, const struct qp_record *qp, uint32_t counter)
{
    size_t header = view->header.watched ? sizeof(struct watched_send)
                                         : sizeof(struct send_wqe) +
                                               (qp->type == IBV_QPT_UD ? sizeof(struct path_address) : 0);

    return qp->send_offset + (uint64_t)(counter & (send_slots(qp) - 1)) * qp->send_stride + header;
}

/* As if it had been posted here: what the program posted says nothing of what became of it. */
static bool watched_send_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                              struct send_wqe *ret)
{
    uint64_t at = send_sges(view, qp, counter);
    struct watched_send send;
    struct wqe_sge sge;
    uint32_t sges;

    if (!entry_read(view, qp->send_offset, qp->send_stride, send_slots(qp), counter, &send, sizeof(send)))
        return false;
    sges = min_of((uint32_t)send.more_sges + 1, LIMIT_SGE);
    *ret = (struct send_wqe){.wr_id = send.wr_id, .opcode = (uint8_t)send.opcode, .stamp = send.stamp};
    if (sges == 0)
        ret->length = send.length;
    for (uint32_t i = 0; i < sges; i++) {
        if (!view_copy(view, at + i * sizeof(sge), &sge, sizeof(sge)))
            return false;
        ret->length += sge.length;
    }
    if (send.send_flags & IBV_SEND_SIGNALED || qp->attributes.signal_all)
        ret->flags |= WQE_SIGNALED;
    if (send.send_flags & IBV_SEND_INLINE)
        ret->flags |= WQE_INLINE;
    else
        ret->num_sge = (uint8_t)sges;
    if (watched_send_names_memory(&send)) {
        ret->remote_address = send.remote_address;
        ret->rkey = send.rkey;
    }
    return true;
}

bool send_wqe_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                   struct send_wqe *ret)
{
    if (!qp->send_depth || qp->send_depth > LIMIT_QP_WR)
        return false;
    if (view->header.watched)
        return watched_send_read(view, qp, counter, ret);
    return entry_read(view, qp->send_offset, qp->send_stride, send_slots(qp), counter, ret, sizeof(*ret));
}

bool receive_read(const struct view *view, const struct receive_queue *queue, uint32_t counter,
                  struct recv_wqe *ret)
{
    return queue->depth && queue->depth <= LIMIT_QP_WR &&
           entry_read(view, queue->offset, queue->stride, slots_for(queue->depth), counter, ret,
                      offsetof(struct recv_wqe, sge));
}

bool srq_receive_read(const struct view *view, const struct srq_record *srq, uint32_t counter,
                      struct recv_wqe *ret)
{
    return srq->max_wr && srq->max_wr <= LIMIT_SRQ_WR &&
           entry_read(view, srq->ring_offset, srq->stride, slots_for(srq->max_wr + 1), counter, ret,
                      offsetof(struct recv_wqe, sge));
}

bool cqe_read(const struct view *view, const struct cq_record *cq, uint32_t counter, struct cqe *ret)
{
    return cq->capacity && cq->capacity <= LIMIT_CQE &&
           entry_read(view, cq->ring_offset, cq->entry_size, slots_for(cq->capacity + 1), counter, ret,
                      sizeof(*ret));
}

/* --- lists of wr_ids ------------------------------------------------------------------------------------ */

#define RUNS_MAX 12

static void describe_run(struct wr_ids *ids)
{
    if (ids->runs++ >= RUNS_MAX)
        return;
    if (ids->runs > 1)
        words_add(&ids->words, ", ");
    words_add_wr_id(&ids->words, ids->first);
    if (ids->last != ids->first) {
        words_add(&ids->words, ids->last == ids->first + 1 ? ", " : "..");
        words_add_wr_id(&ids->words, ids->last);
    }
}

void wr_ids_add(struct wr_ids *ids, uint64_t wr_id)
{
    if (ids->total && wr_id == ids->last + 1) {
        ids->last = wr_id;
    } else {
        if (ids->total)
            describe_run(ids);
        ids->first = ids->last = wr_id;
    }
    ids->total++;
}

void wr_ids_finish(struct wr_ids *ids)
{
    if (ids->total)
        describe_run(ids);
    if (ids->runs > RUNS_MAX)
        words_add(&ids->words, " and others");
}
