/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Copies bytes of the program into the send ring and out of the receive ring. The lock is dropped while copying: the
 * call that is inside of a direction is the only one at its end of the ring. */
#include "front/rsockets/rsocket.h"

/* Reads are copied in pieces, so that the peer gets the space back, and can send, in between. */
#define READ_CHUNK (64u << 10)

/* --- the program's buffers ------------------------------------------------------------------------------ */

struct cursor {
    const struct iovec *parts;
    size_t count, offset;
};

static size_t total_of(const struct iovec *parts, size_t count)
{
    size_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += parts[i].iov_len;
    return total;
}

/* The next piece, of at most `wanted` bytes. Some must be left. */
static char *next_piece(struct cursor *cursor, size_t wanted, size_t *ret_length)
{
    while (cursor->offset == cursor->parts->iov_len) {
        cursor->parts++;
        cursor->count--;
        cursor->offset = 0;
    }
    *ret_length = min_of(wanted, cursor->parts->iov_len - cursor->offset);
    cursor->offset += *ret_length;
    return (char *)cursor->parts->iov_base + cursor->offset - *ret_length;
}

static void copy_from(struct cursor *cursor, uint8_t *to, size_t length)
{
    while (length) {
        size_t piece;
        const char *from = next_piece(cursor, length, &piece);

        memcpy(to, from, piece);
        to += piece;
        length -= piece;
    }
}

static void copy_to(struct cursor *cursor, const uint8_t *from, size_t length)
{
    while (length) {
        size_t piece;
        char *to = next_piece(cursor, length, &piece);

        memcpy(to, from, piece);
        from += piece;
        length -= piece;
    }
}

/* --- sending -------------------------------------------------------------------------------------------- */

static int take_error(struct rsocket *rsocket)
{
    int error = rsocket->error;

    rsocket->error = 0;
    return -error;
}

int transfer_send_error(struct rsocket *rsocket)
{
    if (rsocket->error)
        return take_error(rsocket);
    return rsocket->shut_write ? -EPIPE : -ECONNRESET;
}

static int write_next(struct rsocket *rsocket, const struct stream_write *write, struct cursor *cursor)
{
    uint8_t gathered[1024];
    const void *data = gathered;
    size_t piece;

    if (!write->inlined) {
        for (unsigned i = 0; i < write->piece_count; i++)
            copy_from(cursor, rsocket->endpoint.send_ring + write->pieces[i].at, write->pieces[i].length);
        return endpoint_write(rsocket, write, NULL);
    }
    data = next_piece(cursor, write->length, &piece);
    if (piece < write->length) {
        memcpy(gathered, data, piece);
        copy_from(cursor, gathered + piece, write->length - piece);
        data = gathered;
    }
    return endpoint_write(rsocket, write, data);
}

/* The caller is inside of the send direction. */
static ssize_t send_bytes(struct rsocket *rsocket, struct cursor *cursor, size_t total,
                          struct rsocket_patience *patience)
{
    size_t left = total;
    int error = 0;

    while (left && !error) {
        struct stream_write write;

        if (!stream_can_send(&rsocket->stream)) {
            if (!rsocket->stream.writable || rsocket->closing)
                break;
            error = rsocket_wait(rsocket, patience);
            continue;
        }
        stream_send(&rsocket->stream, left, &write);
        lock_release(&rsocket->lock);
        error = write_next(rsocket, &write, cursor);
        lock_acquire(&rsocket->lock);
        if (error) {
            endpoint_fail(rsocket, error);
            break;
        }
        left -= write.length;
    }
    if (left < total)
        return (ssize_t)(total - left);
    return error == -EAGAIN || error == -EINTR ? error : transfer_send_error(rsocket);
}

/* Waits for the end of connecting, unless the call is nonblocking. */
static int be_connected(struct rsocket *rsocket, bool nonblocking)
{
    int error;

    if (likely(rsocket->phase == PHASE_CONNECTED))
        return 0;
    if (rsocket->phase == PHASE_CONNECTING) {
        error = connect_finish(rsocket, nonblocking);
        if (error || rsocket->phase == PHASE_CONNECTED)
            return error;
    }
    return rsocket->error ? take_error(rsocket) : -ENOTCONN;
}

ssize_t transfer_send(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags)
{
    struct cursor cursor = {parts, count, 0};
    struct rsocket_patience patience = {.nonblocking = rsocket_must_not_wait(rsocket, flags)};
    size_t total = total_of(parts, count);
    ssize_t result = be_connected(rsocket, patience.nonblocking);

    if (result)
        return result;
    if (!rsocket->stream.writable)
        return transfer_send_error(rsocket);
    result = rsocket_enter_direction(rsocket, &rsocket->sending, &patience);
    if (result)
        return result;
    if (unlikely(rsocket->mappings_unsaid))
        result = mappings_say(rsocket, &patience);
    if (!result && total)
        result = send_bytes(rsocket, &cursor, total, &patience);
    rsocket_leave_direction(rsocket, &rsocket->sending);
    return result;
}

/* --- receiving ------------------------------------------------------------------------------------------ */

/* Copies the bytes that have arrived, or one piece of them. */
static size_t read_bytes(struct rsocket *rsocket, struct cursor *cursor, size_t wanted)
{
    size_t most = min_of(wanted, (size_t)READ_CHUNK);
    uint32_t at, length = stream_peek(&rsocket->stream, 0, &at);

    length = min_of(length, (uint32_t)most);
    lock_release(&rsocket->lock);
    copy_to(cursor, rsocket->endpoint.receive_ring + at, length);
    lock_acquire(&rsocket->lock);
    stream_consume(&rsocket->stream, length);
    endpoint_send_credits(rsocket);
    return length;
}

/* A caller that peeks until enough bytes have arrived also needs those that arrive in between. */
static size_t peek_bytes(struct rsocket *rsocket, struct cursor *cursor, size_t wanted)
{
    uint32_t there, done = 0;

    if (rsocket->stream.readable_bytes < wanted)
        rsocket_progress(rsocket, false);
    there = (uint32_t)min_of(wanted, (size_t)rsocket->stream.readable_bytes);
    while (done < there) {
        uint32_t at, length = stream_peek(&rsocket->stream, done, &at);

        length = min_of(length, there - done);
        copy_to(cursor, rsocket->endpoint.receive_ring + at, length);
        done += length;
    }
    return there;
}

/* Waits until bytes arrive. False: none will, with the reason in *ret_error; 0 at the end of the stream. */
static bool wait_for_bytes(struct rsocket *rsocket, struct rsocket_patience *patience, int *ret_error)
{
    *ret_error = 0;
    while (!rsocket->stream.readable_bytes && !*ret_error) {
        if (!rsocket->stream.readable || rsocket->closing)
            return false;
        *ret_error = rsocket_wait(rsocket, patience);
    }
    return !*ret_error;
}

/* The caller is inside of the receive direction. */
static ssize_t receive_bytes(struct rsocket *rsocket, struct cursor *cursor, size_t total, int flags,
                             struct rsocket_patience *patience)
{
    size_t left = total;
    int error;

    do {
        if (!wait_for_bytes(rsocket, patience, &error))
            break;
        if (flags & MSG_PEEK) {
            left -= peek_bytes(rsocket, cursor, left);
            break;
        }
        while (left && rsocket->stream.readable_bytes)
            left -= read_bytes(rsocket, cursor, left);
    } while (left && (flags & MSG_WAITALL));
    if (left < total)
        return (ssize_t)(total - left);
    return error || !rsocket->error ? error : take_error(rsocket);
}

ssize_t transfer_receive(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags)
{
    struct cursor cursor = {parts, count, 0};
    struct rsocket_patience patience = {.nonblocking = rsocket_must_not_wait(rsocket, flags)};
    size_t total = total_of(parts, count);
    ssize_t result = be_connected(rsocket, patience.nonblocking);

    if (result || !total)
        return result;
    result = rsocket_enter_direction(rsocket, &rsocket->receiving, &patience);
    if (result)
        return result;
    result = receive_bytes(rsocket, &cursor, total, flags, &patience);
    rsocket_leave_direction(rsocket, &rsocket->receiving);
    return result;
}
