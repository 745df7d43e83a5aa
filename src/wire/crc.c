/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/crc.h"

#include <endian.h>
#include <libdeflate.h>
#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/types.h"

#define GENERATOR 0xedb88320u
/* Libdeflate is to be the slower one by so much: what is measured is never quite the same. */
#define FACTOR  2
#define SAMPLES 5
#define SAMPLE  4096

static struct lock choosing = LOCK_INIT; /* guards filled, chosen, and the filling of the table */
static bool chosen;
static _Atomic bool use_shifts, filled; /* the former only set where the table is filled */
/* [n][byte]: what the byte has made of the register n bytes later. */
static uint32_t table[8][256];

/* --- shifts --------------------------------------------------------------------------------------- */

static void fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? GENERATOR : 0);
        table[0][i] = crc;
    }
    for (unsigned n = 1; n < 8; n++)
        for (unsigned i = 0; i < 256; i++)
            table[n][i] = table[n - 1][i] >> 8 ^ table[0][table[n - 1][i] & 0xff];
}

static uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
    return le64toh(word);
}

static uint32_t half_word_at(const uint8_t *bytes)
{
    uint32_t word;

    memcpy(&word, bytes, sizeof(word));
    return le32toh(word);
}

/* The register behind eight bytes, from what they are with the register before added to the first four. */
static uint32_t of_word(uint64_t word)
{
    return table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
           table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^ table[2][word >> 40 & 0xff] ^
           table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
}

static uint32_t by_table(uint32_t crc, const uint8_t *bytes, size_t length)
{
    for (; length >= 8; bytes += 8, length -= 8)
        crc = of_word(word_at(bytes) ^ crc);
    if (length >= 4) {
        uint32_t word = half_word_at(bytes) ^ crc;

        crc = table[3][word & 0xff] ^ table[2][word >> 8 & 0xff] ^ table[1][word >> 16 & 0xff] ^
              table[0][word >> 24];
        bytes += 4;
        length -= 4;
    }
    for (; length; bytes++, length--)
        crc = crc >> 8 ^ table[0][(crc ^ *bytes) & 0xff];
    return crc;
}

/* The generator divides x^300 + x^155 + x^117 + x^89 + 1. So a bit of the message may be taken away if those
 * 145, 183, 211 and 300 bits behind it are turned over: the CRC stays the same. Done with 64 bits at once,
 * these reach into the second to fifth word behind, of which five registers keep what is to be turned over in
 * them. When few words are left, a table ends it. */
#define WORDS 5u
#define BLOCK (8 * WORDS)
/* Less than this is left to the table. */
#define SHIFTED_LEAST (4 * BLOCK)

#define TAKE_AWAY(bytes, first, third, fourth, fifth)                                                        \
    do {                                                                                                     \
        uint64_t word = word_at(bytes) ^ (first);                                                            \
        (third) ^= word << 17 ^ word << 55;                                                                  \
        (fourth) ^= word >> 47 ^ word >> 9 ^ word << 19;                                                     \
        (fifth) ^= word >> 45 ^ word << 44;                                                                  \
        (first) = word >> 20; /* by now it stands for the word behind the fifth */                           \
    } while (0)

static uint32_t by_shifts(uint32_t crc, const uint8_t *bytes, size_t length)
{
    uint64_t a = crc, b = 0, c = 0, d = 0, e = 0;
    uint8_t rest[2 * BLOCK];

    for (; length >= 2 * BLOCK; bytes += BLOCK, length -= BLOCK) {
        TAKE_AWAY(bytes, a, c, d, e);
        TAKE_AWAY(bytes + 8, b, d, e, a);
        TAKE_AWAY(bytes + 16, c, e, a, b);
        TAKE_AWAY(bytes + 24, d, a, b, c);
        TAKE_AWAY(bytes + 32, e, b, c, d);
    }
    const uint64_t turned[WORDS] = {a, b, c, d, e};

    memcpy(rest, bytes, length);
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t word = htole64(word_at(bytes + 8 * i) ^ turned[i]);

        memcpy(rest + 8 * i, &word, sizeof(word));
    }
    return by_table(0, rest, length);
}

static uint32_t with_shifts(uint32_t crc, const uint8_t *bytes, size_t length)
{
    return ~(length < SHIFTED_LEAST ? by_table(~crc, bytes, length) : by_shifts(~crc, bytes, length));
}

/* --- which ----------------------------------------------------------------------------------------- */

bool crc_shifts(void)
{
    return atomic_load_explicit(&use_shifts, memory_order_acquire); /* partner: use() */
}

uint32_t crc_of(uint32_t crc, const void *bytes, size_t length)
{
    return unlikely(crc_shifts()) ? with_shifts(crc, bytes, length) : libdeflate_crc32(crc, bytes, length);
}

bool crc_has_table(void)
{
    return atomic_load_explicit(&filled, memory_order_acquire); /* partner: use() */
}

uint32_t crc_of_few(uint32_t crc, const uint8_t *bytes, size_t length, uint64_t turned_on)
{
    return ~by_table(of_word((word_at(bytes) | turned_on) ^ ~crc), bytes + 8, length - 8);
}

/* Lock held. */
static void use(bool shifts)
{
    if (!atomic_load_explicit(&filled, memory_order_relaxed))
        fill_table();
    atomic_store_explicit(&filled, true, memory_order_release);
    atomic_store_explicit(&use_shifts, shifts, memory_order_release);
}

void crc_use_shifts(bool shifts)
{
    lock_acquire(&choosing);
    use(shifts);
    chosen = true;
    lock_release(&choosing);
}

/* The least of several: what else happens on the machine only adds to it. */
static uint64_t cost(uint64_t (*now)(void), bool shifts)
{
    static uint8_t sample[SAMPLE];
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < SAMPLES; i++) {
        uint64_t began = now();
        /* The result is used, so that it is computed. */
        uint32_t crc = shifts ? with_shifts(0, sample, SAMPLE) : libdeflate_crc32(0, sample, SAMPLE);
        uint64_t took = now() - began + (crc == 0);

        least = min_of(least, took);
    }
    return least;
}

void crc_choose(uint64_t (*now)(void))
{
    lock_acquire(&choosing);
    if (!chosen) {
        use(false);
        use(cost(now, false) > FACTOR * cost(now, true));
        chosen = true;
    }
    lock_release(&choosing);
}
