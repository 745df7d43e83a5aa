/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Receive side scaling: the Toeplitz hash over the fields of a frame that a QP asks for
 * (verbs.md §7.4). */
#ifndef STEERING_TOEPLITZ_H
#define STEERING_TOEPLITZ_H

#include "steering/frame.h"

#define TOEPLITZ_KEY_LENGTH 40u

#define TOEPLITZ_FIELDS                                                                                      \
    ((uint64_t)(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 |  \
                IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP |             \
                IBV_RX_HASH_DST_PORT_UDP | IBV_RX_HASH_IPSEC_SPI))

/* 0; -EINVAL: fields of IPv4 and IPv6, or of TCP and UDP (or of either and ESP) together; -EOPNOTSUPP: one
 * that is not known. */
int toeplitz_check(uint64_t fields);

/* Over bytes in the order in which they are given, at most 36 of them. */
uint32_t toeplitz_hash(const uint8_t key[TOEPLITZ_KEY_LENGTH], const uint8_t *bytes, size_t length);

/* Over the fields of the frame: source address, destination address, source port, destination port, SPI; 0
 * for a frame without the layers of all of them. */
uint32_t toeplitz_of_frame(const uint8_t key[TOEPLITZ_KEY_LENGTH], uint64_t fields,
                           const struct frame *frame);

#endif
