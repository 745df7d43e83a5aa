/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/crc.h"
#include "wire/crc_methods.h"

/* [n][byte]: the byte's contribution to the register n bytes later. */
static uint32_t table[8][256];

void crc_fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC_GENERATOR : 0);
        table[0][i] = crc;
    }
    for (unsigned n = 1; n < 8; n++)
        for (unsigned i = 0; i < 256; i++)
            table[n][i] = table[n - 1][i] >> 8 ^ table[0][table[n - 1][i] & 0xff];
}

/* The register after eight bytes. The caller has XORed the register before into the first four. */
static uint32_t of_word(uint64_t word)
{
    return table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
           table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^ table[2][word >> 40 & 0xff] ^
           table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
}

static uint32_t half_word_at(const uint8_t *bytes)
{
    uint32_t word;

    memcpy(&word, bytes, sizeof(word));
    return le32toh(word);
}

uint32_t crc_by_table(uint32_t crc, const uint8_t *bytes, size_t length)
{
    for (; length >= 8; bytes += 8, length -= 8)
        crc = of_word(crc_word_at(bytes) ^ crc);
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

uint32_t crc_of_word(uint32_t crc, uint64_t word)
{
    return ~of_word(word ^ ~crc);
}

uint32_t crc_of_few(uint32_t crc, const uint8_t *bytes, size_t length)
{
    return ~crc_by_table(~crc, bytes, length);
}
