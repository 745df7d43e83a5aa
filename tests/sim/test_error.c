/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What goes wrong, and who hears of it how: verbs-contract §2.6, §3.10-3.12, §4.3. */
#include "scenario.h"

#include "rules/timing.h"

#define ACCESS                                                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* A connection, memory on both sides, and a work request that would succeed. */
struct stage {
    struct sim_qp *a, *b;
    struct sim_buffer *local, *far;
    struct sim_wr wr;
};

enum { SIZE = 60000 };

static struct stage set_stage(struct sim *sim, enum ibv_wr_opcode opcode, uint32_t length)
{
    struct stage stage;

    sim_pair(sim, IBV_QPT_RC, &stage.a, &stage.b);
    stage.local = sim_buffer(&sim->node[0], SIZE, ACCESS);
    stage.far = sim_buffer(&sim->node[1], SIZE, ACCESS);
    sim_pattern(stage.local->bytes, SIZE, 1);
    stage.wr = (struct sim_wr){
        .wr_id = 2,
        .opcode = opcode,
        .num_sge = 1,
        .sge = {SGE(stage.local, 0, length)},
        .rkey = stage.far->rkey,
        .remote_address = stage.far->address,
    };
    return stage;
}

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

/* The responder's receive tells, and no event does. */
static void assert_receive_fails(const struct stage *stage, enum verdict verdict)
{
    assert_received(stage->b, 0, 11, VERDICT_OK);
    assert_received(stage->b, 1, 12, verdict);
    assert_received(stage->b, 2, 13, VERDICT_FLUSHED);
    assert_int_equal(stage->b->received_count, 3);
    assert_int_equal(stage->b->access_errors + stage->b->request_errors, 0);
    assert_int_equal(stage->b->responder_failures, 1);
}

/* No receive is to blame: an event tells. */
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

/* A READ was fine when it came and is not any more while it is answered. */
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

/* A receive that is being filled when the QP is moved to ERR is flushed before those that nobody took. */
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

/* --- what the peer does not keep to --------------------------------------------------------------- */

static struct packet request_of(const struct stage *stage, uint8_t opcode, uint32_t psn_offset)
{
    return (struct packet){
        .opcode = opcode,
        .pkey = 0xffff,
        .dest_qpn = stage->b->record.qpn,
        .src_qpn = stage->a->record.qpn,
        .psn = psn_add(stage->b->record.responder.expected_psn, psn_offset),
        .rkey = stage->far->rkey,
        .address = stage->far->address,
        .dma_length = 8,
    };
}

static const uint8_t bytes[16384];

static void assert_request_error(struct sim *sim, struct packet packet, bool access)
{
    struct sim_qp *b = sim->qps[1];

    packet.payload = bytes;
    sim_inject(b, &packet);
    assert_int_equal(b->access_errors, access);
    assert_int_equal(b->request_errors, !access);
    assert_int_equal(b->responder_failures, 1);
    assert_int_equal(b->record.state, IBV_QPS_ERR);
}

static void middle_without_first(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

    assert_request_error(sim, request_of(&stage, OP_SEND_MIDDLE, 0), false);
}

static void reserved_operation(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

    assert_request_error(sim, request_of(&stage, 0x1e, 0), false);
}

static void first_in_the_middle(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet packet = request_of(&stage, OP_WRITE_FIRST, 0);

    packet.payload = bytes;
    packet.payload_length = sim->link.properties.mtu;
    packet.dma_length = SIZE;
    sim_inject(stage.b, &packet);
    assert_int_equal(stage.b->record.responder.message, MESSAGE_WRITE);
    assert_request_error(sim, request_of(&stage, OP_SEND_ONLY, 0), false);
}

static void write_longer_than_announced(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet packet = request_of(&stage, OP_WRITE_ONLY, 0);

    packet.payload_length = 9;
    assert_request_error(sim, packet, true);
    assert_int_equal(stage.far->bytes[8], 0);
}

static void write_shorter_than_announced(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet packet = request_of(&stage, OP_WRITE_ONLY, 0);

    packet.payload_length = 7;
    assert_request_error(sim, packet, true);
}

static void payload_longer_than_the_mtu(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet packet = request_of(&stage, OP_WRITE_ONLY, 0);

    packet.payload_length = packet.dma_length = sim->link.properties.mtu + 1;
    assert_request_error(sim, packet, false);
}

static void references_longer_than_the_message(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet_reference references[40] = {{0, UINT64_MAX}, {0, 9}};
    struct packet packet = request_of(&stage, OP_WRITE_ONLY, 0);

    packet.flags = PACKET_BY_REFERENCE;
    packet.reference = references;
    packet.reference_count = 2;
    assert_request_error(sim, packet, false);
}

static void too_many_references(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet_reference references[40] = {{0, 8}};
    struct packet packet = request_of(&stage, OP_WRITE_ONLY, 0);

    packet.flags = PACKET_BY_REFERENCE;
    packet.reference = references;
    packet.reference_count = PACKET_REFERENCES + 1;
    assert_request_error(sim, packet, false);
}

static void read_with_other_references_than_length(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet_reference references[40] = {{0, 9}};
    struct packet packet = request_of(&stage, OP_READ_REQUEST, 0);

    packet.flags = PACKET_BY_REFERENCE;
    packet.reference = references;
    packet.reference_count = 1;
    assert_request_error(sim, packet, true);
}

static void reads_pile_up(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

    stage.b->record.responder.resources = 2;
    for (unsigned i = 0; i < 2; i++) {
        struct packet packet = request_of(&stage, OP_READ_REQUEST, 0);

        transport_receive(&stage.b->transport, &packet);
    }
    assert_int_equal(stage.b->access_errors, 0);
    assert_request_error(sim, request_of(&stage, OP_READ_REQUEST, 0), true);
}

static void stranger_is_not_heard(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct sim_qp *c = sim_qp(&sim->node[0], IBV_QPT_RC);

    sim_to_rtr(c, stage.b, 0);
    sim_to_rts(c, stage.b->record.responder.expected_psn.value);
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 8), 1);
    sim_post_send(c, &stage.wr);
    sim_run(sim);
    assert_sent(c, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(stage.b->received_count, 0);
    assert_int_equal(c->record.sender.retransmissions, 7);
}

static void other_partition_is_not_heard(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet packet = request_of(&stage, OP_SEND_ONLY, 0);

    packet.pkey = 0x8001;
    assert_false(transport_receive(&stage.b->transport, &packet));
    packet.pkey = 0x7fff;
    assert_true(transport_receive(&stage.b->transport, &packet));
}

/* Answers to nothing, or of the wrong kind. */
static void made_up_answers(struct sim *sim)
{
    static const uint8_t operations[] = {OP_ACKNOWLEDGE,         OP_ATOMIC_ACKNOWLEDGE,
                                         OP_READ_RESPONSE_FIRST, OP_READ_RESPONSE_MIDDLE,
                                         OP_READ_RESPONSE_LAST,  OP_READ_RESPONSE_ONLY};
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);

    for (unsigned i = 0; i < array_size(operations); i++) {
        struct packet packet = {
            .opcode = operations[i],
            .pkey = 0xffff,
            .src_qpn = stage.b->record.qpn,
            .dest_qpn = stage.a->record.qpn,
            .payload = bytes,
            .payload_length = 8,
        };

        for (int offset = -3; offset < 3; offset++) {
            for (unsigned syndrome = 0; syndrome < 256; syndrome += 31) {
                packet.psn = psn_add(stage.a->record.sender.next_psn, (uint32_t)offset);
                packet.syndrome = (uint8_t)syndrome;
                sim_inject(stage.a, &packet);
            }
        }
    }
    assert_int_equal(stage.a->record.state, IBV_QPS_RTS);
    assert_int_equal(stage.a->sent_count, 0);
}

static void expect_bad_response(struct sim *sim, enum ibv_wr_opcode opcode, uint8_t operation,
                                uint32_t length)
{
    struct stage stage = set_stage(sim, opcode, opcode == IBV_WR_RDMA_READ ? 12 : 8);
    struct packet packet = {
        .opcode = operation,
        .pkey = 0xffff,
        .src_qpn = stage.b->record.qpn,
        .dest_qpn = stage.a->record.qpn,
        .psn = stage.a->record.sender.next_psn,
        .payload = bytes,
        .payload_length = length,
    };

    sim_post_send(stage.a, &stage.wr);
    sim_inject(stage.a, &packet);
    assert_sent(stage.a, 0, 2, VERDICT_BAD_RESPONSE);
    assert_int_equal(stage.a->record.state, IBV_QPS_ERR);
    assert_true(sim_is_pattern(stage.local->bytes, SIZE, 1));
}

static void response_of_wrong_length(struct sim *sim)
{
    expect_bad_response(sim, IBV_WR_RDMA_READ, OP_READ_RESPONSE_ONLY, 13);
    expect_bad_response(sim, IBV_WR_RDMA_READ, OP_READ_RESPONSE_ONLY, 11);
}

static void response_of_wrong_kind(struct sim *sim)
{
    expect_bad_response(sim, IBV_WR_RDMA_READ, OP_READ_RESPONSE_MIDDLE, 12);
    expect_bad_response(sim, IBV_WR_RDMA_READ, OP_ATOMIC_ACKNOWLEDGE, 0);
    expect_bad_response(sim, IBV_WR_ATOMIC_FETCH_AND_ADD, OP_READ_RESPONSE_ONLY, 8);
    expect_bad_response(sim, IBV_WR_SEND, OP_READ_RESPONSE_ONLY, 8);
}

/* --- silence, and receivers that are not ready ---------------------------------------------------- */

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
    assert_int_equal(sim->packets, 4); /* retry_cnt + 1 */
    assert_int_equal(stage.a->failed_at - begun, 4 * timing_ack_timeout(14));
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
    assert_in_range(stage.a->record.sender.retransmissions, 3, 4);
}

static void peer_in_error(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 30000);

    sim_to_error(stage.b);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(stage.a->record.sender.retransmissions, 7);
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

static void unreadable_references(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (unsigned i = 0; i < array_size(opcodes); i++) {
        struct stage stage = set_stage(sim, opcodes[i], 40000);

        sim->refuse_pull = true;
        post_among_others(&stage, NULL);
        assert_requester(&stage, VERDICT_LOCAL_PROTECTION);
        assert_int_equal(stage.b->responder_failures, 0);
        assert_int_equal(stage.b->access_errors, 0);
        assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
    }
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
    SCENARIO(middle_without_first),
    SCENARIO(reserved_operation),
    SCENARIO(first_in_the_middle),
    SCENARIO(write_longer_than_announced),
    SCENARIO(write_shorter_than_announced),
    SCENARIO(payload_longer_than_the_mtu),
    SCENARIO(references_longer_than_the_message),
    SCENARIO(too_many_references),
    SCENARIO(read_with_other_references_than_length),
    SCENARIO(reads_pile_up),
    SCENARIO_ON(stranger_is_not_heard, ON_LOCAL),
    SCENARIO(other_partition_is_not_heard),
    SCENARIO(made_up_answers),
    SCENARIO(response_of_wrong_length),
    SCENARIO(response_of_wrong_kind),
    SCENARIO(nobody_answers),
    SCENARIO(nobody_answers_for_ever),
    SCENARIO(peer_becomes_ready),
    SCENARIO(peer_in_error),
    SCENARIO_ON(slow_peer_is_not_suspected, ON_LOCAL),
    SCENARIO(receiver_becomes_ready),
    SCENARIO(receiver_never_ready),
    SCENARIO_ON(unreadable_references, ON_REFERENCES),
};

int main(int argc, char **argv)
{
    return run_scenarios("error", scenarios, array_size(scenarios), argc, argv);
}
