/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_device structures, one per device (verbs.md §10.1). As in rdma-core, a structure stays after
 * ibv_free_device_list() as long as the device exists: programs (libpcap) free the list and then open a device of it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/lock.h"
#include "engine/core/engine.h"
#include "front/verbs/front.h"
#include "object/device/device.h"

const char *ibv_get_sysfs_path(void);

/* A provider library recognizes its devices by the pointer right behind struct ibv_device: that pointer must exist
 * and must not be the provider's (compatibility.md §2). The layout up to core_support is rdma-core's. */
struct public_device {
    struct ibv_device ibv;
    const void *ops;
    _Atomic int reference_word; /* not used here */
    struct {
        void *next, *prev;
    } entry;
    void *sysfs;
    uint64_t core_support;
    struct device *device;
    /* Guarded by registry_lock: */
    unsigned references; /* lists that contain it, open contexts, and the registry */
    bool kept;           /* the registry holds a reference */
};
_Static_assert(offsetof(struct public_device, ops) == 664, "where providers look");

static const char not_a_providers_table[] = "SoftHCA";

static struct lock registry_lock = LOCK_INIT;
static struct public_device *registry[DEVICES_MAX]; /* indexed by device number */

static void lock_for_fork(void)
{
    lock_acquire(&registry_lock);
}

static void unlock_after_fork(void)
{
    lock_release(&registry_lock);
}

static void register_fork_handlers(void)
{
    pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
}

static struct public_device *public_of(struct ibv_device *device)
{
    return container_of(device, struct public_device, ibv);
}

struct device *front_device(struct ibv_device *device)
{
    return public_of(device)->device;
}

void front_device_get(struct ibv_device *device)
{
    lock_acquire(&registry_lock);
    public_of(device)->references++;
    lock_release(&registry_lock);
}

void front_device_put(struct ibv_device *device)
{
    struct public_device *public = public_of(device);
    bool last;

    lock_acquire(&registry_lock);
    last = --public->references == 0;
    if (last)
        registry[public->device->number] = NULL;
    lock_release(&registry_lock);
    if (last) {
        device_put(&host_devices, public->device);
        free(public);
    }
}

static struct public_device *make_public(struct device *device)
{
    struct public_device *public = calloc(1, sizeof(*public));
    struct ibv_device *ibv;

    if (!public)
        return NULL;
    ibv = &public->ibv;
    ibv->node_type = IBV_NODE_CA;
    ibv->transport_type = IBV_TRANSPORT_IB;
    snprintf(ibv->name, sizeof(ibv->name), "%s", device->name);
    snprintf(ibv->dev_name, sizeof(ibv->dev_name), "uverbs%u", device->number);
    snprintf(ibv->dev_path, sizeof(ibv->dev_path), "%.150s/class/infiniband_verbs/%s", ibv_get_sysfs_path(),
             ibv->dev_name);
    snprintf(ibv->ibdev_path, sizeof(ibv->ibdev_path), "%.150s/class/infiniband/%s", ibv_get_sysfs_path(),
             ibv->name);
    public->ops = not_a_providers_table;
    public->device = device;
    return public;
}

/* Consumes the caller's reference on the device. NULL: out of memory. */
static struct ibv_device *find_or_make(struct device *device)
{
    struct public_device *public;
    bool found;

    lock_acquire(&registry_lock);
    public = registry[device->number];
    found = public != NULL;
    if (!found)
    public = registry[device->number] = make_public(device);
    if (public)
    public->references++;
    if (public && !public->kept) {
        public->kept = true;
        public->references++;
    }
    lock_release(&registry_lock);
    if (found || !public)
        device_put(&host_devices, device);
    return public ? &public->ibv : NULL;
}

/* The registry drops its reference on devices that no longer exist. */
static void forget_others(struct device *const *devices, unsigned count)
{
    for (unsigned number = 0; number < DEVICES_MAX; number++) {
        struct public_device *public;
        bool gone;

        lock_acquire(&registry_lock);
        public = registry[number];
        gone = public && public->kept;
        for (unsigned i = 0; gone && i < count; i++)
            gone = public->device != devices[i];
        if (gone)
        public->kept = false;
        lock_release(&registry_lock);
        if (gone)
            front_device_put(&public->ibv);
    }
}

VERBS_EXPORT struct ibv_device **ibv_get_device_list(int *ret_count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct device *devices[DEVICES_MAX];
    struct ibv_device **list;
    unsigned count, listed = 0;
    int result;

    if (ret_count)
        *ret_count = 0;
    pthread_once(&once, register_fork_handlers);
    result = engine_refresh_devices();
    if (result < 0)
        return null_with(result);
    count = device_table_list(&host_devices, devices);
    forget_others(devices, count);
    if (count == 0)
        return null_with(ENOSYS); /* programs take ENOSYS for "no RDMA here" (compatibility.md §4) */

    list = calloc(count + 1, sizeof(list[0]));
    for (unsigned i = 0; i < count; i++) {
        if (!list) {
            device_put(&host_devices, devices[i]);
            continue;
        }
        list[listed] = find_or_make(devices[i]);
        if (list[listed])
            listed++;
    }
    if (listed < count) {
        if (list)
            ibv_free_device_list(list);
        return null_with(ENOMEM);
    }
    if (ret_count)
        *ret_count = (int)count;
    return list;
}

struct ibv_device *front_device_by_guid(const uint8_t node_guid[8])
{
    struct ibv_device **list = ibv_get_device_list(NULL), *found = NULL;

    for (unsigned i = 0; list && list[i] && !found; i++) {
        if (!memcmp(front_device(list[i])->node_guid, node_guid, 8))
            found = list[i];
    }
    if (found)
        front_device_get(found);
    if (list)
        ibv_free_device_list(list);
    return found;
}

VERBS_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    for (unsigned i = 0; list[i]; i++)
        front_device_put(list[i]);
    free(list);
}

VERBS_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

VERBS_EXPORT int ibv_get_device_index(struct ibv_device *device)
{
    return (int)front_device(device)->number + 1; /* device indices of the kernel start at 1, too */
}

VERBS_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
    __be64 guid;

    memcpy(&guid, front_device(device)->node_guid, sizeof(guid));
    return guid;
}
