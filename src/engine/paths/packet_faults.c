/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asks for, of packets: to the network (network.c), and to this host. */
#include <stdlib.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/faults.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "wire/codec.h"
#include "wire/opcode.h"

/* How often packets were sent, of the last PSNs. Requests and responses have PSNs of their own. */
#define PSNS 256u
struct packet_history {
    struct sent {
        uint32_t psn, times;
    } sent[2][PSNS];
    /* Of a request or a response that found no space, and is sent again. */
    struct kept {
        bool valid;
        uint32_t psn;
        struct packet_fate fate;
    } kept[2];
    struct packet_fate last; /* that was decided */
};

static bool is_response(const struct packet *packet)
{
    return !(opcode_table[packet->opcode].properties & OPCODE_REQUEST);
}

/* 0: the first transmission. */
static uint32_t count_transmission(struct qp *qp, bool response, uint32_t psn)
{
    struct packet_history **history = &route_of(qp)->history;
    struct sent *sent;

    if (!*history)
        *history = calloc(1, sizeof(**history));
    if (!*history)
        return 0;
    sent = &(*history)->sent[response][psn % PSNS];
    if (sent->psn != psn)
        *sent = (struct sent){.psn = psn};
    return sent->times++;
}

/* Ethernet with FCS, IPv4 and UDP. */
#define FCS_LENGTH    4u
#define OUTER_HEADERS (14u + FCS_LENGTH + 20u + 8u)

/* A link that takes `value` bits in a second: how long the packet waits for those before it. */
static ns_t wait_for_link(struct inject_fault *fault, const struct packet *packet)
{
    uint32_t bytes = packet->flags & PACKET_FRAME ? packet->payload_length + FCS_LENGTH
                                                  : codec_udp_payload_length(packet) + OUTER_HEADERS;
    uint64_t bits = bytes * 8ull;
    ns_t takes = bits * NS_PER_S / fault->rule.value, now = sys_now();
    uint64_t seen = atomic_load_explicit(&fault->busy_until, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(&fault->busy_until, &seen, max_of(seen, now) + takes,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
    return seen > now ? seen - now : 0;
}

/* What a frame carries is the program's, and nobody answers a mark in it. */
static bool may_strike(const struct inject_rule *rule, const struct qp *qp)
{
    return qp->record->type != IBV_QPT_RAW_PACKET || rule->what != INJECT_MARK;
}

static bool selects(const struct inject_rule *rule, const struct qp *qp, enum inject_class class)
{
    return rule->kind == INJECT_PACKET && (!rule->qp || rule->qp == qp->order) && may_strike(rule, qp) &&
           (rule->of == INJECT_ALL_PACKETS || rule->of == class) &&
           inject_is_for_device(rule, qp->context->device->name);
}

/* Adds what the rule does. False: the packet does not meet it. */
static bool add_fate(struct packet_fate *fate, struct inject_fault *fault, const struct packet *packet)
{
    ns_t wait;

    switch ((enum inject_packet)fault->rule.what) {
    case INJECT_DROP:
        fate->lost = true;
        return true;
    case INJECT_DUPLICATE:
        fate->twice = true;
        return true;
    case INJECT_CORRUPT:
        fate->broken = true;
        return true;
    case INJECT_DELAY:
        fate->wait += fault->rule.time;
        return true;
    case INJECT_REORDER:
        fate->wait += fault->rule.time;
        fate->later = (uint32_t)fault->rule.value;
        return true;
    case INJECT_RATE:
        wait = wait_for_link(fault, packet);
        fate->wait += wait;
        return wait != 0;
    case INJECT_MARK:
        fate->marked = true;
        return true;
    case INJECT_PACKETS:
        break;
    }
    return false;
}

bool packet_faults_name(const struct qp *qp)
{
    const struct inject_plan *plan = inject_loaded();

    if (!plan || !qp->order || qp->spreads_over || route_of(qp)->by_network)
        return false;
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct inject_rule *rule = &plan->faults[i]->rule;

        if (selects(rule, qp, (enum inject_class)rule->of))
            return true;
    }
    return false;
}

static enum capture_fate captured_fate(const struct packet_fate *fate)
{
    if (fate->lost)
        return CAPTURE_LOST;
    if (fate->broken)
        return CAPTURE_BROKEN;
    if (fate->twice)
        return CAPTURE_TWICE;
    return fate->wait ? CAPTURE_HELD : fate->marked ? CAPTURE_MARKED : CAPTURE_PASSED;
}

static bool take_kept(struct qp *qp, const struct packet *packet, struct packet_fate *ret_fate)
{
    struct packet_history *history = route_of(qp)->history;
    struct kept *kept = history ? &history->kept[is_response(packet)] : NULL;

    if (!kept || !kept->valid || kept->psn != packet->psn.value)
        return false;
    kept->valid = false;
    *ret_fate = kept->fate;
    return true;
}

cold_path void packet_fault_keep(struct qp *qp, const struct packet *packet, const struct packet_fate *fate)
{
    if (route_of(qp)->history)
        route_of(qp)->history->kept[is_response(packet)] =
            (struct kept){.valid = true, .psn = packet->psn.value, .fate = *fate};
}

/* Programs begin with a random PSN, so a seed decides by the distance from it. */
static psn_t first_psn(const struct qp *qp, bool response)
{
    const struct qp_attributes *attributes = &qp->record->attributes;

    return psn_make(response ? attributes->rq_psn : attributes->sq_psn);
}

/* Each fault that strikes adds its part, but a packet that is lost needs no more. */
static struct packet_fate decide(struct qp *qp, const struct packet *packet)
{
    struct inject_plan *plan = inject_loaded();
    uint32_t psn = packet->psn.value;
    bool response = is_response(packet);
    enum inject_class class = response ? INJECT_RESPONSES : INJECT_REQUESTS;
    struct inject_point point = {.qp = qp->order, .direction = class};
    struct packet_fate fate = {.lost = false};

    point.index = psn_distance(first_psn(qp, response), packet->psn) + 1;
    point.transmission = count_transmission(qp, response, psn);
    for (uint32_t i = 0; plan && i < plan->count && !fate.lost; i++) {
        struct inject_fault *fault = plan->faults[i];
        struct inject_strike strike = {.fault = fault, .qpn = qp->ibv.qp_num, .value = psn};

        if (!selects(&fault->rule, qp, class) || !inject_select(fault, &point, &strike.match) ||
            !add_fate(&fate, fault, packet))
            continue;
        qp->packets_struck = true;
        faults_note(&strike);
    }
    return fate;
}

cold_path struct packet_fate packet_fault(struct qp *qp, const struct packet *packet)
{
    struct packet_fate fate;

    if (!take_kept(qp, packet, &fate))
        fate = decide(qp, packet);
    route_of(qp)->fate = (uint8_t)captured_fate(&fate);
    if (route_of(qp)->history)
        route_of(qp)->history->last = fate;
    return fate;
}

struct packet_fate packet_fault_of_last(const struct qp *qp)
{
    return route_of(qp)->history ? route_of(qp)->history->last : (struct packet_fate){.lost = false};
}

/* The peer is told in the place of the packet, so that it expects losses before it misses one. */
static void send_word(struct qp *qp, struct lane *lane, const struct packet *packet, enum lossy_word word)
{
    if (is_connected(qp->record))
        notice_send_word(qp, lane, packet->psn, opcode_is_read_response(packet->opcode), word);
}

int packet_faults_send(struct qp *qp, struct lane *lane, const struct packet *packet,
                       const struct iovec *gather, unsigned gather_count)
{
    struct packet_fate fate = {.lost = false};
    struct packet sent = *packet;
    int error;

    if (is_connected(qp->record))
        sent.flags |= PACKET_LOSSY;
    /* A request that was begun before the faults were loaded stays as it is: memory may not be held by a copy. */
    if (!(packet->flags & PACKET_BY_REFERENCE))
        fate = packet_fault(qp, packet);
    if (fate.lost || fate.broken || fate.wait) {
        send_word(qp, lane, packet, fate.broken ? LOSSY_BROKEN : LOSSY_LOST);
        for (unsigned i = 0; !fate.lost && !fate.broken && i <= fate.twice; i++)
            held_packets_add(qp, lane, NULL, &sent, gather, gather_count, &fate);
        return 0;
    }
    if (fate.marked && congestion_is_notified(packet))
        send_word(qp, lane, packet, LOSSY_MARKED);
    if (fate.twice && !route_send_on(qp, lane, &sent, gather, gather_count))
        fate.twice = false;
    error = route_send_on(qp, lane, &sent, gather, gather_count);
    if (error == -EAGAIN)
        packet_fault_keep(qp, packet, &fate);
    if (!error) {
        route_kick(qp, lane);
        held_packets_passed(qp);
    }
    return error;
}

bool packet_faults_spread(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                          unsigned gather_count, struct packet_fate *fate)
{
    /* A receiver that finds its ICRC or FCS wrong drops it, and nobody hears of that. */
    if (fate->lost || fate->broken)
        return false;
    for (unsigned i = 0, copies = fate->twice ? 2 : 1; fate->wait && i < copies; i++)
        held_packets_add(qp, NULL, NULL, packet, gather, gather_count, fate);
    return !fate->wait;
}

void packet_faults_forget(struct qp *qp)
{
    held_packets_forget(qp);
    free(route_of(qp)->history);
    route_of(qp)->history = NULL;
}
