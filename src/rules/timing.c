/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rules/timing.h"

#define TIME_CODE_MASK 31u
/* IBA 9.7.6.1.3: the unit of the Local ACK Timeout. */
#define ACK_TIMEOUT_UNIT 4096ull

/* In units of 10 us, as the table of IBA 9.7.5.2.8 counts. */
static const uint32_t rnr_table[TIME_CODE_MASK + 1] = {
    65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

ns_t timing_ack_timeout(uint8_t code)
{
    code &= TIME_CODE_MASK;
    return code ? ACK_TIMEOUT_UNIT << code : NS_NEVER;
}

ns_t timing_rnr(uint8_t code)
{
    return rnr_table[code & TIME_CODE_MASK] * 10 * NS_PER_US;
}
