/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A handle that is destroyed a second time: programs do so where they clean up after an error, and the kernel
 * answers EINVAL. */
#include <fcntl.h>

#include "work.h"

enum { RESTS = 1000 };

struct objects {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct ibv_wq *wq;
    struct ibv_qp *raw; /* NULL: not permitted */
    char memory[4096];
};

static struct objects here;

static void *make_wq(void)
{
    struct ibv_wq_init_attr init = {
        .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = here.pd, .cq = here.cq};

    return ibv_create_wq(here.context, &init);
}

static void *make_raw_qp(void)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RAW_PACKET, .send_cq = here.cq, .recv_cq = here.cq, .cap = {1, 1, 1, 1, 0}};

    return ibv_create_qp(here.pd, &init);
}

static void open_all(void)
{
    here.context = open_the_device();
    here.pd = ibv_alloc_pd(here.context);
    here.channel = ibv_create_comp_channel(here.context);
    here.cq = ibv_create_cq(here.context, 16, NULL, NULL, 0);
    assert_true(here.pd && here.channel && here.cq);
    here.wq = make_wq();
    assert_non_null(here.wq);
    here.raw = make_raw_qp();
}

static void close_all(void)
{
    if (here.raw)
        CHECK_ZERO(ibv_destroy_qp(here.raw));
    CHECK_ZERO(ibv_destroy_wq(here.wq));
    CHECK_ZERO(ibv_destroy_cq(here.cq));
    CHECK_ZERO(ibv_destroy_comp_channel(here.channel));
    CHECK_ZERO(ibv_dealloc_pd(here.pd));
    CHECK_ZERO(ibv_close_device(here.context));
}

static void *make_qp(void)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC, .send_cq = here.cq, .recv_cq = here.cq, .cap = {1, 1, 1, 1, 0}};

    return ibv_create_qp(here.pd, &init);
}

static int end_qp(void *qp)
{
    return ibv_destroy_qp(qp);
}

static void *make_cq(void)
{
    return ibv_create_cq(here.context, 1, NULL, here.channel, 0);
}

static int end_cq(void *cq)
{
    return ibv_destroy_cq(cq);
}

static void *make_srq(void)
{
    struct ibv_srq_init_attr init = {.attr = {1, 1, 0}};

    return ibv_create_srq(here.pd, &init);
}

static int end_srq(void *srq)
{
    return ibv_destroy_srq(srq);
}

static void *make_mr(void)
{
    return ibv_reg_mr(here.pd, here.memory, sizeof here.memory, IBV_ACCESS_LOCAL_WRITE);
}

static int end_mr(void *mr)
{
    return ibv_dereg_mr(mr);
}

static void *make_mw(void)
{
    return ibv_alloc_mw(here.pd, IBV_MW_TYPE_2);
}

static int end_mw(void *mw)
{
    return ibv_dealloc_mw(mw);
}

static void *make_ah(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};

    CHECK_ZERO(ibv_query_gid(here.context, 1, 0, &attr.grh.dgid));
    return ibv_create_ah(here.pd, &attr);
}

static int end_ah(void *ah)
{
    return ibv_destroy_ah(ah);
}

static void *make_pd(void)
{
    return ibv_alloc_pd(here.context);
}

static int end_pd(void *pd)
{
    return ibv_dealloc_pd(pd);
}

static void *make_channel(void)
{
    return ibv_create_comp_channel(here.context);
}

static int end_channel(void *channel)
{
    return ibv_destroy_comp_channel(channel);
}

static int end_wq(void *wq)
{
    return ibv_destroy_wq(wq);
}

static void *make_table(void)
{
    struct ibv_rwq_ind_table_init_attr init = {.log_ind_tbl_size = 0, .ind_tbl = &here.wq};

    return ibv_create_rwq_ind_table(here.context, &init);
}

static int end_table(void *table)
{
    return ibv_destroy_rwq_ind_table(table);
}

static void *make_td(void)
{
    struct ibv_td_init_attr init = {0};

    return ibv_alloc_td(here.context, &init);
}

static int end_td(void *td)
{
    return ibv_dealloc_td(td);
}

static void *make_parent(void)
{
    struct ibv_parent_domain_init_attr init = {.pd = here.pd};

    return ibv_alloc_parent_domain(here.context, &init);
}

static void *make_xrcd(void)
{
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};

    return ibv_open_xrcd(here.context, &init);
}

static int end_xrcd(void *xrcd)
{
    return ibv_close_xrcd(xrcd);
}

static void *make_dm(void)
{
    struct ibv_alloc_dm_attr init = {.length = 64};

    return ibv_alloc_dm(here.context, &init);
}

static int end_dm(void *dm)
{
    return ibv_free_dm(dm);
}

static void *make_counters(void)
{
    struct ibv_counters_init_attr init = {0};

    return ibv_create_counters(here.context, &init);
}

static int end_counters(void *counters)
{
    return ibv_destroy_counters(counters);
}

static void *make_flow(void)
{
    static uint16_t priority; /* which makes one differ from another */
    struct __attribute__((packed, aligned(8))) {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
    } rule = {
        .attr = {.type = IBV_FLOW_ATTR_NORMAL,
                 .size = sizeof rule.attr + sizeof rule.eth,
                 .num_of_specs = 1,
                 .priority = priority++,
                 .port = 1},
        .eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth},
    };

    return ibv_create_flow(here.raw, (void *)&rule);
}

static int end_flow(void *flow)
{
    return ibv_destroy_flow(flow);
}

static void *make_context(void)
{
    return open_the_device();
}

static int end_context(void *context)
{
    return ibv_close_device(context);
}

static const struct kind {
    const char *name;
    void *(*make)(void);
    int (*end)(void *);
} kinds[] = {
    {"QP", make_qp, end_qp},
    {"CQ", make_cq, end_cq},
    {"SRQ", make_srq, end_srq},
    {"MR", make_mr, end_mr},
    {"MW", make_mw, end_mw},
    {"AH", make_ah, end_ah},
    {"PD", make_pd, end_pd},
    {"channel", make_channel, end_channel},
    {"WQ", make_wq, end_wq},
    {"indirection table", make_table, end_table},
    {"TD", make_td, end_td},
    {"parent domain", make_parent, end_pd},
    {"XRCD", make_xrcd, end_xrcd},
    {"DM", make_dm, end_dm},
    {"counters", make_counters, end_counters},
    {"flow", make_flow, end_flow},
    {"context", make_context, end_context},
};

/* A flow takes a raw packet QP, which takes a privilege. */
static bool can_be_made(const struct kind *kind)
{
    return kind->make != make_flow || here.raw;
}

static void *make(const struct kind *kind)
{
    void *object = kind->make();

    CHECK(object, "%s: %s", kind->name, strerror(errno));
    return object;
}

static void end(const struct kind *kind, void *object, int expected)
{
    const int error = kind->end(object);

    CHECK(error == expected, "%s: %d and not %d", kind->name, error, expected);
}

static void the_second_destroy_is_refused(void **state)
{
    open_all();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        if (!can_be_made(&kinds[i]))
            continue;
        void *object = make(&kinds[i]);

        end(&kinds[i], object, 0);
        for (int again = 0; again < 3; again++)
            end(&kinds[i], object, EINVAL);
    }
    close_all();
}

static bool is_in_pd(const struct kind *kind)
{
    void *(*const others[])(void) = {make_pd, make_channel,  make_td,      make_xrcd,
                                     make_dm, make_counters, make_context, make_table};

    for (size_t i = 0; i < COUNT(others); i++) {
        if (kind->make == others[i])
            return false;
    }
    return true;
}

/* Nobody's users are fewer than there are. */
static void the_second_destroy_counts_nothing(void **state)
{
    open_all();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        if (!can_be_made(&kinds[i]))
            continue;
        void *first = make(&kinds[i]), *second = make(&kinds[i]);

        end(&kinds[i], first, 0);
        end(&kinds[i], first, EINVAL);
        if (kinds[i].make == make_cq)
            assert_int_equal(ibv_destroy_comp_channel(here.channel), EBUSY);
        else if (is_in_pd(&kinds[i]))
            assert_int_equal(ibv_dealloc_pd(here.pd), EBUSY);
        end(&kinds[i], second, 0);
        end(&kinds[i], first, EINVAL);
    }
    close_all();
}

static void a_handle_rests_for_a_thousand_destroys(void **state)
{
    open_all();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        if (!can_be_made(&kinds[i]))
            continue;
        void *first = make(&kinds[i]);

        end(&kinds[i], first, 0);
        for (int k = 0; k < RESTS; k++) {
            void *next = make(&kinds[i]);

            CHECK(next != first, "%s: used again after %d", kinds[i].name, k);
            end(&kinds[i], first, EINVAL);
            end(&kinds[i], next, 0);
        }
    }
    close_all();
}

/* Where many are destroyed, each handle comes to be used again, and is good again. */
static void handles_are_used_again(void **state)
{
    enum { ROUNDS = 4000 };
#ifdef __SANITIZE_ADDRESS__ /* which keeps what is freed from being used again; QPs are not freed */
    const size_t count = 1;
#else
    const size_t count = COUNT(kinds);
#endif

    open_all();
    for (size_t i = 0; i < count; i++) {
        static void *seen[ROUNDS];
        bool again = false;

        if (!can_be_made(&kinds[i]))
            continue;
        for (int k = 0; k < ROUNDS; k++) {
            seen[k] = make(&kinds[i]);
            for (int before = 0; before < k && !again; before++)
                again = seen[before] == seen[k];
            end(&kinds[i], seen[k], 0);
        }
        CHECK(again, "%s: never used again", kinds[i].name);
    }
    close_all();
}

/* Also of one that carried something. */
static void a_qp_in_use_is_destroyed_once(void **state)
{
    struct ibv_qp *qp;
    struct pair p;

    for (int i = 0; i < 3; i++) {
        pair_connect(&p, IBV_QPT_RC);
        pair_marker(&p.a, &p.b);
        qp = p.a.qp;
        end_close_qp(&p.a);
        assert_int_equal(ibv_destroy_qp(qp), EINVAL);
        p.a.qp = NULL;
        pair_close(&p);
    }
}

/* --- used after it was destroyed --- */

static void a_destroyed_qp_takes_nothing(void **state)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC, .send_cq = NULL, .recv_cq = NULL, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send = NULL;
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive = NULL;
    const int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
    struct ibv_qp *qp, *next;

    open_all();
    init.send_cq = init.recv_cq = here.cq;
    qp = make_qp();
    CHECK_ZERO(ibv_destroy_qp(qp));
    next = make_qp(); /* may have its record */
    CHECK_ZERO(ibv_modify_qp(next, &attr, mask));
    assert_int_equal(ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
    assert_ptr_equal(bad_receive, &receive);
    assert_int_equal(ibv_post_send(qp, &send, &bad_send), EINVAL);
    assert_ptr_equal(bad_send, &send);
    assert_int_equal(ibv_modify_qp(qp, &attr, mask), EINVAL);
    assert_int_equal(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), EINVAL);
    CHECK_ZERO(ibv_query_qp(next, &attr, IBV_QP_STATE, &init));
    assert_int_equal(attr.qp_state, IBV_QPS_INIT);
    CHECK_ZERO(ibv_destroy_qp(next));
    close_all();
}

static void a_destroyed_cq_gives_nothing(void **state)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_cq *cq, *next;
    struct ibv_wc wc;

    open_all();
    cq = make_cq();
    CHECK_ZERO(ibv_destroy_cq(cq));
    next = make_cq();
    assert_true(ibv_poll_cq(cq, 1, &wc) < 0);
    assert_int_equal(ibv_req_notify_cq(cq, 0), EINVAL);
    assert_int_equal(ibv_resize_cq(cq, 32), EINVAL);
    init.send_cq = init.recv_cq = cq;
    assert_null(ibv_create_qp(here.pd, &init));
    assert_int_equal(errno, EINVAL);
    ibv_ack_cq_events(cq, 1); /* counts nowhere */
    assert_int_equal(ibv_poll_cq(next, 1, &wc), 0);
    CHECK_ZERO(ibv_destroy_cq(next));
    close_all();
}

static void nothing_is_made_of_what_is_destroyed(void **state)
{
    struct ibv_srq_init_attr srq_init = {.attr = {1, 1, 0}};
    struct ibv_ah_attr ah_attr = {.is_global = 1, .port_num = 1};
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
    struct ibv_context *context;
    struct ibv_srq *srq;
    struct ibv_mr *mr;
    struct ibv_pd *pd;

    open_all();
    CHECK_ZERO(ibv_query_gid(here.context, 1, 0, &ah_attr.grh.dgid));
    pd = make_pd();
    CHECK_ZERO(ibv_dealloc_pd(pd));
    assert_null(ibv_reg_mr(pd, here.memory, sizeof here.memory, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_create_srq(pd, &srq_init));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_create_ah(pd, &ah_attr));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
    assert_int_equal(errno, EINVAL);
    srq = make_srq();
    CHECK_ZERO(ibv_destroy_srq(srq));
    assert_int_equal(ibv_post_srq_recv(srq, &receive, &bad), EINVAL);
    assert_int_equal(ibv_modify_srq(srq, &srq_init.attr, IBV_SRQ_LIMIT), EINVAL);
    mr = make_mr();
    CHECK_ZERO(ibv_dereg_mr(mr));
    assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
    context = make_context();
    CHECK_ZERO(ibv_close_device(context));
    assert_null(ibv_alloc_pd(context));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_create_cq(context, 1, NULL, NULL, 0));
    assert_int_equal(errno, EINVAL);
    close_all();
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_second_destroy_is_refused),          TEST(the_second_destroy_counts_nothing),
        TEST(a_handle_rests_for_a_thousand_destroys), TEST(handles_are_used_again),
        TEST(a_qp_in_use_is_destroyed_once),          TEST(a_destroyed_qp_takes_nothing),
        TEST(a_destroyed_cq_gives_nothing),           TEST(nothing_is_made_of_what_is_destroyed),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
