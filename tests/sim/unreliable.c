/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "unreliable.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

enum { UNTOUCHED = 0x5a, RECEIVES = 16, GRH = 40 };

/* The immediate says which message it is. */
struct message {
    enum ibv_wr_opcode opcode;
    uint32_t length;
    size_t offset;
};

struct unreliable {
    struct unreliable_shape shape;
    struct sim_qp *from, *to;
    struct sim_buffer *source, *target, *receive;
    struct message message[UNRELIABLE_MAX];
    unsigned posted, receives_posted, received, last;
    uint32_t slot;
};

static bool keeps_order(const struct sim *sim)
{
    return !sim->link.jitter && !sim->link.reorder_percent && !sim->link.duplicate_percent;
}

static void on_received(struct sim_qp *qp, const struct sim_completion *completion)
{
    struct unreliable *work = qp->user;
    uint32_t extra = work->shape.type == IBV_QPT_UD ? GRH : 0;
    const unsigned char *slot = work->receive->bytes + (completion->wr_id % RECEIVES) * work->slot;
    const struct message *message;

    assert_string_equal(verdict_name(completion->verdict), "ok");
    assert_int_equal(completion->wr_id, work->received++);
    assert_true(completion->wc_flags & IBV_WC_WITH_IMM);
    assert_true(completion->imm_or_rkey < work->posted);
    message = &work->message[completion->imm_or_rkey];
    assert_int_equal(completion->byte_len, message->length + extra);
    assert_memory_equal(message->opcode == IBV_WR_SEND_WITH_IMM ? slot + extra
                                                                : work->target->bytes + message->offset,
                        work->source->bytes + message->offset, message->length);
    assert_true(work->last <= completion->imm_or_rkey || !keeps_order(qp->node->sim));
    work->last = completion->imm_or_rkey + 1;
}

static void post_receive(struct unreliable *work)
{
    unsigned number = work->receives_posted++;

    sim_post_recv(work->to, number, &SGE(work->receive, (number % RECEIVES) * work->slot, work->slot), 1);
}

static void post_send(struct unreliable *work)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM,
                                                 IBV_WR_RDMA_WRITE};
    struct sim *sim = work->from->node->sim;
    struct message *message = &work->message[work->posted];
    struct sim_wr wr = {.wr_id = work->posted, .num_sge = 1, .imm_or_rkey = work->posted};

    message->opcode =
        work->shape.type == IBV_QPT_UD ? IBV_WR_SEND_WITH_IMM : opcodes[sim_below(sim, array_size(opcodes))];
    message->length = sim_below(sim, work->shape.longest + 1);
    message->offset = work->posted * (size_t)work->shape.longest;
    wr.opcode = message->opcode;
    wr.sge[0] = SGE(work->source, message->offset, message->length);
    wr.rkey = work->target->rkey;
    wr.remote_address = work->target->address + message->offset;
    wr.remote_qpn = work->to->record.qpn;
    wr.remote_qkey = work->to->record.attributes.qkey;
    work->posted++;
    sim_post_send(work->from, &wr);
}

/* A WRITE may be lost in part. */
static void check_target(const struct unreliable *work)
{
    for (unsigned i = 0; i < work->posted; i++) {
        const struct message *message = &work->message[i];

        for (uint32_t j = 0; j < work->shape.longest; j++) {
            unsigned char byte = work->target->bytes[message->offset + j];

            assert_true(byte == UNTOUCHED ||
                        (message->opcode != IBV_WR_SEND_WITH_IMM && j < message->length &&
                         byte == work->source->bytes[message->offset + j]));
        }
    }
}

void unreliable_run(struct sim *sim, const struct unreliable_shape *shape)
{
    struct unreliable *work = calloc(1, sizeof(*work));
    size_t arena = shape->requests * (size_t)shape->longest + 1;

    assert_true(shape->requests <= UNRELIABLE_MAX);
    work->shape = *shape;
    work->slot = shape->longest + GRH;
    sim_pair(sim, shape->type, &work->from, &work->to);
    work->from->user = work->to->user = work;
    work->source = sim_buffer(work->from->node, arena, ACCESS);
    work->target = sim_buffer(work->to->node, arena, ACCESS);
    work->receive = sim_buffer(work->to->node, RECEIVES * work->slot, ACCESS);
    sim_pattern(work->source->bytes, arena, sim_random(sim));
    memset(work->target->bytes, UNTOUCHED, arena);
    sim->on_received = on_received;
    while (work->from->sent_count < shape->requests) {
        unsigned count = sim_below(sim, 4);

        while (work->receives_posted - work->received < RECEIVES - 1 &&
               !(shape->late_receives && sim_below(sim, 6)))
            post_receive(work);
        while (count-- && work->posted < shape->requests && !sim_send_queue_is_full(work->from))
            post_send(work);
        sim_run_for(sim, sim_below(sim, 200000));
    }
    sim_run(sim);
    for (unsigned i = 0; i < shape->requests; i++)
        assert_sent(work->from, i, i, VERDICT_OK);
    assert_int_equal(work->from->record.state, IBV_QPS_RTS);
    assert_int_equal(work->to->record.state, IBV_QPS_RTS);
    assert_int_equal(work->to->access_errors + work->to->request_errors, 0);
    check_target(work);
    free(work);
}
