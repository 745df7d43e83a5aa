/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Notices: packets without payload that must not get lost and that no QP could send again. These are drop
 * notices (a request was dropped) and the last responses of a QP that ends. The requester on a ring runs its
 * ACK timer only after a drop notice, so a lost notice would leave the requester waiting for ever. A notice
 * that finds the ring full is queued per lane until there is space. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
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

/* state->lock held. */
static bool queue(struct lane_state *state, const struct notice *notice)
{
    if (state->notice_count == NOTICES_MAX)
        return false;
    if (state->notice_count == state->notice_capacity) {
        uint32_t capacity = state->notice_capacity ? state->notice_capacity * 2 : 64;
        struct notice *notices = realloc(state->notices, capacity * sizeof(*notices));

        if (!notices)
            return false;
        state->notices = notices;
        state->notice_capacity = capacity;
    }
    state->notices[state->notice_count++] = *notice;
    return true;
}

static void queue_and_flush(struct lane *lane, const struct notice *notice)
{
    struct lane_state *state = lane_state(lane);
    bool queued;

    lock_acquire(&state->lock);
    queued = queue(state, notice);
    lock_release(&state->lock);
    if (!queued)
        log_error("QP 0x%06x: a message to the requester (a drop notice, or the last acknowledgement) could "
                  "not be queued and is lost (limit of %u reached, or out of memory)",
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
    const struct notice notice = {
        .opcode = packet->opcode,
        .flags = (uint8_t)(packet->flags | (qp->origin ? PACKET_RELAYED : 0)),
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
    queue_and_flush(route_of(qp)->reply_lane, &notice);
    route_of(qp)->kick_reply = true;
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
    }
    lock_release(&state->lock);
}
