/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device table follows the machine's interfaces (interfaces.c). */
#ifndef ENGINE_HOST_INTERFACES_H
#define ENGINE_HOST_INTERFACES_H

int interfaces_monitor_fd(void);
void interfaces_changed(void);
void interfaces_after_fork_in_child(void);

#endif
