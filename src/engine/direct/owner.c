/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Owner of memory that peers access: after it has changed a key or a QP, it waits for accesses that began before the
 * change (direct_settle()). An access takes some tens of microseconds, but the peer may be stopped or preempted.
 *
 * In mapped memory the owner marks such an access slot as given up after GIVE_UP_AFTER, and has the memory moved away
 * from the peer.
 *
 * A kernel copy cannot be moved away from. The owner sets the lengths in the slot to 0 (void_copy()), so a call that
 * has not begun moves nothing. A call that has begun ends by itself, and is waited for as long as the thread may be
 * inside of it (link_peer_thread_may_copy()): outside of rundown sections, and never by the helper thread but for a
 * moment. */
#include <sched.h>
#include <string.h>

#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/direct/access_slot.h"
#include "engine/direct/direct.h"
#include "object/memory/mapping.h"
#include "object/ports.h"

#define GIVE_UP_AFTER (20 * NS_PER_MS)
#define SPINS         1000u /* before the waiting thread yields its processor */
/* Between two looks at a copy that is overdue; how many until the user is told. */
#define LOOK_EVERY NS_PER_MS
#define LOOKS_LONG 2000u
/* A link that ends is waited for by the helper thread, so not for longer. */
#define LOOKS_LEAVING 500u

/* An access slot was given up since direct_forget_orphans() found none. Set by give_up(). */
static _Atomic bool gave_up;
/* Held while a slot is voided, and while the owner frees a slot that was: the lengths that are written are those of the
 * access that the word named. A leaf. */
static struct lock void_lock = LOCK_INIT;

struct settling {
    enum { SLOTS_OF_KEY, SLOTS_OF_QP, SLOTS_ALL } of;
    uint32_t slot; /* of the key or the QP */
    ns_t deadline; /* 0: not set, because nothing had to be waited for yet */
    bool stores;   /* wait for accesses to mapped memory */
    bool copies;   /* wait for kernel copies */
    bool evict;    /* note memory that a given-up peer may still store to */
    bool note;     /* note copies that are overdue; else direct_settle() looks again */
    bool given_up; /* result: at least one access to mapped memory was given up */
    pid_t copying; /* result: the peer whose copy is overdue; 0: none */
};

static bool concerns(const struct settling *settling, uint64_t word)
{
    enum access_kind kind = access_slot_kind(word);

    if (!(kind == ACCESS_STORES && settling->stores) && !(kind == ACCESS_COPIES && settling->copies))
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

/* Sets the lengths of the copy to 0, unless the slot has changed. The last one first: a call that reads only some of
 * the zeros moves fewer bytes, and none to a wrong place. The fence: a thread that is seen outside of its call
 * afterwards finds zeros in the next one. */
static void void_copy(struct access_slot *slot, uint64_t *seen)
{
    lock_acquire(&void_lock);
    if (!(*seen & ACCESS_SLOT_VOIDED) &&
        atomic_compare_exchange_strong_explicit(&slot->word, seen, *seen | ACCESS_SLOT_VOIDED,
                                                memory_order_acq_rel, memory_order_acquire)) {
        *seen |= ACCESS_SLOT_VOIDED;
        for (unsigned i = ACCESS_PIECES; i-- > 0;)
            __atomic_store_n(&slot->remote[i].iov_len, 0, __ATOMIC_RELEASE);
        atomic_thread_fence(memory_order_seq_cst);
    }
    lock_release(&void_lock);
}

/* The requester leaves a slot that was voided to the owner (access_slot_release()). */
static void free_voided(struct access_slot *slot, uint64_t word)
{
    if (access_slot_kind(word) != ACCESS_NONE || !(word & ACCESS_SLOT_VOIDED))
        return;
    lock_acquire(&void_lock);
    atomic_compare_exchange_strong_explicit(&slot->word, &word, word & ~(uint64_t)ACCESS_SLOT_VOIDED,
                                            memory_order_release, memory_order_relaxed);
    lock_release(&void_lock);
}

/* What an access is, without the bits that owners set. */
static uint64_t access_of(uint64_t word)
{
    return word & ~(uint64_t)(ACCESS_SLOT_GIVEN_UP | ACCESS_SLOT_VOIDED);
}

/* Ends the wait for an access that is overdue. False: it has changed meanwhile, or has to be waited for. */
static bool end_wait(struct settling *settling, struct link *link, struct access_slot *slot, uint64_t seen)
{
    if (access_slot_kind(seen) == ACCESS_STORES) {
        if (!(seen & ACCESS_SLOT_GIVEN_UP) && !give_up(slot, seen))
            return false;
        settling->given_up = true;
        if (settling->evict)
            mapping_evict_later(access_slot_key(seen));
        return true;
    }
    if (!link_peer_thread_may_copy(link, atomic_load_explicit(&slot->thread, memory_order_relaxed)))
        return true;
    if (settling->note)
        mapping_wait_later(access_slot_key(seen));
    settling->copying = link_peer_pid(link);
    return true;
}

static void settle_access_slot(struct settling *settling, struct link *link, struct access_slot *slot)
{
    uint64_t seen = atomic_load_explicit(&slot->word, memory_order_acquire), first = access_of(seen);

    free_voided(slot, seen);
    if (!concerns(settling, seen))
        return;
    if (access_slot_kind(seen) == ACCESS_COPIES)
        void_copy(slot, &seen);
    for (unsigned spins = 0; access_of(seen) == first; spins++) {
        if (access_slot_kind(seen) == ACCESS_STORES && (seen & ACCESS_SLOT_GIVEN_UP) &&
            end_wait(settling, link, slot, seen))
            return;
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
    }
    free_voided(slot, seen);
}

/* Peers that cannot access memory of this process are not waited for, whatever they write into their slots. */
static void settle_link(struct link *link, void *argument)
{
    struct settling *settling = argument;
    bool copies = settling->copies;

    if (!link_is_watched(link, true) ||
        atomic_load_explicit(admission_of(link, false), memory_order_relaxed) == ADMISSION_NEW)
        return;
    settling->copies = copies && link_waits_for_copies(link, true);
    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++)
        settle_access_slot(settling, link, access_slot_of(link, false, i));
    settling->copies = copies;
}

/* Between two looks the thread is outside of the rundown section, so that others do not wait for the peer. */
static void wait_for_copies(struct settling *settling)
{
    for (unsigned looks = 1; settling->copying; looks++) {
        if (looks % LOOKS_LONG == 0)
            log_warn(
                "process %d has been copying from or to memory of this process for %u s (process_vm_readv, "
                "process_vm_writev), and ibv_dereg_mr() or the destroy of a QP waits for it: if it is "
                "stopped, let "
                "it go on (kill -CONT) or end it",
                (int)settling->copying, looks / 1000);
        sys_poll(NULL, 0, LOOK_EVERY);
        settling->copying = 0;
        local_for_each_link(settle_link, settling);
    }
}

bool direct_settle(enum object_kind kind, uint32_t slot, enum settle how)
{
    struct settling settling = {.of = kind == OBJECT_MR ? SLOTS_OF_KEY : SLOTS_OF_QP,
                                .slot = slot,
                                .stores = how != SETTLE_COPIES && how != SETTLE_TRY,
                                .copies = how != SETTLE_STORES,
                                .evict = how == SETTLE_BRIEFLY,
                                .note = how == SETTLE_BRIEFLY};

    /* Orders the caller's change of the key or QP before the loads of the access slots. Partner:
     * access_slot_fence(). */
    atomic_thread_fence(memory_order_seq_cst);
    local_for_each_link(settle_link, &settling);
    if (how == SETTLE_TRY)
        return settling.copying != 0;
    if (unlikely(settling.copying != 0) && !settling.note)
        wait_for_copies(&settling);
    return settling.given_up;
}

void direct_owner_after_fork_in_child(void)
{
    lock_init(&void_lock);
}

void direct_link_leaving(struct link *link)
{
    struct settling settling = {.of = SLOTS_ALL, .stores = true, .copies = true, .evict = true};

    if (atomic_exchange(admission_of(link, false), ADMISSION_CLOSED) == ADMISSION_NEW)
        return;
    atomic_thread_fence(memory_order_seq_cst); /* partner: access_slot_fence() */
    settle_link(link, &settling);
    /* The peer has closed its socket: mostly it has ended, or executes another program, and copies nothing more. */
    for (unsigned looks = 0; settling.copying && looks < LOOKS_LEAVING; looks++) {
        sys_poll(NULL, 0, LOOK_EVERY);
        settling.copying = 0;
        settle_link(link, &settling);
    }
    if (settling.copying)
        log_error("process %d has closed its shared-memory link, but still copies from or to registered "
                  "memory of this "
                  "process: what is freed and used again may be overwritten; end that process",
                  (int)settling.copying);
    mapping_move();
}

void direct_wanted(uint32_t slot, uint32_t step)
{
    (void)mapping_want(slot, step); /* direct_run() follows */
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
