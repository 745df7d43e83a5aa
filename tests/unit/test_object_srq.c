/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Shared receive queues (verbs.md §6.1-6.2). */
#include "object/receive/srq.h"
#include "object_fixture.h"

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
}

static struct pd *pd;

static int open_all(void **state)
{
    return open_contexts(state) || pd_allocate(context, &pd);
}

static int close_all(void **state)
{
    return pd_deallocate(pd) || close_contexts(state);
}

static struct srq *make_srq(uint32_t max_wr, uint32_t max_sge)
{
    struct ibv_srq_attr attributes = {.max_wr = max_wr, .max_sge = max_sge, .srq_limit = 3};
    struct srq *srq;

    assert_int_equal(srq_create(pd, &pd, &attributes, false, &srq), 0);
    assert_true(attributes.max_wr >= max_wr);
    assert_true(attributes.max_sge >= max_sge);
    return srq;
}

static void post(struct srq *srq, uint64_t first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct ibv_sge sge = {.addr = 0x1000 + i, .length = 10 + i, .lkey = 20 + i};
        struct ibv_recv_wr wr = {.wr_id = first + i, .num_sge = 1, .sg_list = &sge}, *bad;

        assert_int_equal(srq_post(srq, &wr, &bad), 0);
    }
}

static struct recv_wqe *take(struct srq *srq)
{
    static _Alignas(8) char copy[RECV_WQE_SIZE(LIMIT_SRQ_SGE)];

    assert_int_equal(srq_take(srq, (struct recv_wqe *)copy, &(struct receive_queue){.depth = 0}), 0);
    return (struct recv_wqe *)copy;
}

static void arm(struct srq *srq, uint32_t limit)
{
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){.srq_limit = limit}, IBV_SRQ_LIMIT), 0);
}

static void assert_limit_event(struct srq *srq, bool expected)
{
    struct ibv_async_event event;
    struct ibv_srq_attr attributes;

    assert_int_equal(readable(context->verbs.context.async_fd), expected);
    if (!expected)
        return;
    assert_int_equal(async_get(&context->events, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_ptr_equal(event.element.srq, &srq->ibv);
    async_ack(&event);
    assert_int_equal(srq_query(srq, &attributes), 0);
    assert_int_equal(attributes.srq_limit, 0);
}

static void create_checks_limits(void **state)
{
    static const struct ibv_srq_attr bad[] = {
        {.max_wr = 0, .max_sge = 1},
        {.max_wr = LIMIT_SRQ_WR + 1, .max_sge = 1},
        {.max_wr = UINT32_MAX, .max_sge = 1},
        {.max_wr = 1, .max_sge = LIMIT_SRQ_SGE + 1},
    };

    for (size_t i = 0; i < array_size(bad); i++) {
        struct ibv_srq_attr attributes = bad[i];
        struct srq *srq;

        assert_int_equal(srq_create(pd, NULL, &attributes, false, &srq), -EINVAL);
    }
    struct srq *largest = make_srq(LIMIT_SRQ_WR, LIMIT_SRQ_SGE), *smallest = make_srq(1, 0);

    assert_ptr_equal(largest->ibv.srq_context, &pd);
    assert_ptr_equal(largest->ibv.pd, &pd->ibv);
    assert_int_equal(pd_deallocate(pd), -EBUSY);
    assert_int_equal(srq_destroy(largest), 0);
    assert_int_equal(srq_destroy(smallest), 0);
}

static void receives_are_taken_in_order(void **state)
{
    struct srq *srq = make_srq(3, 4);
    struct ibv_srq_attr attributes;
    struct recv_wqe copy;

    assert_int_equal(srq_query(srq, &attributes), 0);
    assert_int_equal(srq_take(srq, &copy, &(struct receive_queue){.depth = 0}), -ENOENT);
    for (unsigned round = 0; round < 5; round++) {
        post(srq, 100 * round, attributes.max_wr);
        for (unsigned i = 0; i < attributes.max_wr; i++) {
            struct recv_wqe *wqe = take(srq);

            assert_int_equal(wqe->wr_id, 100 * round + i);
            assert_int_equal(wqe->num_sge, 1);
            assert_int_equal(wqe->sge[0].address, 0x1000 + i);
            assert_int_equal(wqe->sge[0].length, 10 + i);
            assert_int_equal(wqe->sge[0].lkey, 20 + i);
        }
    }
    assert_int_equal(srq_destroy(srq), 0);
}

static void a_bad_wr_keeps_those_before_it(void **state)
{
    struct srq *srq = make_srq(2, 2);
    struct ibv_sge sge[3] = {{0}};
    struct ibv_recv_wr wr[4] = {{.wr_id = 1, .next = &wr[1], .num_sge = 2, .sg_list = sge},
                                {.wr_id = 2, .next = &wr[2], .num_sge = 3, .sg_list = sge},
                                {.wr_id = 3, .next = &wr[3]},
                                {.wr_id = 4}};
    struct ibv_recv_wr *bad = NULL;

    assert_int_equal(srq_post(srq, &wr[0], &bad), -EINVAL);
    assert_ptr_equal(bad, &wr[1]);
    wr[1].num_sge = -1;
    assert_int_equal(srq_post(srq, &wr[1], &bad), -EINVAL);
    wr[1].num_sge = 0;
    assert_int_equal(srq_post(srq, &wr[1], &bad), -ENOMEM);
    assert_ptr_equal(bad, &wr[3]);
    for (uint64_t i = 1; i < 4; i++)
        assert_int_equal(take(srq)->wr_id, i);
    assert_int_equal(srq_destroy(srq), 0); /* what is posted is discarded */
}

static void limit_fires_once_when_crossed(void **state)
{
    struct srq *srq = make_srq(16, 1);

    post(srq, 0, 10);
    arm(srq, 7);
    for (int i = 0; i < 3; i++)
        take(srq);
    assert_limit_event(srq, false); /* seven are not below seven */
    take(srq);
    assert_limit_event(srq, true);
    take(srq);
    assert_limit_event(srq, false);
    arm(srq, 5);
    assert_limit_event(srq, false);
    arm(srq, 6); /* already below: at once */
    assert_limit_event(srq, true);
    arm(srq, 5);
    arm(srq, 0);
    take(srq);
    assert_limit_event(srq, false);
    assert_int_equal(srq_destroy(srq), 0);
}

static void modify_is_all_or_nothing(void **state)
{
    struct srq *srq = make_srq(4, 3);
    struct ibv_srq_attr attributes;

    post(srq, 0, 3);
    take(srq);
    post(srq, 3, 2);
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){.srq_limit = 8}, IBV_SRQ_LIMIT), -EINVAL);
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){.max_wr = 3}, IBV_SRQ_MAX_WR), -EINVAL);
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){.max_wr = 0}, IBV_SRQ_MAX_WR), -EINVAL);
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){.max_wr = LIMIT_SRQ_WR + 1}, IBV_SRQ_MAX_WR),
                     -EINVAL);
    assert_int_equal(
        srq_modify(srq, &(struct ibv_srq_attr){.max_wr = 8, .srq_limit = 16}, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT),
        -EINVAL);
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){0}, 1 << 5), -EINVAL);
    assert_int_equal(srq_query(srq, &attributes), 0);
    assert_int_equal(attributes.max_wr, 7);
    assert_int_equal(attributes.srq_limit, 0);

    assert_int_equal(
        srq_modify(srq, &(struct ibv_srq_attr){.max_wr = 8, .srq_limit = 2}, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT),
        0);
    post(srq, 5, 4);
    assert_int_equal(srq_query(srq, &attributes), 0);
    assert_int_equal(attributes.max_wr, 15);
    assert_int_equal(attributes.max_sge, 3);
    assert_int_equal(attributes.srq_limit, 2);
    for (uint64_t i = 1; i < 7; i++)
        assert_int_equal(take(srq)->wr_id, i);
    assert_limit_event(srq, false);
    assert_int_equal(srq_modify(srq, &(struct ibv_srq_attr){.max_wr = 2}, IBV_SRQ_MAX_WR), 0);
    assert_int_equal(take(srq)->wr_id, 7);
    assert_limit_event(srq, true);
    assert_int_equal(take(srq)->wr_id, 8);
    assert_int_equal(srq_destroy(srq), 0);
}

static void destroy_is_refused_while_used(void **state)
{
    struct srq *srq = make_srq(1, 1);

    assert_int_equal(srq_use(srq), 0);
    assert_int_equal(srq_destroy(srq), -EBUSY);
    post(srq, 1, 1);
    srq_unuse(srq);
    assert_int_equal(srq_destroy(srq), 0);
}

static void destroy_drops_an_unread_event(void **state)
{
    struct srq *srq = make_srq(1, 1);

    arm(srq, 1);
    assert_true(readable(context->verbs.context.async_fd));
    assert_int_equal(srq_destroy(srq), 0);
    assert_false(readable(context->verbs.context.async_fd));
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(create_checks_limits),           test(receives_are_taken_in_order),
        test(a_bad_wr_keeps_those_before_it), test(limit_fires_once_when_crossed),
        test(modify_is_all_or_nothing),       test(destroy_is_refused_while_used),
        test(destroy_drops_an_unread_event),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("object_srq", tests, NULL, NULL);
}
