/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion channels: the queue of completion events (verbs-contract §5.4). */
#include <errno.h>
#include <stdlib.h>

#include "object/cq.h"
#include "object/life.h"
#include "object/ports.h"

int channel_create(struct context *context, struct channel **ret_channel)
{
    struct channel *channel;
    int error = -ENOMEM;

    if (context_is_inherited(context))
        return -EIO;
    channel = calloc(1, sizeof(*channel));
    if (!channel)
        return -ENOMEM;
    channel->number = number_take(&pool_channels);
    if (channel->number == NO_OBJECT)
        goto free_channel;
    error = event_queue_open(&channel->queue);
    if (error)
        goto return_number;
    channel->context = context;
    channel->ibv.context = &context->verbs.context;
    channel->ibv.fd = channel->queue.fd;
    channel->ibv.refcnt = 0;
    channel->item = item_take(OBJECT_CHANNEL, channel->number, context->number, NO_OBJECT, NULL);
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    *ret_channel = channel;
    return 0;

return_number:
    number_return(&pool_channels, channel->number);
free_channel:
    free(channel);
    return error;
}

int channel_destroy(struct channel *channel)
{
    bool busy;

    if (context_is_inherited(channel->context))
        return 0;
    lock_acquire(&channel->queue.lock);
    busy = channel->ibv.refcnt > 0;
    lock_release(&channel->queue.lock);
    if (busy)
        return busy_because(OBJECT_CHANNEL, channel->number);
    event_queue_close(&channel->queue);
    item_return(channel->item);
    number_return(&pool_channels, channel->number);
    atomic_fetch_sub_explicit(&channel->context->objects, 1, memory_order_release);
    free(channel);
    return 0;
}

int channel_use(struct channel *channel, const struct context *context)
{
    if (channel->context != context)
        return -EINVAL;
    lock_acquire(&channel->queue.lock);
    channel->ibv.refcnt++;
    item_use(channel->item, 1);
    lock_release(&channel->queue.lock);
    return 0;
}

void channel_unuse(struct channel *channel)
{
    lock_acquire(&channel->queue.lock);
    channel->ibv.refcnt--;
    item_use(channel->item, -1);
    lock_release(&channel->queue.lock);
}

void channel_post(struct channel *channel, struct cq *cq)
{
    lock_acquire(&channel->queue.lock);
    if (cq->events_queued++ == 0)
        list_push_back(&channel->queue.entries, &cq->event);
    ack_account_raise(&cq->completion_events);
    event_token_put(&channel->queue);
    lock_release(&channel->queue.lock);
}

int channel_get_event(struct channel *channel, struct cq **ret_cq)
{
    for (;;) {
        int error = event_token_wait(&channel->queue);
        struct list *first = NULL;

        if (error)
            return error;
        lock_acquire(&channel->queue.lock);
        if (event_token_is_good(&channel->queue))
            first = list_pop_front(&channel->queue.entries);
        if (first) {
            struct cq *cq = list_entry(first, struct cq, event);

            if (--cq->events_queued)
                list_push_back(&channel->queue.entries, &cq->event);
            ack_account_report(&cq->completion_events, 0);
            *ret_cq = cq;
        }
        lock_release(&channel->queue.lock);
        if (first)
            return 0;
    }
}

void channel_purge(struct channel *channel, struct cq *cq)
{
    lock_acquire(&channel->queue.lock);
    if (cq->events_queued) {
        list_remove(&cq->event);
        event_token_take_back(&channel->queue, cq->events_queued);
        cq->events_queued = 0;
        ack_account_drop(&cq->completion_events);
    }
    lock_release(&channel->queue.lock);
}
