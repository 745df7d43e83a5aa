/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Forwards XRC requests for SRQs of other processes, and their responses back (transport/relay.c,
 * object/xrc/delegate.h).
 *
 * The number of an SRQ is a QP number of its process, so the owner of the number's block gets the request, with
 * PACKET_RELAYED and with the numbers of the SRQ and of the QP. The QP's attributes (struct delegate_terms) go before
 * the first request, and again whenever another process has executed requests since. All packets of a QP take one
 * lane, which keeps their order. */
#include "engine/xrc/relay.h"

#include <errno.h>
#include <string.h>

#include "base/rundown.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "engine/xrc/remote_open.h"
#include "object/xrc/delegate.h"
#include "object/xrc/xrc.h"
#include "object/xrc/xrc_domain.h"
#include "wire/opcode.h"

/* --- the process with the QP ---------------------------------------------------------------------------- */

static void fill_terms(const struct qp *qp, struct delegate_terms *terms)
{
    const struct qp_attributes *attributes = &qp->record->attributes;
    const struct relay *relay = &qp->transport.relay;

    *terms = (struct delegate_terms){
        .device = qp->xrcd->domain->device,
        .inode = qp->xrcd->domain->inode,
        .connection = relay->connection,
        .epoch = relay->epoch,
        .expected_psn = qp->record->responder.expected_psn.value,
        .msn = qp->record->responder.msn,
        .access_flags = attributes->access_flags,
        .mtu = qp->transport.link.mtu,
        .min_rnr_timer = attributes->min_rnr_timer,
        .max_dest_rd_atomic = attributes->max_dest_rd_atomic,
        .resumes = relay->resumes,
    };
}

static void fill_packet(const struct qp *qp, uint32_t dest_qpn, struct packet *packet)
{
    *packet = (struct packet){
        .opcode = SERVICE_XRC | OP_SEND_ONLY,
        .flags = PACKET_TERMS,
        .pkey = 0xffff,
        .dest_qpn = dest_qpn,
        .src_qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed),
        .payload_length = sizeof(struct delegate_terms),
    };
}

/* -EAGAIN: the lane is full; the QP runs again when it has space. QP lock held. */
static int send_terms(struct qp *qp, struct lane *lane, uint32_t srqn)
{
    struct delegate_terms terms;
    struct iovec payload = {&terms, sizeof(terms)};
    struct packet packet;
    int error;

    fill_terms(qp, &terms);
    fill_packet(qp, srqn, &packet);
    error = route_send_on(qp, lane, &packet, &payload, 1);
    if (!error)
        qp->transport.relay.resumes = false;
    return error;
}

/* The link to the process with that SRQ. NULL, with *ret_error -ENOENT: no other process has it; -EAGAIN: the QP runs
 * again when that is known. */
static struct link *owner_of(struct qp *qp, uint32_t srqn, int *ret_error)
{
    struct link *link = local_resolve(srqn);

    *ret_error = -ENOENT;
    if (!link && route_of(qp)->missing_block == srqn / LOCAL_BLOCK_QPNS + 1) {
        route_of(qp)->missing_block = 0;
        return NULL;
    }
    if (!link) {
        *ret_error = -EAGAIN;
        link = route_resolve_or_wait(qp, srqn);
    }
    /* The SRQ may be destroyed, and its number another process's, which gets nothing unless it may open the domain. */
    if (link && (link_is_self(link) || !xrc_domain_admits(qp->xrcd->domain, link_peer_uid(link)))) {
        *ret_error = -ENOENT;
        return NULL;
    }
    return link;
}

/* Sends the terms if the executing process lacks them, or has to learn the new epoch (relay.resumes). QP lock held. */
static int prepare_lane(struct qp *qp, const struct link *link, struct lane *lane, uint32_t srqn,
                        bool may_move)
{
    struct relay *relay = &qp->transport.relay;
    bool elsewhere = !relay_is_away(relay) || lane != route_of(qp)->relay_lane;

    if (!elsewhere && !relay->resumes)
        return 0;
    if (elsewhere) {
        if (!may_move)
            return -EAGAIN;
        relay->epoch++;
        relay->resumes = relay->displaced && local_resolve(relay->srqn) == link;
    }
    relay->used = true;
    route_of(qp)->relay_lane = lane; /* relay_leave() looks for the QPs of a link here */
    if (!send_terms(qp, lane, srqn))
        return 0;
    /* The next attempt sends the terms again, whichever process it goes to. */
    relay->resumes = !elsewhere;
    if (elsewhere)
        relay_move_failed(&qp->transport);
    return -EAGAIN;
}

int relay_hand_over(struct qp *qp, const struct packet *packet, bool may_move)
{
    struct iovec payload = {(void *)(uintptr_t)packet->payload, packet->payload_length};
    struct packet out = *packet;
    struct lane *lane;
    struct link *link;
    int error;

    link = owner_of(qp, packet->srqn, &error);
    if (!link)
        return error;
    lane = link_lane(link, qp->ibv.qp_num);
    error = prepare_lane(qp, link, lane, packet->srqn, may_move);
    if (error)
        return error;
    out.flags = (uint8_t)((out.flags & ~PACKET_LOSSY) | PACKET_RELAYED);
    out.dest_qpn = packet->srqn;
    out.src_qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed);
    error = route_send_on(qp, lane, &out, &payload, packet->payload_length ? 1 : 0);
    lane_ring(lane);
    return error ? -EAGAIN : 0;
}

static void send_end(struct link *link, void *argument)
{
    const struct qp *qp = argument;
    struct delegate_terms terms = {.ends = true};
    struct iovec payload = {&terms, sizeof(terms)};
    struct lane *lane = link_lane(link, qp->ibv.qp_num);
    struct packet packet;

    /* If the lane is full, the message is lost. The delegate then ends when the QP's next connection sends terms, or
     * with the link. */
    fill_packet(qp, 0, &packet);
    packet.src_qpn = qp->ibv.qp_num;
    if (lane_send(lane, &packet, &payload, 1) == 0)
        lane_ring(lane);
}

/* Ends the QP's delegates. Processes without one ignore the message. QP lock held. */
void relay_end(struct qp *qp)
{
    if (!qp->transport.relay.used)
        return;
    qp->transport.relay.used = false;
    route_of(qp)->relay_lane = NULL;
    local_for_each_link(send_end, qp);
}

void relay_leave(struct qp *qp, const struct link *link)
{
    struct relay *relay = &qp->transport.relay;
    const struct link *displaced = relay->displaced ? local_resolve(relay->srqn) : NULL;

    /* The process that was to resume is gone; another one that takes its numbers has nothing to resume. */
    if (!displaced || displaced == link)
        relay->displaced = false;
    if (!route_of(qp)->relay_lane || lane_link(route_of(qp)->relay_lane) != link)
        return;
    route_of(qp)->relay_lane = NULL;
    relay_lost(&qp->transport);
    if (responder_owes(&qp->transport))
        route_run(qp);
}

static bool takes_responses(const struct qp *qp)
{
    enum ibv_qp_state state = qp_state(qp);

    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD;
}

/* Also takes the drop notice of a process without a delegate, which has neither PACKET_RELAYED nor an epoch. */
static void receive_response(struct lane *lane, const struct packet *packet)
{
    struct qp *qp = qp_lock_number(packet->dest_qpn);
    struct qp_kick kick;

    if (!qp)
        return;
    if (qp->record->type == IBV_QPT_XRC_RECV && route_of(qp)->relay_lane == lane && takes_responses(qp) &&
        ((packet->flags & PACKET_DROPPED) || packet->dest_ifindex == qp->transport.relay.epoch)) {
        relay_response(&qp->transport, packet, opcode_table[packet->opcode].properties);
        if (responder_owes(&qp->transport))
            route_run(qp);
    }
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    progress_note_kick(lane, &kick);
}

/* --- the process with the SRQ --------------------------------------------------------------------------- */

static void receive_terms(struct lane *lane, const struct packet *packet)
{
    struct link *link = lane_link(lane);
    struct delegate_terms terms;

    if (packet->payload_length != sizeof(terms) || (packet->flags & PACKET_BY_REFERENCE))
        return;
    memcpy(&terms, packet->payload, sizeof(terms)); /* shared memory: copied before it is checked */
    /* Completions here show the QP's number, so only its owner may claim it. */
    if (!terms.ends && !local_is_owner(link, packet->src_qpn / LOCAL_BLOCK_QPNS))
        return;
    /* If no delegate can be made, the request that follows is answered with a drop notice. */
    (void)delegate_accept(link, link_peer_uid(link), packet->src_qpn, &terms);
}

static void receive_request(struct lane *lane, const struct packet *packet)
{
    struct qp *qp = delegate_lock(lane_link(lane), packet->src_qpn);
    struct qp_kick kick;

    if (!qp) {
        notice_send_drop(lane, packet);
        return;
    }
    if (qp_state(qp) == IBV_QPS_RTS)
        progress_receive(qp, lane, packet);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    progress_note_kick(lane, &kick);
}

void relay_receive(struct lane *lane, const struct packet *packet)
{
    if (packet->flags & PACKET_DROPPED)
        receive_response(lane, packet);
    else if ((packet->flags & PACKET_REMOTE_OPEN) == PACKET_REMOTE_OPEN)
        remote_open_receive(lane, packet);
    else if ((packet->flags & PACKET_TERMS) == PACKET_TERMS)
        receive_terms(lane, packet);
    else if (opcode_table[packet->opcode].properties & OPCODE_REQUEST)
        receive_request(lane, packet);
    else
        receive_response(lane, packet);
}
