/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* There is one partition, the default one, with full and limited members (IBA 10.9, verbs.md §8.6). */
#ifndef BASE_PKEY_H
#define BASE_PKEY_H

#include <stdbool.h>
#include <stdint.h>

#define DEFAULT_PKEY 0xffffu

/* Is it the partition of this port? The top bit says full member. */
static inline bool pkey_is_ours(uint16_t pkey)
{
    return (pkey & 0x7fff) == (DEFAULT_PKEY & 0x7fff);
}

#endif
