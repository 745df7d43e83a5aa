/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A lock that costs its owner no atomic instruction: a thread that takes it often, and alone, owns it until another one
 * wants it. Most queues are used by one thread. The other thread takes it away by a barrier in all threads
 * (membarrier(2)), for good: from then on, or where the kernel has no membarrier, it is a plain lock. */
#ifndef WATCH_BIAS_H
#define WATCH_BIAS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "watch/thread.h"

#define BIAS_SHARED ((uintptr_t)1)

struct bias {
    /* A thread by the address of a variable of its own; 0: none yet; BIAS_SHARED: for good. Not of an atomic type,
     * which compilers do not compare in place: a word is read at once. */
    uintptr_t owner;
    _Atomic uint32_t busy; /* the owner is inside; only it writes this */
    uintptr_t latest;      /* who took the lock last, and how often since another did; lock held */
    uint32_t times;
    struct lock lock;
};

/* False: as the owner, true: with the lock. */
bool bias_acquire_slow(struct bias *bias, uintptr_t thread);

/* Only as the owner. */
static inline bool bias_enter(struct bias *bias)
{
    uintptr_t thread = (uintptr_t)&watch_thread;

    if (unlikely(bias->owner != thread))
        return false;
    atomic_store_explicit(&bias->busy, 1, memory_order_relaxed);
    /* The store comes before the load: here only for the compiler, for the processor by fence_heavy() of who takes the
     * lock away (bias_acquire_slow()). Acquire: what its last holder wrote. */
    atomic_signal_fence(memory_order_seq_cst);
    if (likely(bias->owner == thread)) {
        atomic_thread_fence(memory_order_acquire);
        return true;
    }
    atomic_store_explicit(&bias->busy, 0, memory_order_release);
    return false;
}

static inline void bias_leave(struct bias *bias)
{
    atomic_store_explicit(&bias->busy, 0, memory_order_release);
}

/* The result goes to bias_release(). */
static inline bool bias_acquire(struct bias *bias)
{
    return unlikely(!bias_enter(bias)) && bias_acquire_slow(bias, (uintptr_t)&watch_thread);
}

static inline void bias_release(struct bias *bias, bool locked)
{
    if (unlikely(locked))
        lock_release(&bias->lock);
    else
        bias_leave(bias);
}

#endif
