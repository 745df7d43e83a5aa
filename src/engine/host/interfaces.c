/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Network interfaces that appear, disappear or change: updates the device table and raises port events
 * (verbs.md §9.2). */
#include "engine/host/interfaces.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/core/engine.h"
#include "engine/host/netdev.h"
#include "object/device/context.h"
#include "object/device/device.h"

static int monitor_fd = -1;
/* Snapshots are applied in the order in which they were taken. */
static struct lock refresh_lock = LOCK_INIT;

int engine_refresh_devices(void)
{
    struct device_change changes[DEVICE_CHANGES_MAX];
    struct netdev_snapshot snapshot;
    static bool
        initialised; /* under refresh_lock; here, because programs list devices before they open one */
    int count, cancellation;

    /* A thread of the program: system calls on the rtnetlink socket are cancellation points. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    lock_acquire(&refresh_lock);
    if (!initialised) {
        struct device_options options;

        netdev_read_options(&options);
        device_table_init(&host_devices, &options);
        initialised = true;
    }
    count = netdev_snapshot(&snapshot);
    if (count == 0) {
        count = device_table_apply(&host_devices, &snapshot, changes);
        netdev_snapshot_fini(&snapshot);
    }
    lock_release(&refresh_lock);
    for (int i = 0; i < count; i++)
        context_raise_port_event(changes[i].device, changes[i].event);
    pthread_setcancelstate(cancellation, NULL);
    return min_of(count, 0);
}

int interfaces_monitor_fd(void)
{
    if (monitor_fd < 0) {
        monitor_fd = netdev_monitor_open();
        if (monitor_fd < 0)
            log_warn("cannot monitor network interfaces (rtnetlink socket: %s): address and link changes are "
                     "not detected",
                     strerror(-monitor_fd));
    }
    return monitor_fd;
}

void interfaces_changed(void)
{
    int error = netdev_monitor_drain(monitor_fd) ? engine_refresh_devices() : 0;

    if (error)
        log_warn("cannot list the network interfaces: %s; devices and GIDs may be out of date",
                 strerror(-error));
}

void interfaces_after_fork_in_child(void)
{
    if (monitor_fd >= 0)
        close(monitor_fd);
    monitor_fd = -1;
    lock_init(&refresh_lock);
}
