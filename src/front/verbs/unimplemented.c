/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names that wait for their object. */
#include <errno.h>
#include <stddef.h>

#include "front/verbs/export.h"

int _ibv_query_gid_ex(void);
VERBS_EXPORT int _ibv_query_gid_ex(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int _ibv_query_gid_table(void);
VERBS_EXPORT int _ibv_query_gid_table(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_ack_async_event(void);
VERBS_EXPORT int ibv_ack_async_event(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_ack_cq_events(void);
VERBS_EXPORT int ibv_ack_cq_events(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

void *ibv_alloc_pd(void);
VERBS_EXPORT void *ibv_alloc_pd(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_attach_mcast(void);
VERBS_EXPORT int ibv_attach_mcast(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_close_device(void);
VERBS_EXPORT int ibv_close_device(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

void *ibv_create_ah(void);
VERBS_EXPORT void *ibv_create_ah(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_create_ah_from_wc(void);
VERBS_EXPORT void *ibv_create_ah_from_wc(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_create_comp_channel(void);
VERBS_EXPORT void *ibv_create_comp_channel(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_create_cq(void);
VERBS_EXPORT void *ibv_create_cq(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_create_qp(void);
VERBS_EXPORT void *ibv_create_qp(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_create_srq(void);
VERBS_EXPORT void *ibv_create_srq(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_dealloc_pd(void);
VERBS_EXPORT int ibv_dealloc_pd(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_dereg_mr(void);
VERBS_EXPORT int ibv_dereg_mr(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_destroy_ah(void);
VERBS_EXPORT int ibv_destroy_ah(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_destroy_comp_channel(void);
VERBS_EXPORT int ibv_destroy_comp_channel(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_destroy_cq(void);
VERBS_EXPORT int ibv_destroy_cq(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_destroy_qp(void);
VERBS_EXPORT int ibv_destroy_qp(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_destroy_srq(void);
VERBS_EXPORT int ibv_destroy_srq(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_detach_mcast(void);
VERBS_EXPORT int ibv_detach_mcast(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_free_device_list(void);
VERBS_EXPORT int ibv_free_device_list(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_get_async_event(void);
VERBS_EXPORT int ibv_get_async_event(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_get_cq_event(void);
VERBS_EXPORT int ibv_get_cq_event(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_get_device_guid(void);
VERBS_EXPORT int ibv_get_device_guid(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_get_device_index(void);
VERBS_EXPORT int ibv_get_device_index(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

void *ibv_get_device_list(void);
VERBS_EXPORT void *ibv_get_device_list(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_get_device_name(void);
VERBS_EXPORT void *ibv_get_device_name(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_get_pkey_index(void);
VERBS_EXPORT int ibv_get_pkey_index(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

void *ibv_import_device(void);
VERBS_EXPORT void *ibv_import_device(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_import_dm(void);
VERBS_EXPORT void *ibv_import_dm(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_import_mr(void);
VERBS_EXPORT void *ibv_import_mr(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_import_pd(void);
VERBS_EXPORT void *ibv_import_pd(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_init_ah_from_wc(void);
VERBS_EXPORT int ibv_init_ah_from_wc(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_modify_qp(void);
VERBS_EXPORT int ibv_modify_qp(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_modify_srq(void);
VERBS_EXPORT int ibv_modify_srq(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

void *ibv_open_device(void);
VERBS_EXPORT void *ibv_open_device(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_qp_to_qp_ex(void);
VERBS_EXPORT void *ibv_qp_to_qp_ex(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_query_device(void);
VERBS_EXPORT int ibv_query_device(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_ece(void);
VERBS_EXPORT int ibv_query_ece(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_gid(void);
VERBS_EXPORT int ibv_query_gid(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_gid_type(void);
VERBS_EXPORT int ibv_query_gid_type(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_pkey(void);
VERBS_EXPORT int ibv_query_pkey(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_port(void);
VERBS_EXPORT int ibv_query_port(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_qp(void);
VERBS_EXPORT int ibv_query_qp(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_qp_data_in_order(void);
VERBS_EXPORT int ibv_query_qp_data_in_order(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_query_srq(void);
VERBS_EXPORT int ibv_query_srq(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

void *ibv_reg_dmabuf_mr(void);
VERBS_EXPORT void *ibv_reg_dmabuf_mr(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_reg_mr(void);
VERBS_EXPORT void *ibv_reg_mr(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_reg_mr_iova2(void);
VERBS_EXPORT void *ibv_reg_mr_iova2(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

void *ibv_reg_mr_iova(void);
VERBS_EXPORT void *ibv_reg_mr_iova(void)
{
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_rereg_mr(void);
VERBS_EXPORT int ibv_rereg_mr(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_resize_cq(void);
VERBS_EXPORT int ibv_resize_cq(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_resolve_eth_l2_from_gid(void);
VERBS_EXPORT int ibv_resolve_eth_l2_from_gid(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_set_ece(void);
VERBS_EXPORT int ibv_set_ece(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_unimport_dm(void);
VERBS_EXPORT int ibv_unimport_dm(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_unimport_mr(void);
VERBS_EXPORT int ibv_unimport_mr(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

int ibv_unimport_pd(void);
VERBS_EXPORT int ibv_unimport_pd(void)
{
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}
