/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The machine's network interfaces, read over rtnetlink. Only those with an address count. */
#ifndef ENGINE_HOST_NETDEV_H
#define ENGINE_HOST_NETDEV_H

#include <stdbool.h>

#include "object/device/device.h"

/* 0 or -errno. The snapshot's arrays belong to the caller: netdev_snapshot_fini(). */
int netdev_snapshot(struct netdev_snapshot *ret_snapshot);
void netdev_snapshot_fini(struct netdev_snapshot *snapshot);

/* A descriptor that becomes readable when an interface or address changes, or -errno. */
int netdev_monitor_open(void);
/* Reads what is there. True: take a new snapshot. */
bool netdev_monitor_drain(int fd);

/* The environment and the machine's identity. The strings live as long as the process. */
void netdev_read_options(struct device_options *ret_options);

#endif
