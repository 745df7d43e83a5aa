/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §5.6: extended completion queues. The near end's CQs are extended ones here. */
#include "work.h"

#include <arpa/inet.h>
#include <time.h>

static const uint64_t offered = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                                IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                                IBV_WC_EX_WITH_DLID_PATH_BITS;

/* A pair whose near QP completes in one extended CQ */
static struct ibv_cq_ex *connect_ex(struct pair *p, enum ibv_qp_type type, uint64_t wc_flags, uint32_t flags)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 200,
                                          .wc_flags = wc_flags,
                                          .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
                                          .flags = flags,
                                          .cq_context = p};
    const struct end_attr attr = attr_of(type);
    struct ibv_qp_init_attr init = {.qp_type = type, .cap = attr.cap};
    struct ibv_cq_ex *cq;

    pair_open(p, &attr, &attr);
    cq = ibv_create_cq_ex(p->a.context, &cq_attr);
    assert_non_null(cq);
    assert_int_equal(ibv_destroy_qp(p->a.qp), 0);
    assert_int_equal(ibv_destroy_cq(p->a.send_cq), 0);
    assert_int_equal(ibv_destroy_cq(p->a.recv_cq), 0);
    p->a.send_cq = p->a.recv_cq = ibv_cq_ex_to_cq(cq);
    init.send_cq = init.recv_cq = p->a.send_cq;
    p->a.qp = ibv_create_qp(p->a.pd, &init);
    assert_non_null(p->a.qp);
    p->a.qp_num = p->a.qp->qp_num;
    end_connect(&p->a, &p->b);
    return cq;
}

static void start(struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attr = {0};
    int error = ENOENT;

    EVENTUALLY(error == 0, "ibv_start_poll to find a completion")
    {
        error = ibv_start_poll(cq, &attr);
        CHECK(error == 0 || error == ENOENT, "ibv_start_poll: %d", error);
    }
}

static void an_extended_cq_is_initialised_like_a_plain_one(void **state)
{
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    assert_ptr_equal(cq->context, p.a.context);
    assert_ptr_equal(cq->cq_context, &p);
    assert_true(cq->cqe >= 200);
    assert_null(cq->channel);
    assert_int_equal(cq->comp_events_completed, 0);
    assert_ptr_equal(ibv_cq_ex_to_cq(cq), (struct ibv_cq *)(void *)cq);
    pair_close(&p);
}

static void start_poll_is_enoent_on_an_empty_cq_and_holds_nothing(void **state)
{
    struct ibv_poll_cq_attr attr = {0};
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    for (unsigned int i = 0; i < 3; i++)
        assert_int_equal(ibv_start_poll(cq, &attr), ENOENT); /* no end_poll between: no lock was left */
    pair_marker(&p.a, &p.b);                                 /* through ibv_poll_cq */
    assert_int_equal(ibv_start_poll(cq, &attr), ENOENT);
    pair_close(&p);
}

static void start_poll_refuses_a_comp_mask(void **state)
{
    struct ibv_poll_cq_attr attr = {.comp_mask = 1};
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    assert_int_equal(ibv_start_poll(cq, &attr), EINVAL);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void next_poll_walks_and_end_poll_must_follow_enoent(void **state)
{
    struct ibv_cq_ex *cq;
    unsigned int seen = 0;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    for (unsigned int i = 0; i < 20; i++)
        end_send(&p.a, a_write(&p.a, i, 0, 64, &p.b, 0));
    while (seen < 20) {
        int error;

        start(cq);
        do {
            assert_int_equal(cq->wr_id, seen++);
            assert_int_equal(cq->status, IBV_WC_SUCCESS);
            assert_int_equal(ibv_wc_read_opcode(cq), IBV_WC_RDMA_WRITE);
            assert_int_equal(ibv_wc_read_qp_num(cq), p.a.qp_num);
            error = ibv_next_poll(cq);
        } while (!error);
        assert_int_equal(error, ENOENT);
        ibv_end_poll(cq);
    }
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void what_was_polled_frees_its_slots(void **state)
{
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    for (unsigned int i = 0; i < 1000; i++) {
        end_send(&p.a, a_write(&p.a, i, 0, 8, &p.b, 0));
        start(cq);
        assert_int_equal(cq->wr_id, i);
        ibv_end_poll(cq);
    }
    pair_close(&p);
}

static void readers_tell_what_a_plain_completion_tells(void **state)
{
    struct ibv_cq_ex *cq;
    struct send send;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    end_recv(&p.a, a_recv(&p.a, 5, 0, 100));
    end_send(&p.b, a_send_imm(&p.b, 1, 0, 77, 0xabcdef01));
    start(cq);
    assert_int_equal(cq->wr_id, 5);
    assert_int_equal(cq->status, IBV_WC_SUCCESS);
    assert_int_equal(ibv_wc_read_opcode(cq), IBV_WC_RECV);
    assert_int_equal(ibv_wc_read_byte_len(cq), 77);
    assert_int_equal(ibv_wc_read_imm_data(cq), htonl(0xabcdef01));
    assert_int_equal(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
    assert_int_equal(ibv_wc_read_qp_num(cq), p.a.qp_num);
    assert_int_equal(ibv_wc_read_vendor_err(cq), 0);
    ibv_end_poll(cq);
    end_expect_success(&p.b, SQ, 1, IBV_WC_SEND);
    /* an RDMA read, and a write with immediate */
    end_send(&p.a, a_read(&p.a, 6, 0, 99, &p.b, 0));
    start(cq);
    assert_int_equal(ibv_wc_read_opcode(cq), IBV_WC_RDMA_READ);
    assert_int_equal(ibv_wc_read_byte_len(cq), 99);
    ibv_end_poll(cq);
    send = a_write(&p.b, 7, 0, 33, &p.a, 0);
    send.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send.wr.imm_data = htonl(9);
    end_recv(&p.a, a_recv(&p.a, 8, 0, 0));
    end_send(&p.b, send);
    start(cq);
    assert_int_equal(cq->wr_id, 8);
    assert_int_equal(ibv_wc_read_opcode(cq), IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(ibv_wc_read_byte_len(cq), 33);
    assert_int_equal(ibv_wc_read_imm_data(cq), htonl(9));
    ibv_end_poll(cq);
    pair_close(&p);
}

static void failures_have_status_id_and_qp_number(void **state)
{
    struct ibv_cq_ex *cq;
    struct send send;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    send = a_write(&p.a, 3, 0, 8, &p.b, 0);
    send.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.a, send);
    start(cq);
    assert_int_equal(cq->wr_id, 3);
    assert_int_equal(cq->status, IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(ibv_wc_read_qp_num(cq), p.a.qp_num);
    (void)ibv_wc_read_vendor_err(cq);
    ibv_end_poll(cq);
    pair_close(&p);
}

static void ud_readers_tell_the_source(void **state)
{
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_UD, offered, 0);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 1000));
    end_send(&p.b, a_datagram(&p.b, 2, 0, 200, &p.a));
    start(cq);
    assert_int_equal(cq->wr_id, 1);
    assert_int_equal(ibv_wc_read_byte_len(cq), 240);
    assert_int_equal(ibv_wc_read_src_qp(cq), p.b.qp_num);
    assert_int_equal(ibv_wc_read_slid(cq), 0);
    assert_true(ibv_wc_read_wc_flags(cq) & IBV_WC_GRH);
    (void)ibv_wc_read_sl(cq);
    (void)ibv_wc_read_dlid_path_bits(cq);
    ibv_end_poll(cq);
    pair_close(&p);
}

static void a_reader_exists_for_every_flag_that_was_granted(void **state)
{
    const struct {
        uint64_t flag;
        size_t slot;
    } readers[] = {
        {0, offsetof(struct ibv_cq_ex, read_opcode)},
        {0, offsetof(struct ibv_cq_ex, read_vendor_err)},
        {0, offsetof(struct ibv_cq_ex, read_wc_flags)},
        {0, offsetof(struct ibv_cq_ex, start_poll)},
        {0, offsetof(struct ibv_cq_ex, next_poll)},
        {0, offsetof(struct ibv_cq_ex, end_poll)},
        {IBV_WC_EX_WITH_BYTE_LEN, offsetof(struct ibv_cq_ex, read_byte_len)},
        {IBV_WC_EX_WITH_IMM, offsetof(struct ibv_cq_ex, read_imm_data)},
        {IBV_WC_EX_WITH_QP_NUM, offsetof(struct ibv_cq_ex, read_qp_num)},
        {IBV_WC_EX_WITH_SRC_QP, offsetof(struct ibv_cq_ex, read_src_qp)},
        {IBV_WC_EX_WITH_SLID, offsetof(struct ibv_cq_ex, read_slid)},
        {IBV_WC_EX_WITH_SL, offsetof(struct ibv_cq_ex, read_sl)},
        {IBV_WC_EX_WITH_DLID_PATH_BITS, offsetof(struct ibv_cq_ex, read_dlid_path_bits)},
        {IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, offsetof(struct ibv_cq_ex, read_completion_ts)},
        {IBV_WC_EX_WITH_CVLAN, offsetof(struct ibv_cq_ex, read_cvlan)},
        {IBV_WC_EX_WITH_FLOW_TAG, offsetof(struct ibv_cq_ex, read_flow_tag)},
        {IBV_WC_EX_WITH_TM_INFO, offsetof(struct ibv_cq_ex, read_tm_info)},
        {IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
         offsetof(struct ibv_cq_ex, read_completion_wallclock_ns)},
    };
    struct ibv_context *context = open_the_device();

    for (size_t i = 0; i < COUNT(readers); i++) {
        struct ibv_cq_init_attr_ex attr = {.cqe = 1, .wc_flags = readers[i].flag};
        struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
        void *reader;

        if (!cq) {
            assert_int_equal(errno, EOPNOTSUPP);
            assert_true(readers[i].flag & ~offered); /* the standard ones must be there */
            continue;
        }
        memcpy(&reader, (char *)cq + readers[i].slot, sizeof reader);
        CHECK(reader, "flag 0x%llx was granted without a reader", (unsigned long long)readers[i].flag);
        assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    }
    ibv_close_device(context);
}

static void timestamps_are_monotonic(void **state)
{
    struct ibv_device_attr_ex device;
    struct ibv_context *context = open_the_device();
    struct ibv_cq_ex *cq;
    uint64_t last = 0;
    struct pair p;

    assert_int_equal(ibv_query_device_ex(context, NULL, &device), 0);
    ibv_close_device(context);
    if (!device.completion_timestamp_mask)
        skip_because("no completion timestamps");
    assert_true(device.hca_core_clock > 0);
    cq = connect_ex(&p, IBV_QPT_RC, offered | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0);
    for (unsigned int i = 0; i < 100; i++) {
        end_send(&p.a, a_write(&p.a, i, 0, 64, &p.b, 0));
        start(cq);
        assert_true(ibv_wc_read_completion_ts(cq) >= last);
        last = ibv_wc_read_completion_ts(cq);
        ibv_end_poll(cq);
    }
    assert_true(last > 0);
    pair_close(&p);
}

static void wallclock_timestamps_are_of_now(void **state)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
    struct ibv_context *context = open_the_device();
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    struct timespec before, after;
    uint64_t at;
    struct pair p;

    if (!cq)
        skip_because("no wall clock timestamps");
    ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
    ibv_close_device(context);
    cq = connect_ex(&p, IBV_QPT_RC, offered | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0);
    clock_gettime(CLOCK_REALTIME, &before);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    start(cq);
    at = ibv_wc_read_completion_wallclock_ns(cq);
    ibv_end_poll(cq);
    clock_gettime(CLOCK_REALTIME, &after);
    /* a step of the clock in between is possible, but not by an hour */
    assert_true(at + 3600000000000u > (uint64_t)before.tv_sec * 1000000000u);
    assert_true(at < ((uint64_t)after.tv_sec + 3600) * 1000000000u);
    pair_close(&p);
}

static void a_single_threaded_cq_works(void **state)
{
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
    for (unsigned int i = 0; i < 100; i++) {
        end_send(&p.a, a_write(&p.a, i, 0, 64, &p.b, 0));
        start(cq);
        assert_int_equal(cq->wr_id, i);
        ibv_end_poll(cq);
    }
    pair_close(&p);
}

static void plain_polling_and_resizing_are_legal(void **state)
{
    struct ibv_cq_ex *cq;
    struct pair p;

    cq = connect_ex(&p, IBV_QPT_RC, offered, 0);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    assert_int_equal(ibv_resize_cq(ibv_cq_ex_to_cq(cq), 1000), 0);
    assert_true(cq->cqe >= 1000);
    end_send(&p.a, a_write(&p.a, 2, 0, 64, &p.b, 0));
    start(cq);
    assert_int_equal(cq->wr_id, 2);
    ibv_end_poll(cq);
    assert_int_equal(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0), 0);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(an_extended_cq_is_initialised_like_a_plain_one),
        TEST(start_poll_is_enoent_on_an_empty_cq_and_holds_nothing),
        TEST(start_poll_refuses_a_comp_mask),
        TEST(next_poll_walks_and_end_poll_must_follow_enoent),
        TEST(what_was_polled_frees_its_slots),
        TEST(readers_tell_what_a_plain_completion_tells),
        TEST(failures_have_status_id_and_qp_number),
        TEST(ud_readers_tell_the_source),
        TEST(a_reader_exists_for_every_flag_that_was_granted),
        TEST(timestamps_are_monotonic),
        TEST(wallclock_timestamps_are_of_now),
        TEST(a_single_threaded_cq_works),
        TEST(plain_polling_and_resizing_are_legal),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
