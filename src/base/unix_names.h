/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names of abstract unix sockets in this network namespace, by which processes find each other. */
#ifndef BASE_UNIX_NAMES_H
#define BASE_UNIX_NAMES_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

/* Fills in the address of an abstract name and returns its length. Truncates a name that is too long. */
socklen_t unix_name_address(const char *name, struct sockaddr_un *ret_address);

/* Visits the names that consist of the prefix and `length` further characters, both of at most 64 characters. The
 * order is undefined, and a name may come several times (a listener and the connections that it accepted). Any
 * process can create such names. Not a cancellation point. 0; -errno: /proc/net/unix cannot be read. */
int unix_names_visit(const char *prefix, size_t length, void (*visit)(const char *rest, void *argument),
                     void *argument);

/* The same for sockets that neither listen nor are connected, with the user who made the socket, as our user namespace
 * numbers him. Unknown where the kernel does not tell: before Linux 5.3, without CONFIG_UNIX_DIAG, or if something
 * forbids netlink(7); sockets that listen are visited, too, then, and a name may come once more. */
#define UNIX_NAME_UID_UNKNOWN ((uid_t)-1)
int unix_names_visit_unconnected(const char *prefix, size_t length,
                                 void (*visit)(const char *rest, uid_t uid, void *argument), void *argument);

#endif
