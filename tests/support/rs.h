/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * rsockets of a test. A struct rs_end is a descriptor on one side; what begins with rs_ happens where the end
 * lives, except that the near end's descriptor may be given to the r* calls directly. Bytes of a stream are a
 * pattern of their position, so that whoever reads knows what they must be.
 */
#ifndef TESTS_SUPPORT_RS_H
#define TESTS_SUPPORT_RS_H

#include "cm.h"
#include "threads.h"

#include <poll.h>

#include <rdma/rsocket.h>

struct rs_end {
    struct side *side;
    int fd;
};

struct rs_pair {
    struct rs_end near, far; /* connected to each other; near by rconnect(), far by raccept() */
    struct rs_end listener;  /* far */
    uint16_t port;
};

/* A call that failed must have left that errno. */
#define RS_FAILS(call, expected)                                                                             \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        const long long failed_ = (long long)(call);                                                         \
        CHECK(failed_ == -1 && errno == (expected), "%s is %lld, errno %s, and not %s", #call, failed_,      \
              strerror(errno), strerror(expected));                                                          \
    } while (0)

#define RS_IS(call, expected)                                                                                \
    do {                                                                                                     \
        const long long got_ = (long long)(call), expected_ = (long long)(expected);                         \
        CHECK(got_ == expected_, "%s is %lld, errno %s, and not %lld", #call, got_, strerror(errno),         \
              expected_);                                                                                    \
    } while (0)

struct rs_setting {
    int level, option, value;
};

/* What an end is given before it connects or listens; ends with level 0. */
void rs_open(struct rs_end *end, struct side *side, int type, const struct rs_setting *settings);
/* Bound to the address under test and listening: the port. */
uint16_t rs_listen(struct rs_end *end, int backlog);
void rs_connect(struct rs_end *end, uint16_t port);
struct rs_end rs_accept(struct rs_end *listener);
void rs_close(struct rs_end *end);

void rs_pair_open(struct rs_pair *pair);
void rs_pair_open_with(struct rs_pair *pair, const struct rs_setting *settings);
void rs_pair_close(struct rs_pair *pair);

/* Sends the bytes of the positions [from, from + length), or reads and compares them, blocking, in calls of
 * `chunk` bytes. */
struct rs_bytes {
    int fd;
    uint64_t from, length;
    size_t chunk;
    int flags;
    uint64_t done; /* less if the stream ended */
    int error;     /* why; 0: the peer's end */
};
uint8_t rs_pattern(uint64_t position);
void rs_fill(uint8_t *buffer, uint64_t from, size_t length);
void rs_check(const uint8_t *buffer, uint64_t from, size_t length);
void rs_send_all(void *arg);    /* struct rs_bytes */
void rs_receive_all(void *arg); /* the same */
void rs_echo_all(void *arg);    /* sends back what it reads */

/* From one end to the other, which reads meanwhile. */
void rs_transfer(struct rs_end *from, struct rs_end *to, uint64_t length, size_t chunk);
/* A few bytes each way. */
void rs_talk(struct rs_pair *pair);

/* Waits until rpoll() reports all of these events; returns what it reports. */
short rs_await(int fd, short events);
int rs_error(int fd); /* SO_ERROR */
void rs_set_nonblocking(int fd, bool nonblocking);

#endif
