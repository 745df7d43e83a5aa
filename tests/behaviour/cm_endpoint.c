/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.3, §11.7, §11.11: synchronous ids and endpoints, QPs and SRQs of an id, the helpers of
 * rdma_verbs.h. */
#include "cm.h"

#include <stdlib.h>
#include <unistd.h>

#include <rdma/rdma_verbs.h>

static const struct ibv_qp_init_attr small = {
    .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
    .sq_sig_all = 1,
};

static struct rdma_addrinfo *info_of(struct sockaddr_storage *address, bool passive)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC}, *info;

    hints.ai_flags = passive ? RAI_PASSIVE : 0;
    hints.ai_family = address->ss_family;
    if (passive) {
        hints.ai_src_addr = as_sockaddr(address);
        hints.ai_src_len = cm_length(address);
    } else {
        hints.ai_dst_addr = as_sockaddr(address);
        hints.ai_dst_len = cm_length(address);
    }
    CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0, "rdma_getaddrinfo: %s", strerror(errno));
    return info;
}

struct passive {
    struct rdma_cm_id *listener, *child;
    struct ibv_mr *mr;
    uint8_t *buf;
    uint16_t port;
    int result;
    bool reject;
};

static void open_passive(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(0);
    struct rdma_addrinfo *info = info_of(&address, true);
    struct ibv_qp_init_attr attr = small;
    struct passive *passive = arg;

    CM_ZERO(rdma_create_ep(&passive->listener, info, NULL, &attr));
    CM_ZERO(rdma_listen(passive->listener, 0));
    passive->port = ntohs(rdma_get_src_port(passive->listener));
    rdma_freeaddrinfo(info);
}

/* Takes a request, answers it, and echoes a message. */
static void serve(struct cm_end *end, void *arg)
{
    struct passive *passive = arg;
    struct ibv_wc wc;

    CM_ZERO(rdma_get_request(passive->listener, &passive->child));
    CHECK(passive->child->event && passive->child->event->event == RDMA_CM_EVENT_CONNECT_REQUEST,
          "the request is not in the new id");
    CHECK(passive->child->qp, "no QP was made");
    CHECK(passive->child->channel != passive->listener->channel, "the new id has no channel of its own");
    if (passive->reject) {
        passive->result = CM(rdma_reject(passive->child, "off", 3));
        return;
    }
    passive->buf = calloc(1, 64);
    passive->mr = rdma_reg_msgs(passive->child, passive->buf, 64);
    CHECK(passive->mr, "rdma_reg_msgs: %s", strerror(errno));
    CM_ZERO(rdma_post_recv(passive->child, passive, passive->buf, 64, passive->mr));
    passive->result = CM(rdma_accept(passive->child, NULL));
    if (passive->result)
        return;
    CHECK(rdma_get_recv_comp(passive->child, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "nothing received");
    CHECK(wc.wr_id == (uintptr_t)passive, "another receive");
    CM_ZERO(rdma_post_send(passive->child, NULL, passive->buf, wc.byte_len, passive->mr, 0));
    CHECK(rdma_get_send_comp(passive->child, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "nothing sent");
}

static void close_passive(struct cm_end *end, void *arg)
{
    struct passive *passive = arg;

    if (passive->child) {
        if (!passive->reject)
            CM_ZERO(rdma_disconnect(passive->child));
        if (passive->mr)
            CM_ZERO(rdma_dereg_mr(passive->mr));
        rdma_destroy_ep(passive->child);
    }
    free(passive->buf);
    rdma_destroy_ep(passive->listener);
}

/* Both sides at once: each call waits for the other. */
struct both {
    struct call call;
    struct box {
        struct cm_end end;
        struct passive passive;
    } box;
};

static void serve_box(void *arg)
{
    struct box *box = arg;

    serve(&box->end, &box->passive);
}

static struct rdma_cm_id *create_active(uint16_t port)
{
    struct sockaddr_storage address = cm_address(port);
    struct rdma_addrinfo *info = info_of(&address, false);
    struct ibv_qp_init_attr attr = small;
    struct rdma_cm_id *id;

    CM_ZERO(rdma_create_ep(&id, info, NULL, &attr));
    rdma_freeaddrinfo(info);
    CHECK(id->qp && id->verbs && id->send_cq && id->recv_cq && id->send_cq_channel,
          "the endpoint lacks something");
    return id;
}

static void endpoints_wait_for_each_other(void **state)
{
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    struct cm_end far = {.side = FAR};
    struct both both = {0};
    struct rdma_cm_id *id;
    char message[64] = "there", answer[64] = "";
    struct ibv_mr *mr, *back;
    struct ibv_wc wc;

    CM_AT(&far, open_passive, &both.box.passive);
    id = create_active(both.box.passive.port);
    mr = rdma_reg_msgs(id, message, sizeof message);
    back = rdma_reg_msgs(id, answer, sizeof answer);
    CM_ZERO(rdma_post_recv(id, answer, answer, sizeof answer, back));
    side_start(&both.call, FAR, serve_box, &both.box, sizeof both.box);
    CM_ZERO(rdma_connect(id, &param));
    assert_int_equal(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
    CM_ZERO(rdma_post_send(id, NULL, message, sizeof message, mr, 0));
    assert_int_equal(rdma_get_send_comp(id, &wc), 1);
    assert_int_equal(rdma_get_recv_comp(id, &wc), 1);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_ptr_equal((void *)(uintptr_t)wc.wr_id, answer);
    assert_string_equal(answer, "there");
    side_finish(&both.call);
    assert_int_equal(both.box.passive.result, 0);
    CM_ZERO(rdma_disconnect(id));
    assert_int_equal(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
    CM_AT(&far, close_passive, &both.box.passive);
    CM_ZERO(rdma_dereg_mr(mr));
    CM_ZERO(rdma_dereg_mr(back));
    rdma_destroy_ep(id);
}

static void a_refused_endpoint_says_connection_refused(void **state)
{
    struct rdma_conn_param param = {.retry_count = 7};
    struct cm_end far = {.side = FAR};
    struct both both = {.box.passive.reject = true};
    struct rdma_cm_id *id;

    CM_AT(&far, open_passive, &both.box.passive);
    id = create_active(both.box.passive.port);
    side_start(&both.call, FAR, serve_box, &both.box, sizeof both.box);
    assert_int_equal(CM(rdma_connect(id, &param)), ECONNREFUSED);
    assert_int_equal(id->event->event, RDMA_CM_EVENT_REJECTED);
    assert_memory_equal(id->event->param.conn.private_data, "off", 4);
    side_finish(&both.call);
    assert_int_equal(both.box.passive.result, 0);
    CM_AT(&far, close_passive, &both.box.passive);
    rdma_destroy_ep(id);
}

static void requests_are_taken_from_synchronous_listeners(void **state)
{
    struct sockaddr_storage address = cm_address(0);
    struct rdma_cm_id *child;
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(near.id, as_sockaddr(&address)));
    CM_ZERO(rdma_listen(near.id, 0));
    assert_int_equal(CM(rdma_get_request(near.id, &child)), EINVAL);
    cm_close(&near);
}

static void connect_data_comes_in_front(void **state)
{
    const struct cm_parameters behind = {.length = 2, .data = {7, 8}, .retry_count = 7};
    struct rdma_conn_param param = {.private_data = behind.data, .private_data_len = 2, .retry_count = 7};
    struct sockaddr_storage address;
    struct ibv_qp_init_attr attr = small;
    struct rdma_addrinfo *info;
    struct rdma_cm_id *id;
    struct cm_end far;
    struct cm_seen seen;

    cm_open(&far, FAR, RDMA_PS_TCP);
    address = cm_address(cm_listen(&far, 4));
    info = info_of(&address, false);
    info->ai_connect = malloc(3);
    memcpy(info->ai_connect, "abc", 3);
    info->ai_connect_len = 3;
    CM_ZERO(rdma_create_ep(&id, info, NULL, &attr));
    rdma_freeaddrinfo(info);
    CM_ZERO(rdma_migrate_id(id, rdma_create_event_channel())); /* not to wait */
    CM_ZERO(rdma_connect(id, &param));
    seen = cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_memory_equal(seen.data, "abc\7\10\0", 6);
    cm_close(&far);
    rdma_destroy_ep(id);
}

/* --- QPs of an id --- */

static void a_qp_needs_a_device(void **state)
{
    struct ibv_qp_init_attr attr = small;
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    attr.qp_type = IBV_QPT_RC;
    assert_int_equal(CM(rdma_create_qp(near.id, NULL, &attr)), EINVAL);
    rdma_destroy_qp(near.id); /* does no harm (qperf) */
    cm_close(&near);
}

static void an_id_has_one_qp(void **state)
{
    struct ibv_qp_init_attr attr = small;
    struct cm_end near;

    attr.qp_type = IBV_QPT_RC;
    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, 5001);
    CM_ZERO(rdma_create_qp(near.id, NULL, &attr));
    assert_true(attr.cap.max_send_wr >= 8);
    assert_int_equal(near.id->qp->qp_type, IBV_QPT_RC);
    assert_int_equal(cm_state(&near, false), IBV_QPS_INIT);
    assert_ptr_equal(near.id->qp->pd, near.id->pd);
    assert_ptr_equal(near.id->qp->send_cq, near.id->send_cq);
    assert_ptr_equal(near.id->qp->recv_cq, near.id->recv_cq);
    assert_ptr_equal(near.id->send_cq->cq_context, near.id);
    assert_ptr_equal(near.id->send_cq->channel, near.id->send_cq_channel);
    attr = small;
    attr.qp_type = IBV_QPT_RC;
    assert_int_equal(CM(rdma_create_qp(near.id, NULL, &attr)), EINVAL);
    rdma_destroy_qp(near.id);
    assert_null(near.id->qp);
    assert_null(near.id->send_cq);
    assert_null(near.id->recv_cq_channel);
    attr = small;
    attr.qp_type = IBV_QPT_RC;
    CM_ZERO(rdma_create_qp(near.id, NULL, &attr));
    cm_close(&near);
}

static void a_qp_may_have_pd_and_cqs_of_the_program(void **state)
{
    struct ibv_qp_init_attr_ex attr = {.cap = small.cap, .qp_type = IBV_QPT_RC};
    struct cm_end near;
    struct ibv_context *other;
    struct ibv_pd *pd, *foreign;
    struct ibv_cq *cq;

    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, 5002);
    pd = ibv_alloc_pd(near.id->verbs);
    cq = ibv_create_cq(near.id->verbs, 16, NULL, NULL, 0);
    other = ibv_open_device(near.id->verbs->device);
    foreign = ibv_alloc_pd(other);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = foreign;
    assert_int_equal(CM(rdma_create_qp_ex(near.id, &attr)), EINVAL);
    attr.pd = pd;
    attr.send_cq = attr.recv_cq = cq;
    CM_ZERO(rdma_create_qp_ex(near.id, &attr));
    assert_ptr_equal(near.id->pd, pd);
    assert_ptr_equal(near.id->qp->send_cq, cq);
    assert_null(near.id->send_cq);
    rdma_destroy_qp(near.id);
    CM_ZERO(rdma_destroy_id(near.id));
    near.id = NULL;
    CHECK_ZERO(ibv_destroy_cq(cq)); /* the program's own */
    CHECK_ZERO(ibv_dealloc_pd(pd));
    CHECK_ZERO(ibv_dealloc_pd(foreign));
    CHECK_ZERO(ibv_close_device(other));
    cm_close(&near);
}

static void an_srq_of_the_id_serves_its_qp(void **state)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq_init_attr_ex no_type = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_qp_init_attr attr = small;
    struct cm_end near;

    attr.qp_type = IBV_QPT_RC;
    cm_open(&near, NEAR, RDMA_PS_TCP);
    assert_int_equal(CM(rdma_create_srq(near.id, NULL, &srq)), EINVAL); /* no device */
    cm_resolve(&near, 5003);
    assert_int_equal(CM(rdma_create_srq_ex(near.id, &no_type)), EINVAL);
    CM_ZERO(rdma_create_srq(near.id, NULL, &srq));
    assert_non_null(near.id->srq);
    assert_int_equal(CM(rdma_create_srq(near.id, NULL, &srq)), EINVAL);
    CM_ZERO(rdma_create_qp(near.id, NULL, &attr));
    assert_ptr_equal(near.id->qp->srq, near.id->srq);
    rdma_destroy_qp(near.id);
    rdma_destroy_srq(near.id);
    assert_null(near.id->srq);
    cm_close(&near);
}

static void a_datagram_qp_is_ready_at_once(void **state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct cm_end near;

    cm_open(&near, NEAR, RDMA_PS_UDP);
    cm_prepare(&near, 5004);
    CHECK_ZERO(ibv_query_qp(near.id->qp, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init));
    assert_int_equal(attr.qp_state, IBV_QPS_RTS);
    assert_int_equal(attr.qkey, RDMA_UDP_QKEY);
    cm_close(&near);
}

/* Programs change the RNR timer of a QP that the library has moved (libfabric, qperf). */
static void set_rnr_timer(struct cm_end *end, void *arg)
{
    struct ibv_qp_attr attr = {.min_rnr_timer = 12};

    *(int *)arg = ibv_modify_qp(end->id->qp, &attr, IBV_QP_MIN_RNR_TIMER);
}

static void the_rnr_timer_of_a_live_qp_may_change(void **state)
{
    struct cm_pair pair;
    int result;

    cm_pair_open(&pair);
    CM_AT(&pair.near, set_rnr_timer, &result);
    assert_int_equal(result, 0);
    cm_pair_talk(&pair);
    cm_pair_close(&pair);
}

static const struct test tests[] = {
    TEST(endpoints_wait_for_each_other),
    TEST(a_refused_endpoint_says_connection_refused),
    TEST(requests_are_taken_from_synchronous_listeners),
    TEST(connect_data_comes_in_front),
    TEST(a_qp_needs_a_device),
    TEST(an_id_has_one_qp),
    TEST(a_qp_may_have_pd_and_cqs_of_the_program),
    TEST(an_srq_of_the_id_serves_its_qp),
    TEST(a_datagram_qp_is_ready_at_once),
    TEST(the_rnr_timer_of_a_live_qp_may_change),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
