/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.4, §11.5: addresses, port spaces of the host, names. The far side is another process
 * where the path says so: what it holds, nobody else can have. */
#include "cm.h"

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/ib.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

enum { FOREIGN = 0xc6336407 }; /* 198.51.100.7: nobody's */

/* --- one id, bound on either side --- */

struct binding {
    struct sockaddr_storage address;
    enum rdma_port_space ps;
    bool listen, reuse, one_family, set_family;
    int result, listen_result;
    uint16_t port;
    bool has_device;
    struct rdma_cm_id *id;
    struct rdma_event_channel *channel;
};

static void do_bind(struct cm_end *end, void *arg)
{
    struct binding *binding = arg;
    const int one = 1, family = binding->one_family;

    binding->channel = rdma_create_event_channel();
    CHECK(binding->channel, "no channel: %s", strerror(errno));
    CM_ZERO(rdma_create_id(binding->channel, &binding->id, NULL, binding->ps));
    if (binding->reuse)
        CM_ZERO(rdma_set_option(binding->id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR,
                                (void *)(uintptr_t)&one, sizeof one));
    if (binding->set_family)
        CM_ZERO(rdma_set_option(binding->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY,
                                (void *)(uintptr_t)&family, sizeof family));
    binding->result = CM(rdma_bind_addr(binding->id, as_sockaddr(&binding->address)));
    if (!binding->result && binding->listen)
        binding->listen_result = CM(rdma_listen(binding->id, 4));
    binding->port = ntohs(rdma_get_src_port(binding->id));
    binding->has_device = binding->id->verbs != NULL;
}

static void do_unbind(struct cm_end *end, void *arg)
{
    struct binding *binding = arg;

    CM_ZERO(rdma_destroy_id(binding->id));
    rdma_destroy_event_channel(binding->channel);
}

static struct binding bind_at(struct side *side, const struct binding *wanted)
{
    struct cm_end end = {.side = side};
    struct binding binding = *wanted;

    if (!binding.ps)
        binding.ps = RDMA_PS_TCP;
    CM_AT(&end, do_bind, &binding);
    return binding;
}

static void unbind_at(struct side *side, struct binding *binding)
{
    struct cm_end end = {.side = side};

    CM_AT(&end, do_unbind, binding);
}

/* Bound and gone again: the result. */
static int try_at(struct side *side, const struct binding *wanted)
{
    struct binding binding = bind_at(side, wanted);

    unbind_at(side, &binding);
    return binding.result ? binding.result : binding.listen_result;
}

static struct sockaddr_storage any_address(int family, uint16_t port)
{
    struct sockaddr_storage storage = {.ss_family = (sa_family_t)family};

    if (family == AF_INET)
        ((struct sockaddr_in *)&storage)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)&storage)->sin6_port = htons(port);
    return storage;
}

static struct sockaddr_storage ipv4_address(uint32_t address, uint16_t port)
{
    struct sockaddr_storage storage = any_address(AF_INET, port);

    ((struct sockaddr_in *)&storage)->sin_addr.s_addr = htonl(address);
    return storage;
}

static struct sockaddr_storage ipv6_loopback(uint16_t port)
{
    struct sockaddr_storage storage = any_address(AF_INET6, port);

    ((struct sockaddr_in6 *)&storage)->sin6_addr = in6addr_loopback;
    return storage;
}

/* --- binding --- */

static void every_address_has_none(void **state)
{
    struct binding binding = bind_at(FAR, &(struct binding){.address = any_address(AF_INET, 0)});

    assert_int_equal(binding.result, 0);
    assert_false(binding.has_device);
    assert_true(binding.port >= 1024);
    unbind_at(FAR, &binding);
}

static void what_is_no_address_of_ours_is_refused(void **state)
{
    struct binding odd = {.address = {.ss_family = AF_UNIX}};
    int result = try_at(NEAR, &(struct binding){.address = ipv4_address(FOREIGN, 0)});

    assert_true(result == EADDRNOTAVAIL || result == ENODEV);
    assert_int_equal(try_at(NEAR, &odd), EINVAL);
}

static void binding_twice_fails(void **state)
{
    struct sockaddr_storage address = cm_address(0);
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(near.id, as_sockaddr(&address)));
    assert_int_equal(CM(rdma_bind_addr(near.id, as_sockaddr(&address))), EINVAL);
    cm_close(&near);
}

static void low_ports_are_privileged(void **state)
{
    int result = try_at(NEAR, &(struct binding){.address = cm_address(7)});

    if (geteuid() == 0)
        assert_int_equal(result, 0);
    else
        assert_int_equal(result, EACCES);
}

static void a_port_is_taken_on_the_whole_host(void **state)
{
    struct binding held = bind_at(FAR, &(struct binding){.address = cm_address(0)});

    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port)}), EADDRINUSE);
    assert_int_equal(try_at(FAR, &(struct binding){.address = cm_address(held.port)}), EADDRINUSE);
    /* Port spaces have nothing to do with each other. */
    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port), .ps = RDMA_PS_UDP}), 0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port), .ps = RDMA_PS_IB}), 0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port), .ps = RDMA_PS_IPOIB}),
                     0);
    unbind_at(FAR, &held);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port)}), 0);
}

static void wildcards_and_single_addresses_exclude_each_other(void **state)
{
    struct sockaddr_storage one = ipv4_address(INADDR_LOOPBACK, 0);
    struct binding held = bind_at(FAR, &(struct binding){.address = one}), any;

    assert_int_equal(try_at(NEAR, &(struct binding){.address = any_address(AF_INET, held.port)}), EADDRINUSE);
    assert_int_equal(try_at(FAR, &(struct binding){.address = any_address(AF_INET, held.port)}), EADDRINUSE);
    /* Another address of this host is another place. */
    assert_int_equal(try_at(NEAR, &(struct binding){.address = ipv4_address(INADDR_LOOPBACK + 1, held.port)}),
                     0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = ipv6_loopback(held.port)}), 0);
    unbind_at(FAR, &held);
    any = bind_at(FAR, &(struct binding){.address = any_address(AF_INET, 0)});
    assert_int_equal(try_at(NEAR, &(struct binding){.address = ipv4_address(INADDR_LOOPBACK, any.port)}),
                     EADDRINUSE);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = any_address(AF_INET, any.port)}), EADDRINUSE);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = ipv6_loopback(any.port)}), 0);
    unbind_at(FAR, &any);
}

static void an_ipv6_wildcard_is_of_both_families_unless_told(void **state)
{
    struct binding both = {.address = any_address(AF_INET6, 0), .set_family = true};
    struct binding one = {.address = any_address(AF_INET6, 0), .set_family = true, .one_family = true};
    struct binding held = bind_at(FAR, &both);

    assert_int_equal(held.result, 0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = any_address(AF_INET, held.port)}), EADDRINUSE);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = ipv4_address(INADDR_LOOPBACK, held.port)}),
                     EADDRINUSE);
    unbind_at(FAR, &held);
    held = bind_at(FAR, &one);
    assert_int_equal(held.result, 0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = any_address(AF_INET, held.port)}), 0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = any_address(AF_INET6, held.port)}),
                     EADDRINUSE);
    unbind_at(FAR, &held);
}

static void those_who_reuse_an_address_share_it(void **state)
{
    struct binding wanted = {.address = cm_address(0), .reuse = true}, first, second;

    first = bind_at(FAR, &wanted);
    assert_int_equal(first.result, 0);
    wanted.address = cm_address(first.port);
    second = bind_at(NEAR, &wanted);
    assert_int_equal(second.result, 0);
    assert_int_equal(try_at(FAR, &wanted), 0);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = wanted.address}), EADDRINUSE);
    /* One of them alone may listen. */
    wanted.listen = true;
    assert_int_equal(try_at(NEAR, &wanted), EADDRINUSE);
    unbind_at(NEAR, &second);
    unbind_at(FAR, &first);
    assert_int_equal(try_at(NEAR, &wanted), 0);
    first = bind_at(FAR, &wanted);
    assert_int_equal(first.listen_result, 0);
    /* And then nobody shares it any more. */
    wanted.listen = false;
    assert_int_equal(try_at(NEAR, &wanted), EADDRINUSE);
    assert_int_equal(try_at(FAR, &wanted), EADDRINUSE);
    unbind_at(FAR, &first);
}

static void a_port_is_free_when_its_holder_dies(void **state)
{
    struct binding held = bind_at(FAR, &(struct binding){.address = cm_address(0), .listen = true});

    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port)}), EADDRINUSE);
    side_kill(FAR);
    assert_int_equal(try_at(NEAR, &(struct binding){.address = cm_address(held.port)}), 0);
}

static void ports_are_chosen_apart(void **state)
{
    struct binding held[20];

    for (size_t i = 0; i < COUNT(held); i++) {
        held[i] = bind_at(i % 2 ? NEAR : FAR, &(struct binding){.address = cm_address(0)});
        assert_int_equal(held[i].result, 0);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(held[i].port, held[j].port);
    }
    for (size_t i = 0; i < COUNT(held); i++)
        unbind_at(i % 2 ? NEAR : FAR, &held[i]);
}

/* --- resolving --- */

static void a_resolved_address_is_all_there(void **state)
{
    struct sockaddr_storage want = cm_address(4712);
    struct cm_end near;
    struct rdma_addr *address;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, 4712);
    address = &near.id->route.addr;
    assert_non_null(near.id->verbs);
    assert_non_null(near.id->pd);
    assert_int_equal(near.id->port_num, 1);
    assert_int_equal(ntohs(rdma_get_dst_port(near.id)), 4712);
    assert_true(ntohs(rdma_get_src_port(near.id)) >= 1024);
    assert_memory_equal(rdma_get_peer_addr(near.id), &want, cm_length(&want));
    assert_int_equal(rdma_get_local_addr(near.id)->sa_family, want.ss_family);
    assert_int_equal(near.id->route.num_paths, 1);
    assert_memory_equal(&near.id->route.path_rec->sgid, &address->addr.ibaddr.sgid, 16);
    assert_memory_equal(&near.id->route.path_rec->dgid, &address->addr.ibaddr.dgid, 16);
    assert_int_equal(be16toh(address->addr.ibaddr.pkey), 0xffff);
    assert_true(near.id->route.path_rec->mtu >= IBV_MTU_1024);
    cm_close(&near);
}

static void source_ports_differ(void **state)
{
    struct cm_end ends[40];

    for (size_t i = 0; i < COUNT(ends); i++) {
        cm_open(&ends[i], NEAR, RDMA_PS_TCP);
        cm_resolve(&ends[i], 4713);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(rdma_get_src_port(ends[i].id), rdma_get_src_port(ends[j].id));
    }
    for (size_t i = 0; i < COUNT(ends); i++)
        cm_close(&ends[i]);
}

static void a_bound_id_keeps_its_port(void **state)
{
    struct sockaddr_storage source = cm_address(0);
    struct cm_end near;
    uint16_t port;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(near.id, as_sockaddr(&source)));
    port = rdma_get_src_port(near.id);
    cm_resolve(&near, 4714);
    assert_int_equal(rdma_get_src_port(near.id), port);
    cm_close(&near);
}

static void expect_address_error(uint32_t to, int first, int second)
{
    struct sockaddr_storage address = ipv4_address(to, 4715);
    struct cm_end near;
    struct cm_seen seen;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_resolve_addr(near.id, NULL, as_sockaddr(&address), 2000));
    seen = cm_expect(&near, RDMA_CM_EVENT_ADDR_ERROR);
    assert_true(seen.status == -first || seen.status == -second);
    /* It may be tried again. */
    cm_resolve(&near, 4716);
    cm_close(&near);
}

static void what_cannot_be_resolved_is_an_event(void **state)
{
    expect_address_error(0xffffffff, EACCES, ENETUNREACH); /* broadcast */
}

static void calls_out_of_turn_fail(void **state)
{
    struct sockaddr_storage to = cm_address(4717), foreign = ipv4_address(FOREIGN, 0);
    struct sockaddr_storage other_family =
        cm_address(0).ss_family == AF_INET ? ipv6_loopback(0) : ipv4_address(INADDR_LOOPBACK, 0);
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    assert_int_equal(CM(rdma_resolve_route(near.id, 2000)), EINVAL);
    assert_int_equal(CM(rdma_resolve_addr(near.id, NULL, NULL, 2000)), EINVAL);
    assert_int_equal(CM(rdma_resolve_addr(near.id, as_sockaddr(&other_family), as_sockaddr(&to), 2000)),
                     EINVAL);
    if (to.ss_family == AF_INET)
        assert_int_equal(CM(rdma_resolve_addr(near.id, as_sockaddr(&foreign), as_sockaddr(&to), 2000)),
                         EADDRNOTAVAIL);
    cm_resolve(&near, 4717);
    assert_int_equal(CM(rdma_resolve_addr(near.id, NULL, as_sockaddr(&to), 2000)), EINVAL);
    assert_int_equal(CM(rdma_resolve_route(near.id, 2000)), EINVAL);
    cm_close(&near);
}

/* Every address of 127/8 is this host's. */
static void all_of_the_loopback_network_is_here(void **state)
{
    struct sockaddr_storage at = ipv4_address(INADDR_LOOPBACK + 4, 0);
    struct cm_end near;
    struct binding held = bind_at(FAR, &(struct binding){.address = at, .listen = true});

    assert_int_equal(held.result, 0);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    at = ipv4_address(INADDR_LOOPBACK + 4, held.port);
    CM_ZERO(rdma_resolve_addr(near.id, NULL, as_sockaddr(&at), 2000));
    cm_expect(&near, RDMA_CM_EVENT_ADDR_RESOLVED);
    CM_ZERO(rdma_resolve_route(near.id, 2000));
    cm_expect(&near, RDMA_CM_EVENT_ROUTE_RESOLVED);
    cm_make_qp(&near, false);
    CHECK_ZERO(cm_connect(&near, NULL));
    unbind_at(FAR, &held); /* which rejects */
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_close(&near);
}

/* No address means this host. */
static void nowhere_is_here(void **state)
{
    struct sockaddr_storage at = any_address(AF_INET, 4718);
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_resolve_addr(near.id, NULL, as_sockaddr(&at), 2000));
    cm_expect(&near, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_int_equal(ntohs(rdma_get_dst_port(near.id)), 4718);
    assert_int_equal(ntohl(((struct sockaddr_in *)rdma_get_peer_addr(near.id))->sin_addr.s_addr) >> 24, 127);
    cm_close(&near);
}

/* --- AF_IB --- */

static struct sockaddr_ib gid_address(const union ibv_gid *gid, uint16_t port)
{
    struct sockaddr_ib address = {.sib_family = AF_IB, .sib_pkey = htobe16(0xffff)};

    memcpy(&address.sib_addr, gid, sizeof *gid);
    address.sib_sid = htobe64(RDMA_IB_IP_PS_TCP | port);
    address.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK | (port ? RDMA_IB_IP_PORT_MASK : 0));
    return address;
}

static void a_gid_is_an_address(void **state)
{
    const struct cm_parameters parameters = {.length = 92, .data = {1, 2, 3}, .retry_count = 7};
    struct cm_end near, far;
    struct sockaddr_ib at;
    struct cm_seen seen;
    union ibv_gid gid;
    uint16_t port;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, 1);
    gid = near.id->route.addr.addr.ibaddr.sgid;
    cm_close(&near);

    cm_open(&far, NEAR, RDMA_PS_TCP);
    at = gid_address(&gid, 0);
    CM_ZERO(rdma_bind_addr(far.id, (struct sockaddr *)&at));
    assert_non_null(far.id->verbs);
    port = ntohs(rdma_get_src_port(far.id));
    assert_true(port >= 1024);
    CM_ZERO(rdma_listen(far.id, 4));

    cm_open(&near, NEAR, RDMA_PS_TCP);
    at = gid_address(&gid, port);
    CM_ZERO(rdma_resolve_addr(near.id, NULL, (struct sockaddr *)&at, 2000));
    cm_expect(&near, RDMA_CM_EVENT_ADDR_RESOLVED);
    CM_ZERO(rdma_resolve_route(near.id, 2000));
    cm_expect(&near, RDMA_CM_EVENT_ROUTE_RESOLVED);
    cm_make_qp(&near, false);
    assert_int_equal(ntohs(rdma_get_dst_port(near.id)), port);
    CHECK_ZERO(cm_connect(&near, &parameters));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_int_equal(seen.length, 92); /* no header takes any of it */
    assert_memory_equal(seen.data, parameters.data, 92);
    assert_int_equal(rdma_get_peer_addr(far.child)->sa_family, AF_IB);
    CHECK_ZERO(cm_reject(&far, NULL, 0));
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_close(&near);
    cm_close(&far);
}

static void a_gid_of_nobody_cannot_be_bound(void **state)
{
    const union ibv_gid gid = {.raw = {0xfd, 0x12, [15] = 1}};
    struct sockaddr_ib at = gid_address(&gid, 0);
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    assert_int_equal(CM(rdma_bind_addr(near.id, (struct sockaddr *)&at)), ENODEV);
    cm_close(&near);
}

/* --- names --- */

static void names_become_addresses(void **state)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
    struct sockaddr_in *ipv4;

    assert_int_equal(CM(rdma_getaddrinfo(NULL, NULL, NULL, &info)), EINVAL);
    assert_int_equal(CM(rdma_getaddrinfo(NULL, NULL, &hints, &info)), EINVAL);
    assert_int_equal(rdma_getaddrinfo("127.0.0.1", "4719", &hints, &info), 0);
    ipv4 = (struct sockaddr_in *)info->ai_dst_addr;
    assert_int_equal(info->ai_family, AF_INET);
    assert_int_equal(info->ai_qp_type, IBV_QPT_RC);
    assert_int_equal(info->ai_port_space, RDMA_PS_TCP);
    assert_int_equal(info->ai_dst_len, sizeof *ipv4);
    assert_int_equal(info->ai_src_len, 0);
    assert_int_equal(ntohs(ipv4->sin_port), 4719);
    assert_int_equal(ntohl(ipv4->sin_addr.s_addr), INADDR_LOOPBACK);
    assert_null(info->ai_next);
    rdma_freeaddrinfo(info);

    hints = (struct rdma_addrinfo){.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_UDP};
    assert_int_equal(rdma_getaddrinfo(NULL, "4720", &hints, &info), 0);
    assert_true(info->ai_flags & RAI_PASSIVE);
    assert_int_equal(info->ai_qp_type, IBV_QPT_UD);
    assert_non_null(info->ai_src_addr);
    assert_null(info->ai_dst_addr);
    rdma_freeaddrinfo(info);

    hints = (struct rdma_addrinfo){.ai_flags = RAI_NUMERICHOST};
    assert_int_equal(rdma_getaddrinfo("not.a.number", NULL, &hints, &info), EAI_NONAME);
    rdma_freeaddrinfo(NULL);
}

static void hints_bring_their_own_addresses(void **state)
{
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_addrinfo hints = {.ai_src_addr = (struct sockaddr *)&source, .ai_src_len = sizeof source},
                         *info;

    assert_int_equal(rdma_getaddrinfo("127.0.0.1", "4721", &hints, &info), 0);
    assert_int_equal(info->ai_src_len, sizeof source);
    assert_memory_equal(info->ai_src_addr, &source, sizeof source);
    assert_ptr_not_equal(info->ai_src_addr, &source);
    assert_non_null(info->ai_dst_addr);
    rdma_freeaddrinfo(info);
    assert_int_equal(rdma_getaddrinfo(NULL, NULL, &hints, &info), 0);
    assert_int_equal(info->ai_family, AF_INET);
    rdma_freeaddrinfo(info);
}

static const struct test tests[] = {
    TEST(every_address_has_none),
    TEST(what_is_no_address_of_ours_is_refused),
    TEST(binding_twice_fails),
    TEST(low_ports_are_privileged),
    TEST(a_port_is_taken_on_the_whole_host),
    TEST(wildcards_and_single_addresses_exclude_each_other),
    TEST(an_ipv6_wildcard_is_of_both_families_unless_told),
    TEST(those_who_reuse_an_address_share_it),
    TEST_WITH(a_port_is_free_when_its_holder_dies, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    TEST(ports_are_chosen_apart),
    TEST(a_resolved_address_is_all_there),
    TEST(source_ports_differ),
    TEST(a_bound_id_keeps_its_port),
    TEST(what_cannot_be_resolved_is_an_event),
    TEST(calls_out_of_turn_fail),
    TEST(all_of_the_loopback_network_is_here),
    TEST(nowhere_is_here),
    TEST(a_gid_is_an_address),
    TEST(a_gid_of_nobody_cannot_be_bound),
    TEST(names_become_addresses),
    TEST(hints_bring_their_own_addresses),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
