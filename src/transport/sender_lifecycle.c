/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Start, flush and reset of a sender, and revocation of the memory that its packets expose. */
#include <string.h>

#include "rules/alias.h"
#include "transport/machine.h"

void sender_start(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    const struct qp_attributes *attributes = &qp->record->attributes;

    sender->next_psn = sender->unacked_psn = psn_make(attributes->sq_psn);
    sender->retries_left = attributes->retry_count;
    sender->rnr_retries_left = attributes->rnr_retry;
    sender->waiting = SENDER_RUNS;
    qp->copied_end = sender->next;
    sender->read_gap_seen = false;
    qp->next_hints = (uint8_t)((attributes->path_mtu & PACKET_MTU) | PACKET_BEGINS);
    window_start(qp);
}

bool sender_is_drained(const struct transport_qp *qp)
{
    return qp->record->sender.completed == qp->record->sender.begun;
}

static void stop_timer(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (sender->timer_armed != SENDER_TIMER_NONE)
        qp->ports->set_timer(qp, NS_NEVER);
    sender->timer_armed = SENDER_TIMER_NONE;
    sender->timeout_left = 0;
}

/* Outstanding requests were sent without a congestion window, so all their PSNs count as sent. Each of their READs and
 * atomics was one packet, and counts as one. */
void sender_expect_losses(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    qp->link.reliable = false;
    window_start(qp);
    sender->sent_psn = sender->next_psn;
    sender->rd_atomic_packets = (uint16_t)sender->rd_atomic_wqes;
    sender->timeouts = sender->probes = 0;
    if (!sender_is_drained(qp) && sender->waiting != SENDER_WAITS_FOR_RNR_TIMER)
        sender_arm(qp);
}

bool sender_end_losses(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    qp->holds = !sender_is_drained(qp);
    if (qp->holds)
        return false;
    stop_timer(qp);
    sender->probing = 0;
    sender->probe_runs = sender->rtt_runs = false;
    sender->waiting = SENDER_RUNS;
    qp->link.reliable = true;
    return true;
}

/* Do unacknowledged requests expose memory? Clears their marks. */
static bool clear_exposed(struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;
    bool exposed = false;

    if (unlikely(!is_connected(qp->record)))
        return false;
    for (uint32_t i = sender->completed; i != sender->begun; i++) {
        struct send_wqe *wqe = send_wqe_at(qp, i);

        exposed |= wqe->exposed;
        wqe->exposed = false;
    }
    return exposed;
}

void sender_revoke(struct transport_qp *qp)
{
    if (unlikely(clear_exposed(qp)))
        qp->ports->reference->revoke(qp);
}

void transport_revoke(struct transport_qp *qp)
{
    bool requests = clear_exposed(qp), responses = responder_clear_exposed(qp);

    if (requests || responses)
        qp->ports->reference->revoke(qp);
}

static bool names(const struct key_table *keys, struct send_wqe *wqe, uint32_t slot)
{
    const struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);

    for (unsigned i = 0; i < wqe->num_sge; i++) {
        if (key_alias_slot(keys, sge[i].lkey) == slot)
            return true;
    }
    return false;
}

bool transport_revoke_key(struct transport_qp *qp, uint32_t slot, bool mw)
{
    const struct sender *sender = &qp->record->sender;
    bool named = false, exposes;

    if (!qp->exposes)
        return false;
    exposes = responder_exposes(qp, slot, mw, &named);
    for (uint32_t i = sender->completed; i != sender->begun; i++) {
        struct send_wqe *wqe = send_wqe_at(qp, i);

        if (!wqe->exposed)
            continue;
        exposes = true;
        named = named || names(qp->keys, wqe, slot);
    }
    if (named)
        transport_revoke(qp);
    qp->exposes = exposes && !named; /* packets that are repeated set it again */
    return qp->exposes;
}

void sender_flush(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    uint32_t posted = atomic_load_explicit(&sender->posted, memory_order_relaxed);

    sender_revoke(qp);
    stop_timer(qp);
    while (sender->completed != posted) {
        uint32_t counter = sender->completed++;

        complete_request(qp, send_wqe_at(qp, counter), counter, VERDICT_FLUSHED, 0);
    }
    sender->next = sender->begun = posted;
    sender->next_offset = 0;
    sender->rd_atomic_wqes = sender->read_offset = sender->references_requested = 0;
    sender->rd_atomic_packets = 0;
    sender->unacked_psn = sender->sent_psn = sender->next_psn;
    sender->waiting = SENDER_RUNS;
}

/* The fields before next_psn are kept: counters that only grow, and `retired`, which the CQ's poll_lock guards. */
#define COUNTERS offsetof(struct sender, next_psn)

void sender_reset(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    uint32_t posted = atomic_load_explicit(&sender->posted, memory_order_relaxed);

    sender_revoke(qp);
    stop_timer(qp);
    qp->two_sided = 0;
    qp->deposits = false;
    memset((char *)sender + COUNTERS, 0, sizeof(*sender) - COUNTERS);
    sender->next = sender->begun = sender->completed = posted;
    sender->own_completed = sender->own_posted;
}
