/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.6 for datagrams (SIDR), §11.9: multicast. */
#include "cm.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>

enum { RESOLVE_ROOM = 180, ANSWER_ROOM = 136, GRH = 40, MULTICAST_QPN = 0xffffff };
enum { SIDR_NO_SERVICE = 1, SIDR_REJECTED = 2 };

static uint16_t open_service(struct cm_end *far)
{
    cm_open(far, FAR, RDMA_PS_UDP);
    return cm_listen(far, 8);
}

static void open_client(struct cm_end *near, uint16_t port)
{
    cm_open(near, NEAR, RDMA_PS_UDP);
    cm_prepare(near, port);
}

/* --- resolution of a service --- */

static void a_service_tells_where_its_qp_is(void **state)
{
    const struct cm_parameters asked = {.length = 3, .data = {1, 2, 3}};
    const struct cm_parameters answered = {.length = 4, .data = {9, 8, 7, 6}};
    struct cm_end near, far;
    struct cm_seen seen;

    open_client(&near, open_service(&far));
    assert_int_equal(cm_state(&near, false), IBV_QPS_RTS); /* ready without a peer */
    CHECK_ZERO(cm_connect(&near, &asked));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_true(seen.has_listener);
    assert_int_equal(seen.length, RESOLVE_ROOM);
    assert_memory_equal(seen.data, asked.data, 3);
    assert_int_equal(seen.data[3], 0);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &answered));
    seen = cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(seen.status, 0);
    assert_int_equal(seen.length, ANSWER_ROOM);
    assert_memory_equal(seen.data, answered.data, 4);
    assert_int_equal(seen.qkey, RDMA_UDP_QKEY);
    assert_true(seen.qp_num > 1);
    assert_true(seen.ah_attr.is_global);
    cm_expect_none(&far); /* whoever answers hears no more */
    cm_close(&near);
    cm_close(&far);
}

static void as_much_private_data_as_there_is_room_for(void **state)
{
    struct cm_parameters asked = {.length = RESOLVE_ROOM + 1}, answered = {.length = ANSWER_ROOM + 1};
    struct cm_end near, far;

    open_client(&near, open_service(&far));
    assert_int_equal(cm_connect(&near, &asked), EINVAL);
    asked.length--;
    CHECK_ZERO(cm_connect(&near, &asked));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&far, true);
    assert_int_equal(cm_accept(&far, &answered), EINVAL);
    answered.length--;
    CHECK_ZERO(cm_accept(&far, &answered));
    cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    cm_close(&near);
    cm_close(&far);
}

static void a_refused_resolution_is_unreachable(void **state)
{
    struct cm_end near, far;
    struct cm_seen seen;
    uint16_t port = open_service(&far);

    open_client(&near, port);
    CHECK_ZERO(cm_connect(&near, NULL));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_ZERO(cm_reject(&far, "no", 2));
    seen = cm_expect(&near, RDMA_CM_EVENT_UNREACHABLE);
    assert_int_equal(seen.status, SIDR_REJECTED);
    assert_memory_equal(seen.data, "no", 3);
    /* The QP serves others as well. */
    assert_int_equal(cm_state(&near, false), IBV_QPS_RTS);
    cm_close(&near);
    cm_close(&far);
    open_client(&near, port);
    CHECK_ZERO(cm_connect(&near, NULL));
    assert_int_equal(cm_expect(&near, RDMA_CM_EVENT_UNREACHABLE).status, SIDR_NO_SERVICE);
    cm_close(&near);
}

static void there_is_nothing_to_disconnect(void **state)
{
    struct cm_end near, far;

    open_client(&near, open_service(&far));
    CHECK_ZERO(cm_connect(&near, NULL));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, NULL));
    cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(cm_disconnect(&near, false), EINVAL);
    cm_close(&near);
    cm_close(&far);
}

/* A stream's request is not for a datagram service, whatever the port. */
static void port_spaces_are_apart(void **state)
{
    struct cm_end near, far;
    uint16_t port = open_service(&far);

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_prepare(&near, port);
    CHECK_ZERO(cm_connect(&near, NULL));
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_expect_none(&far);
    cm_close(&near);
    cm_close(&far);
}

/* --- datagrams to what was resolved --- */

struct datagram {
    struct ibv_ah_attr ah_attr;
    uint32_t qp_num, qkey;
    bool of_child;
    uint8_t byte;
};

static void post_receive(struct cm_end *end, void *arg)
{
    const struct datagram *datagram = arg;
    struct rdma_cm_id *id = datagram->of_child ? end->child : end->id;
    struct ibv_sge sge = {.addr = (uintptr_t)end->buf, .length = 256, .lkey = end->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

    memset(end->buf, 0, 256);
    CHECK_ZERO(ibv_post_recv(id->qp, &wr, &bad));
}

static void take_receive(struct cm_end *end, void *arg)
{
    const struct datagram *datagram = arg;
    struct rdma_cm_id *id = datagram->of_child ? end->child : end->id;
    struct ibv_wc wc;

    EVENTUALLY(ibv_poll_cq(id->recv_cq, 1, &wc) == 1, "a datagram");
    CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
    CHECK(wc.byte_len == GRH + 32 && end->buf[GRH] == datagram->byte && end->buf[GRH + 31] == datagram->byte,
          "another datagram");
}

static void send_datagram(struct cm_end *end, void *arg)
{
    struct datagram *datagram = arg;
    struct ibv_ah *ah = ibv_create_ah(end->id->pd, &datagram->ah_attr);
    struct ibv_sge sge = {.addr = (uintptr_t)end->buf, .length = 32, .lkey = end->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    struct ibv_wc wc;

    CHECK(ah, "ibv_create_ah: %s", strerror(errno));
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = datagram->qp_num;
    wr.wr.ud.remote_qkey = datagram->qkey;
    memset(end->buf, datagram->byte, 32);
    CHECK_ZERO(ibv_post_send(end->id->qp, &wr, &bad));
    EVENTUALLY(ibv_poll_cq(end->id->send_cq, 1, &wc) == 1, "a datagram to be sent");
    CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
    CHECK_ZERO(ibv_destroy_ah(ah));
}

static void datagrams_reach_a_resolved_service(void **state)
{
    struct datagram datagram = {.of_child = true, .byte = 0x42};
    struct cm_end near, far;
    struct cm_seen seen;

    open_client(&near, open_service(&far));
    CHECK_ZERO(cm_connect(&near, NULL));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&far, true);
    CM_AT(&far, post_receive, &datagram);
    CHECK_ZERO(cm_accept(&far, NULL));
    seen = cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    datagram.ah_attr = seen.ah_attr;
    datagram.qp_num = seen.qp_num;
    datagram.qkey = seen.qkey;
    CM_AT(&near, send_datagram, &datagram);
    CM_AT(&far, take_receive, &datagram);
    cm_close(&near);
    cm_close(&far);
}

/* --- multicast --- */

static struct sockaddr_storage group(uint8_t last)
{
    struct sockaddr_storage storage = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;

    if (cm_address(0).ss_family == AF_INET) {
        v4->sin_family = AF_INET;
        v4->sin_addr.s_addr = htonl(0xef010200u + last);
    } else {
        v6->sin6_family = AF_INET6;
        v6->sin6_addr = (struct in6_addr){.s6_addr = {0xff, 0x05, [15] = last}};
    }
    return storage;
}

/* The group that it is to be resolved for: a loopback address alone leads to no device. */
static void bind_and_resolve(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(0), *to = arg;

    CM_ZERO(rdma_bind_addr(end->id, as_sockaddr(&address)));
    CM_ZERO(rdma_resolve_addr(end->id, NULL, as_sockaddr(to), 2000));
}

static void find_device(struct cm_end *end)
{
    struct sockaddr_storage to = group(1);

    CM_AT(end, bind_and_resolve, &to);
    cm_expect(end, RDMA_CM_EVENT_ADDR_RESOLVED);
}

static void open_member(struct cm_end *end, struct side *side)
{
    cm_open(end, side, RDMA_PS_UDP);
    find_device(end);
    cm_make_qp(end, false);
}

struct joining {
    struct sockaddr_storage group;
    bool send_only;
    int result;
};

static void join(struct cm_end *end, void *arg)
{
    struct joining *joining = arg;
    struct rdma_cm_join_mc_attr_ex attr = {
        .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
        .join_flags =
            joining->send_only ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER,
        .addr = as_sockaddr(&joining->group),
    };

    joining->result =
        CM(joining->send_only ? rdma_join_multicast_ex(end->id, &attr, end)
                              : rdma_join_multicast(end->id, as_sockaddr(&joining->group), end));
}

static void leave(struct cm_end *end, void *arg)
{
    struct joining *joining = arg;

    joining->result = CM(rdma_leave_multicast(end->id, as_sockaddr(&joining->group)));
}

static struct cm_seen joined(struct cm_end *end, uint8_t last, bool send_only)
{
    struct joining joining = {.group = group(last), .send_only = send_only};

    CM_AT(end, join, &joining);
    assert_int_equal(joining.result, 0);
    return cm_expect(end, RDMA_CM_EVENT_MULTICAST_JOIN);
}

static int left(struct cm_end *end, uint8_t last)
{
    struct joining joining = {.group = group(last)};

    CM_AT(end, leave, &joining);
    return joining.result;
}

static struct datagram to_group(const struct cm_seen *seen, uint8_t byte)
{
    return (struct datagram){
        .ah_attr = seen->ah_attr, .qp_num = seen->qp_num, .qkey = seen->qkey, .byte = byte};
}

static void members_hear_what_is_sent_to_the_group(void **state)
{
    struct cm_end near, far;
    struct datagram datagram;
    struct cm_seen seen;

    open_member(&far, FAR);
    joined(&far, 1, false);
    open_member(&near, NEAR);
    seen = joined(&near, 1, false);
    assert_int_equal(seen.qp_num, MULTICAST_QPN);
    assert_int_equal(seen.qkey, RDMA_UDP_QKEY);
    assert_true(seen.ah_attr.is_global);
    datagram = to_group(&seen, 0x21);
    CM_AT(&far, post_receive, &datagram);
    CM_AT(&near, send_datagram, &datagram);
    CM_AT(&far, take_receive, &datagram);
    assert_int_equal(left(&near, 1), 0);
    assert_int_equal(left(&near, 1), EADDRNOTAVAIL);
    assert_int_equal(left(&far, 1), 0);
    cm_close(&near);
    cm_close(&far);
}

static void who_only_sends_hears_nothing(void **state)
{
    struct cm_end near, far;
    struct datagram datagram;
    struct cm_seen seen;
    struct ibv_wc wc;

    open_member(&far, FAR);
    joined(&far, 2, false);
    open_member(&near, NEAR);
    seen = joined(&near, 2, true);
    datagram = to_group(&seen, 0x22);
    CM_AT(&near, post_receive, &datagram);
    CM_AT(&far, post_receive, &datagram);
    CM_AT(&near, send_datagram, &datagram);
    CM_AT(&far, take_receive, &datagram);
    /* What the far side got, this one would have got before: its copy comes first. */
    assert_int_equal(ibv_poll_cq(near.id->recv_cq, 1, &wc), 0);
    assert_int_equal(left(&near, 2), 0);
    assert_int_equal(left(&far, 2), 0);
    cm_close(&near);
    cm_close(&far);
}

static void who_has_left_hears_nothing(void **state)
{
    struct datagram first, second;
    struct cm_end near, far;
    struct cm_seen seen;

    open_member(&far, FAR);
    joined(&far, 3, false);
    joined(&far, 4, false);
    open_member(&near, NEAR);
    seen = joined(&near, 3, false);
    first = to_group(&seen, 0x23);
    seen = joined(&near, 4, false);
    second = to_group(&seen, 0x24);
    assert_int_equal(left(&far, 3), 0);
    CM_AT(&far, post_receive, &second);
    CM_AT(&near, send_datagram, &first);
    CM_AT(&near, send_datagram, &second);
    CM_AT(&far, take_receive, &second); /* and not the first */
    assert_int_equal(left(&far, 4), 0);
    assert_int_equal(left(&near, 3), 0);
    assert_int_equal(left(&near, 4), 0);
    cm_close(&near);
    cm_close(&far);
}

static void joining_is_checked(void **state)
{
    struct joining joining = {.group = group(5)}, no_group = {.group = cm_address(0)};
    struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS,
                                           .addr = as_sockaddr(&joining.group)};
    struct cm_end near, streams;

    cm_open(&near, NEAR, RDMA_PS_UDP);
    CM_AT(&near, join, &joining);
    assert_int_equal(joining.result, EINVAL); /* no device yet */
    find_device(&near);
    cm_make_qp(&near, false);
    assert_int_equal(CM(rdma_join_multicast_ex(near.id, &attr, NULL)), EINVAL);
    attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
    assert_int_equal(CM(rdma_join_multicast_ex(near.id, &attr, NULL)), EINVAL);
    attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
    assert_int_equal(CM(rdma_join_multicast_ex(near.id, &attr, NULL)), ENOTSUP);
    /* What is no group is an event. */
    CM_AT(&near, join, &no_group);
    assert_int_equal(no_group.result, 0);
    assert_true(cm_expect(&near, RDMA_CM_EVENT_MULTICAST_ERROR).status < 0);
    cm_close(&near);

    cm_open(&streams, NEAR, RDMA_PS_TCP);
    find_device(&streams);
    CM_AT(&streams, join, &joining);
    assert_int_equal(joining.result, EINVAL);
    cm_close(&streams);
}

static void destroying_the_id_leaves_its_groups(void **state)
{
    struct cm_end near;

    open_member(&near, NEAR);
    joined(&near, 6, false);
    rdma_destroy_qp(near.id); /* refused: it is attached */
    near.id->qp = NULL;
    cm_close(&near);
}

static const struct test tests[] = {
    TEST(a_service_tells_where_its_qp_is),
    TEST(as_much_private_data_as_there_is_room_for),
    TEST(a_refused_resolution_is_unreachable),
    TEST(there_is_nothing_to_disconnect),
    TEST(port_spaces_are_apart),
    TEST(datagrams_reach_a_resolved_service),
    TEST(members_hear_what_is_sent_to_the_group),
    TEST(who_only_sends_hears_nothing),
    TEST(who_has_left_hears_nothing),
    TEST(joining_is_checked),
    TEST(destroying_the_id_leaves_its_groups),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
