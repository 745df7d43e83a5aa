/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "tree.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "counters.h"
#include "manifest.h"

/* As sysfs writes it. */
static void add_gid(struct manifest *manifest, const char *port, const struct adapter_gid *gid)
{
    const uint8_t *raw = gid->gid.raw;
    char text[40];
    int length = 0;

    for (int i = 0; i < 16; i += 2)
        length += snprintf(text + length, sizeof(text) - (size_t)length, "%s%02x%02x", i ? ":" : "", raw[i],
                           raw[i + 1]);
    manifest_file(manifest, text, "%s/gids/%u", port, gid->index);
    manifest_file(manifest, gid->type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1",
                  "%s/gid_attrs/types/%u", port, gid->index);
    if (gid->netdev[0])
        manifest_file(manifest, gid->netdev, "%s/gid_attrs/ndevs/%u", port, gid->index);
}

static const char *phys_state_name(unsigned state)
{
    static const char *const names[] = {
        [1] = "Sleep",  [2] = "Polling",           [3] = "Disabled", [4] = "PortConfigurationTraining",
        [5] = "LinkUp", [6] = "LinkErrorRecovery", [7] = "Phy Test"};

    return state < sizeof(names) / sizeof(names[0]) && names[state] ? names[state] : "<unknown>";
}

/* Encodings of PortInfo (IBA 14.2.5.6). */
static unsigned lane_count(uint8_t width)
{
    switch (width) {
    case 2:
        return 4;
    case 4:
        return 8;
    case 8:
        return 12;
    case 16:
        return 2;
    default:
        return 1;
    }
}

struct lane_speed {
    uint8_t code;
    unsigned deci_gbps;
    const char *name;
};

static const struct lane_speed *lane_speed(uint8_t code)
{
    static const struct lane_speed speeds[] = {
        {1, 25, "SDR"},   {2, 50, "DDR"},   {4, 100, "QDR"},  {8, 100, "FDR10"},
        {16, 140, "FDR"}, {32, 250, "EDR"}, {64, 500, "HDR"}, {128, 1000, "NDR"},
    };

    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
        if (speeds[i].code == code)
            return &speeds[i];
    }
    return &speeds[0];
}

/* values: NULL: what the kernel says of a port without performance counters. The path shim shows numbers instead
 * (tools/shim/counters.c); who opens the file by another way must not take an old number for the present one. */
static void add_counters(struct manifest *manifest, const char *port, const struct stats_values *values)
{
    const struct stats_file *files;
    unsigned count = stats_files(&files);
    char text[32] = "N/A (no PMA)";

    for (unsigned i = 0; i < count; i++) {
        if (values)
            snprintf(text, sizeof(text), "%llu", (unsigned long long)values->value[i]);
        manifest_file(manifest, text, "%s/%s/%s", port, files[i].folder, files[i].name);
    }
    snprintf(text, sizeof(text), "%d", COUNTERS_LIFE_MS);
    manifest_file(manifest, text, "%s/hw_counters/lifespan", port);
}

static void add_port(struct manifest *manifest, const struct adapter *adapter, const char *ibdev,
                     const struct stats_values *values)
{
    const struct ibv_port_attr *port = &adapter->port;
    unsigned lanes = lane_count(port->active_width);
    const struct lane_speed *speed = lane_speed(port->active_speed);
    char path[288], text[64];

    snprintf(path, sizeof(path), "%s/ports/1", ibdev);
    snprintf(text, sizeof(text), "%u: %s", (unsigned)port->state, port_state_name(port->state));
    manifest_file(manifest, text, "%s/state", path);
    snprintf(text, sizeof(text), "%u: %s", port->phys_state, phys_state_name(port->phys_state));
    manifest_file(manifest, text, "%s/phys_state", path);
    manifest_file(manifest, port->link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
                  "%s/link_layer", path);
    snprintf(text, sizeof(text), "%u%s Gb/sec (%uX %s)", lanes * speed->deci_gbps / 10,
             lanes * speed->deci_gbps % 10 ? ".5" : "", lanes, speed->name);
    manifest_file(manifest, text, "%s/rate", path);
    snprintf(text, sizeof(text), "0x%x", port->lid);
    manifest_file(manifest, text, "%s/lid", path);
    snprintf(text, sizeof(text), "0x%x", port->sm_lid);
    manifest_file(manifest, text, "%s/sm_lid", path);
    snprintf(text, sizeof(text), "%u", port->sm_sl);
    manifest_file(manifest, text, "%s/sm_sl", path);
    snprintf(text, sizeof(text), "%u", port->lmc);
    manifest_file(manifest, text, "%s/lid_mask_count", path);
    snprintf(text, sizeof(text), "0x%08x", port->port_cap_flags);
    manifest_file(manifest, text, "%s/cap_mask", path);
    snprintf(text, sizeof(text), "0x%04x", adapter->pkey);
    manifest_file(manifest, text, "%s/pkeys/0", path);
    manifest_directory(manifest, "%s/gids", path);
    manifest_directory(manifest, "%s/gid_attrs/types", path);
    manifest_directory(manifest, "%s/gid_attrs/ndevs", path);
    for (unsigned i = 0; i < adapter->gid_count; i++)
        add_gid(manifest, path, &adapter->gids[i]);
    add_counters(manifest, path, values);
}

static void guid_text(uint64_t guid, char *text, size_t size)
{
    snprintf(text, size, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32) & 0xffff,
             (unsigned)(guid >> 16) & 0xffff, (unsigned)guid & 0xffff);
}

/* Every processor of the machine is near: the adapter is this process. Both forms that sysfs has. */
static void add_processors(struct manifest *manifest, const char *parent)
{
    long count = sysconf(_SC_NPROCESSORS_CONF);
    char mask[1024], list[32];
    size_t length = 0;

    if (count < 1 || count > 2048)
        count = 1;
    for (long word = (count - 1) / 32; word >= 0; word--) {
        long bits = count - word * 32;
        uint32_t value = bits >= 32 ? UINT32_MAX : (1u << bits) - 1;

        length += (size_t)snprintf(mask + length, sizeof(mask) - length, "%08x%s", value, word ? "," : "");
    }
    snprintf(list, sizeof(list), count > 1 ? "0-%ld" : "0", count - 1);
    manifest_file(manifest, mask, "%s/local_cpus", parent);
    manifest_file(manifest, list, "%s/local_cpulist", parent);
}

static void add_adapter(struct manifest *manifest, const struct adapter *adapter,
                        const struct stats_values *values)
{
    char parent[128], ibdev[256], text[IBV_SYSFS_NAME_MAX + 16];

    snprintf(parent, sizeof(parent), "sys/devices/virtual/softhca/%s", adapter->name);
    snprintf(ibdev, sizeof(ibdev), "%s/infiniband/%s", parent, adapter->name);

    /* The "PCI device". No current_link_width and _speed: there is no bus that would be the limit. */
    snprintf(text, sizeof(text), "0x%04x", adapter->attr.vendor_id & 0xffff);
    manifest_file(manifest, text, "%s/vendor", parent);
    snprintf(text, sizeof(text), "0x%04x", adapter->attr.vendor_part_id & 0xffff);
    manifest_file(manifest, text, "%s/device", parent);
    manifest_file(manifest, "-1", "%s/numa_node", parent);
    add_processors(manifest, parent);
    manifest_link(manifest, "../../../../bus/softhca/drivers/softhca", "%s/driver", parent);
    manifest_directory(manifest, "%s/net", parent);
    if (adapter->netdev[0]) {
        snprintf(text, sizeof(text), "/sys/class/net/%s", adapter->netdev);
        manifest_link(manifest, text, "%s/net/%s", parent, adapter->netdev);
    }

    manifest_link(manifest, "../..", "%s/device", ibdev);
    manifest_file(manifest, "1: CA", "%s/node_type", ibdev);
    guid_text(adapter->guid, text, sizeof(text));
    manifest_file(manifest, text, "%s/node_guid", ibdev);
    guid_text(be64toh(adapter->attr.sys_image_guid), text, sizeof(text));
    manifest_file(manifest, text, "%s/sys_image_guid", ibdev);
    manifest_file(manifest, adapter->attr.fw_ver, "%s/fw_ver", ibdev);
    snprintf(text, sizeof(text), "0x%x", adapter->attr.hw_ver);
    manifest_file(manifest, text, "%s/hw_rev", ibdev);
    /* node_exporter shows nothing of a device without it. */
    if (adapter->board[0] || values)
        manifest_file(manifest, adapter->board[0] ? adapter->board : "softhca", "%s/board_id", ibdev);
    manifest_file(manifest, adapter->name, "%s/node_desc", ibdev);
    snprintf(text, sizeof(text), "NAME=%s", adapter->name);
    manifest_file(manifest, text, "%s/uevent", ibdev);
    add_port(manifest, adapter, ibdev, values);

    manifest_file(manifest, adapter->name, "%s/infiniband_verbs/%s/ibdev", parent, adapter->dev_name);
    manifest_file(manifest, "1", "%s/infiniband_verbs/%s/abi_version", parent, adapter->dev_name);
    manifest_link(manifest, "../..", "%s/infiniband_verbs/%s/device", parent, adapter->dev_name);

    snprintf(text, sizeof(text), "%s", adapter->name);
    manifest_link_format(manifest, "sys/class/infiniband", adapter->name,
                         "../../devices/virtual/softhca/%s/infiniband/%s", adapter->name, adapter->name);
    manifest_link_format(manifest, "sys/class/infiniband_verbs", adapter->dev_name,
                         "../../devices/virtual/softhca/%s/infiniband_verbs/%s", adapter->name,
                         adapter->dev_name);
    /* UCX wants a readable and writable character device here; it is never opened. */
    manifest_link(manifest, "/dev/null", "dev/infiniband/%s", adapter->dev_name);
}

/* A directory of the user that no other user can write to; created if missing. */
static int open_private(const char *path)
{
    struct stat status;
    int fd;

    if (mkdir(path, 0755) && errno != EEXIST)
        return -errno;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) || status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH))) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

static bool is_mine(const char *path)
{
    struct stat status;

    return path && path[0] == '/' && stat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == geteuid() && !(status.st_mode & (S_IWGRP | S_IWOTH));
}

/* Root uses /run, because programs that it starts as other users read the tree too. /tmp/softhca-UID may
 * belong to another user: then a directory below HOME is used. */
static int open_base(char *why, size_t why_size)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *home = getenv("HOME");
    char path[PATH_MAX];
    int fd = -ENOENT;

    if (geteuid() == 0)
        fd = open_private("/run/softhca");
    if (fd < 0 && geteuid() != 0 && is_mine(runtime) &&
        snprintf(path, sizeof(path), "%s/softhca", runtime) < (int)sizeof(path))
        fd = open_private(path);
    if (fd < 0) {
        snprintf(path, sizeof(path), "/tmp/softhca-%u", (unsigned)geteuid());
        fd = open_private(path);
    }
    if (fd < 0 && is_mine(home) && snprintf(path, sizeof(path), "%s/.softhca", home) < (int)sizeof(path))
        fd = open_private(path);
    if (fd < 0)
        snprintf(why, why_size,
                 "no private directory for the sysfs tree: %s exists and belongs to another "
                 "user (tried XDG_RUNTIME_DIR, /tmp, HOME)",
                 path);
    return fd;
}

void tree_describe(struct manifest *manifest, const struct adapters *adapters,
                   const struct ledger_port *ports, unsigned count)
{
    static const struct stats_values none;

    manifest_directory(manifest, "sys/class/infiniband");
    manifest_directory(manifest, "sys/class/infiniband_verbs");
    manifest_directory(manifest, "sys/bus/softhca/drivers/softhca");
    manifest_file(manifest, "6", "sys/class/infiniband_verbs/abi_version");
    for (unsigned i = 0; i < adapters->count; i++) {
        const struct stats_values *values = ports ? &none : NULL;

        for (unsigned j = 0; j < count; j++) {
            if (strcmp(ports[j].device, adapters->list[i].name) == 0)
                values = &ports[j].values;
        }
        add_adapter(manifest, &adapters->list[i], values);
    }
}

int tree_publish(const struct adapters *adapters, char *ret_root, char *why, size_t why_size)
{
    struct manifest manifest = {0};
    char name[40], link[64];
    ssize_t length;
    mode_t mask;
    int base, root = -1, error;

    tree_describe(&manifest, adapters, NULL, 0);
    manifest_directory(&manifest, "dev/infiniband");
    /* "../net" from the class directory, which programs write. */
    manifest_link(&manifest, "/sys/class/net", "sys/class/net");
    if (manifest.failed) {
        manifest_free(&manifest);
        snprintf(why, why_size, "out of memory");
        return -ENOMEM;
    }

    base = open_base(why, why_size);
    if (base < 0) {
        manifest_free(&manifest);
        return base;
    }
    manifest_hash(&manifest, name, sizeof(name));
    mask = umask(022);
    if (mkdirat(base, name, 0755) == 0 || errno == EEXIST)
        root = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    error = root < 0 ? -errno : manifest_write(&manifest, root);
    umask(mask);
    if (!error) {
        /* The canonical name: what realpath() finds in the tree must begin with it. */
        snprintf(link, sizeof(link), "/proc/self/fd/%d", root);
        length = readlink(link, ret_root, PATH_MAX - 1);
        if (length > 0)
            ret_root[length] = '\0';
        else
            error = -errno;
    }
    if (error)
        snprintf(why, why_size, "cannot write the sysfs tree %s: %s", name, strerror(-error));
    if (root >= 0)
        close(root);
    close(base);
    manifest_free(&manifest);
    return error;
}
