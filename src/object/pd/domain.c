/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Thread domains, parent domains, and memory from the program's allocators (verbs.md §1.4). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "object/destroyed.h"
#include "object/pd/pd.h"
#include "object/ports.h"
#include "segment/provenance.h"

/* --- thread domains ------------------------------------------------------------------------------------- */

int td_allocate(struct context *context, const struct ibv_td_init_attr *attributes, struct td **ret_td)
{
    struct td *td;

    if (attributes->comp_mask)
        return refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, 0);
    if (context_is_inherited(context))
        return destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_alloc_td");
    td = calloc(1, sizeof(*td));
    if (!td)
        return -ENOMEM;
    td->context = context;
    td->ibv.context = &context->verbs.context;
    td->item = item_take(OBJECT_TD, 0, context->number, NO_OBJECT, NULL);
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    *ret_td = td;
    return 0;
}

int td_deallocate(struct td *td)
{
    if (destroyed_has(DESTROYED_TD, td, "ibv_dealloc_td"))
        return -EINVAL;
    if (context_is_inherited(td->context))
        return 0;
    if (atomic_load_explicit(&td->users, memory_order_relaxed))
        return busy_because(OBJECT_TD, td->item);
    item_return(td->item);
    atomic_fetch_sub_explicit(&td->context->objects, 1, memory_order_release);
    td->context = &destroyed_context;
    destroyed_keep(DESTROYED_TD, td, td->item);
    return 0;
}

/* --- parent domains ------------------------------------------------------------------------------------- */

/* A flag of rdma-core 64, for confidential guests whose memory an adapter cannot access. Accepted and ignored. */
#define ALLOW_UNPROTECTED (1u << 2)

static int check_parent(const struct context *context, const struct ibv_parent_domain_init_attr *attributes)
{
    const uint32_t known =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | ALLOW_UNPROTECTED;

    if (!attributes->pd)
        return refuse_null("pd");
    if (attributes->pd->context != &context->verbs.context)
        return refuse_elsewhere("pd");
    if (attributes->td && td_of(attributes->td)->context == &destroyed_context)
        return destroyed_refuse(DESTROYED_TD, td_of(attributes->td), "ibv_alloc_parent_domain");
    if (attributes->td && attributes->td->context != &context->verbs.context)
        return refuse_elsewhere("td");
    if (pd_is_parent_domain(pd_of(attributes->pd))) /* a parent domain of a parent domain is not defined */
        return refuse_because(-EINVAL, "pd is itself a parent domain");
    if ((attributes->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) &&
        (!attributes->alloc || !attributes->free))
        return refuse_null(attributes->alloc ? "free" : "alloc");
    return attributes->comp_mask & ~known
               ? refuse_bits(-EOPNOTSUPP, "comp_mask", BITS_PLAIN, attributes->comp_mask, known)
               : 0;
}

int parent_domain_allocate(struct context *context, const struct ibv_parent_domain_init_attr *attributes,
                           struct pd **ret_pd)
{
    int error = check_parent(context, attributes);
    struct pd *pd, *protects;

    if (error)
        return error;
    protects = pd_of(attributes->pd);
    error = pd_use(protects, "ibv_alloc_parent_domain");
    if (error)
        return error;
    error = pd_make_parent(context, protects, &pd);
    if (error) {
        pd_unuse(protects);
        return error;
    }
    if (attributes->td) {
        pd->td = td_of(attributes->td);
        pd->record->td = pd->td->item;
        atomic_fetch_add_explicit(&pd->td->users, 1, memory_order_relaxed);
    }
    if (attributes->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
        pd->allocate = attributes->alloc;
        pd->release = attributes->free;
    }
    if (attributes->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
        pd->pd_context = attributes->pd_context;
    *ret_pd = pd;
    return 0;
}

/* --- memory of queues ----------------------------------------------------------------------------------- */

int queue_memory_take(struct pd *pd, enum queue_kind kind, size_t size, struct queue_memory *ret_memory)
{
    *ret_memory = (struct queue_memory){.size = size};
    if (!size)
        return 0;
    if (pd && pd->allocate) {
        void *at = pd->allocate(&pd->ibv, pd->pd_context, size, CACHE_LINE, kind);

        if (!at)
            return -ENOMEM;
        if (at != IBV_ALLOCATOR_USE_DEFAULT) {
            ret_memory->at = memset(at, 0, size);
            return 0;
        }
    }
    ret_memory->offset = segment_allocate(size);
    if (!ret_memory->offset)
        return -ENOMEM;
    ret_memory->at = segment_at(ret_memory->offset);
    return 0;
}

void queue_memory_give(struct pd *pd, enum queue_kind kind, struct queue_memory *memory)
{
    if (memory->offset)
        segment_release(memory->offset, memory->size);
    else if (memory->at)
        pd->release(&pd->ibv, pd->pd_context, memory->at, kind);
    *memory = (struct queue_memory){0};
}
