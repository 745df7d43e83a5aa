/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Address handles and the paths of connected QPs (verbs.md §8.2). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/pd/pd.h"
#include "segment/provenance.h"

/* The kernel's default for RoCE v2 paths without a hop limit. */
#define DEFAULT_HOP_LIMIT 64u

static _Atomic uint32_t handles;

static bool gid_is_zero(const uint8_t gid[16])
{
    static const uint8_t zero[16];

    return memcmp(gid, zero, sizeof(zero)) == 0;
}

/* 1 + the first index of a GID that can reach it: of its family, and link-local as it is; 0: there is none. */
static uint32_t index_for(const struct device *device, const uint8_t destination[16])
{
    uint32_t valid = device_valid_gids(&host_devices, device), ifindex;
    uint8_t gid[16];

    for (uint32_t i = 0; i < 32; i++) {
        if (valid & 1u << i && device_query_gid(&host_devices, device, i, gid, &ifindex) == 0 &&
            gid_is_ipv4_mapped(gid) == gid_is_ipv4_mapped(destination) &&
            gid_is_link_local(gid) == gid_is_link_local(destination))
            return i + 1;
    }
    return 0;
}

int path_resolve(struct context *context, const struct ibv_ah_attr *attributes, struct path_address *ret_path)
{
    const struct ibv_global_route *route = &attributes->grh;
    const uint8_t *destination = route->dgid.raw;
    struct path_address path = {
        .flow_label = route->flow_label & 0xfffff,
        .traffic_class = route->traffic_class,
        .hop_limit = route->hop_limit > 1 ? route->hop_limit : DEFAULT_HOP_LIMIT,
        .service_level = attributes->sl,
        .is_multicast = gid_is_multicast(destination),
    };
    uint32_t ifindex;

    /* dlid, src_path_bits and static_rate are not checked: they have no meaning on Ethernet, and programs put
     * any value there. */
    if (!attributes->is_global)
        return refuse(-EINVAL, REFUSAL_NO_GRH, "is_global", 0, 0, 0);
    if (attributes->port_num != 1)
        return refuse_range("port_num", attributes->port_num, 1, 1);
    if (attributes->sl > 15)
        return refuse_range("sl", attributes->sl, 0, 15);
    if (gid_is_zero(destination))
        return refuse(-EINVAL, REFUSAL_ZERO, "grh.dgid", 0, 0, 0);
    if (device_query_gid(&host_devices, context->device, route->sgid_index, path.source_gid,
                         &path.source_ifindex) != 0)
        return refuse(-EINVAL, REFUSAL_NO_GID, "grh.sgid_index", route->sgid_index,
                      device_valid_gids(&host_devices, context->device), 0);
    memcpy(path.destination_gid, destination, sizeof(path.destination_gid));
    if (!path.is_multicast) {
        /* An IPv4 source cannot reach an IPv6 destination, nor the reverse. */
        if (gid_is_ipv4_mapped(path.source_gid) != gid_is_ipv4_mapped(destination))
            return refuse(-EINVAL, REFUSAL_FAMILIES, "grh.dgid", route->sgid_index,
                          gid_is_ipv4_mapped(destination) ? 1 : 2, index_for(context->device, destination));
        if (device_table_is_local(&host_devices, destination, &ifindex))
            path.destination_ifindex = ifindex;
    }
    *ret_path = path;
    return 0;
}

int ah_create(struct pd *pd, const struct ibv_ah_attr *attributes, struct ah **ret_ah)
{
    struct path_address path;
    struct ah *ah;
    int error = pd->context == &destroyed_context ? 0 : path_resolve(pd->context, attributes, &path);

    if (!error)
        error = pd_use(pd, "ibv_create_ah");
    if (error)
        return error;
    if (atomic_fetch_add_explicit(&handles, 1, memory_order_relaxed) >= LIMIT_AH)
        goto uncount;
    ah = malloc(sizeof(*ah));
    if (!ah)
        goto uncount;
    ah->pd = pd;
    ah->port = attributes->port_num;
    ah->sgid_index = attributes->grh.sgid_index;
    ah->path = path;
    ah->item = item_take(OBJECT_AH, 0, pd->context->number, pd->number, path.destination_gid);
    if (ah->item != NO_OBJECT)
        provenance_in_domain(&segment_item(ah->item)->provenance, pd->record_number);
    ah->ibv.context = pd->ibv.context;
    ah->ibv.pd = &pd->ibv;
    ah->ibv.handle = 0; /* AHs are not imported, so their handles need not be unique */
    *ret_ah = ah;
    return 0;

uncount:
    atomic_fetch_sub_explicit(&handles, 1, memory_order_relaxed);
    pd_unuse(pd);
    return refuse_count("AHs", LIMIT_AH);
}

int ah_destroy(struct ah *ah)
{
    if (destroyed_has(DESTROYED_AH, ah, "ibv_destroy_ah"))
        return -EINVAL;
    if (context_is_inherited(ah->pd->context))
        return 0;
    atomic_fetch_sub_explicit(&handles, 1, memory_order_relaxed);
    item_return(ah->item);
    pd_unuse(ah->pd);
    ah->pd = &destroyed_pd;
    destroyed_keep(DESTROYED_AH, ah, ah->item);
    return 0;
}
