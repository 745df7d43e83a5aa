/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Event queues behind a descriptor: asynchronous events of a context and completion events of a channel (verbs-contract §1.3, §5.4, §9).
 *
 * The descriptor is an eventfd in semaphore mode: one token per queued event, so that poll, epoll, O_NONBLOCK set by fcntl and a cancellable
 * blocking read all work as applications expect. Events of a destroyed object are purged together with their tokens.
 */
#ifndef OBJECT_EVENT_H
#define OBJECT_EVENT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"

struct event_queue {
    struct lock lock; /* a leaf: guards entries and every reported counter */
    struct list entries;
    int fd;
};

struct async_queue {
    struct event_queue queue;
    uint32_t queued; /* bounded: beyond ASYNC_QUEUE_LIMIT the newest is dropped */
};

/* Acknowledgement account of one object and one kind of event. Reported is guarded by the queue's lock, acked lives in the public struct
 * (mutex and cond of the object, ABI): destroy waits until acked >= reported (over-acking must not hang, compat §9). */
struct ack_account {
    uint32_t reported;
};

int async_queue_open(struct async_queue *queue);
void async_queue_close(struct async_queue *queue);

/* Raises an event; never blocks, never allocates in a way that can fail silently for affiliated events: each object embeds... the
 * implementation decides, the queue is bounded. element: the public object or port number is in event->element. account: of the affiliated
 * object, NULL for port and device events. */
void async_raise(struct async_queue *queue, const struct ibv_async_event *event, struct ack_account *account);
/* Blocks unless the descriptor is O_NONBLOCK: 0, or -errno (-EAGAIN, -EINTR...). */
int async_get(struct async_queue *queue, struct ibv_async_event *ret_event);
/* Drops unread events of the object with this account. */
void async_purge(struct async_queue *queue, struct ack_account *account);

#endif
