/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_modify_qp and ibv_query_qp: the attributes, and the actions of each transition (verbs.md §2.2-2.8). The
 * legal transitions and masks are in rules/transitions.c. */
#include <errno.h>
#include <linux/capability.h>
#include <string.h>

#include "base/refusal.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/qp/late.h"
#include "object/qp/qp_internal.h"
#include "object/qp/traffic.h"
#include "object/xrc/open_qp.h"
#include "rules/limits.h"
#include "rules/transitions.h"

int qp_allocate_resources(struct qp *qp, uint32_t count)
{
    struct qp_record *record = qp->record;

    if (count == 0 || record->resources_offset)
        return 0;
    record->resources_offset = segment_allocate(count * sizeof(struct responder_resource));
    if (!record->resources_offset)
        return -ENOMEM;
    record->responder.resources = count;
    qp->transport.resources = segment_at(record->resources_offset);
    return 0;
}

void qp_release_resources(struct qp *qp)
{
    struct qp_record *record = qp->record;

    if (record->resources_offset)
        segment_release(record->resources_offset,
                        record->responder.resources * sizeof(struct responder_resource));
    record->resources_offset = 0;
    record->responder.resources = 0;
    qp->transport.resources = NULL;
}

static void apply_attributes(struct qp *qp, const struct ibv_qp_attr *from, int mask)
{
    struct qp_attributes *to = &qp->record->attributes;

    if (mask & IBV_QP_ACCESS_FLAGS)
        to->access_flags = from->qp_access_flags;
    if (mask & IBV_QP_PKEY_INDEX)
        to->pkey_index = from->pkey_index;
    if (mask & IBV_QP_PORT)
        to->port = from->port_num;
    if (mask & IBV_QP_QKEY)
        to->qkey = from->qkey;
    if (mask & IBV_QP_PATH_MTU)
        to->path_mtu = (uint8_t)from->path_mtu;
    if (mask & IBV_QP_TIMEOUT)
        to->timeout = from->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        to->retry_count = from->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        to->rnr_retry = from->rnr_retry;
    if (mask & IBV_QP_RQ_PSN)
        to->rq_psn = from->rq_psn & PSN_MASK;
    if (mask & IBV_QP_SQ_PSN)
        to->sq_psn = from->sq_psn & PSN_MASK;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        to->max_rd_atomic = from->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        to->max_dest_rd_atomic = from->max_dest_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        to->min_rnr_timer = from->min_rnr_timer;
    if (mask & IBV_QP_DEST_QPN)
        to->dest_qpn = from->dest_qp_num & PSN_MASK;
    if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY)
        to->sq_drained_event = from->en_sqd_async_notify != 0;
}

void qp_copy_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
#define MEMBER(bit, name)                                                                                    \
    {                                                                                                        \
        bit, offsetof(struct ibv_qp_attr, name), sizeof(((struct ibv_qp_attr *)0)->name)                     \
    }
    static const struct {
        int bit;
        size_t offset, size;
    } members[] = {
        MEMBER(IBV_QP_STATE, qp_state),
        MEMBER(IBV_QP_CUR_STATE, cur_qp_state),
        MEMBER(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify),
        MEMBER(IBV_QP_ACCESS_FLAGS, qp_access_flags),
        MEMBER(IBV_QP_PKEY_INDEX, pkey_index),
        MEMBER(IBV_QP_PORT, port_num),
        MEMBER(IBV_QP_QKEY, qkey),
        MEMBER(IBV_QP_AV, ah_attr),
        MEMBER(IBV_QP_PATH_MTU, path_mtu),
        MEMBER(IBV_QP_TIMEOUT, timeout),
        MEMBER(IBV_QP_RETRY_CNT, retry_cnt),
        MEMBER(IBV_QP_RNR_RETRY, rnr_retry),
        MEMBER(IBV_QP_RQ_PSN, rq_psn),
        MEMBER(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic),
        MEMBER(IBV_QP_ALT_PATH, alt_ah_attr),
        MEMBER(IBV_QP_ALT_PATH, alt_pkey_index),
        MEMBER(IBV_QP_ALT_PATH, alt_port_num),
        MEMBER(IBV_QP_ALT_PATH, alt_timeout),
        MEMBER(IBV_QP_MIN_RNR_TIMER, min_rnr_timer),
        MEMBER(IBV_QP_SQ_PSN, sq_psn),
        MEMBER(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic),
        MEMBER(IBV_QP_PATH_MIG_STATE, path_mig_state),
        MEMBER(IBV_QP_CAP, cap),
        MEMBER(IBV_QP_DEST_QPN, dest_qp_num),
        MEMBER(IBV_QP_RATE_LIMIT, rate_limit),
    };
#undef MEMBER

    for (size_t i = 0; i < array_size(members); i++) {
        if (mask & members[i].bit)
            memcpy((char *)to + members[i].offset, (const char *)from + members[i].offset, members[i].size);
    }
}

static void enter_reset(struct qp *qp)
{
    struct qp_record *record = qp->record;
    uint32_t qpn = atomic_load_explicit(&record->qpn, memory_order_relaxed);
    uint8_t signal_all = record->attributes.signal_all;

    qp_set_state(qp, IBV_QPS_RESET);
    qp_ports->transport.set_timer(&qp->transport, NS_NEVER);
    qp_ports->disconnect(qp);
    if (qp->send_cq)
        cq_purge_qp(qp->send_cq, qpn);
    if (qp->recv_cq != qp->send_cq)
        cq_purge_qp(qp->recv_cq, qpn);
    sender_reset(&qp->transport);
    /* Counters never go back. A completion that is being polled now may still set `retired` to a lower value
     * than reset_at; send_queue_room() takes the higher one. */
    atomic_store_explicit(&qp->reset_at,
                          atomic_load_explicit(&record->sender.posted, memory_order_relaxed) -
                              record->sender.own_posted,
                          memory_order_relaxed);
    traffic_reset(qp);
    tagged_forget(&qp->transport);
    responder_reset(&qp->transport);
    qp_release_resources(qp);
    atomic_store_explicit(&record->receive.posted, 0, memory_order_relaxed);
    atomic_store_explicit(&record->receive.taken, 0, memory_order_relaxed);
    qp->receive_taken = false;
    late_forget(qp);
    record->withheld_completions = 0;
    record->receive.from_srq = false;
    qp->transport.current_receive = NULL;
    memset(&record->attributes, 0, sizeof(record->attributes));
    if (record->has_rare)
        qp->transport.rare->fault = (struct fault_record){.cause = FAULT_NONE};
    record->attributes.signal_all = signal_all;
    record->attributes.path_mig_state = IBV_MIG_MIGRATED;
}

/* The transition, after everything that can fail. */
static void enter_state(struct qp *qp, enum ibv_qp_state from, enum ibv_qp_state to)
{
    switch (to) {
    case IBV_QPS_RESET:
        qp_answer(qp);
        enter_reset(qp);
        break;
    case IBV_QPS_INIT:
        qp_set_state(qp, IBV_QPS_INIT);
        break;
    case IBV_QPS_RTR:
        responder_start(&qp->transport);
        qp_set_state(qp, IBV_QPS_RTR);
        qp_ports->connect(qp);
        break;
    case IBV_QPS_RTS:
        if (from == IBV_QPS_RTR)
            sender_start(&qp->transport);
        qp_set_state(qp, IBV_QPS_RTS);
        break;
    case IBV_QPS_SQD:
        qp_set_state(qp, IBV_QPS_SQD);
        if (from != IBV_QPS_SQD && sender_is_drained(&qp->transport))
            qp->transport.ports->drained(&qp->transport);
        break;
    case IBV_QPS_ERR:
        qp_answer(qp);
        qp_note_owner_fault(qp, FAULT_MODIFIED);
        qp_enter_error(qp);
        break;
    case IBV_QPS_SQE:
    case IBV_QPS_UNKNOWN:
        break;
    }
}

static int modify_locked(struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    enum ibv_qp_state from = qp_state(qp);
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attributes->qp_state : from;
    struct path_address path = {0};
    const struct transition_limits limits = {
        .gid_entries_valid = device_valid_gids(&host_devices, qp->context->device),
        .active_mtu = device_active_mtu(&host_devices, qp->context->device),
        .draining = from == IBV_QPS_SQD && !sender_is_drained(&qp->transport),
        .controlled_qkeys =
            (mask & IBV_QP_QKEY) && (attributes->qkey >> 31) && sys_has_capability(CAP_NET_RAW),
    };
    int error;

    error = transition_check((enum ibv_qp_type)qp->record->type, from, attributes, mask, &limits);
    if (error)
        return error;
    if (mask & IBV_QP_AV) {
        error = path_resolve(qp->context, &attributes->ah_attr, &path);
        if (error)
            return error;
        if (path.is_multicast)
            return refuse(-EINVAL, REFUSAL_MULTICAST, "ah_attr.grh.dgid", 0, 0, 0);
    }
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR &&
        (qp->record->type == IBV_QPT_RC || qp->record->type == IBV_QPT_XRC_RECV)) {
        error = qp_allocate_resources(qp, attributes->max_dest_rd_atomic);
        if (error)
            return error;
    }
    apply_attributes(qp, attributes, mask);
    if (mask & IBV_QP_AV) {
        qp->record->attributes.path = path;
        qp->record->attributes.sgid_index = attributes->ah_attr.grh.sgid_index;
        qp->record->attributes.static_rate = attributes->ah_attr.static_rate;
        if (from == IBV_QPS_SQD)
            qp_ports->connect(qp);
    }
    if (mask & IBV_QP_STATE) {
        qp_note_change(qp);
        if (qp->record->has_rare && is_connected(qp->record))
            qp->transport.rare->drops[DROP_STATE] = (struct drop_record){.count = 0};
        enter_state(qp, from, to);
    }
    if (unlikely(peers_execute)) {
        mapping_update_qp(qp);
        mapping_settle_qp(qp);
    }
    return 0;
}

/* May peers on this host access memory by the QP? */
static bool is_served_here(const struct qp *qp)
{
    return qp->record->type == IBV_QPT_RC && qp->record->attributes.path.destination_ifindex;
}

int qp_modify_shared(struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    bool ends = (mask & IBV_QP_STATE) &&
                (attributes->qp_state == IBV_QPS_ERR || attributes->qp_state == IBV_QPS_RESET);
    bool more = false;
    int error;

    qp_ports->prepare(qp, attributes, mask);
    if (ends)
        qp_ports->flush_before_end(qp);
    rundown_enter();
    if ((mask & IBV_QP_STATE) && attributes->qp_state == IBV_QPS_RTR && (mask & IBV_QP_DEST_QPN))
        qp_ports->take_arrived(qp->ibv.qp_num, attributes->dest_qp_num & PSN_MASK, true, true);
    if (ends)
        qp_take_arrived(qp);
    lock_acquire(&qp->lock);
    error = modify_locked(qp, attributes, mask);
    if (!error)
        more = qp_run_sender(qp, STAMP_NONE);
    qp_ports->unlock(qp, more);
    rundown_exit();
    if (mapping_must_evict())
        mapping_evict();
    if (!error && (mask & IBV_QP_STATE) && attributes->qp_state == IBV_QPS_RTR && is_served_here(qp))
        mapping_connected();
    return error;
}

int qp_modify(struct qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    int error;

    if (context_is_inherited(qp->context))
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_modify_qp");
    if (qp->spreads_over) /* an RSS QP has no states (verbs.md §7.4) */
        return refused_of(refuse_unsupported("modifying a QP with an indirection table", mask), OBJECT_QP,
                          qp->ibv.qp_num);
    if (unlikely(qp->handle))
        return qp_handle_modify(qp, attributes, mask);
    error = qp_modify_shared(qp, attributes, mask);
    if (!error && (mask & IBV_QP_STATE))
        qp->ibv.state = attributes->qp_state;
    return refused_of(error, OBJECT_QP, qp->ibv.qp_num);
}

static void query_address(const struct qp_attributes *from, struct ibv_ah_attr *to)
{
    memcpy(to->grh.dgid.raw, from->path.destination_gid, sizeof(to->grh.dgid.raw));
    to->grh.flow_label = from->path.flow_label;
    to->grh.sgid_index = from->sgid_index;
    to->grh.hop_limit = from->path.hop_limit;
    to->grh.traffic_class = from->path.traffic_class;
    to->sl = from->path.service_level;
    to->static_rate = from->static_rate;
    to->is_global = 1;
    to->port_num = from->port;
}

int qp_query_shared(struct qp *qp, struct ibv_qp_attr *to, int mask)
{
    const struct qp_attributes *from = &qp->record->attributes;
    const struct qp_record *record = qp->record;

    if (mask & ~((IBV_QP_RATE_LIMIT << 1) - 1))
        return -EOPNOTSUPP;
    memset(to, 0, sizeof(*to));
    lock_acquire(&qp->lock);
    to->qp_state = to->cur_qp_state = qp_state(qp);
    to->path_mtu = (enum ibv_mtu)from->path_mtu;
    to->path_mig_state = (enum ibv_mig_state)from->path_mig_state;
    to->qkey = from->qkey;
    to->rq_psn = !is_connected(record) ? from->rq_psn : record->responder.expected_psn.value;
    to->sq_psn = record->sender.next_psn.value;
    to->dest_qp_num = from->dest_qpn;
    to->qp_access_flags = from->access_flags;
    to->cap.max_send_wr = record->send_depth;
    to->cap.max_send_sge = record->max_send_sge;
    to->cap.max_inline_data = record->max_inline;
    to->cap.max_recv_wr = record->receive.depth;
    to->cap.max_recv_sge = record->receive.max_sge;
    if (is_connected(record) && qp_state(qp) >= IBV_QPS_RTR)
        query_address(from, &to->ah_attr);
    to->pkey_index = from->pkey_index;
    to->sq_draining = qp_state(qp) == IBV_QPS_SQD && !sender_is_drained(&qp->transport);
    to->max_rd_atomic = from->max_rd_atomic;
    to->max_dest_rd_atomic = from->max_dest_rd_atomic;
    to->min_rnr_timer = from->min_rnr_timer;
    to->port_num = from->port;
    to->timeout = from->timeout;
    to->retry_cnt = from->retry_count;
    to->rnr_retry = from->rnr_retry;
    lock_release(&qp->lock);
    return 0;
}

int qp_query(struct qp *qp, struct ibv_qp_attr *to, int mask, struct ibv_qp_init_attr *init)
{
    int error;

    if (qp->context == &destroyed_context)
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_query_qp");
    if (unlikely(qp->handle))
        return context_is_inherited(qp->context) ? -EIO : qp_handle_query(qp, to, mask, init);
    error = qp_query_shared(qp, to, mask);
    if (error)
        return error;
    qp->ibv.state = to->qp_state;
    if (init) {
        *init = (struct ibv_qp_init_attr){
            .qp_context = qp->ibv.qp_context,
            .send_cq = qp->ibv.send_cq,
            .recv_cq = qp->ibv.recv_cq,
            .srq = qp->ibv.srq,
            .cap = to->cap,
            .qp_type = (enum ibv_qp_type)qp->record->type,
            .sq_sig_all = qp->record->attributes.signal_all,
        };
    }
    return 0;
}

int qp_set_ece(struct qp *qp, const struct ibv_ece *ece)
{
    enum ibv_qp_state state = qp_state(qp);

    if (context_is_inherited(qp->context))
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_set_ece");
    if (ece->comp_mask)
        return -EINVAL;
    if (ece->vendor_id != DEVICE_VENDOR)
        return -EOPNOTSUPP;
    return state == IBV_QPS_RESET || state == IBV_QPS_INIT ? 0 : -EINVAL;
}

int qp_query_ece(const struct qp *qp, struct ibv_ece *ret_ece)
{
    *ret_ece = (struct ibv_ece){.vendor_id = DEVICE_VENDOR};
    return 0;
}
