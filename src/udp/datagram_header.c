/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Address and ancillary data of a datagram that is sent. */
#include <arpa/inet.h>
#include <string.h>

#include "udp/internal.h"
#include "wire/ipudp.h"

#define FLOW_LABEL 0xfffffu

static void add_control(struct msghdr *header, int level, int type, const void *data, size_t length)
{
    struct cmsghdr *message =
        (struct cmsghdr *)(void *)((char *)header->msg_control + header->msg_controllen);

    message->cmsg_level = level;
    message->cmsg_type = type;
    message->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(message), data, length);
    header->msg_controllen += CMSG_SPACE(length);
}

static void add_control_int(struct msghdr *header, int level, int type, int value)
{
    add_control(header, level, type, &value, sizeof(value));
}

void datagram_to_ipv4(struct msghdr *header, const struct udp_path *path, bool usual)
{
    struct sockaddr_in *name = header->msg_name;
    struct in_pktinfo info = {.ipi_ifindex = (int)path->ifindex};

    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
    memcpy(&name->sin_addr, path->destination + 12, 4);
    header->msg_namelen = sizeof(*name);
    memcpy(&info.ipi_spec_dst, path->source + 12, 4);
    if (!usual) {
        add_control(header, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
        add_control_int(header, IPPROTO_IP, IP_TTL, path->hop_limit);
    }
    if (path->traffic_class)
        add_control_int(header, IPPROTO_IP, IP_TOS, path->traffic_class);
}

void datagram_to_ipv6(struct msghdr *header, const struct udp_path *path)
{
    struct sockaddr_in6 *name = header->msg_name;
    struct in6_pktinfo info = {.ipi6_ifindex = path->ifindex};

    *name = (struct sockaddr_in6){
        .sin6_family = AF_INET6,
        .sin6_port = htons(ROCE_UDP_PORT),
        .sin6_flowinfo = htonl(path->flow_label & FLOW_LABEL),
        .sin6_scope_id = path->ifindex,
    };
    memcpy(&name->sin6_addr, path->destination, 16);
    header->msg_namelen = sizeof(*name);
    memcpy(&info.ipi6_addr, path->source, 16);
    add_control(header, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
    add_control_int(header, IPPROTO_IPV6, IPV6_HOPLIMIT, path->hop_limit);
    if (path->traffic_class)
        add_control_int(header, IPPROTO_IPV6, IPV6_TCLASS, path->traffic_class);
}

void datagram_segment(struct msghdr *header, uint16_t segment)
{
    add_control(header, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment));
}
