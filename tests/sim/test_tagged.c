/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Tag matching over links that lose packets or void references. The program on the one side posts receives
 * with tags; messages come by eager or rendezvous, and the program does what ibv_post_srq_ops(3) leaves to
 * it: it matches unexpected messages itself and tells how many it knows of, some time later. Whatever happens
 * when, the n-th message with a tag is to end up in the n-th receive that was posted with it. */
#include "scenario.h"

#include "wire/tmh.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

enum {
    MESSAGES = 200,
    TAGS = 4,
    LENGTH = 6000,
    SLOT = TMH_SIZE + LENGTH,
    ROOM = 16,     /* of the list */
    RECEIVES = 32, /* ordinary ones of the receiver, and those of the sender for FINs */
    AT_ONCE = 24,  /* messages, or receives, that one side is ahead of the other */
};

struct message {
    uint32_t tag, length;
    bool rendezvous;
};

struct want {
    uint32_t tag, handle;
    bool listed, done;
    unsigned message; /* that it took, or MESSAGES */
};

struct program {
    struct sim *sim;
    struct sim_qp *a, *b;
    struct sim_buffer *source, *target, *receives, *fins;
    struct tag_list list;
    struct tag_entry entries[ROOM];
    struct message messages[MESSAGES];
    struct want wants[MESSAGES];
    unsigned waiting[MESSAGES], waiting_count; /* unexpected messages that no want is there for yet */
    unsigned sent, acknowledged, wanted, done, fins_seen, rendezvous, fetched_by_hand;
    unsigned looked_at; /* completions of b */
    unsigned receives_posted;
    uint32_t handled;
};

static void post_receive(struct program *program)
{
    unsigned slot = program->receives_posted++ % RECEIVES;

    sim_post_recv(program->b, slot, &SGE(program->receives, slot * SLOT, SLOT), 1);
}

static void post_fin_receive(struct program *program)
{
    sim_post_recv(program->a, 0, &SGE(program->fins, 0, 64), 1);
}

/* --- sender --------------------------------------------------------------------------------------- */

static size_t source_of(unsigned index)
{
    return (size_t)index * (SLOT + RVH_SIZE);
}

static void send_one(struct program *program)
{
    unsigned index = program->sent++;
    struct message *message = &program->messages[index];
    unsigned char *bytes = program->source->bytes + source_of(index);
    struct sim_wr wr = {.wr_id = index, .opcode = IBV_WR_SEND, .num_sge = 1};

    *message = (struct message){.tag = sim_below(program->sim, TAGS),
                                .length = sim_below(program->sim, 2) ? sim_below(program->sim, LENGTH) : 40,
                                .rendezvous = sim_below(program->sim, 2)};
    tmh_encode(&(struct tmh){message->rendezvous ? TMH_RENDEZVOUS : TMH_EAGER, index, message->tag}, bytes);
    if (message->rendezvous) {
        struct cursor_out out = {bytes + TMH_SIZE, bytes + TMH_SIZE + RVH_SIZE, false};

        cursor_put64(&out, program->source->address + source_of(index) + TMH_SIZE + RVH_SIZE);
        cursor_put32(&out, program->source->rkey);
        cursor_put32(&out, message->length);
        sim_pattern(bytes + TMH_SIZE + RVH_SIZE, message->length, index);
        wr.sge[0] = SGE(program->source, source_of(index), TMH_SIZE + RVH_SIZE);
        program->rendezvous++;
    } else {
        sim_pattern(bytes + TMH_SIZE, message->length, index);
        wr.sge[0] = SGE(program->source, source_of(index), TMH_SIZE + message->length);
    }
    sim_post_send(program->a, &wr);
}

static void on_sent(struct sim_qp *qp, const struct sim_completion *completion)
{
    struct program *program = qp->user;

    assert_int_equal(completion->verdict, VERDICT_OK);
    program->acknowledged += qp == program->a;
}

/* --- receiver ------------------------------------------------------------------------------------- */

static void finish(struct program *program, struct want *want, unsigned message)
{
    assert_false(want->done);
    assert_int_equal(program->messages[message].tag, want->tag);
    want->done = true;
    want->message = message;
    program->done++;
}

static size_t target_of(const struct program *program, const struct want *want)
{
    return (size_t)(want - program->wants) * LENGTH;
}

/* What software has to do itself: copy, or READ and FIN. */
static void take_by_hand(struct program *program, struct want *want, unsigned index)
{
    const struct message *message = &program->messages[index];
    size_t at = target_of(program, want);
    uint8_t fin[TMH_SIZE];
    struct sim_wr read = {
        .wr_id = index,
        .opcode = IBV_WR_RDMA_READ,
        .num_sge = 1,
        .sge = {SGE(program->target, at, message->length)},
        .rkey = program->source->rkey,
        .remote_address = program->source->address + source_of(index) + TMH_SIZE + RVH_SIZE,
    };
    struct sim_wr send = {.opcode = IBV_WR_SEND,
                          .flags = WQE_INLINE | WQE_FENCE,
                          .inline_data = fin,
                          .inline_length = sizeof(fin)};

    if (message->rendezvous) {
        tmh_encode(&(struct tmh){TMH_FIN, index, message->tag}, fin);
        sim_post_send(program->b, &read);
        sim_post_send(program->b, &send);
        program->fetched_by_hand++;
    } else {
        /* The bytes were checked when they came. */
        sim_pattern(program->target->bytes + at, message->length, index);
    }
    finish(program, want, index);
}

static void want_one(struct program *program)
{
    struct want *want = &program->wants[program->wanted];
    struct tag_entry *entry;

    *want = (struct want){.tag = sim_below(program->sim, TAGS), .message = MESSAGES};
    for (unsigned i = 0; i < program->waiting_count; i++) {
        unsigned index = program->waiting[i];

        if (program->messages[index].tag != want->tag)
            continue;
        memmove(&program->waiting[i], &program->waiting[i + 1],
                (--program->waiting_count - i) * sizeof(program->waiting[0]));
        program->wanted++;
        take_by_hand(program, want, index);
        return;
    }
    tag_list_sync(&program->list, program->handled);
    entry = tag_list_add(&program->list, want->tag, UINT64_MAX);
    if (!entry)
        return;
    *tag_receive(entry) = (struct recv_wqe){.wr_id = 1000 + program->wanted, .num_sge = 1};
    tag_receive(entry)->sge[0] = SGE(program->target, target_of(program, want), LENGTH);
    want->handle = tag_list_handle(&program->list, entry);
    want->listed = true;
    program->wanted++;
}

static void unexpected_came(struct program *program, const struct sim_completion *completion)
{
    const unsigned char *bytes = program->receives->bytes + completion->wr_id * SLOT;
    struct tmh tmh = tmh_decode(bytes);
    const struct message *message = &program->messages[tmh.app_ctx];

    assert_true(tmh.tag == message->tag);
    if (message->rendezvous)
        assert_int_equal(completion->byte_len, TMH_SIZE + RVH_SIZE);
    else
        assert_true(sim_is_pattern(bytes + TMH_SIZE, message->length, tmh.app_ctx));
    program->handled++;
    for (unsigned i = 0; i < program->wanted; i++) {
        struct want *want = &program->wants[i];

        if (!want->listed || want->tag != tmh.tag)
            continue;
        /* It would have taken the message, had it been awake. */
        assert_int_equal(tag_list_remove(&program->list, want->handle), 0);
        want->listed = false;
        take_by_hand(program, want, tmh.app_ctx);
        tag_list_sync(&program->list, program->handled);
        return;
    }
    program->waiting[program->waiting_count++] = tmh.app_ctx;
    tag_list_sync(&program->list, program->handled);
}

static void look_at(struct program *program, const struct sim_completion *completion)
{
    struct want *want;

    if (!(completion->wc_flags & (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID))) {
        unexpected_came(program, completion);
        post_receive(program);
        return;
    }
    want = &program->wants[completion->wr_id - 1000];
    if (completion->wc_flags & IBV_WC_TM_DATA_VALID) {
        assert_int_equal(completion->byte_len, program->messages[want->message].length);
        program->done++;
        want->done = true;
    }
}

/* The adapter has taken a want off the list: at once, unlike what the program comes to know later. */
static void on_received(struct sim_qp *qp, const struct sim_completion *completion)
{
    struct program *program = qp->user;
    struct want *want;

    if (qp == program->a) {
        assert_int_equal(completion->byte_len, TMH_SIZE);
        program->fins_seen++;
        return;
    }
    assert_int_equal(completion->verdict, VERDICT_OK);
    assert_int_equal(completion->opcode, IBV_WC_TM_RECV);
    if (!(completion->wc_flags & IBV_WC_TM_MATCH))
        return;
    want = &program->wants[completion->wr_id - 1000];
    assert_true(want->listed);
    want->listed = false;
    want->message = completion->app_ctx;
    assert_true(completion->tag == want->tag);
}

/* --- the whole ------------------------------------------------------------------------------------ */

static void check(const struct program *program)
{
    unsigned next[TAGS] = {0}, fetched = program->rendezvous;

    assert_int_equal(program->acknowledged, MESSAGES);
    for (unsigned i = 0; i < program->waiting_count; i++)
        fetched -= program->messages[program->waiting[i]].rendezvous;
    assert_int_equal(program->fins_seen, fetched);
    for (unsigned i = 0; i < program->wanted; i++) {
        const struct want *want = &program->wants[i];
        unsigned *index = &next[want->tag];

        if (!want->done)
            continue;
        while (program->messages[*index].tag != want->tag)
            ++*index;
        assert_int_equal(want->message, *index);
        assert_true(sim_is_pattern(program->target->bytes + target_of(program, want),
                                   program->messages[*index].length, *index));
        ++*index;
    }
}

/* By hand it takes two requests. */
static bool has_room(const struct sim_qp *qp)
{
    const struct sender *sender = &qp->record.sender;

    return sender->posted - sender->own_posted - sender->retired + OWN_REQUESTS + 2 <= SIM_DEPTH;
}

static bool remains(const struct program *program)
{
    return program->sent < MESSAGES || program->acknowledged < MESSAGES;
}

static void run_program(struct sim *sim)
{
    static struct program program;
    unsigned steps = 0;

    memset(&program, 0, sizeof(program));
    program.sim = sim;
    program.a = sim_qp(&sim->node[0], IBV_QPT_RC);
    program.b = sim_qp(&sim->node[1], IBV_QPT_RC);
    program.a->user = program.b->user = &program;
    sim_connect(program.a, program.b);
    tag_list_init(&program.list, program.entries, ROOM);
    program.b->tags = &program.list;
    program.b->transport.tag_matching = true;
    program.source = sim_buffer(&sim->node[0], (size_t)MESSAGES * (SLOT + RVH_SIZE), ACCESS);
    program.fins = sim_buffer(&sim->node[0], 64, ACCESS);
    program.target = sim_buffer(&sim->node[1], (size_t)MESSAGES * LENGTH, ACCESS);
    program.receives = sim_buffer(&sim->node[1], (size_t)RECEIVES * SLOT, ACCESS);
    sim->on_sent = on_sent;
    sim->on_received = on_received;
    for (unsigned i = 0; i < RECEIVES - 1; i++)
        post_receive(&program);
    while (remains(&program) || program.looked_at < program.b->received_count) {
        unsigned sends = sim_below(sim, 4), wants = sim_below(sim, 4);

        while (program.a->receives->posted - program.a->receives->taken < RECEIVES)
            post_fin_receive(&program);
        while (wants-- && program.wanted < MESSAGES && program.wanted < program.done + AT_ONCE &&
               program.wanted < program.sent + AT_ONCE && has_room(program.b))
            want_one(&program);
        while (sends-- && program.sent < MESSAGES && program.sent < program.done + AT_ONCE &&
               !sim_send_queue_is_full(program.a))
            send_one(&program);
        while (program.looked_at < program.b->received_count && sim_below(sim, 4) && has_room(program.b))
            look_at(&program, &program.b->received[program.looked_at++]);
        sim_run_for(sim, sim_below(sim, 4) ? sim_below(sim, 20000) : sim_below(sim, (uint32_t)NS_PER_MS));
        assert_true(++steps < 400000);
        /* Receives and messages that stay without each other: others come. */
        if (steps % 300 == 0)
            program.done = program.sent;
    }
    for (unsigned i = 0; i < MESSAGES / RECEIVES + 1; i++) { /* FINs that wait for a receive */
        while (program.a->receives->posted - program.a->receives->taken < RECEIVES)
            post_fin_receive(&program);
        sim_run(sim);
    }
    while (program.looked_at < program.b->received_count)
        look_at(&program, &program.b->received[program.looked_at++]);
    check(&program);
}

/* --- scenarios ------------------------------------------------------------------------------------ */

static void each_message_finds_its_receive(struct sim *sim)
{
    run_program(sim);
}

static void so_it_does_where_packets_get_lost(struct sim *sim)
{
    sim->link.loss_percent = 8;
    sim->link.duplicate_percent = 5;
    sim->link.reorder_percent = 5;
    sim->link.corrupt_percent = 2;
    sim->link.patience = 5;
    run_program(sim);
}

static void so_it_does_where_references_are_revoked(struct sim *sim)
{
    sim->link.properties.reference_from = 1;
    sim->link.properties.read_reference_from = 1;
    sim->link.void_percent = 30;
    run_program(sim);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        SCENARIO(each_message_finds_its_receive),
        SCENARIO_ON(so_it_does_where_packets_get_lost, ON_WIRE),
        SCENARIO_ON(so_it_does_where_references_are_revoked, ON_REFERENCES),
    };

    return run_scenarios("tagged", scenarios, array_size(scenarios), argc, argv);
}
