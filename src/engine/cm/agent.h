/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Communication management of this process, for librdmacm.so.1: services that it holds on this host, and ends
 * of connections. The CM's machine (cm/cm.h) says what happens; the engine gives it a clock, a lock and a way
 * for its MADs.
 *
 * librdmacm.so.1 is another object in the same process, and the adapter is in libibverbs.so.1 only. So it
 * gets this table through one function of a private symbol node: abi/libibverbs.map, SOFTHCA_PRIVATE_n.
 * Whoever changes anything on this page, or in cm/cm.h in front of "the machine's own", raises n. */
#ifndef ENGINE_CM_AGENT_H
#define ENGINE_CM_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include "cm/cm.h"
#include "published/record.h"

struct ibv_context;
struct ibv_pd;
struct id_record;   /* segment/segment.h */
struct cm_agent_id; /* one end of a connection, or of the resolution of a datagram service */
struct service;     /* a service id at an address, held by this process */

/* What the owner of ends and services is told. Called with the lock of communication management held, from
 * any thread: they put things aside, and call nothing of the table but what is for explanations. */
struct cm_agent_owner {
    /* Somebody asks the listener (service_listen()) for a connection or a datagram service. 0, with what the
     * owner calls the new end in *ret_end. Else as cm_ports.request. */
    int (*request)(void *listener, struct cm_agent_id *agent_id, const struct cm_request *request,
                   void **ret_end);
    /* Not of an end that a request made before accept(): its program has no context for it yet. If the peer
     * gives up meanwhile, accept() fails. */
    void (*event)(void *end, const struct cm_event *event);
};

enum service_any { SERVICE_ANY_IPV4 = 1, SERVICE_ANY_IPV6 = 2 };

struct service_address {
    uint64_t service_id;
    uint8_t any;     /* enum service_any: all addresses of these families; 0: gid */
    uint8_t gid[16]; /* IPv4: mapped */
    /* enum service_any: requests of this host to any address of these families come here, too, unless
     * somebody holds that address, or all of them. The first who asks for it gets it. */
    uint8_t host;
};

struct cm_agent_calls {
    /* Before anything else, again after a fork in the child: 0 or -errno. */
    int (*start)(const struct cm_agent_owner *owner);
    /* Forks between the first process and this one: what is inherited is dead. */
    uint32_t (*generation)(void);

    /* --- services: host-wide, exclusive; given back at death -------------------------------------- */

    /* -EADDRINUSE, -EMFILE... shared: any number of holders, in whatever processes, who say the same and do
     * not listen. */
    int (*service_hold)(const struct service_address *address, bool shared, struct service **ret_service);
    /* Stops listening. Afterwards no request() for it is called or running. NULL is allowed. */
    void (*service_release)(struct service *service);
    /* -EADDRINUSE: others share it. At most `backlog` requests wait for request_taken(). Again: another
     * backlog. */
    int (*service_listen)(struct service *service, void *listener, unsigned backlog);
    /* A request was handed to the program, or dropped with the listener. */
    void (*request_taken)(struct cm_agent_id *agent_id);
    /* A port that no other process gives out in this way. For connections that nobody is to connect back to:
     * holding a service there is still everybody's right. 0 when there is none left. */
    uint16_t (*port_take)(void);
    void (*port_return)(uint16_t port);
    /* A port of the ephemeral range, of which nothing is known. */
    uint16_t (*port_propose)(void);

    /* The context stays open to the end of the process, the PD as long as somebody has an id: no leaks of the
     * program's. */
    void (*keep_open)(struct ibv_context *verbs);
    void (*keep_pd)(struct ibv_pd *pd);
    /* Before datagrams are sent to a group that no QP is attached to: so that the first finds all members.
     * May sleep, bounded. */
    void (*announce_multicast)(void);

    /* --- for explanations; the owner writes the record, these do the rest. NULL records are allowed -- */

    struct id_record *(*id_publish)(void);
    void (*id_withdraw)(struct id_record *record);
    /* An event was handed out; it was acknowledged. type: enum rdma_cm_event_type. */
    void (*id_event_read)(struct id_record *record, uint32_t type);
    void (*id_event_acknowledged)(struct id_record *record);
    /* The caller is going to wait for acknowledgements; has waited for a second; does not wait any more, and
     * whether that was told. Without locks. */
    void (*id_waits)(struct id_record *record, enum id_call call);
    void (*id_still_waits)(struct id_record *record);
    void (*id_waited)(struct id_record *record, bool told);

    /* --- ends; errors as in cm/cm.h --------------------------------------------------------------- */

    struct cm_agent_id *(*create)(void *end);
    /* Afterwards event() is not called for it and not running. NULL is allowed. */
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
};

extern const struct cm_agent_calls cm_agent_calls;

#endif
