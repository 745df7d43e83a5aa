/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What agent.c and agent_ids.c share: the state machine, its lock, and its ids. */
#ifndef ENGINE_CM_AGENT_IDS_H
#define ENGINE_CM_AGENT_IDS_H

#include "base/list.h"
#include "base/types.h"
#include "cm/cm.h"
#include "engine/cm/agent.h"
#include "engine/cm/connection_faults.h"
#include "engine/cm/services.h"

struct cm_agent_id {
    struct cm_id id;
    void *context; /* of the upcalls */
    bool closed;
    bool unanswered;         /* the id of a request that is not accepted yet: no events to the owner */
    struct service *service; /* in whose backlog the request counts; NULL: none */
    struct list request;     /* in service->requests */
    struct connection_faults faults;
};

static inline struct cm_agent_id *agent_id_of(const struct cm_id *id)
{
    return container_of(id, struct cm_agent_id, id);
}

extern struct cm agent_cm;                       /* the state machine */
extern const struct cm_agent_owner *agent_owner; /* NULL before cm_agent_calls.start() */

/* Takes cm_lock, which guards the state machine, ids and services. */
void agent_enter(void);
void agent_leave(void);
/* The same for who only looks: no MAD and no deadline comes of it, and no call in between is a cancellation point. */
void agent_look(void);
void agent_looked(void);
/* The state machine has no free comm id (-ENOSPC): gives it another QPN block. cm_lock held. */
int agent_grant_block(void);
/* Has responses from the network forwarded to this process, if the destination is on another host. */
void agent_open_network_to(const uint8_t gid[16]);
/* The request that made the id is no longer counted in its service. cm_lock held. */
void agent_id_leave_backlog(struct cm_agent_id *agent_id);

/* NULL: out of memory. */
struct cm_agent_id *agent_id_new(void);

/* cm_agent_calls. */
struct cm_agent_id *agent_id_create(void *context);
void agent_id_close(struct cm_agent_id *agent_id);
int agent_id_connect(struct cm_agent_id *agent_id, const struct cm_connect *connect);
int agent_id_accept(struct cm_agent_id *agent_id, const struct cm_accept *accept);
int agent_id_establish(struct cm_agent_id *agent_id);
int agent_id_established(struct cm_agent_id *agent_id);
int agent_id_reject(struct cm_agent_id *agent_id, enum cm_reason reason, const void *private_data,
                    size_t private_length);
int agent_id_disconnect(struct cm_agent_id *agent_id);
int agent_id_resolve(struct cm_agent_id *agent_id, const struct cm_resolve *resolve);
int agent_id_resolve_accept(struct cm_agent_id *agent_id, uint32_t qpn, uint32_t qkey,
                            const void *private_data, size_t private_length);
int agent_id_resolve_reject(struct cm_agent_id *agent_id, enum cm_sidr_status status,
                            const void *private_data, size_t private_length);
int agent_id_qp_attributes(struct cm_agent_id *agent_id, struct cm_qp_attributes *ret_attributes);
int agent_id_injected(bool route);

#endif
