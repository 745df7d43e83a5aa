/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_TYPES_H
#define BASE_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC. transport reads no clock: its callers pass the time. */
typedef uint64_t ns_t;
#define NS_NEVER  UINT64_MAX
#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S  1000000000ull

#define CACHE_LINE    64
#define cache_aligned __attribute__((aligned(CACHE_LINE)))
#define cold_path     __attribute__((cold, noinline))
#define always_inline inline __attribute__((always_inline))
#define likely(x)     __builtin_expect(!!(x), 1)
#define unlikely(x)   __builtin_expect(!!(x), 0)

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define array_size(a)                   (sizeof(a) / sizeof((a)[0]))

#define min_of(a, b)                                                                                         \
    ({                                                                                                       \
        __typeof__(a) min_a_ = (a);                                                                          \
        __typeof__(a) min_b_ = (b);                                                                          \
        min_a_ < min_b_ ? min_a_ : min_b_;                                                                   \
    })
#define max_of(a, b)                                                                                         \
    ({                                                                                                       \
        __typeof__(a) max_a_ = (a);                                                                          \
        __typeof__(a) max_b_ = (b);                                                                          \
        max_a_ > max_b_ ? max_a_ : max_b_;                                                                   \
    })

#endif
