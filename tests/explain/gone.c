/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs that destroy a thing twice, use it afterwards, or destroy things of librdmacm in the wrong order, with
 * public verbs only.
 *
 * usage: gone NAME        (without one: lists them)
 *
 * Says "hangs" on stdout after the mistake, and ends with status 0 when it reads a line. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "node.h"

static struct node node;
static struct ibv_cq *cq;

static void begin(void)
{
    node_open(&node);
    cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
    REQUIRE(cq);
}

/* --- twice ------------------------------------------------------------------------------------------------ */

static void *destroy_in_a_thread(void *qp)
{
    REQUIRE(ibv_destroy_qp(qp) == 0);
    return NULL;
}

/* The mistake: two threads clean up after the same error. */
static void qp_twice(void)
{
    struct ibv_qp *qp;
    pthread_t thread;

    begin();
    qp = make_qp(&node, cq, NULL, 4);
    REQUIRE(pthread_create(&thread, NULL, destroy_in_a_thread, qp) == 0);
    pthread_join(thread, NULL);
    REQUIRE(ibv_destroy_qp(qp) == EINVAL);
    /* The PD's users are counted once: only what is there is in the way. */
    REQUIRE(ibv_dealloc_pd(node.pd) == EBUSY);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_dereg_mr(node.mr) == 0);
    REQUIRE(ibv_dealloc_pd(node.pd) == 0);
}

static void mr_twice(void)
{
    begin();
    REQUIRE(ibv_dereg_mr(node.mr) == 0);
    REQUIRE(ibv_dereg_mr(node.mr) == EINVAL);
}

static void cq_twice(void)
{
    begin();
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_destroy_cq(cq) == EINVAL);
}

static void srq_twice(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq;

    begin();
    srq = ibv_create_srq(node.pd, &attributes);
    REQUIRE(srq);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_destroy_srq(srq) == EINVAL);
}

static void others_twice(void)
{
    struct ibv_wq_init_attr wq_attr = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1};
    struct ibv_rwq_ind_table_init_attr table_attr = {.log_ind_tbl_size = 0};
    struct ibv_xrcd_init_attr xrcd_attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_ah_attr ah_attr = {.is_global = 1, .port_num = 1};
    struct ibv_alloc_dm_attr dm_attr = {.length = 64};
    struct ibv_counters_init_attr counters_attr = {0};
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_rwq_ind_table *table;
    struct ibv_comp_channel *channel;
    struct ibv_counters *counters;
    struct ibv_xrcd *xrcd;
    struct ibv_wq *wq;
    struct ibv_ah *ah;
    struct ibv_dm *dm;
    struct ibv_td *td;
    struct ibv_mw *mw;

    begin();
    ah_attr.grh.dgid = node.gid;
    ah = ibv_create_ah(node.pd, &ah_attr);
    mw = ibv_alloc_mw(node.pd, IBV_MW_TYPE_2);
    wq_attr.pd = node.pd;
    wq_attr.cq = cq;
    wq = ibv_create_wq(node.context, &wq_attr);
    REQUIRE(ah && mw && wq);
    table_attr.ind_tbl = &wq;
    table = ibv_create_rwq_ind_table(node.context, &table_attr);
    xrcd = ibv_open_xrcd(node.context, &xrcd_attr);
    dm = ibv_alloc_dm(node.context, &dm_attr);
    td = ibv_alloc_td(node.context, &td_attr);
    counters = ibv_create_counters(node.context, &counters_attr);
    channel = ibv_create_comp_channel(node.context);
    REQUIRE(table && xrcd && dm && td && counters && channel);
    for (int expected = 0; expected <= EINVAL; expected += EINVAL) {
        REQUIRE(ibv_destroy_ah(ah) == expected);
        REQUIRE(ibv_dealloc_mw(mw) == expected);
        REQUIRE(ibv_destroy_rwq_ind_table(table) == expected);
        REQUIRE(ibv_destroy_wq(wq) == expected);
        REQUIRE(ibv_close_xrcd(xrcd) == expected);
        REQUIRE(ibv_free_dm(dm) == expected);
        REQUIRE(ibv_dealloc_td(td) == expected);
        REQUIRE(ibv_destroy_counters(counters) == expected);
        REQUIRE(ibv_destroy_comp_channel(channel) == expected);
    }
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_dereg_mr(node.mr) == 0);
    for (int expected = 0; expected <= EINVAL; expected += EINVAL)
        REQUIRE(ibv_dealloc_pd(node.pd) == expected);
}

static void device_twice(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context;

    begin();
    context = ibv_open_device(list[0]);
    REQUIRE(context && ibv_close_device(context) == 0);
    REQUIRE(ibv_close_device(context) == EINVAL);
    ibv_free_device_list(list);
}

/* --- afterwards ------------------------------------------------------------------------------------------- */

/* The mistake: a completion that comes late posts the next request. */
static void post_after_destroy(void)
{
    struct ibv_sge sge;
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_qp *qp;

    begin();
    sge = (struct ibv_sge){(uintptr_t)node.buffer, 64, node.mr->lkey};
    qp = make_qp(&node, cq, NULL, 4);
    to_init(qp);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_post_recv(qp, &wr, &bad) == EINVAL);
}

/* kvcache-ai/Mooncake#1903: one thread destroys the endpoint that another one is sending on. */
static void send_after_destroy(void)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_qp *qp, *other;
    pthread_t thread;

    begin();
    sge = (struct ibv_sge){(uintptr_t)node.buffer, 64, node.mr->lkey};
    qp = make_qp(&node, cq, NULL, 4);
    other = make_qp(&node, cq, NULL, 4);
    connect_qps(&node, qp, other, 14, 7, 7);
    REQUIRE(pthread_create(&thread, NULL, destroy_in_a_thread, qp) == 0);
    pthread_join(thread, NULL);
    REQUIRE(ibv_post_send(qp, &wr, &bad) == EINVAL);
}

/* spdk/spdk#1110: the thread that gets the disconnect asks for the state of a QP that another one has destroyed. */
static void query_after_destroy(void)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attributes;
    struct ibv_qp *qp;

    begin();
    qp = make_qp(&node, cq, NULL, 4);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init) == EINVAL);
}

static void modify_after_destroy(void)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    struct ibv_qp *qp;

    begin();
    qp = make_qp(&node, cq, NULL, 4);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == EINVAL);
}

/* The mistake: the thread that polls is not joined before. */
static void poll_after_destroy(void)
{
    struct ibv_wc wc;

    begin();
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_poll_cq(cq, 1, &wc) < 0);
}

static void arm_after_destroy(void)
{
    begin();
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_req_notify_cq(cq, 0) == EINVAL);
}

static void register_after_dealloc(void)
{
    begin();
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_dereg_mr(node.mr) == 0);
    REQUIRE(ibv_dealloc_pd(node.pd) == 0);
    REQUIRE(!ibv_reg_mr(node.pd, node.buffer, 64, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
}

/* --- librdmacm -------------------------------------------------------------------------------------------- */

static struct rdma_event_channel *channel;

static struct rdma_cm_id *resolved_id(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(4711), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;

    channel = rdma_create_event_channel();
    REQUIRE(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
    REQUIRE(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_ack_cm_event(event) == 0);
    return id;
}

/* spdk/spdk#851: two ways end with the same connection. */
static void qp_of_id_twice(void)
{
    struct ibv_qp_init_attr attributes = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct rdma_cm_id *id = resolved_id();

    REQUIRE(rdma_create_qp(id, NULL, &attributes) == 0);
    REQUIRE(ibv_destroy_qp(id->qp) == 0); /* the mistake: it is the id's */
    rdma_destroy_qp(id);
    REQUIRE(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

static void channel_before_id(void)
{
    struct rdma_cm_id *id = resolved_id();

    rdma_destroy_event_channel(channel);
    REQUIRE(rdma_destroy_id(id) == 0);
}

static void channel_twice(void)
{
    struct rdma_cm_id *id = resolved_id();

    REQUIRE(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
    rdma_destroy_event_channel(channel);
}

static void id_twice(void)
{
    struct rdma_cm_id *id = resolved_id();

    REQUIRE(rdma_destroy_id(id) == 0);
    REQUIRE(rdma_destroy_id(id) == -1 && errno == EINVAL);
}

static void id_after_destroy(void)
{
    struct rdma_cm_id *id = resolved_id();

    REQUIRE(rdma_destroy_id(id) == 0);
    REQUIRE(rdma_resolve_route(id, 2000) == -1 && errno == EINVAL);
}

static const struct situation situations[] = {
    {"qp-twice", qp_twice},
    {"mr-twice", mr_twice},
    {"cq-twice", cq_twice},
    {"srq-twice", srq_twice},
    {"others-twice", others_twice},
    {"device-twice", device_twice},
    {"post-after-destroy", post_after_destroy},
    {"send-after-destroy", send_after_destroy},
    {"query-after-destroy", query_after_destroy},
    {"modify-after-destroy", modify_after_destroy},
    {"poll-after-destroy", poll_after_destroy},
    {"arm-after-destroy", arm_after_destroy},
    {"register-after-dealloc", register_after_dealloc},
    {"qp-of-id-twice", qp_of_id_twice},
    {"channel-before-id", channel_before_id},
    {"channel-twice", channel_twice},
    {"id-twice", id_twice},
    {"id-after-destroy", id_after_destroy},
};

int main(int argc, char **argv)
{
    const struct situation *wanted =
        situation_wanted(argc, argv, situations, sizeof(situations) / sizeof(situations[0]));

    if (!wanted)
        return argc < 2 ? 0 : 1;
    wanted->happen();
    say("hangs");
    wait_for_word();
    return 0;
}
