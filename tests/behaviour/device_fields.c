/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §10.2 to §10.4: what ibv_query_device_ex claims works up to what it says, and not beyond;
 * what it does not claim is refused. */
#include <fcntl.h>
#include <stdlib.h>

#include "work.h"

static struct end end;
static struct ibv_device_attr_ex ex;
static const struct ibv_device_attr *const base = &ex.orig_attr;

/* Something of each kind to make others with; two CQs, a QP in INIT. */
static void open_as(enum ibv_qp_type type)
{
    const struct end_attr attr = attr_of(type);

    end_open(&end, NEAR, &attr);
    CHECK_ZERO(ibv_query_device_ex(end.context, NULL, &ex));
    end_to_init(&end);
}

static void close_all(void)
{
    end_close(&end);
}

/* --- sizes ---------------------------------------------------------------------------------------------- */

static struct ibv_qp *try_qp(uint32_t send_wr, uint32_t recv_wr, uint32_t send_sge, uint32_t recv_sge)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end.send_cq,
        .recv_cq = end.recv_cq,
        .qp_type = IBV_QPT_RC,
        .cap = {send_wr, recv_wr, send_sge, recv_sge, 0},
    };

    return ibv_create_qp(end.pd, &init);
}

static void qps_are_as_large_as_is_said(void **state)
{
    struct ibv_qp *qp;
    uint32_t wr, sge;

    open_as(IBV_QPT_RC);
    wr = (uint32_t)base->max_qp_wr;
    sge = (uint32_t)base->max_sge;
    qp = try_qp(wr, wr, sge, sge);
    assert_non_null(qp);
    CHECK_ZERO(ibv_destroy_qp(qp));
    assert_refused(try_qp(wr + 1, wr, sge, sge), EINVAL);
    assert_refused(try_qp(wr, wr + 1, sge, sge), EINVAL);
    assert_refused(try_qp(wr, wr, sge + 1, sge), EINVAL);
    assert_refused(try_qp(wr, wr, sge, sge + 1), EINVAL);
    close_all();
}

static struct ibv_srq *try_srq(uint32_t max_wr, uint32_t max_sge)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};

    return ibv_create_srq(end.pd, &init);
}

static void cqs_and_srqs_are_as_large_as_is_said(void **state)
{
    struct ibv_srq_attr more;
    struct ibv_srq *srq;
    struct ibv_cq *cq;

    open_as(IBV_QPT_RC);
    cq = ibv_create_cq(end.context, base->max_cqe, NULL, NULL, 0);
    assert_non_null(cq);
    CHECK_ZERO(ibv_destroy_cq(cq));
    assert_refused(ibv_create_cq(end.context, base->max_cqe + 1, NULL, NULL, 0), EINVAL);
    srq = try_srq((uint32_t)base->max_srq_wr, (uint32_t)base->max_srq_sge);
    assert_non_null(srq);
    CHECK_ZERO(ibv_destroy_srq(srq));
    assert_refused(try_srq((uint32_t)base->max_srq_wr + 1, 1), EINVAL);
    assert_refused(try_srq(1, (uint32_t)base->max_srq_sge + 1), EINVAL);

    assert_true(base->device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
    srq = try_srq(16, 1);
    more.max_wr = (uint32_t)base->max_srq_wr;
    CHECK_ZERO(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR));
    more.max_wr = (uint32_t)base->max_srq_wr + 1;
    assert_int_equal(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR), EINVAL);
    CHECK_ZERO(ibv_destroy_srq(srq));
    close_all();
}

static struct ibv_srq *try_tags(uint32_t tags, uint32_t ops)
{
    struct ibv_srq_init_attr_ex init = {
        .attr = {.max_wr = 4, .max_sge = 1},
        .comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
        .srq_type = IBV_SRQT_TM,
        .pd = end.pd,
        .cq = end.recv_cq,
        .tm_cap = {.max_num_tags = tags, .max_ops = ops},
    };

    return ibv_create_srq_ex(end.context, &init);
}

static int add_tag(struct ibv_srq *srq, struct ibv_sge *sge, uint32_t count)
{
    struct ibv_ops_wr op = {
        .opcode = IBV_WR_TAG_ADD,
        .tm.add = {.sg_list = sge, .num_sge = (int)count, .tag = 1, .mask = ~0ull},
    };
    struct ibv_ops_wr *bad;

    return ibv_post_srq_ops(srq, &op, &bad);
}

static void tag_lists_are_as_long_as_is_said(void **state)
{
    struct ibv_sge sge[64];
    struct ibv_srq *srq;

    open_as(IBV_QPT_RC);
    assert_int_equal(ex.tm_caps.flags, IBV_TM_CAP_RC);
    assert_true(ex.tm_caps.max_rndv_hdr_size >= 32); /* the headers, TMH and RVH */
    srq = try_tags(ex.tm_caps.max_num_tags, ex.tm_caps.max_ops);
    assert_non_null(srq);
    assert_refused(try_tags(ex.tm_caps.max_num_tags + 1, 1), EINVAL);
    assert_refused(try_tags(1, ex.tm_caps.max_ops + 1), EINVAL);
    assert_true(ex.tm_caps.max_sge < COUNT(sge));
    for (size_t i = 0; i < COUNT(sge); i++)
        sge[i] = (struct ibv_sge){(uintptr_t)end.buf, 8, end.lkey};
    assert_int_equal(add_tag(srq, sge, ex.tm_caps.max_sge + 1), EINVAL);
    for (uint32_t i = 0; i < ex.tm_caps.max_num_tags; i++)
        CHECK_ZERO(add_tag(srq, sge, ex.tm_caps.max_sge));
    assert_int_equal(add_tag(srq, sge, 1), ENOMEM);
    CHECK_ZERO(ibv_destroy_srq(srq));
    close_all();
}

static void device_memory_and_regions_are_as_large_as_is_said(void **state)
{
    struct ibv_alloc_dm_attr attr = {0};
    struct ibv_dm *dm;
    struct ibv_mr *mr;

    open_as(IBV_QPT_RC);
    attr.length = ex.max_dm_size;
    dm = ibv_alloc_dm(end.context, &attr);
    assert_non_null(dm);
    CHECK_ZERO(ibv_free_dm(dm));
    attr.length = ex.max_dm_size + 1;
    errno = 0;
    assert_null(ibv_alloc_dm(end.context, &attr));
    assert_true(errno == EINVAL || errno == ENOMEM);
    assert_true(base->max_mr_size == UINT64_MAX);
    mr = ibv_reg_mr(end.pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(mr);
    CHECK_ZERO(ibv_dereg_mr(mr));
    close_all();
}

/* The rest of the numbers are of objects in all; one more than 2^16 of each would take long. */
static void what_there_is_none_of_is_zero(void **state)
{
    open_as(IBV_QPT_RC);
    assert_int_equal(base->max_ee, 0);
    assert_int_equal(base->max_rdd, 0);
    assert_int_equal(base->max_ee_rd_atom, 0);
    assert_int_equal(base->max_ee_init_rd_atom, 0);
    assert_int_equal(base->max_raw_ipv6_qp, 0);
    assert_int_equal(base->max_fmr, 0);
    assert_int_equal(base->max_map_per_fmr, 0);
    assert_int_equal(ex.comp_mask, 0);
    /* No PCI function: there are none that it could ask for of the host's memory. */
    assert_int_equal(ex.pci_atomic_caps.fetch_add, 0);
    assert_int_equal(ex.pci_atomic_caps.swap, 0);
    assert_int_equal(ex.pci_atomic_caps.compare_swap, 0);
    assert_int_equal(base->atomic_cap, IBV_ATOMIC_GLOB);
    assert_true(base->page_size_cap & 4096);
    assert_true(base->max_raw_ethy_qp > 0);
    assert_int_equal(base->max_res_rd_atom, base->max_qp * base->max_qp_rd_atom);
    close_all();
}

/* --- connections ---------------------------------------------------------------------------------------- */

static void depths_of_reads_are_what_is_said(void **state)
{
    struct ibv_qp_attr attr;
    int mask;

    open_as(IBV_QPT_RC);
    mask = attr_for_rtr(&end, &end, &attr);
    attr.max_dest_rd_atomic = (uint8_t)(base->max_qp_rd_atom + 1);
    assert_int_equal(end_modify(&end, &attr, mask), EINVAL);
    attr.max_dest_rd_atomic = (uint8_t)base->max_qp_rd_atom;
    CHECK_ZERO(end_modify(&end, &attr, mask));
    mask = attr_for_rts(&end, &attr);
    attr.max_rd_atomic = (uint8_t)(base->max_qp_init_rd_atom + 1);
    assert_int_equal(end_modify(&end, &attr, mask), EINVAL);
    attr.max_rd_atomic = (uint8_t)base->max_qp_init_rd_atom;
    CHECK_ZERO(end_modify(&end, &attr, mask));
    close_all();
}

static void a_read_has_as_many_sges_as_is_said(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_sge sge[64];
    struct ibv_send_wr wr, *bad;
    struct pair p;

    open_as(IBV_QPT_RC);
    close_all();
    assert_true(base->max_sge_rd > 0 && base->max_sge_rd <= base->max_sge &&
                base->max_sge_rd <= (int)COUNT(sge));
    attr.cap.max_send_sge = (uint32_t)base->max_sge;
    pair_connect_as(&p, &attr);
    end_fill(&p.b, 0, 8 * COUNT(sge), 5);
    for (size_t i = 0; i < COUNT(sge); i++)
        sge[i] = (struct ibv_sge){(uintptr_t)p.a.buf + 8 * i, 8, p.a.lkey};
    wr = (struct ibv_send_wr){.wr_id = 1,
                              .opcode = IBV_WR_RDMA_READ,
                              .send_flags = IBV_SEND_SIGNALED,
                              .sg_list = sge,
                              .num_sge = base->max_sge_rd,
                              .wr.rdma = {(uintptr_t)p.b.buf, p.b.rkey}};
    CHECK_ZERO(ibv_post_send(p.a.qp, &wr, &bad));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
    end_expect_data(&p.a, 0, 8 * (size_t)base->max_sge_rd, 5);
    wr.num_sge = base->max_sge + 1;
    assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), EINVAL);
    pair_close(&p);
}

static void there_is_one_port_with_one_pkey(void **state)
{
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = 2};
    struct ibv_port_attr port;
    struct ibv_qp_attr attr;
    __be16 pkey;
    int mask;

    open_as(IBV_QPT_RC);
    assert_int_equal(base->phys_port_cnt, 1);
    assert_int_equal(newest_phys_port_cnt_ex(&ex), 1);
    assert_int_equal(base->max_pkeys, 1);
    CHECK_ZERO(ibv_query_port(end.context, 1, &port));
    assert_int_equal(ibv_query_port(end.context, 2, &port), EINVAL);
    assert_int_equal(port.pkey_tbl_len, base->max_pkeys);
    assert_int_equal(ibv_query_pkey(end.context, 1, 0, &pkey), 0);
    assert_int_equal(ibv_query_pkey(end.context, 1, 1, &pkey), -1);
    mask = attr_for_init(&end, &attr);
    attr.port_num = 2;
    assert_int_equal(end_modify(&end, &attr, mask), EINVAL);
    attr.port_num = 1;
    attr.pkey_index = 1;
    assert_int_equal(end_modify(&end, &attr, mask), EINVAL);
    assert_true(base->device_cap_flags & IBV_DEVICE_UD_AV_PORT_ENFORCE);
    ah.grh.dgid = end.gid;
    assert_refused(ibv_create_ah(end.pd, &ah), EINVAL);
    close_all();
}

static void a_group_has_as_many_members_as_is_said(void **state)
{
    const union ibv_gid group = {.raw = {[10] = 255, [11] = 255, [12] = 224, [13] = 7, [14] = 7, [15] = 7}};
    struct end member[64];
    int count = 0, error = 0;

    open_as(IBV_QPT_UD);
    assert_true(base->max_mcast_grp > 0 && base->max_mcast_qp_attach < (int)COUNT(member));
    assert_int_equal(base->max_total_mcast_qp_attach, base->max_mcast_grp * base->max_mcast_qp_attach);
    while (!error && count < (int)COUNT(member)) {
        end_share(&member[count], &end);
        error = ibv_attach_mcast(member[count++].qp, &group, 0);
    }
    assert_int_equal(error, ENOMEM);
    assert_int_equal(count, base->max_mcast_qp_attach + 1);
    while (count--) {
        if (count < base->max_mcast_qp_attach)
            CHECK_ZERO(ibv_detach_mcast(member[count].qp, &group, 0));
        end_close_qp(&member[count]);
    }
    close_all();
}

/* --- capabilities --------------------------------------------------------------------------------------- */

static void windows_and_domains_are_there_if_it_says_so(void **state)
{
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *xrcd;
    struct ibv_mw *mw;

    open_as(IBV_QPT_RC);
    assert_int_equal(base->device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
                                               IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC),
                     IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC);
    for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
        mw = ibv_alloc_mw(end.pd, (enum ibv_mw_type)type);
        assert_non_null(mw);
        CHECK_ZERO(ibv_dealloc_mw(mw));
    }
    xrcd = ibv_open_xrcd(end.context, &init);
    assert_non_null(xrcd);
    CHECK_ZERO(ibv_close_xrcd(xrcd));
    close_all();
}

static void what_is_not_claimed_of_qps_is_refused(void **state)
{
    const unsigned int absent = IBV_DEVICE_RESIZE_MAX_WR | IBV_DEVICE_AUTO_PATH_MIG | IBV_DEVICE_RAW_MULTI |
                                IBV_DEVICE_UD_IP_CSUM | IBV_DEVICE_RAW_IP_CSUM;
    struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1000};
    struct ibv_qp_init_attr_ex tso = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .cap = {1, 1, 1, 1, 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
        .max_tso_header = 64,
    };
    struct ibv_qp_attr attr = {.cap = {128, 128, 1, 1, 0}, .rate_limit = 1000};

    open_as(IBV_QPT_RC);
    assert_int_equal(base->device_cap_flags & absent, 0);
    assert_int_not_equal(end_modify(&end, &attr, IBV_QP_CAP), 0);
    assert_int_not_equal(end_modify(&end, &attr, IBV_QP_ALT_PATH), 0);
    assert_int_not_equal(end_modify(&end, &attr, IBV_QP_RATE_LIMIT), 0);
    assert_int_equal(end_state(&end), IBV_QPS_INIT);
    assert_int_equal(ex.packet_pacing_caps.qp_rate_limit_min, 0);
    assert_int_equal(ex.packet_pacing_caps.qp_rate_limit_max, 0);
    assert_int_equal(ex.packet_pacing_caps.supported_qpts, 0);
    assert_int_equal(ibv_modify_qp_rate_limit(end.qp, &rate), EOPNOTSUPP);
    assert_int_equal(ex.tso_caps.max_tso, 0);
    assert_int_equal(ex.tso_caps.supported_qpts, 0);
    tso.pd = end.pd;
    tso.send_cq = end.send_cq;
    tso.recv_cq = end.recv_cq;
    assert_refused(ibv_create_qp_ex(end.context, &tso), EOPNOTSUPP);
    /* Of the newer operations, FLUSH for persistence is not there. */
    assert_refused(ibv_reg_mr(end.pd, end.buf, 64, IBV_ACCESS_LOCAL_WRITE | 1 << 9), EINVAL);
    close_all();
}

static void moderation_goes_up_to_what_is_said(void **state)
{
    struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE};

    open_as(IBV_QPT_RC);
    attr.moderate = (struct ibv_moderate_cq){ex.cq_mod_caps.max_cq_count, ex.cq_mod_caps.max_cq_period};
    assert_true(attr.moderate.cq_count > 0 && attr.moderate.cq_period > 0);
    CHECK_ZERO(ibv_modify_cq(end.send_cq, &attr));
    close_all();
}

/* Nanoseconds, in all 64 bits: a completion is made between two looks at the clock. */
static void time_stamps_are_of_the_clock_that_is_said(void **state)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct ibv_values_ex before = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, after = before;
    struct ibv_poll_cq_attr poll = {0};
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_qp_attr attr;
    struct ibv_cq_ex *cq;
    struct end own;
    uint64_t stamp;
    int mask;

    open_as(IBV_QPT_RC);
    assert_true(ex.completion_timestamp_mask == UINT64_MAX);
    assert_int_equal(ex.hca_core_clock, 1000000); /* kHz */
    cq = ibv_create_cq_ex(end.context, &init);
    assert_non_null(cq);
    own = end;
    qp.send_cq = qp.recv_cq = ibv_cq_ex_to_cq(cq);
    own.qp = ibv_create_qp(end.pd, &qp);
    assert_non_null(own.qp);
    mask = attr_for_init(&own, &attr);
    CHECK_ZERO(ibv_modify_qp(own.qp, &attr, mask));
    CHECK_ZERO(ibv_post_recv(own.qp, &wr, &bad));
    CHECK_ZERO(ibv_query_rt_values_ex(end.context, &before));
    attr.qp_state = IBV_QPS_ERR; /* which completes the receive */
    CHECK_ZERO(ibv_modify_qp(own.qp, &attr, IBV_QP_STATE));
    EVENTUALLY(!ibv_start_poll(cq, &poll), "the flushed receive");
    CHECK_ZERO(ibv_query_rt_values_ex(end.context, &after));
    stamp = ibv_wc_read_completion_ts(cq);
    ibv_end_poll(cq);
    assert_in_range(stamp,
                    (uint64_t)before.raw_clock.tv_sec * 1000000000u + (uint64_t)before.raw_clock.tv_nsec,
                    (uint64_t)after.raw_clock.tv_sec * 1000000000u + (uint64_t)after.raw_clock.tv_nsec);
    CHECK_ZERO(ibv_destroy_qp(own.qp));
    CHECK_ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    close_all();
}

/* --- raw packets ---------------------------------------------------------------------------------------- */

static struct ibv_qp *try_raw(uint32_t flags)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .send_cq = end.send_cq,
        .recv_cq = end.recv_cq,
        .cap = {1, 1, 1, 1, 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
        .pd = end.pd,
        .create_flags = flags,
    };

    return ibv_create_qp_ex(end.context, &init);
}

static void raw_packets_are_handled_as_is_said(void **state)
{
    static const struct {
        uint32_t claim, flag;
    } caps[] = {
        {IBV_RAW_PACKET_CAP_CVLAN_STRIPPING, IBV_QP_CREATE_CVLAN_STRIPPING},
        {IBV_RAW_PACKET_CAP_SCATTER_FCS, IBV_QP_CREATE_SCATTER_FCS},
    };
    struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ,
                                    .max_wr = 1,
                                    .max_sge = 1,
                                    .comp_mask = IBV_WQ_INIT_ATTR_FLAGS,
                                    .create_flags = IBV_WQ_FLAGS_DELAY_DROP};
    struct ibv_flow_attr rule = {.type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(rule), .port = TEST_PORT};
    struct ibv_flow *flow;
    struct ibv_wq *wq;
    struct ibv_qp *qp;

    open_as(IBV_QPT_RC);
    for (size_t i = 0; i < COUNT(caps); i++) {
        assert_true(ex.raw_packet_caps & caps[i].claim);
        qp = try_raw(caps[i].flag);
        assert_non_null(qp);
        CHECK_ZERO(ibv_destroy_qp(qp));
    }
    assert_true(ex.raw_packet_caps & IBV_RAW_PACKET_CAP_DELAY_DROP);
    assert_false(ex.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM);
    assert_true(ex.max_wq_type_rq > 0);
    init.pd = end.pd;
    init.cq = end.recv_cq;
    wq = ibv_create_wq(end.context, &init);
    assert_non_null(wq);
    CHECK_ZERO(ibv_destroy_wq(wq));
    assert_true(base->device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
    qp = try_raw(0);
    flow = ibv_create_flow(qp, &rule);
    assert_non_null(flow);
    CHECK_ZERO(ibv_destroy_flow(flow));
    CHECK_ZERO(ibv_destroy_qp(qp));
    close_all();
}

static struct ibv_qp *try_rss(struct ibv_rwq_ind_table *table, uint8_t function, uint64_t fields)
{
    static uint8_t key[40];
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .pd = end.pd,
        .rwq_ind_tbl = table,
        .rx_hash_conf = {function, sizeof(key), key, fields},
    };

    return ibv_create_qp_ex(end.context, &init);
}

static void frames_are_spread_by_the_fields_that_are_said(void **state)
{
    struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1};
    struct ibv_rwq_ind_table_init_attr table_init = {.log_ind_tbl_size = 0};
    struct ibv_rwq_ind_table *table;
    struct ibv_wq **wqs, *wq;
    uint32_t entries;

    open_as(IBV_QPT_RC);
    init.pd = end.pd;
    init.cq = end.recv_cq;
    wq = ibv_create_wq(end.context, &init);
    assert_non_null(wq);
    entries = ex.rss_caps.max_rwq_indirection_table_size;
    assert_true(entries && !(entries & (entries - 1)) && ex.rss_caps.max_rwq_indirection_tables);
    wqs = calloc(2 * (size_t)entries, sizeof(*wqs));
    for (uint32_t i = 0; i < 2 * entries; i++)
        wqs[i] = wq;
    table_init.ind_tbl = wqs;
    while (1u << table_init.log_ind_tbl_size < entries)
        table_init.log_ind_tbl_size++;
    table = ibv_create_rwq_ind_table(end.context, &table_init);
    assert_non_null(table);
    table_init.log_ind_tbl_size++;
    assert_refused(ibv_create_rwq_ind_table(end.context, &table_init), EINVAL);
    assert_int_equal(ex.rss_caps.supported_qpts, 1u << IBV_QPT_RAW_PACKET);
    assert_int_equal(ex.rss_caps.rx_hash_function, IBV_RX_HASH_FUNC_TOEPLITZ);
    for (int bit = 0; bit < 32; bit++) {
        struct ibv_qp *qp = try_rss(table, IBV_RX_HASH_FUNC_TOEPLITZ, 1ull << bit);

        assert_int_equal(qp != NULL, ex.rss_caps.rx_hash_fields_mask >> bit & 1);
        if (qp)
            CHECK_ZERO(ibv_destroy_qp(qp));
    }
    assert_null(try_rss(table, 2, IBV_RX_HASH_SRC_IPV4));
    CHECK_ZERO(ibv_destroy_rwq_ind_table(table));
    CHECK_ZERO(ibv_destroy_wq(wq));
    free(wqs);
    close_all();
}

/* --- on-demand paging ----------------------------------------------------------------------------------- */

enum { OF_ALL = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV };

/* Everything that is claimed of a transport, with regions on demand at both sides. */
static void use_on_demand(enum ibv_qp_type type, uint32_t claims, bool srq)
{
    struct end_attr attr = attr_of(type);
    struct pair p;

    attr.mr_access |= IBV_ACCESS_ON_DEMAND;
    attr.srq_wr = srq ? 16 : 0;
    pair_connect_as(&p, &attr);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 4096));
    end_send(&p.a, type == IBV_QPT_UD ? a_datagram(&p.a, 2, 0, 64, &p.b) : a_send(&p.a, 2, 0, 64));
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    if (claims & IBV_ODP_SUPPORT_WRITE) {
        end_send(&p.a, a_write(&p.a, 3, 0, 64, &p.b, 128));
        end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_WRITE);
    }
    if (claims & IBV_ODP_SUPPORT_READ) {
        end_send(&p.a, a_read(&p.a, 4, 0, 64, &p.b, 128));
        end_expect_success(&p.a, SQ, 4, IBV_WC_RDMA_READ);
    }
    if (claims & IBV_ODP_SUPPORT_ATOMIC) {
        end_send(&p.a, a_fetch_add(&p.a, 5, 0, &p.b, 128, 1));
        end_expect_success(&p.a, SQ, 5, IBV_WC_FETCH_ADD);
    }
    pair_close(&p);
}

static void memory_on_demand_serves_what_is_said_of_each_transport(void **state)
{
    uint32_t rc, uc, ud;

    open_as(IBV_QPT_RC);
    close_all();
    assert_int_equal(ex.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    rc = ex.odp_caps.per_transport_caps.rc_odp_caps;
    uc = ex.odp_caps.per_transport_caps.uc_odp_caps;
    ud = ex.odp_caps.per_transport_caps.ud_odp_caps;
    assert_int_equal(ex.xrc_odp_caps, rc); /* it is the same responder */
    assert_int_equal(rc & OF_ALL, OF_ALL);
    assert_int_equal(rc & (IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC),
                     IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC);
    assert_int_equal(uc, OF_ALL | IBV_ODP_SUPPORT_WRITE);
    assert_int_equal(ud, OF_ALL);
    for (int srq = 0; srq < 2; srq++) {
        use_on_demand(IBV_QPT_RC, rc, srq);
        use_on_demand(IBV_QPT_UC, uc, srq);
        use_on_demand(IBV_QPT_UD, ud, srq);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(qps_are_as_large_as_is_said),
        TEST(cqs_and_srqs_are_as_large_as_is_said),
        TEST(tag_lists_are_as_long_as_is_said),
        TEST(device_memory_and_regions_are_as_large_as_is_said),
        TEST(what_there_is_none_of_is_zero),
        TEST(depths_of_reads_are_what_is_said),
        TEST(a_read_has_as_many_sges_as_is_said),
        TEST(there_is_one_port_with_one_pkey),
        TEST(a_group_has_as_many_members_as_is_said),
        TEST(windows_and_domains_are_there_if_it_says_so),
        TEST(what_is_not_claimed_of_qps_is_refused),
        TEST(moderation_goes_up_to_what_is_said),
        TEST(time_stamps_are_of_the_clock_that_is_said),
        TEST(raw_packets_are_handled_as_is_said),
        TEST(frames_are_spread_by_the_fields_that_are_said),
        TEST(memory_on_demand_serves_what_is_said_of_each_transport),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
