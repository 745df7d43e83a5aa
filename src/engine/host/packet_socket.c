/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Ethernet frames to and from the interface of a device: packet(7) sockets, where CAP_NET_RAW allows them. One socket
 * sends, from the first RAW_PACKET QP on; another one receives, as long as the device has flow rules. The interface is
 * promiscuous then: flow rules decide what is received, not the address of the interface. */
#include "engine/host/packet_socket.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/capture.h"
#include "engine/core/core.h"
#include "object/device/device.h"
#include "object/steering/flow.h"

#define PACKETS_AT_ONCE 64
#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

struct port {
    _Atomic uint32_t ifindex; /* 0: a free slot */
    _Atomic int send_fd;      /* -1: none; never closed, because senders hold no lock */
    int receive_fd;           /* -1: none; under ports_lock */
};

/* Guards all below. Held while frames are delivered to QPs: above the QP locks. */
static struct lock ports_lock = LOCK_INIT;
static struct port ports[DEVICES_MAX];
static _Atomic unsigned ports_used;
static bool refused; /* the log has said why there is no packet socket */

/* --- opening -------------------------------------------------------------------------------------------- */

static bool is_wanted(void)
{
    const char *text = secure_getenv("SOFTHCA_RAW");

    return !text || strcmp(text, "host") != 0;
}

/* ports_lock held. */
static void refuse(const char *why)
{
    if (!refused)
        log_info("RAW_PACKET QPs: no packet socket (%s): frames reach only QPs of this host", why);
    refused = true;
}

/* Before Linux 4.20 a filter has to ask. */
int packet_socket_ignore_outgoing(int fd)
{
    static const struct sock_filter incoming[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OUTGOING, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX), /* the whole frame */
    };
    const struct sock_fprog program = {array_size(incoming), (struct sock_filter *)(uintptr_t)incoming};
    const int on = 1;

    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) == 0)
        return 0;
    if (errno != ENOPROTOOPT)
        return -errno;
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0 ? 0 : -errno;
}

static int set_options(int fd, uint32_t ifindex)
{
    const struct packet_mreq promiscuous = {.mr_ifindex = (int)ifindex, .mr_type = PACKET_MR_PROMISC};
    const int on = 1;
    /* Frames of this host have reached its processes already (engine/paths/raw.c). */
    int error = packet_socket_ignore_outgoing(fd);

    if (error)
        return error;
    if (setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof(promiscuous)) != 0)
        return -errno;
    return 0;
}

/* A descriptor, or -errno. protocol 0: the socket receives nothing. ports_lock held. */
static int open_socket(uint32_t ifindex, uint16_t protocol)
{
    const struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = (int)ifindex};
    int fd = fd_lift(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = fd < 0 ? -errno : 0;

    if (!error && protocol)
        error = set_options(fd, ifindex);
    if (!error && bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        error = -errno;
    if (error && fd >= 0)
        close(fd);
    return error ? error : fd;
}

/* The slot of the interface, new if need be; NULL: all are in use. ports_lock held. */
static struct port *port_of(uint32_t ifindex)
{
    unsigned used = atomic_load_explicit(&ports_used, memory_order_relaxed);

    for (unsigned i = 0; i < used; i++) {
        if (atomic_load_explicit(&ports[i].ifindex, memory_order_relaxed) == ifindex)
            return &ports[i];
    }
    if (used == array_size(ports))
        return NULL;
    ports[used].receive_fd = -1;
    atomic_store_explicit(&ports[used].send_fd, -1, memory_order_relaxed);
    atomic_store_explicit(&ports[used].ifindex, ifindex, memory_order_relaxed);
    /* Release: partner of the acquire in packet_socket_send(). */
    atomic_store_explicit(&ports_used, used + 1, memory_order_release);
    return &ports[used];
}

/* NULL: no packet socket is allowed or needed. ports_lock held. */
static struct port *permitted_port(const struct device *device)
{
    uint32_t ifindex = device_ifindex(device);

    if (!ifindex || device_is_loopback(device))
        return NULL; /* frames on lo are for this host, whose processes have them already */
    if (!is_wanted()) {
        refuse("SOFTHCA_RAW=host");
        return NULL;
    }
    if (!sys_has_capability(CAP_NET_RAW)) {
        refuse("no CAP_NET_RAW");
        return NULL;
    }
    return port_of(ifindex);
}

void packet_socket_open(const struct device *device)
{
    int saved = errno;
    struct port *port;

    lock_acquire(&ports_lock);
    port = permitted_port(device);
    if (port && atomic_load_explicit(&port->send_fd, memory_order_relaxed) < 0) {
        int fd = open_socket(device_ifindex(device), 0);

        if (fd < 0)
            refuse(strerror(-fd));
        else
            atomic_store_explicit(&port->send_fd, fd, memory_order_relaxed);
    }
    lock_release(&ports_lock);
    errno = saved;
}

/* ports_lock held. */
static void begin_to_receive(struct port *port)
{
    int fd = open_socket(atomic_load_explicit(&port->ifindex, memory_order_relaxed), ETH_P_ALL);

    if (fd >= 0 && helper_watch(fd) == 0) {
        port->receive_fd = fd;
        return;
    }
    refuse(fd < 0 ? strerror(-fd) : "epoll_ctl of the packet socket failed");
    if (fd >= 0)
        close(fd);
}

void packet_socket_listen(const struct device *device)
{
    int saved = errno;
    struct port *port;

    lock_acquire(&ports_lock);
    port = permitted_port(device);
    /* flows_on() is read with the lock held: of two concurrent calls the later one sees the final state. */
    if (port && flows_on(device) && port->receive_fd < 0)
        begin_to_receive(port);
    if (port && !flows_on(device) && port->receive_fd >= 0) {
        close(port->receive_fd);
        port->receive_fd = -1;
    }
    lock_release(&ports_lock);
    errno = saved;
}

/* --- frames --------------------------------------------------------------------------------------------- */

void packet_socket_send(uint32_t ifindex, const struct iovec *gather, unsigned gather_count)
{
    unsigned used = atomic_load_explicit(&ports_used, memory_order_acquire);
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)gather, .msg_iovlen = gather_count};
    int saved = errno;

    for (unsigned i = 0; i < used; i++) {
        int fd = atomic_load_explicit(&ports[i].send_fd, memory_order_relaxed);

        if (atomic_load_explicit(&ports[i].ifindex, memory_order_relaxed) != ifindex || fd < 0)
            continue;
        /* No buffer, or no carrier: the frame is lost, as on any Ethernet. */
        if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            log_debug("RAW_PACKET QP: frame dropped, sendmsg on the packet socket: %s", strerror(errno));
    }
    errno = saved;
}

/* The kernel has removed the outer VLAN tag and reports it in PACKET_AUXDATA: puts the tag back. Returns the length. */
static uint32_t restore_tag(uint8_t *bytes, uint32_t length, struct msghdr *message)
{
    const uint32_t macs = ETHERNET_LENGTH - 2;

    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR(message, control)) {
        struct tpacket_auxdata auxiliary;

        if (control->cmsg_level != SOL_PACKET || control->cmsg_type != PACKET_AUXDATA ||
            control->cmsg_len < CMSG_LEN(sizeof(auxiliary)))
            continue;
        memcpy(&auxiliary, CMSG_DATA(control), sizeof(auxiliary));
        if (!(auxiliary.tp_status & TP_STATUS_VLAN_VALID) || length < macs)
            return length;
        memmove(bytes + macs + CVLAN_LENGTH, bytes + macs, length - macs);
        memcpy(bytes + macs, (const uint8_t[]){0x81, 0x00}, 2);
        bytes[macs + 2] = (uint8_t)(auxiliary.tp_vlan_tci >> 8);
        bytes[macs + 3] = (uint8_t)auxiliary.tp_vlan_tci;
        return length + CVLAN_LENGTH;
    }
    return length;
}

/* 0 or -errno; -EAGAIN: no frame is there. ports_lock held. */
static int receive_one(const struct port *port)
{
    uint8_t bytes[FRAME_LENGTH_MAX];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    struct iovec vector = {bytes, sizeof(bytes) - CVLAN_LENGTH};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    ssize_t length = recvmsg(port->receive_fd, &message, MSG_DONTWAIT);
    struct steered frame = {.ifindex = atomic_load_explicit(&port->ifindex, memory_order_relaxed),
                            .bytes = bytes};

    if (length < 0)
        return -errno;
    if (message.msg_flags & MSG_TRUNC)
        return 0; /* longer than a QP takes: segments that GRO has joined, or a jumbo frame */
    frame.length = restore_tag(bytes, (uint32_t)length, &message);
    rundown_enter();
    capture_steer(&frame, 0);
    rundown_exit();
    return 0;
}

/* ENETDOWN is reported once per interface that goes down, and the socket stays. After other errors the socket would
 * stay readable for ever, and is closed. ports_lock held. */
static void receive_some(struct port *port)
{
    int error = 0;

    for (int count = 0; count < PACKETS_AT_ONCE && !error; count++)
        error = receive_one(port);
    if (!error || error == -EAGAIN || error == -EINTR || error == -ENETDOWN)
        return;
    log_warn("RAW_PACKET QPs: receive on interface index %u failed (%s): packet socket closed, no more "
             "frames from there",
             atomic_load_explicit(&port->ifindex, memory_order_relaxed), strerror(-error));
    close(port->receive_fd);
    port->receive_fd = -1;
}

void packet_socket_receive(int fd)
{
    int saved = errno;

    lock_acquire(&ports_lock);
    for (unsigned i = 0; i < atomic_load_explicit(&ports_used, memory_order_relaxed); i++) {
        if (ports[i].receive_fd == fd)
            receive_some(&ports[i]);
    }
    lock_release(&ports_lock);
    errno = saved;
}

void packet_socket_after_fork_in_child(void)
{
    lock_init(&ports_lock);
    for (unsigned i = 0; i < atomic_load_explicit(&ports_used, memory_order_relaxed); i++) {
        int fd = atomic_load_explicit(&ports[i].send_fd, memory_order_relaxed);

        if (fd >= 0)
            close(fd);
        if (ports[i].receive_fd >= 0)
            close(ports[i].receive_fd);
    }
    atomic_store_explicit(&ports_used, 0, memory_order_relaxed);
    refused = false;
}
