/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connecting and disconnecting (verbs.md §11.6): the calls of both sides. Replies of the peer are handled in
 * arrival.c. */
#include <endian.h>
#include <stdlib.h>

#include "base/refusal.h"
#include "front/rdmacm/front.h"

#define RETRIES_MAX 7 /* three bits in the REQ */

/* --- what goes out -------------------------------------------------------------------------------------- */

static void fill_path(const struct id *id, struct cm_path *ret_path)
{
    const struct rdma_route *route = &id->public.route;

    *ret_path = (struct cm_path){
        .local_guid = id->adapter->guid,
        .traffic_class = id->tos_set ? id->tos : route->path_rec->traffic_class,
        .hop_limit = route->path_rec->hop_limit,
        .packet_rate = route->path_rec->rate,
    };
    memcpy(ret_path->local_gid, &route->addr.addr.ibaddr.sgid, 16);
    memcpy(ret_path->remote_gid, &route->addr.addr.ibaddr.dgid, 16);
}

static void put_address(const struct sockaddr *address, uint8_t ret_bytes[16])
{
    union ibv_gid gid = address_gid(address);

    memcpy(ret_bytes, gid.raw, 16);
    if (address->sa_family == AF_INET)
        memset(ret_bytes, 0, 12);
}

struct message {
    uint8_t bytes[CM_SIDR_REQ_PRIVATE];
    size_t length;
};

/* Composes the private data: the header with the addresses, then the data of rdma_getaddrinfo(), then the program's.
 * An AF_IB address needs no header, because the path has all addresses. room: for all three together. */
static int compose(struct id *id, const struct rdma_conn_param *param, size_t room,
                   struct message *ret_message)
{
    size_t header = id_source(id)->sa_family == AF_IB ? 0 : CMA_HEADER_LENGTH;
    size_t length = param && param->private_data ? param->private_data_len : 0;
    struct cma_header addresses = {
        .ip_version = id_source(id)->sa_family == AF_INET ? 4 : 6,
        .source_port = address_port(id_source(id)),
    };

    if (header + id->connect_length + length > room)
        return refuse_range("private_data_len", (int64_t)length, 0,
                            room - min_of(room, header + id->connect_length));
    if (header) {
        put_address(id_source(id), addresses.source);
        put_address(id_destination(id), addresses.destination);
        cma_header_encode(&addresses, ret_message->bytes);
    }
    if (id->connect_length)
        memcpy(ret_message->bytes + header, id->connect_data, id->connect_length);
    if (length)
        memcpy(ret_message->bytes + header + id->connect_length, param->private_data, length);
    ret_message->length = header + id->connect_length + length;
    return 0;
}

/* 255: the maximum (verbs.md §11.6). */
static int choose_resources(struct id *id, const struct rdma_conn_param *param)
{
    uint8_t responder = param ? param->responder_resources : RDMA_MAX_RESP_RES;
    uint8_t initiator = param ? param->initiator_depth : RDMA_MAX_INIT_DEPTH;

    if (responder != RDMA_MAX_RESP_RES && responder > id->adapter->responder_resources)
        return refuse_range("responder_resources", responder, 0, id->adapter->responder_resources);
    if (initiator != RDMA_MAX_INIT_DEPTH && initiator > id->adapter->initiator_depth)
        return refuse_range("initiator_depth", initiator, 0, id->adapter->initiator_depth);
    if (!id->passive) {
        id->responder_resources =
            responder == RDMA_MAX_RESP_RES ? id->adapter->responder_resources : responder;
        id->initiator_depth = initiator == RDMA_MAX_INIT_DEPTH ? id->adapter->initiator_depth : initiator;
        return 0;
    }
    /* The id has the values that the request offered. */
    if (responder == RDMA_MAX_RESP_RES)
        responder = (uint8_t)min_of(id->responder_resources, id->adapter->responder_resources);
    if (initiator == RDMA_MAX_INIT_DEPTH)
        initiator = (uint8_t)min_of(id->initiator_depth, id->adapter->initiator_depth);
    id->responder_resources = responder;
    id->initiator_depth = initiator;
    return 0;
}

static uint8_t retries(uint8_t wanted)
{
    return (uint8_t)min_of(wanted, RETRIES_MAX);
}

static uint32_t own_qpn(const struct id *id, const struct rdma_conn_param *param)
{
    return (id->public.qp ? id->public.qp->qp_num : param ? param->qp_num : 0) & 0xffffff;
}

static bool has_srq(const struct id *id, const struct rdma_conn_param *param)
{
    return id->public.qp ? id->public.qp->srq != NULL : param && param->srq;
}

/* --- active side ---------------------------------------------------------------------------------------- */

static int connect_reliably(struct id *id, const struct rdma_conn_param *param)
{
    struct message message;
    struct cm_connect connect = {
        .service_id = address_service(id_destination(id), id->public.ps),
        .timing = CM_TIMING_DEFAULT,
        .service = id->public.qp_type == IBV_QPT_UC ? CM_SERVICE_UC : CM_SERVICE_RC,
        .path_mtu = id->public.route.path_rec->mtu,
        .qpn = own_qpn(id, param),
        .retry_count = retries(param ? param->retry_count : RETRIES_MAX),
        .rnr_retry_count = retries(param ? param->rnr_retry_count : RETRIES_MAX),
        .flow_control = param ? param->flow_control : true,
        .srq = has_srq(id, param),
        .ece = id->local_ece,
    };
    int error;

    if (!id->public.qp && !param)
        return refuse_because(-EINVAL, "conn_param is NULL: a cm_id without a QP needs conn_param.qp_num");
    error = choose_resources(id, param);
    if (!error)
        error = compose(id, param, CM_REQ_PRIVATE, &message);
    if (error)
        return error;
    fill_path(id, &connect.path);
    connect.timing.ack_timeout = id->ack_timeout;
    connect.responder_resources = id->responder_resources;
    connect.initiator_depth = id->initiator_depth;
    connect.private_data = message.bytes;
    connect.private_length = message.length;
    return calls->connect(id->agent_id, &connect);
}

static int resolve_service(struct id *id, const struct rdma_conn_param *param)
{
    struct message message;
    struct cm_resolve resolve = {
        .service_id = address_service(id_destination(id), id->public.ps),
        .timing = CM_TIMING_DEFAULT,
    };
    int error = compose(id, param, CM_SIDR_REQ_PRIVATE, &message);

    if (error)
        return error;
    fill_path(id, &resolve.path);
    resolve.private_data = message.bytes;
    resolve.private_length = message.length;
    return calls->resolve(id->agent_id, &resolve);
}

RDMACM_EXPORT int rdma_connect(struct rdma_cm_id *public, struct rdma_conn_param *param)
{
    struct id *id = id_of(public);
    bool synchronous;
    int error;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_connect"));
    if (id_state(id) != ID_ROUTE_RESOLVED)
        return conclude(id_refuse_state(id, STATE_BIT(ID_ROUTE_RESOLVED)));
    /* First: the reply may arrive before the call returns, and the id may be destroyed then. */
    id_enter(id, ID_CONNECTING);
    synchronous = id->synchronous;
    error = public->qp_type == IBV_QPT_UD ? resolve_service(id, param) : connect_reliably(id, param);
    if (error) {
        id_enter(id, ID_ROUTE_RESOLVED);
        return conclude(error);
    }
    return conclude(id_complete(id, synchronous));
}

RDMACM_EXPORT int rdma_establish(struct rdma_cm_id *public)
{
    struct id *id = id_of(public);
    enum id_state before;
    int error;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_establish"));
    if (public->qp)
        return conclude(refuse_because(
            -EINVAL,
            "the cm_id has a QP of rdma_create_qp(): rdma_establish() is only for cm_ids without one"));
    before = id_state(id);
    id_enter(id, ID_CONNECTED); /* first: the peer's next message may arrive at once */
    error = calls->establish(id->agent_id);
    if (error)
        id_enter(id, before);
    return conclude(error);
}

/* --- passive side --------------------------------------------------------------------------------------- */

static int accept_reliably(struct id *id, const struct rdma_conn_param *param)
{
    struct cm_accept accept = {
        .qpn = own_qpn(id, param),
        .rnr_retry_count = retries(param ? param->rnr_retry_count : RETRIES_MAX),
        .flow_control = param ? param->flow_control : true,
        .srq = has_srq(id, param),
        .ece = id->local_ece,
        .private_data = param ? param->private_data : NULL,
        .private_length = param && param->private_data ? param->private_data_len : 0,
    };
    int error;

    if (!id->public.qp && !param)
        return refuse_because(-EINVAL, "conn_param is NULL: a cm_id without a QP needs conn_param.qp_num");
    if (accept.private_length > CM_REP_PRIVATE)
        return refuse_range("private_data_len", (int64_t)accept.private_length, 0, CM_REP_PRIVATE);
    error = choose_resources(id, param);
    if (!error && id->public.qp)
        error = qp_connect(id);
    if (error)
        return error;
    accept.responder_resources = id->responder_resources;
    accept.initiator_depth = id->initiator_depth;
    error = calls->accept(id->agent_id, &accept);
    if (error)
        qp_to_error(id);
    return error;
}

static int accept_datagrams(struct id *id, const struct rdma_conn_param *param)
{
    size_t length = param && param->private_data ? param->private_data_len : 0;

    if (length > CM_SIDR_REP_PRIVATE)
        return refuse_range("private_data_len", (int64_t)length, 0, CM_SIDR_REP_PRIVATE);
    if (!id->public.qp && !param)
        return refuse_because(-EINVAL, "conn_param is NULL: a cm_id without a QP needs conn_param.qp_num");
    return calls->resolve_accept(id->agent_id, own_qpn(id, param), id->qkey,
                                 length ? param->private_data : NULL, length);
}

RDMACM_EXPORT int rdma_accept(struct rdma_cm_id *public, struct rdma_conn_param *param)
{
    struct id *id = id_of(public);
    bool datagrams = public->qp_type == IBV_QPT_UD, waits;
    int error;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_accept"));
    if (!id->passive)
        return conclude(refuse_because(
            -EINVAL, "the cm_id is not from an RDMA_CM_EVENT_CONNECT_REQUEST: accept event->id"));
    if (id_state(id) != ID_CONNECTING)
        return conclude(id_refuse_state(id, STATE_BIT(ID_CONNECTING)));
    id_enter(id, ID_CONNECTED); /* first: the peer may disconnect at once, and the id may be destroyed then */
    waits = id->synchronous && !datagrams;
    error = datagrams ? accept_datagrams(id, param) : accept_reliably(id, param);
    if (error) {
        id_enter(id, ID_CONNECTING);
        return conclude(error);
    }
    return conclude(id_complete(id, waits));
}

static int reject(struct id *id, enum cm_reason reason, const void *private_data, size_t length)
{
    bool datagrams = id->public.qp_type == IBV_QPT_UD;
    int error;

    if (id_check(id) != 0)
        return id_refuse(id, "rdma_reject");
    if (id_state(id) != ID_CONNECTING)
        return id_refuse_state(id, STATE_BIT(ID_CONNECTING));
    if (length > (datagrams ? CM_SIDR_REP_PRIVATE : CM_REJ_PRIVATE))
        return refuse_range("private_data_len", (int64_t)length, 0,
                            datagrams ? CM_SIDR_REP_PRIVATE : CM_REJ_PRIVATE);
    if (!private_data)
        length = 0;
    error = datagrams ? calls->resolve_reject(id->agent_id, CM_SIDR_REJECTED, private_data, length)
                      : calls->reject(id->agent_id, reason, private_data, length);
    if (!error)
        id_enter(id, ID_DISCONNECTED);
    return error;
}

RDMACM_EXPORT int rdma_reject(struct rdma_cm_id *public, const void *private_data, uint8_t length)
{
    return conclude(reject(id_of(public), CM_REASON_CONSUMER, private_data, length));
}

RDMACM_EXPORT int rdma_reject_ece(struct rdma_cm_id *public, const void *private_data, uint8_t length)
{
    return conclude(reject(id_of(public), CM_REASON_VENDOR_OPTION, private_data, length));
}

RDMACM_EXPORT int rdma_notify(struct rdma_cm_id *public, enum ibv_event_type event)
{
    struct id *id = id_of(public);

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_notify"));
    return conclude(event == IBV_EVENT_COMM_EST ? calls->established(id->agent_id)
                                                : refuse_invalid("event", event));
}

/* --- the end -------------------------------------------------------------------------------------------- */

RDMACM_EXPORT int rdma_disconnect(struct rdma_cm_id *public)
{
    struct id *id = id_of(public);
    bool synchronous;
    int error;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_disconnect"));
    if (public->qp_type == IBV_QPT_UD || (id_state(id) != ID_CONNECTED && id_state(id) != ID_DISCONNECTED))
        return conclude(
            refuse(-EINVAL, REFUSAL_UNCONNECTED, "", id_state(id), public->qp_type == IBV_QPT_UD, 0));
    error = qp_to_error(id);
    if (error)
        return conclude(error);
    synchronous = id->synchronous;
    /* A connection that has ended already has nothing to wait for. If the id is not synchronous, it may be destroyed
     * already. */
    if (calls->disconnect(id->agent_id) != 0 || !synchronous ||
        atomic_load_explicit(&id->disconnect_reported, memory_order_relaxed))
        return 0;
    return conclude(id_complete(id, true));
}

/* --- enhanced connection establishment ------------------------------------------------------------------ */

RDMACM_EXPORT int rdma_set_local_ece(struct rdma_cm_id *public, struct ibv_ece *ece)
{
    struct id *id = public ? id_of(public) : NULL;

    if (!id || public->qp || !ece || !ece->vendor_id || ece->comp_mask)
        return conclude(-EINVAL);
    id->local_ece = (struct cm_ece){ece->vendor_id, ece->options};
    return 0;
}

RDMACM_EXPORT int rdma_get_remote_ece(struct rdma_cm_id *public, struct ibv_ece *ret_ece)
{
    struct id *id = public ? id_of(public) : NULL;

    if (!id || public->qp || !ret_ece || ret_ece->comp_mask)
        return conclude(-EINVAL);
    ret_ece->vendor_id = id->remote_ece.vendor_id;
    ret_ece->options = id->remote_ece.options;
    return 0;
}
