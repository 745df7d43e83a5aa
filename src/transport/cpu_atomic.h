/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* RDMA atomics are the processor's, so that they are atomic with the program's own (IBV_ATOMIC_GLOB). */
#ifndef TRANSPORT_CPU_ATOMIC_H
#define TRANSPORT_CPU_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>

/* Both return what was there. */
static inline uint64_t cpu_fetch_add(uint64_t *target, uint64_t add)
{
    return __atomic_fetch_add(target, add, __ATOMIC_SEQ_CST);
}

static inline uint64_t cpu_compare_swap(uint64_t *target, uint64_t compare, uint64_t swap)
{
    __atomic_compare_exchange_n(target, &compare, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return compare;
}

#endif
