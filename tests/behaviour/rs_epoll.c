/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: repoll_create(), repoll_ctl() and repoll_wait(), as epoll(7) for rsockets and other descriptors. */
#include "rs.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

/* rsocket.h has them since rdma-core 61, and the library that the program is linked with may be older. */
static struct {
    int (*create)(int flags);
    int (*ctl)(int set, int operation, int fd, struct epoll_event *event);
    int (*wait)(int set, struct epoll_event *events, int count, int timeout);
} repoll;

static int new_set(void)
{
    int set;

    *(void **)&repoll.create = dlsym(RTLD_DEFAULT, "repoll_create");
    *(void **)&repoll.ctl = dlsym(RTLD_DEFAULT, "repoll_ctl");
    *(void **)&repoll.wait = dlsym(RTLD_DEFAULT, "repoll_wait");
    CHECK(repoll.create && repoll.ctl && repoll.wait, "librdmacm has no repoll_*()");
    set = repoll.create(EPOLL_CLOEXEC);
    CHECK(set >= 0, "repoll_create: %s", strerror(errno));
    return set;
}

static int control(int set, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)fd << 32 | 7};

    return repoll.ctl(set, operation, fd, &event);
}

static void put(int set, int fd, uint32_t events)
{
    RS_IS(control(set, EPOLL_CTL_ADD, fd, events), 0);
}

/* One is reported, and this. */
static void assert_reported(int set, int timeout, int fd, uint32_t events)
{
    struct epoll_event reported[4] = {{0}};

    RS_IS(repoll.wait(set, reported, 4, timeout), 1);
    assert_int_equal(reported[0].data.u64, (uint64_t)fd << 32 | 7);
    assert_int_equal(reported[0].events, events);
}

static void assert_quiet(int set)
{
    struct epoll_event event;

    RS_IS(repoll.wait(set, &event, 1, 0), 0);
}

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

static void readiness_is_told_by_level_and_with_the_programs_data(void **state)
{
    struct rs_pair pair;
    int set = new_set();

    rs_pair_open(&pair);
    put(set, pair.near.fd, EPOLLIN);
    assert_quiet(set);
    far_sends_one(&pair);
    for (int i = 0; i < 3; i++)
        assert_reported(set, -1, pair.near.fd, EPOLLIN);
    RS_IS(control(set, EPOLL_CTL_MOD, pair.near.fd, EPOLLIN | EPOLLOUT), 0);
    assert_reported(set, 0, pair.near.fd, EPOLLIN | EPOLLOUT);
    receive_one(pair.near.fd);
    assert_reported(set, 0, pair.near.fd, EPOLLOUT);
    RS_IS(repoll.ctl(set, EPOLL_CTL_DEL, pair.near.fd, NULL), 0);
    assert_quiet(set);
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

static void what_is_refused(void **state)
{
    struct epoll_event event = {.events = EPOLLIN};
    struct rs_pair pair;
    int set = new_set(), other = new_set(), fds[2];

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    RS_FAILS(repoll.create(1), EINVAL);
    RS_FAILS(control(set, EPOLL_CTL_MOD, pair.near.fd, EPOLLIN), ENOENT);
    RS_FAILS(control(set, EPOLL_CTL_DEL, pair.near.fd, EPOLLIN), ENOENT);
    put(set, pair.near.fd, EPOLLIN);
    RS_FAILS(control(set, EPOLL_CTL_ADD, pair.near.fd, EPOLLIN), EEXIST);
    RS_FAILS(control(set, 77, pair.near.fd, EPOLLIN), EINVAL);
    RS_FAILS(repoll.ctl(set, EPOLL_CTL_MOD, pair.near.fd, NULL), EFAULT);
    RS_FAILS(control(set, EPOLL_CTL_ADD, -1, EPOLLIN), EBADF);
    RS_FAILS(control(set, EPOLL_CTL_ADD, set, EPOLLIN), EINVAL);
    RS_FAILS(control(set, EPOLL_CTL_ADD, other, EPOLLIN), EINVAL);
    RS_FAILS(control(fds[0], EPOLL_CTL_ADD, pair.near.fd, EPOLLIN), EINVAL);
    RS_FAILS(control(pair.near.fd, EPOLL_CTL_ADD, fds[0], EPOLLIN), EINVAL);
    RS_FAILS(repoll.wait(set, &event, 0, 0), EINVAL);
    RS_FAILS(repoll.wait(set, &event, -1, 0), EINVAL);
    RS_FAILS(repoll.wait(fds[0], &event, 1, 0), EINVAL);
    RS_FAILS(repoll.wait(pair.near.fd, &event, 1, 0), EINVAL);
    RS_IS(rclose(set), 0);
    RS_FAILS(rclose(set), EBADF);
    RS_FAILS(repoll.wait(set, &event, 1, 0), EINVAL);
    RS_IS(rclose(other), 0);
    close(fds[0]);
    close(fds[1]);
    rs_pair_close(&pair);
}

/* The kernel's rules are theirs: edges, too. */
static void other_descriptors_are_in_a_set_too(void **state)
{
    struct epoll_event reported[4];
    struct rs_pair pair;
    int set = new_set(), fds[2];

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    put(set, fds[0], EPOLLIN | EPOLLET);
    put(set, pair.near.fd, EPOLLIN);
    RS_FAILS(control(set, EPOLL_CTL_ADD, fds[0], EPOLLIN), EEXIST);
    assert_quiet(set);
    assert_int_equal(write(fds[1], "y", 1), 1);
    assert_reported(set, -1, fds[0], EPOLLIN);
    assert_quiet(set);
    far_sends_one(&pair);
    rs_await(pair.near.fd, POLLIN);
    assert_int_equal(write(fds[1], "y", 1), 1);
    RS_IS(repoll.wait(set, reported, 4, -1), 2);
    close(fds[0]);
    assert_reported(set, 0, pair.near.fd, EPOLLIN);
    close(fds[1]);
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

static void once_is_once_until_it_is_asked_for_again(void **state)
{
    struct rs_pair pair;
    int set = new_set();

    rs_pair_open(&pair);
    put(set, pair.near.fd, EPOLLOUT | EPOLLONESHOT);
    assert_reported(set, -1, pair.near.fd, EPOLLOUT);
    assert_quiet(set);
    RS_IS(control(set, EPOLL_CTL_MOD, pair.near.fd, EPOLLOUT | EPOLLONESHOT), 0);
    assert_reported(set, -1, pair.near.fd, EPOLLOUT);
    RS_IS(control(set, EPOLL_CTL_MOD, pair.near.fd, 0), 0);
    assert_quiet(set);
    rs_close(&pair.far);
    assert_reported(set, -1, pair.near.fd, EPOLLHUP);
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

static void a_small_array_is_filled_with_all_in_turn(void **state)
{
    enum { RSOCKETS = 3 };
    struct rs_pair pairs[RSOCKETS];
    int set = new_set(), fds[2], seen[RSOCKETS + 1] = {0};

    assert_int_equal(pipe(fds), 0);
    put(set, fds[1], EPOLLOUT);
    for (int i = 0; i < RSOCKETS; i++) {
        rs_pair_open(&pairs[i]);
        put(set, pairs[i].near.fd, EPOLLOUT);
    }
    for (int round = 0; round < 6 * (RSOCKETS + 1); round++) {
        struct epoll_event event = {0};

        RS_IS(repoll.wait(set, &event, 1, -1), 1);
        for (int i = 0; i < RSOCKETS; i++)
            seen[i] += event.data.u64 >> 32 == (uint64_t)pairs[i].near.fd;
        seen[RSOCKETS] += event.data.u64 >> 32 == (uint64_t)fds[1];
    }
    for (int i = 0; i <= RSOCKETS; i++)
        assert_true(seen[i] >= 2);
    RS_IS(rclose(set), 0);
    for (int i = 0; i < RSOCKETS; i++)
        rs_pair_close(&pairs[i]);
    close(fds[0]);
    close(fds[1]);
}

static void many_members(void **state)
{
    enum { RSOCKETS = 100 };
    struct epoll_event reported[RSOCKETS];
    struct rs_end ends[RSOCKETS];
    int set = new_set();

    for (int i = 0; i < RSOCKETS; i++) {
        rs_open(&ends[i], NEAR, SOCK_STREAM, NULL);
        put(set, ends[i].fd, 0);
    }
    RS_IS(repoll.wait(set, reported, RSOCKETS, -1), RSOCKETS); /* POLLHUP: not connected */
    for (int i = 0; i < RSOCKETS; i += 2)
        rs_close(&ends[i]);
    RS_IS(repoll.wait(set, reported, RSOCKETS, -1), RSOCKETS / 2);
    for (int i = 1; i < RSOCKETS; i += 2)
        rs_close(&ends[i]);
    assert_quiet(set);
    RS_IS(rclose(set), 0);
}

/* --- sleeping --- */

struct waiting {
    int set, error;
    struct epoll_event event;
};

static int wait_for_ever(void *arg)
{
    struct waiting *waiting = arg;
    int ready = repoll.wait(waiting->set, &waiting->event, 1, -1);

    waiting->error = errno;
    return ready;
}

static void start_waiting(struct caller *caller, struct waiting *waiting, int set)
{
    *waiting = (struct waiting){.set = set};
    caller_start(caller, wait_for_ever, waiting);
    assert_true(caller_is_blocked(caller));
}

static void sleeping_ends_with_the_first_byte(void **state)
{
    struct waiting waiting;
    struct caller caller;
    struct rs_pair pair;
    int set = new_set(), fds[2];

    rs_pair_open(&pair);
    assert_int_equal(pipe(fds), 0);
    put(set, fds[0], EPOLLIN);
    put(set, pair.near.fd, EPOLLIN);
    for (int i = 0; i < 20; i++) {
        const int ready = i % 2 ? fds[0] : pair.near.fd;
        char byte;

        start_waiting(&caller, &waiting, set);
        if (i % 2)
            assert_int_equal(write(fds[1], "y", 1), 1);
        else
            far_sends_one(&pair);
        assert_int_equal(caller_finish(&caller), 1);
        assert_int_equal(waiting.event.data.u64 >> 32, ready);
        if (i % 2)
            assert_int_equal(read(ready, &byte, 1), 1);
        else
            receive_one(ready);
    }
    close(fds[0]);
    close(fds[1]);
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

static void who_sleeps_hears_of_new_members(void **state)
{
    enum { THREADS = 3 };
    struct waiting waiting[THREADS];
    struct caller callers[THREADS];
    struct rs_pair pair;
    int set = new_set();

    rs_pair_open(&pair);
    for (int how = 0; how < 2; how++) {
        for (int i = 0; i < THREADS; i++)
            start_waiting(&callers[i], &waiting[i], set);
        RS_IS(control(set, how ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, pair.near.fd, EPOLLOUT), 0);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(caller_finish(&callers[i]), 1);
        RS_IS(control(set, EPOLL_CTL_MOD, pair.near.fd, EPOLLIN), 0);
    }
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

static void a_closed_rsocket_is_in_no_set(void **state)
{
    struct waiting waiting;
    struct caller caller;
    struct rs_end again;
    struct rs_pair pair;
    int set = new_set(), fd;

    rs_pair_open(&pair);
    fd = pair.near.fd;
    put(set, fd, EPOLLIN);
    start_waiting(&caller, &waiting, set);
    rs_close(&pair.near);
    rs_open(&again, NEAR, SOCK_STREAM, NULL);
    put(set, again.fd, EPOLLOUT);
    assert_int_equal(caller_finish(&caller), 1);
    assert_int_equal(waiting.event.events, EPOLLOUT | EPOLLHUP);
    RS_IS(rclose(set), 0);
    rs_close(&again);
    rs_pair_close(&pair);
}

static void closing_a_set_wakes_who_waits(void **state)
{
    struct waiting waiting;
    struct caller caller;
    int set = new_set();

    start_waiting(&caller, &waiting, set);
    RS_IS(rclose(set), 0);
    assert_int_equal(caller_finish(&caller), -1);
    assert_int_equal(waiting.error, EBADF);
}

static void on_signal(int number)
{
}

static void a_timeout_ends_it_and_a_signal_does(void **state)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct epoll_event event;
    struct waiting waiting;
    struct caller caller;
    struct rs_pair pair;
    int set = new_set();

    rs_pair_open(&pair);
    put(set, pair.near.fd, EPOLLIN);
    RS_IS(repoll.wait(set, &event, 1, 20), 0);
    sigaction(SIGUSR1, &action, NULL);
    start_waiting(&caller, &waiting, set);
    pthread_kill(caller.thread, SIGUSR1);
    assert_int_equal(caller_finish(&caller), -1);
    assert_int_equal(waiting.error, EINTR);
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

/* As rsockets are: the parent's members are not the child's, and what the child adds is. */
static void a_forked_child_has_the_set_without_rsockets(void **state)
{
    struct rs_pair pair;
    int set = new_set(), status;
    pid_t child;

    rs_pair_open(&pair);
    put(set, pair.near.fd, EPOLLOUT);
    child = fork();
    if (!child) {
        struct epoll_event event = {.events = EPOLLOUT};

        if (repoll.wait(set, &event, 1, 0) != 0)
            _exit(1);
        if (repoll.ctl(set, EPOLL_CTL_ADD, pair.near.fd, &event) != -1 || errno != EBADF)
            _exit(2);
        _exit(rclose(set) ? 3 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_reported(set, 0, pair.near.fd, EPOLLOUT);
    RS_IS(rclose(set), 0);
    rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(readiness_is_told_by_level_and_with_the_programs_data),
        TEST(what_is_refused),
        TEST(other_descriptors_are_in_a_set_too),
        TEST(once_is_once_until_it_is_asked_for_again),
        TEST(a_small_array_is_filled_with_all_in_turn),
        TEST(many_members),
        TEST(sleeping_ends_with_the_first_byte),
        TEST(who_sleeps_hears_of_new_members),
        TEST(a_closed_rsocket_is_in_no_set),
        TEST(closing_a_set_wakes_who_waits),
        TEST(a_timeout_ends_it_and_a_signal_does),
        TEST(a_forked_child_has_the_set_without_rsockets),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
