/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* UD and UC: verbs.md §3.5, §3.10, §8. */
#include "scenario.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

enum { SIZE = 60000 };

struct stage {
    struct sim_qp *a, *b;
    struct sim_buffer *local, *far;
    struct sim_wr wr;
};

static struct stage set_stage(struct sim *sim, enum ibv_qp_type type, uint32_t length)
{
    static const uint8_t ipv4[16] = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1};
    struct stage stage;

    sim_pair(sim, type, &stage.a, &stage.b);
    stage.local = sim_buffer(&sim->node[0], SIZE, ACCESS);
    stage.far = sim_buffer(&sim->node[1], SIZE, ACCESS);
    sim_pattern(stage.local->bytes, SIZE, 1);
    memset(stage.far->bytes, 0xaa, SIZE);
    stage.wr = (struct sim_wr){
        .wr_id = 2,
        .opcode = IBV_WR_SEND,
        .num_sge = 1,
        .sge = {SGE(stage.local, 0, length)},
        .rkey = stage.far->rkey,
        .remote_address = stage.far->address,
        .remote_qpn = stage.b->record.qpn,
        .remote_qkey = 0x1234,
        .to = {.traffic_class = 0x20, .hop_limit = 64, .flow_label = 0x12345},
    };
    memcpy(stage.wr.to.source_gid, ipv4, 16);
    memcpy(stage.wr.to.destination_gid, ipv4, 16);
    stage.wr.to.destination_gid[15] = 2;
    return stage;
}

/* --- UD ------------------------------------------------------------------------------------------- */

static unsigned sum16(const unsigned char *bytes, unsigned length)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < length; i += 2)
        sum += (unsigned)(bytes[i] << 8 | bytes[i + 1]);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static void ud_over_ipv4(struct sim *sim)
{
    static const unsigned char expected[20] = {0x45, 0x20, 0,  156, 0, 0, 0x40, 0, 64, 17,
                                               0,    0,    10, 0,   0, 1, 10,   0, 0,  2};
    struct stage stage = set_stage(sim, IBV_QPT_UD, 99);
    unsigned char header[20];

    stage.wr.opcode = IBV_WR_SEND_WITH_IMM;
    stage.wr.imm_or_rkey = 77;
    stage.wr.flags = WQE_SOLICITED;
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 139), 1);
    sim_post_send(stage.a, &stage.wr);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    sim_run(sim);
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_int_equal(stage.b->received[0].byte_len, 139);
    assert_int_equal(stage.b->received[0].wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
    assert_int_equal(stage.b->received[0].imm_or_rkey, 77);
    assert_int_equal(stage.b->received[0].src_qpn, stage.a->record.qpn);
    assert_int_equal(stage.b->received[0].service_level, 2);
    assert_true(stage.b->received[0].solicited);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(stage.far->bytes[i], 0xaa);
    memcpy(header, stage.far->bytes + 20, 20);
    assert_int_equal(sum16(header, 20), 0xffff);
    header[10] = header[11] = 0;
    /* 20 IPv4, 8 UDP, 12 BTH, 8 DETH, 4 immediate, 100 padded, 4 ICRC */
    assert_memory_equal(header, expected, 20);
    assert_true(sim_is_pattern(stage.far->bytes + 40, 99, 1));
    assert_int_equal(stage.far->bytes[139], 0xaa);
}

static void ud_over_ipv6(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 4);
    static const unsigned char expected[8] = {0x62, 0x01, 0x23, 0x45, 0, 36, 17, 64};

    memset(stage.wr.to.source_gid, 0xfe, 16);
    memset(stage.wr.to.destination_gid, 0xfd, 16);
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 100), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_int_equal(stage.b->received[0].service_level, 1);
    assert_memory_equal(stage.far->bytes, expected, 8);
    assert_memory_equal(stage.far->bytes + 8, stage.wr.to.source_gid, 16);
    assert_memory_equal(stage.far->bytes + 24, stage.wr.to.destination_gid, 16);
    assert_true(sim_is_pattern(stage.far->bytes + 40, 4, 1));
}

static void assert_dropped(const struct sim_qp *qp, enum drop_reason reason, unsigned count, uint32_t seen,
                           uint32_t wanted)
{
    const struct drop_record *drop = &qp->rare.drops[reason];

    assert_int_equal(drop->count, count);
    assert_int_equal(drop->seen, seen);
    assert_int_equal(drop->wanted, wanted);
}

static void ud_scatters_headers_too(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 500);
    struct wqe_sge receive[4] = {SGE(stage.far, 0, 30), SGE(stage.far, 1030, 10), SGE(stage.far, 40, 7),
                                 SGE(stage.far, 47, 493)};

    sim_post_recv(stage.b, 11, receive, 4);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_int_equal(stage.far->bytes[20], 0x45);
    assert_int_equal(stage.far->bytes[1030 + 9], 2); /* last byte of the destination */
    assert_true(sim_is_pattern(stage.far->bytes + 40, 500, 1));
}

static void ud_without_receive_is_dropped(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 10);

    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 100), 1);
    sim_run(sim);
    assert_int_equal(stage.b->received_count, 0);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_int_equal(stage.b->record.responder.drops, 1);
    assert_dropped(stage.b, DROP_NO_RECEIVE, 1, 10, 0);
}

static void ud_qkeys(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 10);

    for (unsigned i = 0; i < 3; i++)
        sim_post_recv(stage.b, 11 + i, &SGE(stage.far, 0, 100), 1);
    stage.wr.remote_qkey = 0x1235;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.b->received_count, 0);
    assert_dropped(stage.b, DROP_QKEY, 1, 0x1235, 0x1234);
    stage.wr.remote_qkey = 0x80000001; /* stands for the QP's own */
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.b->received_count, 1);
    stage.a->record.attributes.qkey = 7;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.b->received_count, 1);
    assert_dropped(stage.b, DROP_QKEY, 2, 7, 0x1234);
}

static void ud_receive_too_short_kills_nobody(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 61);

    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 100), 1);
    sim_post_recv(stage.b, 12, &(struct wqe_sge){.address = stage.far->address, .length = 500, .lkey = 3}, 1);
    sim_post_recv(stage.b, 13, &SGE(stage.far, 0, 101), 1);
    for (unsigned i = 0; i < 3; i++)
        sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_received(stage.b, 0, 11, VERDICT_LOCAL_LENGTH);
    assert_received(stage.b, 1, 12, VERDICT_LOCAL_PROTECTION);
    assert_received(stage.b, 2, 13, VERDICT_OK);
    assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
    assert_dropped(stage.b, DROP_TOO_SMALL, 1, 101, 100);
}

static void ud_message_longer_than_mtu(struct sim *sim)
{
    uint32_t mtu = min_of(sim->link.properties.mtu, 4096u);
    struct stage stage = set_stage(sim, IBV_QPT_UD, mtu);

    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, SIZE), 1);
    sim_post_recv(stage.b, 12, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    stage.wr.sge[0].length++;
    sim_queue_send(stage.a, &stage.wr);
    stage.wr.wr_id = 3;
    sim_queue_send(stage.a, &stage.wr);
    sim_kick(stage.a);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 2, VERDICT_LOCAL_LENGTH);
    assert_sent(stage.a, 2, 3, VERDICT_FLUSHED);
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_int_equal(stage.b->received[0].byte_len, mtu + 40);
    assert_int_equal(stage.a->record.state, IBV_QPS_SQE);

    /* It receives on, and sends again after SQE -> RTS. */
    stage.wr.sge[0].length = 8;
    stage.wr.wr_id = 4;
    sim_post_send(stage.a, &stage.wr);
    assert_sent(stage.a, 3, 4, VERDICT_FLUSHED);
    stage.wr.remote_qpn = stage.a->record.qpn;
    sim_post_recv(stage.a, 21, &SGE(stage.local, 0, SIZE), 1);
    sim_set_state(stage.a, IBV_QPS_RTS);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 4, 4, VERDICT_OK);
    assert_received(stage.a, 0, 21, VERDICT_OK);
}

static void ud_local_key(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 100);

    stage.wr.sge[0].lkey = stage.local->rkey;
    sim_post_send(stage.a, &stage.wr);
    assert_sent(stage.a, 0, 2, VERDICT_LOCAL_PROTECTION);
    assert_int_equal(stage.a->record.state, IBV_QPS_SQE);
}

static void ud_knows_no_writes(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 100);

    stage.wr.opcode = IBV_WR_RDMA_WRITE;
    sim_post_send(stage.a, &stage.wr);
    assert_sent(stage.a, 0, 2, VERDICT_LOCAL_QP_OPERATION);
}

static void ud_inline_and_empty(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 0);
    char data[64];

    sim_pattern(data, sizeof(data), 3);
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 40), 1);
    sim_post_recv(stage.b, 12, &SGE(stage.far, 0, 200), 1);
    sim_post_send(stage.a, &stage.wr);
    stage.wr.flags = WQE_INLINE;
    stage.wr.num_sge = 0;
    stage.wr.inline_data = data;
    stage.wr.inline_length = sizeof(data);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.b->received[0].byte_len, 40);
    assert_int_equal(stage.b->received[1].byte_len, 104);
    assert_true(sim_is_pattern(stage.far->bytes + 40, 64, 3));
}

static void ud_waits_for_room(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 10);

    sim->link.capacity = 2;
    for (unsigned i = 0; i < 50; i++) {
        sim_post_recv(stage.b, i, &SGE(stage.far, 0, 100), 1);
        sim_queue_send(stage.a, &stage.wr);
    }
    sim_kick(stage.a);
    assert_int_equal(stage.a->record.sender.waiting, SENDER_WAITS_FOR_LINK);
    sim_run(sim);
    assert_int_equal(stage.b->received_count, 50);
    assert_int_equal(stage.a->sent_count, 50);
}

/* Ten datagrams, each from the same memory, of which two have room. */
static struct stage post_more_than_has_room(struct sim *sim, uint32_t places)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 100);

    sim->link.capacity = 2;
    stage.a->places = places;
    stage.wr.num_sge = 2;
    stage.wr.sge[0] = SGE(stage.local, 0, 30);
    stage.wr.sge[1] = SGE(stage.local, 30, 70);
    for (unsigned i = 0; i < 10; i++) {
        sim_post_recv(stage.b, i, &SGE(stage.far, i * 200, 200), 1);
        sim_pattern(stage.local->bytes, 100, 10 + i);
        stage.wr.wr_id = i;
        sim_post_send(stage.a, &stage.wr);
    }
    assert_int_equal(stage.a->record.sender.waiting, SENDER_WAITS_FOR_LINK);
    sim_pattern(stage.local->bytes, 100, 1);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 10);
    for (unsigned i = 0; i < 10; i++)
        assert_sent(stage.a, i, i, VERDICT_OK);
    return stage;
}

static void ud_that_waits_is_that_of_the_post(struct sim *sim)
{
    struct stage stage = post_more_than_has_room(sim, SIM_DEPTH);

    assert_int_equal(stage.b->received_count, 10);
    for (unsigned i = 0; i < 10; i++)
        assert_true(sim_is_pattern(stage.far->bytes + i * 200 + 40, 100, 10 + i));
}

/* Of what waits the first few find a place; all else is lost, as on any network. */
static void ud_that_waits_without_a_place_is_lost(struct sim *sim)
{
    struct stage stage = post_more_than_has_room(sim, 4);

    assert_int_equal(stage.b->received_count, 2 + 4);
    for (unsigned i = 0; i < 2 + 4; i++)
        assert_true(sim_is_pattern(stage.far->bytes + i * 200 + 40, 100, 10 + i));
}

static void ud_that_waits_without_memory_is_lost(struct sim *sim)
{
    assert_int_equal(post_more_than_has_room(sim, 0).b->received_count, 2);
}

static void ud_ignores_other_services(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UD, 10);

    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 100), 1);
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        struct packet packet = {.opcode = (uint8_t)opcode, .pkey = 0xffff, .qkey = 0x1234};

        if (opcode != (SERVICE_UD | OP_SEND_ONLY) && opcode != (SERVICE_UD | OP_SEND_ONLY_IMM))
            sim_inject(stage.b, &packet);
    }
    assert_int_equal(stage.b->received_count, 0);
    assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
}

/* --- UC ------------------------------------------------------------------------------------------- */

static void uc_send_and_write(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 50000);
    bool lent = sim->link.properties.reference_mtu != 0;

    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    assert_int_equal(stage.a->sent_count, !lent);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_true(sim_is_pattern(stage.far->bytes, 50000, 1));

    memset(stage.far->bytes, 0, SIZE);
    sim_post_recv(stage.b, 12, &SGE(stage.far, 0, SIZE), 1);
    stage.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    stage.wr.imm_or_rkey = 5;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_received(stage.b, 1, 12, VERDICT_OK);
    assert_int_equal(stage.b->received[1].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_int_equal(stage.b->received[1].byte_len, 50000);
    assert_true(sim_is_pattern(stage.far->bytes, 50000, 1));
}

static void uc_completes_in_order_what_it_lends(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 50000);

    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, SIZE), 1);
    sim_post_recv(stage.b, 12, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    stage.wr.wr_id = 3;
    stage.wr.sge[0].length = 8;
    sim_post_send(stage.a, &stage.wr);
    assert_int_equal(stage.a->sent_count, 0);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 3, VERDICT_OK);
    assert_int_equal(stage.b->received_count, 2);

    /* No QP takes the message: the exposure of the buffer ends all the same. */
    stage.wr.sge[0].length = 50000;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 2, 3, VERDICT_OK);
    assert_int_equal(stage.b->received_count, 2);
    sim_set_state(stage.b, IBV_QPS_INIT);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 3, 3, VERDICT_OK);
    sim->link.blackhole = true;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 4, 3, VERDICT_OK);
    assert_int_equal(stage.a->record.state, IBV_QPS_RTS);
}

static void uc_loses_whole_messages(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 5000);

    sim->link.loss_mask = 1ull << 2 | 1ull << 9; /* a middle of the first, the last of the second */
    for (unsigned i = 0; i < 3; i++) {
        sim_post_recv(stage.b, 11 + i, &SGE(stage.far, 0, SIZE), 1);
        sim_post_send(stage.a, &stage.wr);
    }
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 3);
    assert_int_equal(stage.b->received_count, 1);
    /* The receive that the first one took served the others. */
    assert_received(stage.b, 0, 11, VERDICT_OK);
    assert_int_equal(stage.b->received[0].byte_len, 5000);
    assert_true(sim_is_pattern(stage.far->bytes, 5000, 1));
    assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
}

static void uc_without_receive_drops_the_message(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 20000);

    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 2);
    assert_int_equal(stage.b->received_count, 1);
    assert_int_equal(stage.b->received[0].byte_len, 20000);
}

static void uc_violations_are_silent(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 20000);

    stage.wr.opcode = IBV_WR_RDMA_WRITE;
    stage.wr.rkey ^= 1;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    stage.wr.rkey ^= 1;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 2, VERDICT_OK);
    assert_int_equal(stage.b->access_errors + stage.b->request_errors, 0);
    assert_int_equal(stage.b->record.state, IBV_QPS_RTS);
    assert_true(sim_is_pattern(stage.far->bytes, 20000, 1));
}

static void uc_receive_errors_end_the_receiver(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 20000);

    sim_post_recv(stage.b, 11, &SGE(stage.far, 0, 19999), 1);
    sim_post_recv(stage.b, 12, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_received(stage.b, 0, 11, VERDICT_LOCAL_LENGTH);
    assert_received(stage.b, 1, 12, VERDICT_FLUSHED);
    assert_int_equal(stage.b->record.state, IBV_QPS_ERR);
    assert_int_equal(stage.a->record.state, IBV_QPS_RTS);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
}

static void uc_local_errors_stop_the_send_queue(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_QPT_UC, 20000);

    sim_post_recv(stage.a, 21, &SGE(stage.local, 0, SIZE), 1);
    stage.wr.opcode = IBV_WR_RDMA_READ;
    sim_queue_send(stage.a, &stage.wr);
    stage.wr.wr_id = 3;
    sim_queue_send(stage.a, &stage.wr);
    sim_kick(stage.a);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_LOCAL_QP_OPERATION);
    assert_sent(stage.a, 1, 3, VERDICT_FLUSHED);
    assert_int_equal(stage.a->record.state, IBV_QPS_SQE);
    stage.wr.opcode = IBV_WR_SEND;
    stage.wr.sge[0] = SGE(stage.far, 0, 100);
    sim_post_send(stage.b, &stage.wr);
    sim_run(sim);
    assert_received(stage.a, 0, 21, VERDICT_OK);
}

static const struct scenario scenarios[] = {
    SCENARIO(ud_over_ipv4),
    SCENARIO(ud_over_ipv6),
    SCENARIO(ud_scatters_headers_too),
    SCENARIO(ud_without_receive_is_dropped),
    SCENARIO(ud_qkeys),
    SCENARIO(ud_receive_too_short_kills_nobody),
    SCENARIO(ud_message_longer_than_mtu),
    SCENARIO(ud_local_key),
    SCENARIO(ud_knows_no_writes),
    SCENARIO(ud_inline_and_empty),
    SCENARIO_ON(ud_waits_for_room, ON_LOCAL),
    SCENARIO_ON(ud_that_waits_is_that_of_the_post, ON_LOCAL),
    SCENARIO_ON(ud_that_waits_without_a_place_is_lost, ON_LOCAL),
    SCENARIO_ON(ud_that_waits_without_memory_is_lost, ON_LOCAL),
    SCENARIO(ud_ignores_other_services),
    SCENARIO(uc_send_and_write),
    SCENARIO_ON(uc_completes_in_order_what_it_lends, ON_REFERENCES),
    SCENARIO_ON(uc_loses_whole_messages, ON_WIRE),
    SCENARIO(uc_without_receive_drops_the_message),
    SCENARIO(uc_violations_are_silent),
    SCENARIO(uc_receive_errors_end_the_receiver),
    SCENARIO(uc_local_errors_stop_the_send_queue),
};

int main(int argc, char **argv)
{
    return run_scenarios("datagram", scenarios, array_size(scenarios), argc, argv);
}
