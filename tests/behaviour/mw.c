/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.4 to §4.6: memory windows and invalidation. b owns the memory and the window, a uses it.
 */
#include "work.h"

enum { ALL_REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* What a test does to b's window */
struct window {
    enum ibv_mw_type type;
    struct ibv_mw *mw;
    uint32_t rkey; /* as of the last bind */
    uint64_t id;
    size_t offset, length;
    unsigned int access, flags;
    int result;
};

static void alloc_here(struct end *end, void *arg)
{
    struct window *window = arg;

    window->mw = ibv_alloc_mw(end->pd, window->type);
    CHECK(window->mw, "ibv_alloc_mw: %s", strerror(errno));
    window->rkey = window->mw->rkey;
}

static void dealloc_here(struct end *end, void *arg)
{
    struct window *window = arg;

    window->result = ibv_dealloc_mw(window->mw);
}

/* Type 1 through the verb, type 2 through the send queue */
static void bind_here(struct end *end, void *arg)
{
    struct window *window = arg;
    const struct ibv_mw_bind_info info = {
        .mr = window->length ? end->mr : NULL,
        .addr = window->length ? (uintptr_t)end->buf + window->offset : 0,
        .length = window->length,
        .mw_access_flags = window->access,
    };

    if (window->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.wr_id = window->id, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};

        window->result = ibv_bind_mw(end->qp, window->mw, &bind);
        window->rkey = window->mw->rkey;
    } else {
        struct ibv_send_wr wr = {.wr_id = window->id,
                                 .opcode = IBV_WR_BIND_MW,
                                 .send_flags = IBV_SEND_SIGNALED},
                           *bad;

        window->rkey = ibv_inc_rkey(window->mw->rkey);
        wr.bind_mw.mw = window->mw;
        wr.bind_mw.rkey = window->rkey;
        wr.bind_mw.bind_info = info;
        window->result = ibv_post_send(end->qp, &wr, &bad);
        if (!window->result)
            window->mw->rkey = window->rkey;
    }
}

static void dereg_here(struct end *end, void *arg)
{
    int *result = arg;

    *result = ibv_dereg_mr(end->mr);
    if (!*result)
        end->mr = NULL;
}

static struct window a_window(enum ibv_mw_type type)
{
    return (struct window){.type = type, .id = 50, .offset = 1024, .length = 4096, .access = ALL_REMOTE};
}

/* A pair whose b has MW_BIND memory without any remote right: only the window grants one */
static void connect_with(struct pair *p, struct window *window)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end_attr attr_b = attr;

    attr_b.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    pair_open(p, &attr, &attr_b);
    end_connect(&p->a, &p->b);
    AT(&p->b, alloc_here, window);
}

static void bind_it(struct pair *p, struct window *window)
{
    AT(&p->b, bind_here, window);
    assert_int_equal(window->result, 0);
    end_expect_success(&p->b, SQ, window->id, IBV_WC_BIND_MW);
}

static void bind_fails(struct pair *p, struct window *window)
{
    AT(&p->b, bind_here, window);
    assert_int_equal(window->result, 0);
    end_expect_status(&p->b, SQ, window->id, IBV_WC_MW_BIND_ERR);
    assert_int_equal(end_state(&p->b), IBV_QPS_ERR);
}

static void close_with(struct pair *p, struct window *window)
{
    AT(&p->b, dealloc_here, window);
    assert_int_equal(window->result, 0);
    pair_close(p);
}

static struct send through(struct send send, const struct window *window)
{
    if (send.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        send.wr.wr.atomic.rkey = window->rkey;
    else
        send.wr.wr.rdma.rkey = window->rkey;
    return send;
}

static const enum ibv_mw_type types[] = {IBV_MW_TYPE_1, IBV_MW_TYPE_2};

static void a_bound_window_grants_what_its_flags_say_without_the_mrs_rights(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        struct pair p;

        connect_with(&p, &window);
        bind_it(&p, &window);
        end_fill(&p.a, 0, 4096, t);
        end_send(&p.a, through(a_write(&p.a, 1, 0, 4096, &p.b, 1024), &window));
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 1024, 4096, t);
        end_send(&p.a, through(a_read(&p.a, 2, 8192, 4096, &p.b, 1024), &window));
        end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 8192, 4096, t);
        end_send(&p.a, through(a_fetch_add(&p.a, 3, 0, &p.b, 2048, 1), &window));
        end_expect_success(&p.a, SQ, 3, IBV_WC_FETCH_ADD);
        close_with(&p, &window);
    }
}

static void a_window_without_remote_write_refuses_writes(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        struct pair p;

        window.access = IBV_ACCESS_REMOTE_READ;
        connect_with(&p, &window);
        bind_it(&p, &window);
        end_send(&p.a, through(a_read(&p.a, 1, 0, 64, &p.b, 1024), &window));
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
        end_send(&p.a, through(a_write(&p.a, 2, 0, 64, &p.b, 1024), &window));
        end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
        close_with(&p, &window);
    }
}

static void access_outside_a_window_is_refused(void **state)
{
    const size_t outside[] = {1023, 1024 + 4096 - 63, 0, 20000};

    for (size_t i = 0; i < COUNT(outside); i++) {
        struct window window = a_window(types[i % 2]);
        struct pair p;

        connect_with(&p, &window);
        bind_it(&p, &window);
        end_send(&p.a, through(a_write(&p.a, 2, 0, 64, &p.b, outside[i]), &window));
        end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
        close_with(&p, &window);
    }
}

static void an_unbound_window_refuses_everything(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        struct pair p;

        connect_with(&p, &window);
        end_send(&p.a, through(a_read(&p.a, 2, 0, 64, &p.b, 1024), &window));
        end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
        close_with(&p, &window);
    }
}

static void a_window_key_is_no_lkey(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    struct send send;
    struct pair p;

    connect_with(&p, &window);
    bind_it(&p, &window);
    send = a_send(&p.b, 1, 1024, 64);
    send.sge[0].lkey = window.rkey;
    end_send(&p.b, send);
    end_expect_status(&p.b, SQ, 1, IBV_WC_LOC_PROT_ERR);
    close_with(&p, &window);
}

/* Past the checks that newer headers have in ibv_bind_mw(), as programs are built with rdma-core before 39. */
static int bind_as_before_39(struct end *end, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    return end->context->ops.bind_mw(end->qp, mw, bind);
}

static void bind_mw_checks_its_arguments_at_once(void **state)
{
    struct ibv_mw_bind bind = {.wr_id = 1};
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_mw *one, *two;
    struct ibv_pd *other;
    struct ibv_mr *mr;
    struct pair p;

    pair_connect_as(&p, &attr);
    one = ibv_alloc_mw(p.a.pd, IBV_MW_TYPE_1);
    two = ibv_alloc_mw(p.a.pd, IBV_MW_TYPE_2);
    assert_int_equal(ibv_bind_mw(p.a.qp, two, &bind), EINVAL);
    bind.bind_info.length = 8; /* without an MR */
    assert_int_equal(ibv_bind_mw(p.a.qp, one, &bind), EINVAL);
    assert_int_equal(bind_as_before_39(&p.a, one, &bind), EINVAL);
    bind.bind_info.length = 0;
    bind.bind_info.addr = 8;
    assert_int_equal(ibv_bind_mw(p.a.qp, one, &bind), EINVAL);
    assert_int_equal(bind_as_before_39(&p.a, one, &bind), EINVAL);
    other = ibv_alloc_pd(p.a.context);
    mr = ibv_reg_mr(other, p.a.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    bind.bind_info = (struct ibv_mw_bind_info){.mr = mr, .addr = (uintptr_t)p.a.buf, .length = 8};
    assert_int_equal(ibv_bind_mw(p.a.qp, one, &bind), EPERM);
    assert_int_equal(bind_as_before_39(&p.a, one, &bind), EPERM);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(other), 0);
    assert_int_equal(ibv_dealloc_mw(one), 0);
    assert_int_equal(ibv_dealloc_mw(two), 0);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void type_1_gets_a_new_rkey_at_each_bind_and_the_old_one_dies(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_1), old;
    struct pair p;

    connect_with(&p, &window);
    bind_it(&p, &window);
    old = window;
    window.offset = 8192;
    bind_it(&p, &window);
    assert_int_not_equal(window.rkey, old.rkey);
    end_send(&p.a, through(a_write(&p.a, 1, 0, 64, &p.b, 8192), &window));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_send(&p.a, through(a_write(&p.a, 2, 0, 64, &p.b, 1024), &old));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    close_with(&p, &window);
}

static void a_zero_length_bind_of_type_1_unbinds(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_1), old;
    int result;
    struct pair p;

    connect_with(&p, &window);
    bind_it(&p, &window);
    old = window;
    window.length = 0;
    bind_it(&p, &window);
    end_send(&p.a, through(a_write(&p.a, 2, 0, 64, &p.b, 1024), &old));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    AT(&p.b, dereg_here, &result); /* nothing is bound to the MR */
    assert_int_equal(result, 0);
    close_with(&p, &window);
}

static void dereg_mr_is_ebusy_while_a_window_is_bound_to_it(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        int result = 0;
        struct pair p;

        connect_with(&p, &window);
        bind_it(&p, &window);
        AT(&p.b, dereg_here, &result);
        assert_int_equal(result, EBUSY);
        end_send(&p.a, through(a_write(&p.a, 1, 0, 64, &p.b, 1024), &window)); /* no side effect */
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        close_with(&p, &window);
    }
}

static void dealloc_mw_unbinds(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        int result = -1;
        struct pair p;

        connect_with(&p, &window);
        bind_it(&p, &window);
        AT(&p.b, dealloc_here, &window);
        assert_int_equal(window.result, 0);
        end_send(&p.a, through(a_write(&p.a, 1, 0, 64, &p.b, 1024), &window));
        end_expect_status(&p.a, SQ, 1, IBV_WC_REM_ACCESS_ERR);
        AT(&p.b, dereg_here, &result);
        assert_int_equal(result, 0);
        pair_close(&p);
    }
}

static void a_bind_without_mw_bind_access_fails(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);

    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        struct pair p;

        pair_connect_as(&p, &attr); /* all rights but MW_BIND */
        AT(&p.b, alloc_here, &window);
        bind_fails(&p, &window);
        close_with(&p, &window);
    }
}

static void a_writing_window_needs_local_write_of_its_mr(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);

    for (size_t t = 0; t < COUNT(types); t++) {
        struct end_attr attr_b = attr;
        struct window window = a_window(types[t]);
        struct pair p;

        attr_b.mr_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;
        pair_open(&p, &attr, &attr_b);
        end_connect(&p.a, &p.b);
        AT(&p.b, alloc_here, &window);
        bind_fails(&p, &window);
        close_with(&p, &window);
    }
}

static void a_window_outside_its_mr_fails_to_bind(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct window window = a_window(types[t]);
        struct pair p;

        connect_with(&p, &window);
        window.offset = p.b.attr.size - 4095;
        bind_fails(&p, &window);
        close_with(&p, &window);
    }
}

static void a_bound_type_2_window_must_be_invalidated_before_the_next_bind(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    struct pair p;

    connect_with(&p, &window);
    bind_it(&p, &window);
    bind_fails(&p, &window);
    close_with(&p, &window);
}

static void a_zero_length_bind_of_type_2_fails(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    struct pair p;

    connect_with(&p, &window);
    window.length = 0;
    AT(&p.b, bind_here, &window);
    if (!window.result)
        end_expect_status(&p.b, SQ, window.id, IBV_WC_MW_BIND_ERR);
    else
        assert_int_equal(window.result, EINVAL);
    close_with(&p, &window);
}

static void a_type_2_bind_needs_the_index_of_the_window(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    struct send bind = {.wr = {.wr_id = 9, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}};
    int error;
    struct pair p;

    connect_with(&p, &window);
    bind.wr.bind_mw.mw = window.mw;
    bind.wr.bind_mw.rkey = window.rkey ^ 0x100;
    bind.wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = p.b.mr, .addr = (uintptr_t)p.b.buf, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
    error = end_try_send(&p.b, &bind, 1, NULL);
    if (!error)
        end_expect_status(&p.b, SQ, 9, IBV_WC_MW_BIND_ERR);
    else
        assert_int_equal(error, EINVAL);
    close_with(&p, &window);
}

static void a_zero_based_window_counts_from_its_start(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    struct send send;
    struct pair p;

    window.access |= IBV_ACCESS_ZERO_BASED;
    connect_with(&p, &window);
    bind_it(&p, &window);
    end_fill(&p.a, 0, 64, 1);
    send = through(a_write(&p.a, 1, 0, 64, &p.b, 0), &window);
    send.wr.wr.rdma.remote_addr = 16;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 1024 + 16, 64, 1);
    close_with(&p, &window);
}

static void requests_behind_a_bind_start_after_it(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    uint32_t rkey;
    struct pair p;

    /* the send that tells the key is posted right behind the bind */
    connect_with(&p, &window);
    end_recv(&p.a, a_recv(&p.a, 7, 0, 4));
    rkey = ibv_inc_rkey(window.rkey);
    end_poke(&p.b, 0, &rkey, 4);
    AT(&p.b, bind_here, &window);
    end_send(&p.b, a_send(&p.b, 51, 0, 4));
    end_expect_success(&p.a, RQ, 7, IBV_WC_RECV);
    end_peek(&p.a, 0, &window.rkey, 4);
    end_send(&p.a, through(a_write(&p.a, 1, 64, 64, &p.b, 1024), &window));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_success(&p.b, SQ, 50, IBV_WC_BIND_MW);
    end_expect_success(&p.b, SQ, 51, IBV_WC_SEND);
    close_with(&p, &window);
}

/* §4.6 */

static struct send a_local_inv(uint64_t id, uint32_t rkey)
{
    struct send send = {.wr = {.wr_id = id, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}};

    send.wr.invalidate_rkey = rkey;
    return send;
}

static void local_inv_ends_access_and_lets_the_window_be_bound_again(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2), old;
    struct pair p;

    connect_with(&p, &window);
    bind_it(&p, &window);
    old = window;
    end_send(&p.b, a_local_inv(60, window.rkey));
    end_expect_success(&p.b, SQ, 60, IBV_WC_LOCAL_INV);
    bind_it(&p, &window);
    assert_int_not_equal(window.rkey, old.rkey);
    end_send(&p.a, through(a_write(&p.a, 1, 0, 64, &p.b, 1024), &window));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_send(&p.a, through(a_write(&p.a, 2, 0, 64, &p.b, 1024), &old));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    close_with(&p, &window);
}

static void local_inv_of_what_cannot_be_invalidated_fails(void **state)
{
    for (unsigned int i = 0; i < 3; i++) {
        struct window window = a_window(i ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
        struct pair p;

        connect_with(&p, &window);
        if (i < 2)
            bind_it(&p, &window);
        /* a type 1 window, a plain MR, an unbound window */
        end_send(&p.b, a_local_inv(60, i == 1 ? p.b.rkey : window.rkey));
        end_expect_status(&p.b, SQ, 60, IBV_WC_MW_BIND_ERR);
        assert_int_equal(end_state(&p.b), IBV_QPS_ERR);
        close_with(&p, &window);
    }
}

static void send_with_inv_invalidates_before_the_receive_completes(void **state)
{
    struct window window = a_window(IBV_MW_TYPE_2);
    struct send send;
    struct ibv_wc wc;
    struct pair p;

    connect_with(&p, &window);
    bind_it(&p, &window);
    end_recv(&p.b, a_recv(&p.b, 3, 0, 64));
    send = a_send(&p.a, 1, 0, 64);
    send.wr.opcode = IBV_WR_SEND_WITH_INV;
    send.wr.invalidate_rkey = window.rkey;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    wc = end_expect_success(&p.b, RQ, 3, IBV_WC_RECV);
    assert_true(wc.wc_flags & IBV_WC_WITH_INV);
    assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, 0);
    assert_int_equal(wc.invalidated_rkey, window.rkey);
    assert_int_equal(wc.byte_len, 64);
    end_send(&p.a, through(a_write(&p.a, 2, 0, 64, &p.b, 1024), &window));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    close_with(&p, &window);
}

static void send_with_inv_of_what_cannot_be_invalidated_fails(void **state)
{
    struct send send;
    struct ibv_wc wc;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 3, 0, 64));
    send = a_send(&p.a, 1, 0, 64);
    send.wr.opcode = IBV_WR_SEND_WITH_INV;
    send.wr.invalidate_rkey = p.b.rkey; /* a plain MR */
    end_send(&p.a, send);
    wc = end_wc(&p.a, SQ);
    assert_true(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR ||
                wc.status == IBV_WC_REM_OP_ERR);
    wc = end_wc(&p.b, RQ);
    assert_int_equal(wc.wr_id, 3);
    assert_int_not_equal(wc.status, IBV_WC_SUCCESS);
    end_wait_state(&p.b, IBV_QPS_ERR);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_bound_window_grants_what_its_flags_say_without_the_mrs_rights),
        TEST(a_window_without_remote_write_refuses_writes),
        TEST(access_outside_a_window_is_refused),
        TEST(an_unbound_window_refuses_everything),
        TEST(a_window_key_is_no_lkey),
        TEST(bind_mw_checks_its_arguments_at_once),
        TEST(type_1_gets_a_new_rkey_at_each_bind_and_the_old_one_dies),
        TEST(a_zero_length_bind_of_type_1_unbinds),
        TEST(dereg_mr_is_ebusy_while_a_window_is_bound_to_it),
        TEST(dealloc_mw_unbinds),
        TEST(a_bind_without_mw_bind_access_fails),
        TEST(a_writing_window_needs_local_write_of_its_mr),
        TEST(a_window_outside_its_mr_fails_to_bind),
        TEST(a_bound_type_2_window_must_be_invalidated_before_the_next_bind),
        TEST(a_zero_length_bind_of_type_2_fails),
        TEST(a_type_2_bind_needs_the_index_of_the_window),
        TEST(a_zero_based_window_counts_from_its_start),
        TEST(requests_behind_a_bind_start_after_it),
        TEST(local_inv_ends_access_and_lets_the_window_be_bound_again),
        TEST(local_inv_of_what_cannot_be_invalidated_fails),
        TEST(send_with_inv_invalidates_before_the_receive_completes),
        TEST(send_with_inv_of_what_cannot_be_invalidated_fails),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
