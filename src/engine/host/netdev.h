/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The machine's network interfaces, read over rtnetlink(7). Only interfaces with an address are returned. */
#ifndef ENGINE_HOST_NETDEV_H
#define ENGINE_HOST_NETDEV_H

#include <stdbool.h>

#include "object/device/device.h"

/* 0 or -errno. netdev_snapshot_fini() frees the snapshot's arrays. */
int netdev_snapshot(struct netdev_snapshot *ret_snapshot);
void netdev_snapshot_fini(struct netdev_snapshot *snapshot);

/* A descriptor that becomes readable when an interface or address has changed, or -errno. */
int netdev_monitor_open(void);
/* Discards the messages on it. True: something has changed, take a new snapshot. */
bool netdev_monitor_drain(int fd);

/* Reads the environment, and the host's seed (struct device_options) from /etc/machine-id. The strings live as long as
 * the process. */
void netdev_read_options(struct device_options *ret_options);

#endif
