/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The abstract unix sockets of this network namespace: how processes that do not know each other meet. */
#ifndef BASE_UNIX_NAMES_H
#define BASE_UNIX_NAMES_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Fills in the address of an abstract name; returns its length. A name that is too long is cut. */
socklen_t unix_name_address(const char *name, struct sockaddr_un *ret_address);

/* Visits the names that consist of the prefix and `length` further characters, in no order, each perhaps
 * several times (a listener and the connections it accepted). The prefix is at most 64 characters, and so is
 * the rest. Names come from anybody. No cancellation point. 0 or -errno: the kernel's list cannot be read. */
int unix_names_visit(const char *prefix, size_t length, void (*visit)(const char *rest, void *argument),
                     void *argument);

#endif
