/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What rsockets say to each other, as bytes (docs/rsockets.md). A stream: private data of the connection, the
 * immediate of each message, and the entries of the two tables that peers write for one another. A datagram:
 * the header in front of it. No I/O here.
 */
#ifndef RSOCKETS_PROTOCOL_H
#define RSOCKETS_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/types.h"

/* --- streams -------------------------------------------------------------------------------------------- */

/* The upper three bits of an immediate. The gaps are reserved. */
enum rsocket_message {
    RSOCKET_DATA = 0,    /* so many bytes were written into the window */
    RSOCKET_CREDITS = 4, /* up to which message the peer may send; perhaps there is a window more */
    RSOCKET_IOMAP = 6,   /* which entry of the table of mappings was written */
    RSOCKET_CONTROL = 7, /* enum rsocket_control */
};

enum rsocket_control {
    RSOCKET_DISCONNECT = 0, /* neither sends nor receives any more */
    RSOCKET_KEEPALIVE = 1,  /* never on the wire: a write of no bytes says it */
    RSOCKET_SHUTDOWN = 2,   /* sends no more */
};

#define RSOCKET_MESSAGE_SHIFT 29
#define RSOCKET_LENGTH_MAX    ((1u << RSOCKET_MESSAGE_SHIFT) - 1)

static inline uint32_t rsocket_immediate(enum rsocket_message message, uint32_t value)
{
    return (uint32_t)message << RSOCKET_MESSAGE_SHIFT | (value & RSOCKET_LENGTH_MAX);
}

static inline unsigned rsocket_immediate_message(uint32_t immediate)
{
    return immediate >> RSOCKET_MESSAGE_SHIFT;
}

static inline uint32_t rsocket_immediate_value(uint32_t immediate)
{
    return immediate & RSOCKET_LENGTH_MAX;
}

/* Memory of the peer that we may write. */
struct rsocket_window {
    uint64_t address;
    uint32_t key, length;
};

struct rsocket_mapping {
    uint64_t offset;
    struct rsocket_window window;
};

#define RSOCKET_WINDOW_BYTES  16u
#define RSOCKET_MAPPING_BYTES 24u
#define RSOCKET_WINDOWS       2u /* entries of a table of windows, here and upstream */
#define RSOCKET_OFFER_BYTES   40u
/* Where an AF_IB request begins with the header of IBA A11, for which its sender left room. */
#define RSOCKET_OFFER_HEADER 36u
#define RSOCKET_MAPPINGS_MAX (127u << 8)

/* The private data of a request and of its reply. */
struct rsocket_offer {
    bool big_endian; /* how entries of tables are written in its memory */
    uint16_t credits;
    uint32_t mappings; /* entries of its table of mappings, which follows that of windows; 0: none */
    struct rsocket_window table; /* of windows; length counts entries */
    struct rsocket_window first; /* the first window */
};

void rsocket_offer_encode(const struct rsocket_offer *offer, uint8_t ret_bytes[RSOCKET_OFFER_BYTES]);
/* 0, -EPROTO (too short, or no sense in it), -EPROTONOSUPPORT (another version). */
int rsocket_offer_decode(const void *bytes, size_t length, struct rsocket_offer *ret_offer);

/* How many mappings can be said; rounded down to that. */
uint32_t rsocket_round_mappings(uint32_t count);

/* Table entries are in the byte order of the machine whose memory they are in. swap: it is not that of this
 * one. */
void rsocket_window_encode(const struct rsocket_window *window, bool swap,
                           uint8_t ret_bytes[RSOCKET_WINDOW_BYTES]);
/* An entry in our own memory, which the peer may be writing: it has been written to its end if the length is
 * not 0. */
void rsocket_window_load(const void *entry, struct rsocket_window *ret_window);
void rsocket_mapping_encode(const struct rsocket_mapping *mapping, bool swap,
                            uint8_t ret_bytes[RSOCKET_MAPPING_BYTES]);
void rsocket_mapping_load(const void *entry, struct rsocket_mapping *ret_mapping);

/* --- datagrams ------------------------------------------------------------------------------------------ */

#define RSOCKET_DATAGRAM_HEADER_IPV4 8u
#define RSOCKET_DATAGRAM_HEADER_IPV6 24u
#define RSOCKET_DATAGRAM_HEADER_MAX  24u
#define RSOCKET_UDP_HEADER_IPV4      16u
#define RSOCKET_UDP_HEADER_IPV6      28u
#define RSOCKET_UDP_HEADER_MAX       28u

/* A mapped address of IPv6 is one of IPv4: that is what the other end sees of it. Back again for a socket of
 * IPv6. */
bool rsocket_address_is_ipv4(const struct sockaddr *address);
void rsocket_address_map(struct sockaddr_storage *address, int domain);

/* In front of a datagram between UD QPs: the sender's address. Encoding returns the length, 0 for a family
 * that has none; decoding returns the length, or -EPROTO. */
size_t rsocket_datagram_encode(const struct sockaddr *from, uint8_t ret_bytes[RSOCKET_DATAGRAM_HEADER_MAX]);
int rsocket_datagram_decode(const void *bytes, size_t length, struct sockaddr_storage *ret_from);

/* In front of a datagram in UDP, while the QP of the receiver is not known. */
struct rsocket_udp {
    bool asks;    /* with data: answer with your QP; else it is such an answer */
    uint32_t qpn; /* of the sender */
};

size_t rsocket_udp_encode(const struct rsocket_udp *header, const struct sockaddr *from,
                          uint8_t ret_bytes[RSOCKET_UDP_HEADER_MAX]);
/* from: the packet's source. */
int rsocket_udp_decode(const void *bytes, size_t length, const struct sockaddr *from,
                       struct rsocket_udp *ret_header);

#endif
