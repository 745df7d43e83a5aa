/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A socket of NETLINK_RDMA, which most kernels without an adapter do not have, is one of NETLINK_USERSOCK
 * here: bound, polled and read as any other. What the program sends to it goes nowhere but to rdma.c, and the
 * answers are in its queue when the call returns. What finds no room there waits, and follows when the program
 * reads: the kernel makes the parts of a dump likewise. A process that never opened one pays a load and a
 * branch per call. */
#undef _FORTIFY_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "libc.h"
#include "rdma.h"
#include "redirect.h"

#define MAX_REQUEST 4096

struct stand_in {
    _Atomic int number;       /* the descriptor, plus one; it may be of something else by now */
    struct datagrams waiting; /* its queue is full; `answering` held */
};
static struct stand_in stand_ins[16];
static _Atomic bool any;
/* One answer at a time, for the sake of the connection below. */
static pthread_mutex_t answering = PTHREAD_MUTEX_INITIALIZER;

static int real_socket(int domain, int type, int protocol)
{
    return CALL_OR(-1, "socket", int (*)(int, int, int), domain, type, protocol);
}

static ssize_t receive(int fd, void *data, size_t length, int flags)
{
    return CALL_OR(-1, "recv", ssize_t(*)(int, void *, size_t, int), fd, data, length, flags);
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t length = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

/* NULL: another descriptor. */
static struct stand_in *stand_in_of(int fd)
{
    int error = errno;

    if (!atomic_load_explicit(&any, memory_order_relaxed))
        return NULL;
    for (size_t i = 0; i < sizeof(stand_ins) / sizeof(stand_ins[0]); i++) {
        if (atomic_load_explicit(&stand_ins[i].number, memory_order_relaxed) == fd + 1) {
            bool still = option(fd, SO_DOMAIN) == AF_NETLINK && option(fd, SO_PROTOCOL) == NETLINK_USERSOCK;

            errno = error;
            return still ? &stand_ins[i] : NULL;
        }
    }
    return NULL;
}

static void drop_first(struct datagrams *waiting)
{
    struct datagram *datagram = waiting->first;

    waiting->first = datagram->next;
    if (!waiting->first)
        waiting->end = &waiting->first;
    free(datagram);
}

/* Enters the descriptor into the table; if the table is full, it overwrites the oldest entry. */
static void remember(int fd)
{
    static unsigned next;
    const size_t count = sizeof(stand_ins) / sizeof(stand_ins[0]);
    struct stand_in *stand_in = NULL;

    pthread_mutex_lock(&answering);
    for (size_t i = 0; i < count && !stand_in; i++) {
        if (atomic_load_explicit(&stand_ins[i].number, memory_order_relaxed) == fd + 1)
            stand_in = &stand_ins[i];
    }
    if (!stand_in)
        stand_in = &stand_ins[next++ % count];
    while (stand_in->waiting.first)
        drop_first(&stand_in->waiting);
    stand_in->waiting.end = &stand_in->waiting.first;
    atomic_store_explicit(&stand_in->number, fd + 1, memory_order_relaxed);
    pthread_mutex_unlock(&answering);
    atomic_store_explicit(&any, true, memory_order_relaxed);
}

exported int socket(int domain, int type, int protocol)
{
    int fd;

    if (domain != AF_NETLINK || protocol != NETLINK_RDMA || !redirect_root())
        return real_socket(domain, type, protocol);
    fd = real_socket(domain, type, NETLINK_USERSOCK);
    if (fd >= 0) {
        int error = errno;

        remember(fd);
        errno = error;
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

/* Into the socket's queue, as much as has room there. */
static void deliver(int from, const struct sockaddr_nl *to, struct datagrams *waiting)
{
    while (waiting->first &&
           CALL_OR(-1, "sendto",
                   ssize_t(*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t), from,
                   waiting->first->bytes, waiting->first->length, MSG_DONTWAIT | MSG_NOSIGNAL,
                   (const struct sockaddr *)to, sizeof(*to)) >= 0)
        drop_first(waiting);
}

/* Any process may send to an unconnected socket of this protocol. So this socket is connected to the
 * answering socket while answers come, and otherwise to itself. What arrived before the first request is
 * discarded. data: a request; NULL: none, what waits is delivered. */
static int answer(int fd, struct stand_in *stand_in, const char *root, const void *data, size_t length)
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
            while (first && receive(fd, &byte, sizeof(byte), MSG_DONTWAIT) >= 0)
                continue;
            if (data)
                rdma_answer(root, data, length, there.nl_pid, &stand_in->waiting);
            deliver(from, &there, &stand_in->waiting);
            result = connect_to(fd, there.nl_pid);
        }
    }
    error = errno;
    close(from);
    errno = error;
    return result;
}

static ssize_t ask(int fd, struct stand_in *stand_in, const void *data, size_t length)
{
    int error = errno, result;
    const char *root = redirect_root();

    if (!root) {
        errno = ECONNREFUSED;
        return -1;
    }
    pthread_mutex_lock(&answering);
    result = answer(fd, stand_in, root, data, length);
    pthread_mutex_unlock(&answering);
    if (result)
        return -1;
    errno = error;
    return (ssize_t)length;
}

/* The program has read, so there is room again. */
static ssize_t refill(int fd, ssize_t result)
{
    struct stand_in *stand_in = result < 0 ? NULL : stand_in_of(fd);
    int error = errno;

    if (!stand_in)
        return result;
    pthread_mutex_lock(&answering);
    if (stand_in->waiting.first)
        (void)answer(fd, stand_in, NULL, NULL, 0);
    pthread_mutex_unlock(&answering);
    errno = error;
    return result;
}

exported ssize_t recv(int fd, void *data, size_t length, int flags)
{
    return refill(fd, receive(fd, data, length, flags));
}

exported ssize_t recvfrom(int fd, void *restrict data, size_t length, int flags,
                          struct sockaddr *restrict from, socklen_t *restrict from_length)
{
    return refill(fd, CALL_OR(-1, "recvfrom",
                              ssize_t(*)(int, void *, size_t, int, struct sockaddr *, socklen_t *), fd, data,
                              length, flags, from, from_length));
}

exported ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return refill(fd, CALL_OR(-1, "recvmsg", ssize_t(*)(int, struct msghdr *, int), fd, message, flags));
}

exported ssize_t send(int fd, const void *data, size_t length, int flags)
{
    struct stand_in *stand_in = stand_in_of(fd);

    if (stand_in)
        return ask(fd, stand_in, data, length);
    return CALL_OR(-1, "send", ssize_t(*)(int, const void *, size_t, int), fd, data, length, flags);
}

exported ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
                        socklen_t to_length)
{
    struct stand_in *stand_in = stand_in_of(fd);

    if (stand_in)
        return ask(fd, stand_in, data, length);
    return CALL_OR(-1, "sendto",
                   ssize_t(*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t), fd, data,
                   length, flags, to, to_length);
}

exported ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct stand_in *stand_in = stand_in_of(fd);
    char data[MAX_REQUEST];
    size_t length = 0;

    if (!stand_in)
        return CALL_OR(-1, "sendmsg", ssize_t(*)(int, const struct msghdr *, int), fd, message, flags);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        if (message->msg_iov[i].iov_len > sizeof(data) - length) {
            errno = EMSGSIZE;
            return -1;
        }
        memcpy(data + length, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        length += message->msg_iov[i].iov_len;
    }
    return ask(fd, stand_in, data, length);
}
