/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Refusing and ending: REJ, DREQ, DREP, timewait (IBA 12.9). */
#include <errno.h>

#include "cm/machine.h"

void linger(struct cm *cm, struct cm_id *id, enum cm_state state, ns_t duration, ns_t now)
{
    const struct cm_event exit = {.type = CM_EVENT_TIMEWAIT_EXIT};

    /* The peer's QP is free for another connection. */
    table_remove(&id->by_qpn);
    if (cm->lingering >= CM_LINGER_MAX) {
        finish(cm, id, id->exit_due ? &exit : NULL);
        return;
    }
    enter(cm, id, state);
    deadline_set(cm, id, now + duration);
}

ns_t repeats_of_peer(const struct cm_id *id)
{
    const ns_t attempt = code_time(id->timing.response_timeout) + 2 * code_time(id->timing.packet_lifetime);

    return min_of(2 * attempt, LINGER_MAX_NS);
}

/* --- REJ -------------------------------------------------------------------------------------------- */

void send_rej(struct cm *cm, struct cm_id *id, enum cm_reason reason, const void *private_data,
              size_t private_length)
{
    struct cm_mad mad = message_of(id, CM_REJ);

    mad.rej = (struct cm_rej){
        .message = is_asked(id)    ? CM_MESSAGE_REQ
                   : has_reply(id) ? CM_MESSAGE_REP
                                   : CM_MESSAGE_OTHER,
        .reason = (uint16_t)reason,
    };
    if (reason == CM_REASON_TIMEOUT) {
        /* By our GUID and comm id Linux finds what it has not answered yet. */
        mad.rej.info_length = sizeof(id->path.local_guid);
        for (unsigned i = 0; i < sizeof(id->path.local_guid); i++)
            mad.rej.info[i] = (uint8_t)(id->path.local_guid >> (56 - 8 * i));
    }
    put_private(&mad, private_data, private_length);
    send_and_keep(cm, id, &mad);
}

int cm_reject(struct cm *cm, struct cm_id *id, enum cm_reason reason, const void *private_data,
              size_t private_length, ns_t now)
{
    if (private_length > CM_REJ_PRIVATE || (!is_asked(id) && !awaits_rtu(id) && !has_reply(id)))
        return -EINVAL;
    send_rej(cm, id, reason, private_data, private_length);
    cm->counters.rejected++;
    linger(cm, id, CM_STATE_TIMEWAIT, repeats_of_peer(id), now);
    return 0;
}

int on_rej(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now)
{
    const struct cm_event event = {
        .type = CM_EVENT_REJECTED,
        .status = mad->rej.reason,
        .private_data = mad->private_data,
        .private_length = mad->private_length,
    };
    const bool known = mad->local_comm_id == id->remote_comm_id;

    if (id->datagram || mad->transaction_id != id->transaction_id)
        return -EINVAL;
    switch ((enum cm_state)id->state) {
    case CM_STATE_REQ_SENT:
    case CM_STATE_MRA_REQ_RCVD:
        /* OTHER: it gave up after a REP that is lost. */
        if (mad->rej.message != CM_MESSAGE_REQ && mad->rej.message != CM_MESSAGE_OTHER)
            return -EINVAL;
        finish(cm, id, &event);
        return 0;
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
        if (!known)
            return -EINVAL;
        finish(cm, id, &event);
        return 0;
    case CM_STATE_ESTABLISHED:
    case CM_STATE_DREQ_SENT:
        /* It gave up before it got our RTU. */
        if (!known)
            return -EINVAL;
        id->left_by_peer = true;
        disconnected(cm, id, 0, now);
        return 0;
    case CM_STATE_TIMEWAIT:
        cm->counters.duplicates++;
        return -EALREADY;
    case CM_STATE_IDLE:
    case CM_STATE_SIDR_REQ_SENT:
    case CM_STATE_SIDR_REQ_RCVD:
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        break;
    }
    return -EINVAL;
}

/* --- DREQ, DREP ------------------------------------------------------------------------------------- */

void disconnected(struct cm *cm, struct cm_id *id, int status, ns_t now)
{
    const struct cm_event event = {.type = CM_EVENT_DISCONNECTED, .status = status};

    deadline_cancel(cm, id);
    id->answer = 0;
    id->exit_due = true;
    tell(cm, id, &event);
    linger(cm, id, CM_STATE_TIMEWAIT, id->timewait, now);
}

void send_dreq(struct cm *cm, struct cm_id *id, ns_t now)
{
    struct cm_mad mad = message_of(id, CM_DREQ);

    id->disconnect_transaction = cm->ports->random(cm);
    mad.transaction_id = id->disconnect_transaction;
    mad.dreq.remote_qpn = id->remote_qpn;
    enter(cm, id, CM_STATE_DREQ_SENT);
    send_until_answered(cm, id, &mad, now);
}

int cm_disconnect(struct cm *cm, struct cm_id *id, ns_t now)
{
    if (id->closed)
        return -EINVAL;
    if (id->state == CM_STATE_ESTABLISHED) {
        send_dreq(cm, id, now);
        return 0;
    }
    return id->left_by_peer ? 0 : -EINVAL;
}

int on_dreq(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now)
{
    if (mad->local_comm_id != id->remote_comm_id || mad->dreq.remote_qpn != id->local_qpn || id->datagram)
        return -EINVAL;
    switch ((enum cm_state)id->state) {
    case CM_STATE_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
        /* The RTU is lost or late: the peer has established the connection, and may have sent. */
        established(cm, id);
        break;
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
        /* The peer learnt from our data that we have its REP, and ends the connection before our RTU. */
    case CM_STATE_ESTABLISHED:
    case CM_STATE_DREQ_SENT:
        break;
    case CM_STATE_TIMEWAIT:
        cm->counters.duplicates++;
        answer_drep(cm, &id->path, mad);
        return -EALREADY;
    case CM_STATE_IDLE:
    case CM_STATE_REQ_SENT:
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_MRA_REQ_RCVD:
    case CM_STATE_SIDR_REQ_SENT:
    case CM_STATE_SIDR_REQ_RCVD:
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        return -EINVAL;
    }
    /* DREP at once: whoever disconnected is not to wait until our program looks, as it has to for Linux. */
    answer_drep(cm, &id->path, mad);
    id->left_by_peer = true;
    id->drep_again = !id->path.peer;
    id->disconnect_transaction = mad->transaction_id;
    disconnected(cm, id, 0, now);
    return 0;
}

void say_drep_again(struct cm *cm, struct cm_id *id)
{
    struct cm_mad mad = message_of(id, CM_DREP);

    if (!id->drep_again)
        return;
    id->drep_again = false;
    mad.transaction_id = id->disconnect_transaction;
    send_and_keep(cm, id, &mad);
}

void say_dreq_again(struct cm *cm, struct cm_id *id)
{
    if (!id->path.peer)
        send_again(cm, id);
}

int on_drep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now)
{
    if (mad->local_comm_id != id->remote_comm_id || mad->transaction_id != id->disconnect_transaction ||
        id->state != CM_STATE_DREQ_SENT)
        return -EINVAL;
    disconnected(cm, id, 0, now);
    return 0;
}

/* --- nobody answers --------------------------------------------------------------------------------- */

void gave_up(struct cm *cm, struct cm_id *id, ns_t now)
{
    const struct cm_event event = {.type = CM_EVENT_UNREACHABLE, .status = -ETIMEDOUT};

    switch ((enum cm_state)id->state) {
    case CM_STATE_REQ_SENT:
    case CM_STATE_MRA_REQ_RCVD:
        send_rej(cm, id, CM_REASON_TIMEOUT, NULL, 0);
        finish(cm, id, &event);
        break;
    case CM_STATE_SIDR_REQ_SENT:
        finish(cm, id, &event);
        break;
    case CM_STATE_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
        send_rej(cm, id, CM_REASON_TIMEOUT, NULL, 0);
        tell(cm, id, &event);
        linger(cm, id, CM_STATE_TIMEWAIT, repeats_of_peer(id), now);
        break;
    case CM_STATE_DREQ_SENT:
        disconnected(cm, id, -ETIMEDOUT, now);
        break;
    case CM_STATE_IDLE:
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
    case CM_STATE_ESTABLISHED:
    case CM_STATE_TIMEWAIT:
    case CM_STATE_SIDR_REQ_RCVD:
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        break; /* no deadline of that kind */
    }
}
