/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Plain SENDs at their receiver (docs/design/plain-requests.md): from the record in the ring one straight way to the
 * receive and its completion, by the rules of progress.c, arrivals.c, transport/receive.c, responder.c and
 * object/qp/qp_ports.c with the constants of such a packet put in. A packet that is not plain ends this, and goes
 * through those files. The QP stays locked from one packet to the next; a run of them has one lock of the CQ. */
#include "base/pkey.h"
#include "engine/core/core.h"
#include "engine/core/local_key.h"
#include "local/small.h"
#include "object/device/device.h"
#include "transport/ordered_copy.h"
#include "wire/opcode.h"

/* Packets of a run. */
#define PLAIN_RUN ACKS_BEFORE_BATCH_END

/* Behind so many SENDs in a row nothing had come: nobody looks behind the next ones. Where programs answer each
 * other, that line still has to come from the writer's cache then, and the program waits for it. */
#define ALONE_AFTER 4u

struct run {
    struct qp *qp;
    uint32_t count;
    uint32_t taken; /* own receive queue: of the next packet */
    psn_t psn;      /* of the next packet */
    uint64_t bytes;
    uint8_t hints; /* of those that want an acknowledgement */
    bool ack_request;
    struct cq_success done[PLAIN_RUN];
};

/* arrival_is_accepted(), is_admitted(), and what of transport/receive.c is the same for all packets. QP lock held. */
static inline bool is_possible(const struct qp *qp, const struct lane *lane)
{
    enum ibv_qp_state state = qp_state(qp);

    return qp->record->type == IBV_QPT_RC && (state == IBV_QPS_RTS || state == IBV_QPS_RTR) &&
           route_of(qp)->arrival_lane == lane && !qp->by_packets && !qp->counted && !qp->origin &&
           !qp->transport.tag_matching && !times_recorded();
}

static inline bool is_of_peer(const struct qp *qp, const struct lane_small *small)
{
    return small->src_qpn == qp->record->attributes.dest_qpn && pkey_is_ours(small->pkey);
}

/* --- acknowledgements ---------------------------------------------------------------------------------------- */

static bool take_ack(struct qp *qp, const struct lane_small *small)
{
    const struct sender *sender = &qp->record->sender;

    if (qp_state(qp) != IBV_QPS_RTS || !is_of_peer(qp, small) ||
        SYNDROME_KIND(small->syndrome) != SYNDROME_ACK)
        return false;
    transport_acknowledged(&qp->transport, small->psn);
    if (sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed))
        route_run(qp); /* the acknowledgement may have opened a window or a fence */
    return true;
}

/* route_run() of a QP that owes a mere acknowledgement by that lane, and has nothing else to do. is_possible() was
 * asked. False: it is not such a QP, or the ring is full. *ret_rings is set if the peer's reader sleeps. */
static inline bool acknowledge(struct qp *qp, struct lane *lane, bool *ret_rings)
{
    const struct qp_record *record = qp->record;
    struct responder *responder = &qp->record->responder;
    const struct lane_small small = {.opcode = OP_ACKNOWLEDGE,
                                     .flags = responder->ack_owed & ACK_AWAITED ? PACKET_COMPLETES : 0,
                                     .syndrome = SYNDROME_ACK_NO_CREDITS,
                                     .pkey = DEFAULT_PKEY,
                                     .dest_qpn = record->attributes.dest_qpn,
                                     .src_qpn = qp->ibv.qp_num,
                                     .psn = psn_add(responder->expected_psn, PSN_MASK),
                                     .dest_ifindex = record->attributes.path.destination_ifindex,
                                     .argument = responder->msn & PSN_MASK};
    if (route_of(qp)->reply_lane != lane || !responder_owes_only_ack(&qp->transport) ||
        record->sender.next != atomic_load_explicit(&record->sender.posted, memory_order_relaxed) ||
        route_of(qp)->end_waiters || !lane_put_alone(lane, &small, ret_rings))
        return false;
    responder->ack_owed = 0;
    responder->acks_owed = 0;
    return true;
}

bool plain_acknowledge(struct qp *qp, struct lane *lane)
{
    bool rings = false, sent = is_possible(qp, lane) && acknowledge(qp, lane, &rings);

    route_of(qp)->kick_reply |= rings;
    return sent;
}

/* --- SENDs --------------------------------------------------------------------------------------------------- */

/* Nothing is due with a request but its receive. */
static inline bool may_receive(const struct qp *qp, const struct lane *lane)
{
    const struct transport_qp *transport = &qp->transport;
    const struct responder *responder = &qp->record->responder;

    return route_of(qp)->reply_lane == lane && responder->established && !responder->fails &&
           responder->message == MESSAGE_NONE && responder->nak_sent == NAK_NONE &&
           !responder->owed_syndrome && responder->resource_next == responder->resource_tail &&
           !transport->current_receive && !(qp->srq && qp->srq->cq);
}

static inline void run_reset(struct run *run)
{
    run->count = 0;
    run->bytes = 0;
    run->ack_request = false;
    run->hints = 0;
}

static inline void run_begin(struct run *run, struct qp *qp)
{
    run->qp = qp;
    run_reset(run);
    run->taken = atomic_load_explicit(&qp->record->receive.taken, memory_order_relaxed);
    run->psn = qp->record->responder.expected_psn;
}

/* take_receive(). NULL: there is none. One of an SRQ stays taken if the packet is not plain. */
static inline const struct recv_wqe *next_receive(const struct run *run)
{
    struct transport_qp *transport = &run->qp->transport;

    if (likely(!run->qp->srq))
        return run->taken != atomic_load_explicit(&run->qp->record->receive.posted, memory_order_relaxed)
                   ? qp_receive_at(run->qp, run->taken)
                   : NULL;
    if (!transport->current_receive &&
        transport->ports->take_receive(transport, &transport->current_receive) != 0)
        transport->current_receive = NULL;
    return transport->current_receive;
}

/* responder_receive(), and qp_ports.complete_receive() but for the CQ. */
static inline bool take_send(struct run *run, const struct lane_small *small)
{
    struct qp *qp = run->qp;
    const struct recv_wqe *receive;
    const struct wqe_sge *sge;
    uintptr_t to;

    if (unlikely(!is_of_peer(qp, small) || !psn_equal(small->psn, run->psn) || !small->length ||
                 (small->syndrome & PACKET_MTU) != qp->record->attributes.path_mtu ||
                 small->dest_ifindex != device_ifindex(qp->context->device)))
        return false;
    receive = next_receive(run);
    if (unlikely(!receive || receive->num_sge != 1 || receive->sge->length < small->length))
        return false;
    sge = receive->sge;
    to = local_key_address(&route_of(qp)->receive_key, qp->transport.keys, qp->transport.receive_pd,
                           sge->lkey, sge->address, small->length, true);
    if (unlikely(!to))
        return false;
    place((void *)to, small->payload, small->length); // NOLINT(performance-no-int-to-ptr)
    run->done[run->count++] = (struct cq_success){
        .wr_id = receive->wr_id,
        .byte_len = small->length,
        .imm_or_rkey = small->opcode == OP_SEND_ONLY_IMM ? small->argument : 0,
        .opcode = IBV_WC_RECV,
        .wc_flags = small->opcode == OP_SEND_ONLY_IMM ? IBV_WC_WITH_IMM : 0,
        .solicited = small->flags & PACKET_SOLICITED,
    };
    run->psn = psn_add(run->psn, 1);
    run->taken++;
    run->bytes += small->length;
    run->ack_request |= small->flags & PACKET_ACK_REQUEST;
    run->hints |= small->syndrome;
    if (unlikely(qp->srq != NULL)) {
        qp->record->receive.from_srq = false;
        qp->receive_taken = false;
        qp->transport.current_receive = NULL;
    }
    return true;
}

/* advance(), and what arrival_receive() and receive_locked() do then; the run is not empty. last: the lane has no
 * more; then the batch is at its end, and the QP does not have to be locked again for its acknowledgement. */
static inline void run_end(struct run *run, struct lane *lane, bool last)
{
    struct qp *qp = run->qp;
    struct responder *responder = &qp->record->responder;
    struct traffic_count *traffic = &qp->record->traffic.executed[TRAFFIC_SEND];
    uint32_t count = run->count;

    if (!qp->srq)
        atomic_store_explicit(&qp->record->receive.taken, run->taken, memory_order_relaxed);
    responder->expected_psn = run->psn;
    responder->msn += count;
    responder->offset = 0;
    responder->plain += count;
    responder->acks_owed += count;
    if (run->ack_request)
        responder_owe_ack(responder, run->hints);
    traffic->messages += count;
    traffic->bytes += run->bytes;
    qp_receives_completed += count;
    cq_push_run(qp->recv_cq, run->done, count, CQE_RECEIVE, qp->ibv.qp_num, qp->record->attributes.dest_qpn);
    run_reset(run);
    if (!responder->ack_owed || (last && !qp->ack_due && acknowledge(qp, lane, &lane_state(lane)->kick_acks)))
        return;
    if (responder->acks_owed < ACKS_BEFORE_BATCH_END) {
        if (!qp->ack_due)
            arrivals_add(&lane_state(lane)->arrivals, qp);
    } else if (!plain_acknowledge(qp, lane)) {
        route_run(qp);
    }
}

/* Is there another packet? Asked behind each that is taken. */
static inline bool look_behind(struct lane *lane, struct lane_state *state, struct lane_small *small,
                               bool *ret_ends)
{
    bool send = small->opcode != OP_ACKNOWLEDGE, more;

    *ret_ends = send && state->sends_alone == ALONE_AFTER && progress_has_waited();
    if (*ret_ends)
        return false;
    more = lane_peek(lane, small);
    if (send)
        state->sends_alone = more ? 0 : (uint8_t)min_of(state->sends_alone + 1u, ALONE_AFTER);
    return more;
}

/* QP lock held. *small: the first packet; in the end one that is not taken, if *ret_more. What is_possible() asks
 * changes under that lock, so not by a SEND that is taken into the run, but by what an acknowledgement or a full CQ
 * may lead to. */
static unsigned receive_run(struct qp *qp, struct lane *lane, struct lane_state *state,
                            struct lane_small *small, unsigned budget, bool *ret_more, bool *ret_ends)
{
    const uint32_t qpn = small->dest_qpn;
    bool possible = is_possible(qp, lane);
    unsigned taken = 0;
    struct run run;

    run_begin(&run, qp);
    *ret_more = false;
    while (possible) {
        if (small->opcode == OP_ACKNOWLEDGE) {
            if (run.count)
                run_end(&run, lane, false);
            if (!take_ack(qp, small))
                break;
            possible = is_possible(qp, lane);
        } else if ((!run.count && !may_receive(qp, lane)) || !take_send(&run, small)) {
            break;
        }
        lane_take(lane, small);
        if (run.count == PLAIN_RUN) {
            run_end(&run, lane, false);
            possible = is_possible(qp, lane);
        }
        *ret_more = ++taken != budget && look_behind(lane, state, small, ret_ends);
        if (!*ret_more || small->dest_qpn != qpn)
            break;
    }
    if (run.count)
        run_end(&run, lane, !*ret_more);
    return taken;
}

unsigned plain_receive(struct lane *lane, unsigned budget, bool *ret_ends)
{
    struct lane_state *state = lane_state(lane);
    struct lane_small small;
    unsigned taken = 0;
    bool more = lane_peek(lane, &small);

    /* It came right behind another one. */
    if (more && small.opcode != OP_ACKNOWLEDGE && !progress_has_waited())
        state->sends_alone = 0;
    while (more) {
        struct qp *qp = qp_lock_number(small.dest_qpn);
        struct qp_kick kick;
        unsigned run;

        if (unlikely(!qp))
            break;
        run = receive_run(qp, lane, state, &small, budget - taken, &more, ret_ends);
        kick = qp_take_kick(qp);
        lock_release(&qp->lock);
        if (unlikely(kick.lane || kick.reply_lane || kick.network_lane))
            progress_note_kick(lane, &kick);
        taken += run;
        if (!run)
            break;
    }
    if (taken)
        progress_count_packets(taken);
    return taken;
}
