/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A socket of NETLINK_RDMA, which most kernels without an adapter do not have, is one of NETLINK_USERSOCK
 * here: bound, polled and read as any other. What the program sends to it goes nowhere but to rdma.c, and the
 * answers are in its queue when the call returns. A process that never opened one pays a load and a branch
 * per send. */
#undef _FORTIFY_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libc.h"
#include "rdma.h"
#include "redirect.h"

#define MAX_REQUEST 4096

/* Descriptors, plus one, that such a socket has had; an entry may be of something else by now. */
static _Atomic int stand_ins[16];
static _Atomic bool any;
/* One answer at a time, for the sake of the connection below. */
static pthread_mutex_t answering = PTHREAD_MUTEX_INITIALIZER;

static int real_socket(int domain, int type, int protocol)
{
    return CALL_OR(-1, "socket", int (*)(int, int, int), domain, type, protocol);
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t length = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

static bool is_stand_in(int fd)
{
    int error = errno;

    if (!atomic_load_explicit(&any, memory_order_relaxed))
        return false;
    for (size_t i = 0; i < sizeof(stand_ins) / sizeof(stand_ins[0]); i++) {
        if (atomic_load_explicit(&stand_ins[i], memory_order_relaxed) == fd + 1) {
            bool still = option(fd, SO_DOMAIN) == AF_NETLINK && option(fd, SO_PROTOCOL) == NETLINK_USERSOCK;

            errno = error;
            return still;
        }
    }
    return false;
}

/* Enters the descriptor into the table; if the table is full, it overwrites the oldest entry. */
static void remember(int fd)
{
    static _Atomic unsigned next;
    size_t count = sizeof(stand_ins) / sizeof(stand_ins[0]);

    for (size_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&stand_ins[i], memory_order_relaxed) == fd + 1)
            return;
    }
    atomic_store_explicit(&stand_ins[atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % count],
                          fd + 1, memory_order_relaxed);
    atomic_store_explicit(&any, true, memory_order_relaxed);
}

exported int socket(int domain, int type, int protocol)
{
    int fd;

    if (domain != AF_NETLINK || protocol != NETLINK_RDMA || !redirect_root())
        return real_socket(domain, type, protocol);
    fd = real_socket(domain, type, NETLINK_USERSOCK);
    if (fd >= 0) {
        remember(fd);
        /* An answer waits there as a whole; the kernel's limit is net.core.rmem_max. */
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){1 << 24}, sizeof(int));
    }
    return fd;
}

static int connect_to(int fd, uint32_t port)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_pid = port};

    return connect(fd, (const struct sockaddr *)&address, sizeof(address));
}

/* Its own address; the kernel gives it one where the program has not. */
static int address_of(int fd, struct sockaddr_nl *ret)
{
    struct sockaddr_nl any_port = {.nl_family = AF_NETLINK};
    socklen_t length = sizeof(*ret);

    if (getsockname(fd, (struct sockaddr *)ret, &length))
        return -1;
    if (ret->nl_pid)
        return 0;
    if (bind(fd, (const struct sockaddr *)&any_port, sizeof(any_port)))
        return -1;
    length = sizeof(*ret);
    return getsockname(fd, (struct sockaddr *)ret, &length);
}

static uint32_t peer_of(int fd)
{
    struct sockaddr_nl peer = {0};
    socklen_t length = sizeof(peer);

    return getpeername(fd, (struct sockaddr *)&peer, &length) == 0 ? peer.nl_pid : 0;
}

/* Any process may send to an unconnected socket of this protocol. So this socket is connected to the
 * answering socket during a request, and otherwise to itself. What arrived before the first request is
 * discarded. */
static int answer(int fd, const char *root, const void *data, size_t length)
{
    int from = real_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK), result = -1, error;
    struct sockaddr_nl here, there;
    bool first;
    char byte;

    if (from < 0)
        return -1;
    if (address_of(fd, &there) == 0 && address_of(from, &here) == 0) {
        first = peer_of(fd) != there.nl_pid;
        if (connect_to(fd, here.nl_pid) == 0) {
            while (first && recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) >= 0)
                continue;
            rdma_answer(root, data, length, from, &there);
            result = connect_to(fd, there.nl_pid);
        }
    }
    error = errno;
    close(from);
    errno = error;
    return result;
}

static ssize_t ask(int fd, const void *data, size_t length)
{
    int error = errno, result;
    const char *root = redirect_root();

    if (!root) {
        errno = ECONNREFUSED;
        return -1;
    }
    pthread_mutex_lock(&answering);
    result = answer(fd, root, data, length);
    pthread_mutex_unlock(&answering);
    if (result)
        return -1;
    errno = error;
    return (ssize_t)length;
}

exported ssize_t send(int fd, const void *data, size_t length, int flags)
{
    if (is_stand_in(fd))
        return ask(fd, data, length);
    return CALL_OR(-1, "send", ssize_t(*)(int, const void *, size_t, int), fd, data, length, flags);
}

exported ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
                        socklen_t to_length)
{
    if (is_stand_in(fd))
        return ask(fd, data, length);
    return CALL_OR(-1, "sendto",
                   ssize_t(*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t), fd, data,
                   length, flags, to, to_length);
}

exported ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    char data[MAX_REQUEST];
    size_t length = 0;

    if (!is_stand_in(fd))
        return CALL_OR(-1, "sendmsg", ssize_t(*)(int, const struct msghdr *, int), fd, message, flags);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        if (message->msg_iov[i].iov_len > sizeof(data) - length) {
            errno = EMSGSIZE;
            return -1;
        }
        memcpy(data + length, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        length += message->msg_iov[i].iov_len;
    }
    return ask(fd, data, length);
}
