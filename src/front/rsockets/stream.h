/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One end of a stream between rsockets: what may be sent and where it goes, what has arrived and may be read,
 * what has to be told to the peer (docs/rsockets.md). No I/O, no clock, no memory of its own, no lock: the
 * caller holds that of the rsocket, posts what it is told to post, and says what has completed.
 *
 * Sending. The peer lends windows of its memory, and credits: numbers of messages that it has receives for.
 * Data is written into the window with the length as immediate. Small pieces travel inside the work request,
 * others wait in the send ring until they have been written.
 *
 * Receiving. The receive ring is lent half by half; what has been written into it is in the order of the
 * stream, so all that is known of it is how many bytes there are.
 */
#ifndef RSOCKETS_STREAM_H
#define RSOCKETS_STREAM_H

#include "front/rsockets/protocol.h"

/* Control messages need no credit, so that credits can always be told; but only so many are on their way at a
 * time. They use send requests of their own. */
#define STREAM_CONTROLS 4u
/* Below that much room in the send ring a stream is not writable. */
#define STREAM_LOW_WATER 2048u

struct stream_memory {
    uint64_t address;
    uint32_t key; /* for the peer */
};

struct stream_options {
    uint32_t send_bytes, receive_bytes; /* of the rings; receive_bytes is even */
    uint16_t send_requests, receive_requests;
    uint32_t inline_bytes;
    uint32_t chunk; /* bytes of a data message at most */
    uint32_t mappings;
    bool big_endian;
    void *table; /* our table of windows, then that of mappings */
    struct stream_memory table_memory, receive_memory;
};

struct stream {
    struct stream_options options;
    bool swap;      /* the peer's byte order is another */
    bool connected; /* control messages can be sent */
    bool readable;  /* the peer may still send; nobody has shut that */
    bool writable;
    bool broken; /* the peer has said goodbye, or is gone: nothing that is sent arrives */

    /* sending */
    uint16_t sent, granted;
    struct rsocket_window windows[RSOCKET_WINDOWS];
    unsigned window, window_next; /* to write into; to be lent next */
    uint32_t requests_free, controls_free;
    uint32_t ring_at, ring_free;
    uint32_t unsignaled_requests, unsignaled_bytes;

    /* receiving */
    uint32_t readable_bytes, read_at;
    uint32_t lent;                      /* bytes the peer may still write */
    uint32_t unlent, unlent_at;         /* bytes that can be lent again */
    uint16_t arrived, arrived_reported; /* messages whose receives are posted again; what the peer knows of */
    uint16_t arrived_unposted;
    struct rsocket_window peer_table; /* of windows; length in entries */
    uint32_t peer_table_next;
    struct rsocket_window peer_mappings; /* length in entries */
};

/* Bytes of the table that stream_options.table points to. */
size_t stream_table_bytes(uint32_t mappings);
void stream_init(struct stream *stream, const struct stream_options *options);
/* What the peer is to know at the beginning, and what it has said. */
void stream_offer(const struct stream *stream, struct rsocket_offer *ret_offer);
void stream_connect(struct stream *stream, const struct rsocket_offer *offer);

/* --- work requests -------------------------------------------------------------------------------------- */

/* A work request to be posted; all are RDMA WRITEs. */
struct stream_write {
    uint32_t length;
    uint64_t address; /* of the peer */
    uint32_t key;
    bool has_immediate;
    uint32_t immediate;
    bool inlined; /* the bytes are taken from the caller; else from the send ring: */
    struct {
        uint32_t at, length;
    } pieces[2];
    unsigned piece_count;
    bool signaled;
    uint64_t wr_id;
};

/* A control message; its bytes, if it has any, travel inside the work request. Always signaled. */
struct stream_control {
    struct stream_write write;
    uint8_t bytes[RSOCKET_WINDOW_BYTES];
};

bool stream_can_send(const struct stream *stream);
bool stream_can_send_direct(const struct stream *stream);
/* The next of `wanted` bytes (not 0) of data. Only if stream_can_send(). The bytes are copied into the ring
 * before the request is posted; requests are posted in the order in which they were made. */
void stream_send(struct stream *stream, size_t wanted, struct stream_write *ret_write);
/* Bytes for a mapping of the peer: no credit, no message. */
void stream_send_direct(struct stream *stream, const struct rsocket_window *target, size_t wanted,
                        struct stream_write *ret_write);
/* An entry of the peer's table of mappings: RSOCKET_MAPPING_BYTES. */
void stream_send_mapping(struct stream *stream, uint32_t index, struct stream_write *ret_write);

/* Has the peer to be told about credits or a window? Then what to post. */
bool stream_credits_due(const struct stream *stream);
void stream_send_credits(struct stream *stream, struct stream_control *ret_control);
bool stream_can_control(const struct stream *stream);
void stream_send_control(struct stream *stream, enum rsocket_control control,
                         struct stream_control *ret_control);

/* --- completions ---------------------------------------------------------------------------------------- */

/* The id of receives. */
#define STREAM_WR_RECEIVE (1ull << 63)

/* A message of the peer. -EPROTO: it has no sense, or not the right. */
int stream_arrive(struct stream *stream, uint32_t immediate);
/* The receives that arrivals had used up are posted again. */
void stream_receives_posted(struct stream *stream);
/* One of ours is done. */
void stream_complete(struct stream *stream, uint64_t wr_id);
bool stream_is_idle(const struct stream *stream); /* no signaled one is missing */
/* The connection is gone. What has arrived can still be read. */
void stream_break(struct stream *stream);

/* --- reading -------------------------------------------------------------------------------------------- */

/* Bytes that are there from `skip` on, up to the end of the ring: where, and how many. */
uint32_t stream_peek(const struct stream *stream, uint32_t skip, uint32_t *ret_at);
void stream_consume(struct stream *stream, uint32_t length);

/* What the peer has to be told when this end does not read or write any more (SHUT_...). False: nothing. */
bool stream_shutdown(struct stream *stream, int how, enum rsocket_control *ret_control);

#endif
