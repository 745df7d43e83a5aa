/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of queues: CQs, SRQs, QPs, WQs and their tables. What is posted to them: post.c, build.c, complete.c. */
#include <stdlib.h>
#include <string.h>

#include "watch/ring.h"
#include "watch/state.h"

/* --- CQ, SRQ -------------------------------------------------------------------------------------------- */

struct watched_cq *watched_new_cq(struct ibv_cq *ibv, struct ibv_pd *domain)
{
    struct watched_cq *cq = object_make(OBJECT_CQ, sizeof(*cq), ibv, ibv->context);
    uint32_t number = cq ? number_take(&pool_cqs) : NO_OBJECT;
    struct cq_record *record;

    if (number == NO_OBJECT) {
        if (cq)
            object_discard(&cq->base);
        return NULL;
    }
    cq->base.number = number;
    cq->channel = ibv->channel ? watched_find(ibv->channel, OBJECT_CHANNEL) : NULL;
    cq->domain = domain ? (struct watched_pd *)watched_find(domain, OBJECT_PD) : NULL;
    for (unsigned i = 0; i < RECENT_QPS; i++)
        cq->recent[i] = &no_qp;
    cq->poll = cq->base.context->original.ops.poll_cq;
    cq->req_notify = cq->base.context->original.ops.req_notify_cq;
    record = cq->record = segment_cq(number);
    memset(record, 0, sizeof(*record));
    record->context = context_number(&cq->base);
    record->channel = number_of(cq->channel);
    record->capacity = (uint32_t)ibv->cqe;
    record->entry_size = sizeof(struct cqe);
    provenance_created(&record->provenance);
    created_in(&record->provenance, cq->domain);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    pd_use(cq->domain, 1);
    if (cq->channel)
        item_use(cq->channel->item, 1);
    return object_publish(cq);
}

static uint32_t slots_of(uint32_t depth)
{
    return depth <= 1 ? 1 : 1u << (32 - __builtin_clz(depth - 1));
}

/* more: bytes of a slot besides its stride. False: no memory; nothing that is posted there is recorded. */
static bool ring_open(struct watched_ring *ring, uint32_t slots, uint32_t more, uint32_t stride,
                      uint32_t max_sge)
{
    ring->size = (size_t)slots * (more + stride);
    ring->mask = slots - 1;
    ring->stride = stride;
    ring->max_sge = max_sge;
    ring->offset = segment_allocate(ring->size);
    ring->slots = ring->offset ? segment_at(ring->offset) : NULL;
    ring->depth = ring->slots ? slots : 0;
    ring->plain = watch_times ? 0 : ring->depth;
    ring->room = ring->plain ? ring->plain - 1 : 0;
    ring->counted = ring->slots;
    return ring->slots;
}

static void ring_close(struct watched_ring *ring)
{
    if (ring->slots)
        segment_release(ring->offset, ring->size);
    ring->slots = NULL;
}

static void in_xrcd(struct provenance_record *provenance, const struct watched *xrcd)
{
    if (xrcd)
        provenance->xrcd = xrcd->item + 1;
}

struct watched_srq *watched_new_srq(struct ibv_srq *ibv, struct ibv_pd *pd, struct ibv_cq *cq,
                                    struct ibv_xrcd *xrcd, uint32_t max_wr, uint32_t max_sge)
{
    struct watched_srq *srq = object_make(OBJECT_SRQ, sizeof(*srq), ibv, ibv->context);
    uint32_t number = srq ? number_take(&pool_srqs) : NO_OBJECT;
    uint32_t depth = min_of(max_wr, LIMIT_SRQ_WR), sges = max_of(min_of(max_sge, LIMIT_SRQ_SGE), 1u);
    struct srq_record *record;

    if (number == NO_OBJECT) {
        if (srq)
            object_discard(&srq->base);
        return NULL;
    }
    srq->base.number = number;
    srq->pd = (struct watched_pd *)watched_find(pd, OBJECT_PD);
    srq->cq = cq ? (struct watched_cq *)watched_find(cq, OBJECT_CQ) : NULL;
    srq->xrcd = xrcd ? watched_find(xrcd, OBJECT_XRCD) : NULL;
    srq->post = srq->base.context->original.ops.post_srq_recv;
    srq->unseen = !ring_open(&srq->ring, slots_of(depth + 1), 0, (uint32_t)RECV_WQE_SIZE(sges), sges);
    record = segment_srq(number);
    memset(record, 0, sizeof(*record));
    record->context = context_number(&srq->base);
    record->pd = pd_number(srq->pd);
    record->max_wr = depth;
    record->max_sge = sges;
    record->stride = srq->ring.stride;
    record->ring_offset = srq->ring.offset;
    record->cq = number_of(srq->cq);
    provenance_created(&record->provenance);
    created_in(&record->provenance, srq->pd);
    in_xrcd(&record->provenance, srq->xrcd);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    pd_use(srq->pd, 1);
    return object_publish(srq);
}

/* --- QP ------------------------------------------------------------------------------------------------- */

static void cq_use(struct watched_cq *cq, int users)
{
    if (cq)
        atomic_fetch_add_explicit(&segment_cq(cq->base.number)->users, (uint32_t)users, memory_order_relaxed);
}

static void srq_use(struct watched_srq *srq, int users)
{
    if (srq)
        atomic_fetch_add_explicit(&segment_srq(srq->base.number)->users, (uint32_t)users,
                                  memory_order_relaxed);
}

static void open_rings(struct watched_qp *qp, struct qp_record *record, const struct ibv_qp_cap *cap)
{
    uint32_t sends = min_of(cap->max_send_wr, LIMIT_QP_WR), receives = min_of(cap->max_recv_wr, LIMIT_QP_WR);
    /* post.c counts on room for one. */
    uint32_t send_sge = max_of(min_of(cap->max_send_sge, LIMIT_SGE), 1u);
    uint32_t recv_sge = max_of(min_of(cap->max_recv_sge, LIMIT_SGE), 1u);

    if (sends && !ring_open(&qp->send, slots_of(sends), (uint32_t)sizeof(struct watched_send),
                            watched_rest_stride(send_sge), send_sge))
        record->unseen |= UNSEEN_SENDS;
    else
        qp->rests = qp->send.slots + (qp->send.mask + 1) * sizeof(struct watched_send);
    if (receives && !qp->srq &&
        !ring_open(&qp->receive, slots_of(receives), 0, (uint32_t)RECV_WQE_SIZE(recv_sge), recv_sge))
        record->unseen |= UNSEEN_RECEIVES;
    record->send_depth = sends;
    record->send_stride = (uint32_t)sizeof(struct watched_send);
    record->send_offset = qp->send.offset;
    record->max_send_sge = send_sge;
    record->max_inline = cap->max_inline_data;
    record->receive.depth = qp->srq ? 0 : receives;
    record->receive.max_sge = recv_sge;
    record->receive.stride = qp->receive.stride;
    record->receive.offset = qp->receive.offset;
}

struct watched_qp *watched_new_qp(struct ibv_qp *ibv, const struct watched_qp_attr *attr)
{
    struct watched_qp *qp = object_make(OBJECT_QP, sizeof(*qp), ibv, ibv->context);
    uint32_t slot = qp ? number_take(&pool_qps) : NO_OBJECT;
    struct qp_record *record;

    if (slot == NO_OBJECT || segment_open_qp(slot)) {
        if (slot != NO_OBJECT)
            number_return(&pool_qps, slot);
        if (qp)
            object_discard(&qp->base);
        return NULL;
    }
    qp->base.number = slot;
    qp->pd = (struct watched_pd *)watched_find(attr->pd, OBJECT_PD);
    qp->send_cq = (struct watched_cq *)watched_find(attr->send_cq, OBJECT_CQ);
    qp->recv_cq = (struct watched_cq *)watched_find(attr->recv_cq, OBJECT_CQ);
    qp->srq = (struct watched_srq *)watched_find(attr->srq, OBJECT_SRQ);
    qp->xrcd = watched_find(attr->xrcd, OBJECT_XRCD);
    qp->ind_table = watched_find(attr->ind_table, OBJECT_IND_TABLE);
    qp->qpn = ibv->qp_num;
    qp->always = attr->signal_all ? IBV_SEND_SIGNALED : 0;
    qp->post_send = qp->base.context->original.ops.post_send;
    qp->post_recv = qp->base.context->original.ops.post_recv;
    record = qp->record = segment_qp(slot);
    qp->rare = segment_qp_rare(slot);
    if (record->has_rare)
        memset(qp->rare, 0, sizeof(*qp->rare));
    memset(record, 0, sizeof(*record));
    record->state = ibv->state;
    record->type = ibv->qp_type;
    record->pd = pd_number(qp->pd);
    record->send_cq = number_of(qp->send_cq);
    record->recv_cq = number_of(qp->recv_cq);
    record->srq = number_of(qp->srq);
    record->context = context_number(&qp->base);
    record->ind_table = number_of(qp->ind_table);
    record->opened = attr->opened;
    record->attributes.signal_all = attr->signal_all;
    open_rings(qp, record, &attr->cap);
    qp->unsignaled_is_first = qp->send.counted && !attr->signal_all;
    provenance_created(&record->provenance);
    created_in(&record->provenance, qp->pd);
    in_xrcd(&record->provenance, qp->xrcd);
    pd_use(qp->pd, 1);
    cq_use(qp->send_cq, 1);
    cq_use(qp->recv_cq, 1);
    srq_use(qp->srq, 1);
    /* Release: who sees the number sees the rest. */
    atomic_store_explicit(&record->qpn, ibv->qp_num, memory_order_release);
    qp = object_publish(qp);
    if (qp)
        work_know_qp(qp, ibv->qp_num);
    return qp;
}

static void set_path(struct qp_attributes *attributes, const struct ibv_ah_attr *ah)
{
    if (ah->is_global)
        memcpy(attributes->path.destination_gid, &ah->grh.dgid, sizeof(attributes->path.destination_gid));
    attributes->sgid_index = ah->grh.sgid_index;
}

void watched_qp_modified(struct watched_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    struct qp_record *record = segment_qp(qp->base.number);
    struct qp_attributes *attributes = &record->attributes;

    if (mask & IBV_QP_ACCESS_FLAGS)
        attributes->access_flags = attr->qp_access_flags;
    if (mask & IBV_QP_QKEY)
        attributes->qkey = attr->qkey;
    if (mask & IBV_QP_PORT)
        attributes->port = attr->port_num;
    if (mask & IBV_QP_PKEY_INDEX)
        attributes->pkey_index = attr->pkey_index;
    if (mask & IBV_QP_PATH_MTU)
        attributes->path_mtu = (uint8_t)attr->path_mtu;
    if (mask & IBV_QP_TIMEOUT)
        attributes->timeout = attr->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        attributes->retry_count = attr->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        attributes->rnr_retry = attr->rnr_retry;
    if (mask & IBV_QP_RQ_PSN)
        attributes->rq_psn = attr->rq_psn;
    if (mask & IBV_QP_SQ_PSN)
        attributes->sq_psn = attr->sq_psn;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        attributes->max_rd_atomic = attr->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        attributes->max_dest_rd_atomic = attr->max_dest_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        attributes->min_rnr_timer = attr->min_rnr_timer;
    if (mask & IBV_QP_DEST_QPN)
        attributes->dest_qpn = attr->dest_qp_num;
    if (mask & IBV_QP_AV)
        set_path(attributes, &attr->ah_attr);
    if (!(mask & IBV_QP_STATE))
        return;
    if (attr->qp_state == IBV_QPS_RESET)
        work_forget(qp);
    atomic_store_explicit(&record->state, attr->qp_state, memory_order_relaxed);
}

/* --- WQ, indirection table, id -------------------------------------------------------------------------- */

struct watched_wq *watched_new_wq(struct ibv_wq *ibv, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t state)
{
    struct watched_wq *wq = object_make(OBJECT_WQ, sizeof(*wq), ibv, ibv->context);
    uint32_t number = wq ? number_take(&pool_wqs) : NO_OBJECT;
    struct wq_record *record;

    if (number == NO_OBJECT) {
        if (wq)
            object_discard(&wq->base);
        return NULL;
    }
    wq->base.number = number;
    wq->pd = (struct watched_pd *)watched_find(pd, OBJECT_PD);
    wq->cq = (struct watched_cq *)watched_find(cq, OBJECT_CQ);
    record = segment_wq(number);
    memset(record, 0, sizeof(*record));
    record->context = context_number(&wq->base);
    record->pd = pd_number(wq->pd);
    record->cq = number_of(wq->cq);
    record->wq_state = state;
    record->wqn = ibv->wq_num;
    provenance_created(&record->provenance);
    created_in(&record->provenance, wq->pd);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    pd_use(wq->pd, 1);
    cq_use(wq->cq, 1);
    return object_publish(wq);
}

void watched_new_ind_table(struct ibv_rwq_ind_table *ibv, struct ibv_wq *const *wqs, uint32_t count)
{
    struct watched *table = object_make(OBJECT_IND_TABLE, sizeof(*table), ibv, ibv->context);
    uint32_t number = table ? number_take(&pool_ind_tables) : NO_OBJECT;
    uint32_t entries = min_of(count, LIMIT_IND_TABLE_SIZE);
    struct ind_table_record *record;
    uint32_t *list;

    if (number == NO_OBJECT) {
        if (table)
            object_discard(table);
        return;
    }
    table->number = number;
    record = segment_ind_table(number);
    memset(record, 0, sizeof(*record));
    record->context = context_number(table);
    record->offset = segment_allocate(entries * sizeof(*list));
    list = record->offset ? segment_at(record->offset) : NULL;
    record->entries = list ? entries : 0;
    for (uint32_t i = 0; i < record->entries; i++)
        list[i] = number_of(watched_find(wqs[i], OBJECT_WQ));
    provenance_created(&record->provenance);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    object_publish(table);
}

/* --- destroyed ------------------------------------------------------------------------------------------ */

static void free_cq(struct watched_cq *cq)
{
    pd_use(cq->domain, -1);
    if (cq->channel)
        item_use(cq->channel->item, -1);
    atomic_store_explicit(&cq->record->state, OBJECT_FREE, memory_order_release);
    number_return(&pool_cqs, cq->base.number);
}

static void free_srq(struct watched_srq *srq)
{
    pd_use(srq->pd, -1);
    atomic_store_explicit(&segment_srq(srq->base.number)->state, OBJECT_FREE, memory_order_release);
    ring_close(&srq->ring);
    number_return(&pool_srqs, srq->base.number);
}

static void free_qp(struct watched_qp *qp)
{
    work_forget_qp(qp);
    pd_use(qp->pd, -1);
    cq_use(qp->send_cq, -1);
    cq_use(qp->recv_cq, -1);
    srq_use(qp->srq, -1);
    atomic_store_explicit(&qp->record->qpn, 0, memory_order_release);
    ring_close(&qp->send);
    ring_close(&qp->receive);
    free(qp->original);
    number_return(&pool_qps, qp->base.number);
}

static void free_wq(struct watched_wq *wq)
{
    pd_use(wq->pd, -1);
    cq_use(wq->cq, -1);
    atomic_store_explicit(&segment_wq(wq->base.number)->state, OBJECT_FREE, memory_order_release);
    number_return(&pool_wqs, wq->base.number);
}

static void free_ind_table(struct watched *object)
{
    struct ind_table_record *table = segment_ind_table(object->number);

    atomic_store_explicit(&table->state, OBJECT_FREE, memory_order_release);
    if (table->offset)
        segment_release(table->offset, table->entries * sizeof(uint32_t));
    number_return(&pool_ind_tables, object->number);
}

void free_queue_record(struct watched *object)
{
    if (object->kind == OBJECT_CQ)
        free_cq((struct watched_cq *)object);
    else if (object->kind == OBJECT_SRQ)
        free_srq((struct watched_srq *)object);
    else if (object->kind == OBJECT_QP)
        free_qp((struct watched_qp *)object);
    else if (object->kind == OBJECT_WQ)
        free_wq((struct watched_wq *)object);
    else
        free_ind_table(object);
}
