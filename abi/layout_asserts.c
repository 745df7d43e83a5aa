/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What applications were compiled against (verbs.md §0.4, compatibility.md §3), whatever header the library is built
 * with: a header that differs does not build, and what a structure has gained since rdma-core 33 is compared with our
 * declarations of it (base/verbs.h). Sizes hold for every 64-bit architecture that we build for;
 * those of pthread types differ on aarch64 (pthread_mutex_t is 48 bytes there), so structures that contain
 * one are asserted on x86-64. */
#include <stddef.h>
#include <stdint.h>

#include "base/verbs.h"
#include "object/device/context.h"

#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#define OFFSET(type, member, bytes)                                                                          \
    _Static_assert(offsetof(struct type, member) == (bytes), #type "." #member)
/* It has grown since rdma-core 33, at its end: nobody is told its size, or it is passed along. */
#define GROWN(type, bytes) _Static_assert(sizeof(struct type) >= (bytes), #type)
/* verbs_context grows at its head: programs count from its end. */
#define OPERATION(member, bytes)                                                                             \
    _Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, member) ==       \
                       (bytes),                                                                              \
                   "verbs_context." #member)

SIZE(ibv_device, 664);
OFFSET(ibv_device, node_type, 16);
OFFSET(ibv_device, transport_type, 20);
OFFSET(ibv_device, name, 24);
OFFSET(ibv_device, dev_name, 88);
OFFSET(ibv_device, dev_path, 152);
OFFSET(ibv_device, ibdev_path, 408);

OFFSET(ibv_context, device, 0);
OFFSET(ibv_context, ops, 8);
OFFSET(ibv_context, ops.alloc_mw, 64);
OFFSET(ibv_context, ops.bind_mw, 72);
OFFSET(ibv_context, ops.dealloc_mw, 80);
OFFSET(ibv_context, ops.poll_cq, 96);
OFFSET(ibv_context, ops.req_notify_cq, 104);
OFFSET(ibv_context, ops.post_srq_recv, 168);
OFFSET(ibv_context, ops.post_send, 208);
OFFSET(ibv_context, ops.post_recv, 216);
OFFSET(ibv_context, cmd_fd, 264);
OFFSET(ibv_context, async_fd, 268);
OFFSET(ibv_context, num_comp_vectors, 272);
OFFSET(ibv_context, mutex, 280);

OPERATION(query_port, 320);
OPERATION(create_cq_ex, 120);
OPERATION(priv, 112);
OPERATION(query_device_ex, 104);
OPERATION(ibv_create_flow, 80);
OPERATION(create_qp_ex, 56);
OPERATION(sz, 8);

SIZE(ibv_pd, 16);
SIZE(ibv_mr, 48);
OFFSET(ibv_mr, lkey, 36);
OFFSET(ibv_mr, rkey, 40);
SIZE(ibv_mw, 32);
SIZE(ibv_ah, 24);
SIZE(ibv_dm, 32);
SIZE(ibv_comp_channel, 16);
OFFSET(ibv_comp_channel, fd, 8);
OFFSET(ibv_comp_channel, refcnt, 12);
SIZE(ibv_rwq_ind_table, 24);
SIZE(ibv_flow, 24);
SIZE(ibv_flow_attr, 20);

OFFSET(ibv_cq, mutex, 32);
OFFSET(ibv_qp, qp_num, 52);
OFFSET(ibv_qp, state, 56);
OFFSET(ibv_qp, qp_type, 60);
OFFSET(ibv_qp, mutex, 64);

SIZE(ibv_wc, 48);
SIZE(ibv_send_wr, 128);
SIZE(ibv_recv_wr, 32);
SIZE(ibv_sge, 16);
SIZE(ibv_ops_wr, 72);
SIZE(ibv_grh, 40);
SIZE(ibv_device_attr, 232);
SIZE(ibv_device_attr_ex, 400);
GROWN(ibv_port_attr, 52);
OFFSET(ibv_port_attr, link_layer, 46);
OFFSET(ibv_port_attr, flags, 47);
OFFSET(ibv_port_attr, port_cap_flags2, 48);
SIZE(ibv_qp_attr, 144);
SIZE(ibv_qp_init_attr, 64);
SIZE(ibv_qp_init_attr_ex, 136);
SIZE(ibv_cq_init_attr_ex, 56);
SIZE(ibv_srq_init_attr_ex, 64);
SIZE(ibv_gid_entry, 32);
SIZE(ibv_ah_attr, 32);
SIZE(ibv_global_route, 24);
SIZE(ibv_async_event, 16);
SIZE(ibv_values_ex, 24);

#ifdef __x86_64__
SIZE(ibv_context, 328);
OFFSET(ibv_context, abi_compat, 320);
_Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, context) == 328,
               "verbs_context");
GROWN(verbs_context, 648);
SIZE(ibv_cq, 128);
OFFSET(ibv_cq, comp_events_completed, 120);
SIZE(ibv_cq_ex, 288);
OFFSET(ibv_cq_ex, comp_mask, 128);
OFFSET(ibv_cq_ex, status, 132);
OFFSET(ibv_cq_ex, wr_id, 136);
OFFSET(ibv_cq_ex, start_poll, 144);
OFFSET(ibv_cq_ex, read_completion_wallclock_ns, 280);
SIZE(ibv_srq, 128);
SIZE(ibv_wq, 152);
SIZE(ibv_qp, 160);
OFFSET(ibv_qp, events_completed, 152);
GROWN(ibv_qp_ex, 344);
OFFSET(ibv_qp_ex, wr_id, 168);
OFFSET(ibv_qp_ex, wr_atomic_cmp_swp, 184);
OFFSET(ibv_qp_ex, wr_start, 320);
OFFSET(ibv_qp_ex, wr_abort, 336);
_Static_assert(offsetof(union newest_qp, wr_atomic_write) == 344, "ibv_qp_ex.wr_atomic_write");
_Static_assert(offsetof(union newest_qp, wr_flush) == 352, "ibv_qp_ex.wr_flush");
_Static_assert(sizeof(union newest_qp) >= 360, "ibv_qp_ex");
#endif

/* --- our declarations ----------------------------------------------------------------------------------- */

_Static_assert(offsetof(union newest_device_attr, phys_port_cnt_ex) == 396, "newest_device_attr");
_Static_assert(sizeof(union newest_device_attr) >= 400, "newest_device_attr");
_Static_assert(offsetof(union newest_dm, handle) == 28 && sizeof(union newest_dm) >= 32, "newest_dm");
_Static_assert(VERBS_HEAD == 368, "verbs_context");
#ifdef HAVE_IBV_DEVICE_ATTR_EX_PHYS_PORT_CNT_EX
OFFSET(ibv_device_attr_ex, phys_port_cnt_ex, offsetof(union newest_device_attr, phys_port_cnt_ex));
#endif
#ifdef HAVE_IBV_DM_HANDLE
OFFSET(ibv_dm, handle, offsetof(union newest_dm, handle));
#endif
#ifdef HAVE_IBV_PORT_ATTR_ACTIVE_SPEED_EX
OFFSET(ibv_port_attr, active_speed_ex, 52);
#endif
#ifdef HAVE_IBV_QP_EX_WR_ATOMIC_WRITE
OFFSET(ibv_qp_ex, wr_atomic_write, offsetof(union newest_qp, wr_atomic_write));
#endif
#ifdef HAVE_IBV_QP_EX_WR_FLUSH
OFFSET(ibv_qp_ex, wr_flush, offsetof(union newest_qp, wr_flush));
#endif
