/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#define GUARD      4096
#define GUARD_BYTE 0xc7

const struct sim_link sim_ring = {
    .name = "ring",
    .properties = {.mtu = 8192, .reliable = true, .piggyback_acks = true},
    .capacity = 24,
    .delay = 200,
};
const struct sim_link sim_ring_cma = {
    .name = "ring with references",
    .properties = {.mtu = 8192,
                   .reference_mtu = 256 * 1024,
                   .reference_from = 16 * 1024,
                   .reliable = true,
                   .piggyback_acks = true},
    .capacity = 24,
    .delay = 200,
};
const struct sim_link sim_wire = {
    .name = "wire",
    .properties = {.mtu = 1024},
    .delay = 5000,
};

/* --- clock and events ----------------------------------------------------------------------------- */

enum event_kind { EVENT_PACKET, EVENT_TIMER, EVENT_KICK, EVENT_CALL };

struct sim_event {
    ns_t at;
    uint64_t sequence;
    enum event_kind kind;
    struct sim_qp *qp; /* PACKET: who sent it */
    uint64_t generation;
    struct packet packet;
    unsigned char *payload;
    struct packet_reference *reference;
    void (*call)(struct sim *sim, void *argument);
    void *argument;
};

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

static void push_event(struct sim *sim, ns_t delay, struct sim_event event)
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

static struct sim_event pop_event(struct sim *sim)
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
    push_event(sim, delay, (struct sim_event){.kind = EVENT_CALL, .call = call, .argument = argument});
}

/* --- links ---------------------------------------------------------------------------------------- */

static struct sim_qp *find_qp(struct sim *sim, uint32_t qpn)
{
    for (unsigned i = 0; i < sim->qp_count; i++) {
        if (sim->qps[i]->record.qpn == qpn)
            return sim->qps[i];
    }
    return NULL;
}

static struct sim_qp *owner(struct transport_qp *transport)
{
    return container_of(transport, struct sim_qp, transport);
}

static void put_on_link(struct sim_qp *from, const struct packet *packet, const struct iovec *gather,
                        unsigned count, ns_t delay)
{
    struct sim_event event = {.kind = EVENT_PACKET, .qp = from, .packet = *packet};
    size_t length = 0;

    for (unsigned i = 0; i < count; i++)
        length += gather[i].iov_len;
    assert_true((packet->flags & PACKET_BY_REFERENCE) ? !count : length == packet->payload_length);
    if (count) {
        event.payload = malloc(length ? length : 1);
        length = 0;
        for (unsigned i = 0; i < count; i++) {
            memcpy(event.payload + length, gather[i].iov_base, gather[i].iov_len);
            length += gather[i].iov_len;
        }
    }
    if (packet->reference_count) {
        event.reference = malloc(packet->reference_count * sizeof(*event.reference));
        memcpy(event.reference, packet->reference, packet->reference_count * sizeof(*event.reference));
    }
    from->in_flight++;
    push_event(from->node->sim, delay, event);
}

/* May chance hit this packet? A sender that keeps being hit would run out of retries, rightly. */
static bool may_hit(struct sim *sim, struct sim_qp *from, const struct packet *packet)
{
    struct sim_qp *sender =
        opcode_table[packet->opcode].properties & OPCODE_REQUEST ? from : find_qp(sim, packet->dest_qpn);

    if (!sim->link.patience || !sender)
        return true;
    if (!psn_equal(sender->hits_at, sender->record.sender.unacked_psn)) {
        sender->hits_at = sender->record.sender.unacked_psn;
        sender->hits = 0;
    }
    if (sender->hits >= sim->link.patience)
        return false;
    sender->hits++;
    return true;
}

static bool chance(struct sim *sim, unsigned percent)
{
    return percent && sim_below(sim, 100) < percent;
}

static int port_send(struct transport_qp *transport, const struct packet *packet, const struct iovec *gather,
                     unsigned count, const struct path_address *to)
{
    struct sim_qp *qp = owner(transport);
    struct sim *sim = qp->node->sim;
    const struct sim_link *link = &sim->link;
    uint64_t number = sim->packets++;
    ns_t delay = link->delay;

    if (sim->trace)
        fprintf(stderr, "# %8llu  %u -> %u  %-32s psn %u flags %u syndrome %02x length %u\n",
                (unsigned long long)sim->now, packet->src_qpn, packet->dest_qpn,
                opcode_table[packet->opcode].name, packet->psn.value, packet->flags, packet->syndrome,
                packet->payload_length);
    if (link->capacity && qp->in_flight >= link->capacity) {
        qp->blocked = true;
        return -EAGAIN;
    }
    if (link->blackhole)
        return link->properties.reliable ? -EHOSTUNREACH : (sim->lost++, 0);
    if (link->properties.reliable) {
        put_on_link(qp, packet, gather, count, delay);
        return 0;
    }
    if ((number < 64 && (link->loss_mask >> number & 1)) ||
        (chance(sim, link->loss_percent + link->corrupt_percent) && may_hit(sim, qp, packet))) {
        sim->lost++; /* a corrupted packet fails its ICRC and is as good as lost */
        return 0;
    }
    if (link->jitter)
        delay += sim_below(sim, (uint32_t)link->jitter);
    if (chance(sim, link->reorder_percent) && may_hit(sim, qp, packet)) {
        delay += link->delay * (1 + sim_below(sim, 8));
        sim->reordered++;
    }
    put_on_link(qp, packet, gather, count, delay);
    if (chance(sim, link->duplicate_percent) && may_hit(sim, qp, packet)) {
        put_on_link(qp, packet, gather, count, delay + sim_below(sim, 100000));
        sim->duplicated++;
    }
    return 0;
}

static size_t copy_vectors(char *const *to, const size_t *to_length, unsigned to_count, char *const *from,
                           const size_t *from_length, unsigned from_count)
{
    unsigned i = 0, j = 0;
    size_t at = 0, from_at = 0, total = 0;

    while (i < to_count && j < from_count) {
        size_t part = min_of(to_length[i] - at, from_length[j] - from_at);

        memcpy(to[i] + at, from[j] + from_at, part);
        total += part;
        at += part;
        from_at += part;
        if (at == to_length[i]) {
            i++;
            at = 0;
        }
        if (from_at == from_length[j]) {
            j++;
            from_at = 0;
        }
    }
    assert_int_equal(i, to_count);
    assert_int_equal(j, from_count);
    return total;
}

static int copy_reference(const struct packet_reference *reference, unsigned count,
                          const struct iovec *vector, unsigned vector_count, bool to_reference,
                          uint64_t *total)
{
    char *far[64], *near[64];
    size_t far_length[64], near_length[64];

    assert_true(count <= 64 && vector_count <= 64);
    for (unsigned i = 0; i < count; i++) {
        far[i] = (char *)(uintptr_t)reference[i].address;
        far_length[i] = reference[i].length;
    }
    for (unsigned i = 0; i < vector_count; i++) {
        near[i] = vector[i].iov_base;
        near_length[i] = vector[i].iov_len;
    }
    *total += to_reference ? copy_vectors(far, far_length, count, near, near_length, vector_count)
                           : copy_vectors(near, near_length, vector_count, far, far_length, count);
    return 0;
}

static int port_pull(struct transport_qp *transport, const struct packet_reference *from, unsigned from_count,
                     const struct iovec *to, unsigned to_count)
{
    struct sim *sim = owner(transport)->node->sim;

    return sim->refuse_pull ? -EFAULT : copy_reference(from, from_count, to, to_count, false, &sim->pulled);
}

static int port_push(struct transport_qp *transport, const struct packet_reference *to, unsigned to_count,
                     const struct iovec *from, unsigned from_count)
{
    struct sim *sim = owner(transport)->node->sim;

    return sim->refuse_pull ? -EFAULT : copy_reference(to, to_count, from, from_count, true, &sim->pushed);
}

/* --- the owner's part ----------------------------------------------------------------------------- */

static void port_complete_send(struct transport_qp *transport, const struct send_wqe *wqe, uint32_t counter,
                               enum verdict verdict, uint32_t byte_len)
{
    struct sim_qp *qp = owner(transport);

    /* Posting order, each once. */
    assert_ptr_equal(wqe, send_wqe_at(transport, counter));
    assert_int_equal(counter, qp->sent_count + qp->sent_before);
    assert_true(qp->sent_count < SIM_LOG);
    qp->sent[qp->sent_count++] =
        (struct sim_completion){.wr_id = wqe->wr_id, .verdict = verdict, .byte_len = byte_len};
    atomic_store(&qp->record.sender.retired, counter + 1);
    if (qp->node->sim->on_sent)
        qp->node->sim->on_sent(qp, &qp->sent[qp->sent_count - 1]);
}

static void receives_push(struct sim_receives *receives, uint64_t wr_id, const struct wqe_sge *sge,
                          unsigned num_sge)
{
    struct recv_wqe *wqe =
        (struct recv_wqe *)(receives->slots + (receives->posted % SIM_DEPTH) * RECV_WQE_SIZE(SIM_SGE));

    assert_true(receives->posted - receives->taken < SIM_DEPTH - 1);
    wqe->wr_id = wr_id;
    wqe->num_sge = num_sge;
    memcpy(wqe->sge, sge, num_sge * sizeof(*sge));
    receives->posted++;
}

static int port_take_receive(struct transport_qp *transport, const struct recv_wqe **ret_wqe)
{
    struct sim_qp *qp = owner(transport);
    struct sim_receives *receives = qp->receives;

    assert_null(qp->taken);
    if (receives->taken == receives->posted)
        return -ENOENT;
    *ret_wqe =
        (struct recv_wqe *)(receives->slots + (receives->taken++ % SIM_DEPTH) * RECV_WQE_SIZE(SIM_SGE));
    qp->taken = *ret_wqe;
    qp->taken_id = qp->taken->wr_id;
    if (qp->node->sim->on_take)
        qp->node->sim->on_take(qp);
    return 0;
}

static void port_complete_receive(struct transport_qp *transport, const struct receive_completion *completion)
{
    struct sim_qp *qp = owner(transport);

    assert_non_null(qp->taken);
    assert_true(qp->received_count < SIM_LOG);
    qp->taken = NULL;
    qp->received[qp->received_count++] = (struct sim_completion){
        .wr_id = qp->taken_id,
        .verdict = completion->verdict,
        .opcode = completion->opcode,
        .byte_len = completion->byte_len,
        .wc_flags = completion->wc_flags,
        .imm_or_rkey = completion->imm_or_rkey,
        .src_qpn = completion->src_qpn,
        .service_level = completion->service_level,
        .solicited = completion->solicited,
    };
    if (qp->node->sim->on_received)
        qp->node->sim->on_received(qp, &qp->received[qp->received_count - 1]);
}

static void port_raise_event(struct transport_qp *transport, enum ibv_event_type event)
{
    struct sim_qp *qp = owner(transport);

    qp->comm_est += event == IBV_EVENT_COMM_EST;
    qp->access_errors += event == IBV_EVENT_QP_ACCESS_ERR;
    qp->request_errors += event == IBV_EVENT_QP_REQ_ERR;
}

void sim_set_state(struct sim_qp *qp, enum ibv_qp_state state)
{
    atomic_store(&qp->record.state, state);
}

void sim_to_error(struct sim_qp *qp)
{
    sim_set_state(qp, IBV_QPS_ERR);
    sender_flush(&qp->transport);
    responder_flush(&qp->transport);
    assert_null(qp->taken);
    while (qp->receives == &qp->own && qp->own.taken != qp->own.posted) {
        const struct recv_wqe *wqe =
            (struct recv_wqe *)(qp->own.slots + (qp->own.taken++ % SIM_DEPTH) * RECV_WQE_SIZE(SIM_SGE));

        qp->received[qp->received_count++] =
            (struct sim_completion){.wr_id = wqe->wr_id, .verdict = VERDICT_FLUSHED};
    }
}

static void port_sender_failed(struct transport_qp *transport)
{
    struct sim_qp *qp = owner(transport);

    qp->sender_failures++;
    qp->failed_at = qp->node->sim->now;
    if (qp->record.type == IBV_QPT_RC) {
        sim_to_error(qp);
    } else {
        sim_set_state(qp, IBV_QPS_SQE);
        sender_flush(transport);
    }
}

static void port_responder_failed(struct transport_qp *transport)
{
    struct sim_qp *qp = owner(transport);

    qp->responder_failures++;
    sim_to_error(qp);
}

static void port_drained(struct transport_qp *transport)
{
    owner(transport)->drained_count++;
}

static void port_set_timer(struct transport_qp *transport, ns_t delay)
{
    struct sim_qp *qp = owner(transport);

    qp->timer_generation++;
    qp->timer_runs = delay != NS_NEVER;
    if (qp->timer_runs)
        push_event(qp->node->sim, delay,
                   (struct sim_event){.kind = EVENT_TIMER, .qp = qp, .generation = qp->timer_generation});
}

static uint32_t port_random(struct transport_qp *transport)
{
    return (uint32_t)sim_random(owner(transport)->node->sim);
}

static void port_lock(struct transport_qp *transport)
{
}

static const struct transport_ports ports = {
    .send = port_send,
    .pull = port_pull,
    .push = port_push,
    .complete_send = port_complete_send,
    .take_receive = port_take_receive,
    .complete_receive = port_complete_receive,
    .raise_event = port_raise_event,
    .sender_failed = port_sender_failed,
    .responder_failed = port_responder_failed,
    .drained = port_drained,
    .set_timer = port_set_timer,
    .random = port_random,
    .lock_keys = port_lock,
    .unlock_keys = port_lock,
};

static void kick_later(struct sim_qp *qp)
{
    if (qp->kicked)
        return;
    qp->kicked = true;
    push_event(qp->node->sim, 1, (struct sim_event){.kind = EVENT_KICK, .qp = qp});
}

/* After a batch; acknowledgements may stay a while, so that they ride on requests. */
static void settle(struct sim_qp *qp, bool lazy)
{
    bool room = true;

    if (lazy && responder_owes_only_ack(&qp->transport)) {
        kick_later(qp);
    } else {
        room = responder_run(&qp->transport);
        assert_true(room || qp->blocked);
        if (room && responder_owes(&qp->transport))
            kick_later(qp);
    }
    if (sender_wants_to_run(&qp->transport))
        kick_later(qp);
}

void sim_kick(struct sim_qp *qp)
{
    sender_run(&qp->transport);
    settle(qp, false);
}

/* What the engine says of a request that a state dropped. */
static void say_dropped(struct sim_qp *by, const struct packet *packet)
{
    struct sim *sim = by->node->sim;
    struct packet word = {
        .opcode = OP_ACKNOWLEDGE,
        .flags = PACKET_DROPPED,
        .dest_qpn = packet->src_qpn,
        .src_qpn = packet->dest_qpn,
        .psn = packet->psn,
    };

    if (!sim->link.properties.reliable || !(opcode_table[packet->opcode].properties & OPCODE_REQUEST) ||
        (by->record.type != IBV_QPT_RC && !(packet->flags & PACKET_BY_REFERENCE)))
        return;
    sim->silenced++;
    put_on_link(by, &word, NULL, 0, sim->link.delay);
}

static void deliver(struct sim *sim, struct sim_event *event)
{
    struct packet *packet = &event->packet;
    struct sim_qp *qp = find_qp(sim, packet->dest_qpn);

    event->qp->in_flight--;
    if (event->qp->blocked) {
        event->qp->blocked = false;
        kick_later(event->qp);
    }
    packet->payload = event->payload;
    packet->reference = event->reference;
    if (sim->on_packet)
        sim->on_packet(sim, packet);
    sim->delivered[packet->opcode & 31]++;
    sim->piggybacked += !!(packet->flags & PACKET_HAS_ACK);
    if (qp && !transport_receive(&qp->transport, packet))
        say_dropped(qp, packet);
    if (qp)
        settle(qp, qp->lazy_ack);
    free(event->payload);
    free(event->reference);
}

void sim_inject(struct sim_qp *qp, const struct packet *packet)
{
    transport_receive(&qp->transport, packet);
    settle(qp, false);
}

void sim_run_for(struct sim *sim, ns_t duration)
{
    ns_t end = sim->now + duration;

    while (sim->events && sim->heap[0].at <= end) {
        struct sim_event event = pop_event(sim);

        sim->now = event.at;
        switch (event.kind) {
        case EVENT_PACKET:
            deliver(sim, &event);
            break;
        case EVENT_TIMER:
            if (event.generation == event.qp->timer_generation && event.qp->timer_runs) {
                event.qp->timer_runs = false;
                sender_timer(&event.qp->transport);
                settle(event.qp, false);
            }
            break;
        case EVENT_KICK:
            event.qp->kicked = false;
            sim_kick(event.qp);
            break;
        case EVENT_CALL:
            event.call(sim, event.argument);
            break;
        }
    }
    if (!sim->events)
        return;
    sim->now = end;
}

void sim_run(struct sim *sim)
{
    sim_run_for(sim, 3600 * NS_PER_S);
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

    keys_publish_window(node->keys, slot, kind, SIM_PD, (uint32_t)sim_random(node->sim));
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
    qp->sent = calloc(SIM_LOG, sizeof(*qp->sent));
    qp->received = calloc(SIM_LOG, sizeof(*qp->received));
    qp->record.qpn = sim->next_qpn++;
    qp->record.type = type;
    qp->record.pd = SIM_PD;
    qp->record.send_depth = SIM_DEPTH;
    qp->record.send_stride = send_stride;
    qp->record.responder.resources = 8;
    qp->record.attributes = (struct qp_attributes){
        .access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
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
        .ports = &ports,
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
    sim_set_state(qp, IBV_QPS_RTR);
}

void sim_to_rts(struct sim_qp *qp, uint32_t sq_psn)
{
    qp->record.attributes.sq_psn = sq_psn;
    sender_start(&qp->transport);
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
    receives_push(qp->receives, wr_id, sge, num_sge);
}

bool sim_send_queue_is_full(const struct sim_qp *qp)
{
    return qp->record.sender.posted - qp->record.sender.retired == SIM_DEPTH;
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
    settle(qp, qp->lazy_ack);
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

void sim_free(struct sim *sim)
{
    while (sim->events) {
        struct sim_event event = pop_event(sim);

        free(event.payload);
        free(event.reference);
    }
    free(sim->heap);
    for (unsigned i = 0; i < sim->qp_count; i++) {
        struct sim_qp *qp = sim->qps[i];

        free(qp->transport.send_queue);
        free(qp->own.slots);
        free(qp->sent);
        free(qp->received);
        free(qp);
    }
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
