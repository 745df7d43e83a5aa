/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What inline functions of verbs.h and provider libraries reach without a call (verbs.md §12.4-12.5,
 * compatibility.md §2-3), and the return conventions of queries (§0.1, §10.6). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/verbs.h"

void __verbs_log(void *context, uint32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static struct ibv_device **devices;
static struct ibv_context *context;

static int open_first(void **state)
{
    int count = 0;

    devices = ibv_get_device_list(&count);
    if (!devices || count < 1)
        return -1;
    context = ibv_open_device(devices[0]);
    return context ? 0 : -1;
}

static int close_first(void **state)
{
    assert_int_equal(ibv_close_device(context), 0);
    ibv_free_device_list(devices);
    return 0;
}

static void test_device_is_nobodys(void **state)
{
    const void *behind;

    memcpy(&behind, (const char *)devices[0] + sizeof(struct ibv_device), sizeof(behind));
    assert_non_null(behind);
    assert_int_equal(devices[0]->node_type, IBV_NODE_CA);
    assert_int_equal(devices[0]->transport_type, IBV_TRANSPORT_IB);
    assert_string_equal(ibv_get_device_name(devices[0]), devices[0]->name);
    assert_true(ibv_get_device_guid(devices[0]) != 0);
    assert_true(ibv_get_device_index(devices[0]) > 0);
    assert_int_equal(strncmp(devices[0]->dev_name, "uverbs", 6), 0);
    assert_non_null(strstr(devices[0]->ibdev_path, devices[0]->name));
}

static void test_devices_keep_their_pointers(void **state)
{
    int count;
    struct ibv_device **again = ibv_get_device_list(&count);

    assert_non_null(again);
    for (int i = 0; i < count && devices[i]; i++)
        assert_ptr_equal(again[i], devices[i]);
    assert_null(again[count]);
    ibv_free_device_list(again);
}

static void test_contexts_are_independent(void **state)
{
    struct ibv_context *second = ibv_open_device(devices[0]);

    assert_non_null(second);
    assert_ptr_not_equal(second, context);
    assert_int_not_equal(second->async_fd, context->async_fd);
    assert_int_equal(ibv_close_device(second), 0);
}

static void test_context_is_extended(void **state)
{
    struct verbs_context *verbs = verbs_get_ctx(context);

    assert_ptr_equal(context->abi_compat, (void *)UINTPTR_MAX);
    assert_true(verbs->sz >= sizeof(*verbs));
    assert_true(context->num_comp_vectors >= 1);
    assert_ptr_equal(context->device, devices[0]);
}

/* A slot is a function, whatever it is called. */
static void test_every_slot_is_filled(void **state)
{
    struct verbs_context *verbs = verbs_get_ctx(context);
    const void *slot;

    for (size_t at = 0; at < sizeof(context->ops); at += sizeof(slot)) {
        memcpy(&slot, (const char *)&context->ops + at, sizeof(slot));
        if (!slot)
            fail_msg("ibv_context_ops has a hole at %zu", at);
    }
    for (size_t at = 0; at < offsetof(struct verbs_context, _ABI_placeholder3); at += sizeof(slot)) {
        memcpy(&slot, (const char *)verbs + at, sizeof(slot));
        if (!slot && at != offsetof(struct verbs_context, priv))
            fail_msg("verbs_context has a hole at %zu", at);
    }
}

static void test_descriptors_are_real(void **state)
{
    struct pollfd watched = {.fd = context->async_fd, .events = POLLIN};
    int copy = fcntl(context->cmd_fd, F_DUPFD_CLOEXEC, 0);

    assert_true(copy >= 0);
    close(copy);
    assert_true(fcntl(context->cmd_fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(context->async_fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(poll(&watched, 1, 0), 0);

    int flags = fcntl(context->async_fd, F_GETFL);
    struct ibv_async_event event;
    assert_int_equal(fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
    errno = 0;
    assert_int_equal(ibv_get_async_event(context, &event), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(context->async_fd, F_SETFL, flags), 0);
}

static void test_unsupported_is_eopnotsupp(void **state)
{
    struct ibv_flow_action_esp_attr esp = {0};
    struct ibv_flow_action *action;
    struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1000};

    errno = 0;
    action = ibv_create_flow_action_esp(context, &esp);
    assert_null(action);
    assert_int_equal(errno, EOPNOTSUPP);
    assert_int_equal(ibv_modify_flow_action_esp(&(struct ibv_flow_action){context}, &esp), EOPNOTSUPP);
    assert_int_equal(ibv_destroy_flow_action(&(struct ibv_flow_action){context}), EOPNOTSUPP);
    assert_int_equal(ibv_modify_qp_rate_limit(&(struct ibv_qp){.context = context}, &rate), EOPNOTSUPP);
}

static void test_query_device(void **state)
{
    struct {
        struct ibv_device_attr attributes;
        char guard[8];
    } classic;
    struct {
        struct ibv_device_attr_ex attributes;
        char newer[64];
    } extended;
    struct ibv_query_device_ex_input input = {.comp_mask = 1};

    memset(&classic, 0x5a, sizeof(classic));
    assert_int_equal(ibv_query_device(context, &classic.attributes), 0);
    assert_memory_equal(classic.guard, "\x5a\x5a\x5a\x5a\x5a\x5a\x5a\x5a", 8);
    assert_true(classic.attributes.vendor_id != 0);
    assert_true(classic.attributes.max_qp_wr >= 4096);
    assert_true(classic.attributes.fw_ver[0] != 0);

    assert_int_equal(ibv_query_device_ex(context, NULL, &extended.attributes), 0);
    assert_memory_equal(&extended.attributes.orig_attr, &classic.attributes, sizeof(classic.attributes));
    assert_int_equal(newest_phys_port_cnt_ex(&extended.attributes), classic.attributes.phys_port_cnt);
    assert_int_equal(ibv_query_device_ex(context, &input, &extended.attributes), EINVAL);

    /* A program built with a newer header passes a longer structure: all of it is defined. */
    memset(&extended, 0x5a, sizeof(extended));
    assert_int_equal(
        verbs_get_ctx(context)->query_device_ex(context, NULL, &extended.attributes, sizeof(extended)), 0);
    for (size_t i = 0; i < sizeof(extended.newer); i++)
        assert_int_equal(extended.newer[i], 0);
}

static int legacy_query_port(struct ibv_context *ibv, uint8_t port, void *attributes)
{
#undef ibv_query_port
    return ibv_query_port(ibv, port, attributes);
}

static void test_query_port(void **state)
{
    struct ibv_port_attr attributes;
    char legacy[sizeof(attributes)], newer[96];

    memset(&attributes, 0x5a, sizeof(attributes));
    assert_int_equal(___ibv_query_port(context, 1, &attributes), 0);
    assert_int_equal(attributes.link_layer, IBV_LINK_LAYER_ETHERNET);
    assert_int_equal(attributes.port_cap_flags2, 0);
    assert_int_equal(___ibv_query_port(context, 0, &attributes), EINVAL);
    assert_int_equal(___ibv_query_port(context, 2, &attributes), EINVAL);

    memset(legacy, 0x5a, sizeof(legacy));
    assert_int_equal(legacy_query_port(context, 1, legacy), 0);
    for (size_t i = 48; i < sizeof(legacy); i++)
        assert_int_equal(legacy[i], 0x5a);
    assert_int_equal(legacy[46], IBV_LINK_LAYER_ETHERNET);

    memset(newer, 0x5a, sizeof(newer));
    assert_int_equal(verbs_get_ctx(context)->query_port(context, 1, (void *)newer, sizeof(newer)), 0);
    for (size_t i = sizeof(attributes); i < sizeof(newer); i++)
        assert_int_equal(newer[i], 0);
}

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, int *type);

static void test_gids(void **state)
{
    static const union ibv_gid zero;
    struct ibv_gid_entry entries[64], entry;
    struct ibv_port_attr port;
    union ibv_gid gid;
    ssize_t count = ibv_query_gid_table(context, entries, 64, 0), valid = 0;
    int type;

    assert_true(count >= 1);
    assert_int_equal(___ibv_query_port(context, 1, &port), 0);
    assert_true(port.gid_tbl_len > count); /* one stays empty */
    for (int i = 0; i < port.gid_tbl_len; i++) {
        assert_int_equal(ibv_query_gid(context, 1, i, &gid), 0);
        assert_int_equal(ibv_query_gid_type(context, 1, (unsigned)i, &type), 0);
        int result = ibv_query_gid_ex(context, 1, (uint32_t)i, &entry, 0);
        if (memcmp(&gid, &zero, sizeof(gid)) == 0) {
            assert_int_equal(result, ENODATA);
            assert_int_equal(type, 0);
            continue;
        }
        assert_int_equal(result, 0);
        assert_int_equal(type, 1);
        assert_memory_equal(&entry.gid, &gid, sizeof(gid));
        assert_int_equal(entry.gid_index, i);
        assert_int_equal(entry.port_num, 1);
        assert_int_equal(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
        assert_true(entry.ndev_ifindex > 0);
        assert_memory_equal(&entry, &entries[valid], sizeof(entry));
        valid++;
    }
    assert_int_equal(valid, count);

    assert_int_equal(ibv_query_gid_table(context, entries, (size_t)count - 1, 0), -EINVAL);
    assert_int_equal(ibv_query_gid_table(context, entries, 64, 1), -EINVAL);
    assert_int_equal(ibv_query_gid_ex(context, 1, 0, &entry, 1), EINVAL);
    assert_int_equal(ibv_query_gid_ex(context, 2, 0, &entry, 0), EINVAL);
    assert_int_equal(ibv_query_gid_ex(context, 1, (uint32_t)port.gid_tbl_len, &entry, 0), EINVAL);
    assert_int_equal(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), -1);
    assert_int_equal(ibv_query_gid(context, 1, -1, &gid), -1);
    assert_int_equal(ibv_query_gid(context, 2, 0, &gid), -1);

    struct {
        struct ibv_gid_entry entry;
        char newer[8];
    } longer[64];
    memset(longer, 0x5a, sizeof(longer));
    assert_int_equal(_ibv_query_gid_table(context, &longer[0].entry, 64, 0, sizeof(longer[0])), count);
    for (ssize_t i = 0; i < count; i++) {
        assert_memory_equal(&longer[i].entry, &entries[i], sizeof(entry));
        assert_memory_equal(longer[i].newer, "\0\0\0\0\0\0\0\0", 8);
    }
}

static void test_pkeys(void **state)
{
    __be16 pkey = 0;

    assert_int_equal(ibv_query_pkey(context, 1, 0, &pkey), 0);
    assert_int_equal(pkey, 0xffff);
    assert_int_equal(ibv_query_pkey(context, 1, 1, &pkey), -1);
    assert_int_equal(ibv_query_pkey(context, 2, 0, &pkey), -1);
    assert_int_equal(ibv_get_pkey_index(context, 1, 0xffff), 0);
    assert_int_equal(ibv_get_pkey_index(context, 1, 1), -1);
}

static void test_clock(void **state)
{
    struct ibv_values_ex first = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, second = first,
                         unknown = {.comp_mask = IBV_VALUES_MASK_RESERVED};

    assert_int_equal(ibv_query_rt_values_ex(context, &first), 0);
    assert_int_equal(ibv_query_rt_values_ex(context, &second), 0);
    assert_int_equal(first.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    assert_true(second.raw_clock.tv_nsec >= first.raw_clock.tv_nsec);
    assert_int_equal(ibv_query_rt_values_ex(context, &unknown), EINVAL);
}

static void test_layer_2(void **state)
{
    struct ibv_ah_attr attributes = {.is_global = 1, .port_num = 1};
    uint8_t mac[ETHERNET_LL_SIZE];
    uint16_t vid;

    assert_int_equal(ibv_query_gid(context, 1, 0, &attributes.grh.dgid), 0);
    assert_int_equal(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, &vid), 0);
    memcpy(attributes.grh.dgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\xff\x01\x02", 16);
    assert_int_equal(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, NULL), 0);
    assert_memory_equal(mac, "\x01\x00\x5e\x7f\x01\x02", 6);
    memcpy(attributes.grh.dgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xc6\x33\x64\x07", 16); /* TEST-NET-2 */
    assert_int_equal(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, &vid), -EHOSTUNREACH);
    attributes.is_global = 0;
    assert_int_equal(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, &vid), -EINVAL);
}

static void put_ipv4_header(uint8_t header[40], const uint8_t source[4], const uint8_t destination[4])
{
    uint8_t ipv4[20] = {0x45, 0x20, 0, 60, 0, 0, 0x40, 0, 64, 17};
    uint32_t sum = 0;

    memcpy(ipv4 + 12, source, 4);
    memcpy(ipv4 + 16, destination, 4);
    for (int i = 0; i < 20; i += 2)
        sum += (uint32_t)ipv4[i] << 8 | ipv4[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~(sum + (sum >> 16));
    ipv4[10] = (uint8_t)(sum >> 8);
    ipv4[11] = (uint8_t)sum;
    memset(header, 0x6a, 20); /* what the buffer held before: looks like IPv6 */
    memcpy(header + 20, ipv4, 20);
}

static void test_ah_from_wc(void **state)
{
    struct ibv_wc wc = {.wc_flags = IBV_WC_GRH, .sl = 2};
    static const uint8_t peer[4] = {198, 51, 100, 7};
    struct ibv_ah_attr attributes;
    uint8_t header[40];
    union ibv_gid gid;

    assert_int_equal(ibv_query_gid(context, 1, 0, &gid), 0);
    if (gid.raw[10] != 0xff || gid.raw[0] != 0)
        skip(); /* GID 0 is no IPv4 address here */
    put_ipv4_header(header, peer, gid.raw + 12);
    assert_int_equal(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)header, &attributes), 0);
    assert_int_equal(attributes.is_global, 1);
    assert_memory_equal(attributes.grh.dgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xc6\x33\x64\x07", 16);
    assert_int_equal(attributes.grh.sgid_index, 0);
    assert_int_equal(attributes.grh.traffic_class, 0x20);
    assert_int_equal(attributes.sl, 2);
    assert_int_equal(attributes.port_num, 1);

    put_ipv4_header(header, gid.raw + 12, peer); /* not for us */
    assert_true(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)header, &attributes) != 0);
    put_ipv4_header(header, peer, (const uint8_t[]){239, 1, 2, 3});
    errno = 0;
    assert_int_equal(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)header, &attributes), -1);
    assert_int_equal(errno, EINVAL);
    memset(header, 0, sizeof(header));
    errno = 0;
    assert_int_equal(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)header, &attributes), -1);
    assert_int_equal(errno, EPROTONOSUPPORT);
    wc.wc_flags = 0;
    assert_int_equal(ibv_init_ah_from_wc(context, 1, &wc, NULL, &attributes), 0);
    assert_int_equal(attributes.is_global, 0);
}

static struct ibv_qp *ready_datagram_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t qkey)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);

    assert_non_null(qp);
    assert_int_equal(
        ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attributes.qp_state = IBV_QPS_RTR;
    assert_int_equal(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), 0);
    attributes.qp_state = IBV_QPS_RTS;
    assert_int_equal(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    return qp;
}

/* The port counts what it drops for its Q_Key, as BAD_QKEY_CNTR promises (verbs.md §8.4). */
static void test_bad_qkeys_are_counted(void **state)
{
    struct ibv_ah_attr address = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    struct ibv_qp *from = ready_datagram_qp(pd, cq, 1), *to = ready_datagram_qp(pd, cq, 2);
    struct ibv_port_attr port;
    struct ibv_wc wc;

    assert_int_equal(ibv_query_gid(context, 1, 0, &address.grh.dgid), 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &address);
    assert_non_null(ah);
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {.ah = ah, .remote_qpn = to->qp_num, .remote_qkey = 3}};
    struct ibv_send_wr *bad;
    assert_int_equal(___ibv_query_port(context, 1, &port), 0);
    uint32_t before = port.qkey_viol_cntr;
    assert_int_equal(ibv_post_send(from, &wr, &bad), 0);
    do {
        assert_true(ibv_poll_cq(cq, 1, &wc) >= 0);
        assert_int_equal(___ibv_query_port(context, 1, &port), 0);
    } while (port.qkey_viol_cntr == before); /* the runner's timeout is the limit */
    assert_int_equal(port.qkey_viol_cntr, before + 1);

    assert_int_equal(ibv_destroy_ah(ah), 0);
    assert_int_equal(ibv_destroy_qp(from), 0);
    assert_int_equal(ibv_destroy_qp(to), 0);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
}

/* What a provider logs in a process with that environment, on stderr, or in the file that it names. */
static const char *logged(const char *level, const char *ours, bool in_file)
{
    static char text[256];
    int out = memfd_create("out", 0), file = memfd_create("file", 0), status;
    char path[32];
    ssize_t length;
    pid_t child;

    child = fork();
    if (child == 0) {
        dup2(out, STDERR_FILENO);
        unsetenv("VERBS_LOG_LEVEL");
        unsetenv("SOFTHCA_LOG");
        if (level)
            setenv("VERBS_LOG_LEVEL", level, 1);
        if (ours)
            setenv("SOFTHCA_LOG", ours, 1);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
        if (in_file)
            setenv("VERBS_LOG_FILE", path, 1);
        errno = 4711;
        __verbs_log(NULL, 0, "never\n");
        __verbs_log(NULL, 1, "error %d\n", 17);
        __verbs_log(NULL, 2, "warning\n");
        __verbs_log(NULL, 4, "debug\n");
        _exit(errno == 4711 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    length = pread(in_file ? file : out, text, sizeof(text) - 1, 0);
    assert_true(length >= 0);
    text[length] = '\0';
    close(out);
    close(file);
    return text;
}

static void test_providers_are_heard_where_they_are_asked(void **state)
{
    assert_string_equal(logged(NULL, NULL, false), "");
    assert_string_equal(logged(NULL, "warn", false), ""); /* as softhca run sets it */
    assert_string_equal(logged("0", "info", false), "");
    assert_string_equal(logged("1", NULL, false), "error 17\n");
    assert_string_equal(logged("2", NULL, false), "error 17\nwarning\n");
    assert_string_equal(logged("4", "error", false), "error 17\nwarning\ndebug\n");
    assert_string_equal(logged("4", NULL, true), "error 17\nwarning\ndebug\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_is_nobodys),
        cmocka_unit_test(test_devices_keep_their_pointers),
        cmocka_unit_test(test_contexts_are_independent),
        cmocka_unit_test(test_context_is_extended),
        cmocka_unit_test(test_every_slot_is_filled),
        cmocka_unit_test(test_descriptors_are_real),
        cmocka_unit_test(test_unsupported_is_eopnotsupp),
        cmocka_unit_test(test_query_device),
        cmocka_unit_test(test_query_port),
        cmocka_unit_test(test_gids),
        cmocka_unit_test(test_pkeys),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_layer_2),
        cmocka_unit_test(test_ah_from_wc),
        cmocka_unit_test(test_providers_are_heard_where_they_are_asked),
        cmocka_unit_test(test_bad_qkeys_are_counted),
    };

    return cmocka_run_group_tests(tests, open_first, close_first);
}
