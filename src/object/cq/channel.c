/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion channels: the queue of completion events (verbs.md §5.4).
 *
 * A peer that writes a message delivers the completion event itself where it can (base/notify.h). It claims
 * the event by clearing the CQ's armed bit, sets the CQ's bit in `rung`, and writes a token to the channel's
 * eventfd. cq->debt is the number of claims that this process has seen, minus the events delivered for them:
 * collected from `rung`, or made by make_owed(). It is negative while a collected event's claim was not seen
 * yet. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "object/cq/cq.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "segment/provenance.h"

static struct lock lines_lock = LOCK_INIT; /* guards lines; above event_queue.lock */
static struct channel *lines[NOTIFY_CHANNELS];
static _Atomic uint32_t owed; /* CQs with a debt */
static _Atomic uint32_t owed_changes;

int channel_create(struct context *context, struct channel **ret_channel)
{
    struct channel *channel;
    int error = -ENOMEM;

    if (context_is_inherited(context))
        return destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_create_comp_channel");
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
    channel->line = object_ports->open_channel(channel->queue.fd, &channel->line_number);
    if (channel->line) {
        lock_acquire(&lines_lock);
        lines[channel->line_number] = channel;
        lock_release(&lines_lock);
    }
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

    if (destroyed_has(DESTROYED_CHANNEL, channel, "ibv_destroy_comp_channel"))
        return -EINVAL;
    if (context_is_inherited(channel->context))
        return 0;
    lock_acquire(&channel->queue.lock);
    busy = channel->ibv.refcnt > 0;
    lock_release(&channel->queue.lock);
    if (busy)
        return busy_because(OBJECT_CHANNEL, channel->number);
    if (channel->line) {
        lock_acquire(&lines_lock);
        lines[channel->line_number] = NULL;
        lock_release(&lines_lock);
        object_ports->close_channel(channel->line_number);
    }
    event_queue_close(&channel->queue);
    item_return(channel->item);
    channel->item = NO_OBJECT;
    number_return(&pool_channels, channel->number);
    atomic_fetch_sub_explicit(&channel->context->objects, 1, memory_order_release);
    channel->context = &destroyed_context;
    destroyed_keep(DESTROYED_CHANNEL, channel, channel->number);
    return 0;
}

int channel_use(struct channel *channel, const struct context *context)
{
    if (channel->context != context)
        return channel->context == &destroyed_context
                   ? destroyed_refuse(DESTROYED_CHANNEL, channel, "ibv_create_cq")
                   : -EINVAL;
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

/* Queues an event without a token in the descriptor. Queue lock held. */
static void enqueue(struct channel *channel, struct cq *cq)
{
    if (cq->events_queued++ == 0)
        list_push_back(&channel->queue.entries, &cq->event);
    ack_account_raise(&cq->completion_events);
}

void channel_post(struct channel *channel, struct cq *cq)
{
    lock_acquire(&channel->queue.lock);
    enqueue(channel, cq);
    event_token_put(&channel->queue);
    lock_release(&channel->queue.lock);
}

/* --- events that peers deliver -------------------------------------------------------------------------- */

/* A peer's claim was seen (+1), or its event was collected (-1); the two come in either order. Queue lock
 * held. */
static void add_debt(struct cq *cq, int32_t change)
{
    bool was = cq->debt > 0, is;

    cq->debt += change;
    is = cq->debt > 0;
    cq->record->owed = is ? (uint32_t)cq->debt : 0; /* for explanations */
    if (is && !was)
        atomic_fetch_add_explicit(&owed, 1, memory_order_relaxed);
    else if (was && !is)
        atomic_fetch_sub_explicit(&owed, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&owed_changes, 1, memory_order_relaxed);
}

void channel_owe(struct channel *channel, struct cq *cq)
{
    bool late, rung;

    lock_acquire(&channel->queue.lock);
    add_debt(cq, 1);
    late = cq->debt > 0;
    rung = atomic_load_explicit(&channel->line->rung, memory_order_relaxed) >> cq->bit & 1;
    lock_release(&channel->queue.lock);
    if (late)
        object_ports->event_owed(rung);
}

bool channel_is_rung(struct channel *channel, const struct cq *cq)
{
    bool rung;

    lock_acquire(&channel->queue.lock);
    rung = cq->debt > 0 || atomic_load_explicit(&channel->line->rung, memory_order_relaxed) >> cq->bit & 1;
    lock_release(&channel->queue.lock);
    return rung;
}

bool channels_owe(uint32_t *ret_changes)
{
    *ret_changes = atomic_load_explicit(&owed_changes, memory_order_relaxed);
    return atomic_load_explicit(&owed, memory_order_relaxed) != 0;
}

/* Ends the arming that a peer's event belongs to, before the program reads the event. The CQ's lock is above
 * the queue's, so it can only be tried; if it is held, the next cq_arm() ends the arming, or the next
 * completion that is due to raise an event. */
static void note_fired(struct cq *cq)
{
    if (!lock_try(&cq->lock))
        return;
    if (cq->armed_for_peers && cq->record->armed != CQ_UNARMED &&
        !notify_is_armed(cq->channel->line, cq->bit)) {
        cq->record->armed = CQ_UNARMED;
        cq->armed_for_peers = false;
        atomic_fetch_sub_explicit(&cq_armed_count, 1, memory_order_relaxed);
        add_debt(cq, 1);
    }
    lock_release(&cq->lock);
}

/* Collects events of peers from `rung`, as many as tokens of peers were read. Acquire: the records that the
 * peer wrote before it set the bit; partner: the release in local/notify.c. Queue lock held. */
static void collect(struct channel *channel)
{
    struct event_queue *queue = &channel->queue;

    while (queue->credit) {
        uint64_t rung = atomic_load_explicit(&channel->line->rung, memory_order_acquire);
        unsigned bit;
        struct cq *cq;

        if (!rung) {
            queue->credit = 0; /* the tokens are of a CQ that is destroyed, or a peer wrote too many */
            return;
        }
        bit = (unsigned)__builtin_ctzll(rung);
        atomic_fetch_and_explicit(&channel->line->rung, ~(1ull << bit), memory_order_relaxed);
        queue->credit--;
        cq = channel->cqs[bit];
        if (!cq)
            continue;
        note_fired(cq);
        add_debt(cq, -1);
        enqueue(channel, cq);
        queue->pending++;
    }
}

/* Delivers the events that a peer has claimed and not delivered: it was stopped or has died in between. */
static void make_owed(struct channel *channel)
{
    lock_acquire(&channel->queue.lock);
    for (unsigned bit = 0; bit < NOTIFY_CQS; bit++) {
        struct cq *cq = channel->cqs[bit];

        if (!cq || cq->debt <= 0)
            continue;
        add_debt(cq, -cq->debt);
        atomic_fetch_and_explicit(&channel->line->rung, ~(1ull << bit), memory_order_relaxed);
        enqueue(channel, cq);
        event_token_put(&channel->queue);
    }
    lock_release(&channel->queue.lock);
}

void channels_make_owed(void)
{
    lock_acquire(&lines_lock);
    for (unsigned i = 0; i < NOTIFY_CHANNELS; i++) {
        if (lines[i])
            make_owed(lines[i]);
    }
    lock_release(&lines_lock);
}

void channel_allocate_bit(struct channel *channel, struct cq *cq)
{
    cq->bit = NOTIFY_CQS;
    if (!channel->line)
        return;
    lock_acquire(&channel->queue.lock);
    for (unsigned bit = 0; bit < NOTIFY_CQS; bit++) {
        if (!channel->cqs[bit]) {
            channel->cqs[bit] = cq;
            cq->bit = bit;
            break;
        }
    }
    lock_release(&channel->queue.lock);
}

/* --- reading -------------------------------------------------------------------------------------------- */

static void no_longer_waits(void *channel)
{
    item_wait_ends(((const struct channel *)channel)->item);
}

/* The published record shows meanwhile that a thread sleeps here. */
static int wait_for_token(struct channel *channel, uint64_t *ret_tokens)
{
    int error;

    if (context_is_inherited(channel->context))
        return event_token_wait(&channel->queue, ret_tokens); /* refuses; the record is the parent's */
    item_wait_begins(channel->item);
    pthread_cleanup_push(no_longer_waits, channel); /* waiting is a cancellation point */
    error = event_token_wait(&channel->queue, ret_tokens);
    pthread_cleanup_pop(1);
    return error;
}

int channel_get_event(struct channel *channel, struct cq **ret_cq)
{
    for (;;) {
        uint64_t tokens;
        int error = wait_for_token(channel, &tokens);
        struct list *first;

        if (error)
            return error;
        /* A peer wrote its packets before the token. Receive them now: the program polls after this call, and
         * must find the completion, and those of older sends that the same packets acknowledge. */
        if ((uint32_t)tokens)
            object_ports->take_arrived();
        lock_acquire(&channel->queue.lock);
        event_token_brought(&channel->queue, tokens);
        if (channel->line)
            collect(channel);
        first = list_pop_front(&channel->queue.entries);
        if (first) {
            struct cq *cq = list_entry(first, struct cq, event);

            if (--cq->events_queued)
                list_push_back(&channel->queue.entries, &cq->event);
            ack_account_report(&cq->completion_events, 0);
            channel->queue.pending--;
            *ret_cq = cq;
        }
        event_token_settle(&channel->queue);
        lock_release(&channel->queue.lock);
        if (first)
            return 0;
    }
}

void channel_purge(struct channel *channel, struct cq *cq)
{
    struct event_queue *queue = &channel->queue;
    bool rung = false;

    lock_acquire(&queue->lock);
    if (cq->bit < NOTIFY_CQS) {
        const uint64_t mask = 1ull << cq->bit;

        rung = cq->debt > 0;
        rung |= (atomic_fetch_and_explicit(&channel->line->rung, ~mask, memory_order_acquire) & mask) != 0;
        add_debt(cq, -cq->debt);
        channel->cqs[cq->bit] = NULL;
    }
    if (cq->events_queued || rung) {
        if (cq->events_queued) {
            list_remove(&cq->event);
            ack_account_drop(&cq->completion_events);
        }
        event_token_take_back(queue, cq->events_queued);
        cq->events_queued = 0;
        /* Tokens that were read belong to events of other CQs now. */
        if (channel->line)
            collect(channel);
        event_token_settle(queue);
    }
    lock_release(&queue->lock);
}

void channels_after_fork_in_child(void)
{
    lock_init(&lines_lock);
    atomic_store_explicit(&owed, 0, memory_order_relaxed);
    for (unsigned i = 0; i < NOTIFY_CHANNELS; i++)
        lines[i] = NULL;
}
