/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Device memory (verbs.md §4.9): behind the pages of the file that stands for the device (share.h). */
#ifndef OBJECT_MEMORY_DM_H
#define OBJECT_MEMORY_DM_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "object/device/context.h"

struct dm {
    struct ibv_dm ibv;
    struct context *context;
    char *at;
    uint64_t length;
    uint32_t generation;   /* of the process that it belongs to */
    struct shared *shared; /* what all that name the same memory have in common */
    struct lock lock;      /* what follows */
    uint32_t users;        /* MRs */
    bool abandoned;        /* unimported, and goes with its last user */
    uint32_t item;
};

static inline struct dm *dm_of(struct ibv_dm *dm)
{
    return container_of(dm, struct dm, ibv);
}

/* Also by a context that a forked child inherited, as with a device file. -EINVAL, -ENOMEM. */
int dm_allocate(struct context *context, const struct ibv_alloc_dm_attr *attributes, struct dm **ret_dm);
/* The end of the memory, as pd_deallocate() is of a PD: -EBUSY, -ENOENT. */
int dm_free(struct dm *dm);
int dm_import(struct context *context, uint32_t handle, struct dm **ret_dm);
void dm_unimport(struct dm *dm);
int dm_use(struct dm *dm); /* -EINVAL: it has ended */
void dm_unuse(struct dm *dm);

/* Multiples of 4 only. 0 or a positive errno, as their callers have it; ENOENT: it has ended. */
int dm_copy_to(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length);
int dm_copy_from(void *to, struct ibv_dm *dm, uint64_t offset, size_t length);

#endif
