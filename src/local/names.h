/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names that this process holds beside its blocks, and who holds others: local_name_take(),
 * local_name_find().
 */
#ifndef LOCAL_NAMES_H
#define LOCAL_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "local/local.h"

/* Connects to whoever holds the name. A descriptor, or -errno: -ECONNREFUSED nobody holds it, -EAGAIN its
 * holder has too many connections that it has not looked at. */
int names_connect(const char *text);
/* The link to the process at the other end of that connection, if there is one; NULL: it takes a handshake.
 * In a rundown section. */
struct link *names_link_behind(int fd);

/* Descriptors are short: stops watching the listeners, and watches them again. Helper thread. */
void names_watch(bool watch);
/* Frees what was released. Helper thread, while it handles no event. */
void names_bury(void);
void names_after_fork_in_child(void);

#endif
