/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Event queues: tokens in the eventfd, and asynchronous events (verbs.md §9). */
#include "object/event/event.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "base/types.h"
#include "object/device/context.h"
#include "rules/event_name.h"
#include "segment/provenance.h"

#define TYPE_BITS 5
#define TYPE_MASK 0x1fu

_Static_assert(ASYNC_PENDING_LIMIT *TYPE_BITS <= 64, "types of pending events in one word");

/* --- the descriptor ------------------------------------------------------------------------------------- */

int event_queue_open(struct event_queue *queue)
{
    int saved = errno, fd = fd_lift(eventfd(0, EFD_CLOEXEC));

    if (fd < 0) {
        int error = -errno;

        errno = saved;
        return error;
    }
    lock_init(&queue->lock);
    list_init(&queue->entries);
    queue->fd = fd;
    queue->pending = queue->written = queue->credit = 0;
    queue->generation = process_generation();
    return 0;
}

void event_queue_close(struct event_queue *queue)
{
    rundown_wait(); /* events_write() */
    sys_close(queue->fd);
    queue->fd = -1;
}

static bool is_inherited(const struct event_queue *queue)
{
    return queue->generation != process_generation();
}

/* By a raw system call, because locks are held: libc's wrapper is a cancellation point. */
static void write_token(struct event_queue *queue)
{
    const uint64_t own = EVENT_TOKEN_OWN;
    int saved = errno;

    if (is_inherited(queue))
        return;
    if (syscall(SYS_write, queue->fd, &own, sizeof(own)) < 0)
        log_error("event queue: write to eventfd %d: %s; a reader may not wake up", queue->fd,
                  strerror(errno));
    else
        queue->written++;
    errno = saved;
}

void event_token_brought(struct event_queue *queue, uint64_t tokens)
{
    queue->written -= min_of((uint32_t)(tokens / EVENT_TOKEN_OWN), queue->written);
    queue->credit += (uint32_t)tokens;
}

/* Takes the tokens out of the descriptor without blocking. Lock held. */
static void drain(struct event_queue *queue)
{
    uint64_t tokens;

    if (!is_inherited(queue) && sys_read_now(queue->fd, &tokens, sizeof(tokens)) > 0)
        event_token_brought(queue, tokens);
}

/* A token that is `written` is in the descriptor, or a reader has taken it and examines `pending` next. */
void event_token_settle(struct event_queue *queue)
{
    if (queue->pending && !queue->written)
        write_token(queue);
    else if (!queue->pending && queue->written)
        drain(queue);
}

#define DEFERRED_MAX 8

static __thread struct {
    bool active;
    unsigned count;
    struct event_queue *queues[DEFERRED_MAX];
} deferred __attribute__((tls_model("initial-exec")));

static bool defer(struct event_queue *queue)
{
    if (!deferred.active)
        return false;
    for (unsigned i = 0; i < deferred.count; i++) {
        if (deferred.queues[i] == queue)
            return true;
    }
    if (deferred.count == DEFERRED_MAX)
        return false;
    deferred.queues[deferred.count++] = queue;
    return true;
}

void event_token_put(struct event_queue *queue)
{
    queue->pending++;
    if (!defer(queue))
        event_token_settle(queue);
}

void events_defer(void)
{
    deferred.active = true;
}

void events_write(void)
{
    deferred.active = false;
    while (unlikely(deferred.count)) {
        struct event_queue *queue = deferred.queues[--deferred.count];

        lock_acquire(&queue->lock);
        event_token_settle(queue);
        lock_release(&queue->lock);
    }
}

void event_token_take_back(struct event_queue *queue, uint32_t count)
{
    queue->pending -= count;
    if (!queue->pending)
        drain(queue);
}

static bool reads_block(struct event_queue *queue)
{
    bool block;

    lock_acquire(&queue->lock); /* no drain() is under way */
    block = sys_reads_block(queue->fd);
    lock_release(&queue->lock);
    return block;
}

int event_token_wait(struct event_queue *queue, uint64_t *ret_tokens)
{
    int saved = errno, error;

    if (is_inherited(queue))
        return -EIO;
    do {
        error = read(queue->fd, ret_tokens, sizeof(*ret_tokens)) < 0 ? -errno : 0;
    } while (error == -EAGAIN && reads_block(queue));
    errno = saved;
    return error;
}

/* --- asynchronous events -------------------------------------------------------------------------------- */

int async_queue_open(struct async_queue *queue)
{
    ack_account_init(&queue->unaffiliated, NULL);
    return event_queue_open(&queue->queue);
}

void async_queue_close(struct async_queue *queue)
{
    event_queue_close(&queue->queue);
}

static unsigned newest_type(const struct ack_account *account)
{
    return (unsigned)(account->types >> (TYPE_BITS * (account->pending - 1u))) & TYPE_MASK;
}

void async_raise(struct async_queue *queue, const struct ibv_async_event *event, struct ack_account *account)
{
    bool affiliated = account != NULL, dropped = false;
    unsigned type = event->event_type;

    if (!affiliated)
        account = &queue->unaffiliated;
    lock_acquire(&queue->queue.lock);
    if (account->closed || (!affiliated && account->pending && newest_type(account) == type)) {
        /* the object is being destroyed, or the same event is unread */
    } else if (account->pending == ASYNC_PENDING_LIMIT || type > TYPE_MASK) {
        dropped = true;
    } else {
        if (account->pending == 0)
            list_push_back(&queue->queue.entries, &account->node);
        account->types |= (uint64_t)type << (TYPE_BITS * account->pending);
        account->pending++;
        account->element = *event;
        ack_account_raise(account);
        event_token_put(&queue->queue);
    }
    lock_release(&queue->queue.lock);
    if (dropped)
        log_warn("asynchronous event %s dropped: its object already has %d unread events; the "
                 "program has to call ibv_get_async_event() more often",
                 event_name(type), ASYNC_PENDING_LIMIT);
}

void ack_account_report(struct ack_account *account, uint32_t type)
{
    uint32_t reported = account->reported + 1;

    /* Atomic because ack_account_add() reads it without the queue's lock. */
    __atomic_store_n(&account->reported, reported, __ATOMIC_RELAXED);
    if (account->record)
        provenance_event_read(account->record, type, reported);
}

static bool pop(struct async_queue *queue, struct ibv_async_event *ret_event)
{
    struct list *first = list_pop_front(&queue->queue.entries);
    struct ack_account *account;

    if (!first)
        return false;
    account = list_entry(first, struct ack_account, node);
    *ret_event = account->element;
    ret_event->event_type = (enum ibv_event_type)(account->types & TYPE_MASK);
    account->types >>= TYPE_BITS;
    if (--account->pending)
        list_push_back(&queue->queue.entries, &account->node);
    if (account != &queue->unaffiliated)
        ack_account_report(account, ret_event->event_type);
    return true;
}

int async_get(struct async_queue *queue, struct ibv_async_event *ret_event)
{
    for (;;) {
        uint64_t tokens;
        int error = event_token_wait(&queue->queue, &tokens);
        bool found;

        if (error)
            return error;
        lock_acquire(&queue->queue.lock);
        event_token_brought(&queue->queue, tokens);
        found = pop(queue, ret_event);
        queue->queue.pending -= found;
        event_token_settle(&queue->queue);
        lock_release(&queue->queue.lock);
        if (found)
            return 0;
    }
}

void async_purge(struct async_queue *queue, struct ack_account *account)
{
    lock_acquire(&queue->queue.lock);
    if (account->pending) {
        list_remove(&account->node);
        event_token_take_back(&queue->queue, account->pending);
        account->pending = 0;
        account->types = 0;
        ack_account_drop(account);
    }
    account->closed = true;
    lock_release(&queue->queue.lock);
}
