/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Synchronous endpoints: rdma_create_ep() and related calls (verbs.md §11.3, §11.7). */
#include <stdlib.h>

#include "base/refusal.h"
#include "front/rdmacm/front.h"

static int remember(struct id *id, const struct rdma_addrinfo *info, struct ibv_pd *pd,
                    const struct ibv_qp_init_attr *attributes)
{
    id->endpoint_pd = pd;
    if (!attributes)
        return 0;
    id->endpoint = malloc(sizeof(*attributes));
    if (!id->endpoint)
        return -ENOMEM;
    *id->endpoint = *attributes;
    id->endpoint->qp_type = (enum ibv_qp_type)info->ai_qp_type;
    return 0;
}

static int make_passive(struct id *id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                        const struct ibv_qp_init_attr *attributes)
{
    int error = info->ai_src_addr ? bind_address(id, info->ai_src_addr) : -EINVAL;

    return error ? error : remember(id, info, pd, attributes);
}

static int keep_connect_data(struct id *id, const struct rdma_addrinfo *info)
{
    if (!info->ai_connect_len)
        return 0;
    id->connect_data = malloc(info->ai_connect_len);
    if (!id->connect_data)
        return -ENOMEM;
    memcpy(id->connect_data, info->ai_connect, info->ai_connect_len);
    id->connect_length = info->ai_connect_len;
    return 0;
}

static int result(int conventional)
{
    return conventional == 0 ? 0 : -errno;
}

static int make_active(struct id *id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                       struct ibv_qp_init_attr *attributes)
{
    struct rdma_cm_id *public = &id->public;
    int error = result(rdma_resolve_addr(public, info->ai_src_addr, info->ai_dst_addr, ROUTE_TIMEOUT_MS));

    if (error)
        return error;
    if (info->ai_route_len) {
        error = result(
            rdma_set_option(public, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, info->ai_route, info->ai_route_len));
        if (!error)
            error = id_complete(id, true);
    } else {
        error = result(rdma_resolve_route(public, ROUTE_TIMEOUT_MS));
    }
    if (!error)
        error = keep_connect_data(id, info);
    if (!error && attributes) {
        attributes->qp_type = (enum ibv_qp_type)info->ai_qp_type;
        error = result(rdma_create_qp(public, pd, attributes));
    }
    return error;
}

RDMACM_EXPORT int rdma_create_ep(struct rdma_cm_id **ret_id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                                 struct ibv_qp_init_attr *attributes)
{
    struct rdma_cm_id *public;
    int error;

    if (!info)
        return conclude(refuse_null("res"));
    error = id_create(NULL, &public, NULL, (enum rdma_port_space)info->ai_port_space,
                      (enum ibv_qp_type)info->ai_qp_type);
    if (error)
        return conclude(error);
    error = info->ai_flags & RAI_PASSIVE ? make_passive(id_of(public), info, pd, attributes)
                                         : make_active(id_of(public), info, pd, attributes);
    if (error) {
        rdma_destroy_ep(public);
        return conclude(error);
    }
    *ret_id = public;
    return 0;
}

RDMACM_EXPORT void rdma_destroy_ep(struct rdma_cm_id *public)
{
    if (public->qp)
        rdma_destroy_qp(public);
    if (public->srq)
        rdma_destroy_srq(public);
    rdma_destroy_id(public);
}

/* Takes a request from the listener: its event moves to the new id. */
static int take_request(struct id *listener, struct rdma_cm_id **ret_id)
{
    struct rdma_cm_event *event = listener->public.event;
    struct ibv_qp_init_attr attributes;
    struct rdma_cm_id *public;

    if (event->status)
        return event->event == RDMA_CM_EVENT_REJECTED ? -ECONNREFUSED : -abs(event->status);
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
        return -EINVAL;
    public = event->id;
    if (listener->endpoint) {
        attributes = *listener->endpoint;
        if (rdma_create_qp(public, listener->endpoint_pd, &attributes) != 0)
            return -errno;
    }
    listener->public.event = NULL;
    event_transfer(container_of(event, struct event, public), id_of(public));
    public->event = event;
    *ret_id = public;
    return 0;
}

RDMACM_EXPORT int rdma_get_request(struct rdma_cm_id *public, struct rdma_cm_id **ret_id)
{
    struct id *listener = id_of(public);

    if (id_check(listener) != 0)
        return conclude(id_refuse(listener, "rdma_get_request") == -EBADF ? -EBADF : -EINVAL);
    if (!listener->synchronous)
        return conclude(refuse_because(
            -EINVAL, "listen has an event channel: get its requests with rdma_get_cm_event()"));
    if (public->event) {
        rdma_ack_cm_event(public->event);
        public->event = NULL;
    }
    if (rdma_get_cm_event(public->channel, &public->event) != 0)
        return -1;
    return conclude(take_request(listener, ret_id));
}
