/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packet sequence numbers: 24 bits, compared by distance only (IBA 9.7.2). A struct type, so that the
 * compiler rejects a < b. */
#ifndef BASE_PSN_H
#define BASE_PSN_H

#include <stdbool.h>
#include <stdint.h>

#define PSN_MASK 0xffffffu

typedef struct {
    uint32_t value;
} psn_t;

static inline psn_t psn_make(uint32_t value)
{
    return (psn_t){value & PSN_MASK};
}

static inline psn_t psn_add(psn_t psn, uint32_t count)
{
    return psn_make(psn.value + count);
}

static inline uint32_t psn_distance(psn_t from, psn_t to)
{
    return (to.value - from.value) & PSN_MASK;
}

/* Signed distance a - b, in [-2^23, 2^23). */
static inline int32_t psn_diff(psn_t a, psn_t b)
{
    return (int32_t)((a.value - b.value) << 8) >> 8;
}

static inline bool psn_equal(psn_t a, psn_t b)
{
    return a.value == b.value;
}

#endif
