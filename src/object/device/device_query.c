/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The results of ibv_query_device and ibv_query_port (verbs.md §10.2-10.5, compatibility.md §5). Only
 * capabilities that are implemented are reported. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/types.h"
#include "object/device/device.h"
#include "rules/flush.h"
#include "steering/toeplitz.h"

#define HARDWARE_VERSION 1u

#define CAPABILITIES                                                                                         \
    (IBV_DEVICE_BAD_PKEY_CNTR | IBV_DEVICE_BAD_QKEY_CNTR | IBV_DEVICE_UD_AV_PORT_ENFORCE |                   \
     IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID |               \
     IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW |                             \
     IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC |                        \
     IBV_DEVICE_MANAGED_FLOW_STEERING)

/* The largest overhead of a RoCE v2 packet: IPv6 40, UDP 8, BTH 12, XRCETH 4, AtomicETH 28, ICRC 4 bytes. */
#define PACKET_OVERHEAD 96u

static enum ibv_mtu active_mtu(uint32_t netdev_mtu)
{
    enum ibv_mtu mtu = IBV_MTU_256;

    while (mtu < IBV_MTU_4096 && (256u << mtu) + PACKET_OVERHEAD <= netdev_mtu)
        mtu++;
    return mtu;
}

enum ibv_mtu device_active_mtu(struct device_table *table, const struct device *device)
{
    enum ibv_mtu mtu;

    lock_acquire(&table->lock);
    mtu = active_mtu(device->mtu);
    lock_release(&table->lock);
    return mtu;
}

uint32_t device_mtu(struct device_table *table, const struct device *device)
{
    uint32_t mtu;

    lock_acquire(&table->lock);
    mtu = device->mtu;
    lock_release(&table->lock);
    return mtu;
}

void device_query(struct device_table *table, const struct device *device,
                  union newest_device_attr *ret_newest)
{
    struct ibv_device_attr_ex *ret_attributes = &ret_newest->ibv;
    struct ibv_device_attr *base = &ret_attributes->orig_attr;

    memset(ret_newest, 0, sizeof(*ret_newest));
    snprintf(base->fw_ver, sizeof(base->fw_ver), "%s", SOFTHCA_VERSION);
    memcpy(&base->node_guid, device->node_guid, sizeof(base->node_guid));
    memcpy(&base->sys_image_guid, device->node_guid, sizeof(base->sys_image_guid));
    base->max_mr_size = UINT64_MAX;
    base->page_size_cap = 0xfffff000u;
    base->vendor_id = DEVICE_VENDOR;
    base->vendor_part_id = table->options.vendor_part_id;
    base->hw_ver = HARDWARE_VERSION;
    base->max_qp = LIMIT_QP;
    base->max_qp_wr = LIMIT_QP_WR;
    base->device_cap_flags = CAPABILITIES;
    base->max_sge = LIMIT_SGE;
    base->max_sge_rd = LIMIT_SGE;
    base->max_cq = LIMIT_CQ;
    base->max_cqe = LIMIT_CQE;
    base->max_mr = LIMIT_MR;
    base->max_pd = LIMIT_PD;
    base->max_qp_rd_atom = LIMIT_RD_ATOMIC;
    base->max_res_rd_atom = (int)(LIMIT_QP * LIMIT_RD_ATOMIC);
    base->max_qp_init_rd_atom = LIMIT_RD_ATOMIC;
    base->atomic_cap = IBV_ATOMIC_GLOB;
    base->max_mw = LIMIT_MW;
    base->max_raw_ethy_qp = LIMIT_QP;
    base->max_mcast_grp = LIMIT_MULTICAST_GROUPS;
    base->max_mcast_qp_attach = LIMIT_MULTICAST_ATTACH;
    base->max_total_mcast_qp_attach = (int)(LIMIT_MULTICAST_GROUPS * LIMIT_MULTICAST_ATTACH);
    base->max_ah = LIMIT_AH;
    base->max_srq = LIMIT_SRQ;
    base->max_srq_wr = LIMIT_SRQ_WR;
    base->max_srq_sge = LIMIT_SRQ_SGE;
    base->max_pkeys = 1;
    base->local_ca_ack_delay = 15;
    base->phys_port_cnt = 1;

    ret_attributes->completion_timestamp_mask = UINT64_MAX;
    ret_attributes->hca_core_clock = NS_PER_S / 1000; /* kHz: timestamps count nanoseconds */
    ret_attributes->device_cap_flags_ex = CAPABILITIES | IBV_DEVICE_RAW_SCATTER_FCS |
                                          IBV_DEVICE_PCI_WRITE_END_PADDING | DEVICE_FLUSH_GLOBAL |
                                          DEVICE_ATOMIC_WRITE;
    ret_attributes->rss_caps.supported_qpts = 1u << IBV_QPT_RAW_PACKET;
    ret_attributes->rss_caps.rx_hash_fields_mask = TOEPLITZ_FIELDS;
    ret_attributes->rss_caps.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
    ret_attributes->rss_caps.max_rwq_indirection_tables = LIMIT_IND_TABLES;
    ret_attributes->rss_caps.max_rwq_indirection_table_size = LIMIT_IND_TABLE_SIZE;
    ret_attributes->max_wq_type_rq = LIMIT_WQ;
    ret_attributes->raw_packet_caps =
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | IBV_RAW_PACKET_CAP_SCATTER_FCS | IBV_RAW_PACKET_CAP_DELAY_DROP;
    ret_attributes->odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    ret_attributes->odp_caps.per_transport_caps.rc_odp_caps =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
        IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV | ODP_SUPPORT_FLUSH | ODP_SUPPORT_ATOMIC_WRITE;
    ret_attributes->odp_caps.per_transport_caps.uc_odp_caps =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_SRQ_RECV;
    ret_attributes->odp_caps.per_transport_caps.ud_odp_caps =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    ret_attributes->xrc_odp_caps = ret_attributes->odp_caps.per_transport_caps.rc_odp_caps;
    ret_attributes->max_dm_size = LIMIT_DM_SIZE;
    ret_attributes->tm_caps.max_rndv_hdr_size = LIMIT_RENDEZVOUS_HEADER;
    ret_attributes->tm_caps.max_num_tags = LIMIT_TAGS;
    ret_attributes->tm_caps.flags = IBV_TM_CAP_RC;
    ret_attributes->tm_caps.max_ops = LIMIT_TAG_OPS;
    ret_attributes->tm_caps.max_sge = LIMIT_TAG_SGE;
    ret_attributes->cq_mod_caps.max_cq_count = LIMIT_CQ_MODERATION_COUNT;
    ret_attributes->cq_mod_caps.max_cq_period = LIMIT_CQ_MODERATION_PERIOD;
    ret_newest->phys_port_cnt_ex = 1;
}

int device_query_port(struct device_table *table, const struct device *device, uint32_t port,
                      struct ibv_port_attr *ret_attributes)
{
    enum { LINK_UP = 5, DISABLED = 3, WIDTH_4X = 2, SPEED_EDR = 32, ONE_VL = 1 };
    bool running;

    if (port != 1)
        return -EINVAL;
    memset(ret_attributes, 0, sizeof(*ret_attributes));
    lock_acquire(&table->lock);
    running = device->running && !device_port_is_down(device);
    ret_attributes->active_mtu = active_mtu(device->mtu);
    lock_release(&table->lock);

    ret_attributes->state = running ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    ret_attributes->phys_state = running ? LINK_UP : DISABLED;
    ret_attributes->max_mtu = IBV_MTU_4096;
    ret_attributes->gid_tbl_len = LIMIT_GIDS;
    ret_attributes->port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    ret_attributes->max_msg_sz = LIMIT_MESSAGE;
    ret_attributes->bad_pkey_cntr = atomic_load_explicit(&device->counters.bad_pkeys, memory_order_relaxed);
    ret_attributes->qkey_viol_cntr = atomic_load_explicit(&device->counters.bad_qkeys, memory_order_relaxed);
    ret_attributes->pkey_tbl_len = 1;
    ret_attributes->max_vl_num = ONE_VL;
    ret_attributes->active_width = WIDTH_4X;
    ret_attributes->active_speed = SPEED_EDR;
    ret_attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    ret_attributes->flags = IBV_QPF_GRH_REQUIRED;
    return 0;
}
