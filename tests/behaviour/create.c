/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §0.2, §1.4 and §1.5: what can be created, and how a refusal looks. */
#include "work.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_device_attr device;

static void open_all(void)
{
    context = open_the_device();
    pd = ibv_alloc_pd(context);
    assert_non_null(pd);
    assert_int_equal(ibv_query_device(context, &device), 0);
}

static void close_all(void)
{
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    assert_int_equal(ibv_close_device(context), 0);
}

static void a_new_cq_is_initialised_and_holds_at_least_what_was_asked(void **state)
{
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int mark;

    open_all();
    channel = ibv_create_comp_channel(context);
    assert_non_null(channel);
    assert_true(channel->fd >= 0);
    assert_int_equal(channel->refcnt, 0);
    cq = ibv_create_cq(context, 100, &mark, channel, 0);
    assert_non_null(cq);
    assert_true(cq->cqe >= 100);
    assert_ptr_equal(cq->context, context);
    assert_ptr_equal(cq->channel, channel);
    assert_ptr_equal(cq->cq_context, &mark);
    assert_int_equal(cq->comp_events_completed, 0);
    assert_int_equal(cq->async_events_completed, 0);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
    close_all();
}

static void create_cq_refuses_a_size_outside_1_to_max_cqe(void **state)
{
    struct ibv_cq *cq;

    open_all();
    assert_refused(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
    assert_refused(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
    assert_refused(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
    cq = ibv_create_cq(context, device.max_cqe, NULL, NULL, 0);
    assert_non_null(cq);
    assert_true(cq->cqe >= device.max_cqe);
    ibv_destroy_cq(cq);
    close_all();
}

static void create_cq_refuses_a_comp_vector_that_does_not_exist(void **state)
{
    open_all();
    assert_true(context->num_comp_vectors >= 1);
    assert_refused(ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors), EINVAL);
    assert_refused(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);
    close_all();
}

static void create_cq_refuses_a_channel_of_another_context(void **state)
{
    struct ibv_context *other;
    struct ibv_comp_channel *channel;

    open_all();
    other = open_the_device();
    channel = ibv_create_comp_channel(other);
    assert_refused(ibv_create_cq(context, 1, NULL, channel, 0), EINVAL);
    assert_int_equal(ibv_destroy_comp_channel(channel), 0);
    ibv_close_device(other);
    close_all();
}

static void create_cq_ex_refuses_unknown_bits(void **state)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 1, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq;

    open_all();
    attr.comp_mask = 1u << 30;
    errno = 0;
    assert_null(ibv_create_cq_ex(context, &attr));
    assert_true(errno == EOPNOTSUPP || errno == EINVAL);
    attr.comp_mask = 0;
    attr.wc_flags = 1ull << 50;
    assert_refused(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attr.flags = 1u << 30;
    assert_refused(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
    attr.comp_mask = 0; /* then flags mean nothing */
    cq = ibv_create_cq_ex(context, &attr);
    assert_non_null(cq);
    assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    close_all();
}

static void create_srq_updates_its_attributes_with_what_was_granted(void **state)
{
    struct ibv_srq_init_attr attr = {.srq_context = &attr,
                                     .attr = {.max_wr = 100, .max_sge = 2, .srq_limit = 50}};
    struct ibv_srq_attr now;
    struct ibv_srq *srq;

    open_all();
    srq = ibv_create_srq(pd, &attr);
    assert_non_null(srq);
    assert_true(attr.attr.max_wr >= 100);
    assert_true(attr.attr.max_sge >= 2);
    assert_ptr_equal(srq->srq_context, &attr);
    assert_ptr_equal(srq->pd, pd);
    assert_ptr_equal(srq->context, context);
    assert_int_equal(srq->events_completed, 0);
    assert_int_equal(ibv_query_srq(srq, &now), 0);
    assert_int_equal(now.max_wr, attr.attr.max_wr);
    assert_int_equal(now.max_sge, attr.attr.max_sge);
    assert_int_equal(now.srq_limit, 0); /* the limit of a plain create is ignored */
    assert_int_equal(ibv_destroy_srq(srq), 0);
    close_all();
}

static void create_srq_refuses_what_is_over_the_limits(void **state)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 1, .max_sge = 1}};

    open_all();
    attr.attr.max_wr = (uint32_t)device.max_srq_wr + 1;
    assert_refused(ibv_create_srq(pd, &attr), EINVAL);
    attr.attr.max_wr = 0;
    assert_refused(ibv_create_srq(pd, &attr), EINVAL);
    attr.attr.max_wr = 1;
    attr.attr.max_sge = (uint32_t)device.max_srq_sge + 1;
    assert_refused(ibv_create_srq(pd, &attr), EINVAL);
    close_all();
}

static void create_srq_ex_needs_a_pd_and_knows_its_bits(void **state)
{
    struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq;

    open_all();
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    attr.srq_type = IBV_SRQT_BASIC;
    assert_refused(ibv_create_srq_ex(context, &attr), EINVAL);
    attr.pd = pd;
    attr.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | 1u << 30;
    assert_refused(ibv_create_srq_ex(context, &attr), EOPNOTSUPP);
    attr.comp_mask = IBV_SRQ_INIT_ATTR_PD; /* no type: basic */
    srq = ibv_create_srq_ex(context, &attr);
    assert_non_null(srq);
    assert_int_equal(ibv_destroy_srq(srq), 0);
    close_all();
}

static void alloc_mw_knows_types_1_and_2(void **state)
{
    open_all();
    for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
        struct ibv_mw *mw = ibv_alloc_mw(pd, (enum ibv_mw_type)type);

        assert_non_null(mw);
        assert_int_equal(mw->type, type);
        assert_ptr_equal(mw->pd, pd);
        assert_ptr_equal(mw->context, context);
        assert_int_not_equal(mw->rkey, 0);
        assert_int_equal(ibv_dealloc_mw(mw), 0);
    }
    assert_refused(ibv_alloc_mw(pd, (enum ibv_mw_type)3), EINVAL);
    assert_refused(ibv_alloc_mw(pd, (enum ibv_mw_type)0), EINVAL);
    close_all();
}

static void alloc_td_refuses_a_comp_mask(void **state)
{
    struct ibv_td_init_attr attr = {.comp_mask = 1};

    open_all();
    errno = 0;
    assert_null(ibv_alloc_td(context, &attr));
    if (errno == EOPNOTSUPP)
        skip_because("no thread domains");
    assert_int_equal(errno, EINVAL);
    close_all();
}

static void alloc_parent_domain_needs_a_pd_and_knows_its_bits(void **state)
{
    struct ibv_parent_domain_init_attr attr = {0};

    open_all();
    errno = 0;
    assert_null(ibv_alloc_parent_domain(context, &attr));
    if (errno == EOPNOTSUPP)
        skip_because("no parent domains");
    assert_int_equal(errno, EINVAL);
    attr.pd = pd;
    attr.comp_mask = 1u << 30;
    assert_refused(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
    close_all();
}

static void parent_domain_has_the_identity_of_its_pd(void **state)
{
    struct ibv_parent_domain_init_attr attr = {0};
    struct ibv_pd *parent;
    struct ibv_mr *mr;
    struct pair p;

    /* an MR of the parent domain serves a QP of the PD */
    pair_connect(&p, IBV_QPT_RC);
    attr.pd = p.a.pd;
    parent = ibv_alloc_parent_domain(p.a.context, &attr);
    if (!parent && errno == EOPNOTSUPP)
        skip_because("no parent domains");
    assert_non_null(parent);
    mr = ibv_reg_mr(parent, p.a.buf, p.a.attr.size, IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(mr);
    p.a.lkey = mr->lkey;
    pair_marker(&p.a, &p.b);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    pair_close(&p);
}

static void open_device_gives_independent_contexts(void **state)
{
    struct ibv_context *one = open_the_device(), *two = open_the_device();
    struct ibv_pd *pd_of_one = ibv_alloc_pd(one);

    assert_ptr_not_equal(one, two);
    assert_int_not_equal(one->async_fd, two->async_fd);
    assert_true(one->num_comp_vectors >= 1);
    assert_true(one->cmd_fd >= 0);
    assert_int_equal(ibv_close_device(two), 0);
    assert_int_equal(ibv_dealloc_pd(pd_of_one), 0);
    assert_int_equal(ibv_close_device(one), 0);
}

static void create_ah_checks_its_attributes(void **state)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = TEST_PORT}, bad;
    struct ibv_port_attr port;
    struct ibv_ah *ah;

    open_all();
    assert_int_equal(ibv_query_gid(context, TEST_PORT, 0, &attr.grh.dgid), 0);
    assert_int_equal(ibv_query_port(context, TEST_PORT, &port), 0);
    bad = attr;
    bad.is_global = 0;
    assert_refused(ibv_create_ah(pd, &bad), EINVAL);
    bad = attr;
    bad.port_num = 0;
    assert_refused(ibv_create_ah(pd, &bad), EINVAL);
    bad.port_num = (uint8_t)(device.phys_port_cnt + 1);
    assert_refused(ibv_create_ah(pd, &bad), EINVAL);
    bad = attr;
    bad.grh.sgid_index = (uint8_t)port.gid_tbl_len;
    assert_refused(ibv_create_ah(pd, &bad), EINVAL);
    /* these mean nothing on Ethernet and are accepted */
    attr.dlid = 0xc123;
    attr.src_path_bits = 3;
    attr.static_rate = IBV_RATE_100_GBPS;
    attr.sl = 5;
    attr.grh.hop_limit = 0;
    attr.grh.traffic_class = 0x20;
    attr.grh.flow_label = 0x12345;
    ah = ibv_create_ah(pd, &attr);
    assert_non_null(ah);
    assert_ptr_equal(ah->pd, pd);
    assert_ptr_equal(ah->context, context);
    assert_int_equal(ibv_destroy_ah(ah), 0);
    close_all();
}

static void create_ah_refuses_an_empty_gid_entry(void **state)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = TEST_PORT};
    struct ibv_port_attr port;
    static const union ibv_gid none;
    bool found = false;

    open_all();
    assert_int_equal(ibv_query_gid(context, TEST_PORT, 0, &attr.grh.dgid), 0);
    assert_int_equal(ibv_query_port(context, TEST_PORT, &port), 0);
    for (int i = 0; i < port.gid_tbl_len && !found; i++) {
        union ibv_gid gid;

        assert_int_equal(ibv_query_gid(context, TEST_PORT, i, &gid), 0);
        found = !memcmp(&gid, &none, sizeof gid);
        attr.grh.sgid_index = (uint8_t)i;
    }
    assert_true(found); /* compatibility.md §5.1: at least one index is empty */
    assert_refused(ibv_create_ah(pd, &attr), EINVAL);
    close_all();
}

/* §1.5 */

static struct ibv_cq *qp_cq;

static struct ibv_qp_init_attr qp_attr(void)
{
    open_all();
    qp_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    assert_non_null(qp_cq);
    return (struct ibv_qp_init_attr){
        .qp_type = IBV_QPT_RC,
        .send_cq = qp_cq,
        .recv_cq = qp_cq,
        .cap = {.max_send_wr = 10,
                .max_recv_wr = 11,
                .max_send_sge = 2,
                .max_recv_sge = 3,
                .max_inline_data = 17},
    };
}

static void qp_done(void)
{
    assert_int_equal(ibv_destroy_cq(qp_cq), 0);
    close_all();
}

static void create_qp_returns_granted_caps_and_fills_the_handle(void **state)
{
    struct ibv_qp_init_attr init = qp_attr(), queried;
    struct ibv_qp_attr attr;
    struct ibv_qp *qp;

    init.qp_context = &init;
    qp = ibv_create_qp(pd, &init);
    assert_non_null(qp);
    assert_true(init.cap.max_send_wr >= 10);
    assert_true(init.cap.max_recv_wr >= 11);
    assert_true(init.cap.max_send_sge >= 2);
    assert_true(init.cap.max_recv_sge >= 3);
    assert_true(init.cap.max_inline_data >= 17);
    assert_int_equal(qp->state, IBV_QPS_RESET);
    assert_int_equal(qp->qp_type, IBV_QPT_RC);
    assert_ptr_equal(qp->pd, pd);
    assert_ptr_equal(qp->context, context);
    assert_ptr_equal(qp->send_cq, qp_cq);
    assert_ptr_equal(qp->recv_cq, qp_cq);
    assert_null(qp->srq);
    assert_ptr_equal(qp->qp_context, &init);
    assert_int_equal(qp->events_completed, 0);
    assert_int_equal(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &queried), 0);
    assert_int_equal(attr.qp_state, IBV_QPS_RESET);
    assert_int_equal(attr.cur_qp_state, IBV_QPS_RESET);
    assert_memory_equal(&attr.cap, &init.cap, sizeof init.cap);
    assert_memory_equal(&queried.cap, &init.cap, sizeof init.cap);
    assert_ptr_equal(queried.send_cq, qp_cq);
    assert_ptr_equal(queried.qp_context, &init);
    assert_int_equal(queried.qp_type, IBV_QPT_RC);
    assert_null(ibv_qp_to_qp_ex(qp));
    assert_int_equal(ibv_destroy_qp(qp), 0);
    qp_done();
}

static void create_qp_refuses_caps_over_the_device_limits(void **state)
{
    const struct ibv_qp_init_attr good = qp_attr();
    struct ibv_qp_init_attr init;

    init = good;
    init.cap.max_send_wr = (uint32_t)device.max_qp_wr + 1;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    init = good;
    init.cap.max_recv_wr = (uint32_t)device.max_qp_wr + 1;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    init = good;
    init.cap.max_send_sge = (uint32_t)device.max_sge + 1;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    init = good;
    init.cap.max_recv_sge = (uint32_t)device.max_sge + 1;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    init = good;
    init.cap.max_inline_data = 1u << 30;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    qp_done();
}

static void create_qp_grants_the_device_limits(void **state)
{
    struct ibv_qp_init_attr init = qp_attr();
    struct ibv_qp *qp;

    init.cap.max_send_wr = init.cap.max_recv_wr = (uint32_t)device.max_qp_wr;
    qp = ibv_create_qp(pd, &init);
    assert_non_null(qp);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    /* compatibility.md §5: all SGEs with 1024 requests */
    init.cap.max_send_wr = init.cap.max_recv_wr = 1024;
    init.cap.max_send_sge = init.cap.max_recv_sge = (uint32_t)device.max_sge;
    qp = ibv_create_qp(pd, &init);
    assert_non_null(qp);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    qp_done();
}

static void create_qp_needs_a_pd_and_its_cqs(void **state)
{
    const struct ibv_qp_init_attr good = qp_attr();
    struct ibv_qp_init_attr_ex ex = {
        .qp_type = IBV_QPT_RC, .send_cq = qp_cq, .recv_cq = qp_cq, .cap = good.cap};
    struct ibv_qp_init_attr init;

    assert_refused(ibv_create_qp_ex(context, &ex), EINVAL);
    init = good;
    init.send_cq = NULL;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    init = good;
    init.recv_cq = NULL;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    qp_done();
}

static void create_qp_accepts_no_recv_cq_without_a_receive_queue(void **state)
{
    struct ibv_qp_init_attr init = qp_attr();
    struct ibv_qp *qp;

    init.recv_cq = NULL;
    init.cap.max_recv_wr = 0;
    qp = ibv_create_qp(pd, &init);
    assert_non_null(qp);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    qp_done();
}

static void create_qp_refuses_objects_of_another_context(void **state)
{
    struct ibv_qp_init_attr init = qp_attr();
    struct ibv_context *other = open_the_device();
    struct ibv_cq *cq = ibv_create_cq(other, 4, NULL, NULL, 0);

    assert_non_null(cq);
    init.recv_cq = cq;
    assert_refused(ibv_create_qp(pd, &init), EINVAL);
    assert_int_equal(ibv_destroy_cq(cq), 0);
    ibv_close_device(other);
    qp_done();
}

static void posting_to_a_queue_of_size_0_is_enomem(void **state)
{
    struct ibv_qp_init_attr init = qp_attr();
    struct ibv_recv_wr recv = {0}, *bad_recv;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = TEST_PORT};
    struct ibv_qp *qp;

    memset(&init.cap, 0, sizeof init.cap);
    qp = ibv_create_qp(pd, &init);
    assert_non_null(qp);
    assert_int_equal(
        ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), 0);
    attr.qp_state = IBV_QPS_ERR;
    assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    /* a library may grant more than nothing: then there is room */
    if (!init.cap.max_recv_wr)
        assert_int_equal(ibv_post_recv(qp, &recv, &bad_recv), ENOMEM);
    if (!init.cap.max_send_wr)
        assert_int_equal(ibv_post_send(qp, &send, &bad_send), ENOMEM);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    qp_done();
}

static void a_qp_with_an_srq_has_no_receive_queue(void **state)
{
    struct ibv_qp_init_attr init = qp_attr();
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_recv_wr recv = {0}, *bad;
    struct ibv_qp *qp;

    init.srq = ibv_create_srq(pd, &srq_attr);
    assert_non_null(init.srq);
    init.cap.max_recv_wr = 1u << 30;
    init.cap.max_recv_sge = 1u << 30;
    qp = ibv_create_qp(pd, &init);
    assert_non_null(qp);
    assert_int_equal(init.cap.max_recv_wr, 0);
    assert_int_equal(init.cap.max_recv_sge, 0);
    assert_ptr_equal(qp->srq, init.srq);
    assert_int_equal(ibv_post_recv(qp, &recv, &bad), EINVAL);
    assert_ptr_equal(bad, &recv);
    assert_int_equal(ibv_destroy_qp(qp), 0);
    assert_int_equal(ibv_destroy_srq(init.srq), 0);
    qp_done();
}

static void create_qp_refuses_types_that_it_does_not_have(void **state)
{
    struct ibv_qp_init_attr init = qp_attr();

    init.qp_type = IBV_QPT_DRIVER;
    errno = 0;
    assert_null(ibv_create_qp(pd, &init));
    assert_true(errno == EOPNOTSUPP || errno == EINVAL);
    init.qp_type = (enum ibv_qp_type)77;
    errno = 0;
    assert_null(ibv_create_qp(pd, &init));
    assert_true(errno == EOPNOTSUPP || errno == EINVAL);
    init.qp_type = IBV_QPT_XRC_RECV; /* not through this verb */
    errno = 0;
    assert_null(ibv_create_qp(pd, &init));
    assert_true(errno == EOPNOTSUPP || errno == EINVAL);
    qp_done();
}

static void create_qp_ex_refuses_unknown_bits_and_ops_that_the_type_lacks(void **state)
{
    const struct ibv_qp_init_attr good = qp_attr();
    const struct ibv_qp_init_attr_ex plain = {
        .qp_type = IBV_QPT_RC,
        .send_cq = qp_cq,
        .recv_cq = qp_cq,
        .cap = good.cap,
        .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
    };
    struct ibv_qp_init_attr_ex ex = plain;

    ex.comp_mask |= 1u << 30;
    assert_refused(ibv_create_qp_ex(context, &ex), EINVAL);
    ex = plain;
    ex.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
    ex.create_flags = 1u << 30;
    errno = 0;
    assert_null(ibv_create_qp_ex(context, &ex));
    assert_true(errno == EOPNOTSUPP || errno == EINVAL);
    ex = plain;
    ex.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
    assert_refused(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
    ex.qp_type = IBV_QPT_UC;
    ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
    assert_refused(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
    ex.qp_type = IBV_QPT_UD;
    ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    assert_refused(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
    qp_done();
}

static void create_qp_ex_with_only_a_pd_is_create_qp(void **state)
{
    const struct ibv_qp_init_attr good = qp_attr();
    struct ibv_qp_init_attr_ex ex = {
        .qp_type = IBV_QPT_UC,
        .send_cq = qp_cq,
        .recv_cq = qp_cq,
        .cap = good.cap,
        .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &ex);

    assert_non_null(qp);
    assert_true(ex.cap.max_send_wr >= good.cap.max_send_wr);
    assert_int_equal(qp->qp_type, IBV_QPT_UC);
    assert_null(ibv_qp_to_qp_ex(qp));
    assert_int_equal(ibv_destroy_qp(qp), 0);
    qp_done();
}

static void qps_of_all_contexts_and_sides_have_numbers_of_their_own(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    pair_open(&p, &attr, &attr);
    assert_int_not_equal(p.a.qp_num, p.b.qp_num);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_new_cq_is_initialised_and_holds_at_least_what_was_asked),
        TEST(create_cq_refuses_a_size_outside_1_to_max_cqe),
        TEST(create_cq_refuses_a_comp_vector_that_does_not_exist),
        TEST(create_cq_refuses_a_channel_of_another_context),
        TEST(create_cq_ex_refuses_unknown_bits),
        TEST(create_srq_updates_its_attributes_with_what_was_granted),
        TEST(create_srq_refuses_what_is_over_the_limits),
        TEST(create_srq_ex_needs_a_pd_and_knows_its_bits),
        TEST(alloc_mw_knows_types_1_and_2),
        TEST(alloc_td_refuses_a_comp_mask),
        TEST(alloc_parent_domain_needs_a_pd_and_knows_its_bits),
        TEST(parent_domain_has_the_identity_of_its_pd),
        TEST(open_device_gives_independent_contexts),
        TEST(create_ah_checks_its_attributes),
        TEST(create_ah_refuses_an_empty_gid_entry),
        TEST(create_qp_returns_granted_caps_and_fills_the_handle),
        TEST(create_qp_refuses_caps_over_the_device_limits),
        TEST(create_qp_grants_the_device_limits),
        TEST(create_qp_needs_a_pd_and_its_cqs),
        TEST(create_qp_accepts_no_recv_cq_without_a_receive_queue),
        TEST(create_qp_refuses_objects_of_another_context),
        TEST(posting_to_a_queue_of_size_0_is_enomem),
        TEST(a_qp_with_an_srq_has_no_receive_queue),
        TEST(create_qp_refuses_types_that_it_does_not_have),
        TEST(create_qp_ex_refuses_unknown_bits_and_ops_that_the_type_lacks),
        TEST(create_qp_ex_with_only_a_pd_is_create_qp),
        TEST(qps_of_all_contexts_and_sides_have_numbers_of_their_own),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
