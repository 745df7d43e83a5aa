/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asks for, of packets that leave for the network. */
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
};

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
#define OUTER_HEADERS (14u + 4u + 20u + 8u)

/* A link that takes `value` bits in a second: how long the packet waits for those before it. */
static ns_t wait_for_link(struct inject_fault *fault, const struct packet *packet)
{
    uint64_t bits = (codec_udp_payload_length(packet) + OUTER_HEADERS) * 8ull;
    ns_t takes = bits * NS_PER_S / fault->rule.value, now = sys_now();
    uint64_t seen = atomic_load_explicit(&fault->busy_until, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(&fault->busy_until, &seen, max_of(seen, now) + takes,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
    return seen > now ? seen - now : 0;
}

static bool selects(const struct inject_rule *rule, const struct qp *qp, enum inject_class class)
{
    return rule->kind == INJECT_PACKET && (!rule->qp || rule->qp == qp->order) &&
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

/* Each fault that strikes adds its part, but a packet that is lost needs no more. */
cold_path struct packet_fate packet_fault(struct qp *qp, const struct packet *packet)
{
    struct inject_plan *plan = inject_loaded();
    uint32_t psn = packet->psn.value;
    bool response = !(opcode_table[packet->opcode].properties & OPCODE_REQUEST);
    enum inject_class class = response ? INJECT_RESPONSES : INJECT_REQUESTS;
    struct inject_point point = {.qp = qp->order, .direction = class};
    struct packet_fate fate = {.lost = false};

    point.index = psn + 1;
    point.transmission = count_transmission(qp, response, psn);
    for (uint32_t i = 0; i < plan->count && !fate.lost; i++) {
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

void packet_faults_forget(struct qp *qp)
{
    held_packets_forget(qp);
    free(route_of(qp)->history);
    route_of(qp)->history = NULL;
}
