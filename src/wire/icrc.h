/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The invariant CRC (ICRC) of RoCEv2 (IBA annex A17.3.3): CRC-32 over eight bytes of ones, the IP and UDP headers
 * and the packet, where ones replace the fields that routers may change. The ICRC is the last four bytes of the UDP
 * payload, least significant byte first. */
#ifndef WIRE_ICRC_H
#define WIRE_ICRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The fields of IP and UDP that the ICRC covers, except lengths. */
struct icrc_path {
    uint8_t source[16], destination[16]; /* as GIDs; IPv4 if both are IPv4-mapped */
    uint16_t source_port, destination_port;
    uint16_t identification; /* IPv4 only, like dont_fragment */
    bool dont_fragment;
    /* Of icrc_of_next(), for packets of start_length bytes; 0: none yet. Whoever changes another field than the
     * identification sets it to 0. */
    uint16_t start_length;
    uint16_t start_counts; /* bits of the identification that count: none in IPv6 */
    uint32_t start;        /* the CRC behind the headers with identification 0 */
    uint32_t behind_first; /* and behind these eight bytes, with which the last packet began */
    uint64_t first;
};

/* Computes an ICRC in parts: icrc_begin() with the length of the whole UDP payload (ICRC included), headers from the
 * BTH on, then payload and padding in any pieces. icrc_store() writes the result. */
uint32_t icrc_begin(const struct icrc_path *path, size_t udp_payload_length);
uint32_t icrc_add_headers(uint32_t crc, const uint8_t *headers,
                          size_t length); /* at least BTH_LENGTH bytes */
uint32_t icrc_add(uint32_t crc, const void *bytes, size_t length);
/* The ICRC of a whole packet. The length includes the ICRC: at least BTH_LENGTH + ICRC_LENGTH bytes. */
uint32_t icrc_of(const struct icrc_path *path, const uint8_t *udp_payload, size_t length);

/* Cache of icrc_begin() by path and length; the contribution of the IPv4 identification is added separately. All
 * zero: empty. One thread at a time. */
#define ICRC_STARTS 8
struct icrc_memory {
    struct icrc_start {
        struct icrc_path path;
        size_t length; /* 0: unused */
        uint32_t crc;
    } starts[ICRC_STARTS];
};
/* icrc_of(), faster for small packets, and for long ones where crc_takes_any_alignment(). */
uint32_t icrc_of_next(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *udp_payload,
                      size_t length);

void icrc_store(uint32_t crc, uint8_t ret_bytes[4]);

/* Is the ICRC at the end of this UDP payload valid? */
bool icrc_check(const struct icrc_path *path, const uint8_t *udp_payload, size_t length);

/* The same for a packet from a UDP socket over IPv4, which does not report identification and DF. Since a CRC is
 * linear, for each value of DF at most one identification makes the ICRC valid. DF set is tried first; the result
 * goes to *path. The check is cheaper if path->identification is already right. One in 32,768 random corruptions
 * passes. */
bool icrc_check_unidentified(struct icrc_path *path, const uint8_t *udp_payload, size_t length);
/* The same, faster for small packets, and for long ones where crc_takes_any_alignment(). */
bool icrc_check_next(struct icrc_memory *memory, struct icrc_path *path, const uint8_t *udp_payload,
                     size_t length);

#endif
