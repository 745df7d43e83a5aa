/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Would the kernel let the process at the other end of a socket trace this one (ptrace(2), "Ptrace access mode
 * checking")? Only such processes get descriptors of this one's memory.
 *
 * A process of the same pid namespace opens /proc/PID/fd, where the kernel itself decides. One of another pid
 * namespace may have no number for this process, so this process decides, by what the kernel says about the other end
 * of the socket:
 *
 *   user, group       SO_PEERCRED
 *   user namespace    PIDFD_GET_USER_NAMESPACE on the pidfd of SO_PEERPIDFD (Linux 6.11). The kernel answers only
 *                     whoever may read the other process.
 *   capabilities      capget(2), if the other process has a number here. Else it is known to have as many as this one
 *                     only if this one has none.
 *   dumpable          PR_GET_DUMPABLE
 *
 * What a security module forbids beyond that, such as a Landlock domain, is not known here. Yama is not asked: it
 * decides about tracing, and not about reading. */
#ifndef LOCAL_PTRACE_ACCESS_H
#define LOCAL_PTRACE_ACCESS_H

#include <stdbool.h>

/* False also if the kernel does not say. */
bool ptrace_access_of_peer(int socket);

#endif
