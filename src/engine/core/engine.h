/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Public header of the engine for src/front. The engine owns the clock, the helper thread, timers, wake-ups and what
 * happens at a fork, and connects objects with links. */
#ifndef ENGINE_CORE_ENGINE_H
#define ENGINE_CORE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct device;

/* Prepares the process for contexts: segment, devices, ports. Idempotent; the child of a fork calls it again. Starts
 * no thread. 0 or -errno. */
int engine_start(void);
/* Reads the network interfaces, updates the device table, and raises port events on open contexts. Called by every
 * ibv_get_device_list(). 0 or -errno. */
int engine_refresh_devices(void);
/* At exit: sends batched packets and delayed acknowledgements, and repeats the last acknowledgement of QPs
 * (engine/paths/exit_flush.c). */
void engine_before_exit(void);
/* The program is going to wait for asynchronous events: starts the helper thread, which alone monitors interfaces. 0 or
 * -errno. */
int engine_expect_events(void);
/* After an attach to a multicast group: links this process with all others of the host, so that their packets reach it
 * (verbs.md §8.3). May sleep, bounded. */
void engine_announce_multicast(void);
/* An injected fault takes the device's port down, or up again (engine/paths/port_down.c), with the event for it
 * unless it is so already. time: after which a port that goes down comes up by itself; 0: never. No lock held. */
void engine_change_port(struct device *device, bool down, ns_t time);
/* Takes all ports up that engine_change_port() has taken down. No lock held. */
void engine_restore_ports(void);

#endif
