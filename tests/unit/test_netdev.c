/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The interfaces of the machine that runs the test, against what libc reads. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/host/netdev.h"

static const struct netdev *find_netdev(const struct netdev_snapshot *snapshot, uint32_t ifindex)
{
    for (unsigned i = 0; i < snapshot->netdev_count; i++) {
        if (snapshot->netdevs[i].ifindex == ifindex)
            return &snapshot->netdevs[i];
    }
    return NULL;
}

static void test_addresses_are_those_of_getifaddrs(void **state)
{
    struct netdev_snapshot snapshot;
    struct ifaddrs *list;
    unsigned expected = 0;

    assert_int_equal(netdev_snapshot(&snapshot), 0);
    assert_int_equal(getifaddrs(&list), 0);
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        uint8_t gid[16] = {0};
        bool found = false;

        if (!entry->ifa_addr)
            continue;
        if (entry->ifa_addr->sa_family == AF_INET) {
            gid[10] = gid[11] = 0xff;
            memcpy(gid + 12, &((struct sockaddr_in *)entry->ifa_addr)->sin_addr, 4);
        } else if (entry->ifa_addr->sa_family == AF_INET6) {
            memcpy(gid, &((struct sockaddr_in6 *)entry->ifa_addr)->sin6_addr, 16);
        } else {
            continue;
        }
        expected++;
        for (unsigned i = 0; i < snapshot.address_count; i++) {
            const struct netdev *netdev = find_netdev(&snapshot, snapshot.addresses[i].ifindex);

            assert_non_null(netdev);
            if (memcmp(snapshot.addresses[i].gid, gid, 16) == 0 &&
                netdev->ifindex == if_nametoindex(entry->ifa_name)) {
                assert_string_equal(netdev->name, entry->ifa_name);
                assert_int_equal(netdev->loopback, !!(entry->ifa_flags & IFF_LOOPBACK));
                found = true;
            }
        }
        assert_true(found);
    }
    freeifaddrs(list);
    assert_int_equal(snapshot.address_count, expected);
    netdev_snapshot_fini(&snapshot);
    assert_null(snapshot.netdevs);
}

static void test_monitor_is_quiet_when_nothing_changes(void **state)
{
    int fd = netdev_monitor_open();

    assert_true(fd >= 0);
    assert_false(netdev_monitor_drain(fd));
    close(fd);
}

static void test_options_come_from_the_environment(void **state)
{
    struct device_options options;

    setenv("SOFTHCA_DEVICE_NAMES", "a,b", 1);
    setenv("SOFTHCA_PART_ID", "0x1017", 1);
    setenv("SOFTHCA_LINK_LOCAL_GIDS", "1", 1);
    netdev_read_options(&options);
    assert_string_equal(options.names, "a,b");
    assert_int_equal(options.vendor_part_id, 0x1017);
    assert_true(options.link_local_gids);
    free((void *)options.names);

    uint64_t seed = options.host_seed;
    setenv("SOFTHCA_LINK_LOCAL_GIDS", "0", 1);
    unsetenv("SOFTHCA_DEVICE_NAMES");
    netdev_read_options(&options);
    assert_false(options.link_local_gids);
    assert_null(options.names);
    assert_true(options.host_seed == seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_are_those_of_getifaddrs),
        cmocka_unit_test(test_monitor_is_quiet_when_nothing_changes),
        cmocka_unit_test(test_options_come_from_the_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
