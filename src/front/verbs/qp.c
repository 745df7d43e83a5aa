/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Queue pairs and multicast attachment (verbs.md §1.5, §2, §8.3). */
#include "object/qp/qp.h"
#include "engine/core/engine.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/xrc/open_qp.h"

/* Both structures have these members at the same offsets. */
#define COMMON_INIT_ATTRIBUTES (offsetof(struct ibv_qp_init_attr, sq_sig_all) + sizeof(int))
_Static_assert(offsetof(struct ibv_qp_init_attr_ex, sq_sig_all) ==
                       offsetof(struct ibv_qp_init_attr, sq_sig_all) &&
                   offsetof(struct ibv_qp_init_attr_ex, cap) == offsetof(struct ibv_qp_init_attr, cap),
               "ibv_create_qp_ex passes its structure to ibv_create_qp");

static int injected_creation(const struct ibv_context *context, const struct ibv_qp_cap *cap, bool has_srq)
{
    int error = injected(CALL_CREATE_QP, context);

    return error || !inject_has(INJECT_LIMIT) ? error : injected_qp_limits(context, cap, has_srq);
}

VERBS_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    struct ibv_qp_init_attr_ex extended = {0};
    struct qp *qp;
    int result;

    if (!pd)
        return null_with(refuse_null("pd"));
    if (attributes->qp_type == IBV_QPT_XRC_RECV) /* an XRC_RECV QP has no PD */
        return null_with(refuse_invalid("qp_type", attributes->qp_type));
    result = injected_creation(pd->context, &attributes->cap, attributes->srq != NULL);
    if (result)
        return null_with(result);
    memcpy(&extended, attributes, COMMON_INIT_ATTRIBUTES);
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd;
    result = qp_create(context_of(pd->context), pd_of(pd), &extended, &qp);
    if (result < 0)
        return null_with(result);
    attributes->cap = extended.cap;
    return &qp->ibv;
}

struct ibv_qp *front_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes)
{
    struct pd *pd = NULL;
    struct qp *qp;
    int result;

    if (attributes->qp_type != IBV_QPT_XRC_RECV) {
        if (!(attributes->comp_mask & IBV_QP_INIT_ATTR_PD) || !attributes->pd)
            return null_with(refuse_missing(attributes->comp_mask, IBV_QP_INIT_ATTR_PD, "pd"));
        if (attributes->pd->context != context)
            return null_with(refuse_elsewhere("pd"));
        pd = pd_of(attributes->pd);
    }
    result = injected_creation(context, &attributes->cap, attributes->srq != NULL);
    if (result)
        return null_with(result);
    result = qp_create(context_of(context), pd, attributes, &qp);
    if (result < 0)
        return null_with(result);
    if (qp->is_extended)
        front_fill_wr_ops(&qp->ex);
    return &qp->ibv;
}

struct ibv_qp *front_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attributes)
{
    struct qp *handle;
    int result = qp_open(context_of(context), attributes, &handle);

    return result < 0 ? null_with(result) : &handle->ibv;
}

VERBS_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return qp_of(qp)->is_extended ? &qp_of(qp)->ex : NULL;
}

VERBS_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    int error = inject_loaded() ? injected_qp_error(CALL_MODIFY_QP, qp, 0) : 0;

    return positive(error ? -error : qp_modify(qp_of(qp), attributes, mask));
}

VERBS_EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask,
                              struct ibv_qp_init_attr *init_attributes)
{
    if (mask & ~(IBV_QP_RATE_LIMIT - 1))
        return positive(
            refuse_bits(-EOPNOTSUPP, "attr_mask", BITS_QP_MASK, (uint32_t)mask, IBV_QP_RATE_LIMIT - 1));
    return positive(qp_query(qp_of(qp), attributes, mask, init_attributes));
}

VERBS_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    return positive(qp_destroy(qp_of(qp)));
}

int front_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    return positive(qp_post_send(qp_of(qp), wr, bad_wr));
}

int front_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    return positive(qp_post_recv(qp_of(qp), wr, bad_wr));
}

VERBS_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    int error = injected(CALL_ATTACH_MCAST, qp->context);

    return positive(error ? -error : multicast_attach(qp_of(qp), gid, lid));
}

VERBS_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    return positive(multicast_detach(qp_of(qp), gid, lid));
}

/* Packets are placed in order, and no earlier packet is placed after a later one. The bytes of one packet are copied
 * by memcpy() or the kernel, which guarantee no order (verbs.md §10.9). */
VERBS_EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t flags)
{
    return 0;
}

VERBS_EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    return positive(qp_set_ece(qp_of(qp), ece));
}

VERBS_EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    return positive(qp_query_ece(qp_of(qp), ece));
}
