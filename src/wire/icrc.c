/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/icrc.h"

#include <libdeflate.h>
#include <string.h>

#include "wire/codec.h"
#include "wire/cursor.h"
#include "wire/ipudp.h"

#define LRH_LENGTH     8 /* of InfiniBand; ones here */
#define HEADERS_MAX    (LRH_LENGTH + IPV6_LENGTH + UDP_LENGTH)
#define BTH_CONGESTION 4 /* the byte of BTH with FECN and BECN */
#define DONT_FRAGMENT  0x4000
#define PROTOCOL_UDP   17
/* Bytes of an IPv4 header from the flags on. */
#define BEHIND_IDENTIFICATION (IPV4_LENGTH - 6)

static bool is_ipv4(const struct icrc_path *path)
{
    return ipudp_gid_is_ipv4(path->source) && ipudp_gid_is_ipv4(path->destination);
}

uint32_t icrc_begin(const struct icrc_path *path, size_t udp_payload_length)
{
    uint8_t headers[HEADERS_MAX];
    struct cursor_out out = {.at = headers, .end = headers + HEADERS_MAX};
    uint16_t udp_length = (uint16_t)(UDP_LENGTH + udp_payload_length);

    cursor_put64(&out, UINT64_MAX);
    if (is_ipv4(path)) {
        cursor_put16(&out, 0x45ff); /* type of service */
        cursor_put16(&out, (uint16_t)(IPV4_LENGTH + udp_length));
        cursor_put16(&out, path->identification);
        cursor_put16(&out, path->dont_fragment ? DONT_FRAGMENT : 0);
        cursor_put16(&out, 0xff00 | PROTOCOL_UDP); /* time to live */
        cursor_put16(&out, 0xffff);                /* checksum */
        cursor_copy_in(&out, path->source + 12, 4);
        cursor_copy_in(&out, path->destination + 12, 4);
    } else {
        cursor_put32(&out, 0x6fffffff); /* traffic class, flow label */
        cursor_put16(&out, udp_length);
        cursor_put16(&out, PROTOCOL_UDP << 8 | 0xff); /* hop limit */
        cursor_copy_in(&out, path->source, 16);
        cursor_copy_in(&out, path->destination, 16);
    }
    cursor_put16(&out, path->source_port);
    cursor_put16(&out, path->destination_port);
    cursor_put16(&out, udp_length);
    cursor_put16(&out, 0xffff); /* checksum */
    return libdeflate_crc32(0, headers, (size_t)(out.at - headers));
}

uint32_t icrc_add_headers(uint32_t crc, const uint8_t *headers, size_t length)
{
    uint8_t bth[BTH_LENGTH];

    memcpy(bth, headers, BTH_LENGTH);
    bth[BTH_CONGESTION] = 0xff;
    crc = libdeflate_crc32(crc, bth, BTH_LENGTH);
    return libdeflate_crc32(crc, headers + BTH_LENGTH, length - BTH_LENGTH);
}

uint32_t icrc_add(uint32_t crc, const void *bytes, size_t length)
{
    return libdeflate_crc32(crc, bytes, length);
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

/* Stored ICRC against the computed one: the bits in which they differ. */
static uint32_t difference(const struct icrc_path *path, const uint8_t *udp_payload, size_t length)
{
    uint32_t crc = icrc_begin(path, length);

    crc = icrc_add_headers(crc, udp_payload, length - ICRC_LENGTH);
    return crc ^ stored(udp_payload + length - ICRC_LENGTH);
}

bool icrc_check(const struct icrc_path *path, const uint8_t *udp_payload, size_t length)
{
    return is_a_packet(length) && !difference(path, udp_payload, length);
}

/* A CRC register is a polynomial over GF(2) modulo the generator, bit 31 its constant term; a byte of zeros
 * multiplies it by x^8. back_by[i] is x^(-8 * 2^i): it takes 2^i bytes of zeros back out. */
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

/* What the register held, had `bytes` bytes of zeros made it what it is. */
static uint32_t step_back(uint32_t crc, size_t bytes)
{
    for (unsigned i = 0; bytes; i++, bytes >>= 1)
        if (bytes & 1)
            crc = multiply(crc, back_by[i]);
    return crc;
}

bool icrc_check_unidentified(struct icrc_path *path, const uint8_t *udp_payload, size_t length)
{
    if (!is_a_packet(length))
        return false;
    if (!is_ipv4(path))
        return icrc_check(path, udp_payload, length);

    /* Two bytes of identification, and what follows them. */
    const size_t covered = 2 + BEHIND_IDENTIFICATION + UDP_LENGTH + length - ICRC_LENGTH;
    struct icrc_path guess = *path;

    guess.identification = 0;
    for (int dont_fragment = 1; dont_fragment >= 0; dont_fragment--) {
        guess.dont_fragment = dont_fragment;
        /* The identification is the only difference, and entered the register through its low bits. */
        uint32_t cause = step_back(difference(&guess, udp_payload, length), covered);

        if (cause >> 16)
            continue;
        path->identification = (uint16_t)((cause & 0xff) << 8 | cause >> 8);
        path->dont_fragment = dont_fragment;
        return true;
    }
    return false;
}
