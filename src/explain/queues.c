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

bool sges_name_key(const struct view *view, uint64_t at, uint32_t count, uint32_t lkey)
{
    struct wqe_sge sge;

    for (uint32_t i = 0; i < min_of(count, LIMIT_SGE); i++) {
        if (view_copy(view, at + i * sizeof(sge), &sge, sizeof(sge)) && sge.lkey == lkey && sge.length)
            return true;
    }
    return false;
}

static uint64_t send_sges(const struct view *view, const struct qp_record *qp, uint32_t counter)
{
    size_t header = sizeof(struct send_wqe) + (qp->type == IBV_QPT_UD ? sizeof(struct path_address) : 0);

    return qp->send_offset + (uint64_t)(counter & (send_slots(qp) - 1)) * qp->send_stride + header;
}

/* What a slot of a watched process has, and sges: as many as fit. */
struct watched_slot {
    struct watched_send send;
    struct watched_rest rest;
    struct wqe_sge sges[LIMIT_SGE];
    uint32_t count;
};

static bool watched_slot_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                              struct watched_slot *ret)
{
    uint32_t slots = send_slots(qp), more = min_of(qp->max_send_sge, LIMIT_SGE);
    uint64_t at, rests = qp->send_offset + (uint64_t)slots * sizeof(ret->send);
    uint32_t stride = (uint32_t)(sizeof(ret->rest) + (more ? more - 1 : 0) * sizeof(ret->sges[0]));

    if (!entry_read(view, qp->send_offset, qp->send_stride, slots, counter, &ret->send, sizeof(ret->send)) ||
        !entry_read(view, rests, stride, slots, counter, &ret->rest, sizeof(ret->rest)))
        return false;
    ret->sges[0] = (struct wqe_sge){ret->send.address, ret->send.length, ret->send.lkey};
    ret->count = 1;
    if (!(ret->send.opcode & WATCHED_REST)) {
        ret->rest.stamp = STAMP_NONE;
        return true;
    }
    ret->send.opcode &= ~WATCHED_REST;
    ret->count = min_of((uint32_t)ret->rest.more_sges + 1, LIMIT_SGE);
    at = rests + (uint64_t)(counter & (slots - 1)) * stride + sizeof(ret->rest);
    return ret->count < 2 || view_copy(view, at, &ret->sges[1], (ret->count - 1) * sizeof(ret->sges[0]));
}

/* As if it had been posted here: what the program posted says nothing of what became of it. */
static bool watched_send_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                              struct send_wqe *ret)
{
    struct watched_slot slot;

    if (!watched_slot_read(view, qp, counter, &slot))
        return false;
    *ret = (struct send_wqe){
        .wr_id = slot.send.wr_id, .opcode = (uint8_t)slot.send.opcode, .stamp = slot.rest.stamp};
    if (slot.count == 0)
        ret->length = slot.send.length;
    for (uint32_t i = 0; i < slot.count; i++)
        ret->length += slot.sges[i].length;
    if (slot.send.send_flags & IBV_SEND_SIGNALED || qp->attributes.signal_all)
        ret->flags |= WQE_SIGNALED;
    if (slot.send.send_flags & IBV_SEND_INLINE)
        ret->flags |= WQE_INLINE;
    else
        ret->num_sge = (uint8_t)slot.count;
    if (watched_send_names_memory(slot.send.opcode)) {
        ret->remote_address = slot.rest.remote_address;
        ret->rkey = slot.rest.rkey;
    }
    return true;
}

bool send_names_key(const struct view *view, const struct qp_record *qp, uint32_t counter, uint32_t count,
                    uint32_t lkey)
{
    struct watched_slot slot;

    if (!view->header.watched)
        return sges_name_key(view, send_sges(view, qp, counter), count, lkey);
    if (!watched_slot_read(view, qp, counter, &slot))
        return false;
    for (uint32_t i = 0; i < min_of(slot.count, count); i++) {
        if (slot.sges[i].lkey == lkey && slot.sges[i].length)
            return true;
    }
    return false;
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

bool send_address_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                       struct path_address *ret)
{
    struct {
        struct send_wqe wqe;
        struct path_address address;
    } slot;

    if (qp->type != IBV_QPT_UD || view->header.watched || !qp->send_depth || qp->send_depth > LIMIT_QP_WR ||
        !entry_read(view, qp->send_offset, qp->send_stride, send_slots(qp), counter, &slot, sizeof(slot)))
        return false;
    *ret = slot.address;
    return true;
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
