/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of src/front/verbs share. The calling conventions of verbs (verbs.md §0.1) exist only here: the
 * functions below return 0 or -errno. */
#ifndef FRONT_VERBS_FRONT_H
#define FRONT_VERBS_FRONT_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/refusal.h"
#include "base/types.h"
#include "base/verbs.h"
#include "front/verbs/export.h"
#include "object/device/context.h"

/* verbs.h defines macros with the names of functions that are defined here. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* refused.c: takes down that a call fails, and tells it. call: __func__, from which the verb's name follows. No lock
 * held. */
void front_refused(const char *call, int error);

/* For verbs that return 0 or a positive errno, and also set errno. */
#define positive(result) front_positive(__func__, result)
static inline int front_positive(const char *call, int result)
{
    if (likely(result >= 0))
        return 0;
    front_refused(call, result);
    errno = -result;
    return -result;
}

/* For verbs that return 0 or -1 with errno. */
#define minus_one(result) front_minus_one(__func__, result)
static inline int front_minus_one(const char *call, int result)
{
    if (likely(result >= 0))
        return 0;
    front_refused(call, result);
    errno = -result;
    return -1;
}

/* For verbs that return a pointer, or NULL with errno. */
#define null_with(error) front_null_with(__func__, error)
static inline void *front_null_with(const char *call, int error)
{
    error = error < 0 ? error : -error;
    front_refused(call, error);
    errno = -error;
    return NULL;
}

/* Copies a structure whose size in the program may differ from the size here (compatibility.md §3): all of the
 * program's bytes become defined. */
static inline void copy_sized(void *to, size_t to_size, const void *from, size_t from_size)
{
    memset(to, 0, to_size);
    memcpy(to, from, min_of(to_size, from_size));
}

/* device_list.c: the device behind the public structure. The structure counts open contexts and lists. */
struct device *front_device(struct ibv_device *device);
/* The device with this GUID, with a reference; NULL: none. */
struct ibv_device *front_device_by_guid(const uint8_t node_guid[8]);
void front_device_get(struct ibv_device *device);
void front_device_put(struct ibv_device *device);

/* ops.c */
void front_fill_ops(struct verbs_context *verbs);

/* Functions of the operation tables, by file. */

/* query.c */
int front_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes,
                     size_t size);
int front_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                          struct ibv_device_attr_ex *attributes, size_t size);
int front_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);

/* pd_mr.c */
struct ibv_td *front_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attributes);
int front_dealloc_td(struct ibv_td *td);
struct ibv_pd *front_alloc_parent_domain(struct ibv_context *context,
                                         struct ibv_parent_domain_init_attr *attributes);
struct ibv_mr *front_alloc_null_mr(struct ibv_pd *pd);
int front_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
                    uint32_t count);
struct ibv_dm *front_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attributes);
int front_free_dm(struct ibv_dm *dm);
struct ibv_mr *front_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
                               unsigned int access);
struct ibv_mw *front_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int front_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int front_dealloc_mw(struct ibv_mw *mw);

/* cq.c */
int front_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int front_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *front_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes);
int front_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attributes);

/* qp.c */
int front_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int front_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
struct ibv_qp *front_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attributes);

/* srq.c */
int front_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
struct ibv_srq *front_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attributes);

int front_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num);
int front_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op);
struct ibv_xrcd *front_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attributes);
int front_close_xrcd(struct ibv_xrcd *xrcd);
struct ibv_qp *front_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attributes);

/* wq.c */
struct ibv_wq *front_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attributes);
int front_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attributes);
int front_destroy_wq(struct ibv_wq *wq);
struct ibv_rwq_ind_table *front_create_rwq_ind_table(struct ibv_context *context,
                                                     struct ibv_rwq_ind_table_init_attr *attributes);
int front_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table);

/* flow.c */
struct ibv_flow *front_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attributes);
int front_destroy_flow(struct ibv_flow *flow);
struct ibv_counters *front_create_counters(struct ibv_context *context,
                                           struct ibv_counters_init_attr *attributes);
int front_destroy_counters(struct ibv_counters *counters);
int front_attach_counters_point_flow(struct ibv_counters *counters,
                                     struct ibv_counter_attach_attr *attributes, struct ibv_flow *flow);
int front_read_counters(struct ibv_counters *counters, uint64_t *values, uint32_t count, uint32_t flags);

/* wr.c */
void front_fill_wr_ops(struct ibv_qp_ex *qp);
int front_wr_complete(struct ibv_qp_ex *qp);
void front_fill_context_ops(struct ibv_context_ops *ops);

#endif
