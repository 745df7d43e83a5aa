/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Devices and their GID tables: one device per network interface with an address, non-loopback first
 * (compatibility.md §5.1). No I/O and no clock: engine/host/netdev.h reads the interfaces, applies snapshots, and
 * raises the resulting events. */
#ifndef OBJECT_DEVICE_DEVICE_H
#define OBJECT_DEVICE_DEVICE_H

#include <net/if.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/lock.h"
#include "base/verbs.h"
#include "rules/limits.h"
#include "transport/qp.h"

/* A locally administered OUI ("SH"): for 0 and for vendors' OUIs programs apply workarounds for that hardware. */
#define DEVICE_VENDOR 0x025348u

#define DEVICES_MAX     64u
#define DEVICE_NAME_MAX 64u /* IBV_SYSFS_NAME_MAX */

/* --- snapshots of the interfaces ------------------------------------------------------------------------ */

struct netdev {
    uint32_t ifindex;
    uint32_t mtu;
    char name[IF_NAMESIZE];
    uint8_t mac[6]; /* zeros: no Ethernet MAC address */
    bool loopback;
    bool running; /* up, with carrier */
};

enum netdev_address_flags {
    NETDEV_ADDRESS_TEMPORARY = 1, /* privacy addresses, secondary IPv4 addresses */
    NETDEV_ADDRESS_DEPRECATED = 2,
};

struct netdev_address {
    uint32_t ifindex;
    uint8_t gid[16];       /* IPv6, or IPv4 mapped into it */
    uint8_t prefix_length; /* of the 128 bits */
    uint8_t flags;         /* enum netdev_address_flags */
};

struct netdev_snapshot {
    const struct netdev *netdevs;
    const struct netdev_address *addresses;
    unsigned netdev_count, address_count;
};

/* --- the table ------------------------------------------------------------------------------------------ */

/* From the environment, which the engine reads once. */
struct device_options {
    const char *names;    /* SOFTHCA_DEVICE_NAMES: comma separated, in the order of the devices; NULL: none */
    bool link_local_gids; /* SOFTHCA_LINK_LOCAL_GIDS */
    uint32_t vendor_part_id; /* SOFTHCA_PART_ID */
    uint64_t host_seed;      /* equal in all processes of this host; for GUIDs of interfaces without a MAC */
};

/* A slot of the table; its address identifies the device as long as it is referenced. */
struct device {
    char name[DEVICE_NAME_MAX];
    char netdev_name[IF_NAMESIZE];
    uint32_t number;  /* position in the table */
    uint32_t ifindex; /* 0: the interface is gone. Read for each packet without the table's lock
                         (device_ifindex()) */
    uint32_t mtu;     /* of the interface */
    uint32_t references;
    bool in_use; /* false: a free slot */
    bool loopback, running;
    _Atomic bool port_down; /* by an injected fault (engine/paths/port_down.c); read for each packet */
    uint8_t mac[6];
    uint8_t node_guid[8];
    uint32_t gids_valid; /* bit i: gids[i] is an entry */
    uint8_t gids[LIMIT_GIDS][16];
    struct port_counters counters;
};

struct host_address {
    uint8_t gid[16];
    uint32_t ifindex;
    uint8_t prefix_length; /* < 128: the whole network is this host's (127/8) */
};

struct device_table {
    struct lock lock; /* guards everything below and the devices, except their counters */
    struct device_options options;
    _Atomic uint64_t generation; /* counts changes; written under lock */
    uint32_t slots;              /* devices[0..slots) were ever in use */
    struct device devices[DEVICES_MAX];
    struct host_address *addresses; /* exact addresses sorted by GID, then networks */
    unsigned address_count, network_first;
};

/* The table of this process; the engine initialises it before the first context is opened, and updates it. */
extern struct device_table host_devices;

struct device_change {
    struct device *device;
    enum ibv_event_type event; /* GID_CHANGE, PORT_ACTIVE or PORT_ERR */
};
#define DEVICE_CHANGES_MAX (2 * DEVICES_MAX)

void device_table_init(struct device_table *table, const struct device_options *options);
void device_table_fini(struct device_table *table);
/* Makes the lock free. If another thread held it, the address list is dropped until the next snapshot. */
void device_table_after_fork_in_child(struct device_table *table);
/* Updates the table from the snapshot. Returns the number of changes to report to contexts (new devices have
 * none), or -ENOMEM with the table unchanged. */
int device_table_apply(struct device_table *table, const struct netdev_snapshot *snapshot,
                       struct device_change ret_changes[DEVICE_CHANGES_MAX]);

/* Devices that have an interface with an address, in order, each with a reference taken. Returns how many. */
unsigned device_table_list(struct device_table *table, struct device *ret_devices[DEVICES_MAX]);
void device_get(struct device_table *table, struct device *device);
void device_put(struct device_table *table, struct device *device);

/* Is this GID an address of this host? *ret_ifindex: the interface with that address. */
bool device_table_is_local(struct device_table *table, const uint8_t gid[16], uint32_t *ret_ifindex);
static inline bool gid_is_of_host(const uint8_t gid[16])
{
    uint32_t ifindex;

    return device_table_is_local(&host_devices, gid, &ifindex);
}
/* Counts changes of the table, from 1: results of lookups are valid while it is the same. Any thread, no lock. */
static inline uint64_t device_table_generation(const struct device_table *table)
{
    return atomic_load_explicit(&table->generation, memory_order_relaxed);
}
/* The MAC of a device by its interface; false: the interface is not a device. */
bool device_table_mac(struct device_table *table, uint32_t ifindex, uint8_t ret_mac[6]);
/* The GUID, likewise. */
bool device_table_guid(struct device_table *table, uint32_t ifindex, uint8_t ret_guid[8]);
/* Addresses of this host, at most `room` of them. Returns how many. */
unsigned device_table_addresses(struct device_table *table, uint8_t (*ret_gids)[16], unsigned room);
/* The device whose GID table has this entry (reference taken), or NULL. ret_index may be NULL. */
struct device *device_table_find_gid(struct device_table *table, const uint8_t gid[16], uint32_t *ret_index);

/* --- one device; each takes the table's lock ------------------------------------------------------------ */

/* 0, -ENODATA for an empty entry, -EINVAL beyond the table. */
int device_query_gid(struct device_table *table, const struct device *device, uint32_t index,
                     uint8_t ret_gid[16], uint32_t *ret_ifindex);
/* Index of the entry, or -ENOENT. */
int device_find_gid(struct device_table *table, const struct device *device, const uint8_t gid[16]);
/* For transition_check(): which GID entries are valid, and the largest path MTU. */
uint32_t device_valid_gids(struct device_table *table, const struct device *device);
enum ibv_mtu device_active_mtu(struct device_table *table, const struct device *device);
uint32_t device_mtu(struct device_table *table, const struct device *device); /* of the interface */
void device_query(struct device_table *table, const struct device *device,
                  union newest_device_attr *ret_newest);
/* -EINVAL: no such port. */
int device_query_port(struct device_table *table, const struct device *device, uint32_t port,
                      struct ibv_port_attr *ret_attributes);

static inline bool gid_is_ipv4_mapped(const uint8_t gid[16])
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

    return !memcmp(gid, prefix, sizeof(prefix));
}

static inline bool gid_is_link_local(const uint8_t gid[16])
{
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* ff00::/8, or 224.0.0.0/4 mapped (verbs.md §8.3). */
static inline bool gid_is_multicast(const uint8_t gid[16])
{
    return gid[0] == 0xff || (gid_is_ipv4_mapped(gid) && (gid[12] & 0xf0) == 0xe0);
}

/* Any thread, no lock. */
static inline bool device_is_loopback(const struct device *device)
{
    return __atomic_load_n(&device->loopback, __ATOMIC_RELAXED);
}

/* Has an injected fault taken the port down? Any thread, no lock. */
static inline bool device_port_is_down(const struct device *device)
{
    return atomic_load_explicit(&device->port_down, memory_order_relaxed);
}

/* Any thread, no lock. */
static inline uint32_t device_ifindex(const struct device *device)
{
    return __atomic_load_n(&device->ifindex, __ATOMIC_RELAXED);
}

#endif
