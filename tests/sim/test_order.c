/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What waits for what: verbs.md §2.5, §2.9, §3.6, §3.12, §4.5-4.6. */
#include "stage.h"

#define ACCESS                                                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void atomics_execute_in_order(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *result, *target;
    uint64_t *word;
    struct sim_wr wr = {.num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    result = sim_buffer(&sim->node[0], 64 * 8, IBV_ACCESS_LOCAL_WRITE);
    target = sim_buffer(&sim->node[1], 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    word = (uint64_t *)target->bytes + 3;
    *word = UINT64_MAX - 5;
    wr.rkey = target->rkey;
    wr.remote_address = target->address + 24;
    for (unsigned i = 0; i < 20; i++) {
        wr.wr_id = i;
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.compare_add = i;
        wr.sge[0] = SGE(result, i * 8, 8);
        sim_post_send(a, &wr);
    }
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.compare_add = 184;
    wr.swap = 7;
    wr.sge[0] = SGE(result, 160, 8);
    sim_post_send(a, &wr); /* matches */
    wr.sge[0] = SGE(result, 168, 8);
    sim_post_send(a, &wr); /* does not */
    sim_run(sim);
    assert_int_equal(a->sent_count, 22);
    for (unsigned i = 0; i < 20; i++) {
        assert_sent(a, i, i, VERDICT_OK);
        assert_int_equal(a->sent[i].byte_len, 8);
        assert_true(((uint64_t *)result->bytes)[i] == UINT64_MAX - 5 + i * (i - 1) / 2);
    }
    assert_int_equal(((uint64_t *)result->bytes)[20], 184);
    assert_int_equal(((uint64_t *)result->bytes)[21], 7);
    assert_int_equal(*word, 7);
}

/* Reads a word before, between and after two atomics: each response shows what was executed before it. */
static void atomics_wait_for_reads_before_them(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *result, *target;
    struct sim_wr wr = {.num_sge = 1, .compare_add = 10};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    result = sim_buffer(&sim->node[0], 5 * 8, IBV_ACCESS_LOCAL_WRITE);
    target = sim_buffer(&sim->node[1], 8, ACCESS);
    wr.rkey = target->rkey;
    wr.remote_address = target->address;
    for (unsigned i = 0; i < 5; i++) {
        wr.opcode = i & 1 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_RDMA_READ;
        wr.sge[0] = SGE(result, i * 8, 8);
        sim_queue_send(a, &wr);
    }
    sim_kick(a);
    sim_run(sim);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(((uint64_t *)result->bytes)[i], i / 2 * 10);
}

static unsigned sends_seen_at;

static void note_send(struct sim *sim, struct packet *packet)
{
    if (packet->opcode == OP_SEND_ONLY)
        sends_seen_at = sim->qps[0]->sent_count;
}

static void fence_waits_for_reads(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *local, *far;
    struct sim_wr wr = {.num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    local = sim_buffer(&sim->node[0], 50000, IBV_ACCESS_LOCAL_WRITE);
    far = sim_buffer(&sim->node[1], 50000, ACCESS);
    sim_post_recv(b, 0, &SGE(far, 0, 8), 1);
    sim_post_recv(b, 0, &SGE(far, 0, 8), 1);
    for (unsigned fence = 0; fence < 2; fence++) {
        wr.opcode = IBV_WR_RDMA_READ;
        wr.flags = 0;
        wr.rkey = far->rkey;
        wr.remote_address = far->address;
        wr.sge[0] = SGE(local, 0, 7000);
        sim_queue_send(a, &wr);
        sim_queue_send(a, &wr);
        wr.opcode = IBV_WR_SEND;
        wr.flags = fence ? WQE_FENCE : 0;
        wr.sge[0] = SGE(local, 0, 8);
        sim_queue_send(a, &wr);
        sim->on_packet = note_send;
        sim_kick(a);
        if (fence)
            assert_int_equal(a->record.sender.waiting, SENDER_WAITS_FOR_FENCE);
        sim_run(sim);
        if (fence)
            assert_int_equal(sends_seen_at, 5);
        else
            assert_in_range(sends_seen_at, 0, 1);
    }
    assert_int_equal(a->sent_count, 6);
    assert_sent(a, 5, 0, VERDICT_OK);
}

static unsigned most_reads;
static struct sim_qp *reader;

static void count_reads(struct sim *sim, struct packet *packet)
{
    most_reads = max_of(most_reads, reader->record.sender.rd_atomic_wqes);
}

static void read_depth_is_kept(struct sim *sim)
{
    for (unsigned depth = 1; depth <= 3; depth++) {
        struct sim_qp *a, *b;
        struct sim_buffer *local, *far;
        struct sim_wr wr = {.opcode = IBV_WR_RDMA_READ, .num_sge = 1};

        sim_pair(sim, IBV_QPT_RC, &a, &b);
        a->record.attributes.max_rd_atomic = (uint8_t)depth;
        b->record.responder.resources = depth;
        local = sim_buffer(&sim->node[0], 20000, IBV_ACCESS_LOCAL_WRITE);
        far = sim_buffer(&sim->node[1], 20000, ACCESS);
        wr.rkey = far->rkey;
        wr.remote_address = far->address;
        wr.sge[0] = SGE(local, 0, 4000);
        most_reads = 0;
        reader = a;
        sim->on_packet = count_reads;
        for (unsigned i = 0; i < 20; i++)
            sim_queue_send(a, &wr);
        sim_kick(a);
        assert_int_equal(a->record.sender.waiting, SENDER_WAITS_FOR_READ_DEPTH);
        sim_run(sim);
        assert_int_equal(a->sent_count, 20);
        assert_sent(a, 19, 0, VERDICT_OK);
        assert_int_equal(most_reads, depth);
    }
}

/* Posted one by one, more than the responder has resources for: on a link where responses may wait for a slow reader,
 * that is no error of the requester. */
static void reads_that_come_before_their_turn_are_asked_for_again(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

    sim_pattern(stage.far->bytes, 40000, 5);
    stage.a->record.attributes.max_rd_atomic = 16;
    stage.b->record.responder.resources = 1;
    sim->link.capacity = 3;
    for (unsigned i = 0; i < 10; i++)
        sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 10);
    assert_sent(stage.a, 9, 2, VERDICT_OK);
    assert_int_equal(stage.b->access_errors, 0);
    assert_true(stage.b->record.responder.drops > 0);
    assert_true(sim_is_pattern(stage.local->bytes, 40000, 5));
}

static void sqd_finishes_what_has_begun(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;
    struct sim_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    from = sim_buffer(&sim->node[0], 3000000, 0);
    to = sim_buffer(&sim->node[1], 3000000, ACCESS);
    wr.rkey = to->rkey;
    wr.remote_address = to->address;
    wr.sge[0] = SGE(from, 0, 3000000);
    for (unsigned i = 0; i < 3; i++)
        sim_queue_send(a, &wr);
    sender_run(&a->transport);
    assert_int_equal(a->record.sender.begun, sim->link.properties.reference_mtu ? 3 : 1);
    sim_set_state(a, IBV_QPS_SQD);
    assert_false(sender_is_drained(&a->transport));
    sim_kick(a);
    sim_run(sim);
    assert_int_equal(a->drained_count, 1);
    assert_true(sender_is_drained(&a->transport));
    assert_int_equal(a->sent_count, sim->link.properties.reference_mtu ? 3 : 1);
    sim_queue_send(a, &wr);
    sim_kick(a);
    sim_run(sim);
    assert_int_equal(a->record.sender.waiting, SENDER_WAITS_IN_SQD);
    sim_set_state(a, IBV_QPS_RTS);
    sim_kick(a);
    sim_run(sim);
    assert_int_equal(a->sent_count, 4);
    assert_int_equal(a->drained_count, 1);
}

static void comm_est_once_before_rts(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;
    struct sim_wr wr = {.opcode = IBV_WR_SEND, .num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    sim_to_rtr(b, a, a->record.attributes.sq_psn);
    from = sim_buffer(&sim->node[0], 8, 0);
    to = sim_buffer(&sim->node[1], 8, ACCESS);
    wr.sge[0] = SGE(from, 0, 8);
    for (unsigned i = 0; i < 3; i++) {
        sim_post_recv(b, 0, &SGE(to, 0, 8), 1);
        sim_post_send(a, &wr);
        sim_run(sim);
    }
    assert_int_equal(b->received_count, 3);
    assert_int_equal(b->comm_est, 1);
    assert_int_equal(a->comm_est, 0);
}

static void windows_are_bound_and_invalidated_in_order(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *local, *far;
    uint32_t window = sim_window(&sim->node[1], KEY_MW_TYPE_2), rkey = window + 1;
    struct sim_wr bind = {.wr_id = 1, .opcode = IBV_WR_BIND_MW}, wr = {.num_sge = 1},
                  invalidate = {.wr_id = 3};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    local = sim_buffer(&sim->node[0], 64, IBV_ACCESS_LOCAL_WRITE);
    far = sim_buffer(&sim->node[1], 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    rkey = (window & ~0xffu) | ((window + 1) & 0xff);
    bind.bind = (struct mw_bind){.mw_rkey = window,
                                 .new_rkey = rkey,
                                 .region_lkey = far->lkey,
                                 .address = far->address,
                                 .length = 32,
                                 .access = IBV_ACCESS_REMOTE_WRITE};
    sim_post_send(b, &bind);
    sim_run(sim);
    assert_sent(b, 0, 1, VERDICT_OK);

    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.rkey = rkey;
    wr.remote_address = far->address;
    wr.sge[0] = SGE(local, 0, 32);
    memset(local->bytes, 5, 32);
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_sent(a, 0, 0, VERDICT_OK);
    assert_int_equal(far->bytes[31], 5);

    /* The receive reports the invalidation by the peer's SEND. */
    sim_post_recv(b, 9, &SGE(far, 32, 32), 1);
    wr.opcode = IBV_WR_SEND_WITH_INV;
    wr.imm_or_rkey = rkey;
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_received(b, 0, 9, VERDICT_OK);
    assert_int_equal(b->received[0].wc_flags, IBV_WC_WITH_INV);
    assert_int_equal(b->received[0].imm_or_rkey, rkey);

    /* Bound again, then invalidated here, behind a SEND in flight: completed in posting order. */
    sim_post_recv(a, 0, &SGE(local, 0, 8), 1);
    wr = (struct sim_wr){.wr_id = 2, .opcode = IBV_WR_SEND, .num_sge = 1, .sge = {SGE(far, 0, 8)}};
    bind.bind.mw_rkey = rkey;
    bind.bind.new_rkey = (rkey & ~0xffu) | ((rkey + 1) & 0xff);
    invalidate.opcode = IBV_WR_LOCAL_INV;
    invalidate.imm_or_rkey = bind.bind.new_rkey;
    sim_queue_send(b, &wr);
    sim_queue_send(b, &bind);
    sim_queue_send(b, &invalidate);
    invalidate.wr_id = 4; /* it is not valid any more */
    sim_queue_send(b, &invalidate);
    sim_kick(b);
    assert_int_equal(b->sent_count, 1);
    sim_run(sim);
    assert_sent(b, 1, 2, VERDICT_OK);
    assert_sent(b, 2, 1, VERDICT_OK);
    assert_sent(b, 3, 3, VERDICT_OK);
    assert_sent(b, 4, 4, VERDICT_MW_BIND);
    assert_int_equal(b->sender_failures, 1);
}

static void *map_later(struct transport_qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                       enum remote_operation operation)
{
    qp->map_later = true;
    return NULL;
}

static bool never(struct transport_qp *qp, uint32_t rkey, uint64_t address, uint32_t length)
{
    return false;
}

static void request_waits_for_memory_that_is_mapped(struct sim *sim)
{
    static const struct transport_direct_ports direct = {.map = map_later, .goes_by_packets = never};
    static struct transport_ports ports;
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 100);

    ports = *stage.a->transport.ports;
    ports.direct = &direct;
    stage.a->transport.ports = &ports;
    stage.a->transport.link.direct_up_to = SIZE;
    sim_post_send(stage.a, &stage.wr);
    assert_int_equal(stage.a->record.sender.waiting, SENDER_WAITS_FOR_MAPPING);
    stage.a->transport.link.direct_up_to = 0; /* it was not mapped */
    stage.a->transport.map_later = false;
    sim_kick(stage.a);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
}

static void request_waits_for_those_before_the_end_of_losses(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 100);

    sim_lose(stage.a, true);
    sim_post_send(stage.a, &stage.wr);
    sim_lose(stage.a, false);
    sim_post_send(stage.a, &stage.wr);
    assert_int_equal(stage.a->record.sender.waiting, SENDER_WAITS_AFTER_LOSSES);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 2);
    assert_sent(stage.a, 1, 2, VERDICT_OK);
}

static const struct scenario scenarios[] = {
    SCENARIO(atomics_execute_in_order),
    SCENARIO(atomics_wait_for_reads_before_them),
    SCENARIO(fence_waits_for_reads),
    SCENARIO(read_depth_is_kept),
    SCENARIO_ON(reads_that_come_before_their_turn_are_asked_for_again, ON_RING),
    SCENARIO(sqd_finishes_what_has_begun),
    SCENARIO(comm_est_once_before_rts),
    SCENARIO(windows_are_bound_and_invalidated_in_order),
    SCENARIO_ON(request_waits_for_memory_that_is_mapped, ON_RING),
    SCENARIO_ON(request_waits_for_those_before_the_end_of_losses, ON_RING),
};

int main(int argc, char **argv)
{
    return run_scenarios("order", scenarios, array_size(scenarios), argc, argv);
}
