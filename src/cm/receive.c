/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Finds the id and the handler of a MAD, and responds to messages for unknown comm ids. */
#include <errno.h>

#include "cm/machine.h"

/* --- unknown comm ids ------------------------------------------------------------------------------- */

/* A message with local and remote comm id exchanged. */
static struct cm_mad response_to(const struct cm_mad *mad, enum cm_attribute attribute)
{
    return (struct cm_mad){.attribute = (uint16_t)attribute,
                           .transaction_id = mad->transaction_id,
                           .local_comm_id = mad->remote_comm_id,
                           .remote_comm_id = mad->local_comm_id};
}

static void send_response(struct cm *cm, const struct cm_path *to, const struct cm_mad *response)
{
    uint8_t bytes[MAD_LENGTH];

    cm_mad_encode(response, bytes);
    cm->ports->send(cm, to, NULL, bytes);
}

void respond_rej(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad, enum cm_reason reason)
{
    struct cm_mad response = response_to(mad, CM_REJ);

    response.rej = (struct cm_rej){
        .message = mad->attribute == CM_REQ   ? CM_MESSAGE_REQ
                   : mad->attribute == CM_REP ? CM_MESSAGE_REP
                                              : CM_MESSAGE_OTHER,
        .reason = (uint16_t)reason,
    };
    send_response(cm, to, &response);
}

void respond_drep(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad)
{
    const struct cm_mad response = response_to(mad, CM_DREP);

    send_response(cm, to, &response);
}

/* Refuses a LAP: RoCE has no alternate paths. */
static void respond_apr(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad,
                        enum cm_apr_status status)
{
    struct cm_mad response = response_to(mad, CM_APR);

    response.apr.status = (uint8_t)status;
    send_response(cm, to, &response);
}

/* A message for no id of ours. After a REP or RTU the peer has a connection that does not exist here, and after a DREQ
 * it has not received our DREP; a response ends both. Responses get no response. */
static int on_unknown_comm_id(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad)
{
    cm->counters.unknown++;
    switch ((enum cm_attribute)mad->attribute) {
    case CM_REP:
    case CM_RTU:
        respond_rej(cm, from, mad, CM_REASON_INVALID_COMM_ID);
        break;
    case CM_DREQ:
        respond_drep(cm, from, mad);
        break;
    case CM_LAP:
        respond_apr(cm, from, mad, CM_APR_INVALID_COMM_ID);
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

static struct cm_id *find_id(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad)
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
    respond_apr(cm, &id->path, mad, CM_APR_UNSUPPORTED);
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
        return -EINVAL; /* we never send a LAP */
    case CM_REQ:
    case CM_SIDR_REQ:
        break; /* handled by cm_receive() */
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
            respond_rej(cm, from, &mad, CM_REASON_INVALID_CLASS_VERSION);
        return -EPROTO;
    }
    if (mad.attribute == CM_REQ)
        return on_req(cm, from, &mad, now);
    if (mad.attribute == CM_SIDR_REQ)
        return on_sidr_req(cm, from, &mad, now);
    id = find_id(cm, from, &mad);
    return id ? on_message(cm, id, from, &mad, now) : on_unknown_comm_id(cm, from, &mad);
}
