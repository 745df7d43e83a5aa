/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Port events follow the interface, and reach a program that has nothing but a context (verbs.md §9.2).
 * In a network namespace of its own; where that is not allowed, skipped. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

static struct ibv_context *context;

static void set_loopback(bool up)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

/* One more address, of an alias of the loopback interface. */
static void add_address(const char *alias, const char *text)
{
    struct ifreq request = {.ifr_flags = 0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(text)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    strcpy(request.ifr_name, alias);
    memcpy(&request.ifr_addr, &address, sizeof(address));
    assert_int_equal(ioctl(fd, SIOCSIFADDR, &request), 0);
    close(fd);
}

static void open_first(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    assert_non_null(list);
    context = ibv_open_device(list[0]);
    assert_non_null(context);
    ibv_free_device_list(list);
}

/* As a program that has nothing but a context, and asks only when its descriptor is readable. */
static void poll_event(enum ibv_event_type type)
{
    struct ibv_async_event event;

    do {
        struct pollfd watched = {.fd = context->async_fd, .events = POLLIN};

        assert_int_equal(poll(&watched, 1, 20000), 1);
        assert_int_equal(ibv_get_async_event(context, &event), 0);
        ibv_ack_async_event(&event);
    } while (event.event_type != type);
}

static bool has_gid(const char *text)
{
    struct in_addr wanted = {inet_addr(text)};
    union ibv_gid gid;

    for (int i = 0; i < 16; i++) {
        if (ibv_query_gid(context, 1, i, &gid) == 0 && !memcmp(gid.raw + 12, &wanted, sizeof(wanted)))
            return true;
    }
    return false;
}

/* Waits for it; others of the port may come first. */
static void expect_event(enum ibv_event_type type)
{
    struct ibv_async_event event;

    do {
        assert_int_equal(ibv_get_async_event(context, &event), 0);
        assert_int_equal(event.element.port_num, 1);
        ibv_ack_async_event(&event);
    } while (event.event_type != type);
}

static void test_no_interface_no_device(void **state)
{
    int count = -1;

    errno = 0;
    assert_null(ibv_get_device_list(&count));
    assert_int_equal(errno, ENOSYS);
    assert_int_equal(count, 0);
}

/* Nobody has asked for an event in this process yet. */
static void test_a_new_address_reaches_who_polls(void **state)
{
    set_loopback(true);
    open_first();
    assert_false(has_gid("10.98.76.54"));
    add_address("lo:1", "10.98.76.54");
    poll_event(IBV_EVENT_GID_CHANGE);
    assert_true(has_gid("10.98.76.54"));
    assert_int_equal(ibv_close_device(context), 0);
}

/* The child of a fork watches for what it opens itself. */
static void test_a_child_is_reached_too(void **state)
{
    int status;
    pid_t child;

    set_loopback(true);
    open_first();
    child = fork();
    if (child == 0) {
        open_first();
        add_address("lo:2", "10.98.76.55");
        poll_event(IBV_EVENT_GID_CHANGE);
        _exit(has_gid("10.98.76.55") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    poll_event(IBV_EVENT_GID_CHANGE); /* and the parent */
    assert_int_equal(ibv_close_device(context), 0);
}

static void test_port_follows_the_interface(void **state)
{
    struct ibv_async_event event;
    struct ibv_port_attr port;
    struct ibv_device **list;
    int count, flags;

    set_loopback(true);
    list = ibv_get_device_list(&count);
    assert_non_null(list);
    assert_int_equal(count, 1);
    context = ibv_open_device(list[0]);
    assert_non_null(context);
    ibv_free_device_list(list);

    /* From now on it watches. */
    flags = fcntl(context->async_fd, F_GETFL);
    assert_int_equal(fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
    assert_int_equal(ibv_get_async_event(context, &event), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(context->async_fd, F_SETFL, flags), 0);

    set_loopback(false);
    expect_event(IBV_EVENT_PORT_ERR);
    assert_int_equal(ibv_query_port(context, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_DOWN);
    set_loopback(true);
    expect_event(IBV_EVENT_PORT_ACTIVE);
    assert_int_equal(ibv_query_port(context, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    assert_int_equal(ibv_close_device(context), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_interface_no_device),
        cmocka_unit_test(test_a_new_address_reaches_who_polls),
        cmocka_unit_test(test_a_child_is_reached_too),
        cmocka_unit_test(test_port_follows_the_interface),
    };

    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        printf("no network namespace: %s\n", strerror(errno));
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
