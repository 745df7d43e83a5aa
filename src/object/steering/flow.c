/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The flow rules of this process (verbs.md §7.6), in the order in which steering/rule.h evaluates them. */
#include "object/steering/flow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "base/rundown.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/qp/qp_internal.h"
#include "segment/provenance.h"

/* Receivers of one frame, at most: as many as a multicast group may have. */
#define RECEIVERS_MAX LIMIT_MULTICAST_ATTACH

struct lock flows_lock = LOCK_INIT;
_Atomic uint32_t flow_count, sniffer_count;
static struct flow **flows; /* sorted by rule_compare(); flow_count entries */
static uint32_t flows_room;
static uint32_t next_handle;

/* --- creating and destroying ---------------------------------------------------------------------------- */

static uint32_t count_of_flows(void)
{
    return atomic_load_explicit(&flow_count, memory_order_relaxed);
}

static int make_space(void)
{
    uint32_t room = flows_room ? flows_room * 2 : 16;
    struct flow **more;

    if (count_of_flows() < flows_room)
        return 0;
    more = realloc(flows, room * sizeof(struct flow *));
    if (!more)
        return -ENOMEM;
    flows = more;
    flows_room = room;
    return 0;
}

static int check_against_others(const struct flow *flow)
{
    for (uint32_t i = 0; i < count_of_flows(); i++) {
        if (flows[i]->qp->context->device == flow->qp->context->device &&
            rule_excludes(&flows[i]->rule, &flow->rule))
            return -EEXIST;
    }
    return 0;
}

static void unbind(const struct flow *flow, unsigned count)
{
    while (count) {
        struct counters *counters = counters_of(flow->rule.counters[--count]);

        counters->bound--;
        item_use(counters->item, -1);
    }
}

static int bind_counters(const struct flow *flow)
{
    for (unsigned i = 0; i < flow->rule.counters_count; i++) {
        struct ibv_counters *counters = flow->rule.counters[i];
        int error = counters->context != flow->ibv.context ? -EINVAL : counters_bind(counters_of(counters));

        if (error) {
            unbind(flow, i);
            return error;
        }
    }
    return 0;
}

/* Publishes the flow and its counters, for explanations. */
static void take_item(struct flow *flow)
{
    uint32_t counters[4] = {NO_OBJECT, NO_OBJECT, NO_OBJECT, NO_OBJECT};

    _Static_assert(array_size(counters) == RULE_COUNTERS_MAX, "the detail of an item holds them all");
    for (unsigned i = 0; i < flow->rule.counters_count; i++)
        counters[i] = counters_of(flow->rule.counters[i])->item;
    flow->item = item_take(OBJECT_FLOW, flow->ibv.handle, flow->qp->context->number, flow->qpn, counters);
}

/* QP lock and flows_lock held. */
static int insert(struct flow *flow)
{
    int error = atomic_load_explicit(&flow->qp->record->qpn, memory_order_relaxed) ? make_space() : -EINVAL;
    uint32_t place = count_of_flows();

    if (!error)
        error = check_against_others(flow);
    if (!error)
        error = bind_counters(flow);
    if (error)
        return error;
    /* Behind equal rules, because older rules come first. */
    for (; place && rule_compare(&flows[place - 1]->rule, &flow->rule) > 0; place--)
        flows[place] = flows[place - 1];
    flows[place] = flow;
    flow->ibv.handle = ++next_handle;
    take_item(flow);
    flow->qp->flows++;
    atomic_fetch_add_explicit(&flow_count, 1, memory_order_relaxed);
    if (flow->rule.type == IBV_FLOW_ATTR_SNIFFER)
        atomic_fetch_add_explicit(&sniffer_count, 1, memory_order_relaxed);
    return 0;
}

int flow_create(struct qp *qp, const struct ibv_flow_attr *attributes, struct flow **ret_flow)
{
    struct flow *flow;
    int error;

    if (context_is_inherited(qp->context))
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_create_flow");
    if (qp->record->type == IBV_QPT_UD)
        return refused_of(refuse_unsupported("a rule for a QP of type UD", 0), OBJECT_QP,
                          qp->ibv.qp_num); /* datagrams are delivered by QPN, and not by rules */
    if (qp->record->type != IBV_QPT_RAW_PACKET)
        return refused_of(
            refuse(-EINVAL, REFUSAL_TYPE, "a flow rule", qp->record->type, 1ull << IBV_QPT_RAW_PACKET, 0),
            OBJECT_QP, qp->ibv.qp_num);
    flow = calloc(1, sizeof(*flow));
    if (!flow)
        return -ENOMEM;
    error = rule_parse(attributes, &flow->rule);
    if (!error) {
        flow->qp = qp;
        flow->qpn = qp->ibv.qp_num;
        flow->ibv.context = qp->ibv.context;
        lock_acquire(&qp->lock); /* qp_destroy() reads qp->flows under it */
        lock_acquire(&flows_lock);
        error = insert(flow);
        lock_release(&flows_lock);
        lock_release(&qp->lock);
    }
    if (error) {
        free(flow);
        return error;
    }
    qp_ports->steers(qp);
    *ret_flow = flow;
    return 0;
}

int flow_destroy(struct flow *flow)
{
    struct qp *qp;
    uint32_t place = 0;

    if (destroyed_has(DESTROYED_FLOW, flow, "ibv_destroy_flow"))
        return -EINVAL;
    qp = flow->qp;
    if (context_is_inherited(qp->context))
        return 0;
    lock_acquire(&qp->lock);
    lock_acquire(&flows_lock);
    while (flows[place] != flow)
        place++;
    memmove(flows + place, flows + place + 1, (count_of_flows() - place - 1) * sizeof(struct flow *));
    atomic_fetch_sub_explicit(&flow_count, 1, memory_order_relaxed);
    if (flow->rule.type == IBV_FLOW_ATTR_SNIFFER)
        atomic_fetch_sub_explicit(&sniffer_count, 1, memory_order_relaxed);
    unbind(flow, flow->rule.counters_count);
    item_return(flow->item);
    qp->flows--;
    lock_release(&flows_lock);
    lock_release(&qp->lock);
    /* Waits for threads that have matched the rule and are delivering. */
    rundown_wait();
    qp_ports->steers(qp);
    destroyed_keep(DESTROYED_FLOW, flow, flow->item); /* the context is not its first member */
    return 0;
}

bool flows_on(const struct device *device)
{
    bool found = false;

    lock_acquire(&flows_lock);
    for (uint32_t i = 0; i < count_of_flows(); i++)
        found |= flows[i]->qp->context->device == device;
    lock_release(&flows_lock);
    return found;
}

void flows_after_fork_in_child(void)
{
    lock_init(&flows_lock);
    flows = NULL; /* another thread may have been changing the table */
    flows_room = 0;
    atomic_store_explicit(&flow_count, 0, memory_order_relaxed);
    atomic_store_explicit(&sniffer_count, 0, memory_order_relaxed);
}

/* --- steering ------------------------------------------------------------------------------------------- */

struct meeting {
    const struct steered *frame;
    unsigned count;
    struct {
        uint32_t qpn, tag;
    } receivers[RECEIVERS_MAX];
};

static const struct rule *rule_at(void *argument, unsigned index)
{
    const struct meeting *meeting = argument;
    const struct flow *flow = flows[index];

    if (device_ifindex(flow->qp->context->device) != meeting->frame->ifindex ||
        (meeting->frame->only_sniffed && flow->rule.type != IBV_FLOW_ATTR_SNIFFER))
        return NULL;
    return &flow->rule;
}

/* A rule matches the frame. A QP gets one copy, by the first of its rules that matches. */
static void meet(void *argument, unsigned index)
{
    struct meeting *meeting = argument;
    const struct flow *flow = flows[index];

    for (unsigned i = 0; i < flow->rule.counters_count; i++) {
        struct counters *counters = counters_of(flow->rule.counters[i]);

        atomic_fetch_add_explicit(&counters->packets, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&counters->bytes, meeting->frame->length, memory_order_relaxed);
    }
    if (flow->rule.drops || meeting->count == RECEIVERS_MAX)
        return;
    for (unsigned i = 0; i < meeting->count; i++) {
        if (meeting->receivers[i].qpn == flow->qpn)
            return;
    }
    meeting->receivers[meeting->count].qpn = flow->qpn;
    meeting->receivers[meeting->count++].tag = flow->rule.tag;
}

/* Is it the QP's own multicast frame, which the QP's creation flags block (verbs.md §1.5)? */
static bool is_own(const struct qp *qp, const struct steered *frame, const struct frame *fields)
{
    return (qp->create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) && frame->src_qpn == qp->ibv.qp_num &&
           frame_is_multicast(fields);
}

bool flows_deliver(const struct steered *steered)
{
    struct meeting meeting = {.frame = steered};
    struct frame fields;

    if (!flows_exist() || !frame_dissect(steered->bytes, steered->length, &fields))
        return false;
    lock_acquire(&flows_lock);
    rules_classify(rule_at, count_of_flows(), &fields, meet, &meeting);
    lock_release(&flows_lock);
    for (unsigned i = 0; i < meeting.count; i++) {
        struct qp *qp = qp_lock_number(meeting.receivers[i].qpn);

        if (!qp)
            continue;
        if (!is_own(qp, steered, &fields) && !device_port_is_down(qp->context->device))
            raw_deliver(qp, steered, &fields, meeting.receivers[i].tag);
        lock_release(&qp->lock);
    }
    return meeting.count != 0;
}
