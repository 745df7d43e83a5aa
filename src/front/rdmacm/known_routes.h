/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the kernel's routing said of destinations. It is asked by a socket that is made for it, four system calls; a
 * server that takes a thousand connections is resolved a thousand times. An answer is taken again for a second,
 * unless the kernel has told of a change of interfaces, addresses, routes or rules meanwhile. So what it tells nobody
 * of (routing by the user, a program of the control group, another network namespace) is followed within a second. */
#ifndef FRONT_RDMACM_KNOWN_ROUTES_H
#define FRONT_RDMACM_KNOWN_ROUTES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* True: *ret_source is the source address for the destination. False: the kernel has to be asked; *ret_stamp is for
 * routes_remember(). */
bool routes_recall(const struct sockaddr *to, struct sockaddr_storage *ret_source, uint64_t *ret_stamp);
/* What the kernel answered, asked after routes_recall(). */
void routes_remember(const struct sockaddr *to, const struct sockaddr_storage *source, uint64_t stamp);
void routes_after_fork_in_child(void);

#endif
