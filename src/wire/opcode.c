/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/opcode.h"

#include "wire/codec.h"

/* Header length of a row, from its properties, so the table cannot disagree with the codec. */
#define EXTENSION(properties, bit, length) (((properties) & (bit)) ? (length) : 0)
#define HEADER_LENGTH(p)                                                                                     \
    (BTH_LENGTH + EXTENSION(p, OPCODE_HAS_XRCETH, XRCETH_LENGTH) +                                           \
     EXTENSION(p, OPCODE_HAS_DETH, DETH_LENGTH) + EXTENSION(p, OPCODE_FLUSH, FETH_LENGTH) +                  \
     EXTENSION(p, OPCODE_HAS_RETH, RETH_LENGTH) + EXTENSION(p, OPCODE_HAS_ATOMIC_ETH, ATOMIC_ETH_LENGTH) +   \
     EXTENSION(p, OPCODE_HAS_AETH, AETH_LENGTH) + EXTENSION(p, OPCODE_HAS_ATOMIC_ACK, ATOMIC_ACK_LENGTH) +   \
     EXTENSION(p, OPCODE_HAS_IMM, IMM_LENGTH) + EXTENSION(p, OPCODE_HAS_INVALIDATE, IETH_LENGTH))
#define ROW(service, operation, text, p) [(service) | (operation)] = {text, p, HEADER_LENGTH(p)}

#define SEND  (OPCODE_REQUEST | OPCODE_SEND | OPCODE_HAS_PAYLOAD)
#define WRITE (OPCODE_REQUEST | OPCODE_WRITE | OPCODE_HAS_PAYLOAD)
#define READ  (OPCODE_READ | OPCODE_HAS_PAYLOAD)

/* IBA defines SEND with invalidate for reliable services only and reserves those codes for UC. Verbs allow it on UC
 * (verbs.md §3.1), which therefore uses the same operation numbers. */
#define SENDS_AND_WRITES(service, name, x)                                                                   \
    ROW(service, OP_SEND_FIRST, name " SEND first", SEND | (x) | OPCODE_FIRST | OPCODE_NEEDS_RECEIVE),       \
        ROW(service, OP_SEND_MIDDLE, name " SEND middle", SEND | (x) | OPCODE_MIDDLE),                       \
        ROW(service, OP_SEND_LAST, name " SEND last", SEND | (x) | OPCODE_LAST),                             \
        ROW(service, OP_SEND_LAST_IMM, name " SEND last with immediate",                                     \
            SEND | (x) | OPCODE_LAST | OPCODE_HAS_IMM),                                                      \
        ROW(service, OP_SEND_ONLY, name " SEND only", SEND | (x) | OPCODE_ONLY | OPCODE_NEEDS_RECEIVE),      \
        ROW(service, OP_SEND_ONLY_IMM, name " SEND only with immediate",                                     \
            SEND | (x) | OPCODE_ONLY | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),                               \
        ROW(service, OP_WRITE_FIRST, name " RDMA WRITE first",                                               \
            WRITE | (x) | OPCODE_FIRST | OPCODE_HAS_RETH),                                                   \
        ROW(service, OP_WRITE_MIDDLE, name " RDMA WRITE middle", WRITE | (x) | OPCODE_MIDDLE),               \
        ROW(service, OP_WRITE_LAST, name " RDMA WRITE last", WRITE | (x) | OPCODE_LAST),                     \
        ROW(service, OP_WRITE_LAST_IMM, name " RDMA WRITE last with immediate",                              \
            WRITE | (x) | OPCODE_LAST | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),                              \
        ROW(service, OP_WRITE_ONLY, name " RDMA WRITE only", WRITE | (x) | OPCODE_ONLY | OPCODE_HAS_RETH),   \
        ROW(service, OP_WRITE_ONLY_IMM, name " RDMA WRITE only with immediate",                              \
            WRITE | (x) | OPCODE_ONLY | OPCODE_HAS_RETH | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),            \
        ROW(service, OP_SEND_LAST_INVALIDATE, name " SEND last with invalidate",                             \
            SEND | (x) | OPCODE_LAST | OPCODE_HAS_INVALIDATE),                                               \
        ROW(service, OP_SEND_ONLY_INVALIDATE, name " SEND only with invalidate",                             \
            SEND | (x) | OPCODE_ONLY | OPCODE_HAS_INVALIDATE | OPCODE_NEEDS_RECEIVE)

#define READS_ATOMICS_AND_ACKS(service, name, x)                                                             \
    ROW(service, OP_READ_REQUEST, name " RDMA READ request",                                                 \
        OPCODE_REQUEST | (x) | OPCODE_READ | OPCODE_ONLY | OPCODE_HAS_RETH),                                 \
        ROW(service, OP_READ_RESPONSE_FIRST, name " RDMA READ response first",                               \
            READ | OPCODE_FIRST | OPCODE_HAS_AETH),                                                          \
        ROW(service, OP_READ_RESPONSE_MIDDLE, name " RDMA READ response middle", READ | OPCODE_MIDDLE),      \
        ROW(service, OP_READ_RESPONSE_LAST, name " RDMA READ response last",                                 \
            READ | OPCODE_LAST | OPCODE_HAS_AETH),                                                           \
        ROW(service, OP_READ_RESPONSE_ONLY, name " RDMA READ response only",                                 \
            READ | OPCODE_ONLY | OPCODE_HAS_AETH),                                                           \
        ROW(service, OP_ACKNOWLEDGE, name " acknowledge", OPCODE_ACK | OPCODE_ONLY | OPCODE_HAS_AETH),       \
        ROW(service, OP_ATOMIC_ACKNOWLEDGE, name " atomic acknowledge",                                      \
            OPCODE_ACK | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_AETH | OPCODE_HAS_ATOMIC_ACK),             \
        ROW(service, OP_COMPARE_SWAP, name " compare and swap",                                              \
            OPCODE_REQUEST | (x) | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_ATOMIC_ETH),                     \
        ROW(service, OP_FETCH_ADD, name " fetch and add",                                                    \
            OPCODE_REQUEST | (x) | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_ATOMIC_ETH),                     \
        ROW(service, OP_FLUSH, name " FLUSH",                                                                \
            OPCODE_REQUEST | (x) | OPCODE_FLUSH | OPCODE_ONLY | OPCODE_HAS_RETH),                            \
        ROW(service, OP_ATOMIC_WRITE, name " atomic write",                                                  \
            OPCODE_REQUEST | (x) | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_RETH | OPCODE_HAS_PAYLOAD)

/* IBA 9.2.1, table 38 (codes) and 9.2, table 39 (extension headers); FLUSH and atomic write: annex A19. */
const struct opcode_info opcode_table[256] = {
    SENDS_AND_WRITES(SERVICE_RC, "RC", 0),
    READS_ATOMICS_AND_ACKS(SERVICE_RC, "RC", 0),
    /* Requests carry the number of the SRQ in an XRCETH (IBA annex A14). */
    SENDS_AND_WRITES(SERVICE_XRC, "XRC", OPCODE_HAS_XRCETH),
    READS_ATOMICS_AND_ACKS(SERVICE_XRC, "XRC", OPCODE_HAS_XRCETH),

    SENDS_AND_WRITES(SERVICE_UC, "UC", 0),

    ROW(SERVICE_UD, OP_SEND_ONLY, "UD SEND only",
        SEND | OPCODE_ONLY | OPCODE_HAS_DETH | OPCODE_NEEDS_RECEIVE),
    ROW(SERVICE_UD, OP_SEND_ONLY_IMM, "UD SEND only with immediate",
        SEND | OPCODE_ONLY | OPCODE_HAS_DETH | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),
};
