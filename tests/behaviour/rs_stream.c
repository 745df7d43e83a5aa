/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: streams of bytes. */
#include "rs.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>

static const struct rs_setting small_buffers[] = {
    {SOL_SOCKET, SO_SNDBUF, 4096}, {SOL_SOCKET, SO_RCVBUF, 4096}, {0, 0, 0}};

/* --- bytes --- */

static void bytes_arrive_in_order_in_both_directions(void **state)
{
    struct rs_pair pair;

    rs_pair_open(&pair);
    for (size_t chunk = 1; chunk <= 1 << 20; chunk = chunk * 5 + 3) {
        uint64_t length = chunk < 4096 ? chunk * 300 : chunk * 5;

        rs_transfer(&pair.near, &pair.far, length, chunk);
        rs_transfer(&pair.far, &pair.near, length, chunk);
    }
    rs_pair_close(&pair);
}

static void a_huge_transfer_arrives_whole(void **state)
{
    struct rs_pair pair;

    rs_pair_open(&pair);
    rs_transfer(&pair.near, &pair.far, (64u << 20) / slowness(), 3000000);
    rs_pair_close(&pair);
}

static void small_buffers_and_queues_only_make_it_slow(void **state)
{
    const struct rs_setting settings[] = {{SOL_SOCKET, SO_SNDBUF, 1}, {SOL_SOCKET, SO_RCVBUF, 1},
                                          {SOL_RDMA, RDMA_SQSIZE, 1}, {SOL_RDMA, RDMA_RQSIZE, 1},
                                          {SOL_RDMA, RDMA_INLINE, 0}, {0, 0, 0}};
    struct rs_pair pair;

    rs_pair_open_with(&pair, settings);
    rs_transfer(&pair.near, &pair.far, 300000, 70000);
    rs_transfer(&pair.far, &pair.near, 5000, 1);
    rs_pair_close(&pair);
}

/* The other side echoes: it does one thing at a time. */
static void both_directions_at_once(void **state)
{
    const uint64_t length = (8u << 20) / slowness();
    struct rs_bytes out = {.length = length, .chunk = 50000}, in = {.length = length, .chunk = 30000};
    struct rs_bytes far = {.length = length, .chunk = 40000};
    struct call sending, receiving;
    struct rs_pair pair;

    rs_pair_open(&pair);
    out.fd = in.fd = pair.near.fd;
    far.fd = pair.far.fd;
    side_start(&sending, NEAR, rs_send_all, &out, sizeof out);
    side_start(&receiving, NEAR, rs_receive_all, &in, sizeof in);
    side_call(FAR, rs_echo_all, &far, sizeof far);
    side_finish(&sending);
    side_finish(&receiving);
    assert_int_equal(out.done, length);
    assert_int_equal(in.done, length);
    rs_pair_close(&pair);
}

static void vectors_are_gathered_and_scattered(void **state)
{
    struct rs_pair pair;
    uint8_t a[3], b[2000], c[300], back[2303];
    struct iovec out[] = {{a, sizeof a}, {NULL, 0}, {b, sizeof b}, {c, sizeof c}};
    struct iovec in[] = {{back, 1000}, {back + 1000, 3}, {back + 1003, 1300}};
    struct msghdr message = {.msg_iov = out, .msg_iovlen = 4};
    struct rs_bytes far = {.length = 2 * sizeof back, .chunk = 4000};

    rs_pair_open(&pair);
    rs_fill(a, 0, sizeof a);
    rs_fill(b, sizeof a, sizeof b);
    rs_fill(c, sizeof a + sizeof b, sizeof c);
    RS_IS(rwritev(pair.near.fd, out, 4), sizeof back);
    rs_fill(a, sizeof back, sizeof a);
    rs_fill(b, sizeof back + sizeof a, sizeof b);
    rs_fill(c, sizeof back + sizeof a + sizeof b, sizeof c);
    RS_IS(rsendmsg(pair.near.fd, &message, 0), sizeof back);
    far.fd = pair.far.fd;
    side_call(FAR, rs_receive_all, &far, sizeof far);
    assert_int_equal(far.done, far.length);

    far.done = 0;
    side_call(FAR, rs_send_all, &far, sizeof far);
    message = (struct msghdr){.msg_iov = in, .msg_iovlen = 3};
    RS_IS(rrecvmsg(pair.near.fd, &message, MSG_WAITALL), sizeof back);
    rs_check(back, 0, sizeof back);
    rs_await(pair.near.fd, POLLIN);
    for (size_t got = 0; got < sizeof back;) {
        ssize_t now = rreadv(pair.near.fd, in, 3);

        assert_true(now > 0);
        rs_check(back, sizeof back + got, (size_t)now);
        got += (size_t)now;
    }
    rs_pair_close(&pair);
}

static void control_data_is_not_supported(void **state)
{
    char byte = 0, control[64];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct rs_pair pair;

    rs_pair_open(&pair);
    RS_FAILS(rsendmsg(pair.near.fd, &message, 0), ENOTSUP);
    RS_FAILS(rrecvmsg(pair.near.fd, &message, MSG_DONTWAIT), ENOTSUP);
    rs_pair_close(&pair);
}

static void peeking_leaves_the_bytes_there(void **state)
{
    struct rs_bytes far = {.length = 1000, .chunk = 100};
    uint8_t buffer[1000];
    struct rs_pair pair;

    rs_pair_open(&pair);
    far.fd = pair.far.fd;
    side_call(FAR, rs_send_all, &far, sizeof far);
    RS_IS(rrecv(pair.near.fd, buffer, 600, MSG_WAITALL), 600);
    EVENTUALLY(rrecv(pair.near.fd, buffer, sizeof buffer, MSG_PEEK) == 400, "the rest");
    rs_check(buffer, 600, 400);
    RS_IS(rrecv(pair.near.fd, buffer, 10, MSG_PEEK | MSG_DONTWAIT), 10);
    rs_check(buffer, 600, 10);
    RS_IS(rread(pair.near.fd, buffer, sizeof buffer), 400);
    rs_check(buffer, 600, 400);
    RS_FAILS(rrecv(pair.near.fd, buffer, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    rs_pair_close(&pair);
}

/* Nobody looks for what arrives but who peeks. */
static void peeking_finds_what_has_come_since(void **state)
{
    struct rs_bytes far = {.length = 100, .chunk = 100};
    uint8_t buffer[1000];
    struct rs_pair pair;

    rs_pair_open(&pair);
    far.fd = pair.far.fd;
    side_call(FAR, rs_send_all, &far, sizeof far);
    rs_await(pair.near.fd, POLLIN);
    far.from = 100;
    far.done = 0;
    side_call(FAR, rs_send_all, &far, sizeof far);
    EVENTUALLY(rrecv(pair.near.fd, buffer, sizeof buffer, MSG_PEEK) == 200, "both");
    rs_check(buffer, 0, 200);
    rs_pair_close(&pair);
}

static void nothing_is_sent_by_sending_nothing(void **state)
{
    struct rs_pair pair;
    char byte;

    rs_pair_open(&pair);
    RS_IS(rsend(pair.near.fd, NULL, 0, 0), 0);
    RS_IS(rrecv(pair.near.fd, &byte, 0, 0), 0);
    RS_FAILS(rrecv(pair.near.fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    rs_talk(&pair);
    rs_pair_close(&pair);
}

/* --- without waiting --- */

static uint64_t send_what_fits(int fd)
{
    uint8_t buffer[10000];
    uint64_t sent = 0;

    for (;;) {
        ssize_t now;

        rs_fill(buffer, sent, sizeof buffer);
        now = rsend(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (now < 0) {
            assert_int_equal(errno, EAGAIN);
            return sent;
        }
        assert_true(now > 0);
        sent += (uint64_t)now;
    }
}

static void a_full_stream_takes_a_part_and_then_nothing(void **state)
{
    struct rs_bytes far = {.chunk = 777};
    struct rs_pair pair;
    uint64_t sent;

    rs_pair_open_with(&pair, small_buffers);
    for (int i = 0; i < 20; i++) {
        sent = send_what_fits(pair.near.fd);
        assert_in_range(sent, 4096, 1 << 20);
        far = (struct rs_bytes){.fd = pair.far.fd, .length = sent, .chunk = 777};
        side_call(FAR, rs_receive_all, &far, sizeof far);
        assert_int_equal(far.done, sent);
        rs_await(pair.near.fd, POLLOUT);
    }
    rs_pair_close(&pair);
}

static void writable_means_that_something_can_be_sent(void **state)
{
    struct rs_pair pair;
    struct rs_bytes far = {.length = 300000, .chunk = 1000};
    struct call call;
    uint64_t sent = 0;
    uint8_t buffer[5000];

    rs_pair_open_with(&pair, small_buffers);
    rs_set_nonblocking(pair.near.fd, true);
    far.fd = pair.far.fd;
    side_start(&call, FAR, rs_receive_all, &far, sizeof far);
    while (sent < far.length) {
        size_t left = far.length - sent < sizeof buffer ? far.length - sent : sizeof buffer;
        ssize_t now;

        rs_await(pair.near.fd, POLLOUT);
        rs_fill(buffer, sent, left);
        now = rsend(pair.near.fd, buffer, left, 0);
        CHECK(now > 0, "rsend after POLLOUT is %zd, errno %s", now, strerror(errno));
        sent += (uint64_t)now;
    }
    side_finish(&call);
    assert_int_equal(far.done, far.length);
    rs_pair_close(&pair);
}

static void readable_means_that_something_can_be_read(void **state)
{
    struct rs_pair pair;
    struct rs_bytes far = {.length = 300000, .chunk = 3000};
    struct call call;
    uint64_t got = 0;
    uint8_t buffer[5000];

    rs_pair_open_with(&pair, small_buffers);
    rs_set_nonblocking(pair.near.fd, true);
    far.fd = pair.far.fd;
    side_start(&call, FAR, rs_send_all, &far, sizeof far);
    while (got < far.length) {
        ssize_t now;

        rs_await(pair.near.fd, POLLIN);
        now = rrecv(pair.near.fd, buffer, sizeof buffer, 0);
        CHECK(now > 0, "rrecv after POLLIN is %zd, errno %s", now, strerror(errno));
        rs_check(buffer, got, (size_t)now);
        got += (uint64_t)now;
    }
    side_finish(&call);
    rs_pair_close(&pair);
}

/* --- ends --- */

static void shut(void *arg)
{
    const struct call_arg {
        int fd, how;
    } *call = arg;

    RS_IS(rshutdown(call->fd, call->how), 0);
}

static void rs_shut(struct rs_end *end, int how)
{
    struct {
        int fd, how;
    } call = {end->fd, how};

    side_call(end->side, shut, &call, sizeof call);
}

static void who_has_sent_all_may_go_on_reading(void **state)
{
    struct rs_pair pair;
    char byte;

    rs_pair_open(&pair);
    rs_transfer(&pair.far, &pair.near, 1000, 1000);
    rs_shut(&pair.far, SHUT_WR);
    RS_IS(rrecv(pair.near.fd, &byte, 1, 0), 0);
    RS_IS(rrecv(pair.near.fd, &byte, 1, MSG_DONTWAIT), 0);
    assert_int_equal(rs_await(pair.near.fd, POLLIN | POLLRDHUP | POLLOUT) & (POLLHUP | POLLERR), 0);
    rs_transfer(&pair.near, &pair.far, 100000, 5000);
    rs_shut(&pair.near, SHUT_WR);
    rs_await(pair.near.fd, POLLHUP);
    assert_int_equal(rs_error(pair.near.fd), 0);
    rs_pair_close(&pair);
}

static void what_was_sent_before_the_end_can_be_read_after_it(void **state)
{
    struct rs_bytes far = {.length = 100000, .chunk = 100000};
    struct rs_bytes near = {.length = 200000, .chunk = 1000};
    struct rs_pair pair;

    rs_pair_open(&pair);
    far.fd = pair.far.fd;
    side_call(FAR, rs_send_all, &far, sizeof far);
    assert_int_equal(far.done, far.length);
    rs_close(&pair.far);
    near.fd = pair.near.fd;
    rs_receive_all(&near);
    assert_int_equal(near.done, far.length);
    assert_int_equal(near.error, 0);
    rs_pair_close(&pair);
}

static void who_has_shut_its_side_cannot_send(void **state)
{
    struct rs_pair pair;
    char byte = 1;

    rs_pair_open(&pair);
    RS_IS(rshutdown(pair.near.fd, SHUT_WR), 0);
    RS_FAILS(rsend(pair.near.fd, &byte, 1, 0), EPIPE);
    RS_FAILS(rsend(pair.near.fd, &byte, 1, MSG_DONTWAIT), EPIPE);
    RS_IS(rshutdown(pair.near.fd, SHUT_RDWR), 0);
    RS_IS(rrecv(pair.near.fd, &byte, 1, 0), 0);
    RS_FAILS(rshutdown(pair.near.fd, 77), EINVAL);
    rs_pair_close(&pair);
}

static void who_sends_to_one_that_is_gone_gets_a_reset(void **state)
{
    struct rs_pair pair;
    char byte = 1;

    rs_pair_open(&pair);
    rs_close(&pair.far);
    rs_await(pair.near.fd, POLLHUP);
    RS_IS(rrecv(pair.near.fd, &byte, 1, 0), 0);
    RS_FAILS(rsend(pair.near.fd, &byte, 1, 0), ECONNRESET);
    rs_pair_close(&pair);
}

struct waiting {
    int fd;
    size_t length;
    uint8_t *buffer;
    int error;
};

static int receive_one(void *arg)
{
    struct waiting *waiting = arg;
    char byte;
    ssize_t got = rrecv(waiting->fd, &byte, 1, 0);

    waiting->error = errno;
    return (int)got;
}

static int send_much(void *arg)
{
    struct waiting *waiting = arg;
    ssize_t sent = rsend(waiting->fd, waiting->buffer, waiting->length, 0);

    waiting->error = errno;
    return (int)sent;
}

static void a_reader_that_sleeps_is_woken_by_bytes(void **state)
{
    struct caller caller;
    struct waiting waiting;
    struct rs_pair pair;

    rs_pair_open(&pair);
    for (int i = 0; i < 50; i++) {
        struct rs_bytes far = {.fd = pair.far.fd, .from = (uint64_t)i, .length = 1, .chunk = 1};

        waiting = (struct waiting){.fd = pair.near.fd};
        caller_start(&caller, receive_one, &waiting);
        assert_true(caller_is_blocked(&caller));
        side_call(FAR, rs_send_all, &far, sizeof far);
        assert_int_equal(caller_finish(&caller), 1);
    }
    rs_pair_close(&pair);
}

static void a_writer_that_sleeps_is_woken_by_room(void **state)
{
    struct rs_bytes far = {.length = 1 << 20, .chunk = 10000};
    struct waiting waiting = {.length = 1 << 20, .buffer = malloc(1 << 20)};
    struct caller caller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    waiting.fd = pair.near.fd;
    rs_fill(waiting.buffer, 0, waiting.length);
    caller_start(&caller, send_much, &waiting);
    assert_true(caller_is_blocked(&caller));
    far.fd = pair.far.fd;
    side_call(FAR, rs_receive_all, &far, sizeof far);
    assert_int_equal(caller_finish(&caller), 1 << 20);
    assert_int_equal(far.done, 1 << 20);
    rs_pair_close(&pair);
    free(waiting.buffer);
}

static void a_reader_that_sleeps_is_woken_by_the_end(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct waiting waiting;
        struct caller caller;
        struct rs_pair pair;

        rs_pair_open(&pair);
        waiting = (struct waiting){.fd = pair.near.fd};
        caller_start(&caller, receive_one, &waiting);
        assert_true(caller_is_blocked(&caller));
        if (how == 0)
            rs_shut(&pair.far, SHUT_WR);
        else if (how == 1)
            rs_close(&pair.far);
        else
            RS_IS(rshutdown(pair.near.fd, SHUT_RD), 0);
        assert_int_equal(caller_finish(&caller), 0);
        rs_pair_close(&pair);
    }
}

static void closing_ends_the_calls_that_sleep_in_it(void **state)
{
    struct waiting readers[2], writer = {.length = 1 << 20, .buffer = calloc(1, 1 << 20)};
    struct caller callers[3];
    struct rs_pair pair;

    rs_pair_open(&pair);
    for (int i = 0; i < 2; i++) {
        readers[i] = (struct waiting){.fd = pair.near.fd};
        caller_start(&callers[i], receive_one, &readers[i]);
    }
    writer.fd = pair.near.fd;
    caller_start(&callers[2], send_much, &writer);
    for (int i = 0; i < 3; i++)
        assert_true(caller_is_blocked(&callers[i]));
    rs_close(&pair.near);
    for (int i = 0; i < 3; i++)
        caller_finish(&callers[i]);
    RS_FAILS(rrecv(writer.fd, writer.buffer, 1, 0), EBADF);
    rs_pair_close(&pair);
    free(writer.buffer);
}

static void on_signal(int number)
{
}

static void a_signal_interrupts_if_the_program_wants_so(void **state)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct rs_bytes far = {.length = 1, .chunk = 1};
    struct waiting waiting;
    struct caller caller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    far.fd = pair.far.fd;
    sigaction(SIGUSR1, &action, NULL);
    waiting = (struct waiting){.fd = pair.near.fd};
    caller_start(&caller, receive_one, &waiting);
    assert_true(caller_is_blocked(&caller));
    pthread_kill(caller.thread, SIGUSR1);
    assert_int_equal(caller_finish(&caller), -1);
    assert_int_equal(waiting.error, EINTR);

    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    caller_start(&caller, receive_one, &waiting);
    assert_true(caller_is_blocked(&caller));
    pthread_kill(caller.thread, SIGUSR1);
    assert_true(caller_is_blocked(&caller));
    side_call(FAR, rs_send_all, &far, sizeof far);
    assert_int_equal(caller_finish(&caller), 1);
    rs_pair_close(&pair);
}

/* --- peers that die --- */

/* Over the network nobody tells of a process that is gone; who wants to know asks. */
static void ask_whether_it_lives(const struct rs_end *end)
{
    const int yes = 1, seconds = 1;

    if (!over_wire())
        return;
    RS_IS(rsetsockopt(end->fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds), 0);
    RS_IS(rsetsockopt(end->fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes), 0);
}

static void a_peer_that_dies_ends_the_stream(void **state)
{
    struct waiting waiting;
    struct caller caller;
    struct rs_pair pair;
    char byte = 1;
    ssize_t sent;

    rs_pair_open(&pair);
    rs_talk(&pair);
    ask_whether_it_lives(&pair.near);
    waiting = (struct waiting){.fd = pair.near.fd};
    caller_start(&caller, receive_one, &waiting);
    assert_true(caller_is_blocked(&caller));
    side_kill(FAR);
    assert_true(caller_finish(&caller) <= 0);
    rs_await(pair.near.fd, POLLHUP);
    EVENTUALLY((sent = rsend(pair.near.fd, &byte, 1, 0)) < 0, "rsend() to fail");
    CHECK(errno == ECONNRESET || errno == ETIMEDOUT, "errno %s", strerror(errno));
    rs_close(&pair.near);
}

static void a_peer_that_dies_ends_a_writer(void **state)
{
    struct waiting waiting = {.length = 4 << 20, .buffer = calloc(1, 4 << 20)};
    struct caller caller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    ask_whether_it_lives(&pair.near);
    waiting.fd = pair.near.fd;
    caller_start(&caller, send_much, &waiting);
    assert_true(caller_is_blocked(&caller));
    side_kill(FAR);
    assert_true(caller_finish(&caller) < 4 << 20);
    rs_close(&pair.near);
    free(waiting.buffer);
}

static void closing_does_not_wait_for_ever_for_a_peer_that_is_stopped(void **state)
{
    const struct linger linger = {.l_onoff = 1, .l_linger = 1}, none = {.l_onoff = 1, .l_linger = 0};
    struct rs_pair pair, other;

    rs_pair_open(&pair);
    other = pair;
    rs_open(&other.near, NEAR, SOCK_STREAM, NULL);
    rs_connect(&other.near, pair.port);
    other.far = rs_accept(&pair.listener);
    RS_IS(rsetsockopt(pair.near.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    RS_IS(rsetsockopt(other.near.fd, SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
    side_stop(FAR);
    RS_IS(rsend(pair.near.fd, &linger, sizeof linger, 0), sizeof linger);
    RS_IS(rsend(other.near.fd, &linger, sizeof linger, 0), sizeof linger);
    rs_close(&pair.near);
    rs_close(&other.near);
    side_continue(FAR);
    rs_close(&other.far);
    rs_close(&pair.far);
    rs_close(&pair.listener);
}

static int close_it(void *arg)
{
    const int *fd = arg;

    return rclose(*fd);
}

static void closing_does_not_wait_for_a_peer_that_dies(void **state)
{
    const struct linger linger = {.l_onoff = 1, .l_linger = 3600};
    struct caller caller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    RS_IS(rsetsockopt(pair.near.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    side_stop(FAR);
    RS_IS(rsend(pair.near.fd, &linger, sizeof linger, 0), sizeof linger);
    caller_start(&caller, close_it, &pair.near.fd);
    assert_true(caller_is_blocked(&caller));
    side_kill(FAR);
    assert_int_equal(caller_finish(&caller), 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(bytes_arrive_in_order_in_both_directions),
        TEST(a_huge_transfer_arrives_whole),
        TEST(small_buffers_and_queues_only_make_it_slow),
        TEST(both_directions_at_once),
        TEST(vectors_are_gathered_and_scattered),
        TEST(control_data_is_not_supported),
        TEST(peeking_leaves_the_bytes_there),
        TEST(peeking_finds_what_has_come_since),
        TEST(nothing_is_sent_by_sending_nothing),
        TEST(a_full_stream_takes_a_part_and_then_nothing),
        TEST(writable_means_that_something_can_be_sent),
        TEST(readable_means_that_something_can_be_read),
        TEST(who_has_sent_all_may_go_on_reading),
        TEST(what_was_sent_before_the_end_can_be_read_after_it),
        TEST(who_has_shut_its_side_cannot_send),
        TEST(who_sends_to_one_that_is_gone_gets_a_reset),
        TEST(a_reader_that_sleeps_is_woken_by_bytes),
        TEST(a_writer_that_sleeps_is_woken_by_room),
        TEST(a_reader_that_sleeps_is_woken_by_the_end),
        TEST(closing_ends_the_calls_that_sleep_in_it),
        TEST(a_signal_interrupts_if_the_program_wants_so),
        TEST_WITH(a_peer_that_dies_ends_the_stream, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_peer_that_dies_ends_a_writer, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(closing_does_not_wait_for_ever_for_a_peer_that_is_stopped, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(closing_does_not_wait_for_a_peer_that_dies, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
