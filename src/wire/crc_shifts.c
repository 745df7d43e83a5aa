/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/crc.h"

#include <string.h>

#include "wire/crc_methods.h"

/* The generator divides x^300 + x^155 + x^117 + x^89 + 1. A bit of the message can therefore be cleared without a
 * change of the CRC if the bits 145, 183, 211 and 300 positions after it are inverted. The loop does so for 64 bits
 * at once. The inversions reach into the second to fifth following words; five variables accumulate them. The last
 * words go through the table. */
#define WORDS 5u
#define BLOCK (8 * WORDS)
/* Shorter messages go through the table alone. */
#define LEAST (4 * BLOCK)

#define FOLD_WORD(bytes, first, third, fourth, fifth)                                                        \
    do {                                                                                                     \
        uint64_t word = crc_word_at(bytes) ^ (first);                                                        \
        (third) ^= word << 17 ^ word << 55;                                                                  \
        (fourth) ^= word >> 47 ^ word >> 9 ^ word << 19;                                                     \
        (fifth) ^= word >> 45 ^ word << 44;                                                                  \
        (first) = word >> 20; /* from here on for the word after the fifth */                                \
    } while (0)

static uint32_t by_shifts(uint32_t crc, const uint8_t *bytes, size_t length)
{
    uint64_t a = crc, b = 0, c = 0, d = 0, e = 0;
    uint8_t rest[2 * BLOCK];

    for (; length >= 2 * BLOCK; bytes += BLOCK, length -= BLOCK) {
        FOLD_WORD(bytes, a, c, d, e);
        FOLD_WORD(bytes + 8, b, d, e, a);
        FOLD_WORD(bytes + 16, c, e, a, b);
        FOLD_WORD(bytes + 24, d, a, b, c);
        FOLD_WORD(bytes + 32, e, b, c, d);
    }
    const uint64_t inverted[WORDS] = {a, b, c, d, e};

    memcpy(rest, bytes, length);
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t word = htole64(crc_word_at(bytes + 8 * i) ^ inverted[i]);

        memcpy(rest + 8 * i, &word, sizeof(word));
    }
    return crc_by_table(0, rest, length);
}

uint32_t crc_by_shifts(uint32_t crc, const uint8_t *bytes, size_t length)
{
    return length < LEAST ? crc_by_table(crc, bytes, length) : by_shifts(crc, bytes, length);
}
