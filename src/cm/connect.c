/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* From REQ to ESTABLISHED (IBA 12.9), both sides. */
#include <errno.h>

#include "base/pkey.h"
#include "cm/machine.h"

static uint8_t at_most_7(uint8_t count)
{
    return count < 7 ? count : 7;
}

/* Local ACK timeout of the REQ (IBA table 106): 2 * packet lifetime + ACK delay as a time code, at most one too large.
 * The code is the larger of both codes, plus one if the other is about as large. */
static uint8_t ack_timeout_code(uint8_t ack_delay, uint8_t packet_lifetime)
{
    const unsigned round_trip = packet_lifetime + 1u, delay = ack_delay;
    unsigned code = max_of(round_trip, delay);

    if (min_of(round_trip, delay) + 1 >= code)
        code++;
    return (uint8_t)min_of(code, (unsigned)CM_TIME_MAX);
}

/* Timewait lasts as long as packets of the connection may be in flight. */
static void set_timewait(struct cm_id *id)
{
    id->timewait = code_time(bounded(id->timing.ack_timeout, 0, LIFETIME_CODE_MAX));
}

/* --- active ----------------------------------------------------------------------------------------- */

static bool connect_is_valid(const struct cm_connect *connect)
{
    const struct cm_timing *timing = &connect->timing;

    return (connect->service == CM_SERVICE_RC || connect->service == CM_SERVICE_UC) &&
           connect->path_mtu >= 1 && connect->path_mtu <= 5 && qpn_is_valid(connect->qpn) &&
           connect->private_length <= CM_REQ_PRIVATE && timing->packet_lifetime < CM_TIME_MAX &&
           timing->response_timeout <= CM_TIME_MAX && timing->ack_timeout <= CM_TIME_MAX &&
           timing->retries <= 15;
}

static struct cm_path_fields fields_of_path(const struct cm_id *id)
{
    struct cm_path_fields fields = {
        /* RoCE has no LIDs; with the permissive LID Linux compares only GIDs. */
        .local_lid = 0xffff,
        .remote_lid = 0xffff,
        .flow_label = id->path.flow_label,
        .packet_rate = id->path.packet_rate,
        .traffic_class = id->path.traffic_class,
        .hop_limit = id->path.hop_limit,
        .service_level = id->path.service_level,
        .local_ack_timeout = id->timing.ack_timeout
                                 ? id->timing.ack_timeout
                                 : ack_timeout_code(CM_ACK_DELAY_DEFAULT, id->timing.packet_lifetime),
    };

    memcpy(fields.local_gid, id->path.local_gid, sizeof(fields.local_gid));
    memcpy(fields.remote_gid, id->path.remote_gid, sizeof(fields.remote_gid));
    return fields;
}

int cm_connect(struct cm *cm, struct cm_id *id, const struct cm_connect *connect, ns_t now)
{
    uint32_t comm_id;
    struct cm_mad mad;
    int result;

    if (id->state != CM_STATE_IDLE || id->closed || !connect_is_valid(connect))
        return -EINVAL;
    result = allocate_comm_id(cm, &comm_id);
    if (result)
        return result;

    clear_id(id);
    id->path = connect->path;
    id->service_id = connect->service_id;
    id->local_comm_id = comm_id;
    id->transaction_id = cm->ports->random(cm);
    id->timing = connect->timing;
    id->interval = code_time(id->timing.response_timeout) + 2 * code_time(id->timing.packet_lifetime);
    id->mras_left = MRAS_MAX;
    id->service = connect->service;
    id->path_mtu = connect->path_mtu;
    id->local_qpn = connect->qpn;
    id->rq_psn = (uint32_t)cm->ports->random(cm) & 0xffffff;
    id->responder_resources = connect->responder_resources;
    id->initiator_depth = connect->initiator_depth;
    id->retry_count = at_most_7(connect->retry_count);
    id->rnr_retry_count = at_most_7(connect->rnr_retry_count);
    table_add_local(cm, id);

    mad = message_of(id, CM_REQ);
    mad.req = (struct cm_req){
        .service_id = id->service_id,
        .ca_guid = id->path.local_guid,
        .qpn = id->local_qpn,
        .starting_psn = id->rq_psn, /* first PSN of the peer's requests */
        .responder_resources = id->responder_resources,
        .initiator_depth = id->initiator_depth,
        .remote_response_timeout = id->timing.response_timeout,
        .local_response_timeout = id->timing.response_timeout,
        .service = id->service,
        .flow_control = connect->flow_control,
        .retry_count = id->retry_count,
        .rnr_retry_count = id->rnr_retry_count,
        .max_cm_retries = id->timing.retries,
        .pkey = DEFAULT_PKEY,
        .path_mtu = id->path_mtu,
        .srq = connect->srq,
        .primary = fields_of_path(id),
        .ece = connect->ece,
    };
    put_private(&mad, connect->private_data, connect->private_length);
    enter(cm, id, CM_STATE_REQ_SENT);
    send_with_retries(cm, id, &mad, now);
    return 0;
}

/* The peer offers a QP that our table has as connected to another QP of ours: the peer has lost that connection (IBA
 * 12.9.8.3.1), which a DREQ ends here. */
static void end_stale(struct cm *cm, struct cm_id *stale, ns_t now)
{
    if (stale->state == CM_STATE_ESTABLISHED)
        send_dreq(cm, stale, now);
}

static int on_duplicate_rep(struct cm *cm, struct cm_id *id, const struct cm_path *from,
                            const struct cm_mad *mad, ns_t now)
{
    if (id->remote_comm_id != mad->local_comm_id) {
        /* The peer took a repeated REQ for a second request. */
        respond_rej(cm, from, mad, CM_REASON_INVALID_COMM_INSTANCE);
        return -EINVAL;
    }
    cm->counters.duplicates++;
    if (has_reply(id)) {
        cm_delay(cm, id, CM_MRA_TIMEOUT_DEFAULT, now);
    } else if ((id->state == CM_STATE_ESTABLISHED && id->last_sent == CM_RTU) ||
               (id->state == CM_STATE_TIMEWAIT && id->last_sent == CM_REJ)) {
        send_again(cm, id);
    }
    return -EALREADY;
}

int on_rep(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad, ns_t now)
{
    const struct cm_rep *rep = &mad->rep;
    const struct cm_event rejected = {.type = CM_EVENT_REJECTED, .status = CM_REASON_STALE_CONNECTION};
    struct cm_id *stale;
    struct cm_event event;

    if (id->passive || id->datagram || mad->transaction_id != id->transaction_id)
        return -EINVAL;
    if (!awaits_reply(id))
        return on_duplicate_rep(cm, id, from, mad, now);
    if (!qpn_is_valid(rep->qpn) || !mad->local_comm_id)
        return -EPROTO;
    stale = table_qpn(cm, from, rep->qpn);
    if (stale) {
        respond_rej(cm, from, mad, CM_REASON_STALE_CONNECTION);
        end_stale(cm, stale, now);
        finish(cm, id, &rejected);
        return -EINVAL;
    }

    id->path.peer = from->peer;
    id->remote_comm_id = mad->local_comm_id;
    id->remote_guid = rep->ca_guid;
    id->remote_qpn = rep->qpn;
    id->sq_psn = rep->starting_psn;
    id->responder_resources = rep->initiator_depth;
    id->initiator_depth = rep->responder_resources;
    id->rnr_retry_count = rep->rnr_retry_count;
    if (!id->timing.ack_timeout)
        id->timing.ack_timeout = ack_timeout_code(rep->target_ack_delay, id->timing.packet_lifetime);
    set_timewait(id);
    id->last_sent = 0;
    table_add_remote(cm, id);
    table_add_qpn(cm, id);
    deadline_cancel(cm, id);
    enter(cm, id, CM_STATE_REP_RCVD);
    event = (struct cm_event){
        .type = CM_EVENT_REPLY,
        .offer = {.responder_resources = rep->initiator_depth,
                  .initiator_depth = rep->responder_resources,
                  .rnr_retry_count = rep->rnr_retry_count,
                  .flow_control = rep->flow_control,
                  .srq = rep->srq,
                  .qpn = rep->qpn,
                  .ece = rep->ece},
        .private_data = mad->private_data,
        .private_length = mad->private_length,
    };
    report_event(cm, id, &event);
    return 0;
}

int cm_establish(struct cm *cm, struct cm_id *id, ns_t now)
{
    struct cm_mad mad;

    if (id->closed || !has_reply(id))
        return -EINVAL;
    mad = message_of(id, CM_RTU);
    enter(cm, id, CM_STATE_ESTABLISHED);
    send_and_keep(cm, id, &mad);
    return 0;
}

/* --- passive ---------------------------------------------------------------------------------------- */

/* The enum cm_reason to reject a REQ independently of its listener, 0 if it is valid. */
static unsigned reason_to_reject(const struct cm_req *req, const struct cm_path *from)
{
    if (req->service != CM_SERVICE_RC && req->service != CM_SERVICE_UC)
        return CM_REASON_INVALID_SERVICE_TYPE;
    if (!qpn_is_valid(req->qpn))
        return CM_REASON_UNSUPPORTED;
    if (req->path_mtu < 1 || req->path_mtu > 5)
        return CM_REASON_INVALID_PATH_MTU;
    /* The GID in the REQ must be the sender's, so that no third host gets connected. REJ has no
     * reason for a wrong P_Key; Linux sends this one, too. */
    if (memcmp(req->primary.local_gid, from->remote_gid, sizeof(from->remote_gid)) ||
        !pkey_is_ours(req->pkey))
        return CM_REASON_INVALID_GID;
    return 0;
}

static int on_duplicate_req(struct cm *cm, struct cm_id *id, const struct cm_path *from,
                            const struct cm_mad *mad, ns_t now)
{
    if (id->transaction_id != mad->transaction_id || !id->passive) {
        respond_rej(cm, from, mad, CM_REASON_DUPLICATE_COMM_ID);
        return -EINVAL;
    }
    cm->counters.duplicates++;
    if (has_request(id)) {
        cm_delay(cm, id, CM_MRA_TIMEOUT_DEFAULT, now);
    } else if (id->last_sent == CM_REP &&
               (id->state == CM_STATE_REP_SENT || id->state == CM_STATE_ESTABLISHED)) {
        send_again(cm, id); /* ESTABLISHED after data, before the RTU */
    } else if (id->state == CM_STATE_TIMEWAIT && id->last_sent == CM_REJ) {
        send_again(cm, id);
        /* Extend the time to repeat the REJ, but not forever. */
        if (id->mras_left) {
            id->mras_left--;
            deadline_set(cm, id, now + peer_retry_time(id));
        }
    } else if (id->state == CM_STATE_TIMEWAIT) {
        respond_rej(cm, from, mad, CM_REASON_STALE_CONNECTION);
    }
    return -EALREADY;
}

/* true: another id has the peer's QP, and the REQ was rejected. */
static bool is_stale(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now)
{
    const struct cm_event superseded = {.type = CM_EVENT_REJECTED, .status = CM_REASON_TIMEOUT};
    struct cm_id *other = table_qpn(cm, from, mad->req.qpn);

    if (!other)
        return false;
    if (has_request(other) || awaits_rtu(other)) {
        /* The peer has given up the other request and reuses the QP; its REJ was lost. */
        finish(cm, other, &superseded);
        return false;
    }
    respond_rej(cm, from, mad, CM_REASON_STALE_CONNECTION);
    end_stale(cm, other, now);
    return true;
}

static struct cm_request request_of(const struct cm_path *from, const struct cm_mad *mad)
{
    const struct cm_req *req = &mad->req;

    return (struct cm_request){
        .service_id = req->service_id,
        .path = from,
        .remote_guid = req->ca_guid,
        .service = req->service,
        .path_mtu = req->path_mtu,
        .offer = {.responder_resources = req->initiator_depth,
                  .initiator_depth = req->responder_resources,
                  .retry_count = req->retry_count,
                  .rnr_retry_count = req->rnr_retry_count,
                  .flow_control = req->flow_control,
                  .srq = req->srq,
                  .qpn = req->qpn,
                  .ece = req->ece},
        .private_data = mad->private_data,
        .private_length = mad->private_length,
    };
}

static void begin_passive(struct cm *cm, struct cm_id *id, const struct cm_path *from,
                          const struct cm_mad *mad, uint32_t comm_id)
{
    const struct cm_req *req = &mad->req;

    clear_id(id);
    id->passive = true;
    id->path = *from;
    id->path.flow_label = req->primary.flow_label;
    id->path.traffic_class = req->primary.traffic_class;
    id->path.service_level = req->primary.service_level;
    id->path.packet_rate = req->primary.packet_rate;
    id->service_id = req->service_id;
    id->remote_guid = req->ca_guid;
    id->transaction_id = mad->transaction_id;
    id->local_comm_id = comm_id;
    id->remote_comm_id = mad->local_comm_id;
    id->remote_qpn = req->qpn;
    id->sq_psn = req->starting_psn;
    id->rq_psn = (uint32_t)cm->ports->random(cm) & 0xffffff;
    id->service = req->service;
    id->path_mtu = req->path_mtu;
    id->retry_count = req->retry_count;
    id->rnr_retry_count = req->rnr_retry_count;
    id->responder_resources = req->initiator_depth;
    id->initiator_depth = req->responder_resources;
    id->mras_left = MRAS_MAX;
    id->timing = (struct cm_timing){
        .packet_lifetime = (uint8_t)bounded(req->primary.local_ack_timeout, 1, LIFETIME_CODE_MAX) - 1,
        .response_timeout = (uint8_t)bounded(req->remote_response_timeout, 0, RESPONSE_CODE_MAX),
        .retries = req->max_cm_retries,
        .ack_timeout = req->primary.local_ack_timeout,
    };
    id->interval = code_time(bounded(req->local_response_timeout, RESPONSE_CODE_MIN, RESPONSE_CODE_MAX));
    set_timewait(id);
    table_add_local(cm, id);
    table_add_remote(cm, id);
    table_add_qpn(cm, id);
    enter(cm, id, CM_STATE_REQ_RCVD);
}

int on_req(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now)
{
    struct cm_id *id = table_remote(cm, from->remote_gid, mad->local_comm_id, false);
    const struct cm_request request = request_of(from, mad);
    unsigned fault;
    uint32_t comm_id;
    int result;

    if (!mad->local_comm_id)
        return -EPROTO;
    if (id)
        return on_duplicate_req(cm, id, from, mad, now);
    fault = reason_to_reject(&mad->req, from);
    if (fault) {
        respond_rej(cm, from, mad, (enum cm_reason)fault);
        return -EPROTO;
    }
    if (is_stale(cm, from, mad, now))
        return -EINVAL;

    if (cm->block_count) {
        result = allocate_comm_id(cm, &comm_id);
        if (result)
            return result;
        result = cm->ports->request(cm, &request, &id);
        if (!result) {
            begin_passive(cm, id, from, mad, comm_id);
            return 0;
        }
        release_comm_id(cm, comm_id);
    } else {
        result = -ENOENT; /* no comm ids, hence no services */
    }
    if (result > 0 || result == -ENOENT) {
        cm->counters.rejected++;
        respond_rej(cm, from, mad, result > 0 ? (enum cm_reason)result : CM_REASON_INVALID_SERVICE_ID);
        return -ENOENT;
    }
    cm->counters.dropped++;
    return -EAGAIN;
}

static void send_mra(struct cm *cm, struct cm_id *id, enum cm_message message, uint8_t service_timeout)
{
    struct cm_mad mad = message_of(id, CM_MRA);

    mad.mra = (struct cm_mra){.message = (uint8_t)message, .service_timeout = service_timeout};
    send_and_keep(cm, id, &mad);
}

int cm_delay(struct cm *cm, struct cm_id *id, uint8_t service_timeout, ns_t now)
{
    if (id->closed || service_timeout > CM_TIME_MAX || (!has_request(id) && !has_reply(id)))
        return -EINVAL;
    if (has_request(id)) {
        send_mra(cm, id, CM_MESSAGE_REQ, service_timeout);
        enter(cm, id, CM_STATE_MRA_REQ_SENT);
    } else {
        send_mra(cm, id, CM_MESSAGE_REP, service_timeout);
        enter(cm, id, CM_STATE_MRA_REP_SENT);
    }
    return 0;
}

int cm_accept(struct cm *cm, struct cm_id *id, const struct cm_accept *accept, ns_t now)
{
    struct cm_mad mad;

    if (id->closed || !has_request(id) || !qpn_is_valid(accept->qpn))
        return -EINVAL;
    mad = message_of(id, CM_REP);
    if (!put_private(&mad, accept->private_data, accept->private_length))
        return -EINVAL;
    id->local_qpn = accept->qpn;
    id->responder_resources = accept->responder_resources;
    id->initiator_depth = accept->initiator_depth;
    mad.rep = (struct cm_rep){
        .qpn = id->local_qpn,
        .starting_psn = id->rq_psn,
        .responder_resources = id->responder_resources,
        .initiator_depth = id->initiator_depth,
        .target_ack_delay = CM_ACK_DELAY_DEFAULT,
        .failover = 1, /* alternate paths are not supported */
        .flow_control = accept->flow_control,
        .srq = accept->srq,
        .rnr_retry_count = at_most_7(accept->rnr_retry_count),
        .ca_guid = id->path.local_guid,
        .ece = accept->ece,
    };
    enter(cm, id, CM_STATE_REP_SENT);
    send_with_retries(cm, id, &mad, now);
    return 0;
}

void established(struct cm *cm, struct cm_id *id)
{
    const struct cm_event event = {.type = CM_EVENT_ESTABLISHED};

    deadline_cancel(cm, id);
    enter(cm, id, CM_STATE_ESTABLISHED);
    report_event(cm, id, &event);
}

int cm_communication_established(struct cm *cm, struct cm_id *id, ns_t now)
{
    if (id->state == CM_STATE_ESTABLISHED)
        return 0;
    if (id->closed || !awaits_rtu(id))
        return -EINVAL;
    established(cm, id);
    return 0;
}

int on_rtu(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now)
{
    if (id->remote_comm_id != mad->local_comm_id || !id->passive || id->datagram)
        return -EINVAL;
    if (awaits_rtu(id)) {
        id->last_sent = 0;
        established(cm, id);
        return 0;
    }
    cm->counters.duplicates++;
    /* The RTU crossed our REJ, or the REJ was lost. */
    if (id->state == CM_STATE_TIMEWAIT && id->last_sent == CM_REJ)
        send_again(cm, id);
    return -EALREADY;
}

/* --- both ------------------------------------------------------------------------------------------- */

int on_mra(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad, ns_t now)
{
    const unsigned code = bounded(mad->mra.service_timeout, 0, MRA_CODE_MAX);
    const bool of_req = mad->mra.message == CM_MESSAGE_REQ && awaits_reply(id);
    const bool of_rep =
        mad->mra.message == CM_MESSAGE_REP && awaits_rtu(id) && mad->local_comm_id == id->remote_comm_id;

    if ((!of_req && !of_rep) || mad->transaction_id != id->transaction_id || !id->mras_left)
        return -EINVAL;
    id->mras_left--;
    if (of_req) {
        id->path.peer = from->peer;
        id->remote_comm_id = mad->local_comm_id; /* so that the peer can match a REJ of ours */
    }
    enter(cm, id, of_req ? CM_STATE_MRA_REQ_RCVD : CM_STATE_MRA_REP_RCVD);
    deadline_set(cm, id, now + code_time(code) + 2 * code_time(id->timing.packet_lifetime));
    return 0;
}
