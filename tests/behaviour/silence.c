/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs-contract §3.11: what a wire answers with silence ends on every path, and with the same status: a
 * reliable request with RETRY_EXC after the QP's own timeouts, all others as if somebody had heard them. */
#include "work.h"

static struct end_attr impatient(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.timeout = 8; /* 1 ms */
    attr.retry_cnt = 1;
    return attr;
}

/* --- responders that go away ---------------------------------------------------------------------------- */

enum { READS = 12, READ_SIZE = 1 << 20 };

/* What is answered is answered in order; then nobody is there. */
static void expect_reads_end(struct end *requester)
{
    enum ibv_wc_status last = IBV_WC_SUCCESS;

    for (unsigned int i = 0; i < READS; i++) {
        struct ibv_wc wc = end_wc(requester, SQ);

        assert_int_equal(wc.wr_id, i);
        if (last == IBV_WC_SUCCESS)
            assert_true(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_RETRY_EXC_ERR);
        else
            assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
        last = wc.status;
    }
}

/* The requester's process stands still, so that there is no room for all of the answers when the responder
 * goes. */
static void a_read_whose_responder_goes_in_mid_answer_ends(void **state)
{
    for (unsigned int round = 0; round < 12; round++) {
        struct end_attr attr = impatient();
        struct send list[READS];
        struct pair p;

        attr.retry_cnt = 3;
        attr.size = READ_SIZE;
        attr.max_rd_atomic = attr.max_dest_rd_atomic = READS;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, FAR, &attr);
        end_connect(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        for (unsigned int i = 0; i < READS; i++)
            list[i] = a_read(&p.b, i, 0, READ_SIZE, &p.a, 0);
        end_send_list(&p.b, list, READS);
        if (two_processes())
            side_stop(FAR);
        if (round % 3 == 0)
            end_close_qp(&p.a);
        else
            CHECK_ZERO(end_to_state(&p.a, round % 3 == 1 ? IBV_QPS_RESET : IBV_QPS_ERR));
        if (two_processes())
            side_continue(FAR);
        expect_reads_end(&p.b);
        pair_close(&p);
    }
}

/* Its last acknowledgement, too, finds no room; the message was received. */
static void a_send_that_was_received_is_acknowledged_though_the_receiver_is_gone(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct end_attr attr = impatient();
        struct send list[READS];
        struct end busy_a, busy_b;
        struct ibv_wc wc;
        struct pair p;

        attr.retry_cnt = 3;
        attr.size = READ_SIZE;
        attr.max_rd_atomic = attr.max_dest_rd_atomic = READS;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, FAR, &attr);
        end_connect(&p.a, &p.b);
        end_share(&busy_a, &p.a);
        end_share(&busy_b, &p.b);
        end_connect(&busy_a, &busy_b);
        pair_marker(&p.b, &p.a);
        end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
        for (unsigned int i = 0; i < READS; i++)
            list[i] = a_read(&busy_b, i, 0, READ_SIZE, &busy_a, 0);
        end_send_list(&busy_b, list, READS);
        end_send(&p.b, a_send(&p.b, 100, 0, 64));
        if (two_processes())
            side_stop(FAR);
        end_poll(&p.a, RQ, &wc, 1);
        check_success(&wc, 1, IBV_WC_RECV);
        if (round % 2)
            end_close_qp(&p.a);
        else
            CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
        end_close_qp(&busy_a);
        if (two_processes())
            side_continue(FAR);
        for (unsigned int i = 0; i <= READS; i++) {
            wc = end_wc(&p.b, SQ);
            if (wc.wr_id == 100)
                assert_int_equal(wc.status, IBV_WC_SUCCESS);
        }
        end_close_qp(&busy_b);
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_read_whose_responder_goes_in_mid_answer_ends, .fars = 1, .seconds = 120),
        TEST_WITH(a_send_that_was_received_is_acknowledged_though_the_receiver_is_gone, .fars = 1,
                  .seconds = 120),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
