/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/crc_ways.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

/* A message is a polynomial, and its CRC what is left of it divided by the generator: 16 bytes may be taken
 * away if what is left of their product with x^distance is added to those that lie `distance` bits behind.
 * The product is of 64 bits with 32, of each half: by x^(distance + 64) and x^distance, modulo the generator.
 * So four registers of two times 16 bytes go through the message, 128 bytes at a step; then each is added to
 * the one behind, and 32 bytes are left, then 16, of which the table makes the CRC. */
#define WIDE __attribute__((target("avx2,pclmul,vpclmulqdq")))

/* Bits between what is taken away and what it is added to. */
enum distance { BY_FOUR = 1024, BY_ONE = 256, BY_HALF = 128 };

/* For the first eight bytes, and for the second. */
struct factors {
    uint64_t first, second;
};
static struct factors by_four, by_one, by_half;

/* x^exponent modulo the generator, bit 31 its constant term as in a register of the CRC. The product of two
 * polynomials written that way lies one bit below where it belongs: hence a bit up, and 32 powers less for
 * the 32 bits by which this one is shorter than what it is multiplied with. */
static uint64_t factor(unsigned exponent)
{
    uint32_t power = 1u << 31;

    for (unsigned i = 0; i < exponent - 32; i++)
        power = power >> 1 ^ (power & 1 ? CRC_GENERATOR : 0);
    return (uint64_t)power << 1;
}

static struct factors factors_for(enum distance distance)
{
    return (struct factors){factor(distance + 64), factor(distance)};
}

/* Whether the kernel keeps the 256 bits of the registers (XCR0: SSE, AVX). */
static bool are_registers_kept(void)
{
    uint32_t low, high;

    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}

/* __builtin_cpu_supports() would bring a constructor along, and a guest has none. */
static bool is_known(void)
{
    const unsigned first = bit_PCLMUL | bit_OSXSAVE | bit_AVX;
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first || !are_registers_kept())
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) && (c & bit_VPCLMULQDQ);
}

bool crc_wide_works(void)
{
    by_four = factors_for(BY_FOUR);
    by_one = factors_for(BY_ONE);
    by_half = factors_for(BY_HALF);
    return is_known();
}

WIDE static inline __m128i half_factors(const struct factors *factors)
{
    return _mm_set_epi64x((long long)factors->second, (long long)factors->first);
}

WIDE static inline __m256i at(const uint8_t *bytes)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)bytes);
}

/* What is taken away, added to what lies behind. */
WIDE static inline __m256i fold(__m256i away, __m256i factors, __m256i behind)
{
    __m256i first = _mm256_clmulepi64_epi128(away, factors, 0x00);
    __m256i second = _mm256_clmulepi64_epi128(away, factors, 0x11);

    return _mm256_xor_si256(_mm256_xor_si256(first, second), behind);
}

WIDE static inline __m128i fold_half(__m128i away, __m128i factors, __m128i behind)
{
    __m128i first = _mm_clmulepi64_si128(away, factors, 0x00);
    __m128i second = _mm_clmulepi64_si128(away, factors, 0x11);

    return _mm_xor_si128(_mm_xor_si128(first, second), behind);
}

WIDE uint32_t crc_by_wide(uint32_t crc, const uint8_t *bytes, size_t length)
{
    const __m128i one_half = half_factors(&by_half);
    const __m256i one = _mm256_broadcastsi128_si256(half_factors(&by_one));
    const __m256i four = _mm256_broadcastsi128_si256(half_factors(&by_four));
    __m256i a = _mm256_xor_si256(at(bytes), _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)crc));
    __m256i b = at(bytes + 32), c = at(bytes + 64), d = at(bytes + 96);
    uint8_t rest[32];

    for (bytes += 128, length -= 128; length >= 128; bytes += 128, length -= 128) {
        a = fold(a, four, at(bytes));
        b = fold(b, four, at(bytes + 32));
        c = fold(c, four, at(bytes + 64));
        d = fold(d, four, at(bytes + 96));
    }
    d = fold(fold(fold(a, one, b), one, c), one, d);
    for (; length >= 32; bytes += 32, length -= 32)
        d = fold(d, one, at(bytes));

    __m128i last = fold_half(_mm256_castsi256_si128(d), one_half, _mm256_extracti128_si256(d, 1));

    if (length >= 16) {
        last = fold_half(last, one_half, _mm_loadu_si128((const __m128i *)(const void *)bytes));
        bytes += 16;
        length -= 16;
    }
    _mm_storeu_si128((__m128i *)(void *)rest, last);
    memcpy(rest + 16, bytes, length);
    return crc_by_table(0, rest, 16 + length);
}

#else

bool crc_wide_works(void)
{
    return false;
}

uint32_t crc_by_wide(uint32_t crc, const uint8_t *bytes, size_t length)
{
    return crc_by_table(crc, bytes, length);
}

#endif
