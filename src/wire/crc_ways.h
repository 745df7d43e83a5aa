/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The ways to compute CRC-32 that libdeflate does not have. All of them take the register, and return it,
 * as it is: neither turned over before nor after. They need the table. */
#ifndef WIRE_CRC_WAYS_H
#define WIRE_CRC_WAYS_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC_GENERATOR 0xedb88320u /* IEEE 802.3, bit 31 its constant term */

/* --- crc_table.c: a table for each of eight bytes ---------------------------------------------------- */

/* Not by two threads at once. */
void crc_fill_table(void);
uint32_t crc_by_table(uint32_t crc, const uint8_t *bytes, size_t length);

static inline uint64_t crc_word_at(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return le64toh(word);
}

/* --- crc_shifts.c: for processors that multiply polynomials slowly ----------------------------------- */

/* Any length. */
uint32_t crc_by_shifts(uint32_t crc, const uint8_t *bytes, size_t length);

/* --- crc_wide.c: for processors that multiply 256 bits of them at once ------------------------------- */

/* Less is not worth it, and must not be given to it. */
#define CRC_WIDE_LEAST 256u

/* Whether this processor is one; to be asked before the first use, not by two threads at once. */
bool crc_wide_works(void);
uint32_t crc_by_wide(uint32_t crc, const uint8_t *bytes, size_t length);

#endif
