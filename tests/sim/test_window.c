/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What only a link that may lose packets knows: windows, parts of READs, credits, timers that are not set
 * back, and losses of what was repeated (IBA 9.7.5, 9.7.6, 9.7.7.2; docs/transport.md). */
#include "stage.h"

#include <limits.h>
#include <sys/mman.h>

#include "rules/timing.h"

static unsigned count;
static uint32_t most;
static struct sim_qp *watched;

/* --- acknowledgements ----------------------------------------------------------------------------- */

static void acknowledgement_of_what_was_not_sent(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, SIZE);
    struct packet ghost = {
        .opcode = OP_ACKNOWLEDGE,
        .pkey = 0xffff,
        .dest_qpn = stage.a->record.qpn,
        .psn = psn_add(stage.a->record.sender.next_psn, 20),
        .syndrome = 0x1f,
    };

    sim->link.capacity = 4;
    sim_post_send(stage.a, &stage.wr);
    sim_inject(stage.a, &ghost);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_true(sim_is_pattern(stage.far->bytes, SIZE, 1));
}

static void count_ack_requests(struct sim *sim, struct packet *packet)
{
    count += !!(packet->flags & PACKET_ACK_REQUEST);
}

static void only_rc_asks_for_acknowledgements(struct sim *sim)
{
    static const struct {
        enum ibv_qp_type type;
        uint32_t length;
        bool asks;
    } cases[] = {{IBV_QPT_RC, 30000, true}, {IBV_QPT_UC, 30000, false}, {IBV_QPT_UD, 1000, false}};

    sim->on_packet = count_ack_requests;
    for (unsigned i = 0; i < array_size(cases); i++) {
        struct stage stage = set_stage(sim, IBV_WR_SEND, cases[i].length);

        if (cases[i].type != IBV_QPT_RC)
            sim_pair(sim, cases[i].type, &stage.a, &stage.b);
        stage.wr.remote_qpn = stage.b->record.qpn;
        stage.wr.remote_qkey = stage.b->record.attributes.qkey;
        sim_post_recv(stage.b, 1, &SGE(stage.far, 0, SIZE), 1);
        count = 0;
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
        assert_int_equal(stage.b->received_count, 1);
        assert_int_equal(count != 0, cases[i].asks);
    }
}

static void uc_hears_no_answers(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, SIZE);
    struct packet answer = {.opcode = OP_ACKNOWLEDGE, .pkey = 0xffff, .syndrome = 0x1f};

    sim_pair(sim, IBV_QPT_UC, &stage.a, &stage.b);
    sim->link.capacity = 4;
    sim_post_send(stage.a, &stage.wr);
    answer.dest_qpn = stage.a->record.qpn;
    for (uint32_t i = 0; i < 40; i++) {
        answer.psn = psn_make(stage.a->record.attributes.sq_psn + i - 20);
        sim_inject(stage.a, &answer);
    }
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_true(sim_is_pattern(stage.far->bytes, SIZE, 1));
}

static uint32_t messages_told;

static void note_message_number(struct sim *sim, struct packet *packet)
{
    if (opcode_table[packet->opcode].properties & OPCODE_HAS_AETH) {
        assert_int_equal(packet->syndrome, 0x1f);
        messages_told = packet->msn;
    }
}

static void messages_are_numbered(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 3000);

    sim->on_packet = note_message_number;
    stage.b->record.responder.msn = stage.b->judge.msn = PSN_MASK - 1;
    for (unsigned i = 0; i < 2; i++) {
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
        assert_int_equal(messages_told, (PSN_MASK + i) & PSN_MASK);
    }
    stage.wr.opcode = IBV_WR_RDMA_READ;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(messages_told, 1);
}

static unsigned naks;

static void count_naks(struct sim *sim, struct packet *packet)
{
    if ((opcode_table[packet->opcode].properties & OPCODE_ACK) &&
        SYNDROME_KIND(packet->syndrome) == SYNDROME_NAK) {
        assert_int_equal(SYNDROME_VALUE(packet->syndrome), NAK_SEQUENCE);
        assert_true(psn_equal(packet->psn, sim->qps[1]->record.responder.expected_psn));
        naks++;
    }
}

static void one_nak_per_gap(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 30000);

    naks = 0;
    sim->on_packet = count_naks;
    sim->link.loss_mask = 1 << 3;
    stage.a->record.attributes.timeout = 0;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_int_equal(naks, 1);
    assert_int_equal(stage.a->record.sender.retransmissions, 1);
}

/* Everything comes twice, the second time when something else was executed long ago. */
static void duplicates_are_executed_once(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
    struct sim_buffer *results = sim_buffer(&sim->node[0], 8 * 64, ACCESS);

    sim->link.duplicate_percent = 100;
    for (unsigned i = 0; i < 300; i++) {
        struct sim_wr add = stage.wr, swap = stage.wr, send = stage.wr;

        *(uint64_t *)(stage.local->bytes + 8 * i) = i;
        stage.wr.sge[0] = SGE(stage.local, 8 * i, 8);
        sim_queue_send(stage.a, &stage.wr);
        add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        add.remote_address += 8;
        add.compare_add = 3;
        add.sge[0] = SGE(results, 0, 8);
        sim_queue_send(stage.a, &add);
        swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
        swap.remote_address += 16;
        swap.compare_add = i;
        swap.swap = i + 1;
        swap.sge[0] = SGE(results, 8, 8);
        sim_queue_send(stage.a, &swap);
        send.opcode = IBV_WR_SEND;
        send.sge[0] = SGE(stage.local, 8 * i, 8);
        sim_post_recv(stage.b, i, &SGE(stage.far, 1000 + 8 * i, 8), 1);
        sim_queue_send(stage.a, &send);
        sim_kick(stage.a);
        if (i % 8 == 7)
            sim_run_for(sim, NS_PER_MS);
    }
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 1200);
    assert_sent(stage.a, 1199, 2, VERDICT_OK);
    assert_int_equal(stage.b->received_count, 300);
    assert_int_equal(((uint64_t *)stage.far->bytes)[0], 299);
    assert_int_equal(((uint64_t *)stage.far->bytes)[1], 900);
    assert_int_equal(((uint64_t *)stage.far->bytes)[2], 300);
    assert_int_equal(((uint64_t *)results->bytes)[0], 897);
    assert_int_equal(((uint64_t *)results->bytes)[1], 299);
    assert_memory_equal(stage.far->bytes + 1000, stage.local->bytes, 2400);
    assert_true(stage.b->record.responder.duplicates > 1000);
}

/* --- losses --------------------------------------------------------------------------------------- */

static psn_t lost_psn;
static unsigned lost_times;

/* The data packet with this number, so many times. */
static bool lose(struct sim *sim, const struct packet *packet)
{
    if (!psn_equal(packet->psn, lost_psn) || !packet->payload_length || !lost_times)
        return false;
    lost_times--;
    return true;
}

static void expect_no_timer(struct sim *sim, enum ibv_wr_opcode opcode, uint32_t lost, unsigned times)
{
    struct stage stage = set_stage(sim, opcode, 5000);
    struct sim_wr after = stage.wr;

    sim->loses = lose;
    lost_psn = psn_add(stage.a->record.sender.next_psn, lost);
    lost_times = times;
    stage.a->record.attributes.timeout = 0;
    sim_pattern(stage.far->bytes, SIZE, 1);
    after.wr_id = 3;
    after.opcode = IBV_WR_RDMA_WRITE;
    after.sge[0] = SGE(stage.local, 50000, 8);
    after.remote_address += 50000;
    sim_queue_send(stage.a, &stage.wr);
    sim_queue_send(stage.a, &after);
    sim_kick(stage.a);
    sim_run(sim);
    assert_int_equal(lost_times, 0);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 3, VERDICT_OK);
    assert_int_equal(stage.a->record.sender.retransmissions, times);
    assert_memory_equal(stage.far->bytes, stage.local->bytes, 5000);
}

static void lost_repetition_is_missed(struct sim *sim)
{
    for (uint32_t lost = 0; lost < 5; lost++)
        expect_no_timer(sim, IBV_WR_RDMA_WRITE, lost, 4);
}

static void lost_repeated_answer_is_missed(struct sim *sim)
{
    for (uint32_t lost = 0; lost < 5; lost++)
        expect_no_timer(sim, IBV_WR_RDMA_READ, lost, 4);
}

/* More often than retry_cnt allows timeouts, each time noticed by a NAK. */
static void what_is_lost_again_and_again_comes_before_the_timeout(struct sim *sim)
{
    const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (unsigned i = 0; i < array_size(opcodes); i++) {
        struct stage stage = set_stage(sim, opcodes[i], 5000);

        sim->loses = lose;
        lost_psn = psn_add(stage.a->record.sender.next_psn, 1);
        lost_times = 20;
        stage.a->record.attributes.timeout = 14;
        stage.a->record.attributes.retry_count = 3;
        sender_start(&stage.a->transport);
        sim_pattern(stage.far->bytes, SIZE, 1);
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
        assert_int_equal(lost_times, 0);
        assert_sent(stage.a, 0, 2, VERDICT_OK);
        assert_int_equal(stage.a->record.sender.expirations, 0);
    }
}

/* What never comes ends the QP all the same, by timeouts. */
static void what_is_always_lost_uses_up_the_retries(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 5000);

    sim->loses = lose;
    lost_psn = psn_add(stage.a->record.sender.next_psn, 1);
    lost_times = UINT_MAX;
    stage.a->record.attributes.timeout = 14;
    stage.a->record.attributes.retry_count = 3;
    sender_start(&stage.a->transport);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_RETRY_EXCEEDED);
    assert_in_range(stage.a->record.sender.expirations, 3, 4);
}

/* --- timers --------------------------------------------------------------------------------------- */

static void timer_is_not_set_back_by_acknowledgements(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);

    for (unsigned i = 0; i < 1000; i++) {
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, 3 * sim->link.delay);
    }
    assert_int_equal(stage.a->sent_count, 1000);
    assert_in_range(stage.a->timer_changes, 1, 2 + 2 * sim->now / (2 * NS_PER_MS));
    sim_run(sim);
    assert_false(stage.a->timer_runs);
}

static void timer_expires_between_one_and_two_timeouts(struct sim *sim)
{
    ns_t timeout = timing_ack_timeout(14);

    for (unsigned i = 1; i < 10; i++) {
        struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
        ns_t begun;

        stage.a->record.attributes.retry_count = 0;
        sender_start(&stage.a->transport);
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, i * timeout / 10);
        begun = sim->now;
        sim->link.blackhole = true;
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
        assert_sent(stage.a, 1, 2, VERDICT_RETRY_EXCEEDED);
        assert_in_range(stage.a->failed_at - begun, timeout, 2 * timeout);
        sim->link.blackhole = false;
    }
}

/* After a few round trips a probe is sent, which uses no retry. */
static void what_nobody_misses_is_probed_for(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
    ns_t begun;

    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_in_range(stage.a->record.sender.rtt, 2 * sim->link.delay, 2 * sim->link.delay + 10);
    sim->loses = lose;
    for (unsigned times = 1; times <= 2; times++) {
        begun = sim->now;
        lost_psn = stage.a->record.sender.next_psn;
        lost_times = times;
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, times * 8 * NS_PER_MS);
        assert_int_equal(stage.a->sent_count, 1 + times);
    }
    assert_int_equal(stage.a->record.sender.probes_sent, 3);
    assert_int_equal(stage.a->record.sender.expirations, 0);
    assert_int_equal(stage.a->record.sender.retries_left, 7);

    /* Probes of a dead peer end, and the timeouts are those of the QP's attributes. */
    begun = sim->now;
    sim->link.blackhole = true;
    stage.a->record.attributes.retry_count = stage.a->record.sender.retries_left = 1;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 3, 2, VERDICT_RETRY_EXCEEDED);
    assert_int_equal(stage.a->record.sender.probes_sent, 5);
    assert_in_range(stage.a->failed_at - begun, 2 * timing_ack_timeout(14), 13 * timing_ack_timeout(14) / 4);
}

/* However long T is, and whatever the timer was set to before. */
static void probes_come_soon(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
    const struct sender *sender = &stage.a->record.sender;
    const ns_t soon = 20 * NS_PER_MS;

    stage.a->record.attributes.timeout = 20; /* 4 s */
    sim->loses = lose;
    for (unsigned i = 0; i < 50; i++) {
        unsigned expirations = sender->expirations;

        lost_psn = sender->next_psn;
        /* Now and then all probes, too. The first one comes later, because the round trip time is unknown.
         */
        lost_times = i % 10 == 9 ? 3 : 1;
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, i % 10 == 9 ? 20 * NS_PER_S : i ? soon : 2 * soon);
        assert_int_equal(stage.a->sent_count, i + 1);
        assert_int_equal(sender->expirations - expirations, i % 10 == 9);
        /* The time until the probe is no round trip; nothing else was ever measured. */
        assert_int_equal(sender->rtt, NS_PER_MS);
    }
}

/* A peer that is late now and then, because it waits for a processor: it is probed for, but nothing else is
 * repeated, nothing is sent more slowly, and it is learned. */
static void late_peer_gets_no_repetitions(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 12000);
    unsigned probes;

    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    sim->link.delay = 4 * NS_PER_MS;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    probes = stage.a->record.sender.probes_sent;
    assert_in_range(probes, 1, 2);
    assert_int_equal(stage.b->record.responder.duplicates, probes);
    assert_int_equal(stage.a->record.sender.window, 16);
    assert_false(stage.a->record.sender.recovering);
    for (unsigned i = 0; i < 20; i++) {
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
    }
    assert_in_range(stage.a->record.sender.probes_sent, probes, probes + 4);
    assert_int_equal(stage.b->record.responder.duplicates, stage.a->record.sender.probes_sent);
    assert_int_equal(stage.a->sent_count, 22);
}

/* --- window --------------------------------------------------------------------------------------- */

static void watch_window(struct sim *sim, struct packet *packet)
{
    const struct sender *sender = &watched->record.sender;
    uint32_t used = (sender->sent_psn.value - sender->unacked_psn.value) & PSN_MASK;

    most = max_of(most, used);
    assert_true(used <= WINDOW_DEFAULT);
    assert_true(sender->rd_atomic_packets <= watched->record.attributes.max_rd_atomic);
}

static struct stage watch(struct sim *sim, enum ibv_wr_opcode opcode, uint32_t length, unsigned requests)
{
    struct stage stage = set_stage(sim, opcode, 8);
    struct sim_buffer *null = sim_null_region(&sim->node[0]);
    struct sim_buffer *far = sim_buffer(&sim->node[1], length, ACCESS);

    watched = stage.a;
    most = 0;
    sim->on_packet = watch_window;
    stage.wr.sge[0] = (struct wqe_sge){.length = length, .lkey = null->lkey};
    stage.wr.rkey = far->rkey;
    stage.wr.remote_address = far->address;
    for (unsigned i = 0; i < requests; i++)
        sim_queue_send(stage.a, &stage.wr);
    sim_kick(stage.a);
    return stage;
}

static void window_opens_while_nothing_is_lost(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (unsigned i = 0; i < array_size(opcodes); i++) {
        struct stage stage = watch(sim, opcodes[i], 4000000, 2);

        assert_in_range(stage.a->record.sender.window, 1, 64);
        sim_run(sim);
        assert_sent(stage.a, 1, 2, VERDICT_OK);
        assert_int_equal(most, WINDOW_DEFAULT);
        assert_int_equal(stage.a->record.sender.retransmissions, 0);
    }
}

/* Of one window; the second when it is repeated. */
static bool lose_two(struct sim *sim, const struct packet *packet)
{
    uint32_t place = (packet->psn.value - watched->record.attributes.sq_psn) & PSN_MASK;

    if (!packet->payload_length || count == 2 || place != (count ? 9u : 5u) ||
        count != watched->record.sender.sequence_naks)
        return false;
    count++;
    return true;
}

static void window_is_halved_once_per_loss(struct sim *sim)
{
    struct stage stage;

    count = 0;
    sim->loses = lose_two;
    stage = watch(sim, IBV_WR_RDMA_WRITE, 30000, 1);
    assert_int_equal(stage.a->record.sender.window, 16);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_int_equal(stage.a->record.sender.sequence_naks, 2);
    assert_in_range(stage.a->record.sender.window, 8, 11);
}

static void silence_closes_the_window(struct sim *sim)
{
    struct stage stage;

    sim->link.blackhole = true;
    stage = watch(sim, IBV_WR_RDMA_WRITE, 60000, 1);
    assert_int_equal(sim->packets, 16);
    sim_run_for(sim, timing_ack_timeout(14));
    assert_int_equal(sim->packets, 16 + 2 + 1); /* two probes */
    sim->link.blackhole = false;
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_int_equal(stage.a->record.sender.window_threshold, 8);
    assert_in_range(stage.a->record.sender.window, 8, 12);
}

static void congestion_halves_the_window(struct sim *sim)
{
    struct stage stage = watch(sim, IBV_WR_RDMA_WRITE, 600000, 1);

    transport_congested(&stage.a->transport);
    assert_int_equal(stage.a->record.sender.window, 8);
    transport_congested(&stage.a->transport); /* of the same window */
    assert_int_equal(stage.a->record.sender.window, 8);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_int_equal(stage.a->record.sender.retransmissions, 0);
    assert_int_equal(stage.a->record.sender.congestions, 2);
}

static void congest_again(struct sim *sim, void *argument)
{
    struct sim_qp *qp = argument;

    transport_congested(&qp->transport);
    if (qp->record.sender.completed != qp->record.sender.posted)
        sim_at(sim, 1 + sim_below(sim, 20000), congest_again, qp);
}

/* However small the window is or becomes, some packet in it carries AckReq. */
static void small_windows_do_not_stall(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_RDMA_WRITE_WITH_IMM};

    for (unsigned window = 1; window <= 40; window++) {
        struct stage stage;

        sim->link.properties.window = (uint16_t)window;
        stage = set_stage(sim, IBV_WR_SEND, SIZE);
        sim->qp_count = 0;
        stage.a->record.attributes.timeout = 0;
        sim->qps[sim->qp_count++] = stage.a;
        sim->qps[sim->qp_count++] = stage.b;
        for (unsigned i = 0; i < 12; i++) {
            stage.wr.opcode = opcodes[sim_below(sim, 4)];
            stage.wr.sge[0].length = sim_below(sim, 2) ? SIZE : sim_below(sim, 4000);
            sim_post_recv(stage.b, i, &SGE(stage.far, 0, SIZE), 1);
            sim_queue_send(stage.a, &stage.wr);
        }
        if (window & 1)
            sim_at(sim, 1, congest_again, stage.a);
        sim_kick(stage.a);
        sim_run(sim);
        assert_int_equal(stage.a->sent_count, 12);
        assert_sent(stage.a, 11, 2, VERDICT_OK);
        assert_int_equal(stage.a->record.sender.retransmissions, 0);
        sim->qp_count = 0;
        sim_drop_pair(stage.a, stage.b);
    }
}

/* --- READs in parts ------------------------------------------------------------------------------- */

static void count_reads(struct sim *sim, struct packet *packet)
{
    if (packet->opcode == OP_READ_REQUEST) {
        count++;
        most = max_of(most, packet->dma_length);
    }
}

static void reads_are_asked_for_in_parts(struct sim *sim)
{
    enum { LENGTH = 600001 };
    struct sim_buffer *local = sim_buffer(&sim->node[0], LENGTH, ACCESS);
    struct sim_buffer *far = sim_buffer(&sim->node[1], LENGTH, ACCESS);

    sim_pattern(far->bytes, LENGTH, 5);
    sim->on_packet = count_reads;
    for (unsigned depth = 1; depth <= 16; depth *= 2) {
        struct sim_qp *a, *b;
        struct sim_wr wr = {.wr_id = 2,
                            .opcode = IBV_WR_RDMA_READ,
                            .num_sge = 1,
                            .sge = {SGE(local, 0, LENGTH)},
                            .rkey = far->rkey,
                            .remote_address = far->address};

        sim_pair(sim, IBV_QPT_RC, &a, &b);
        a->record.attributes.max_rd_atomic = (uint8_t)depth;
        b->record.responder.resources = depth; /* no more than was granted */
        memset(local->bytes, 0, LENGTH);
        count = most = 0;
        sim_post_send(a, &wr);
        sim_run(sim);
        assert_sent(a, 0, 2, VERDICT_OK);
        assert_int_equal(a->sent[0].byte_len, LENGTH);
        assert_true(sim_is_pattern(local->bytes, LENGTH, 5));
        assert_in_range(most, 8 * 1024, 16 * 1024);
        assert_in_range(count, LENGTH / (16 * 1024), LENGTH / (8 * 1024) + 1);
    }
}

/* Each request is a response of its own, whose first and last packets differ in size from the others. */
static void few_parts_fill_an_open_window(struct sim *sim)
{
    enum { WINDOW = 128, PART = WINDOW / 4, LENGTH = SIZE / 1024 * 1024 };

    for (unsigned depth = 1; depth <= 16; depth *= 4) {
        struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, LENGTH);

        stage.a->record.attributes.max_rd_atomic = (uint8_t)depth;
        stage.b->record.responder.resources = depth;
        stage.a->record.sender.window = WINDOW;
        sim->on_packet = count_reads;
        count = most = 0;
        sim_post_send(stage.a, &stage.wr);
        sim_run(sim);
        assert_sent(stage.a, 0, 2, VERDICT_OK);
        assert_int_equal(most, PART * 1024);
        assert_int_equal(count, (LENGTH / 1024 + PART - 1) / PART);
        sim->qp_count = 0;
        sim_drop_pair(stage.a, stage.b);
    }
}

/* Losses leave a window that is smaller than a part: it is requested again in pieces. */
static void parts_are_repeated_in_pieces(struct sim *sim)
{
    for (unsigned i = 0; i < 60; i++) {
        struct stage stage = set_stage(sim, IBV_WR_RDMA_READ, SIZE);

        stage.a->record.attributes.max_rd_atomic = (uint8_t)(1 + i % 3);
        stage.b->record.responder.resources = 1 + i % 3;
        sim_pattern(stage.far->bytes, SIZE, i);
        sim->packets = 0;
        sim->link.loss_mask = 7ull << i;
        sim_post_send(stage.a, &stage.wr);
        sim_run_for(sim, sim->link.delay * 2);
        stage.a->record.sender.window = 3;
        sim_run(sim);
        assert_sent(stage.a, 0, 2, VERDICT_OK);
        assert_true(sim_is_pattern(stage.local->bytes, SIZE, i));
        sim->qp_count = 0;
        sim_drop_pair(stage.a, stage.b);
    }
}

/* The NAK that ended the peer gets lost, twice: the work request ends with its status all the same. */
static bool lose_nak(struct sim *sim, const struct packet *packet)
{
    if (packet->opcode != OP_ACKNOWLEDGE || packet->syndrome != (SYNDROME_NAK << 5 | NAK_REMOTE_ACCESS) ||
        !lost_times)
        return false;
    lost_times--;
    return true;
}

static void fatal_nak_is_repeated(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 5000);
    struct sim_wr bad = stage.wr;

    sim->loses = lose_nak;
    lost_times = 2;
    bad.opcode = IBV_WR_RDMA_WRITE;
    bad.rkey ^= 1;
    sim_post_recv(stage.b, 7, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_queue_send(stage.a, &bad);
    sim_kick(stage.a);
    sim_run(sim);
    assert_int_equal(lost_times, 0);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 2, VERDICT_REMOTE_ACCESS);
    assert_int_equal(stage.b->access_errors, 1);
    assert_int_equal(stage.b->responder_failures, 1);
}

/* Only of a QP that failed so: others are silent (peer_in_error in test_retry.c). */
static void no_fatal_nak_after_reset(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 5000);
    struct sim_qp *c = sim_qp(&sim->node[0], IBV_QPT_RC);

    stage.wr.rkey ^= 1;
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_REMOTE_ACCESS);
    responder_reset(&stage.b->transport);
    sim_to_error(stage.b);
    sim_to_rtr(c, stage.b, 0);
    sim_to_rts(c, stage.b->record.responder.expected_psn.value);
    c->record.attributes.dest_qpn = stage.b->record.qpn;
    stage.wr.rkey ^= 1;
    sim_post_send(c, &stage.wr);
    sim_run(sim);
    assert_sent(c, 0, 2, VERDICT_RETRY_EXCEEDED);
}

/* --- receivers ------------------------------------------------------------------------------------ */

static void count_sends(struct sim *sim, struct packet *packet)
{
    count += (opcode_table[packet->opcode].properties & (OPCODE_SEND | OPCODE_REQUEST)) ==
             (OPCODE_SEND | OPCODE_REQUEST);
}

static void one_packet_asks_whether_the_receiver_is_ready(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 20000);

    sim->on_packet = count_sends;
    sim_post_send(stage.a, &stage.wr);
    sim_run_for(sim, 4 * sim->link.delay);
    count = 0;
    sim_run_for(sim, 9 * timing_rnr(12));
    assert_in_range(count, 8, 9);
    sim_post_recv(stage.b, 1, &SGE(stage.far, 0, SIZE), 1);
    sim_run(sim);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_true(sim_is_pattern(stage.far->bytes, 20000, 1));
}

static uint8_t credit_code;
static unsigned beyond;

/* The responder as one that counts its receives. */
static void tell_credits(struct sim *sim, struct packet *packet)
{
    const struct sender *sender = &sim->qps[0]->record.sender;

    if (opcode_table[packet->opcode].properties & OPCODE_HAS_AETH)
        packet->syndrome = credit_code;
    if ((packet->opcode == OP_SEND_FIRST || packet->opcode == OP_SEND_ONLY) && sender->limited &&
        !psn_equal(packet->psn, sender->unacked_psn))
        beyond++;
}

static struct stage send_with_credits(struct sim *sim, uint8_t code, uint32_t length)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, length);

    sim->on_packet = tell_credits;
    credit_code = code;
    sim_post_recv(stage.b, 0, &SGE(stage.far, 0, SIZE), 1);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    beyond = 0;
    for (unsigned i = 0; i < 12; i++) {
        sim_post_recv(stage.b, i, &SGE(stage.far, 0, SIZE), 1);
        sim_queue_send(stage.a, &stage.wr);
    }
    sim_kick(stage.a);
    sim_run(sim);
    assert_int_equal(stage.a->sent_count, 13);
    assert_int_equal(stage.b->received_count, 13);
    return stage;
}

static void credits_limit_messages(struct sim *sim)
{
    send_with_credits(sim, 0, 3000);
    assert_int_equal(beyond, 0);
}

static void some_credits_are_used_up(struct sim *sim)
{
    send_with_credits(sim, 3, 3000);
    assert_in_range(beyond, 2, 9);
}

/* These are plain. */
static void credits_limit_messages_of_one_packet(struct sim *sim)
{
    send_with_credits(sim, 0, 8);
    assert_int_equal(beyond, 0);
}

static void some_credits_are_used_up_by_messages_of_one_packet(struct sim *sim)
{
    send_with_credits(sim, 3, 8);
    assert_in_range(beyond, 2, 9);
    assert_true(sim->plain);
}

static void no_credits_limit_nothing(struct sim *sim)
{
    struct stage stage = send_with_credits(sim, 0x1f, 3000);

    assert_false(stage.a->record.sender.limited);
}

/* --- requests that have failed ------------------------------------------------------------------- */

enum { BAD_LENGTH = 24 };

static void count_bad(struct sim *sim, struct packet *packet)
{
    count += packet->opcode == OP_SEND_ONLY && packet->payload_length == BAD_LENGTH;
}

/* It waits for those before it, and ibv_rereg_mr() makes its memory valid meanwhile. */
static void a_request_that_has_failed_is_not_sent_later(struct sim *sim)
{
    struct stage stage = set_stage(sim, IBV_WR_SEND, 8);
    struct sim_wr bad = stage.wr;
    struct packet answer = {
        .opcode = OP_ACKNOWLEDGE,
        .pkey = 0xffff,
        .dest_qpn = stage.a->record.qpn,
        .psn = stage.a->record.sender.next_psn,
        .syndrome = 0x1f,
    };

    bad.sge[0] = SGE(stage.local, SIZE - 8, BAD_LENGTH);
    sim->on_packet = count_bad;
    count = 0;
    for (unsigned i = 0; i < 4; i++)
        sim_post_recv(stage.b, i, &SGE(stage.far, 0, SIZE), 1);
    sim_queue_send(stage.a, &stage.wr);
    sim_queue_send(stage.a, &stage.wr);
    sim_queue_send(stage.a, &bad);
    sim_kick(stage.a);
    keys_change_region(sim->node[0].keys, stage.local->slot, SIM_PD, ACCESS, stage.local->address,
                       SIZE + BAD_LENGTH, (uintptr_t)stage.local->bytes);
    sim_inject(stage.a, &answer);
    sim_post_send(stage.a, &stage.wr);
    sim_run(sim);
    assert_int_equal(count, 0);
    assert_int_equal(stage.b->received_count, 2);
    assert_sent(stage.a, 0, 2, VERDICT_OK);
    assert_sent(stage.a, 1, 2, VERDICT_OK);
    assert_sent(stage.a, 2, 2, VERDICT_LOCAL_PROTECTION);
    assert_sent(stage.a, 3, 2, VERDICT_FLUSHED);
}

/* IBA table 46. */
static void credits_are_counted(struct sim *sim)
{
    static const uint32_t credits[] = {0,    1,    2,    3,    4,    6,     8,     12,    16,   24,   32,
                                       48,   64,   96,   128,  192,  256,   384,   512,   768,  1024, 1536,
                                       2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};
    struct stage stage = set_stage(sim, IBV_WR_RDMA_WRITE, 8);
    struct sender *sender = &stage.a->record.sender;

    for (unsigned code = 0; code <= 31; code++) {
        struct packet answer = {
            .opcode = OP_ACKNOWLEDGE,
            .pkey = 0xffff,
            .dest_qpn = stage.a->record.qpn,
            .psn = psn_add(sender->unacked_psn, PSN_MASK),
            .syndrome = (uint8_t)code,
            .msn = PSN_MASK,
        };

        sim_inject(stage.a, &answer);
        assert_int_equal(sender->limited, code != 31);
        if (code != 31)
            assert_int_equal(sender->lsn.value, (PSN_MASK + credits[code]) & PSN_MASK);
    }
}

/* --- segmentation --------------------------------------------------------------------------------- */

static void every_mtu(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    struct sim_buffer *local = sim_buffer(&sim->node[0], SIZE, ACCESS), *far;

    far = sim_buffer(&sim->node[1], SIZE, ACCESS);
    for (uint32_t mtu = 256; mtu <= 4096; mtu *= 2) {
        const uint32_t lengths[] = {0, 1, 2, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 3, 13 * mtu};
        struct sim_qp *a, *b;

        sim->link.properties.mtu = mtu;
        sim->link.ipv6 = !sim->link.ipv6;
        sim_pair(sim, IBV_QPT_RC, &a, &b);
        for (unsigned i = 0; i < array_size(lengths) * 3; i++) {
            enum ibv_wr_opcode opcode = opcodes[i % 3];
            uint32_t length = lengths[i / 3];
            struct sim_buffer *from = opcode == IBV_WR_RDMA_READ ? far : local;
            struct sim_buffer *to = opcode == IBV_WR_RDMA_READ ? local : far;
            struct sim_wr wr = {.wr_id = i,
                                .opcode = opcode,
                                .num_sge = 1,
                                .sge = {SGE(local, 1, length)},
                                .rkey = far->rkey,
                                .remote_address = far->address + 1};

            sim_pattern(from->bytes, SIZE, i);
            memset(to->bytes, 0xaa, SIZE);
            if (opcode == IBV_WR_SEND)
                sim_post_recv(b, i, &SGE(far, 1, length), 1);
            sim_post_send(a, &wr);
            sim_run(sim);
            assert_sent(a, i, i, VERDICT_OK);
            assert_int_equal(to->bytes[0], 0xaa);
            assert_memory_equal(to->bytes + 1, from->bytes + 1, length);
            assert_int_equal(to->bytes[1 + length], 0xaa);
        }
    }
}

/* Of the longest message in the smallest packets every second PSN is on its way, or would be without a
 * window. */
static void longest_messages_in_smallest_packets(struct sim *sim)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_RDMA_READ};
    const uint32_t length = getenv("SOFTHCA_TEST_LONG") ? LIMIT_MESSAGE : 1 << 24;
    struct sim_buffer *null = sim_null_region(&sim->node[0]), *far_null = sim_null_region(&sim->node[1]);
    void *zeros = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint32_t slot = sim->node[1].next_slot++;
    struct sim_qp *a, *b;

    assert_true(zeros != MAP_FAILED);
    keys_publish_region(sim->node[1].keys, slot, KEY_REGION, SIM_PD, IBV_ACCESS_REMOTE_READ, 0, length,
                        (uintptr_t)zeros, 1);
    sim->link.properties.mtu = 256;
    sim_pair(sim, IBV_QPT_RC, &a, &b);
    sim_post_recv(b, 7, &(struct wqe_sge){.length = length, .lkey = far_null->lkey}, 1);
    for (unsigned i = 0; i < array_size(opcodes); i++) {
        struct sim_wr wr = {
            .wr_id = i, .opcode = opcodes[i], .num_sge = 1, .rkey = sim->node[1].keys->entry[slot].rkey};

        wr.sge[0] = (struct wqe_sge){.length = length, .lkey = null->lkey};
        sim_post_send(a, &wr);
    }
    sim_run(sim);
    for (unsigned i = 0; i < array_size(opcodes); i++)
        assert_sent(a, i, i, VERDICT_OK);
    assert_int_equal(a->sent[0].byte_len, length);
    assert_received(b, 0, 7, VERDICT_OK);
    assert_int_equal(b->received[0].byte_len, length);
    assert_int_equal(a->record.sender.retransmissions, 0);
    munmap(zeros, length);
}

static const struct scenario scenarios[] = {
    SCENARIO_ON(acknowledgement_of_what_was_not_sent, ON_WIRE),
    SCENARIO_ON(only_rc_asks_for_acknowledgements, ON_WIRE),
    SCENARIO_ON(uc_hears_no_answers, ON_WIRE),
    SCENARIO_ON(messages_are_numbered, ON_WIRE),
    SCENARIO_ON(one_nak_per_gap, ON_WIRE),
    SCENARIO_ON(duplicates_are_executed_once, ON_WIRE),
    SCENARIO_ON(lost_repetition_is_missed, ON_WIRE),
    SCENARIO_ON(lost_repeated_answer_is_missed, ON_WIRE),
    SCENARIO_ON(what_is_lost_again_and_again_comes_before_the_timeout, ON_WIRE),
    SCENARIO_ON(what_is_always_lost_uses_up_the_retries, ON_WIRE),
    SCENARIO_ON(timer_is_not_set_back_by_acknowledgements, ON_WIRE),
    SCENARIO_ON(timer_expires_between_one_and_two_timeouts, ON_WIRE),
    SCENARIO_ON(what_nobody_misses_is_probed_for, ON_WIRE),
    SCENARIO_ON(probes_come_soon, ON_WIRE),
    SCENARIO_ON(late_peer_gets_no_repetitions, ON_WIRE),
    SCENARIO_ON(window_opens_while_nothing_is_lost, ON_WIRE),
    SCENARIO_ON(window_is_halved_once_per_loss, ON_WIRE),
    SCENARIO_ON(silence_closes_the_window, ON_WIRE),
    SCENARIO_ON(congestion_halves_the_window, ON_WIRE),
    SCENARIO_ON(small_windows_do_not_stall, ON_WIRE),
    SCENARIO_ON(reads_are_asked_for_in_parts, ON_WIRE),
    SCENARIO_ON(few_parts_fill_an_open_window, ON_WIRE),
    SCENARIO_ON(parts_are_repeated_in_pieces, ON_WIRE),
    SCENARIO_ON(fatal_nak_is_repeated, ON_WIRE),
    SCENARIO_ON(no_fatal_nak_after_reset, ON_WIRE),
    SCENARIO_ON(one_packet_asks_whether_the_receiver_is_ready, ON_WIRE),
    SCENARIO_ON(credits_limit_messages, ON_WIRE),
    SCENARIO_ON(some_credits_are_used_up, ON_WIRE),
    SCENARIO_ON(credits_limit_messages_of_one_packet, ON_WIRE),
    SCENARIO_ON(some_credits_are_used_up_by_messages_of_one_packet, ON_WIRE),
    SCENARIO_ON(a_request_that_has_failed_is_not_sent_later, ON_WIRE),
    SCENARIO_ON(no_credits_limit_nothing, ON_WIRE),
    SCENARIO_ON(credits_are_counted, ON_WIRE),
    SCENARIO_ON(every_mtu, ON_WIRE),
    SCENARIO_ON(longest_messages_in_smallest_packets, ON_WIRE),
};

int main(int argc, char **argv)
{
    return run_scenarios("window", scenarios, array_size(scenarios), argc, argv);
}
