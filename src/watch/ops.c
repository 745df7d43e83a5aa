/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is inline in verbs.h calls functions whose addresses are in the structures of contexts, QPs and CQs. They are
 * replaced in the program's copy; libibverbs and providers have tables of their own. */
#include <string.h>

#include "watch/calls.h"

__thread unsigned watch_in_cm __attribute__((tls_model("initial-exec")));

/* --- notification --------------------------------------------------------------------------------------- */

static int op_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    struct watched_cq *cq = (struct watched_cq *)watched_find(ibv, OBJECT_CQ);
    struct cq_record *record;

    if (unlikely(!cq || watch_thread.inside))
        return originals_of(ibv->context)->ops.req_notify_cq(ibv, solicited_only);
    record = segment_cq(cq->base.number);
    record->polled = 0;
    record->armed = solicited_only ? CQ_ARMED_SOLICITED : CQ_ARMED_ANY;
    return INSIDE(cq->req_notify(ibv, solicited_only));
}

/* --- CQs and QPs ---------------------------------------------------------------------------------------- */

static struct ibv_cq_ex *op_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    __typeof__(&op_create_cq_ex) original = originals_of(context)->extended.create_cq_ex;
    struct ibv_cq_init_attr_ex wanted = *attr;
    struct watched_cq *known;
    struct ibv_cq_ex *cq;

    if (watch_thread.inside)
        return original(context, attr);
    wanted.wc_flags |= IBV_WC_EX_WITH_QP_NUM;
    cq = INSIDE(original(context, &wanted));
    if (!cq && wanted.wc_flags != attr->wc_flags)
        cq = INSIDE(original(context, attr));
    if (!cq)
        return NULL;
    known = watched_new_cq(ibv_cq_ex_to_cq(cq),
                           attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD ? attr->parent_domain : NULL);
    if (known)
        watch_cq_ex(known, cq);
    return cq;
}

static struct ibv_qp *op_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    __typeof__(&op_create_qp_ex) original = originals_of(context)->extended.create_qp_ex;
    struct watched_qp *known;
    struct ibv_qp *qp;

    if (watch_thread.inside)
        return original(context, attr);
    qp = INSIDE(original(context, attr));
    if (!qp)
        return NULL;
    known = watched_new_qp(
        qp, &(struct watched_qp_attr){
                .pd = attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL,
                .send_cq = attr->send_cq,
                .recv_cq = attr->recv_cq,
                .srq = attr->srq,
                .xrcd = attr->comp_mask & IBV_QP_INIT_ATTR_XRCD ? attr->xrcd : NULL,
                .ind_table = attr->comp_mask & IBV_QP_INIT_ATTR_IND_TABLE ? attr->rwq_ind_tbl : NULL,
                .cap = attr->cap,
                .signal_all = attr->sq_sig_all,
            });
    if (known && attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        watch_qp_ex(known, qp, attr->send_ops_flags);
    return qp;
}

static struct ibv_qp *op_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
    struct ibv_qp *qp;

    if (watch_thread.inside)
        return originals_of(context)->extended.open_qp(context, attr);
    qp = INSIDE(originals_of(context)->extended.open_qp(context, attr));
    if (qp)
        watched_new_qp(qp, &(struct watched_qp_attr){.xrcd = attr->xrcd, .opened = true});
    return qp;
}

/* --- SRQ, XRC, WQ --------------------------------------------------------------------------------------- */

static struct ibv_srq *op_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
    bool typed = attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE;
    struct watched_srq *known;
    struct ibv_srq *srq;

    if (watch_thread.inside)
        return originals_of(context)->extended.create_srq_ex(context, attr);
    srq = INSIDE(originals_of(context)->extended.create_srq_ex(context, attr));
    if (!srq)
        return NULL;
    known = watched_new_srq(srq, attr->comp_mask & IBV_SRQ_INIT_ATTR_PD ? attr->pd : NULL,
                            attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ ? attr->cq : NULL,
                            attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD ? attr->xrcd : NULL, attr->attr.max_wr,
                            attr->attr.max_sge);
    if (known && typed && attr->srq_type == IBV_SRQT_TM)
        known->unseen = true; /* tagged receives are posted by ibv_post_srq_ops() */
    return srq;
}

/* The original returns 0 or an errno. */
#define DESTROYS(kind, pointer, call)                                                                        \
    struct watched *object;                                                                                  \
    struct blocked_destroy *blocked;                                                                         \
    int result;                                                                                              \
                                                                                                             \
    if (watch_thread.inside)                                                                                 \
        return call;                                                                                         \
    object = watched_find(pointer, kind);                                                                    \
    blocked = destroy_begins(object);                                                                        \
    result = INSIDE(call);                                                                                   \
    destroy_ends(object, blocked, result);                                                                   \
    return result

static struct ibv_xrcd *op_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
    struct ibv_xrcd *xrcd = INSIDE(originals_of(context)->extended.open_xrcd(context, attr));

    if (xrcd && !watch_thread.inside)
        watched_new_item(xrcd, OBJECT_XRCD, context, NO_OBJECT, NULL);
    return xrcd;
}

static int op_close_xrcd(struct ibv_xrcd *xrcd)
{
    DESTROYS(OBJECT_XRCD, xrcd, originals_of(xrcd->context)->extended.close_xrcd(xrcd));
}

static struct ibv_wq *op_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
    struct ibv_wq *wq = INSIDE(originals_of(context)->extended.create_wq(context, attr));

    if (wq && !watch_thread.inside)
        watched_new_wq(wq, attr->pd, attr->cq, IBV_WQS_RESET);
    return wq;
}

static int op_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr)
{
    struct watched *known = watched_find(wq, OBJECT_WQ);
    int result = INSIDE(originals_of(wq->context)->extended.modify_wq(wq, attr));

    if (known && result == 0 && attr->attr_mask & IBV_WQ_ATTR_STATE)
        atomic_store_explicit(&segment_wq(known->number)->wq_state, attr->wq_state, memory_order_relaxed);
    return result;
}

static int op_destroy_wq(struct ibv_wq *wq)
{
    DESTROYS(OBJECT_WQ, wq, originals_of(wq->context)->extended.destroy_wq(wq));
}

static struct ibv_rwq_ind_table *op_create_rwq_ind_table(struct ibv_context *context,
                                                         struct ibv_rwq_ind_table_init_attr *attr)
{
    struct ibv_rwq_ind_table *table =
        INSIDE(originals_of(context)->extended.create_rwq_ind_table(context, attr));

    if (table && !watch_thread.inside)
        watched_new_ind_table(table, attr->ind_tbl, 1u << min_of(attr->log_ind_tbl_size, 16u));
    return table;
}

static int op_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table)
{
    DESTROYS(OBJECT_IND_TABLE, table, originals_of(table->context)->extended.destroy_rwq_ind_table(table));
}

/* --- domains, device memory, windows -------------------------------------------------------------------- */

static struct ibv_td *op_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
    struct ibv_td *td = INSIDE(originals_of(context)->extended.alloc_td(context, attr));

    if (td && !watch_thread.inside)
        watched_new_item(td, OBJECT_TD, context, NO_OBJECT, NULL);
    return td;
}

static int op_dealloc_td(struct ibv_td *td)
{
    DESTROYS(OBJECT_TD, td, originals_of(td->context)->extended.dealloc_td(td));
}

static struct ibv_pd *op_alloc_parent_domain(struct ibv_context *context,
                                             struct ibv_parent_domain_init_attr *attr)
{
    struct ibv_pd *pd = INSIDE(originals_of(context)->extended.alloc_parent_domain(context, attr));

    if (pd && !watch_thread.inside)
        watched_new_pd(pd, context, attr->pd, attr->td);
    return pd;
}

static struct ibv_dm *op_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
    static _Atomic uint64_t allocated; /* its memory has no address: one that no other has */
    struct ibv_dm *dm = INSIDE(originals_of(context)->extended.alloc_dm(context, attr));
    uint64_t range[2] = {(atomic_fetch_add_explicit(&allocated, 1, memory_order_relaxed) + 1) << 40,
                         attr->length};

    if (dm && !watch_thread.inside)
        watched_new_item(dm, OBJECT_DM, context, NO_OBJECT, range);
    return dm;
}

static int op_free_dm(struct ibv_dm *dm)
{
    DESTROYS(OBJECT_DM, dm, originals_of(dm->context)->extended.free_dm(dm));
}

static struct ibv_mr *op_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
                                   unsigned access)
{
    struct ibv_mr *mr = INSIDE(originals_of(pd->context)->extended.reg_dm_mr(pd, dm, offset, length, access));

    if (mr && !watch_thread.inside)
        watched_new_mr(mr, pd, offset, access, dm, offset);
    return mr;
}

static struct ibv_mw *op_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct ibv_mw *mw = INSIDE(originals_of(pd->context)->ops.alloc_mw(pd, type));

    if (mw && !watch_thread.inside)
        watched_new_mw(mw, pd);
    return mw;
}

static int op_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    int result = INSIDE(originals_of(qp->context)->ops.bind_mw(qp, mw, bind));

    if (result == 0 && !watch_thread.inside)
        watched_mw_bound(mw, bind->bind_info.length ? bind->bind_info.mr : NULL, mw->rkey);
    return result;
}

static int op_dealloc_mw(struct ibv_mw *mw)
{
    DESTROYS(OBJECT_MW, mw, originals_of(mw->context)->ops.dealloc_mw(mw));
}

/* --- flows, counters ------------------------------------------------------------------------------------ */

static void counters_of(const struct ibv_flow_attr *attr, uint32_t ret_items[4])
{
    const char *spec = (const char *)(attr + 1), *end = (const char *)attr + attr->size;
    unsigned found = 0;

    for (unsigned i = 0; i < 4; i++)
        ret_items[i] = NO_OBJECT;
    for (unsigned i = 0; i < attr->num_of_specs && found < 4; i++) {
        struct ibv_flow_spec_counter_action action;
        struct watched *counters;

        memset(&action, 0, sizeof(action));
        if (end - spec < (ptrdiff_t)offsetof(struct ibv_flow_spec_counter_action, counters))
            return;
        memcpy(&action, spec, min_of((size_t)(end - spec), sizeof(action)));
        if (action.type == IBV_FLOW_SPEC_ACTION_COUNT) {
            counters = watched_find(action.counters, OBJECT_COUNTERS);
            if (counters)
                ret_items[found++] = counters->item;
        }
        if (!action.size)
            return;
        spec += action.size;
    }
}

static struct ibv_flow *op_ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr)
{
    struct ibv_flow *flow = INSIDE(originals_of(qp->context)->extended.ibv_create_flow(qp, attr));
    uint32_t counters[4];

    if (flow && !watch_thread.inside) {
        counters_of(attr, counters);
        watched_new_item(flow, OBJECT_FLOW, qp->context, qp->qp_num, counters);
    }
    return flow;
}

static int op_ibv_destroy_flow(struct ibv_flow *flow)
{
    DESTROYS(OBJECT_FLOW, flow, originals_of(flow->context)->extended.ibv_destroy_flow(flow));
}

static struct ibv_counters *op_create_counters(struct ibv_context *context,
                                               struct ibv_counters_init_attr *attr)
{
    struct ibv_counters *counters = INSIDE(originals_of(context)->extended.create_counters(context, attr));

    if (counters && !watch_thread.inside)
        watched_new_item(counters, OBJECT_COUNTERS, context, NO_OBJECT, NULL);
    return counters;
}

static int op_destroy_counters(struct ibv_counters *counters)
{
    DESTROYS(OBJECT_COUNTERS, counters, originals_of(counters->context)->extended.destroy_counters(counters));
}

/* --- contexts ------------------------------------------------------------------------------------------- */

/* Of the structure of a context only what it says it has (sz), and what is not NULL. */
#define REPLACE(name)                                                                                        \
    do {                                                                                                     \
        if (extended->sz >= sizeof(*extended) - offsetof(struct verbs_context, name) && extended->name) {    \
            saved->extended.name = extended->name;                                                           \
            extended->name = op_##name;                                                                      \
        }                                                                                                    \
    } while (0)
#define REPLACE_OP(name)                                                                                     \
    do {                                                                                                     \
        saved->ops.name = context->ops.name;                                                                 \
        if (context->ops.name)                                                                               \
            context->ops.name = op_##name;                                                                   \
    } while (0)

static void replace_extended(struct watched_originals *saved, struct verbs_context *extended)
{
    REPLACE(create_counters);
    REPLACE(destroy_counters);
    REPLACE(reg_dm_mr);
    REPLACE(alloc_dm);
    REPLACE(free_dm);
    REPLACE(alloc_parent_domain);
    REPLACE(dealloc_td);
    REPLACE(alloc_td);
    REPLACE(destroy_rwq_ind_table);
    REPLACE(create_rwq_ind_table);
    REPLACE(destroy_wq);
    REPLACE(modify_wq);
    REPLACE(create_wq);
    REPLACE(create_cq_ex);
    REPLACE(ibv_destroy_flow);
    REPLACE(ibv_create_flow);
    REPLACE(open_qp);
    REPLACE(create_qp_ex);
    REPLACE(create_srq_ex);
    REPLACE(open_xrcd);
    REPLACE(close_xrcd);
}

struct watched_context *adopt_context(struct ibv_context *context)
{
    struct watched_context *known = watched_context_of(context);
    struct verbs_context *extended = verbs_get_ctx(context);
    struct watched_originals *saved;

    if (known)
        return known;
    known = watched_new_context(context, context->device->name);
    if (!known)
        return NULL;
    if (watch_in_cm && known->base.item != NO_OBJECT)
        item_use(known->base.item, 1); /* librdmacm keeps it open */
    saved = &known->original;
    REPLACE_OP(alloc_mw);
    REPLACE_OP(bind_mw);
    REPLACE_OP(dealloc_mw);
    REPLACE_OP(poll_cq);
    REPLACE_OP(req_notify_cq);
    REPLACE_OP(post_srq_recv);
    REPLACE_OP(post_send);
    REPLACE_OP(post_recv);
    if (extended)
        replace_extended(saved, extended);
    return known;
}

static void adopt_cq(struct ibv_cq *cq)
{
    if (cq && !watched_find(cq, OBJECT_CQ))
        watched_new_cq(cq, NULL);
}

void adopt_qp(struct ibv_qp *qp, const struct watched_qp_attr *attr)
{
    if (watched_find(qp, OBJECT_QP) || !adopt_context(qp->context))
        return;
    adopt_pd(attr->pd);
    adopt_cq(attr->send_cq);
    adopt_cq(attr->recv_cq);
    watched_new_qp(qp, attr);
}
