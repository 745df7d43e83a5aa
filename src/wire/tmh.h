/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Headers of messages to tag matching SRQs (infiniband/tm_types.h): the first bytes of a SEND's payload. */
#ifndef WIRE_TMH_H
#define WIRE_TMH_H

#include <stdint.h>

#include "wire/cursor.h"

enum { TMH_SIZE = 16, RVH_SIZE = 16 };
enum tmh_opcode { TMH_NO_TAG, TMH_RENDEZVOUS, TMH_FIN, TMH_EAGER };

struct tmh {
    uint8_t opcode;   /* enum tmh_opcode, not checked */
    uint32_t app_ctx; /* opaque, of the sender */
    uint64_t tag;
};

/* Follows the TMH of a rendezvous: the sender's buffer. */
struct rvh {
    uint64_t address;
    uint32_t rkey, length;
};

static inline struct tmh tmh_decode(const uint8_t bytes[TMH_SIZE])
{
    struct cursor_in in = {bytes, bytes + TMH_SIZE, false};
    struct tmh tmh = {.opcode = cursor_get8(&in)};

    cursor_get24(&in); /* reserved */
    tmh.app_ctx = cursor_get32(&in);
    tmh.tag = cursor_get64(&in);
    return tmh;
}

static inline struct rvh rvh_decode(const uint8_t bytes[RVH_SIZE])
{
    struct cursor_in in = {bytes, bytes + RVH_SIZE, false};
    struct rvh rvh = {.address = cursor_get64(&in)};

    rvh.rkey = cursor_get32(&in);
    rvh.length = cursor_get32(&in);
    return rvh;
}

static inline void tmh_encode(const struct tmh *tmh, uint8_t bytes[TMH_SIZE])
{
    struct cursor_out out = {bytes, bytes + TMH_SIZE, false};

    cursor_put8(&out, tmh->opcode);
    cursor_put24(&out, 0);
    cursor_put32(&out, tmh->app_ctx);
    cursor_put64(&out, tmh->tag);
}

#endif
