/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Creates and configures the sockets of the udp room. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "udp/internal.h"
#include "wire/ipudp.h"

#define SEND_BUFFER    (1u << 20)
#define RECEIVE_BUFFER (4u << 20)
#define SEGMENTS_MAX   64u /* UDP_MAX_SEGMENTS of older kernels; newer ones allow 128 */
/* Offset of the byte of the BTH with the lower bits of the QPN block: bits 15 to 8 of DestQP. */
#define BLOCK_BYTE 6

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof(value)) < 0 ? -errno : 0;
}

static int run_filter(int fd, int option, const struct sock_filter *code, unsigned length)
{
    struct sock_fprog program = {.len = (unsigned short)length,
                                 .filter = (struct sock_filter *)(uintptr_t)code};

    return setsockopt(fd, SOL_SOCKET, option, &program, sizeof(program)) < 0 ? -errno : 0;
}

/* sys_socket(), owned. */
static int open_datagrams(int family)
{
    int fd = sys_socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK);

    return fd < 0 ? fd : fd_own(fd);
}

/* --- sending ------------------------------------------------------------------------------------- */

/* No peer sends to the lanes' ports. Datagrams that arrive there anyway are dropped before they use memory. */
static void drop_received(int fd)
{
    static const struct sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};

    (void)run_filter(fd, SO_ATTACH_FILTER, nothing, array_size(nothing));
}

static int bind_any(int fd, int family, uint16_t port)
{
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    bool is_ipv6 = family == AF_INET6;

    return bind(fd, is_ipv6 ? (struct sockaddr *)&any6 : (struct sockaddr *)&any4,
                is_ipv6 ? sizeof(any6) : sizeof(any4)) < 0
               ? -errno
               : 0;
}

static int port_of(int fd, uint16_t *ret_port)
{
    struct sockaddr_in6 name = {0};
    socklen_t length = sizeof(name);

    if (getsockname(fd, (struct sockaddr *)&name, &length) < 0)
        return -errno;
    *ret_port = ntohs(name.sin6_port); /* same offset in struct sockaddr_in */
    return 0;
}

/* IP_PMTUDISC_DO sets DF: packets above the path MTU are refused, not fragmented. DF is also part of the ICRC
 * (lane.c). */
static int set_sending_options(int fd, int family)
{
    bool loops = udp_settings.options.multicast_loops;
    int error;

    if (family == AF_INET) {
        error = set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
        if (!error)
            error = set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, loops);
    } else {
        error = set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        if (!error)
            error = set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
        if (!error)
            error = set(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, loops);
        (void)set(fd, IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1);
    }
    (void)set(fd, SOL_SOCKET, SO_SNDBUF, SEND_BUFFER);
    return error;
}

/* Binds source address and TTL of the usual path to the socket. sendmsg() then needs fewer control messages; the
 * kernel allocates memory for them unless they are few. */
static int bind_to_usual_path(int fd, int family, struct udp_path *path)
{
    struct sockaddr_in name = {.sin_family = AF_INET};

    if (family == AF_INET && !path->ifindex && set(fd, IPPROTO_IP, IP_TTL, path->hop_limit) == 0) {
        memcpy(&name.sin_addr, path->source + 12, 4);
        if (bind(fd, (const struct sockaddr *)&name, sizeof(name)) == 0)
            return 0;
    }
    memset(path, 0, sizeof(*path));
    return bind_any(fd, family, 0);
}

int socket_for_sending(int family, struct udp_path *usual, uint16_t *ret_port, unsigned *ret_segments)
{
    int saved = errno, fd = open_datagrams(family), error = fd < 0 ? fd : 0;

    if (!error)
        error = set_sending_options(fd, family);
    if (!error)
        drop_received(fd);
    if (!error)
        error = bind_to_usual_path(fd, family, usual);
    if (!error)
        error = port_of(fd, ret_port);
    if (error)
        fd_close(fd);
    else
        *ret_segments = udp_settings.plain || set(fd, IPPROTO_UDP, UDP_SEGMENT, 0) != 0 ? 1 : SEGMENTS_MAX;
    errno = saved;
    return error ? error : fd;
}

int socket_set_segment(int fd, uint16_t segment)
{
    int saved = errno, error = set(fd, IPPROTO_UDP, UDP_SEGMENT, segment);

    errno = saved;
    return error;
}

/* To itself. */
static bool keeps_short_datagrams(int fd)
{
    const struct iovec byte = {(char[]){0}, 1};
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(name);

    return bind(fd, (struct sockaddr *)&name, length) == 0 &&
           getsockname(fd, (struct sockaddr *)&name, &length) == 0 &&
           set(fd, IPPROTO_UDP, UDP_SEGMENT, 512) == 0 &&
           sys_sendto(fd, &byte, (struct sockaddr *)&name, length) == 1;
}

bool socket_keeps_short_datagrams(void)
{
    enum { UNKNOWN, YES, NO };
    static _Atomic int known;
    int saved = errno, fd;

    if (atomic_load_explicit(&known, memory_order_relaxed) == UNKNOWN) {
        fd = open_datagrams(AF_INET);
        atomic_store_explicit(&known, fd >= 0 && keeps_short_datagrams(fd) ? YES : NO, memory_order_relaxed);
        fd_close(fd);
        errno = saved;
    }
    return atomic_load_explicit(&known, memory_order_relaxed) == YES;
}

int socket_leave_out_labels(int fd)
{
    int saved = errno, error = set(fd, IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 0);

    errno = saved;
    return error;
}

/* --- receiving ----------------------------------------------------------------------------------- */

static void accept_zero_checksum(int fd, int family)
{
    /* RDMA adapters send no UDP checksum, not even over IPv6, where sockets demand it by default. */
    if (family == AF_INET6)
        (void)set(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, 1);
}

static void request_packet_info(int fd, int family)
{
    static const int of_ipv4[] = {IP_RECVTOS, IP_RECVTTL, IP_PKTINFO};
    static const int of_ipv6[] = {IPV6_RECVPKTINFO, IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT, IPV6_FLOWINFO};

    /* An IPv6 socket reports IPv4 packets with messages of both families; the destination is wanted once. */
    for (unsigned i = 0; i < array_size(of_ipv4) - (family == AF_INET6); i++)
        (void)set(fd, IPPROTO_IP, of_ipv4[i], 1);
    for (unsigned i = 0; i < array_size(of_ipv6) && family == AF_INET6; i++)
        (void)set(fd, IPPROTO_IPV6, of_ipv6[i], 1);
}

/* A dual-stack socket, or an IPv4 socket if the kernel has no IPv6. */
static int open_receiver(int *family)
{
    int fd = open_datagrams(*family), error = fd < 0 ? fd : 0;

    if (error == -EAFNOSUPPORT && *family == AF_INET6) {
        *family = AF_INET;
        return open_receiver(family);
    }
    if (!error && *family == AF_INET6)
        error = set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (error) {
        fd_close(fd);
        return error;
    }
    request_packet_info(fd, *family);
    accept_zero_checksum(fd, *family);
    /* Multicast groups have sockets of their own (socket_join()). */
    (void)set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
    if (*family == AF_INET6)
        (void)set(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
    /* Minimal until a process reads the socket (socket_prepare_reading()). */
    (void)set(fd, SOL_SOCKET, SO_RCVBUF, 0);
    return fd;
}

/* Binds before SO_REUSEPORT is set: only such a bind fails if another process of the same user has the port. */
static int open_first(int *family)
{
    int fd = open_receiver(family), error;

    if (fd < 0)
        return fd;
    error = bind_any(fd, *family, ROCE_UDP_PORT);
    if (!error)
        error = set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (!error)
        return fd;
    fd_close(fd);
    return error;
}

static int open_next(int family)
{
    int fd = open_receiver(&family), error;

    if (fd < 0)
        return fd;
    error = set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (!error)
        error = bind_any(fd, family, ROCE_UDP_PORT);
    if (!error)
        return fd;
    fd_close(fd);
    return error;
}

/* The filter returns the index of the socket in the group, in the order of bind(): the shard of DestQP. */
static int attach_shard_filter(int fd)
{
    static const struct sock_filter shard[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, BLOCK_BYTE),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, UDP_SHARDS - 1),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };

    return run_filter(fd, SO_ATTACH_REUSEPORT_CBPF, shard, array_size(shard));
}

static void close_all(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        fd_close(fds[i]);
}

int socket_make_group(int ret_fds[UDP_SHARDS])
{
    int family = AF_INET6, saved = errno, error = 0;
    unsigned count = 0;

    while (count < UDP_SHARDS && !error) {
        int fd = count ? open_next(family) : open_first(&family);

        if (fd < 0)
            error = fd;
        else
            ret_fds[count++] = fd;
    }
    if (!error)
        error = attach_shard_filter(ret_fds[0]);
    if (error)
        close_all(ret_fds, count);
    errno = saved;
    return error;
}

static int join_ipv4(int fd, const uint8_t group[16], uint32_t ifindex)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
    struct ip_mreqn membership = {.imr_ifindex = (int)ifindex};

    memcpy(&name.sin_addr, group + 12, 4);
    memcpy(&membership.imr_multiaddr, group + 12, 4);
    if (bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0 ||
        setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof(membership)) < 0)
        return -errno;
    return set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
}

static int join_ipv6(int fd, const uint8_t group[16], uint32_t ifindex)
{
    struct sockaddr_in6 name = {
        .sin6_family = AF_INET6, .sin6_port = htons(ROCE_UDP_PORT), .sin6_scope_id = ifindex};
    struct ipv6_mreq membership = {.ipv6mr_interface = ifindex};

    memcpy(&name.sin6_addr, group, 16);
    memcpy(&membership.ipv6mr_multiaddr, group, 16);
    if (bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0 ||
        setsockopt(fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &membership, sizeof(membership)) < 0)
        return -errno;
    (void)set(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
    return 0;
}

/* A socket bound to the group's address is not part of the port's SO_REUSEPORT group. */
int socket_join(const uint8_t group[16], uint32_t ifindex)
{
    bool is_ipv4 = ipudp_gid_is_ipv4(group);
    int family = is_ipv4 ? AF_INET : AF_INET6, saved = errno, fd = open_datagrams(family), error;

    if (fd < 0) {
        error = fd;
    } else {
        request_packet_info(fd, family);
        accept_zero_checksum(fd, family);
        socket_prepare_reading(fd);
        error = set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
        if (!error)
            error = is_ipv4 ? join_ipv4(fd, group, ifindex) : join_ipv6(fd, group, ifindex);
        if (error)
            fd_close(fd);
    }
    errno = saved;
    return error ? error : fd;
}

void socket_prepare_reading(int fd)
{
    int saved = errno;

    (void)set(fd, SOL_SOCKET, SO_RCVBUF, RECEIVE_BUFFER);
    (void)set(fd, IPPROTO_UDP, UDP_GRO, !udp_settings.plain);
    errno = saved;
}

/* --- user that has the port ---------------------------------------------------------------------- */

/* Line of /proc/net/udp: sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid ... */
static bool owner_in_line(const char *line, uid_t *ret_uid)
{
    unsigned port, uid;

    if (sscanf(line, " %*d: %*[0-9A-F]:%4X %*s %*s %*s %*s %*s %u", &port, &uid) != 2 ||
        port != ROCE_UDP_PORT)
        return false;
    *ret_uid = uid;
    return true;
}

static int owner_in_file(const char *path, uid_t *ret_uid)
{
    char buffer[4096], *line = buffer, *end;
    size_t filled = 0;
    int fd = fd_own(open(path, O_RDONLY | O_CLOEXEC));
    bool found = false;
    ssize_t got;

    if (fd < 0)
        return -errno;
    while (!found && (got = read(fd, buffer + filled, sizeof(buffer) - 1 - filled)) > 0) {
        filled += (size_t)got;
        buffer[filled] = '\0';
        for (line = buffer; !found && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            found = owner_in_line(line, ret_uid);
        }
        filled = (size_t)(buffer + filled - line);
        memmove(buffer, line, filled);
    }
    fd_close(fd);
    return found ? 0 : -ENOENT;
}

int socket_port_uid(uid_t *ret_uid)
{
    int saved = errno, error = owner_in_file("/proc/thread-self/net/udp6", ret_uid);

    if (error)
        error = owner_in_file("/proc/thread-self/net/udp", ret_uid);
    errno = saved;
    return error;
}
