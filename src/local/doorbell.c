/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The doorbell of a link, a message over its socket. One that the kernel does not take (ENOMEM; EAGAIN while the peer
 * does not read its socket) is owed: nothing else wakes the peer. The helper thread rings again, until the link is
 * down. */
#include "local/doorbell.h"

#include <stdatomic.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/sys.h"
#include "local/files.h"
#include "local/start.h"

#define AGAIN_FIRST (1 * NS_PER_MS)
#define AGAIN_LAST  (64 * NS_PER_MS)

static _Atomic bool owed;       /* a link has one (link.owed) */
static ns_t again_at, interval; /* helper thread */

/* True also if the link has no socket any more: the helper thread takes it down. */
static bool ring(struct link *link, uint8_t message)
{
    return !event_is_intact(&link->socket) ||
           !error_may_pass(sys_send(link->socket.fd, &message, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static void owe(struct link *link, uint8_t messages)
{
    atomic_fetch_or_explicit(&link->owed, messages, memory_order_relaxed);
    atomic_store_explicit(&owed, true, memory_order_release);
}

void link_ring(struct link *link, uint8_t message)
{
    if (link->is_self) {
        local_ring_self();
    } else if (unlikely(!ring(link, message))) {
        owe(link, (uint8_t)(1u << message));
        local_kick();
    }
}

void doorbell_owe(struct link *link)
{
    owe(link, 0);
}

static void ring_again(struct link *link, void *argument)
{
    uint8_t messages = atomic_exchange_explicit(&link->owed, 0, memory_order_relaxed);

    if (unlikely(!files_give_owed(link)))
        owe(link, 0);
    for (uint8_t message = 0; messages >> message; message++) {
        if (messages >> message & 1 && !ring(link, message))
            owe(link, (uint8_t)(1u << message));
    }
}

void doorbell_ring_owed(void)
{
    ns_t now;

    if (likely(!atomic_load_explicit(&owed, memory_order_relaxed)))
        return;
    now = sys_now();
    if (now < again_at)
        return;
    atomic_store_explicit(&owed, false, memory_order_relaxed);
    /* Partner: the release in owe(). A link that is marked from here on sets `owed` again. */
    atomic_thread_fence(memory_order_acquire);
    local_for_each_link(ring_again, NULL);
    interval = atomic_load_explicit(&owed, memory_order_relaxed) ? interval * 2 : 0;
    interval = min_of(max_of(interval, AGAIN_FIRST), AGAIN_LAST);
    again_at = now + interval;
}

ns_t doorbell_deadline(void)
{
    return atomic_load_explicit(&owed, memory_order_relaxed) ? again_at : NS_NEVER;
}

void doorbell_after_fork_in_child(void)
{
    atomic_store_explicit(&owed, false, memory_order_relaxed);
    again_at = interval = 0;
}
