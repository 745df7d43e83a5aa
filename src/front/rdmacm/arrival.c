/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Events from peers (verbs.md §11.6, §11.10), in two halves. The thread in which an event arrives, with the CM
 * agent's lock held, allocates the event and queues it. The QP changes state when a thread of the program reads the
 * event, as programs expect (rping's QP is not in RTS before rping has read its channel). */
#include <endian.h>
#include <infiniband/ib.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/pkey.h"
#include "front/rdmacm/front.h"

/* --- arrival -------------------------------------------------------------------------------------------- */

static void copy_private(struct event *event, const uint8_t *data, size_t length)
{
    length = min_of(length, sizeof(event->private_data));
    memcpy(event->private_data, data, length);
    /* param.conn and param.ud both begin with the private data. */
    event->public.param.conn.private_data = event->private_data;
    event->public.param.conn.private_data_len = (uint8_t)length;
}

static void copy_offer(struct event *event, const struct cm_offer *offer)
{
    struct rdma_conn_param *param = &event->public.param.conn;

    param->responder_resources = offer->responder_resources;
    param->initiator_depth = offer->initiator_depth;
    param->flow_control = offer->flow_control;
    param->retry_count = offer->retry_count;
    param->rnr_retry_count = offer->rnr_retry_count;
    param->srq = offer->srq;
    param->qp_num = offer->qpn;
}

static void set_ip_address(struct sockaddr_storage *address, const struct cma_header *header,
                           const uint8_t bytes[16], uint16_t port)
{
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)address;

    if (header->ip_version == 4) {
        ipv4->sin_family = AF_INET;
        memcpy(&ipv4->sin_addr, bytes + 12, 4);
    } else {
        ipv6->sin6_family = AF_INET6;
        memcpy(&ipv6->sin6_addr, bytes, 16);
    }
    address_set_port((struct sockaddr *)address, port);
}

static void set_gid_address(struct sockaddr_storage *address, const uint8_t gid[16], uint64_t service_id)
{
    struct sockaddr_ib *ib = (struct sockaddr_ib *)address;

    ib->sib_family = AF_IB;
    ib->sib_pkey = htobe16(DEFAULT_PKEY);
    memcpy(&ib->sib_addr, gid, 16);
    ib->sib_sid = htobe64(service_id);
    ib->sib_sid_mask = htobe64(UINT64_MAX);
}

/* Sets the addresses of both ends from the request. Returns how many bytes of its private data they took, or -EPROTO.
 */
static int set_addresses(struct id *child, const struct id *listener, const struct cm_request *request)
{
    struct rdma_addr *addresses = &child->public.route.addr;
    struct cma_header header;

    memcpy(&addresses->addr.ibaddr.sgid, request->path->local_gid, 16);
    memcpy(&addresses->addr.ibaddr.dgid, request->path->remote_gid, 16);
    addresses->addr.ibaddr.pkey = htobe16(DEFAULT_PKEY);
    if (listener->public.route.addr.src_addr.sa_family == AF_IB) {
        set_gid_address(&addresses->src_storage, request->path->local_gid, request->service_id);
        set_gid_address(&addresses->dst_storage, request->path->remote_gid, 0);
        return 0;
    }
    if (cma_header_decode(request->private_data, request->private_length, &header) != 0)
        return -EPROTO;
    set_ip_address(&addresses->src_storage, &header, header.destination, (uint16_t)request->service_id);
    set_ip_address(&addresses->dst_storage, &header, header.source, header.source_port);
    return CMA_HEADER_LENGTH;
}

static struct event *make_request(struct id *listener, struct id *child, const struct cm_request *request,
                                  int header)
{
    struct event *event = event_new(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

    if (!event)
        return NULL;
    event->child = child;
    event->public.listen_id = &listener->public;
    event->public.id = &child->public;
    copy_private(event, request->private_data + header, (size_t)(request->private_length - header));
    if (request->datagram)
        event->public.param.ud.qp_num = request->offer.qpn;
    else
        copy_offer(event, &request->offer);
    return event;
}

static int on_request(void *argument, struct cm_agent_id *agent_id, const struct cm_request *request,
                      void **ret_end)
{
    struct id *listener = argument, *child;
    struct event *event;
    int header;

    if (request->datagram != (listener->public.qp_type == IBV_QPT_UD))
        return request->datagram ? (int)CM_SIDR_INVALID_SERVICE_ID : (int)CM_REASON_INVALID_SERVICE_ID;
    child = id_new(NULL, listener->public.ps, listener->public.qp_type);
    if (!child)
        return -EAGAIN;
    child->agent_id = agent_id;
    child->passive = true;
    if (child->record)
        child->record->passive = true;
    child->responder_resources = request->offer.responder_resources;
    child->initiator_depth = request->offer.initiator_depth;
    child->remote_ece = request->offer.ece;
    header = set_addresses(child, listener, request);
    id_enter(child, ID_CONNECTING); /* also publishes the addresses for explanations */
    event = header < 0 ? NULL : make_request(listener, child, request, header);
    if (!event) {
        id_free(child);
        if (header >= 0)
            return -EAGAIN;
        return request->datagram ? (int)CM_SIDR_REJECTED : (int)CM_REASON_UNSUPPORTED;
    }
    *ret_end = child;
    event_push(event);
    return 0;
}

static enum rdma_cm_event_type event_type(enum cm_event_type type)
{
    switch (type) {
    case CM_EVENT_REPLY:
        return RDMA_CM_EVENT_CONNECT_RESPONSE;
    case CM_EVENT_ESTABLISHED:
    case CM_EVENT_RESOLVED:
        return RDMA_CM_EVENT_ESTABLISHED;
    case CM_EVENT_REJECTED:
        return RDMA_CM_EVENT_REJECTED;
    case CM_EVENT_UNREACHABLE:
        return RDMA_CM_EVENT_UNREACHABLE;
    case CM_EVENT_DISCONNECTED:
        return RDMA_CM_EVENT_DISCONNECTED;
    case CM_EVENT_TIMEWAIT_EXIT:
        return RDMA_CM_EVENT_TIMEWAIT_EXIT;
    }
    return RDMA_CM_EVENT_DISCONNECTED;
}

static void on_event(void *end, const struct cm_event *from)
{
    struct id *id = end;
    /* The peer does not say it again, and the program may wait for it without a limit. */
    struct event *event = event_new_or_reserve(id, event_type(from->type), from->status);

    if (!event) {
        log_error("out of memory: RDMA CM event %s lost", rdma_event_str(event_type(from->type)));
        return;
    }
    if (from->private_data)
        copy_private(event, from->private_data, from->private_length);
    if (from->type == CM_EVENT_RESOLVED) {
        event->public.param.ud.qp_num = from->offer.qpn;
        event->public.param.ud.qkey = from->offer.qkey;
    } else if (from->type == CM_EVENT_REPLY) {
        copy_offer(event, &from->offer);
        event->ece = from->offer.ece;
    } else if (from->type == CM_EVENT_DISCONNECTED && from->status == -ECONNRESET) {
        event->public.status = 0; /* as with the kernel's CM: a process that died counts as disconnected */
    }
    event_push(event);
}

const struct cm_agent_owner cm_agent_owner = {.request = on_request, .event = on_event};

/* --- in the program's thread ---------------------------------------------------------------------------- */

/* Hands the child to the program. False: failed, and the child is destroyed. */
static bool hand_out(struct event *event)
{
    struct id *child = event->child, *listener = event->account;
    const union ibv_gid *gid = &child->public.route.addr.addr.ibaddr.sgid;
    struct rdma_event_channel *own = NULL;
    struct adapter *adapter;
    uint8_t sgid_index;
    int error;

    calls->request_taken(child->agent_id);
    error = adapter_find(gid, 0, &adapter, &sgid_index);
    if (!error)
        error = id_set_device(child, adapter, sgid_index);
    if (!error && listener->synchronous) {
        own = channel_new();
        error = own ? 0 : -errno;
    }
    if (error) {
        log_error("RDMA_CM_EVENT_CONNECT_REQUEST not delivered: %s; connection request dropped",
                  strerror(-error));
        id_drop(child);
        event->child = NULL;
        return false;
    }
    if (own) {
        events_move(child, own); /* cannot fail: the channel is new */
        child->synchronous = true;
    }
    child->public.context = listener->public.context;
    event->child = NULL; /* the program destroys it from now on */
    return true;
}

/* The peer accepted. With a QP of the id, RDMA_CM_EVENT_ESTABLISHED is all that the program sees. */
static void handle_reply(struct id *id, struct event *event)
{
    int error;

    id->remote_ece = event->ece;
    if (!id->public.qp)
        return;
    error = qp_connect(id);
    if (!error) {
        id_enter(id, ID_CONNECTED); /* first: another thread may read the peer's DISCONNECTED at once */
        error = calls->establish(id->agent_id);
    }
    if (!error) {
        event->public.event = RDMA_CM_EVENT_ESTABLISHED;
        return;
    }
    qp_to_error(id);
    calls->reject(id->agent_id, CM_REASON_CONSUMER, NULL, 0);
    id->connect_failed = true;
    id_enter(id, ID_DISCONNECTED);
    event->public.event = RDMA_CM_EVENT_CONNECT_ERROR;
    event->public.status = error;
}

static void handle_established(struct id *id, struct event *event)
{
    struct cm_path path = {.hop_limit = HOP_LIMIT, .traffic_class = id->tos};

    id_enter(id, ID_CONNECTED);
    if (id->public.qp_type != IBV_QPT_UD)
        return;
    memcpy(path.local_gid, &id->public.route.addr.addr.ibaddr.sgid, 16);
    memcpy(path.remote_gid, &id->public.route.addr.addr.ibaddr.dgid, 16);
    path_to_ah(id, &path, &event->public.param.ud.ah_attr);
}

bool connect_handle(struct event *event)
{
    struct id *id = event->account;

    /* int, because the names of the enumeration depend on the version of the header. */
    switch ((int)event->public.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        return hand_out(event);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        handle_reply(id, event);
        return true;
    case RDMA_CM_EVENT_ESTABLISHED:
        handle_established(id, event);
        return true;
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_UNREACHABLE:
        id_enter(id, ID_DISCONNECTED);
        if (id->public.qp_type != IBV_QPT_UD) /* a UD QP serves other peers, too */
            qp_to_error(id);
        return !id->connect_failed;
    case RDMA_CM_EVENT_DISCONNECTED:
        id_enter(id, ID_DISCONNECTED);
        atomic_store_explicit(&id->disconnect_reported, true, memory_order_relaxed);
        return !id->connect_failed;
    default:
        return true;
    }
}
