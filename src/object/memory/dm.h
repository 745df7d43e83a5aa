/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Device memory (verbs.md §4.9): part of the device file (share.h). */
#ifndef OBJECT_MEMORY_DM_H
#define OBJECT_MEMORY_DM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/verbs.h"
#include "object/device/context.h"

struct dm {
    union {
        struct ibv_dm ibv;
        union newest_dm newest;
    };
    struct context *context;
    char *at;
    uint64_t length;
    uint32_t generation;   /* process_generation() when allocated or imported */
    struct shared *shared; /* common state of all structures of this memory */
    struct lock lock;      /* guards the fields below */
    uint32_t users;        /* MRs */
    bool abandoned;        /* unimported: the structure is freed with its last user */
    uint32_t item;
};

static inline struct dm *dm_of(struct ibv_dm *dm)
{
    return container_of(dm, struct dm, ibv);
}

/* Allowed for an inherited context, too, because a child has the device file. -EINVAL, -ENOMEM. */
int dm_allocate(struct context *context, const struct ibv_alloc_dm_attr *attributes, struct dm **ret_dm);
/* Ends the memory for all its structures, as pd_deallocate() ends a PD: -EBUSY, -ENOENT. */
int dm_free(struct dm *dm);
int dm_import(struct context *context, uint32_t handle, struct dm **ret_dm);
void dm_unimport(struct dm *dm);
int dm_use(struct dm *dm); /* -EINVAL: the memory has ended */
void dm_unuse(struct dm *dm);

/* ibv_memcpy_to_dm() and _from_dm(): multiples of 4 bytes only. 0 or a positive errno; ENOENT: the memory has
 * ended. */
int dm_copy_to(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length);
int dm_copy_from(void *to, struct ibv_dm *dm, uint64_t offset, size_t length);

#endif
