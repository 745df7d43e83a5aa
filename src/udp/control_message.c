/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "udp/control_message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "udp/internal.h"

#define FDS_MAX (UDP_SHARDS > UDP_MESSAGE_FDS ? UDP_SHARDS : UDP_MESSAGE_FDS)

union fds_control {
    struct cmsghdr header;
    char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
};

static int send_with_fds(int fd, const void *data, size_t length, const int *fds, unsigned fd_count)
{
    struct iovec part = {(void *)(uintptr_t)data, length};
    union fds_control control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int saved = errno, error = 0;

    if (fd_count) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, fd_count * sizeof(int));
    }
    if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)length)
        error = -errno;
    errno = saved;
    return error;
}

/* Returns the length or -errno; -EMFILE if the kernel could not install all descriptors. fd_own() registers those
 * received. */
static ssize_t receive_with_fds(int fd, void *data, size_t length, int flags, int ret_fds[FDS_MAX],
                                unsigned *ret_fd_count)
{
    struct iovec part = {data, length};
    union fds_control control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int saved = errno;
    ssize_t got = recvmsg(fd, &message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);

    *ret_fd_count = 0;
    if (got < 0)
        got = errno == EINTR ? -EAGAIN : -errno;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *ret_fd_count = (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(ret_fds, CMSG_DATA(header), *ret_fd_count * sizeof(int));
        for (unsigned i = 0; i < *ret_fd_count; i++)
            ret_fds[i] = fd_own(ret_fds[i]);
    }
    if (got >= 0 && (message.msg_flags & MSG_CTRUNC))
        got = -EMFILE;
    if (got >= 0 && (message.msg_flags & MSG_TRUNC))
        got = -EPROTO;
    errno = saved;
    return got;
}

int udp_message_send(int fd, const struct udp_message *message, const int *fds, unsigned fd_count)
{
    return send_with_fds(fd, message, sizeof(*message), fds, fd_count);
}

int udp_message_receive(int fd, enum udp_message_type type, struct udp_message *message,
                        int ret_fds[UDP_MESSAGE_FDS], unsigned *ret_fd_count)
{
    int fds[FDS_MAX];
    ssize_t got = receive_with_fds(fd, message, sizeof(*message), 0, fds, ret_fd_count);

    while (*ret_fd_count > UDP_MESSAGE_FDS)
        fd_close(fds[--*ret_fd_count]);
    memcpy(ret_fds, fds, *ret_fd_count * sizeof(int));
    if (got < 0)
        return (int)got;
    if (got == 0)
        return -ECONNRESET;
    if (got != (ssize_t)sizeof(*message) || message->magic != UDP_MESSAGE_MAGIC ||
        message->version != UDP_MESSAGE_VERSION || message->type != type ||
        message->block_count > UDP_MESSAGE_BLOCKS)
        return -EPROTO;
    return 0;
}

int descriptor_set_make(const int *sockets, unsigned count)
{
    static const char name[] = "box"; /* a format; its reader ignores it */
    int pair[2], error, saved = errno;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        error = -errno;
        errno = saved;
        return error;
    }
    pair[0] = fd_own(pair[0]);
    pair[1] = fd_own(pair[1]);
    error = pair[0] < 0 ? -EMFILE : send_with_fds(pair[1], name, sizeof(name), sockets, count);
    fd_close(pair[1]);
    if (!error)
        return pair[0];
    fd_close(pair[0]);
    return error;
}

int descriptor_set_get(int descriptor_set, unsigned index, unsigned count)
{
    int fds[FDS_MAX], wanted = -EPROTO;
    unsigned fd_count;
    char name[8];
    ssize_t got = receive_with_fds(descriptor_set, name, sizeof(name), MSG_PEEK, fds, &fd_count);

    for (unsigned i = 0; i < fd_count; i++) {
        if (i == index && got >= 0 && fd_count == count)
            wanted = fds[i];
        else
            fd_close(fds[i]);
    }
    return got < 0 ? (int)got : wanted;
}
