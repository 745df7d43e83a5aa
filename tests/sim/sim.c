/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "sim_events.h"

#include <sys/mman.h>

#define GUARD      4096
#define GUARD_BYTE 0xc7

const struct sim_link sim_ring = {
    .name = "ring",
    .properties = {.mtu = 8192, .reliable = true, .local = true, .piggyback_acks = true},
    .capacity = 24,
    .delay = 200,
};
const struct sim_link sim_ring_cma = {
    .name = "ring with references",
    .properties = {.mtu = 8192,
                   .reference_mtu = 256 * 1024,
                   .reference_from = 16 * 1024,
                   .read_reference_from = 16 * 1024,
                   .reliable = true,
                   .local = true,
                   .piggyback_acks = true},
    .capacity = 24,
    .delay = 200,
};
const struct sim_link sim_wire = {
    .name = "wire",
    .properties = {.mtu = 1024},
    .delay = 5000,
    .encoded = true,
};

/* --- clock and events ----------------------------------------------------------------------------- */

uint64_t sim_random(struct sim *sim)
{
    uint64_t z = sim->random += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static bool earlier(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

void sim_push_event(struct sim *sim, ns_t delay, struct sim_event event)
{
    size_t i = sim->events++;

    if (sim->events > sim->capacity) {
        sim->capacity = sim->capacity ? sim->capacity * 2 : 256;
        sim->heap = realloc(sim->heap, sim->capacity * sizeof(*sim->heap));
        assert_non_null(sim->heap);
    }
    event.at = sim->now + delay;
    event.sequence = sim->sequence++;
    for (; i && earlier(&event, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
        sim->heap[i] = sim->heap[(i - 1) / 2];
    sim->heap[i] = event;
}

struct sim_event sim_pop_event(struct sim *sim)
{
    struct sim_event first = sim->heap[0], last = sim->heap[--sim->events];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= sim->events)
            break;
        if (child + 1 < sim->events && earlier(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!earlier(&sim->heap[child], &last))
            break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return first;
}

void sim_at(struct sim *sim, ns_t delay, void (*call)(struct sim *sim, void *argument), void *argument)
{
    sim_push_event(sim, delay, (struct sim_event){.kind = EVENT_CALL, .call = call, .argument = argument});
}

/* --- memory --------------------------------------------------------------------------------------- */

void sim_pattern(void *bytes, size_t length, uint64_t seed)
{
    unsigned char *at = bytes;

    for (size_t i = 0; i < length; i++) {
        uint64_t word = (seed * 0x9e3779b97f4a7c15) ^ (i / 8 * 0xff51afd7ed558ccd);

        at[i] = (unsigned char)(word >> (8 * (i & 7)) ^ word >> 32);
    }
}

bool sim_is_pattern(const void *bytes, size_t length, uint64_t seed)
{
    unsigned char *expected = malloc(length + 1);
    bool same;

    sim_pattern(expected, length, seed);
    same = !memcmp(bytes, expected, length);
    free(expected);
    return same;
}

struct sim_buffer *sim_buffer(struct sim_node *node, size_t length, uint32_t access)
{
    struct sim_buffer *buffer = calloc(1, sizeof(*buffer));
    unsigned char *all = malloc(length + 2 * GUARD);
    const struct key_entry *entry;

    assert_non_null(all);
    memset(all, GUARD_BYTE, length + 2 * GUARD);
    buffer->bytes = all + GUARD;
    memset(buffer->bytes, 0, length);
    buffer->length = length;
    buffer->address = (uintptr_t)buffer->bytes;
    buffer->slot = node->next_slot++;
    keys_publish_region(node->keys, buffer->slot, KEY_REGION, SIM_PD, access, buffer->address, length,
                        buffer->address, (uint32_t)sim_random(node->sim));
    entry = &node->keys->entry[buffer->slot];
    buffer->lkey = entry->lkey;
    buffer->rkey = entry->rkey;
    buffer->next = node->buffers;
    node->buffers = buffer;
    return buffer;
}

struct sim_buffer *sim_null_region(struct sim_node *node)
{
    struct sim_buffer *buffer = calloc(1, sizeof(*buffer));

    buffer->slot = node->next_slot++;
    keys_publish_region(node->keys, buffer->slot, KEY_REGION_NULL, SIM_PD, IBV_ACCESS_LOCAL_WRITE, 0, 0, 0,
                        1);
    buffer->lkey = node->keys->entry[buffer->slot].lkey;
    buffer->next = node->buffers;
    node->buffers = buffer;
    return buffer;
}

uint32_t sim_window(struct sim_node *node, enum key_kind kind)
{
    uint32_t slot = node->next_slot++;

    keys_publish_mw(node->keys, slot, kind, SIM_PD, (uint32_t)sim_random(node->sim));
    return node->keys->entry[slot].rkey;
}

static void check_guards(const struct sim_buffer *buffer)
{
    if (!buffer->bytes)
        return;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(buffer->bytes[i - GUARD], GUARD_BYTE);
        assert_int_equal(buffer->bytes[buffer->length + i], GUARD_BYTE);
    }
}

/* --- QPs ------------------------------------------------------------------------------------------ */

static const uint32_t send_stride = sizeof(struct send_wqe) + sizeof(struct path_address) + SIM_INLINE;

struct sim_qp *sim_qp(struct sim_node *node, enum ibv_qp_type type)
{
    struct sim *sim = node->sim;
    struct sim_qp *qp = aligned_alloc(CACHE_LINE, sizeof(*qp));

    memset(qp, 0, sizeof(*qp));
    qp->node = node;
    qp->own.slots = calloc(SIM_DEPTH, RECV_WQE_SIZE(SIM_SGE));
    qp->own.pd = SIM_PD;
    qp->receives = &qp->own;
    qp->srqn = SIM_SRQN;
    qp->sent = calloc(SIM_LOG, sizeof(*qp->sent));
    qp->received = calloc(SIM_LOG, sizeof(*qp->received));
    qp->record.qpn = sim->next_qpn++;
    qp->record.type = type;
    qp->record.pd = SIM_PD;
    qp->record.send_depth = SIM_DEPTH;
    qp->places = SIM_DEPTH;
    qp->record.send_stride = send_stride;
    qp->record.responder.resources = 8;
    qp->record.attributes = (struct qp_attributes){
        .access_flags =
            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | ACCESS_FLUSH_GLOBAL,
        .max_rd_atomic = 8,
        .max_dest_rd_atomic = 8,
        .min_rnr_timer = 12,
        .timeout = 14,
        .retry_count = 7,
        .rnr_retry = 7,
        .qkey = 0x1234,
    };
    qp->transport = (struct transport_qp){
        .record = &qp->record,
        .rare = &qp->rare,
        .ports = sim->link.properties.reference_mtu ? &sim_ports : &sim_wire_ports,
        .keys = node->keys,
        .send_queue = calloc(SIM_DEPTH, send_stride),
        .send_mask = SIM_DEPTH - 1,
        .resources = qp->resources,
        .link = sim->link.properties,
        .receive_pd = SIM_PD,
    };
    assert_true(sim->qp_count < array_size(sim->qps));
    sim->qps[sim->qp_count++] = qp;
    return qp;
}

void sim_to_init(struct sim_qp *qp)
{
    sim_set_state(qp, IBV_QPS_INIT);
}

void sim_to_rtr(struct sim_qp *qp, struct sim_qp *peer, uint32_t rq_psn)
{
    qp->record.attributes.dest_qpn = peer ? peer->record.qpn : 0;
    qp->record.attributes.rq_psn = rq_psn;
    responder_start(&qp->transport);
    judge_reset_responder(qp);
    sim_set_state(qp, IBV_QPS_RTR);
}

void sim_to_rts(struct sim_qp *qp, uint32_t sq_psn)
{
    qp->record.attributes.sq_psn = sq_psn;
    sender_start(&qp->transport);
    judge_reset_sender(qp);
    qp->hits_at = qp->record.sender.unacked_psn;
    sim_set_state(qp, IBV_QPS_RTS);
}

void sim_connect(struct sim_qp *a, struct sim_qp *b)
{
    struct sim *sim = a->node->sim;
    /* Often just before the wrap. */
    uint32_t psn_a = PSN_MASK - sim_below(sim, 64), psn_b = (uint32_t)sim_random(sim) & PSN_MASK;

    sim_to_init(a);
    sim_to_init(b);
    sim_to_rtr(a, b, psn_b);
    sim_to_rtr(b, a, psn_a);
    sim_to_rts(a, psn_a);
    sim_to_rts(b, psn_b);
}

void sim_pair(struct sim *sim, enum ibv_qp_type type, struct sim_qp **ret_a, struct sim_qp **ret_b)
{
    *ret_a = sim_qp(&sim->node[0], type);
    *ret_b = sim_qp(&sim->node[1], type);
    sim_connect(*ret_a, *ret_b);
}

void sim_share_receives(struct sim_qp *qp, struct sim_qp *with)
{
    qp->receives = with->receives;
}

void sim_post_recv(struct sim_qp *qp, uint64_t wr_id, const struct wqe_sge *sge, unsigned num_sge)
{
    sim_receives_push(qp->receives, wr_id, sge, num_sge);
}

bool sim_send_queue_is_full(const struct sim_qp *qp)
{
    const struct sender *sender = &qp->record.sender;
    uint32_t own = qp->transport.tag_matching ? OWN_REQUESTS : 0;

    return sender->posted - sender->own_posted - sender->retired == SIM_DEPTH - own;
}

void sim_queue_send(struct sim_qp *qp, const struct sim_wr *wr)
{
    struct sender *sender = &qp->record.sender;
    struct send_wqe *wqe = send_wqe_at(&qp->transport, sender->posted);
    void *body = send_wqe_body(wqe, qp->record.type);

    assert_false(sim_send_queue_is_full(qp));
    memset(wqe, 0xee, send_stride); /* what a WQE before left there */
    wqe->wr_id = wr->wr_id;
    wqe->opcode = (uint8_t)wr->opcode;
    wqe->flags = (uint8_t)wr->flags;
    wqe->num_sge = (uint8_t)wr->num_sge;
    wqe->length = wr->inline_length;
    wqe->imm_or_rkey = wr->imm_or_rkey;
    wqe->rkey = wr->rkey;
    wqe->remote_address = wr->remote_address;
    wqe->atomic.compare_add = wr->compare_add;
    wqe->atomic.swap = wr->swap;
    if (qp->record.type == IBV_QPT_UD) {
        wqe->ud.remote_qpn = wr->remote_qpn;
        wqe->ud.remote_qkey = wr->remote_qkey;
        *send_wqe_address(wqe) = wr->to;
    }
    if (qp->record.type == IBV_QPT_XRC_SEND)
        wqe_set_srqn(wqe, wr->srqn ? wr->srqn : SIM_SRQN);
    if (wr->flags & WQE_INLINE) {
        assert_true(wr->inline_length <= SIM_INLINE);
        memcpy(body, wr->inline_data, wr->inline_length);
    } else if (wr->opcode == IBV_WR_BIND_MW) {
        memcpy(body, &wr->bind, sizeof(wr->bind));
    } else {
        memcpy(body, wr->sge, wr->num_sge * sizeof(wr->sge[0]));
        for (unsigned i = 0; i < wr->num_sge; i++)
            wqe->length += wr->sge[i].length;
    }
    atomic_store(&sender->posted, sender->posted + 1);
}

void sim_post_send(struct sim_qp *qp, const struct sim_wr *wr)
{
    sim_queue_send(qp, wr);
    sender_run(&qp->transport);
    sim_settle(qp, qp->lazy_ack);
}

/* --- life ----------------------------------------------------------------------------------------- */

struct sim *sim_new(const struct sim_link *link, uint64_t seed)
{
    struct sim *sim = calloc(1, sizeof(*sim));

    sim->link = *link;
    sim->random = seed;
    sim->next_qpn = 0x100;
    for (unsigned i = 0; i < array_size(sim->node); i++) {
        sim->node[i].sim = sim;
        sim->node[i].number = i;
        sim->node[i].next_slot = 1;
        sim->node[i].keys = mmap(NULL, sizeof(struct key_table), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(sim->node[i].keys != MAP_FAILED);
    }
    return sim;
}

void sim_drop_packets(struct sim *sim)
{
    while (sim->events) {
        struct sim_event event = sim_pop_event(sim);

        free(event.bytes);
        free(event.reference);
    }
}

static void free_qp(struct sim_qp *qp)
{
    free(qp->transport.send_queue);
    free(qp->transport.copies);
    free(qp->own.slots);
    free(qp->sent);
    free(qp->received);
    free(qp);
}

void sim_drop_pair(struct sim_qp *a, struct sim_qp *b)
{
    free_qp(a);
    free_qp(b);
}

void sim_free(struct sim *sim)
{
    sim_drop_packets(sim);
    free(sim->heap);
    for (unsigned i = sim->qp_count; i--;) /* delegates before the QP that they execute for */
        sim_forget_delegates(sim->qps[i]);
    for (unsigned i = 0; i < sim->qp_count; i++)
        free_qp(sim->qps[i]);
    for (unsigned i = 0; i < array_size(sim->node); i++) {
        while (sim->node[i].buffers) {
            struct sim_buffer *buffer = sim->node[i].buffers;

            sim->node[i].buffers = buffer->next;
            check_guards(buffer);
            if (buffer->bytes)
                free(buffer->bytes - GUARD);
            free(buffer);
        }
        munmap(sim->node[i].keys, sizeof(struct key_table));
    }
    free(sim);
}
