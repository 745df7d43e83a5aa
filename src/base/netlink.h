/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Tables of the kernel by netlink(7). */
#ifndef BASE_NETLINK_H
#define BASE_NETLINK_H

#include <linux/netlink.h>

/* The kernel puts at most 32 KiB into a datagram of a dump. */
#define NETLINK_DUMP_BUFFER 32768u

/* Sends a request for a dump and passes each message of the answer to `take`, whose negative result ends it. buffer: of
 * NETLINK_DUMP_BUFFER bytes. After an error the socket may hold the rest of the answer: the caller closes it. 0;
 * -EAGAIN: the table changed meanwhile, and some of it may be missing; -errno. */
int netlink_dump(int fd, const struct nlmsghdr *request, char *buffer,
                 int (*take)(void *argument, const struct nlmsghdr *message), void *argument);

#endif
