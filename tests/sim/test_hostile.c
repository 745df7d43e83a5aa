/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Peers that violate the protocol, packets of unknown QPs, and responses without a request. */
#include "stage.h"

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
    struct packet_reference references[40] = {{0, UINT32_MAX}, {0, 9}};
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

static struct packet_reference wrong_references[PACKET_REFERENCES + 1];
static uint32_t wrong_count;

static void answer_wrongly(struct sim *sim, struct packet *packet)
{
    if (!(opcode_table[packet->opcode].properties & OPCODE_READ) ||
        opcode_table[packet->opcode].properties & OPCODE_REQUEST)
        return;
    packet->reference = wrong_references;
    packet->reference_count = wrong_count;
}

static void read_answered_with_references_that_do_not_add_up(struct sim *sim)
{
    for (wrong_count = 0; wrong_count <= PACKET_REFERENCES + 1;
         wrong_count += wrong_count == 2 ? PACKET_REFERENCES - 1 : 1) {
        struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, 40000);

        sim->made_up_memory = true;
        for (unsigned i = 0; i <= PACKET_REFERENCES; i++)
            wrong_references[i].length = i == 0 ? 39999 : i == 1 ? UINT32_MAX : 0;
        wrong_references[PACKET_REFERENCES].length = wrong_count > 2 ? 1 : 0;
        sim->on_packet = answer_wrongly;
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
        assert_sent(stage.a, 0, 2, VERDICT_BAD_RESPONSE);
        assert_true(sim_is_pattern(stage.local->bytes, SIZE, 1));
        sim->on_packet = NULL;
    }
}

static void reads_pile_up(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct packet packet;

    sim->unjudged = true;
    stage.b->record.responder.resources = 2;
    for (unsigned i = 0; i < 2; i++) {
        packet = request_of(&stage, OP_READ_REQUEST, 0);
        packet.syndrome = i ? PACKET_TOGETHER : 0;
        transport_receive(&stage.b->transport, &packet);
    }
    assert_int_equal(stage.b->access_errors, 0);
    packet = request_of(&stage, OP_READ_REQUEST, 0);
    packet.syndrome = PACKET_TOGETHER;
    assert_request_error(sim, packet, true);
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

/* Responses without a request, or of the wrong kind. */
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

/* Anything at all, mostly near what would be right: nothing outside the regions is touched, and nothing
 * hangs. */
static void made_up_packets(struct sim *sim)
{
    struct sim_buffer *local = sim_buffer(&sim->node[0], SIZE, ACCESS);
    struct sim_buffer *far = sim_buffer(&sim->node[1], SIZE, ACCESS);
    struct stage stage = {0};

    sim->made_up_memory = sim->unjudged = true;
    for (unsigned i = 0; i < 20000; i++) {
        struct packet_reference references[PACKET_REFERENCES + 2];
        struct packet packet = {0};
        bool back = sim_below(sim, 4) == 0;
        struct sim_qp *to;

        if (!stage.a) {
            sim_pair(sim, sim_below(sim, 4) ? IBV_QPT_RC : IBV_QPT_UC, &stage.a, &stage.b);
            sim->qp_count -= 2; /* one pair at a time; kept below */
            stage.wr = (struct sim_wr){.num_sge = 1, .rkey = far->rkey, .remote_address = far->address};
        }
        if (!sim_below(sim, 8) && !sim_send_queue_is_full(stage.a)) {
            stage.wr.opcode = sim_below(sim, 2) ? IBV_WR_RDMA_READ : IBV_WR_ATOMIC_FETCH_AND_ADD;
            stage.wr.sge[0] = SGE(local, 0, stage.wr.opcode == IBV_WR_RDMA_READ ? sim_below(sim, SIZE) : 8);
            sim_queue_send(stage.a, &stage.wr);
            sender_run(&stage.a->transport);
        }
        if (stage.b->own.posted - stage.b->own.taken < 3)
            sim_post_recv(stage.b, 0, &SGE(far, sim_below(sim, 100), sim_below(sim, 30000)), 1);
        to = back ? stage.a : stage.b;
        packet.opcode =
            (uint8_t)(sim_below(sim, 20) ? to->record.type == IBV_QPT_UC ? SERVICE_UC + sim_below(sim, 24)
                                                                         : sim_below(sim, 30)
                                         : sim_random(sim));
        packet.flags = (uint8_t)(sim_below(sim, 3) ? PACKET_ACK_REQUEST : sim_random(sim));
        packet.pkey = 0xffff;
        packet.dest_qpn = to->record.qpn;
        packet.src_qpn = to->record.attributes.dest_qpn;
        packet.psn = psn_add(back ? to->record.sender.unacked_psn : to->record.responder.expected_psn,
                             sim_below(sim, 4) ? 0 : sim_below(sim, 20) - 10);
        packet.ack_psn = psn_add(to->record.sender.unacked_psn, sim_below(sim, 4) - 1);
        packet.syndrome = (uint8_t)(sim_below(sim, 2) ? 0x1f : sim_random(sim));
        packet.rkey = sim_below(sim, 5) ? far->rkey : (uint32_t)sim_random(sim);
        packet.address = sim_below(sim, 5) ? far->address + sim_below(sim, SIZE) : sim_random(sim);
        packet.dma_length = sim_below(sim, 5) ? sim_below(sim, 20000) : (uint32_t)sim_random(sim);
        packet.payload = bytes;
        packet.payload_length = sim_below(sim, 3) ? min_of(packet.dma_length, 8192u) : sim_below(sim, 8192);
        packet.reference = references;
        packet.reference_count = sim_below(sim, sim_below(sim, 5) ? 4 : array_size(references) + 1);
        for (unsigned j = 0; j < packet.reference_count; j++) {
            references[j].address = sim_random(sim);
            references[j].length = sim_below(sim, 20) ? sim_below(sim, 20000) : (uint32_t)sim_random(sim);
        }
        if (!(packet.flags & PACKET_BY_REFERENCE))
            packet.reference_count = 0;
        sim_inject(to, &packet);
        if (stage.a->record.state != IBV_QPS_RTS || stage.b->record.state != IBV_QPS_RTS ||
            stage.b->received_count > SIM_LOG - 100 || stage.a->sent_count > SIM_LOG - 100) {
            sim_drop_packets(sim);
            sim_drop_pair(stage.a, stage.b);
            stage.a = NULL;
        }
    }
    sim_drop_packets(sim);
    if (stage.a)
        sim_drop_pair(stage.a, stage.b);
}

static const struct scenario scenarios[] = {
    SCENARIO(middle_without_first),
    SCENARIO(reserved_operation),
    SCENARIO(first_in_the_middle),
    SCENARIO(write_longer_than_announced),
    SCENARIO(write_shorter_than_announced),
    SCENARIO(payload_longer_than_the_mtu),
    SCENARIO(references_longer_than_the_message),
    SCENARIO(too_many_references),
    SCENARIO_ON(read_answered_with_references_that_do_not_add_up, ON_REFERENCES),
    SCENARIO(reads_pile_up),
    SCENARIO_ON(stranger_is_not_heard, ON_LOCAL),
    SCENARIO(other_partition_is_not_heard),
    SCENARIO(made_up_answers),
    SCENARIO(made_up_packets),
    SCENARIO(response_of_wrong_length),
    SCENARIO(response_of_wrong_kind),
};

int main(int argc, char **argv)
{
    return run_scenarios("hostile", scenarios, array_size(scenarios), argc, argv);
}
