/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* As layout_asserts.c, for librdmacm (compatibility.md §3). */
#include <stddef.h>

#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#define OFFSET(type, member, bytes)                                                                          \
    _Static_assert(offsetof(struct type, member) == (bytes), #type "." #member)

SIZE(rdma_cm_id, 416);
OFFSET(rdma_cm_id, verbs, 0);
OFFSET(rdma_cm_id, channel, 8);
OFFSET(rdma_cm_id, context, 16);
OFFSET(rdma_cm_id, qp, 24);
OFFSET(rdma_cm_id, route, 32);
OFFSET(rdma_cm_id, route.addr.dst_addr, 160);
OFFSET(rdma_cm_id, route.path_rec, 328);
OFFSET(rdma_cm_id, ps, 344);
OFFSET(rdma_cm_id, port_num, 348);
OFFSET(rdma_cm_id, event, 352);
OFFSET(rdma_cm_id, send_cq_channel, 360);
OFFSET(rdma_cm_id, send_cq, 368);
OFFSET(rdma_cm_id, recv_cq_channel, 376);
OFFSET(rdma_cm_id, recv_cq, 384);
OFFSET(rdma_cm_id, srq, 392);
OFFSET(rdma_cm_id, pd, 400);
OFFSET(rdma_cm_id, qp_type, 408);
SIZE(rdma_cm_event, 80);
OFFSET(rdma_cm_event, param, 24);
SIZE(rdma_conn_param, 24);
SIZE(rdma_ud_param, 56);
SIZE(rdma_addrinfo, 96);
SIZE(rdma_event_channel, 4);
SIZE(rdma_cm_join_mc_attr_ex, 16);
SIZE(sockaddr_ib, 48);
