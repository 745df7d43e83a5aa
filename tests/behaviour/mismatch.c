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

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_message_of_packets_that_are_not_of_the_responders_mtu_is_refused),
        TEST(an_answer_in_packets_that_are_not_of_the_requesters_mtu_is_a_bad_response),
        TEST(atomics_have_no_packets_to_be_cut),
        TEST(uc_drops_messages_of_packets_that_are_not_of_the_receivers_mtu),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
