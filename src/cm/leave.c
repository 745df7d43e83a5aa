/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Rejecting and disconnecting: REJ, DREQ, DREP, timewait (IBA 12.9). */
#include <errno.h>

#include "cm/machine.h"

void linger(struct cm *cm, struct cm_id *id, enum cm_state state, ns_t duration, ns_t now)
{
    const struct cm_event exit = {.type = CM_EVENT_TIMEWAIT_EXIT};

    /* The peer may connect the same QP again. */
    table_remove(&id->by_qpn);
    if (cm->lingering >= CM_LINGER_MAX) {
        finish(cm, id, id->exit_due ? &exit : NULL);
        return;
    }
    enter(cm, id, state);
    deadline_set(cm, id, now + duration);
}

ns_t peer_retry_time(const struct cm_id *id)
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
        .message = has_request(id) ? CM_MESSAGE_REQ
                   : has_reply(id) ? CM_MESSAGE_REP
                                   : CM_MESSAGE_OTHER,
        .reason = (uint16_t)reason,
    };
    if (reason == CM_REASON_TIMEOUT) {
        /* Linux finds its pending request by our GUID and comm id. */
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
    if (private_length > CM_REJ_PRIVATE || (!has_request(id) && !awaits_rtu(id) && !has_reply(id)))
        return -EINVAL;
    send_rej(cm, id, reason, private_data, private_length);
    cm->counters.rejected++;
    linger(cm, id, CM_STATE_TIMEWAIT, peer_retry_time(id), now);
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
        /* OTHER: the peer timed out after sending a REP that was lost. */
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
        /* The peer timed out before it received our RTU. */
        if (!known)
            return -EINVAL;
        id->peer_disconnected = true;
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
    id->last_sent = 0;
    id->exit_due = true;
    report_event(cm, id, &event);
    linger(cm, id, CM_STATE_TIMEWAIT, id->timewait, now);
}

void send_dreq(struct cm *cm, struct cm_id *id, ns_t now)
{
    struct cm_mad mad = message_of(id, CM_DREQ);

    id->disconnect_transaction = cm->ports->random(cm);
    mad.transaction_id = id->disconnect_transaction;
    mad.dreq.remote_qpn = id->remote_qpn;
    enter(cm, id, CM_STATE_DREQ_SENT);
    send_with_retries(cm, id, &mad, now);
}

int cm_disconnect(struct cm *cm, struct cm_id *id, ns_t now)
{
    if (id->closed)
        return -EINVAL;
    if (id->state == CM_STATE_ESTABLISHED) {
        send_dreq(cm, id, now);
        return 0;
    }
    return id->peer_disconnected ? 0 : -EINVAL;
}

int on_dreq(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now)
{
    if (mad->local_comm_id != id->remote_comm_id || mad->dreq.remote_qpn != id->local_qpn || id->datagram)
        return -EINVAL;
    switch ((enum cm_state)id->state) {
    case CM_STATE_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
        /* The RTU is lost or late: the peer is established and may have sent data. */
        established(cm, id);
        break;
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
        /* Our data told the peer that we have its REP; it disconnects before our RTU. */
    case CM_STATE_ESTABLISHED:
    case CM_STATE_DREQ_SENT:
        break;
    case CM_STATE_TIMEWAIT:
        cm->counters.duplicates++;
        respond_drep(cm, &id->path, mad);
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
    /* Send the DREP at once: Linux waits for rdma_disconnect() of the program, and its peer with it. */
    respond_drep(cm, &id->path, mad);
    id->peer_disconnected = true;
    id->final_drep_due = !id->path.peer;
    id->disconnect_transaction = mad->transaction_id;
    disconnected(cm, id, 0, now);
    return 0;
}

void send_final_drep(struct cm *cm, struct cm_id *id)
{
    struct cm_mad mad = message_of(id, CM_DREP);

    if (!id->final_drep_due)
        return;
    id->final_drep_due = false;
    mad.transaction_id = id->disconnect_transaction;
    send_and_keep(cm, id, &mad);
}

void send_final_dreq(struct cm *cm, struct cm_id *id)
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

/* --- timeouts --------------------------------------------------------------------------------------- */

void retries_exhausted(struct cm *cm, struct cm_id *id, ns_t now)
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
        report_event(cm, id, &event);
        linger(cm, id, CM_STATE_TIMEWAIT, peer_retry_time(id), now);
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
        break; /* no retries in these states */
    }
}
