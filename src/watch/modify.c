/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why the adapter refused an ibv_modify_qp(): the specification's rules, and what the adapter says of itself. */
#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "rules/transitions.h"
#include "watch/calls.h"
#include "watch/modify.h"

static struct original query_device = {
    .library = ORIGINAL_VERBS, .name = "ibv_query_device", .version = "IBVERBS_1.1"};
static struct original query_port = {
    .library = ORIGINAL_VERBS, .name = "ibv_query_port", .version = "IBVERBS_1.1"};
static struct original query_gid = {
    .library = ORIGINAL_VERBS, .name = "ibv_query_gid", .version = "IBVERBS_1.1"};

typedef int (*query_device_type)(struct ibv_context *context, struct ibv_device_attr *ret);
typedef int (*query_port_type)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *ret);
typedef int (*query_gid_type)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *ret);

static uint32_t valid_gids(struct ibv_context *context, uint8_t port, int count)
{
    query_gid_type original = (query_gid_type)original_find(&query_gid);
    static const union ibv_gid zero;
    union ibv_gid gid;
    uint32_t valid = 0;

    for (int i = 0; original && i < min_of(count, 32); i++) {
        if (INSIDE(original(context, port, i, &gid)) == 0 && memcmp(&gid, &zero, sizeof(gid)) != 0)
            valid |= 1u << i;
    }
    return valid;
}

/* What the rules below would decide by SoftHCA's own limits, or cannot decide, passes them. */
static void pass_the_adapters_part(struct ibv_qp_attr *attr, int *mask, bool roce, uint32_t gids)
{
    *mask &= ~(IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_RATE_LIMIT);
    attr->port_num = 1;
    attr->pkey_index = 0;
    attr->max_rd_atomic = attr->max_dest_rd_atomic = 1;
    attr->ah_attr.port_num = 1;
    if (!roce)
        attr->ah_attr.is_global = 1; /* InfiniBand needs none within a subnet */
    if (!roce || attr->ah_attr.grh.sgid_index >= 32 || !gids)
        attr->ah_attr.grh.sgid_index = (uint8_t)(gids ? __builtin_ctz(gids) : 0);
    if (!roce)
        attr->ah_attr.grh.dgid.raw[15] |= 1;
}

/* Attributes that the adapter limits. 0: they are within. */
static int exceeds(struct ibv_context *context, const struct ibv_qp_attr *attr, int mask)
{
    query_device_type original = (query_device_type)original_find(&query_device);
    struct ibv_device_attr device;

    if (!original || INSIDE(original(context, &device)) != 0)
        return 0;
    if (mask & IBV_QP_PORT && (attr->port_num < 1 || attr->port_num > device.phys_port_cnt))
        return refuse_range("port_num", attr->port_num, 1, device.phys_port_cnt);
    if (mask & IBV_QP_PKEY_INDEX && attr->pkey_index >= device.max_pkeys)
        return refuse_range("pkey_index", attr->pkey_index, 0, (uint64_t)device.max_pkeys - 1);
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > device.max_qp_init_rd_atom)
        return refuse_range("max_rd_atomic", attr->max_rd_atomic, 0, (uint64_t)device.max_qp_init_rd_atom);
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > device.max_qp_rd_atom)
        return refuse_range("max_dest_rd_atomic", attr->max_dest_rd_atomic, 0,
                            (uint64_t)device.max_qp_rd_atom);
    return 0;
}

int modify_breaks_rules(const struct qp_record *record, struct ibv_qp *qp, const struct ibv_qp_attr *attr,
                        int mask)
{
    query_port_type original = (query_port_type)original_find(&query_port);
    uint8_t port = mask & IBV_QP_PORT ? attr->port_num : record->attributes.port;
    struct ibv_port_attr state = {.active_mtu = IBV_MTU_4096};
    bool known = original && INSIDE(original(qp->context, port, &state)) == 0;
    bool roce = known && state.link_layer == IBV_LINK_LAYER_ETHERNET;
    struct transition_limits limits = {.active_mtu = known ? state.active_mtu : IBV_MTU_4096,
                                       .gid_entries_valid = UINT32_MAX,
                                       .controlled_qkeys = true};
    struct ibv_qp_attr passed = *attr;
    int passed_mask = mask, error;

    if (roce)
        limits.gid_entries_valid = valid_gids(qp->context, port, state.gid_tbl_len);
    pass_the_adapters_part(&passed, &passed_mask, roce, limits.gid_entries_valid);
    error = transition_check((enum ibv_qp_type)record->type, (enum ibv_qp_state)record->state, &passed,
                             passed_mask, &limits);
    return error ? error : exceeds(qp->context, attr, mask);
}
