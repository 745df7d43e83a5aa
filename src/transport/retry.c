/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Go-back-N: what the sender does when packets are lost, the receiver is not ready, or nobody answers
 * (verbs-contract §3.11, §3.12).
 *
 * On a link that may lose packets the local ACK timer runs whenever something is unacknowledged. On one that
 * loses nothing it runs only after somebody said that packets went nowhere: a peer that is merely slow is
 * never suspected. */
#include "rules/timing.h"
#include "transport/machine.h"

static void set_timer(struct transport_qp *qp, enum sender_timer timer, ns_t delay)
{
    qp->record->sender.timer_armed = (uint8_t)timer;
    qp->ports->set_timer(qp, delay);
}

static void set_ack_timer(struct transport_qp *qp)
{
    /* Code 0: no timer, for ever (the timer is "armed" all the same: nothing else is to arm one). */
    set_timer(qp, SENDER_TIMER_ACK, timing_ack_timeout(qp->record->attributes.timeout));
}

void sender_arm(struct transport_qp *qp)
{
    if (qp->record->sender.timer_armed == SENDER_TIMER_NONE)
        set_ack_timer(qp);
}

static bool has_outstanding(const struct sender *sender)
{
    return sender->completed != sender->begun;
}

void sender_progressed(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender->retries_left = qp->record->attributes.retry_count;
    sender->rnr_retries_left = qp->record->attributes.rnr_retry;
    sender->read_gap_seen = false;
    if (likely(sender->timer_armed != SENDER_TIMER_ACK))
        return;
    if (has_outstanding(sender)) {
        set_ack_timer(qp);
        return;
    }
    set_timer(qp, SENDER_TIMER_NONE, NS_NEVER);
    if (sender->waiting == SENDER_WAITS_FOR_RETRY)
        sender->waiting = SENDER_RUNS;
}

void sender_go_back(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender->next = sender->completed;
    sender->next_offset = 0;
    if (has_outstanding(sender))
        sender->next_offset = psn_distance(send_wqe_at(qp, sender->next)->first_psn, sender->unacked_psn);
    sender->retransmissions++;
    sender->waiting = SENDER_RUNS;
}

void sender_repeat(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return; /* it goes back to the same place, but not before the receiver is ready */
    if (sender->timer_armed != SENDER_TIMER_NONE)
        set_timer(qp, SENDER_TIMER_NONE, NS_NEVER);
    sender_go_back(qp);
    sender_run(qp);
}

void sender_retry(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    if (sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return; /* as above */
    if (!sender->retries_left) {
        sender_fail_oldest(qp, VERDICT_RETRY_EXCEEDED);
        return;
    }
    sender->retries_left--;
    sender_repeat(qp);
}

void sender_receiver_not_ready(struct transport_qp *qp, uint8_t timer_code)
{
    struct sender *sender = &qp->record->sender;

    if (sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return; /* said twice */
    if (qp->record->attributes.rnr_retry != 7) {
        if (!sender->rnr_retries_left) {
            sender_fail_oldest(qp, VERDICT_RNR_RETRY_EXCEEDED);
            return;
        }
        sender->rnr_retries_left--;
    }
    sender_go_back(qp);
    sender->waiting = SENDER_WAITS_FOR_RNR_TIMER;
    set_timer(qp, SENDER_TIMER_RNR, timing_rnr(timer_code));
}

void sender_timer(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    enum sender_timer timer = sender->timer_armed;

    sender->timer_armed = SENDER_TIMER_NONE;
    switch (timer) {
    case SENDER_TIMER_NONE:
        return; /* it ran out while it was being cancelled */
    case SENDER_TIMER_ACK:
        if (has_outstanding(sender)) {
            sender_retry(qp);
        } else if (sender->waiting == SENDER_WAITS_FOR_RETRY) {
            sender->waiting = SENDER_RUNS;
            sender_run(qp);
        }
        return;
    case SENDER_TIMER_RNR:
        sender->waiting = SENDER_RUNS;
        sender_run(qp);
        return;
    }
}

/* UC: nobody will ever say that he has done with what we lent. */
static void give_up_lent(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    sender_revoke(qp);
    sender->unacked_psn = sender->next_psn;
    if (sender->next != sender->begun)
        sender->unacked_psn = psn_add(send_wqe_at(qp, sender->next)->first_psn, sender->next_offset);
    sender_complete_unacknowledged(qp);
}

void sender_silence(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    switch ((enum ibv_qp_type)qp->record->type) {
    case IBV_QPT_RC:
        break;
    case IBV_QPT_UC:
        give_up_lent(qp);
        return;
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
    case IBV_QPT_DRIVER:
        return;
    }
    if (!has_outstanding(sender) || sender->waiting == SENDER_WAITS_FOR_RNR_TIMER)
        return;
    sender_arm(qp);
    sender->waiting = SENDER_WAITS_FOR_RETRY;
}
