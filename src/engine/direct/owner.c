/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Owner of memory that peers access: after it has changed a key or a QP, it waits for accesses that began before the
 * change (direct_settle()). An access takes some tens of microseconds, but the peer may be stopped or preempted.
 *
 * In mapped memory the owner marks such an access slot as given up after GIVE_UP_AFTER, and has the memory moved away
 * from the peer.
 *
 * A kernel copy cannot be moved away from. The owner sets the lengths in the slot to 0, so a call that has not begun
 * moves nothing. A call that has begun ends by itself: the owner waits for it, unless the thread is stopped, because
 * the kernel stops no thread in the middle of that call. */
#include <sched.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/user.h"
#include "engine/core/core.h"
#include "engine/direct/access_slot.h"
#include "engine/direct/direct.h"
#include "object/memory/mapping.h"
#include "object/ports.h"

#define GIVE_UP_AFTER (20 * NS_PER_MS)
#define SPINS         1000u /* before the waiting thread yields its processor */
/* Between two looks at the state of a thread that is overdue. */
#define LOOK_EVERY NS_PER_MS

/* An access slot was given up since direct_forget_orphans() found none. Set by give_up(). */
static _Atomic bool gave_up;

struct settling {
    enum { SLOTS_OF_KEY, SLOTS_OF_QP, SLOTS_ALL } of;
    uint32_t slot; /* of the key or the QP */
    ns_t deadline; /* 0: not set, because nothing had to be waited for yet */
    bool evict;    /* note memory that a given-up peer may still access */
    bool patient;  /* wait for kernel copies as long as it takes */
    bool given_up; /* result: at least one access to mapped memory was given up */
};

static bool concerns(const struct settling *settling, uint64_t word)
{
    if (access_slot_kind(word) != ACCESS_STORES && access_slot_kind(word) != ACCESS_COPIES)
        return false;
    switch (settling->of) {
    case SLOTS_OF_KEY:
        return access_slot_key(word) == settling->slot;
    case SLOTS_OF_QP:
        return access_slot_qp(word) == settling->slot;
    case SLOTS_ALL:
        break;
    }
    return true;
}

static void note_given_up(struct settling *settling, uint64_t word)
{
    settling->given_up |= access_slot_kind(word) == ACCESS_STORES;
    if (settling->evict)
        mapping_evict_later(access_slot_key(word));
}

static bool is_overdue(struct settling *settling)
{
    ns_t now = sys_now();

    if (!settling->deadline)
        settling->deadline = now + GIVE_UP_AFTER;
    return now >= settling->deadline;
}

/* False: the slot has changed meanwhile. */
static bool give_up(struct access_slot *slot, uint64_t seen)
{
    if (!atomic_compare_exchange_strong_explicit(&slot->word, &seen, seen | ACCESS_SLOT_GIVEN_UP,
                                                 memory_order_acq_rel, memory_order_acquire))
        return false;
    atomic_thread_fence(memory_order_seq_cst); /* partner: direct_forget_orphans() */
    atomic_store_explicit(&gave_up, true, memory_order_relaxed);
    return true;
}

/* A peer of another user cannot copy, whatever it writes into its slots, and is not waited for. */
static bool may_copy(const struct link *link)
{
    return link_can_reference(link) && user_is_known(link_peer_uid(link)) && link_peer_uid(link) == geteuid();
}

/* The lengths first: a thread that is seen to be stopped afterwards finds them 0 in its next call. */
static void void_copy(struct access_slot *slot)
{
    for (unsigned i = 0; i < ACCESS_PIECES; i++)
        __atomic_store_n(&slot->remote[i].iov_len, 0, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Ends the wait for an overdue access, if it has not changed meanwhile. False: it has to be waited for. */
static bool end_wait(struct settling *settling, struct link *link, struct access_slot *slot, uint64_t seen)
{
    bool copies = access_slot_kind(seen) == ACCESS_COPIES;

    if (copies && settling->patient &&
        !link_peer_thread_is_stopped(link, atomic_load_explicit(&slot->thread, memory_order_relaxed))) {
        sys_poll(NULL, 0, LOOK_EVERY);
        return false;
    }
    if (!(seen & ACCESS_SLOT_GIVEN_UP) && !give_up(slot, seen))
        return false;
    if (!copies || !settling->patient)
        note_given_up(settling, seen);
    return true;
}

static void settle_access_slot(struct settling *settling, struct link *link, struct access_slot *slot)
{
    uint64_t first = atomic_load_explicit(&slot->word, memory_order_acquire), seen = first;
    bool copies = access_slot_kind(first) == ACCESS_COPIES;

    if (!concerns(settling, first) || (copies && !may_copy(link)))
        return;
    if (copies)
        void_copy(slot);
    for (unsigned spins = 0; seen == first; spins++) {
        if ((seen & ACCESS_SLOT_GIVEN_UP) && !(copies && settling->patient)) {
            note_given_up(settling, seen);
            return;
        }
        if (spins < SPINS) {
            cpu_relax();
        } else {
            if (link_peer_is_dead(link))
                return; /* a dead process accesses nothing */
            if (is_overdue(settling) && end_wait(settling, link, slot, seen))
                return;
            sched_yield();
        }
        seen = atomic_load_explicit(&slot->word, memory_order_acquire);
        if ((seen & ~(uint64_t)ACCESS_SLOT_GIVEN_UP) == first)
            first = seen; /* another thread of this process has given the same access up */
    }
}

static void settle_link(struct link *link, void *argument)
{
    if (atomic_load_explicit(admission_of(link, false), memory_order_relaxed) == ADMISSION_NEW)
        return;
    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++)
        settle_access_slot(argument, link, access_slot_of(link, false, i));
}

bool direct_settle(enum object_kind kind, uint32_t slot, enum settle how)
{
    struct settling settling = {.of = kind == OBJECT_MR ? SLOTS_OF_KEY : SLOTS_OF_QP,
                                .slot = slot,
                                .evict = how == SETTLE_BRIEFLY,
                                .patient = how == SETTLE_WAIT};

    /* Orders the caller's change of the key or QP before the loads of the access slots. Partner:
     * access_slot_fence(). */
    atomic_thread_fence(memory_order_seq_cst);
    local_for_each_link(settle_link, &settling);
    return settling.given_up;
}

void direct_link_leaving(struct link *link)
{
    struct settling settling = {.of = SLOTS_ALL, .evict = true, .patient = true};

    if (atomic_exchange(admission_of(link, false), ADMISSION_CLOSED) == ADMISSION_NEW)
        return;
    atomic_thread_fence(memory_order_seq_cst); /* partner: access_slot_fence() */
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
        *found |= (atomic_load_explicit(&access_slot_of(link, false, i)->word, memory_order_acquire) &
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
    atomic_thread_fence(memory_order_seq_cst); /* partner: give_up() */
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
