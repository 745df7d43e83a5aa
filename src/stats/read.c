/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "explain/objects.h"
#include "stats/stats.h"

/* A process that destroys QPs all the time may be read so often before the sums are taken as they are. */
#define TRIES 8

/* --- sums ------------------------------------------------------------------------------------------------ */

struct stats_flow stats_flow(const struct traffic_record *traffic)
{
    struct stats_flow flow = {0};

    for (unsigned kind = TRAFFIC_SEND; kind < TRAFFIC_LOCAL; kind++) {
        bool reads = kind == TRAFFIC_READ, carries = kind != TRAFFIC_FLUSH;

        for (unsigned way = 0; way < TRAFFIC_WAYS; way++) {
            counter_add(&flow.messages_out, traffic->requested[way][kind].messages);
            if (carries)
                counter_add(reads ? &flow.bytes_in : &flow.bytes_out, traffic->requested[way][kind].bytes);
        }
        counter_add(&flow.messages_in, traffic->executed[kind].messages);
        if (carries)
            counter_add(reads ? &flow.bytes_out : &flow.bytes_in, traffic->executed[kind].bytes);
    }
    return flow;
}

uint64_t stats_latency_count(const struct traffic_rare *traffic)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
        counter_add(&count, traffic->latency[i]);
    return count;
}

uint64_t stats_latency(const struct traffic_rare *traffic, unsigned of_1000)
{
    uint64_t count = stats_latency_count(traffic), seen = 0;

    for (unsigned i = 0; count && i < LATENCY_BUCKETS; i++) {
        counter_add(&seen, traffic->latency[i]);
        if ((double)seen * 1000 >= (double)count * of_1000)
            return 1ull << (LATENCY_SHIFT + i);
    }
    return 0;
}

/* --- one process ----------------------------------------------------------------------------------------- */

struct reading {
    const struct view *view;
    struct stats_process *process;
    bool with_qps;
    uint64_t room;
    bool failed; /* no memory */
};

/* A name of a device is a file name and a label. */
static void clean_name(char *to, size_t size, const char *from, size_t length)
{
    size_t i = 0;

    for (; i + 1 < size && i < length && from[i]; i++) {
        char c = from[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
                     c == '-' || (c == '.' && i);

        to[i] = plain ? c : '?';
    }
    to[i] = '\0';
}

static struct stats_port *port_of(struct stats_process *process, const char *device)
{
    for (unsigned i = 0; i < process->port_count; i++) {
        if (strcmp(process->ports[i].device, device) == 0)
            return &process->ports[i];
    }
    if (process->port_count == STATS_PORTS_MAX)
        return &process->ports[STATS_PORTS_MAX - 1];
    snprintf(process->ports[process->port_count].device, STATS_DEVICE, "%s", device);
    return &process->ports[process->port_count++];
}

static void device_of(const struct view *view, uint32_t context, char ret[STATS_DEVICE])
{
    struct object object;

    ret[0] = '\0';
    if (object_read(view, OBJECT_CONTEXT, context, &object))
        clean_name(ret, STATS_DEVICE, object.item.device, sizeof(object.item.device));
    if (!ret[0])
        snprintf(ret, STATS_DEVICE, "unknown");
}

static void note_events(struct stats_events *to, const struct event_record *events)
{
    int32_t unacked = (int32_t)(events->reported - events->acked);
    int32_t unread = (int32_t)(events->raised - events->reported);

    counter_add(&to->unacked, unacked > 0 ? (uint64_t)unacked : 0);
    counter_add(&to->unread, unread > 0 ? (uint64_t)unread : 0);
}

static uint32_t behind(uint32_t from, uint32_t to, uint32_t depth)
{
    return min_of(to - from, depth);
}

static void describe_cqs(const struct view *view, const struct qp_record *qp, struct stats_qp *ret)
{
    const uint32_t numbers[] = {qp->send_cq, qp->recv_cq};
    struct cq_record cq;

    for (unsigned i = 0; i < 2; i++) {
        uint32_t unpolled;

        if ((i && numbers[1] == numbers[0]) || !view_record(view, &view->header.cqs, numbers[i], &cq) ||
            cq.state == OBJECT_FREE)
            continue;
        unpolled = behind(cq.consumed, cq.produced, cq.capacity);
        if (!ret->capacity || (uint64_t)unpolled * ret->capacity > (uint64_t)ret->unpolled * cq.capacity) {
            ret->unpolled = unpolled;
            ret->capacity = cq.capacity;
        }
        note_events(&ret->events, &cq.events);
    }
}

static void describe_receives(const struct view *view, const struct qp_record *qp, struct stats_qp *ret)
{
    struct srq_record srq;

    if (qp->srq == NO_OBJECT) {
        ret->receives = behind(qp->receive.taken, qp->receive.posted, qp->receive.depth);
        ret->receive_depth = qp->receive.depth;
    } else if (view_record(view, &view->header.srqs, qp->srq, &srq)) {
        ret->receives = behind(srq.taken, srq.posted, srq.max_wr);
        ret->receive_depth = srq.max_wr;
    }
}

static struct stats_qp *next_row(struct reading *reading)
{
    struct stats_process *process = reading->process;

    if (process->qps == reading->room) {
        uint64_t room = reading->room ? reading->room * 2 : 64;
        struct stats_qp *list = realloc(process->list, room * sizeof(*list));

        if (!list) {
            reading->failed = true;
            return NULL;
        }
        process->list = list;
        reading->room = room;
    }
    return &process->list[process->qps];
}

static void describe_qp(const struct view *view, const struct object *object, const char *device,
                        const struct traffic_sum *sum, struct stats_qp *row)
{
    const struct qp_record *qp = &object->qp;

    *row = (struct stats_qp){
        .slot = object->number,
        .qpn = qp->qpn,
        .dest_qpn = is_connected(qp) ? qp->attributes.dest_qpn : 0,
        .type = qp->type,
        .state = qp->state,
        .path = qp->path.kind,
        .peer_pid = qp->path.peer_pid,
        .sends = behind(qp->sender.completed, qp->sender.posted, qp->send_depth),
        .send_depth = qp->send_depth,
        .send_cq = qp->send_cq,
        .receive_cq = qp->recv_cq,
        .created_ns = qp->provenance.created_ns,
        .sum = *sum,
        .flow = stats_flow(&qp->traffic),
    };
    memcpy(row->device, device, STATS_DEVICE);
    printable(row->name, qp->provenance.name, NAME_BYTES);
    describe_cqs(view, qp, row);
    describe_receives(view, qp, row);
    note_events(&row->events, &qp->events);
}

static bool add_qp(const struct view *view, const struct object *object, void *argument)
{
    struct reading *reading = argument;
    struct stats_process *process = reading->process;
    const struct qp_record *qp = &object->qp;
    struct stats_port *port;
    struct traffic_sum sum;
    char device[STATS_DEVICE];
    struct stats_qp *row;

    note_events(&process->async, &qp->events);
    /* Being destroyed: counted in the record of its port. A handle of ibv_open_qp() has no queues. */
    if (!qp->qpn || qp->opened)
        return true;
    device_of(view, qp->context, device);
    qp_sum(qp, &object->rare, &sum);
    port = port_of(process, device);
    port->qps++;
    traffic_sum_add(&port->sum, &sum);
    process->qps_by_state[min_of(qp->state, STATS_STATES - 1u)]++;
    process->qps_by_path[qp->path.kind < STATS_PATHS ? qp->path.kind : PATH_UNKNOWN]++;
    if (reading->with_qps) {
        row = next_row(reading);
        if (!row)
            return false;
        describe_qp(view, object, device, &sum, row);
    }
    process->qps++;
    return true;
}

static void add_destroyed(const struct view *view, struct stats_process *process)
{
    for (uint32_t i = 0; i < view->header.ports.count; i++) {
        struct port_record record;
        char device[STATS_DEVICE];

        if (!view_record(view, &view->header.ports, i, &record) || !record.device[0])
            break;
        clean_name(device, sizeof(device), record.device, sizeof(record.device));
        traffic_sum_add(&port_of(process, device)->sum, &record.sum);
    }
}

static bool add_other(const struct view *view, const struct object *object, void *argument)
{
    struct stats_process *process = ((struct reading *)argument)->process;
    struct mapped_record mapped;

    switch ((unsigned)object->kind) {
    case OBJECT_CQ:
        process->cqs++;
        counter_add(&process->cq_capacity, object->cq.capacity);
        counter_add(&process->cq_unpolled,
                    behind(object->cq.consumed, object->cq.produced, object->cq.capacity));
        process->cq_fullest =
            max_of(process->cq_fullest,
                   (uint64_t)behind(object->cq.consumed, object->cq.produced, object->cq.capacity));
        counter_add(&process->cq_lost, object->cq.lost);
        note_events(&process->completion, &object->cq.events);
        note_events(&process->async, &object->cq.async_events);
        return true;
    case OBJECT_MR:
        process->mrs++;
        counter_add(&process->registered_bytes, object->key.length);
        if (view_record(view, &view->header.mapped, object->number, &mapped) && !(mapped.generation & 1) &&
            mapped.generation)
            counter_add(&process->mapped_bytes, mapped.length);
        return true;
    case OBJECT_CM_ID:
        note_events(&process->cm, &object->id.events);
        return true;
    default:
        if (object_async_events(object))
            note_events(&process->async, object_async_events(object));
        return true;
    }
}

static uint32_t generation(const struct view *view)
{
    struct segment_header header;

    return view_copy(view, 0, &header, sizeof(header)) ? header.ports_generation : 0;
}

/* The QPs and their ports. Partner: port_retire_qp() in segment/port.c. */
static void sum_up(struct reading *reading)
{
    struct stats_process *process = reading->process;

    for (unsigned i = 0; i < TRIES && !process->settled && !reading->failed; i++) {
        uint32_t before = generation(reading->view);

        memset(process->ports, 0, sizeof(process->ports));
        memset(process->qps_by_state, 0, sizeof(process->qps_by_state));
        memset(process->qps_by_path, 0, sizeof(process->qps_by_path));
        process->port_count = 0;
        process->qps = 0;
        process->async = (struct stats_events){0};
        add_destroyed(reading->view, process);
        objects_for_each(reading->view, 1u << OBJECT_QP, add_qp, reading);
        process->settled = !(before & 1) && generation(reading->view) == before;
    }
}

static void read_network(const struct view *view, uint64_t ret[STATS_NET])
{
    struct segment_header header;

    /* As it is now: that of the view is older. */
    if (view_copy(view, 0, &header, sizeof(header)))
        memcpy(ret, &header.network, STATS_NET * sizeof(uint64_t));
}

int stats_read(const struct view *view, bool with_qps, struct stats_process *ret)
{
    const struct segment_header *header = &view->header;
    struct reading reading = {.view = view, .process = ret, .with_qps = with_qps};

    *ret = (struct stats_process){
        .pid = view->pid,
        .own_pid = header->pid,
        .uid = header->uid,
        .watched = header->watched != 0,
        .start_ns = header->start_ns,
        .read_ns = sys_now(),
    };
    memcpy(ret->instance, header->instance, sizeof(ret->instance));
    printable(ret->program, header->program, sizeof(ret->program) - 1);
    sum_up(&reading);
    if (reading.failed) {
        stats_free(ret);
        return -ENOMEM;
    }
    for (unsigned i = 0; i < ret->port_count; i++)
        traffic_sum_add(&ret->sum, &ret->ports[i].sum);
    ret->flow = stats_flow(&ret->sum.traffic);
    objects_for_each(view, ALL_KINDS & ~(1u << OBJECT_QP), add_other, &reading);
    read_network(view, ret->network);
    return 0;
}

void stats_free(struct stats_process *process)
{
    free(process->list);
    process->list = NULL;
}
