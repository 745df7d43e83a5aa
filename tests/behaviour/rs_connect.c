/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: how streams come into being and find each other. */
#include "rs.h"
#include "standard.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* These two stand in front of libc's, as librspreload of rdma-core 63 and newer does, which makes rsockets here. */
static _Atomic unsigned internet_sockets;

#define IN_FRONT __attribute__((visibility("default")))

IN_FRONT int socket(int domain, int type, int protocol)
{
    if (domain == AF_INET || domain == AF_INET6)
        internet_sockets++;
    return (int)syscall(SYS_socket, domain, type, protocol);
}

IN_FRONT int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict length, int flags)
{
    return (int)syscall(SYS_accept4, fd, address, length, flags);
}

static struct sockaddr_storage at(uint16_t port)
{
    return cm_address(port);
}

static int connect_to(int fd, uint16_t port)
{
    struct sockaddr_storage address = at(port);

    return rconnect(fd, as_sockaddr(&address), cm_length(&address));
}

/* A port at which nobody listens: it was taken, and is free again. */
static uint16_t unused_port(void)
{
    struct rs_end listener;
    uint16_t port;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 1);
    rs_close(&listener);
    return port;
}

/* Datagrams, too, and what rpoll() waits with. */
static void no_descriptor_is_stdin_stdout_or_stderr(void **state)
{
    struct rs_end datagram;
    struct rs_pair pair;

    standard_close();
    rs_pair_open(&pair);
    rs_talk(&pair);
    rs_await(pair.near.fd, POLLOUT);
    rs_open(&datagram, NEAR, SOCK_DGRAM, NULL);
    standard_check();
    rs_close(&datagram);
    rs_pair_close(&pair);
}

static void kinds_that_there_are_not_are_refused(void **state)
{
    RS_FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
    RS_FAILS(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
    RS_FAILS(rsocket(AF_INET, SOCK_SEQPACKET, 0), ENOTSUP);
    RS_FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
    RS_FAILS(rsocket(AF_INET6, SOCK_DGRAM, IPPROTO_TCP), ENOTSUP);
}

static void a_socket_is_a_descriptor_of_the_process(void **state)
{
    int fd = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP), other;

    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    other = dup(fd);
    assert_true(other >= 0 && other != fd);
    close(other);
    RS_IS(rclose(fd), 0);
    RS_FAILS(rclose(fd), EBADF);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

__attribute__((unused)) static void flags_of_creation_are_kept(void **state)
{
    int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_true(rfcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(rfcntl(fd, F_GETFD), FD_CLOEXEC);
    RS_IS(rclose(fd), 0);
    fd = rsocket(AF_INET, SOCK_STREAM, 0);
    assert_false(rfcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(rfcntl(fd, F_GETFD), 0);
    RS_IS(rfcntl(fd, F_SETFD, FD_CLOEXEC), 0);
    assert_int_equal(rfcntl(fd, F_GETFD), FD_CLOEXEC);
    RS_FAILS(rfcntl(fd, F_GETOWN), ENOTSUP);
    RS_IS(rclose(fd), 0);
}

static void unknown_numbers_are_ebadf(void **state)
{
    struct sockaddr_storage address = at(1);
    socklen_t length = sizeof address;
    int plain = dup(1), value = 0;
    const int numbers[] = {-1, plain, 1 << 20, 0x7fffffff};
    char byte = 0;

    for (size_t i = 0; i < COUNT(numbers); i++) {
        const int fd = numbers[i];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

        RS_FAILS(rbind(fd, as_sockaddr(&address), length), EBADF);
        RS_FAILS(rlisten(fd, 1), EBADF);
        RS_FAILS(raccept(fd, NULL, NULL), EBADF);
        RS_FAILS(rconnect(fd, as_sockaddr(&address), length), EBADF);
        RS_FAILS(rshutdown(fd, SHUT_RDWR), EBADF);
        RS_FAILS(rclose(fd), EBADF);
        RS_FAILS(rrecv(fd, &byte, 1, 0), EBADF);
        RS_FAILS(rrecvfrom(fd, &byte, 1, 0, NULL, NULL), EBADF);
        RS_FAILS(rrecvmsg(fd, &message, 0), EBADF);
        RS_FAILS(rsend(fd, &byte, 1, 0), EBADF);
        RS_FAILS(rsendto(fd, &byte, 1, 0, NULL, 0), EBADF);
        RS_FAILS(rsendmsg(fd, &message, 0), EBADF);
        RS_FAILS(rread(fd, &byte, 1), EBADF);
        RS_FAILS(rreadv(fd, &part, 1), EBADF);
        RS_FAILS(rwrite(fd, &byte, 1), EBADF);
        RS_FAILS(rwritev(fd, &part, 1), EBADF);
        RS_FAILS(rgetpeername(fd, as_sockaddr(&address), &length), EBADF);
        RS_FAILS(rgetsockname(fd, as_sockaddr(&address), &length), EBADF);
        RS_FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value), EBADF);
        length = sizeof value;
        RS_FAILS(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length), EBADF);
        RS_FAILS(rfcntl(fd, F_GETFL), EBADF);
        RS_FAILS(riomap(fd, &byte, 1, PROT_WRITE, 0, -1), EBADF);
        RS_FAILS(riounmap(fd, &byte, 1), EBADF);
        RS_FAILS(riowrite(fd, &byte, 1, 0, 0), EBADF);
    }
    close(plain);
}

static void without_a_connection_there_is_no_transfer(void **state)
{
    struct rs_end end;
    struct sockaddr_storage address = at(1);
    socklen_t length = sizeof address;
    char byte = 0;

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    for (int i = 0; i < 2; i++) {
        RS_FAILS(rsend(end.fd, &byte, 1, 0), ENOTCONN);
        RS_FAILS(rrecv(end.fd, &byte, 1, 0), ENOTCONN);
        RS_FAILS(rshutdown(end.fd, SHUT_RDWR), ENOTCONN);
        RS_FAILS(rgetpeername(end.fd, as_sockaddr(&address), &length), ENOTCONN);
        RS_FAILS(raccept(end.fd, NULL, NULL), i ? EAGAIN : EINVAL);
        RS_FAILS(riowrite(end.fd, &byte, 1, 0, 0), ENOTCONN);
        RS_FAILS(riomap(end.fd, &byte, 1, PROT_WRITE, 0, -1), EINVAL);
        rs_set_nonblocking(end.fd, true);
        RS_IS(rlisten(end.fd, 1), 0);
    }
    rs_close(&end);
}

static bool same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return memcmp(a, b, cm_length(a)) == 0;
}

struct names {
    int fd;
    struct sockaddr_storage local, peer;
};

static void names_here(void *arg)
{
    struct names *names = arg;
    socklen_t length = sizeof names->local;

    memset(&names->local, 0, sizeof names->local);
    memset(&names->peer, 0, sizeof names->peer);
    RS_IS(rgetsockname(names->fd, as_sockaddr(&names->local), &length), 0);
    assert_int_equal(length, cm_length(&names->local));
    length = sizeof names->peer;
    RS_IS(rgetpeername(names->fd, as_sockaddr(&names->peer), &length), 0);
    assert_int_equal(length, cm_length(&names->peer));
}

static void both_ends_agree_on_their_names(void **state)
{
    struct sockaddr_storage expected;
    struct names near, far;
    struct rs_pair pair;
    uint8_t few[2] = {0xaa, 0xaa};
    socklen_t length = 1;

    rs_pair_open(&pair);
    near.fd = pair.near.fd;
    far.fd = pair.far.fd;
    side_call(NEAR, names_here, &near, sizeof near);
    side_call(FAR, names_here, &far, sizeof far);
    expected = at(pair.port);
    assert_true(same(&near.peer, &expected));
    assert_true(same(&far.local, &expected));
    assert_true(same(&near.local, &far.peer));
    assert_int_not_equal(((struct sockaddr_in *)&near.local)->sin_port, 0);
    /* As much as there is room for, and how much there is. */
    RS_IS(rgetsockname(pair.near.fd, (struct sockaddr *)few, &length), 0);
    assert_int_equal(length, cm_length(&near.local));
    assert_int_equal(few[1], 0xaa);
    length = 0;
    RS_IS(rgetsockname(pair.near.fd, NULL, &length), 0);
    assert_int_equal(length, cm_length(&near.local));
    rs_pair_close(&pair);
}

static void accepting_tells_who_it_is(void **state)
{
    struct sockaddr_storage peer = {0}, local;
    socklen_t length = sizeof peer;
    struct rs_end listener, near;
    uint16_t port;
    int fd;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 1);
    rs_open(&near, NEAR, SOCK_STREAM, NULL);
    rs_connect(&near, port);
    fd = raccept(listener.fd, as_sockaddr(&peer), &length);
    assert_true(fd >= 0);
    assert_int_equal(length, cm_length(&peer));
    length = sizeof local;
    memset(&local, 0, sizeof local);
    RS_IS(rgetsockname(near.fd, as_sockaddr(&local), &length), 0);
    assert_true(same(&peer, &local));
    RS_IS(rclose(fd), 0);
    rs_close(&near);
    rs_close(&listener);
}

/* As with sockets: who listens need not be in raccept(). */
static void connections_are_made_while_nobody_accepts(void **state)
{
    enum { COUNT_OF = 8 };
    struct rs_end listener, near[COUNT_OF], far[COUNT_OF];
    uint16_t port;

    rs_open(&listener, FAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, COUNT_OF);
    for (int i = 0; i < COUNT_OF; i++) {
        rs_open(&near[i], NEAR, SOCK_STREAM, NULL);
        rs_connect(&near[i], port);
        RS_IS(rsend(near[i].fd, &i, sizeof i, 0), sizeof i);
    }
    for (int i = 0; i < COUNT_OF; i++) {
        far[i] = rs_accept(&listener);
        rs_close(&near[i]);
        rs_close(&far[i]);
    }
    rs_close(&listener);
}

static void a_full_backlog_makes_others_wait(void **state)
{
    enum { COUNT_OF = 6 };
    struct rs_end listener, near[COUNT_OF];
    int fds[COUNT_OF];
    uint16_t port;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 3);
    for (int i = 0; i < COUNT_OF; i++) {
        rs_open(&near[i], NEAR, SOCK_STREAM, NULL);
        rs_set_nonblocking(near[i].fd, true);
        RS_FAILS(connect_to(near[i].fd, port), EINPROGRESS);
    }
    for (int i = 0; i < COUNT_OF; i++) {
        fds[i] = raccept(listener.fd, NULL, NULL);
        assert_true(fds[i] >= 0);
    }
    for (int i = 0; i < COUNT_OF; i++) {
        rs_await(near[i].fd, POLLOUT);
        assert_int_equal(rs_error(near[i].fd), 0);
        rs_close(&near[i]);
        RS_IS(rclose(fds[i]), 0);
    }
    rs_close(&listener);
}

static void connecting_without_waiting(void **state)
{
    struct pollfd watched;
    struct rs_pair pair;

    rs_open(&pair.listener, FAR, SOCK_STREAM, NULL);
    pair.port = rs_listen(&pair.listener, 1);
    rs_open(&pair.near, NEAR, SOCK_STREAM, NULL);
    rs_set_nonblocking(pair.near.fd, true);
    RS_FAILS(connect_to(pair.near.fd, pair.port), EINPROGRESS);
    rs_await(pair.near.fd, POLLOUT);
    assert_int_equal(rs_error(pair.near.fd), 0);
    RS_IS(connect_to(pair.near.fd, pair.port), 0); /* as Linux: told once */
    RS_FAILS(connect_to(pair.near.fd, pair.port), EISCONN);
    watched = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
    RS_IS(rpoll(&watched, 1, 0), 0);
    pair.far = rs_accept(&pair.listener);
    rs_set_nonblocking(pair.near.fd, false);
    rs_talk(&pair);
    rs_pair_close(&pair);
}

/* Nobody calls anything on it until it is used. */
static void a_connection_is_made_in_the_background(void **state)
{
    struct rs_pair pair;
    char byte = 1;

    rs_open(&pair.listener, FAR, SOCK_STREAM, NULL);
    pair.port = rs_listen(&pair.listener, 1);
    rs_open(&pair.near, NEAR, SOCK_STREAM, NULL);
    rs_set_nonblocking(pair.near.fd, true);
    RS_FAILS(connect_to(pair.near.fd, pair.port), EINPROGRESS);
    pair.far = rs_accept(&pair.listener);
    EVENTUALLY(rsend(pair.near.fd, &byte, 1, 0) == 1, "to be connected")
    CHECK(errno == EAGAIN, "errno %s", strerror(errno));
    rs_pair_close(&pair);
}

static void nobody_there_refuses(void **state)
{
    uint16_t port = unused_port();
    struct rs_end end;
    short events;

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    RS_FAILS(connect_to(end.fd, port), ECONNREFUSED);
    assert_int_equal(rs_error(end.fd), 0);
    rs_close(&end);

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    rs_set_nonblocking(end.fd, true);
    RS_FAILS(connect_to(end.fd, port), EINPROGRESS);
    events = rs_await(end.fd, POLLOUT | POLLIN | POLLERR | POLLHUP);
    assert_true(events & POLLERR);
    assert_int_equal(rs_error(end.fd), ECONNREFUSED);
    assert_int_equal(rs_error(end.fd), 0);
    RS_FAILS(rsend(end.fd, &port, sizeof port, 0), ENOTCONN);
    rs_close(&end);
}

static void after_a_failure_it_may_try_again(void **state)
{
    const struct rs_setting reuse[] = {{SOL_SOCKET, SO_REUSEADDR, 1}, {0, 0, 0}};
    struct sockaddr_storage address;
    uint16_t port = unused_port();
    struct rs_pair pair;

    rs_open(&pair.near, NEAR, SOCK_STREAM, NULL);
    RS_FAILS(connect_to(pair.near.fd, port), ECONNREFUSED);
    RS_FAILS(connect_to(pair.near.fd, port), ECONNREFUSED);
    rs_open(&pair.listener, NEAR, SOCK_STREAM, reuse);
    address = at(port);
    RS_IS(rbind(pair.listener.fd, as_sockaddr(&address), cm_length(&address)), 0);
    RS_IS(rlisten(pair.listener.fd, 1), 0);
    rs_connect(&pair.near, port);
    pair.far = rs_accept(&pair.listener);
    rs_talk(&pair);
    rs_pair_close(&pair);
}

static void an_address_can_be_bound_once(void **state)
{
    struct sockaddr_storage address;
    struct rs_end listener, other;
    uint16_t port;

    rs_open(&listener, FAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 1);
    rs_open(&other, NEAR, SOCK_STREAM, NULL);
    address = at(port);
    RS_FAILS(rbind(other.fd, as_sockaddr(&address), cm_length(&address)), EADDRINUSE);
    RS_FAILS(rbind(other.fd, as_sockaddr(&address), 3), EINVAL);
    RS_FAILS(rbind(other.fd, NULL, 0), EFAULT);
    address.ss_family = AF_UNIX;
    RS_FAILS(rbind(other.fd, as_sockaddr(&address), sizeof address), EAFNOSUPPORT);
    address = at(0);
    RS_IS(rbind(other.fd, as_sockaddr(&address), cm_length(&address)), 0);
    RS_FAILS(rbind(other.fd, as_sockaddr(&address), cm_length(&address)), EINVAL);
    rs_close(&other);
    rs_close(&listener);
}

static void a_client_may_be_bound(void **state)
{
    struct sockaddr_storage address = at(0), peer = {0}, local = {0};
    socklen_t length = sizeof peer;
    struct rs_end listener, near;
    uint16_t port;
    int fd;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 1);
    rs_open(&near, NEAR, SOCK_STREAM, NULL);
    RS_IS(rbind(near.fd, as_sockaddr(&address), cm_length(&address)), 0);
    RS_IS(rgetsockname(near.fd, as_sockaddr(&local), &length), 0);
    rs_connect(&near, port);
    length = sizeof peer;
    fd = raccept(listener.fd, as_sockaddr(&peer), &length);
    assert_true(same(&peer, &local));
    RS_IS(rclose(fd), 0);
    rs_close(&near);
    rs_close(&listener);
}

/* What it has accepted and not handed out goes with it. */
static void a_listener_that_closes_drops_who_waits(void **state)
{
    struct rs_end listener, near[4];
    uint16_t port;
    char byte;

    rs_open(&listener, FAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 2);
    for (int i = 0; i < 4; i++) {
        rs_open(&near[i], NEAR, SOCK_STREAM, NULL);
        rs_set_nonblocking(near[i].fd, i > 1);
        if (i > 1)
            RS_FAILS(connect_to(near[i].fd, port), EINPROGRESS);
        else
            RS_IS(connect_to(near[i].fd, port), 0);
    }
    rs_close(&listener);
    for (int i = 0; i < 2; i++) {
        rs_await(near[i].fd, POLLHUP);
        RS_IS(rrecv(near[i].fd, &byte, 1, 0), 0);
    }
    for (int i = 2; i < 4; i++)
        rs_await(near[i].fd, POLLHUP);
    for (int i = 0; i < 4; i++)
        rs_close(&near[i]);
    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    rs_close(&listener);
}

static int accept_one(void *arg)
{
    const int *fd = arg;

    return raccept(*fd, NULL, NULL);
}

static void accepting_sleeps_until_somebody_comes(void **state)
{
    struct rs_end listener, near;
    struct caller caller;
    uint16_t port;
    int fd;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 1);
    caller_start(&caller, accept_one, &listener.fd);
    assert_true(caller_is_blocked(&caller));
    rs_open(&near, NEAR, SOCK_STREAM, NULL);
    rs_connect(&near, port);
    fd = caller_finish(&caller);
    assert_true(fd >= 0);
    RS_IS(rclose(fd), 0);

    caller_start(&caller, accept_one, &listener.fd);
    assert_true(caller_is_blocked(&caller));
    rs_close(&listener);
    assert_int_equal(caller_finish(&caller), -1);
    rs_close(&near);
}

static void many_connections_one_after_the_other(void **state)
{
    const int rounds = 200 / (int)slowness();
    struct rs_pair pair;

    rs_open(&pair.listener, FAR, SOCK_STREAM, NULL);
    pair.port = rs_listen(&pair.listener, 8);
    for (int i = 0; i < rounds; i++) {
        rs_open(&pair.near, NEAR, SOCK_STREAM, NULL);
        rs_connect(&pair.near, pair.port);
        pair.far = rs_accept(&pair.listener);
        if (i % 10 == 0)
            rs_talk(&pair);
        rs_close(i % 2 ? &pair.near : &pair.far);
        rs_close(i % 2 ? &pair.far : &pair.near);
    }
    rs_close(&pair.listener);
}

static void an_ipv6_listener_hears_ipv4(void **state)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6}, peer;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = rsocket(AF_INET6, SOCK_STREAM, 0), near = rsocket(AF_INET, SOCK_STREAM, 0), far, off = 0;
    socklen_t length = sizeof any;

    RS_IS(rsetsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off), 0);
    RS_IS(rbind(listener, (struct sockaddr *)&any, sizeof any), 0);
    RS_IS(rgetsockname(listener, (struct sockaddr *)&any, &length), 0);
    RS_IS(rlisten(listener, 1), 0);
    to.sin_port = any.sin6_port;
    RS_IS(rconnect(near, (struct sockaddr *)&to, sizeof to), 0);
    length = sizeof peer;
    far = raccept(listener, (struct sockaddr *)&peer, &length);
    assert_true(far >= 0);
    assert_int_equal(peer.sin6_family, AF_INET6);
    assert_true(IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr));
    RS_IS(rclose(near), 0);
    RS_IS(rclose(far), 0);
    RS_IS(rclose(listener), 0);
}

/* What the network path, the search for a route, and a socket of datagrams open is not the program's. */
static void sockets_of_the_adapter_are_no_rsockets(void **state)
{
    unsigned before = internet_sockets; /* the test's network */
    struct rs_end datagram;
    struct rs_pair pair;

    rs_pair_open(&pair);
    rs_talk(&pair);
    rs_open(&datagram, NEAR, SOCK_DGRAM, NULL);
    assert_int_equal(internet_sockets, before);
    rs_close(&datagram);
    rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(no_descriptor_is_stdin_stdout_or_stderr),
        TEST(kinds_that_there_are_not_are_refused),
        TEST(a_socket_is_a_descriptor_of_the_process),
#ifndef __SANITIZE_ADDRESS__ /* which stands in front of accept4() and not of socket(), as librspreload does \
                                of the latter */
        TEST(flags_of_creation_are_kept),
#endif
        TEST(unknown_numbers_are_ebadf),
        TEST(without_a_connection_there_is_no_transfer),
        TEST(both_ends_agree_on_their_names),
        TEST(accepting_tells_who_it_is),
        TEST(connections_are_made_while_nobody_accepts),
        TEST(a_full_backlog_makes_others_wait),
        TEST(connecting_without_waiting),
        TEST(a_connection_is_made_in_the_background),
        TEST(nobody_there_refuses),
        TEST(after_a_failure_it_may_try_again),
        TEST(an_address_can_be_bound_once),
        TEST(a_client_may_be_bound),
        TEST(a_listener_that_closes_drops_who_waits),
        TEST(accepting_sleeps_until_somebody_comes),
        TEST(many_connections_one_after_the_other),
        TEST(an_ipv6_listener_hears_ipv4),
        TEST(sockets_of_the_adapter_are_no_rsockets),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
