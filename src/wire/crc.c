/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/crc.h"

#include <libdeflate.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "base/types.h"
#include "wire/crc_methods.h"

#define SAMPLES 5
#define SAMPLE  4096

static struct lock choosing = LOCK_INIT; /* guards `filled`, `chosen` and the constants of crc_wide.c */
static bool chosen;
static _Atomic bool filled;
static _Atomic enum crc_method method_in_use; /* not CRC_LIBDEFLATE only if the table is filled */

/* Measured time is multiplied by this, so that noise does not select another implementation than libdeflate. */
static const unsigned quarters[CRC_METHODS] = {[CRC_LIBDEFLATE] = 4, [CRC_WIDE] = 5, [CRC_SHIFTS] = 8};
static const char *const names[CRC_METHODS] = {
    [CRC_LIBDEFLATE] = "libdeflate", [CRC_WIDE] = "wide", [CRC_SHIFTS] = "shifts"};

enum crc_method crc_method(void)
{
    return atomic_load_explicit(&method_in_use, memory_order_acquire); /* partner: use() */
}

const char *crc_method_name(enum crc_method method)
{
    return names[method];
}

static uint32_t by(enum crc_method method, uint32_t crc, const void *bytes, size_t length)
{
    if (method == CRC_WIDE && length >= CRC_WIDE_LEAST)
        return ~crc_by_wide(~crc, bytes, length);
    if (unlikely(method == CRC_SHIFTS))
        return ~crc_by_shifts(~crc, bytes, length);
    return libdeflate_crc32(crc, bytes, length);
}

uint32_t crc_of(uint32_t crc, const void *bytes, size_t length)
{
    return by(crc_method(), crc, bytes, length);
}

bool crc_takes_any_alignment(size_t length)
{
    return crc_method() == CRC_WIDE && length >= CRC_WIDE_LEAST;
}

bool crc_has_table(void)
{
    return atomic_load_explicit(&filled, memory_order_acquire); /* partner: prepare() */
}

/* Lock held. Does this processor support the implementation? */
static bool prepare(enum crc_method method)
{
    if (!atomic_load_explicit(&filled, memory_order_relaxed))
        crc_fill_table();
    atomic_store_explicit(&filled, true, memory_order_release);
    return method != CRC_WIDE || crc_wide_works();
}

/* Lock held. */
static void use(enum crc_method method)
{
    atomic_store_explicit(&method_in_use, method, memory_order_release);
    chosen = true;
}

bool crc_use(enum crc_method method)
{
    bool works;

    lock_acquire(&choosing);
    works = prepare(method);
    if (works)
        use(method);
    lock_release(&choosing);
    return works;
}

/* The minimum of several samples: interruptions only add to the time. */
static uint64_t cost(uint64_t (*now)(void), enum crc_method method)
{
    static uint8_t sample[SAMPLE];
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < SAMPLES; i++) {
        uint64_t began = now();
        uint32_t crc = by(method, 0, sample, SAMPLE); /* used, so that the compiler keeps the call */
        uint64_t took = now() - began + (crc == 0);

        least = min_of(least, took);
    }
    return least;
}

void crc_choose(uint64_t (*now)(void))
{
    lock_acquire(&choosing);
    if (!chosen) {
        enum crc_method best = CRC_LIBDEFLATE;
        uint64_t least = UINT64_MAX;

        for (enum crc_method method = 0; method < CRC_METHODS; method++) {
            uint64_t costs = prepare(method) ? quarters[method] * cost(now, method) : UINT64_MAX;

            if (costs < least) {
                least = costs;
                best = method;
            }
        }
        use(best);
    }
    lock_release(&choosing);
}
