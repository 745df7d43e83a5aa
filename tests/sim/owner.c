/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The ports of transport: a minimal substitute for object/ and engine/. */
#include "sim_events.h"

#include <errno.h>

#include "transport/machine.h"

/* --- references ----------------------------------------------------------------------------------- */

static struct sim_qp *owner(struct transport_qp *transport)
{
    return container_of(transport, struct sim_qp, transport);
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

static uint64_t length_of(const struct iovec *vector, unsigned count)
{
    uint64_t length = 0;

    for (unsigned i = 0; i < count; i++)
        length += vector[i].iov_len;
    return length;
}

static int pretend(const struct packet *packet, const struct iovec *to, unsigned to_count)
{
    uint64_t length = 0;

    for (unsigned i = 0; i < packet->reference_count; i++)
        length += packet->reference[i].length;
    assert_int_equal(length, length_of(to, to_count));
    for (unsigned i = 0; i < to_count; i++)
        memset(to[i].iov_base, 0x11, to[i].iov_len);
    return 0;
}

static int port_pull(struct transport_qp *transport, const struct packet *packet, const struct iovec *to,
                     unsigned to_count)
{
    struct sim_qp *qp = owner(transport);
    struct sim *sim = qp->node->sim;
    char *far[64], *near[64];
    size_t far_length[64], near_length[64];

    if (sim->made_up_memory)
        return pretend(packet, to, to_count);
    if (sim->refuse_pull)
        return -EFAULT;
    assert_true(packet->reference_count <= 64 && to_count <= 64);
    for (unsigned i = 0; i < packet->reference_count; i++) {
        far[i] = (char *)(uintptr_t)packet->reference[i].address;
        far_length[i] = packet->reference[i].length;
    }
    for (unsigned i = 0; i < to_count; i++) {
        near[i] = to[i].iov_base;
        near_length[i] = to[i].iov_len;
    }
    sim->pulled += copy_vectors(near, near_length, to_count, far, far_length, packet->reference_count);
    if (packet->reference_epoch == sim->arrives_from->reference_epoch &&
        !(is_reliable(&qp->record) && sim_chance(sim, sim->link.void_percent)))
        return 0;
    sim->voided++;
    for (unsigned i = 0; i < to_count; i++)
        memset(to[i].iov_base, 0xee, to[i].iov_len);
    return -ESTALE;
}

static void port_exposes(struct transport_qp *transport)
{
}

static void port_revoke(struct transport_qp *transport)
{
    owner(transport)->node->reference_epoch++;
}

/* --- the owner's part ----------------------------------------------------------------------------- */

static void port_complete_send(struct transport_qp *transport, const struct send_wqe *wqe, uint32_t counter,
                               enum verdict verdict, uint32_t byte_len)
{
    struct sim_qp *qp = owner(transport);

    /* Posting order, each once. */
    assert_ptr_equal(wqe, send_wqe_at(transport, counter + qp->record.sender.own_completed));
    assert_int_equal(counter, qp->sent_count + qp->sent_before);
    assert_true(qp->sent_count < SIM_LOG);
    qp->sent[qp->sent_count++] =
        (struct sim_completion){.wr_id = wqe->wr_id, .verdict = verdict, .byte_len = byte_len};
    atomic_store(&qp->record.sender.retired, counter + 1);
    if (qp->node->sim->on_sent)
        qp->node->sim->on_sent(qp, &qp->sent[qp->sent_count - 1]);
}

static void port_complete_sends(struct transport_qp *transport, uint32_t counter, uint32_t count)
{
    for (uint32_t end = counter + count; counter != end; counter++) {
        const struct send_wqe *wqe = send_wqe_at(transport, counter);

        port_complete_send(transport, wqe, counter, VERDICT_OK, wqe->length);
    }
}

void sim_receives_push(struct sim_receives *receives, uint64_t wr_id, const struct wqe_sge *sge,
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

static int port_match(struct transport_qp *transport, uint64_t tag, struct tag_match *ret_match)
{
    struct sim_qp *qp = owner(transport);
    int error;

    ret_match->entry = tag_list_match(qp->tags, tag);
    if (ret_match->entry)
        return 0;
    error = port_take_receive(transport, &ret_match->receive);
    if (!error)
        tag_list_count(qp->tags);
    return error;
}

static void port_release(struct transport_qp *transport, struct tag_entry *entry)
{
    tag_list_release(owner(transport)->tags, entry);
}

static void port_discount(struct transport_qp *transport)
{
    tag_list_discount(owner(transport)->tags);
}

static bool port_select_srq(struct transport_qp *transport, uint32_t srqn)
{
    struct sim_qp *qp = owner(transport);
    bool selected = sim_has_srq(qp, srqn) && (!qp->taken || srqn == qp->taken_srqn);

    qp->taken_srqn = selected ? srqn : qp->taken_srqn;
    return selected;
}

static void port_complete_tagged(struct transport_qp *transport, uint64_t wr_id,
                                 const struct receive_completion *completion)
{
    struct sim_qp *qp = owner(transport);

    assert_true(qp->received_count < SIM_LOG);
    qp->received[qp->received_count++] = (struct sim_completion){
        .wr_id = wr_id,
        .verdict = completion->verdict,
        .opcode = completion->opcode,
        .byte_len = completion->byte_len,
        .wc_flags = completion->wc_flags,
        .imm_or_rkey = completion->imm_or_rkey,
        .src_qpn = completion->src_qpn,
        .service_level = completion->service_level,
        .solicited = completion->solicited,
        .app_ctx = completion->app_ctx,
        .tag = completion->tag,
    };
    if (qp->node->sim->on_received)
        qp->node->sim->on_received(qp, &qp->received[qp->received_count - 1]);
}

static void port_complete_receive(struct transport_qp *transport, const struct receive_completion *completion)
{
    struct sim_qp *qp = owner(transport);

    assert_non_null(qp->taken);
    qp->taken = NULL;
    port_complete_tagged(transport, qp->taken_id, completion);
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
    if (is_reliable(&qp->record)) {
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
    qp->timer_changes++;
    qp->timer_runs = delay != NS_NEVER;
    if (qp->timer_runs)
        sim_push_event(qp->node->sim, delay,
                       (struct sim_event){.kind = EVENT_TIMER, .qp = qp, .generation = qp->timer_generation});
}

static ns_t port_now(struct transport_qp *transport)
{
    return owner(transport)->node->sim->now;
}

static uint32_t port_random(struct transport_qp *transport)
{
    return (uint32_t)sim_random(owner(transport)->node->sim);
}

static bool port_alloc_copies(struct transport_qp *transport)
{
    uint32_t places = owner(transport)->places;

    assert_null(transport->copies);
    transport->copies = places ? malloc((size_t)places * LIMIT_UD_PAYLOAD) : NULL;
    transport->copies_mask = places - 1;
    return transport->copies;
}

static void port_lock(struct transport_qp *transport)
{
}

static const struct transport_reference_ports reference_ports = {
    .pull = port_pull,
    .revoke = port_revoke,
    .exposes = port_exposes,
};

static const struct transport_tag_ports tag_ports = {
    .match = port_match,
    .release = port_release,
    .discount = port_discount,
    .complete_tagged = port_complete_tagged,
};

/* Plain requests: sometimes all go the general way, and what is not readable always. */
static uint32_t port_begin_plain(struct transport_qp *transport, const struct wqe_sge *sge)
{
    return 3 * (owner(transport)->node->sim->plain_asked++ % 4);
}

/* window_room() admits what window_admits() would when the request is begun. */
static void assert_admitted(struct transport_qp *transport, const struct packet *packet)
{
    struct sender *sender = &transport->record->sender;
    struct send_wqe wqe = *send_wqe_at(transport, sender->next);
    const uint32_t begun = sender->begun;
    const psn_t ssn = sender->ssn;

    wqe.first_psn = packet->psn;
    if (begun == sender->next) {
        sender->begun++;
        sender->ssn = psn_add(ssn, 1);
    }
    assert_int_equal(window_admits(transport, &wqe), SENDER_RUNS);
    sender->begun = begun;
    sender->ssn = ssn;
}

static bool port_put_plain(struct transport_qp *transport, struct packet *packet, const struct wqe_sge *sge)
{
    struct iovec payload = {(void *)(uintptr_t)packet->payload, packet->payload_length};
    struct memory_range range;

    if (sge) {
        if (keys_check_local(transport->keys, transport->record->pd, sge->lkey, sge->address, sge->length,
                             false, &range) != VERDICT_OK ||
            range.kind != KEY_REGION)
            return false;
        payload.iov_base = (void *)(uintptr_t)range.address;
    }
    assert_admitted(transport, packet);
    packet->payload = NULL; /* the payload is gathered, as of other requests */
    return sim_port_send(transport, packet, &payload, 1, NULL) == 0;
}

static void port_end_plain(struct transport_qp *transport, psn_t first, uint32_t count)
{
    owner(transport)->node->sim->plain += count;
}

static const struct transport_plain_ports plain_ports = {
    .begin = port_begin_plain,
    .put = port_put_plain,
    .end = port_end_plain,
};

/* No SRQ of another process here: tests/sim/delegates.c has a table of its own. */
const struct transport_xrc_ports sim_xrc_ports = {
    .select_srq = port_select_srq,
};

/* Direct execution is absent: every request of the simulation travels as packets. */
#define CORE_PORTS                                                                                           \
    .send = sim_port_send, .send_notice = sim_port_send_notice, .alloc_copies = port_alloc_copies,           \
    .complete_send = port_complete_send, .complete_sends = port_complete_sends,                              \
    .take_receive = port_take_receive, .complete_receive = port_complete_receive,                            \
    .raise_event = port_raise_event, .sender_failed = port_sender_failed,                                    \
    .responder_failed = port_responder_failed, .drained = port_drained, .now = port_now,                     \
    .set_timer = port_set_timer, .random = port_random, .lock_keys = port_lock, .unlock_keys = port_lock

const struct transport_ports sim_ports = {
    CORE_PORTS,
    .reference = &reference_ports,
    .tag_matching = &tag_ports,
    .xrc = &sim_xrc_ports,
};

/* Of links without payload by reference: such packets of a hostile peer must not be followed either. */
const struct transport_ports sim_wire_ports = {
    CORE_PORTS,
    .plain = &plain_ports,
    .tag_matching = &tag_ports,
    .xrc = &sim_xrc_ports,
};

void sim_kick_later(struct sim_qp *qp)
{
    if (qp->kicked)
        return;
    qp->kicked = true;
    sim_push_event(qp->node->sim, 1, (struct sim_event){.kind = EVENT_KICK, .qp = qp});
}

/* After a batch of packets; lazy: acknowledgements are delayed, so that they ride on requests. */
void sim_settle(struct sim_qp *qp, bool lazy)
{
    bool room = true;

    if (lazy && responder_owes_only_ack(&qp->transport)) {
        sim_kick_later(qp);
    } else {
        room = responder_run(&qp->transport);
        assert_true(room || qp->blocked);
        if (room && responder_owes(&qp->transport))
            sim_kick_later(qp);
    }
    if (sender_wants_to_run(&qp->transport))
        sim_kick_later(qp);
}

void sim_kick(struct sim_qp *qp)
{
    sender_run(&qp->transport);
    sim_settle(qp, false);
}

void sim_inject(struct sim_qp *qp, const struct packet *packet)
{
    transport_receive(&qp->transport, packet);
    sim_settle(qp, false);
}

void sim_run_for(struct sim *sim, ns_t duration)
{
    ns_t end = sim->now + duration;

    while (sim->events && sim->heap[0].at <= end) {
        struct sim_event event = sim_pop_event(sim);

        sim->now = event.at;
        switch (event.kind) {
        case EVENT_PACKET:
            sim_deliver(sim, &event);
            break;
        case EVENT_CONGESTION:
            sim_congestion(&event);
            break;
        case EVENT_TIMER:
            if (event.generation == event.qp->timer_generation && event.qp->timer_runs) {
                event.qp->timer_runs = false;
                sender_timer(&event.qp->transport);
                sim_settle(event.qp, false);
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
