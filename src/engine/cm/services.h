/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Services of this process: a service id (a port of a port space, IBA A11) at an address, or at all addresses of a
 * family. A service is a name on the host, which the kernel lets only one process hold (local/local.h); requests find
 * their process by the same name.
 *
 *      cm/SERVICE_ID/ADDRESS         the service at ADDRESS: a GID; "any4", "any6": all addresses of the family;
 *                                    "host4", "host6": requests of this host that no other name takes
 *      cm/SERVICE_ID/ADDRESS/shared  the service is shared (bound, not listening) by any number of processes
 *      cm/ports/N                    the Nth set of 32 ephemeral ports
 *
 * cm_lock guards everything here. */
#ifndef ENGINE_CM_SERVICES_H
#define ENGINE_CM_SERVICES_H

#include "base/list.h"
#include "engine/cm/agent.h"
#include "local/local.h"

struct service {
    struct list node;
    struct service_address address;
    bool shared;
    struct local_name *names[2]; /* of the address, or one per family */
    /* "host4" and "host6"; NULL: another process holds the name, or the service does not want it. */
    struct local_name *host_names[2];
    void *listener;            /* NULL: does not listen */
    ns_t since;                /* time of services_reserve() */
    unsigned backlog, waiting; /* limit and number of requests that the program has not taken */
    struct list requests;      /* cm_agent_id.request: those that are counted in `waiting` */
    struct list premature;     /* agent.c: requests that came before the service listened */
    unsigned premature_count;
};

int services_reserve(const struct service_address *address, bool shared, struct service **ret_service);
void services_release(struct service *service);
int services_listen(struct service *service, void *listener, unsigned backlog);
/* The service that a request to this address is for, listening or not. from_here: the sender is on this host. */
struct service *services_find(uint64_t service_id, const uint8_t gid[16], bool from_here);
/* Names under which such a service may be held by any process, in the order of preference. Returns their number. */
#define SERVICE_NAMES 3
unsigned services_names(uint64_t service_id, const uint8_t gid[16], bool from_here,
                        char ret_names[SERVICE_NAMES][LOCAL_NAME_MAX + 1]);

uint16_t services_port_take(void);
void services_port_return(uint16_t port);
uint16_t services_port_propose(void);

void services_after_fork_in_child(void);

#endif
