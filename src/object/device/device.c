/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "object/device/device.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/types.h"

/* One entry is always empty, so that programs meet ENODATA with SoftHCA and not only with hardware
 * (compatibility.md §5.1). */
#define GIDS_USED_MAX (LIMIT_GIDS - 1)

struct device_table host_devices;

void device_table_init(struct device_table *table, const struct device_options *options)
{
    memset(table, 0, sizeof(*table));
    table->options = *options;
}

void device_table_fini(struct device_table *table)
{
    free(table->addresses);
    table->addresses = NULL;
    table->address_count = table->network_first = 0;
}

void device_table_after_fork_in_child(struct device_table *table)
{
    if (lock_held(&table->lock))
        table->address_count = table->network_first = 0;
    lock_init(&table->lock);
}

/* --- GUIDs and names ------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9ull;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

static bool guid_taken(const struct device_table *table, const struct device *except, const uint8_t guid[8])
{
    for (uint32_t i = 0; i < table->slots; i++) {
        const struct device *device = &table->devices[i];

        if (device != except && device->in_use && memcmp(device->node_guid, guid, 8) == 0)
            return true;
    }
    return false;
}

/* The EUI-64 of the MAC. An interface without a MAC, or with another's (VLAN, bridge), gets a hash that all
 * processes of this host compute alike, and which is never zero: its last bit is set. */
static void make_guid(const struct device_table *table, struct device *device)
{
    static const uint8_t no_mac[6];
    const uint8_t *mac = device->mac;
    uint8_t guid[8] = {mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};

    if (memcmp(mac, no_mac, sizeof(no_mac)) == 0 || guid_taken(table, device, guid)) {
        uint64_t hash = mix(table->options.host_seed ^ mix(device->ifindex));

        memcpy(guid, &hash, sizeof(guid));
        guid[0] &= 0xfc; /* locally administered, individual */
        guid[7] |= 1;
    }
    memcpy(device->node_guid, guid, sizeof(guid));
}

static bool name_is_usable(const struct device_table *table, const struct device *except, const char *name,
                           size_t length)
{
    if (length == 0 || length >= DEVICE_NAME_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)name[i]) && (i == 0 || !strchr("_-.", name[i])))
            return false;
    }
    for (uint32_t i = 0; i < table->slots; i++) {
        const struct device *device = &table->devices[i];

        if (device != except && device->in_use && strlen(device->name) == length &&
            memcmp(device->name, name, length) == 0)
            return false;
    }
    return true;
}

static void make_name(const struct device_table *table, struct device *device)
{
    const char *wanted = table->options.names;
    size_t length = wanted ? strcspn(wanted, ",") : 0;

    for (uint32_t i = 0; wanted && i < device->number; i++) {
        wanted = wanted[length] == ',' ? wanted + length + 1 : NULL;
        length = wanted ? strcspn(wanted, ",") : 0;
    }
    if (wanted && length > 0) {
        if (name_is_usable(table, device, wanted, length)) {
            memcpy(device->name, wanted, length);
            device->name[length] = '\0';
            return;
        }
        log_warn("SOFTHCA_DEVICE_NAMES: '%.*s' is invalid or in use by another device; using softhca%u",
                 (int)min_of(length, (size_t)64), wanted, device->number);
    }
    snprintf(device->name, sizeof(device->name), "softhca%u", device->number);
}

/* --- applying a snapshot -------------------------------------------------------------------------------- */

static bool gid_is_zero(const uint8_t gid[16])
{
    static const uint8_t zero[16];

    return memcmp(gid, zero, sizeof(zero)) == 0;
}

/* The order in which new addresses take GID entries: IPv4, then IPv6, then link-local; permanent before temporary
 * and deprecated. IPv4 addresses keep the kernel's order: the primary one is first. The kernel defines no order of
 * IPv6 addresses, so these are ordered numerically. */
static int address_rank(const struct netdev_address *address)
{
    int rank = gid_is_ipv4_mapped(address->gid) ? 0 : gid_is_link_local(address->gid) ? 8 : 4;

    return rank + ((address->flags & NETDEV_ADDRESS_TEMPORARY) ? 1 : 0) +
           ((address->flags & NETDEV_ADDRESS_DEPRECATED) ? 2 : 0);
}

static bool address_precedes(const struct netdev_address *a, const struct netdev_address *b)
{
    int rank_a = address_rank(a), rank_b = address_rank(b);

    if (rank_a != rank_b)
        return rank_a < rank_b;
    return rank_a >= 4 && memcmp(a->gid, b->gid, sizeof(a->gid)) < 0;
}

struct eligibility {
    bool link_local; /* link-local addresses become GIDs too */
};

/* libfabric turns a link-local GID into an AF_IB address, which other programs do not support (compatibility.md §5.1).
 * So these become GIDs only where no interface but lo has another address. */
static struct eligibility check_eligibility(const struct device_table *table,
                                            const struct netdev_snapshot *snapshot)
{
    struct eligibility eligibility = {.link_local = true};

    for (unsigned i = 0; i < snapshot->netdev_count && !table->options.link_local_gids; i++) {
        for (unsigned j = 0; j < snapshot->address_count && !snapshot->netdevs[i].loopback; j++) {
            if (snapshot->addresses[j].ifindex == snapshot->netdevs[i].ifindex &&
                !gid_is_link_local(snapshot->addresses[j].gid))
                eligibility.link_local = false;
        }
    }
    return eligibility;
}

static bool is_eligible(const struct netdev_address *address, uint32_t ifindex,
                        struct eligibility eligibility)
{
    return address->ifindex == ifindex && !gid_is_zero(address->gid) && !gid_is_multicast(address->gid) &&
           (eligibility.link_local || !gid_is_link_local(address->gid));
}

static bool has_eligible(const struct netdev_snapshot *snapshot, uint32_t ifindex,
                         struct eligibility eligibility)
{
    for (unsigned i = 0; i < snapshot->address_count; i++) {
        if (is_eligible(&snapshot->addresses[i], ifindex, eligibility))
            return true;
    }
    return false;
}

static int find_gid(const struct device *device, const uint8_t gid[16])
{
    for (uint32_t i = 0; i < LIMIT_GIDS; i++) {
        if ((device->gids_valid & (1u << i)) && memcmp(device->gids[i], gid, 16) == 0)
            return (int)i;
    }
    return -ENOENT;
}

static bool add_gid(struct device *device, const uint8_t gid[16])
{
    if (__builtin_popcount(device->gids_valid) >= (int)GIDS_USED_MAX)
        return false;
    int index = __builtin_ctz(~device->gids_valid);
    memcpy(device->gids[index], gid, 16);
    device->gids_valid |= 1u << index;
    return true;
}

/* An entry keeps its index as long as the interface has the address. */
static bool update_gids(struct device *device, const struct netdev_snapshot *snapshot,
                        struct eligibility eligibility)
{
    uint32_t alive = 0;
    bool changed = false;

    for (unsigned i = 0; i < snapshot->address_count && device->ifindex; i++) {
        int index = snapshot->addresses[i].ifindex == device->ifindex
                        ? find_gid(device, snapshot->addresses[i].gid)
                        : -1;
        if (index >= 0)
            alive |= 1u << index;
    }
    for (uint32_t i = 0; i < LIMIT_GIDS; i++) {
        if ((device->gids_valid & ~alive) & (1u << i)) {
            memset(device->gids[i], 0, 16);
            changed = true;
        }
    }
    device->gids_valid = alive;

    while (device->ifindex) {
        const struct netdev_address *best = NULL;

        for (unsigned i = 0; i < snapshot->address_count; i++) {
            const struct netdev_address *address = &snapshot->addresses[i];

            if (is_eligible(address, device->ifindex, eligibility) && find_gid(device, address->gid) < 0 &&
                (!best || address_precedes(address, best)))
                best = address;
        }
        if (!best || !add_gid(device, best->gid))
            break;
        changed = true;
    }
    return changed;
}

static const struct netdev *netdev_of(const struct device *device, const struct netdev_snapshot *snapshot)
{
    for (unsigned i = 0; i < snapshot->netdev_count; i++) {
        if (snapshot->netdevs[i].ifindex == device->ifindex)
            return &snapshot->netdevs[i];
    }
    /* An interface that was created again under the same name (a USB adapter, a bridge) is the same device. */
    for (unsigned i = 0; i < snapshot->netdev_count; i++) {
        if (strncmp(snapshot->netdevs[i].name, device->netdev_name, IF_NAMESIZE) == 0)
            return &snapshot->netdevs[i];
    }
    return NULL;
}

static const struct device *device_of(const struct device_table *table, uint32_t ifindex)
{
    for (uint32_t i = 0; i < table->slots; i++) {
        if (table->devices[i].in_use && table->devices[i].ifindex == ifindex)
            return &table->devices[i];
    }
    return NULL;
}

static void take_over(struct device *device, const struct netdev *netdev)
{
    __atomic_store_n(&device->ifindex, netdev->ifindex, __ATOMIC_RELAXED);
    device->mtu = netdev->mtu;
    __atomic_store_n(&device->loopback, netdev->loopback, __ATOMIC_RELAXED);
    device->running = netdev->running;
    memcpy(device->mac, netdev->mac, sizeof(device->mac));
    memcpy(device->netdev_name, netdev->name, sizeof(device->netdev_name));
    device->netdev_name[IF_NAMESIZE - 1] = '\0';
}

static int update_device(struct device *device, const struct netdev *netdev,
                         const struct netdev_snapshot *snapshot, struct eligibility eligibility,
                         struct device_change *ret_changes)
{
    bool was_running = device->running;
    int changes = 0;

    if (netdev) {
        take_over(device, netdev);
    } else {
        __atomic_store_n(&device->ifindex, 0, __ATOMIC_RELAXED);
        device->running = false;
    }
    if (device->running != was_running)
        ret_changes[changes++] =
            (struct device_change){device, device->running ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR};
    if (update_gids(device, snapshot, eligibility))
        ret_changes[changes++] = (struct device_change){device, IBV_EVENT_GID_CHANGE};
    return changes;
}

/* The order of new devices: running interfaces first, loopback last, then by age. */
static bool netdev_precedes(const struct netdev *a, const struct netdev *b)
{
    int rank_a = a->loopback ? 2 : !a->running, rank_b = b->loopback ? 2 : !b->running;

    return rank_a != rank_b ? rank_a < rank_b : a->ifindex < b->ifindex;
}

static void add_devices(struct device_table *table, const struct netdev_snapshot *snapshot,
                        struct eligibility eligibility)
{
    for (;;) {
        const struct netdev *best = NULL;
        struct device *device = NULL;

        for (unsigned i = 0; i < snapshot->netdev_count; i++) {
            const struct netdev *netdev = &snapshot->netdevs[i];

            if (netdev->ifindex && !device_of(table, netdev->ifindex) &&
                (!best || netdev_precedes(netdev, best)) &&
                has_eligible(snapshot, netdev->ifindex, eligibility))
                best = netdev;
        }
        for (uint32_t i = 0; i < DEVICES_MAX && !device; i++) {
            if (!table->devices[i].in_use)
                device = &table->devices[i];
        }
        if (!best || !device)
            return;
        memset(device, 0, sizeof(*device));
        device->number = (uint32_t)(device - table->devices);
        table->slots = max_of(table->slots, device->number + 1);
        take_over(device, best);
        device->in_use = true;
        make_name(table, device);
        make_guid(table, device);
        update_gids(device, snapshot, eligibility);
    }
}

static int compare_host_addresses(const void *a_, const void *b_)
{
    const struct host_address *a = a_, *b = b_;
    int order = (b->prefix_length == 128) - (a->prefix_length == 128);

    if (order == 0)
        order = memcmp(a->gid, b->gid, sizeof(a->gid));
    if (order == 0)
        order = (a->ifindex > b->ifindex) - (a->ifindex < b->ifindex);
    return order;
}

/* Is the whole network of the address local? It is for IPv4 addresses of the loopback interface. */
static bool names_network(const struct netdev_snapshot *snapshot, const struct netdev_address *address)
{
    if (!gid_is_ipv4_mapped(address->gid) || address->prefix_length < 96 || address->prefix_length >= 128)
        return false;
    for (unsigned i = 0; i < snapshot->netdev_count; i++) {
        if (snapshot->netdevs[i].ifindex == address->ifindex)
            return snapshot->netdevs[i].loopback;
    }
    return false;
}

static struct host_address *make_addresses(const struct netdev_snapshot *snapshot, unsigned *ret_count,
                                           unsigned *ret_network_first)
{
    struct host_address *addresses = calloc(2 * (size_t)snapshot->address_count + 1, sizeof(*addresses));
    unsigned count = 0, exact = 0;

    for (unsigned i = 0; addresses && i < snapshot->address_count; i++) {
        const struct netdev_address *address = &snapshot->addresses[i];

        for (int network = 0; network < 1 + names_network(snapshot, address); network++) {
            memcpy(addresses[count].gid, address->gid, 16);
            addresses[count].ifindex = address->ifindex;
            addresses[count].prefix_length = network ? address->prefix_length : 128;
            count++;
            exact += !network;
        }
    }
    if (addresses)
        qsort(addresses, count, sizeof(*addresses), compare_host_addresses);
    *ret_count = count;
    *ret_network_first = exact;
    return addresses;
}

int device_table_apply(struct device_table *table, const struct netdev_snapshot *snapshot,
                       struct device_change ret_changes[DEVICE_CHANGES_MAX])
{
    unsigned address_count, network_first;
    struct host_address *addresses = make_addresses(snapshot, &address_count, &network_first), *old;
    int changes = 0;

    if (!addresses)
        return -ENOMEM;
    lock_acquire(&table->lock);
    struct eligibility eligibility = check_eligibility(table, snapshot);

    for (uint32_t i = 0; i < table->slots; i++) {
        struct device *device = &table->devices[i];
        const struct netdev *netdev;

        if (!device->in_use)
            continue;
        netdev = netdev_of(device, snapshot);
        if (netdev && netdev->ifindex != device->ifindex && device_of(table, netdev->ifindex))
            netdev = NULL; /* interfaces have swapped names: this one is another device's now */
        changes += update_device(device, netdev, snapshot, eligibility, ret_changes + changes);
        if (!netdev && device->references == 0) {
            device->in_use = false;
            /* The device is not open, so its changes are not reported. */
            while (changes > 0 && ret_changes[changes - 1].device == device)
                changes--;
        }
    }
    add_devices(table, snapshot, eligibility);
    old = table->addresses;
    table->addresses = addresses;
    table->address_count = address_count;
    table->network_first = network_first;
    table->generation++;
    lock_release(&table->lock);
    free(old);
    return changes;
}

/* --- looking up ----------------------------------------------------------------------------------------- */

unsigned device_table_list(struct device_table *table, struct device *ret_devices[DEVICES_MAX])
{
    unsigned count = 0;

    lock_acquire(&table->lock);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct device *device = &table->devices[i];

        if (device->in_use && device->ifindex && device->gids_valid) {
            device->references++;
            ret_devices[count++] = device;
        }
    }
    lock_release(&table->lock);
    return count;
}

void device_get(struct device_table *table, struct device *device)
{
    lock_acquire(&table->lock);
    device->references++;
    lock_release(&table->lock);
}

void device_put(struct device_table *table, struct device *device)
{
    lock_acquire(&table->lock);
    if (--device->references == 0 && device->ifindex == 0)
        device->in_use = false;
    lock_release(&table->lock);
}

static bool same_network(const uint8_t a[16], const uint8_t b[16], unsigned prefix_length)
{
    unsigned bytes = prefix_length / 8, bits = prefix_length % 8;

    return memcmp(a, b, bytes) == 0 && (bits == 0 || (a[bytes] ^ b[bytes]) >> (8 - bits) == 0);
}

static const struct host_address *find_host_address(const struct device_table *table, const uint8_t gid[16])
{
    unsigned low = 0, high = table->network_first;

    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        int order = memcmp(table->addresses[middle].gid, gid, 16);

        /* The leftmost of equal addresses is the oldest interface's. */
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < table->network_first && memcmp(table->addresses[low].gid, gid, 16) == 0)
        return &table->addresses[low];
    for (unsigned i = table->network_first; i < table->address_count; i++) {
        if (same_network(table->addresses[i].gid, gid, table->addresses[i].prefix_length))
            return &table->addresses[i];
    }
    return NULL;
}

bool device_table_is_local(struct device_table *table, const uint8_t gid[16], uint32_t *ret_ifindex)
{
    const struct host_address *found;

    lock_acquire(&table->lock);
    found = find_host_address(table, gid);
    if (found)
        *ret_ifindex = found->ifindex;
    lock_release(&table->lock);
    return found != NULL;
}

bool device_table_mac(struct device_table *table, uint32_t ifindex, uint8_t ret_mac[6])
{
    const struct device *device;

    lock_acquire(&table->lock);
    device = device_of(table, ifindex);
    if (device)
        memcpy(ret_mac, device->mac, sizeof(device->mac));
    lock_release(&table->lock);
    return device != NULL;
}

bool device_table_guid(struct device_table *table, uint32_t ifindex, uint8_t ret_guid[8])
{
    const struct device *device;

    lock_acquire(&table->lock);
    device = device_of(table, ifindex);
    if (device)
        memcpy(ret_guid, device->node_guid, sizeof(device->node_guid));
    lock_release(&table->lock);
    return device != NULL;
}

unsigned device_table_addresses(struct device_table *table, uint8_t (*ret_gids)[16], unsigned room)
{
    unsigned count;

    lock_acquire(&table->lock);
    count = min_of(table->network_first, room);
    for (unsigned i = 0; i < count; i++)
        memcpy(ret_gids[i], table->addresses[i].gid, 16);
    lock_release(&table->lock);
    return count;
}

struct device *device_table_find_gid(struct device_table *table, const uint8_t gid[16], uint32_t *ret_index)
{
    struct device *device = NULL;
    int index = -1;

    lock_acquire(&table->lock);
    for (uint32_t i = 0; i < table->slots && index < 0; i++) {
        device = &table->devices[i];
        if (device->in_use)
            index = find_gid(device, gid);
    }
    if (index >= 0) {
        device->references++;
        if (ret_index)
            *ret_index = (uint32_t)index;
    }
    lock_release(&table->lock);
    return index >= 0 ? device : NULL;
}

int device_query_gid(struct device_table *table, const struct device *device, uint32_t index,
                     uint8_t ret_gid[16], uint32_t *ret_ifindex)
{
    int result = -ENODATA;

    if (index >= LIMIT_GIDS)
        return -EINVAL;
    lock_acquire(&table->lock);
    if (device->gids_valid & (1u << index)) {
        memcpy(ret_gid, device->gids[index], 16);
        *ret_ifindex = device->ifindex;
        result = 0;
    }
    lock_release(&table->lock);
    return result;
}

int device_find_gid(struct device_table *table, const struct device *device, const uint8_t gid[16])
{
    int index;

    lock_acquire(&table->lock);
    index = find_gid(device, gid);
    lock_release(&table->lock);
    return index;
}

uint32_t device_valid_gids(struct device_table *table, const struct device *device)
{
    uint32_t valid;

    lock_acquire(&table->lock);
    valid = device->gids_valid;
    lock_release(&table->lock);
    return valid;
}
