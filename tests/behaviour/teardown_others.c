/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.2, the rest of the table: protection domains, MRs with windows, address handles, XRC
 * domains, and the context that is closed above everything. */
#include "work.h"

/* --- protection domains --------------------------------------------------------------------------- */

struct holders {
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    struct ibv_ah *ah;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_wq *wq;
};
enum { HOLDERS = 6 };

static struct holders hold(struct ibv_pd *pd, const struct end *with)
{
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = TEST_PORT, .grh.dgid = with->gid};
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_UD,
                                  .send_cq = with->send_cq,
                                  .recv_cq = with->recv_cq,
                                  .cap = {.max_send_wr = 1, .max_send_sge = 1}};
    struct ibv_wq_init_attr wq = {
        .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = with->recv_cq};
    const struct holders holders = {
        .mr = ibv_reg_mr(pd, with->buf, 4096, IBV_ACCESS_LOCAL_WRITE),
        .mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1),
        .ah = ibv_create_ah(pd, &ah),
        .srq = ibv_create_srq(pd, &srq),
        .qp = ibv_create_qp(pd, &qp),
        .wq = ibv_create_wq(pd->context, &wq),
    };

    CHECK(holders.mr && holders.mw && holders.ah && holders.srq && holders.qp && holders.wq,
          "an object cannot be made: %s", strerror(errno));
    return holders;
}

static void let_go(struct holders *holders, unsigned int which)
{
    switch (which) {
    case 0:
        CHECK_ZERO(ibv_dereg_mr(holders->mr));
        break;
    case 1:
        CHECK_ZERO(ibv_dealloc_mw(holders->mw));
        break;
    case 2:
        CHECK_ZERO(ibv_destroy_ah(holders->ah));
        break;
    case 3:
        CHECK_ZERO(ibv_destroy_srq(holders->srq));
        break;
    case 4:
        CHECK_ZERO(ibv_destroy_qp(holders->qp));
        break;
    default:
        CHECK_ZERO(ibv_destroy_wq(holders->wq));
        break;
    }
}

static void a_pd_is_ebusy_until_the_last_of_its_users_is_gone_in_any_order(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    end_open(&end, NEAR, &attr);
    for (unsigned int first = 0; first < HOLDERS; first++) {
        struct ibv_pd *pd = ibv_alloc_pd(end.context);
        struct holders holders;

        assert_non_null(pd);
        holders = hold(pd, &end);
        for (unsigned int i = 0; i < HOLDERS; i++) {
            assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
            let_go(&holders, (first + i) % HOLDERS);
        }
        assert_int_equal(ibv_dealloc_pd(pd), 0);
    }
    end_close(&end);
}

static void everything_of_a_pd_goes_on_after_a_refused_dealloc(void **state)
{
    struct pair p, q;

    pair_connect(&p, IBV_QPT_RC);
    pair_connect(&q, IBV_QPT_UD);
    assert_int_equal(ibv_dealloc_pd(p.a.pd), EBUSY);
    assert_int_equal(ibv_dealloc_pd(q.a.pd), EBUSY);
    pair_marker(&p.a, &p.b);
    pair_marker(&q.a, &q.b); /* by its address handle */
    end_fill(&p.a, 0, 4096, 1);
    end_send(&p.b, a_read(&p.b, 1, 0, 4096, &p.a, 0)); /* by its MR's key */
    end_expect_success(&p.b, SQ, 1, IBV_WC_RDMA_READ);
    end_expect_data(&p.b, 0, 4096, 1);
    pair_close(&q);
    pair_close(&p);
}

/* --- regions and windows -------------------------------------------------------------------------- */

static struct ibv_mw *bind(struct end *end, struct ibv_mr *mr, uint64_t id)
{
    struct ibv_mw *mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2);
    struct send send = {.wr = {.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}};

    CHECK(mw, "ibv_alloc_mw: %s", strerror(errno));
    send.wr.bind_mw.mw = mw;
    send.wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    send.wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = mr, .addr = (uintptr_t)end->buf, .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    end_send(end, send);
    end_expect_success(end, SQ, id, IBV_WC_BIND_MW);
    mw->rkey = send.wr.bind_mw.rkey;
    return mw;
}

/* By every way in which a window ends: deallocated, invalidated here, invalidated by the peer. */
static void an_mr_is_ebusy_until_its_last_window_is_unbound_in_whatever_way(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct send send;
    struct ibv_mw *mws[3];
    struct ibv_mr *mr;
    struct pair p;

    attr.mr_access |= IBV_ACCESS_MW_BIND;
    pair_connect_as(&p, &attr);
    mr = ibv_reg_mr(p.a.pd, p.a.buf, 8192, attr.mr_access);
    assert_non_null(mr);
    for (unsigned int i = 0; i < COUNT(mws); i++)
        mws[i] = bind(&p.a, mr, i);
    assert_int_equal(ibv_dereg_mr(mr), EBUSY);
    /* nothing has changed: neither the region nor the windows */
    for (unsigned int i = 0; i < COUNT(mws); i++) {
        end_fill(&p.b, 0, 64, i);
        send = a_write(&p.b, i, 0, 64, &p.a, 0);
        send.wr.wr.rdma.rkey = mws[i]->rkey;
        end_send(&p.b, send);
        end_expect_success(&p.b, SQ, i, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.a, 0, 64, i);
    }
    send = a_send(&p.a, 5, 0, 64);
    send.sge[0].lkey = mr->lkey;
    end_recv(&p.b, a_recv(&p.b, 5, 0, 64));
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 5, IBV_WC_SEND);

    CHECK_ZERO(ibv_dealloc_mw(mws[0]));
    assert_int_equal(ibv_dereg_mr(mr), EBUSY);
    send = (struct send){.wr = {.wr_id = 6, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}};
    send.wr.invalidate_rkey = mws[1]->rkey;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 6, IBV_WC_LOCAL_INV);
    assert_int_equal(ibv_dereg_mr(mr), EBUSY);
    send = a_send(&p.b, 7, 0, 8);
    send.wr.opcode = IBV_WR_SEND_WITH_INV;
    send.wr.invalidate_rkey = mws[2]->rkey;
    end_recv(&p.a, a_recv(&p.a, 7, 0, 64));
    end_send(&p.b, send);
    end_expect_success(&p.a, RQ, 7, IBV_WC_RECV);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    CHECK_ZERO(ibv_dealloc_mw(mws[1])); /* unbound, they outlive it */
    CHECK_ZERO(ibv_dealloc_mw(mws[2]));
    pair_close(&p);
}

static void requests_that_were_held_find_their_mr_gone(void **state)
{
    struct send send;
    struct ibv_mr *mr;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    mr = ibv_reg_mr(p.a.pd, p.a.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(mr);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_SQD));
    send = a_send(&p.a, 1, 0, 64);
    send.sge[0].lkey = mr->lkey;
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_send(&p.a, send);
    CHECK_ZERO(ibv_dereg_mr(mr)); /* no request keeps it */
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RTS));
    end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_PROT_ERR);
    pair_close(&p);
}

/* --- address handles ------------------------------------------------------------------------------ */

static void sends_that_were_held_outlive_their_address_handle(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    end_fill(&p.a, 0, 64, 1);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 256));
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_SQD));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 64, &p.b));
    CHECK_ZERO(ibv_destroy_ah(p.a.ah));
    p.a.ah = NULL;
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RTS));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
    end_expect_data(&p.b, 40, 64, 1);
    pair_close(&p);
}

/* --- XRC domains ---------------------------------------------------------------------------------- */

static void an_xrc_domain_is_ebusy_while_an_srq_or_a_qp_uses_it(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_xrcd_init_attr init = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                                      .fd = -1};
    struct ibv_srq_init_attr_ex srq_init = {
        .attr = {.max_wr = 1, .max_sge = 1},
        .comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
        .srq_type = IBV_SRQT_XRC,
    };
    struct ibv_qp_init_attr_ex qp_init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_xrcd *xrcd;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct end end;

    end_open(&end, NEAR, &attr);
    xrcd = ibv_open_xrcd(end.context, &init);
    assert_non_null(xrcd);
    srq_init.pd = end.pd;
    srq_init.xrcd = qp_init.xrcd = xrcd;
    srq_init.cq = end.recv_cq;
    srq = ibv_create_srq_ex(end.context, &srq_init);
    assert_non_null(srq);
    assert_int_equal(ibv_close_xrcd(xrcd), EBUSY);
    qp = ibv_create_qp_ex(end.context, &qp_init);
    assert_non_null(qp);
    CHECK_ZERO(ibv_destroy_srq(srq));
    assert_int_equal(ibv_close_xrcd(xrcd), EBUSY);
    CHECK_ZERO(ibv_destroy_qp(qp));
    assert_int_equal(ibv_close_xrcd(xrcd), 0);
    end_close(&end);
}

/* --- contexts ------------------------------------------------------------------------------------- */

static void close_device_with_everything_left_behind_silences_it_and_nothing_else(void **state)
{
    struct end_attr near = attr_of(IBV_QPT_RC), far = attr_of(IBV_QPT_RC);
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_wq *wq;
    struct holders holders;
    struct pair p, other;

    near.channel = true;
    near.srq_wr = 8;
    far.timeout = 8;
    far.retry_cnt = 2;
    pair_connect(&other, IBV_QPT_RC); /* another context of the same device */
    pair_open(&p, &near, &far);
    end_connect(&p.a, &p.b);
    holders = hold(p.a.pd, &p.a);
    wq = holders.wq;
    assert_non_null(ibv_create_rwq_ind_table(
        p.a.context, &(struct ibv_rwq_ind_table_init_attr){.log_ind_tbl_size = 0, .ind_tbl = &wq}));
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    CHECK_ZERO(ibv_modify_srq(p.a.srq, &limit, IBV_SRQ_LIMIT));
    CHECK_ZERO(ibv_req_notify_cq(p.a.recv_cq, 0));
    end_send(&p.b, a_send(&p.b, 1, 0, 64));
    end_expect_success(&p.b, SQ, 1, IBV_WC_SEND);
    assert_int_equal(ibv_close_device(p.a.context), 0);
    /* to its peer it has fallen silent, and its memory is the program's */
    end_fill(&p.b, 0, 4096, 2);
    fill_pattern(p.a.buf, 4096, 3);
    end_send(&p.b, a_write(&p.b, 2, 0, 4096, &p.a, 0));
    end_expect_status(&p.b, SQ, 2, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(find_difference(p.a.buf, 4096, 3), 4096);
    pair_marker(&other.a, &other.b);
    pair_marker(&other.b, &other.a);
    end_close(&p.b);
    /* and the device can be opened anew */
    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
    pair_close(&other);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_pd_is_ebusy_until_the_last_of_its_users_is_gone_in_any_order),
        TEST(everything_of_a_pd_goes_on_after_a_refused_dealloc),
        TEST(an_mr_is_ebusy_until_its_last_window_is_unbound_in_whatever_way),
        TEST(requests_that_were_held_find_their_mr_gone),
        TEST(sends_that_were_held_outlive_their_address_handle),
        TEST(an_xrc_domain_is_ebusy_while_an_srq_or_a_qp_uses_it),
        TEST(close_device_with_everything_left_behind_silences_it_and_nothing_else),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
