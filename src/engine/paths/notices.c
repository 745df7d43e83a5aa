/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Notices: packets without payload that must not get lost and that no QP could send again. These are drop
 * notices (a request was dropped) and the last responses of a QP that ends. The requester on a ring runs its
 * ACK timer only after a drop notice, so a lost notice would leave the requester waiting for ever. A notice
 * that finds the ring full is queued per lane until there is space. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/user.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "wire/opcode.h"

struct notice {
    uint32_t dest_qpn, src_qpn, dest_ifindex, msn;
    psn_t psn;
    uint16_t pkey;
    uint8_t opcode, flags, syndrome;
};

/* Per lane: a hostile peer that writes and never reads must not exhaust this process's memory. A regular peer
 * stops sending for a QP at the first drop notice, and has fewer such QPs. */
#define NOTICES_MAX 65536u
/* For the lanes of all other users' processes together (base/budget.h). */
#define NOTICES_OF_OTHERS_MAX (4 * NOTICES_MAX)
#define NOTICES_FIRST         64u

static struct budget notices_of_others = BUDGET_INIT(
    notices_of_others, "drop notices (that a request was dropped) waiting to be read",
    "The processes of that user do not read their messages: check whether they are stopped or hang");

static _Atomic bool told_of_loss;

static bool send_notice(struct lane *lane, const struct notice *notice)
{
    const struct packet packet = {
        .opcode = notice->opcode,
        .flags = notice->flags,
        .pkey = notice->pkey,
        .dest_qpn = notice->dest_qpn,
        .src_qpn = notice->src_qpn,
        .psn = notice->psn,
        .dest_ifindex = notice->dest_ifindex,
        .syndrome = notice->syndrome,
        .msn = notice->msn,
    };

    return lane_send(lane, &packet, NULL, 0) != -EAGAIN;
}

/* Makes room for more notices. state->lock held. */
static bool grow(struct lane *lane, struct lane_state *state)
{
    uint32_t capacity = state->notice_capacity ? state->notice_capacity * 2 : NOTICES_FIRST;
    uint32_t more = capacity - state->notice_capacity;
    uid_t uid = link_peer_uid(lane_link(lane));
    bool is_charged = !link_is_self(lane_link(lane)) && !user_is_own(uid);
    struct notice *notices;

    if (is_charged && !budget_take(&notices_of_others, uid, more, NOTICES_OF_OTHERS_MAX))
        return false;
    notices = realloc(state->notices, capacity * sizeof(*notices));
    if (!notices) {
        if (is_charged)
            budget_return(&notices_of_others, uid, more);
        return false;
    }
    state->notices = notices;
    state->notice_capacity = capacity;
    state->notices_charged = is_charged;
    return true;
}

/* state->lock held, or the lane is down. */
static void free_notices(struct lane *lane, struct lane_state *state)
{
    if (state->notices_charged)
        budget_return(&notices_of_others, link_peer_uid(lane_link(lane)), state->notice_capacity);
    free(state->notices);
    state->notices = NULL;
    state->notice_count = state->notice_capacity = 0;
    state->notices_charged = false;
}

/* state->lock held. */
static bool queue(struct lane *lane, struct lane_state *state, const struct notice *notice)
{
    if (state->notice_count == NOTICES_MAX)
        return false;
    if (state->notice_count == state->notice_capacity && !grow(lane, state))
        return false;
    state->notices[state->notice_count++] = *notice;
    return true;
}

static void queue_and_flush(struct lane *lane, const struct notice *notice)
{
    struct lane_state *state = lane_state(lane);
    bool queued;

    lock_acquire(&state->lock);
    queued = queue(lane, state, notice);
    lock_release(&state->lock);
    /* Once: a peer can have any number of them lost. */
    if (!queued && !atomic_exchange_explicit(&told_of_loss, true, memory_order_relaxed))
        log_error("peer QP 0x%06x cannot be told that its request was dropped or acknowledged: %u such "
                  "messages wait to be read by its process (is it stopped?), or there is no memory for more. "
                  "Its local ACK timeout takes over. Logged once",
                  notice->dest_qpn, NOTICES_MAX);
    notice_flush(lane, state);
}

void notice_send_drop(struct lane *lane, const struct packet *dropped)
{
    const struct notice notice = {
        .opcode = OP_ACKNOWLEDGE,
        .flags = (uint8_t)(PACKET_DROPPED | (dropped->flags & PACKET_RELAYED)),
        .dest_qpn = dropped->src_qpn,
        .src_qpn = dropped->dest_qpn,
        .psn = dropped->psn,
    };

    queue_and_flush(lane, &notice);
}

void notice_send(struct transport_qp *transport, const struct packet *packet)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    const bool loses = (qp->by_packets & QP_LOSES) && !(packet->flags & PACKET_DROPPED);
    const struct notice notice = {
        .opcode = packet->opcode,
        .flags = (uint8_t)(packet->flags | (qp->origin ? PACKET_RELAYED : 0) | (loses ? PACKET_LOSSY : 0)),
        .pkey = packet->pkey,
        .dest_qpn = packet->dest_qpn,
        .src_qpn = packet->src_qpn,
        .psn = packet->psn,
        .dest_ifindex = packet->dest_ifindex,
        .syndrome = packet->syndrome,
        .msn = packet->msn,
    };

    if (!route_of(qp)->reply_lane)
        return; /* the peer is gone */
    if (unlikely(qp->by_packets & QP_CAPTURED))
        capture_sent_notice(qp, packet);
    queue_and_flush(route_of(qp)->reply_lane, &notice);
    route_of(qp)->kick_reply = true;
}

void notice_send_word(struct qp *qp, struct lane *lane, psn_t psn, bool read_response, enum lossy_word word)
{
    const struct notice notice = {
        .opcode = OP_ACKNOWLEDGE,
        .flags = PACKET_DROPPED | PACKET_LOSSY,
        .dest_qpn = qp->record->attributes.dest_qpn,
        .src_qpn = qp->ibv.qp_num,
        .psn = psn,
        .dest_ifindex = qp->record->attributes.path.destination_ifindex,
        .syndrome = (uint8_t)word,
        .msn = read_response,
    };

    queue_and_flush(lane, &notice);
    route_kick(qp, lane);
}

/* A queued response would be taken for the response to a request of the new connection, with the same PSN. As
 * a drop notice it only starts the requester's ACK timer. */
void notice_mark_stale(const struct qp *qp, struct lane *lane)
{
    struct lane_state *state = lane_state(lane);

    lock_acquire(&state->lock);
    for (uint32_t i = 0; i < state->notice_count; i++) {
        if (state->notices[i].src_qpn == qp->ibv.qp_num)
            state->notices[i].flags |= PACKET_DROPPED;
    }
    lock_release(&state->lock);
}

void notice_flush(struct lane *lane, struct lane_state *state)
{
    uint32_t sent = 0;

    lock_acquire(&state->lock);
    while (sent < state->notice_count) {
        if (send_notice(lane, &state->notices[sent]))
            sent++;
        else if (lane_is_blocked(lane))
            break; /* route_lane_writable() calls again */
    }
    if (sent) {
        memmove(state->notices, state->notices + sent,
                (state->notice_count - sent) * sizeof(*state->notices));
        state->notice_count -= sent;
        atomic_store_explicit(&state->kick, true, memory_order_relaxed);
        if (!state->notice_count && state->notice_capacity > NOTICES_FIRST)
            free_notices(lane, state);
    }
    lock_release(&state->lock);
}

void notices_lane_down(struct lane *lane, struct lane_state *state)
{
    free_notices(lane, state);
}

void notices_after_fork_in_child(void)
{
    budget_after_fork_in_child(&notices_of_others);
}
