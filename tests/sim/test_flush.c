/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Atomic write and FLUSH (IBA A19; verbs.md §3.9): requests whose response has no payload. */
#include "rules/flush.h"
#include "stage.h"

#define RIGHTS (ACCESS | ACCESS_FLUSH_GLOBAL)

static void give_rights(struct stage *stage)
{
    struct sim *sim = stage->b->node->sim;

    keys_change_region(sim->node[1].keys, stage->far->slot, SIM_PD, RIGHTS, stage->far->address, SIZE,
                       stage->far->address);
}

static struct stage set_flush(struct sim *sim, uint32_t length)
{
    struct stage stage = set_stage(sim, (enum ibv_wr_opcode)WR_FLUSH, length);

    give_rights(&stage);
    stage.wr.imm_or_rkey = FLUSH_GLOBAL | FLUSH_RANGE << FLUSH_LEVEL_SHIFT;
    return stage;
}

static void atomic_write_stores_a_word(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
    uint64_t *word = (uint64_t *)stage.far->bytes + 5, value = 0x1122334455667788;

    stage.wr.remote_address += 40;
    memcpy(stage.local->bytes, &value, 8);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_true(*word == value);
    assert_true(word[-1] == word[1]);
    stage.wr.num_sge = 0;
    stage.wr.flags = WQE_INLINE;
    stage.wr.inline_data = &value;
    stage.wr.inline_length = 8;
    for (value = 0; value < 20; value++)
        sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 21);
    assert_int_equal(*word, 19);
    assert_int_equal(sim->delivered[OP_ATOMIC_WRITE], 21);
    assert_int_equal(sim->delivered[OP_READ_RESPONSE_ONLY], 21);
    assert_int_equal(stage.a->record.sender.rd_atomic_wqes, 0);
    assert_int_equal(stage.b->received_count, 0);
}

/* Reads a word before, between and after two atomic writes: each response shows what was executed before it. */
static void atomic_writes_wait_for_reads_before_them(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 8);
    struct sim_wr write = stage.wr;
    uint64_t value;

    write.opcode = IBV_WR_ATOMIC_WRITE;
    write.num_sge = 0;
    write.flags = WQE_INLINE;
    write.inline_data = &value;
    write.inline_length = 8;
    memset(stage.far->bytes, 0, 8);
    for (unsigned i = 0; i < 5; i++) {
        value = i + 100;
        stage.wr.sge[0] = SGE(stage.local, i * 8, 8);
        sim_queue_send(stage.a, i & 1 ? &write : &stage.wr);
    }
    sim_kick(stage.a);
    sim_run(sim);
    for (unsigned i = 0; i < 5; i += 2)
        assert_int_equal(((uint64_t *)stage.local->bytes)[i], i ? 99 + i : 0);
}

static uint64_t *watched;
static unsigned answers, requests;

static bool loses_first_answer(struct sim *sim, const struct packet *packet)
{
    return packet->opcode == OP_READ_RESPONSE_ONLY && !answers++;
}

/* The program changes the word before the request comes again. */
static void change_before_repetition(struct sim *sim, struct packet *packet)
{
    if (packet->opcode == OP_ATOMIC_WRITE && requests++)
        *watched = 99;
}

static void repeated_atomic_write_is_not_executed_again(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);

    answers = requests = 0;
    watched = (uint64_t *)stage.far->bytes;
    sim->loses = loses_first_answer;
    sim->on_packet = change_before_repetition;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_true(requests > 1);
    assert_int_equal(*watched, 99);
}

static void lost_answer_of_flush_is_asked_for_again(struct sim *sim)
{
    struct stage stage = set_flush(sim, SIZE);

    answers = 0;
    sim->loses = loses_first_answer;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_true(sim->delivered[OP_FLUSH] > 1);
}

static const struct stage *flushed;

static void expect_all_written(struct sim_qp *qp, const struct sim_completion *completion)
{
    if (completion->wr_id == 2)
        assert_true(sim_is_pattern(flushed->far->bytes, SIZE, 1));
}

static void flush_completes_behind_the_writes_before_it(struct sim *sim)
{
    struct stage stage = set_flush(sim, 8);
    struct sim_wr write = stage.wr;

    flushed = &stage;
    sim->on_sent = expect_all_written;
    write.wr_id = 1;
    write.opcode = IBV_WR_RDMA_WRITE;
    write.sge[0] = SGE(stage.local, 0, SIZE);
    for (uint32_t level = FLUSH_RANGE; level <= FLUSH_REGION; level++) {
        memset(stage.far->bytes, 0, SIZE);
        stage.wr.imm_or_rkey = FLUSH_GLOBAL | level << FLUSH_LEVEL_SHIFT;
        sim_queue_send(stage.a, &write);
        sim_queue_send(stage.a, &stage.wr);
        sim_kick(stage.a);
        sim_run(sim);
        /* Of the whole region, whatever range is named. */
        stage.wr.remote_address += SIZE;
    }
    assert_int_equal(stage.a->sent_count, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_sent(stage.a, i, 1 + i % 2, VERDICT_OK);
    assert_int_equal(sim->delivered[OP_FLUSH], 2);
}

static void flush_may_be_of_nothing(struct sim *sim)
{
    struct stage stage = set_flush(sim, 0);

    stage.wr.remote_address += SIZE + 1000;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
}

static void expect_here(struct stage *stage, enum verdict verdict)
{
    sim_post_send(stage->a, &stage->wr);
    sim_run(stage->a->node->sim);
    assert_sent(stage->a, 0, 2, verdict);
    assert_int_equal(stage->b->access_errors + stage->b->request_errors, 0);
}

static void expect_refusal(struct stage *stage, enum verdict verdict)
{
    sim_post_send(stage->a, &stage->wr);
    sim_run(stage->a->node->sim);
    assert_sent(stage->a, 0, 2, verdict);
    assert_int_equal(stage->b->access_errors, 1);
    assert_int_equal(stage->b->record.state, IBV_QPS_ERR);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(stage->far->bytes[i], stage->far->bytes[64]);
}

static void both_take_a_place_among_reads(struct sim *sim)
{
    for (unsigned i = 0; i < 2; i++) {
        struct stage stage = i ? set_flush(sim, 8) : set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);

        stage.a->record.attributes.max_rd_atomic = 0;
        expect_here(&stage, VERDICT_LOCAL_QP_OPERATION);
        stage = i ? set_flush(sim, 8) : set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
        stage.b->record.responder.resources = 0;
        expect_refusal(&stage, VERDICT_INVALID_REQUEST);
    }
}

static void atomic_write_is_of_one_aligned_word(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 7);

    expect_here(&stage, VERDICT_LOCAL_LENGTH);
    stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
    stage.wr.remote_address += 4;
    expect_refusal(&stage, VERDICT_INVALID_REQUEST);
}

static void atomic_write_needs_the_right_to_write(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);

    stage.b->record.attributes.access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    expect_refusal(&stage, VERDICT_INVALID_REQUEST);
    stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
    keys_change_region(sim->node[1].keys, stage.far->slot, SIM_PD, ACCESS & ~IBV_ACCESS_REMOTE_WRITE,
                       stage.far->address, SIZE, stage.far->address);
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
    stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
    stage.wr.remote_address += SIZE;
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
    stage = set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
    stage.wr.rkey ^= 1;
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
}

static void flush_needs_the_right_to_flush(struct sim *sim)
{
    struct stage stage = set_flush(sim, 8);

    stage.b->record.attributes.access_flags &= ~ACCESS_FLUSH_GLOBAL;
    expect_refusal(&stage, VERDICT_INVALID_REQUEST);
    stage = set_flush(sim, 8);
    keys_change_region(sim->node[1].keys, stage.far->slot, SIM_PD, ACCESS, stage.far->address, SIZE,
                       stage.far->address);
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
    /* The QP may, the region may not. */
    stage = set_flush(sim, 8);
    stage.b->record.attributes.access_flags |= ACCESS_FLUSH_PERSISTENT;
    stage.wr.imm_or_rkey = FLUSH_GLOBAL | FLUSH_PERSISTENT;
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
    stage = set_flush(sim, 8);
    stage.wr.rkey ^= 1;
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
    stage = set_flush(sim, 9);
    stage.wr.remote_address += SIZE - 8;
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
    stage = set_flush(sim, 8);
    stage.wr.rkey = sim_window(&sim->node[1], KEY_MW_TYPE_2);
    expect_refusal(&stage, VERDICT_REMOTE_ACCESS);
}

static void flush_of_an_unknown_kind_is_refused(struct sim *sim)
{
    static const uint32_t kinds[] = {0, 4, FLUSH_GLOBAL | 8, FLUSH_GLOBAL | 2 << FLUSH_LEVEL_SHIFT,
                                     FLUSH_GLOBAL | 3 << FLUSH_LEVEL_SHIFT};

    for (unsigned i = 0; i < array_size(kinds); i++) {
        struct stage stage = set_flush(sim, 8);

        stage.wr.imm_or_rkey = kinds[i];
        expect_refusal(&stage, VERDICT_INVALID_REQUEST);
    }
}

/* After it was accepted, and before it is executed. */
static void a_key_that_goes_is_noticed(struct sim *sim)
{
    struct packet packet;

    for (unsigned i = 0; i < 2; i++) {
        struct stage stage = i ? set_flush(sim, 8) : set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
        struct responder *responder = &stage.b->record.responder;

        packet = (struct packet){
            .opcode = i ? OP_FLUSH : OP_ATOMIC_WRITE,
            .flush = FLUSH_GLOBAL,
            .rkey = stage.far->rkey,
            .address = stage.far->address,
            .dma_length = 8,
            .payload = stage.local->bytes,
            .payload_length = i ? 0 : 8,
            .pkey = 0xffff,
            .src_qpn = stage.a->record.qpn,
            .dest_qpn = stage.b->record.qpn,
            .psn = responder->expected_psn,
        };
        assert_true(transport_receive(&stage.b->transport, &packet));
        assert_true(responder_owes(&stage.b->transport));
        keys_withdraw(sim->node[1].keys, stage.far->slot);
        sim_kick(stage.b);
        assert_int_equal(stage.b->access_errors, 1);
        assert_int_equal(stage.b->record.state, IBV_QPS_ERR);
        assert_int_not_equal(((uint64_t *)stage.far->bytes)[0], ((uint64_t *)stage.local->bytes)[0]);
        sim_drop_packets(sim);
    }
}

static void expect_bad_answer(struct sim *sim, bool flush, uint8_t operation, uint32_t length,
                              uint8_t syndrome)
{
    static const unsigned char bytes[64];
    struct stage stage = flush ? set_flush(sim, 8) : set_stage(sim, IBV_WR_ATOMIC_WRITE, 8);
    struct packet packet = {
        .opcode = operation,
        .pkey = 0xffff,
        .src_qpn = stage.b->record.qpn,
        .dest_qpn = stage.a->record.qpn,
        .psn = stage.a->record.sender.next_psn,
        .payload = bytes,
        .payload_length = length,
        .syndrome = syndrome,
    };

    sim_post_send(stage.a, &stage.wr);
    sim_inject(stage.a, &packet);
    assert_sent(stage.a, 0, 2, VERDICT_BAD_RESPONSE);
    assert_int_equal(stage.a->record.state, IBV_QPS_ERR);
    sim_drop_packets(sim);
}

static void answers_of_the_wrong_kind_are_bad(struct sim *sim)
{
    for (unsigned flush = 0; flush < 2; flush++) {
        expect_bad_answer(sim, flush, OP_READ_RESPONSE_ONLY, 8, 0);
        expect_bad_answer(sim, flush, OP_READ_RESPONSE_FIRST, 0, 0);
        expect_bad_answer(sim, flush, OP_READ_RESPONSE_ONLY, 0, SYNDROME_NAK << 5);
        expect_bad_answer(sim, flush, OP_ATOMIC_ACKNOWLEDGE, 0, 0);
    }
}

static void expect_bad_request(struct sim *sim, uint32_t announced, uint32_t brought, uint8_t flags)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet_reference reference = {.address = (uintptr_t)stage.local->bytes, .length = brought};
    struct packet packet = {
        .opcode = OP_ATOMIC_WRITE,
        .flags = flags,
        .rkey = stage.far->rkey,
        .address = stage.far->address,
        .dma_length = announced,
        .payload = flags ? NULL : stage.local->bytes,
        .payload_length = brought,
        .reference = &reference,
        .reference_count = flags ? 1 : 0,
        .pkey = 0xffff,
        .src_qpn = stage.a->record.qpn,
        .dest_qpn = stage.b->record.qpn,
        .psn = stage.b->record.responder.expected_psn,
    };

    sim_inject(stage.b, &packet);
    assert_int_equal(stage.b->access_errors, 1);
    assert_int_equal(stage.b->record.state, IBV_QPS_ERR);
    sim_drop_packets(sim);
}

static void an_atomic_write_of_another_length_is_refused(struct sim *sim)
{
    expect_bad_request(sim, 8, 4, 0);
    expect_bad_request(sim, 8, 0, 0);
    expect_bad_request(sim, 4, 4, 0);
    expect_bad_request(sim, 16, 8, 0);
    expect_bad_request(sim, 8, 8, PACKET_BY_REFERENCE);
}

static const struct scenario scenarios[] = {
    SCENARIO(atomic_write_stores_a_word),
    SCENARIO(atomic_writes_wait_for_reads_before_them),
    SCENARIO_ON(repeated_atomic_write_is_not_executed_again, ON_WIRE),
    SCENARIO_ON(lost_answer_of_flush_is_asked_for_again, ON_WIRE),
    SCENARIO(flush_completes_behind_the_writes_before_it),
    SCENARIO(flush_may_be_of_nothing),
    SCENARIO(both_take_a_place_among_reads),
    SCENARIO(atomic_write_is_of_one_aligned_word),
    SCENARIO(atomic_write_needs_the_right_to_write),
    SCENARIO(flush_needs_the_right_to_flush),
    SCENARIO(flush_of_an_unknown_kind_is_refused),
    SCENARIO(a_key_that_goes_is_noticed),
    SCENARIO(answers_of_the_wrong_kind_are_bad),
    SCENARIO(an_atomic_write_of_another_length_is_refused),
};

int main(int argc, char **argv)
{
    return run_scenarios("flush", scenarios, array_size(scenarios), argc, argv);
}
