/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CRC-32, by whichever way is the quicker one on this processor: libdeflate, which multiplies polynomials
 * where the processor can, or shifts. An emulated processor (QEMU's TCG) says that it can, and takes ten
 * times longer for it than for all the shifts. */
#ifndef WIRE_CRC_H
#define WIRE_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Begin with 0. Any thread. */
uint32_t crc_of(uint32_t crc, const void *bytes, size_t length);

/* Measures both, once, in some tens of microseconds (more where it matters); `now` counts nanoseconds. Before
 * that libdeflate does it. Any thread. */
void crc_choose(uint64_t (*now)(void));
bool crc_shifts(void);

/* The quickest for a few dozen bytes, at least eight, where the table is there: after crc_choose(). Bits of
 * the first eight bytes, as a little-endian word, are turned on. */
bool crc_has_table(void);
uint32_t crc_of_few(uint32_t crc, const uint8_t *bytes, size_t length, uint64_t turned_on);

/* For tests: from now on so, whatever is quicker. */
void crc_use_shifts(bool shifts);

#endif
