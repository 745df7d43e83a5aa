/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/cm/agent.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/random_pool.h"
#include "base/sys.h"
#include "engine/cm/agent_events.h"
#include "engine/cm/agent_ids.h"
#include "engine/cm/connection_faults.h"
#include "engine/cm/gsi.h"
#include "engine/cm/id_record.h"
#include "engine/cm/services.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/core/explainer.h"
#include "engine/core/faults.h"
#include "engine/paths/paths.h"
#include "object/device/context.h"
#include "object/device/device.h"
#include "segment/provenance.h"

/* A program may publish the port of rdma_bind_addr() before it calls rdma_listen(), and a peer on the same host may be
 * faster. So a request for a bound service waits for rdma_listen(). LISTEN_WITHIN after the bind, a (repeated) request
 * is rejected. */
#define PREMATURE_MAX 64 /* requests per service */
#define LISTEN_WITHIN (2 * NS_PER_S)

struct premature {
    struct list node;
    struct cm_path from;
    uint8_t mad[MAD_LENGTH];
};

/* Guards the state machine, ids and services. Below the receive locks of lanes; above the locks of timers, names and
 * gsi.c. */
static struct lock cm_lock = LOCK_INIT;
struct cm agent_cm; /* cm_lock */
static bool
    ready; /* `agent_cm` is initialized: it responds to MADs, also in processes without librdmacm.so.1 */
static struct random_pool randomness; /* cm_lock */
static bool started; /* call_start() has succeeded: `agent_cm` has a QPN block for comm ids */
static uint16_t first_block;
const struct cm_agent_owner *agent_owner;
/* Result of port_request() for receive(): the service that does not listen yet; NULL: another result. */
static struct service *too_early_for;

/* --- ports of the state machine; cm_lock held ----------------------------------------------------------- */

static void port_send(struct cm *machine, const struct cm_path *to, const struct cm_id *id,
                      const uint8_t mad[MAD_LENGTH])
{
    if (!id || !agent_id_of(id)->faults.unheard)
        gsi_post(to, mad);
}

void agent_id_leave_backlog(struct cm_agent_id *agent_id)
{
    if (!agent_id->service)
        return;
    agent_id->service->waiting--;
    agent_id->service = NULL;
    list_remove(&agent_id->request);
}

static int port_request(struct cm *machine, const struct cm_request *request, struct cm_id **ret_id)
{
    struct service *service;
    struct cm_agent_id *agent_id;
    uint32_t ifindex;
    bool from_here = device_table_is_local(&host_devices, request->path->remote_gid, &ifindex);
    const struct inject_rule *rule;
    int error;

    service = services_find(request->service_id, request->path->local_gid, from_here);
    if (!service)
        return -ENOENT;
    if (!service->listener) {
        if (sys_now() - service->since > LISTEN_WITHIN)
            return -ENOENT;
        too_early_for = service;
        return -EAGAIN;
    }
    if (service->waiting >= service->backlog)
        return -EAGAIN;
    rule = request->datagram ? NULL : faults_meet_cm(INJECT_REJECTED, INJECT_PASSIVE);
    if (rule)
        return (int)rule->value;
    agent_id = agent_id_new();
    if (!agent_id)
        return -EAGAIN;
    error = agent_owner->request(service->listener, agent_id, request, &agent_id->context);
    if (error) {
        free(agent_id);
        return error;
    }
    agent_id->unanswered = true;
    service->waiting++;
    agent_id->service = service;
    list_push_back(&service->requests, &agent_id->request);
    *ret_id = &agent_id->id;
    return 0;
}

static void port_event(struct cm *machine, struct cm_id *id, const struct cm_event *event)
{
    struct cm_agent_id *agent_id = agent_id_of(id);

    if (event->type == CM_EVENT_ESTABLISHED)
        connection_faults_established(&agent_id->faults);
    if (!agent_id->closed && !agent_id->unanswered)
        agent_owner->event(agent_id->context, event);
}

static void port_released(struct cm *machine, struct cm_id *id)
{
    free(agent_id_of(id));
}

static uint64_t port_random(struct cm *machine)
{
    return random_pool_take(&randomness);
}

static const struct cm_ports machine_ports = {
    .send = port_send,
    .request = port_request,
    .event = port_event,
    .released = port_released,
    .random = port_random,
};

/* --- one thread at a time ------------------------------------------------------------------------------- */

static int cancellation_before;

/* Takes cm_lock. The thread may be the program's, and must not be cancelled while it holds the lock. */
void agent_enter(void)
{
    int before;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    lock_acquire(&cm_lock);
    cancellation_before = before;
}

/* Releases cm_lock, then sends the MADs that the state machine has queued: sending may call cm_agent_receive(). */
void agent_leave(void)
{
    int before = cancellation_before;

    if (ready)
        timers_set_late(LATE_CM_AGENT, min_of(cm_next(&agent_cm), connection_faults_next()));
    lock_release(&cm_lock);
    gsi_flush();
    pthread_setcancelstate(before, NULL);
}

void agent_look(void)
{
    lock_acquire(&cm_lock);
}

void agent_looked(void)
{
    lock_release(&cm_lock);
}

static void make_ready(void)
{
    if (!ready)
        cm_init(&agent_cm, &machine_ports);
    ready = true;
}

/* The state machine has no free comm id (-ENOSPC): gives it another QPN block. */
int agent_grant_block(void)
{
    uint32_t block;
    int error = local_block_take(&block);

    return error ? error : cm_grant_block(&agent_cm, (uint16_t)block);
}

/* Keeps a request that came before its service listens. Other results of cm_receive() are in the state machine's
 * counters. cm_lock held. */
static void receive(const struct cm_path *from, const uint8_t mad[MAD_LENGTH])
{
    struct premature *premature;

    too_early_for = NULL;
    if (cm_receive(&agent_cm, from, mad, MAD_LENGTH, sys_now()) == -ENOSPC && !agent_grant_block())
        cm_receive(&agent_cm, from, mad, MAD_LENGTH, sys_now());
    if (!too_early_for || too_early_for->premature_count == PREMATURE_MAX)
        return;
    premature = malloc(sizeof(*premature));
    if (!premature)
        return;
    premature->from = *from;
    memcpy(premature->mad, mad, MAD_LENGTH);
    list_push_back(&too_early_for->premature, &premature->node);
    too_early_for->premature_count++;
}

/* Requests that waited for rdma_listen(): the service listens now, or is released. cm_lock held. */
static void receive_premature(struct list *messages)
{
    struct list *node;

    while ((node = list_pop_front(messages))) {
        struct premature *premature = list_entry(node, struct premature, node);

        receive(&premature->from, premature->mad);
        free(premature);
    }
}

static void take_premature(struct service *service, struct list *ret_messages)
{
    struct list *node;

    list_init(ret_messages);
    while ((node = list_pop_front(&service->premature)))
        list_push_back(ret_messages, node);
    service->premature_count = 0;
}

void cm_agent_receive(const struct cm_path *from, const uint8_t mad[MAD_LENGTH])
{
    struct cm_path path = *from;
    uint8_t guid[8] = {0};
    uint64_t number = 0;
    uint32_t ifindex;

    if (device_table_is_local(&host_devices, path.local_gid, &ifindex))
        device_table_guid(&host_devices, ifindex, guid);
    for (int i = 0; i < 8; i++)
        number = number << 8 | guid[i];
    path.local_guid = number;
    agent_enter();
    make_ready();
    receive(&path, mad);
    agent_leave();
}

void cm_agent_due(void)
{
    agent_enter();
    if (ready) {
        connection_faults_due(&agent_cm, sys_now());
        cm_run(&agent_cm, sys_now());
    }
    agent_leave();
}

void cm_agent_peer_gone(uint64_t serial)
{
    agent_enter();
    if (ready)
        cm_peer_gone(&agent_cm, serial, sys_now());
    agent_leave();
}

void cm_agent_disconnect_qp(uint32_t qpn)
{
    agent_enter();
    connection_faults_disconnect(&agent_cm, qpn, sys_now());
    agent_leave();
}

void cm_agent_after_fork_in_child(void)
{
    lock_init(&cm_lock);
    connection_faults_after_fork_in_child();
    ready = started = false; /* call_start() initializes everything again */
    services_after_fork_in_child();
}

/* --- calls of librdmacm.so.1: start, services, ports ------------------------------------------------------ */

/* Allocates a QP number: its block makes comm ids, and stays with this process as long as the number is allocated. */
static int start_locked(void)
{
    uint32_t qpn;
    int error = local_qpn_allocate(&qpn);

    if (error)
        return error;
    make_ready();
    first_block = (uint16_t)(qpn / LOCAL_BLOCK_QPNS);
    return cm_grant_block(&agent_cm, first_block);
}

static bool is_loopback(const uint8_t gid[16])
{
    static const uint8_t loopback[16] = {[15] = 1};

    return gid_is_ipv4_mapped(gid) ? gid[12] == 127 : memcmp(gid, loopback, sizeof(loopback)) == 0;
}

/* Can a request for the service come over the network? */
static bool is_for_network(const struct service_address *address)
{
    return network_is_forced() || address->any || !is_loopback(address->gid);
}

/* Has responses from the network forwarded to this process, if the destination is on another host. */
void agent_open_network_to(const uint8_t gid[16])
{
    uint32_t ifindex;

    if (network_is_forced() || !device_table_is_local(&host_devices, gid, &ifindex))
        network_open_for_mads(first_block);
}

static int call_start(const struct cm_agent_owner *new_owner)
{
    int error = engine_start();

    if (!error)
        error = engine_refresh_devices();
    if (!error)
        error = helper_start();
    if (error)
        return error;
    agent_enter();
    agent_owner = new_owner;
    if (!started) {
        error = start_locked();
        started = !error;
    }
    agent_leave();
    return error;
}

static uint32_t call_generation(void)
{
    return process_generation();
}

static int call_service_reserve(const struct service_address *address, bool shared,
                                struct service **ret_service)
{
    int error;

    agent_enter();
    error = services_reserve(address, shared, ret_service);
    agent_leave();
    return error;
}

static void call_service_release(struct service *service)
{
    struct list premature;

    if (!service)
        return;
    agent_enter();
    list_for_each_safe (node, following, &service->requests)
        agent_id_leave_backlog(list_entry(node, struct cm_agent_id, request));
    take_premature(service, &premature);
    services_release(service);
    receive_premature(&premature);
    agent_leave();
}

static int call_service_listen(struct service *service, void *listener, unsigned backlog)
{
    struct list premature;
    bool for_network;
    int error;

    agent_enter();
    for_network = is_for_network(&service->address);
    error = services_listen(service, listener, backlog);
    if (!error) {
        take_premature(service, &premature);
        receive_premature(&premature);
    }
    agent_leave();
    if (!error && for_network)
        network_open_for_mads(first_block);
    return error;
}

static void call_request_taken(struct cm_agent_id *agent_id)
{
    agent_enter();
    agent_id_leave_backlog(agent_id);
    agent_leave();
}

static void call_keep_open(struct ibv_context *verbs)
{
    context_keep(context_of(verbs));
}

static void call_keep_pd(struct ibv_pd *pd)
{
    pd_of(pd)->record->kept = 1;
}

static uint16_t call_port_take(void)
{
    uint16_t port;

    agent_enter();
    port = services_port_take();
    agent_leave();
    return port;
}

static void call_port_return(uint16_t port)
{
    agent_enter();
    services_port_return(port);
    agent_leave();
}

static uint16_t call_port_propose(void)
{
    uint16_t port;

    agent_enter();
    port = services_port_propose();
    agent_leave();
    return port;
}

/* --- the table ------------------------------------------------------------------------------------------ */

const struct cm_agent_calls cm_agent_calls = {
    .start = call_start,
    .generation = call_generation,
    .service_reserve = call_service_reserve,
    .service_release = call_service_release,
    .service_listen = call_service_listen,
    .request_taken = call_request_taken,
    .port_take = call_port_take,
    .port_return = call_port_return,
    .port_propose = call_port_propose,
    .keep_open = call_keep_open,
    .keep_pd = call_keep_pd,
    .id_publish = id_publish,
    .id_withdraw = id_record_withdraw,
    .id_event_read = id_record_event_read,
    .id_event_acknowledged = id_record_event_acknowledged,
    .id_waits = id_record_waits,
    .id_still_waits = id_record_still_waits,
    .id_waited = id_record_waited,
    .destroyed = id_record_destroyed,
    .misused = id_record_misused,
    .refused = explainer_refused,
    .announce_multicast = engine_announce_multicast,
    .create = agent_id_create,
    .close = agent_id_close,
    .connect = agent_id_connect,
    .accept = agent_id_accept,
    .establish = agent_id_establish,
    .established = agent_id_established,
    .reject = agent_id_reject,
    .disconnect = agent_id_disconnect,
    .resolve = agent_id_resolve,
    .resolve_accept = agent_id_resolve_accept,
    .resolve_reject = agent_id_resolve_reject,
    .qp_attributes = agent_id_qp_attributes,
    .injected = agent_id_injected,
};
