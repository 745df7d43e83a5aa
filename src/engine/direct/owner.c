/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner of memory in which peers are at work: it has changed what they look at, and waits for those that
 * looked before. A copy takes some tens of microseconds; but a peer may be stopped, or have lost its
 * processor. */
#include <sched.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/direct/direct.h"
#include "object/memory/mapping.h"
#include "object/ports.h"

#define PATIENCE (20 * NS_PER_MS)
#define SPINS    1000u

static _Atomic bool gave_up; /* since direct_forget_orphans() */

struct settling {
    enum { SLOTS_OF_KEY, SLOTS_OF_QP, SLOTS_ALL } of;
    uint32_t slot;
    ns_t deadline; /* 0: not known yet */
    bool evict;    /* what those who were given up may still write to */
    bool given_up; /* one of them */
};

static bool concerns(const struct settling *settling, uint64_t access_slot)
{
    if (!(access_slot & ACCESS_SLOT_BUSY))
        return false;
    switch (settling->of) {
    case SLOTS_OF_KEY:
        return access_slot_key(access_slot) == settling->slot;
    case SLOTS_OF_QP:
        return access_slot_qp(access_slot) == settling->slot;
    case SLOTS_ALL:
        break;
    }
    return true;
}

static void note_given_up(struct settling *settling, uint64_t access_slot)
{
    settling->given_up = true;
    if (settling->evict)
        mapping_evict_later(access_slot_key(access_slot));
}

static bool patience_ends(struct settling *settling)
{
    ns_t now = sys_now();

    if (!settling->deadline)
        settling->deadline = now + PATIENCE;
    return now >= settling->deadline;
}

static void settle_access_slot(struct settling *settling, struct link *link, _Atomic uint64_t *access_slot)
{
    uint64_t first = atomic_load_explicit(access_slot, memory_order_acquire), seen = first;

    if (!concerns(settling, first))
        return;
    for (unsigned spins = 0; seen == first; spins++) {
        if (seen & ACCESS_SLOT_GIVEN_UP) {
            note_given_up(settling, seen);
            return;
        }
        if (spins < SPINS) {
            cpu_relax();
        } else {
            if (link_peer_is_dead(link))
                return; /* the dead store nothing */
            if (patience_ends(settling) &&
                atomic_compare_exchange_strong_explicit(access_slot, &seen, seen | ACCESS_SLOT_GIVEN_UP,
                                                        memory_order_acq_rel, memory_order_acquire)) {
                atomic_thread_fence(memory_order_seq_cst); /* partner: direct_forget_orphans() */
                atomic_store_explicit(&gave_up, true, memory_order_relaxed);
                note_given_up(settling, seen);
                return;
            }
            sched_yield();
        }
        seen = atomic_load_explicit(access_slot, memory_order_acquire);
        if ((seen & ~(uint64_t)ACCESS_SLOT_GIVEN_UP) == first)
            first = seen; /* another thread of ours has given it up */
    }
}

static void settle_link(struct link *link, void *argument)
{
    if (atomic_load_explicit(link_access_slot(link, false, LOCAL_ACCESS_SLOTS), memory_order_relaxed) ==
        ADMISSION_NEW)
        return;
    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++)
        settle_access_slot(argument, link, link_access_slot(link, false, i));
}

bool direct_settle(enum object_kind kind, uint32_t slot, bool evict)
{
    struct settling settling = {
        .of = kind == OBJECT_MR ? SLOTS_OF_KEY : SLOTS_OF_QP, .slot = slot, .evict = evict};

    /* What the caller has changed is to be seen before we look; partner: fence_behind_access_slot(). */
    atomic_thread_fence(memory_order_seq_cst);
    local_for_each_link(settle_link, &settling);
    return settling.given_up;
}

void direct_link_leaving(struct link *link)
{
    struct settling settling = {.of = SLOTS_ALL, .evict = true};

    if (atomic_exchange(link_access_slot(link, false, LOCAL_ACCESS_SLOTS), ADMISSION_CLOSED) == ADMISSION_NEW)
        return;
    atomic_thread_fence(memory_order_seq_cst); /* partner: fence_behind_access_slot() */
    settle_link(link, &settling);
    mapping_evict();
}

void direct_evict_soon(void)
{
    helper_kick();
}

static void look_for_given_up(struct link *link, void *argument)
{
    bool *found = argument;

    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++)
        *found |= (atomic_load_explicit(link_access_slot(link, false, i), memory_order_acquire) &
                   ACCESS_SLOT_GIVEN_UP) != 0;
}

void direct_forget_orphans(void)
{
    bool found = false;

    if (likely(!atomic_load_explicit(&gave_up, memory_order_relaxed)))
        return;
    /* Whoever gives up from here on says so again, and moves memory after us. */
    atomic_store_explicit(&gave_up, false, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* partner: settle_access_slot() */
    local_for_each_link(look_for_given_up, &found);
    if (found)
        atomic_store_explicit(&gave_up, true, memory_order_relaxed);
    else
        mapped_forget_orphans();
}

void direct_link_gone(void)
{
    /* Not for nothing: somebody may be moving memory with the lock held. */
    if (atomic_load_explicit(&gave_up, memory_order_relaxed))
        mapping_forget_orphans();
}
