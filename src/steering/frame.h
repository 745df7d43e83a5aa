/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* An Ethernet frame taken apart as far as flow rules and receive hashing need it. The fields are kept in
 * the structures that rules of verbs compare them with, in network byte order. */
#ifndef STEERING_FRAME_H
#define STEERING_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/verbs.h"

enum frame_lengths {
    ETHERNET_LENGTH = 14,
    CVLAN_LENGTH = 4,
    FCS_LENGTH = 4,
    FRAME_LENGTH_MIN = 60, /* without FCS: what is shorter is padded (IEEE 802.3 4.2.3.3) */
};

enum frame_layer {
    FRAME_CVLAN = 1, /* tagged, 0x8100 */
    FRAME_IPV4 = 2,
    FRAME_IPV6 = 4,
    FRAME_TCP = 8,
    FRAME_UDP = 16,
    FRAME_ESP = 32,
};

struct frame {
    uint32_t layers;                      /* which of the following there are */
    struct ibv_flow_eth_filter eth;       /* ether_type: behind the tag */
    struct ibv_flow_ipv4_ext_filter ipv4; /* flags: 2 don't fragment, 4 more fragments */
    struct ibv_flow_ipv6_filter ipv6;     /* next_hdr: of the fixed header */
    struct ibv_flow_tcp_udp_filter ports; /* of whole packets and first fragments */
    uint32_t spi;
};

static inline bool frame_is_multicast(const struct frame *frame)
{
    return frame->eth.dst_mac[0] & 1;
}

/* The bytes may be hostile: only bytes inside the frame are read, and a truncated or invalid header counts as
 * absent. false: too short for Ethernet. */
bool frame_dissect(const void *bytes, size_t length, struct frame *ret_frame);

/* The frame check sequence, as it follows the frame on the wire. */
void frame_check_sequence(const void *bytes, size_t length, uint8_t ret_fcs[FCS_LENGTH]);

#endif
