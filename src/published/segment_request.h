/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How a process asks another one for its published segment: it connects to a name of the other's blocks of QP
 * numbers (local/handshake_message.h) and sends this message where a link would begin with a handshake. The answer is
 * the same message with the result, and with SEGMENT_GRANTED a descriptor that is good for reading only. For
 * `softhca ps` and `softhca why`, where /proc does not show the descriptor: across pid namespaces, or in a
 * process that has no /proc. */
#ifndef PUBLISHED_SEGMENT_REQUEST_H
#define PUBLISHED_SEGMENT_REQUEST_H

#include <stdint.h>

#define SEGMENT_REQUEST_NAME_PREFIX "softhca/1/qpn/" /* then four hexadecimal digits */
#define SEGMENT_REQUEST_NAME_DIGITS 4
#define SEGMENT_REQUEST_MAGIC       0x41434853u
#define SEGMENT_REQUEST_VERSION     1u
#define SEGMENT_REQUEST_TYPE        4u

enum segment_request_result { SEGMENT_REQUESTED, SEGMENT_GRANTED, SEGMENT_REFUSED };

struct segment_request {
    uint32_t magic;
    uint16_t version, type;
    uint32_t result; /* enum segment_request_result */
    uint32_t reserved[13];
};
_Static_assert(sizeof(struct segment_request) == 64, "as long as a handshake");

#endif
