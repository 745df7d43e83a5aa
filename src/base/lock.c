/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/lock.h"

#include <errno.h>
#include <linux/futex.h>

#include "base/sys.h"

#define SPINS_BEFORE_SLEEP 200

void cold_path lock_acquire_slow(struct lock *lock)
{
    int saved = errno;

    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (lock_try(lock)) {
            return;
        }
        cpu_relax();
    }
    /* From here on the word is 2, so that the holder wakes us. We keep 2 when we hold the lock, because other threads
     * may sleep, too. */
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
        sys_futex((uint32_t *)&lock->word, FUTEX_WAIT_PRIVATE, 2, NS_NEVER);
    errno = saved;
}

void cold_path lock_wake_one(struct lock *lock)
{
    int saved = errno;

    sys_futex((uint32_t *)&lock->word, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
    errno = saved;
}
