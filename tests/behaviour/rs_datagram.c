/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: datagrams. They may get lost, so whoever wants an answer asks until it comes. */
#include "rs.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct bound {
    struct rs_end end;
    struct sockaddr_storage address;
};

static void bind_here(void *arg)
{
    struct bound *bound = arg;
    socklen_t length = sizeof bound->address;

    bound->address = cm_address(0);
    RS_IS(rbind(bound->end.fd, as_sockaddr(&bound->address), cm_length(&bound->address)), 0);
    RS_IS(rgetsockname(bound->end.fd, as_sockaddr(&bound->address), &length), 0);
    rs_set_nonblocking(bound->end.fd, true);
}

static struct bound open_bound(struct side *side)
{
    struct bound bound;

    memset(&bound, 0, sizeof bound);
    rs_open(&bound.end, side, SOCK_DGRAM, NULL);
    side_call(side, bind_here, &bound, sizeof bound);
    return bound;
}

/* Sends back what comes, until a datagram of no bytes. */
struct echo {
    int fd;
    unsigned answered;
};

static void echo_here(void *arg)
{
    struct echo *echo = arg;
    struct pollfd watched = {.fd = echo->fd, .events = POLLIN};
    struct sockaddr_storage from;
    uint8_t data[2048];
    ssize_t got = -1;

    while (got) {
        socklen_t length = sizeof from;

        memset(&from, 0, sizeof from);
        RS_IS(rpoll(&watched, 1, 60000), 1);
        got = rrecvfrom(echo->fd, data, sizeof data, 0, as_sockaddr(&from), &length);
        assert_true(got >= 0);
        assert_int_equal(length, cm_length(&from));
        if (got)
            RS_IS(rsendto(echo->fd, data, (size_t)got, 0, as_sockaddr(&from), length), got);
        echo->answered++;
    }
}

static size_t ask(int fd, const struct sockaddr_storage *to, const uint8_t *data, size_t length,
                  uint8_t *ret_answer)
{
    struct pollfd watched = {.fd = fd, .events = POLLIN};
    struct sockaddr_storage from = {0};
    socklen_t from_bytes = sizeof from;
    int ready;
    ssize_t got;

    RS_IS(rsendto(fd, data, length, 0, (const struct sockaddr *)to, cm_length(to)), length);
    EVENTUALLY((ready = rpoll(&watched, 1, 200)) == 1, "an answer") /* one of the two may be lost */
    RS_IS(rsendto(fd, data, length, 0, (const struct sockaddr *)to, cm_length(to)), length);
    got = rrecvfrom(fd, ret_answer, 2048, 0, as_sockaddr(&from), &from_bytes);
    assert_true(got >= 0);
    assert_memory_equal(&from, to, cm_length(to));
    return (size_t)got;
}

/* An answer may come twice, when the question did. */
static void forget_answers(int fd)
{
    uint8_t data[2048];

    while (rrecv(fd, data, sizeof data, MSG_DONTWAIT) >= 0)
        ;
    assert_int_equal(errno, EAGAIN);
}

static void datagrams_come_whole_and_say_from_whom(void **state)
{
    static const size_t lengths[] = {1, 8, 64, 65, 500, 900};
    struct bound near = open_bound(NEAR), far = open_bound(FAR);
    struct echo echo = {.fd = far.end.fd};
    uint8_t data[2048], answer[2048];
    struct call call;

    side_start(&call, FAR, echo_here, &echo, sizeof echo);
    for (size_t i = 0; i < 60; i++) { /* the first by UDP, the others by their QPs */
        size_t length = lengths[i % COUNT(lengths)];

        forget_answers(near.end.fd);
        rs_fill(data, i * 1000, length);
        if (ask(near.end.fd, &far.address, data, length, answer) == length && !memcmp(data, answer, length))
            continue;
        i--; /* an answer to an earlier question that was asked twice */
    }
    for (int i = 0; i < 20; i++) /* one of them arrives */
        RS_IS(rsendto(near.end.fd, NULL, 0, 0, as_sockaddr(&far.address), cm_length(&far.address)), 0);
    side_finish(&call);
    assert_true(echo.answered > 60);
    rs_close(&near.end);
    rs_close(&far.end);
}

/* Both ends here: what is sent is there at once or not at all. */
struct local_pair {
    struct bound a, b;
};

static struct local_pair open_pair(void)
{
    struct local_pair pair = {open_bound(NEAR), open_bound(NEAR)};
    uint8_t answer[2048];

    /* Each learns the other's QP. */
    for (int i = 0; i < 2; i++) {
        struct bound *from = i ? &pair.a : &pair.b, *to = i ? &pair.b : &pair.a;

        EVENTUALLY(rrecv(to->end.fd, answer, sizeof answer, MSG_DONTWAIT) == 3, "a first datagram")
        RS_IS(rsendto(from->end.fd, "abc", 3, 0, as_sockaddr(&to->address), cm_length(&to->address)), 3);
    }
    forget_answers(pair.a.end.fd);
    forget_answers(pair.b.end.fd);
    return pair;
}

static void close_pair(struct local_pair *pair)
{
    rs_close(&pair->a.end);
    rs_close(&pair->b.end);
}

/* Datagrams of the beginning that were asked twice may still come. */
static ssize_t receive(int fd, void *data, size_t length, int flags, size_t wanted)
{
    ssize_t got = -1;

    EVENTUALLY((got = rrecv(fd, data, length, flags | MSG_DONTWAIT | MSG_TRUNC)) == (ssize_t)wanted,
               "%zu bytes", wanted)
    {
        CHECK(got == 3 || (got < 0 && errno == EAGAIN), "rrecv is %zd, errno %s", got, strerror(errno));
        if (got == 3 && (flags & MSG_PEEK))
            RS_IS(rrecv(fd, data, length, 0), 3);
    }
    return got;
}

static void what_does_not_fit_is_cut(void **state)
{
    struct local_pair pair = open_pair();
    struct iovec part;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    uint8_t data[100], got[100];

    rs_fill(data, 0, sizeof data);
    RS_IS(rsendto(pair.a.end.fd, data, 100, 0, as_sockaddr(&pair.b.address), cm_length(&pair.b.address)),
          100);
    receive(pair.b.end.fd, got, 10, MSG_PEEK, 100);
    rs_check(got, 0, 10);
    RS_IS(rrecv(pair.b.end.fd, got, 20, MSG_PEEK), 20);
    part = (struct iovec){got, 30};
    RS_IS(rrecvmsg(pair.b.end.fd, &message, 0), 30);
    assert_true(message.msg_flags & MSG_TRUNC);
    rs_check(got, 0, 30);
    close_pair(&pair);
}

static void what_is_too_long_is_refused(void **state)
{
    struct local_pair pair = open_pair();
    static uint8_t data[4096];

    RS_FAILS(rsendto(pair.a.end.fd, data, sizeof data, 0, as_sockaddr(&pair.b.address),
                     cm_length(&pair.b.address)),
             EMSGSIZE);
    RS_FAILS(rsendto(pair.a.end.fd, data, 10, 0, NULL, 0), EDESTADDRREQ);
    RS_FAILS(rsend(pair.a.end.fd, data, 10, 0), EDESTADDRREQ);
    RS_FAILS(rsendto(pair.a.end.fd, data, 10, 0, as_sockaddr(&pair.b.address), 3), EINVAL);
    RS_FAILS(rlisten(pair.a.end.fd, 1), EOPNOTSUPP);
    RS_FAILS(raccept(pair.a.end.fd, NULL, NULL), EOPNOTSUPP);
    close_pair(&pair);
}

static void who_is_connected_hears_its_peer_only(void **state)
{
    struct local_pair pair = open_pair();
    struct bound other = open_bound(NEAR);
    struct sockaddr_storage peer = {0};
    socklen_t length = sizeof peer;
    uint8_t got[100];

    RS_IS(rconnect(pair.b.end.fd, as_sockaddr(&pair.a.address), cm_length(&pair.a.address)), 0);
    RS_IS(rgetpeername(pair.b.end.fd, as_sockaddr(&peer), &length), 0);
    assert_memory_equal(&peer, &pair.a.address, cm_length(&peer));
    RS_IS(rsendto(other.end.fd, "other", 5, 0, as_sockaddr(&pair.b.address), cm_length(&pair.b.address)), 5);
    RS_IS(rsendto(pair.a.end.fd, "peers", 4, 0, as_sockaddr(&pair.b.address), cm_length(&pair.b.address)), 4);
    receive(pair.b.end.fd, got, sizeof got, 0, 4);
    assert_memory_equal(got, "peer", 4);
    RS_IS(rsend(pair.b.end.fd, "back", 4, 0), 4);
    receive(pair.a.end.fd, got, sizeof got, 0, 4);
    assert_memory_equal(got, "back", 4);
    rs_close(&other.end);
    close_pair(&pair);
}

static int receive_in_thread(void *arg)
{
    const int *fd = arg;
    char bytes[10];
    ssize_t got;

    rs_set_nonblocking(*fd, false);
    do {
        got = rrecv(*fd, bytes, sizeof bytes, 0);
    } while (got == 3); /* of the beginning */
    return (int)got;
}

static void a_receiver_that_sleeps_is_woken(void **state)
{
    struct local_pair pair = open_pair();
    struct caller caller;

    for (int i = 0; i < 20; i++) {
        caller_start(&caller, receive_in_thread, &pair.b.end.fd);
        assert_true(caller_is_blocked(&caller));
        RS_IS(rsendto(pair.a.end.fd, "wake", 4, 0, as_sockaddr(&pair.b.address), cm_length(&pair.b.address)),
              4);
        assert_int_equal(caller_finish(&caller), 4);
    }
    close_pair(&pair);
}

static void closing_ends_a_call_that_sleeps(void **state)
{
    struct local_pair pair = open_pair();
    struct caller caller;

    caller_start(&caller, receive_in_thread, &pair.b.end.fd);
    assert_true(caller_is_blocked(&caller));
    close_pair(&pair);
    assert_int_equal(caller_finish(&caller), -1);
}

/* Anybody may send to a UDP port. */
static void packets_of_others_are_nothing(void **state)
{
    static const char *const packets[] = {"", "UUUU", "UUUU\x04\x00\x10\x00",
                                          "UUUU\x04\x09\x10\x00\x00\x00\x00\x00\x7f\x00\x00",
                                          "a line of text, of somebody else's"};
    struct local_pair pair = open_pair();
    int fd = socket(pair.a.address.ss_family, SOCK_DGRAM, 0);
    uint8_t got[100];

    assert_true(fd >= 0);
    for (size_t i = 0; i < COUNT(packets); i++)
        assert_true(sendto(fd, packets[i],
                           i == 3   ? 15
                           : i == 2 ? 8
                                    : strlen(packets[i]),
                           0, as_sockaddr(&pair.b.address), cm_length(&pair.b.address)) >= 0);
    RS_IS(rsendto(pair.a.end.fd, "right", 5, 0, as_sockaddr(&pair.b.address), cm_length(&pair.b.address)), 5);
    receive(pair.b.end.fd, got, sizeof got, 0, 5);
    close(fd);
    close_pair(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(datagrams_come_whole_and_say_from_whom),
        TEST(what_does_not_fit_is_cut),
        TEST(what_is_too_long_is_refused),
        TEST(who_is_connected_hears_its_peer_only),
        TEST(a_receiver_that_sleeps_is_woken),
        TEST(closing_ends_a_call_that_sleeps),
        TEST(packets_of_others_are_nothing),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
