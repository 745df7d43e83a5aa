/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Wire format between rsockets (docs/rsockets.md). Streams: private data of the connection, immediate data of every
 * message, and the entries of the two tables that peers write for each other. Datagrams: a header in front of each.
 * No I/O here. */
#ifndef RSOCKETS_PROTOCOL_H
#define RSOCKETS_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/types.h"

/* --- streams -------------------------------------------------------------------------------------------- */

/* The upper three bits of the immediate data. Missing values are reserved. */
enum rsocket_message {
    RSOCKET_DATA = 0, /* number of bytes written into the window */
    /* number of the last message that the peer may send; a new window may have been written, too */
    RSOCKET_CREDITS = 4,
    RSOCKET_IOMAP = 6,   /* index of the written entry in the table of mappings */
    RSOCKET_CONTROL = 7, /* enum rsocket_control */
};

enum rsocket_control {
    RSOCKET_DISCONNECT = 0, /* the sender neither sends nor receives any more */
    RSOCKET_KEEPALIVE = 1,  /* never on the wire: keepalives are RDMA WRITEs of length 0 */
    RSOCKET_SHUTDOWN = 2,   /* the sender sends no more */
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

/* Memory of the peer that this end may write. */
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
#define RSOCKET_WINDOWS       2u /* entries in the table of windows, here and in rdma-core */
#define RSOCKET_OFFER_BYTES   40u
/* Length of the CMA header (IBA A11). In an AF_IB request the sender leaves space for it. */
#define RSOCKET_OFFER_HEADER 36u
#define RSOCKET_MAPPINGS_MAX (127u << 8)

/* The private data of a REQ and of its REP. */
struct rsocket_offer {
    bool big_endian; /* byte order of table entries in its memory */
    uint16_t credits;
    uint32_t mappings; /* entries in its table of mappings, which follows the table of windows; 0: none */
    struct rsocket_window table; /* table of windows; length is a number of entries */
    struct rsocket_window first; /* the first window */
};

void rsocket_offer_encode(const struct rsocket_offer *offer, uint8_t ret_bytes[RSOCKET_OFFER_BYTES]);
/* 0, -EPROTO (too short, or invalid), -EPROTONOSUPPORT (another version). */
int rsocket_offer_decode(const void *bytes, size_t length, struct rsocket_offer *ret_offer);

/* Rounds a number of mappings down to one that the format can express. */
uint32_t rsocket_round_mappings(uint32_t count);

/* Table entries have the byte order of the machine whose memory they are in. swap: that order is not the one of this
 * machine. */
void rsocket_window_encode(const struct rsocket_window *window, bool swap,
                           uint8_t ret_bytes[RSOCKET_WINDOW_BYTES]);
/* Reads an entry in local memory that the peer may be writing; the entry is complete if its length is not 0. */
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

/* An IPv4-mapped IPv6 address is sent as IPv4, and converted back for an IPv6 socket. */
bool rsocket_address_is_ipv4(const struct sockaddr *address);
void rsocket_address_map(struct sockaddr_storage *address, int domain);

/* Header of a datagram between UD QPs: the sender's address. Encoding returns the length, or 0 for a family without a
 * format; decoding returns the length, or -EPROTO. */
size_t rsocket_datagram_encode(const struct sockaddr *from, uint8_t ret_bytes[RSOCKET_DATAGRAM_HEADER_MAX]);
int rsocket_datagram_decode(const void *bytes, size_t length, struct sockaddr_storage *ret_from);

/* Header of a datagram in UDP, used while the receiver's QPN is not known. */
struct rsocket_udp {
    bool asks;    /* data, and a request for the receiver's QPN; otherwise the answer to such a request */
    uint32_t qpn; /* QPN of the sender */
};

size_t rsocket_udp_encode(const struct rsocket_udp *header, const struct sockaddr *from,
                          uint8_t ret_bytes[RSOCKET_UDP_HEADER_MAX]);
/* from: source address of the packet. */
int rsocket_udp_decode(const void *bytes, size_t length, const struct sockaddr *from,
                       struct rsocket_udp *ret_header);

#endif
