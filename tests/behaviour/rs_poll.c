/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: rpoll() and rselect(), over rsockets and other descriptors. */
#include "rs.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <unistd.h>

static void send_one(void *arg)
{
    const int *fd = arg;

    RS_IS(rsend(*fd, "x", 1, 0), 1);
}

static void far_sends_one(struct rs_pair *pair)
{
    side_call(FAR, send_one, &pair->far.fd, sizeof pair->far.fd);
}

static void receive_one(int fd)
{
    char byte;

    RS_IS(rrecv(fd, &byte, 1, 0), 1);
}

static void nothing_is_ready_at_first_but_to_write(void **state)
{
    struct pollfd watched;
    struct rs_pair pair;

    rs_pair_open(&pair);
    watched =
        (struct pollfd){.fd = pair.near.fd, .events = POLLIN | POLLOUT | POLLRDHUP | POLLPRI, .revents = -1};
    RS_IS(rpoll(&watched, 1, 0), 1);
    assert_int_equal(watched.revents, POLLOUT);
    watched.events = POLLIN;
    RS_IS(rpoll(&watched, 1, 0), 0);
    assert_int_equal(watched.revents, 0);
    RS_IS(rpoll(&watched, 1, 20), 0);
    watched.events = 0;
    RS_IS(rpoll(&watched, 1, 0), 0);
    rs_pair_close(&pair);
}

static void readiness_stays_until_it_is_used(void **state)
{
    struct rs_pair pair;

    rs_pair_open(&pair);
    far_sends_one(&pair);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rs_await(pair.near.fd, POLLIN) & (POLLHUP | POLLERR), 0);
    receive_one(pair.near.fd);
    for (int i = 0; i < 3; i++) {
        struct pollfd watched = {.fd = pair.near.fd, .events = POLLIN};

        RS_IS(rpoll(&watched, 1, 0), 0);
    }
    rs_pair_close(&pair);
}

/* Nobody looks for what arrives but who polls, and to write is possible all the time. */
static void who_can_write_hears_of_what_there_is_to_read(void **state)
{
    struct rs_pair pair;

    rs_pair_open(&pair);
    rs_await(pair.near.fd, POLLOUT);
    far_sends_one(&pair);
    rs_await(pair.near.fd, POLLIN | POLLOUT);
    receive_one(pair.near.fd);
    rs_close(&pair.far);
    rs_await(pair.near.fd, POLLOUT | POLLRDHUP | POLLHUP);
    rs_pair_close(&pair);
}

static void without_a_connection(void **state)
{
    struct rs_end end;
    struct pollfd watched = {.events = POLLIN | POLLOUT};

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    watched.fd = end.fd;
    RS_IS(rpoll(&watched, 1, -1), 1);
    assert_int_equal(watched.revents, POLLOUT | POLLHUP); /* as Linux */
    rs_listen(&end, 1);
    RS_IS(rpoll(&watched, 1, 0), 0);
    rs_close(&end);
    watched.revents = 0;
    RS_IS(rpoll(&watched, 1, 0), 1);
    assert_int_equal(watched.revents, POLLNVAL);
}

static void other_descriptors_are_polled_too(void **state)
{
    struct rs_pair pair;
    struct pollfd watched[5];
    int fds[2];

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    watched[0] = (struct pollfd){.fd = fds[0], .events = POLLIN};
    watched[1] = (struct pollfd){.fd = -1, .events = POLLIN, .revents = -1};
    watched[2] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
    watched[3] = (struct pollfd){.fd = pair.listener.side == NEAR ? fds[0] : -7, .events = POLLIN};
    watched[4] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN | POLLPRI};
    RS_IS(rpoll(watched, 5, 0), 0);
    assert_int_equal(watched[1].revents, 0);
    assert_int_equal(write(fds[1], "y", 1), 1);
    RS_IS(rpoll(watched, 5, -1), 1);
    assert_int_equal(watched[0].revents, POLLIN);
    far_sends_one(&pair);
    rs_await(pair.near.fd, POLLIN);
    RS_IS(rpoll(watched, 5, -1), 3);
    assert_int_equal(watched[2].revents, POLLIN);
    assert_int_equal(watched[4].revents, POLLIN);
    close(fds[1]);
    RS_IS(rpoll(watched, 1, -1), 1);
    assert_int_equal(watched[0].revents, POLLIN | POLLHUP);
    close(fds[0]);
    RS_IS(rpoll(watched, 3, -1), 2);
    assert_int_equal(watched[0].revents, POLLNVAL);
    rs_pair_close(&pair);
}

static void no_rsocket_at_all(void **state)
{
    struct pollfd watched;
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    watched = (struct pollfd){.fd = fds[0], .events = POLLIN};
    RS_IS(rpoll(NULL, 0, 0), 0);
    RS_IS(rpoll(NULL, 0, 1), 0);
    RS_IS(rpoll(&watched, 1, 0), 0);
    close(fds[1]);
    RS_IS(rpoll(&watched, 1, -1), 1);
    assert_int_equal(watched.revents, POLLHUP);
    close(fds[0]);
}

static void many_descriptors(void **state)
{
    enum { COUNT_OF = 100 };
    struct pollfd watched[COUNT_OF];
    struct rs_pair pair;
    int fds[2];

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    for (int i = 0; i < COUNT_OF; i++)
        watched[i] = (struct pollfd){.fd = i % 2 ? pair.near.fd : fds[0], .events = POLLIN};
    RS_IS(rpoll(watched, COUNT_OF, 0), 0);
    RS_IS(rpoll(watched, COUNT_OF, 5), 0);
    far_sends_one(&pair);
    rs_await(pair.near.fd, POLLIN); /* not in the middle of a look at all */
    RS_IS(rpoll(watched, COUNT_OF, -1), COUNT_OF / 2);
    for (int i = 0; i < COUNT_OF; i++)
        assert_int_equal(watched[i].revents, i % 2 ? POLLIN : 0);
    close(fds[0]);
    close(fds[1]);
    rs_pair_close(&pair);
}

/* --- sleeping --- */

struct polling {
    struct pollfd watched[2];
    nfds_t count;
    int error;
};

static int poll_for_ever(void *arg)
{
    struct polling *polling = arg;
    int ready = rpoll(polling->watched, polling->count, -1);

    polling->error = errno;
    return ready;
}

static void sleeping_ends_with_the_first_byte(void **state)
{
    struct polling polling = {.count = 2};
    struct caller caller;
    struct rs_pair pair;
    int fds[2];

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    polling.watched[0] = (struct pollfd){.fd = fds[0], .events = POLLIN};
    polling.watched[1] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
    for (int i = 0; i < 50; i++) {
        caller_start(&caller, poll_for_ever, &polling);
        assert_true(caller_is_blocked(&caller));
        if (i % 2)
            assert_int_equal(write(fds[1], "y", 1), 1);
        else
            far_sends_one(&pair);
        assert_int_equal(caller_finish(&caller), 1);
        assert_int_equal(polling.watched[!(i % 2)].revents, POLLIN);
        if (i % 2) {
            char byte;

            assert_int_equal(read(fds[0], &byte, 1), 1);
        } else {
            receive_one(pair.near.fd);
        }
    }
    close(fds[0]);
    close(fds[1]);
    rs_pair_close(&pair);
}

static void sleeping_ends_with_the_peer(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct polling polling = {.count = 1};
        struct caller caller;
        struct rs_pair pair;

        rs_pair_open(&pair);
        polling.watched[0] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
        caller_start(&caller, poll_for_ever, &polling);
        assert_true(caller_is_blocked(&caller));
        if (how == 0)
            rs_close(&pair.far);
        else if (how == 1)
            RS_IS(rshutdown(pair.near.fd, SHUT_RDWR), 0);
        else
            RS_IS(rshutdown(pair.near.fd, SHUT_RD), 0);
        assert_int_equal(caller_finish(&caller), 1);
        assert_true(polling.watched[0].revents & POLLIN);
        assert_int_equal(!!(polling.watched[0].revents & POLLHUP), how < 2);
        rs_pair_close(&pair);
    }
}

static void a_hangup_is_told_when_all_is_read(void **state)
{
    struct rs_pair pair;

    rs_pair_open(&pair);
    far_sends_one(&pair);
    rs_close(&pair.far);
    assert_int_equal(rs_await(pair.near.fd, POLLIN | POLLRDHUP | POLLOUT) & (POLLHUP | POLLERR), 0);
    receive_one(pair.near.fd);
    rs_await(pair.near.fd, POLLIN | POLLHUP);
    rs_pair_close(&pair);
}

static void closing_wakes_who_polls(void **state)
{
    struct polling polling = {.count = 1};
    struct caller caller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    polling.watched[0] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
    caller_start(&caller, poll_for_ever, &polling);
    assert_true(caller_is_blocked(&caller));
    rs_close(&pair.near);
    assert_int_equal(caller_finish(&caller), 1);
    rs_pair_close(&pair);
}

static void closing_at_any_moment_wakes_who_polls(void **state)
{
    enum { ROUNDS = 200, STEP_NS = 1000 };

    for (int round = 0; round < ROUNDS; round++) {
        struct polling polling = {.count = 1};
        struct caller caller;
        struct rs_pair pair;
        uint64_t began;

        rs_pair_open(&pair);
        polling.watched[0] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
        caller_start(&caller, poll_for_ever, &polling);
        began = now_ns();
        while (now_ns() - began < (uint64_t)round * STEP_NS) {
        }
        rs_close(&pair.near);
        assert_int_equal(caller_finish(&caller), 1);
        rs_pair_close(&pair);
    }
}

/* One of them reads the completion event; nobody else hears of it from the kernel. */
static void all_who_sleep_in_one_hear_of_it(void **state)
{
    enum { THREADS = 4 };
    struct polling polling[THREADS];
    struct caller callers[THREADS];
    struct rs_pair pair;

    rs_pair_open(&pair);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < THREADS; i++) {
            polling[i] = (struct polling){.count = 1, .watched = {{.fd = pair.near.fd, .events = POLLIN}}};
            caller_start(&callers[i], poll_for_ever, &polling[i]);
        }
        for (int i = 0; i < THREADS; i++)
            assert_true(caller_is_blocked(&callers[i]));
        far_sends_one(&pair);
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(caller_finish(&callers[i]), 1);
            assert_int_equal(polling[i].watched[0].revents, POLLIN);
        }
        receive_one(pair.near.fd);
    }
    rs_pair_close(&pair);
}

static int receive_in_thread(void *arg)
{
    const int *fd = arg;
    char byte;

    return (int)rrecv(*fd, &byte, 1, 0);
}

static void a_reader_and_a_poller_do_not_lose_each_other(void **state)
{
    struct polling polling;
    struct caller reader, poller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    for (int round = 0; round < 20; round++) {
        polling = (struct polling){.count = 1, .watched = {{.fd = pair.near.fd, .events = POLLIN}}};
        caller_start(round % 2 ? &reader : &poller, round % 2 ? receive_in_thread : poll_for_ever,
                     round % 2 ? (void *)&pair.near.fd : (void *)&polling);
        assert_true(caller_is_blocked(round % 2 ? &reader : &poller));
        caller_start(round % 2 ? &poller : &reader, round % 2 ? poll_for_ever : receive_in_thread,
                     round % 2 ? (void *)&polling : (void *)&pair.near.fd);
        assert_true(caller_is_blocked(round % 2 ? &poller : &reader));
        far_sends_one(&pair);
        far_sends_one(&pair);
        assert_int_equal(caller_finish(&reader), 1);
        assert_int_equal(caller_finish(&poller), 1);
        receive_one(pair.near.fd);
    }
    rs_pair_close(&pair);
}

static void on_signal(int number)
{
}

static void a_signal_interrupts(void **state)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct polling polling = {.count = 1};
    struct caller caller;
    struct rs_pair pair;

    rs_pair_open(&pair);
    sigaction(SIGUSR1, &action, NULL);
    polling.watched[0] = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
    caller_start(&caller, poll_for_ever, &polling);
    assert_true(caller_is_blocked(&caller));
    pthread_kill(caller.thread, SIGUSR1);
    assert_int_equal(caller_finish(&caller), -1);
    assert_int_equal(polling.error, EINTR);
    rs_pair_close(&pair);
}

static void a_listener_is_readable_when_somebody_has_come(void **state)
{
    struct polling polling = {.count = 1};
    struct caller caller;
    struct rs_end listener, near;
    uint16_t port;
    int fd;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 1);
    polling.watched[0] = (struct pollfd){.fd = listener.fd, .events = POLLIN};
    caller_start(&caller, poll_for_ever, &polling);
    assert_true(caller_is_blocked(&caller));
    rs_open(&near, NEAR, SOCK_STREAM, NULL);
    rs_connect(&near, port);
    assert_int_equal(caller_finish(&caller), 1);
    assert_int_equal(polling.watched[0].revents, POLLIN);
    rs_set_nonblocking(listener.fd, true);
    fd = raccept(listener.fd, NULL, NULL);
    assert_true(fd >= 0);
    RS_FAILS(raccept(listener.fd, NULL, NULL), EAGAIN);
    RS_IS(rclose(fd), 0);
    rs_close(&near);
    rs_close(&listener);
}

/* --- rselect() --- */

static void selecting_says_the_same(void **state)
{
    struct timeval none = {0}, some = {.tv_sec = 60};
    fd_set readable, writable, exceptional;
    struct rs_pair pair;
    int fds[2], top;

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    top = (pair.near.fd > fds[0] ? pair.near.fd : fds[0]) + 1;
    FD_ZERO(&readable);
    FD_SET(pair.near.fd, &readable);
    FD_SET(fds[0], &readable);
    writable = exceptional = readable;
    FD_CLR(fds[0], &writable);
    RS_IS(rselect(top, &readable, &writable, &exceptional, &none), 1);
    assert_false(FD_ISSET(pair.near.fd, &readable) || FD_ISSET(fds[0], &readable));
    assert_true(FD_ISSET(pair.near.fd, &writable));
    assert_false(FD_ISSET(pair.near.fd, &exceptional) || FD_ISSET(fds[0], &exceptional));
    far_sends_one(&pair);
    assert_int_equal(write(fds[1], "y", 1), 1);
    rs_await(pair.near.fd, POLLIN);
    FD_SET(pair.near.fd, &readable);
    FD_SET(fds[0], &readable);
    RS_IS(rselect(top, &readable, NULL, NULL, &some), 2);
    assert_true(FD_ISSET(pair.near.fd, &readable) && FD_ISSET(fds[0], &readable));
    RS_IS(rselect(0, NULL, NULL, NULL, &none), 0);
    RS_FAILS(rselect(-1, NULL, NULL, NULL, &none), EINVAL);
    close(fds[0]);
    RS_FAILS(rselect(top, &readable, NULL, NULL, &some), EBADF);
    close(fds[1]);
    rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(nothing_is_ready_at_first_but_to_write),
        TEST(readiness_stays_until_it_is_used),
        TEST(who_can_write_hears_of_what_there_is_to_read),
        TEST(without_a_connection),
        TEST(other_descriptors_are_polled_too),
        TEST(no_rsocket_at_all),
        TEST(many_descriptors),
        TEST(sleeping_ends_with_the_first_byte),
        TEST(sleeping_ends_with_the_peer),
        TEST(a_hangup_is_told_when_all_is_read),
        TEST(closing_wakes_who_polls),
        TEST(closing_at_any_moment_wakes_who_polls),
        TEST(all_who_sleep_in_one_hear_of_it),
        TEST(a_reader_and_a_poller_do_not_lose_each_other),
        TEST(a_signal_interrupts),
        TEST(a_listener_is_readable_when_somebody_has_come),
        TEST(selecting_says_the_same),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
