/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Devices and GID tables from made-up snapshots: compatibility.md §5.1, verbs.md §10.2-10.6. */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/types.h"
#include "object/device/device.h"

struct world {
    struct netdev netdevs[80];
    struct netdev_address addresses[200];
    struct netdev_snapshot snapshot;
};

static struct device_table table;
static struct world world;
static struct device_change changes[DEVICE_CHANGES_MAX];

static void begin(const struct device_options *options)
{
    static const struct device_options none = {.host_seed = 42};

    memset(&world, 0, sizeof(world));
    world.snapshot.netdevs = world.netdevs;
    world.snapshot.addresses = world.addresses;
    device_table_init(&table, options ? options : &none);
}

static struct netdev *add_netdev(uint32_t ifindex, const char *name)
{
    struct netdev *netdev = &world.netdevs[world.snapshot.netdev_count++];

    *netdev = (struct netdev){.ifindex = ifindex, .mtu = 1500, .running = true};
    strncpy(netdev->name, name, sizeof(netdev->name) - 1);
    memcpy(netdev->mac, (uint8_t[]){2, 0, 0, 0, 0, (uint8_t)ifindex}, 6);
    return netdev;
}

static struct netdev *add_loopback(void)
{
    struct netdev *netdev = add_netdev(1, "lo");

    netdev->loopback = true;
    netdev->mtu = 65536;
    memset(netdev->mac, 0, 6);
    return netdev;
}

static const uint8_t *gid_of(const char *text)
{
    static uint8_t gids[8][16];
    static unsigned next;
    uint8_t *gid = gids[next++ % 8];

    memset(gid, 0, 16);
    if (strchr(text, ':')) {
        assert_int_equal(inet_pton(AF_INET6, text, gid), 1);
    } else {
        gid[10] = gid[11] = 0xff;
        assert_int_equal(inet_pton(AF_INET, text, gid + 12), 1);
    }
    return gid;
}

static struct netdev_address *add_address(uint32_t ifindex, const char *text, unsigned prefix_length)
{
    struct netdev_address *address = &world.addresses[world.snapshot.address_count++];

    *address = (struct netdev_address){
        .ifindex = ifindex, .prefix_length = (uint8_t)(prefix_length + (strchr(text, ':') ? 0 : 96))};
    memcpy(address->gid, gid_of(text), 16);
    return address;
}

static void remove_address(const char *text)
{
    for (unsigned i = 0; i < world.snapshot.address_count; i++) {
        if (memcmp(world.addresses[i].gid, gid_of(text), 16) == 0) {
            world.snapshot.address_count--;
            memmove(&world.addresses[i], &world.addresses[i + 1],
                    (world.snapshot.address_count - i) * sizeof(world.addresses[0]));
            return;
        }
    }
    fail();
}

static int apply(void)
{
    int count = device_table_apply(&table, &world.snapshot, changes);

    assert_true(count >= 0);
    return count;
}

static struct device *listed(unsigned position)
{
    struct device *devices[DEVICES_MAX];
    unsigned count = device_table_list(&table, devices);

    for (unsigned i = 0; i < count; i++)
        device_put(&table, devices[i]);
    return position < count ? devices[position] : NULL;
}

static void assert_gid(const struct device *device, uint32_t index, const char *text)
{
    uint8_t gid[16];
    uint32_t ifindex = 0;
    int result = device_query_gid(&table, device, index, gid, &ifindex);

    if (!text) {
        assert_int_equal(result, -ENODATA);
        return;
    }
    assert_int_equal(result, 0);
    assert_memory_equal(gid, gid_of(text), 16);
    assert_int_equal(ifindex, device->ifindex);
}

static void end(void)
{
    device_table_fini(&table);
}

static void test_order_is_non_loopback_first(void **state)
{
    begin(NULL);
    add_loopback();
    add_address(1, "127.0.0.1", 8);
    add_netdev(2, "docker0")->running = false;
    add_address(2, "172.17.0.1", 16);
    add_netdev(3, "eth0");
    add_address(3, "192.0.2.2", 24);
    add_netdev(4, "unused0");
    assert_int_equal(apply(), 0);
    assert_string_equal(listed(0)->name, "softhca0");
    assert_string_equal(listed(0)->netdev_name, "eth0");
    assert_string_equal(listed(1)->netdev_name, "docker0");
    assert_string_equal(listed(2)->netdev_name, "lo");
    assert_null(listed(3));
    end();
}

static void test_ipv4_is_at_index_0(void **state)
{
    begin(NULL);
    add_netdev(2, "eth0");
    add_address(2, "fd00::9", 64)->flags = NETDEV_ADDRESS_TEMPORARY;
    add_address(2, "fe80::1", 64);
    add_address(2, "fd00::2", 64);
    add_address(2, "192.0.2.9", 24);
    add_address(2, "192.0.2.3", 24);
    apply();
    assert_gid(listed(0), 0, "192.0.2.9"); /* the primary one comes first from the kernel */
    assert_gid(listed(0), 1, "192.0.2.3");
    assert_gid(listed(0), 2, "fd00::2");
    assert_gid(listed(0), 3, "fd00::9");
    assert_gid(listed(0), 4, NULL);
    assert_gid(listed(0), LIMIT_GIDS - 1, NULL);
    uint8_t gid[16];
    uint32_t ifindex;
    assert_int_equal(device_query_gid(&table, listed(0), LIMIT_GIDS, gid, &ifindex), -EINVAL);
    end();
}

static void test_link_local_only_when_there_is_nothing_else(void **state)
{
    begin(NULL);
    add_loopback();
    add_address(1, "127.0.0.1", 8);
    add_netdev(2, "veth0");
    add_address(2, "fe80::2", 64);
    apply();
    assert_string_equal(listed(0)->netdev_name, "veth0");
    assert_gid(listed(0), 0, "fe80::2");
    /* An entry that is there stays: indices are stable while an address lives. */
    add_netdev(3, "veth1");
    add_address(3, "fe80::3", 64);
    add_netdev(4, "eth0");
    add_address(4, "192.0.2.2", 24);
    apply();
    assert_gid(listed(0), 0, "fe80::2");
    assert_string_equal(listed(1)->netdev_name, "lo");
    assert_string_equal(listed(2)->netdev_name, "eth0");
    assert_null(listed(3));
    end();

    struct device_options options = {.link_local_gids = true};
    begin(&options);
    add_netdev(4, "eth0");
    add_address(4, "fe80::4", 64);
    add_address(4, "192.0.2.2", 24);
    apply();
    assert_gid(listed(0), 0, "192.0.2.2");
    assert_gid(listed(0), 1, "fe80::4");
    end();
}

static void test_indices_are_stable_and_changes_are_told(void **state)
{
    begin(NULL);
    struct netdev *eth0 = add_netdev(2, "eth0");
    add_address(2, "192.0.2.2", 24);
    add_address(2, "192.0.2.3", 24);
    add_address(2, "fd00::2", 64);
    assert_int_equal(apply(), 0);
    assert_int_equal(apply(), 0);

    remove_address("192.0.2.3");
    assert_int_equal(apply(), 1);
    assert_ptr_equal(changes[0].device, listed(0));
    assert_int_equal(changes[0].event, IBV_EVENT_GID_CHANGE);
    assert_gid(listed(0), 1, NULL);
    assert_gid(listed(0), 2, "fd00::2");

    add_address(2, "192.0.2.7", 24);
    assert_int_equal(apply(), 1);
    assert_gid(listed(0), 1, "192.0.2.7");

    eth0->running = false;
    assert_int_equal(apply(), 1);
    assert_int_equal(changes[0].event, IBV_EVENT_PORT_ERR);
    struct ibv_port_attr port;
    assert_int_equal(device_query_port(&table, listed(0), 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_DOWN);
    eth0->running = true;
    assert_int_equal(apply(), 1);
    assert_int_equal(changes[0].event, IBV_EVENT_PORT_ACTIVE);
    assert_int_equal(device_query_port(&table, listed(0), 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    end();
}

static void test_one_entry_stays_empty(void **state)
{
    begin(NULL);
    add_netdev(2, "eth0");
    for (int i = 1; i <= 40; i++) {
        char text[32];

        snprintf(text, sizeof(text), "192.0.2.%d", i);
        add_address(2, text, 24);
    }
    apply();
    assert_gid(listed(0), LIMIT_GIDS - 2, "192.0.2.15");
    assert_gid(listed(0), LIMIT_GIDS - 1, NULL);
    /* What has no entry is an address of this host all the same. */
    uint32_t ifindex = 0;
    assert_true(device_table_is_local(&table, gid_of("192.0.2.40"), &ifindex));
    assert_int_equal(ifindex, 2);
    end();
}

static void test_local_addresses(void **state)
{
    uint32_t ifindex = 0;

    begin(NULL);
    add_loopback();
    add_address(1, "127.0.0.1", 8);
    add_address(1, "::1", 128);
    add_netdev(2, "eth0");
    add_address(2, "192.0.2.2", 24);
    add_address(2, "fe80::2", 64);
    apply();
    assert_true(device_table_is_local(&table, gid_of("127.0.0.1"), &ifindex));
    assert_int_equal(ifindex, 1);
    assert_true(device_table_is_local(&table, gid_of("127.9.8.7"), &ifindex));
    assert_int_equal(ifindex, 1);
    assert_true(device_table_is_local(&table, gid_of("192.0.2.2"), &ifindex));
    assert_int_equal(ifindex, 2);
    assert_true(
        device_table_is_local(&table, gid_of("fe80::2"), &ifindex)); /* no GID, an address nevertheless */
    assert_true(device_table_is_local(&table, gid_of("::1"), &ifindex));
    assert_int_equal(ifindex, 1);
    assert_false(device_table_is_local(&table, gid_of("192.0.2.3"), &ifindex));
    assert_false(device_table_is_local(&table, gid_of("128.0.0.1"), &ifindex));
    assert_false(device_table_is_local(&table, gid_of("::2"), &ifindex));

    uint32_t index = 99;
    struct device *device = device_table_find_gid(&table, gid_of("127.0.0.1"), &index);
    assert_ptr_equal(device, listed(1));
    assert_int_equal(index, 0);
    device_put(&table, device);
    assert_null(device_table_find_gid(&table, gid_of("127.0.0.2"), NULL));
    assert_int_equal(device_find_gid(&table, listed(0), gid_of("127.0.0.1")), -ENOENT);
    assert_int_equal(device_find_gid(&table, listed(1), gid_of("::1")), 1);
    assert_int_equal(device_valid_gids(&table, listed(1)), 3);
    uint8_t mac[6];
    assert_true(device_table_mac(&table, 2, mac));
    assert_memory_equal(mac, listed(0)->mac, 6);
    assert_false(device_table_mac(&table, 3, mac));
    end();
}

static void test_names(void **state)
{
    struct device_options options = {.names = "mlx5_0,bad/name,mlx5_0"};

    begin(&options);
    for (uint32_t i = 2; i < 6; i++) {
        char text[32];

        snprintf(text, sizeof(text), "eth%u", i);
        add_netdev(i, text);
        snprintf(text, sizeof(text), "192.0.2.%u", i);
        add_address(i, text, 24);
    }
    apply();
    assert_string_equal(listed(0)->name, "mlx5_0");
    assert_string_equal(listed(1)->name, "softhca1");
    assert_string_equal(listed(2)->name, "softhca2");
    assert_string_equal(listed(3)->name, "softhca3");
    end();
}

static void test_guids_are_unique_stable_and_not_zero(void **state)
{
    static const uint8_t zero[8], eui64[8] = {0, 0, 0, 0xff, 0xfe, 0, 0, 2};
    uint8_t before[4][8];

    for (int round = 0; round < 2; round++) {
        begin(NULL);
        add_loopback();
        add_address(1, "127.0.0.1", 8);
        add_netdev(2, "eth0");
        add_address(2, "192.0.2.2", 24);
        memcpy(add_netdev(3, "vlan3")->mac, (uint8_t[]){2, 0, 0, 0, 0, 2}, 6);
        add_address(3, "192.0.2.3", 24);
        memset(add_netdev(4, "tun0")->mac, 0, 6);
        add_address(4, "192.0.2.4", 24);
        apply();
        assert_memory_equal(listed(0)->node_guid, eui64, 8);
        for (unsigned i = 0; i < 4; i++) {
            assert_memory_not_equal(listed(i)->node_guid, zero, 8);
            for (unsigned j = 0; j < i; j++)
                assert_memory_not_equal(listed(i)->node_guid, listed(j)->node_guid, 8);
            if (round == 1)
                assert_memory_equal(listed(i)->node_guid, before[i], 8);
            memcpy(before[i], listed(i)->node_guid, 8);
        }
        end();
    }
}

static void test_device_outlives_its_interface_while_referenced(void **state)
{
    begin(NULL);
    add_netdev(2, "eth0");
    add_address(2, "192.0.2.2", 24);
    apply();
    struct device *device = listed(0);
    device_get(&table, device);

    struct world saved = world;
    world.snapshot.netdev_count = world.snapshot.address_count = 0;
    assert_int_equal(apply(), 2);
    assert_int_equal(changes[0].event, IBV_EVENT_PORT_ERR);
    assert_int_equal(changes[1].event, IBV_EVENT_GID_CHANGE);
    assert_null(listed(0));
    assert_gid(device, 0, NULL);

    /* Back under its name, with another index. */
    world = saved;
    world.netdevs[0].ifindex = world.addresses[0].ifindex = 7;
    assert_int_equal(apply(), 2);
    assert_ptr_equal(listed(0), device);
    assert_gid(device, 0, "192.0.2.2");

    /* Gone for good: the slot is free for another once nobody refers to it. */
    world.snapshot.netdev_count = world.snapshot.address_count = 0;
    apply();
    add_netdev(9, "eth9");
    add_address(9, "192.0.2.9", 24);
    apply();
    assert_ptr_not_equal(listed(0), device);
    device_put(&table, device);
    assert_false(device->in_use);
    end();
}

static void test_more_interfaces_than_devices(void **state)
{
    begin(NULL);
    for (uint32_t i = 0; i < DEVICES_MAX + 4; i++) {
        char text[32];

        snprintf(text, sizeof(text), "eth%u", i);
        add_netdev(i + 2, text);
        snprintf(text, sizeof(text), "192.0.2.%u", i + 1);
        add_address(i + 2, text, 24);
    }
    assert_int_equal(apply(), 0);
    assert_non_null(listed(DEVICES_MAX - 1));
    assert_null(listed(DEVICES_MAX));
    end();
}

static void test_attributes(void **state)
{
    struct device_options options = {.vendor_part_id = 4119};
    union newest_device_attr device;
    struct ibv_port_attr port;

    begin(&options);
    add_loopback();
    add_address(1, "127.0.0.1", 8);
    add_netdev(2, "eth0")->mtu = 1500;
    add_address(2, "192.0.2.2", 24);
    add_netdev(3, "eth1")->mtu = 9000;
    add_address(3, "192.0.2.3", 24);
    add_netdev(4, "eth2")->mtu = 296;
    add_address(4, "192.0.2.4", 24);
    apply();
    device_query(&table, listed(0), &device);
    assert_int_equal(device.ibv.orig_attr.vendor_part_id, 4119);
    assert_int_not_equal(device.ibv.orig_attr.vendor_id, 0);
    assert_true(device.ibv.orig_attr.node_guid != 0);
    assert_int_equal(device.ibv.orig_attr.atomic_cap, IBV_ATOMIC_GLOB);
    assert_int_equal(device.phys_port_cnt_ex, device.ibv.orig_attr.phys_port_cnt);
    assert_true(device.ibv.orig_attr.device_cap_flags & IBV_DEVICE_XRC);
    assert_int_equal(device.ibv.max_dm_size, LIMIT_DM_SIZE);

    static const enum ibv_mtu mtus[] = {IBV_MTU_1024, IBV_MTU_4096, IBV_MTU_256, IBV_MTU_4096};
    for (unsigned i = 0; i < array_size(mtus); i++) {
        assert_int_equal(device_query_port(&table, listed(i), 1, &port), 0);
        assert_int_equal(port.active_mtu, mtus[i]);
        assert_int_equal(device_active_mtu(&table, listed(i)), mtus[i]);
    }
    assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(port.lid, 0);
    assert_int_equal(port.gid_tbl_len, LIMIT_GIDS);
    assert_int_equal(device_query_port(&table, listed(0), 0, &port), -EINVAL);
    assert_int_equal(device_query_port(&table, listed(0), 2, &port), -EINVAL);
    end();
}

static void test_gid_kinds(void **state)
{
    assert_true(gid_is_multicast(gid_of("ff0e::1")));
    assert_true(gid_is_multicast(gid_of("239.1.2.3")));
    assert_false(gid_is_multicast(gid_of("240.0.0.1")));
    assert_true(gid_is_link_local(gid_of("fe80::1")));
    assert_false(gid_is_link_local(gid_of("fec0::1")));
    assert_true(gid_is_ipv4_mapped(gid_of("0.0.0.0")));
    assert_false(gid_is_ipv4_mapped(gid_of("::1")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_non_loopback_first),
        cmocka_unit_test(test_ipv4_is_at_index_0),
        cmocka_unit_test(test_link_local_only_when_there_is_nothing_else),
        cmocka_unit_test(test_indices_are_stable_and_changes_are_told),
        cmocka_unit_test(test_one_entry_stays_empty),
        cmocka_unit_test(test_local_addresses),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_guids_are_unique_stable_and_not_zero),
        cmocka_unit_test(test_device_outlives_its_interface_while_referenced),
        cmocka_unit_test(test_more_interfaces_than_devices),
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_gid_kinds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
