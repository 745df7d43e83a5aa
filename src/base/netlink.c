/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/netlink.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sys.h"

typedef int take_message(void *argument, const struct nlmsghdr *message);

/* One datagram of a dump. 1: more follow; 0: the last one; -errno. */
static int take_datagram(const char *buffer, size_t length, take_message *take, void *argument)
{
    for (size_t offset = 0; offset + sizeof(struct nlmsghdr) <= length;) {
        const struct nlmsghdr *message = (const struct nlmsghdr *)(buffer + offset);
        int result;

        if (message->nlmsg_len < sizeof(*message) || message->nlmsg_len > length - offset)
            return -EBADMSG;
        offset += NLMSG_ALIGN(message->nlmsg_len);
        if (message->nlmsg_flags & NLM_F_DUMP_INTR)
            return -EAGAIN;
        if (message->nlmsg_type == NLMSG_DONE)
            return 0;
        if (message->nlmsg_type == NLMSG_ERROR) {
            const struct nlmsgerr *error = NLMSG_DATA(message);

            return message->nlmsg_len >= NLMSG_LENGTH(sizeof(*error)) && error->error < 0 ? error->error
                                                                                          : -EIO;
        }
        result = take(argument, message);
        if (result < 0)
            return result;
    }
    return 1;
}

int netlink_dump(int fd, const struct nlmsghdr *request, char *buffer, take_message *take, void *argument)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    int result = 1;

    if (sendto(fd, request, request->nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof(kernel)) < 0)
        return -errno;
    while (result > 0) {
        struct sockaddr_nl from;
        socklen_t from_length = sizeof(from);
        ssize_t got =
            recvfrom(fd, buffer, NETLINK_DUMP_BUFFER, MSG_TRUNC, (struct sockaddr *)&from, &from_length);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        if (from_length != sizeof(from) || from.nl_pid != 0)
            continue; /* from another process, not from the kernel */
        if ((size_t)got > NETLINK_DUMP_BUFFER)
            return -EMSGSIZE;
        result = take_datagram(buffer, (size_t)got, take, argument);
    }
    return result;
}

/* --- changes ---------------------------------------------------------------------------------------------- */

static bool is_intact(const struct netlink_watch *watch)
{
    struct stat status;

    return fd_stat(watch->fd, &status) == 0 && status.st_dev == watch->device &&
           status.st_ino == watch->inode;
}

static int join(int fd, const int *groups, unsigned count)
{
    struct sockaddr_nl any = {.nl_family = AF_NETLINK};

    /* Without a name of its own the socket is told nothing. */
    if (bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0)
        return -errno;
    for (unsigned i = 0; i < count; i++) {
        if (setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &groups[i], sizeof(groups[i])) < 0 &&
            errno != EINVAL)
            return -errno;
    }
    return 0;
}

int netlink_watch_open(struct netlink_watch *watch, const int *groups, unsigned count)
{
    const int small = 1; /* the kernel's minimum: that something was lost says as much as what it was */
    struct stat status;
    int error, saved = errno;

    watch->fd = sys_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC);
    if (watch->fd < 0) {
        error = watch->fd;
        watch->fd = -1;
        return error;
    }
    (void)setsockopt(watch->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    error = join(watch->fd, groups, count);
    if (!error)
        error = fd_stat(watch->fd, &status);
    if (error) {
        sys_close(watch->fd);
        watch->fd = -1;
    } else {
        watch->device = status.st_dev;
        watch->inode = status.st_ino;
    }
    errno = saved;
    return error;
}

/* Not by libc, whose calls are cancellation points. */
static long receive(const struct netlink_watch *watch, int flags)
{
    char first;
    int saved = errno;
    long got = syscall(SYS_recvfrom, watch->fd, &first, sizeof(first), flags | MSG_DONTWAIT, NULL, NULL);

    if (got < 0)
        got = -errno;
    errno = saved;
    return got;
}

int netlink_watch_changed(struct netlink_watch *watch)
{
    long got = receive(watch, MSG_PEEK); /* another file keeps what it has */

    if (got == -EAGAIN)
        return 0;
    if (!is_intact(watch))
        return -EBADF;
    /* Until nothing is left: only then does the kernel tell again that it has dropped something (ENOBUFS). */
    while (got != -EAGAIN) {
        if (got < 0 && got != -ENOBUFS && got != -EINTR)
            return (int)got;
        got = receive(watch, 0);
    }
    return 1;
}

void netlink_watch_close(struct netlink_watch *watch)
{
    if (watch->fd >= 0 && is_intact(watch))
        sys_close(watch->fd);
    watch->fd = -1;
}
