/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Event queues behind a descriptor: asynchronous events of a context and completion events of a channel
 * (verbs.md §1.3, §5.4, §9).
 *
 * The descriptor is an eventfd that is readable while events are queued, so that poll, epoll, O_NONBLOCK set by
 * fcntl and a cancellable blocking read work as applications expect. A write to the eventfd adds a token. A
 * reader takes all tokens at once and puts one back if events are left, so surplus tokens do no harm.
 *
 * Raising an event allocates nothing, so no event is lost for lack of memory: the object holds its unread
 * events (a CQ counts its completion events, an account holds the types of its asynchronous events), and the
 * queue is a list of objects with unread events.
 */
#ifndef OBJECT_EVENT_EVENT_H
#define OBJECT_EVENT_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/verbs.h"
#include "published/record.h"

struct event_queue {
    struct lock
        lock; /* a leaf; guards all fields below and the `reported` counters of the queue's accounts */
    struct list entries; /* objects with unread events */
    int fd;
    uint32_t pending; /* unread events */
    uint32_t written; /* tokens of this process that are in the descriptor or were taken by a reader */
    uint32_t credit;  /* tokens of peers that were read and whose events are not collected yet */
    uint32_t
        generation; /* process_generation() when opened: a forked child must not read its parent's tokens */
};

/* Unread asynchronous events of one object, at most. */
#define ASYNC_PENDING_LIMIT 12

/* Counters of reported and acknowledged events of one object and one kind of event. `reported` is guarded by
 * the queue's lock. The counter of acknowledged events is in the public struct, guarded by the mutex next to it
 * (ABI). Destroy waits until acknowledged >= reported; acknowledging too many must not hang (compatibility.md
 * §7). Zeroed memory is a valid account without a record. */
struct ack_account {
    uint32_t reported;           /* events that the application has read */
    struct event_record *record; /* the counters in the published segment; NULL: none */
    /* Asynchronous events, under the queue's lock: */
    struct list node; /* in queue.entries while events are unread */
    uint64_t types;   /* of the unread events, five bits each, the oldest in the lowest */
    uint8_t pending;  /* unread events */
    bool closed;      /* the object is being destroyed: async_raise() ignores it */
    struct ibv_async_event element;
};

struct async_queue {
    struct event_queue queue;
    struct ack_account unaffiliated; /* port and device events */
};

/* The object whose destroy verb waits. */
struct destroying {
    enum object_kind kind;
    uint32_t number;
    struct provenance_record *provenance;
};

static inline void ack_account_init(struct ack_account *account, struct event_record *record)
{
    *account = (struct ack_account){.record = record};
}

/* --- the descriptor; for src/object only ---------------------------------------------------------------- */

int event_queue_open(struct event_queue *queue);
void event_queue_close(struct event_queue *queue);
/* The value of a token of this process; a token of a peer is 1 (base/notify.h). */
#define EVENT_TOKEN_OWN (1ull << 32)
/* Adds one event (lock held). */
void event_token_put(struct event_queue *queue);
/* Removes `count` unread events (lock held). A reader that has taken the token already finds no event, and
 * reads again. */
void event_token_take_back(struct event_queue *queue, uint32_t count);
/* Books the tokens that event_token_wait() has read (lock held). */
void event_token_brought(struct event_queue *queue, uint64_t tokens);
/* Makes the descriptor readable if events are unread, and else not readable (lock held). */
void event_token_settle(struct event_queue *queue);
/* Waits for tokens without the lock; a cancellation point. 0, -EAGAIN (O_NONBLOCK), -EINTR... */
int event_token_wait(struct event_queue *queue, uint64_t *ret_tokens);
/* An event of this account was raised, or its unread events were purged (lock held). */
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
/* An event of this account is returned to the application (lock held). type: enum ibv_event_type; completion
 * events: 0. */
void ack_account_report(struct ack_account *account, uint32_t type);

/* Between the two calls the calling thread writes no tokens: it receives packets with locks held for which a
 * woken reader would have to wait. Called inside a rundown section; event_queue_close() waits for those. */
void events_defer(void);
void events_write(void);

/* --- asynchronous events -------------------------------------------------------------------------------- */

int async_queue_open(struct async_queue *queue);
void async_queue_close(struct async_queue *queue);

/* Raises an event; never blocks, never allocates. The element (public object or port number) is in
 * event->element. account: the affiliated object's; NULL for port and device events, of which unread
 * repetitions are one event (verbs.md §9.1). */
void async_raise(struct async_queue *queue, const struct ibv_async_event *event, struct ack_account *account);
/* Blocks unless the descriptor is O_NONBLOCK: 0, or -errno (-EAGAIN, -EINTR...). */
int async_get(struct async_queue *queue, struct ibv_async_event *ret_event);
/* Drops the unread events of the object with this account, and ignores later ones. */
void async_purge(struct async_queue *queue, struct ack_account *account);
/* ibv_ack_async_event, for every kind of event: object/event/ack.c. */
void async_ack(const struct ibv_async_event *event);

/* --- acknowledging -------------------------------------------------------------------------------------- */

/* Adds to the public counter and wakes a destroy that waits for it. completed: under mutex. */
void ack_account_add(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                     uint32_t *completed, uint32_t count);
/* At the end of a destroy verb, after the object's unread events were purged: waits, without limit (verbs.md
 * §1.3), until every event that was read is acknowledged. With explanations on, a wait of more than a second is
 * explained. No lock held. */
void ack_account_wait(const struct ack_account *account, pthread_mutex_t *mutex, pthread_cond_t *cond,
                      const uint32_t *completed, const struct destroying *destroying);

#endif
