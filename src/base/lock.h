/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A process-private lock of one word: inline while free, then a short spin, then a futex. Never in memory that
 * another process writes, because a peer may die at any instruction.
 *
 * Releasing is a plain store, as of a spin lock. A thread that goes to sleep enters a list, and pays for the fence
 * that the release saves (docs/design/fences.md). The list is not in the lock's memory: the next holder may free that
 * as soon as the lock is released. */
#ifndef BASE_LOCK_H
#define BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fence.h"
#include "base/types.h"

struct lock {
    _Atomic uint32_t held; /* 1: held */
};

/* Threads that sleep on locks, or are about to, the longest first. A list is for all locks whose address leads to
 * it. */
struct lock_sleepers {
    struct lock_sleeper *first;
    _Atomic uint32_t busy; /* the list's own lock */
    bool is_seen;          /* a fence_heavy() was completed since the list was empty */
};
#define LOCK_SLEEPERS 256u
extern struct lock_sleepers lock_sleepers[LOCK_SLEEPERS];

#define LOCK_INIT                                                                                            \
    {                                                                                                        \
        0                                                                                                    \
    }

void lock_acquire_slow(struct lock *lock);
void lock_wake_one(struct lock *lock);
void lock_after_fork_in_child(void);

static inline struct lock_sleepers *lock_sleepers_of(const struct lock *lock)
{
    /* Locks of one kind lie a multiple of a cache line apart: the product spreads them. */
    return &lock_sleepers[(uint32_t)((uintptr_t)lock >> 2) * 0x9E3779B1u >> 24];
}

/* Asked behind the release. */
static inline bool lock_is_awaited(const struct lock_sleepers *sleepers)
{
    return __atomic_load_n(&sleepers->first, __ATOMIC_RELAXED) != NULL;
}

static inline void lock_init(struct lock *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_relaxed);
}

/* Acquire; partner: the release in lock_release(). */
static inline bool lock_try(struct lock *lock)
{
    uint32_t expected = 0;

    return atomic_load_explicit(&lock->held, memory_order_relaxed) == 0 &&
           atomic_compare_exchange_strong_explicit(&lock->held, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void lock_acquire(struct lock *lock)
{
    uint32_t expected = 0;

    if (unlikely(!atomic_compare_exchange_strong_explicit(&lock->held, &expected, 1, memory_order_acquire,
                                                          memory_order_relaxed)))
        lock_acquire_slow(lock);
}

static inline void lock_release(struct lock *lock)
{
    const struct lock_sleepers *sleepers = lock_sleepers_of(lock);

    atomic_store_explicit(&lock->held, 0, memory_order_release);
    fence_light(); /* partner: fence_heavy() in lock_acquire_slow() */
    if (unlikely(lock_is_awaited(sleepers)))
        lock_wake_one(lock);
}

static inline bool lock_held(const struct lock *lock)
{
    return atomic_load_explicit(&lock->held, memory_order_relaxed) != 0;
}

#endif
