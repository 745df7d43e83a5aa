/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* DMA handles (verbs.md §4.9): hints to a device's DMA, which the processor that copies here does not need. They are
 * checked and kept like an adapter's. */
#ifndef OBJECT_MEMORY_DMAH_H
#define OBJECT_MEMORY_DMAH_H

#include <stdatomic.h>
#include <stdint.h>

#include "object/device/context.h"

/* Bits of ibv_dmah_init_attr.comp_mask; the values are ABI. */
enum dmah_fields { DMAH_CPU_ID = 1, DMAH_PROCESSING_HINT = 2, DMAH_MEMORY_TYPE = 4, DMAH_FIELDS = 7 };

struct dmah_attributes { /* struct ibv_dmah_init_attr */
    uint32_t comp_mask;
    uint32_t cpu_id;
    uint8_t processing_hint;
    uint8_t memory_type;
};

struct dmah {
    struct { /* struct ibv_dmah */
        struct ibv_context *context;
    } ibv;
    struct context *context;
    _Atomic uint32_t users; /* MRs */
};

/* -EOPNOTSUPP: unknown fields; -EPERM: the process may not run on that processor. */
int dmah_allocate(struct context *context, const struct dmah_attributes *attributes, struct dmah **ret_dmah);
int dmah_deallocate(struct dmah *dmah); /* -EBUSY: MRs use it */
void dmah_use(struct dmah *dmah);
void dmah_unuse(struct dmah *dmah);

#endif
