/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What an RC connection does on every kind of link: verbs.md §3.1-3.7, §3.13, §4.3. */
#include "scenario.h"

#define ACCESS                                                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static const uint32_t lengths[] = {0,    1,     3,     4,     7,      8,      9,     63,
                                   64,   257,   1023,  1024,  1025,   4096,   8191,  8192,
                                   8193, 16384, 32773, 65536, 262144, 262145, 600001};

static void send_of_every_length(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    from = sim_buffer(&sim->node[0], 700000, 0);
    to = sim_buffer(&sim->node[1], 700000, IBV_ACCESS_LOCAL_WRITE);
    for (unsigned i = 0; i < array_size(lengths); i++) {
        struct sim_wr wr = {
            .wr_id = i, .opcode = IBV_WR_SEND, .num_sge = 1, .sge = {SGE(from, 3, lengths[i])}};

        sim_pattern(from->bytes + 3, lengths[i], i);
        memset(to->bytes, 0xaa, to->length);
        sim_post_recv(b, 100 + i, &SGE(to, 5, lengths[i] + 1), 1);
        sim_post_send(a, &wr);
        sim_run(sim);
        assert_sent(a, i, i, VERDICT_OK);
        assert_received(b, i, 100 + i, VERDICT_OK);
        assert_int_equal(b->received[i].opcode, IBV_WC_RECV);
        assert_int_equal(b->received[i].byte_len, lengths[i]);
        assert_int_equal(b->received[i].wc_flags, 0);
        assert_true(sim_is_pattern(to->bytes + 5, lengths[i], i));
        assert_int_equal(to->bytes[4], 0xaa);
        assert_int_equal(to->bytes[5 + lengths[i]], 0xaa);
    }
    assert_int_equal(a->record.sender.retransmissions, 0);
    assert_int_equal(sim->plain != 0, !sim->link.properties.reliable);
    assert_int_equal(sim->plain, a->record.sender.plain);
}

static void write_of_every_length(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    from = sim_buffer(&sim->node[0], 700000, 0);
    to = sim_buffer(&sim->node[1], 700000, ACCESS);
    for (unsigned i = 0; i < array_size(lengths); i++) {
        struct sim_wr wr = {.wr_id = i,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .num_sge = 1,
                            .sge = {SGE(from, 0, lengths[i])},
                            .rkey = to->rkey,
                            .remote_address = to->address + i};

        sim_pattern(from->bytes, lengths[i], i);
        memset(to->bytes, 0xaa, to->length);
        sim_post_send(a, &wr);
        sim_run(sim);
        assert_sent(a, i, i, VERDICT_OK);
        assert_true(sim_is_pattern(to->bytes + i, lengths[i], i));
        assert_int_equal(to->bytes[i + lengths[i]], 0xaa);
        assert_true(!i || to->bytes[i - 1] == 0xaa);
    }
    assert_int_equal(b->received_count, 0);
    assert_int_equal(b->access_errors, 0);
}

static void read_of_every_length(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    to = sim_buffer(&sim->node[0], 700000, IBV_ACCESS_LOCAL_WRITE);
    from = sim_buffer(&sim->node[1], 700000, IBV_ACCESS_REMOTE_READ);
    for (unsigned i = 0; i < array_size(lengths); i++) {
        uint32_t half = lengths[i] / 2;
        struct sim_wr wr = {.wr_id = i,
                            .opcode = IBV_WR_RDMA_READ,
                            .num_sge = 2,
                            .sge = {SGE(to, 7, half), SGE(to, 300007, lengths[i] - half)},
                            .rkey = from->rkey,
                            .remote_address = from->address + i};

        sim_pattern(from->bytes + i, lengths[i], i);
        memset(to->bytes, 0xaa, to->length);
        sim_post_send(a, &wr);
        sim_run(sim);
        assert_sent(a, i, i, VERDICT_OK);
        assert_int_equal(a->sent[i].byte_len, lengths[i]);
        memmove(to->bytes + 7 + half, to->bytes + 300007, lengths[i] - half);
        assert_true(sim_is_pattern(to->bytes + 7, lengths[i], i));
    }
    assert_int_equal(b->received_count, 0);
}

static void many_messages_in_order(struct sim *sim)
{
    enum { COUNT = 500 };
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;
    unsigned posted = 0, receives = 0;

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    a->lazy_ack = b->lazy_ack = true;
    from = sim_buffer(&sim->node[0], COUNT * 64, 0);
    to = sim_buffer(&sim->node[1], COUNT * 64, IBV_ACCESS_LOCAL_WRITE);
    sim_pattern(from->bytes, from->length, 1);
    while (a->sent_count < COUNT) {
        while (receives < COUNT && receives - b->received_count < SIM_DEPTH - 2) {
            sim_post_recv(b, receives, &SGE(to, receives * 64, 64), 1);
            receives++;
        }
        while (posted < COUNT && !sim_send_queue_is_full(a)) {
            struct sim_wr wr = {
                .wr_id = posted, .opcode = IBV_WR_SEND, .num_sge = 1, .sge = {SGE(from, posted * 64, 64)}};

            sim_post_send(a, &wr);
            posted++;
        }
        sim_run_for(sim, NS_PER_MS);
    }
    assert_int_equal(b->received_count, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_sent(a, i, i, VERDICT_OK);
        assert_received(b, i, i, VERDICT_OK);
    }
    assert_memory_equal(from->bytes, to->bytes, from->length);
}

static void immediate_and_solicited(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;
    struct sim_wr wr = {
        .opcode = IBV_WR_SEND_WITH_IMM, .flags = WQE_SOLICITED, .imm_or_rkey = 0x01020304, .num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    from = sim_buffer(&sim->node[0], 50000, 0);
    to = sim_buffer(&sim->node[1], 50000, ACCESS);
    for (unsigned i = 0; i < 4; i++)
        sim_post_recv(b, i, &SGE(to, 0, 50000), 1);
    wr.sge[0] = SGE(from, 0, 50000);
    sim_post_send(a, &wr);
    wr.flags = 0;
    wr.sge[0] = SGE(from, 0, 0);
    sim_post_send(a, &wr);
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.rkey = to->rkey;
    wr.remote_address = to->address;
    wr.sge[0] = SGE(from, 0, 40000);
    wr.flags = WQE_SOLICITED;
    sim_post_send(a, &wr);
    wr.sge[0] = SGE(from, 0, 0);
    wr.rkey = 0; /* nothing is written, so no key is looked at */
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_int_equal(b->received_count, 4);
    for (unsigned i = 0; i < 4; i++) {
        static const uint32_t expected[] = {50000, 0, 40000, 0};

        assert_received(b, i, i, VERDICT_OK);
        assert_int_equal(b->received[i].opcode, i < 2 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
        assert_int_equal(b->received[i].byte_len, expected[i]);
        assert_int_equal(b->received[i].wc_flags, IBV_WC_WITH_IMM);
        assert_int_equal(b->received[i].imm_or_rkey, 0x01020304);
        assert_int_equal(b->received[i].solicited, i != 1);
    }
}

static void gather_and_scatter(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *from, *to;
    struct wqe_sge receive[4];
    struct sim_wr wr = {.opcode = IBV_WR_SEND, .num_sge = 5};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    from = sim_buffer(&sim->node[0], 100000, 0);
    to = sim_buffer(&sim->node[1], 100000, ACCESS);
    sim_pattern(from->bytes, from->length, 9);
    wr.sge[0] = SGE(from, 0, 13);
    wr.sge[1] = (struct wqe_sge){.lkey = 0xdead}; /* empty: its key does not matter */
    wr.sge[2] = SGE(from, 13, 20000);
    wr.sge[3] = SGE(from, 20013, 1);
    wr.sge[4] = SGE(from, 20014, 30000);
    receive[0] = SGE(to, 0, 1);
    receive[1] = SGE(to, 1, 25000);
    receive[2] = (struct wqe_sge){0};
    receive[3] = SGE(to, 25001, 60000);
    sim_post_recv(b, 1, receive, 4);
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_received(b, 0, 1, VERDICT_OK);
    assert_int_equal(b->received[0].byte_len, 50014);
    assert_memory_equal(to->bytes, from->bytes, 50014);
    assert_int_equal(to->bytes[50014], 0);
}

static void inline_data(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *to;
    char data[200];
    struct sim_wr wr = {
        .opcode = IBV_WR_SEND, .flags = WQE_INLINE, .inline_data = data, .inline_length = sizeof(data)};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    to = sim_buffer(&sim->node[1], 1000, ACCESS);
    sim_pattern(data, sizeof(data), 4);
    sim_post_recv(b, 1, &SGE(to, 0, 200), 1);
    sim_queue_send(a, &wr);
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.rkey = to->rkey;
    wr.remote_address = to->address + 500;
    sim_queue_send(a, &wr);
    memset(data, 0, sizeof(data));
    sim_kick(a);
    sim_run(sim);
    assert_received(b, 0, 1, VERDICT_OK);
    assert_sent(a, 1, 0, VERDICT_OK);
    assert_true(sim_is_pattern(to->bytes, 200, 4));
    assert_true(sim_is_pattern(to->bytes + 500, 200, 4));
}
static void shared_receives(struct sim *sim)
{
    struct sim_qp *a, *b, *c, *d;
    struct sim_buffer *from, *to;
    struct sim_wr wr = {.opcode = IBV_WR_SEND, .num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    sim_pair(sim, IBV_QPT_RC, &c, &d);
    sim_share_receives(d, b);
    from = sim_buffer(&sim->node[0], 8, 0);
    to = sim_buffer(&sim->node[1], 80, ACCESS);
    for (unsigned i = 0; i < 10; i++)
        sim_post_recv(b, i, &SGE(to, i * 8, 8), 1);
    wr.sge[0] = SGE(from, 0, 8);
    for (unsigned i = 0; i < 10; i++) {
        sim_post_send(i & 1 ? c : a, &wr);
        sim_run(sim);
        assert_received(i & 1 ? d : b, i / 2, i, VERDICT_OK);
    }
}

static void null_region_reads_zero_and_drops_writes(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *null_a, *null_b, *from, *to;
    struct sim_wr wr = {.opcode = IBV_WR_SEND, .num_sge = 3};
    struct wqe_sge receive[3];

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    null_a = sim_null_region(&sim->node[0]);
    null_b = sim_null_region(&sim->node[1]);
    from = sim_buffer(&sim->node[0], 100000, 0);
    to = sim_buffer(&sim->node[1], 200000, IBV_ACCESS_LOCAL_WRITE);
    sim_pattern(from->bytes, from->length, 1);
    memset(to->bytes, 0xaa, to->length);
    wr.sge[0] = SGE(from, 0, 50000);
    wr.sge[1] = (struct wqe_sge){.address = 12345, .length = 70000, .lkey = null_a->lkey};
    wr.sge[2] = SGE(from, 50000, 50000);
    sim_post_recv(b, 1, &SGE(to, 0, 200000), 1);
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_received(b, 0, 1, VERDICT_OK);
    assert_int_equal(b->received[0].byte_len, 170000);
    assert_memory_equal(to->bytes, from->bytes, 50000);
    for (unsigned i = 0; i < 70000; i++)
        assert_int_equal(to->bytes[50000 + i], 0);
    assert_memory_equal(to->bytes + 120000, from->bytes + 50000, 50000);

    memset(to->bytes, 0xaa, to->length);
    wr.num_sge = 1;
    wr.sge[0] = SGE(from, 0, 100000);
    receive[0] = SGE(to, 0, 10);
    receive[1] = (struct wqe_sge){.length = 99980, .lkey = null_b->lkey};
    receive[2] = SGE(to, 10, 10);
    sim_post_recv(b, 2, receive, 3);
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_received(b, 1, 2, VERDICT_OK);
    assert_memory_equal(to->bytes, from->bytes, 10);
    assert_memory_equal(to->bytes + 10, from->bytes + 99990, 10);
    assert_int_equal(to->bytes[20], 0xaa);
}

static void read_into_null_region(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *null = sim_null_region(&sim->node[0]);
    struct sim_buffer *far = sim_buffer(&sim->node[1], 4000000, IBV_ACCESS_REMOTE_READ);
    struct sim_wr wr = {
        .opcode = IBV_WR_RDMA_READ, .num_sge = 1, .rkey = far->rkey, .remote_address = far->address};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    wr.sge[0] = (struct wqe_sge){.length = 4000000, .lkey = null->lkey};
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_sent(a, 0, 0, VERDICT_OK);
    assert_int_equal(a->sent[0].byte_len, 4000000);
}

/* Requester and responder are one QP: its acknowledgements ride on its own requests. */
static void connected_to_itself(struct sim *sim)
{
    struct sim_qp *a = sim_qp(&sim->node[0], IBV_QPT_RC);
    struct sim_buffer *buffer = sim_buffer(&sim->node[0], 200000, ACCESS);
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    sim_to_init(a);
    sim_to_rtr(a, a, 5);
    sim_to_rts(a, 5);
    sim_pattern(buffer->bytes, 100000, 1);
    for (unsigned i = 0; i < 12; i++) {
        struct sim_wr wr = {.wr_id = i,
                            .opcode = opcodes[i % 3],
                            .num_sge = 1,
                            .sge = {SGE(buffer, i % 3 == 2 ? 100000 : 0, i < 6 ? 8 : 100000)},
                            .rkey = buffer->rkey,
                            .remote_address = buffer->address + (i % 3 == 2 ? 0 : 100000)};

        if (i % 3 == 0)
            sim_post_recv(a, i, &SGE(buffer, 100000, 100000), 1);
        sim_post_send(a, &wr);
    }
    sim_run(sim);
    assert_int_equal(a->sent_count, 12);
    for (unsigned i = 0; i < 12; i++)
        assert_sent(a, i, i, VERDICT_OK);
    assert_int_equal(a->received_count, 4);
    assert_true(sim_is_pattern(buffer->bytes + 100000, 100000, 1));
}
static void psn_wraps(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *local, *far;
    struct sim_wr wr = {.num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    local = sim_buffer(&sim->node[0], 10000, IBV_ACCESS_LOCAL_WRITE);
    far = sim_buffer(&sim->node[1], 10000, ACCESS);
    wr.rkey = far->rkey;
    wr.remote_address = far->address;
    for (unsigned i = 0; i < 150; i++) {
        wr.opcode = i % 3 ? i % 3 == 1 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ : IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.sge[0] = SGE(local, 0, i % 3 ? 10000 : 8);
        sim_post_send(a, &wr);
        if (i % 7 == 0)
            sim_run(sim);
    }
    sim_run(sim);
    assert_int_equal(a->sent_count, 150);
    assert_sent(a, 149, 0, VERDICT_OK);
    assert_true(a->record.sender.next_psn.value < a->record.attributes.sq_psn);
}

static void two_gigabytes(struct sim *sim)
{
    struct sim_qp *a, *b;
    struct sim_buffer *null_a = sim_null_region(&sim->node[0]), *null_b = sim_null_region(&sim->node[1]);
    struct sim_wr wr = {.opcode = IBV_WR_SEND, .num_sge = 1};

    sim_pair(sim, IBV_QPT_RC, &a, &b);
    wr.sge[0] = (struct wqe_sge){.length = LIMIT_MESSAGE, .lkey = null_a->lkey};
    sim_post_recv(b, 1, &(struct wqe_sge){.length = LIMIT_MESSAGE, .lkey = null_b->lkey}, 1);
    sim_post_send(a, &wr);
    wr.wr_id = 1;
    wr.sge[0].length++;
    sim_post_send(a, &wr);
    sim_run(sim);
    assert_received(b, 0, 1, VERDICT_OK);
    assert_int_equal(b->received[0].byte_len, LIMIT_MESSAGE);
    assert_sent(a, 0, 0, VERDICT_OK);
    assert_sent(a, 1, 1, VERDICT_LOCAL_LENGTH);
}

/* On either side, of every kind: the memory is not fetched by reference, and its bytes travel in packets.
 */
static void memory_that_cannot_be_fetched_is_copied(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    struct sim_buffer *near, *far;
    struct sim_qp *a, *b;

    sim->refuse_pull = true;
    sim_pair(sim, IBV_QPT_RC, &a, &b);
    near = sim_buffer(&sim->node[0], 300000, ACCESS | ACCESS_COPIED);
    far = sim_buffer(&sim->node[1], 300000, ACCESS | ACCESS_COPIED);
    assert_true(near->lkey & near->rkey & far->lkey & far->rkey & KEY_COPIED);
    for (unsigned i = 0; i < array_size(opcodes); i++) {
        bool read = opcodes[i] == IBV_WR_RDMA_READ;
        struct sim_wr wr = {.wr_id = i,
                            .opcode = opcodes[i],
                            .num_sge = 1,
                            .sge = {SGE(near, 0, 300000)},
                            .rkey = far->rkey,
                            .remote_address = far->address};

        sim_pattern((read ? far : near)->bytes, 300000, i);
        if (opcodes[i] == IBV_WR_SEND)
            sim_post_recv(b, 1, &SGE(far, 0, 300000), 1);
        sim_post_send(a, &wr);
        sim_run(sim);
        assert_sent(a, i, i, VERDICT_OK);
        assert_true(sim_is_pattern((read ? near : far)->bytes, 300000, i));
    }
}

static const struct scenario scenarios[] = {
    SCENARIO(send_of_every_length),
    SCENARIO(write_of_every_length),
    SCENARIO(read_of_every_length),
    SCENARIO(many_messages_in_order),
    SCENARIO(immediate_and_solicited),
    SCENARIO(gather_and_scatter),
    SCENARIO(inline_data),
    SCENARIO(shared_receives),
    SCENARIO(null_region_reads_zero_and_drops_writes),
    SCENARIO(read_into_null_region),
    SCENARIO(connected_to_itself),
    SCENARIO(psn_wraps),
    SCENARIO(memory_that_cannot_be_fetched_is_copied),
    SCENARIO_ON(two_gigabytes, ON_RING | ON_WIRE),
};

int main(int argc, char **argv)
{
    return run_scenarios("rc", scenarios, array_size(scenarios), argc, argv);
}
