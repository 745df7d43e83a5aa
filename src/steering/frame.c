/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "steering/frame.h"

#include <libdeflate.h>
#include <netinet/in.h>
#include <string.h>

enum {
    TYPE_CVLAN = 0x8100,
    TYPE_IPV4 = 0x0800,
    TYPE_IPV6 = 0x86dd,
    IPV4_LENGTH = 20,
    IPV6_LENGTH = 40,
    TCP_LENGTH = 20,
    UDP_LENGTH = 8,
    ESP_LENGTH = 8,
};

struct bytes {
    const uint8_t *at;
    size_t left;
};

static bool skip(struct bytes *bytes, size_t length)
{
    if (bytes->left < length)
        return false;
    bytes->at += length;
    bytes->left -= length;
    return true;
}

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void dissect_transport(struct bytes bytes, uint8_t protocol, struct frame *frame)
{
    const uint8_t *at = bytes.at;

    if (protocol == IPPROTO_ESP && bytes.left >= ESP_LENGTH) {
        frame->layers |= FRAME_ESP;
        memcpy(&frame->spi, at, sizeof(frame->spi));
        return;
    }
    if (protocol == IPPROTO_TCP && bytes.left >= TCP_LENGTH)
        frame->layers |= FRAME_TCP;
    else if (protocol == IPPROTO_UDP && bytes.left >= UDP_LENGTH)
        frame->layers |= FRAME_UDP;
    else
        return;
    memcpy(&frame->ports.src_port, at, 2);
    memcpy(&frame->ports.dst_port, at + 2, 2);
}

static void dissect_ipv4(struct bytes bytes, struct frame *frame)
{
    const uint8_t *at = bytes.at;
    uint16_t fragment;
    size_t header;

    if (bytes.left < IPV4_LENGTH || at[0] >> 4 != 4)
        return;
    header = (size_t)(at[0] & 15) * 4;
    if (header < IPV4_LENGTH || !skip(&bytes, header))
        return;
    fragment = get16(at + 6);
    frame->layers |= FRAME_IPV4;
    memcpy(&frame->ipv4.src_ip, at + 12, 4);
    memcpy(&frame->ipv4.dst_ip, at + 16, 4);
    frame->ipv4.proto = at[9];
    frame->ipv4.tos = at[1];
    frame->ipv4.ttl = at[8];
    frame->ipv4.flags = (uint8_t)((fragment & 0x4000 ? 2 : 0) | (fragment & 0x2000 ? 4 : 0));
    if (!(fragment & 0x1fff))
        dissect_transport(bytes, at[9], frame);
}

static void dissect_ipv6(struct bytes bytes, struct frame *frame)
{
    const uint8_t *at = bytes.at;
    const uint8_t label[4] = {0, at[1] & 15, at[2], at[3]};

    if (at[0] >> 4 != 6 || !skip(&bytes, IPV6_LENGTH))
        return;
    frame->layers |= FRAME_IPV6;
    memcpy(frame->ipv6.src_ip, at + 8, 16);
    memcpy(frame->ipv6.dst_ip, at + 24, 16);
    memcpy(&frame->ipv6.flow_label, label, sizeof(label));
    frame->ipv6.next_hdr = at[6];
    frame->ipv6.traffic_class = (uint8_t)(at[0] << 4 | at[1] >> 4);
    frame->ipv6.hop_limit = at[7];
    dissect_transport(bytes, at[6], frame);
}

bool frame_dissect(const void *start, size_t length, struct frame *frame)
{
    struct bytes bytes = {start, length};
    const uint8_t *at = start;

    memset(frame, 0, sizeof(*frame));
    if (!skip(&bytes, ETHERNET_LENGTH))
        return false;
    memcpy(frame->eth.dst_mac, at, 6);
    memcpy(frame->eth.src_mac, at + 6, 6);
    memcpy(&frame->eth.ether_type, at + 12, 2);
    if (get16(at + 12) == TYPE_CVLAN && skip(&bytes, CVLAN_LENGTH)) {
        frame->layers |= FRAME_CVLAN;
        memcpy(&frame->eth.vlan_tag, at + 14, 2);
        memcpy(&frame->eth.ether_type, at + 16, 2);
    }
    switch (get16((const uint8_t *)&frame->eth.ether_type)) {
    case TYPE_IPV4:
        dissect_ipv4(bytes, frame);
        break;
    case TYPE_IPV6:
        if (bytes.left >= IPV6_LENGTH)
            dissect_ipv6(bytes, frame);
        break;
    default:
        break;
    }
    return true;
}

void frame_check_sequence(const void *bytes, size_t length, uint8_t ret_fcs[FCS_LENGTH])
{
    uint32_t crc = libdeflate_crc32(0, bytes, length);

    for (int i = 0; i < FCS_LENGTH; i++)
        ret_fcs[i] = (uint8_t)(crc >> 8 * i);
}
