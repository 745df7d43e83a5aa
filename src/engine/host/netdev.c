/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/host/netdev.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_arp.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/netlink.h"
#include "base/types.h"

#define DUMP_ATTEMPTS 8

struct collection {
    struct netdev *netdevs;
    struct netdev_address *addresses;
    unsigned netdev_count, netdev_room, address_count, address_room;
};

static void *room_for_one(void *array, unsigned count, unsigned *room, size_t size)
{
    unsigned wanted = max_of(16u, 2 * *room);

    if (count < *room)
        return array;
    array = reallocarray(array, wanted, size);
    if (array)
        *room = wanted;
    return array;
}

static int add_netdev(struct collection *collection, const struct nlmsghdr *message)
{
    const struct ifinfomsg *info = NLMSG_DATA(message);
    unsigned left = (unsigned)IFLA_PAYLOAD(message);
    struct netdev *netdev = room_for_one(collection->netdevs, collection->netdev_count,
                                         &collection->netdev_room, sizeof(*netdev));

    if (!netdev)
        return -ENOMEM;
    collection->netdevs = netdev;
    netdev += collection->netdev_count;
    *netdev = (struct netdev){
        .ifindex = (uint32_t)info->ifi_index,
        .loopback = info->ifi_flags & IFF_LOOPBACK,
        .running = (info->ifi_flags & IFF_UP) && (info->ifi_flags & IFF_LOWER_UP),
    };
    for (const struct rtattr *attribute = IFLA_RTA(info); RTA_OK(attribute, left);
         attribute = RTA_NEXT(attribute, left)) {
        size_t length = RTA_PAYLOAD(attribute);

        switch (attribute->rta_type) {
        case IFLA_IFNAME:
            memcpy(netdev->name, RTA_DATA(attribute), min_of(length, sizeof(netdev->name) - 1));
            break;
        case IFLA_MTU:
            if (length >= sizeof(netdev->mtu))
                memcpy(&netdev->mtu, RTA_DATA(attribute), sizeof(netdev->mtu));
            break;
        case IFLA_ADDRESS:
            if (length == sizeof(netdev->mac))
                memcpy(netdev->mac, RTA_DATA(attribute), sizeof(netdev->mac));
            break;
        default:
            break;
        }
    }
    collection->netdev_count++;
    return 0;
}

static int add_address(struct collection *collection, const struct nlmsghdr *message)
{
    const struct ifaddrmsg *info = NLMSG_DATA(message);
    unsigned left = (unsigned)IFA_PAYLOAD(message);
    size_t size = info->ifa_family == AF_INET ? 4 : 16;
    uint32_t flags = info->ifa_flags;
    const void *local = NULL, *peer = NULL;
    struct netdev_address *address;

    if (info->ifa_family != AF_INET && info->ifa_family != AF_INET6)
        return 0;
    for (const struct rtattr *attribute = IFA_RTA(info); RTA_OK(attribute, left);
         attribute = RTA_NEXT(attribute, left)) {
        if (attribute->rta_type == IFA_LOCAL && RTA_PAYLOAD(attribute) == size)
            local = RTA_DATA(attribute);
        else if (attribute->rta_type == IFA_ADDRESS && RTA_PAYLOAD(attribute) == size)
            peer = RTA_DATA(attribute); /* our address, unless there is IFA_LOCAL (point-to-point IPv4) */
        else if (attribute->rta_type == IFA_FLAGS && RTA_PAYLOAD(attribute) == sizeof(flags))
            memcpy(&flags, RTA_DATA(attribute), sizeof(flags));
    }
    if (!local)
        local = peer;
    /* Duplicate address detection has failed or is under way: the kernel does not use the address either. */
    if (!local || (flags & IFA_F_DADFAILED) || ((flags & IFA_F_TENTATIVE) && !(flags & IFA_F_OPTIMISTIC)))
        return 0;

    address = room_for_one(collection->addresses, collection->address_count, &collection->address_room,
                           sizeof(*address));
    if (!address)
        return -ENOMEM;
    collection->addresses = address;
    address += collection->address_count++;
    *address = (struct netdev_address){
        .ifindex = info->ifa_index,
        .prefix_length = (uint8_t)(128 - 8 * size + min_of((size_t)info->ifa_prefixlen, 8 * size)),
        .flags = (uint8_t)(((flags & IFA_F_TEMPORARY) ? NETDEV_ADDRESS_TEMPORARY : 0) |
                           ((flags & IFA_F_DEPRECATED) ? NETDEV_ADDRESS_DEPRECATED : 0)),
    };
    if (info->ifa_family == AF_INET)
        address->gid[10] = address->gid[11] = 0xff;
    memcpy(address->gid + 16 - size, local, size);
    return 0;
}

static int take_message(void *argument, const struct nlmsghdr *message)
{
    if (message->nlmsg_type == RTM_NEWLINK && message->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifinfomsg)))
        return add_netdev(argument, message);
    if (message->nlmsg_type == RTM_NEWADDR && message->nlmsg_len >= NLMSG_LENGTH(sizeof(struct ifaddrmsg)))
        return add_address(argument, message);
    return 0;
}

static int dump(int fd, uint16_t type, char *buffer, struct collection *collection)
{
    const struct {
        struct nlmsghdr header;
        struct ifinfomsg family; /* long enough for both requests; all zero: every family */
    } request = {
        .header = {.nlmsg_len = sizeof(request),
                   .nlmsg_type = type,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
    };

    return netlink_dump(fd, &request.header, buffer, take_message, collection);
}

static bool has_address(const struct collection *collection, uint32_t ifindex)
{
    for (unsigned i = 0; i < collection->address_count; i++) {
        if (collection->addresses[i].ifindex == ifindex)
            return true;
    }
    return false;
}

static int attempt(struct collection *collection, char *buffer)
{
    /* A new socket per attempt: on the old one, datagrams of an interrupted dump would follow. */
    int fd = fd_lift(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)), result;
    unsigned kept = 0;

    if (fd < 0)
        return -errno;
    result = dump(fd, RTM_GETLINK, buffer, collection);
    if (result == 0)
        result = dump(fd, RTM_GETADDR, buffer, collection);
    close(fd);
    for (unsigned i = 0; i < collection->netdev_count; i++) {
        if (has_address(collection, collection->netdevs[i].ifindex))
            collection->netdevs[kept++] = collection->netdevs[i];
    }
    collection->netdev_count = kept;
    return result;
}

int netdev_snapshot(struct netdev_snapshot *ret_snapshot)
{
    struct collection collection = {0};
    char *buffer = malloc(NETLINK_DUMP_BUFFER);
    int saved = errno, result = -ENOMEM;

    for (int i = 0; buffer && i < DUMP_ATTEMPTS; i++) {
        collection.netdev_count = collection.address_count = 0;
        result = attempt(&collection, buffer);
        if (result != -EAGAIN)
            break;
    }
    free(buffer);
    if (result < 0) {
        log_error("cannot list the network interfaces: %s", strerror(-result));
        free(collection.netdevs);
        free(collection.addresses);
    } else {
        *ret_snapshot = (struct netdev_snapshot){collection.netdevs, collection.addresses,
                                                 collection.netdev_count, collection.address_count};
    }
    errno = saved;
    return result;
}

void netdev_snapshot_fini(struct netdev_snapshot *snapshot)
{
    free((void *)snapshot->netdevs);
    free((void *)snapshot->addresses);
    *snapshot = (struct netdev_snapshot){0};
}

int netdev_monitor_open(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK,
                                  .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
    int saved = errno,
        fd = fd_lift(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
    int result = fd < 0 ? -errno : fd;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        result = -errno;
        close(fd);
    }
    errno = saved;
    return result;
}

bool netdev_monitor_drain(int fd)
{
    bool changed = false;
    int saved = errno;
    char some[64];

    /* The messages are not read: a new snapshot follows anyway. ENOBUFS: the kernel has dropped some, so there were
     * changes. */
    for (;;) {
        ssize_t got = recv(fd, some, sizeof(some), MSG_TRUNC);

        if (got > 0 || (got < 0 && errno == ENOBUFS))
            changed = true;
        else if (got == 0 || errno != EINTR)
            break;
    }
    errno = saved;
    return changed;
}

/* FNV-1a over the first 64 bytes of a file; 0: the file cannot be read. */
static uint64_t hash_file(const char *path, uint64_t hash)
{
    char text[64];
    int fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t got = fd >= 0 ? read(fd, text, sizeof(text)) : -1;

    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    for (ssize_t i = 0; i < got; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3ull;
    return hash;
}

void netdev_read_options(struct device_options *ret_options)
{
    const char *link_local = secure_getenv("SOFTHCA_LINK_LOCAL_GIDS");
    const char *part_id = secure_getenv("SOFTHCA_PART_ID");
    const char *names = secure_getenv("SOFTHCA_DEVICE_NAMES");
    const uint64_t basis = 0xcbf29ce484222325ull;
    int saved = errno;
    uint64_t seed = hash_file("/etc/machine-id", basis);

    if (!seed)
        seed = hash_file("/proc/sys/kernel/random/boot_id", basis);
    *ret_options = (struct device_options){
        .names = names ? strdup(names) : NULL, /* the program may change its environment */
        .link_local_gids = link_local && strcmp(link_local, "0") != 0 && *link_local,
        .vendor_part_id = part_id ? (uint32_t)strtoul(part_id, NULL, 0) : 0,
        .host_seed = seed,
    };
    errno = saved;
}
