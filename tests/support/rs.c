/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rs.h"

#include <fcntl.h>
#include <stdlib.h>

/* --- ends --- */

struct opening {
    struct rs_end end;
    int type;
    struct rs_setting settings[8];
};

static void open_here(void *arg)
{
    struct opening *opening = arg;

    opening->end.fd = rsocket(cm_address(0).ss_family, opening->type, 0);
    CHECK(opening->end.fd >= 0, "rsocket: %s", strerror(errno));
    for (const struct rs_setting *s = opening->settings; s->level; s++)
        CHECK(rsetsockopt(opening->end.fd, s->level, s->option, &s->value, sizeof s->value) == 0,
              "rsetsockopt(%d, %d, %d): %s", s->level, s->option, s->value, strerror(errno));
}

void rs_open(struct rs_end *end, struct side *side, int type, const struct rs_setting *settings)
{
    struct opening opening = {.end.side = side, .type = type};

    for (unsigned i = 0; settings && settings[i].level; i++) {
        CHECK(i + 1 < COUNT(opening.settings), "too many settings");
        opening.settings[i] = settings[i];
    }
    side_call(side, open_here, &opening, sizeof opening);
    *end = opening.end;
}

struct call_of_end {
    int fd, backlog, result;
    uint16_t port;
};

static void listen_here(void *arg)
{
    struct call_of_end *call = arg;
    struct sockaddr_storage address = cm_address(0);
    socklen_t length = sizeof address;

    RS_IS(rbind(call->fd, as_sockaddr(&address), cm_length(&address)), 0);
    RS_IS(rlisten(call->fd, call->backlog), 0);
    RS_IS(rgetsockname(call->fd, as_sockaddr(&address), &length), 0);
    call->port = ntohs(((struct sockaddr_in *)&address)->sin_port);
}

uint16_t rs_listen(struct rs_end *end, int backlog)
{
    struct call_of_end call = {.fd = end->fd, .backlog = backlog};

    side_call(end->side, listen_here, &call, sizeof call);
    return call.port;
}

static void connect_here(void *arg)
{
    struct call_of_end *call = arg;
    struct sockaddr_storage address = cm_address(call->port);

    RS_IS(rconnect(call->fd, as_sockaddr(&address), cm_length(&address)), 0);
}

void rs_connect(struct rs_end *end, uint16_t port)
{
    struct call_of_end call = {.fd = end->fd, .port = port};

    side_call(end->side, connect_here, &call, sizeof call);
}

static void accept_here(void *arg)
{
    struct call_of_end *call = arg;

    call->result = raccept(call->fd, NULL, NULL);
    CHECK(call->result >= 0, "raccept: %s", strerror(errno));
}

struct rs_end rs_accept(struct rs_end *listener)
{
    struct call_of_end call = {.fd = listener->fd};

    side_call(listener->side, accept_here, &call, sizeof call);
    return (struct rs_end){listener->side, call.result};
}

static void close_here(void *arg)
{
    const int *fd = arg;

    RS_IS(rclose(*fd), 0);
}

void rs_close(struct rs_end *end)
{
    if (end->fd >= 0)
        side_call(end->side, close_here, &end->fd, sizeof end->fd);
    end->fd = -1;
}

void rs_pair_open_with(struct rs_pair *pair, const struct rs_setting *settings)
{
    rs_open(&pair->listener, FAR, SOCK_STREAM, settings);
    pair->port = rs_listen(&pair->listener, 8);
    rs_open(&pair->near, NEAR, SOCK_STREAM, settings);
    rs_connect(&pair->near, pair->port);
    pair->far = rs_accept(&pair->listener);
}

void rs_pair_open(struct rs_pair *pair)
{
    rs_pair_open_with(pair, NULL);
}

void rs_pair_close(struct rs_pair *pair)
{
    rs_close(&pair->near);
    rs_close(&pair->far);
    rs_close(&pair->listener);
}

/* --- bytes --- */

uint8_t rs_pattern(uint64_t position)
{
    return (uint8_t)(position * 7 + (position >> 8) * 13 + (position >> 20));
}

void rs_fill(uint8_t *buffer, uint64_t from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        buffer[i] = rs_pattern(from + i);
}

void rs_check(const uint8_t *buffer, uint64_t from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        CHECK(buffer[i] == rs_pattern(from + i), "byte %llu of the stream is %u and not %u",
              (unsigned long long)(from + i), buffer[i], rs_pattern(from + i));
}

void rs_send_all(void *arg)
{
    struct rs_bytes *bytes = arg;
    uint8_t *buffer = malloc(bytes->chunk);

    CHECK(buffer, "no memory");
    while (bytes->done < bytes->length) {
        size_t left = bytes->length - bytes->done, chunk = left < bytes->chunk ? left : bytes->chunk;
        ssize_t sent;

        rs_fill(buffer, bytes->from + bytes->done, chunk);
        sent = rsend(bytes->fd, buffer, chunk, bytes->flags);
        if (sent < 0) {
            bytes->error = errno;
            break;
        }
        CHECK(sent > 0 && (size_t)sent <= chunk, "rsend of %zu bytes is %zd", chunk, sent);
        bytes->done += (uint64_t)sent;
    }
    free(buffer);
}

void rs_receive_all(void *arg)
{
    struct rs_bytes *bytes = arg;
    uint8_t *buffer = malloc(bytes->chunk);

    CHECK(buffer, "no memory");
    while (bytes->done < bytes->length) {
        size_t left = bytes->length - bytes->done, chunk = left < bytes->chunk ? left : bytes->chunk;
        ssize_t got = rrecv(bytes->fd, buffer, chunk, bytes->flags);

        if (got <= 0) {
            bytes->error = got ? errno : 0;
            break;
        }
        CHECK((size_t)got <= chunk, "rrecv of %zu bytes is %zd", chunk, got);
        rs_check(buffer, bytes->from + bytes->done, (size_t)got);
        bytes->done += (uint64_t)got;
    }
    free(buffer);
}

void rs_echo_all(void *arg)
{
    struct rs_bytes *bytes = arg, piece = *bytes;

    while (bytes->done < bytes->length) {
        piece.length =
            bytes->length - bytes->done < bytes->chunk ? bytes->length - bytes->done : bytes->chunk;
        piece.from = bytes->from + bytes->done;
        piece.done = 0;
        rs_receive_all(&piece);
        CHECK(piece.done == piece.length, "the stream ended: %s", strerror(piece.error));
        piece.done = 0;
        rs_send_all(&piece);
        CHECK(piece.done == piece.length, "rsend: %s", strerror(piece.error));
        bytes->done += piece.length;
    }
}

void rs_transfer(struct rs_end *from, struct rs_end *to, uint64_t length, size_t chunk)
{
    struct rs_bytes out = {.fd = from->fd, .length = length, .chunk = chunk};
    struct rs_bytes in = {.fd = to->fd, .length = length, .chunk = chunk};
    struct rs_end *far = from->side == NEAR ? to : from;
    struct call call;

    side_start(&call, far->side, far == to ? rs_receive_all : rs_send_all, far == to ? &in : &out, sizeof in);
    side_call(NEAR, far == to ? rs_send_all : rs_receive_all, far == to ? &out : &in, sizeof in);
    side_finish(&call);
    CHECK(out.done == length && in.done == length, "%llu bytes sent (%s), %llu received (%s) of %llu",
          (unsigned long long)out.done, strerror(out.error), (unsigned long long)in.done, strerror(in.error),
          (unsigned long long)length);
}

void rs_talk(struct rs_pair *pair)
{
    rs_transfer(&pair->near, &pair->far, 100, 100);
    rs_transfer(&pair->far, &pair->near, 100, 100);
}

/* --- states --- */

short rs_await(int fd, short events)
{
    struct pollfd watched = {.fd = fd, .events = events};

    EVENTUALLY((watched.revents & events) == events, "rpoll() to report %#x", events)
    CHECK(rpoll(&watched, 1, 100) >= 0, "rpoll: %s", strerror(errno));
    return watched.revents;
}

int rs_error(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;

    RS_IS(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    assert_int_equal(length, sizeof error);
    return error;
}

void rs_set_nonblocking(int fd, bool nonblocking)
{
    RS_IS(rfcntl(fd, F_SETFL, nonblocking ? O_NONBLOCK : 0), 0);
}
