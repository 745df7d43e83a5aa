/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* DMA handles: what is allowed, and who uses them. */
#include "object/memory/dmah.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

enum { HIGHEST_HINT = 3, HIGHEST_MEMORY_TYPE = 1 };

/* PCIe 6.2: a steering tag is optional, but needs processor and kind of memory, and a hint comes with every request. */
static int check(const struct dmah_attributes *attributes)
{
    const uint32_t tag = attributes->comp_mask & (DMAH_CPU_ID | DMAH_MEMORY_TYPE);
    cpu_set_t allowed;

    if (attributes->comp_mask & ~(uint32_t)DMAH_FIELDS)
        return -EOPNOTSUPP;
    if (!(attributes->comp_mask & DMAH_PROCESSING_HINT) || attributes->processing_hint > HIGHEST_HINT)
        return -EINVAL;
    if (!tag)
        return 0;
    if (tag != (DMAH_CPU_ID | DMAH_MEMORY_TYPE) || attributes->memory_type > HIGHEST_MEMORY_TYPE)
        return -EINVAL;
    /* More processors than cpu_set_t has: what the set cannot say is let pass. */
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return 0;
    return attributes->cpu_id < CPU_SETSIZE && CPU_ISSET(attributes->cpu_id, &allowed) ? 0 : -EPERM;
}

int dmah_allocate(struct context *context, const struct dmah_attributes *attributes, struct dmah **ret_dmah)
{
    int error = context_is_inherited(context) ? -EIO : check(attributes);
    struct dmah *dmah;

    if (error)
        return error;
    dmah = calloc(1, sizeof(*dmah));
    if (!dmah)
        return -ENOMEM;
    dmah->context = context;
    dmah->ibv.context = &context->verbs.context;
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    *ret_dmah = dmah;
    return 0;
}

int dmah_deallocate(struct dmah *dmah)
{
    if (context_is_inherited(dmah->context))
        return 0;
    if (atomic_load_explicit(&dmah->users, memory_order_acquire))
        return -EBUSY;
    atomic_fetch_sub_explicit(&dmah->context->objects, 1, memory_order_release);
    free(dmah);
    return 0;
}

void dmah_use(struct dmah *dmah)
{
    atomic_fetch_add_explicit(&dmah->users, 1, memory_order_relaxed);
}

void dmah_unuse(struct dmah *dmah)
{
    atomic_fetch_sub_explicit(&dmah->users, 1, memory_order_release);
}
