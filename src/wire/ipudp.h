/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* IP and UDP headers of RoCEv2 packets. */
#ifndef WIRE_IPUDP_H
#define WIRE_IPUDP_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "wire/packet.h"

#define ROCE_UDP_PORT 4791

enum ip_length {
    IPV4_LENGTH = 20,
    IPV6_LENGTH = 40,
    UDP_LENGTH = 8,
    GRH_AREA_LENGTH = 40, /* first bytes of each UD receive buffer (verbs.md §8.1) */
};

/* ::ffff:a.b.c.d */
static inline bool ipudp_gid_is_ipv4(const uint8_t gid[16])
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

    return !memcmp(gid, prefix, sizeof(prefix));
}

/* Builds the first 40 bytes of a UD receive buffer: the IPv6 header, or 20 zeros and the IPv4 header.
 * ibv_init_ah_from_wc() recognizes IPv4 by the header's valid checksum. */
void ipudp_build_grh_area(const struct packet_grh *grh, uint32_t udp_payload_length,
                          uint8_t ret_area[GRH_AREA_LENGTH]);

/* The Internet checksum (RFC 1071) of an even number of bytes, in host order. */
uint16_t ipudp_checksum(const uint8_t *bytes, uint32_t length);

#endif
