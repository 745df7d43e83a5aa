/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "object/receive/tm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "object/cq/cq.h"
#include "object/qp/qp_internal.h"
#include "transport/tags.h"

/* From this number of unexpected messages that software has not acknowledged (IBV_OPS_TM_SYNC) completions carry
 * IBV_WC_TM_SYNC_REQ. */
#define SYNC_DUE_FROM 0x4000u

struct tm_srq {
    struct tag_list list;
    uint32_t max_ops;
};

/* --- creating and destroying ---------------------------------------------------------------------- */

static void tm_free(struct tm_srq *tm)
{
    free(tm->list.entries);
    free(tm);
}

static void leave(struct srq *srq)
{
    cq_purge_qp(srq->cq, srq->record->tm_number);
    qp_ports->release_number(srq->record->tm_number);
    srq->record->tm_number = 0;
    cq_unuse(srq->cq);
    tm_free(srq->tm);
}

static struct tm_srq *tm_new(const struct ibv_tm_cap *cap)
{
    struct tm_srq *tm = calloc(1, sizeof(*tm));
    struct tag_entry *entries = calloc(cap->max_num_tags, sizeof(*entries));

    if (!tm || !entries) {
        free(entries);
        free(tm);
        return NULL;
    }
    tag_list_init(&tm->list, entries, cap->max_num_tags);
    tm->max_ops = cap->max_ops;
    return tm;
}

int srq_create_tm(struct pd *pd, struct cq *cq, void *user_context, struct ibv_srq_attr *attributes,
                  struct ibv_tm_cap *tag_cap, struct srq **ret_srq)
{
    struct tm_srq *tm;
    struct srq *srq;
    uint32_t number;
    int error;

    if (!tag_cap->max_num_tags || tag_cap->max_num_tags > LIMIT_TAGS || !tag_cap->max_ops ||
        tag_cap->max_ops > LIMIT_TAG_OPS)
        return -EINVAL;
    error = cq_use(cq, "ibv_create_srq_ex");
    if (error)
        return error;
    error = qp_ports->allocate_number(&number);
    if (error)
        goto unuse_cq;
    error = -ENOMEM;
    tm = tm_new(tag_cap);
    if (!tm)
        goto release_number;
    error = srq_create(pd, user_context, attributes, true, &srq);
    if (error)
        goto free_tm;
    srq->tm = tm;
    srq->cq = cq;
    srq->leave = leave;
    srq->record->cq = cq->number;
    srq->record->tm_number = number;
    *ret_srq = srq;
    return 0;

free_tm:
    tm_free(tm);
release_number:
    qp_ports->release_number(number);
unuse_cq:
    cq_unuse(cq);
    return error;
}

/* --- operations; the SRQ's lock is held ------------------------------------------------------------ */

static int add(struct srq *srq, struct ibv_ops_wr *op)
{
    struct tag_entry *entry;
    struct recv_wqe *receive;

    if (op->tm.add.num_sge < 0 || (unsigned)op->tm.add.num_sge > LIMIT_TAG_SGE)
        return -EINVAL;
    entry = tag_list_add(&srq->tm->list, op->tm.add.tag, op->tm.add.mask);
    if (!entry)
        return -ENOMEM;
    receive = tag_receive(entry);
    receive->wr_id = op->tm.add.recv_wr_id;
    receive->num_sge = (uint32_t)op->tm.add.num_sge;
    receive->stamp = provenance_stamp();
    for (uint32_t i = 0; i < receive->num_sge; i++)
        receive->sge[i] = (struct wqe_sge){op->tm.add.sg_list[i].addr, op->tm.add.sg_list[i].length,
                                           op->tm.add.sg_list[i].lkey};
    op->tm.handle = tag_list_handle(&srq->tm->list, entry);
    return 0;
}

static void complete(struct srq *srq, const struct ibv_ops_wr *op, enum ibv_wc_opcode opcode,
                     enum verdict verdict)
{
    const struct cqe cqe = {
        .wr_id = op->wr_id,
        .qpn = srq->record->tm_number,
        .retires = ++srq->record->ops_posted,
        .status = (uint8_t)verdict_wc_status(verdict),
        .opcode = (uint8_t)opcode,
        .kind = CQE_OPERATION,
        .src_qpn = srq->number,
        .wc_flags = tag_list_in_sync(&srq->tm->list) ? 0 : IBV_WC_TM_SYNC_REQ,
        .vendor_err = (uint32_t)verdict,
    };

    cq_push(srq->cq, &cqe, verdict != VERDICT_OK);
}

static bool operations_are_full(const struct srq *srq)
{
    /* Acquire: partner of the release in retire_operation() (cq_poll.c). */
    return srq->record->ops_posted - atomic_load_explicit(&srq->record->ops_retired, memory_order_acquire) >=
           srq->tm->max_ops;
}

static int post_one(struct srq *srq, struct ibv_ops_wr *op)
{
    enum verdict verdict = VERDICT_OK;
    enum ibv_wc_opcode opcode;
    int error = 0;

    if (op->flags & ~(IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC))
        return -EINVAL;
    /* Checked for every operation, because any may need a completion. */
    if (operations_are_full(srq))
        return -ENOMEM;
    switch (op->opcode) {
    case IBV_WR_TAG_ADD:
        opcode = IBV_WC_TM_ADD;
        break;
    case IBV_WR_TAG_DEL:
        opcode = IBV_WC_TM_DEL;
        break;
    case IBV_WR_TAG_SYNC:
        opcode = IBV_WC_TM_SYNC;
        break;
    default:
        return -EINVAL;
    }
    /* The sync comes before an add, so that the added buffer can match at once, and after a removal, so that the
     * removed buffer cannot match. */
    if (op->opcode == IBV_WR_TAG_DEL)
        error = tag_list_remove(&srq->tm->list, op->tm.handle);
    if (error == -ENOENT)
        verdict = VERDICT_TAG;
    else if (error)
        return error;
    if (op->flags & IBV_OPS_TM_SYNC)
        tag_list_sync(&srq->tm->list, op->tm.unexpected_cnt);
    if (op->opcode == IBV_WR_TAG_ADD) {
        error = add(srq, op);
        if (error)
            return error;
    }
    if ((op->flags & IBV_OPS_SIGNALED) || verdict != VERDICT_OK)
        complete(srq, op, opcode, verdict);
    return 0;
}

int srq_post_ops(struct srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
{
    int error = 0;

    if (!srq->tm || context_is_inherited(srq->pd->context)) {
        *bad_op = op;
        return srq->tm ? -EIO : -EOPNOTSUPP;
    }
    lock_acquire(&srq->lock);
    for (; op; op = op->next) {
        error = post_one(srq, op);
        if (error) {
            *bad_op = op;
            break;
        }
    }
    lock_release(&srq->lock);
    return error;
}

/* --- messages ------------------------------------------------------------------------------------- */

int tm_match(struct transport_qp *transport, uint64_t tag, struct tag_match *ret_match)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct srq *srq = qp->srq;
    struct tag_list *list = &srq->tm->list;
    int error = 0;

    lock_acquire(&srq->lock);
    ret_match->entry = tag_list_match(list, tag);
    if (!ret_match->entry) {
        error = srq_take_locked(srq, qp->srq_receive, &qp->record->receive);
        if (!error) {
            tag_list_count(list);
            ret_match->sync_due = list->unexpected - list->handled >= SYNC_DUE_FROM;
        }
    }
    lock_release(&srq->lock);
    if (error || ret_match->entry)
        return error;
    ret_match->receive = qp->srq_receive;
    qp->receive_taken = true;
    return 0;
}

void tm_release(struct transport_qp *transport, struct tag_entry *entry)
{
    struct srq *srq = container_of(transport, struct qp, transport)->srq;

    lock_acquire(&srq->lock);
    tag_list_release(&srq->tm->list, entry);
    lock_release(&srq->lock);
}

void tm_discount(struct transport_qp *transport)
{
    struct srq *srq = container_of(transport, struct qp, transport)->srq;

    lock_acquire(&srq->lock);
    tag_list_discount(&srq->tm->list);
    lock_release(&srq->lock);
}
