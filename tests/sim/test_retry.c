/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Silence, losses, and receivers that are not ready: verbs.md §3.11, §3.12. */
#include "stage.h"

#include "rules/timing.h"

static void nobody_answers(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    ns_t begun = sim->now;

    sim->link.blackhole = true;
    stage.a->record.attributes.retry_count = 3;
    sender_start(&stage.a->transport);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(sim->packets - stage.a->record.sender.probes_sent, 4); /* retry_cnt + 1 */
    assert_int_equal(stage.a->record.sender.probes_sent, sim->link.properties.reliable ? 0 : 2);
    /* T each on a link that loses nothing, after a drop notice; else T, T, 2 T, 3 T,
     * and up to a quarter more of those that follow a repetition. */
    if (sim->link.properties.reliable)
        assert_int_equal(stage.a->failed_at - begun, 4 * timing_ack_timeout(14));
    else
        assert_in_range(stage.a->failed_at - begun, 7 * timing_ack_timeout(14),
                        17 * timing_ack_timeout(14) / 2);
}

static void nobody_answers_for_ever(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

    sim->link.blackhole = true;
    stage.a->record.attributes.timeout = 0;
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, 1000 * NS_PER_S);
    assert_int_equal(stage.a->sent_count, 0);
    assert_int_equal(sim->packets, 1);
    assert_int_equal(sim->events, 0);
}

/* The first packet, and each that follows a timeout, is answered with something else than it asks for, or
 * with nothing. In its next life the requester fares no better. */
static void psns_do_not_agree_by(struct sim *sim, enum ibv_wr_opcode opcode, uint32_t distance)
{
    struct stage stage = set_stage(sim, opcode, 8);
    struct sim_qp *a = stage.a;
    psn_t *expected = &stage.b->record.responder.expected_psn;

    *expected = psn_add(*expected, distance);
    sim->unjudged = true;
    sim_post_recv(stage.b, 1, &SGE(stage.far, 0, SIZE), 1);
    for (unsigned life = 0; life < 2; life++) {
        ns_t begun = sim->now;

        a->record.attributes.retry_count = 3;
        sender_start(&a->transport);
        sim_post_send(a, &stage.wr);
        sim_run(sim);
        assert_int_equal(a->sent_count, life + 1);
        assert_int_equal(a->sent[life].verdict, VERDICT_RETRY_EXCEEDED);
        assert_in_range(a->failed_at - begun, 4 * timing_ack_timeout(14), 17 * timing_ack_timeout(14) / 2);
        assert_int_equal(a->record.sender.expirations, 4);
        assert_int_equal(atomic_load(&stage.b->record.state), IBV_QPS_RTS);
        assert_int_equal(stage.b->received_count, 0);
        sender_reset(&a->transport);
        sim_set_state(a, IBV_QPS_RTS);
    }
}

static void psns_do_not_agree(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};

    for (unsigned i = 0; i < array_size(opcodes); i++) {
        psns_do_not_agree_by(sim, opcodes[i], -1u);
        psns_do_not_agree_by(sim, opcodes[i], -5000u);
        psns_do_not_agree_by(sim, opcodes[i], 5000);
    }
}

static void psns_do_not_agree_for_ever(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 8);
    psn_t *expected = &stage.b->record.responder.expected_psn;

    *expected = psn_add(*expected, 5000);
    stage.a->record.attributes.timeout = 0;
    sim->unjudged = true;
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, 1000 * NS_PER_S);
    assert_int_equal(stage.a->sent_count, 0);
    assert_int_equal(sim->events, 0);
}

static void make_ready(struct sim *sim, void *argument)
{
    struct sim_qp *b = argument;

    sim_set_state(b, IBV_QPS_RTR);
}

static void peer_becomes_ready(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 30000);

    sim_to_init(stage.b);
    sim_at(sim, 3 * timing_ack_timeout(14), make_ready, stage.b);
    for (unsigned i = 0; i < 5; i++) {
        sim_post_recv(stage.b, i, &SGE(stage.far, 0, SIZE), 1);
        sim_post_send(stage.a, &stage.wr);
    }
    sim_run(sim);
    assert_int_equal(stage.b->received_count, 5);
    assert_int_equal(stage.a->sent_count, 5);
    assert_sent(stage.a, 4, 2, VERDICT_OK);
    assert_in_range(stage.a->record.sender.retransmissions - stage.a->record.sender.probes_sent, 3, 4);
}

static void peer_in_error(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 30000);

    sim_to_error(stage.b);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(stage.a->record.sender.retransmissions - stage.a->record.sender.probes_sent, 7);
}

static void slow_peer_is_not_suspected(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 30000);

    sim->link.delay = 100 * NS_PER_S;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_int_equal(stage.a->record.sender.retransmissions, 0);
}

static void post_receive(struct sim *sim, void *argument)
{
    struct stage *stage = argument;

    sim_post_recv(stage->b, 11, &SGE(stage->far, 0, SIZE), 1);
}

static void receiver_becomes_ready(struct sim *sim)
{
    for (unsigned kind = 0; kind < 2; kind++) {
        struct stage stage = set_stage(sim, kind ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND, 40000);

        sim_at(sim, 20 * NS_PER_S, post_receive, &stage);
        sim_post_send(stage.a, &stage.wr);
        sim_post_send(stage.a, &stage.wr);
        sim_at(sim, 21 * NS_PER_S, post_receive, &stage);
        sim_run(sim);
        assert_int_equal(stage.a->sent_count, 2);
        assert_sent(stage.a, 1, 2, VERDICT_OK);
        assert_int_equal(stage.b->received_count, 2);
        assert_true(sim_is_pattern(stage.far->bytes, 0, 1));
        assert_memory_equal(stage.far->bytes, stage.local->bytes, 40000);
        assert_in_range(stage.a->record.sender.rnr_naks, 1000, 100000);
        assert_int_equal(stage.a->record.sender.sequence_naks, 0);
    }
}

static void receiver_never_ready(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct sim_wr before = stage.wr;
    ns_t begun = sim->now;

    before.opcode = IBV_WR_RDMA_WRITE;
    before.wr_id = 1;
    stage.a->record.attributes.rnr_retry = 3;
    stage.b->record.attributes.min_rnr_timer = 20;
    sender_start(&stage.a->transport);
    sim_queue_send(stage.a, &before);
    sim_queue_send(stage.a, &stage.wr);
    stage.wr.wr_id = 3;
    sim_queue_send(stage.a, &stage.wr);
    sim_kick(stage.a);
    sim_run(sim);
    assert_sent(stage.a, 0, 1, VERDICT_OK);
    assert_sent(stage.a, 1, 2, VERDICT_RNR_RETRY_EXCEEDED);
    assert_sent(stage.a, 2, 3, VERDICT_FLUSHED);
    assert_int_equal(stage.a->record.sender.rnr_naks, 4);
    assert_true(stage.a->failed_at - begun >= 3 * timing_rnr(20));
    assert_true(stage.a->failed_at - begun < 4 * timing_rnr(20));
    assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
}

/* Lost packets are missed by what comes after them: no timer is needed (IBA 9.7.5.2.8). */
static void expect_recovery_without_timer(struct sim *sim, enum ibv_wr_opcode opcode, uint64_t loss,
                                          unsigned naks)
{
    struct stage stage = set_stage(sim, opcode, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 5000);
    struct sim_wr after = stage.wr;

    sim->link.loss_mask = loss;
    stage.a->record.attributes.timeout = 0;
    stage.wr.compare_add = 1;
    after.wr_id = 3;
    after.opcode = IBV_WR_RDMA_WRITE;
    after.sge[0] = SGE(stage.local, 50000, 8);
    after.remote_address += 50000;
    *(uint64_t *)stage.far->bytes = 41;
    sim_queue_send(stage.a, &stage.wr);
    sim_queue_send(stage.a, &after);
    sim_kick(stage.a);
    sim_run(sim);
    assert_int_equal(sim->lost, 1);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 3, VERDICT_OK);
    assert_int_equal(stage.a->record.sender.sequence_naks, naks);
    assert_int_equal(stage.a->record.sender.retransmissions, 1);
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        assert_int_equal(*(uint64_t *)stage.far->bytes, 42);
    else
        assert_memory_equal(stage.far->bytes, stage.local->bytes, 5000);
}

static void lost_request_is_missed(struct sim *sim)
{
    expect_recovery_without_timer(sim, IBV_WR_RDMA_WRITE, 1 << 2, 1);
}

static void lost_read_request_is_missed(struct sim *sim)
{
    expect_recovery_without_timer(sim, IBV_WR_RDMA_READ, 1 << 0, 1);
}

static void lost_read_response_is_missed(struct sim *sim)
{
    expect_recovery_without_timer(sim, IBV_WR_RDMA_READ, 1 << 4, 0);
    /* READ, WRITE; five responses of which the third is lost, an acknowledgement; the READ of the rest,
     * WRITE; three responses. */
    assert_int_equal(sim->delivered[OP_READ_REQUEST], 2);
    assert_int_equal(sim->delivered[OP_READ_RESPONSE_FIRST], 2);
    assert_int_equal(sim->delivered[OP_READ_RESPONSE_MIDDLE], 2 + 1);
    assert_int_equal(sim->delivered[OP_READ_RESPONSE_LAST], 2);
}

static void lost_last_read_response_is_missed(struct sim *sim)
{
    expect_recovery_without_timer(sim, IBV_WR_RDMA_READ, 1 << 6, 0);
    assert_int_equal(sim->delivered[OP_READ_RESPONSE_ONLY], 1);
}

static void lost_atomic_answer_is_missed(struct sim *sim)
{
    expect_recovery_without_timer(sim, IBV_WR_ATOMIC_FETCH_AND_ADD, 1 << 2, 0);
}

static unsigned early;
static ns_t not_before;

static void watch_rnr(struct sim *sim, struct packet *packet)
{
    if (packet->opcode == OP_ACKNOWLEDGE && SYNDROME_KIND(packet->syndrome) == SYNDROME_RNR)
        not_before = sim->now + timing_rnr(SYNDROME_VALUE(packet->syndrome));
    else if (packet->opcode == OP_SEND_ONLY)
        early += sim->now < not_before;
}

/* A NAK of a gap that comes while the receiver is not ready shortens nothing. */
static void rnr_delay_is_kept(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet nak = {
        .opcode = OP_ACKNOWLEDGE,
        .pkey = 0xffff,
        .src_qpn = stage.b->record.qpn,
        .dest_qpn = stage.a->record.qpn,
        .psn = stage.a->record.sender.next_psn,
        .syndrome = SYNDROME_NAK << 5 | NAK_SEQUENCE,
    };

    early = 0;
    not_before = 0;
    sim->on_packet = watch_rnr;
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, 3 * sim->link.delay);
    assert_int_equal(stage.a->record.sender.waiting, SENDER_WAITS_FOR_RNR_TIMER);
    sim_inject(stage.a, &nak);
    sim_post_send(stage.a, &stage.wr);
    assert_int_equal(stage.a->record.sender.waiting, SENDER_WAITS_FOR_RNR_TIMER);
    sim_post_recv(stage.b, 1, &SGE(stage.far, 0, 8), 1);
    sim_post_recv(stage.b, 2, &SGE(stage.far, 0, 8), 1);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 2);
    assert_int_equal(early, 0);
}

/* Every message is lost as often as may be: what counts is retries without progress. */
static void progress_restarts_the_count(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);

    for (unsigned i = 0; i < 63; i++)
        sim->link.loss_mask |= (i % 9 < 7 ? 1ull : 0) << i;
    for (unsigned i = 0; i < 6; i++) {
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
    }
    assert_int_equal(stage.a->sent_count, 6);
    assert_sent(stage.a, 5, 2, VERDICT_OK);
}

/* What was accepted before the QP went into error is acknowledged all the same. */
static void error_does_not_swallow_acknowledgements(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

    stage.b->lazy_ack = true;
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 8), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, sim->link.delay);
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_true(responder_owes(&stage.b->transport));
    sim_to_error(stage.b);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_false(responder_owes(&stage.b->transport));
}

static unsigned acks_to_lose;

static bool loses_acks(struct sim *sim, const struct packet *packet)
{
    return packet->opcode == OP_ACKNOWLEDGE && acks_to_lose && acks_to_lose--;
}

/* As the owner does it when the program is through. */
static void leave(struct sim *sim, void *argument)
{
    struct sim_qp *qp = argument;

    responder_resend_last_ack(&qp->transport);
    sim_to_error(qp);
}

/* A program may end after its last message was received, and then its acknowledgement cannot be repeated on request.
 */
static void lost_last_acknowledgement_is_said_again(struct sim *sim)
{
    for (unsigned lost = 1; lost <= 2; lost++) {
        struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

        acks_to_lose = lost;
        sim->loses = loses_acks;
        sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 8), 1);
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, sim->link.delay + 1);
        assert_received(stage.b, 0, 11, VERDICT_OK);
        assert_int_equal(acks_to_lose, lost - 1);
        sim_at(sim, 0, leave, stage.b);
        sim_run(sim);
        assert_sent(stage.a, 0, 2, VERDICT_OK);
        assert_int_equal(stage.a->record.sender.retransmissions, 0);
    }
}

/* A QP that has received nothing, or owes a response, repeats no acknowledgement. */
static void nothing_is_said_again_that_was_not_said(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, SIZE);

    responder_resend_last_ack(&stage.b->transport);
    assert_int_equal(sim->packets, 0);
    sim->link.capacity = 2;
    sim_post_send(stage.a, &stage.wr);
    while (sim->delivered[OP_READ_REQUEST] == 0)
        sim_run_for(sim, sim->link.delay);
    assert_true(responder_owes(&stage.b->transport));
    sim->link.capacity = 0;
    leave(sim, stage.b);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_RETRY_EXCEEDED);
}

static bool loses_first_atomic_answer(struct sim *sim, const struct packet *packet)
{
    return packet->opcode == OP_ATOMIC_ACKNOWLEDGE && sim->delivered[OP_ATOMIC_ACKNOWLEDGE] == 1 &&
           !sim->lost;
}

/* A saved result is that of the latest request with its number: all 2^24 may have been used since. */
static void old_results_are_not_said_for_new_ones(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
    psn_t first = stage.a->record.sender.next_psn;

    *(uint64_t *)stage.far->bytes = 41;
    stage.wr.compare_add = 1;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(*(uint64_t *)stage.local->bytes, 41);

    /* As after 2^24 - 1 more packets. */
    stage.a->record.sender.next_psn = stage.a->record.sender.unacked_psn = stage.a->record.sender.sent_psn =
        first;
    stage.b->record.responder.expected_psn = first;
    sim->unjudged = true;
    sim->loses = loses_first_atomic_answer;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(sim->lost, 1);
    assert_sent(stage.a, 1, 2, VERDICT_OK);
    assert_int_equal(*(uint64_t *)stage.local->bytes, 42);
    assert_int_equal(*(uint64_t *)stage.far->bytes, 43);
}

static struct packet read_request;

static void keeps_read_request(struct sim *sim, struct packet *packet)
{
    if (BTH_OPERATION(packet->opcode) == OP_READ_REQUEST && !read_request.opcode)
        read_request = *packet;
}

/* The requester repeated a READ whose answer was late, and has had it since: only what it asks for next fails. */
static void repeated_read_of_memory_that_is_gone(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 8);

    read_request.opcode = 0;
    sim->on_packet = keeps_read_request;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    keys_withdraw(sim->node[1].keys, stage.far->slot);
    sim->unjudged = true;
    sim_inject(stage.b, &read_request);
    sim_run(sim);
    assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
    assert_int_equal(stage.b->access_errors, 0);
    stage.wr.wr_id = 3;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 1, 3, VERDICT_REMOTE_ACCESS);
    assert_int_equal(stage.b->record.state, IBV_QPS_ERR);
    assert_int_equal(stage.b->access_errors, 1);
}

/* A request without response does not leave the requester waiting for ever. */
static void error_in_the_middle_of_an_answer(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);

    sim->link.capacity = 2;
    sim_queue_send(stage.a, &stage.wr);
    stage.wr.wr_id = 3;
    stage.wr.opcode = IBV_WR_RDMA_READ;
    stage.wr.sge[0].length = SIZE;
    sim_queue_send(stage.a, &stage.wr);
    sim_kick(stage.a);
    while (sim->delivered[OP_READ_REQUEST] == 0)
        sim_run_for(sim, sim->link.delay);
    assert_true(responder_owes(&stage.b->transport));
    sim_to_error(stage.b);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 3, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(stage.a->record.sender.retransmissions - stage.a->record.sender.probes_sent, 7);
    assert_false(responder_owes(&stage.b->transport));
}

static const struct scenario scenarios[] = {
    SCENARIO_ON(lost_request_is_missed, ON_WIRE),
    SCENARIO_ON(lost_read_request_is_missed, ON_WIRE),
    SCENARIO_ON(lost_read_response_is_missed, ON_WIRE),
    SCENARIO_ON(lost_last_read_response_is_missed, ON_WIRE),
    SCENARIO_ON(lost_atomic_answer_is_missed, ON_WIRE),
    SCENARIO(rnr_delay_is_kept),
    SCENARIO_ON(progress_restarts_the_count, ON_WIRE),
    SCENARIO(error_does_not_swallow_acknowledgements),
    SCENARIO_ON(error_in_the_middle_of_an_answer, ON_RING | ON_WIRE),
    SCENARIO_ON(lost_last_acknowledgement_is_said_again, ON_WIRE),
    SCENARIO_ON(old_results_are_not_said_for_new_ones, ON_WIRE),
    SCENARIO_ON(nothing_is_said_again_that_was_not_said, ON_WIRE),
    SCENARIO_ON(repeated_read_of_memory_that_is_gone, ON_WIRE),
    SCENARIO(nobody_answers),
    SCENARIO(nobody_answers_for_ever),
    SCENARIO(psns_do_not_agree),
    SCENARIO(psns_do_not_agree_for_ever),
    SCENARIO(peer_becomes_ready),
    SCENARIO(peer_in_error),
    SCENARIO_ON(slow_peer_is_not_suspected, ON_LOCAL),
    SCENARIO(receiver_becomes_ready),
    SCENARIO(receiver_never_ready),
};

int main(int argc, char **argv)
{
    return run_scenarios("retry", scenarios, array_size(scenarios), argc, argv);
}
