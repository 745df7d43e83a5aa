/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What ibv_create_qp and ibv_create_qp_ex refuse (verbs.md §1.5). */
#include <errno.h>

#include "base/refusal.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/qp/qp_internal.h"
#include "object/receive/wq.h"
#include "object/xrc/xrc.h"
#include "rules/flush.h"
#include "rules/limits.h"
#include "steering/toeplitz.h"

static int check_type(const struct ibv_qp_init_attr_ex *attributes)
{
    switch (attributes->qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
        return 0;
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
    case IBV_QPT_RAW_PACKET:
        return attributes->srq ? refuse(-EINVAL, REFUSAL_TYPE, "an SRQ", attributes->qp_type,
                                        1ull << IBV_QPT_RC | 1ull << IBV_QPT_UC | 1ull << IBV_QPT_UD, 0)
                               : 0;
    case IBV_QPT_DRIVER:
        break;
    }
    return refuse_invalid("qp_type", attributes->qp_type);
}

/* The ibv_wr_* operations of each type (verbs.md §3.8). */
static int check_send_ops(const struct ibv_qp_init_attr_ex *attributes)
{
    const uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const uint64_t uc = sends | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                        IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    const uint64_t rc = uc | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE | QP_EX_WITH_FLUSH;
    uint64_t allowed = attributes->qp_type == IBV_QPT_UD           ? sends
                       : attributes->qp_type == IBV_QPT_RAW_PACKET ? (uint64_t)IBV_QP_EX_WITH_SEND
                       : attributes->qp_type == IBV_QPT_UC         ? uc
                                                                   : rc;

    if (!(attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
        return 0;
    return attributes->send_ops_flags & ~allowed
               ? refuse_bits(-EOPNOTSUPP, "send_ops_flags", BITS_PLAIN, attributes->send_ops_flags, allowed)
               : 0;
}

/* XRC_RECV has no queues. */
static int check_xrc_receive(const struct context *context, const struct ibv_qp_init_attr_ex *attributes)
{
    if (!(attributes->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !attributes->xrcd)
        return refuse_missing(attributes->comp_mask, IBV_QP_INIT_ATTR_XRCD, "xrcd");
    if (attributes->xrcd->context != &context->verbs.context)
        return refuse_elsewhere("xrcd");
    if (xrcd_of(attributes->xrcd)->context == &destroyed_context)
        return destroyed_refuse(DESTROYED_XRCD, xrcd_of(attributes->xrcd), "ibv_create_qp_ex");
    return attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
               ? refuse_unsupported("send_ops_flags of a QP that does not send",
                                    (int64_t)attributes->send_ops_flags)
               : 0;
}

/* An RSS QP does not send and has no queues: the WQs of its table receive (verbs.md §1.5, §7.4). */
static int check_rss(const struct context *context, const struct ibv_qp_init_attr_ex *attributes)
{
    const uint32_t both = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    const struct ibv_rx_hash_conf *hash = &attributes->rx_hash_conf;

    if ((attributes->comp_mask & both) != both || !attributes->rwq_ind_tbl)
        return attributes->comp_mask & IBV_QP_INIT_ATTR_RX_HASH
                   ? refuse_missing(attributes->comp_mask, IBV_QP_INIT_ATTR_IND_TABLE, "rwq_ind_tbl")
                   : refuse_missing(attributes->comp_mask, IBV_QP_INIT_ATTR_RX_HASH, "rx_hash_conf");
    if (attributes->rwq_ind_tbl->context != &context->verbs.context)
        return refuse_elsewhere("rwq_ind_tbl");
    if (attributes->recv_cq || attributes->srq || attributes->cap.max_recv_wr || attributes->cap.max_recv_sge)
        return refuse_because(-EINVAL,
                              "rwq_ind_tbl excludes recv_cq, srq, cap.max_recv_wr and cap.max_recv_sge");
    if (ind_table_of(attributes->rwq_ind_tbl)->context == &destroyed_context)
        return destroyed_refuse(DESTROYED_IND_TABLE, ind_table_of(attributes->rwq_ind_tbl),
                                "ibv_create_qp_ex");
    if (attributes->qp_type != IBV_QPT_RAW_PACKET ||
        (attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) ||
        ((attributes->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && attributes->create_flags))
        return refuse_because(
            -EOPNOTSUPP, "rwq_ind_tbl needs IBV_QPT_RAW_PACKET, without send_ops_flags and create_flags");
    if (hash->rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ)
        return refuse_unsupported("rx_hash_function", hash->rx_hash_function);
    if (hash->rx_hash_key_len != TOEPLITZ_KEY_LENGTH)
        return refuse_range("rx_hash_key_len", hash->rx_hash_key_len, TOEPLITZ_KEY_LENGTH,
                            TOEPLITZ_KEY_LENGTH);
    if (!hash->rx_hash_key)
        return refuse_null("rx_hash_key");
    return toeplitz_check(hash->rx_hash_fields_mask);
}

static int check_flags(const struct ibv_qp_init_attr_ex *attributes)
{
    const uint32_t raw =
        IBV_QP_CREATE_SCATTER_FCS | IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_PCI_WRITE_END_PADDING;
    uint32_t flags = attributes->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? attributes->create_flags : 0;

    if (flags & ~(raw | IBV_QP_CREATE_BLOCK_SELF_MCAST_LB))
        return refuse_bits(-EOPNOTSUPP, "create_flags", BITS_CREATE_FLAGS, flags,
                           raw | IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
    if (attributes->qp_type == IBV_QPT_RAW_PACKET || !flags)
        return 0;
    return (flags & raw) || attributes->qp_type != IBV_QPT_UD
               ? refuse_bits(-EINVAL, "create_flags", BITS_CREATE_FLAGS, flags,
                             attributes->qp_type == IBV_QPT_UD ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0u)
               : 0;
}

static int check_capacity(const struct ibv_qp_cap *cap, bool receives)
{
    if (cap->max_send_wr > LIMIT_QP_WR)
        return refuse_range("cap.max_send_wr", cap->max_send_wr, 0, LIMIT_QP_WR);
    if (cap->max_send_sge > LIMIT_SGE)
        return refuse_range("cap.max_send_sge", cap->max_send_sge, 0, LIMIT_SGE);
    if (cap->max_inline_data > LIMIT_INLINE)
        return refuse(-EINVAL, REFUSAL_TRIED, "cap.max_inline_data", cap->max_inline_data, 0, LIMIT_INLINE);
    if (receives && cap->max_recv_wr > LIMIT_QP_WR)
        return refuse_range("cap.max_recv_wr", cap->max_recv_wr, 0, LIMIT_QP_WR);
    if (receives && cap->max_recv_sge > LIMIT_SGE)
        return refuse_range("cap.max_recv_sge", cap->max_recv_sge, 0, LIMIT_SGE);
    return 0;
}

int qp_check_create(const struct context *context, const struct ibv_qp_init_attr_ex *attributes)
{
    const uint32_t known_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
                                IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_IND_TABLE |
                                IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const struct ibv_qp_cap *cap = &attributes->cap;
    int error;

    if (attributes->comp_mask & ~known_mask)
        return refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, known_mask);
    if (attributes->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER)
        return refuse_unsupported("max_tso_header", attributes->max_tso_header);
    if (qp_spreads(attributes))
        return check_rss(context, attributes);
    error = check_type(attributes);
    if (!error)
        error = check_send_ops(attributes);
    if (error)
        return error;
    if (attributes->qp_type == IBV_QPT_XRC_RECV)
        return check_xrc_receive(context, attributes);
    error = check_flags(attributes);
    if (error)
        return error;
    error = check_capacity(cap, !attributes->srq && attributes->qp_type != IBV_QPT_XRC_SEND);
    if (error)
        return error;
    if (!attributes->send_cq)
        return refuse_null("send_cq");
    if (attributes->send_cq->context != &context->verbs.context)
        return refuse_elsewhere("send_cq");
    /* rdma_create_qp passes no receive CQ when there is nothing to receive (verbs.md §1.5). */
    if (attributes->qp_type == IBV_QPT_XRC_SEND)
        return 0; /* the receive side of the attributes is ignored */
    if (attributes->recv_cq && attributes->recv_cq->context != &context->verbs.context)
        return refuse_elsewhere("recv_cq");
    if (!attributes->recv_cq && (attributes->srq || cap->max_recv_wr))
        return refuse_null("recv_cq");
    if (!attributes->srq)
        return 0;
    if (attributes->srq->context != &context->verbs.context)
        return refuse_elsewhere("srq");
    if (srq_of(attributes->srq)->xrcd)
        return refuse_because(-EINVAL, "srq is an XRC SRQ, which a QP cannot have as its srq");
    if (srq_of(attributes->srq)->tm && attributes->qp_type != IBV_QPT_RC)
        return refuse(-EINVAL, REFUSAL_TYPE, "an SRQ with tag matching", attributes->qp_type,
                      1ull << IBV_QPT_RC, 0);
    return 0;
}
