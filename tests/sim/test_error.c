/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Errors, and by which completion or event each side reports them: verbs.md §2.6, §3.10, §4.3. */
#include "stage.h"

/* One that succeeds before (1), the one that does not (2), and two that are flushed (3, 4); likewise receives
 * (11...). */
static void post_among_others(struct stage *stage, const struct wqe_sge *receive)
{
    struct wqe_sge good = SGE(stage->far, 0, SIZE);
    struct sim_wr other = {
        .wr_id = 1, .opcode = IBV_WR_SEND, .num_sge = 1, .sge = {SGE(stage->local, 0, 100)}};

    sim_post_recv(stage->b, 11, &good, 1);
    sim_post_recv(stage->b, 12, receive ? receive : &good, 1);
    sim_post_recv(stage->b, 13, &good, 1);
    sim_queue_send(stage->a, &other);
    sim_queue_send(stage->a, &stage->wr);
    other.wr_id = 3;
    sim_queue_send(stage->a, &other);
    other.wr_id = 4;
    sim_queue_send(stage->a, &other);
    sim_kick(stage->a);
    sim_run(stage->a->node->sim);
}

/* First error first, then flushes, in order; nothing else. */
static void assert_requester(const struct stage *stage, enum verdict verdict)
{
    assert_sent(stage->a, 0, 1, VERDICT_OK);
    assert_sent(stage->a, 1, 2, verdict);
    assert_sent(stage->a, 2, 3, VERDICT_FLUSHED);
    assert_sent(stage->a, 3, 4, VERDICT_FLUSHED);
    assert_int_equal(stage->a->sent_count, 4);
    assert_int_equal(stage->a->sender_failures, 1);
    assert_int_equal(stage->a->record.state, IBV_QPS_ERR);
}

/* The responder reports the error by its receive, not by an event. */
static void assert_receive_fails(const struct stage *stage, enum verdict verdict)
{
    assert_received(stage->b, 0, 11, VERDICT_OK);
    assert_received(stage->b, 1, 12, verdict);
    assert_received(stage->b, 2, 13, VERDICT_FLUSHED);
    assert_int_equal(stage->b->received_count, 3);
    assert_int_equal(stage->b->access_errors + stage->b->request_errors, 0);
    assert_int_equal(stage->b->responder_failures, 1);
}

/* Without a receive to report it, the responder raises an event. */
static void assert_violation(const struct stage *stage)
{
    assert_received(stage->b, 0, 11, VERDICT_OK);
    assert_received(stage->b, 1, 12, VERDICT_FLUSHED);
    assert_int_equal(stage->b->access_errors, 1);
    assert_int_equal(stage->b->request_errors, 0);
    assert_int_equal(stage->b->responder_failures, 1);
}

static void assert_responder_untouched(const struct stage *stage)
{
    assert_int_equal(stage->b->received_count, 1);
    assert_int_equal(stage->b->responder_failures, 0);
    assert_int_equal(stage->b->record.state, IBV_QPS_RTS);
}

static void local_key(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 1000);

    stage.wr.sge[0].lkey = stage.local->rkey;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_PROTECTION);
    assert_responder_untouched(&stage);
}

static void local_key_of_second_sge(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 30000);

    stage.wr.num_sge = 2;
    stage.wr.sge[1] = SGE(stage.local, SIZE - 10, 11);
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_PROTECTION);
    assert_int_equal(stage.b->responder_failures, 0);
}

static void local_right_of_read(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 20000);
    struct sim_buffer *read_only = sim_buffer(&sim->node[0], SIZE, 0);

    stage.wr.sge[0] = SGE(read_only, 0, 20000);
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_PROTECTION);
    assert_responder_untouched(&stage);
}

static void message_too_long(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 1);
    struct sim_buffer *null = sim_null_region(&sim->node[0]);

    stage.wr.num_sge = 2;
    stage.wr.sge[1] = (struct wqe_sge){.length = LIMIT_MESSAGE, .lkey = null->lkey};
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_LENGTH);
    assert_responder_untouched(&stage);
}

static void atomic_result_of_wrong_size(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_FETCH_AND_ADD, 4);

    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_LENGTH);
    assert_responder_untouched(&stage);
}

static void read_without_depth(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 4);

    stage.a->record.attributes.max_rd_atomic = 0;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_QP_OPERATION);
    assert_responder_untouched(&stage);
}

static void unknown_operation(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_TSO, 4);

    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_LOCAL_QP_OPERATION);
    assert_responder_untouched(&stage);
}

static void receive_too_short(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 101);
    struct wqe_sge receive = SGE(stage.far, 0, 100);

    post_among_others(&stage, &receive);
    assert_requester(&stage, VERDICT_INVALID_REQUEST);
    assert_receive_fails(&stage, VERDICT_LOCAL_LENGTH);
}

static void receive_too_short_for_the_last_packet(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, SIZE);
    struct wqe_sge receive = SGE(stage.far, 0, SIZE - 1);

    post_among_others(&stage, &receive);
    assert_requester(&stage, VERDICT_INVALID_REQUEST);
    assert_receive_fails(&stage, VERDICT_LOCAL_LENGTH);
}

static void receive_key(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 10);
    struct wqe_sge receive = {.address = stage.far->address, .length = SIZE, .lkey = stage.far->rkey};

    post_among_others(&stage, &receive);
    assert_requester(&stage, VERDICT_REMOTE_OPERATION);
    assert_receive_fails(&stage, VERDICT_LOCAL_PROTECTION);
}

static void receive_key_of_long_message(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, SIZE);
    struct wqe_sge receive = {.address = stage.far->address, .length = SIZE, .lkey = stage.far->rkey};

    post_among_others(&stage, &receive);
    assert_requester(&stage, VERDICT_REMOTE_OPERATION);
    assert_receive_fails(&stage, VERDICT_LOCAL_PROTECTION);
}

static void receive_of_another_domain(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 10);

    stage.b->transport.receive_pd = SIM_PD + 1;
    keys_change_region(sim->node[1].keys, stage.far->slot, SIM_PD + 1, ACCESS, stage.far->address, SIZE,
                       stage.far->address);
    sim_post_recv(stage.b, 10, &SGE(stage.far, 0, SIZE), 1);
    post_among_others(&stage, NULL);
    assert_int_equal(stage.a->sent_count, 4);
    assert_sent(stage.a, 3, 4, VERDICT_OK);
    assert_received(stage.b, 3, 13, VERDICT_OK);
}

static void assert_nothing_written(const struct stage *stage)
{
    /* The first message of 100 bytes is there. */
    for (unsigned i = 100; i < SIZE; i++)
        assert_int_equal(stage->far->bytes[i], 0);
}

static void write_key(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 40000);

    stage.wr.rkey = stage.far->lkey;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
    assert_nothing_written(&stage);
}

static void write_beyond_the_end(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 40000);

    stage.wr.remote_address += SIZE - 39999;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
    assert_nothing_written(&stage);
}

static void write_that_wraps(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 40000);

    stage.wr.remote_address = UINT64_MAX - 100;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
    assert_nothing_written(&stage);
}

static void write_without_right_of_region(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
    struct sim_buffer *read_only = sim_buffer(&sim->node[1], SIZE, IBV_ACCESS_REMOTE_READ);

    stage.wr.rkey = read_only->rkey;
    stage.wr.remote_address = read_only->address;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
    assert_int_equal(read_only->bytes[0], 0);
}

static void write_without_right_of_qp(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);

    stage.b->record.attributes.access_flags = IBV_ACCESS_REMOTE_READ;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_INVALID_REQUEST);
    assert_violation(&stage);
}

static void write_of_other_domain(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);

    stage.b->record.pd = SIM_PD + 1;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
}

static void write_with_immediate_blames_the_receive(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE_WITH_IMM, 8);

    stage.wr.rkey ^= 1;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_receive_fails(&stage, VERDICT_LOCAL_ACCESS);
}

static void read_key(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

    stage.wr.rkey ^= 1;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
}

static void read_without_right_of_qp(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

    stage.b->record.attributes.access_flags = IBV_ACCESS_REMOTE_WRITE;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_INVALID_REQUEST);
    assert_violation(&stage);
}

static void more_reads_than_granted(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

    stage.b->record.responder.resources = 0;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_INVALID_REQUEST);
    assert_violation(&stage);
}

static void atomic_out_of_line(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);

    stage.wr.remote_address += 4;
    stage.wr.compare_add = 1;
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_INVALID_REQUEST);
    assert_violation(&stage);
}

static void atomic_without_right(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_CMP_AND_SWP, 8);

    keys_change_region(sim->node[1].keys, stage.far->slot, SIM_PD, ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC,
                       stage.far->address, SIZE, stage.far->address);
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_violation(&stage);
}

static void send_with_invalid_invalidation(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND_WITH_INV, 8);

    stage.wr.imm_or_rkey = stage.far->rkey; /* a plain region */
    post_among_others(&stage, NULL);
    assert_requester(&stage, VERDICT_REMOTE_ACCESS);
    assert_receive_fails(&stage, VERDICT_REMOTE_ACCESS);
}

static void key_withdrawn(struct sim *sim, void *argument)
{
    struct sim_buffer *far = argument;

    keys_withdraw(sim->node[1].keys, far->slot);
}

/* A READ that was valid when it came loses its key during the response. */
static void read_whose_key_goes_away(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, SIZE);
    unsigned packets = (SIZE + sim->link.properties.mtu - 1) / sim->link.properties.mtu;

    sim->link.capacity = 3;
    sim_at(sim, sim->link.delay * 2 + 50, key_withdrawn, stage.far);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_REMOTE_ACCESS);
    assert_int_equal(stage.b->access_errors, 1);
    assert_in_range(sim->delivered[OP_READ_RESPONSE_FIRST] + sim->delivered[OP_READ_RESPONSE_MIDDLE], 1,
                    packets - 1);
}

static void errors_of_both_sides_flush_each_once(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
    struct sim_wr back = {.wr_id = 20, .opcode = IBV_WR_SEND, .num_sge = 1, .sge = {SGE(stage.far, 0, 8)}};

    stage.wr.rkey ^= 1;
    sim_post_recv(stage.a, 30, &SGE(stage.local, 0, 8), 1);
    sim_post_recv(stage.a, 31, &SGE(stage.local, 0, 8), 1);
    sim_queue_send(stage.b, &back);
    back.wr_id = 21;
    back.sge[0].lkey = 1;
    sim_queue_send(stage.b, &back);
    sim_kick(stage.b);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.b->sent_count, 2);
    assert_int_equal(stage.a->sent_count, 1);
    assert_int_equal(stage.a->received_count, 2);
    assert_int_equal(stage.a->record.state, IBV_QPS_ERR);
    assert_int_equal(stage.b->record.state, IBV_QPS_ERR);
}

/* A receive that is being filled when the QP is moved to ERR is flushed before those that were not taken. */
static void error_in_the_middle_of_a_message(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, SIZE);

    sim->link.capacity = 2;
    stage.b->own.posted = 0;
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, SIZE), 1);
    sim_post_recv(stage.b, 12, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, sim->link.delay * 2);
    assert_int_equal(stage.b->received_count, 0);
    sim_to_error(stage.b);
    assert_received(stage.b, 0, 11, VERDICT_FLUSHED);
    assert_received(stage.b, 1, 12, VERDICT_FLUSHED);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(stage.b->received_count, 2);
}

static void unreadable_references(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (unsigned i = 0; i < array_size(opcodes); i++) {
        struct stage stage = set_stage(sim, opcodes[i], 40000);

        sim->refuse_pull = true;
        post_among_others(&stage, NULL);
        /* Whose memory it is, whose fault it is. */
        assert_requester(&stage, opcodes[i] == IBV_WR_RDMA_READ ? VERDICT_REMOTE_OPERATION
                                                                : VERDICT_LOCAL_PROTECTION);
        assert_int_equal(stage.b->responder_failures, 0);
        assert_int_equal(stage.b->access_errors, 0);
        assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
    }
}

/* verbs.md §2.6: a program may reuse its buffer once its QP is in ERR, whatever is in flight. */
static void no_answer_is_placed_after_the_error(struct sim *sim)
{
    for (ns_t half = 1; half < 4; half++) {
        struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

        sim_pattern(stage.far->bytes, SIZE, 2);
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, sim->link.delay * half / 2);
        assert_int_equal(stage.a->sent_count, 0);
        sim_to_error(stage.a);
        assert_sent(stage.a, 0, 2, VERDICT_FLUSHED);
        sim_pattern(stage.local->bytes, SIZE, 3);
        sim_run(sim);
        assert_true(sim_is_pattern(stage.local->bytes, SIZE, 3));
        assert_int_equal(stage.a->sent_count, 1);
    }
}

static void no_answer_is_placed_without_its_region(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

    sim_pattern(stage.far->bytes, SIZE, 2);
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, sim->link.delay);
    keys_withdraw(sim->node[0].keys, stage.local->slot);
    sim_pattern(stage.local->bytes, SIZE, 3);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_LOCAL_PROTECTION);
    assert_true(sim_is_pattern(stage.local->bytes, SIZE, 3));
}

/* Two connections with packets in flight; the first one's QP is moved to ERR. */
struct lenders {
    struct stage stage[2];
};

static struct lenders set_lenders(struct sim *sim, enum ibv_wr_opcode opcode, enum ibv_qp_type type)
{
    struct lenders lenders;

    for (unsigned i = 0; i < 2; i++) {
        struct stage *stage = &lenders.stage[i];

        *stage = set_stage(sim, opcode, 40000);
        if (type == IBV_QPT_UC)
            sim_pair(sim, type, &stage->a, &stage->b);
        stage->a->record.attributes.retry_count = stage->a->record.sender.retries_left = 0;
        sim_pattern(stage->far->bytes, SIZE, 3);
        if (opcode == IBV_WR_SEND)
            sim_post_recv(stage->b, 7, &SGE(stage->far, 0, SIZE), 1);
        sim_post_send(stage->a, &stage->wr);
    }
    return lenders;
}

/* verbs.md §2.6: the program may reuse its buffer, so what the peer finds there is no message. */
static void what_was_taken_back_is_not_received(struct sim *sim)
{
    struct lenders lenders = set_lenders(sim, IBV_WR_SEND, IBV_QPT_RC);
    struct stage *first = &lenders.stage[0], *second = &lenders.stage[1];

    sim_run_for(sim, sim->link.delay / 2);
    sim_to_error(first->a);
    assert_sent(first->a, 0, 2, VERDICT_FLUSHED);
    sim_pattern(first->local->bytes, SIZE, 9);
    sim_run(sim);
    assert_true(sim->voided >= 2);
    assert_int_equal(first->b->received_count, 0);
    sim_to_error(first->b);
    assert_received(first->b, 0, 7, VERDICT_FLUSHED);
    /* The other connection's message arrives, without using a retry. */
    assert_sent(second->a, 0, 2, VERDICT_OK);
    assert_received(second->b, 0, 7, VERDICT_OK);
    assert_true(sim_is_pattern(second->far->bytes, 40000, 1));
    assert_int_equal(second->a->record.sender.retransmissions, 1);
}

static void a_taken_back_write_is_not_acknowledged(struct sim *sim)
{
    struct lenders lenders = set_lenders(sim, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QPT_RC);
    struct stage *first = &lenders.stage[0], *second = &lenders.stage[1];

    sim_post_recv(first->b, 7, &SGE(first->far, 0, 0), 0);
    sim_post_recv(second->b, 7, &SGE(second->far, 0, 0), 0);
    sim_run_for(sim, sim->link.delay / 2);
    sim_to_error(first->a);
    sim_run(sim);
    assert_int_equal(first->b->received_count, 0);
    assert_sent(second->a, 0, 2, VERDICT_OK);
    assert_received(second->b, 0, 7, VERDICT_OK);
    assert_true(sim_is_pattern(second->far->bytes, 40000, 1));
}

static void what_uc_took_back_is_dropped(struct sim *sim)
{
    struct lenders lenders = set_lenders(sim, IBV_WR_SEND, IBV_QPT_UC);
    struct stage *first = &lenders.stage[0];

    sim_run_for(sim, sim->link.delay / 2);
    sim_to_error(first->a);
    sim_pattern(first->local->bytes, SIZE, 9);
    sim_run(sim);
    assert_int_equal(first->b->received_count, 0);
    assert_int_equal(first->b->record.state, IBV_QPS_RTS);
    assert_sent(lenders.stage[1].a, 0, 2, VERDICT_OK); /* unreliable */
    assert_int_equal(lenders.stage[1].b->received_count, 0);
}

/* Nothing is taken back that the peer is done with. */
static void what_was_received_is_not_taken_back(struct sim *sim)
{
    struct lenders lenders = set_lenders(sim, IBV_WR_SEND, IBV_QPT_RC);

    sim_run(sim);
    for (unsigned i = 0; i < 2; i++) {
        assert_sent(lenders.stage[i].a, 0, 2, VERDICT_OK);
        assert_received(lenders.stage[i].b, 0, 7, VERDICT_OK);
        sim_to_error(lenders.stage[i].a);
    }
    assert_int_equal(sim->node[0].reference_epoch, 0);
}

/* The responder's program has reset its QP, and reuses memory that a READ response exposed. */
static void a_taken_back_answer_is_no_answer(struct sim *sim)
{
    struct lenders lenders = set_lenders(sim, IBV_WR_RDMA_READ, IBV_QPT_RC);
    struct stage *first = &lenders.stage[0], *second = &lenders.stage[1];

    sim_run_for(sim, sim->link.delay * 3 / 2);
    transport_revoke(&first->b->transport);
    sim_set_state(first->b, IBV_QPS_RESET);
    sim_pattern(first->far->bytes, SIZE, 9);
    sim_run(sim);
    assert_sent(first->a, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_sent(second->a, 0, 2, VERDICT_OK);
    assert_true(sim_is_pattern(second->local->bytes, 40000, 3));
    assert_int_equal(sim->voided, 2);
}

static const struct scenario scenarios[] = {
    SCENARIO(local_key),
    SCENARIO(local_key_of_second_sge),
    SCENARIO(local_right_of_read),
    SCENARIO(message_too_long),
    SCENARIO(atomic_result_of_wrong_size),
    SCENARIO(read_without_depth),
    SCENARIO(unknown_operation),
    SCENARIO(receive_too_short),
    SCENARIO(receive_too_short_for_the_last_packet),
    SCENARIO(receive_key),
    SCENARIO(receive_key_of_long_message),
    SCENARIO(receive_of_another_domain),
    SCENARIO(write_key),
    SCENARIO(write_beyond_the_end),
    SCENARIO(write_that_wraps),
    SCENARIO(write_without_right_of_region),
    SCENARIO(write_without_right_of_qp),
    SCENARIO(write_of_other_domain),
    SCENARIO(write_with_immediate_blames_the_receive),
    SCENARIO(read_key),
    SCENARIO(read_without_right_of_qp),
    SCENARIO(more_reads_than_granted),
    SCENARIO(atomic_out_of_line),
    SCENARIO(atomic_without_right),
    SCENARIO(send_with_invalid_invalidation),
    SCENARIO_ON(read_whose_key_goes_away, ON_RING | ON_WIRE),
    SCENARIO(errors_of_both_sides_flush_each_once),
    SCENARIO_ON(error_in_the_middle_of_a_message, ON_RING | ON_WIRE),
    SCENARIO_ON(unreadable_references, ON_REFERENCES),
    SCENARIO_ON(no_answer_is_placed_after_the_error, ON_LOCAL),
    SCENARIO_ON(no_answer_is_placed_without_its_region, ON_REFERENCES),
    SCENARIO_ON(what_was_taken_back_is_not_received, ON_REFERENCES),
    SCENARIO_ON(a_taken_back_write_is_not_acknowledged, ON_REFERENCES),
    SCENARIO_ON(what_uc_took_back_is_dropped, ON_REFERENCES),
    SCENARIO_ON(what_was_received_is_not_taken_back, ON_REFERENCES),
    SCENARIO_ON(a_taken_back_answer_is_no_answer, ON_REFERENCES),
};

int main(int argc, char **argv)
{
    return run_scenarios("error", scenarios, array_size(scenarios), argc, argv);
}
