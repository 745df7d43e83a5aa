/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The calls of librdmacm.so.1 for its ids: each is one event of the state machine (cm/cm.h). */
#include "engine/cm/agent_ids.h"

#include <stdlib.h>

#include "base/sys.h"
#include "engine/core/faults.h"

struct cm_agent_id *agent_id_new(void)
{
    struct cm_agent_id *agent_id = calloc(1, sizeof(*agent_id));

    if (!agent_id)
        return NULL;
    list_init(&agent_id->request);
    connection_faults_init(&agent_id->faults, &agent_id->id);
    return agent_id;
}

struct cm_agent_id *agent_id_create(void *context)
{
    struct cm_agent_id *agent_id = agent_id_new();

    if (!agent_id)
        return NULL;
    agent_id->context = context;
    cm_id_init(&agent_id->id);
    return agent_id;
}

void agent_id_close(struct cm_agent_id *agent_id)
{
    if (!agent_id)
        return;
    agent_enter();
    agent_id_leave_backlog(agent_id);
    connection_faults_leave(&agent_id->faults);
    agent_id->closed = true;
    cm_close(&agent_cm, &agent_id->id, sys_now());
    agent_leave();
}

/* As a peer's CM rejects a request, of which its program knows nothing. cm_lock held. */
static bool is_rejected(const struct cm_agent_id *agent_id)
{
    const struct inject_rule *rule = faults_meet_cm(INJECT_REJECTED, INJECT_ACTIVE);

    if (!rule)
        return false;
    agent_owner->event(agent_id->context,
                       &(struct cm_event){.type = CM_EVENT_REJECTED, .status = (int)rule->value});
    return true;
}

int agent_id_connect(struct cm_agent_id *agent_id, const struct cm_connect *connect)
{
    int error;

    agent_open_network_to(connect->path.remote_gid);
    agent_enter();
    if (is_rejected(agent_id)) {
        agent_leave();
        return 0;
    }
    agent_id->faults.unheard = faults_meet_cm(INJECT_UNREACHABLE, INJECT_ACTIVE) != NULL;
    connection_faults_begin(&agent_id->faults, connect->qpn);
    error = cm_connect(&agent_cm, &agent_id->id, connect, sys_now());
    if (error == -ENOSPC && !agent_grant_block())
        error = cm_connect(&agent_cm, &agent_id->id, connect, sys_now());
    agent_leave();
    return error;
}

int agent_id_accept(struct cm_agent_id *agent_id, const struct cm_accept *accept)
{
    int error;

    agent_enter();
    connection_faults_begin(&agent_id->faults, accept->qpn);
    error = cm_accept(&agent_cm, &agent_id->id, accept, sys_now());
    if (error == -ENOSPC && !agent_grant_block())
        error = cm_accept(&agent_cm, &agent_id->id, accept, sys_now());
    if (!error)
        agent_id->unanswered = false; /* before the lock is released: the next event is not lost */
    agent_leave();
    return error;
}

int agent_id_establish(struct cm_agent_id *agent_id)
{
    int error;

    agent_enter();
    error = cm_establish(&agent_cm, &agent_id->id, sys_now());
    if (!error)
        connection_faults_established(&agent_id->faults);
    agent_leave();
    return error;
}

int agent_id_established(struct cm_agent_id *agent_id)
{
    int error;

    agent_enter();
    error = cm_communication_established(&agent_cm, &agent_id->id, sys_now());
    agent_leave();
    return error;
}

int agent_id_reject(struct cm_agent_id *agent_id, enum cm_reason reason, const void *private_data,
                    size_t private_length)
{
    int error;

    agent_enter();
    error = cm_reject(&agent_cm, &agent_id->id, reason, private_data, private_length, sys_now());
    agent_leave();
    return error;
}

int agent_id_disconnect(struct cm_agent_id *agent_id)
{
    int error;

    agent_enter();
    error = cm_disconnect(&agent_cm, &agent_id->id, sys_now());
    agent_leave();
    return error;
}

int agent_id_resolve(struct cm_agent_id *agent_id, const struct cm_resolve *resolve)
{
    int error;

    agent_open_network_to(resolve->path.remote_gid);
    agent_enter();
    agent_id->faults.unheard = faults_meet_cm(INJECT_UNREACHABLE, INJECT_ACTIVE) != NULL;
    error = cm_resolve(&agent_cm, &agent_id->id, resolve, sys_now());
    if (error == -ENOSPC && !agent_grant_block())
        error = cm_resolve(&agent_cm, &agent_id->id, resolve, sys_now());
    agent_leave();
    return error;
}

int agent_id_resolve_accept(struct cm_agent_id *agent_id, uint32_t qpn, uint32_t qkey,
                            const void *private_data, size_t private_length)
{
    int error;

    agent_enter();
    error = cm_resolve_accept(&agent_cm, &agent_id->id, qpn, qkey, private_data, private_length, sys_now());
    agent_leave();
    return error;
}

int agent_id_resolve_reject(struct cm_agent_id *agent_id, enum cm_sidr_status status,
                            const void *private_data, size_t private_length)
{
    int error;

    agent_enter();
    error = cm_resolve_reject(&agent_cm, &agent_id->id, status, private_data, private_length, sys_now());
    agent_leave();
    return error;
}

int agent_id_qp_attributes(struct cm_agent_id *agent_id, struct cm_qp_attributes *ret_attributes)
{
    int error;

    agent_look();
    error = cm_qp_attributes(&agent_id->id, ret_attributes);
    agent_looked();
    return error;
}

int agent_id_injected(bool route)
{
    const struct inject_rule *rule =
        faults_meet_cm(route ? INJECT_ROUTE_ERROR : INJECT_ADDR_ERROR, INJECT_ACTIVE);

    return rule ? -rule->error : 0;
}
