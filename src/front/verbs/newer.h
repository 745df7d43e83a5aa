/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Verbs added to rdma-core after release 44, after their manual pages; the values are ABI. Structures of the program
 * are declared here with names of their own, so that any version of verbs.h will do. */
#ifndef FRONT_VERBS_NEWER_H
#define FRONT_VERBS_NEWER_H

#include "base/verbs.h"

struct ibv_buf;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;

/* IBVERBS_1.15 (59) */
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attributes);
struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attributes);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);
/* 1.16 (62) */
int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *ret_speed);
/* 1.17 (64) */
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **ret_buffer);
void ibv_free_buf(struct ibv_buf *buffer);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buffer, void *address, size_t length,
                              int access);
/* 1.18 (65) */
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buffer);
int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
                                           struct ibv_comp_cntr_init_attr *attributes);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter);
int ibv_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
                            struct ibv_qp_attach_comp_cntr_attr *attributes);

#endif
