/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Extended posting, ibv_wr_* (verbs.md §3.8). WQEs are written behind `posted` in the send queue, under
 * post_lock, and are posted together in qp_build_complete(), or not at all. The QP's lock is not held between
 * start and complete, so that the application can poll in between without deadlock. */
#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "base/rundown.h"
#include "object/destroyed.h"
#include "object/qp/qp_internal.h"
#include "object/qp/traffic.h"
#include "rules/transitions.h"

void qp_build_fail(struct qp *qp, int error)
{
    if (!qp->build_error)
        qp->build_error = error;
    qp->build_wqe = NULL;
}

/* Only the holder of post_lock posts on an extended QP, so `posted` does not change until complete or abort. */
void qp_build_start(struct qp *qp)
{
    qp_prefetch_plain(qp);
    lock_acquire(&qp->post_lock);
    if (qp->transport.tag_matching && !context_is_inherited(qp->context)) {
        /* tagged_post() must not use the slots that are being filled. */
        lock_acquire(&qp->lock);
        qp->transport.building = true;
        lock_release(&qp->lock);
    }
    qp->build_posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    qp->build_stamp = provenance_stamp();
    qp->build_error =
        context_is_inherited(qp->context) ? destroyed_refuse(DESTROYED_QP, qp, "ibv_wr_start") : 0;
    qp->build_wqe = NULL;
    qp->build_needs_address = false;
}

static cold_path void refuse_without_address(struct qp *qp)
{
    if (!qp->build_error)
        qp_build_fail(
            qp, refuse(-EINVAL, REFUSAL_NO_ADDRESS,
                       qp->record->type == IBV_QPT_UD ? "ibv_wr_set_ud_addr()" : "ibv_wr_set_xrc_srqn()", 0,
                       0, 0));
}

struct send_wqe *qp_build_wr(struct qp *qp, enum ibv_wr_opcode opcode)
{
    struct send_wqe *wqe;
    int error;

    if (qp->build_needs_address)
        refuse_without_address(qp);
    if (qp->build_error)
        return NULL;
    if (post_check_opcode(qp, opcode)) {
        qp_build_fail(qp, -EINVAL);
        return NULL;
    }
    if (send_queue_room(qp, qp->build_posted) == 0) {
        /* The helper thread may be completing requests. */
        lock_acquire(&qp->lock);
        error = post_refuse_full(qp, qp->build_posted);
        lock_release(&qp->lock);
        qp_build_fail(qp, error);
        return NULL;
    }
    wqe = send_wqe_at(&qp->transport, qp->build_posted++);
    *wqe = (struct send_wqe){
        .wr_id = qp->ex.wr_id,
        .opcode = (uint8_t)opcode,
        .flags = post_wqe_flags(qp, qp->ex.wr_flags),
        .stamp = qp->build_stamp,
    };
    if (qp->build_wqe)
        wqe->flags |= WQE_CHAINED;
    qp->build_wqe = wqe;
    qp->build_needs_address =
        qp->record->type == IBV_QPT_UD ||
        (qp->record->type == IBV_QPT_XRC_SEND && opcode != IBV_WR_LOCAL_INV && opcode != IBV_WR_BIND_MW);
    return wqe;
}

void qp_build_bind(struct qp *qp, const struct mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
    struct send_wqe *wqe;

    if (mw->ibv.type != IBV_MW_TYPE_2)
        qp_build_fail(qp, refuse_because(-EINVAL, "mw is of type IBV_MW_TYPE_1, but ibv_wr_bind_mw() "
                                                  "needs IBV_MW_TYPE_2"));
    wqe = qp_build_wr(qp, IBV_WR_BIND_MW);
    if (wqe)
        post_write_bind(qp, wqe, mw, rkey, 0, info);
}

void qp_build_atomic_write(struct qp *qp, uint32_t rkey, uint64_t remote_address, const void *value)
{
    struct send_wqe *wqe;

    if (remote_address % sizeof(uint64_t) != 0)
        qp_build_fail(qp, refuse(-EINVAL, REFUSAL_UNALIGNED, "remote_addr", (int64_t)remote_address,
                                 sizeof(uint64_t), 0));
    wqe = qp_build_wr(qp, IBV_WR_ATOMIC_WRITE);
    if (!wqe)
        return;
    wqe->rkey = rkey;
    wqe->remote_address = remote_address;
    wqe->flags |= WQE_INLINE;
    wqe->length = sizeof(uint64_t);
    memcpy(send_wqe_body(wqe, IBV_QPT_RC), value, sizeof(uint64_t));
    qp->build_wqe = NULL; /* no data setter may follow */
}

void qp_build_flush(struct qp *qp, uint32_t rkey, uint64_t remote_address, size_t length, uint8_t types,
                    uint8_t level)
{
    struct send_wqe *wqe;

    if (length > UINT32_MAX)
        qp_build_fail(qp, refuse_range("len", (int64_t)length, 0, UINT32_MAX));
    else if (!types || (types & ~FLUSH_TYPES))
        qp_build_fail(qp, refuse_bits(-EINVAL, "type", BITS_FLUSH_TYPES, types, FLUSH_TYPES));
    else if (level > FLUSH_REGION)
        qp_build_fail(qp, refuse_invalid("level", level));
    wqe = qp_build_wr(qp, (enum ibv_wr_opcode)WR_FLUSH);
    if (!wqe)
        return;
    wqe->rkey = rkey;
    wqe->remote_address = remote_address;
    wqe->length = (uint32_t)length;
    wqe->imm_or_rkey = types | (uint32_t)level << FLUSH_LEVEL_SHIFT;
    qp->build_wqe = NULL; /* no data setter may follow */
}

void qp_build_sge_list(struct qp *qp, size_t count, const struct ibv_sge *list)
{
    struct send_wqe *wqe = qp->build_wqe;
    uint64_t total = 0;

    if (!wqe)
        return;
    if (count > qp->record->max_send_sge) {
        qp_build_fail(qp, refuse_range("num_sge", (int64_t)count, 0, qp->record->max_send_sge));
        return;
    }
    copy_if_any(send_wqe_body(wqe, (enum ibv_qp_type)qp->record->type), list, count * sizeof(*list));
    for (size_t i = 0; i < count; i++)
        total += list[i].length;
    wqe->num_sge = (uint8_t)count;
    wqe->length = total > LIMIT_MESSAGE ? UINT32_MAX : (uint32_t)total;
    if ((wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) &&
        (total != sizeof(uint64_t) || wqe->remote_address % sizeof(uint64_t) != 0))
        qp_build_fail(
            qp, total != sizeof(uint64_t)
                    ? refuse_range("length of an atomic", (int64_t)total, sizeof(uint64_t), sizeof(uint64_t))
                    : refuse(-EINVAL, REFUSAL_UNALIGNED, "remote_addr", (int64_t)wqe->remote_address,
                             sizeof(uint64_t), 0));
}

void qp_build_inline_list(struct qp *qp, size_t count, const struct ibv_data_buf *list)
{
    struct send_wqe *wqe = qp->build_wqe;
    uint64_t total = 0;
    char *body;

    if (!wqe)
        return;
    if (wqe->opcode == IBV_WR_RDMA_READ || wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
        wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        qp_build_fail(qp, -EINVAL);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        /* Compared by subtraction, because the sum of the application's lengths may wrap. */
        if (list[i].length > qp->record->max_inline - total) {
            qp_build_fail(qp, refuse(-ENOSPC, REFUSAL_RANGE, "length of the inline data",
                                     (int64_t)(total + list[i].length), 0, qp->record->max_inline));
            return;
        }
        total += list[i].length;
    }
    body = send_wqe_body(wqe, (enum ibv_qp_type)qp->record->type);
    for (size_t i = 0; i < count; i++) {
        copy_if_any(body, list[i].addr, list[i].length);
        body += list[i].length;
    }
    wqe->flags |= WQE_INLINE;
    wqe->num_sge = 0;
    wqe->length = (uint32_t)total;
}

void qp_build_ud_address(struct qp *qp, struct ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
    struct send_wqe *wqe = qp->build_wqe;

    if (!wqe)
        return;
    if (!ah || ah->pd->number != qp->pd->number) {
        qp_build_fail(qp, ah ? refuse(-EINVAL, REFUSAL_OTHER_PD, "ah", ah->pd->number, qp->pd->number, 0)
                             : refuse_null("ah"));
        return;
    }
    *send_wqe_address(wqe) = ah->path;
    wqe->ud.remote_qpn = remote_qpn & PSN_MASK;
    wqe->ud.remote_qkey = remote_qkey;
    qp->build_needs_address = false;
}

void qp_build_srq_number(struct qp *qp, uint32_t srqn)
{
    /* build_wqe is NULL after a data setter and for an atomic write; the last WQE is meant all the same. */
    if (qp->build_error || !qp->build_needs_address)
        return;
    if (qp->record->type != IBV_QPT_XRC_SEND) {
        qp_build_fail(qp, refuse(-EINVAL, REFUSAL_TYPE, "ibv_wr_set_xrc_srqn", qp->record->type,
                                 1ull << IBV_QPT_XRC_SEND, 0));
        return;
    }
    wqe_set_srqn(send_wqe_at(&qp->transport, qp->build_posted - 1), srqn);
    qp->build_needs_address = false;
}

/* The batch is not posted: posts the adapter's own requests that waited for its end. Lock held. */
static bool let_own_in(struct qp *qp)
{
    if (!qp->transport.tag_matching || !qp->transport.building)
        return false;
    qp->transport.building = false;
    tagged_post(&qp->transport);
    return qp_run_sender(qp, STAMP_NONE);
}

void qp_build_alter(struct qp *qp, qp_alter_send *alter)
{
    uint32_t at = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);

    if (qp->build_error || qp->build_needs_address)
        return;
    lock_acquire(&qp->lock);
    for (; at != qp->build_posted; at++)
        alter(qp, send_wqe_at(&qp->transport, at));
    lock_release(&qp->lock);
}

int qp_build_complete(struct qp *qp)
{
    struct sender *sender = &qp->record->sender;
    bool more = false;
    int error;

    if (qp->build_needs_address)
        refuse_without_address(qp);
    error = qp->build_error;
    rundown_enter();
    lock_acquire(&qp->lock);
    if (!error)
        error = transition_check_post_send((enum ibv_qp_type)qp->record->type, qp_state(qp));
    if (!error) {
        if (likely(qp_may_be_plain(qp)) && qp_ports->run_plain(qp, qp->build_posted))
            goto executed;
        atomic_store_explicit(&sender->posted, qp->build_posted, memory_order_release);
        qp_prefetch(qp);
        traffic_posted(qp, qp->build_posted);
        qp->transport.building = false;
        tagged_post(&qp->transport);
        more = qp_run_sender(qp, STAMP_NONE);
    } else {
        more = let_own_in(qp);
    }
    qp_ports->unlock(qp, more);
executed:
    rundown_exit();
    qp->build_wqe = NULL;
    qp->build_needs_address = false;
    lock_release(&qp->post_lock);
    return refused_of(error, OBJECT_QP, qp->ibv.qp_num);
}

void qp_build_abort(struct qp *qp)
{
    bool more;

    qp->build_wqe = NULL;
    if (qp->transport.tag_matching) {
        rundown_enter();
        lock_acquire(&qp->lock);
        more = let_own_in(qp);
        qp_ports->unlock(qp, more);
        rundown_exit();
    }
    lock_release(&qp->post_lock);
}
