/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/ipudp.h"

#include <string.h>

#include "wire/cursor.h"

#define PROTOCOL_UDP       17
#define IPV4_VERSION_IHL   0x45
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_CHECKSUM_AT   10
#define FLOW_LABEL_MASK    0xfffffu

uint16_t ipudp_checksum(const uint8_t *bytes, uint32_t length)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i + 1 < length; i += 2)
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static void build_ipv4(const struct packet_grh *grh, uint32_t udp_payload_length, uint8_t header[IPV4_LENGTH])
{
    struct cursor_out out = {.at = header, .end = header + IPV4_LENGTH};

    cursor_put8(&out, IPV4_VERSION_IHL);
    cursor_put8(&out, grh->traffic_class);
    cursor_put16(&out, (uint16_t)(IPV4_LENGTH + UDP_LENGTH + udp_payload_length));
    cursor_put16(&out, 0);
    cursor_put16(&out, IPV4_DONT_FRAGMENT);
    cursor_put8(&out, grh->hop_limit);
    cursor_put8(&out, PROTOCOL_UDP);
    cursor_put16(&out, 0);
    cursor_copy_in(&out, grh->source + 12, 4);
    cursor_copy_in(&out, grh->destination + 12, 4);

    out.at = header + IPV4_CHECKSUM_AT;
    cursor_put16(&out, ipudp_checksum(header, IPV4_LENGTH));
}

static void build_ipv6(const struct packet_grh *grh, uint32_t udp_payload_length, uint8_t header[IPV6_LENGTH])
{
    struct cursor_out out = {.at = header, .end = header + IPV6_LENGTH};

    cursor_put32(&out, 6u << 28 | (uint32_t)grh->traffic_class << 20 | (grh->flow_label & FLOW_LABEL_MASK));
    cursor_put16(&out, (uint16_t)(UDP_LENGTH + udp_payload_length));
    cursor_put8(&out, PROTOCOL_UDP);
    cursor_put8(&out, grh->hop_limit);
    cursor_copy_in(&out, grh->source, 16);
    cursor_copy_in(&out, grh->destination, 16);
}

void ipudp_build_grh_area(const struct packet_grh *grh, uint32_t udp_payload_length,
                          uint8_t ret_area[GRH_AREA_LENGTH])
{
    if (ipudp_gid_is_ipv4(grh->source) && ipudp_gid_is_ipv4(grh->destination)) {
        memset(ret_area, 0, GRH_AREA_LENGTH - IPV4_LENGTH);
        build_ipv4(grh, udp_payload_length, ret_area + GRH_AREA_LENGTH - IPV4_LENGTH);
    } else {
        build_ipv6(grh, udp_payload_length, ret_area);
    }
}
