/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/lock.h"

#include <errno.h>
#include <linux/futex.h>

#include "base/sys.h"

#define SPINS_BEFORE_SLEEP 200
#define UNSURE             (10 * NS_PER_MS)

_Atomic uint32_t lock_sleepers[LOCK_SLEEPERS];

void cold_path lock_acquire_slow(struct lock *lock)
{
    int saved = errno;
    _Atomic uint32_t *sleepers;
    ns_t at_most;

    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (lock_try(lock)) {
            return;
        }
        cpu_relax();
    }
    /* A thread that releases the lock sees this one among the sleepers, or this one sees the lock free. One fence does
     * for all turns: the counter stays as it is until this thread has the lock. */
    sleepers = lock_sleepers_of(lock);
    atomic_fetch_add_explicit(sleepers, 1, memory_order_relaxed);
    at_most = fence_heavy() ? NS_NEVER : UNSURE;
    while (!lock_try(lock))
        sys_futex((uint32_t *)&lock->held, FUTEX_WAIT_PRIVATE, 1, at_most);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
    errno = saved;
}

void cold_path lock_wake_one(struct lock *lock)
{
    int saved = errno;

    sys_futex((uint32_t *)&lock->held, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
    errno = saved;
}

void lock_after_fork_in_child(void)
{
    for (unsigned i = 0; i < LOCK_SLEEPERS; i++)
        atomic_store_explicit(&lock_sleepers[i], 0, memory_order_relaxed);
}
