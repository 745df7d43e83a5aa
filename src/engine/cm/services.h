/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Services of this process: a service id (a port of a port space, IBA A11) at an address, or at all of a
 * family. What one process holds no other process of the host can hold: each is a name that the kernel
 * arbitrates (local/local.h),
 *
 *      cm/SERVICE_ID/ADDRESS        of a service at one address; ADDRESS is the GID, "any4" or "any6", or
 *                                   "host4" or "host6": of requests of this host that nobody else takes
 *      cm/SERVICE_ID/ADDRESS/shared  of those who share it and do not listen
 *      cm/ports/N                   of the Nth 32 ephemeral ports
 *
 * and the same name leads a request to its process. All of it under the lock of communication management.
 */
#ifndef ENGINE_CM_SERVICES_H
#define ENGINE_CM_SERVICES_H

#include "base/list.h"
#include "engine/cm/agent.h"
#include "local/local.h"

struct service {
    struct list node;
    struct service_address address;
    bool shared;
    struct local_name *names[2]; /* one, or one per family */
    /* The "host" names that it was first to take, IPv4 and IPv6; NULL: others have them, or it wants none. */
    struct local_name *host_names[2];
    void *listener; /* NULL: does not listen */
    ns_t since;     /* when it was taken */
    unsigned backlog, waiting;
    struct list requests;  /* agent_id.request: those that wait */
    struct list premature; /* agent.c: messages that came before it listened */
    unsigned premature_count;
};

int services_hold(const struct service_address *address, bool shared, struct service **ret_service);
void services_release(struct service *service);
int services_listen(struct service *service, void *listener, unsigned backlog);
/* What a request to this address is for, listening or not; NULL: there is none. from_here: its sender is on
 * this host. */
struct service *services_find(uint64_t service_id, const uint8_t gid[16], bool from_here);
/* Names that may lead to such a listener, wherever it is; the first that is held does. Returns how many. */
#define SERVICE_NAMES 3
unsigned services_names(uint64_t service_id, const uint8_t gid[16], bool from_here,
                        char ret_names[SERVICE_NAMES][LOCAL_NAME_MAX + 1]);

uint16_t services_port_take(void);
void services_port_return(uint16_t port);
uint16_t services_port_propose(void);

void services_after_fork_in_child(void);

#endif
