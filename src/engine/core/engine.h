/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The engine moves everything along: it owns clock, threads, timers, wake-ups and fork, and joins objects to
 * links. This is its door for the fronts. */
#ifndef ENGINE_CORE_ENGINE_H
#define ENGINE_CORE_ENGINE_H

#include <stdint.h>

/* Makes the process ready for contexts: segment, devices, ports. Idempotent, and again after a fork in the
 * child. Starts no thread. 0 or -errno. */
int engine_start(void);
/* Reads the interfaces and brings the device table up to date, raising what open contexts must hear. Cheap
 * enough for every ibv_get_device_list(). */
int engine_refresh_devices(void);
/* The program exits: what waited for something to go with goes alone, and last acknowledgements are repeated.
 */
void engine_before_exit(void);
/* Asynchronous events may be waited for from now on: some come from interfaces, and only the helper thread
 * watches those. 0 or -errno. */
int engine_expect_events(void);
/* Makes sure that members and senders of multicast groups of other processes know of this process
 * (verbs.md §8.3); after an attach. May sleep, bounded. */
void engine_announce_multicast(void);

#endif
