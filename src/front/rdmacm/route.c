/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Resolves an address to a device and a path (verbs.md §11.4), from the interfaces and the kernel's routes alone.
 * Nothing waits: the event is queued before the call returns. */
#include <endian.h>
#include <stdlib.h>

#include "base/pkey.h"
#include "base/refusal.h"
#include "front/rdmacm/front.h"

/* --- addresses ------------------------------------------------------------------------------------------ */

/* Sets device, port and path address from the source address. */
static int settle_source(struct id *id, const struct sockaddr_storage *source)
{
    const struct sockaddr *address = (const struct sockaddr *)source;
    struct rdma_addr *known = &id->public.route.addr;
    union ibv_gid gid = address_gid(address);
    struct adapter *adapter;
    uint16_t port = address_port(id_source(id));
    uint8_t sgid_index;
    int error = adapter_find(&gid, address_scope(address), &adapter, &sgid_index);

    if (error)
        return error;
    if (!port && !id->own_port)
        id->own_port = calls->port_take();
    if (!port)
        port = id->own_port;
    if (!port)
        return -EADDRNOTAVAIL;
    error = id_set_device(id, adapter, sgid_index);
    if (error)
        return error;
    memcpy(&known->src_storage, source, sizeof(*source));
    address_set_port(id_source(id), port);
    known->addr.ibaddr.pkey = htobe16(DEFAULT_PKEY);
    return adapter_gid(adapter, sgid_index, &known->addr.ibaddr.sgid);
}

static int resolve(struct id *id, const struct sockaddr *from, const struct sockaddr *to)
{
    struct rdma_addr *known = &id->public.route.addr;
    struct sockaddr_storage source;
    int error;

    if (id_state(id) == ID_BOUND && !address_is_any(id_source(id)))
        from = id_source(id);
    error = address_source(to, from, &source);
    if (error)
        return error;
    error = settle_source(id, &source);
    if (error)
        return error;
    memset(&known->dst_storage, 0, sizeof(known->dst_storage));
    memcpy(&known->dst_storage, to, (size_t)address_length(to));
    if (address_is_any(to)) { /* as with sockets, the wildcard means this host */
        memcpy(&known->dst_storage, &known->src_storage, sizeof(known->dst_storage));
        address_set_port(id_destination(id), address_port(to));
    }
    known->addr.ibaddr.dgid = address_gid(id_destination(id));
    return 0;
}

/* A source address given in the call binds the id, except for the port, to which no peer will connect. */
static int check_source(struct id *id, const struct sockaddr *from, const struct sockaddr *to)
{
    if (address_length(to) < 0)
        return -EINVAL;
    if (from && from->sa_family != to->sa_family)
        return refuse_because(-EINVAL, "src_addr and dst_addr are of different address families (sa_family)");
    if (id_state(id) == ID_BOUND) {
        if (id_source(id)->sa_family != to->sa_family && !address_is_any(id_source(id)))
            return refuse_because(
                -EINVAL, "dst_addr has another sa_family than the address that the cm_id is bound to");
        if (from && !address_is_any(from) && !address_is_any(id_source(id)) &&
            !addresses_equal(from, id_source(id)))
            return refuse_because(-EINVAL,
                                  "src_addr is not the address that the cm_id is bound to: pass that "
                                  "one, or NULL");
        return 0;
    }
    if (id_state(id) != ID_IDLE)
        return id_refuse_state(id, STATE_BIT(ID_IDLE) | STATE_BIT(ID_BOUND));
    return from && address_port(from) ? bind_address(id, from) : 0;
}

RDMACM_EXPORT int rdma_resolve_addr(struct rdma_cm_id *public, struct sockaddr *from, struct sockaddr *to,
                                    int timeout_ms)
{
    struct id *id = id_of(public);
    bool synchronous;
    int error, injected;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_resolve_addr"));
    if (!to)
        return conclude(refuse_null("dst_addr"));
    if (from && from->sa_family == AF_UNSPEC)
        from = NULL;
    error = check_source(id, from, to);
    if (error)
        return conclude(error);
    injected = calls->injected(false);
    error = injected ? injected : resolve(id, from, to);
    if (error == -EADDRNOTAVAIL && !injected)
        return conclude(error); /* the source is not an address of this host */
    if (!error)
        id_enter(id, ID_ADDRESS_RESOLVED);
    synchronous = id->synchronous;
    error = event_raise(id, error ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ADDR_RESOLVED, error);
    return conclude(error ? error : id_complete(id, synchronous));
}

/* --- paths ---------------------------------------------------------------------------------------------- */

enum { SELECT_EXACTLY = 2, LIFETIME = 14 };

/* The MTU of both ends, where the destination is another interface of this host; otherwise that of the source. */
static int find_mtu(struct id *id, enum ibv_mtu *ret_mtu)
{
    const struct rdma_ib_addr *addresses = &id->public.route.addr.addr.ibaddr;
    const struct adapter *other = adapter_known(&addresses->dgid);
    struct ibv_port_attr ours, theirs;
    int error = -ibv_query_port(id->public.verbs, 1, &ours);

    if (error)
        return error;
    *ret_mtu = ours.active_mtu;
    if (other && ibv_query_port(other->verbs, 1, &theirs) == 0)
        *ret_mtu = min_of(ours.active_mtu, theirs.active_mtu);
    return 0;
}

static int find_path(struct id *id, struct ibv_sa_path_rec *ret_path)
{
    const struct rdma_ib_addr *addresses = &id->public.route.addr.addr.ibaddr;
    enum ibv_mtu mtu;
    int error = find_mtu(id, &mtu);

    if (error)
        return error;
    *ret_path = (struct ibv_sa_path_rec){
        .dgid = addresses->dgid,
        .sgid = addresses->sgid,
        .hop_limit = HOP_LIMIT,
        .traffic_class = id->tos,
        .reversible = 1,
        .numb_path = 1,
        .pkey = addresses->pkey,
        .mtu_selector = SELECT_EXACTLY,
        .mtu = (uint8_t)mtu,
        .rate_selector = SELECT_EXACTLY,
        .rate = IBV_RATE_100_GBPS,
        .packet_life_time_selector = SELECT_EXACTLY,
        .packet_life_time = LIFETIME,
    };
    return 0;
}

static int set_path(struct id *id, const struct ibv_sa_path_rec *path)
{
    struct rdma_route *route = &id->public.route;

    if (!route->path_rec)
        route->path_rec = malloc(sizeof(*path));
    if (!route->path_rec)
        return -ENOMEM;
    *route->path_rec = *path;
    route->num_paths = 1;
    id_enter(id, ID_ROUTE_RESOLVED);
    return event_raise(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

RDMACM_EXPORT int rdma_resolve_route(struct rdma_cm_id *public, int timeout_ms)
{
    struct id *id = id_of(public);
    struct ibv_sa_path_rec path;
    bool synchronous;
    int error;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_resolve_route"));
    if (id_state(id) != ID_ADDRESS_RESOLVED)
        return conclude(id_refuse_state(id, STATE_BIT(ID_ADDRESS_RESOLVED)));
    synchronous = id->synchronous;
    error = calls->injected(true);
    if (!error)
        error = find_path(id, &path);
    error = error ? event_raise(id, RDMA_CM_EVENT_ROUTE_ERROR, error) : set_path(id, &path);
    return conclude(error ? error : id_complete(id, synchronous));
}

int route_set(struct id *id, const void *paths, size_t length)
{
    const struct rdma_ib_addr *addresses = &id->public.route.addr.addr.ibaddr;
    struct ibv_sa_path_rec path;
    struct ibv_path_data data;
    int error;

    if (id_state(id) != ID_ADDRESS_RESOLVED || length == 0 || length % sizeof(data))
        return -EINVAL;
    error = find_path(id, &path);
    if (error)
        return error;
    for (size_t at = 0; at < length; at += sizeof(data)) {
        memcpy(&data, (const char *)paths + at, sizeof(data));
        if (data.flags != (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL))
            continue;
        if (memcmp(&data.path.sgid, &addresses->sgid, sizeof(data.path.sgid)) != 0 ||
            memcmp(&data.path.dgid, &addresses->dgid, sizeof(data.path.dgid)) != 0)
            return -EINVAL;
        path.traffic_class = data.path.tclass;
        path.mtu = (uint8_t)min_of(path.mtu, data.path.mtu & 0x3f);
        return set_path(id, &path);
    }
    return -EINVAL;
}
