/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Source addresses and ports (verbs.md §11.4). Port spaces belong to the host, not to the process:
 * engine/cm/services.h. */
#include <fcntl.h>
#include <infiniband/ib.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <linux/capability.h>

#include "base/fd.h"
#include "base/pkey.h"
#include "base/refusal.h"
#include "base/sys.h"
#include "front/rdmacm/front.h"

#define FIRST_UNPRIVILEGED 1024
#define EPHEMERAL_TRIES    256

static int number_in(const char *path, int otherwise)
{
    char text[16];
    int fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC)), saved = errno;
    ssize_t length = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

    if (fd >= 0)
        close(fd);
    errno = saved;
    if (length <= 0)
        return otherwise;
    text[length] = '\0';
    return atoi(text);
}

static int check_privilege(uint16_t port)
{
    int first = FIRST_UNPRIVILEGED;

    if (port < first)
        first = number_in("/proc/sys/net/ipv4/ip_unprivileged_port_start", first);
    if (port >= first || sys_has_capability(CAP_NET_BIND_SERVICE))
        return 0;
    return refuse(-EACCES, REFUSAL_PRIVILEGED, "", port, (uint64_t)first, 0);
}

static int refuse_if_taken(int error, const struct sockaddr *address)
{
    return error == -EADDRINUSE ? refuse(error, REFUSAL_PORT_TAKEN, "", address_port(address), 0, 0) : error;
}

/* The address families that a wildcard stands for. */
static uint8_t any_of(const struct id *id, const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return SERVICE_ANY_IPV4;
    if (id->one_family || (!id->one_family_set && number_in("/proc/sys/net/ipv6/bindv6only", 0) &&
                           address->sa_family == AF_INET6))
        return SERVICE_ANY_IPV6;
    return SERVICE_ANY_IPV4 | SERVICE_ANY_IPV6;
}

static int reserve(struct id *id, const struct sockaddr *address)
{
    struct service_address service = {.service_id = address_service(address, id->public.ps)};
    union ibv_gid gid = address_gid(address);

    if (address_is_any(address))
        service.any = any_of(id, address);
    else
        memcpy(service.gid, gid.raw, sizeof(service.gid));
    if (address_is_loopback(address))
        service.host = any_of(id, address);
    return calls->service_reserve(&service, id->reuse_address, &id->service);
}

static int reserve_ephemeral(struct id *id, struct sockaddr *address)
{
    int error = -EADDRNOTAVAIL;

    for (unsigned i = 0; i < EPHEMERAL_TRIES; i++) {
        uint16_t port = calls->port_propose();

        address_set_port(address, port);
        error = reserve(id, address);
        if (error != -EADDRINUSE)
            return error;
    }
    return error;
}

/* Completes the service ID of an AF_IB address, which may leave the port space open. */
static int complete_gid_address(const struct id *id, struct sockaddr_ib *address)
{
    uint64_t sid = be64toh(address->sib_sid), mask = be64toh(address->sib_sid_mask);
    uint64_t own = (uint64_t)id->public.ps << 16;

    /* A single service, not a range. */
    if ((mask & RDMA_IB_IP_PORT_MASK) && (mask & RDMA_IB_IP_PORT_MASK) != RDMA_IB_IP_PORT_MASK)
        return -EINVAL;
    if ((mask & RDMA_IB_IP_PS_MASK) && ((sid ^ own) & mask & RDMA_IB_IP_PS_MASK))
        return -EINVAL;
    if (!(mask & RDMA_IB_IP_PORT_MASK))
        sid &= RDMA_IB_IP_PS_MASK;
    address->sib_sid = htobe64(own | (sid & RDMA_IB_IP_PORT_MASK));
    address->sib_sid_mask = htobe64(UINT64_MAX);
    return 0;
}

int bind_to_device(struct id *id, const struct sockaddr *address)
{
    union ibv_gid gid = address_gid(address);
    struct adapter *adapter;
    uint8_t sgid_index;
    int error = adapter_find(&gid, address_scope(address), &adapter, &sgid_index);

    if (error == -ENODEV)
        return refuse(error, REFUSAL_NO_ADAPTER, "", 0, gid.global.subnet_prefix, gid.global.interface_id);
    if (!error)
        error = id_set_device(id, adapter, sgid_index);
    return error ? error : adapter_gid(adapter, sgid_index, &id->public.route.addr.addr.ibaddr.sgid);
}

int bind_address(struct id *id, const struct sockaddr *wanted)
{
    struct sockaddr_storage storage = {0};
    struct sockaddr *address = (struct sockaddr *)&storage;
    int length = address_length(wanted), error = 0;

    if (length < 0)
        return length;
    if (id_state(id) != ID_IDLE)
        return id_refuse_state(id, STATE_BIT(ID_IDLE));
    memcpy(&storage, wanted, (size_t)length);
    if (address->sa_family == AF_IB)
        error = complete_gid_address(id, (struct sockaddr_ib *)(void *)address);
    if (error)
        return error;
    if (address_port(address))
        error = check_privilege(address_port(address));
    if (!error && !address_is_any(address) && !address_is_loopback(address))
        error = bind_to_device(id, address);
    if (!error)
        error = address_port(address) ? reserve(id, address) : reserve_ephemeral(id, address);
    if (error) {
        id_clear_device(id);
        return refuse_if_taken(error, address);
    }
    memcpy(id_source(id), &storage, (size_t)length);
    id->public.route.addr.addr.ibaddr.pkey = htobe16(DEFAULT_PKEY);
    id_enter(id, ID_BOUND);
    return 0;
}

RDMACM_EXPORT int rdma_bind_addr(struct rdma_cm_id *public, struct sockaddr *address)
{
    struct id *id = id_of(public);

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_bind_addr"));
    return conclude(address ? bind_address(id, address) : refuse_null("addr"));
}

RDMACM_EXPORT int rdma_listen(struct rdma_cm_id *public, int backlog)
{
    struct id *id = id_of(public);
    const struct sockaddr_in any = {.sin_family = AF_INET};
    int error = 0;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_listen"));
    if (backlog <= 0 || backlog > BACKLOG_MAX)
        backlog = BACKLOG_MAX;
    if (id_state(id) == ID_IDLE)
        error = bind_address(id, (const struct sockaddr *)&any);
    if (!error && id_state(id) != ID_BOUND && id_state(id) != ID_LISTENING)
        error = id_refuse_state(id, STATE_BIT(ID_IDLE) | STATE_BIT(ID_BOUND));
    if (!error)
        error = refuse_if_taken(calls->service_listen(id->service, id, (unsigned)backlog), id_source(id));
    if (!error)
        id_enter(id, ID_LISTENING);
    return conclude(error);
}

RDMACM_EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *public)
{
    return htobe16(address_port(id_source(id_of(public))));
}

RDMACM_EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *public)
{
    return htobe16(address_port(id_destination(id_of(public))));
}
