/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions added to librdmacm after rdma-core 44, but for repoll_* (front/rsockets/epoll.c). */
#include <stdint.h>

#include "front/rdmacm/front.h"

/* Names of newer headers; the values are ABI. */
enum {
    EVENT_ADDRINFO_RESOLVED = RDMA_CM_EVENT_TIMEWAIT_EXIT + 1,
    EVENT_ADDRINFO_ERROR,
    EVENT_USER,
    FLAG_SA = 0x10 /* RAI_SA */
};

int rdma_resolve_addrinfo(struct rdma_cm_id *public, const char *node, const char *service,
                          const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *public, struct rdma_addrinfo **ret_info);
int rdma_write_cm_event(struct rdma_cm_id *public, enum rdma_cm_event_type type, int status,
                        uint64_t argument);

/* --- addresses ------------------------------------------------------------------------------------------ */

/* Looks the name up before returning; only the result is delivered as an event. */
RDMACM_EXPORT int rdma_resolve_addrinfo(struct rdma_cm_id *public, const char *node, const char *service,
                                        const struct rdma_addrinfo *hints)
{
    struct id *id = id_of(public);
    struct rdma_addrinfo *info = NULL;
    bool synchronous = id->synchronous; /* the thread that reads the event may destroy the id */
    int error;

    if (id_is_inherited(id))
        return conclude(-EIO);
    if (hints && (hints->ai_flags & FLAG_SA))
        return conclude(-EOPNOTSUPP); /* there is no subnet administrator */
    if (!node && !service)
        return conclude(-EINVAL);
    error = rdma_getaddrinfo(node, service, hints, &info);
    if (error == -1)
        error = -errno;
    rdma_freeaddrinfo(atomic_exchange_explicit(&id->resolved, info, memory_order_acq_rel));
    error = event_raise(id, (enum rdma_cm_event_type)(error ? EVENT_ADDRINFO_ERROR : EVENT_ADDRINFO_RESOLVED),
                        error);
    return conclude(error ? error : id_complete(id, synchronous));
}

RDMACM_EXPORT int rdma_query_addrinfo(struct rdma_cm_id *public, struct rdma_addrinfo **ret_info)
{
    struct rdma_addrinfo *info =
        atomic_exchange_explicit(&id_of(public)->resolved, NULL, memory_order_acq_rel);

    if (!info)
        return conclude(-ENODATA);
    *ret_info = info;
    return 0;
}

/* --- events of the program ------------------------------------------------------------------------------ */

RDMACM_EXPORT int rdma_write_cm_event(struct rdma_cm_id *public, enum rdma_cm_event_type type, int status,
                                      uint64_t argument)
{
    struct id *id = id_of(public);
    struct event *event;

    if (id_is_inherited(id))
        return conclude(-EIO);
    /* A synchronous id's channel has no reader. */
    if ((int)type != EVENT_USER || id->synchronous)
        return conclude(-EINVAL);
    event = event_new(id, type, status);
    if (!event)
        return conclude(-ENOMEM);
    memcpy(&event->public.param, &argument, sizeof(argument));
    event_push(event);
    return 0;
}
