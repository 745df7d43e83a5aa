/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §7.1 to §7.3: receive work queues and indirection tables, as the pages of ibv_create_wq,
 * ibv_modify_wq and ibv_create_rwq_ind_table promise them. What they receive comes by way of RSS QPs
 * (rss.c). */
#include "threads.h"
#include "work.h"

#include <poll.h>
#include <stdlib.h>

enum { WRS = 8, SGES = 2 };

static struct ibv_wq_init_attr init_of(const struct end *end)
{
    return (struct ibv_wq_init_attr){.wq_context = (void *)(uintptr_t)0x77,
                                     .wq_type = IBV_WQT_RQ,
                                     .max_wr = WRS,
                                     .max_sge = SGES,
                                     .pd = end->pd,
                                     .cq = end->recv_cq};
}

static void open_near(struct end *end)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);

    end_open(end, NEAR, &attr);
}

static struct ibv_wq *make_wq(struct end *end)
{
    struct ibv_wq_init_attr init = init_of(end);
    struct ibv_wq *wq = ibv_create_wq(end->context, &init);

    CHECK(wq, "ibv_create_wq: %s", strerror(errno));
    return wq;
}

static int to_state(struct ibv_wq *wq, enum ibv_wq_state state)
{
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state};

    return ibv_modify_wq(wq, &attr);
}

static struct ibv_wq *make_wq_in(struct end *end, enum ibv_wq_state state)
{
    struct ibv_wq *wq = make_wq(end);

    if (state != IBV_WQS_RESET)
        CHECK_ZERO(to_state(wq, IBV_WQS_RDY));
    if (state == IBV_WQS_ERR)
        CHECK_ZERO(to_state(wq, IBV_WQS_ERR));
    return wq;
}

static int post(struct ibv_wq *wq, const struct end *end, uint64_t id)
{
    struct recv recv = a_recv(end, id, 0, 64);
    struct ibv_recv_wr *bad = NULL;
    int error;

    recv.wr.sg_list = recv.sge;
    error = ibv_post_wq_recv(wq, &recv.wr, &bad);
    CHECK(!error || bad == &recv.wr, "bad_wr is not the request that failed");
    return error;
}

static struct ibv_rwq_ind_table *make_table(struct end *end, struct ibv_wq **wqs, uint32_t log_size)
{
    struct ibv_rwq_ind_table_init_attr init = {.log_ind_tbl_size = log_size, .ind_tbl = wqs};
    struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(end->context, &init);

    CHECK(table, "ibv_create_rwq_ind_table: %s", strerror(errno));
    return table;
}

/* --- creation ------------------------------------------------------------------------------------- */

static void create_wq_fills_the_handle(void **state)
{
    struct ibv_wq *wq, *other;
    struct end end;

    open_near(&end);
    wq = make_wq(&end);
    other = make_wq(&end);
    assert_ptr_equal(wq->context, end.context);
    assert_ptr_equal(wq->wq_context, (void *)(uintptr_t)0x77);
    assert_ptr_equal(wq->pd, end.pd);
    assert_ptr_equal(wq->cq, end.recv_cq);
    assert_int_equal(wq->state, IBV_WQS_RESET);
    assert_int_equal(wq->wq_type, IBV_WQT_RQ);
    assert_int_equal(wq->events_completed, 0);
    /* a number that neither a WQ nor a QP of the process has: completions tell by it whose they are */
    assert_int_not_equal(wq->wq_num, other->wq_num);
    assert_int_not_equal(wq->wq_num, end.qp_num);
    assert_int_equal(wq->wq_num >> 24, 0);
    CHECK_ZERO(ibv_destroy_wq(other));
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void max_wr_and_max_sge_are_updated_and_never_below_what_was_asked(void **state)
{
    static const struct {
        uint32_t wr, sge;
    } asked[] = {{1, 0}, {1, 1}, {3, 1}, {100, 5}, {WRS, SGES}};
    struct ibv_device_attr device;
    struct end end;

    open_near(&end);
    CHECK_ZERO(ibv_query_device(end.context, &device));
    for (size_t i = 0; i <= COUNT(asked); i++) {
        struct ibv_wq_init_attr init = init_of(&end);
        const uint32_t wr = i < COUNT(asked) ? asked[i].wr : (uint32_t)device.max_qp_wr;
        const uint32_t sge = i < COUNT(asked) ? asked[i].sge : (uint32_t)device.max_sge;
        struct ibv_wq *wq;

        init.max_wr = wr;
        init.max_sge = sge;
        wq = ibv_create_wq(end.context, &init);
        CHECK(wq, "%u requests of %u SGEs: %s", wr, sge, strerror(errno));
        assert_true(init.max_wr >= wr);
        assert_true(init.max_sge >= sge);
        /* what was granted is there: exactly so many can be posted */
        CHECK_ZERO(to_state(wq, IBV_WQS_RDY));
        for (uint32_t posted = 0; posted < init.max_wr; posted++)
            CHECK_ZERO(post(wq, &end, posted));
        assert_int_equal(post(wq, &end, 0), ENOMEM);
        CHECK_ZERO(ibv_destroy_wq(wq));
    }
    end_close(&end);
}

static void create_wq_refuses_what_is_not_legal(void **state)
{
    struct ibv_device_attr device;
    struct end end, stranger;

    open_near(&end);
    open_near(&stranger);
    CHECK_ZERO(ibv_query_device(end.context, &device));
    {
        struct ibv_wq_init_attr bad[9];

        for (size_t i = 0; i < COUNT(bad); i++)
            bad[i] = init_of(&end);
        bad[0].wq_type = (enum ibv_wq_type)1;
        bad[1].pd = NULL;
        bad[2].cq = NULL;
        bad[3].pd = stranger.pd;
        bad[4].cq = stranger.recv_cq;
        bad[5].max_wr = (uint32_t)device.max_qp_wr + 1;
        bad[6].max_sge = (uint32_t)device.max_sge + 1;
        bad[7].max_wr = 0;
        bad[8].comp_mask = IBV_WQ_INIT_ATTR_RESERVED;
        for (size_t i = 0; i < COUNT(bad); i++) {
            errno = 0;
            CHECK(!ibv_create_wq(end.context, &bad[i]), "case %zu succeeded", i);
            CHECK(errno == EINVAL, "case %zu: %s", i, strerror(errno));
        }
    }
    end_close(&stranger); /* nothing of it is in use */
    end_close(&end);
}

static void create_wq_takes_every_flag_that_the_device_reports(void **state)
{
    static const struct {
        uint32_t flag, cap;
    } flags[] = {
        {IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_RAW_PACKET_CAP_CVLAN_STRIPPING},
        {IBV_WQ_FLAGS_SCATTER_FCS, IBV_RAW_PACKET_CAP_SCATTER_FCS},
        {IBV_WQ_FLAGS_DELAY_DROP, IBV_RAW_PACKET_CAP_DELAY_DROP},
        {IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, 0},
    };
    struct ibv_device_attr_ex device;
    uint32_t all = 0;
    struct end end;

    open_near(&end);
    CHECK_ZERO(ibv_query_device_ex(end.context, NULL, &device));
    for (size_t i = 0; i <= COUNT(flags); i++) {
        struct ibv_wq_init_attr init = init_of(&end);
        bool there = i == COUNT(flags) ? true
                     : flags[i].cap    ? (device.raw_packet_caps & flags[i].cap) != 0
                                       : (device.device_cap_flags_ex & IBV_DEVICE_PCI_WRITE_END_PADDING) != 0;
        struct ibv_wq *wq;

        init.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
        init.create_flags = i == COUNT(flags) ? all : flags[i].flag;
        wq = ibv_create_wq(end.context, &init);
        if (!there) {
            assert_null(wq);
            assert_int_equal(errno, EOPNOTSUPP);
            continue;
        }
        CHECK(wq, "flags 0x%x: %s", init.create_flags, strerror(errno));
        all |= init.create_flags;
        CHECK_ZERO(ibv_destroy_wq(wq));
    }
    end_close(&end);
}

static void a_flag_that_does_not_exist_is_eopnotsupp_and_none_counts_without_its_mask(void **state)
{
    struct ibv_wq_init_attr init;
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    init = init_of(&end);
    init.create_flags = IBV_WQ_FLAGS_RESERVED;
    init.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
    assert_null(ibv_create_wq(end.context, &init));
    assert_int_equal(errno, EOPNOTSUPP);
    init.comp_mask = 0;
    wq = ibv_create_wq(end.context, &init);
    assert_non_null(wq);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void the_device_reports_wqs_and_tables_and_no_hashing_yet(void **state)
{
    struct ibv_device_attr_ex device;
    struct end end;

    open_near(&end);
    CHECK_ZERO(ibv_query_device_ex(end.context, NULL, &device));
    assert_true(device.max_wq_type_rq > 0);
    assert_true(device.rss_caps.max_rwq_indirection_tables > 0);
    assert_true(device.rss_caps.max_rwq_indirection_table_size > 0);
    /* what a QP type of these must be able to do is told together with it */
    assert_int_equal(!device.rss_caps.supported_qpts, !device.rss_caps.rx_hash_function);
    assert_int_equal(!device.rss_caps.supported_qpts, !device.rss_caps.rx_hash_fields_mask);
    end_close(&end);
}

/* --- states --------------------------------------------------------------------------------------- */

static void exactly_the_transitions_of_the_matrix_are_legal(void **state)
{
    static const bool legal[3][3] = {
        [IBV_WQS_RESET] = {[IBV_WQS_RESET] = true, [IBV_WQS_RDY] = true},
        [IBV_WQS_RDY] = {[IBV_WQS_RESET] = true, [IBV_WQS_ERR] = true},
        [IBV_WQS_ERR] = {[IBV_WQS_RESET] = true},
    };
    struct end end;

    open_near(&end);
    for (enum ibv_wq_state from = IBV_WQS_RESET; from <= IBV_WQS_ERR; from++) {
        for (enum ibv_wq_state to = IBV_WQS_RESET; to <= IBV_WQS_UNKNOWN; to++) {
            struct ibv_wq *wq = make_wq_in(&end, from);
            const bool good = to <= IBV_WQS_ERR && legal[from][to];

            CHECK(to_state(wq, to) == (good ? 0 : EINVAL), "from %d to %d", from, to);
            assert_int_equal(wq->state, good ? to : from);
            CHECK_ZERO(ibv_destroy_wq(wq)); /* in any state */
        }
    }
    end_close(&end);
}

static void a_wrong_current_state_is_einval_and_changes_nothing(void **state)
{
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE,
                               .wq_state = IBV_WQS_ERR,
                               .curr_wq_state = IBV_WQS_RESET};
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    assert_int_equal(ibv_modify_wq(wq, &attr), EINVAL);
    assert_int_equal(wq->state, IBV_WQS_RDY);
    attr.curr_wq_state = IBV_WQS_RDY;
    assert_int_equal(ibv_modify_wq(wq, &attr), 0);
    assert_int_equal(wq->state, IBV_WQS_ERR);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void modify_wq_refuses_unknown_bits(void **state)
{
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_RESERVED,
                               .wq_state = IBV_WQS_RDY};
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq(&end);
    assert_int_equal(ibv_modify_wq(wq, &attr), EINVAL);
    assert_int_equal(wq->state, IBV_WQS_RESET);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void vlan_stripping_is_changed_in_rdy_and_no_other_flag_ever(void **state)
{
    struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_FLAGS,
                               .flags = IBV_WQ_FLAGS_CVLAN_STRIPPING,
                               .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING};
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq(&end);
    assert_int_equal(ibv_modify_wq(wq, &attr), EINVAL); /* in RESET */
    attr.attr_mask |= IBV_WQ_ATTR_STATE;
    attr.wq_state = IBV_WQS_RDY;
    assert_int_equal(ibv_modify_wq(wq, &attr), 0);
    attr.attr_mask = IBV_WQ_ATTR_FLAGS;
    attr.flags = 0;
    assert_int_equal(ibv_modify_wq(wq, &attr), 0);
    attr.flags_mask = IBV_WQ_FLAGS_SCATTER_FCS;
    assert_int_equal(ibv_modify_wq(wq, &attr), EOPNOTSUPP);
    attr.flags_mask = IBV_WQ_FLAGS_RESERVED;
    assert_int_equal(ibv_modify_wq(wq, &attr), EINVAL);
    assert_int_equal(wq->state, IBV_WQS_RDY);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

/* --- receives ------------------------------------------------------------------------------------- */

static void posting_in_reset_is_einval(void **state)
{
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq(&end);
    assert_int_equal(post(wq, &end, 1), EINVAL);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void posting_obeys_the_bad_wr_rule(void **state)
{
    struct recv recvs[3];
    struct ibv_recv_wr *bad = NULL;
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    for (unsigned int i = 0; i < COUNT(recvs); i++) {
        recvs[i] = a_recv(&end, i, 0, 64);
        recvs[i].wr.sg_list = recvs[i].sge;
        recvs[i].wr.next = i + 1 < COUNT(recvs) ? &recvs[i + 1].wr : NULL;
    }
    recvs[1].wr.num_sge = SGES + 1;
    assert_int_equal(ibv_post_wq_recv(wq, &recvs[0].wr, &bad), EINVAL);
    assert_ptr_equal(bad, &recvs[1].wr);
    /* the one before stayed posted */
    CHECK_ZERO(to_state(wq, IBV_WQS_ERR));
    check_status(&(struct ibv_wc[]){end_wc(&end, RQ)}[0], 0, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_poll_once(&end, RQ, (struct ibv_wc[1]){0}, 1), 0);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void to_error_flushes_the_posted_receives_in_order(void **state)
{
    struct ibv_wc wc[WRS];
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    for (uint64_t i = 0; i < WRS; i++)
        CHECK_ZERO(post(wq, &end, i));
    assert_int_equal(end_poll_once(&end, RQ, wc, 1), 0);
    CHECK_ZERO(to_state(wq, IBV_WQS_ERR));
    end_poll(&end, RQ, wc, WRS);
    for (unsigned int i = 0; i < WRS; i++) {
        check_status(&wc[i], i, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(wc[i].qp_num, wq->wq_num);
    }
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void posts_in_error_are_accepted_and_flushed(void **state)
{
    struct ibv_wq *wq;
    struct ibv_wc wc;
    struct end end;

    open_near(&end);
    wq = make_wq_in(&end, IBV_WQS_ERR);
    for (uint64_t i = 0; i < 3 * WRS; i++) {
        CHECK_ZERO(post(wq, &end, i));
        wc = end_wc(&end, RQ);
        check_status(&wc, i, IBV_WC_WR_FLUSH_ERR);
    }
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void reset_drops_receives_without_completions(void **state)
{
    struct ibv_wc wc;
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    for (uint64_t i = 0; i < WRS; i++)
        CHECK_ZERO(post(wq, &end, i));
    CHECK_ZERO(to_state(wq, IBV_WQS_RESET));
    CHECK_ZERO(to_state(wq, IBV_WQS_RDY));
    for (uint64_t i = 0; i < WRS; i++) /* there is room for all again */
        CHECK_ZERO(post(wq, &end, 100 + i));
    CHECK_ZERO(to_state(wq, IBV_WQS_ERR));
    wc = end_wc(&end, RQ);
    check_status(&wc, 100, IBV_WC_WR_FLUSH_ERR);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void ready_again_removes_completions_of_the_life_before(void **state)
{
    struct ibv_wq *wq, *other;
    struct ibv_wc wc;
    struct end end;

    open_near(&end);
    wq = make_wq_in(&end, IBV_WQS_ERR);
    other = make_wq_in(&end, IBV_WQS_ERR);
    CHECK_ZERO(post(wq, &end, 1));
    CHECK_ZERO(post(other, &end, 2));
    CHECK_ZERO(to_state(wq, IBV_WQS_RESET));
    CHECK_ZERO(to_state(wq, IBV_WQS_RDY));
    wc = end_wc(&end, RQ);
    check_status(&wc, 2, IBV_WC_WR_FLUSH_ERR); /* that of the other is still there */
    assert_int_equal(end_poll_once(&end, RQ, &wc, 1), 0);
    CHECK_ZERO(ibv_destroy_wq(other));
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

/* --- who holds whom ------------------------------------------------------------------------------- */

static void a_wq_holds_its_cq_and_its_pd(void **state)
{
    struct ibv_wq_init_attr init;
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_wq *wq;

    assert_non_null(pd);
    assert_non_null(cq);
    init = (struct ibv_wq_init_attr){.wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq};
    wq = ibv_create_wq(context, &init);
    assert_non_null(wq);
    assert_int_equal(ibv_destroy_cq(cq), EBUSY);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    CHECK_ZERO(to_state(wq, IBV_WQS_RDY)); /* nothing has changed for it */
    CHECK_ZERO(ibv_destroy_wq(wq));
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    assert_int_equal(ibv_close_device(context), 0);
}

static void a_refused_destroy_cq_leaves_its_wqs_alone(void **state)
{
    struct ibv_wq *wq;
    struct ibv_wc wc;
    struct end end;

    open_near(&end);
    end_close_qp(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    CHECK_ZERO(post(wq, &end, 1));
    assert_int_equal(ibv_destroy_cq(end.recv_cq), EBUSY);
    CHECK_ZERO(to_state(wq, IBV_WQS_ERR));
    wc = end_wc(&end, RQ);
    check_status(&wc, 1, IBV_WC_WR_FLUSH_ERR);
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void destroy_wq_discards_posted_receives_and_unpolled_completions(void **state)
{
    struct ibv_wc wc;
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    end_to_init(&end);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_ERR));
    wq = make_wq_in(&end, IBV_WQS_ERR);
    CHECK_ZERO(post(wq, &end, 1));
    end_recv(&end, a_recv(&end, 2, 0, 8)); /* of a QP on the same CQ */
    CHECK_ZERO(post(wq, &end, 3));
    CHECK_ZERO(ibv_destroy_wq(wq));
    wq = make_wq_in(&end, IBV_WQS_RDY);
    CHECK_ZERO(post(wq, &end, 4));
    CHECK_ZERO(ibv_destroy_wq(wq));
    wc = end_wc(&end, RQ);
    check_status(&wc, 2, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_poll_once(&end, RQ, &wc, 1), 0);
    end_close(&end);
}

static void destroy_wq_is_ebusy_while_a_table_uses_it(void **state)
{
    struct ibv_rwq_ind_table *one, *two;
    struct ibv_wq *wqs[2], *twice[4];
    struct end end;

    open_near(&end);
    wqs[0] = make_wq_in(&end, IBV_WQS_RDY);
    wqs[1] = make_wq(&end); /* in any state */
    twice[0] = twice[1] = twice[2] = wqs[0];
    twice[3] = wqs[1];
    one = make_table(&end, wqs, 1);
    two = make_table(&end, twice, 2);
    assert_int_equal(ibv_destroy_wq(wqs[0]), EBUSY);
    CHECK_ZERO(ibv_destroy_rwq_ind_table(one));
    assert_int_equal(ibv_destroy_wq(wqs[0]), EBUSY);
    assert_int_equal(ibv_destroy_wq(wqs[1]), EBUSY);
    /* nothing has changed for them */
    CHECK_ZERO(post(wqs[0], &end, 1));
    CHECK_ZERO(to_state(wqs[0], IBV_WQS_ERR));
    check_status(&(struct ibv_wc[]){end_wc(&end, RQ)}[0], 1, IBV_WC_WR_FLUSH_ERR);
    CHECK_ZERO(ibv_destroy_rwq_ind_table(two));
    CHECK_ZERO(ibv_destroy_wq(wqs[0])); /* the tables' end was not theirs */
    CHECK_ZERO(ibv_destroy_wq(wqs[1]));
    end_close(&end);
}

/* --- tables --------------------------------------------------------------------------------------- */

static void create_rwq_ind_table_fills_the_handle(void **state)
{
    struct ibv_rwq_ind_table *one, *two;
    struct ibv_wq *wq;
    struct end end;

    open_near(&end);
    wq = make_wq(&end);
    one = make_table(&end, &wq, 0); /* of one entry */
    two = make_table(&end, &wq, 0);
    assert_ptr_equal(one->context, end.context);
    assert_int_not_equal(one->ind_tbl_num, two->ind_tbl_num);
    CHECK_ZERO(ibv_destroy_rwq_ind_table(one));
    CHECK_ZERO(ibv_destroy_rwq_ind_table(two));
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static void the_largest_table_is_what_the_device_reports(void **state)
{
    struct ibv_rwq_ind_table_init_attr init = {0};
    struct ibv_device_attr_ex device;
    struct ibv_wq *wq, **entries;
    uint32_t size, log_size = 0;
    struct end end;

    open_near(&end);
    CHECK_ZERO(ibv_query_device_ex(end.context, NULL, &device));
    size = device.rss_caps.max_rwq_indirection_table_size;
    while (2u << log_size <= size)
        log_size++;
    wq = make_wq(&end);
    entries = calloc(2u << log_size, sizeof *entries);
    for (uint32_t i = 0; i < 2u << log_size; i++)
        entries[i] = wq;
    CHECK_ZERO(ibv_destroy_rwq_ind_table(make_table(&end, entries, log_size)));
    init.ind_tbl = entries;
    init.log_ind_tbl_size = log_size + 1;
    assert_null(ibv_create_rwq_ind_table(end.context, &init));
    assert_int_equal(errno, EINVAL);
    init.log_ind_tbl_size = 32;
    assert_null(ibv_create_rwq_ind_table(end.context, &init));
    assert_int_equal(errno, EINVAL);
    free(entries);
    CHECK_ZERO(ibv_destroy_wq(wq)); /* a refused table uses nothing */
    end_close(&end);
}

static void create_rwq_ind_table_refuses_what_is_not_legal(void **state)
{
    struct ibv_rwq_ind_table_init_attr init = {.log_ind_tbl_size = 1};
    struct ibv_wq *entries[2], *own, *foreign;
    struct end end, stranger;

    open_near(&end);
    open_near(&stranger);
    own = make_wq(&end);
    foreign = make_wq(&stranger);
    init.ind_tbl = entries;
    for (unsigned int i = 0; i < 3; i++) {
        entries[0] = own;
        entries[1] = i == 0 ? NULL : i == 1 ? foreign : own;
        init.comp_mask = i == 2 ? IBV_CREATE_IND_TABLE_RESERVED : 0;
        assert_null(ibv_create_rwq_ind_table(end.context, &init));
        assert_int_equal(errno, EINVAL);
    }
    CHECK_ZERO(ibv_destroy_wq(own));
    CHECK_ZERO(ibv_destroy_wq(foreign));
    end_close(&stranger);
    end_close(&end);
}

/* --- events --------------------------------------------------------------------------------------- */

/* A QP in ERR on the CQ of the WQ floods it. */
static void overrun_recv_cq(struct end *end)
{
    for (int i = 0; i <= end->recv_cq->cqe; i++)
        end_recv(end, a_recv(end, 1, 0, 8));
}

static void open_with_small_cq(struct end *end)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.recv_cqe = 1;
    end_open(end, NEAR, &attr);
    end_to_init(end);
    CHECK_ZERO(end_to_state(end, IBV_QPS_ERR));
}

/* Acknowledges all others. */
static struct ibv_async_event get_wq_fatal(const struct end *end, struct ibv_wq *wq)
{
    struct ibv_async_event event;

    for (;;) {
        CHECK(!ibv_get_async_event(end->context, &event), "ibv_get_async_event: %s", strerror(errno));
        if (event.event_type == IBV_EVENT_WQ_FATAL)
            break;
        ibv_ack_async_event(&event);
    }
    assert_ptr_equal(event.element.wq, wq);
    return event;
}

static void an_overrun_cq_is_fatal_to_its_wqs(void **state)
{
    struct ibv_wq *wq;
    struct ibv_async_event event;
    struct end end;

    open_with_small_cq(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    overrun_recv_cq(&end);
    event = get_wq_fatal(&end, wq);
    ibv_ack_async_event(&event);
    assert_int_equal(wq->events_completed, 1);
    /* it is in ERR: that is the only state it may leave for RESET alone */
    assert_int_equal(to_state(wq, IBV_WQS_ERR), EINVAL);
    CHECK_ZERO(to_state(wq, IBV_WQS_RESET));
    CHECK_ZERO(ibv_destroy_wq(wq));
    end_close(&end);
}

static int call_destroy_wq(void *wq)
{
    return ibv_destroy_wq(wq);
}

static void destroy_wq_waits_until_its_read_events_are_acked(void **state)
{
    struct ibv_async_event event;
    struct caller destroy;
    struct ibv_wq *wq;
    struct end end;

    open_with_small_cq(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    overrun_recv_cq(&end);
    event = get_wq_fatal(&end, wq);
    caller_start(&destroy, call_destroy_wq, wq);
    assert_true(caller_is_blocked(&destroy));
    assert_int_equal(ibv_destroy_cq(end.recv_cq), EBUSY); /* it is not gone yet */
    ibv_ack_async_event(&event);
    assert_int_equal(caller_finish(&destroy), 0);
    end_close(&end);
}

static void destroy_wq_drops_its_unread_events(void **state)
{
    struct pollfd ready;
    struct ibv_wq *wq;
    struct end end;

    open_with_small_cq(&end);
    wq = make_wq_in(&end, IBV_WQS_RDY);
    overrun_recv_cq(&end);
    end_expect_event(&end, IBV_EVENT_CQ_ERR); /* what comes next is the WQ's */
    ready = (struct pollfd){.fd = end.context->async_fd, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 60000), 1);
    CHECK_ZERO(ibv_destroy_wq(wq));
    assert_int_equal(poll(&ready, 1, 0), 0);
    end_close(&end);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(create_wq_fills_the_handle),
        TEST(max_wr_and_max_sge_are_updated_and_never_below_what_was_asked),
        TEST(create_wq_refuses_what_is_not_legal),
        TEST(create_wq_takes_every_flag_that_the_device_reports),
        TEST(a_flag_that_does_not_exist_is_eopnotsupp_and_none_counts_without_its_mask),
        TEST(the_device_reports_wqs_and_tables_and_no_hashing_yet),
        TEST(exactly_the_transitions_of_the_matrix_are_legal),
        TEST(a_wrong_current_state_is_einval_and_changes_nothing),
        TEST(modify_wq_refuses_unknown_bits),
        TEST(vlan_stripping_is_changed_in_rdy_and_no_other_flag_ever),
        TEST(posting_in_reset_is_einval),
        TEST(posting_obeys_the_bad_wr_rule),
        TEST(to_error_flushes_the_posted_receives_in_order),
        TEST(posts_in_error_are_accepted_and_flushed),
        TEST(reset_drops_receives_without_completions),
        TEST(ready_again_removes_completions_of_the_life_before),
        TEST(a_wq_holds_its_cq_and_its_pd),
        TEST(a_refused_destroy_cq_leaves_its_wqs_alone),
        TEST(destroy_wq_discards_posted_receives_and_unpolled_completions),
        TEST(destroy_wq_is_ebusy_while_a_table_uses_it),
        TEST(create_rwq_ind_table_fills_the_handle),
        TEST(the_largest_table_is_what_the_device_reports),
        TEST(create_rwq_ind_table_refuses_what_is_not_legal),
        TEST(an_overrun_cq_is_fatal_to_its_wqs),
        TEST(destroy_wq_waits_until_its_read_events_are_acked),
        TEST(destroy_wq_drops_its_unread_events),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
