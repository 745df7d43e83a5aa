/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Service id resolution (SIDR, IBA 12.11): one SIDR_REQ, one SIDR_REP with QPN and Q_Key. */
#include <errno.h>

#include "base/pkey.h"
#include "cm/machine.h"

int cm_resolve(struct cm *cm, struct cm_id *id, const struct cm_resolve *resolve, ns_t now)
{
    const struct cm_timing *timing = &resolve->timing;
    uint32_t comm_id;
    struct cm_mad mad;
    int result;

    if (id->state != CM_STATE_IDLE || id->closed || resolve->private_length > CM_SIDR_REQ_PRIVATE ||
        timing->packet_lifetime >= CM_TIME_MAX || timing->response_timeout > CM_TIME_MAX ||
        timing->retries > 15)
        return -EINVAL;
    result = allocate_comm_id(cm, &comm_id);
    if (result)
        return result;
    clear_id(id);
    id->datagram = true;
    id->path = resolve->path;
    id->service_id = resolve->service_id;
    id->local_comm_id = comm_id;
    id->transaction_id = cm->ports->random(cm);
    id->timing = *timing;
    id->interval = code_time(timing->response_timeout) + 2 * code_time(timing->packet_lifetime);
    table_add_local(cm, id);

    mad = message_of(id, CM_SIDR_REQ);
    mad.sidr_req = (struct cm_sidr_req){.service_id = id->service_id, .pkey = DEFAULT_PKEY};
    put_private(&mad, resolve->private_data, resolve->private_length);
    enter(cm, id, CM_STATE_SIDR_REQ_SENT);
    send_with_retries(cm, id, &mad, now);
    return 0;
}

int on_sidr_rep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad)
{
    const struct cm_sidr_rep *rep = &mad->sidr_rep;
    struct cm_event event = {
        .type = CM_EVENT_RESOLVED,
        .private_data = mad->private_data,
        .private_length = mad->private_length,
    };

    if (id->state != CM_STATE_SIDR_REQ_SENT || mad->transaction_id != id->transaction_id)
        return -EINVAL;
    if (rep->status == CM_SIDR_VALID && !qpn_is_valid(rep->qpn))
        return -EPROTO;
    if (rep->status == CM_SIDR_VALID) {
        event.offer.qpn = rep->qpn;
        event.offer.qkey = rep->qkey;
        event.offer.ece = rep->ece;
    } else {
        event.type = CM_EVENT_UNREACHABLE;
        event.status = rep->status;
    }
    finish(cm, id, &event);
    return 0;
}

/* --- passive ---------------------------------------------------------------------------------------- */

static void refuse(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad,
                   enum cm_sidr_status status)
{
    struct cm_mad response = {.attribute = CM_SIDR_REP,
                              .transaction_id = mad->transaction_id,
                              .remote_comm_id = mad->local_comm_id};
    uint8_t bytes[MAD_LENGTH];

    response.sidr_rep =
        (struct cm_sidr_rep){.service_id = mad->sidr_req.service_id, .status = (uint8_t)status};
    cm_mad_encode(&response, bytes);
    cm->counters.rejected++;
    cm->ports->send(cm, to, NULL, bytes);
}

int on_sidr_req(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now)
{
    struct cm_id *id = table_remote(cm, from->remote_gid, mad->local_comm_id, true);
    const struct cm_request request = {
        .datagram = true,
        .service_id = mad->sidr_req.service_id,
        .path = from,
        .private_data = mad->private_data,
        .private_length = mad->private_length,
    };
    int result;

    if (id && id->transaction_id == mad->transaction_id) {
        cm->counters.duplicates++;
        if (id->state == CM_STATE_SIDR_REP_SENT)
            send_again(cm, id);
        return -EALREADY;
    }
    if (id) {
        /* The peer reuses a request id, which is valid only after the response. */
        if (id->state != CM_STATE_SIDR_REP_SENT)
            return -EINVAL;
        finish(cm, id, NULL);
    }
    if (pkey_is_ours(mad->sidr_req.pkey))
        result = cm->ports->request(cm, &request, &id);
    else
        result = CM_SIDR_REJECTED;
    if (result > 0 || result == -ENOENT) {
        refuse(cm, from, mad, result > 0 ? (enum cm_sidr_status)result : CM_SIDR_INVALID_SERVICE_ID);
        return -ENOENT;
    }
    if (result) {
        cm->counters.dropped++;
        return -EAGAIN;
    }
    clear_id(id);
    id->passive = id->datagram = true;
    id->path = *from;
    id->service_id = mad->sidr_req.service_id;
    id->transaction_id = mad->transaction_id;
    id->remote_comm_id = mad->local_comm_id;
    table_add_remote(cm, id);
    enter(cm, id, CM_STATE_SIDR_REQ_RCVD);
    return 0;
}

void send_sidr_rep(struct cm *cm, struct cm_id *id, enum cm_sidr_status status, uint32_t qpn, uint32_t qkey,
                   const void *private_data, size_t private_length, ns_t now)
{
    struct cm_mad mad = message_of(id, CM_SIDR_REP);

    mad.sidr_rep = (struct cm_sidr_rep){
        .service_id = id->service_id, .status = (uint8_t)status, .qpn = qpn, .qkey = qkey};
    put_private(&mad, private_data, private_length);
    send_and_keep(cm, id, &mad);
    linger(cm, id, CM_STATE_SIDR_REP_SENT, LINGER_MAX_NS, now);
}

int cm_resolve_accept(struct cm *cm, struct cm_id *id, uint32_t qpn, uint32_t qkey, const void *private_data,
                      size_t private_length, ns_t now)
{
    if (id->closed || id->state != CM_STATE_SIDR_REQ_RCVD || !qpn_is_valid(qpn) ||
        private_length > CM_SIDR_REP_PRIVATE)
        return -EINVAL;
    send_sidr_rep(cm, id, CM_SIDR_VALID, qpn, qkey, private_data, private_length, now);
    return 0;
}

int cm_resolve_reject(struct cm *cm, struct cm_id *id, enum cm_sidr_status status, const void *private_data,
                      size_t private_length, ns_t now)
{
    if (id->closed || id->state != CM_STATE_SIDR_REQ_RCVD || status == CM_SIDR_VALID ||
        private_length > CM_SIDR_REP_PRIVATE)
        return -EINVAL;
    send_sidr_rep(cm, id, status, 0, 0, private_data, private_length, now);
    return 0;
}
