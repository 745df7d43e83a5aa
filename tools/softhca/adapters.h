/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a program run by `softhca run` would see, asked of our own libibverbs: the rules for names, addresses
 * and GUIDs live there only. */
#ifndef SOFTHCA_ADAPTERS_H
#define SOFTHCA_ADAPTERS_H

#include <net/if.h>
#include <stdint.h>

#include "base/verbs.h"

struct adapter_gid {
    uint32_t index;
    uint32_t type; /* enum ibv_gid_type */
    union ibv_gid gid;
    char netdev[IF_NAMESIZE];
};

struct adapter {
    char name[IBV_SYSFS_NAME_MAX];     /* softhca0 */
    char dev_name[IBV_SYSFS_NAME_MAX]; /* uverbs0 */
    char netdev[IF_NAMESIZE];          /* "" if it has no address any more */
    char board[64];
    uint64_t guid; /* host order */
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    uint16_t pkey; /* host order */
    struct adapter_gid *gids;
    unsigned gid_count;
};

struct adapters {
    struct adapter *list;
    unsigned count;
};

/* `library` is the path of libibverbs.so.1. Returns 0, or -errno with a sentence in `why`. No device is no
 * error. */
int adapters_read(const char *library, struct adapters *ret, char *why, size_t why_size);
void adapters_free(struct adapters *adapters);

/* "2: INIT" → as sysfs and ibv_devinfo name it. */
const char *port_state_name(enum ibv_port_state state);
unsigned mtu_bytes(enum ibv_mtu mtu);
/* ::ffff:192.0.2.1 as 192.0.2.1, others as IPv6 text. `text` needs INET6_ADDRSTRLEN. */
const char *gid_address(const union ibv_gid *gid, char *text);

#endif
