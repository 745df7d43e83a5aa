/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The segment request: `softhca ps` and `softhca why` ask a process for its published segment where /proc
 * does not show the descriptor (another pid namespace, or no /proc). The requester connects to the socket
 * name of one of the process's QPN blocks (local/handshake_message.h) and sends this message where a peer
 * would send a handshake message. The reply is the same message with a result; with SEGMENT_GRANTED it
 * carries read-only descriptors of the segment's files, in the order of enum segment_part (segment/segment.h).
 *
 * The message is a format between processes of different builds: the magic, the version and the type lie
 * where a handshake message has them. */
#ifndef PUBLISHED_SEGMENT_REQUEST_H
#define PUBLISHED_SEGMENT_REQUEST_H

#include <stdint.h>

#define SEGMENT_REQUEST_NAME_PREFIX "softhca/2/qpn/" /* then four hexadecimal digits */
#define SEGMENT_REQUEST_NAME_DIGITS 4
#define SEGMENT_REQUEST_BLOCK_QPNS  256u /* QP numbers of a block; the name has the bits above them */
#define SEGMENT_REQUEST_MAGIC       0x41434853u
#define SEGMENT_REQUEST_VERSION     1u
#define SEGMENT_REQUEST_TYPE        4u
#define SEGMENT_REQUEST_FILES       2u

/* Blocks from SEGMENT_REQUEST_AREAS_FROM on have no name each: 32 of one shard (the lower six bits) are an area,
 * which a process owns as a whole, by the name of its first block. So a process with many QPs needs few descriptors. */
#define SEGMENT_REQUEST_AREAS_FROM  0x8000u
#define SEGMENT_REQUEST_AREA_BLOCKS 32u
#define SEGMENT_REQUEST_AREA_STRIDE 64u /* from one block of an area to the next */

/* The block whose name the owner of this block has. */
static inline uint32_t segment_request_named_block(uint32_t block)
{
    return block < SEGMENT_REQUEST_AREAS_FROM
               ? block
               : block & ~((SEGMENT_REQUEST_AREA_BLOCKS - 1) * SEGMENT_REQUEST_AREA_STRIDE);
}

enum segment_request_result { SEGMENT_REQUESTED, SEGMENT_GRANTED, SEGMENT_REFUSED };

struct segment_request {
    uint32_t magic;
    uint16_t version, type;
    uint32_t result; /* enum segment_request_result */
    uint32_t reserved[13];
};
_Static_assert(sizeof(struct segment_request) == 64, "as long as a handshake message");

#endif
