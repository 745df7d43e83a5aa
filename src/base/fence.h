/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* An asymmetric fence: of two threads that each write a word and then read the other's, at least one sees what the
 * other has written. fence_light() is for the thread that does so often: it binds the compiler only. fence_heavy() is
 * for the other one: membarrier(2) makes each running thread of the process execute a full fence. Both are full
 * fences before the kernel was asked for membarrier(2), and where it refuses (docs/design/fences.md). */
#ifndef BASE_FENCE_H
#define BASE_FENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

extern _Atomic uint32_t fence_is_full; /* 1: both are full fences */

static inline void fence_light(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    /* Acquire: what is read behind it is not older than the mode. Partner: the fence in fence_heavy(). */
    if (unlikely(atomic_load_explicit(&fence_is_full, memory_order_acquire)))
        atomic_thread_fence(memory_order_seq_cst);
}

/* False: the kernel allowed membarrier(2) before and refuses it now (a seccomp filter that the program has installed
 * since). Threads that are in between their two accesses may see neither this fence nor that later ones are full. */
bool fence_heavy(void);

/* Registers the process for membarrier(2). Free of cost until the first fence_heavy(). */
void fence_ask(void);
/* Linux copies the registration with the address space, but does not document that. */
void fence_after_fork_in_child(void);

#endif
