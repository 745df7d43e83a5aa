/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Implementations of CRC-32 besides libdeflate's. All take and return the raw CRC register, without the inversion
 * before and after. They need the table. */
#ifndef WIRE_CRC_METHODS_H
#define WIRE_CRC_METHODS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CRC_GENERATOR 0xedb88320u /* IEEE 802.3, reflected: bit 31 is the constant term */

/* --- crc_table.c: slicing by eight ------------------------------------------------------------------- */

/* One thread at a time. */
void crc_fill_table(void);
uint32_t crc_by_table(uint32_t crc, const uint8_t *bytes, size_t length);

/* --- crc_shifts.c: for processors with slow carry-less multiplication -------------------------------- */

uint32_t crc_by_shifts(uint32_t crc, const uint8_t *bytes, size_t length);

/* --- crc_wide.c: for processors with AVX2 and VPCLMULQDQ --------------------------------------------- */

/* Minimum length that crc_by_wide() accepts. */
#define CRC_WIDE_LEAST 256u

/* Computes constants and returns whether this processor supports it. Before the first use; one thread at a time. */
bool crc_wide_works(void);
uint32_t crc_by_wide(uint32_t crc, const uint8_t *bytes, size_t length);

#endif
