/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "adapters.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_query_port

/* Loaded with local scope at run time, because the library is only found when we know where we are ourselves.
 */
struct verbs {
    struct ibv_device **(*get_device_list)(int *);
    void (*free_device_list)(struct ibv_device **);
    struct ibv_context *(*open_device)(struct ibv_device *);
    int (*close_device)(struct ibv_context *);
    __be64 (*get_device_guid)(struct ibv_device *);
    int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
    int (*query_pkey)(struct ibv_context *, uint8_t, int, __be16 *);
    ssize_t (*query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t);
    int (*read_sysfs_file)(const char *, const char *, char *, size_t);
};

static int load(const char *library, struct verbs *ret, char *why, size_t why_size)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *slot;
    } names[] = {
        {"ibv_get_device_list", &ret->get_device_list},
        {"ibv_free_device_list", &ret->free_device_list},
        {"ibv_open_device", &ret->open_device},
        {"ibv_close_device", &ret->close_device},
        {"ibv_get_device_guid", &ret->get_device_guid},
        {"ibv_query_device", &ret->query_device},
        {"ibv_query_port", &ret->query_port},
        {"ibv_query_pkey", &ret->query_pkey},
        {"_ibv_query_gid_table", &ret->query_gid_table},
        {"ibv_read_sysfs_file", &ret->read_sysfs_file},
    };

    if (!handle) {
        snprintf(why, why_size, "cannot load %s", dlerror());
        return -ELIBACC;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *found = dlsym(handle, names[i].name);

        if (!found) {
            snprintf(why, why_size,
                     "%s lacks %s: it is of another release of SoftHCA than this command: install "
                     "one of both",
                     library, names[i].name);
            return -ELIBBAD;
        }
        memcpy(names[i].slot, &found, sizeof(found));
    }
    return 0;
}

static int read_gids(const struct verbs *verbs, struct ibv_context *context, struct adapter *adapter)
{
    size_t room = (size_t)(adapter->port.gid_tbl_len > 0 ? adapter->port.gid_tbl_len : 0);
    struct ibv_gid_entry *entries = calloc(room + 1, sizeof(*entries));
    ssize_t count;

    if (!entries)
        return -ENOMEM;
    count = verbs->query_gid_table(context, entries, room, 0, sizeof(*entries));
    adapter->gids = calloc(count > 0 ? (size_t)count : 1, sizeof(*adapter->gids));
    if (!adapter->gids) {
        free(entries);
        return -ENOMEM;
    }
    for (ssize_t i = 0; i < count; i++) {
        struct adapter_gid *gid = &adapter->gids[adapter->gid_count++];

        gid->index = entries[i].gid_index;
        gid->type = entries[i].gid_type;
        gid->gid = entries[i].gid;
        if (entries[i].ndev_ifindex && !if_indextoname(entries[i].ndev_ifindex, gid->netdev))
            gid->netdev[0] = '\0';
        if (!adapter->netdev[0])
            memcpy(adapter->netdev, gid->netdev, sizeof(adapter->netdev));
    }
    free(entries);
    return 0;
}

static int read_adapter(const struct verbs *verbs, struct ibv_device *device, struct adapter *ret, char *why,
                        size_t why_size)
{
    struct ibv_context *context;
    __be16 pkey = 0;
    int error;

    snprintf(ret->name, sizeof(ret->name), "%s", device->name);
    snprintf(ret->dev_name, sizeof(ret->dev_name), "%s", device->dev_name);
    ret->guid = be64toh(verbs->get_device_guid(device));
    if (verbs->read_sysfs_file(device->ibdev_path, "board_id", ret->board, sizeof(ret->board)) < 0)
        ret->board[0] = '\0';
    context = verbs->open_device(device);
    if (!context) {
        error = errno;
        snprintf(why, why_size, "cannot open %s: %s", device->name, strerror(error));
        return -error;
    }
    error = verbs->query_device(context, &ret->attr);
    if (!error)
        error = verbs->query_port(context, 1, &ret->port);
    if (!error && verbs->query_pkey(context, 1, 0, &pkey) == 0)
        ret->pkey = be16toh(pkey);
    if (!error)
        error = -read_gids(verbs, context, ret);
    if (error)
        snprintf(why, why_size, "cannot query %s: %s", device->name, strerror(error));
    verbs->close_device(context);
    return -error;
}

int adapters_read(const char *library, struct adapters *ret, char *why, size_t why_size)
{
    struct verbs verbs = {0};
    struct ibv_device **devices;
    struct adapters read = {0};
    int count = 0, error;

    error = load(library, &verbs, why, why_size);
    if (error)
        return error;
    errno = 0;
    devices = verbs.get_device_list(&count);
    if (!devices) {
        /* ENOSYS is what the library says when there is no usable interface, as without RDMA in the kernel.
         */
        if (errno == ENOSYS || errno == 0) {
            *ret = read;
            return 0;
        }
        error = -errno;
        snprintf(why, why_size,
                 "the devices cannot be listed (ibv_get_device_list): %s; softhca doctor looks for the cause",
                 strerror(errno));
        return error;
    }
    read.list = calloc((size_t)count + 1, sizeof(*read.list));
    if (!read.list)
        error = -ENOMEM;
    for (int i = 0; i < count && !error; i++)
        error = read_adapter(&verbs, devices[i], &read.list[read.count++], why, why_size);
    verbs.free_device_list(devices);
    if (error)
        adapters_free(&read);
    else
        *ret = read;
    return error;
}

void adapters_free(struct adapters *adapters)
{
    for (unsigned i = 0; i < adapters->count; i++)
        free(adapters->list[i].gids);
    free(adapters->list);
    *adapters = (struct adapters){0};
}

const char *port_state_name(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_NOP:
        return "NOP";
    case IBV_PORT_DOWN:
        return "DOWN";
    case IBV_PORT_INIT:
        return "INIT";
    case IBV_PORT_ARMED:
        return "ARMED";
    case IBV_PORT_ACTIVE:
        return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER:
        return "ACTIVE_DEFER";
    }
    return "unknown";
}

unsigned mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

const char *gid_address(const union ibv_gid *gid, char *text)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (memcmp(gid->raw, mapped, sizeof(mapped)) == 0)
        return inet_ntop(AF_INET, gid->raw + 12, text, INET6_ADDRSTRLEN);
    return inet_ntop(AF_INET6, gid->raw, text, INET6_ADDRSTRLEN);
}
