/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "net.h"

#include <stdio.h>

struct flight {
    struct timer timer;
    struct list node;
    struct cm_path from;
    unsigned to;
    uint8_t bytes[MAD_LENGTH];
};

uint64_t net_random(struct net *net)
{
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return net->random * 0x2545f4914f6cdd1d;
}

void net_rule(struct net *net, struct rule rule)
{
    assert_true(net->rule_count < RULES_MAX);
    net->rules[net->rule_count++] = rule;
}

unsigned net_sent(const struct net *net, uint16_t attribute, int from)
{
    unsigned count = 0;

    for (unsigned i = 0; i < net->logged; i++)
        if (net->log[i].mad.attribute == attribute && (from < 0 || net->log[i].from == (unsigned)from))
            count++;
    return count;
}

/* --- the network ------------------------------------------------------------------------------------ */

static struct side *side_of(struct cm *cm)
{
    return container_of(cm, struct side, cm);
}

static void launch(struct net *net, const struct side *from, unsigned to, const uint8_t *bytes, ns_t delay)
{
    struct flight *flight = calloc(1, sizeof(*flight));

    flight->from = from->path;
    memcpy(flight->from.local_gid, from->path.remote_gid, 16);
    memcpy(flight->from.remote_gid, from->path.local_gid, 16);
    flight->from.local_guid = from->path.local_guid ^ 1;
    flight->from.peer = net->of_other_hosts ? 0 : from->incarnation;
    flight->to = to;
    memcpy(flight->bytes, bytes, MAD_LENGTH);
    list_push_back(&net->flying, &flight->node);
    assert_int_equal(timer_arm(&net->flights, &flight->timer, net->now + delay), 0);
}

static struct rule *rule_for(struct net *net, unsigned from, uint16_t attribute)
{
    for (unsigned i = 0; i < net->rule_count; i++) {
        struct rule *rule = &net->rules[i];

        if ((rule->attribute && rule->attribute != attribute) || (rule->from >= 0 && rule->from != (int)from))
            continue;
        if (rule->skip) {
            rule->skip--;
            continue;
        }
        if (rule->count) {
            rule->count--;
            return rule;
        }
    }
    return NULL;
}

static void send_mad(struct cm *cm, const struct cm_path *to, const struct cm_id *id,
                     const uint8_t bytes[MAD_LENGTH])
{
    struct side *side = side_of(cm);
    struct net *net = side->net;
    const struct rule *rule;
    struct logged entry = {.at = net->now, .from = side->number};
    ns_t delay = net->delay + (net->jitter ? net_random(net) % net->jitter : 0);

    assert_memory_equal(to->local_gid, side->path.local_gid, 16);
    if (!net->misdirected)
        assert_memory_equal(to->remote_gid, side->path.remote_gid, 16);
    assert_int_equal(to->cookie, side->path.cookie);
    assert_int_equal(cm_mad_decode(bytes, MAD_LENGTH, &entry.mad), 0);
    if (id && id->service_id)
        assert_int_equal(cm_id_service(id), SERVICE_ID);
    if (net->logged < LOG_MAX)
        net->log[net->logged++] = entry;
    if (net->trace)
        printf("# %10.6f %u sends %s %08x -> %08x\n", (double)net->now / 1e9, side->number,
               cm_mad_name(entry.mad.attribute), entry.mad.local_comm_id, entry.mad.remote_comm_id);

    rule = rule_for(net, side->number, entry.mad.attribute);
    if (rule && rule->action == LOSE)
        return;
    if (net_below(net, 100) < net->loss_percent)
        return;
    if (rule && rule->action == DELAY)
        delay += rule->delay;
    else if (net_below(net, 100) < net->reorder_percent)
        delay += net_random(net) % (20 * net->delay);
    else if (!net->jitter && net->now + delay <= net->last[side->number])
        delay = net->last[side->number] + 1 - net->now;
    if (!(rule && rule->action == DELAY))
        net->last[side->number] = max_of(net->last[side->number], net->now + delay);
    launch(net, side, !side->number, bytes, delay);
    if (rule && rule->action == DUPLICATE)
        launch(net, side, !side->number, bytes, delay + rule->delay + 1);
    if (net_below(net, 100) < net->duplicate_percent)
        launch(net, side, !side->number, bytes, delay + 1 + net_random(net) % (50 * net->delay));
}

static bool deliver(struct net *net)
{
    struct timer *timer = timer_take_due(&net->flights, net->now);
    struct flight *flight;
    struct side *to;
    struct cm_mad mad;
    int result;

    if (!timer)
        return false;
    flight = container_of(timer, struct flight, timer);
    list_remove(&flight->node);
    to = net->sides[flight->to];
    assert_int_equal(cm_mad_decode(flight->bytes, MAD_LENGTH, &mad), 0);
    if (to->alive && (!net->on_delivery || net->on_delivery(net, flight->to, &mad)) && to->alive) {
        net->delivered++;
        result = cm_receive(&to->cm, &flight->from, flight->bytes, MAD_LENGTH, net->now);
        if (net->trace)
            printf("# %10.6f %u gets  %s: %d\n", (double)net->now / 1e9, to->number,
                   cm_mad_name(mad.attribute), result);
    }
    free(flight);
    return true;
}

/* --- programs --------------------------------------------------------------------------------------- */

struct end *end_new(struct side *side)
{
    struct end *end = calloc(1, sizeof(*end));

    end->side = side;
    end->qpn = side->next_qpn++;
    cm_id_init(&end->id);
    list_init(&end->todo);
    list_push_back(&side->ends, &end->in_side);
    side->created++;
    return end;
}

static void wake(struct end *end)
{
    list_remove(&end->todo);
    list_push_back(&end->side->net->todo, &end->todo);
}

static int take_request(struct cm *cm, const struct cm_request *request, struct cm_id **ret_id)
{
    struct side *side = side_of(cm);
    struct end *end;

    assert_int_equal(request->private_length, request->datagram ? CM_SIDR_REQ_PRIVATE : CM_REQ_PRIVATE);
    if (!side->listens || request->service_id != SERVICE_ID)
        return -ENOENT;
    if (side->program == REFUSES)
        return side->refuse_reason;
    if (!side->room)
        return -EAGAIN;
    side->room--;
    end = end_new(side);
    end->passive = true;
    end->datagram = request->datagram;
    end->request = *request;
    memcpy(end->private_data, request->private_data, request->private_length);
    memset(&end->id, 0xee, sizeof(end->id)); /* the state machine clears it */
    *ret_id = &end->id;
    if (side->program != IGNORES)
        assert_int_equal(timer_arm(&side->net->answers, &end->timer, side->net->now + side->takes), 0);
    return 0;
}

static void take_event(struct cm *cm, struct cm_id *id, const struct cm_event *event)
{
    struct end *end = container_of(id, struct end, id);
    struct seen *seen;

    assert_false(end->closed);
    assert_true(end->seen_count < SEEN_MAX);
    seen = &end->seen[end->seen_count++];
    seen->type = event->type;
    seen->status = event->status;
    seen->at = end->side->net->now;
    seen->offer = event->offer;
    seen->has_private = event->private_data;
    seen->private_length = event->private_length;
    if (event->private_data)
        memcpy(seen->private_data, event->private_data, event->private_length);
    else
        assert_int_equal(event->private_length, 0);
    if (side_of(cm)->net->trace)
        printf("# %10.6f %u %s end: event %d status %d\n", (double)seen->at / 1e9, end->side->number,
               end->passive ? "passive" : "active", event->type, event->status);
    wake(end);
}

static void forget(struct end *end)
{
    timer_cancel(&end->side->net->answers, &end->timer);
    list_remove(&end->todo);
    list_remove(&end->in_side);
    free(end);
}

static void take_back(struct cm *cm, struct cm_id *id)
{
    struct end *end = container_of(id, struct end, id);
    struct side *side = side_of(cm);

    assert_true(end->closed);
    assert_false(end->released);
    end->released = true;
    side->released++;
    /* The state machine no longer uses it. */
    forget(end);
}

static uint64_t random_of(struct cm *cm)
{
    return net_random(side_of(cm)->net);
}

static const struct cm_ports ports = {.send = send_mad,
                                      .request = take_request,
                                      .event = take_event,
                                      .released = take_back,
                                      .random = random_of};

void end_close(struct end *end)
{
    struct side *side = end->side;

    end->closed = true;
    timer_cancel(&side->net->answers, &end->timer);
    list_remove(&end->todo);
    cm_close(&side->cm, &end->id, side->net->now);
}

int end_accept(struct end *end)
{
    struct side *side = end->side;
    struct cm_accept accept = side->accept;
    int result;

    if (end->datagram) {
        result = cm_resolve_accept(&side->cm, &end->id, end->qpn, 0x11111111, accept.private_data,
                                   accept.private_length, side->net->now);
    } else {
        accept.qpn = end->qpn;
        result = cm_accept(&side->cm, &end->id, &accept, side->net->now);
    }
    end->answered = end->answered || !result;
    return result;
}

static void answer(struct end *end)
{
    struct side *side = end->side;
    const ns_t now = side->net->now;

    switch (side->program) {
    case ACCEPTS:
        end_accept(end);
        break;
    case REJECTS:
        if (end->datagram)
            cm_resolve_reject(&side->cm, &end->id, CM_SIDR_REJECTED, "no", 2, now);
        else
            cm_reject(&side->cm, &end->id, CM_REASON_CONSUMER, "no", 2, now);
        break;
    case CLOSES:
        end_close(end);
        break;
    case IGNORES:
    case REFUSES:
        break;
    }
}

static bool is_over(const struct end *end)
{
    return end->seen_count && cm_id_state(&end->id) == CM_STATE_IDLE;
}

static void handle(struct end *end, const struct seen *seen)
{
    struct side *side = end->side;
    const ns_t now = side->net->now;

    if (seen->type == CM_EVENT_REPLY && side->establishes && !cm_establish(&side->cm, &end->id, now))
        end->established = true;
    if (seen->type == CM_EVENT_ESTABLISHED)
        end->established = true;
    if ((seen->type == CM_EVENT_REPLY || seen->type == CM_EVENT_ESTABLISHED) && side->leaves)
        cm_disconnect(&side->cm, &end->id, now);
}

static bool react(struct net *net)
{
    struct list *node = list_pop_front(&net->todo);
    struct end *end;

    if (!node)
        return false;
    end = container_of(node, struct end, todo);
    while (end->handled < end->seen_count)
        handle(end, &end->seen[end->handled++]);
    end_check(end);
    if (end->side->closes_after && is_over(end))
        end_close(end);
    return true;
}

/* --- time ------------------------------------------------------------------------------------------- */

static ns_t next_of(const struct net *net)
{
    ns_t next = min_of(timer_next(&net->flights), timer_next(&net->answers));

    for (unsigned i = 0; i < 2; i++)
        if (net->sides[i]->alive)
            next = min_of(next, cm_next(&net->sides[i]->cm));
    return next;
}

bool net_step(struct net *net)
{
    ns_t next;
    struct timer *timer;

    if (react(net))
        return true;
    next = next_of(net);
    if (next == NS_NEVER)
        return false;
    net->now = max_of(net->now, next);
    if (deliver(net))
        return true;
    timer = timer_take_due(&net->answers, net->now);
    if (timer) {
        answer(container_of(timer, struct end, timer));
        return true;
    }
    for (unsigned i = 0; i < 2; i++)
        if (net->sides[i]->alive && cm_next(&net->sides[i]->cm) <= net->now)
            cm_run(&net->sides[i]->cm, net->now);
    return true;
}

void net_run(struct net *net, ns_t until)
{
    while (!list_empty(&net->todo) || next_of(net) <= until)
        net_step(net);
    net->now = max_of(net->now, until);
}

void net_settle(struct net *net)
{
    uint64_t steps = 0;

    while (net_step(net))
        assert_true(++steps < 10000000);
}

/* --- sides ------------------------------------------------------------------------------------------ */

static struct side *side_new(struct net *net, unsigned number)
{
    struct side *side = calloc(1, sizeof(*side));

    side->net = net;
    side->number = number;
    side->incarnation = ++net->incarnations;
    side->alive = true;
    side->path = (struct cm_path){.local_guid = 0x0200fffe00000000u | number,
                                  .flow_label = 0x12345,
                                  .traffic_class = 0x20,
                                  .hop_limit = 64,
                                  .packet_rate = 3,
                                  .cookie = 77};
    side->path.local_gid[0] = side->path.remote_gid[0] = 0xfd;
    side->path.local_gid[15] = (uint8_t)(number + 1);
    side->path.remote_gid[15] = (uint8_t)(!number + 1);
    list_init(&side->ends);
    side->next_qpn = 0x1000 * (uint32_t)side->incarnation;
    side->listens = side->establishes = true;
    side->room = UINT32_MAX;
    side->timing = (struct cm_timing)CM_TIMING_DEFAULT;
    side->accept = (struct cm_accept){.responder_resources = 3, .initiator_depth = 2, .rnr_retry_count = 6};
    cm_init(&side->cm, &ports);
    assert_int_equal(cm_grant_block(&side->cm, (uint16_t)(0x100 * side->incarnation)), 0);
    return side;
}

struct net *net_new(uint64_t seed)
{
    struct net *net = calloc(1, sizeof(*net));

    net->now = NS_PER_S;
    net->random = seed * 0x9e3779b97f4a7c15 + 1;
    net->delay = 50 * NS_PER_US;
    net->log = calloc(LOG_MAX, sizeof(*net->log));
    list_init(&net->flying);
    list_init(&net->todo);
    for (unsigned i = 0; i < 2; i++)
        net->sides[i] = side_new(net, i);
    return net;
}

static void side_drop(struct side *side)
{
    list_for_each_safe (node, following, &side->ends)
        forget(container_of(node, struct end, in_side));
}

void side_kill(struct side *side)
{
    side->alive = false;
    side_drop(side);
}

struct side *side_restart(struct net *net, unsigned number)
{
    struct side *old = net->sides[number], *side;

    if (old->alive)
        side_kill(old);
    side = side_new(net, number);
    side->timing = old->timing;
    side->program = old->program;
    free(old);
    net->sides[number] = side;
    return side;
}

void net_free(struct net *net)
{
    for (unsigned i = 0; i < 2; i++) {
        if (net->sides[i]->alive)
            side_check(net->sides[i]);
        side_drop(net->sides[i]);
        free(net->sides[i]);
    }
    list_for_each_safe (node, following, &net->flying) {
        struct flight *flight = container_of(node, struct flight, node);

        free(flight);
    }
    free(net->flights.entries);
    free(net->answers.entries);
    free(net->log);
    free(net);
}

struct cm_connect connect_of(const struct end *end)
{
    const struct side *side = end->side;
    static uint8_t private_data[CM_REQ_PRIVATE];
    struct cma_header header = {.ip_version = 6, .source_port = 4321};

    memcpy(header.source, side->path.local_gid, 16);
    memcpy(header.destination, side->path.remote_gid, 16);
    cma_header_encode(&header, private_data);
    memset(private_data + CMA_HEADER_LENGTH, 0x5a, sizeof(private_data) - CMA_HEADER_LENGTH);
    return (struct cm_connect){
        .path = side->path,
        .service_id = SERVICE_ID,
        .timing = side->timing,
        .service = CM_SERVICE_RC,
        .path_mtu = 3,
        .qpn = end->qpn,
        .responder_resources = 5,
        .initiator_depth = 4,
        .retry_count = 10,
        .rnr_retry_count = 5,
        .private_data = private_data,
        .private_length = sizeof(private_data),
    };
}

struct end *side_connect(struct side *side)
{
    struct end *end = end_new(side);
    const struct cm_connect connect = connect_of(end);

    assert_int_equal(cm_connect(&side->cm, &end->id, &connect, side->net->now), 0);
    end->comm_id = cm_id_local_comm_id(&end->id);
    return end;
}

struct end *side_resolve(struct side *side)
{
    struct end *end = end_new(side);
    const struct cm_resolve resolve = {.path = side->path, .service_id = SERVICE_ID, .timing = side->timing};

    end->datagram = true;
    assert_int_equal(cm_resolve(&side->cm, &end->id, &resolve, side->net->now), 0);
    return end;
}

struct end *end_peer(const struct end *end)
{
    struct side *other = end->side->net->sides[!end->side->number];

    if (!other->alive || !cm_id_remote_comm_id(&end->id))
        return NULL;
    list_for_each (node, &other->ends) {
        struct end *peer = container_of(node, struct end, in_side);

        if (cm_id_local_comm_id(&peer->id) == cm_id_remote_comm_id(&end->id) &&
            cm_id_remote_comm_id(&peer->id) == cm_id_local_comm_id(&end->id))
            return peer;
    }
    return NULL;
}

struct end *side_passive(struct side *side)
{
    struct end *found = NULL;

    list_for_each (node, &side->ends)
        if (container_of(node, struct end, in_side)->passive)
            found = container_of(node, struct end, in_side);
    return found;
}

const struct seen *end_saw(const struct end *end, enum cm_event_type type)
{
    for (unsigned i = 0; i < end->seen_count; i++)
        if (end->seen[i].type == type)
            return &end->seen[i];
    return NULL;
}

int side_inject(struct side *side, const struct cm_mad *mad)
{
    const struct side *other = side->net->sides[!side->number];
    struct cm_path from = side->path;
    uint8_t bytes[MAD_LENGTH];

    from.peer = side->net->of_other_hosts ? 0 : other->incarnation;
    cm_mad_encode(mad, bytes);
    return cm_receive(&side->cm, &from, bytes, sizeof(bytes), side->net->now);
}

/* --- invariants ------------------------------------------------------------------------------------- */

/* The events that may precede each event of an end. */
void end_check(const struct end *end)
{
    const unsigned start = 1u << 31, none = 0;
    unsigned before = start;

    for (unsigned i = 0; i < end->seen_count; i++) {
        unsigned allowed = none;

        switch (end->seen[i].type) {
        case CM_EVENT_REPLY:
            allowed = end->passive ? none : start;
            break;
        case CM_EVENT_ESTABLISHED:
            allowed = end->passive ? start : none;
            break;
        case CM_EVENT_REJECTED:
            allowed = start | 1u << CM_EVENT_REPLY;
            break;
        case CM_EVENT_UNREACHABLE:
            allowed = start;
            break;
        case CM_EVENT_DISCONNECTED:
            allowed = 1u << CM_EVENT_REPLY | 1u << CM_EVENT_ESTABLISHED;
            break;
        case CM_EVENT_TIMEWAIT_EXIT:
            allowed = 1u << CM_EVENT_DISCONNECTED;
            break;
        case CM_EVENT_RESOLVED:
            allowed = end->datagram && !end->passive ? start : none;
            break;
        }
        if (!(before & allowed))
            fail_msg("event %d (status %d) of a%s end, as its number %u", end->seen[i].type,
                     end->seen[i].status, end->passive ? " passive" : "n active", i);
        before = 1u << end->seen[i].type;
    }
}

static unsigned count_table(struct cm_link *const *table)
{
    unsigned count = 0;

    for (unsigned i = 0; i < CM_BUCKETS; i++)
        for (struct cm_link *const *at = &table[i]; *at; at = &(*at)->next) {
            assert_ptr_equal((*at)->to_this, at);
            count++;
        }
    return count;
}

static unsigned count_heap(const struct cm_id *id, const struct cm_id *previous, ns_t not_before)
{
    unsigned count = 0;

    for (; id; previous = id, id = id->deadline.next) {
        assert_ptr_equal(id->deadline.previous, previous);
        assert_true(id->deadline.at >= not_before && id->deadline.at != NS_NEVER);
        count += 1 + count_heap(id->deadline.child, id, id->deadline.at);
    }
    return count;
}

void side_check(struct side *side)
{
    unsigned local = 0, remote = 0, qpn = 0, armed = 0, lingering = 0, used = 0;

    list_for_each (node, &side->ends) {
        const struct end *end = container_of(node, struct end, in_side);
        const struct cm_id *id = &end->id;

        local += id->by_local.to_this != NULL;
        remote += id->by_remote.to_this != NULL;
        qpn += id->by_qpn.to_this != NULL;
        armed += id->deadline.at != NS_NEVER;
        used += cm_id_local_comm_id(id) != 0;
        lingering += end_state(end) == CM_STATE_TIMEWAIT || end_state(end) == CM_STATE_SIDR_REP_SENT;
        if (end_state(end) == CM_STATE_IDLE)
            assert_true(!id->by_local.to_this && !id->by_remote.to_this && !id->by_qpn.to_this &&
                        id->deadline.at == NS_NEVER);
        end_check(end);
    }
    assert_int_equal(count_table(side->cm.by_local), local);
    assert_int_equal(count_table(side->cm.by_remote), remote);
    assert_int_equal(count_table(side->cm.by_qpn), qpn);
    assert_int_equal(count_heap(side->cm.earliest, NULL, 0), armed);
    assert_int_equal(side->cm.lingering, lingering);
    for (unsigned i = 0; i < side->cm.block_count; i++)
        used -= side->cm.blocks[i].used;
    assert_int_equal(used, 0);
}
