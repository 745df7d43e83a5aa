/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* docs/rdmacm.md, "Addresses": the source of a connection is what the kernel's routing says, also while it changes.
 * In a network namespace of this program, whose addresses and routes it may change. */
#include "cm.h"
#include "network.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIRST  "198.51.100.1"
#define SECOND "198.51.100.2"
#define REMOTE "203.0.113.5"

static void ip(const char *command)
{
    char line[128];

    snprintf(line, sizeof line, "ip %s", command);
    CHECK(system(line) == 0, "%s", line);
}

static struct ibv_context *device; /* of what source_of() has resolved */

/* The source address that a destination is reached from, as text; "" if it cannot be resolved. */
static const char *source_of(const char *destination)
{
    static char text[INET6_ADDRSTRLEN];
    struct sockaddr_storage to = {.ss_family = AF_INET};
    struct cm_end near;
    struct cm_seen seen;

    CHECK(inet_pton(AF_INET, destination, &((struct sockaddr_in *)&to)->sin_addr) == 1, "%s", destination);
    ((struct sockaddr_in *)&to)->sin_port = htons(4720);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_resolve_addr(near.id, NULL, as_sockaddr(&to), 2000));
    seen = cm_next(&near);
    *text = '\0';
    device = near.id->verbs;
    if (seen.type == RDMA_CM_EVENT_ADDR_RESOLVED)
        inet_ntop(AF_INET, &((struct sockaddr_in *)rdma_get_local_addr(near.id))->sin_addr, text,
                  sizeof text);
    else
        assert_int_equal(seen.type, RDMA_CM_EVENT_ADDR_ERROR);
    cm_close(&near);
    return text;
}

/* Each case begins in a new network namespace, as long as its process has one thread. */
static void begin(void)
{
    if (geteuid() != 0)
        skip_because("addresses and routes are root's to change");
    if (!own_network())
        skip_because("no network namespace: %s", strerror(errno));
}

static void an_address_that_is_removed_is_not_resolved(void **state)
{
    begin();
    for (int i = 0; i < 3; i++) {
        ip("address add " FIRST "/32 dev lo");
        assert_string_equal(source_of(FIRST), FIRST);
        assert_string_equal(source_of(FIRST), FIRST);
        ip("address delete " FIRST "/32 dev lo");
        assert_string_equal(source_of(FIRST), "");
    }
}

static struct ibv_context *device_of(const char *address)
{
    assert_string_equal(source_of(address), address);
    return device;
}

static void an_address_is_of_the_interface_that_has_it(void **state)
{
    struct ibv_context *of_lo, *of_other;

    begin();
    of_lo = device_of("127.0.0.1");
    if (strcmp(source_of("10.77.0.1"), "") == 0)
        skip_because("no interface but lo");
    of_other = device_of("10.77.0.1");
    assert_ptr_not_equal(of_lo, of_other);
    for (int i = 0; i < 3; i++) {
        ip("address add " FIRST "/32 dev lo");
        EVENTUALLY(device_of(FIRST) == of_lo, "lo");
        assert_ptr_equal(device_of("127.0.0.1"), of_lo);
        ip("address delete " FIRST "/32 dev lo");
        ip("address add " FIRST "/32 dev test0");
        EVENTUALLY(device_of(FIRST) == of_other, "test0");
        ip("address delete " FIRST "/32 dev test0");
    }
}

static void the_source_is_the_one_of_the_route(void **state)
{
    begin();
    ip("address add " FIRST "/32 dev lo");
    ip("address add " SECOND "/32 dev lo");
    ip("route add 203.0.113.0/24 dev lo src " FIRST);
    assert_string_equal(source_of(REMOTE), FIRST);
    ip("route change 203.0.113.0/24 dev lo src " SECOND);
    assert_string_equal(source_of(REMOTE), SECOND);
    ip("route add table 100 203.0.113.0/24 dev lo src " FIRST);
    assert_string_equal(source_of(REMOTE), SECOND);
    ip("rule add to 203.0.113.0/24 table 100");
    assert_string_equal(source_of(REMOTE), FIRST);
    ip("rule delete to 203.0.113.0/24 table 100");
    assert_string_equal(source_of(REMOTE), SECOND);
    ip("route flush table 100");
    ip("route delete 203.0.113.0/24");
    assert_string_equal(source_of(REMOTE), "");
    ip("address delete " FIRST "/32 dev lo");
    ip("address delete " SECOND "/32 dev lo");
}

static void more_changes_than_a_socket_holds_are_seen(void **state)
{
    char line[96];

    begin();
    ip("address add " FIRST "/32 dev lo");
    assert_string_equal(source_of(FIRST), FIRST);
    for (int i = 1; i <= 250; i++) {
        snprintf(line, sizeof line, "address add 10.9.8.%d/32 dev lo", i);
        ip(line);
    }
    ip("address flush dev lo scope global");
    assert_string_equal(source_of(FIRST), "");
    ip("address add " FIRST "/32 dev lo");
    assert_string_equal(source_of(FIRST), FIRST);
    ip("address delete " FIRST "/32 dev lo");
    assert_string_equal(source_of(FIRST), "");
}

/* --- what is remembered --- */

/* While a program has no descriptor left, the kernel cannot be asked. */
static int resolve_without_descriptors(struct cm_end *near)
{
    struct sockaddr_storage to = cm_address(4721);
    struct rlimit before, none;
    struct cm_seen seen;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    CM_ZERO(rdma_resolve_addr(near->id, NULL, as_sockaddr(&to), 2000));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    seen = cm_next(near);
    return seen.type == RDMA_CM_EVENT_ADDR_RESOLVED ? 0 : seen.status;
}

static void the_kernel_is_asked_once_a_second(void **state)
{
    const struct timespec more_than_a_second = {1, 100 * 1000 * 1000};
    struct cm_end first, second, third;

    begin();
    cm_open(&first, NEAR, RDMA_PS_TCP);
    cm_open(&second, NEAR, RDMA_PS_TCP);
    cm_open(&third, NEAR, RDMA_PS_TCP);
    assert_int_equal(resolve_without_descriptors(&first), -EMFILE);
    cm_resolve(&first, 4721);
    assert_int_equal(resolve_without_descriptors(&second), 0);
    nanosleep(&more_than_a_second, NULL);
    assert_int_equal(resolve_without_descriptors(&third), -EMFILE);
    cm_close(&first);
    cm_close(&second);
    cm_close(&third);
}

static void a_change_is_asked_for(void **state)
{
    struct cm_end first, second;

    begin();
    cm_open(&first, NEAR, RDMA_PS_TCP);
    cm_open(&second, NEAR, RDMA_PS_TCP);
    cm_resolve(&first, 4721);
    ip("address add " SECOND "/32 dev lo");
    assert_int_equal(resolve_without_descriptors(&second), -EMFILE);
    ip("address delete " SECOND "/32 dev lo");
    cm_close(&first);
    cm_close(&second);
}

/* --- descriptors and processes --- */

static bool is_netlink(int fd)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;

    return getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.ss_family == AF_NETLINK;
}

/* Some programs close descriptors that they did not open, and use the numbers. */
static void nothing_is_taken_from_a_socket_of_the_program(void **state)
{
    char letter;
    int replaced = 0;

    begin();
    ip("address add " FIRST "/32 dev lo");
    assert_string_equal(source_of(FIRST), FIRST);
    for (int fd = 3; fd < 256; fd++) {
        int pair[2];

        if (!is_netlink(fd))
            continue;
        assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(send(pair[1], "x", 1, 0), 1);
        assert_int_equal(dup2(pair[0], fd), fd);
        close(pair[0]);
        assert_string_equal(source_of(FIRST), FIRST);
        assert_int_equal(recv(fd, &letter, 1, MSG_DONTWAIT), 1);
        close(pair[1]);
        replaced++;
    }
    assert_true(replaced > 0);
    ip("address delete " FIRST "/32 dev lo");
    assert_string_equal(source_of(FIRST), "");
}

/* What the kernel tells of changes, each process must get. */
static void a_forked_child_takes_nothing_from_its_parent(void **state)
{
    int status, to_child[2], to_parent[2];
    pid_t child;
    char letter = 0;

    begin();
    ip("address add " FIRST "/32 dev lo");
    ip("address add " SECOND "/32 dev lo");
    ip("route add 203.0.113.0/24 dev lo src " FIRST);
    assert_string_equal(source_of(REMOTE), FIRST);
    assert_int_equal(pipe(to_child), 0);
    assert_int_equal(pipe(to_parent), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool good = strcmp(source_of(REMOTE), FIRST) == 0;

        good &= write(to_parent[1], "x", 1) == 1;
        good &= read(to_child[0], &letter, 1) == 1;
        good &= strcmp(source_of(REMOTE), SECOND) == 0;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(read(to_parent[0], &letter, 1), 1);
    ip("route change 203.0.113.0/24 dev lo src " SECOND);
    assert_int_equal(write(to_child[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_string_equal(source_of(REMOTE), SECOND);
    close(to_child[0]);
    close(to_child[1]);
    close(to_parent[0]);
    close(to_parent[1]);
}

static const struct test tests[] = {
    TEST(an_address_that_is_removed_is_not_resolved),
    TEST(an_address_is_of_the_interface_that_has_it),
    TEST(the_source_is_the_one_of_the_route),
    TEST(more_changes_than_a_socket_holds_are_seen),
    TEST(the_kernel_is_asked_once_a_second),
    TEST(a_change_is_asked_for),
    TEST(nothing_is_taken_from_a_socket_of_the_program),
    TEST(a_forked_child_takes_nothing_from_its_parent),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
