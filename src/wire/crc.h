/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CRC-32, by whichever way is the quickest on this processor: libdeflate, which multiplies polynomials 128
 * bits at a time where the processor can; the same with 256 bits, which the libdeflate of Debian 12 does not
 * know; or shifts. An emulated processor (QEMU's TCG) says that it multiplies polynomials, and takes ten
 * times longer for it than for all the shifts. */
#ifndef WIRE_CRC_H
#define WIRE_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum crc_way {
    CRC_LIBDEFLATE,
    CRC_WIDE,
    CRC_SHIFTS,
};
#define CRC_WAYS 3

/* Begin with 0. Any thread. */
uint32_t crc_of(uint32_t crc, const void *bytes, size_t length);

/* Measures the ways, once, in some tens of microseconds (more where it matters); `now` counts nanoseconds.
 * Before that libdeflate does it. Any thread. */
void crc_choose(uint64_t (*now)(void));
enum crc_way crc_way(void);
const char *crc_way_name(enum crc_way way);

/* The quickest for a few dozen bytes, at least eight, where the table is there: after crc_choose(). Bits of
 * the first eight bytes, as a little-endian word, are turned on. */
bool crc_has_table(void);
uint32_t crc_of_few(uint32_t crc, const uint8_t *bytes, size_t length, uint64_t turned_on);

/* For tests: from now on that way, whatever is quicker. False, and nothing has changed, if this processor
 * does not know it. */
bool crc_use(enum crc_way way);

#endif
