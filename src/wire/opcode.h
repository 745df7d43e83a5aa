/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* BTH opcodes (IBA 9.2.1, table 38) and their properties. Other code uses this table and never lists opcodes. */
#ifndef WIRE_OPCODE_H
#define WIRE_OPCODE_H

#include <stdbool.h>
#include <stdint.h>

#define BTH_SERVICE(opcode)   ((opcode)&0xe0)
#define BTH_OPERATION(opcode) ((opcode)&0x1f)

/* An opcode is service | operation. Both are in one enumeration because compilers warn about operators between two
 * enumerations. */
enum bth_opcode {
    SERVICE_RC = 0x00,
    SERVICE_UC = 0x20,
    SERVICE_UD = 0x60,
    SERVICE_XRC = 0xa0,

    OP_SEND_FIRST = 0x00,
    OP_SEND_MIDDLE = 0x01,
    OP_SEND_LAST = 0x02,
    OP_SEND_LAST_IMM = 0x03,
    OP_SEND_ONLY = 0x04,
    OP_SEND_ONLY_IMM = 0x05,
    OP_WRITE_FIRST = 0x06,
    OP_WRITE_MIDDLE = 0x07,
    OP_WRITE_LAST = 0x08,
    OP_WRITE_LAST_IMM = 0x09,
    OP_WRITE_ONLY = 0x0a,
    OP_WRITE_ONLY_IMM = 0x0b,
    OP_READ_REQUEST = 0x0c,
    OP_READ_RESPONSE_FIRST = 0x0d,
    OP_READ_RESPONSE_MIDDLE = 0x0e,
    OP_READ_RESPONSE_LAST = 0x0f,
    OP_READ_RESPONSE_ONLY = 0x10,
    OP_ACKNOWLEDGE = 0x11,
    OP_ATOMIC_ACKNOWLEDGE = 0x12,
    OP_COMPARE_SWAP = 0x13,
    OP_FETCH_ADD = 0x14,
    OP_SEND_LAST_INVALIDATE = 0x16,
    OP_SEND_ONLY_INVALIDATE = 0x17,
    OP_FLUSH = 0x1c,
    OP_ATOMIC_WRITE = 0x1d,

    /* Congestion notification packet (IBA annex A17.9): of no service, and of the network path alone. No row of
     * opcode_table, so that transport never takes one for a packet of a QP. */
    OPCODE_CNP = 0x81,
};

/* Each opcode has exactly one of FIRST, MIDDLE, LAST, ONLY. READ requests, atomics, FLUSH and acknowledgements are
 * ONLY. */
enum opcode_properties {
    OPCODE_FIRST = 1 << 0, /* first packet of a message of several */
    OPCODE_MIDDLE = 1 << 1,
    OPCODE_LAST = 1 << 2,
    OPCODE_ONLY = 1 << 3,
    OPCODE_REQUEST = 1 << 4, /* to the responder; without: to the requester */
    OPCODE_SEND = 1 << 5,
    OPCODE_WRITE = 1 << 6,
    OPCODE_READ = 1 << 7, /* READ request or response */
    OPCODE_ATOMIC = 1 << 8,
    OPCODE_ACK = 1 << 9,
    OPCODE_HAS_IMM = 1 << 10,
    OPCODE_HAS_INVALIDATE = 1 << 11,
    OPCODE_HAS_RETH = 1 << 12,
    OPCODE_HAS_ATOMIC_ETH = 1 << 13,
    OPCODE_HAS_AETH = 1 << 14,
    OPCODE_HAS_ATOMIC_ACK = 1 << 15,
    OPCODE_HAS_DETH = 1 << 16,
    OPCODE_HAS_PAYLOAD = 1 << 17,
    /* The packet consumes a receive WQE: first packet of a SEND, last packet of a WRITE with immediate. */
    OPCODE_NEEDS_RECEIVE = 1 << 18,
    OPCODE_HAS_XRCETH = 1 << 19,
    OPCODE_FLUSH = 1 << 20, /* has a FETH */
};

struct opcode_info {
    const char *name;      /* NULL: reserved or not supported */
    uint32_t properties;   /* enum opcode_properties */
    uint8_t header_length; /* BTH and extension headers */
};

extern const struct opcode_info opcode_table[256];

static inline bool opcode_is_read_response(uint8_t opcode)
{
    return (opcode_table[opcode].properties & (OPCODE_READ | OPCODE_REQUEST)) == OPCODE_READ;
}

#endif
