/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A MAD -> the id that it is about and what that does with it; strangers are told that nobody knows them. */
#include <errno.h>

#include "cm/machine.h"

/* --- strangers -------------------------------------------------------------------------------------- */

/* The same comm ids the other way round. */
static struct cm_mad answer_to(const struct cm_mad *mad, enum cm_attribute attribute)
{
    return (struct cm_mad){.attribute = (uint16_t)attribute,
                           .transaction_id = mad->transaction_id,
                           .local_comm_id = mad->remote_comm_id,
                           .remote_comm_id = mad->local_comm_id};
}

static void send_answer(struct cm *cm, const struct cm_path *to, const struct cm_mad *answer)
{
    uint8_t bytes[MAD_LENGTH];

    cm_mad_encode(answer, bytes);
    cm->ports->send(cm, to, NULL, bytes);
}

void answer_rej(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad, enum cm_reason reason)
{
    struct cm_mad answer = answer_to(mad, CM_REJ);

    answer.rej = (struct cm_rej){
        .message = mad->attribute == CM_REQ   ? CM_MESSAGE_REQ
                   : mad->attribute == CM_REP ? CM_MESSAGE_REP
                                              : CM_MESSAGE_OTHER,
        .reason = (uint16_t)reason,
    };
    send_answer(cm, to, &answer);
}

void answer_drep(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad)
{
    const struct cm_mad answer = answer_to(mad, CM_DREP);

    send_answer(cm, to, &answer);
}

/* Alternate paths do not exist on RoCE. */
static void answer_apr(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad,
                       enum cm_apr_status status)
{
    struct cm_mad answer = answer_to(mad, CM_APR);

    answer.apr.status = (uint8_t)status;
    send_answer(cm, to, &answer);
}

/* No id of ours. A REP or RTU means that the peer believes in a connection that is none, a DREQ that it has
 * not got our DREP: both are ended soon if they are answered. Nothing that is an answer is answered. */
static int from_stranger(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad)
{
    cm->counters.unknown++;
    switch ((enum cm_attribute)mad->attribute) {
    case CM_REP:
    case CM_RTU:
        answer_rej(cm, from, mad, CM_REASON_INVALID_COMM_ID);
        break;
    case CM_DREQ:
        answer_drep(cm, from, mad);
        break;
    case CM_LAP:
        answer_apr(cm, from, mad, CM_APR_INVALID_COMM_ID);
        break;
    case CM_REQ:
    case CM_MRA:
    case CM_REJ:
    case CM_DREP:
    case CM_SIDR_REQ:
    case CM_SIDR_REP:
    case CM_APR:
        break;
    }
    return -ENOENT;
}

/* --- ids -------------------------------------------------------------------------------------------- */

static struct cm_id *addressed(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad)
{
    struct cm_id *id = mad->remote_comm_id ? table_local(cm, mad->remote_comm_id)
                       : mad->attribute == CM_REJ
                           ? table_remote(cm, from->remote_gid, mad->local_comm_id, false)
                           : NULL;

    return id && from_peer(id, from) ? id : NULL;
}

static int on_lap(struct cm *cm, const struct cm_id *id, const struct cm_mad *mad)
{
    if (id->state != CM_STATE_ESTABLISHED || mad->local_comm_id != id->remote_comm_id)
        return -EINVAL;
    answer_apr(cm, &id->path, mad, CM_APR_UNSUPPORTED);
    return 0;
}

static int on_message(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad,
                      ns_t now)
{
    switch ((enum cm_attribute)mad->attribute) {
    case CM_REP:
        return on_rep(cm, id, from, mad, now);
    case CM_RTU:
        return on_rtu(cm, id, mad, now);
    case CM_MRA:
        return on_mra(cm, id, from, mad, now);
    case CM_REJ:
        return on_rej(cm, id, mad, now);
    case CM_DREQ:
        return on_dreq(cm, id, mad, now);
    case CM_DREP:
        return on_drep(cm, id, mad, now);
    case CM_LAP:
        return on_lap(cm, id, mad);
    case CM_SIDR_REP:
        return on_sidr_rep(cm, id, mad);
    case CM_APR:
        return -EINVAL; /* we send no LAP */
    case CM_REQ:
    case CM_SIDR_REQ:
        break; /* for a service */
    }
    return -EINVAL;
}

int cm_receive(struct cm *cm, const struct cm_path *from, const void *bytes, size_t length, ns_t now)
{
    struct cm_mad mad;
    struct cm_id *id;
    int result = cm_mad_decode(bytes, length, &mad);

    cm->counters.received++;
    if (result) {
        cm->counters.malformed++;
        if (result == -EPFNOSUPPORT && mad.attribute == CM_REQ)
            answer_rej(cm, from, &mad, CM_REASON_INVALID_CLASS_VERSION);
        return -EPROTO;
    }
    if (mad.attribute == CM_REQ)
        return on_req(cm, from, &mad, now);
    if (mad.attribute == CM_SIDR_REQ)
        return on_sidr_req(cm, from, &mad, now);
    id = addressed(cm, from, &mad);
    return id ? on_message(cm, id, from, &mad, now) : from_stranger(cm, from, &mad);
}
