/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A process-private lock of one word: inline while free, then a short spin, then a futex. Never in memory that
 * another process writes, because a peer may die at any instruction. */
#ifndef BASE_LOCK_H
#define BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and a thread may sleep */
};

#define LOCK_INIT                                                                                            \
    {                                                                                                        \
        0                                                                                                    \
    }

void lock_acquire_slow(struct lock *lock);
void lock_wake_one(struct lock *lock);

static inline void lock_init(struct lock *lock)
{
    atomic_store_explicit(&lock->word, 0, memory_order_relaxed);
}

/* Acquire; partner: the release in lock_release(). */
static inline bool lock_try(struct lock *lock)
{
    uint32_t expected = 0;

    return atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 &&
           atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void lock_acquire(struct lock *lock)
{
    uint32_t expected = 0;

    if (unlikely(!atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                          memory_order_relaxed)))
        lock_acquire_slow(lock);
}

static inline void lock_release(struct lock *lock)
{
    if (unlikely(atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2))
        lock_wake_one(lock);
}

/* As lock_release(), and a full fence behind it, which on x86 the exchange is already. */
static inline void lock_release_and_fence(struct lock *lock)
{
    lock_release(lock);
#if defined(__x86_64__)
    atomic_signal_fence(memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static inline bool lock_held(const struct lock *lock)
{
    return atomic_load_explicit(&lock->word, memory_order_relaxed) != 0;
}

#endif
