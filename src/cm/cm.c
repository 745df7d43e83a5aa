/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "cm/cm.h"

#include <errno.h>

#include "base/log.h"
#include "cm/machine.h"

/* Comm ids per block that stay unused, so that a number is not reused while its former peer may still send to it. */
#define UNUSED_PER_BLOCK 1024u
#define BLOCK_SIZE       65536u

static const char *const state_names[] = {
    [CM_STATE_IDLE] = "idle",
    [CM_STATE_REQ_SENT] = "REQ sent",
    [CM_STATE_REQ_RCVD] = "REQ received",
    [CM_STATE_MRA_REQ_SENT] = "MRA(REQ) sent",
    [CM_STATE_MRA_REQ_RCVD] = "MRA(REQ) received",
    [CM_STATE_REP_SENT] = "REP sent",
    [CM_STATE_REP_RCVD] = "REP received",
    [CM_STATE_MRA_REP_SENT] = "MRA(REP) sent",
    [CM_STATE_MRA_REP_RCVD] = "MRA(REP) received",
    [CM_STATE_ESTABLISHED] = "established",
    [CM_STATE_DREQ_SENT] = "DREQ sent",
    [CM_STATE_TIMEWAIT] = "timewait",
    [CM_STATE_SIDR_REQ_SENT] = "SIDR_REQ sent",
    [CM_STATE_SIDR_REQ_RCVD] = "SIDR_REQ received",
    [CM_STATE_SIDR_REP_SENT] = "SIDR_REP sent",
};
_Static_assert(array_size(state_names) == CM_STATES, "a name for each");

const char *cm_state_name(enum cm_state state)
{
    return (unsigned)state < CM_STATES ? state_names[state] : "?";
}

void cm_init(struct cm *cm, const struct cm_ports *ports)
{
    memset(cm, 0, sizeof(*cm));
    cm->ports = ports;
    cm->hash_key[0] = ports->random(cm);
    cm->hash_key[1] = ports->random(cm);
}

/* --- comm ids --------------------------------------------------------------------------------------- */

int cm_grant_block(struct cm *cm, uint16_t block)
{
    for (uint32_t i = 0; i < cm->block_count; i++)
        if (cm->blocks[i].number == block)
            return -EEXIST;
    if (cm->block_count == CM_BLOCKS)
        return -ENOSPC;
    /* A random start: a dead process may have used the same block from its own random start. */
    cm->blocks[cm->block_count++] =
        (struct cm_block){.number = block, .next = (uint16_t)cm->ports->random(cm)};
    return 0;
}

int allocate_comm_id(struct cm *cm, uint32_t *ret_comm_id)
{
    for (uint32_t i = 0; i < cm->block_count; i++) {
        struct cm_block *block = &cm->blocks[(cm->next_block + i) % cm->block_count];
        uint32_t comm_id;

        if (block->used >= BLOCK_SIZE - UNUSED_PER_BLOCK)
            continue;
        /* Comm id 0 means none in a REJ. */
        do
            comm_id = (uint32_t)block->number << 16 | block->next++;
        while (!comm_id || table_local(cm, comm_id));
        block->used++;
        cm->next_block = (cm->next_block + i + 1) % cm->block_count;
        *ret_comm_id = comm_id;
        return 0;
    }
    return -ENOSPC;
}

void release_comm_id(struct cm *cm, uint32_t comm_id)
{
    for (uint32_t i = 0; i < cm->block_count; i++)
        if (cm->blocks[i].number == comm_id >> 16)
            cm->blocks[i].used--;
}

/* --- states of an id -------------------------------------------------------------------------------- */

void clear_id(struct cm_id *id)
{
    memset(id, 0, sizeof(*id));
    id->deadline.at = NS_NEVER;
}

void cm_id_init(struct cm_id *id)
{
    clear_id(id);
}

static bool lingers(const struct cm_id *id)
{
    return id->state == CM_STATE_TIMEWAIT || id->state == CM_STATE_SIDR_REP_SENT;
}

void enter(struct cm *cm, struct cm_id *id, enum cm_state state)
{
    cm->lingering -= lingers(id);
    log_debug("CM: communication ID 0x%08x (remote 0x%08x): %s -> %s", id->local_comm_id, id->remote_comm_id,
              cm_state_name(id->state), cm_state_name(state));
    id->state = (uint8_t)state;
    cm->lingering += lingers(id);
}

void report_event(struct cm *cm, struct cm_id *id, const struct cm_event *event)
{
    if (!id->closed)
        cm->ports->event(cm, id, event);
}

void finish(struct cm *cm, struct cm_id *id, const struct cm_event *event)
{
    deadline_cancel(cm, id);
    table_remove(&id->by_local);
    table_remove(&id->by_remote);
    table_remove(&id->by_qpn);
    if (id->local_comm_id)
        release_comm_id(cm, id->local_comm_id);
    enter(cm, id, CM_STATE_IDLE);
    id->local_comm_id = id->remote_comm_id = 0;
    id->last_sent = 0;
    id->exit_due = false;
    if (id->closed)
        cm->ports->released(cm, id);
    else if (event)
        cm->ports->event(cm, id, event);
}

void cm_close(struct cm *cm, struct cm_id *id, ns_t now)
{
    id->closed = true;
    switch ((enum cm_state)id->state) {
    case CM_STATE_IDLE:
    case CM_STATE_SIDR_REQ_SENT:
        finish(cm, id, NULL);
        break;
    case CM_STATE_REQ_SENT:
    case CM_STATE_MRA_REQ_RCVD:
        /* The REJ saves the peer its timeout. A REP in flight gets a REJ for an unknown comm id. */
        send_rej(cm, id, CM_REASON_TIMEOUT, NULL, 0);
        finish(cm, id, NULL);
        break;
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_REP_SENT:
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
        cm_reject(cm, id, CM_REASON_CONSUMER, NULL, 0, now);
        break;
    case CM_STATE_ESTABLISHED:
        send_dreq(cm, id, now);
        send_final_dreq(cm, id);
        break;
    case CM_STATE_SIDR_REQ_RCVD:
        send_sidr_rep(cm, id, CM_SIDR_REJECTED, 0, 0, NULL, 0, now);
        break;
    case CM_STATE_TIMEWAIT:
        send_final_drep(cm, id);
        break;
    case CM_STATE_DREQ_SENT:
        send_final_dreq(cm, id);
        break;
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        break;
    }
}

/* --- sending ---------------------------------------------------------------------------------------- */

struct cm_mad message_of(const struct cm_id *id, enum cm_attribute attribute)
{
    return (struct cm_mad){.attribute = (uint16_t)attribute,
                           .transaction_id = id->transaction_id,
                           .local_comm_id = id->local_comm_id,
                           .remote_comm_id = id->remote_comm_id};
}

bool put_private(struct cm_mad *mad, const void *data, size_t length)
{
    if (length > cm_mad_private_length(mad->attribute))
        return false;
    if (length)
        memcpy(mad->private_data, data, length);
    mad->private_length = (uint8_t)length;
    return true;
}

void send_and_keep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad)
{
    cm_mad_encode(mad, id->mad);
    id->last_sent = mad->attribute;
    cm->ports->send(cm, &id->path, id, id->mad);
}

void send_again(struct cm *cm, struct cm_id *id)
{
    cm->ports->send(cm, &id->path, id, id->mad);
}

void send_with_retries(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now)
{
    send_and_keep(cm, id, mad);
    id->retries_left = id->timing.retries;
    deadline_set(cm, id, now + id->interval);
}

/* --- time ------------------------------------------------------------------------------------------- */

ns_t cm_next(const struct cm *cm)
{
    return cm->earliest ? cm->earliest->deadline.at : NS_NEVER;
}

static void expired(struct cm *cm, struct cm_id *id, ns_t now)
{
    const struct cm_event exit = {.type = CM_EVENT_TIMEWAIT_EXIT};

    if (lingers(id)) {
        finish(cm, id, id->exit_due ? &exit : NULL);
    } else if (id->retries_left) {
        id->retries_left--;
        cm->counters.retries++;
        deadline_set(cm, id, now + id->interval);
        send_again(cm, id);
    } else {
        retries_exhausted(cm, id, now);
    }
}

void cm_run(struct cm *cm, ns_t now)
{
    while (cm->earliest && cm->earliest->deadline.at <= now) {
        struct cm_id *id = cm->earliest;

        deadline_cancel(cm, id);
        expired(cm, id, now);
    }
}

/* --- death of a peer process ------------------------------------------------------------------------ */

/* May finish the id. */
static void on_peer_death(struct cm *cm, struct cm_id *id, ns_t now)
{
    const struct cm_event abandoned = {.type = CM_EVENT_REJECTED, .status = CM_REASON_TIMEOUT};
    const struct cm_event unreachable = {.type = CM_EVENT_UNREACHABLE, .status = -ETIMEDOUT};

    switch ((enum cm_state)id->state) {
    case CM_STATE_MRA_REQ_RCVD:
        /* Repeat the REQ: another process may listen now. */
        id->remote_comm_id = 0;
        enter(cm, id, CM_STATE_REQ_SENT);
        deadline_set(cm, id, now);
        break;
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
        finish(cm, id, &abandoned);
        break;
    case CM_STATE_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
        finish(cm, id, &unreachable);
        break;
    case CM_STATE_ESTABLISHED:
        disconnected(cm, id, -ECONNRESET, now);
        break;
    case CM_STATE_DREQ_SENT:
        disconnected(cm, id, 0, now);
        break;
    case CM_STATE_IDLE:
    case CM_STATE_REQ_SENT:
    case CM_STATE_TIMEWAIT:
    case CM_STATE_SIDR_REQ_SENT:
    case CM_STATE_SIDR_REQ_RCVD:
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        break;
    }
}

static struct cm_id *find_by_peer(struct cm_link *link, uint64_t peer)
{
    for (; link; link = link->next)
        if (container_of(link, struct cm_id, by_local)->path.peer == peer)
            return container_of(link, struct cm_id, by_local);
    return NULL;
}

void cm_peer_gone(struct cm *cm, uint64_t peer, ns_t now)
{
    struct cm_id *id;

    if (!peer)
        return;
    for (unsigned i = 0; i < CM_BUCKETS; i++)
        while ((id = find_by_peer(cm->by_local[i], peer))) {
            id->path.peer = 0; /* do not find it again */
            on_peer_death(cm, id, now);
        }
}

/* --- queries ---------------------------------------------------------------------------------------- */

enum cm_state cm_id_state(const struct cm_id *id)
{
    return id->state;
}

uint64_t cm_id_service(const struct cm_id *id)
{
    return id->service_id;
}

uint32_t cm_id_local_comm_id(const struct cm_id *id)
{
    return id->local_comm_id;
}

uint32_t cm_id_remote_comm_id(const struct cm_id *id)
{
    return id->remote_comm_id;
}

int cm_qp_attributes(const struct cm_id *id, struct cm_qp_attributes *ret_attributes)
{
    switch ((enum cm_state)id->state) {
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_REP_SENT:
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
    case CM_STATE_ESTABLISHED:
    case CM_STATE_DREQ_SENT:
        break;
    case CM_STATE_IDLE:
    case CM_STATE_REQ_SENT:
    case CM_STATE_MRA_REQ_RCVD:
    case CM_STATE_TIMEWAIT:
    case CM_STATE_SIDR_REQ_SENT:
    case CM_STATE_SIDR_REQ_RCVD:
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        return -EINVAL;
    }
    *ret_attributes = (struct cm_qp_attributes){
        .path = id->path,
        .service = id->service,
        .path_mtu = id->path_mtu,
        .dest_qpn = id->remote_qpn,
        .rq_psn = id->rq_psn,
        .sq_psn = id->sq_psn,
        .max_dest_rd_atomic = id->responder_resources,
        .max_rd_atomic = id->initiator_depth,
        .timeout = id->timing.ack_timeout,
        .retry_count = id->retry_count,
        .rnr_retry = id->rnr_retry_count,
    };
    return 0;
}
