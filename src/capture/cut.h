/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of a capture ring -> RoCEv2 packets.
 *
 * What the network carried is a packet already. Between processes of one host a packet of the link may be larger than
 * the path MTU, and acknowledgements ride on requests: it is cut into packets of the path MTU, which get PSNs of the
 * capture's own, counted per connection and direction from the first PSN that was seen. For that the PSNs of the link
 * are kept with those that they became, so that answers and repetitions name the same packets. */
#ifndef CAPTURE_CUT_H
#define CAPTURE_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "published/capture_ring.h"
#include "wire/packet.h"

#define CUT_COMMENT_MAX 160
#define CUT_PACKET_MAX  4096u /* payload of a packet: the largest path MTU */
#define CUT_PAYLOAD_MAX 8192u /* what is not cut: the longest frame of a RAW_PACKET QP */

struct cut_packet {
    const struct capture_record *record; /* of which it is a part */
    struct packet packet;                /* for codec_encode() */
    const uint8_t *payload;
    uint32_t captured; /* bytes of payload; fewer than packet.payload_length: the rest is not there */
    char comment[CUT_COMMENT_MAX];
};

typedef void cut_emit(const struct cut_packet *packet, void *argument);

struct cutter;
/* NULL: no memory. */
struct cutter *cutter_new(cut_emit *emit, void *argument);
void cutter_free(struct cutter *cutter);
/* Calls emit for each packet of the record. The record is a private copy and may hold anything; payload has
 * record->captured bytes. */
void cutter_take(struct cutter *cutter, const struct capture_record *record, const uint8_t *payload,
                 uint32_t snap);

#endif
