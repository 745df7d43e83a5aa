/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A packet and its addresses -> the bytes of an Ethernet frame: Ethernet, IP, UDP, BTH and its extensions, payload,
 * ICRC. */
#ifndef CAPTURE_FRAME_H
#define CAPTURE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "capture/cut.h"
#include "wire/codec.h"
#include "wire/ipudp.h"

#define ETHERNET_LENGTH   14u
#define FRAME_HEADERS_MAX (ETHERNET_LENGTH + IPV6_LENGTH + UDP_LENGTH + HEADER_LENGTH_MAX)

/* The whole frame, or as much as was captured of it. What is a frame already stays as it is. ret_frame has room for
 * FRAME_HEADERS_MAX, the payload, and 7 bytes more. Returns the number of bytes; *ret_length: of the frame, as it
 * would have been on a wire. 0: the opcode is unknown. */
size_t frame_build(const struct cut_packet *packet, uint8_t *ret_frame, size_t *ret_length);

#endif
