/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Operation tables that inline functions of verbs.h call through, many without a check: every slot holds a function
 * (compatibility.md §3). Unsupported operations return EOPNOTSUPP, which programs and tests take for "skip". */
#include "front/verbs/front.h"
#include "front/verbs/newer.h"

static int unsupported(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

/* Also fills the slots of 2006 that no current header calls. */
static void *unsupported_object(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

/* One function serves all unsupported verbs: the supported calling conventions let a caller pass more arguments than
 * the callee takes. */
#define UNSUPPORTED(member)        (member) = (__typeof__(member))(void (*)(void))unsupported
#define UNSUPPORTED_OBJECT(member) (member) = (__typeof__(member))(void (*)(void))unsupported_object

/* front.h undefines the macro: this is the exported function. */
void front_fill_context_ops(struct ibv_context_ops *ops)
{
    ops->_compat_query_device = ibv_query_device;
    ops->_compat_query_port = ibv_query_port;
    ops->_compat_alloc_pd = unsupported_object;
    ops->_compat_dealloc_pd = unsupported_object;
    ops->_compat_reg_mr = unsupported_object;
    ops->_compat_rereg_mr = unsupported_object;
    ops->_compat_dereg_mr = unsupported_object;
    ops->alloc_mw = front_alloc_mw;
    ops->bind_mw = front_bind_mw;
    ops->dealloc_mw = front_dealloc_mw;
    ops->_compat_create_cq = unsupported_object;
    ops->poll_cq = front_poll_cq;
    ops->req_notify_cq = front_req_notify_cq;
    ops->_compat_cq_event = unsupported_object;
    ops->_compat_resize_cq = unsupported_object;
    ops->_compat_destroy_cq = unsupported_object;
    ops->_compat_create_srq = unsupported_object;
    ops->_compat_modify_srq = unsupported_object;
    ops->_compat_query_srq = unsupported_object;
    ops->_compat_destroy_srq = unsupported_object;
    ops->post_srq_recv = front_post_srq_recv;
    ops->_compat_create_qp = unsupported_object;
    ops->_compat_query_qp = unsupported_object;
    ops->_compat_modify_qp = unsupported_object;
    ops->_compat_destroy_qp = unsupported_object;
    ops->post_send = front_post_send;
    ops->post_recv = front_post_recv;
    ops->_compat_create_ah = unsupported_object;
    ops->_compat_destroy_ah = unsupported_object;
    ops->_compat_attach_mcast = unsupported_object;
    ops->_compat_detach_mcast = unsupported_object;
    ops->_compat_async_event = unsupported_object;
}

static int modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attributes)
{
    return positive(attributes->comp_mask ? -EINVAL : -EOPNOTSUPP);
}

/* Newest first. All are exported, and rdma-core calls the exported ones. */
static void fill_newer_ops(struct verbs_context *verbs)
{
    void (**operations)(void) = (void (**)(void))((char *)&verbs->context - VERBS_HEAD);

    operations[0] = (void (*)(void))ibv_free_buf;
    operations[1] = (void (*)(void))ibv_alloc_buf;
    operations[2] = (void (*)(void))ibv_dm_export_dmabuf_fd;
    operations[3] = (void (*)(void))ibv_reg_mr_ex;
    operations[4] = (void (*)(void))ibv_dealloc_dmah;
    operations[5] = (void (*)(void))ibv_alloc_dmah;
}

void front_fill_ops(struct verbs_context *verbs)
{
    front_fill_context_ops(&verbs->context.ops);
    fill_newer_ops(verbs);

    verbs->query_port = front_query_port;
    verbs->query_device_ex = front_query_device_ex;
    verbs->query_rt_values = front_query_rt_values;
    verbs->create_cq_ex = front_create_cq_ex;
    verbs->modify_cq = front_modify_cq;
    verbs->create_qp_ex = front_create_qp_ex;
    verbs->create_srq_ex = front_create_srq_ex;
    verbs->modify_qp_rate_limit = modify_qp_rate_limit;
    verbs->post_srq_ops = front_post_srq_ops;
    verbs->advise_mr = front_advise_mr;
    verbs->alloc_null_mr = front_alloc_null_mr;
    verbs->alloc_dm = front_alloc_dm;
    verbs->free_dm = front_free_dm;
    verbs->reg_dm_mr = front_reg_dm_mr;
    verbs->get_srq_num = front_get_srq_num;
    verbs->open_xrcd = front_open_xrcd;
    verbs->close_xrcd = front_close_xrcd;
    verbs->open_qp = front_open_qp;
    verbs->alloc_td = front_alloc_td;
    verbs->dealloc_td = front_dealloc_td;
    verbs->alloc_parent_domain = front_alloc_parent_domain;
    verbs->create_wq = front_create_wq;
    verbs->modify_wq = front_modify_wq;
    verbs->destroy_wq = front_destroy_wq;
    verbs->create_rwq_ind_table = front_create_rwq_ind_table;
    verbs->destroy_rwq_ind_table = front_destroy_rwq_ind_table;
    verbs->ibv_create_flow = front_create_flow;
    verbs->ibv_destroy_flow = front_destroy_flow;
    verbs->create_counters = front_create_counters;
    verbs->destroy_counters = front_destroy_counters;
    verbs->attach_counters_point_flow = front_attach_counters_point_flow;
    verbs->read_counters = front_read_counters;

    UNSUPPORTED(verbs->modify_flow_action_esp);
    UNSUPPORTED(verbs->destroy_flow_action);
    UNSUPPORTED_OBJECT(verbs->create_flow_action_esp);
    /* Also under their former names (compatibility.md §3). */
    verbs->ABI_placeholder1 = (void (*)(void))front_create_flow;
    verbs->ABI_placeholder2 = (void (*)(void))front_destroy_flow;
}
