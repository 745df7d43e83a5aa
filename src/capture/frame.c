/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "capture/frame.h"

#include <string.h>

#include "base/types.h"
#include "wire/icrc.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_UDP   17
/* UDP source ports of RoCEv2 by convention: the upper quarter, by the flow (IBA A17.5.4). */
#define SOURCE_PORTS 0xc000u

static void put16(uint8_t *to, uint32_t value)
{
    to[0] = (uint8_t)(value >> 8);
    to[1] = (uint8_t)value;
}

/* An address of a host has no MAC address here: one is made of its last four bytes, in the range of those that are
 * administered locally. Groups have the one that RFC 1112 and RFC 2464 say. */
static void put_mac(uint8_t *to, const uint8_t gid[16])
{
    const uint8_t *ip = gid + 12;

    memcpy(to, (const uint8_t[6]){0x02, 0, ip[0], ip[1], ip[2], ip[3]}, 6);
    if (ipudp_gid_is_ipv4(gid) && (ip[0] & 0xf0) == 0xe0)
        memcpy(to, (const uint8_t[6]){0x01, 0x00, 0x5e, ip[1] & 0x7f, ip[2], ip[3]}, 6);
    else if (gid[0] == 0xff)
        memcpy(to, (const uint8_t[6]){0x33, 0x33, ip[0], ip[1], ip[2], ip[3]}, 6);
}

static uint16_t source_port_of(const struct capture_record *record)
{
    const uint32_t flow = record->src_qpn * 0x9e3779b1u ^ record->dest_qpn;

    return record->source_port ? record->source_port
                               : (uint16_t)(SOURCE_PORTS | ((flow ^ flow >> 14) & ~SOURCE_PORTS & 0xffff));
}

static size_t put_ip(const struct capture_record *record, bool is_ipv4, size_t udp_payload, uint8_t *to)
{
    struct packet_grh grh = {.flow_label = record->flow_label,
                             .traffic_class = record->traffic_class,
                             .hop_limit = record->hop_limit};
    uint8_t area[GRH_AREA_LENGTH];

    memcpy(grh.source, record->source, sizeof(grh.source));
    memcpy(grh.destination, record->destination, sizeof(grh.destination));
    ipudp_build_grh_area(&grh, (uint32_t)udp_payload, area);
    memcpy(to, area + (is_ipv4 ? GRH_AREA_LENGTH - IPV4_LENGTH : 0), is_ipv4 ? IPV4_LENGTH : IPV6_LENGTH);
    return is_ipv4 ? IPV4_LENGTH : IPV6_LENGTH;
}

/* RFC 8200 8.1: over the addresses, the length, which is even here, and the protocol, too. 0 is written as ones. */
static uint16_t checksum_ipv6(const struct capture_record *record, const uint8_t *udp, size_t length)
{
    uint8_t pseudo[40] = {0};
    uint32_t sum;

    memcpy(pseudo, record->source, 16);
    memcpy(pseudo + 16, record->destination, 16);
    put16(pseudo + 34, (uint32_t)length);
    pseudo[39] = PROTOCOL_UDP;
    sum = (uint16_t)~ipudp_checksum(pseudo, sizeof(pseudo));
    sum += (uint16_t)~ipudp_checksum(udp, (uint32_t)length);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum == 0xffff ? 0xffff : (uint16_t)~sum;
}

static void add_icrc(const struct cut_packet *packet, uint8_t *udp, size_t udp_payload)
{
    const struct capture_record *record = packet->record;
    struct icrc_path path = {
        .source_port = source_port_of(record), .destination_port = ROCE_UDP_PORT, .dont_fragment = true};
    uint8_t *icrc = udp + UDP_LENGTH + udp_payload - ICRC_LENGTH;

    memcpy(path.source, record->source, sizeof(path.source));
    memcpy(path.destination, record->destination, sizeof(path.destination));
    icrc_store(icrc_of(&path, udp + UDP_LENGTH, udp_payload), icrc);
    if (record->fate == CAPTURE_BROKEN)
        icrc[ICRC_LENGTH - 1] ^= 0xff;
}

_Static_assert(CNP_LENGTH <= HEADER_LENGTH_MAX, "put_headers() has room");

static size_t put_headers(const struct packet *packet, uint8_t *headers)
{
    if (packet->opcode != OPCODE_CNP)
        return codec_encode(packet, headers);
    codec_encode_cnp(packet->dest_qpn, headers);
    return CNP_LENGTH;
}

size_t frame_build(const struct cut_packet *packet, uint8_t *ret_frame, size_t *ret_length)
{
    const struct capture_record *record = packet->record;
    const uint32_t pad = codec_pad(packet->packet.payload_length);
    uint8_t headers[HEADER_LENGTH_MAX], *at = ret_frame, *udp;
    const size_t header_length = put_headers(&packet->packet, headers);
    const size_t udp_payload = header_length + packet->packet.payload_length + pad + ICRC_LENGTH;
    const bool is_ipv4 = ipudp_gid_is_ipv4(record->source) && ipudp_gid_is_ipv4(record->destination);

    if (record->packet_flags & PACKET_FRAME) {
        memcpy(ret_frame, packet->payload, packet->captured);
        *ret_length = packet->packet.payload_length;
        return packet->captured;
    }
    if (!header_length)
        return 0;
    put_mac(at, record->destination);
    put_mac(at + 6, record->source);
    at += ETHERNET_LENGTH;
    put16(at - 2, is_ipv4 ? ETHERTYPE_IPV4 : ETHERTYPE_IPV6);
    at += put_ip(record, is_ipv4, udp_payload, at);
    udp = at;
    put16(udp, source_port_of(record));
    put16(udp + 2, ROCE_UDP_PORT);
    put16(udp + 4, (uint32_t)(UDP_LENGTH + udp_payload));
    put16(udp + 6, 0);
    at += UDP_LENGTH;
    memcpy(at, headers, header_length);
    at += header_length;
    *ret_length = (size_t)(udp - ret_frame) + UDP_LENGTH + udp_payload;
    if (packet->captured)
        memcpy(at, packet->payload, packet->captured);
    at += packet->captured;
    if (packet->captured != packet->packet.payload_length)
        return (size_t)(at - ret_frame);
    memset(at, 0, pad + ICRC_LENGTH);
    add_icrc(packet, udp, udp_payload);
    if (!is_ipv4)
        put16(udp + 6, checksum_ipv6(record, udp, UDP_LENGTH + udp_payload));
    return *ret_length;
}
