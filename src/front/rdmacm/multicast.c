/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Multicast groups (verbs.md §11.9). On RoCE the address is the group and no subnet manager is asked: the event is
 * queued before the call returns. */
#include <stdlib.h>

#include "base/refusal.h"
#include "front/rdmacm/front.h"

#define FLAGS_KNOWN (RDMA_CM_JOIN_MC_ATTR_RESERVED - 1)

static struct multicast *find(struct id *id, const struct sockaddr *address)
{
    list_for_each (node, &id->multicasts) {
        struct multicast *multicast = list_entry(node, struct multicast, node);

        if (addresses_equal((const struct sockaddr *)&multicast->address, address))
            return multicast;
    }
    return NULL;
}

static void fill(struct id *id, const struct multicast *multicast, struct rdma_ud_param *param)
{
    struct cm_path path = {.hop_limit = 1, .traffic_class = id->tos};

    memcpy(path.local_gid, &id->public.route.addr.addr.ibaddr.sgid, 16);
    memcpy(path.remote_gid, &multicast->gid, 16);
    path_to_ah(id, &path, &param->ah_attr);
    param->qp_num = MULTICAST_QPN;
    param->qkey = id->qkey;
}

static int join(struct id *id, const struct sockaddr *address, bool send_only, void *context)
{
    struct multicast *multicast;
    struct event *event;
    bool synchronous;
    int error = 0;

    if (id_check(id) != 0)
        return id_refuse(id, "rdma_join_multicast");
    if (address_length(address) < 0)
        return -EINVAL;
    if (id->public.qp_type != IBV_QPT_UD)
        return refuse(-EINVAL, REFUSAL_TYPE, "a multicast group", id->public.qp_type, 1ull << IBV_QPT_UD, 0);
    if (id_state(id) != ID_BOUND && id_state(id) != ID_ADDRESS_RESOLVED)
        return id_refuse_state(id, STATE_BIT(ID_BOUND) | STATE_BIT(ID_ADDRESS_RESOLVED));
    if (!id->public.verbs)
        return refuse_missing_device();
    multicast = calloc(1, sizeof(*multicast));
    event = event_new(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
    if (!multicast || !event) {
        free(multicast);
        free(event);
        return -ENOMEM;
    }
    memcpy(&multicast->address, address, (size_t)address_length(address));
    multicast->gid = address_gid(address);
    multicast->context = context;
    event->multicast = multicast;
    event->public.param.ud.private_data = context;
    if (!address_is_multicast(address)) {
        error = refuse(-EINVAL, REFUSAL_UNICAST, "addr", 0, 0, 0);
    } else {
        fill(id, multicast, &event->public.param.ud);
        if (id->public.qp && !send_only)
            error = -ibv_attach_mcast(id->public.qp, &multicast->gid, 0);
        multicast->attached = id->public.qp && !send_only && !error;
        if (!multicast->attached)
            calls->announce_multicast();
    }
    if (error) {
        event->public.event = RDMA_CM_EVENT_MULTICAST_ERROR;
        event->public.status = error;
    }
    list_push_back(&id->multicasts, &multicast->node);
    synchronous = id->synchronous;
    event_push(event);
    return id_complete(id, synchronous);
}

RDMACM_EXPORT int rdma_join_multicast(struct rdma_cm_id *public, struct sockaddr *address, void *context)
{
    return conclude(address ? join(id_of(public), address, false, context) : refuse_null("addr"));
}

RDMACM_EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *public,
                                         struct rdma_cm_join_mc_attr_ex *attributes, void *context)
{
    const uint32_t needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;

    if (attributes->comp_mask & ~(uint32_t)FLAGS_KNOWN)
        return conclude(
            refuse_bits(-EOPNOTSUPP, "comp_mask", BITS_PLAIN, attributes->comp_mask, FLAGS_KNOWN));
    if ((attributes->comp_mask & needed) != needed || !attributes->addr ||
        attributes->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
        return conclude(-EINVAL);
    return conclude(join(id_of(public), attributes->addr,
                         attributes->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context));
}

/* The join event may still be unread, or the program may have it. */
static void leave(struct id *id, struct multicast *multicast)
{
    list_remove(&multicast->node);
    events_drop_multicast(id, multicast);
    multicast_settle(id, multicast);
    free(multicast);
}

RDMACM_EXPORT int rdma_leave_multicast(struct rdma_cm_id *public, struct sockaddr *address)
{
    struct id *id = id_of(public);
    struct multicast *multicast;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_leave_multicast"));
    if (!address || address_length(address) < 0)
        return conclude(-EINVAL);
    multicast = find(id, address);
    if (!multicast)
        return conclude(-EADDRNOTAVAIL);
    if (public->event && container_of(public->event, struct event, public)->multicast == multicast) {
        rdma_ack_cm_event(public->event); /* the call acknowledges for a synchronous id */
        public->event = NULL;
    }
    if (multicast->attached && public->qp)
        ibv_detach_mcast(public->qp, &multicast->gid, 0);
    leave(id, multicast);
    return 0;
}

/* Does not touch the QP, which many programs destroy before the id. */
void multicast_leave_all(struct id *id)
{
    while (!list_empty(&id->multicasts))
        leave(id, list_entry(id->multicasts.next, struct multicast, node));
}
