/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Descriptors that the helper thread watches, where the kernel refuses a call. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/event.h"

static unsigned refusals; /* that are to come */

/* In place of the C library's: it lacks memory. */
int fstat(int fd, struct stat *ret_file)
{
    if (refusals) {
        refusals--;
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_newfstatat, fd, "", ret_file, AT_EMPTY_PATH);
}

/* What fstat() is before glibc 2.33. */
int __fxstat(int version, int fd, struct stat *ret_file);
int __fxstat(int version, int fd, struct stat *ret_file)
{
    return fstat(fd, ret_file);
}

static unsigned called;

static void is_ready(struct event_source *source, uint32_t events)
{
    called++;
}

static void a_closed_source_is_not_called_even_if_it_could_not_be_looked_at(void **state)
{
    struct event_source source = {.ready = is_ready};
    int ends[2], copy;

    assert_int_equal(event_start(), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    copy = dup(ends[0]); /* as a forked child has it: closing alone does not stop the watching */
    source.fd = fd_own(ends[0]);
    assert_int_equal(event_add(&source, EPOLLIN), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    event_dispatch();
    assert_int_equal(called, 1);
    refusals = UINT_MAX;
    event_close(&source);
    refusals = 0;
    assert_int_equal(source.fd, -1);
    event_dispatch();
    assert_int_equal(called, 1);
    close(copy);
    close(ends[1]);
    fd_close(event_epoll_fd());
}

/* Who took it for a stranger's would not write to it, and the one who waits for that would sleep for ever. */
static void a_source_is_intact_though_the_kernel_lacked_memory_once(void **state)
{
    struct event_source source = {.ready = is_ready};
    int ends[2];

    assert_int_equal(event_start(), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    source.fd = fd_own(ends[0]);
    refusals = 1;
    assert_int_equal(event_add(&source, EPOLLIN), 0);
    assert_true(event_is_intact(&source));
    refusals = 1;
    assert_true(event_is_intact(&source));
    event_close(&source);
    close(ends[1]);
    fd_close(event_epoll_fd());
}

static void a_source_that_cannot_be_described_is_not_watched(void **state)
{
    struct event_source source = {.ready = is_ready};
    int ends[2];

    assert_int_equal(event_start(), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    source.fd = fd_own(ends[0]);
    refusals = UINT_MAX;
    assert_int_equal(event_add(&source, EPOLLIN), -ENOMEM);
    refusals = 0;
    assert_int_equal(write(ends[1], "", 1), 1);
    called = 0;
    event_dispatch();
    assert_int_equal(called, 0);
    event_close(&source);
    assert_int_equal(fcntl(ends[0], F_GETFD), -1);
    close(ends[1]);
    fd_close(event_epoll_fd());
}

/* A handshake that begins anew has another descriptor in its source, and may end before that one is watched. */
static void a_source_that_is_used_again_closes_what_is_in_it(void **state)
{
    struct event_source source = {.ready = is_ready};
    int first[2], second[2];

    assert_int_equal(event_start(), 0);
    assert_int_equal(pipe2(first, O_CLOEXEC), 0);
    assert_int_equal(pipe2(second, O_CLOEXEC), 0);
    source.fd = fd_own(first[0]);
    assert_int_equal(event_add(&source, EPOLLIN), 0);
    event_close(&source);
    source.fd = fd_own(second[0]);
    event_close(&source);
    assert_int_equal(fcntl(second[0], F_GETFD), -1);
    close(first[1]);
    close(second[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_source_is_not_called_even_if_it_could_not_be_looked_at),
        cmocka_unit_test(a_source_that_is_used_again_closes_what_is_in_it),
        cmocka_unit_test(a_source_is_intact_though_the_kernel_lacked_memory_once),
        cmocka_unit_test(a_source_that_cannot_be_described_is_not_watched),
    };

    return run_unit_tests("event", tests);
}
