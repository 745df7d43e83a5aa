/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Socket addresses of three families: IPv4, IPv6, and AF_IB (a GID with a service ID). */
#include <endian.h>
#include <infiniband/ib.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/refusal.h"
#include "base/sys.h"
#include "front/rdmacm/front.h"
#include "front/rdmacm/known_routes.h"

/* connect() of a datagram socket looks up a route and sends nothing. */
#define ANY_PORT 9

static const struct sockaddr_in *ipv4(const struct sockaddr *address)
{
    return (const struct sockaddr_in *)(const void *)address;
}

static const struct sockaddr_in6 *ipv6(const struct sockaddr *address)
{
    return (const struct sockaddr_in6 *)(const void *)address;
}

static const struct sockaddr_ib *ib(const struct sockaddr *address)
{
    return (const struct sockaddr_ib *)(const void *)address;
}

int address_length(const struct sockaddr *address)
{
    switch (address->sa_family) {
    case AF_INET:
        return sizeof(struct sockaddr_in);
    case AF_INET6:
        return sizeof(struct sockaddr_in6);
    case AF_IB:
        return sizeof(struct sockaddr_ib);
    default:
        return refuse_invalid("sa_family", address->sa_family);
    }
}

union ibv_gid address_gid(const struct sockaddr *address)
{
    union ibv_gid gid = {.raw = {0}};

    if (address->sa_family == AF_INET) {
        gid.raw[10] = gid.raw[11] = 0xff;
        memcpy(gid.raw + 12, &ipv4(address)->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        memcpy(gid.raw, &ipv6(address)->sin6_addr, 16);
    } else {
        memcpy(gid.raw, &ib(address)->sib_addr, 16);
    }
    return gid;
}

bool address_is_loopback(const struct sockaddr *address)
{
    static const union ibv_gid loopback = {.raw = {[15] = 1}};
    union ibv_gid gid = address_gid(address);

    if (address->sa_family == AF_INET)
        return gid.raw[12] == 127;
    return memcmp(&gid, &loopback, sizeof(gid)) == 0;
}

bool address_is_any(const struct sockaddr *address)
{
    static const union ibv_gid any = {.raw = {0}};
    union ibv_gid gid;

    if (address->sa_family == AF_INET)
        return ipv4(address)->sin_addr.s_addr == htonl(INADDR_ANY);
    gid = address_gid(address);
    return memcmp(&gid, &any, sizeof(gid)) == 0;
}

bool address_is_multicast(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return IN_MULTICAST(ntohl(ipv4(address)->sin_addr.s_addr));
    return address_gid(address).raw[0] == 0xff;
}

uint16_t address_port(const struct sockaddr *address)
{
    switch (address->sa_family) {
    case AF_INET:
        return ntohs(ipv4(address)->sin_port);
    case AF_INET6:
        return ntohs(ipv6(address)->sin6_port);
    case AF_IB:
        return (uint16_t)(be64toh(ib(address)->sib_sid) & be64toh(ib(address)->sib_sid_mask));
    default:
        return 0;
    }
}

void address_set_port(struct sockaddr *address, uint16_t port)
{
    struct sockaddr_ib *gid_address = (struct sockaddr_ib *)(void *)address;

    switch (address->sa_family) {
    case AF_INET:
        ((struct sockaddr_in *)(void *)address)->sin_port = htons(port);
        break;
    case AF_INET6:
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons(port);
        break;
    default:
        gid_address->sib_sid = htobe64((be64toh(gid_address->sib_sid) & ~RDMA_IB_IP_PORT_MASK) | port);
        gid_address->sib_sid_mask = htobe64(UINT64_MAX);
        break;
    }
}

uint32_t address_scope(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6(address)->sin6_addr))
        return ipv6(address)->sin6_scope_id;
    return 0;
}

bool addresses_equal(const struct sockaddr *a, const struct sockaddr *b)
{
    union ibv_gid gid_a = address_gid(a), gid_b = address_gid(b);

    return a->sa_family == b->sa_family && memcmp(&gid_a, &gid_b, sizeof(gid_a)) == 0 &&
           address_scope(a) == address_scope(b);
}

static uint64_t prefix_of(enum rdma_port_space ps)
{
    return (uint64_t)ps << 16;
}

uint64_t address_service(const struct sockaddr *address, enum rdma_port_space ps)
{
    uint64_t service;

    if (address->sa_family != AF_IB)
        return prefix_of(ps) | address_port(address);
    /* An address without a port space is of the id's. */
    service = be64toh(ib(address)->sib_sid);
    return service & RDMA_IB_IP_PS_MASK ? service : prefix_of(ps) | service;
}

/* AF_IB has no route table: the source is the interface that has the GID itself, or one of its subnet. */
static int gid_source(const struct sockaddr *to, struct sockaddr_storage *ret_source)
{
    struct ibv_context *verbs[ADAPTERS_MAX];
    struct sockaddr_ib source = *ib(to);
    union ibv_gid wanted = address_gid(to), gid;
    unsigned count;
    int error = adapters_list(verbs, &count);

    if (error)
        return error;
    for (unsigned bytes = 16; bytes; bytes -= 8) {
        for (unsigned i = 0; i < count; i++) {
            for (uint32_t index = 0; ibv_query_gid(verbs[i], 1, (int)index, &gid) == 0; index++) {
                if (memcmp(&gid, &wanted, bytes) != 0)
                    continue;
                memcpy(&source.sib_addr, &gid, sizeof(gid));
                source.sib_sid = source.sib_sid_mask = 0;
                memcpy(ret_source, &source, sizeof(source));
                return 0;
            }
        }
    }
    return -ENETUNREACH;
}

static int ask_route(int fd, const struct sockaddr *to, const struct sockaddr *from,
                     struct sockaddr_storage *ret_source)
{
    struct sockaddr_storage address = {0};
    socklen_t length = (socklen_t)address_length(to);

    if (from && !address_is_any(from)) {
        memcpy(&address, from, (size_t)length);
        address_set_port((struct sockaddr *)&address, 0);
        if (bind(fd, (struct sockaddr *)&address, length) < 0)
            return -errno;
    }
    memcpy(&address, to, (size_t)length);
    address_set_port((struct sockaddr *)&address, ANY_PORT);
    if (connect(fd, (struct sockaddr *)&address, length) < 0)
        return -errno;
    return getsockname(fd, (struct sockaddr *)ret_source, &length) < 0 ? -errno : 0;
}

int address_source(const struct sockaddr *to, const struct sockaddr *from,
                   struct sockaddr_storage *ret_source)
{
    bool anywhere = !from || address_is_any(from);
    uint64_t stamp = 0;
    int fd, error, saved = errno;

    memset(ret_source, 0, sizeof(*ret_source));
    if (!anywhere && (to->sa_family == AF_IB || address_is_multicast(to))) {
        /* A multicast group has no route of its own. */
        memcpy(ret_source, from, (size_t)address_length(from));
        return 0;
    }
    if (to->sa_family == AF_IB)
        return gid_source(to, ret_source);
    if (anywhere && routes_recall(to, ret_source, &stamp))
        return 0;
    fd = sys_socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC);
    if (fd < 0)
        return fd;
    error = ask_route(fd, to, from, ret_source);
    close(fd);
    if (anywhere && !error)
        routes_remember(to, ret_source, stamp);
    errno = saved;
    return error;
}
