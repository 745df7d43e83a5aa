/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.12: options of streams. */
#include "rs.h"

#include <netinet/tcp.h>
#include <stdlib.h>

static int get(int fd, int level, int option)
{
    int value = -77;
    socklen_t length = sizeof value;

    RS_IS(rgetsockopt(fd, level, option, &value, &length), 0);
    assert_int_equal(length, sizeof value);
    return value;
}

static void set(int fd, int level, int option, int value)
{
    RS_IS(rsetsockopt(fd, level, option, &value, sizeof value), 0);
}

static void options_have_defaults_and_keep_what_is_set(void **state)
{
    static const struct {
        int level, option, standard, set, then;
    } table[] = {
        {SOL_SOCKET, SO_REUSEADDR, 0, 1, 1},
        {SOL_SOCKET, SO_RCVBUF, 131072, 100000, 200000},
        {SOL_SOCKET, SO_SNDBUF, 131072, 100000, 200000},
        {SOL_SOCKET, SO_KEEPALIVE, 0, 5, 1},
        {SOL_SOCKET, SO_OOBINLINE, 0, 1, 1},
        {IPPROTO_TCP, TCP_NODELAY, 0, 1, 1},
        {IPPROTO_TCP, TCP_KEEPINTVL, 75, 3, 3},
        {IPPROTO_TCP, TCP_KEEPCNT, 9, 4, 4},
        {IPPROTO_TCP, TCP_KEEPIDLE, -1, 50, 50},
        {SOL_RDMA, RDMA_SQSIZE, 384, 100, 100},
        {SOL_RDMA, RDMA_RQSIZE, 384, 0x20000, 0xfffe},
        {SOL_RDMA, RDMA_INLINE, 64, 300, 300},
        {SOL_RDMA, RDMA_IOMAPSIZE, 0, 129, 128},
    };
    struct rs_end end;

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    for (size_t i = 0; i < COUNT(table); i++) {
        if (table[i].standard >= 0)
            assert_int_equal(get(end.fd, table[i].level, table[i].option), table[i].standard);
        else
            assert_true(get(end.fd, table[i].level, table[i].option) > 0);
        set(end.fd, table[i].level, table[i].option, table[i].set);
        assert_int_equal(get(end.fd, table[i].level, table[i].option), table[i].then);
    }
    assert_int_equal(get(end.fd, SOL_SOCKET, SO_ERROR), 0);
    assert_int_equal(get(end.fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    assert_true(get(end.fd, IPPROTO_TCP, TCP_MAXSEG) >= 256);
    rs_close(&end);
}

static void lingering(void **state)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 7}, got = {0};
    socklen_t length = sizeof got;
    struct rs_end end;

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    RS_IS(rgetsockopt(end.fd, SOL_SOCKET, SO_LINGER, &got, &length), 0);
    assert_int_equal(got.l_onoff, 0);
    RS_IS(rsetsockopt(end.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    RS_IS(rgetsockopt(end.fd, SOL_SOCKET, SO_LINGER, &got, &length), 0);
    assert_int_equal(length, sizeof got);
    assert_memory_equal(&got, &linger, sizeof got);
    rs_close(&end);
}

static void ipv6_only_is_for_ipv6(void **state)
{
    int fd = rsocket(AF_INET6, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(get(fd, IPPROTO_IPV6, IPV6_V6ONLY), 0);
    set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    assert_int_equal(get(fd, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    RS_IS(rclose(fd), 0);
}

static void unknown_options_are_not_supported(void **state)
{
    static const int unknown[][2] = {{SOL_SOCKET, SO_RCVLOWAT},
                                     {SOL_SOCKET, 9999},
                                     {IPPROTO_TCP, TCP_DEFER_ACCEPT},
                                     {IPPROTO_IPV6, IPV6_UNICAST_HOPS},
                                     {SOL_RDMA, 5},
                                     {SOL_RDMA, -1},
                                     {IPPROTO_UDP, 1},
                                     {77, 1}};
    int value = 1;
    socklen_t length = sizeof value;
    struct rs_end end;

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    for (size_t i = 0; i < COUNT(unknown); i++) {
        RS_FAILS(rsetsockopt(end.fd, unknown[i][0], unknown[i][1], &value, sizeof value), ENOTSUP);
        RS_FAILS(rgetsockopt(end.fd, unknown[i][0], unknown[i][1], &value, &length), ENOTSUP);
    }
    rs_close(&end);
}

static void values_are_checked(void **state)
{
    int value = 1;
    socklen_t length = sizeof value;
    struct rs_end end;

    rs_open(&end, NEAR, SOCK_STREAM, NULL);
    RS_FAILS(rsetsockopt(end.fd, SOL_SOCKET, SO_REUSEADDR, &value, 1), EINVAL);
    RS_FAILS(rsetsockopt(end.fd, SOL_SOCKET, SO_REUSEADDR, NULL, sizeof value), EFAULT);
    RS_FAILS(rsetsockopt(end.fd, SOL_SOCKET, SO_LINGER, &value, sizeof value), EINVAL);
    value = 0;
    RS_FAILS(rsetsockopt(end.fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value), EINVAL);
    value = -1;
    RS_FAILS(rsetsockopt(end.fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), EINVAL);
    set(end.fd, SOL_SOCKET, SO_SNDBUF, -5);
    assert_true(get(end.fd, SOL_SOCKET, SO_SNDBUF) > 0);
    set(end.fd, SOL_RDMA, RDMA_INLINE, 1 << 30);
    assert_true(get(end.fd, SOL_RDMA, RDMA_INLINE) < 1 << 20);
    RS_FAILS(rgetsockopt(end.fd, SOL_SOCKET, SO_TYPE, NULL, &length), EFAULT);
    length = 1;
    RS_FAILS(rgetsockopt(end.fd, SOL_SOCKET, SO_TYPE, &value, &length), EINVAL);
    rs_close(&end);
}

static void queues_are_chosen_before_the_connection(void **state)
{
    const struct rs_setting settings[] = {
        {SOL_RDMA, RDMA_SQSIZE, 20}, {SOL_RDMA, RDMA_RQSIZE, 30}, {SOL_RDMA, RDMA_INLINE, 0}, {0, 0, 0}};
    int value = 100;
    struct rs_pair pair;

    rs_pair_open_with(&pair, settings);
    for (int option = RDMA_SQSIZE; option <= RDMA_IOMAPSIZE; option++)
        RS_FAILS(rsetsockopt(pair.near.fd, SOL_RDMA, option, &value, sizeof value), EINVAL);
    assert_int_equal(get(pair.near.fd, SOL_RDMA, RDMA_SQSIZE), 20);
    assert_int_equal(get(pair.near.fd, SOL_RDMA, RDMA_RQSIZE), 30);
    assert_int_equal(get(pair.near.fd, SOL_RDMA, RDMA_INLINE), 0);
    /* Buffers of a connection stay as they are; that is no error. */
    value = get(pair.near.fd, SOL_SOCKET, SO_SNDBUF);
    set(pair.near.fd, SOL_SOCKET, SO_SNDBUF, 1 << 20);
    assert_int_equal(get(pair.near.fd, SOL_SOCKET, SO_SNDBUF), value);
    rs_talk(&pair);
    rs_pair_close(&pair);
}

struct accepted {
    int fd, sq_size, send_bytes;
};

static void look_at(void *arg)
{
    struct accepted *accepted = arg;

    accepted->sq_size = get(accepted->fd, SOL_RDMA, RDMA_SQSIZE);
    accepted->send_bytes = get(accepted->fd, SOL_SOCKET, SO_SNDBUF);
}

static void what_is_accepted_inherits_from_the_listener(void **state)
{
    const struct rs_setting settings[] = {
        {SOL_RDMA, RDMA_SQSIZE, 50}, {SOL_SOCKET, SO_SNDBUF, 10000}, {0, 0, 0}};
    struct accepted accepted;
    struct rs_pair pair;

    rs_pair_open_with(&pair, settings);
    accepted.fd = pair.far.fd;
    side_call(FAR, look_at, &accepted, sizeof accepted);
    assert_int_equal(accepted.sq_size, 50);
    assert_int_equal(accepted.send_bytes, 20000);
    rs_pair_close(&pair);
}

static void a_path_can_be_read_and_given(void **state)
{
    struct ibv_path_data path[4];
    socklen_t length = sizeof path;
    struct sockaddr_storage address;
    struct rs_pair pair;
    struct rs_end other;

    rs_pair_open(&pair);
    RS_IS(rgetsockopt(pair.near.fd, SOL_RDMA, RDMA_ROUTE, path, &length), 0);
    assert_int_equal(length, sizeof path[0]);
    rs_open(&other, NEAR, SOCK_STREAM, NULL);
    path[0].flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_BIDIRECTIONAL;
    RS_IS(rsetsockopt(other.fd, SOL_RDMA, RDMA_ROUTE, path, length), 0);
    length = sizeof path;
    RS_IS(rgetsockopt(other.fd, SOL_RDMA, RDMA_ROUTE, &path[1], &length), 0);
    assert_int_equal(length, sizeof path[0]);
    assert_memory_equal(&path[0], &path[1], sizeof path[0]);
    address = cm_address(pair.port);
    RS_IS(rconnect(other.fd, as_sockaddr(&address), cm_length(&address)), 0);
    rs_close(&other);
    rs_pair_close(&pair);
}

static void tcp_info_tells_whether_it_is_connected(void **state)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    struct rs_pair pair;
    char name[16];

    rs_pair_open(&pair);
    RS_IS(rgetsockopt(pair.near.fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    assert_int_equal(info.tcpi_state, TCP_ESTABLISHED);
    rs_close(&pair.far);
    rs_await(pair.near.fd, POLLHUP);
    length = 1; /* programs are older than the structure */
    RS_IS(rgetsockopt(pair.near.fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    assert_int_equal(info.tcpi_state, TCP_CLOSE);
    length = sizeof name;
    RS_IS(rgetsockopt(pair.near.fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    rs_pair_close(&pair);
}

/* A keepalive travels while nobody does anything; afterwards all is as before. */
static void keepalives_go_out_by_themselves(void **state)
{
    const struct rs_setting settings[] = {
        {IPPROTO_TCP, TCP_KEEPIDLE, 1}, {SOL_SOCKET, SO_KEEPALIVE, 1}, {0, 0, 0}};
    struct pollfd watched;
    struct rs_pair pair;

    rs_pair_open_with(&pair, settings);
    assert_int_equal(get(pair.near.fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    watched = (struct pollfd){.fd = pair.near.fd, .events = POLLIN};
    RS_IS(rpoll(&watched, 1, 1500), 0); /* its completion is nothing that a program sees */
    rs_talk(&pair);
    set(pair.near.fd, SOL_SOCKET, SO_KEEPALIVE, 0);
    assert_int_equal(get(pair.near.fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(options_have_defaults_and_keep_what_is_set),
        TEST(lingering),
        TEST(ipv6_only_is_for_ipv6),
        TEST(unknown_options_are_not_supported),
        TEST(values_are_checked),
        TEST(queues_are_chosen_before_the_connection),
        TEST(what_is_accepted_inherits_from_the_listener),
        TEST(a_path_can_be_read_and_given),
        TEST(tcp_info_tells_whether_it_is_connected),
        TEST(keepalives_go_out_by_themselves),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
