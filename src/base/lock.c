/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/lock.h"

#include <errno.h>
#include <linux/futex.h>

#include "base/sys.h"

#define SPINS_BEFORE_SLEEP 200
/* How often a thread looks whose fence_heavy() may not have reached all others. */
#define UNSURE (10 * NS_PER_MS)

/* On the stack of the thread that sleeps. */
struct lock_sleeper {
    struct lock_sleeper *next;
    const struct lock *lock;
    _Atomic uint32_t
        woken; /* who sets it has taken this out of the list, and does not access it afterwards */
};

struct lock_sleepers lock_sleepers[LOCK_SLEEPERS];

/* --- lists ------------------------------------------------------------------------------------------- */

/* A lock in memory that nobody frees: its word says who sleeps on it. 0: free, 1: held, 2: held, and a thread may
 * sleep. */
static void list_lock(struct lock_sleepers *list)
{
    uint32_t before = 0;

    if (atomic_compare_exchange_strong_explicit(&list->busy, &before, 1, memory_order_acquire,
                                                memory_order_relaxed))
        return;
    while (atomic_exchange_explicit(&list->busy, 2, memory_order_acquire) != 0)
        sys_futex((uint32_t *)&list->busy, FUTEX_WAIT_PRIVATE, 2, NS_NEVER);
}

static void list_unlock(struct lock_sleepers *list)
{
    if (atomic_exchange_explicit(&list->busy, 0, memory_order_release) == 2)
        sys_futex((uint32_t *)&list->busy, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
}

/* Has everybody who asks whether the list is empty seen that it is not? */
static bool add(struct lock_sleepers *list, struct lock_sleeper *self)
{
    struct lock_sleeper **at;
    bool seen;

    self->next = NULL;
    atomic_store_explicit(&self->woken, 0, memory_order_relaxed);
    list_lock(list);
    at = &list->first;
    while (*at)
        at = &(*at)->next;
    __atomic_store_n(at, self, __ATOMIC_RELAXED);
    seen = list->is_seen;
    list_unlock(list);
    return seen;
}

/* The first one for that lock, or, if `self` is not NULL, that one. NULL: it is not there. */
static struct lock_sleeper *take(struct lock_sleepers *list, const struct lock *lock,
                                 const struct lock_sleeper *self)
{
    struct lock_sleeper *found, **at;

    list_lock(list);
    at = &list->first;
    while ((found = *at) && (self ? found != self : found->lock != lock))
        at = &found->next;
    if (found)
        __atomic_store_n(at, found->next, __ATOMIC_RELAXED);
    if (!list->first)
        list->is_seen = false;
    list_unlock(list);
    return found;
}

/* Behind a fence_heavy() that came behind add(). */
static void note_seen(struct lock_sleepers *list, const struct lock_sleeper *self)
{
    const struct lock_sleeper *at;

    list_lock(list);
    for (at = list->first; at && at != self; at = at->next) {
    }
    if (at)
        list->is_seen = true;
    list_unlock(list);
}

/* --- the lock ---------------------------------------------------------------------------------------- */

/* Who has taken it out of the list is about to access this thread's stack. */
static void leave(struct lock_sleepers *list, struct lock_sleeper *self)
{
    if (atomic_load_explicit(&self->woken, memory_order_acquire) || take(list, self->lock, self))
        return;
    while (!atomic_load_explicit(&self->woken, memory_order_acquire))
        sys_futex((uint32_t *)&self->woken, FUTEX_WAIT_PRIVATE, 0, NS_NEVER);
}

void cold_path lock_acquire_slow(struct lock *lock)
{
    int saved = errno;
    struct lock_sleepers *list = lock_sleepers_of(lock);
    struct lock_sleeper self = {.lock = lock};
    bool taken;

    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (lock_try(lock)) {
            return;
        }
        cpu_relax();
    }
    do {
        ns_t at_most = NS_NEVER;

        /* Who releases the lock finds this thread in the list, or this thread finds the lock free. A fence is for
         * the first thread in the list. */
        if (!add(list, &self)) {
            if (fence_heavy())
                note_seen(list, &self);
            else
                at_most = UNSURE;
        }
        taken = lock_try(lock);
        if (!taken) {
            sys_futex((uint32_t *)&self.woken, FUTEX_WAIT_PRIVATE, 0, at_most);
            taken = lock_try(lock);
        }
        leave(list, &self);
    } while (!taken);
    errno = saved;
}

void cold_path lock_wake_one(struct lock *lock)
{
    int saved = errno;
    struct lock_sleeper *sleeper = take(lock_sleepers_of(lock), lock, NULL);

    if (sleeper) {
        atomic_store_explicit(&sleeper->woken, 1, memory_order_release);
        sys_futex((uint32_t *)&sleeper->woken, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
    }
    errno = saved;
}

void lock_after_fork_in_child(void)
{
    for (unsigned i = 0; i < LOCK_SLEEPERS; i++) {
        lock_sleepers[i].first = NULL;
        lock_sleepers[i].is_seen = false;
        atomic_store_explicit(&lock_sleepers[i].busy, 0, memory_order_relaxed);
    }
}
