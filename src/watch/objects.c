/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of objects: made when a verb has created one, free when it is destroyed. */
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "watch/state.h"

struct table watched_objects;
/* Readers may hold the address of an object that is being destroyed: such memory stays of its kind. */
static struct lock free_lock = LOCK_INIT; /* guards the lists; a leaf */
static struct watched *free_list[OBJECT_KINDS];

static uint64_t key_of(const void *key)
{
    return (uintptr_t)key;
}

struct watched_context *watched_context_of(const struct ibv_context *context)
{
    struct watched *object = context ? table_find(&watched_objects, key_of(context)) : NULL;

    return object && object->kind == OBJECT_CONTEXT ? (struct watched_context *)object : NULL;
}

struct watched_cq *table_find_cq(const struct ibv_cq_ex *cq)
{
    return table_find(&watched_objects, key_of(cq));
}

struct watched_qp *table_find_qp(const struct ibv_qp *qp)
{
    return table_find(&watched_objects, key_of(qp));
}

/* --- making and dropping -------------------------------------------------------------------------------------- */

static void *make(enum object_kind kind, size_t size, const void *key, const struct ibv_context *ibv)
{
    struct watched_context *context = watched_context_of(ibv);
    struct watched *object = NULL;

    if (!watch_start() || !key || (ibv && (!context || context->base.stale)))
        return NULL;
    lock_acquire(&free_lock);
    if (free_list[kind]) {
        object = free_list[kind];
        free_list[kind] = object->next_free;
    }
    lock_release(&free_lock);
    if (object)
        memset(object, 0, size);
    else
        object = calloc(1, size);
    if (!object)
        return NULL;
    object->key = key;
    object->context = context;
    object->kind = kind;
    object->number = object->item = NO_OBJECT;
    return object;
}

static void discard(struct watched *object)
{
    lock_acquire(&free_lock);
    object->next_free = free_list[object->kind];
    free_list[object->kind] = object;
    lock_release(&free_lock);
}

/* The record is filled in. An object that was destroyed unseen may have had the same address. */
static void *publish(void *made)
{
    struct watched *object = made, *old = table_find(&watched_objects, key_of(object->key));

    if (old && !old->stale)
        watched_forget(old);
    if (!table_put(&watched_objects, key_of(object->key), object)) {
        watched_forget(object);
        return NULL;
    }
    return object;
}

static uint32_t context_number(const struct watched *object)
{
    return object->context ? object->context->base.number : NO_OBJECT;
}

static uint32_t number_of(const void *object)
{
    return object ? ((const struct watched *)object)->number : NO_OBJECT;
}

static void pd_use(struct watched_pd *pd, int users)
{
    if (pd)
        atomic_fetch_add_explicit(&segment_pd(pd->base.number)->users, (uint32_t)users, memory_order_relaxed);
}

/* The PD that keys and QPs name: that of a parent domain. */
static uint32_t pd_number(const struct watched_pd *pd)
{
    const struct pd_record *record;

    if (!pd)
        return NO_OBJECT;
    record = segment_pd(pd->base.number);
    return record->protects != NO_OBJECT ? record->protects : pd->base.number;
}

static void created_in(struct provenance_record *provenance, const struct watched_pd *pd)
{
    if (pd)
        provenance_in_domain(provenance, pd->base.number);
}

/* --- items ---------------------------------------------------------------------------------------------------- */

struct watched_context *watched_new_context(struct ibv_context *ibv, const char *device)
{
    struct watched_context *context = make(OBJECT_CONTEXT, sizeof(*context), ibv, NULL);
    char name[16] = "";

    if (!context)
        return NULL;
    memcpy(name, device, strnlen(device, sizeof(name)));
    context->base.number = number_take(&pool_contexts);
    context->base.item =
        item_take(OBJECT_CONTEXT, context->base.number, context->base.number, NO_OBJECT, name);
    return publish(context);
}

struct watched *watched_new_item(const void *key, enum object_kind kind, struct ibv_context *ibv,
                                 uint32_t parent, const void *detail)
{
    struct watched_item *item = make(kind, sizeof(*item), key, ibv);

    if (!item)
        return NULL;
    if (kind == OBJECT_CHANNEL)
        item->base.number = number_take(&pool_channels);
    item->base.item = item_take(kind, item->base.number, context_number(&item->base), parent, detail);
    if (kind != OBJECT_CHANNEL)
        item->base.number = item->base.item;
    return publish(item);
}

struct watched *watched_new_ah(struct ibv_ah *ah, struct ibv_pd *ibv, const union ibv_gid *gid)
{
    struct watched_pd *pd = (struct watched_pd *)watched_find(ibv, OBJECT_PD);
    struct watched_item *item =
        (struct watched_item *)watched_new_item(ah, OBJECT_AH, ibv->context, pd_number(pd), gid);

    if (!item)
        return NULL;
    item->pd = pd;
    pd_use(pd, 1);
    if (item->base.item != NO_OBJECT)
        created_in(&segment_item(item->base.item)->provenance, pd);
    return &item->base;
}

/* --- multicast ------------------------------------------------------------------------------------------------ */

/* An attachment has no structure of the program's: it is found by its QP and group. */
static uint32_t find_attachment(uint32_t qpn, const union ibv_gid *gid)
{
    const struct segment_table *items = &segment_header()->items;

    for (uint32_t i = 0; i < min_of(items->count, 4096u); i++) {
        const struct item_record *record = segment_item(i);

        if (record->state == OBJECT_ALIVE && record->kind == OBJECT_ATTACHMENT && record->parent == qpn &&
            memcmp(record->gid, gid, sizeof(record->gid)) == 0)
            return i;
    }
    return NO_OBJECT;
}

void watched_attached(struct ibv_qp *ibv, const union ibv_gid *gid, bool attached)
{
    struct watched_qp *qp = (struct watched_qp *)watched_find(ibv, OBJECT_QP);
    struct qp_record *record;

    if (!qp)
        return;
    record = segment_qp(qp->base.number);
    if (attached) {
        item_take(OBJECT_ATTACHMENT, NO_OBJECT, context_number(&qp->base), ibv->qp_num, gid);
        record->multicast_groups++;
    } else {
        item_return(find_attachment(ibv->qp_num, gid));
        record->multicast_groups -= record->multicast_groups != 0;
    }
}

/* --- PD, MR, MW ------------------------------------------------------------------------------------------------- */

struct watched_pd *watched_new_pd(struct ibv_pd *ibv, struct ibv_context *context, struct ibv_pd *protects,
                                  struct ibv_td *td)
{
    struct watched_pd *base = protects ? (struct watched_pd *)watched_find(protects, OBJECT_PD) : NULL;
    struct watched_pd *pd = make(OBJECT_PD, sizeof(*pd), ibv, context);
    uint32_t number = pd ? number_take(&pool_pds) : NO_OBJECT;
    struct pd_record *record;

    if (number == NO_OBJECT) {
        if (pd)
            discard(&pd->base);
        return NULL;
    }
    pd->base.number = number;
    record = segment_pd(number);
    memset(record, 0, sizeof(*record));
    record->context = context_number(&pd->base);
    record->protects = number_of(base);
    record->td = number_of(td ? watched_find(td, OBJECT_TD) : NULL);
    provenance_created(&record->provenance);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    pd_use(base, 1);
    return publish(pd);
}

static struct key_entry *key_entry_of(const struct watched *object)
{
    return &segment_keys()->entry[object->number];
}

static struct watched_key *make_key(enum object_kind kind, const void *key, struct ibv_pd *ibv)
{
    struct watched_key *made = make(kind, sizeof(*made), key, ibv->context);
    uint32_t slot = made ? number_take(&pool_keys) : NO_OBJECT;

    if (slot == NO_OBJECT) {
        if (made)
            discard(&made->base);
        return NULL;
    }
    made->base.number = slot;
    made->pd = (struct watched_pd *)watched_find(ibv, OBJECT_PD);
    memset(key_entry_of(&made->base), 0, sizeof(struct key_entry));
    provenance_created(segment_key_provenance(slot));
    created_in(segment_key_provenance(slot), made->pd);
    pd_use(made->pd, 1);
    return made;
}

/* Only explanations read these entries, without its generation; the kind is written last. */
static void fill_region(struct watched_key *mr, const struct ibv_mr *ibv, uint64_t iova, unsigned access)
{
    struct key_entry *entry = key_entry_of(&mr->base);

    entry->lkey = ibv->lkey;
    entry->rkey = ibv->rkey;
    entry->pd = pd_number(mr->pd);
    entry->access = access;
    entry->iova = iova;
    entry->length = ibv->length;
    entry->address = (uintptr_t)ibv->addr;
    entry->handle = ibv->handle;
    __atomic_store_n(&entry->kind, (uint8_t)KEY_REGION, __ATOMIC_RELEASE);
}

void watched_new_mr(struct ibv_mr *ibv, struct ibv_pd *pd, uint64_t iova, unsigned access, struct ibv_dm *dm,
                    uint64_t dm_offset)
{
    struct watched_key *mr = make_key(OBJECT_MR, ibv, pd);

    if (!mr)
        return;
    fill_region(mr, ibv, iova, access);
    mr->dm = dm ? watched_find(dm, OBJECT_DM) : NULL;
    if (mr->dm && mr->dm->item != NO_OBJECT)
        key_entry_of(&mr->base)->address = segment_item(mr->dm->item)->address + dm_offset;
    publish(mr);
}

void watched_mr_changed(struct ibv_mr *ibv, struct ibv_pd *ibv_pd, uint64_t iova, unsigned access)
{
    struct watched_key *mr = (struct watched_key *)watched_find(ibv, OBJECT_MR);

    if (!mr)
        return;
    if (ibv_pd) {
        pd_use(mr->pd, -1);
        mr->pd = (struct watched_pd *)watched_find(ibv_pd, OBJECT_PD);
        pd_use(mr->pd, 1);
        created_in(segment_key_provenance(mr->base.number), mr->pd);
    }
    fill_region(mr, ibv, iova, access);
}

void watched_new_mw(struct ibv_mw *ibv, struct ibv_pd *pd)
{
    struct watched_key *mw = make_key(OBJECT_MW, ibv, pd);
    struct key_entry *entry;

    if (!mw)
        return;
    entry = key_entry_of(&mw->base);
    entry->rkey = ibv->rkey;
    entry->pd = pd_number(mw->pd);
    __atomic_store_n(&entry->kind, (uint8_t)(ibv->type == IBV_MW_TYPE_2 ? KEY_MW_TYPE_2 : KEY_MW_TYPE_1),
                     __ATOMIC_RELEASE);
    publish(mw);
}

void watched_mw_bound(struct ibv_mw *ibv, struct ibv_mr *ibv_mr, uint32_t rkey)
{
    struct watched *mw = watched_find(ibv, OBJECT_MW), *mr = watched_find(ibv_mr, OBJECT_MR);
    struct key_entry *entry;

    if (!mw)
        return;
    entry = key_entry_of(mw);
    entry->rkey = rkey;
    entry->region = number_of(mr);
    entry->bound = mr != NULL;
}

/* --- CQ, SRQ -------------------------------------------------------------------------------------------------- */

struct watched_cq *watched_new_cq(struct ibv_cq *ibv, struct ibv_pd *domain)
{
    struct watched_cq *cq = make(OBJECT_CQ, sizeof(*cq), ibv, ibv->context);
    uint32_t number = cq ? number_take(&pool_cqs) : NO_OBJECT;
    struct cq_record *record;

    if (number == NO_OBJECT) {
        if (cq)
            discard(&cq->base);
        return NULL;
    }
    cq->base.number = number;
    cq->channel = ibv->channel ? watched_find(ibv->channel, OBJECT_CHANNEL) : NULL;
    cq->domain = domain ? (struct watched_pd *)watched_find(domain, OBJECT_PD) : NULL;
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
    return publish(cq);
}

static uint32_t slots_of(uint32_t depth)
{
    return depth <= 1 ? 1 : 1u << (32 - __builtin_clz(depth - 1));
}

/* False: no memory; nothing that is posted there is recorded. */
static bool ring_open(struct watched_ring *ring, uint32_t slots, uint32_t stride, uint32_t max_sge)
{
    ring->size = (size_t)slots * stride;
    ring->mask = slots - 1;
    ring->stride = stride;
    ring->max_sge = max_sge;
    ring->offset = segment_allocate(ring->size);
    ring->slots = ring->offset ? segment_at(ring->offset) : NULL;
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
    struct watched_srq *srq = make(OBJECT_SRQ, sizeof(*srq), ibv, ibv->context);
    uint32_t number = srq ? number_take(&pool_srqs) : NO_OBJECT;
    uint32_t depth = min_of(max_wr, LIMIT_SRQ_WR), sges = min_of(max_sge, LIMIT_SRQ_SGE);
    struct srq_record *record;

    if (number == NO_OBJECT) {
        if (srq)
            discard(&srq->base);
        return NULL;
    }
    srq->base.number = number;
    srq->pd = (struct watched_pd *)watched_find(pd, OBJECT_PD);
    srq->cq = cq ? (struct watched_cq *)watched_find(cq, OBJECT_CQ) : NULL;
    srq->xrcd = xrcd ? watched_find(xrcd, OBJECT_XRCD) : NULL;
    srq->post = srq->base.context->original.ops.post_srq_recv;
    srq->unseen = !ring_open(&srq->ring, slots_of(depth + 1), (uint32_t)RECV_WQE_SIZE(sges), sges);
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
    return publish(srq);
}

/* --- QP ------------------------------------------------------------------------------------------------------- */

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
    uint32_t send_sge = min_of(cap->max_send_sge, LIMIT_SGE), recv_sge = min_of(cap->max_recv_sge, LIMIT_SGE);
    size_t header = sizeof(struct send_wqe) + (record->type == IBV_QPT_UD ? sizeof(struct path_address) : 0);

    if (sends && !ring_open(&qp->send, slots_of(sends),
                            (uint32_t)(header + send_sge * sizeof(struct wqe_sge)), send_sge))
        record->unseen |= UNSEEN_SENDS;
    if (receives && !qp->srq &&
        !ring_open(&qp->receive, slots_of(receives), (uint32_t)RECV_WQE_SIZE(recv_sge), recv_sge))
        record->unseen |= UNSEEN_RECEIVES;
    record->send_depth = sends;
    record->send_stride = qp->send.stride;
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
    struct watched_qp *qp = make(OBJECT_QP, sizeof(*qp), ibv, ibv->context);
    uint32_t slot = qp ? number_take(&pool_qps) : NO_OBJECT;
    struct qp_record *record;

    if (slot == NO_OBJECT) {
        if (qp)
            discard(&qp->base);
        return NULL;
    }
    qp->base.number = slot;
    qp->pd = (struct watched_pd *)watched_find(attr->pd, OBJECT_PD);
    qp->send_cq = (struct watched_cq *)watched_find(attr->send_cq, OBJECT_CQ);
    qp->recv_cq = (struct watched_cq *)watched_find(attr->recv_cq, OBJECT_CQ);
    qp->srq = (struct watched_srq *)watched_find(attr->srq, OBJECT_SRQ);
    qp->xrcd = watched_find(attr->xrcd, OBJECT_XRCD);
    qp->ind_table = watched_find(attr->ind_table, OBJECT_IND_TABLE);
    qp->signal_all = attr->signal_all;
    qp->post_send = qp->base.context->original.ops.post_send;
    qp->post_recv = qp->base.context->original.ops.post_recv;
    record = qp->record = segment_qp(slot);
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
    provenance_created(&record->provenance);
    created_in(&record->provenance, qp->pd);
    in_xrcd(&record->provenance, qp->xrcd);
    pd_use(qp->pd, 1);
    cq_use(qp->send_cq, 1);
    cq_use(qp->recv_cq, 1);
    srq_use(qp->srq, 1);
    /* Release: who sees the number sees the rest. */
    atomic_store_explicit(&record->qpn, ibv->qp_num, memory_order_release);
    qp = publish(qp);
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

/* --- WQ, indirection table, id ---------------------------------------------------------------------------------- */

struct watched_wq *watched_new_wq(struct ibv_wq *ibv, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t state)
{
    struct watched_wq *wq = make(OBJECT_WQ, sizeof(*wq), ibv, ibv->context);
    uint32_t number = wq ? number_take(&pool_wqs) : NO_OBJECT;
    struct wq_record *record;

    if (number == NO_OBJECT) {
        if (wq)
            discard(&wq->base);
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
    return publish(wq);
}

void watched_new_ind_table(struct ibv_rwq_ind_table *ibv, struct ibv_wq *const *wqs, uint32_t count)
{
    struct watched *table = make(OBJECT_IND_TABLE, sizeof(*table), ibv, ibv->context);
    uint32_t number = table ? number_take(&pool_ind_tables) : NO_OBJECT;
    uint32_t entries = min_of(count, LIMIT_IND_TABLE_SIZE);
    struct ind_table_record *record;
    uint32_t *list;

    if (number == NO_OBJECT) {
        if (table)
            discard(table);
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
    publish(table);
}

struct watched_id *watched_new_id(const void *key)
{
    struct watched_id *id = make(OBJECT_CM_ID, sizeof(*id), key, NULL);
    struct id_record *record = id ? id_publish() : NULL;

    if (!record) {
        if (id)
            discard(&id->base);
        return NULL;
    }
    record->given = 1;
    id->base.number = id_number(record);
    return publish(id);
}

/* --- destroyed ------------------------------------------------------------------------------------------------ */

static void free_record(struct watched *object)
{
    struct watched_key *key = (struct watched_key *)object;
    struct watched_cq *cq = (struct watched_cq *)object;
    struct watched_srq *srq = (struct watched_srq *)object;
    struct watched_qp *qp = (struct watched_qp *)object;
    struct watched_wq *wq = (struct watched_wq *)object;
    struct ind_table_record *table;

    switch (object->kind) {
    case OBJECT_CONTEXT:
        item_return(object->item);
        number_return(&pool_contexts, object->number);
        return;
    case OBJECT_CHANNEL:
        item_return(object->item);
        number_return(&pool_channels, object->number);
        return;
    case OBJECT_AH:
        pd_use(((struct watched_item *)object)->pd, -1);
        item_return(object->item);
        return;
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
    case OBJECT_ATTACHMENT:
        item_return(object->item);
        return;
    case OBJECT_PD:
        if (segment_pd(object->number)->protects != NO_OBJECT)
            atomic_fetch_sub_explicit(&segment_pd(segment_pd(object->number)->protects)->users, 1,
                                      memory_order_relaxed);
        atomic_store_explicit(&segment_pd(object->number)->state, OBJECT_FREE, memory_order_release);
        number_return(&pool_pds, object->number);
        return;
    case OBJECT_MR:
    case OBJECT_MW:
        pd_use(key->pd, -1);
        __atomic_store_n(&key_entry_of(object)->kind, (uint8_t)KEY_FREE, __ATOMIC_RELEASE);
        number_return(&pool_keys, object->number);
        return;
    case OBJECT_CQ:
        pd_use(cq->domain, -1);
        if (cq->channel)
            item_use(cq->channel->item, -1);
        atomic_store_explicit(&segment_cq(object->number)->state, OBJECT_FREE, memory_order_release);
        number_return(&pool_cqs, object->number);
        return;
    case OBJECT_SRQ:
        pd_use(srq->pd, -1);
        atomic_store_explicit(&segment_srq(object->number)->state, OBJECT_FREE, memory_order_release);
        ring_close(&srq->ring);
        number_return(&pool_srqs, object->number);
        return;
    case OBJECT_QP:
        work_forget_qp(qp);
        pd_use(qp->pd, -1);
        cq_use(qp->send_cq, -1);
        cq_use(qp->recv_cq, -1);
        srq_use(qp->srq, -1);
        atomic_store_explicit(&segment_qp(object->number)->qpn, 0, memory_order_release);
        ring_close(&qp->send);
        ring_close(&qp->receive);
        free(qp->original);
        number_return(&pool_qps, object->number);
        return;
    case OBJECT_WQ:
        pd_use(wq->pd, -1);
        cq_use(wq->cq, -1);
        atomic_store_explicit(&segment_wq(object->number)->state, OBJECT_FREE, memory_order_release);
        number_return(&pool_wqs, object->number);
        return;
    case OBJECT_IND_TABLE:
        table = segment_ind_table(object->number);
        atomic_store_explicit(&table->state, OBJECT_FREE, memory_order_release);
        if (table->offset)
            segment_release(table->offset, table->entries * sizeof(uint32_t));
        number_return(&pool_ind_tables, object->number);
        return;
    case OBJECT_CM_ID:
        id_withdraw(segment_id(object->number));
        return;
    }
}

void watched_forget(struct watched *object)
{
    table_drop(&watched_objects, key_of(object->key), object);
    if (!object->stale)
        free_record(object);
    discard(object);
}

struct provenance_record *watched_provenance(const struct watched *object)
{
    switch (object->kind) {
    case OBJECT_CQ:
        return &segment_cq(object->number)->provenance;
    case OBJECT_QP:
        return &segment_qp(object->number)->provenance;
    case OBJECT_SRQ:
        return &segment_srq(object->number)->provenance;
    case OBJECT_WQ:
        return &segment_wq(object->number)->provenance;
    case OBJECT_CM_ID:
        return &segment_id(object->number)->provenance;
    case OBJECT_CONTEXT:
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
    case OBJECT_CHANNEL:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        break;
    }
    return NULL;
}

struct closing {
    const struct watched_context *context;
};

static void forget_if_inside(void *value, void *argument)
{
    const struct closing *closing = argument;
    struct watched *object = value;

    if (object->context == closing->context && !object->stale)
        watched_forget(object);
}

/* The adapter has freed what was left in it. */
void watched_context_closed(struct watched_context *context)
{
    struct closing closing = {context};

    table_each(&watched_objects, forget_if_inside, &closing);
    watched_forget(&context->base);
}

/* --- fork ----------------------------------------------------------------------------------------------------- */

/* The child has one thread. Locks that others held are free, and what they guarded is no longer used. */
static void make_stale(void *value, void *argument)
{
    struct watched *object = value;

    object->stale = true;
}

void objects_after_fork_in_child(void)
{
    lock_init(&watched_objects.lock);
    lock_init(&free_lock);
    table_each(&watched_objects, make_stale, NULL);
}
