/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counters of flows (verbs.md §7.7). A point says which count ibv_read_counters() returns at which index; a frame is
 * counted once, for any number of points. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "object/steering/flow.h"
#include "segment/provenance.h"

int counters_create(struct context *context, const struct ibv_counters_init_attr *attributes,
                    struct counters **ret_counters)
{
    struct counters *counters;

    if (context_is_inherited(context))
        return destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_create_counters");
    if (attributes->comp_mask)
        return refuse_bits(-EOPNOTSUPP, "comp_mask", BITS_PLAIN, attributes->comp_mask, 0);
    counters = calloc(1, sizeof(*counters));
    if (!counters)
        return -ENOMEM;
    counters->context = context;
    counters->ibv.context = &context->verbs.context;
    counters->item = item_take(OBJECT_COUNTERS, 0, context->number, NO_OBJECT, NULL);
    *ret_counters = counters;
    return 0;
}

int counters_destroy(struct counters *counters)
{
    uint32_t bound;

    if (destroyed_has(DESTROYED_COUNTERS, counters, "ibv_destroy_counters"))
        return -EINVAL;
    if (context_is_inherited(counters->context))
        return 0;
    lock_acquire(&flows_lock);
    bound = counters->bound;
    lock_release(&flows_lock);
    if (bound)
        return counters->item == NO_OBJECT ? -EBUSY : busy_because(OBJECT_COUNTERS, counters->item);
    item_return(counters->item);
    counters->context = &destroyed_context;
    destroyed_keep(DESTROYED_COUNTERS, counters, counters->item);
    return 0;
}

int counters_attach(struct counters *counters, const struct ibv_counter_attach_attr *attributes,
                    const struct ibv_flow *flow)
{
    int error = 0;

    if (context_is_inherited(counters->context))
        return destroyed_refuse(DESTROYED_COUNTERS, counters, "ibv_attach_counters_point_flow");
    if (attributes->comp_mask)
        return -EOPNOTSUPP;
    /* Counters are bound when a flow is created; attaching to an existing flow is not supported. */
    if (flow ||
        (attributes->counter_desc != IBV_COUNTER_PACKETS && attributes->counter_desc != IBV_COUNTER_BYTES))
        return -ENOTSUP;
    lock_acquire(&flows_lock);
    if (counters->bound)
        error = -EBUSY;
    else if (counters->points_count == array_size(counters->points) || attributes->index == UINT32_MAX)
        error = -ENOMEM;
    if (!error) {
        counters->points[counters->points_count].description = attributes->counter_desc;
        counters->points[counters->points_count++].index = attributes->index;
        counters->values_needed = max_of(counters->values_needed, attributes->index + 1);
    }
    lock_release(&flows_lock);
    return error;
}

int counters_bind(struct counters *counters)
{
    if (!counters->points_count)
        return -EINVAL;
    counters->bound++;
    item_use(counters->item, 1);
    return 0;
}

/* There is no cache, so IBV_READ_COUNTERS_ATTR_PREFER_CACHED changes nothing. */
int counters_read(struct counters *counters, uint64_t *ret_values, uint32_t count, uint32_t flags)
{
    int error = 0;

    if (context_is_inherited(counters->context))
        return destroyed_refuse(DESTROYED_COUNTERS, counters, "ibv_read_counters");
    if (flags & ~(uint32_t)IBV_READ_COUNTERS_ATTR_PREFER_CACHED)
        return -EINVAL;
    lock_acquire(&flows_lock);
    if (!counters->points_count || count < counters->values_needed)
        error = -EINVAL;
    else
        memset(ret_values, 0, count * sizeof(*ret_values));
    for (unsigned i = 0; !error && i < counters->points_count; i++)
        ret_values[counters->points[i].index] += atomic_load_explicit(
            counters->points[i].description == IBV_COUNTER_PACKETS ? &counters->packets : &counters->bytes,
            memory_order_relaxed);
    lock_release(&flows_lock);
    return error;
}
