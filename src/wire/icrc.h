/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The invariant CRC of RoCEv2 (IBA annex A17.3.3): CRC-32 over eight bytes of ones, the IP and UDP headers
 * and the packet, with ones in place of what routers may change. It ends the UDP payload, least significant
 * byte first. */
#ifndef WIRE_ICRC_H
#define WIRE_ICRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the CRC covers of IP and UDP, apart from lengths. */
struct icrc_path {
    uint8_t source[16], destination[16]; /* as GIDs; both IPv4-mapped: the packet goes over IPv4 */
    uint16_t source_port, destination_port;
    uint16_t identification; /* IPv4 only, like dont_fragment */
    bool dont_fragment;
};

/* To send: begin with the length of the whole UDP payload (ICRC included), go on with the headers from BTH,
 * then with payload and padding in any pieces, and store. */
uint32_t icrc_begin(const struct icrc_path *path, size_t udp_payload_length);
uint32_t icrc_add_headers(uint32_t crc, const uint8_t *headers,
                          size_t length); /* at least BTH_LENGTH bytes */
uint32_t icrc_add(uint32_t crc, const void *bytes, size_t length);
/* The same of a whole packet, whose length includes the ICRC; at least BTH_LENGTH + ICRC_LENGTH bytes. */
uint32_t icrc_of(const struct icrc_path *path, const uint8_t *udp_payload, size_t length);

/* The CRCs of what is in front of packets are the same for those of one path and length, but for what the
 * identification adds: some are remembered. All zero: none. One thread at a time. */
#define ICRC_STARTS 8
struct icrc_memory {
    struct icrc_start {
        struct icrc_path path;
        size_t length; /* 0: unused */
        uint32_t crc;
    } starts[ICRC_STARTS];
};
/* icrc_of(), quicker for small packets. */
uint32_t icrc_of_next(struct icrc_memory *memory, const struct icrc_path *path, const uint8_t *udp_payload,
                      size_t length);

void icrc_store(uint32_t crc, uint8_t ret_bytes[4]);

/* Does the ICRC at the end of this UDP payload fit? */
bool icrc_check(const struct icrc_path *path, const uint8_t *udp_payload, size_t length);

/* The same for a packet from a UDP socket over IPv4, which hides identification and don't-fragment: a CRC is
 * linear, so at most one identification explains the packet for each value of the bit. The bit is tried set,
 * then clear; what explains the packet is written to *path. It is cheaper if path->identification is right
 * already. Of random corruptions one in 32,768 is explained,
 * too. */
bool icrc_check_unidentified(struct icrc_path *path, const uint8_t *udp_payload, size_t length);
/* The same, quicker for small packets. */
bool icrc_check_next(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *udp_payload,
                     size_t length);

#endif
