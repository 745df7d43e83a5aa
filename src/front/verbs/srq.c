/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Shared receive queues (verbs.md §1.4, §6). */
#include "object/receive/srq.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/cq/cq.h"
#include "object/receive/tm.h"
#include "object/xrc/xrc.h"
#include "segment/segment.h"

static int injected_creation(const struct ibv_context *context, const struct ibv_srq_attr *attributes)
{
    int error = injected(CALL_CREATE_SRQ, context);

    if (error || !inject_has(INJECT_LIMIT))
        return error;
    error = injected_limit(INJECT_MAX_SRQ_WR, context, attributes->max_wr);
    return error ? error : injected_limit(INJECT_MAX_SRQ, context, number_used(&pool_srqs) + 1ull);
}

VERBS_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes)
{
    struct srq *srq;
    int result = injected_creation(pd->context, &attributes->attr);

    if (result)
        return null_with(result);
    result = srq_create(pd_of(pd), attributes->srq_context, &attributes->attr, false, &srq);

    return result < 0 ? null_with(result) : &srq->ibv;
}

static struct ibv_srq *create_tm(struct ibv_context *context, struct ibv_srq_init_attr_ex *attributes)
{
    const uint32_t needed = IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    struct srq *srq;
    int result;

    if ((attributes->comp_mask & needed) != needed || !attributes->cq)
        return front_null_with("create_srq_ex",
                               attributes->comp_mask & IBV_SRQ_INIT_ATTR_TM
                                   ? refuse_missing(attributes->comp_mask, IBV_SRQ_INIT_ATTR_CQ, "cq")
                                   : refuse_missing(attributes->comp_mask, IBV_SRQ_INIT_ATTR_TM, "tm_cap"));
    if (attributes->cq->context != context)
        return front_null_with("create_srq_ex", refuse_elsewhere("cq"));
    if (attributes->comp_mask & IBV_SRQ_INIT_ATTR_XRCD)
        return front_null_with("create_srq_ex",
                               refuse_because(-EINVAL, "comp_mask has IBV_SRQ_INIT_ATTR_XRCD, which an SRQ "
                                                       "of type IBV_SRQT_TM cannot have"));
    result = srq_create_tm(pd_of(attributes->pd), cq_of(attributes->cq), attributes->srq_context,
                           &attributes->attr, &attributes->tm_cap, &srq);
    return result < 0 ? front_null_with("create_srq_ex", result) : &srq->ibv;
}

struct ibv_srq *front_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attributes)
{
    const uint32_t known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                           IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    const uint32_t needed = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    struct srq *srq;
    int result;

    if (attributes->comp_mask & ~known)
        return null_with(refuse_bits(-EOPNOTSUPP, "comp_mask", BITS_PLAIN, attributes->comp_mask, known));
    if (!(attributes->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attributes->pd)
        return null_with(refuse_missing(attributes->comp_mask, IBV_SRQ_INIT_ATTR_PD, "pd"));
    if (attributes->pd->context != context)
        return null_with(refuse_elsewhere("pd"));
    result = injected_creation(context, &attributes->attr);
    if (result)
        return null_with(result);
    if ((attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && attributes->srq_type == IBV_SRQT_TM)
        return create_tm(context, attributes);
    if ((attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && attributes->srq_type == IBV_SRQT_XRC) {
        if ((attributes->comp_mask & needed) != needed || !attributes->xrcd || !attributes->cq)
            return null_with((attributes->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) && attributes->xrcd
                                 ? refuse_missing(attributes->comp_mask, IBV_SRQ_INIT_ATTR_CQ, "cq")
                                 : refuse_missing(attributes->comp_mask, IBV_SRQ_INIT_ATTR_XRCD, "xrcd"));
        if (attributes->xrcd->context != context || attributes->cq->context != context)
            return null_with(refuse_elsewhere(attributes->cq->context != context ? "cq" : "xrcd"));
        result = srq_create_xrc(pd_of(attributes->pd), xrcd_of(attributes->xrcd), cq_of(attributes->cq),
                                attributes->srq_context, &attributes->attr, true, &srq);
    } else if ((attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && attributes->srq_type != IBV_SRQT_BASIC) {
        return null_with(refuse_invalid("srq_type", attributes->srq_type));
    } else {
        result = srq_create(pd_of(attributes->pd), attributes->srq_context, &attributes->attr, true, &srq);
    }
    return result < 0 ? null_with(result) : &srq->ibv;
}

int front_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
{
    return positive(srq_post_ops(srq_of(srq), op, bad_op));
}

int front_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
    if (!srq_of(srq)->xrcd) /* as ibv_get_srq_num(3) says */
        return positive(refuse_because(-EINVAL, "only an XRC SRQ has a number"));
    *srq_num = srq_of(srq)->srqn;
    return 0;
}

struct ibv_xrcd *front_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attributes)
{
    struct xrcd *xrcd;
    int result = xrcd_open(context_of(context), attributes, &xrcd);

    return result < 0 ? null_with(result) : &xrcd->ibv;
}

int front_close_xrcd(struct ibv_xrcd *xrcd)
{
    return positive(xrcd_close(xrcd_of(xrcd)));
}

VERBS_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attributes, int mask)
{
    int error = injected(CALL_MODIFY_SRQ, srq->context);

    return positive(error ? -error : srq_modify(srq_of(srq), attributes, mask));
}

VERBS_EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attributes)
{
    return positive(srq_query(srq_of(srq), attributes));
}

VERBS_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
    return positive(srq_destroy(srq_of(srq)));
}

int front_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    return positive(srq_post(srq_of(srq), wr, bad_wr));
}
