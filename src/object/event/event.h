/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Event queues behind a descriptor: asynchronous events of a context and completion events of a channel
 * (verbs.md §1.3, §5.4, §9).
 *
 * The descriptor is an eventfd, readable while events are queued, so that poll, epoll, O_NONBLOCK set by
 * fcntl and a cancellable blocking read all work as applications expect. A reader takes all tokens at once
 * and puts one back if events are left. So tokens that nobody needs any more go with the next event, and a
 * process that dies between two writes leaves nothing that a later reader would wait for.
 *
 * Nothing is allocated when an event is raised: what waits to be read is written down in its object (a CQ
 * counts its completion events, an account holds the types of its asynchronous ones), and the queue is a list
 * of objects that have something to say. So no event is lost for want of memory.
 */
#ifndef OBJECT_EVENT_EVENT_H
#define OBJECT_EVENT_EVENT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "published/record.h"

struct event_queue {
    struct lock lock; /* a leaf: guards entries and every reported counter */
    struct list entries;
    int fd;
    uint32_t pending;    /* events that nobody has read */
    uint32_t written;    /* our tokens in the descriptor, or in the hands of readers */
    uint32_t credit;     /* tokens of peers that were read, whose events were not looked for yet */
    uint32_t generation; /* of the process that opened it: a forked child takes no tokens of its parent */
};

/* Events of one object that nobody has read yet. */
#define ASYNC_PENDING_LIMIT 12

/* Acknowledgement account of one object and one kind of event. Reported is guarded by the queue's lock, acked
 * lives in the public struct (mutex and cond of the object, ABI): destroy waits until acked >= reported
 * (over-acking must not hang, compatibility.md §7). Zeroed memory is a valid account without mirror. */
struct ack_account {
    uint32_t reported;           /* events that the application has read */
    struct event_record *record; /* what others see of it, in the object's record; NULL: nothing */
    /* Asynchronous events, under the queue's lock: */
    struct list node; /* in queue.entries while something is pending */
    uint64_t types;   /* what is pending, oldest in the lowest five bits */
    uint8_t pending;
    bool closed; /* being destroyed: raises nothing any more */
    struct ibv_async_event element;
};

struct async_queue {
    struct event_queue queue;
    struct ack_account unaffiliated; /* port and device events */
};

/* Whose destroy it is. */
struct destroying {
    enum object_kind kind;
    uint32_t number;
    struct provenance_record *provenance;
};

static inline void ack_account_init(struct ack_account *account, struct event_record *record)
{
    *account = (struct ack_account){.record = record};
}

/* --- the descriptor; for the queues in this room -------------------------------------------------------- */

int event_queue_open(struct event_queue *queue);
void event_queue_close(struct event_queue *queue);
/* Tokens of ours are told from those that peers write (base/notify.h), which count 1. */
#define EVENT_TOKEN_OWN (1ull << 32)
/* One event more (lock held). */
void event_token_put(struct event_queue *queue);
/* `count` events fewer (lock held). A reader may have the token in hand already, and reads on. */
void event_token_take_back(struct event_queue *queue, uint32_t count);
/* A reader comes with what event_token_wait() gave it (lock held). */
void event_token_brought(struct event_queue *queue, uint64_t tokens);
/* Events were taken or added: the descriptor is readable if some are left, and else not (lock held). */
void event_token_settle(struct event_queue *queue);
/* Waits for tokens without the lock; a cancellation point. 0, -EAGAIN (O_NONBLOCK), -EINTR... */
int event_token_wait(struct event_queue *queue, uint64_t *ret_tokens);
/* An event of this account was raised, or some of them were purged unread (lock held). */
static inline void ack_account_raise(struct ack_account *account)
{
    if (account->record)
        account->record->raised++;
}
static inline void ack_account_drop(struct ack_account *account)
{
    if (account->record)
        account->record->raised = account->record->reported;
}
/* An event of this account is handed to the application (lock held). type: of asynchronous ones. */
void ack_account_report(struct ack_account *account, uint32_t type);

/* While this thread takes packets, whose locks a reader would have to wait for, the descriptors of its events
 * stay as they are: between the two calls, in a rundown section. Who closes a queue waits for such sections.
 */
void events_hold(void);
void events_release(void);

/* --- asynchronous events -------------------------------------------------------------------------------- */

int async_queue_open(struct async_queue *queue);
void async_queue_close(struct async_queue *queue);

/* Raises an event; never blocks, never allocates. The element (public object or port number) is in
 * event->element. account: of the affiliated object, NULL for port and device events, of which a repetition
 * that nobody has read is one event (§9.1). */
void async_raise(struct async_queue *queue, const struct ibv_async_event *event, struct ack_account *account);
/* Blocks unless the descriptor is O_NONBLOCK: 0, or -errno (-EAGAIN, -EINTR...). */
int async_get(struct async_queue *queue, struct ibv_async_event *ret_event);
/* Drops unread events of the object with this account; from now on it raises none. */
void async_purge(struct async_queue *queue, struct ack_account *account);
/* ibv_ack_async_event, for every kind of event: object/event/ack.c. */
void async_ack(const struct ibv_async_event *event);

/* --- acknowledging -------------------------------------------------------------------------------------- */

/* Adds to the public counter and wakes a destroy that waits for it. completed: under mutex. */
void ack_account_add(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                     uint32_t *completed, uint32_t count);
/* The end of a destroy: after the object's unread events were purged, waits (without limit, §1.3) until every
 * event that was read is acknowledged. Tells when that takes long, where explanations are on. No lock held.
 */
void ack_account_wait(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                      const uint32_t *completed, const struct destroying *destroying);

#endif
