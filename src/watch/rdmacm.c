/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions of librdmacm.so.1: ids, their events, and the QPs and devices that librdmacm makes for the program. What it
 * calls of libibverbs passes through verbs.c, if it calls what is public; what it made otherwise is adopted here. */
#include <errno.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "watch/calls.h"

enum call {
    CREATE_EVENT_CHANNEL,
    CREATE_ID,
    DESTROY_ID,
    CREATE_EP,
    DESTROY_EP,
    MIGRATE_ID,
    BIND_ADDR,
    RESOLVE_ADDR,
    RESOLVE_ROUTE,
    CREATE_QP,
    CREATE_QP_EX,
    DESTROY_QP,
    LISTEN,
    CONNECT,
    ACCEPT,
    DISCONNECT,
    GET_REQUEST,
    GET_CM_EVENT,
    ACK_CM_EVENT,
    GET_DEVICES,
    GETADDRINFO,
    CALLS
};

#define CM(verb)                                                                                             \
    {                                                                                                        \
        .library = ORIGINAL_RDMACM, .name = #verb, .version = "RDMACM_1.0", .ours = (void *)verb             \
    }
struct original rdmacm_originals[CALLS] = {
    [CREATE_EVENT_CHANNEL] = CM(rdma_create_event_channel),
    [CREATE_ID] = CM(rdma_create_id),
    [DESTROY_ID] = CM(rdma_destroy_id),
    [CREATE_EP] = CM(rdma_create_ep),
    [DESTROY_EP] = CM(rdma_destroy_ep),
    [MIGRATE_ID] = CM(rdma_migrate_id),
    [BIND_ADDR] = CM(rdma_bind_addr),
    [RESOLVE_ADDR] = CM(rdma_resolve_addr),
    [RESOLVE_ROUTE] = CM(rdma_resolve_route),
    [CREATE_QP] = CM(rdma_create_qp),
    [CREATE_QP_EX] = CM(rdma_create_qp_ex),
    [DESTROY_QP] = CM(rdma_destroy_qp),
    [LISTEN] = CM(rdma_listen),
    [CONNECT] = CM(rdma_connect),
    [ACCEPT] = CM(rdma_accept),
    [DISCONNECT] = CM(rdma_disconnect),
    [GET_REQUEST] = CM(rdma_get_request),
    [GET_CM_EVENT] = CM(rdma_get_cm_event),
    [ACK_CM_EVENT] = CM(rdma_ack_cm_event),
    [GET_DEVICES] = CM(rdma_get_devices),
    [GETADDRINFO] = CM(rdma_getaddrinfo),
};
const size_t rdmacm_originals_count = CALLS;

/* Not INSIDE(): the verbs that librdmacm calls are recorded. */
#define IN_CM(call)                                                                                          \
    ({                                                                                                       \
        __typeof__(call) in_cm_result_;                                                                      \
        watch_in_cm++;                                                                                       \
        in_cm_result_ = (call);                                                                              \
        watch_in_cm--;                                                                                       \
        in_cm_result_;                                                                                       \
    })

/* --- records of ids ------------------------------------------------------------------------------------- */

/* An address as a GID; false: none. */
static bool as_gid(const struct sockaddr *address, uint8_t ret_gid[16], uint16_t *ret_port)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;

    memset(ret_gid, 0, 16);
    if (address->sa_family == AF_INET && v4->sin_addr.s_addr) {
        memset(ret_gid + 10, 0xff, 2);
        memcpy(ret_gid + 12, &v4->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        memcpy(ret_gid, &v6->sin6_addr, 16);
    }
    *ret_port = address->sa_family == AF_INET    ? ntohs(v4->sin_port)
                : address->sa_family == AF_INET6 ? ntohs(v6->sin6_port)
                                                 : 0;
    return *ret_port;
}

/* What the structure says by now. */
static void refresh(const struct rdma_cm_id *id, int phase)
{
    const struct watched *known = watched_find(id, OBJECT_CM_ID);
    struct id_record *record = known ? segment_id(known->number) : NULL;

    if (id->verbs)
        adopt_context(id->verbs);
    if (!record)
        return;
    if (phase >= 0)
        record->phase = (uint32_t)phase;
    record->port_space = id->ps;
    record->qpn = id->qp ? id->qp->qp_num : 0;
    as_gid(&id->route.addr.src_addr, record->source, &record->source_port);
    as_gid(&id->route.addr.dst_addr, record->destination, &record->destination_port);
}

static void know(const struct rdma_cm_id *id, int phase)
{
    if (!watched_find(id, OBJECT_CM_ID))
        watched_new_id(id);
    refresh(id, phase);
}

/* Made by a librdmacm that does not call the public verb. */
static void adopt_qp_of(const struct rdma_cm_id *id, const struct ibv_qp_cap *cap, bool signal_all)
{
    struct ibv_qp *qp = id->qp;

    if (qp)
        adopt_qp(qp, &(struct watched_qp_attr){.pd = qp->pd,
                                               .send_cq = qp->send_cq,
                                               .recv_cq = qp->recv_cq,
                                               .srq = qp->srq,
                                               .cap = *cap,
                                               .signal_all = signal_all});
}

/* Which id an event is counted for, until rdma_ack_cm_event(): of a connection request the listener (rdma_destroy_id(3)
 * of which waits). */
static struct event_record *account_of(const struct rdma_cm_event *event)
{
    const struct rdma_cm_id *id =
        event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->listen_id ? event->listen_id : event->id;
    const struct watched *known = watched_find(id, OBJECT_CM_ID);

    return known ? &segment_id(known->number)->events : NULL;
}

static int phase_after(enum rdma_cm_event_type type)
{
    switch ((int)type) { /* newer headers have more of them */
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        return ID_ADDRESS_RESOLVED;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return ID_ROUTE_RESOLVED;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        return ID_CONNECTING;
    case RDMA_CM_EVENT_ESTABLISHED:
        return ID_CONNECTED;
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
        return ID_DISCONNECTED;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
    case RDMA_CM_EVENT_ADDR_CHANGE:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
    }
    return -1;
}

/* --- events --------------------------------------------------------------------------------------------- */

WATCH_EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **ret_event)
{
    struct event_record *account;
    int result;
    FIND(rdmacm_originals[GET_CM_EVENT], rdma_get_cm_event, -1);

    if (watch_thread.inside)
        return original(channel, ret_event);
    result = IN_CM(original(channel, ret_event));
    if (result || !*ret_event)
        return result;
    know((*ret_event)->id, phase_after((*ret_event)->event));
    account = account_of(*ret_event);
    if (account)
        watched_event_read(account, (*ret_event)->event);
    return result;
}

WATCH_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    struct event_record *account = event && !watch_thread.inside ? account_of(event) : NULL;
    FIND(rdmacm_originals[ACK_CM_EVENT], rdma_ack_cm_event, -1);

    if (account)
        watched_events_acked(account, 1,
                             event->event); /* before the destroy that waits for it frees the id */
    return original(event);
}

/* --- ids ------------------------------------------------------------------------------------------------ */

WATCH_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
    FIND(rdmacm_originals[CREATE_EVENT_CHANNEL], rdma_create_event_channel, NULL);

    return IN_CM(original());
}

WATCH_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id, void *context,
                                enum rdma_port_space ps)
{
    int result;
    FIND(rdmacm_originals[CREATE_ID], rdma_create_id, -1);

    if (watch_thread.inside)
        return original(channel, ret_id, context, ps);
    result = IN_CM(original(channel, ret_id, context, ps));
    if (result == 0)
        know(*ret_id, ID_IDLE);
    return result;
}

/* rdma_destroy_id(), rdma_migrate_id(): 0, or -1 with errno. call(argument) is the original. */
static int wait_in(struct rdma_cm_id *id, enum id_call what,
                   int (*call)(struct rdma_cm_id *id, void *argument), void *argument)
{
    struct watched *known = watched_find(id, OBJECT_CM_ID);
    struct blocked_destroy *blocked;
    int result;

    if (!known)
        return call(id, argument);
    refresh(id, -1);
    segment_id(known->number)->waits_in = (uint8_t)what;
    blocked = destroy_begins(known);
    result = IN_CM(call(id, argument));
    if (what == ID_CALL_DESTROY || result)
        destroy_ends(known, blocked, result ? errno : 0);
    else
        destroy_waited(known, blocked);
    return result;
}

static int call_destroy_id(struct rdma_cm_id *id, void *argument)
{
    return ((__typeof__(&rdma_destroy_id))argument)(id);
}

WATCH_EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
    FIND(rdmacm_originals[DESTROY_ID], rdma_destroy_id, -1);

    return watch_thread.inside ? original(id)
                               : wait_in(id, ID_CALL_DESTROY, call_destroy_id, (void *)original);
}

static int call_migrate_id(struct rdma_cm_id *id, void *argument)
{
    return ((__typeof__(&rdma_migrate_id))original_find(&rdmacm_originals[MIGRATE_ID]))(id, argument);
}

WATCH_EXPORT int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
    FIND(rdmacm_originals[MIGRATE_ID], rdma_migrate_id, -1);

    return watch_thread.inside ? original(id, channel)
                               : wait_in(id, ID_CALL_MIGRATE, call_migrate_id, channel);
}

WATCH_EXPORT int rdma_create_ep(struct rdma_cm_id **ret_id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                                struct ibv_qp_init_attr *attr)
{
    int result;
    FIND(rdmacm_originals[CREATE_EP], rdma_create_ep, -1);

    if (watch_thread.inside)
        return original(ret_id, info, pd, attr);
    result = IN_CM(original(ret_id, info, pd, attr));
    if (result)
        return result;
    know(*ret_id, -1);
    if (attr)
        adopt_qp_of(*ret_id, &attr->cap, attr->sq_sig_all);
    return 0;
}

/* Only the object, where it was not destroyed by a call that is watched. */
static void forget_if_known(const void *key, enum object_kind kind, const struct watched *known)
{
    if (known && watched_find(key, kind) == known)
        watched_forget((struct watched *)known);
}

WATCH_EXPORT void rdma_destroy_ep(struct rdma_cm_id *id)
{
    __typeof__(&rdma_destroy_ep) original =
        (__typeof__(&rdma_destroy_ep))original_find(&rdmacm_originals[DESTROY_EP]);
    struct watched *known = watch_thread.inside ? NULL : watched_find(id, OBJECT_CM_ID);
    struct ibv_qp *qp = known ? id->qp : NULL;
    struct watched *known_qp = qp ? watched_find(qp, OBJECT_QP) : NULL;
    struct blocked_destroy *blocked = NULL;

    if (!original)
        return;
    if (known) {
        refresh(id, -1);
        segment_id(known->number)->waits_in = ID_CALL_DESTROY;
        if (!id->event) /* which it acknowledges by itself */
            blocked = destroy_begins(known);
    }
    watch_in_cm++;
    original(id);
    watch_in_cm--;
    forget_if_known(qp, OBJECT_QP, known_qp);
    if (blocked)
        destroy_ends(known, blocked, 0);
    else
        forget_if_known(id, OBJECT_CM_ID, known);
}

/* --- calls after which the id says more ----------------------------------------------------------------- */

#define REFRESHING(which, verb, phase, ...)                                                                  \
    int result;                                                                                              \
    FIND(rdmacm_originals[which], verb, -1)                                                                  \
    if (watch_thread.inside)                                                                                 \
        return original(__VA_ARGS__);                                                                        \
    result = IN_CM(original(__VA_ARGS__));                                                                   \
    refresh(id, result == 0 ? (int)(phase) : -1);                                                            \
    return result

WATCH_EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
    REFRESHING(BIND_ADDR, rdma_bind_addr, ID_BOUND, id, address);
}

WATCH_EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *source,
                                   struct sockaddr *destination, int timeout)
{
    REFRESHING(RESOLVE_ADDR, rdma_resolve_addr, -1, id, source, destination, timeout);
}

WATCH_EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout)
{
    REFRESHING(RESOLVE_ROUTE, rdma_resolve_route, -1, id, timeout);
}

WATCH_EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
    REFRESHING(LISTEN, rdma_listen, ID_LISTENING, id, backlog);
}

WATCH_EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *parameters)
{
    REFRESHING(CONNECT, rdma_connect, ID_CONNECTING, id, parameters);
}

WATCH_EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *parameters)
{
    REFRESHING(ACCEPT, rdma_accept, ID_CONNECTED, id, parameters);
}

WATCH_EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
    REFRESHING(DISCONNECT, rdma_disconnect, ID_DISCONNECTED, id);
}

WATCH_EXPORT int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **ret_id)
{
    int result;
    FIND(rdmacm_originals[GET_REQUEST], rdma_get_request, -1);

    if (watch_thread.inside)
        return original(listen, ret_id);
    result = IN_CM(original(listen, ret_id));
    if (result == 0)
        know(*ret_id, ID_CONNECTING);
    return result;
}

/* --- QPs and devices ------------------------------------------------------------------------------------ */

WATCH_EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    int result;
    FIND(rdmacm_originals[CREATE_QP], rdma_create_qp, -1);

    if (watch_thread.inside)
        return original(id, pd, attr);
    if (id->verbs)
        adopt_context(id->verbs);
    result = IN_CM(original(id, pd, attr));
    if (result == 0)
        adopt_qp_of(id, &attr->cap, attr->sq_sig_all);
    refresh(id, -1);
    return result;
}

WATCH_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
    int result;
    FIND(rdmacm_originals[CREATE_QP_EX], rdma_create_qp_ex, -1);

    if (watch_thread.inside)
        return original(id, attr);
    if (id->verbs)
        adopt_context(id->verbs);
    result = IN_CM(original(id, attr));
    if (result == 0)
        adopt_qp_of(id, &attr->cap, attr->sq_sig_all);
    refresh(id, -1);
    return result;
}

WATCH_EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
    __typeof__(&rdma_destroy_qp) original =
        (__typeof__(&rdma_destroy_qp))original_find(&rdmacm_originals[DESTROY_QP]);
    struct ibv_qp *qp = watch_thread.inside ? NULL : id->qp;
    struct watched *known = qp ? watched_find(qp, OBJECT_QP) : NULL;

    if (!original)
        return;
    watch_in_cm++;
    original(id);
    watch_in_cm--;
    if (!id->qp)
        forget_if_known(qp, OBJECT_QP, known);
}

WATCH_EXPORT struct ibv_context **rdma_get_devices(int *count)
{
    struct ibv_context **devices;
    FIND(rdmacm_originals[GET_DEVICES], rdma_get_devices, NULL);

    if (watch_thread.inside)
        return original(count);
    watch_in_cm++;
    devices = original(count);
    for (struct ibv_context **device = devices; device && *device; device++)
        adopt_context(*device);
    watch_in_cm--;
    return devices;
}

WATCH_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
                                  struct rdma_addrinfo **ret)
{
    FIND(rdmacm_originals[GETADDRINFO], rdma_getaddrinfo, -1);

    return IN_CM(original(node, service, hints, ret));
}
