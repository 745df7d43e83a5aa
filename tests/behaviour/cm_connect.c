/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.6: connecting, refusing, disconnecting; §11.10: the events of it. */
#include "cm.h"
#include "standard.h"

#include <stdlib.h>
#include <unistd.h>

enum { CONNECT_ROOM = 56, ACCEPT_ROOM = 196, REJECT_ROOM = 148 };
enum { REASON_NO_LISTENER = 8, REASON_CONSUMER = 28, REASON_VENDOR_OPTION = 35 };

static const struct cm_parameters plain = {
    .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};

static uint16_t open_listener(struct cm_end *far)
{
    cm_open(far, FAR, RDMA_PS_TCP);
    return cm_listen(far, 8);
}

static void open_client(struct cm_end *near, uint16_t port)
{
    cm_open(near, NEAR, RDMA_PS_TCP);
    cm_prepare(near, port);
}

static struct cm_parameters with_data(uint8_t length, uint8_t first)
{
    struct cm_parameters parameters = plain;

    parameters.length = length;
    for (unsigned i = 0; i < length; i++)
        parameters.data[i] = (uint8_t)(first + i);
    return parameters;
}

static void expect_data(const struct cm_seen *seen, const struct cm_parameters *sent, uint8_t room)
{
    assert_int_equal(seen->length, room);
    assert_memory_equal(seen->data, sent->data, sent->length);
    for (unsigned i = sent->length; i < room; i++)
        assert_int_equal(seen->data[i], 0);
}

/* --- the way of a connection --- */

static void no_descriptor_is_stdin_stdout_or_stderr(void **state)
{
    struct cm_pair pair;

    standard_close();
    cm_pair_open(&pair);
    cm_pair_talk(&pair);
    standard_check();
    cm_pair_close(&pair);
}

static void a_connection_goes_through_its_events(void **state)
{
    struct cm_pair pair;

    cm_pair_open(&pair);
    assert_int_equal(cm_state(&pair.near, false), IBV_QPS_RTS);
    assert_int_equal(cm_state(&pair.far, true), IBV_QPS_RTS);
    cm_pair_talk(&pair);
    cm_expect_none(&pair.near);
    cm_expect_none(&pair.far);
    CHECK_ZERO(cm_disconnect(&pair.near, false));
    assert_int_equal(cm_state(&pair.near, false), IBV_QPS_ERR);
    assert_int_equal(cm_expect(&pair.near, RDMA_CM_EVENT_DISCONNECTED).status, 0);
    assert_int_equal(cm_expect(&pair.far, RDMA_CM_EVENT_DISCONNECTED).status, 0);
    /* The other side's QP is the program's to move. */
    assert_int_equal(cm_state(&pair.far, true), IBV_QPS_RTS);
    CHECK_ZERO(cm_disconnect(&pair.far, true));
    assert_int_equal(cm_state(&pair.far, true), IBV_QPS_ERR);
    /* And then nothing but the end of timewait. */
    cm_expect(&pair.near, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    cm_expect(&pair.far, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    cm_expect_none(&pair.near);
    cm_expect_none(&pair.far);
    cm_pair_close(&pair);
}

static void the_passive_side_may_disconnect(void **state)
{
    struct cm_pair pair;

    cm_pair_open(&pair);
    CHECK_ZERO(cm_disconnect(&pair.far, true));
    cm_expect(&pair.near, RDMA_CM_EVENT_DISCONNECTED);
    assert_true(cm_expect(&pair.far, RDMA_CM_EVENT_DISCONNECTED).of_child);
    cm_pair_close(&pair);
}

static void both_may_disconnect_at_once(void **state)
{
    struct cm_pair pair;

    for (int i = 0; i < 20; i++) {
        cm_pair_open(&pair);
        CHECK_ZERO(cm_disconnect(&pair.far, true));
        CHECK_ZERO(cm_disconnect(&pair.near, false));
        cm_expect(&pair.near, RDMA_CM_EVENT_DISCONNECTED);
        cm_expect(&pair.far, RDMA_CM_EVENT_DISCONNECTED);
        cm_pair_close(&pair);
    }
}

static void destroying_an_id_disconnects(void **state)
{
    struct cm_pair pair;

    cm_pair_open(&pair);
    cm_close(&pair.near);
    cm_expect(&pair.far, RDMA_CM_EVENT_DISCONNECTED);
    cm_close(&pair.far);
}

/* --- private data --- */

static void private_data_arrives_with_zeros_behind_it(void **state)
{
    const struct cm_parameters asked = with_data(7, 1), answered = with_data(9, 100);
    struct cm_end near, far;
    struct cm_seen seen;

    open_client(&near, open_listener(&far));
    CHECK_ZERO(cm_connect(&near, &asked));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_true(seen.has_listener);
    expect_data(&seen, &asked, CONNECT_ROOM);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &answered));
    seen = cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    expect_data(&seen, &answered, ACCEPT_ROOM);
    cm_expect(&far, RDMA_CM_EVENT_ESTABLISHED);
    cm_close(&near);
    cm_close(&far);
}

static void as_much_private_data_as_there_is_room_for(void **state)
{
    const struct cm_parameters asked = with_data(CONNECT_ROOM, 1), answered = with_data(ACCEPT_ROOM, 7);
    const struct cm_parameters too_much = with_data(CONNECT_ROOM + 1, 1);
    const struct cm_parameters far_too_much = with_data(ACCEPT_ROOM + 1, 1);
    struct cm_end near, far;
    struct cm_seen seen;

    open_client(&near, open_listener(&far));
    assert_int_equal(cm_connect(&near, &too_much), EINVAL);
    CHECK_ZERO(cm_connect(&near, &asked));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    expect_data(&seen, &asked, CONNECT_ROOM);
    cm_make_qp(&far, true);
    assert_int_equal(cm_accept(&far, &far_too_much), EINVAL);
    CHECK_ZERO(cm_accept(&far, &answered));
    seen = cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    expect_data(&seen, &answered, ACCEPT_ROOM);
    cm_close(&near);
    cm_close(&far);
}

/* --- parameters --- */

static void resources_are_told_from_the_view_of_whoever_is_told(void **state)
{
    const struct cm_parameters asked = {
        .responder_resources = 3, .initiator_depth = 5, .retry_count = 2, .rnr_retry_count = 4};
    const struct cm_parameters answered = {
        .responder_resources = 2, .initiator_depth = 1, .rnr_retry_count = 6};
    struct cm_end near, far;
    struct cm_seen seen;

    open_client(&near, open_listener(&far));
    CHECK_ZERO(cm_connect(&near, &asked));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_int_equal(seen.responder_resources, 5);
    assert_int_equal(seen.initiator_depth, 3);
    assert_int_equal(seen.retry_count, 2);
    assert_int_equal(seen.rnr_retry_count, 4);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &answered));
    seen = cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(seen.responder_resources, 1);
    assert_int_equal(seen.initiator_depth, 2);
    assert_int_equal(seen.rnr_retry_count, 6);
    cm_close(&near);
    cm_close(&far);
}

struct limits {
    struct ibv_qp_attr attr;
    bool of_child;
};

static void query_limits(struct cm_end *end, void *arg)
{
    struct limits *limits = arg;
    struct rdma_cm_id *id = limits->of_child ? end->child : end->id;
    struct ibv_qp_init_attr init;

    CHECK_ZERO(ibv_query_qp(id->qp, &limits->attr,
                            IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_RETRY_CNT |
                                IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT | IBV_QP_AV | IBV_QP_ACCESS_FLAGS,
                            &init));
}

static struct ibv_qp_attr limits_of(struct cm_end *end, bool of_child)
{
    struct limits limits = {.of_child = of_child};

    CM_AT(end, query_limits, &limits);
    return limits.attr;
}

static void qps_get_what_was_agreed(void **state)
{
    const struct cm_parameters asked = {
        .responder_resources = 3, .initiator_depth = 5, .retry_count = 10, .rnr_retry_count = 9};
    const struct cm_parameters answered = {
        .responder_resources = 5, .initiator_depth = 3, .rnr_retry_count = 1};
    struct cm_end near, far;
    struct ibv_qp_attr attr;

    open_client(&near, open_listener(&far));
    CHECK_ZERO(cm_connect(&near, &asked)); /* more than 7 retries are 7 (fio sends 10) */
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &answered));
    cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    cm_expect(&far, RDMA_CM_EVENT_ESTABLISHED);
    attr = limits_of(&near, false);
    assert_int_equal(attr.max_dest_rd_atomic, 3);
    assert_int_equal(attr.max_rd_atomic, 5);
    assert_int_equal(attr.retry_cnt, 7);
    assert_int_equal(attr.rnr_retry, 1); /* what the other side asked for */
    assert_true(attr.qp_access_flags & IBV_ACCESS_REMOTE_READ);
    assert_true(attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE);
    attr = limits_of(&far, true);
    assert_int_equal(attr.max_dest_rd_atomic, 5);
    assert_int_equal(attr.max_rd_atomic, 3);
    assert_int_equal(attr.retry_cnt, 7);
    assert_int_equal(attr.rnr_retry, 7);
    cm_close(&near);
    cm_close(&far);
}

static void maxima_mean_as_much_as_there_is(void **state)
{
    const struct cm_parameters asked = {.responder_resources = RDMA_MAX_RESP_RES,
                                        .initiator_depth = RDMA_MAX_INIT_DEPTH};
    const struct cm_parameters all = {.none = true};
    struct cm_parameters beyond = plain;
    struct cm_end near, far;
    struct cm_seen seen;

    open_client(&near, open_listener(&far));
    beyond.responder_resources = 254;
    assert_int_equal(cm_connect(&near, &beyond), EINVAL);
    CHECK_ZERO(cm_connect(&near, &asked));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_true(seen.responder_resources >= 16 && seen.responder_resources < 254);
    assert_true(seen.initiator_depth >= 16);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &all));
    cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(limits_of(&far, true).max_rd_atomic, seen.initiator_depth);
    cm_close(&near);
    cm_close(&far);
}

static void parameters_may_be_missing(void **state)
{
    const struct cm_parameters none = {.none = true};
    struct cm_end near, far;
    uint16_t port = open_listener(&far);

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, port);
    assert_int_equal(cm_connect(&near, &none), EINVAL); /* there is no QP either */
    cm_make_qp(&near, false);
    CHECK_ZERO(cm_connect(&near, &none));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_int_equal(cm_accept(&far, &none), EINVAL);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &none));
    cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(limits_of(&near, false).rnr_retry, 7);
    assert_int_equal(limits_of(&near, false).retry_cnt, 7);
    cm_close(&near);
    cm_close(&far);
}

static void set_options(struct cm_end *end, void *arg)
{
    uint8_t tos = 0x48, timeout = 21;

    CM_ZERO(rdma_set_option(end->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos));
    CM_ZERO(rdma_set_option(end->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout));
}

static void options_of_the_id_reach_the_qp(void **state)
{
    struct cm_end near, far;
    struct ibv_qp_attr attr;
    uint16_t port = open_listener(&far);

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_AT_PLAIN(&near, set_options);
    cm_prepare(&near, port);
    CHECK_ZERO(cm_connect(&near, &plain));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&far, true);
    CHECK_ZERO(cm_accept(&far, &plain));
    cm_expect(&near, RDMA_CM_EVENT_ESTABLISHED);
    attr = limits_of(&near, false);
    assert_int_equal(attr.timeout, 21);
    assert_int_equal(attr.ah_attr.grh.traffic_class, 0x48);
    /* The other side answers with the class that it was asked in. */
    assert_int_equal(limits_of(&far, true).ah_attr.grh.traffic_class, 0x48);
    cm_close(&near);
    cm_close(&far);
}

/* --- refusing --- */

static void a_rejection_carries_its_data(void **state)
{
    uint8_t why[REJECT_ROOM + 1];
    struct cm_end near, far;
    struct cm_seen seen;

    memset(why, 0x77, sizeof why);
    open_client(&near, open_listener(&far));
    CHECK_ZERO(cm_connect(&near, &plain));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_int_equal(cm_reject(&far, why, REJECT_ROOM + 1), EINVAL);
    CHECK_ZERO(cm_reject(&far, why, 5));
    seen = cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    assert_int_equal(seen.status, REASON_CONSUMER);
    assert_int_equal(seen.length, REJECT_ROOM);
    assert_memory_equal(seen.data, why, 5);
    assert_int_equal(seen.data[5], 0);
    assert_int_equal(cm_state(&near, false), IBV_QPS_ERR);
    assert_int_equal(cm_reject(&far, why, 5), EINVAL); /* once */
    cm_close(&near);
    cm_close(&far);
}

static void nobody_listens(void **state)
{
    struct cm_end near, far;
    uint16_t port = open_listener(&far);
    struct cm_seen seen;

    cm_close(&far);
    open_client(&near, port);
    CHECK_ZERO(cm_connect(&near, &plain));
    seen = cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    assert_int_equal(seen.status, REASON_NO_LISTENER);
    cm_close(&near);
}

static void an_unanswered_child_is_a_rejection_when_it_is_destroyed(void **state)
{
    struct cm_end near, far;

    open_client(&near, open_listener(&far));
    CHECK_ZERO(cm_connect(&near, &plain));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_close(&far);
    assert_int_equal(cm_expect(&near, RDMA_CM_EVENT_REJECTED).status, REASON_CONSUMER);
    cm_close(&near);
}

static void requests_that_nobody_has_read_are_rejected_with_the_listener(void **state)
{
    struct cm_end near, far;

    open_client(&near, open_listener(&far));
    CHECK_ZERO(cm_connect(&near, &plain));
    cm_close(&far); /* whether the request has arrived or not */
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_close(&near);
}

static void destroy_listener(struct cm_end *end, void *arg)
{
    CM_ZERO(rdma_destroy_id(end->id));
    end->id = NULL;
}

static void a_child_outlives_its_listener(void **state)
{
    struct cm_pair pair;

    open_client(&pair.near, open_listener(&pair.far));
    CHECK_ZERO(cm_connect(&pair.near, &plain));
    cm_expect(&pair.far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT_PLAIN(&pair.far, destroy_listener);
    cm_make_qp(&pair.far, true);
    CHECK_ZERO(cm_accept(&pair.far, &plain));
    cm_expect(&pair.near, RDMA_CM_EVENT_ESTABLISHED);
    cm_expect(&pair.far, RDMA_CM_EVENT_ESTABLISHED);
    cm_pair_talk(&pair);
    cm_pair_close(&pair);
}

/* --- who may call what when --- */

struct calls {
    int accept, reject, disconnect, establish, listen, connect, notify;
};

static void try_everything(struct cm_end *end, void *arg)
{
    struct rdma_conn_param param = {.retry_count = 7};
    struct calls *calls = arg;

    calls->accept = CM(rdma_accept(end->id, &param));
    calls->reject = CM(rdma_reject(end->id, NULL, 0));
    calls->disconnect = CM(rdma_disconnect(end->id));
    calls->establish = CM(rdma_establish(end->id));
    calls->connect = CM(rdma_connect(end->id, &param));
    calls->notify = CM(rdma_notify(end->id, IBV_EVENT_PATH_MIG));
}

static void calls_out_of_turn_fail(void **state)
{
    struct cm_end near, far;
    struct calls calls;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_AT(&near, try_everything, &calls);
    assert_int_equal(calls.accept, EINVAL);
    assert_int_equal(calls.reject, EINVAL);
    assert_int_equal(calls.disconnect, EINVAL);
    assert_int_equal(calls.establish, EINVAL);
    assert_int_equal(calls.connect, EINVAL);
    assert_int_equal(calls.notify, EINVAL);
    open_listener(&far);
    CM_AT(&far, try_everything, &calls);
    assert_int_equal(calls.accept, EINVAL);
    assert_int_equal(calls.reject, EINVAL);
    assert_int_equal(calls.disconnect, EINVAL);
    assert_int_equal(calls.connect, EINVAL);
    cm_close(&near);
    cm_close(&far);
}

static void established_ids_are_answered_once(void **state)
{
    struct cm_pair pair;

    cm_pair_open(&pair);
    assert_int_equal(cm_accept(&pair.far, &plain), EINVAL);
    assert_int_equal(cm_reject(&pair.far, NULL, 0), EINVAL);
    assert_int_equal(cm_connect(&pair.near, &plain), EINVAL);
    cm_pair_close(&pair);
}

/* --- QPs that are not the library's --- */

struct external {
    uint32_t qp_num;
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    bool of_child;
    int before; /* of rdma_init_qp_attr() before there is anything to know */
};

static void make_external(struct cm_end *end, void *arg)
{
    struct external *external = arg;
    struct rdma_cm_id *id = external->of_child ? end->child : end->id;
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask;

    external->cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
    init.send_cq = init.recv_cq = external->cq;
    external->qp = ibv_create_qp(id->pd, &init);
    CHECK(external->cq && external->qp, "no QP: %s", strerror(errno));
    external->qp_num = external->qp->qp_num;
    external->before = CM(rdma_init_qp_attr(id, &attr, &mask));
}

static void move_external(struct cm_end *end, void *arg)
{
    static const enum ibv_qp_state way[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    struct external *external = arg;
    struct rdma_cm_id *id = external->of_child ? end->child : end->id;
    int mask;

    for (size_t i = 0; i < COUNT(way); i++) {
        struct ibv_qp_attr attr = {.qp_state = way[i]};

        CM_ZERO(rdma_init_qp_attr(id, &attr, &mask));
        CHECK_ZERO(ibv_modify_qp(external->qp, &attr, mask));
        if (way[i] == IBV_QPS_RTR) {
            CHECK(attr.path_mtu >= IBV_MTU_1024 && attr.ah_attr.is_global && attr.ah_attr.port_num == 1,
                  "RTR lacks a path");
            CHECK(attr.min_rnr_timer == 0 && (mask & IBV_QP_MIN_RNR_TIMER), "RTR lacks the RNR timer");
        }
    }
}

static void establish(struct cm_end *end, void *arg)
{
    *(int *)arg = CM(rdma_establish(end->id));
}

static void drop_external(struct cm_end *end, void *arg)
{
    struct external *external = arg;

    CHECK_ZERO(ibv_destroy_qp(external->qp));
    CHECK_ZERO(ibv_destroy_cq(external->cq));
}

static void a_program_may_move_its_own_qp(void **state)
{
    struct cm_parameters parameters = plain;
    struct external ours = {0}, theirs = {.of_child = true};
    struct cm_end near, far;
    uint16_t port = open_listener(&far);
    struct cm_seen seen;
    int result;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, port);
    CM_AT(&near, make_external, &ours);
    assert_int_equal(ours.before, EINVAL);
    parameters.qp_num = ours.qp_num;
    CHECK_ZERO(cm_connect(&near, &parameters));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_int_equal(seen.qp_num, ours.qp_num);
    CM_AT(&far, make_external, &theirs);
    assert_int_equal(theirs.before, 0); /* a request says it all */
    CM_AT(&far, move_external, &theirs);
    parameters.qp_num = theirs.qp_num;
    CHECK_ZERO(cm_accept(&far, &parameters));
    seen = cm_expect(&near, RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_int_equal(seen.qp_num, theirs.qp_num);
    CM_AT(&near, move_external, &ours);
    cm_expect_none(&far);
    CM_AT(&near, establish, &result);
    assert_int_equal(result, 0);
    cm_expect(&far, RDMA_CM_EVENT_ESTABLISHED);
    cm_expect_none(&near); /* whoever establishes knows */
    CM_AT(&near, drop_external, &ours);
    CM_AT(&far, drop_external, &theirs);
    cm_close(&near);
    cm_close(&far);
}

static void establishing_is_for_those_without_a_qp(void **state)
{
    struct cm_pair pair;
    int result;

    cm_pair_open(&pair);
    CM_AT(&pair.near, establish, &result);
    assert_int_equal(result, EINVAL);
    cm_pair_close(&pair);
}

/* --- listeners --- */

struct crowd {
    unsigned count;
    struct rdma_cm_id *ids[64];
    uint16_t port;
};

static void connect_crowd(struct cm_end *end, void *arg)
{
    struct crowd *crowd = arg;
    struct sockaddr_storage address = cm_address(crowd->port);
    struct rdma_conn_param param = {.qp_num = 1234, .retry_count = 7};
    struct rdma_cm_event *event;

    for (unsigned i = 0; i < crowd->count; i++) {
        struct rdma_cm_id *id;

        CM_ZERO(rdma_create_id(end->channel, &id, NULL, RDMA_PS_TCP));
        CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
        CM_ZERO(rdma_get_cm_event(end->channel, &event));
        CM_ZERO(rdma_ack_cm_event(event));
        CM_ZERO(rdma_resolve_route(id, 2000));
        CM_ZERO(rdma_get_cm_event(end->channel, &event));
        CM_ZERO(rdma_ack_cm_event(event));
        param.qp_num++; /* else the next would be the successor of a stale connection */
        CM_ZERO(rdma_connect(id, &param));
        crowd->ids[i] = id;
    }
}

static void destroy_crowd(struct cm_end *end, void *arg)
{
    struct crowd *crowd = arg;

    for (unsigned i = 0; i < crowd->count; i++)
        CM_ZERO(rdma_destroy_id(crowd->ids[i]));
}

static void drop_child(struct cm_end *end, void *arg)
{
    CM_ZERO(rdma_destroy_id(end->child));
    end->child = NULL;
}

/* What finds no room is not refused: it is asked again. */
static void a_full_backlog_delays(void **state)
{
    struct crowd crowd = {.count = 5};
    struct cm_end near, far;

    cm_open(&far, FAR, RDMA_PS_TCP);
    crowd.port = cm_listen(&far, 2);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_AT(&near, connect_crowd, &crowd);
    for (unsigned i = 0; i < crowd.count; i++) {
        cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
        CHECK_ZERO(cm_reject(&far, NULL, 0));
        CM_AT_PLAIN(&far, drop_child);
    }
    for (unsigned i = 0; i < crowd.count; i++)
        cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_expect_none(&far);
    CM_AT(&near, destroy_crowd, &crowd);
    cm_close(&near);
    cm_close(&far);
}

static void listen_twice(struct cm_end *end, void *arg)
{
    struct calls *calls = arg;

    calls->listen = CM(rdma_listen(end->id, 0));
    CHECK(rdma_get_src_port(end->id) != 0, "no port");
    CHECK(end->id->verbs == NULL, "a wildcard has no device");
    CM_ZERO(rdma_listen(end->id, 5));
}

static void listening_binds_to_every_address(void **state)
{
    struct cm_end near;
    struct calls calls;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_AT(&near, listen_twice, &calls);
    assert_int_equal(calls.listen, 0);
    cm_close(&near);
}

static void bind_only(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(0);

    CM_ZERO(rdma_bind_addr(end->id, as_sockaddr(&address)));
    *(uint16_t *)arg = ntohs(rdma_get_src_port(end->id));
}

static void listen_now(struct cm_end *end, void *arg)
{
    CM_ZERO(rdma_listen(end->id, 0));
}

/* Programs tell their peers the port before they listen. */
static void a_request_waits_for_the_listener(void **state)
{
    struct cm_end near, far;
    uint16_t port;

    cm_open(&far, FAR, RDMA_PS_TCP);
    CM_AT(&far, bind_only, &port);
    open_client(&near, port);
    CHECK_ZERO(cm_connect(&near, &plain));
    CM_AT_PLAIN(&far, listen_now);
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_ZERO(cm_reject(&far, NULL, 0));
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_close(&near);
    cm_close(&far);
}

static void a_port_that_is_only_bound_refuses_in_the_end(void **state)
{
    struct cm_end near, far;
    uint16_t port;

    cm_open(&far, FAR, RDMA_PS_TCP);
    CM_AT(&far, bind_only, &port);
    open_client(&near, port);
    CHECK_ZERO(cm_connect(&near, &plain));
    assert_int_equal(cm_expect(&near, RDMA_CM_EVENT_REJECTED).status, REASON_NO_LISTENER);
    cm_close(&near);
    cm_close(&far);
}

/* --- enhanced connection establishment --- */

struct ece {
    struct ibv_ece ece;
    bool of_child;
    int result;
};

static void set_ece(struct cm_end *end, void *arg)
{
    struct ece *ece = arg;

    ece->result = CM(rdma_set_local_ece(ece->of_child ? end->child : end->id, &ece->ece));
}

static void get_ece(struct cm_end *end, void *arg)
{
    struct ece *ece = arg;

    ece->result = CM(rdma_get_remote_ece(ece->of_child ? end->child : end->id, &ece->ece));
}

static void reject_ece(struct cm_end *end, void *arg)
{
    *(int *)arg = CM(rdma_reject_ece(end->child, NULL, 0));
}

static void ece_options_travel(void **state)
{
    struct ece ours = {.ece = {.vendor_id = 0x1234, .options = 0x5678}};
    struct ece theirs = {.ece = {.vendor_id = 0xabcd, .options = 0xef}, .of_child = true};
    struct ece bad = {.ece = {.vendor_id = 0}}, seen = {.of_child = true};
    struct cm_parameters parameters = plain;
    struct cm_end near, far;
    uint16_t port = open_listener(&far);
    int result;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, port);
    CM_AT(&near, set_ece, &bad);
    assert_int_equal(bad.result, EINVAL);
    CM_AT(&near, set_ece, &ours);
    assert_int_equal(ours.result, 0);
    parameters.qp_num = 17;
    CHECK_ZERO(cm_connect(&near, &parameters));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT(&far, get_ece, &seen);
    assert_int_equal(seen.result, 0);
    assert_int_equal(seen.ece.vendor_id, 0x1234);
    assert_int_equal(seen.ece.options, 0x5678);
    CM_AT(&far, set_ece, &theirs);
    parameters.qp_num = 18;
    CHECK_ZERO(cm_accept(&far, &parameters));
    cm_expect(&near, RDMA_CM_EVENT_CONNECT_RESPONSE);
    seen = (struct ece){0};
    CM_AT(&near, get_ece, &seen);
    assert_int_equal(seen.ece.vendor_id, 0xabcd);
    assert_int_equal(seen.ece.options, 0xef);
    cm_close(&near);

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, port);
    parameters.qp_num = 19;
    CHECK_ZERO(cm_connect(&near, &parameters));
    for (struct cm_seen event = cm_next(&far); event.type != RDMA_CM_EVENT_CONNECT_REQUEST;)
        event = cm_next(&far); /* of the first one's end */
    CM_AT(&far, reject_ece, &result);
    assert_int_equal(result, 0);
    assert_int_equal(cm_expect(&near, RDMA_CM_EVENT_REJECTED).status, REASON_VENDOR_OPTION);
    cm_close(&near);
    cm_close(&far);
}

/* --- death --- */

static void a_peer_that_dies_disconnects(void **state)
{
    struct cm_pair pair;

    if (path_under_test() == PATH_WIRE)
        skip_because("over the network nobody tells of a death");
    cm_pair_open(&pair);
    side_kill(pair.far.side);
    assert_int_equal(cm_expect(&pair.near, RDMA_CM_EVENT_DISCONNECTED).status, 0);
    cm_close(&pair.near);
}

/* The listener dies with the request in its hands: whoever takes the port over may answer it. */
static void a_listener_that_dies_leaves_its_port(void **state)
{
    struct cm_end near, far, heir;
    uint16_t port = open_listener(&far);
    struct cm_seen seen;

    open_client(&near, port);
    CHECK_ZERO(cm_connect(&near, &plain));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    side_kill(far.side);
    seen = cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    assert_int_equal(seen.status, REASON_NO_LISTENER);
    cm_open(&heir, NEAR, RDMA_PS_TCP);
    struct sockaddr_storage address = cm_address(port);
    CM_ZERO(rdma_bind_addr(heir.id, as_sockaddr(&address)));
    cm_close(&heir);
    cm_close(&near);
}

static void a_client_that_dies_takes_its_request_back(void **state)
{
    struct cm_end near, far;
    uint16_t port;

    /* The far side asks, so that it can be killed. */
    cm_open(&near, NEAR, RDMA_PS_TCP);
    port = cm_listen(&near, 4);
    cm_open(&far, FAR, RDMA_PS_TCP);
    cm_prepare(&far, port);
    CHECK_ZERO(cm_connect(&far, &plain));
    cm_expect(&near, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&near, true);
    CHECK_ZERO(cm_accept(&near, &plain));
    /* It does not read its events, so that there is no RTU. */
    side_kill(far.side);
    struct cm_seen seen = cm_next(&near);
    assert_true(seen.type == RDMA_CM_EVENT_REJECTED || seen.type == RDMA_CM_EVENT_DISCONNECTED ||
                seen.type == RDMA_CM_EVENT_UNREACHABLE);
    cm_close(&near);
}

static const struct test tests[] = {
    TEST(no_descriptor_is_stdin_stdout_or_stderr),
    TEST(a_connection_goes_through_its_events),
    TEST(the_passive_side_may_disconnect),
    TEST(both_may_disconnect_at_once),
    TEST(destroying_an_id_disconnects),
    TEST(private_data_arrives_with_zeros_behind_it),
    TEST(as_much_private_data_as_there_is_room_for),
    TEST(resources_are_told_from_the_view_of_whoever_is_told),
    TEST(qps_get_what_was_agreed),
    TEST(maxima_mean_as_much_as_there_is),
    TEST(parameters_may_be_missing),
    TEST(options_of_the_id_reach_the_qp),
    TEST(a_rejection_carries_its_data),
    TEST(nobody_listens),
    TEST(an_unanswered_child_is_a_rejection_when_it_is_destroyed),
    TEST(requests_that_nobody_has_read_are_rejected_with_the_listener),
    TEST(a_child_outlives_its_listener),
    TEST(calls_out_of_turn_fail),
    TEST(established_ids_are_answered_once),
    TEST(a_program_may_move_its_own_qp),
    TEST(establishing_is_for_those_without_a_qp),
    TEST(a_full_backlog_delays),
    TEST(listening_binds_to_every_address),
    TEST(a_request_waits_for_the_listener),
    TEST(a_port_that_is_only_bound_refuses_in_the_end),
    TEST(ece_options_travel),
    TEST_WITH(a_peer_that_dies_disconnects, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    TEST_WITH(a_listener_that_dies_leaves_its_port, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    TEST_WITH(a_client_that_dies_takes_its_request_back, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
