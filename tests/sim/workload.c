/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "workload.h"

#include <stdio.h>

#include "rules/flush.h"

#define ACCESS                                                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

enum { UNTOUCHED = 0x5a };

static struct work_direction *direction_from(const struct sim_qp *qp)
{
    struct work *work = qp->user;

    return &work->direction[qp == work->direction[1].from];
}

/* Where a QP receives, and in which direction. */
static struct work_place *place_of(const struct sim_qp *qp, struct work_direction **ret_direction)
{
    struct work *work = qp->user;

    for (unsigned i = 0; i < 2; i++) {
        *ret_direction = &work->direction[i];
        for (unsigned j = 0; j < (*ret_direction)->places; j++) {
            if ((*ret_direction)->place[j].qp == qp)
                return &(*ret_direction)->place[j];
        }
    }
    fail_msg("a QP of nobody's has received");
    return NULL;
}

/* --- what must have come of it -------------------------------------------------------------------- */

static void check_gathered(const struct work_request *request, const unsigned char *bytes)
{
    for (unsigned i = 0; i < request->num_sge; i++) {
        assert_memory_equal(bytes, (void *)(uintptr_t)request->sge[i].address, request->sge[i].length);
        bytes += request->sge[i].length;
    }
}

static void on_sent(struct sim_qp *qp, const struct sim_completion *completion)
{
    struct work_direction *direction = direction_from(qp);
    const struct work_request *request = &direction->request[direction->completed];

    assert_int_equal(completion->wr_id, direction->completed++);
    assert_string_equal(verdict_name(completion->verdict), "ok");
    switch ((int)request->opcode) {
    case IBV_WR_RDMA_READ:
        assert_int_equal(completion->byte_len, request->length);
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        assert_int_equal(*(uint64_t *)(uintptr_t)request->sge[0].address, request->expected);
        break;
    default:
        break;
    }
}

static unsigned char *receive_slot(const struct work_direction *direction, const struct work_place *place,
                                   unsigned number)
{
    return place->receive->bytes + (number % WORK_RECEIVES) * (size_t)direction->work->receive_length;
}

/* Messages arrive in the order in which they were posted, wherever they arrive. */
static void on_received(struct sim_qp *qp, const struct sim_completion *completion)
{
    struct work_direction *direction;
    struct work_place *place = place_of(qp, &direction);
    const struct work_request *request;
    unsigned char *slot = receive_slot(direction, place, place->received);

    while (!direction->request[direction->next_told].tells)
        direction->next_told++;
    assert_true(direction->next_told < direction->posted);
    request = &direction->request[direction->next_told++];
    assert_ptr_equal(place, &direction->place[request->place]);
    assert_int_equal(completion->wr_id, place->received);
    assert_string_equal(verdict_name(completion->verdict), "ok");
    assert_int_equal(completion->byte_len, request->length);
    if (request->opcode != IBV_WR_SEND) {
        assert_int_equal(completion->wc_flags, IBV_WC_WITH_IMM);
        assert_int_equal(completion->imm_or_rkey, request->imm);
    } else {
        assert_int_equal(completion->wc_flags, 0);
    }
    if (request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        assert_int_equal(completion->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        check_gathered(request, place->target->bytes + request->remote_offset);
    } else {
        assert_int_equal(completion->opcode, IBV_WC_RECV);
        check_gathered(request, slot);
        assert_int_equal(slot[request->length], UNTOUCHED);
    }
    memset(slot, UNTOUCHED, direction->work->receive_length);
    place->received++;
    direction->received++;
}

/* --- posting -------------------------------------------------------------------------------------- */

static uint32_t random_length(struct work *work)
{
    struct sim *sim = work->sim;
    uint32_t longest = work->shape.longest;

    switch (sim_below(sim, 8)) {
    case 0:
        return 0;
    case 1:
        return sim_below(sim, 9);
    case 2:
        return min_of(longest, sim->link.properties.mtu * (1 + sim_below(sim, 4)) + sim_below(sim, 3) - 1);
    case 3:
        return sim_below(sim, longest + 1);
    default:
        return sim_below(sim, min_of(longest, 4000u) + 1);
    }
}

/* Cuts [offset, offset + length) of a buffer into some SGEs, here and there an empty one. */
static void cut(struct sim *sim, struct work_request *request, const struct sim_buffer *buffer, size_t offset,
                uint32_t length)
{
    unsigned parts = 1 + (sim_below(sim, 3) ? 0 : sim_below(sim, SIM_SGE));

    request->length = length;
    request->num_sge = parts;
    for (unsigned i = 0; i < parts; i++) {
        uint32_t part = i + 1 == parts ? length : sim_below(sim, length + 1);

        request->sge[i] = SGE(buffer, offset, part);
        offset += part;
        length -= part;
    }
}

static struct work_place *place_for(struct work_direction *direction, const struct work_request *request)
{
    return &direction->place[request->place];
}

static void model_write(struct work_direction *direction, struct work_request *request)
{
    struct work_place *place = place_for(direction, request);
    unsigned char *to;

    request->remote_offset = place->target_used + sim_below(direction->work->sim, 16);
    place->target_used = request->remote_offset + request->length;
    assert_true(place->target_used < direction->work->arena);
    to = place->target_model + request->remote_offset;
    for (unsigned i = 0; i < request->num_sge; i++) {
        memcpy(to, (void *)(uintptr_t)request->sge[i].address, request->sge[i].length);
        to += request->sge[i].length;
    }
}

static size_t take_results(struct work_direction *direction, uint32_t length)
{
    size_t offset = (direction->results_used + 7 + 8 * sim_below(direction->work->sim, 3)) & ~(size_t)7;

    direction->results_used = offset + length;
    assert_true(direction->results_used < direction->work->arena);
    return offset;
}

static void prepare_read(struct work_direction *direction, struct work_request *request, struct sim_wr *wr)
{
    struct work *work = direction->work;
    const struct sim_buffer *source = place_for(direction, request)->source;
    uint32_t length = random_length(work);
    size_t offset = take_results(direction, length);

    request->remote_offset = sim_below(work->sim, work->arena - length);
    cut(work->sim, request, direction->results, offset, length);
    memcpy(direction->results_model + offset, source->bytes + request->remote_offset, length);
    wr->rkey = source->rkey;
    wr->remote_address = source->address + request->remote_offset;
}

static void prepare_atomic(struct work_direction *direction, struct work_request *request, struct sim_wr *wr)
{
    struct work_place *place = place_for(direction, request);
    struct sim *sim = direction->work->sim;
    size_t offset = take_results(direction, 8);

    request->num_sge = 1;
    request->length = 8;
    request->sge[0] = SGE(direction->results, offset, 8);
    request->expected = place->counter_model;
    memcpy(direction->results_model + offset, &request->expected, 8);
    wr->rkey = place->counter->rkey;
    wr->remote_address = place->counter->address;
    wr->compare_add = sim_random(sim);
    if (request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        place->counter_model += wr->compare_add;
        return;
    }
    wr->swap = sim_random(sim);
    if (sim_below(sim, 2)) {
        wr->compare_add = request->expected;
        place->counter_model = wr->swap;
    }
}

/* To where the atomics are: what one of them finds says that it came once, and in its turn. */
static void prepare_atomic_write(struct work_direction *direction, struct work_request *request,
                                 struct sim_wr *wr)
{
    struct work_place *place = place_for(direction, request);

    cut(direction->work->sim, request, direction->source, sim_below(direction->work->sim, 4096), 8);
    if (request->num_sge == 1) {
        wr->flags |= WQE_INLINE;
        wr->inline_data = (void *)(uintptr_t)request->sge[0].address;
        wr->inline_length = 8;
    }
    for (unsigned i = 0, at = 0; i < request->num_sge; at += request->sge[i++].length)
        memcpy((char *)&place->counter_model + at, (void *)(uintptr_t)request->sge[i].address,
               request->sge[i].length);
    wr->rkey = place->counter->rkey;
    wr->remote_address = place->counter->address;
}

static void prepare_flush(struct work_direction *direction, struct work_request *request, struct sim_wr *wr)
{
    const struct work_place *place = place_for(direction, request);
    struct work *work = direction->work;

    wr->imm_or_rkey = FLUSH_GLOBAL | sim_below(work->sim, 2) << FLUSH_LEVEL_SHIFT;
    wr->rkey = place->target->rkey;
    wr->inline_length = random_length(work);
    wr->remote_address = place->target->address + sim_below(work->sim, work->arena - wr->inline_length);
}

/* A window of our own memory, bound and invalidated in turn: no packet, but a place in the order. */
static void prepare_local(struct work_direction *direction, struct work_request *request, struct sim_wr *wr)
{
    if (direction->window_bound) {
        request->opcode = IBV_WR_LOCAL_INV;
        wr->imm_or_rkey = direction->window;
    } else {
        uint32_t next = (direction->window & ~0xffu) | ((direction->window + 1) & 0xff);

        request->opcode = IBV_WR_BIND_MW;
        wr->bind = (struct mw_bind){.mw_rkey = direction->window,
                                    .new_rkey = next,
                                    .region_lkey = direction->source->lkey,
                                    .address = direction->source->address,
                                    .length = 64,
                                    .access = IBV_ACCESS_REMOTE_READ};
        direction->window = next;
    }
    direction->window_bound = !direction->window_bound;
}

/* Runs for one place, and now and then changes with every request. */
static unsigned choose_place(struct work_direction *direction)
{
    struct sim *sim = direction->work->sim;

    if (direction->posted && sim_below(sim, 3))
        return direction->request[direction->posted - 1].place;
    return sim_below(sim, direction->places);
}

static void post_one(struct work_direction *direction)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,
        IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ,
        IBV_WR_RDMA_READ,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_WRITE,
        (enum ibv_wr_opcode)WR_FLUSH,
        IBV_WR_LOCAL_INV,
    };
    struct work *work = direction->work;
    struct sim *sim = work->sim;
    struct work_request *request = &direction->request[direction->posted];
    struct sim_wr wr = {.wr_id = direction->posted};
    uint32_t length;

    if (direction->places > 1)
        request->place = choose_place(direction);
    wr.srqn = SIM_SRQN + request->place + (direction->places > 1 && sim_below(sim, 2) ? SIM_OTHER_SRQ : 0);
    request->opcode = opcodes[sim_below(sim, array_size(opcodes))];
    switch ((int)request->opcode) {
    case IBV_WR_RDMA_READ:
        prepare_read(direction, request, &wr);
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        prepare_atomic(direction, request, &wr);
        break;
    case IBV_WR_ATOMIC_WRITE:
        prepare_atomic_write(direction, request, &wr);
        break;
    case WR_FLUSH:
        prepare_flush(direction, request, &wr);
        break;
    case IBV_WR_LOCAL_INV:
        prepare_local(direction, request, &wr);
        break;
    default:
        length = random_length(work);
        cut(sim, request, direction->source, sim_below(sim, work->arena - length), length);
        request->imm = wr.imm_or_rkey = (uint32_t)sim_random(sim);
        request->tells = request->opcode != IBV_WR_RDMA_WRITE;
        if (request->opcode == IBV_WR_RDMA_WRITE || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
            model_write(direction, request);
            wr.rkey = place_for(direction, request)->target->rkey;
            wr.remote_address = place_for(direction, request)->target->address + request->remote_offset;
        }
        if (request->num_sge == 1 && length <= SIM_INLINE && sim_below(sim, 2)) {
            wr.flags |= WQE_INLINE;
            wr.inline_data = (void *)(uintptr_t)request->sge[0].address;
            wr.inline_length = length;
        }
    }
    wr.opcode = request->opcode;
    if (!sim_below(sim, 10))
        wr.flags |= WQE_FENCE;
    if (!(wr.flags & WQE_INLINE)) {
        wr.num_sge = request->num_sge;
        memcpy(wr.sge, request->sge, sizeof(wr.sge));
    }
    direction->posted++;
    if (sim_below(sim, 4))
        sim_post_send(direction->from, &wr);
    else
        sim_queue_send(direction->from, &wr);
}

static void post_receive(struct work_direction *direction, struct work_place *place)
{
    struct work_request receive;
    unsigned number = place->receives_posted++;
    size_t offset = (number % WORK_RECEIVES) * (size_t)direction->work->receive_length;

    cut(direction->work->sim, &receive, place->receive, offset, direction->work->receive_length);
    sim_post_recv(place->qp, number, receive.sge, receive.num_sge);
}

/* --- the whole ------------------------------------------------------------------------------------ */

static struct sim_buffer *filled_buffer(const struct work *work, struct sim_node *node, uint32_t access,
                                        unsigned salt)
{
    struct sim_buffer *buffer = sim_buffer(node, work->arena, access);

    for (size_t i = 0; i < work->arena; i += 8)
        *(uint64_t *)(buffer->bytes + i) = (i + salt) * 0x9e3779b97f4a7c15;
    return buffer;
}

static void set_up_place(struct work *work, struct work_place *place, struct sim_qp *qp,
                         struct sim_buffer *source)
{
    place->qp = qp;
    place->source = source;
    place->target = sim_buffer(qp->node, work->arena, ACCESS | ACCESS_FLUSH_GLOBAL);
    place->receive = sim_buffer(qp->node, WORK_RECEIVES * (size_t)work->receive_length, ACCESS);
    place->counter = sim_buffer(qp->node, 8, ACCESS);
    place->target_model = malloc(work->arena);
    memset(place->target_model, UNTOUCHED, work->arena);
    memset(place->target->bytes, UNTOUCHED, work->arena);
    memset(place->receive->bytes, UNTOUCHED, place->receive->length);
}

static void set_up_direction(struct work *work, unsigned index, struct sim_qp *from, struct sim_qp *to)
{
    struct work_direction *direction = &work->direction[index];

    direction->work = work;
    direction->from = from;
    direction->to = to;
    direction->results = sim_buffer(from->node, work->arena, ACCESS);
    direction->results_model = malloc(work->arena);
    memset(direction->results_model, UNTOUCHED, work->arena);
    memset(direction->results->bytes, UNTOUCHED, work->arena);
    direction->window = sim_window(from->node, KEY_MW_TYPE_2);
    direction->places = 1;
    set_up_place(work, &direction->place[0], to, work->direction[!index].source);
}

/* The SRQs of other processes than the one with the XRC_RECV QP. */
static void set_up_processes(struct work *work, struct sim_qp *qp)
{
    struct work_direction *direction = &work->direction[0];

    for (; direction->places < work->shape.places; direction->places++) {
        struct sim_qp *other = sim_delegate(qp, SIM_SRQN + direction->places);

        other->user = work;
        other->lazy_ack = work->shape.lazy;
        set_up_place(work, &direction->place[direction->places], other,
                     filled_buffer(work, other->node, ACCESS, 2 + direction->places));
    }
}

static bool work_remains(const struct work *work)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct work_direction *direction = &work->direction[i];

        if (work->shape.one_direction && i)
            continue;
        if (direction->completed < work->shape.requests)
            return true;
    }
    return false;
}

static void post_some(struct work *work)
{
    struct sim *sim = work->sim;

    for (unsigned i = 0; i < 2; i++) {
        struct work_direction *direction = &work->direction[i];
        unsigned count = sim_below(sim, 6);

        for (unsigned j = 0; j < direction->places; j++) {
            struct work_place *place = &direction->place[j];

            while (place->receives_posted - place->received < WORK_RECEIVES - 1 &&
                   !(work->shape.late_receives && sim_below(sim, 6)))
                post_receive(direction, place);
        }
        if (work->shape.one_direction && i)
            continue;
        while (count-- && direction->posted < work->shape.requests &&
               !sim_send_queue_is_full(direction->from))
            post_one(direction);
        sim_kick(direction->from);
    }
}

static void check_end(struct work_direction *direction)
{
    unsigned told = 0;

    for (unsigned i = 0; i < direction->posted; i++)
        told += direction->request[i].tells;
    assert_int_equal(direction->received, told);
    assert_int_equal(direction->completed, direction->posted);
    assert_memory_equal(direction->results->bytes, direction->results_model, direction->work->arena);
    for (unsigned i = 0; i < direction->places; i++) {
        const struct work_place *place = &direction->place[i];

        assert_memory_equal(place->target->bytes, place->target_model, direction->work->arena);
        assert_int_equal(*(uint64_t *)place->counter->bytes, place->counter_model);
        assert_int_equal(place->qp->access_errors + place->qp->request_errors, 0);
    }
    assert_int_equal(direction->from->record.state, IBV_QPS_RTS);
    assert_true(sender_is_drained(&direction->from->transport));
    assert_int_equal(direction->from->record.sender.rd_atomic_wqes, 0);
    assert_false(direction->from->timer_runs);
}

static struct work *work_begin(struct sim *sim, const struct work_shape *shape, unsigned node_a,
                               unsigned node_b)
{
    struct work *work = calloc(1, sizeof(*work));
    struct sim_qp *a = sim_qp(&sim->node[node_a], shape->xrc ? IBV_QPT_XRC_SEND : IBV_QPT_RC);
    struct sim_qp *b = sim_qp(&sim->node[node_b], shape->xrc ? IBV_QPT_XRC_RECV : IBV_QPT_RC);

    assert_true(shape->requests <= WORK_MAX && shape->longest <= WORK_LENGTH_MAX - 1);
    assert_true(shape->places <= (shape->xrc ? WORK_PLACES : 0));
    work->sim = sim;
    work->shape = *shape;
    work->receive_length = shape->longest + 1;
    work->arena = (shape->requests * (shape->longest + 64) + 4095) & ~4095u;
    a->user = b->user = work;
    sim_connect(a, b);
    a->record.attributes.max_rd_atomic = b->record.attributes.max_rd_atomic =
        (uint8_t)(1 + sim_below(sim, 8));
    a->record.responder.resources = b->record.responder.resources = 8 + sim_below(sim, 9);
    a->lazy_ack = b->lazy_ack = shape->lazy;
    work->direction[0].source = filled_buffer(work, a->node, ACCESS | IBV_ACCESS_MW_BIND, 0);
    work->direction[1].source = filled_buffer(work, b->node, ACCESS | IBV_ACCESS_MW_BIND, 1);
    set_up_direction(work, 0, a, b);
    set_up_direction(work, 1, b, a);
    set_up_processes(work, b);
    return work;
}

static void work_end(struct work *work)
{
    for (unsigned i = 0; i < 2; i++) {
        check_end(&work->direction[i]);
        for (unsigned j = 0; j < work->direction[i].places; j++)
            free(work->direction[i].place[j].target_model);
        free(work->direction[i].results_model);
    }
    free(work);
}

void work_run_all(struct sim *sim, const struct work_pair *pairs, unsigned count)
{
    struct work *works[WORK_PAIRS];
    unsigned steps = 0;
    bool remains;

    assert_true(count <= WORK_PAIRS);
    sim->on_sent = on_sent;
    sim->on_received = on_received;
    for (unsigned i = 0; i < count; i++)
        works[i] = work_begin(sim, &pairs[i].shape, pairs[i].node[0], pairs[i].node[1]);
    do {
        remains = false;
        for (unsigned i = 0; i < count; i++) {
            if (!work_remains(works[i]))
                continue;
            remains = true;
            post_some(works[i]);
        }
        sim_run_for(sim, sim_below(sim, 4) ? sim_below(sim, 2000) : sim_below(sim, (uint32_t)NS_PER_MS));
        assert_true(++steps < 400000); /* it gets on */
    } while (remains);
    sim_run(sim);
    for (unsigned i = 0; i < count; i++)
        work_end(works[i]);
}

void work_run(struct sim *sim, const struct work_shape *shape)
{
    work_run_all(sim, &(struct work_pair){.shape = *shape, .node = {0, 1}}, 1);
}
