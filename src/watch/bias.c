/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "watch/bias.h"

#include <sched.h>

#include "base/sys.h"

/* Who sets up a queue often leaves it to another thread. */
#define TIMES_ALONE 64u

/* The lock is held. Behind this the owner is not inside, and will not be without the lock. */
static void take_away(struct bias *bias)
{
    __atomic_store_n(&bias->owner, BIAS_SHARED, __ATOMIC_RELAXED);
    /* Either the owner sees the store above before it goes inside, or it is seen inside below. */
    (void)fence_heavy();
    while (atomic_load_explicit(&bias->busy, memory_order_acquire))
        sched_yield();
}

cold_path bool bias_acquire_slow(struct bias *bias, uintptr_t thread)
{
    uintptr_t owner;

    lock_acquire(&bias->lock);
    owner = __atomic_load_n(&bias->owner, __ATOMIC_RELAXED);
    if (owner == BIAS_SHARED)
        return true;
    if (owner != 0) {
        take_away(bias);
        return true;
    }
    if (atomic_load_explicit(&fence_is_full, memory_order_relaxed))
        return true;
    bias->times = bias->latest == thread ? bias->times + 1 : 0;
    bias->latest = thread;
    if (bias->times < TIMES_ALONE)
        return true;
    /* The first owner: nobody else writes `busy`. */
    atomic_store_explicit(&bias->busy, 1, memory_order_relaxed);
    __atomic_store_n(&bias->owner, thread, __ATOMIC_RELEASE);
    lock_release(&bias->lock);
    return false;
}
