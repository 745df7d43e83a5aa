/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* State machine of one end of a stream (docs/rsockets.md): what may be sent and to which address, what has arrived
 * and can be read, what has to be reported to the peer. No I/O, no clock, no memory, no lock: the caller holds the
 * rsocket's lock, posts the requests that the functions return, and reports completions.
 *
 * Sending. The peer grants windows of its memory, and credits: the number of messages that it has receives for. Data
 * is written into the window, with the length as immediate data. Small messages are inlined in the work request;
 * larger ones wait in the send ring until they have been written.
 *
 * Receiving. The receive ring is granted in halves. Its data is in the order of the stream, so the number of unread
 * bytes is all the state. */
#ifndef RSOCKETS_STREAM_H
#define RSOCKETS_STREAM_H

#include "front/rsockets/protocol.h"

/* Control messages need no credit, so that credits can always be granted; but only so many may be outstanding. They
 * have send requests of their own. */
#define STREAM_CONTROLS 4u
/* With less space in the send ring a stream is not writable. */
#define STREAM_LOW_WATER 2048u

struct stream_memory {
    uint64_t address;
    uint32_t key; /* rkey for the peer */
};

struct stream_options {
    uint32_t send_bytes, receive_bytes; /* of the rings; receive_bytes is even */
    uint16_t send_requests, receive_requests;
    uint32_t inline_bytes;
    uint32_t chunk; /* maximum length of a data message */
    uint32_t mappings;
    bool big_endian;
    void *table; /* local table of windows, then of mappings */
    struct stream_memory table_memory, receive_memory;
};

struct stream {
    struct stream_options options;
    bool swap;      /* the peer has another byte order */
    bool connected; /* control messages can be sent */
    bool readable;  /* data may still arrive: neither end has shut this direction */
    bool writable;
    bool broken; /* the peer has disconnected or died: nothing that is sent arrives */

    /* sending */
    uint16_t sent, granted;
    struct rsocket_window windows[RSOCKET_WINDOWS];
    unsigned window, window_next; /* index of the window in use; index of the next to grant */
    uint32_t requests_free, controls_free;
    uint32_t ring_at, ring_free;
    uint32_t unsignaled_requests, unsignaled_bytes;

    /* receiving */
    uint32_t readable_bytes, read_at;
    uint32_t lent;              /* bytes that the peer may still write */
    uint32_t unlent, unlent_at; /* read bytes that can be granted again, and their offset */
    /* Messages whose receives are posted again, and the value that the peer knows. */
    uint16_t arrived, arrived_reported;
    uint16_t arrived_unposted;
    struct rsocket_window peer_table; /* the peer's table of windows; length in entries */
    uint32_t peer_table_next;
    struct rsocket_window peer_mappings; /* length in entries */
};

/* Size of the table that stream_options.table points to. */
size_t stream_table_bytes(uint32_t mappings);
void stream_init(struct stream *stream, const struct stream_options *options);
/* The local offer to the peer, and the peer's offer. */
void stream_offer(const struct stream *stream, struct rsocket_offer *ret_offer);
void stream_connect(struct stream *stream, const struct rsocket_offer *offer);

/* --- work requests -------------------------------------------------------------------------------------- */

/* A work request to post; all are RDMA WRITEs. */
struct stream_write {
    uint32_t length;
    uint64_t address; /* address at the peer */
    uint32_t key;
    bool has_immediate;
    uint32_t immediate;
    bool inlined; /* inline: the caller has the bytes; otherwise they are in the send ring: */
    struct {
        uint32_t at, length;
    } pieces[2];
    unsigned piece_count;
    bool signaled;
    uint64_t wr_id;
};

/* A control message. Its bytes, if any, are inlined. Always signaled. */
struct stream_control {
    struct stream_write write;
    uint8_t bytes[RSOCKET_WINDOW_BYTES];
};

bool stream_can_send(const struct stream *stream);
bool stream_can_send_direct(const struct stream *stream);
/* Makes a request for the next of `wanted` bytes (not 0) of data. Only if stream_can_send(). The caller copies the
 * bytes into the ring before it posts the request, and posts requests in the order in which they were made. */
void stream_send(struct stream *stream, size_t wanted, struct stream_write *ret_write);
/* Makes a request that writes into a mapping of the peer: no credit, no message. */
void stream_send_direct(struct stream *stream, const struct rsocket_window *target, size_t wanted,
                        struct stream_write *ret_write);
/* Makes a request that writes an entry of the peer's table of mappings: RSOCKET_MAPPING_BYTES. */
void stream_send_mapping(struct stream *stream, uint32_t index, struct stream_write *ret_write);

/* Does the peer need credits or a window? Then the control message to post. */
bool stream_credits_due(const struct stream *stream);
void stream_send_credits(struct stream *stream, struct stream_control *ret_control);
bool stream_can_control(const struct stream *stream);
void stream_send_control(struct stream *stream, enum rsocket_control control,
                         struct stream_control *ret_control);

/* --- completions ---------------------------------------------------------------------------------------- */

/* wr_id of receives, and of requests that carry no data. */
#define STREAM_WR_RECEIVE (1ull << 63)
#define STREAM_WR_CONTROL (1ull << 62)

/* Handles a message of the peer. -EPROTO: invalid. */
int stream_arrive(struct stream *stream, uint32_t immediate);
/* The caller has posted again the receives that messages had consumed. */
void stream_receives_posted(struct stream *stream);
/* A send request has completed. */
void stream_complete(struct stream *stream, uint64_t wr_id);
bool stream_is_idle(const struct stream *stream); /* no signaled request is outstanding */
/* The connection is lost. Data that has arrived can still be read. */
void stream_break(struct stream *stream);

/* --- reading -------------------------------------------------------------------------------------------- */

/* Unread bytes from `skip` on, up to the end of the ring: returns how many and sets *ret_at to their offset. */
uint32_t stream_peek(const struct stream *stream, uint32_t skip, uint32_t *ret_at);
void stream_consume(struct stream *stream, uint32_t length);

/* Ends directions (SHUT_...) and returns the control message for the peer in *ret_control. False: none is needed. */
bool stream_shutdown(struct stream *stream, int how, enum rsocket_control *ret_control);

#endif
