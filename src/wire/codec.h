/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Encodes and decodes packet headers (IBA 9.2-9.3): BTH and the extension headers of its opcode, in the order
 * XRCETH, DETH, FETH, RETH | AtomicETH | AETH, AtomicAckETH, ImmDt | IETH. */
#ifndef WIRE_CODEC_H
#define WIRE_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "wire/opcode.h"
#include "wire/packet.h"

enum header_length {
    BTH_LENGTH = 12,
    XRCETH_LENGTH = 4,
    DETH_LENGTH = 8,
    FETH_LENGTH = 4,
    RETH_LENGTH = 16,
    ATOMIC_ETH_LENGTH = 28,
    AETH_LENGTH = 4,
    ATOMIC_ACK_LENGTH = 8,
    IMM_LENGTH = 4,
    IETH_LENGTH = 4,
    ICRC_LENGTH = 4,
    HEADER_LENGTH_MAX = BTH_LENGTH + XRCETH_LENGTH + ATOMIC_ETH_LENGTH,
};

/* Bytes of padding to a multiple of four (BTH PadCnt, IBA 9.2.4). */
static inline uint32_t codec_pad(uint32_t payload_length)
{
    return -payload_length & 3;
}

/* Bytes of headers, payload, padding and ICRC. */
static inline uint32_t codec_udp_payload_length(const struct packet *packet)
{
    return opcode_table[packet->opcode].header_length + packet->payload_length +
           codec_pad(packet->payload_length) + ICRC_LENGTH;
}

/* Decodes the UDP payload of a RoCEv2 packet without its ICRC, which the caller has checked. Accepts any bytes from
 * an attacker: the result is 0 and a packet whose payload lies inside them, or -EPROTO (malformed), or
 * -EPROTONOSUPPORT (reserved or unsupported opcode: only the BTH's fields are set, for transport_receive() to
 * refuse the packet). The caller sets grh from the IP header. */
int codec_decode(const void *bytes, size_t length, struct packet *ret_packet);

/* Encodes the headers and returns their length, 0 for an unsupported opcode. The caller appends payload, codec_pad()
 * bytes of zeros and the ICRC. */
size_t codec_encode(const struct packet *packet, uint8_t ret_bytes[HEADER_LENGTH_MAX]);

/* A congestion notification packet: BTH and 16 reserved bytes (IBA annex A17.9.3). The caller appends the ICRC. */
#define CNP_PKEY   0xffffu
#define CNP_LENGTH (BTH_LENGTH + 16u)
void codec_encode_cnp(uint32_t dest_qpn, uint8_t ret_bytes[CNP_LENGTH]);

#endif
