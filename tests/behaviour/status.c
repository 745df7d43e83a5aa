/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.10 to §3.12: which status each mistake gives, on both sides, and when a requester gives
 * up. */
#include "work.h"

static struct end_attr short_timeouts(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.timeout = 8; /* 1 ms */
    attr.retry_cnt = 1;
    return attr;
}

/* A request of a that the rules refuse: its status, the target's event, and ERR on both sides */
static void refused_by_target(struct end_attr *attr_b, struct send (*make)(struct pair *),
                              enum ibv_wc_status status, enum ibv_event_type event)
{
    const struct end_attr attr_a = attr_of(IBV_QPT_RC);
    struct end_event got;
    struct pair p;

    pair_open(&p, &attr_a, attr_b);
    end_connect(&p.a, &p.b);
    end_fill(&p.b, 0, 8192, 1);
    end_send(&p.a, make(&p));
    end_expect_status(&p.a, SQ, 1, status);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    got = end_event(&p.b);
    assert_int_equal(got.type, event);
    assert_true(got.of_qp);
    end_wait_state(&p.b, IBV_QPS_ERR);
    end_expect_data(&p.b, 0, 8192, 1);
    pair_close(&p);
}

static struct send make_write(struct pair *p)
{
    return a_write(&p->a, 1, 0, 64, &p->b, 0);
}

static struct send make_read(struct pair *p)
{
    return a_read(&p->a, 1, 0, 64, &p->b, 0);
}

static struct send make_atomic(struct pair *p)
{
    return a_fetch_add(&p->a, 1, 0, &p->b, 0, 1);
}

static struct send make_bad_key(struct pair *p)
{
    struct send send = make_write(p);

    send.wr.wr.rdma.rkey ^= 0x5a5a00;
    return send;
}

static struct send make_key_0(struct pair *p)
{
    struct send send = make_write(p);

    send.wr.wr.rdma.rkey = 0;
    return send;
}

/* verbs.md §4.1: the two keys of an MR differ, so that mixing them up fails here */
static struct send make_lkey_as_rkey(struct pair *p)
{
    struct send send = make_write(p);

    send.wr.wr.rdma.rkey = p->b.lkey;
    return send;
}

static struct send make_behind_the_end(struct pair *p)
{
    return a_write(&p->a, 1, 0, 64, &p->b, p->b.attr.size - 63);
}

static struct send make_before_the_start(struct pair *p)
{
    struct send send = make_write(p);

    send.wr.wr.rdma.remote_addr -= 1;
    return send;
}

static struct send make_wrapping(struct pair *p)
{
    struct send send = make_write(p);

    send.wr.wr.rdma.remote_addr = UINT64_MAX - 10;
    return send;
}

static struct send make_read_bad_key(struct pair *p)
{
    struct send send = make_read(p);

    send.wr.wr.rdma.rkey ^= 0x5a5a00;
    return send;
}

static struct send make_atomic_bad_key(struct pair *p)
{
    struct send send = make_atomic(p);

    send.wr.wr.atomic.rkey ^= 0x5a5a00;
    return send;
}

static void a_bad_rkey_or_range_gives_remote_access_error_and_a_qp_access_event(void **state)
{
    struct send (*const bad[])(struct pair *) = {
        make_bad_key,          make_key_0,    make_lkey_as_rkey, make_behind_the_end,
        make_before_the_start, make_wrapping, make_read_bad_key, make_atomic_bad_key};

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct end_attr attr = attr_of(IBV_QPT_RC);

        refused_by_target(&attr, bad[i], IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    }
}

static void an_mr_without_the_permission_gives_remote_access_error(void **state)
{
    struct send (*const requests[])(struct pair *) = {make_write, make_read, make_atomic};
    const unsigned int missing[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                    IBV_ACCESS_REMOTE_ATOMIC};

    for (size_t i = 0; i < COUNT(requests); i++) {
        struct end_attr attr = attr_of(IBV_QPT_RC);

        attr.mr_access &= ~missing[i];
        refused_by_target(&attr, requests[i], IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    }
}

static void an_operation_that_the_qp_does_not_allow_gives_remote_invalid_request(void **state)
{
    struct send (*const requests[])(struct pair *) = {make_write, make_read, make_atomic};
    const unsigned int missing[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                    IBV_ACCESS_REMOTE_ATOMIC};

    for (size_t i = 0; i < COUNT(requests); i++) {
        const struct end_attr attr_a = attr_of(IBV_QPT_RC);
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct pair p;

        attr.qp_access &= ~missing[i];
        pair_open(&p, &attr_a, &attr);
        end_connect(&p.a, &p.b);
        end_send(&p.a, requests[i](&p));
        end_expect_status(&p.a, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
        end_wait_state(&p.b, IBV_QPS_ERR);
        pair_close(&p);
    }
}

static void an_rkey_of_another_pd_gives_remote_access_error(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p, q;
    struct send send;

    /* a second end of b's process has its own PD and MR */
    pair_connect_as(&p, &attr);
    pair_open(&q, &attr, &attr);
    send = a_write(&p.a, 1, 0, 64, &q.b, 0);
    end_send(&p.a, send);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    end_expect_event(&p.b, IBV_EVENT_QP_ACCESS_ERR);
    pair_close(&q);
    pair_close(&p);
}

static void an_earlier_good_write_stays_when_a_later_one_is_refused(void **state)
{
    struct send list[2];
    struct ibv_wc wc[2];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_fill(&p.a, 0, 4096, 7);
    list[0] = a_write(&p.a, 0, 0, 4096, &p.b, 0);
    list[1] = a_write(&p.a, 1, 0, 64, &p.b, p.b.attr.size);
    end_send_list(&p.a, list, 2);
    end_poll(&p.a, SQ, wc, 2);
    check_success(&wc[0], 0, IBV_WC_RDMA_WRITE);
    check_status(&wc[1], 1, IBV_WC_REM_ACCESS_ERR);
    end_expect_data(&p.b, 0, 4096, 7);
    pair_close(&p);
}

static void a_receive_too_short_gives_local_length_error_and_remote_invalid_request(void **state)
{
    static const size_t sent[] = {65, 1000, 5000, 60000};

    for (size_t i = 0; i < COUNT(sent); i++) {
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        end_fill(&p.b, 64, 1000, 3);
        end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
        end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
        end_send(&p.a, a_send(&p.a, 1, 0, sent[i]));
        end_send(&p.a, a_send(&p.a, 2, 0, 8));
        end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_LEN_ERR);
        end_expect_status(&p.b, RQ, 2, IBV_WC_WR_FLUSH_ERR);
        end_expect_status(&p.a, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
        end_expect_status(&p.a, SQ, 2, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
        assert_int_equal(end_state(&p.b), IBV_QPS_ERR);
        end_expect_data(&p.b, 64, 1000, 3);
        pair_close(&p);
    }
}

static void a_bad_receive_key_gives_local_protection_error_and_remote_operation_error(void **state)
{
    for (unsigned int variant = 0; variant < 3; variant++) {
        struct recv recv;
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        recv = a_recv(&p.b, 1, 0, 4096);
        if (variant == 0)
            recv.sge[0].lkey ^= 0x5a5a00;
        else if (variant == 1)
            recv.sge[0].addr += p.b.attr.size;
        else
            recv.sge[0].lkey = p.b.rkey; /* the keys differ */
        end_recv(&p.b, recv);
        end_send(&p.a, a_send(&p.a, 1, 0, 64));
        end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_PROT_ERR);
        end_expect_status(&p.a, SQ, 1, IBV_WC_REM_OP_ERR);
        assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
        assert_int_equal(end_state(&p.b), IBV_QPS_ERR);
        pair_close(&p);
    }
}

static void a_receive_into_an_mr_without_local_write_gives_local_protection_error(void **state)
{
    const struct end_attr attr_a = attr_of(IBV_QPT_RC);
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.mr_access = IBV_ACCESS_REMOTE_READ;
    pair_open(&p, &attr_a, &attr);
    end_connect(&p.a, &p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 4096));
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_PROT_ERR);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_OP_ERR);
    pair_close(&p);
}

static void a_bad_local_key_or_range_gives_local_protection_error(void **state)
{
    const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                          IBV_WR_ATOMIC_FETCH_AND_ADD};

    for (unsigned int variant = 0; variant < 4; variant++) {
        for (size_t i = 0; i < COUNT(opcodes); i++) {
            struct send send;
            struct pair p;

            pair_connect(&p, IBV_QPT_RC);
            send = opcodes[i] == IBV_WR_ATOMIC_FETCH_AND_ADD ? make_atomic(&p) : make_write(&p);
            send.wr.opcode = opcodes[i];
            if (variant == 0)
                send.sge[0].lkey ^= 0x5a5a00;
            else if (variant == 1)
                send.sge[0].lkey = 0;
            else if (variant == 2)
                send.sge[0].addr += p.a.attr.size - 4;
            else
                send.sge[0].lkey = p.a.rkey;
            end_send(&p.a, send);
            end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_PROT_ERR);
            assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
            pair_close(&p);
        }
    }
}

static void a_read_or_atomic_into_an_mr_without_local_write_gives_local_protection_error(void **state)
{
    const struct end_attr attr_b = attr_of(IBV_QPT_RC);

    for (unsigned int i = 0; i < 2; i++) {
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct pair p;

        attr.mr_access = IBV_ACCESS_REMOTE_READ;
        pair_open(&p, &attr, &attr_b);
        end_connect(&p.a, &p.b);
        end_send(&p.a, i ? make_read(&p) : make_atomic(&p));
        end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_PROT_ERR);
        pair_close(&p);
    }
}

static void a_send_may_come_from_an_mr_without_any_right(void **state)
{
    const struct end_attr attr_b = attr_of(IBV_QPT_RC);
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.mr_access = 0;
    pair_open(&p, &attr, &attr_b);
    end_connect(&p.a, &p.b);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void a_read_with_max_rd_atomic_0_gives_local_qp_operation_error(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.max_rd_atomic = 0;
    pair_connect_as(&p, &attr);
    end_send(&p.a, make_read(&p));
    end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_QP_OP_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    pair_close(&p);
}

static void a_send_longer_than_the_port_allows_gives_local_length_error(void **state)
{
    struct ibv_port_attr port;
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    assert_int_equal(ibv_query_port(p.a.context, p.a.port, &port), 0);
    if (port.max_msg_sz > 0x80000000u)
        skip_because("there is no longer message");
    send = a_write(&p.a, 1, 0, 8, &p.b, 0);
    /* two SGEs: one cannot be longer than 32 bits say */
    send.wr.num_sge = 2;
    send.sge[0].length = port.max_msg_sz;
    send.sge[1] = send.sge[0];
    send.sge[1].length = 1;
    end_send(&p.a, send);
    end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_LEN_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    pair_close(&p);
}

static void a_bad_receive_for_a_write_with_immediate_is_not_looked_at(void **state)
{
    struct send send;
    struct recv recv;
    struct pair p;

    /* its scatter list is not used (§3.1), so its keys do not matter */
    pair_connect(&p, IBV_QPT_RC);
    recv = a_recv(&p.b, 3, 0, 64);
    recv.sge[0].lkey ^= 0x5a5a00;
    end_recv(&p.b, recv);
    send = make_write(&p);
    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    end_send(&p.a, send);
    end_expect_success(&p.b, RQ, 3, IBV_WC_RECV_RDMA_WITH_IMM);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    pair_close(&p);
}

/* The receive that the immediate was for carries the news (§3.10). */
static void a_bad_rkey_of_a_write_with_immediate_gives_local_access_error(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_fill(&p.b, 0, 64, 1);
    end_recv(&p.b, a_recv(&p.b, 3, 1024, 64));
    end_recv(&p.b, a_recv(&p.b, 4, 1024, 64));
    send = make_bad_key(&p);
    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    end_send(&p.a, send);
    end_expect_status(&p.b, RQ, 3, IBV_WC_LOC_ACCESS_ERR);
    end_expect_status(&p.b, RQ, 4, IBV_WC_WR_FLUSH_ERR);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    end_wait_state(&p.b, IBV_QPS_ERR);
    end_expect_data(&p.b, 0, 64, 1);
    pair_close(&p);
}

static void rnr_retries_run_out(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.rnr_retry = 2;
    pair_connect_as(&p, &attr);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_send(&p.a, a_send(&p.a, 2, 0, 64));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    end_expect_status(&p.a, SQ, 2, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTS); /* it did nothing wrong */
    pair_close(&p);
}

static void rnr_retry_0_fails_at_the_first_rnr(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct send send;
    struct pair p;

    attr.rnr_retry = 0;
    attr.min_rnr_timer = 0; /* the longest */
    pair_connect_as(&p, &attr);
    send = make_write(&p);
    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    end_send(&p.a, send);
    end_expect_status(&p.a, SQ, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    pair_close(&p);
}

/* With a timer of 10 µs, more than seven rounds pass while another QP exchanges messages. */
static void rnr_retry_7_retries_for_ever(void **state)
{
    struct end a2, b2;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_share(&a2, &p.a);
    end_share(&b2, &p.b);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    for (const uint64_t begin = now_ns(); now_ns() - begin < 50000000u;) {
        end_connect(&a2, &b2);
        pair_marker(&a2, &b2);
        CHECK_ZERO(end_to_state(&a2, IBV_QPS_RESET));
        CHECK_ZERO(end_to_state(&b2, IBV_QPS_RESET));
    }
    assert_int_equal(end_poll_once(&p.a, SQ, (struct ibv_wc[1]){0}, 1), 0);
    assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
    end_close_qp(&a2);
    end_close_qp(&b2);
    pair_close(&p);
}

static void a_receive_posted_late_is_found_after_an_rnr(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    attr.min_rnr_timer = 14; /* 1.28 ms */
    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < 50; i++) {
        end_fill(&p.a, 0, 3000, i);
        end_send(&p.a, a_send(&p.a, i, 0, 3000));
        end_recv(&p.b, a_recv(&p.b, i, 0, 3000));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_data(&p.b, 0, 3000, i);
    }
    pair_close(&p);
}

static void a_qp_number_that_nobody_owns_is_a_silent_peer(void **state)
{
    const struct end_attr attr = short_timeouts();
    struct pair p;

    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    p.b.qp_num ^= 0x3c0000;
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_send(&p.a, a_send(&p.a, 2, 0, 64));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    end_expect_status(&p.a, SQ, 2, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
    pair_close(&p);
}

static void a_destroyed_peer_is_silent(void **state)
{
    struct end_attr attr = short_timeouts();
    struct pair p;

    attr.timeout = 13; /* 34 ms, four times: the marker arrives on a busy machine, too */
    attr.retry_cnt = 3;
    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    end_close_qp(&p.b);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    pair_close(&p);
}

static void a_peer_that_is_connected_elsewhere_does_not_answer(void **state)
{
    struct end stranger;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_share(&stranger, &p.a);
    stranger.attr.timeout = 8; /* 1 ms */
    stranger.attr.retry_cnt = 1;
    end_fill(&p.b, 0, 64, 5);
    end_to_init(&stranger);
    end_to_rtr(&stranger, &p.b);
    end_to_rts(&stranger);
    end_send(&stranger, a_write(&stranger, 1, 0, 64, &p.b, 0));
    end_expect_status(&stranger, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    end_expect_data(&p.b, 0, 64, 5);
    pair_marker(&p.a, &p.b); /* the real pair goes on */
    end_close_qp(&stranger);
    pair_close(&p);
}

static void timeout_0_waits_for_ever(void **state)
{
    struct end_attr attr = short_timeouts();
    struct end a2, nobody;
    struct pair p;

    /* a QP next to it that gives up many times over shows that time has passed */
    attr.timeout = 0;
    pair_open(&p, &attr, &attr);
    end_to_init(&p.a);
    end_to_init(&p.b); /* stays there: silent */
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_share(&a2, &p.a);
    a2.attr.timeout = 8;
    nobody = p.b;
    nobody.qp_num ^= 0x3c0000;
    for (unsigned int i = 0; i < 5; i++) {
        end_to_init(&a2);
        end_to_rtr(&a2, &nobody);
        end_to_rts(&a2);
        end_send(&a2, a_send(&a2, 100, 0, 64));
        end_expect_status(&a2, SQ, 100, IBV_WC_RETRY_EXC_ERR);
        CHECK_ZERO(end_to_state(&a2, IBV_QPS_RESET));
    }
    assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
    CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
    end_expect_status(&p.a, SQ, 1, IBV_WC_WR_FLUSH_ERR);
    end_close_qp(&a2);
    pair_close(&p);
}

static void uc_drops_a_message_without_a_receive_and_goes_on(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UC);
    end_poke64(&p.a, 8192, 4711);
    for (unsigned int i = 0; i < 5; i++) {
        end_send(&p.a, a_send(&p.a, i, 0, 3000));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    }
    end_send(&p.a, a_write(&p.a, 6, 8192, 8, &p.b, 8192)); /* behind them: when it is there they are gone */
    EVENTUALLY(end_peek64(&p.b, 8192) == 4711, "a write behind messages that nobody receives");
    end_expect_success(&p.a, SQ, 6, IBV_WC_RDMA_WRITE);
    pair_marker(&p.a, &p.b);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTS);
    pair_close(&p);
}

static void uc_drops_what_its_keys_forbid_and_goes_on(void **state)
{
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_UC);
    end_fill(&p.b, 0, 64, 1);
    send = make_bad_key(&p);
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    pair_marker(&p.a, &p.b);
    end_expect_data(&p.b, 0, 64, 1);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTS);
    pair_close(&p);
}

static void uc_receive_errors_take_the_receiver_to_error(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UC);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    end_send(&p.a, a_send(&p.a, 1, 0, 65));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_LEN_ERR);
    end_wait_state(&p.b, IBV_QPS_ERR);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_bad_rkey_or_range_gives_remote_access_error_and_a_qp_access_event),
        TEST(an_mr_without_the_permission_gives_remote_access_error),
        TEST(an_operation_that_the_qp_does_not_allow_gives_remote_invalid_request),
        TEST(an_rkey_of_another_pd_gives_remote_access_error),
        TEST(an_earlier_good_write_stays_when_a_later_one_is_refused),
        TEST(a_receive_too_short_gives_local_length_error_and_remote_invalid_request),
        TEST(a_bad_receive_key_gives_local_protection_error_and_remote_operation_error),
        TEST(a_receive_into_an_mr_without_local_write_gives_local_protection_error),
        TEST(a_bad_local_key_or_range_gives_local_protection_error),
        TEST(a_read_or_atomic_into_an_mr_without_local_write_gives_local_protection_error),
        TEST(a_send_may_come_from_an_mr_without_any_right),
        TEST(a_read_with_max_rd_atomic_0_gives_local_qp_operation_error),
        TEST(a_send_longer_than_the_port_allows_gives_local_length_error),
        TEST(a_bad_receive_for_a_write_with_immediate_is_not_looked_at),
        TEST(a_bad_rkey_of_a_write_with_immediate_gives_local_access_error),
        TEST(rnr_retries_run_out),
        TEST(rnr_retry_0_fails_at_the_first_rnr),
        TEST(rnr_retry_7_retries_for_ever),
        TEST(a_receive_posted_late_is_found_after_an_rnr),
        TEST(a_qp_number_that_nobody_owns_is_a_silent_peer),
        TEST(a_destroyed_peer_is_silent),
        TEST(a_peer_that_is_connected_elsewhere_does_not_answer),
        TEST(timeout_0_waits_for_ever),
        TEST(uc_drops_a_message_without_a_receive_and_goes_on),
        TEST(uc_drops_what_its_keys_forbid_and_goes_on),
        TEST(uc_receive_errors_take_the_receiver_to_error),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
