/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §9 and §10, compatibility.md §5: asynchronous events as such, and what queries say. */
#include "threads.h"
#include "work.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

static struct ibv_context *context;
static struct ibv_device_attr device;
static struct ibv_port_attr port;

static void open_all(void)
{
    context = open_the_device();
    assert_int_equal(ibv_query_device(context, &device), 0);
    assert_int_equal(ibv_query_port(context, TEST_PORT, &port), 0);
}

static void close_all(void)
{
    assert_int_equal(ibv_close_device(context), 0);
}

/* §10.1 */

static void the_device_list_ends_with_null_and_keeps_its_pointers(void **state)
{
    struct ibv_device **one, **two;
    int count = -1;

    one = ibv_get_device_list(&count);
    assert_non_null(one);
    assert_true(count > 0);
    for (int i = 0; i < count; i++)
        assert_non_null(one[i]);
    assert_null(one[count]);
    two = ibv_get_device_list(NULL);
    assert_non_null(two);
    assert_ptr_equal(one[0], two[0]);
    ibv_free_device_list(one);
    ibv_free_device_list(two);
}

static void every_device_has_a_name_a_guid_and_paths(void **state)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; i < count; i++) {
        assert_string_equal(ibv_get_device_name(list[i]), list[i]->name);
        assert_true(list[i]->name[0]);
        assert_true(list[i]->dev_name[0]);
        assert_int_not_equal(ibv_get_device_guid(list[i]), 0);
        assert_int_equal(list[i]->node_type, IBV_NODE_CA);
        assert_int_equal(list[i]->transport_type, IBV_TRANSPORT_IB);
        assert_true(ibv_get_device_index(list[i]) >= -1);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(list[i]->name, list[j]->name);
            assert_int_not_equal(ibv_get_device_guid(list[i]), ibv_get_device_guid(list[j]));
        }
    }
    ibv_free_device_list(list);
}

static void a_device_stays_valid_while_a_context_is_open(void **state)
{
    open_all(); /* frees the list */
    assert_true(strlen(context->device->name) > 0);
    assert_string_equal(ibv_get_device_name(context->device), context->device->name);
    close_all();
}

/* libpcap does so. */
static void a_device_is_opened_after_its_list_was_freed(void **state)
{
    struct ibv_device **list = ibv_get_device_list(NULL), *first;

    assert_non_null(list);
    first = list[0];
    ibv_free_device_list(list);
    context = ibv_open_device(first);
    assert_non_null(context);
    close_all();
    context = ibv_open_device(first);
    assert_non_null(context);
    close_all();
}

/* §10.2 to §10.5 */

static void device_attributes_are_plausible(void **state)
{
    open_all();
    assert_true(strlen(device.fw_ver) > 0 && strlen(device.fw_ver) < 64);
    assert_int_not_equal(device.node_guid, 0);
    assert_int_not_equal(device.sys_image_guid, 0);
    assert_int_equal(device.node_guid, ibv_get_device_guid(context->device));
    assert_int_not_equal(device.vendor_id, 0);
    assert_int_not_equal(device.vendor_id, 0x02c9);
    assert_int_not_equal(device.vendor_id, 0x1d0f);
    assert_int_not_equal(device.vendor_id, 0xffffff);
    assert_int_equal(device.phys_port_cnt, 1);
    assert_true(device.max_mr_size > 4096);
    assert_true(device.page_size_cap >= 4096);
    assert_true(device.max_qp_wr >= 4096);
    assert_true(device.max_sge >= 6);
    assert_true(device.max_cqe >= 8192);
    assert_true(device.max_srq_wr >= 4095);
    assert_true(device.max_srq_sge >= 1);
    assert_true(device.max_qp_rd_atom >= 16 && device.max_qp_rd_atom <= 128);
    assert_true(device.max_qp_init_rd_atom >= 16 && device.max_qp_init_rd_atom <= 128);
    assert_true(device.atomic_cap == IBV_ATOMIC_HCA || device.atomic_cap == IBV_ATOMIC_GLOB);
    assert_true(device.max_mcast_grp > 0);
    assert_int_equal(device.max_pkeys, 1);
    assert_int_equal(device.max_ee, 0);
    assert_int_equal(device.max_rdd, 0);
    close_all();
}

static void capability_flags_tell_what_is_done(void **state)
{
    const unsigned int all = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                             IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_MEM_WINDOW |
                             IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    const unsigned int none =
        IBV_DEVICE_RESIZE_MAX_WR | IBV_DEVICE_AUTO_PATH_MIG | IBV_DEVICE_MEM_WINDOW_TYPE_2A;

    open_all();
    assert_int_equal(device.device_cap_flags & all, all);
    assert_int_equal(device.device_cap_flags & none, 0);
    close_all();
}

static void extended_attributes_repeat_the_plain_ones(void **state)
{
    struct ibv_query_device_ex_input input = {.comp_mask = 1};
    struct ibv_device_attr_ex ex;

    open_all();
    memset(&ex, 0xee, sizeof(ex));
    assert_int_equal(ibv_query_device_ex(context, NULL, &ex), 0);
    assert_int_equal(ex.comp_mask, 0);
    assert_memory_equal(&ex.orig_attr.node_guid, &device.node_guid, sizeof(device.node_guid));
    assert_int_equal(ex.orig_attr.max_qp, device.max_qp);
    assert_int_equal(newest_phys_port_cnt_ex(&ex), device.phys_port_cnt);
    assert_int_equal(ex.device_cap_flags_ex & 0xffffffff, device.device_cap_flags);
    assert_int_equal(ex.tso_caps.max_tso, 0);
    assert_int_equal(ibv_query_device_ex(context, &input, &ex), EINVAL);
    input.comp_mask = 0;
    assert_int_equal(ibv_query_device_ex(context, &input, &ex), 0);
    close_all();
}

static void the_port_is_an_active_ethernet_port(void **state)
{
    open_all();
    assert_int_equal(port.state, IBV_PORT_ACTIVE);
    assert_int_equal(port.phys_state, 5);
    assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(port.lid, 0);
    assert_int_equal(port.sm_lid, 0);
    assert_int_equal(port.lmc, 0);
    assert_int_equal(port.max_mtu, IBV_MTU_4096);
    assert_in_range(port.active_mtu, IBV_MTU_256, IBV_MTU_4096);
    assert_int_equal(port.pkey_tbl_len, 1);
    assert_true(port.gid_tbl_len >= 2);
    assert_true(port.max_msg_sz >= 1u << 30);
    assert_true(port.flags & IBV_QPF_GRH_REQUIRED);
    assert_true(port.active_width == 1 || port.active_width == 2 || port.active_width == 4 ||
                port.active_width == 8 || port.active_width == 16);
    assert_true(port.active_speed > 0 && port.active_speed < 128);
    close_all();
}

static void a_port_that_does_not_exist_is_einval(void **state)
{
    struct ibv_gid_entry entry;
    union ibv_gid gid;
    __be16 pkey;

    open_all();
    assert_int_equal(ibv_query_port(context, 0, &port), EINVAL);
    assert_int_equal(ibv_query_port(context, 2, &port), EINVAL);
    assert_int_equal(ibv_query_gid(context, 2, 0, &gid), -1);
    assert_int_equal(ibv_query_pkey(context, 2, 0, &pkey), -1);
    assert_int_equal(ibv_query_gid_ex(context, 2, 0, &entry, 0), EINVAL);
    close_all();
}

/* §10.6 */

static const union ibv_gid no_gid;

static void an_empty_gid_entry_is_success_with_zeros_and_enodata(void **state)
{
    unsigned int valid = 0, empty = 0;

    open_all();
    for (int i = 0; i < port.gid_tbl_len; i++) {
        struct ibv_gid_entry entry;
        union ibv_gid gid;

        memset(&gid, 0xee, sizeof(gid));
        assert_int_equal(ibv_query_gid(context, TEST_PORT, i, &gid), 0);
        if (!memcmp(&gid, &no_gid, sizeof(gid))) {
            assert_int_equal(ibv_query_gid_ex(context, TEST_PORT, (uint32_t)i, &entry, 0), ENODATA);
            empty++;
            continue;
        }
        assert_int_equal(ibv_query_gid_ex(context, TEST_PORT, (uint32_t)i, &entry, 0), 0);
        assert_memory_equal(&entry.gid, &gid, sizeof(gid));
        assert_int_equal(entry.gid_index, i);
        assert_int_equal(entry.port_num, TEST_PORT);
        assert_int_equal(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
        assert_int_not_equal(entry.ndev_ifindex, 0);
        valid++;
    }
    assert_true(valid >= 1);
    assert_true(empty >= 1);
    close_all();
}

static void gid_0_is_an_ipv4_address(void **state)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    union ibv_gid gid;

    open_all();
    assert_int_equal(ibv_query_gid(context, TEST_PORT, 0, &gid), 0);
    assert_memory_equal(gid.raw, mapped, sizeof(mapped));
    close_all();
}

static void gid_indices_and_flags_are_checked(void **state)
{
    struct ibv_gid_entry entry;
    union ibv_gid gid;

    open_all();
    assert_int_equal(ibv_query_gid(context, TEST_PORT, -1, &gid), -1);
    assert_int_equal(ibv_query_gid(context, TEST_PORT, port.gid_tbl_len, &gid), -1);
    assert_int_equal(ibv_query_gid_ex(context, TEST_PORT, (uint32_t)port.gid_tbl_len, &entry, 0), EINVAL);
    assert_int_equal(ibv_query_gid_ex(context, TEST_PORT, 0, &entry, 1), EINVAL);
    close_all();
}

static void the_gid_table_has_the_valid_entries(void **state)
{
    struct ibv_gid_entry entries[64];
    ssize_t count;

    open_all();
    count = ibv_query_gid_table(context, entries, COUNT(entries), 0);
    assert_true(count >= 1);
    for (ssize_t i = 0; i < count; i++)
        assert_memory_not_equal(&entries[i].gid, &no_gid, sizeof(no_gid));
    assert_int_equal(ibv_query_gid_table(context, entries, (size_t)count - 1, 0), -EINVAL);
    assert_int_equal(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
    assert_int_equal(ibv_query_gid_table(context, entries, COUNT(entries), 1), -EINVAL);
    close_all();
}

/* §10.7 */

static void the_only_pkey_is_the_default_one(void **state)
{
    __be16 pkey = 0;

    open_all();
    assert_int_equal(ibv_query_pkey(context, TEST_PORT, 0, &pkey), 0);
    assert_int_equal(pkey, htons(0xffff));
    assert_int_equal(ibv_query_pkey(context, TEST_PORT, port.pkey_tbl_len, &pkey), -1);
    assert_int_equal(ibv_query_pkey(context, TEST_PORT, -1, &pkey), -1);
    assert_int_equal(ibv_get_pkey_index(context, TEST_PORT, htons(0xffff)), 0);
    assert_int_equal(ibv_get_pkey_index(context, TEST_PORT, htons(0x1234)), -1);
    close_all();
}

/* §9.3, §10.12 */

static void event_and_status_texts_are_the_known_ones(void **state)
{
    assert_string_equal(ibv_wc_status_str(IBV_WC_SUCCESS), "success");
    assert_string_equal(ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR), "Work Request Flushed Error");
    assert_string_equal(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
    assert_string_equal(ibv_wc_status_str(IBV_WC_TM_ERR), "TM error");
    assert_string_equal(ibv_wc_status_str((enum ibv_wc_status)1000), "unknown");
    assert_string_equal(ibv_event_type_str(IBV_EVENT_CQ_ERR), "CQ error");
    assert_string_equal(ibv_event_type_str(IBV_EVENT_QP_LAST_WQE_REACHED), "last WQE reached");
    assert_string_equal(ibv_event_type_str(IBV_EVENT_GID_CHANGE), "GID table change");
    assert_string_equal(ibv_event_type_str((enum ibv_event_type)1000), "unknown");
    assert_string_equal(ibv_port_state_str(IBV_PORT_ACTIVE), "active");
    assert_string_equal(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter");
}

static void rates_convert_both_ways(void **state)
{
    const struct {
        enum ibv_rate rate;
        int mult, mbps;
    } rates[] = {
        {IBV_RATE_2_5_GBPS, 1, 2500},     {IBV_RATE_10_GBPS, 4, 10000},       {IBV_RATE_14_GBPS, -1, 14062},
        {IBV_RATE_100_GBPS, -1, 103125},  {IBV_RATE_28_GBPS, 11, 28125},      {IBV_RATE_50_GBPS, 20, 53125},
        {IBV_RATE_400_GBPS, 160, 425000}, {IBV_RATE_1200_GBPS, 480, 1275000},
    };

    for (size_t i = 0; i < COUNT(rates); i++) {
        assert_int_equal(ibv_rate_to_mult(rates[i].rate), rates[i].mult);
        assert_int_equal(ibv_rate_to_mbps(rates[i].rate), rates[i].mbps);
        assert_int_equal(mbps_to_ibv_rate(rates[i].mbps), rates[i].rate);
        if (rates[i].mult > 0)
            assert_int_equal(mult_to_ibv_rate(rates[i].mult), rates[i].rate);
    }
    assert_int_equal(mbps_to_ibv_rate(12345), IBV_RATE_MAX);
    assert_int_equal(mult_to_ibv_rate(7), IBV_RATE_MAX);
    assert_int_equal(ibv_rate_to_mbps((enum ibv_rate)1000), -1);
}

/* §9.1 */

static void get_async_event_is_eagain_when_nonblocking_and_empty(void **state)
{
    struct ibv_async_event event;

    open_all();
    assert_int_equal(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK), 0);
    errno = 0;
    assert_int_equal(ibv_get_async_event(context, &event), -1);
    assert_int_equal(errno, EAGAIN);
    close_all();
}

static int get_event(void *arg)
{
    struct ibv_async_event event;
    const int result = ibv_get_async_event(arg, &event);

    if (result)
        return result;
    ibv_ack_async_event(&event);
    return (int)event.event_type;
}

static void get_async_event_blocks_until_there_is_one(void **state)
{
    struct caller caller;
    struct send bad;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    caller_start(&caller, get_event, p.a.context);
    assert_true(caller_is_blocked(&caller));
    bad = a_write(&p.b, 1, 0, 8, &p.a, 0);
    bad.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.b, bad);
    assert_int_equal(caller_finish(&caller), IBV_EVENT_QP_ACCESS_ERR);
    end_expect_status(&p.b, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

static void an_event_goes_to_the_context_of_its_object(void **state)
{
    struct ibv_context *other;
    struct pollfd ready;
    struct send bad;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    other = open_the_device();
    bad = a_write(&p.b, 1, 0, 8, &p.a, 0);
    bad.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.b, bad);
    end_expect_event(&p.a, IBV_EVENT_QP_ACCESS_ERR);
    ready = (struct pollfd){.fd = other->async_fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 0), 0);
    ibv_close_device(other);
    pair_close(&p);
}

static void an_event_is_delivered_once(void **state)
{
    struct pollfd ready;
    struct send bad;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    bad = a_write(&p.b, 1, 0, 8, &p.a, 0);
    bad.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.b, bad);
    end_expect_event(&p.a, IBV_EVENT_QP_ACCESS_ERR);
    ready = (struct pollfd){.fd = p.a.context->async_fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 0), 0);
    pair_close(&p);
}

/* §10.9, §10.10 */

static void fork_needs_nothing(void **state)
{
    open_all();
    assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    assert_int_equal(ibv_fork_init(), 0);
    assert_int_equal(ibv_fork_init(), 0);
    assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    close_all();
}

static void data_in_order_is_not_promised(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_ATOMIC_WRITE; opcode++)
        for (unsigned int flag = 0; flag < 32; flag++)
            assert_int_equal(ibv_query_qp_data_in_order(p.a.qp, opcode, flag ? 1u << flag : 0), 0);
    pair_close(&p);
}

/* There is nothing to agree on, and that is said as between adapters of one vendor. */
static void ece_has_no_options(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_device_attr adapter;
    struct ibv_ece ece, wrong;
    struct pair p;

    pair_open(&p, &attr, &attr);
    assert_int_equal(ibv_query_device(p.a.context, &adapter), 0);
    memset(&ece, 0xff, sizeof(ece));
    assert_int_equal(ibv_query_ece(p.a.qp, &ece), 0);
    assert_int_equal(ece.vendor_id, adapter.vendor_id);
    assert_int_equal(ece.options, 0);
    assert_int_equal(ece.comp_mask, 0);
    wrong = ece;
    wrong.vendor_id = 0;
    assert_int_equal(ibv_set_ece(p.a.qp, &wrong), EOPNOTSUPP);
    wrong.vendor_id = 0x15b3;
    assert_int_equal(ibv_set_ece(p.a.qp, &wrong), EOPNOTSUPP);
    wrong = ece;
    wrong.comp_mask = 1;
    assert_int_equal(ibv_set_ece(p.a.qp, &wrong), EINVAL);
    ece.options = 0x1234;
    assert_int_equal(ibv_set_ece(p.a.qp, &ece), 0);
    end_to_init(&p.a);
    assert_int_equal(ibv_set_ece(p.a.qp, &ece), 0);
    end_connect(&p.a, &p.b);
    assert_int_equal(ibv_set_ece(p.a.qp, &ece), EINVAL);
    assert_int_equal(ibv_query_ece(p.a.qp, &ece), 0);
    assert_int_equal(ece.options, 0);
    pair_close(&p);
}

static void the_raw_clock_is_that_of_time_stamps(void **state)
{
    struct ibv_device_attr_ex adapter;
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, later = values;
    struct timespec before, after;
    int64_t spent, counted;

    open_all();
    assert_int_equal(ibv_query_device_ex(context, NULL, &adapter), 0);
    assert_int_not_equal(adapter.completion_timestamp_mask, 0);
    assert_int_not_equal(adapter.hca_core_clock, 0);
    clock_gettime(CLOCK_MONOTONIC, &before);
    assert_int_equal(ibv_query_rt_values_ex(context, &values), 0);
    assert_int_equal(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    assert_int_equal(values.raw_clock.tv_sec, 0);
    assert_int_equal(ibv_query_rt_values_ex(context, &later), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    /* It counts kHz, and no more of them than time has passed. */
    spent = (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
    counted = later.raw_clock.tv_nsec - values.raw_clock.tv_nsec;
    assert_true(counted >= 0 && counted <= spent * (int64_t)adapter.hca_core_clock / 1000000);
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK | 2;
    assert_int_equal(ibv_query_rt_values_ex(context, &values), EINVAL);
    values.comp_mask = 0;
    assert_int_equal(ibv_query_rt_values_ex(context, &values), 0);
    assert_int_equal(values.comp_mask, 0);
    close_all();
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_device_list_ends_with_null_and_keeps_its_pointers),
        TEST(every_device_has_a_name_a_guid_and_paths),
        TEST(a_device_stays_valid_while_a_context_is_open),
        TEST(a_device_is_opened_after_its_list_was_freed),
        TEST(device_attributes_are_plausible),
        TEST(capability_flags_tell_what_is_done),
        TEST(extended_attributes_repeat_the_plain_ones),
        TEST(the_port_is_an_active_ethernet_port),
        TEST(a_port_that_does_not_exist_is_einval),
        TEST(an_empty_gid_entry_is_success_with_zeros_and_enodata),
        TEST(gid_0_is_an_ipv4_address),
        TEST(gid_indices_and_flags_are_checked),
        TEST(the_gid_table_has_the_valid_entries),
        TEST(the_only_pkey_is_the_default_one),
        TEST(event_and_status_texts_are_the_known_ones),
        TEST(rates_convert_both_ways),
        TEST(get_async_event_is_eagain_when_nonblocking_and_empty),
        TEST(get_async_event_blocks_until_there_is_one),
        TEST(an_event_goes_to_the_context_of_its_object),
        TEST(an_event_is_delivered_once),
        TEST(fork_needs_nothing),
        TEST(data_in_order_is_not_promised),
        TEST(ece_has_no_options),
        TEST(the_raw_clock_is_that_of_time_stamps),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
