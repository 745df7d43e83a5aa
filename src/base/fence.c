/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/fence.h"

#include <linux/membarrier.h>

#include "base/sys.h"

_Atomic uint32_t fence_is_full = 1;

void fence_ask(void)
{
    if (sys_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
        atomic_store_explicit(&fence_is_full, 0, memory_order_seq_cst);
}

bool fence_heavy(void)
{
    /* Before the mode is read: a thread that finds light fences allowed later sees what the caller has written. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&fence_is_full, memory_order_relaxed) ||
        sys_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
        return true;
    atomic_store_explicit(&fence_is_full, 1, memory_order_seq_cst);
    return false;
}

void fence_after_fork_in_child(void)
{
    if (atomic_exchange_explicit(&fence_is_full, 1, memory_order_relaxed) == 0)
        fence_ask();
}
