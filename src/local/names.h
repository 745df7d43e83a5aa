/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names on this host other than blocks; internal to local. See local_name_take() and local_name_find(). */
#ifndef LOCAL_NAMES_H
#define LOCAL_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "local/local.h"

/* The address of a name; returns its length. */
socklen_t names_address(const char *text, struct sockaddr_un *ret_address);
/* Connects to the holder of the name, unless that is another user than the one whom the name names
 * (local/block_names.h). A descriptor, or -errno: -ECONNREFUSED: no holder; -EAGAIN: the holder's listen backlog is
 * full. */
int names_connect(const char *text);
/* The link to the process at the other end of that connection; NULL: no link yet, a handshake is needed. In a rundown
 * section, or the helper thread. */
struct link *names_link_behind(int fd);

/* Tells the peer of an installed link how many names of this process have ended. */
void names_tell(struct link *link, void *unused);

/* Stops (out of descriptors) or resumes watching the listeners. Helper thread. */
void names_watch(bool watch);
/* Frees released names. Helper thread, outside of event_dispatch(). */
void names_free_released(void);
void names_after_fork_in_child(void);

#endif
