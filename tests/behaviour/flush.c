/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.9: FLUSH, as programs post it that were built with a newer header, and atomic write. */
#include "work.h"

/* What Debian 12's header does not have. */
enum {
    WR_FLUSH = 14,
    WC_FLUSH = 8,
    WITH_FLUSH = 1 << 11,
    ACCESS_GLOBAL = 1 << 8,
    ACCESS_PERSISTENT = 1 << 9,
    GLOBAL = 1,
    PERSISTENT = 2,
    RANGE = 0,
    REGION = 1
};
static const uint64_t device_flush_global = 1ull << 38, device_flush_persistent = 1ull << 39,
                      device_atomic_write = 1ull << 40;

static void wr_flush(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t address, size_t length, unsigned types,
                     unsigned level)
{
    ibv_wr_flush(qpx, rkey, address, length, (uint8_t)types, (uint8_t)level);
}

enum { LENGTH = 65536 };

static struct end_attr flushing(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.send_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE | WITH_FLUSH;
    attr.size = LENGTH;
    attr.mr_access |= ACCESS_GLOBAL;
    attr.qp_access |= ACCESS_GLOBAL;
    return attr;
}

static uint64_t at_b(const struct pair *p, size_t offset)
{
    return (uintptr_t)p->b.buf + offset;
}

static void flush_completes_behind_what_was_written(void **state)
{
    const struct end_attr attr = flushing();
    struct ibv_qp_ex *qpx;
    struct pair p;

    pair_connect_as(&p, &attr);
    for (unsigned level = RANGE; level <= REGION; level++) {
        end_fill(&p.a, 0, LENGTH, level + 1);
        qpx = begin_signaled(&p.a, 1);
        qpx->wr_flags = 0;
        ibv_wr_rdma_write(qpx, p.b.rkey, at_b(&p, 0));
        ibv_wr_set_sge(qpx, p.a.lkey, (uintptr_t)p.a.buf, LENGTH);
        qpx->wr_id = 2;
        qpx->wr_flags = IBV_SEND_SIGNALED;
        /* Of the region: whatever range is named. */
        wr_flush(qpx, p.b.rkey, level == RANGE ? at_b(&p, 0) : 1, LENGTH, GLOBAL, level);
        assert_int_equal(ibv_wr_complete(qpx), 0);
        end_expect_success(&p.a, SQ, 2, (enum ibv_wc_opcode)WC_FLUSH);
        end_expect_data(&p.b, 0, LENGTH, level + 1);
    }
    wr_flush(begin_signaled(&p.a, 3), p.b.rkey, at_b(&p, 0), 0, GLOBAL, RANGE);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 3, (enum ibv_wc_opcode)WC_FLUSH);
    pair_close(&p);
}

static void expect_refusal(const struct end_attr *far, unsigned types, uint32_t length,
                           enum ibv_wc_status status)
{
    const struct end_attr near = flushing();
    struct pair p;

    pair_open(&p, &near, far);
    end_connect(&p.a, &p.b);
    wr_flush(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0), length, types, RANGE);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_status(&p.a, SQ, 1, status);
    end_expect_event(&p.b, IBV_EVENT_QP_ACCESS_ERR);
    end_wait_state(&p.b, IBV_QPS_ERR);
    pair_close(&p);
}

static void flush_needs_the_rights(void **state)
{
    struct end_attr far = flushing();

    far.mr_access &= ~(unsigned)ACCESS_GLOBAL;
    expect_refusal(&far, GLOBAL, 8, IBV_WC_REM_ACCESS_ERR);
    far = flushing();
    far.qp_access &= ~(unsigned)ACCESS_GLOBAL;
    expect_refusal(&far, GLOBAL, 8, IBV_WC_REM_INV_REQ_ERR);
    far = flushing();
    expect_refusal(&far, GLOBAL, LENGTH + 1, IBV_WC_REM_ACCESS_ERR);
    /* No memory here is persistent. */
    expect_refusal(&far, PERSISTENT, 8, IBV_WC_REM_INV_REQ_ERR);
    far.qp_access |= ACCESS_PERSISTENT;
    expect_refusal(&far, GLOBAL | PERSISTENT, 8, IBV_WC_REM_ACCESS_ERR);
}

static void what_is_wrong_at_once_is_said_at_once(void **state)
{
    const struct end_attr attr = flushing();
    struct ibv_send_wr wr = {.opcode = (enum ibv_wr_opcode)WR_FLUSH}, *bad;
    struct pair p;

    pair_connect_as(&p, &attr);
    wr_flush(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0), 8, 0, RANGE);
    assert_int_equal(ibv_wr_complete(p.a.qpx), EINVAL);
    wr_flush(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0), 8, 4, RANGE);
    assert_int_equal(ibv_wr_complete(p.a.qpx), EINVAL);
    wr_flush(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0), 8, GLOBAL, 2);
    assert_int_equal(ibv_wr_complete(p.a.qpx), EINVAL);
    wr_flush(begin_signaled(&p.a, 1), p.b.rkey, at_b(&p, 0), 1ull << 32, GLOBAL, RANGE);
    assert_int_equal(ibv_wr_complete(p.a.qpx), EINVAL);
    /* There is no other way to post one. */
    assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), EINVAL);
    assert_ptr_equal(bad, &wr);
    assert_null(ibv_reg_mr_iova2(p.a.pd, p.a.buf, LENGTH, 0, IBV_ACCESS_LOCAL_WRITE | ACCESS_PERSISTENT));
    assert_int_equal(errno, EINVAL);
    wr_flush(begin_signaled(&p.a, 2), p.b.rkey, at_b(&p, 0), 8, GLOBAL, RANGE);
    assert_int_equal(ibv_wr_complete(p.a.qpx), 0);
    end_expect_success(&p.a, SQ, 2, (enum ibv_wc_opcode)WC_FLUSH);
    pair_close(&p);
}

static void only_reliable_types_have_it(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UC);
    struct ibv_qp_init_attr_ex init = {.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
    const uint64_t operations[] = {WITH_FLUSH, IBV_QP_EX_WITH_ATOMIC_WRITE};
    const enum ibv_qp_type types[] = {IBV_QPT_UC, IBV_QPT_UD};
    struct end end;

    end_open(&end, NEAR, &attr);
    init.pd = end.pd;
    init.send_cq = init.recv_cq = end.send_cq;
    init.cap = end.attr.cap;
    for (unsigned i = 0; i < 4; i++) {
        init.qp_type = types[i / 2];
        init.send_ops_flags = operations[i % 2];
        assert_null(ibv_create_qp_ex(end.context, &init));
        assert_int_equal(errno, EOPNOTSUPP);
    }
    end_close(&end);
}

static void the_device_says_so(void **state)
{
    struct ibv_device_attr_ex attributes;
    struct ibv_context *context = open_the_device();

    assert_int_equal(ibv_query_device_ex(context, NULL, &attributes), 0);
    assert_true(attributes.device_cap_flags_ex & device_flush_global);
    assert_true(attributes.device_cap_flags_ex & device_atomic_write);
    assert_false(attributes.device_cap_flags_ex & device_flush_persistent);
    assert_int_equal(ibv_close_device(context), 0);
}

static struct ibv_send_wr atomic_write(const struct pair *p, struct ibv_sge *sge, unsigned flags)
{
    return (struct ibv_send_wr){
        .wr_id = 1,
        .opcode = IBV_WR_ATOMIC_WRITE,
        .send_flags = IBV_SEND_SIGNALED | flags,
        .sg_list = sge,
        .num_sge = 1,
        .wr.rdma = {.remote_addr = at_b(p, 64), .rkey = p->b.rkey},
    };
}

static void atomic_write_is_posted_the_old_way_too(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_send_wr wr, *bad;
    struct ibv_sge sge;
    struct pair p;

    pair_connect_as(&p, &attr);
    for (unsigned i = 0; i < 2; i++) {
        end_poke64(&p.a, 0, 77 + i);
        sge = (struct ibv_sge){.addr = (uintptr_t)p.a.buf, .length = 8, .lkey = i ? 0 : p.a.lkey};
        wr = atomic_write(&p, &sge, i ? IBV_SEND_INLINE : 0);
        assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), 0);
        end_expect_success(&p.a, SQ, 1, IBV_WC_ATOMIC_WRITE);
        assert_int_equal(end_peek64(&p.b, 64), 77 + i);
    }
    sge.length = 4;
    assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), EINVAL);
    sge.length = 8;
    wr.wr.rdma.remote_addr += 4;
    assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), EINVAL);
    pair_close(&p);
}

static void expect_atomic_write(const struct end_attr *near, const struct end_attr *far, bool past_end,
                                enum ibv_wc_status status)
{
    struct ibv_send_wr wr, *bad;
    struct ibv_sge sge;
    struct pair p;

    pair_open(&p, near, far);
    end_connect(&p.a, &p.b);
    end_poke64(&p.a, 0, 1);
    sge = (struct ibv_sge){.addr = (uintptr_t)p.a.buf, .length = 8, .lkey = p.a.lkey};
    wr = atomic_write(&p, &sge, 0);
    if (past_end)
        wr.wr.rdma.remote_addr = at_b(&p, far->size);
    assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), 0);
    end_expect_status(&p.a, SQ, 1, status);
    assert_int_not_equal(end_peek64(&p.b, 64), 1);
    pair_close(&p);
}

static void atomic_write_needs_the_right_to_write(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end_attr other = attr;

    expect_atomic_write(&attr, &attr, true, IBV_WC_REM_ACCESS_ERR);
    other.mr_access &= ~(unsigned)IBV_ACCESS_REMOTE_WRITE;
    expect_atomic_write(&attr, &other, false, IBV_WC_REM_ACCESS_ERR);
    other = attr;
    other.qp_access &= ~(unsigned)IBV_ACCESS_REMOTE_WRITE;
    expect_atomic_write(&attr, &other, false, IBV_WC_REM_INV_REQ_ERR);
    /* It is answered, like a READ. */
    other = attr;
    other.max_rd_atomic = 0;
    expect_atomic_write(&other, &attr, false, IBV_WC_LOC_QP_OP_ERR);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(flush_completes_behind_what_was_written),
        TEST(flush_needs_the_rights),
        TEST(what_is_wrong_at_once_is_said_at_once),
        TEST(only_reliable_types_have_it),
        TEST(the_device_says_so),
        TEST(atomic_write_is_posted_the_old_way_too),
        TEST(atomic_write_needs_the_right_to_write),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
