/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The two ends of a connection were given attributes that do not go together: what becomes of requests is the
 * same on every path, and what hardware makes of them. */
#include "work.h"

#include <stdio.h>

/* --- path MTU (IBA 9.7.2.1.3, 9.9.3) -------------------------------------------------------------------- */

static struct end_attr with_mtu(enum ibv_qp_type type, enum ibv_mtu mtu)
{
    struct end_attr attr = attr_of(type);

    attr.mtu = mtu;
    attr.size = 512 * 1024;
    attr.timeout = 12;
    return attr;
}

static void open_mtus(struct pair *p, enum ibv_qp_type type, enum ibv_mtu a, enum ibv_mtu b)
{
    const struct end_attr attr_a = with_mtu(type, a), attr_b = with_mtu(type, b);

    pair_open(p, &attr_a, &attr_b);
    end_connect(&p->a, &p->b);
}

static const struct {
    enum ibv_mtu a, b;
} mtus[] = {{IBV_MTU_1024, IBV_MTU_256}, {IBV_MTU_256, IBV_MTU_1024}};

/* What fits in one packet of either, and what does not. */
static const struct {
    size_t length;
    bool fits;
} lengths[] = {{0, true},     {1, true},     {256, true},   {257, false},   {1023, false},  {1024, false},
               {1025, false}, {2048, false}, {8192, false}, {30000, false}, {300000, false}};

static void expect_refused(struct pair *p)
{
    struct end_event event;

    end_expect_status(&p->a, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    assert_int_equal(end_state(&p->a), IBV_QPS_ERR);
    event = end_event(&p->b);
    assert_int_equal(event.type, IBV_EVENT_QP_REQ_ERR);
    assert_true(event.of_qp);
    end_wait_state(&p->b, IBV_QPS_ERR);
}

/* A responder knows packets of its own path MTU. */
static void a_message_of_packets_that_are_not_of_the_responders_mtu_is_refused(void **state)
{
    enum { SEND, WRITE, WRITE_IMM, KINDS };

    for (size_t m = 0; m < COUNT(mtus); m++) {
        for (size_t i = 0; i < COUNT(lengths); i++) {
            for (int kind = SEND; kind < KINDS; kind++) {
                const size_t length = lengths[i].length;
                struct send send;
                struct pair p;

                fprintf(stderr, "# mtus %zu, %zu bytes, kind %d\n", m, length, kind);
                open_mtus(&p, IBV_QPT_RC, mtus[m].a, mtus[m].b);
                end_fill(&p.a, 0, length, 7);
                end_fill(&p.b, 0, p.b.attr.size, 8);
                send = kind == SEND ? a_send(&p.a, 1, 0, length) : a_write(&p.a, 1, 0, length, &p.b, 0);
                if (kind == WRITE_IMM)
                    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                end_recv(&p.b, a_recv(&p.b, 2, 0, p.b.attr.size));
                end_send(&p.a, send);
                if (lengths[i].fits) {
                    end_expect_success(&p.a, SQ, 1, kind == SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE);
                    end_expect_data(&p.b, 0, length, 7);
                } else {
                    expect_refused(&p);
                    end_expect_status(&p.b, RQ, 2, IBV_WC_WR_FLUSH_ERR);
                    end_expect_data(&p.b, 0, p.b.attr.size, 8);
                }
                pair_close(&p);
            }
        }
    }
}

/* The responder answers in packets of its own, which are not what the requester waits for. */
static void an_answer_in_packets_that_are_not_of_the_requesters_mtu_is_a_bad_response(void **state)
{
    for (size_t m = 0; m < COUNT(mtus); m++) {
        for (size_t i = 0; i < COUNT(lengths); i++) {
            const size_t length = lengths[i].length;
            struct pair p;

            fprintf(stderr, "# mtus %zu, %zu bytes\n", m, length);
            open_mtus(&p, IBV_QPT_RC, mtus[m].a, mtus[m].b);
            end_fill(&p.b, 0, length, 7);
            end_send(&p.a, a_read(&p.a, 1, 0, length, &p.b, 0));
            if (lengths[i].fits) {
                end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
                end_expect_data(&p.a, 0, length, 7);
            } else {
                end_expect_status(&p.a, SQ, 1, IBV_WC_BAD_RESP_ERR);
                assert_int_equal(end_state(&p.a), IBV_QPS_ERR);
            }
            assert_int_equal(end_state(&p.b), IBV_QPS_RTS);
            pair_close(&p);
        }
    }
}

static void atomics_have_no_packets_to_be_cut(void **state)
{
    for (size_t m = 0; m < COUNT(mtus); m++) {
        struct pair p;

        open_mtus(&p, IBV_QPT_RC, mtus[m].a, mtus[m].b);
        end_poke64(&p.b, 0, 5);
        end_send(&p.a, a_fetch_add(&p.a, 1, 0, &p.b, 0, 3));
        end_expect_success(&p.a, SQ, 1, IBV_WC_FETCH_ADD);
        assert_int_equal(end_peek64(&p.b, 0), 8);
        pair_close(&p);
    }
}

static void uc_drops_messages_of_packets_that_are_not_of_the_receivers_mtu(void **state)
{
    for (size_t m = 0; m < COUNT(mtus); m++) {
        struct pair p;

        open_mtus(&p, IBV_QPT_UC, mtus[m].a, mtus[m].b);
        end_fill(&p.a, 0, 300000, 7);
        end_fill(&p.b, 0, 300000, 8);
        end_recv(&p.b, a_recv(&p.b, 2, 0, 300000));
        for (size_t i = 0; i < COUNT(lengths); i++) {
            if (lengths[i].fits)
                continue;
            end_send(&p.a, a_send(&p.a, 1, 0, lengths[i].length));
            end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
            end_send(&p.a, a_write(&p.a, 1, 0, lengths[i].length, &p.b, 0));
            end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        }
        end_send(&p.a, a_send(&p.a, 1, 0, 256));
        end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
        assert_int_equal(end_expect_success(&p.b, RQ, 2, IBV_WC_RECV).byte_len, 256);
        end_expect_data(&p.b, 0, 256, 7);
        pair_close(&p);
    }
}

/* --- READs and atomics (IBA 9.7.4.1.5) ------------------------------------------------------------------ */

enum { REQUESTS = 16 };

static void open_depths(struct pair *p, uint8_t asked, uint8_t granted)
{
    struct end_attr attr_a = attr_of(IBV_QPT_RC), attr_b = attr_a;

    attr_a.max_rd_atomic = asked;
    attr_b.max_dest_rd_atomic = granted;
    pair_open(p, &attr_a, &attr_b);
    end_connect(&p->a, &p->b);
}

static struct send read_or_atomic(struct pair *p, unsigned int i, bool atomic)
{
    return atomic ? a_fetch_add(&p->a, i, 8 * i, &p->b, 0, 1) : a_read(&p->a, i, 64 * i, 64, &p->b, 64 * i);
}

static void ask_together(struct pair *p, unsigned int count, bool atomic)
{
    struct send list[REQUESTS];

    for (unsigned int i = 0; i < count; i++)
        list[i] = read_or_atomic(p, i, atomic);
    end_send_list(&p->a, list, count);
}

/* One that was granted less than the other may ask, and is asked more at once. */
static void more_rd_atomic_requests_at_once_than_were_granted_are_refused(void **state)
{
    static const struct {
        uint8_t asked, granted;
        unsigned int count;
    } cases[] = {{16, 1, 16}, {16, 1, 2}, {16, 4, 5}, {2, 1, 16}, {5, 4, 16}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int atomic = 0; atomic < 2; atomic++) {
            bool failed = false;
            struct pair p;

            fprintf(stderr, "# %u of %u asked, %u granted, atomics: %d\n", cases[i].count, cases[i].asked,
                    cases[i].granted, atomic);
            open_depths(&p, cases[i].asked, cases[i].granted);
            pair_marker(&p.a, &p.b);
            ask_together(&p, cases[i].count, atomic);
            for (unsigned int k = 0; k < cases[i].count; k++) {
                const struct ibv_wc wc = end_wc(&p.a, SQ);

                assert_int_equal(wc.wr_id, k);
                if (k < cases[i].granted)
                    assert_int_equal(wc.status, IBV_WC_SUCCESS);
                else
                    assert_int_equal(wc.status, failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_INV_REQ_ERR);
                failed = wc.status != IBV_WC_SUCCESS;
            }
            assert_true(failed);
            end_wait_state(&p.b, IBV_QPS_ERR);
            pair_close(&p);
        }
    }
}

static void as_many_rd_atomic_requests_as_were_granted_are_executed_however_many_wait(void **state)
{
    static const struct {
        uint8_t asked, granted;
        unsigned int count;
    } cases[] = {{1, 1, 16}, {4, 4, 16}, {16, 16, 16}, {16, 4, 4}, {3, 16, 16}, {16, 1, 1}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int atomic = 0; atomic < 2; atomic++) {
            struct pair p;

            open_depths(&p, cases[i].asked, cases[i].granted);
            for (unsigned int turn = 0; turn < 20; turn++) {
                ask_together(&p, cases[i].count, atomic);
                for (unsigned int k = 0; k < cases[i].count; k++)
                    end_expect_success(&p.a, SQ, k, atomic ? IBV_WC_FETCH_ADD : IBV_WC_RDMA_READ);
            }
            pair_close(&p);
        }
    }
}

/* Who asks one after the other never has more than one under way, whatever it might. */
static void one_rd_atomic_request_after_the_other_is_executed_whatever_was_granted(void **state)
{
    struct pair p;

    open_depths(&p, 16, 1);
    for (unsigned int turn = 0; turn < 200; turn++) {
        end_send(&p.a, read_or_atomic(&p, turn % REQUESTS, turn & 1));
        end_expect_success(&p.a, SQ, turn % REQUESTS, turn & 1 ? IBV_WC_FETCH_ADD : IBV_WC_RDMA_READ);
    }
    pair_close(&p);
}

/* A READ is one request, however long it is and in however many parts a requester sends it. */
static void a_long_read_is_one_request(void **state)
{
    struct end_attr attr_a = attr_of(IBV_QPT_RC), attr_b;
    struct pair p;

    attr_a.size = 1 << 20;
    attr_a.max_rd_atomic = 16;
    attr_b = attr_a;
    attr_b.max_dest_rd_atomic = 1;
    pair_open(&p, &attr_a, &attr_b);
    end_connect(&p.a, &p.b);
    for (unsigned int turn = 0; turn < 5; turn++) {
        end_fill(&p.b, 0, attr_b.size, turn);
        end_send(&p.a, a_read(&p.a, turn, 0, attr_a.size, &p.b, 0));
        end_expect_success(&p.a, SQ, turn, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 0, attr_a.size, turn);
    }
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_message_of_packets_that_are_not_of_the_responders_mtu_is_refused),
        TEST(an_answer_in_packets_that_are_not_of_the_requesters_mtu_is_a_bad_response),
        TEST(atomics_have_no_packets_to_be_cut),
        TEST(uc_drops_messages_of_packets_that_are_not_of_the_receivers_mtu),
        TEST(more_rd_atomic_requests_at_once_than_were_granted_are_refused),
        TEST(as_many_rd_atomic_requests_as_were_granted_are_executed_however_many_wait),
        TEST(one_rd_atomic_request_after_the_other_is_executed_whatever_was_granted),
        TEST(a_long_read_is_one_request),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
