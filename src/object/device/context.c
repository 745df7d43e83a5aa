/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Opening and closing contexts, and the child of a fork. */
#include "object/device/context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "object/cq/cq.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/memory/share.h"
#include "object/pd/pd.h"
#include "object/ports.h"
#include "object/receive/wq.h"
#include "segment/drops.h"
#include "segment/misuse.h"
#include "segment/port.h"
#include "segment/provenance.h"
#include "segment/refused.h"
#include "segment/segment.h"
#include "segment/stack.h"

struct lock contexts_lock = LOCK_INIT;
struct list contexts = {&contexts, &contexts};
_Atomic uint32_t process_generation_counter;
const struct object_ports *object_ports;
struct context destroyed_context = {.generation = DESTROYED_GENERATION, .number = NO_OBJECT};

static void name_device(const struct context *context)
{
    struct item_record *record;

    if (context->item == NO_OBJECT || !context->device)
        return;
    record = segment_item(context->item);
    memcpy(record->device, context->device->name,
           min_of(sizeof(record->device), strlen(context->device->name)));
}

int context_open(struct device *device, struct context **ret_context)
{
    struct context *context;
    int error = segment_open();

    if (error)
        return error;
    context = calloc(1, sizeof(*context));
    if (!context)
        return -ENOMEM;
    context->device = device;
    context->generation = process_generation();
    list_init(&context->all);
    context->number = number_take(&pool_contexts);
    if (context->number == NO_OBJECT) {
        error = -ENOMEM;
        goto free_context;
    }
    error = async_queue_open(&context->events);
    if (error)
        goto return_number;
    context->verbs.context.async_fd = context->events.queue.fd;
    context->verbs.context.num_comp_vectors = (int)LIMIT_COMP_VECTORS;
    pthread_mutex_init(&context->verbs.context.mutex, NULL);
    context->item = item_take(OBJECT_CONTEXT, context->number, context->number, NO_OBJECT, NULL);
    name_device(context);

    lock_acquire(&contexts_lock);
    list_push_back(&contexts, &context->all);
    lock_release(&contexts_lock);
    *ret_context = context;
    return 0;

return_number:
    number_return(&pool_contexts, context->number);
free_context:
    free(context);
    return error;
}

void context_keep(struct context *context)
{
    if (context->item != NO_OBJECT)
        atomic_store_explicit(&segment_item(context->item)->users, 1, memory_order_relaxed);
}

void context_close(struct context *context)
{
    bool inherited = context_is_inherited(context);

    if (!inherited) {
        lock_acquire(&contexts_lock);
        list_remove(&context->all);
        lock_release(&contexts_lock);
    }
    if (atomic_load_explicit(&context->objects, memory_order_acquire) != 0) {
        if (!inherited)
            item_orphaned(context->item);
        return;
    }
    async_queue_close(&context->events);
    if (!inherited) {
        item_return(context->item);
        number_return(&pool_contexts, context->number);
    }
    pthread_mutex_destroy(&context->verbs.context.mutex);
    /* Its operations stay: inline verbs call them. */
    context->generation = DESTROYED_GENERATION;
    destroyed_keep(DESTROYED_CONTEXT, context, context->number);
}

void context_raise_port_event(const struct device *device, enum ibv_event_type type)
{
    const struct ibv_async_event event = {.element.port_num = 1, .event_type = type};

    lock_acquire(&contexts_lock);
    list_for_each (node, &contexts) {
        struct context *context = list_entry(node, struct context, all);

        if (context->device == device)
            async_raise(&context->events, &event, NULL);
    }
    lock_release(&contexts_lock);
}

void object_after_fork_in_child(void)
{
    atomic_fetch_add_explicit(&process_generation_counter, 1, memory_order_relaxed);
    sys_forget_thread();
    /* The child has no published segment to write explanations to. */
    atomic_store_explicit(&provenance_is_explained, false, memory_order_relaxed);
    atomic_store_explicit(&provenance_has_times, false, memory_order_relaxed);
    lock_init(&contexts_lock);
    lock_init(&host_devices.lock); /* the child applies a new snapshot before it uses the table */
    share_after_fork_in_child();
    keys_after_fork_in_child();
    mapping_after_fork_in_child();
    list_for_each_safe (node, following, &contexts)
        list_init(node);
    list_init(&contexts);
    stacks_after_fork_in_child();
    misuses_after_fork_in_child();
    refused_after_fork_in_child();
    strays_after_fork_in_child();
    port_after_fork_in_child();
    wq_after_fork_in_child();
    channels_after_fork_in_child();
    segment_after_fork_in_child();
}
