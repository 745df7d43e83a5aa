/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_post_send, ibv_post_recv and ibv_bind_mw: the checks whose errors the verb returns (verbs.md §3.1-3.3),
 * and writing the WQE. All other errors become completions. */
#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "base/rundown.h"
#include "object/destroyed.h"
#include "object/qp/qp_internal.h"
#include "object/qp/traffic.h"
#include "rules/limits.h"
#include "rules/transitions.h"
#include "segment/provenance.h"

/* always_inline here: in ibv_post_send() itself, although a fault that a user asks for posts by another function
 * (qp_post_altered()). */

#define TYPE_BIT(type) (1u << (type))
#define RC_BIT         TYPE_BIT(IBV_QPT_RC)
#define UC_BIT         TYPE_BIT(IBV_QPT_UC)
#define UD_BIT         TYPE_BIT(IBV_QPT_UD)
#define XRC_BIT        TYPE_BIT(IBV_QPT_XRC_SEND)
#define RAW_BIT        TYPE_BIT(IBV_QPT_RAW_PACKET)
#define RELIABLE_BITS  (RC_BIT | XRC_BIT)

enum operation_properties { INLINE_ALLOWED = 1, CARRIES_DATA = 2, IS_ATOMIC = 4, ONLY_BUILT = 8 };

/* verbs.md §3.1 */
static const struct {
    uint16_t types;
    uint8_t properties;
} operations[] = {
    [IBV_WR_RDMA_WRITE] = {RELIABLE_BITS | UC_BIT, INLINE_ALLOWED | CARRIES_DATA},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {RELIABLE_BITS | UC_BIT, INLINE_ALLOWED | CARRIES_DATA},
    [IBV_WR_SEND] = {RELIABLE_BITS | UC_BIT | UD_BIT | RAW_BIT, INLINE_ALLOWED | CARRIES_DATA},
    [IBV_WR_SEND_WITH_IMM] = {RELIABLE_BITS | UC_BIT | UD_BIT, INLINE_ALLOWED | CARRIES_DATA},
    [IBV_WR_RDMA_READ] = {RELIABLE_BITS, CARRIES_DATA},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {RELIABLE_BITS, CARRIES_DATA | IS_ATOMIC},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {RELIABLE_BITS, CARRIES_DATA | IS_ATOMIC},
    [IBV_WR_LOCAL_INV] = {RELIABLE_BITS | UC_BIT, 0},
    [IBV_WR_BIND_MW] = {RELIABLE_BITS | UC_BIT, 0},
    [IBV_WR_SEND_WITH_INV] = {RELIABLE_BITS | UC_BIT, INLINE_ALLOWED | CARRIES_DATA},
    [WR_FLUSH] = {RELIABLE_BITS, ONLY_BUILT},
    [IBV_WR_ATOMIC_WRITE] = {RELIABLE_BITS, INLINE_ALLOWED | CARRIES_DATA},
};

int post_check_opcode(const struct qp *qp, enum ibv_wr_opcode opcode)
{
    if ((unsigned)opcode >= array_size(operations) ||
        !(operations[opcode].types & TYPE_BIT(qp->record->type)))
        return refuse(-EINVAL, REFUSAL_OPCODE, "opcode", opcode, qp->record->type, 0);
    return 0;
}

/* The sum of the lengths; UINT32_MAX if it exceeds the longest message: the sender then completes the request
 * with LOC_LEN_ERR. */
static always_inline uint32_t total_length(const struct ibv_sge *list, unsigned count)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < count; i++)
        total += list[i].length;
    return total > LIMIT_MESSAGE ? UINT32_MAX : (uint32_t)total;
}

static always_inline int write_payload(const struct qp *qp, struct send_wqe *wqe,
                                       const struct ibv_send_wr *wr)
{
    char *body = send_wqe_body(wqe, (enum ibv_qp_type)qp->record->type);
    unsigned count = (unsigned)wr->num_sge;

    if (wr->num_sge < 0 || count > qp->record->max_send_sge)
        return refuse_range("num_sge", wr->num_sge, 0, qp->record->max_send_sge);
    wqe->length = total_length(wr->sg_list, count);
    if (!(wr->send_flags & IBV_SEND_INLINE)) {
        wqe->num_sge = (uint8_t)count;
        copy_if_any(body, wr->sg_list, count * sizeof(struct wqe_sge));
        return 0;
    }
    if (!(operations[wr->opcode].properties & INLINE_ALLOWED))
        return refuse(-EINVAL, REFUSAL_INLINE, "send_flags", wr->opcode, 0, 0);
    if (wqe->length > qp->record->max_inline)
        return refuse_range("length of the inline data", wqe->length, 0, qp->record->max_inline);
    wqe->num_sge = 0;
    wqe->flags |= WQE_INLINE;
    for (unsigned i = 0; i < count; i++) {
        copy_if_any(body, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
        body += wr->sg_list[i].length;
    }
    return 0;
}

void post_write_bind(const struct qp *qp, struct send_wqe *wqe, const struct mw *mw, uint32_t new_rkey,
                     uint32_t random, const struct ibv_mw_bind_info *info)
{
    struct mw_bind *bind = send_wqe_body(wqe, (enum ibv_qp_type)qp->record->type);

    *bind = (struct mw_bind){
        .mw_rkey = mw->ibv.rkey,
        .new_rkey = new_rkey,
        .region_lkey = info->mr ? info->mr->lkey : 0,
        .pd = qp->pd->number,
        .address = info->addr,
        .length = info->length,
        .access = info->mw_access_flags,
        .random = random,
    };
    wqe->num_sge = 0;
    wqe->length = 0;
}

static always_inline int write_ud(const struct qp *qp, struct send_wqe *wqe, const struct ibv_send_wr *wr)
{
    const struct ah *ah = wr->wr.ud.ah ? ah_of(wr->wr.ud.ah) : NULL;

    if (!ah)
        return refuse_null("wr.ud.ah");
    if (ah->pd->number != qp->pd->number)
        return ah->pd == &destroyed_pd
                   ? destroyed_refuse(DESTROYED_AH, ah, "ibv_post_send")
                   : refuse(-EINVAL, REFUSAL_OTHER_PD, "wr.ud.ah", ah->pd->number, qp->pd->number, 0);
    *send_wqe_address(wqe) = ah->path;
    wqe->ud.remote_qpn = wr->wr.ud.remote_qpn & PSN_MASK;
    wqe->ud.remote_qkey = wr->wr.ud.remote_qkey;
    return 0;
}

#define SEND_FLAGS_KNOWN (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE)

static cold_path int refuse_alignment(const char *argument, uint64_t address)
{
    return refuse(-EINVAL, REFUSAL_UNALIGNED, argument, (int64_t)address, sizeof(uint64_t), 0);
}

/* Slots of requests that have ended are not free before a signaled completion behind them is polled. If none is
 * signaled, they never are; in all other cases a program that tries again succeeds at some time. From the newest on,
 * because a program that signals some signals the last. The QP's lock is held. */
cold_path int post_refuse_full(const struct qp *qp, uint32_t posted)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t under_way = posted - sender->completed, slots = qp->record->send_depth;

    for (uint32_t i = 1; i <= slots; i++) {
        const struct send_wqe *wqe = send_wqe_at(&qp->transport, posted - i);

        if (wqe->flags & (WQE_SIGNALED | WQE_OWN))
            return refuse(-ENOMEM, REFUSAL_FULL, "send queue", slots, min_of(under_way, slots), 0);
    }
    return refuse(-ENOMEM, slots ? REFUSAL_SILENT : REFUSAL_FULL, "send queue", slots, 0, 0);
}

static always_inline int write_send_wqe(const struct qp *qp, struct send_wqe *wqe,
                                        const struct ibv_send_wr *wr)
{
    int error = post_check_opcode(qp, wr->opcode);

    if (error)
        return error;
    if (operations[wr->opcode].properties & ONLY_BUILT)
        return refuse_because(-EINVAL, "struct ibv_send_wr has no fields for FLUSH: use ibv_wr_flush()");
    if (wr->send_flags & IBV_SEND_IP_CSUM) /* checksum offload is not among the device's capabilities */
        return refuse_bits(-EINVAL, "send_flags", BITS_SEND_FLAGS, wr->send_flags, SEND_FLAGS_KNOWN);
    wqe->wr_id = wr->wr_id;
    wqe->opcode = (uint8_t)wr->opcode;
    wqe->flags = post_wqe_flags(qp, wr->send_flags);
    wqe->carriage = WQE_BY_BYTES;
    wqe->packets = 0;
    wqe->stamp = qp->stamp;
    if (wr->opcode == IBV_WR_BIND_MW) {
        if (!wr->bind_mw.mw)
            return refuse_null("bind_mw.mw");
        if (wr->bind_mw.mw->type != IBV_MW_TYPE_2)
            return refuse_because(
                -EINVAL, "bind_mw.mw is of type IBV_MW_TYPE_1, but IBV_WR_BIND_MW needs IBV_MW_TYPE_2");
        post_write_bind(qp, wqe, mw_of(wr->bind_mw.mw), wr->bind_mw.rkey, 0, &wr->bind_mw.bind_info);
        return 0;
    }
    /* imm_data and invalidate_rkey are a union. */
    wqe->imm_or_rkey = wr->imm_data;
    if (!(operations[wr->opcode].properties & CARRIES_DATA)) {
        wqe->num_sge = 0;
        wqe->length = 0;
        return 0;
    }
    error = write_payload(qp, wqe, wr);
    if (error)
        return error;
    if (qp->record->type == IBV_QPT_UD)
        return write_ud(qp, wqe, wr);
    if (unlikely(qp->record->type == IBV_QPT_XRC_SEND))
        wqe_set_srqn(wqe, wr->qp_type.xrc.remote_srqn);
    if (operations[wr->opcode].properties & IS_ATOMIC) {
        if (wqe->length != sizeof(uint64_t))
            return refuse_range("length of an atomic", wqe->length, sizeof(uint64_t), sizeof(uint64_t));
        if (wr->wr.atomic.remote_addr % sizeof(uint64_t) != 0)
            return refuse_alignment("wr.atomic.remote_addr", wr->wr.atomic.remote_addr);
        wqe->remote_address = wr->wr.atomic.remote_addr;
        wqe->rkey = wr->wr.atomic.rkey;
        wqe->atomic.compare_add = wr->wr.atomic.compare_add;
        wqe->atomic.swap = wr->wr.atomic.swap;
        return 0;
    }
    wqe->remote_address = wr->wr.rdma.remote_addr;
    wqe->rkey = wr->wr.rdma.rkey;
    if (wr->opcode != IBV_WR_ATOMIC_WRITE)
        return 0;
    if (wqe->length != sizeof(uint64_t))
        return refuse_range("length of an atomic write", wqe->length, sizeof(uint64_t), sizeof(uint64_t));
    return wqe->remote_address % sizeof(uint64_t)
               ? refuse_alignment("wr.rdma.remote_addr", wqe->remote_address)
               : 0;
}

/* Posts the list and runs the sender; QP lock held. */
static int post_send_locked(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr,
                            bool *ret_more)
{
    struct sender *sender = &qp->record->sender;
    uint32_t posted = atomic_load_explicit(&sender->posted, memory_order_relaxed), first = posted;
    int error = transition_check_post_send((enum ibv_qp_type)qp->record->type, qp_state(qp));

    qp->stamp = provenance_stamp();
    for (; wr && !error; wr = wr->next) {
        struct send_wqe *wqe = send_wqe_at(&qp->transport, posted);

        if (unlikely(send_queue_room(qp, posted) == 0))
            error = post_refuse_full(qp, posted);
        else
            error = write_send_wqe(qp, wqe, wr);
        if (unlikely(error))
            break;
        if (posted++ != first)
            wqe->flags |= WQE_CHAINED;
    }
    if (unlikely(error))
        *bad_wr = wr;
    atomic_store_explicit(&sender->posted, posted, memory_order_release);
    qp_prefetch(qp);
    traffic_posted(qp, posted);
    *ret_more = qp_run_sender(qp, qp->stamp);
    return error;
}

int qp_post_send(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    int error = 0;
    bool more;

    if (context_is_inherited(qp->context)) {
        *bad_wr = wr;
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_post_send");
    }
    qp_prefetch_plain(qp);
    if (qp->is_extended)
        lock_acquire(&qp->post_lock);
    rundown_enter();
    lock_acquire(&qp->lock);
    if (likely(qp_may_be_plain(qp) && wr != NULL)) {
        wr = qp_ports->post_plain(qp, wr);
        if (likely(!wr))
            goto posted;
    }
    error = post_send_locked(qp, wr, bad_wr, &more);
    qp_ports->unlock(qp, more);
posted:
    rundown_exit();
    if (qp->is_extended)
        lock_release(&qp->post_lock);
    return refused_of(error, OBJECT_QP, qp->ibv.qp_num);
}

/* Takes the locks that post_end() releases, also if it fails. post_lock: a batch of extended posting uses the slots
 * behind `posted`. */
static int post_begin(struct qp *qp, uint32_t *ret_posted)
{
    int error;

    if (qp->is_extended)
        lock_acquire(&qp->post_lock);
    rundown_enter();
    lock_acquire(&qp->lock);
    *ret_posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    error = transition_check_post_send((enum ibv_qp_type)qp->record->type, qp_state(qp));
    if (!error && send_queue_room(qp, *ret_posted) == 0)
        error = post_refuse_full(qp, *ret_posted);
    return error;
}

static int post_end(struct qp *qp, int error, bool more)
{
    qp_ports->unlock(qp, more);
    rundown_exit();
    if (qp->is_extended)
        lock_release(&qp->post_lock);
    return refused_of(error, OBJECT_QP, qp->ibv.qp_num);
}

int qp_post_altered(struct qp *qp, struct ibv_send_wr *wr, qp_alter_send *alter)
{
    struct sender *sender = &qp->record->sender;
    uint32_t posted;
    bool more = false;
    int error;

    if (context_is_inherited(qp->context))
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_post_send");
    error = post_begin(qp, &posted);
    qp->stamp = provenance_stamp();
    if (!error)
        error = write_send_wqe(qp, send_wqe_at(&qp->transport, posted), wr);
    if (!error) {
        alter(qp, send_wqe_at(&qp->transport, posted));
        atomic_store_explicit(&sender->posted, posted + 1, memory_order_release);
        more = qp_run_sender(qp, qp->stamp);
    }
    return post_end(qp, error, more);
}

/* Programs built with verbs.h of rdma-core before 39 have the check of the type alone in their ibv_bind_mw(). */
static int check_bind(const struct mw *mw, const struct ibv_mw_bind_info *info)
{
    if (!info->mr && info->addr)
        return refuse_because(-EINVAL, "bind_info.mr is NULL, but bind_info.addr is not 0");
    if (!info->mr && info->length)
        return refuse_because(-EINVAL, "bind_info.mr is NULL, but bind_info.length is not 0");
    if (info->mr && info->mr->pd != mw->ibv.pd)
        return refuse_because(-EPERM, "bind_info.mr is of another PD than the MW");
    return 0;
}

int qp_bind_window(struct qp *qp, struct mw *mw, const struct ibv_mw_bind *bind)
{
    struct sender *sender = &qp->record->sender;
    struct send_wqe *wqe;
    uint32_t posted, new_rkey, random;
    bool more = false;
    int error;

    error = context_is_inherited(qp->context) ? destroyed_refuse(DESTROYED_QP, qp, "ibv_bind_mw")
                                              : post_check_opcode(qp, IBV_WR_BIND_MW);
    if (error)
        return error;
    error = check_bind(mw, &bind->bind_info);
    if (error)
        return refused_of(error, OBJECT_QP, qp->ibv.qp_num);
    error = post_begin(qp, &posted);
    if (!error) {
        wqe = send_wqe_at(&qp->transport, posted);
        random = qp->transport.ports->random(&qp->transport);
        new_rkey = keys_next_mw_rkey(mw->ibv.rkey, random);
        qp->stamp = provenance_stamp();
        *wqe = (struct send_wqe){.wr_id = bind->wr_id,
                                 .opcode = IBV_WR_BIND_MW,
                                 .flags = post_wqe_flags(qp, bind->send_flags),
                                 .stamp = qp->stamp};
        post_write_bind(qp, wqe, mw, new_rkey, random, &bind->bind_info);
        atomic_store_explicit(&sender->posted, posted + 1, memory_order_release);
        mw->ibv.rkey = new_rkey;
        more = qp_run_sender(qp, qp->stamp);
    }
    return post_end(qp, error, more);
}

/* Any list, in any state. The QP's lock is held, and released. */
static __attribute__((noinline)) int post_receives(struct qp *qp, struct ibv_recv_wr *wr,
                                                   struct ibv_recv_wr **bad_wr)
{
    static const struct receive_completion flushed = {.verdict = VERDICT_FLUSHED, .opcode = IBV_WC_RECV};
    struct receive_queue *queue = &qp->record->receive;
    uint32_t posted = atomic_load_explicit(&queue->posted, memory_order_relaxed), stamp = provenance_stamp();
    int error = qp->srq ? refuse(-EINVAL, REFUSAL_HAS_SRQ, "", 0, 0, 0)
                        : transition_check_post_recv((enum ibv_qp_type)qp->record->type, qp_state(qp));

    for (; wr && !error; wr = wr->next) {
        if (wr->num_sge < 0 || (uint32_t)wr->num_sge > queue->max_sge)
            error = refuse_range("num_sge", wr->num_sge, 0, queue->max_sge);
        else if (posted - atomic_load_explicit(&queue->taken, memory_order_relaxed) >= queue->depth)
            error = refuse(-ENOMEM, REFUSAL_FULL, "receive queue", queue->depth, queue->depth, 0);
        if (unlikely(error))
            break;
        /* After the check of the depth: a queue of depth 0 has no ring. */
        recv_wqe_fill(qp_receive_at(qp, posted++), wr, (uint32_t)wr->num_sge, stamp);
    }
    if (unlikely(error))
        *bad_wr = wr;
    atomic_store_explicit(&queue->posted, posted, memory_order_release);
    if (unlikely(qp_state(qp) == IBV_QPS_ERR)) {
        const struct recv_wqe *ignored;

        while (qp->transport.ports->take_receive(&qp->transport, &ignored) == 0)
            qp->transport.ports->complete_receive(&qp->transport, &flushed);
    }
    lock_release(&qp->lock);
    return refused_of(error, OBJECT_QP, qp->ibv.qp_num);
}

/* What most posts are: one receive with one SGE, for a queue that has room, of a QP in INIT to SQE, where nothing is
 * flushed. A QP that takes no receives, or that has an SRQ, has a queue of depth 0. */
static inline bool post_plain_receive(struct qp *qp, const struct ibv_recv_wr *wr)
{
    struct receive_queue *queue = &qp->record->receive;
    uint32_t posted = atomic_load_explicit(&queue->posted, memory_order_relaxed);

    _Static_assert(IBV_QPS_RESET == 0 && IBV_QPS_INIT == 1 && IBV_QPS_SQE == 5 && IBV_QPS_ERR == 6,
                   "one comparison");
    if (!wr || wr->next || wr->num_sge != 1 || !queue->max_sge ||
        posted - atomic_load_explicit(&queue->taken, memory_order_relaxed) >= queue->depth ||
        (uint32_t)qp_state(qp) - IBV_QPS_INIT > IBV_QPS_SQE - IBV_QPS_INIT || times_recorded())
        return false;
    recv_wqe_fill(qp_receive_at(qp, posted), wr, 1, STAMP_NONE);
    atomic_store_explicit(&queue->posted, posted + 1, memory_order_release);
    return true;
}

int qp_post_recv(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    if (context_is_inherited(qp->context)) {
        *bad_wr = wr;
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_post_recv");
    }
    lock_acquire(&qp->lock);
    if (unlikely(!post_plain_receive(qp, wr)))
        return post_receives(qp, wr, bad_wr);
    lock_release(&qp->lock);
    return 0;
}
