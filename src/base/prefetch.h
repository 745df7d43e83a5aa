/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Prefetch of cache lines that are going to be written. Moving a line from another core's cache takes as long as a
 * message; a prefetch does that beside other work. A hint: every address is allowed. */
#ifndef BASE_PREFETCH_H
#define BASE_PREFETCH_H

static inline void prefetch_for_write(const void *to)
{
#if defined(__x86_64__)
    /* Without -mprfchw the builtin prefetches for reading. Processors without prefetchw execute it as a nop. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)to));
#else
    __builtin_prefetch(to, 1, 3);
#endif
}

#endif
