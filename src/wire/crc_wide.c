/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/crc_methods.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

/* CRC by folding with carry-less multiplication. A message is a polynomial and its CRC the remainder modulo the
 * generator. 16 bytes can be removed if their product with x^distance, modulo the generator, is added to the bytes
 * `distance` bits later. Each 64-bit half is multiplied by a 32-bit factor, x^(distance + 64) or x^distance modulo
 * the generator. Four registers of 2 * 16 bytes fold 128 bytes per step; then they are folded into one register of
 * 32 bytes, then 16 bytes, whose CRC the table computes. */
#define WIDE __attribute__((target("avx2,pclmul,vpclmulqdq")))

/* Bits between the folded bytes and the bytes they are added to. */
enum distance { BY_FOUR = 1024, BY_ONE = 256, BY_HALF = 128 };

/* For the first and the second eight bytes. */
struct factors {
    uint64_t first, second;
};
static struct factors by_four, by_one, by_half;

/* x^exponent modulo the generator, reflected (bit 31 is the constant term). The product of two reflected polynomials
 * is one bit too low, hence the shift; exponent - 32 accounts for the factor being 32 bits shorter than the other
 * operand. */
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

/* Does the kernel save the 256-bit registers (XCR0: SSE, AVX)? */
static bool are_registers_saved(void)
{
    uint32_t low, high;

    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}

/* CPUID, because __builtin_cpu_supports() needs a constructor, which this library does not have (CONTRIBUTING.md). */
static bool is_supported(void)
{
    const unsigned first = bit_PCLMUL | bit_OSXSAVE | bit_AVX;
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first || !are_registers_saved())
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) && (c & bit_VPCLMULQDQ);
}

bool crc_wide_works(void)
{
    by_four = factors_for(BY_FOUR);
    by_one = factors_for(BY_ONE);
    by_half = factors_for(BY_HALF);
    return is_supported();
}

WIDE static inline __m128i half_factors(const struct factors *factors)
{
    return _mm_set_epi64x((long long)factors->second, (long long)factors->first);
}

WIDE static inline __m256i at(const uint8_t *bytes)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)bytes);
}

/* Folds 32 bytes into the bytes `behind`. */
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
