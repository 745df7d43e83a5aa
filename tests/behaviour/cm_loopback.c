/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* docs/rdmacm.md, Addresses: a loopback address is no device's, as in the kernel. Who listens there listens
 * at every address of the host, for this host alone. */
#include "cm.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cm_parameters plain = {.retry_count = 7, .qp_num = 4242};

enum { REASON_NO_LISTENER = 8 };

/* --- addresses --- */

static struct sockaddr_storage address_of(const char *text, uint16_t port)
{
    struct sockaddr_storage storage = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;

    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1, "%s is no address", text);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return storage;
}

static bool is_usable(const struct ifaddrs *entry, int family, bool loopback)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)entry->ifa_addr;

    return entry->ifa_addr && entry->ifa_addr->sa_family == family && (entry->ifa_flags & IFF_UP) &&
           !(entry->ifa_flags & IFF_LOOPBACK) == !loopback &&
           (family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr));
}

/* An address of lo, or of another interface. */
static bool find_address(int family, bool loopback, uint16_t port, struct sockaddr_storage *ret_address)
{
    struct ifaddrs *list;
    bool found = false;

    CHECK(getifaddrs(&list) == 0, "getifaddrs: %s", strerror(errno));
    for (struct ifaddrs *entry = list; entry && !found; entry = entry->ifa_next) {
        found = is_usable(entry, family, loopback);
        if (!found)
            continue;
        memset(ret_address, 0, sizeof *ret_address);
        memcpy(ret_address, entry->ifa_addr,
               family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        /* Both families have the port at the same place. */
        ((struct sockaddr_in *)ret_address)->sin_port = htons(port);
    }
    freeifaddrs(list);
    return found;
}

static int family_under_test(void)
{
    return cm_address(0).ss_family;
}

static struct sockaddr_storage interface_address(uint16_t port)
{
    struct sockaddr_storage address;

    if (!find_address(family_under_test(), false, port, &address))
        skip_because("no interface but lo has an address of this family");
    return address;
}

/* --- who listens, and who asks --- */

struct place {
    struct sockaddr_storage address;
    bool reuse, one_family;
    int result;
};

static void listen_at(struct cm_end *end, void *arg)
{
    struct place *place = arg;
    int one = 1;

    if (place->reuse)
        CM_ZERO(rdma_set_option(end->id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
    if (place->one_family)
        CM_ZERO(rdma_set_option(end->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one));
    place->result = CM(rdma_bind_addr(end->id, as_sockaddr(&place->address)));
    if (!place->result)
        place->result = CM(rdma_listen(end->id, 8));
    CHECK(place->result || end->id->verbs == NULL, "the listener has a device");
    place->address = end->id->route.addr.src_storage;
}

/* The port. */
static uint16_t open_listener(struct cm_end *far, struct side *side, const struct place *wanted)
{
    struct place place = *wanted;

    cm_open(far, side, RDMA_PS_TCP);
    CM_AT(far, listen_at, &place);
    assert_int_equal(place.result, 0);
    return ntohs(((struct sockaddr_in *)&place.address)->sin_port);
}

static void ask(struct cm_end *near, struct sockaddr_storage at)
{
    cm_open(near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_resolve_addr(near->id, NULL, as_sockaddr(&at), 2000));
    cm_expect(near, RDMA_CM_EVENT_ADDR_RESOLVED);
    CM_ZERO(rdma_resolve_route(near->id, 2000));
    cm_expect(near, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK_ZERO(cm_connect(near, &plain));
}

static void drop_child(struct cm_end *end, void *arg)
{
    CHECK(end->child->verbs != NULL, "a request without a device");
    CM_ZERO(rdma_destroy_id(end->child));
    end->child = NULL;
}

/* The request to this address comes to that listener. */
static void expect_at(struct cm_end *far, struct sockaddr_storage at)
{
    struct cm_end near;

    ask(&near, at);
    cm_expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT_PLAIN(far, drop_child);
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_close(&near);
}

static void expect_nobody_at(struct sockaddr_storage at)
{
    struct cm_end near;

    ask(&near, at);
    assert_int_equal(cm_expect(&near, RDMA_CM_EVENT_REJECTED).status, REASON_NO_LISTENER);
    cm_close(&near);
}

/* --- binding --- */

static void a_loopback_address_has_no_device(void **state)
{
    struct sockaddr_storage address = cm_address(0);
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(near.id, as_sockaddr(&address)));
    assert_null(near.id->verbs);
    assert_null(near.id->pd);
    assert_int_equal(near.id->port_num, 0);
    assert_true(ntohs(rdma_get_src_port(near.id)) >= 1024);
    ((struct sockaddr_in *)&address)->sin_port = rdma_get_src_port(near.id);
    assert_memory_equal(rdma_get_local_addr(near.id), &address, cm_length(&address));
    cm_close(&near);
}

static void the_address_of_an_interface_has_one(void **state)
{
    struct sockaddr_storage address = interface_address(0);
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(near.id, as_sockaddr(&address)));
    assert_non_null(near.id->verbs);
    assert_non_null(near.id->pd);
    assert_int_equal(near.id->port_num, 1);
    cm_close(&near);
}

static void resolving_binds_to_the_device(void **state)
{
    struct sockaddr_storage address = cm_address(0);
    struct cm_end near;
    uint16_t port;

    if (address.ss_family == AF_INET)
        address = address_of("127.0.0.5", 0);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(near.id, as_sockaddr(&address)));
    port = rdma_get_src_port(near.id);
    cm_resolve(&near, 4711);
    assert_non_null(near.id->verbs);
    ((struct sockaddr_in *)&address)->sin_port = port;
    assert_memory_equal(rdma_get_local_addr(near.id), &address, cm_length(&address));
    cm_close(&near);
}

/* --- listening --- */

static void a_loopback_listener_is_reached_at_every_address_of_the_host(void **state)
{
    struct sockaddr_storage interface;
    struct cm_end far;
    uint16_t port = open_listener(&far, FAR, &(struct place){.address = cm_address(0)});

    expect_at(&far, cm_address(port));
    if (family_under_test() == AF_INET)
        expect_at(&far, address_of("127.0.0.9", port));
    if (find_address(family_under_test(), false, port, &interface))
        expect_at(&far, interface);
    cm_close(&far);
    expect_nobody_at(cm_address(port));
    if (find_address(family_under_test(), false, port, &interface))
        expect_nobody_at(interface);
}

static void a_connection_to_a_loopback_listener_carries_data(void **state)
{
    struct sockaddr_storage at = interface_address(0);
    struct cm_pair pair;
    uint16_t port = open_listener(&pair.far, FAR, &(struct place){.address = cm_address(0)});

    ((struct sockaddr_in *)&at)->sin_port = htons(port);
    cm_open(&pair.near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_resolve_addr(pair.near.id, NULL, as_sockaddr(&at), 2000));
    cm_expect(&pair.near, RDMA_CM_EVENT_ADDR_RESOLVED);
    CM_ZERO(rdma_resolve_route(pair.near.id, 2000));
    cm_expect(&pair.near, RDMA_CM_EVENT_ROUTE_RESOLVED);
    cm_make_qp(&pair.near, false);
    CHECK_ZERO(cm_connect(&pair.near, &plain));
    cm_expect(&pair.far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&pair.far, true);
    CHECK_ZERO(cm_accept(&pair.far, &plain));
    cm_expect(&pair.near, RDMA_CM_EVENT_ESTABLISHED);
    cm_expect(&pair.far, RDMA_CM_EVENT_ESTABLISHED);
    cm_pair_talk(&pair);
    cm_pair_close(&pair);
}

static void whoever_has_the_address_itself_comes_first(void **state)
{
    struct sockaddr_storage other =
        family_under_test() == AF_INET ? address_of("127.0.0.9", 0) : interface_address(0);
    struct cm_end loopback, itself;
    struct place place = {.address = other};
    uint16_t port;

    /* That one second: it is not refused, either. */
    port = open_listener(&loopback, FAR, &(struct place){.address = cm_address(0)});
    ((struct sockaddr_in *)&place.address)->sin_port = htons(port);
    cm_open(&itself, NEAR, RDMA_PS_TCP);
    if (other.ss_family == AF_INET) {
        CM_AT(&itself, listen_at, &place);
        assert_int_equal(place.result, 0);
    } else {
        CM_ZERO(rdma_bind_addr(itself.id, as_sockaddr(&place.address)));
        CM_ZERO(rdma_listen(itself.id, 8));
    }
    ((struct sockaddr_in *)&other)->sin_port = htons(port);
    expect_at(&itself, other);
    expect_at(&loopback, cm_address(port));
    cm_close(&itself);
    expect_at(&loopback, other);
    cm_close(&loopback);
}

static void ipv6_loopback_is_both_families_unless_told(void **state)
{
    struct sockaddr_storage there;
    struct cm_end far;
    uint16_t port;

    if (!find_address(AF_INET6, true, 0, &there))
        skip_because("lo has no IPv6 address");
    port = open_listener(&far, FAR, &(struct place){.address = address_of("::1", 0)});
    expect_at(&far, address_of("::1", port));
    expect_at(&far, address_of("127.0.0.1", port));
    cm_close(&far);
    port = open_listener(&far, FAR, &(struct place){.address = address_of("::1", 0), .one_family = true});
    expect_at(&far, address_of("::1", port));
    expect_nobody_at(address_of("127.0.0.1", port));
    cm_close(&far);
    port = open_listener(&far, FAR, &(struct place){.address = address_of("127.0.0.1", 0)});
    expect_nobody_at(address_of("::1", port));
    cm_close(&far);
}

static void a_shared_loopback_address_is_the_hosts_once_it_listens(void **state)
{
    struct cm_end far;
    struct sockaddr_storage there = cm_address(0);
    uint16_t port = open_listener(&far, FAR, &(struct place){.address = there, .reuse = true});

    expect_at(&far, cm_address(port));
    if (there.ss_family == AF_INET)
        expect_at(&far, address_of("127.0.0.9", port));
    if (find_address(there.ss_family, false, port, &there))
        expect_at(&far, there);
    cm_close(&far);
}

/* --- the network --- */

static bool is_socket_here(unsigned long inode)
{
    char wanted[64], path[300], link[64];
    DIR *descriptors = opendir("/proc/self/fd");
    bool here = false;

    CHECK(descriptors, "/proc/self/fd: %s", strerror(errno));
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    for (const struct dirent *entry; !here && (entry = readdir(descriptors));) {
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        length = readlink(path, link, sizeof link - 1);
        link[length < 0 ? 0 : length] = 0;
        here = strcmp(link, wanted) == 0;
    }
    closedir(descriptors);
    return here;
}

/* By this process: other tests may do so beside this one. */
static void network_port_is_open(struct cm_end *end, void *open)
{
    static const char *const files[] = {"/proc/self/net/udp", "/proc/self/net/udp6"};
    char line[512], local[64];
    unsigned long inode;

    *(bool *)open = false;
    for (size_t i = 0; i < COUNT(files); i++) {
        FILE *file = fopen(files[i], "re");

        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "%*s %63s %*s %*s %*s %*s %*s %*s %*s %lu", local, &inode) == 2 &&
                strstr(local, ":12B7") && is_socket_here(inode)) /* 4791 */
                *(bool *)open = true;
        if (file)
            fclose(file);
    }
}

static void a_loopback_listener_opens_no_port_of_the_network(void **state)
{
    struct cm_end far;
    bool open;

    if (over_wire())
        skip_because("on this path everything opens it");
    open_listener(&far, FAR, &(struct place){.address = cm_address(0)});
    CM_AT(&far, network_port_is_open, &open);
    assert_false(open);
    cm_close(&far);
}

static const struct test tests[] = {
    TEST(a_loopback_address_has_no_device),
    TEST(the_address_of_an_interface_has_one),
    TEST(resolving_binds_to_the_device),
    TEST(a_loopback_listener_is_reached_at_every_address_of_the_host),
    TEST(a_connection_to_a_loopback_listener_carries_data),
    TEST(whoever_has_the_address_itself_comes_first),
    TEST(ipv6_loopback_is_both_families_unless_told),
    TEST(a_shared_loopback_address_is_the_hosts_once_it_listens),
    TEST(a_loopback_listener_opens_no_port_of_the_network),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
