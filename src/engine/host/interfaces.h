/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Keeps the device table up to date with the network interfaces of the machine (interfaces.c). */
#ifndef ENGINE_HOST_INTERFACES_H
#define ENGINE_HOST_INTERFACES_H

/* A descriptor that is readable when an interface or address has changed; -errno: changes are not detected, and the
 * log says so. Helper thread. */
int interfaces_monitor_fd(void);
/* The descriptor is readable. Helper thread. */
void interfaces_changed(void);
void interfaces_after_fork_in_child(void);

#endif
