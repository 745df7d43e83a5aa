/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "front/rsockets/stream.h"

#include <errno.h>
#include <string.h>

/* Up to a quarter of the requests, or of the ring, may be unsignaled: a caller that waits for space can rely on a
 * later completion. */
#define SIGNAL_EVERY 4u

/* wr_ids of send requests: what a completion frees. */
#define WR_REQUESTS_SHIFT 32
#define WR_REQUESTS_MASK  0xffffu

size_t stream_table_bytes(uint32_t mappings)
{
    return RSOCKET_WINDOWS * RSOCKET_WINDOW_BYTES + (size_t)mappings * RSOCKET_MAPPING_BYTES;
}

void stream_init(struct stream *stream, const struct stream_options *options)
{
    uint32_t half = options->receive_bytes / 2;

    *stream = (struct stream){
        .options = *options,
        .requests_free = options->send_requests - STREAM_CONTROLS,
        .controls_free = STREAM_CONTROLS,
        .ring_free = options->send_bytes,
        .lent = half,
        .unlent = half,
        .unlent_at = half,
    };
}

void stream_offer(const struct stream *stream, struct rsocket_offer *ret_offer)
{
    const struct stream_options *options = &stream->options;

    *ret_offer = (struct rsocket_offer){
        .big_endian = options->big_endian,
        .credits = options->receive_requests,
        .mappings = options->mappings,
        .table = {options->table_memory.address, options->table_memory.key, RSOCKET_WINDOWS},
        .first = {options->receive_memory.address, options->receive_memory.key, options->receive_bytes / 2},
    };
}

void stream_connect(struct stream *stream, const struct rsocket_offer *offer)
{
    stream->swap = offer->big_endian != stream->options.big_endian;
    stream->granted = offer->credits;
    stream->windows[0] = offer->first;
    stream->window = 0;
    stream->window_next = 1;
    stream->peer_table = offer->table;
    stream->peer_table_next = offer->table.length > 1 ? 1 : 0;
    stream->peer_mappings = (struct rsocket_window){
        .address = offer->table.address + (uint64_t)offer->table.length * RSOCKET_WINDOW_BYTES,
        .key = offer->table.key,
        .length = offer->mappings,
    };
    stream->connected = stream->readable = stream->writable = true;
}

/* --- sending -------------------------------------------------------------------------------------------- */

bool stream_can_send_direct(const struct stream *stream)
{
    return stream->writable && stream->requests_free &&
           stream->ring_free >= min_of(STREAM_LOW_WATER, stream->options.send_bytes / 2);
}

bool stream_can_send(const struct stream *stream)
{
    return stream_can_send_direct(stream) && stream->sent != stream->granted &&
           stream->windows[stream->window].length;
}

/* Allocates space in the send ring until the bytes are written. */
static void take_ring(struct stream *stream, struct stream_write *write)
{
    uint32_t to_end = stream->options.send_bytes - stream->ring_at;

    write->pieces[0].at = stream->ring_at;
    write->pieces[0].length = min_of(write->length, to_end);
    write->piece_count = 1;
    if (write->length > to_end) {
        write->pieces[1].at = 0;
        write->pieces[1].length = write->length - to_end;
        write->piece_count = 2;
    }
    stream->ring_at = write->length >= to_end ? write->length - to_end : stream->ring_at + write->length;
    stream->ring_free -= write->length;
    stream->unsignaled_bytes += write->length;
}

static void take_request(struct stream *stream, struct stream_write *write)
{
    stream->requests_free--;
    stream->unsignaled_requests++;
    write->inlined = write->length <= stream->options.inline_bytes;
    if (!write->inlined)
        take_ring(stream, write);
    if (stream->unsignaled_requests < max_of(stream->options.send_requests / SIGNAL_EVERY, 1) &&
        stream->unsignaled_bytes < stream->options.send_bytes / SIGNAL_EVERY)
        return; /* wr_id 0: a failed unsignaled request frees nothing */
    write->signaled = true;
    write->wr_id = (uint64_t)stream->unsignaled_requests << WR_REQUESTS_SHIFT | stream->unsignaled_bytes;
    stream->unsignaled_requests = 0;
    stream->unsignaled_bytes = 0;
}

static uint32_t clamp_length(const struct stream *stream, size_t wanted, uint32_t room)
{
    uint32_t most = min_of(room, stream->options.chunk), length = (uint32_t)min_of(wanted, (size_t)most);

    return length <= stream->options.inline_bytes ? length : min_of(length, stream->ring_free);
}

void stream_send(struct stream *stream, size_t wanted, struct stream_write *ret_write)
{
    struct rsocket_window *window = &stream->windows[stream->window];
    uint32_t length = clamp_length(stream, wanted, window->length);

    *ret_write = (struct stream_write){
        .length = length,
        .address = window->address,
        .key = window->key,
        .has_immediate = true,
        .immediate = rsocket_immediate(RSOCKET_DATA, length),
    };
    window->address += length;
    window->length -= length;
    if (!window->length)
        stream->window = (stream->window + 1) % RSOCKET_WINDOWS;
    stream->sent++;
    take_request(stream, ret_write);
}

void stream_send_direct(struct stream *stream, const struct rsocket_window *target, size_t wanted,
                        struct stream_write *ret_write)
{
    *ret_write = (struct stream_write){
        .length = clamp_length(stream, wanted, target->length),
        .address = target->address,
        .key = target->key,
    };
    take_request(stream, ret_write);
}

void stream_send_mapping(struct stream *stream, uint32_t index, struct stream_write *ret_write)
{
    *ret_write = (struct stream_write){
        .length = RSOCKET_MAPPING_BYTES,
        .address = stream->peer_mappings.address + (uint64_t)index * RSOCKET_MAPPING_BYTES,
        .key = stream->peer_mappings.key,
        .has_immediate = true,
        .immediate = rsocket_immediate(RSOCKET_IOMAP, index),
    };
    stream->sent++;
    take_request(stream, ret_write);
}

/* --- control -------------------------------------------------------------------------------------------- */

bool stream_can_control(const struct stream *stream)
{
    return stream->connected && stream->controls_free;
}

static void begin_control(struct stream *stream, struct stream_control *ret_control)
{
    stream->controls_free--;
    *ret_control =
        (struct stream_control){.write = {.signaled = true, .wr_id = STREAM_WR_CONTROL, .inlined = true}};
}

static bool window_due(const struct stream *stream)
{
    return stream->unlent >= stream->options.receive_bytes / 2;
}

bool stream_credits_due(const struct stream *stream)
{
    return stream_can_control(stream) &&
           (window_due(stream) || (uint16_t)(stream->arrived - stream->arrived_reported) >=
                                      max_of(stream->options.receive_requests / 2, 1));
}

void stream_send_credits(struct stream *stream, struct stream_control *ret_control)
{
    const struct stream_options *options = &stream->options;
    uint32_t half = options->receive_bytes / 2;
    struct rsocket_window window = {options->receive_memory.address + stream->unlent_at,
                                    options->receive_memory.key, half};

    begin_control(stream, ret_control);
    stream->arrived_reported = stream->arrived;
    ret_control->write.has_immediate = true;
    ret_control->write.immediate =
        rsocket_immediate(RSOCKET_CREDITS, (uint16_t)(stream->arrived + options->receive_requests));
    if (!window_due(stream))
        return;
    rsocket_window_encode(&window, stream->swap, ret_control->bytes);
    ret_control->write.length = RSOCKET_WINDOW_BYTES;
    ret_control->write.address =
        stream->peer_table.address + (uint64_t)stream->peer_table_next * RSOCKET_WINDOW_BYTES;
    ret_control->write.key = stream->peer_table.key;
    stream->peer_table_next = (stream->peer_table_next + 1) % stream->peer_table.length;
    stream->lent += half;
    stream->unlent -= half;
    stream->unlent_at = stream->unlent_at ? 0 : half;
}

/* Keepalive: an RDMA WRITE of length 0, which the peer's QP acknowledges without its program. */
void stream_send_control(struct stream *stream, enum rsocket_control control,
                         struct stream_control *ret_control)
{
    begin_control(stream, ret_control);
    ret_control->write.has_immediate = control != RSOCKET_KEEPALIVE;
    ret_control->write.immediate = rsocket_immediate(RSOCKET_CONTROL, control);
    if (control == RSOCKET_DISCONNECT)
        stream->connected = false; /* no message follows */
}

/* --- completions ---------------------------------------------------------------------------------------- */

/* Entries are written in turn, each only after the window in it is used up. */
static void take_windows(struct stream *stream)
{
    while (!stream->windows[stream->window_next].length) {
        struct rsocket_window *entry = (struct rsocket_window *)stream->options.table + stream->window_next;

        rsocket_window_load(entry, &stream->windows[stream->window_next]);
        if (!stream->windows[stream->window_next].length)
            return;
        __atomic_store_n(&entry->length, 0, __ATOMIC_RELAXED);
        stream->window_next = (stream->window_next + 1) % RSOCKET_WINDOWS;
    }
}

static int arrive_control(struct stream *stream, uint32_t control)
{
    switch (control) {
    case RSOCKET_DISCONNECT:
        stream_break(stream);
        return 0;
    case RSOCKET_SHUTDOWN:
        stream->readable = false;
        if (!stream->writable)
            stream->connected = false;
        return 0;
    default:
        return 0; /* unknown message of a later version */
    }
}

int stream_arrive(struct stream *stream, uint32_t immediate)
{
    uint32_t value = rsocket_immediate_value(immediate);

    switch (rsocket_immediate_message(immediate)) {
    case RSOCKET_DATA:
        if (value > stream->lent)
            return -EPROTO; /* more than the granted window */
        stream->lent -= value;
        stream->readable_bytes += value;
        stream->arrived_unposted++;
        return 0;
    case RSOCKET_CREDITS:
        stream->granted = (uint16_t)value;
        take_windows(stream);
        return 0;
    case RSOCKET_IOMAP:
        stream->arrived_unposted++;
        return value < stream->options.mappings ? 0 : -EPROTO;
    case RSOCKET_CONTROL:
        return arrive_control(stream, value);
    default:
        return -EPROTO;
    }
}

void stream_receives_posted(struct stream *stream)
{
    stream->arrived = (uint16_t)(stream->arrived + stream->arrived_unposted);
    stream->arrived_unposted = 0;
}

void stream_complete(struct stream *stream, uint64_t wr_id)
{
    if (wr_id & STREAM_WR_CONTROL) {
        stream->controls_free++;
        return;
    }
    stream->requests_free += (wr_id >> WR_REQUESTS_SHIFT) & WR_REQUESTS_MASK;
    stream->ring_free += (uint32_t)wr_id;
}

bool stream_is_idle(const struct stream *stream)
{
    return stream->controls_free == STREAM_CONTROLS && stream->requests_free + stream->unsignaled_requests ==
                                                           stream->options.send_requests - STREAM_CONTROLS;
}

void stream_break(struct stream *stream)
{
    stream->connected = stream->readable = stream->writable = false;
    stream->broken = true;
}

/* --- reading -------------------------------------------------------------------------------------------- */

uint32_t stream_peek(const struct stream *stream, uint32_t skip, uint32_t *ret_at)
{
    uint32_t size = stream->options.receive_bytes;
    uint32_t at = skip < size - stream->read_at ? stream->read_at + skip : skip - (size - stream->read_at);

    *ret_at = at;
    return min_of(stream->readable_bytes - skip, size - at);
}

void stream_consume(struct stream *stream, uint32_t length)
{
    uint32_t to_end = stream->options.receive_bytes - stream->read_at;

    stream->readable_bytes -= length;
    stream->read_at = length >= to_end ? length - to_end : stream->read_at + length;
    stream->unlent += length;
}

bool stream_shutdown(struct stream *stream, int how, enum rsocket_control *ret_control)
{
    bool was_connected = stream->connected;

    if (how != SHUT_WR)
        stream->readable = false;
    if (how != SHUT_RD)
        stream->writable = false;
    *ret_control = stream->readable ? RSOCKET_SHUTDOWN : RSOCKET_DISCONNECT;
    return was_connected && !stream->writable;
}
