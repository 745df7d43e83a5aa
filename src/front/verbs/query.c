/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Device, port, GID and P_Key queries (verbs.md §10.2-10.9). */
#include <arpa/inet.h>

#include "base/pkey.h"
#include "base/sys.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "front/verbs/nodes.h"
#include "object/device/device.h"

#define PORT_ONE     1u
#define PKEY_ENTRIES 1
/* Everything before port_cap_flags2: the size of the structure in programs built before that member existed. */
#define LEGACY_PORT_ATTRIBUTES offsetof(struct ibv_port_attr, port_cap_flags2)

/* GID types as in sysfs, which differ from enum ibv_gid_type. */
enum sysfs_gid_type { SYSFS_GID_IB_OR_ROCE_V1, SYSFS_GID_ROCE_V2 };

/* Not declared in any public header. */
int provided_ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index,
                                enum sysfs_gid_type *ret_type);

int front_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                          struct ibv_device_attr_ex *attributes, size_t size)
{
    union newest_device_attr ours;

    if (input && input->comp_mask)
        return positive(-EINVAL);
    device_query(&host_devices, context_of(context)->device, &ours);
    injected_device_attributes(context, &ours.ibv.orig_attr);
    copy_sized(attributes, size, &ours, sizeof(ours));
    return 0;
}

VERBS_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    union newest_device_attr ours;

    device_query(&host_devices, context_of(context)->device, &ours);
    injected_device_attributes(context, &ours.ibv.orig_attr);
    *attributes = ours.ibv.orig_attr;
    return 0;
}

int front_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes, size_t size)
{
    struct ibv_port_attr ours;
    int result = device_query_port(&host_devices, context_of(context)->device, port, &ours);

    if (result == 0)
        copy_sized(attributes, size, &ours, sizeof(ours));
    return positive(result);
}

VERBS_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                                struct _compat_ibv_port_attr *attributes)
{
    return front_query_port(context, port, (struct ibv_port_attr *)attributes, LEGACY_PORT_ATTRIBUTES);
}

/* --- GIDs ----------------------------------------------------------------------------------------------- */

/* 0, -ENODATA (empty entry) or -EINVAL. */
static int read_gid(struct ibv_context *context, uint32_t port, uint32_t index,
                    struct ibv_gid_entry *ret_entry)
{
    int result;

    memset(ret_entry, 0, sizeof(*ret_entry));
    if (port != PORT_ONE)
        return -EINVAL;
    result = device_query_gid(&host_devices, context_of(context)->device, index, ret_entry->gid.raw,
                              &ret_entry->ndev_ifindex);
    ret_entry->gid_index = index;
    ret_entry->port_num = port;
    ret_entry->gid_type = IBV_GID_TYPE_ROCE_V2;
    return result;
}

VERBS_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    struct ibv_gid_entry entry;
    int result = index < 0 ? -EINVAL : read_gid(context, port, (uint32_t)index, &entry);

    if (result == 0 || result == -ENODATA) {
        *gid = entry.gid; /* an empty entry is reported as a GID of zeros */
        result = 0;
    }
    return minus_one(result);
}

VERBS_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                                   struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
    struct ibv_gid_entry ours;
    int result = flags ? -EINVAL : read_gid(context, port, index, &ours);

    if (result == 0)
        copy_sized(entry, entry_size, &ours, sizeof(ours));
    return positive(result);
}

VERBS_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                          size_t max_entries, uint32_t flags, size_t entry_size)
{
    struct ibv_gid_entry ours;
    size_t count = 0;

    for (uint32_t i = 0; i < LIMIT_GIDS && !flags; i++) {
        if (read_gid(context, PORT_ONE, i, &ours) != 0)
            continue;
        if (count == max_entries) {
            flags = UINT32_MAX; /* more GIDs than max_entries: fails like an unknown flag */
            break;
        }
        copy_sized((char *)entries + count++ * entry_size, entry_size, &ours, sizeof(ours));
    }
    if (flags) {
        errno = EINVAL;
        return -EINVAL;
    }
    return (ssize_t)count;
}

VERBS_EXPORT int provided_ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index,
                                             enum sysfs_gid_type *ret_type)
{
    struct ibv_gid_entry entry;
    int result = read_gid(context, port, index, &entry);

    if (result == 0 || result == -ENODATA) {
        *ret_type = result == 0 ? SYSFS_GID_ROCE_V2 : SYSFS_GID_IB_OR_ROCE_V1;
        result = 0;
    }
    return minus_one(result);
}
SINCE_22(ibv_query_gid_type)

/* --- P_Keys --------------------------------------------------------------------------------------------- */

VERBS_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    if (port != PORT_ONE || index < 0 || index >= PKEY_ENTRIES)
        return minus_one(-EINVAL);
    *pkey = htons(DEFAULT_PKEY);
    return 0;
}

VERBS_EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
    if (port != PORT_ONE || pkey != htons(DEFAULT_PKEY))
        return minus_one(-EINVAL);
    return 0;
}

/* --- clock ---------------------------------------------------------------------------------------------- */

/* The clock of completion time stamps; as on hardware, all of the value is in tv_nsec. */
int front_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
    if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
        return positive(-EINVAL);
    if (values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) {
        values->raw_clock.tv_sec = 0;
        values->raw_clock.tv_nsec = (long)sys_now();
    }
    return 0;
}
