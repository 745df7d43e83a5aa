/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/opcode.h"

#include "wire/codec.h"

/* The header length of a row follows from its properties: written once, it cannot disagree with the codec. */
#define EXTENSION(properties, bit, length) (((properties) & (bit)) ? (length) : 0)
#define HEADER_LENGTH(p)                                                                                     \
    (BTH_LENGTH + EXTENSION(p, OPCODE_HAS_DETH, DETH_LENGTH) + EXTENSION(p, OPCODE_HAS_RETH, RETH_LENGTH) +  \
     EXTENSION(p, OPCODE_HAS_ATOMIC_ETH, ATOMIC_ETH_LENGTH) + EXTENSION(p, OPCODE_HAS_AETH, AETH_LENGTH) +   \
     EXTENSION(p, OPCODE_HAS_ATOMIC_ACK, ATOMIC_ACK_LENGTH) + EXTENSION(p, OPCODE_HAS_IMM, IMM_LENGTH) +     \
     EXTENSION(p, OPCODE_HAS_INVALIDATE, IETH_LENGTH))
#define ROW(service, operation, text, p) [(service) | (operation)] = {text, p, HEADER_LENGTH(p)}

#define SEND  (OPCODE_REQUEST | OPCODE_SEND | OPCODE_HAS_PAYLOAD)
#define WRITE (OPCODE_REQUEST | OPCODE_WRITE | OPCODE_HAS_PAYLOAD)
#define READ  (OPCODE_READ | OPCODE_HAS_PAYLOAD)

/* IBA knows SEND with invalidate for reliable services only and reserves its codes in the space of UC. Verbs
 * allow it on UC (verbs-contract §3.1), so the same operation number stands for it there. */
#define SENDS_AND_WRITES(service, name)                                                                      \
    ROW(service, OP_SEND_FIRST, name " SEND first", SEND | OPCODE_FIRST | OPCODE_NEEDS_RECEIVE),             \
        ROW(service, OP_SEND_MIDDLE, name " SEND middle", SEND | OPCODE_MIDDLE),                             \
        ROW(service, OP_SEND_LAST, name " SEND last", SEND | OPCODE_LAST),                                   \
        ROW(service, OP_SEND_LAST_IMM, name " SEND last with immediate",                                     \
            SEND | OPCODE_LAST | OPCODE_HAS_IMM),                                                            \
        ROW(service, OP_SEND_ONLY, name " SEND only", SEND | OPCODE_ONLY | OPCODE_NEEDS_RECEIVE),            \
        ROW(service, OP_SEND_ONLY_IMM, name " SEND only with immediate",                                     \
            SEND | OPCODE_ONLY | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),                                     \
        ROW(service, OP_WRITE_FIRST, name " RDMA WRITE first", WRITE | OPCODE_FIRST | OPCODE_HAS_RETH),      \
        ROW(service, OP_WRITE_MIDDLE, name " RDMA WRITE middle", WRITE | OPCODE_MIDDLE),                     \
        ROW(service, OP_WRITE_LAST, name " RDMA WRITE last", WRITE | OPCODE_LAST),                           \
        ROW(service, OP_WRITE_LAST_IMM, name " RDMA WRITE last with immediate",                              \
            WRITE | OPCODE_LAST | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),                                    \
        ROW(service, OP_WRITE_ONLY, name " RDMA WRITE only", WRITE | OPCODE_ONLY | OPCODE_HAS_RETH),         \
        ROW(service, OP_WRITE_ONLY_IMM, name " RDMA WRITE only with immediate",                              \
            WRITE | OPCODE_ONLY | OPCODE_HAS_RETH | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),                  \
        ROW(service, OP_SEND_LAST_INVALIDATE, name " SEND last with invalidate",                             \
            SEND | OPCODE_LAST | OPCODE_HAS_INVALIDATE),                                                     \
        ROW(service, OP_SEND_ONLY_INVALIDATE, name " SEND only with invalidate",                             \
            SEND | OPCODE_ONLY | OPCODE_HAS_INVALIDATE | OPCODE_NEEDS_RECEIVE)

/* IBA 9.2.1, table 38 (codes) and 9.2, table 39 (which extension headers follow). */
const struct opcode_info opcode_table[256] = {
    SENDS_AND_WRITES(SERVICE_RC, "RC"),
    ROW(SERVICE_RC, OP_READ_REQUEST, "RC RDMA READ request",
        OPCODE_REQUEST | OPCODE_READ | OPCODE_ONLY | OPCODE_HAS_RETH),
    ROW(SERVICE_RC, OP_READ_RESPONSE_FIRST, "RC RDMA READ response first",
        READ | OPCODE_FIRST | OPCODE_HAS_AETH),
    ROW(SERVICE_RC, OP_READ_RESPONSE_MIDDLE, "RC RDMA READ response middle", READ | OPCODE_MIDDLE),
    ROW(SERVICE_RC, OP_READ_RESPONSE_LAST, "RC RDMA READ response last",
        READ | OPCODE_LAST | OPCODE_HAS_AETH),
    ROW(SERVICE_RC, OP_READ_RESPONSE_ONLY, "RC RDMA READ response only",
        READ | OPCODE_ONLY | OPCODE_HAS_AETH),
    ROW(SERVICE_RC, OP_ACKNOWLEDGE, "RC acknowledge", OPCODE_ACK | OPCODE_ONLY | OPCODE_HAS_AETH),
    ROW(SERVICE_RC, OP_ATOMIC_ACKNOWLEDGE, "RC atomic acknowledge",
        OPCODE_ACK | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_AETH | OPCODE_HAS_ATOMIC_ACK),
    ROW(SERVICE_RC, OP_COMPARE_SWAP, "RC compare and swap",
        OPCODE_REQUEST | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_ATOMIC_ETH),
    ROW(SERVICE_RC, OP_FETCH_ADD, "RC fetch and add",
        OPCODE_REQUEST | OPCODE_ATOMIC | OPCODE_ONLY | OPCODE_HAS_ATOMIC_ETH),

    SENDS_AND_WRITES(SERVICE_UC, "UC"),

    ROW(SERVICE_UD, OP_SEND_ONLY, "UD SEND only",
        SEND | OPCODE_ONLY | OPCODE_HAS_DETH | OPCODE_NEEDS_RECEIVE),
    ROW(SERVICE_UD, OP_SEND_ONLY_IMM, "UD SEND only with immediate",
        SEND | OPCODE_ONLY | OPCODE_HAS_DETH | OPCODE_HAS_IMM | OPCODE_NEEDS_RECEIVE),
};
