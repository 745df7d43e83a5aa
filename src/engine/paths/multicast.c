/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links to all processes of the host, for multicast (verbs.md §8.3). A multicast packet is offered to every
 * process that this one is linked to, and each looks up the members in its own table. A process links itself
 * to all others when it attaches a QP or sends to a group for the first time: the later of two finds the
 * earlier. The process that requests a link has it a moment before the process that accepts it. The sender may
 * be the one that accepts, and waits for links under way (local_link_is_coming()): an attached QP gets all
 * that is sent afterwards. */
#include <linux/futex.h>
#include <stdatomic.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/paths/paths.h"

/* A process that does not answer (stopped, hostile) delays the others no longer than this. */
#define DISCOVERY_LIMIT_NS NS_PER_S

static _Atomic uint32_t resolutions; /* futex: counts calls of multicast_resolved() */
static _Atomic bool discovered;
static _Atomic ns_t discovery_began;

void multicast_resolved(void)
{
    atomic_fetch_add_explicit(&resolutions, 1, memory_order_release);
    sys_futex((uint32_t *)&resolutions, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

bool multicast_ready(void)
{
    ns_t began;

    if (unlikely(local_link_is_coming()))
        return false;
    if (likely(atomic_load_explicit(&discovered, memory_order_relaxed)))
        return true;
    began = atomic_load_explicit(&discovery_began, memory_order_relaxed);
    if (!began)
        atomic_store_explicit(&discovery_began, began = sys_now(), memory_order_relaxed);
    if (local_discover_peers() > 0 && sys_now() - began < DISCOVERY_LIMIT_NS)
        return false;
    atomic_store_explicit(&discovered, true, memory_order_relaxed);
    return true;
}

void multicast_announce(ns_t limit)
{
    ns_t deadline = sys_now() + limit;
    ns_t now;

    if (helper_start() != 0)
        return;
    for (;;) {
        uint32_t seen = atomic_load_explicit(&resolutions, memory_order_acquire);

        now = sys_now();
        if (local_discover_peers() == 0 || now >= deadline) {
            /* A process that attaches later links itself to this one: sending need not discover again. */
            atomic_store_explicit(&discovered, true, memory_order_relaxed);
            return;
        }
        sys_futex((uint32_t *)&resolutions, FUTEX_WAIT_PRIVATE, seen, deadline - now);
    }
}

void engine_announce_multicast(void)
{
    multicast_announce(DISCOVERY_LIMIT_NS);
}

void multicast_after_fork_in_child(void)
{
    atomic_store_explicit(&discovered, false, memory_order_relaxed);
    atomic_store_explicit(&discovery_began, 0, memory_order_relaxed);
}
