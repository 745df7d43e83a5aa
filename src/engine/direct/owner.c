/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Owner of memory that peers access: after it has changed a key or a QP, it waits for accesses that began before the
 * change (direct_settle()). An access takes some tens of microseconds, but the peer may be stopped or preempted: after
 * GIVE_UP_AFTER the owner marks the access slot as given up and has the memory moved away from the peer. */
#include <sched.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/direct/direct.h"
#include "object/memory/mapping.h"
#include "object/ports.h"

#define GIVE_UP_AFTER (20 * NS_PER_MS)
#define SPINS         1000u /* before the waiting thread yields its processor */

/* An access slot was given up since direct_forget_orphans() found none. Set by settle_access_slot(). */
static _Atomic bool gave_up;

struct settling {
    enum { SLOTS_OF_KEY, SLOTS_OF_QP, SLOTS_ALL } of;
    uint32_t slot; /* of the key or the QP */
    ns_t deadline; /* 0: not set, because nothing had to be waited for yet */
    bool evict;    /* move memory away that a given-up peer may still write to */
    bool given_up; /* result: at least one access slot was given up */
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

static bool is_overdue(struct settling *settling)
{
    ns_t now = sys_now();

    if (!settling->deadline)
        settling->deadline = now + GIVE_UP_AFTER;
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
                return; /* a dead process accesses nothing */
            if (is_overdue(settling) &&
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
            first = seen; /* another thread of this process has given the same access up */
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

    /* Orders the caller's change of the key or QP before the loads of the access slots. Partner:
     * fence_behind_access_slot(). */
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

static void find_given_up(struct link *link, void *argument)
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
    /* A thread that gives a slot up from here on sets the flag again, and moves its memory only after the caller has
     * released mapping_lock. */
    atomic_store_explicit(&gave_up, false, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* partner: settle_access_slot() */
    local_for_each_link(find_given_up, &found);
    if (found)
        atomic_store_explicit(&gave_up, true, memory_order_relaxed);
    else
        mapped_forget_orphans();
}

void direct_link_gone(void)
{
    /* The flag first: mapping_lock may be held for long, by a thread that moves memory. */
    if (atomic_load_explicit(&gave_up, memory_order_relaxed))
        mapping_forget_orphans();
}
