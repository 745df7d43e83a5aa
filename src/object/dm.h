/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Device memory, and the file that stands for an open device (verbs-contract §4.9, §10.8): a sealed memfd,
 * which ibv_context.cmd_fd is the descriptor of. Whoever has the descriptor, in this process or another,
 * imports the device by it and reaches its device memory, as with the device file of a kernel driver. */
#ifndef OBJECT_DM_H
#define OBJECT_DM_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "object/context.h"

struct share_page;
struct share {
    int fd;
    uint8_t id[16]; /* of the device that was opened, and of those imported by it */
    struct share_page *page;
};

struct dm {
    struct ibv_dm ibv;
    struct context *context;
    char *at;
    uint64_t length;
    uint32_t generation;    /* of the process that it belongs to */
    bool imported;          /* another structure's memory */
    _Atomic uint32_t users; /* MRs */
    uint32_t item;
};

static inline struct dm *dm_of(struct ibv_dm *dm)
{
    return container_of(dm, struct dm, ibv);
}

int share_open(const uint8_t node_guid[8], struct share **ret_share);
/* Takes the descriptor over, if it is one of ours: then also the device's GUID. -EINVAL: it is not. */
int share_adopt(int fd, uint8_t ret_node_guid[8], struct share **ret_share);
void share_close(struct share *share);
/* Leaves the descriptor open. */
void share_abandon(struct share *share);
bool share_is_same(const struct share *a, const struct share *b);

/* Also by a context that a forked child inherited, as with a device file. -EINVAL, -ENOMEM. */
int dm_allocate(struct context *context, const struct ibv_alloc_dm_attr *attributes, struct dm **ret_dm);
int dm_free(struct dm *dm); /* -EBUSY */
int dm_import(struct context *context, uint32_t handle, struct dm **ret_dm);
void dm_unimport(struct dm *dm);
void dm_use(struct dm *dm);
void dm_unuse(struct dm *dm);

/* Multiples of 4 only. 0 or a positive errno, as their callers have it. */
int dm_copy_to(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length);
int dm_copy_from(void *to, struct ibv_dm *dm, uint64_t offset, size_t length);

#endif
