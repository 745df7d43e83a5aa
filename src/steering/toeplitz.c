/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "steering/toeplitz.h"

#include <errno.h>
#include <string.h>

#define IPV4_FIELDS ((uint64_t)(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4))
#define IPV6_FIELDS ((uint64_t)(IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6))
#define TCP_FIELDS  ((uint64_t)(IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP))
#define UDP_FIELDS  ((uint64_t)(IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP))
#define ESP_FIELDS  ((uint64_t)IBV_RX_HASH_IPSEC_SPI)

int toeplitz_check(uint64_t fields)
{
    int transports = !!(fields & TCP_FIELDS) + !!(fields & UDP_FIELDS) + !!(fields & ESP_FIELDS);

    if (fields & ~TOEPLITZ_FIELDS)
        return -EOPNOTSUPP;
    return ((fields & IPV4_FIELDS) && (fields & IPV6_FIELDS)) || transports > 1 ? -EINVAL : 0;
}

/* Bit i of the input, the most significant first, adds the 32 bits of the key that begin at its bit i. */
uint32_t toeplitz_hash(const uint8_t key[TOEPLITZ_KEY_LENGTH], const uint8_t *bytes, size_t length)
{
    uint32_t window = (uint32_t)key[0] << 24 | (uint32_t)key[1] << 16 | (uint32_t)key[2] << 8 | key[3];
    uint32_t hash = 0;

    for (size_t i = 0; i < length; i++) {
        for (int bit = 7; bit >= 0; bit--) {
            if (bytes[i] >> bit & 1)
                hash ^= window;
            window = window << 1 | (uint32_t)(key[i + 4] >> bit & 1);
        }
    }
    return hash;
}

struct input {
    uint8_t bytes[2 * 16 + 2 * 2];
    size_t length;
};
_Static_assert(sizeof(((struct input *)0)->bytes) + 4 <= TOEPLITZ_KEY_LENGTH, "the key reaches to its end");

static void add(struct input *input, bool wanted, const void *field, size_t length)
{
    if (!wanted)
        return;
    memcpy(input->bytes + input->length, field, length);
    input->length += length;
}

uint32_t toeplitz_of_frame(const uint8_t key[TOEPLITZ_KEY_LENGTH], uint64_t fields, const struct frame *frame)
{
    uint32_t layers = (fields & IPV4_FIELDS ? FRAME_IPV4 : 0u) | (fields & IPV6_FIELDS ? FRAME_IPV6 : 0u) |
                      (fields & TCP_FIELDS ? FRAME_TCP : 0u) | (fields & UDP_FIELDS ? FRAME_UDP : 0u) |
                      (fields & ESP_FIELDS ? FRAME_ESP : 0u);
    struct input input = {.length = 0};

    if (layers & ~frame->layers)
        return 0;
    add(&input, fields & IBV_RX_HASH_SRC_IPV4, &frame->ipv4.src_ip, 4);
    add(&input, fields & IBV_RX_HASH_DST_IPV4, &frame->ipv4.dst_ip, 4);
    add(&input, fields & IBV_RX_HASH_SRC_IPV6, frame->ipv6.src_ip, 16);
    add(&input, fields & IBV_RX_HASH_DST_IPV6, frame->ipv6.dst_ip, 16);
    add(&input, fields & (IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP), &frame->ports.src_port, 2);
    add(&input, fields & (IBV_RX_HASH_DST_PORT_TCP | IBV_RX_HASH_DST_PORT_UDP), &frame->ports.dst_port, 2);
    add(&input, fields & IBV_RX_HASH_IPSEC_SPI, &frame->spi, 4);
    return toeplitz_hash(key, input.bytes, input.length);
}
