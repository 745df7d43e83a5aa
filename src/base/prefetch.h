/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Lines of memory that another processor has in its cache are fetched for writing before they are written: it
 * takes as long as the way of a message, and is done beside other work. A hint: no address is a wrong one. */
#ifndef BASE_PREFETCH_H
#define BASE_PREFETCH_H

static inline void prefetch_for_write(const void *to)
{
#if defined(__x86_64__)
    /* Without -mprfchw the builtin fetches for reading. Processors that do not know it take it for a nop. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)to));
#else
    __builtin_prefetch(to, 1, 3);
#endif
}

#endif
