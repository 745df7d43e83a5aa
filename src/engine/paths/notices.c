/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a peer has to hear though nobody is left to say it: that a request was dropped, and the last answers
 * of a QP that goes away. On a link that loses nothing no timer of the peer's would make up for them, so what
 * finds the ring full stays here until there is room. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "wire/opcode.h"

struct word {
    uint32_t dest_qpn, src_qpn, dest_ifindex, msn;
    psn_t psn;
    uint16_t pkey;
    uint8_t opcode, flags, syndrome;
};

/* A peer that writes and never reads must not fill our memory. An honest one is silenced by the first word
 * about a QP, and has fewer QPs that send into the void. */
#define WORDS_MAX 65536u

static bool send_word(struct lane *lane, const struct word *word)
{
    const struct packet packet = {
        .opcode = word->opcode,
        .flags = word->flags,
        .pkey = word->pkey,
        .dest_qpn = word->dest_qpn,
        .src_qpn = word->src_qpn,
        .psn = word->psn,
        .dest_ifindex = word->dest_ifindex,
        .syndrome = word->syndrome,
        .msn = word->msn,
    };

    return lane_send(lane, &packet, NULL, 0) != -EAGAIN;
}

/* state->lock held. */
static bool keep(struct lane_state *state, const struct word *word)
{
    if (state->word_count == WORDS_MAX)
        return false;
    if (state->word_count == state->word_room) {
        uint32_t room = state->word_room ? state->word_room * 2 : 64;
        struct word *words = realloc(state->words, room * sizeof(*words));

        if (!words)
            return false;
        state->words = words;
        state->word_room = room;
    }
    state->words[state->word_count++] = *word;
    return true;
}

static void say(struct lane *lane, const struct word *word)
{
    struct lane_state *state = lane_state(lane);
    bool kept;

    lock_acquire(&state->lock);
    kept = keep(state, word);
    lock_release(&state->lock);
    if (!kept)
        log_error("no room for what QP 0x%06x has to hear", word->dest_qpn);
    words_flush(lane, state);
}

void words_send_drop(struct lane *lane, const struct packet *dropped)
{
    const struct word word = {
        .opcode = OP_ACKNOWLEDGE,
        .flags = (uint8_t)(PACKET_DROPPED | (dropped->flags & PACKET_RELAYED)),
        .dest_qpn = dropped->src_qpn,
        .src_qpn = dropped->dest_qpn,
        .psn = dropped->psn,
    };

    say(lane, &word);
}

void words_tell(struct transport_qp *transport, const struct packet *packet)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    const struct word word = {
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
    say(route_of(qp)->reply_lane, &word);
    route_of(qp)->kick_reply = true;
}

/* The requester waits in its own life for what these answered: it learns that it was dropped. */
void words_of_former_life(const struct qp *qp, struct lane *lane)
{
    struct lane_state *state = lane_state(lane);

    lock_acquire(&state->lock);
    for (uint32_t i = 0; i < state->word_count; i++) {
        if (state->words[i].src_qpn == qp->ibv.qp_num)
            state->words[i].flags |= PACKET_DROPPED;
    }
    lock_release(&state->lock);
}

void words_flush(struct lane *lane, struct lane_state *state)
{
    uint32_t sent = 0;

    lock_acquire(&state->lock);
    while (sent < state->word_count) {
        if (send_word(lane, &state->words[sent]))
            sent++;
        else if (lane_is_blocked(lane))
            break; /* lane_writable() follows */
    }
    if (sent) {
        memmove(state->words, state->words + sent, (state->word_count - sent) * sizeof(*state->words));
        state->word_count -= sent;
        atomic_store_explicit(&state->kick, true, memory_order_relaxed);
    }
    lock_release(&state->lock);
}
