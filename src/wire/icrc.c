/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/icrc.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/types.h"
#include "wire/codec.h"
#include "wire/crc.h"
#include "wire/ipudp.h"

#define LRH_LENGTH     8 /* local route header of InfiniBand, all ones here */
#define HEADERS_MAX    (LRH_LENGTH + IPV6_LENGTH + UDP_LENGTH)
#define BTH_CONGESTION 4 /* offset in the BTH of the byte with FECN and BECN */
#define DONT_FRAGMENT  0x4000
#define PROTOCOL_UDP   17
/* Bytes of an IPv4 header after the identification. */
#define AFTER_IDENTIFICATION (IPV4_LENGTH - 6)

static bool is_ipv4(const struct icrc_path *path)
{
    return ipudp_gid_is_ipv4(path->source) && ipudp_gid_is_ipv4(path->destination);
}

static size_t headers_length(const struct icrc_path *path)
{
    return LRH_LENGTH + (is_ipv4(path) ? IPV4_LENGTH : IPV6_LENGTH) + UDP_LENGTH;
}

/* Builds LRH, IP and UDP header with ones in fields that the ICRC does not cover, and returns their length. */
static size_t put_headers(const struct icrc_path *path, size_t udp_payload_length,
                          uint8_t ret_headers[HEADERS_MAX])
{
    uint16_t udp_length = (uint16_t)(UDP_LENGTH + udp_payload_length);
    const uint16_t udp[UDP_LENGTH / 2] = {htons(path->source_port), htons(path->destination_port),
                                          htons(udp_length), 0xffff /* checksum */};
    uint8_t *ip = ret_headers + LRH_LENGTH;

    memset(ret_headers, 0xff, LRH_LENGTH);
    if (is_ipv4(path)) {
        const uint16_t fixed[6] = {
            htons(0x45ff), /* type of service */
            htons((uint16_t)(IPV4_LENGTH + udp_length)),
            htons(path->identification),
            htons(path->dont_fragment ? DONT_FRAGMENT : 0),
            htons(0xff00 | PROTOCOL_UDP), /* time to live */
            0xffff,                       /* checksum */
        };

        memcpy(ip, fixed, sizeof(fixed));
        memcpy(ip + 12, path->source + 12, 4);
        memcpy(ip + 16, path->destination + 12, 4);
        memcpy(ip + IPV4_LENGTH, udp, sizeof(udp));
        return LRH_LENGTH + IPV4_LENGTH + UDP_LENGTH;
    } else {
        const uint16_t fixed[4] = {
            htons(0x6fff), 0xffff,                             /* traffic class, flow label */
            htons(udp_length), htons(PROTOCOL_UDP << 8 | 0xff) /* hop limit */
        };

        memcpy(ip, fixed, sizeof(fixed));
        memcpy(ip + 8, path->source, 16);
        memcpy(ip + 24, path->destination, 16);
        memcpy(ip + IPV6_LENGTH, udp, sizeof(udp));
        return LRH_LENGTH + IPV6_LENGTH + UDP_LENGTH;
    }
}

uint32_t icrc_begin(const struct icrc_path *path, size_t udp_payload_length)
{
    uint8_t headers[HEADERS_MAX];

    return crc_of(0, headers, put_headers(path, udp_payload_length, headers));
}

uint32_t icrc_add_headers(uint32_t crc, const uint8_t *headers, size_t length)
{
    uint8_t bth[BTH_LENGTH];

    memcpy(bth, headers, BTH_LENGTH);
    bth[BTH_CONGESTION] = 0xff;
    crc = crc_of(crc, bth, BTH_LENGTH);
    return crc_of(crc, headers + BTH_LENGTH, length - BTH_LENGTH);
}

uint32_t icrc_add(uint32_t crc, const void *bytes, size_t length)
{
    return crc_of(crc, bytes, length);
}

/* libdeflate is ten times slower for bytes before or after 16-byte alignment and for less than 64 bytes, which would
 * be half the time of a small packet. The headers therefore follow zeros that align their end and reach 64 bytes. The
 * register starts with a value that these zeros turn into the proper start value: start_before_zeros[n] for
 * ZEROS_LEAST + n zeros. */
#define ZEROS_LEAST 64
#define ALIGNMENT   16
static const uint32_t start_before_zeros[ALIGNMENT] = {
    0x624bdb78, 0x99acd77a, 0xaaecb025, 0xe9960a48, 0xfac50d20, 0xc55a3338, 0xef62f69e, 0xb88cc465,
    0x3e0b1a11, 0x6a07bac1, 0xb8f04337, 0x428c4811, 0x31ba0d0f, 0xdbe99088, 0x5d332e0c, 0x545f7edc,
};
/* Packets up to this length are copied after the headers as a whole. */
#define SMALL 80u

uint32_t icrc_of(const struct icrc_path *path, const uint8_t *packet, size_t length)
{
    uint8_t block[ZEROS_LEAST + ALIGNMENT + HEADERS_MAX + SMALL] __attribute__((aligned(ALIGNMENT)));
    size_t covered = length - ICRC_LENGTH, copied = covered, before = headers_length(path), zeros;
    uint32_t crc;

    if (unlikely(crc_method() == CRC_SHIFTS))
        return icrc_add_headers(icrc_begin(path, length), packet, covered);
    if (covered > SMALL) /* the remainder of the packet starts aligned */
        copied = BTH_LENGTH + (0 - ((uintptr_t)packet + BTH_LENGTH)) % ALIGNMENT;
    zeros = (0 - (before + copied)) % ALIGNMENT;
    crc = start_before_zeros[zeros];
    zeros += ZEROS_LEAST;
    memset(block, 0, ZEROS_LEAST + ALIGNMENT);
    put_headers(path, length, block + zeros);
    memcpy(block + zeros + before, packet, copied);
    block[zeros + before + BTH_CONGESTION] = 0xff;
    crc = crc_of(crc, block, zeros + before + copied);
    return copied < covered ? crc_of(crc, packet + copied, covered - copied) : crc;
}

/* libdeflate is faster for longer packets (icrc_of()). */
#define FEW   40u
#define FIRST 8u /* bytes of the BTH before PSN and AckReq */

/* Contribution of the identification to the register behind the first eight bytes of the BTH, by four bits of it. */
#define OF_BITS(a, b, c, d)                                                                                  \
    {                                                                                                        \
        0, a, b, (a) ^ (b), c, (a) ^ (c), (b) ^ (c), (a) ^ (b) ^ (c), d, (a) ^ (d), (b) ^ (d),               \
            (a) ^ (b) ^ (d), (c) ^ (d), (a) ^ (c) ^ (d), (b) ^ (c) ^ (d), (a) ^ (b) ^ (c) ^ (d)              \
    }
static const uint32_t of_four_bits[4][16] = {
    OF_BITS(0x0ee7e8d1, 0x1dcfd1a2, 0x3b9fa344, 0x773f4688),
    OF_BITS(0xee7e8d10, 0x078c1c61, 0x0f1838c2, 0x1e307184),
    OF_BITS(0xf1da05aa, 0x38c50d15, 0x718a1a2a, 0xe3143454),
    OF_BITS(0x1d596ee9, 0x3ab2ddd2, 0x7565bba4, 0xeacb7748),
};

/* Without branches: the packets of a datagram count up, and a processor does not foresee how many bits are set. */
static uint32_t of_identification(uint32_t bits)
{
    return of_four_bits[0][bits & 15] ^ of_four_bits[1][bits >> 4 & 15] ^ of_four_bits[2][bits >> 8 & 15] ^
           of_four_bits[3][bits >> 12];
}

static bool is_same_path(const struct icrc_path *a, const struct icrc_path *b)
{
    return a->source_port == b->source_port && a->destination_port == b->destination_port &&
           a->dont_fragment == b->dont_fragment && !memcmp(a->destination, b->destination, 16) &&
           !memcmp(a->source, b->source, 16);
}

/* Cached by length in words. */
static cold_path void find_start(struct icrc_memory *memory, struct icrc_path *path, size_t length)
{
    struct icrc_start *start = &memory->starts[(length / 4 + path->source_port) % ICRC_STARTS];

    if (start->length != length || !is_same_path(&start->path, path)) {
        *start = (struct icrc_start){.path = *path, .length = length};
        start->path.identification = 0;
        start->crc = icrc_begin(&start->path, length);
    }
    path->start = start->crc;
    path->start_length = (uint16_t)length;
    path->start_counts = is_ipv4(path) ? UINT16_MAX : 0;
}

/* The first eight bytes of the BTH (all but PSN and AckReq) are mostly those of the packet before. */
static uint32_t behind_first(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *packet,
                             size_t length)
{
    uint64_t first = crc_word_at(packet) | (uint64_t)0xff << 8 * BTH_CONGESTION;

    if (unlikely(path->start_length != length || path->first != first)) {
        if (path->start_length != length)
            find_start(memory, path, length);
        path->first = first;
        path->behind_first = crc_of_word(path->start, first);
    }
    return path->behind_first ^ of_identification(path->identification & path->start_counts);
}

uint32_t icrc_of_next(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *packet,
                      size_t length)
{
    size_t covered = length - ICRC_LENGTH, few = covered;
    uint32_t crc;

    if (covered > FEW) {
        few = BTH_LENGTH;
        if (!crc_takes_any_alignment(covered - few))
            return icrc_of(path, packet, length);
    }
    if (unlikely(!crc_has_table()))
        return icrc_of(path, packet, length);
    crc = crc_of_few(behind_first(memory, path, packet, length), packet + FIRST, few - FIRST);
    return few < covered ? crc_of(crc, packet + few, covered - few) : crc;
}

void icrc_store(uint32_t crc, uint8_t ret_bytes[4])
{
    for (unsigned i = 0; i < 4; i++)
        ret_bytes[i] = (uint8_t)(crc >> 8 * i);
}

static uint32_t stored(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static bool is_a_packet(size_t length)
{
    return length >= BTH_LENGTH + ICRC_LENGTH && length <= UINT16_MAX - UDP_LENGTH;
}

/* Stored ICRC XOR computed ICRC. memory may be NULL. */
static uint32_t difference(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *udp_payload,
                           size_t length)
{
    uint32_t crc =
        memory ? icrc_of_next(memory, path, udp_payload, length) : icrc_of(path, udp_payload, length);

    return crc ^ stored(udp_payload + length - ICRC_LENGTH);
}

bool icrc_check(const struct icrc_path *path, const uint8_t *udp_payload, size_t length)
{
    return is_a_packet(length) &&
           icrc_of(path, udp_payload, length) == stored(udp_payload + length - ICRC_LENGTH);
}

/* A CRC register is a polynomial over GF(2) modulo the generator, bit 31 its constant term. A byte of zeros
 * multiplies it by x^8; back_by[i] is x^(-8 * 2^i), which undoes 2^i bytes of zeros. */
#define GENERATOR 0xedb88320u
static const uint32_t back_by[17] = {
    0x6567cb95, 0xd7125358, 0x5b358fd3, 0x2e9bb40b, 0x12a59a49, 0x8df9403d,
    0x5139de12, 0xba340226, 0x29c45641, 0x12fbc105, 0xecd30c55, 0x3755ebd8,
    0x24ee460c, 0x23783fcf, 0x479933fc, 0xa39442a5, 0x9ea0056d,
};

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b >> 1 ^ (b & 1 ? GENERATOR : 0);
    }
    return product;
}

/* The register before `bytes` bytes of zeros turned it into `crc`. */
static uint32_t step_back(uint32_t crc, size_t bytes)
{
    for (unsigned i = 0; bytes; i++, bytes >>= 1)
        if (bytes & 1)
            crc = multiply(crc, back_by[i]);
    return crc;
}

static void set_dont_fragment(struct icrc_path *path, bool dont_fragment)
{
    if (path->dont_fragment == dont_fragment)
        return;
    path->dont_fragment = dont_fragment;
    path->start_length = 0;
}

static bool check(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *udp_payload,
                  size_t length)
{
    if (!is_a_packet(length))
        return false;
    if (!is_ipv4(path))
        return !difference(memory, path, udp_payload, length);

    /* Bytes from the identification to the end of the covered part. */
    const size_t covered = 2 + AFTER_IDENTIFICATION + UDP_LENGTH + length - ICRC_LENGTH;
    const bool given = path->dont_fragment;

    /* In place: a copy would wait for what the caller has just written in smaller pieces, and for all stores before. */
    for (int dont_fragment = 1; dont_fragment >= 0; dont_fragment--) {
        set_dont_fragment(path, dont_fragment);
        uint32_t cause = difference(memory, path, udp_payload, length);

        /* If only the identification is wrong, its difference entered the register at the low 16 bits. */
        if (cause)
            cause = step_back(cause, covered);
        if (cause >> 16)
            continue;
        path->identification ^= (uint16_t)((cause & 0xff) << 8 | cause >> 8);
        return true;
    }
    set_dont_fragment(path, given);
    return false;
}

bool icrc_check_unidentified(struct icrc_path *path, const uint8_t *udp_payload, size_t length)
{
    return check(NULL, path, udp_payload, length);
}

bool icrc_check_next(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *udp_payload,
                     size_t length)
{
    return check(memory, path, udp_payload, length);
}
