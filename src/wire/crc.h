/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CRC-32 with the implementation that is fastest on this processor: libdeflate (PCLMULQDQ on 128 bits), the same
 * algorithm on 256 bits (VPCLMULQDQ, which libdeflate of Debian 12 lacks), or shifts. Shifts are for emulated
 * processors (QEMU TCG), which offer PCLMULQDQ but take ten times longer for it. */
#ifndef WIRE_CRC_H
#define WIRE_CRC_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum crc_method {
    CRC_LIBDEFLATE,
    CRC_WIDE,
    CRC_SHIFTS,
};
#define CRC_METHODS 3

/* Start with crc 0. Any thread. */
uint32_t crc_of(uint32_t crc, const void *bytes, size_t length);

/* Measures the implementations once and chooses the fastest; takes tens of microseconds, more on slow processors.
 * `now` returns nanoseconds. Before the first call libdeflate is used. Any thread. */
void crc_choose(uint64_t (*now)(void));
enum crc_method crc_method(void);
/* Is crc_of() of so many bytes as fast wherever they begin? */
bool crc_takes_any_alignment(size_t length);
const char *crc_method_name(enum crc_method method);

/* Table-driven CRC, the fastest for a few dozen bytes, usable when crc_has_table(), that is after crc_choose().
 * crc_of_word(): of eight bytes in the form of crc_word_at(); crc_of_few(): of any number. */
bool crc_has_table(void);
uint32_t crc_of_word(uint32_t crc, uint64_t word);
uint32_t crc_of_few(uint32_t crc, const uint8_t *bytes, size_t length);

static inline uint64_t crc_word_at(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return le64toh(word);
}

/* For tests: selects an implementation. false without effect if this processor does not support it. */
bool crc_use(enum crc_method method);

#endif
