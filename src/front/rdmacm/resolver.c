/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Resolves names to addresses (verbs.md §11.5). Every part of the result is a separate malloc() block: programs build
 * such structures themselves, and free parts of a result (compatibility.md §6). */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/ib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "base/pkey.h"
#include "front/rdmacm/front.h"

static const struct rdma_addrinfo no_hints;

static void hints_for_names(const struct rdma_addrinfo *hints, struct addrinfo *ret_hints)
{
    *ret_hints = (struct addrinfo){
        .ai_flags = (hints->ai_flags & RAI_PASSIVE ? AI_PASSIVE : 0) |
                    (hints->ai_flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0),
        .ai_family = hints->ai_family,
    };
    if (hints->ai_qp_type == IBV_QPT_UD || hints->ai_port_space == RDMA_PS_UDP) {
        ret_hints->ai_socktype = SOCK_DGRAM;
        ret_hints->ai_protocol = IPPROTO_UDP;
    } else {
        ret_hints->ai_socktype = SOCK_STREAM;
        ret_hints->ai_protocol = IPPROTO_TCP;
    }
}

static void set_services(const struct rdma_addrinfo *hints, struct rdma_addrinfo *info)
{
    bool datagrams = hints->ai_qp_type == IBV_QPT_UD || hints->ai_port_space == RDMA_PS_UDP ||
                     hints->ai_port_space == RDMA_PS_IPOIB;

    info->ai_qp_type = hints->ai_qp_type ? hints->ai_qp_type : datagrams ? IBV_QPT_UD : IBV_QPT_RC;
    info->ai_port_space = hints->ai_port_space ? hints->ai_port_space : datagrams ? RDMA_PS_UDP : RDMA_PS_TCP;
}

/* 0 or -ENOMEM */
static int copy_address(const struct sockaddr *address, socklen_t length, struct sockaddr **ret_address,
                        socklen_t *ret_length)
{
    *ret_address = calloc(1, length);
    if (!*ret_address)
        return -ENOMEM;
    memcpy(*ret_address, address, length);
    *ret_length = length;
    return 0;
}

static int set_side(struct rdma_addrinfo *info, const struct sockaddr *address, socklen_t length,
                    const char *name)
{
    bool passive = info->ai_flags & RAI_PASSIVE;
    char **place = passive ? &info->ai_src_canonname : &info->ai_dst_canonname;

    if (name) {
        *place = strdup(name);
        if (!*place)
            return -ENOMEM;
    }
    return passive ? copy_address(address, length, &info->ai_src_addr, &info->ai_src_len)
                   : copy_address(address, length, &info->ai_dst_addr, &info->ai_dst_len);
}

/* A GID, and the service as a number. */
static int resolve_gid(const char *node, const char *service, struct rdma_addrinfo *info)
{
    struct sockaddr_ib address = {.sib_family = AF_IB, .sib_pkey = htobe16(DEFAULT_PKEY)};
    unsigned long port = service ? strtoul(service, NULL, 0) : 0;

    if (node && inet_pton(AF_INET6, node, &address.sib_addr) != 1)
        return EAI_NONAME;
    if (port > UINT16_MAX)
        return EAI_SERVICE;
    address.sib_sid = htobe64((uint64_t)info->ai_port_space << 16 | port);
    address.sib_sid_mask = htobe64(port ? UINT64_MAX : RDMA_IB_IP_PS_MASK);
    info->ai_family = AF_IB;
    return set_side(info, (struct sockaddr *)&address, sizeof(address), NULL);
}

/* 0, -errno, or an EAI code other than EAI_SYSTEM: glibc's EAI codes are small negative numbers, too. */
static int resolve_name(const char *node, const char *service, const struct rdma_addrinfo *hints,
                        struct rdma_addrinfo *info, int *ret_name_error)
{
    struct addrinfo name_hints, *found;
    int error;

    *ret_name_error = 0;
    if (hints->ai_family == AF_IB) {
        error = resolve_gid(node, service, info);
        if (error && error != -ENOMEM)
            *ret_name_error = error;
        return error == -ENOMEM ? error : 0;
    }
    hints_for_names(hints, &name_hints);
    *ret_name_error = getaddrinfo(node, service, &name_hints, &found);
    if (*ret_name_error)
        return 0;
    info->ai_family = found->ai_family;
    error = set_side(info, found->ai_addr, found->ai_addrlen, found->ai_canonname);
    freeaddrinfo(found);
    return error;
}

static int add_hints(const struct rdma_addrinfo *hints, struct rdma_addrinfo *info)
{
    int error = 0;

    if (!info->ai_src_len && hints->ai_src_len)
        error = copy_address(hints->ai_src_addr, hints->ai_src_len, &info->ai_src_addr, &info->ai_src_len);
    if (!error && !info->ai_dst_len && hints->ai_dst_len)
        error = copy_address(hints->ai_dst_addr, hints->ai_dst_len, &info->ai_dst_addr, &info->ai_dst_len);
    if (!info->ai_family)
        info->ai_family = info->ai_dst_addr   ? info->ai_dst_addr->sa_family
                          : info->ai_src_addr ? info->ai_src_addr->sa_family
                                              : 0;
    return error;
}

RDMACM_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
                                   struct rdma_addrinfo **ret_info)
{
    struct rdma_addrinfo *info;
    int name_error = 0, error = start();

    if (!node && !service && (!hints || (!hints->ai_src_len && !hints->ai_dst_len)))
        error = -EINVAL;
    if (error)
        return conclude(error);
    info = calloc(1, sizeof(*info));
    if (!info)
        return conclude(-ENOMEM);
    if (!hints)
        hints = &no_hints;
    info->ai_flags = hints->ai_flags;
    set_services(hints, info);
    if (node || service)
        error = resolve_name(node, service, hints, info, &name_error);
    if (!error && !name_error)
        error = add_hints(hints, info);
    if (error || name_error) {
        rdma_freeaddrinfo(info);
        return error ? conclude(error) : name_error;
    }
    *ret_info = info;
    return 0;
}

RDMACM_EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *info)
{
    while (info) {
        struct rdma_addrinfo *next = info->ai_next;

        free(info->ai_connect);
        free(info->ai_route);
        free(info->ai_src_canonname);
        free(info->ai_dst_canonname);
        free(info->ai_src_addr);
        free(info->ai_dst_addr);
        free(info);
        info = next;
    }
}
