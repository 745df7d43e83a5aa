/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/netlink.h"

#include <errno.h>
#include <sys/socket.h>

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
