/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Tables of the kernel by netlink(7). */
#ifndef BASE_NETLINK_H
#define BASE_NETLINK_H

#include <linux/netlink.h>
#include <stdbool.h>
#include <sys/types.h>

/* The kernel puts at most 32 KiB into a datagram of a dump. */
#define NETLINK_DUMP_BUFFER 32768u

/* Sends a request for a dump and passes each message of the answer to `take`, whose negative result ends it. buffer: of
 * NETLINK_DUMP_BUFFER bytes. After an error the socket may hold the rest of the answer: the caller closes it. 0;
 * -EAGAIN: the table changed meanwhile, and some of it may be missing; -errno. */
int netlink_dump(int fd, const struct nlmsghdr *request, char *buffer,
                 int (*take)(void *argument, const struct nlmsghdr *message), void *argument);

/* A socket at which the kernel tells of changes. It tells before the call that makes the change returns to its
 * caller. */
struct netlink_watch {
    int fd; /* -1: none */
    /* The file behind it: some programs close descriptors that they did not open, and the number is reused. */
    dev_t device;
    ino_t inode;
};

/* groups: enum rtnetlink_groups; those that this kernel lacks are left out. 0 or -errno. */
int netlink_watch_open(struct netlink_watch *watch, const int *groups, unsigned count);
/* 0: nothing was told since the last call. 1: something was, or more than the socket holds. -errno: the socket is of no
 * more use. One system call where nothing was told. */
int netlink_watch_changed(struct netlink_watch *watch);
/* Leaves the descriptor alone if it is another file by now. */
void netlink_watch_close(struct netlink_watch *watch);

#endif
