/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links between living processes, where the kernel refuses a call. */
#include "test_local_sides.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

/* Which calls are refused: of one number, or the n-th of those that a link takes. */
static _Atomic long refused_number = -1;
static _Atomic unsigned refusals, calls, refused_call;
static _Atomic bool counts;
static int refused_error;
static _Atomic unsigned refused_descriptors; /* of the next messages with descriptors */

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
    static long (*real)(long, ...);

    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d, e, f);
}

static bool is_refused(const char *call)
{
    if (!atomic_load(&counts) || atomic_fetch_add(&calls, 1) + 1 != atomic_load(&refused_call))
        return false;
    fprintf(stderr, "# call %u, %s: refused\n", atomic_load(&refused_call), call);
    errno = ENOMEM;
    return true;
}

/* In place of the C library's. */
long syscall(long number, ...)
{
    long a[6];
    va_list list;

    va_start(list, number);
    for (unsigned i = 0; i < array_size(a); i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == atomic_load(&refused_number) && atomic_load(&refusals)) {
        atomic_fetch_sub(&refusals, 1);
        errno = refused_error;
        return -1;
    }
    if ((number == SYS_mmap || number == SYS_memfd_create || number == SYS_madvise) && is_refused(__func__))
        return -1;
    return raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#define ADDRESS(pointer) ((long)(uintptr_t)(pointer))

int socket(int domain, int type, int protocol)
{
    return is_refused(__func__) ? -1 : (int)raw(SYS_socket, domain, type, protocol, 0, 0, 0);
}

int connect(int fd, const struct sockaddr *name, socklen_t length)
{
    return is_refused(__func__) ? -1 : (int)raw(SYS_connect, fd, ADDRESS(name), length, 0, 0, 0);
}

int accept4(int fd, struct sockaddr *name, socklen_t *length, int flags)
{
    return is_refused(__func__) ? -1 : (int)raw(SYS_accept4, fd, ADDRESS(name), ADDRESS(length), flags, 0, 0);
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
    return is_refused(__func__)
               ? -1
               : (int)raw(SYS_getsockopt, fd, level, option, ADDRESS(value), ADDRESS(length), 0);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    return is_refused(__func__) ? -1 : (int)raw(SYS_setsockopt, fd, level, option, ADDRESS(value), length, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (message->msg_controllen && atomic_load(&refused_descriptors)) {
        atomic_fetch_sub(&refused_descriptors, 1);
        errno = ETOOMANYREFS;
        return -1;
    }
    return is_refused(__func__) ? -1 : raw(SYS_sendmsg, fd, ADDRESS(message), flags, 0, 0, 0);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return is_refused(__func__) ? -1 : raw(SYS_recvmsg, fd, ADDRESS(message), flags, 0, 0, 0);
}

int ftruncate(int fd, off_t length)
{
    return is_refused(__func__) ? -1 : (int)raw(SYS_ftruncate, fd, length, 0, 0, 0, 0);
}

int fstat(int fd, struct stat *ret_status)
{
    return is_refused(__func__)
               ? -1
               : (int)raw(SYS_newfstatat, fd, ADDRESS(""), ADDRESS(ret_status), AT_EMPTY_PATH, 0, 0);
}

int fstatfs(int fd, struct statfs *ret_system)
{
    return is_refused(__func__) ? -1 : (int)raw(SYS_fstatfs, fd, ADDRESS(ret_system), 0, 0, 0, 0);
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    /* Removal needs no memory. */
    return operation == EPOLL_CTL_ADD && is_refused(__func__)
               ? -1
               : (int)raw(SYS_epoll_ctl, epoll, operation, fd, ADDRESS(event), 0, 0);
}

static void refuse(long number, int error, unsigned times)
{
    refused_error = error;
    atomic_store(&refused_number, number);
    atomic_store(&refusals, times);
}

/* --- doorbells ---------------------------------------------------------------------------------------------- */

static void sleeps(unsigned number)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

    publish_qpn(number);
    while (!atomic_load(&board->word[1])) /* until the link is there */
        turn(1);
    for (;;) {
        if (local_prepare_sleep(ATTENTION_ASLEEP)) {
            atomic_store(&board->word[2], 1);
            CHECK(poll(&event, 1, -1) == 1);
            local_dispatch(&(bool){false});
        }
        rundown_enter();
        local_poll(16);
        rundown_exit();
        if (seen.packets)
            break;
    }
    atomic_store(&board->word[3], 1);
    meet(0, 2);
}

static void rings_in_vain(unsigned number)
{
    static const int errors[] = {ENOMEM, EAGAIN, ENOBUFS};
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);

    CHECK(link);
    atomic_store(&board->word[1], 1);
    UNTIL(atomic_load(&board->word[2]));
    refuse(SYS_sendto, errors[atomic_load(&board->word[4])], 3);
    send_text(link_lane(link, mine), other, mine, "wake up");
    UNTIL(atomic_load(&board->word[3]));
    CHECK(atomic_load(&refusals) == 0);
    meet(0, 2);
}

static void test_a_doorbell_that_the_kernel_does_not_take_is_rung_again(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        board_clear();
        atomic_store(&board->word[4], i);
        RUN_SIDES(sleeps, rings_in_vain);
    }
}

/* --- links --------------------------------------------------------------------------------------------------- */

enum { REFUSED_SIDE = 5, REFUSED_CALL, CALLS }; /* words of the board */

/* The calls of this side are counted, and one of them refused, from here on. */
static void begin_to_count(unsigned number)
{
    atomic_store(&calls, 0);
    atomic_store(&refused_call, atomic_load(&board->word[REFUSED_SIDE]) == number
                                    ? atomic_load(&board->word[REFUSED_CALL])
                                    : 0);
    atomic_store(&counts, true);
}

static void end_counting(unsigned number)
{
    atomic_store(&counts, false);
    if (atomic_load(&board->word[REFUSED_SIDE]) == number)
        atomic_store(&board->word[CALLS], atomic_load(&calls));
}

static void is_asked(unsigned number)
{
    uint32_t mine = publish_qpn(number);

    begin_to_count(number);
    UNTIL(seen.packets == 1);
    send_text(link_lane(lane_link(seen.lane), mine), seen.last.src_qpn, mine, "pong");
    end_counting(number);
    meet(0, 2);
}

static void asks_once(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link;

    begin_to_count(number);
    link = find_link(other);
    CHECK(link && !link_is_self(link));
    send_text(link_lane(link, mine), other, mine, "ping");
    UNTIL(seen.packets == 1);
    CHECK(link_find_process(link->identity) == link);
    refuse(SYS_ppoll, EINTR, 3);
    CHECK(link_peer_is_there(link) && atomic_load(&refusals) == 0);
    end_counting(number);
    meet(0, 2);
}

static unsigned try_link(unsigned side, unsigned call)
{
    board_clear();
    atomic_store(&board->word[REFUSED_SIDE], side);
    atomic_store(&board->word[REFUSED_CALL], call);
    RUN_SIDES(is_asked, asks_once);
    return atomic_load(&board->word[CALLS]);
}

static void test_a_link_comes_up_though_any_one_call_is_refused(void **state)
{
    for (unsigned side = 0; side < 2; side++) {
        unsigned all = try_link(side, 0);

        assert_true(all > 10);
        for (unsigned call = 1; call <= all; call++) {
            try_link(side, call);
        }
    }
}

static void asks_among_many(unsigned number)
{
    atomic_store(&refused_descriptors, 3);
    asks_once(number);
    CHECK(atomic_load(&refused_descriptors) == 0);
}

/* The kernel counts the descriptors that all processes of a user have sent and that are not received, against the
 * RLIMIT_NOFILE of the one that sends. */
static void test_a_link_comes_up_though_the_user_has_many_descriptors_under_way(void **state)
{
    board_clear();
    RUN_SIDES(is_asked, asks_among_many);
}

static void gives_a_file(unsigned number)
{
    publish_qpn(number);
    UNTIL(atomic_load(&board->word[1]));
    refuse(SYS_sendmsg, ETOOMANYREFS, 3);
    atomic_store(&board->word[2], 1);
    UNTIL(atomic_load(&board->word[3]));
    CHECK(atomic_load(&refusals) == 0);
}

static void asks_for_a_file(unsigned number)
{
    struct link *link = find_link(await_qpn(0));

    CHECK(link);
    atomic_store(&board->word[1], 1);
    UNTIL(atomic_load(&board->word[2]));
    CHECK(link_ask_file(link, LINK_FILE_TABLES, (const uint8_t *)SEGMENT_SECRET));
    UNTIL(seen.files);
    atomic_store(&board->word[3], 1);
}

/* It is asked for once. */
static void test_a_file_comes_though_the_user_has_many_descriptors_under_way(void **state)
{
    board_clear();
    RUN_SIDES(gives_a_file, asks_for_a_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_doorbell_that_the_kernel_does_not_take_is_rung_again),
        cmocka_unit_test(test_a_link_comes_up_though_any_one_call_is_refused),
        cmocka_unit_test(test_a_link_comes_up_though_the_user_has_many_descriptors_under_way),
        cmocka_unit_test(test_a_file_comes_though_the_user_has_many_descriptors_under_way),
    };

    return run_local_tests("local_refusals", tests);
}
