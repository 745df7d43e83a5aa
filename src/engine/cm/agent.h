/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CM agent of this process, for librdmacm.so.1: the services that the process holds on this host, and its CM ids. The
 * state machine (cm/cm.h) has the protocol; the agent adds clock, lock, timers and the transport of MADs (gsi.h).
 *
 * The adapter is in libibverbs.so.1 only. librdmacm.so.1, another shared object of the same process, gets the table
 * cm_agent_calls through a function with a private symbol version, SOFTHCA_PRIVATE_n (abi/libibverbs.map). n has to be
 * raised with every change to a declaration in this file, or in cm/cm.h before the section "storage". */
#ifndef ENGINE_CM_AGENT_H
#define ENGINE_CM_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include "cm/cm.h"
#include "published/record.h"

struct ibv_context;
struct ibv_pd;
struct id_record;   /* segment/segment.h */
struct refusal;     /* base/refusal.h */
struct cm_agent_id; /* local side of a connection, or of the resolution of a datagram service */
struct service;     /* a service id at an address, held by this process */

/* Upcalls to librdmacm.so.1. Called with cm_lock held, from any thread: they only queue, and call nothing of
 * cm_agent_calls but the id_ calls. */
struct cm_agent_owner {
    /* A REQ or SIDR_REQ for the listener (service_listen()). 0: *ret_context is passed to event() for this id. Else as
     * cm_ports.request. */
    int (*request)(void *listener, struct cm_agent_id *agent_id, const struct cm_request *request,
                   void **ret_context);
    /* Not called for an id of request() before accept(), because the program has no context for it yet. If the peer
     * gives up before, accept() fails. */
    void (*event)(void *context, const struct cm_event *event);
};

enum service_any { SERVICE_ANY_IPV4 = 1, SERVICE_ANY_IPV6 = 2 };

struct service_address {
    uint64_t service_id;
    uint8_t any;     /* enum service_any: all addresses of these families; 0: only gid */
    uint8_t gid[16]; /* an IPv4 address is IPv4-mapped */
    /* enum service_any: the service also gets requests from this host to any address of these families for which no
     * process holds the service. Only the first service of the host that wants this gets it. */
    uint8_t host;
};

struct cm_agent_calls {
    /* To be called before any other call, and again in the child after a fork. 0 or -errno. */
    int (*start)(const struct cm_agent_owner *owner);
    /* Number of forks between the first process and this one: objects of another generation belong to a parent. */
    uint32_t (*generation)(void);

    /* --- services: exclusive on the host; released by the kernel when the process dies ------------- */

    /* 0, -EADDRINUSE, -EMFILE... shared: any number of holders in any processes, none of which listens. */
    int (*service_reserve)(const struct service_address *address, bool shared, struct service **ret_service);
    /* Stops listening. No request() for the service runs or follows. NULL is allowed. */
    void (*service_release)(struct service *service);
    /* -EADDRINUSE: the service has other holders. Further requests are dropped while `backlog` of them wait for
     * request_taken(). A second call changes the backlog. */
    int (*service_listen)(struct service *service, void *listener, unsigned backlog);
    /* The request of this id was passed to the program, or dropped with the listener: it leaves the backlog. */
    void (*request_taken)(struct cm_agent_id *agent_id);
    /* Takes an ephemeral port for the local address of an outgoing connection. No other process of the host gets it by
     * this call, but any may hold a service there. 0: no port is free. */
    uint16_t (*port_take)(void);
    void (*port_return)(uint16_t port);
    /* A random port of the ephemeral range, which may be in use. */
    uint16_t (*port_propose)(void);

    /* Marks objects that librdmacm.so.1 keeps itself, so that they are not reported as leaks of the program: the
     * context stays open until the process ends, the PD as long as an id uses it. */
    void (*keep_open)(struct ibv_context *verbs);
    void (*keep_pd)(struct ibv_pd *pd);
    /* Collects the members of multicast groups before the first datagram to a group without an attached QP is sent, so
     * that the datagram reaches all of them. May sleep for a bounded time. */
    void (*announce_multicast)(void);

    /* --- published records of ids, for explanations; librdmacm.so.1 fills them. NULL is allowed ----- */

    struct id_record *(*id_publish)(void);
    void (*id_withdraw)(struct id_record *record);
    /* The program has got an event of the id; has acknowledged one. type: enum rdma_cm_event_type. */
    void (*id_event_read)(struct id_record *record, uint32_t type);
    void (*id_event_acknowledged)(struct id_record *record, uint32_t type);
    /* A call blocks until the program acknowledges events: it begins to wait; has waited for a second, which is
     * explained; has ended waiting, told: after it was explained. Called without locks. */
    void (*id_waits)(struct id_record *record, enum id_call call);
    void (*id_still_waits)(struct id_record *record);
    void (*id_waited)(struct id_record *record, bool told);
    /* The program destroys an id, or an event channel: record NULL, and its descriptor. */
    void (*destroyed)(struct destroy_note *ret_note, const struct id_record *record, int fd);
    /* A call got an id, or an event channel, that is destroyed, or an id whose channel is: note says who did that.
     * error: what the call returns, 0 or -errno. */
    void (*misused)(enum misuse_form form, const char *call, const char *kind, uint32_t number, int error,
                    const struct destroy_note *note);

    /* A call was refused. */
    void (*refused)(const char *call, const struct refusal *refusal);

    /* --- ids; errors as in cm/cm.h ---------------------------------------------------------------- */

    struct cm_agent_id *(*create)(void *context);
    /* No event() for the id runs or follows. NULL is allowed. */
    void (*close)(struct cm_agent_id *agent_id);
    int (*connect)(struct cm_agent_id *agent_id, const struct cm_connect *connect);
    int (*accept)(struct cm_agent_id *agent_id, const struct cm_accept *accept);
    int (*establish)(struct cm_agent_id *agent_id);
    int (*established)(struct cm_agent_id *agent_id);
    int (*reject)(struct cm_agent_id *agent_id, enum cm_reason reason, const void *private_data,
                  size_t private_length);
    int (*disconnect)(struct cm_agent_id *agent_id);
    int (*resolve)(struct cm_agent_id *agent_id, const struct cm_resolve *resolve);
    int (*resolve_accept)(struct cm_agent_id *agent_id, uint32_t qpn, uint32_t qkey, const void *private_data,
                          size_t private_length);
    int (*resolve_reject)(struct cm_agent_id *agent_id, enum cm_sidr_status status, const void *private_data,
                          size_t private_length);
    int (*qp_attributes)(struct cm_agent_id *agent_id, struct cm_qp_attributes *ret_attributes);

    /* An injected fault: the negative errno with which the resolution of an address, or of a route, is to fail; 0:
     * none. */
    int (*injected)(bool route);
};

extern const struct cm_agent_calls cm_agent_calls;

#endif
