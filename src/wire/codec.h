/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Headers between bytes and struct packet (IBA 9.2-9.3): BTH and the extension headers that its opcode
 * announces, in the order BTH, DETH, RETH | AtomicETH | AETH, AtomicAckETH, ImmDt | IETH. */
#ifndef WIRE_CODEC_H
#define WIRE_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "wire/packet.h"

enum header_length {
    BTH_LENGTH = 12,
    DETH_LENGTH = 8,
    RETH_LENGTH = 16,
    ATOMIC_ETH_LENGTH = 28,
    AETH_LENGTH = 4,
    ATOMIC_ACK_LENGTH = 8,
    IMM_LENGTH = 4,
    IETH_LENGTH = 4,
    ICRC_LENGTH = 4,
    HEADER_LENGTH_MAX = BTH_LENGTH + ATOMIC_ETH_LENGTH,
};

#endif
