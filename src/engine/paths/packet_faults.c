/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asks for, of packets that leave for the network. */
#include <stdlib.h>

#include "engine/core/core.h"
#include "engine/core/faults.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
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

cold_path enum packet_fate packet_fault(struct qp *qp, const struct packet *packet)
{
    struct inject_plan *plan = inject_loaded();
    uint32_t psn = packet->psn.value;
    bool response = !(opcode_table[packet->opcode].properties & OPCODE_REQUEST);
    struct inject_point point = {.qp = qp->order, .direction = response ? INJECT_RESPONSES : INJECT_REQUESTS};

    point.index = psn + 1;
    point.transmission = count_transmission(qp, response, psn);
    for (uint32_t i = 0; i < plan->count; i++) {
        struct inject_fault *fault = &plan->faults[i];
        const struct inject_rule *rule = &fault->rule;
        struct inject_strike strike = {.fault = fault, .qpn = qp->ibv.qp_num, .value = psn};

        if (rule->kind != INJECT_PACKET || (rule->qp && rule->qp != qp->order) ||
            (rule->of != INJECT_ALL_PACKETS && rule->of != point.direction) ||
            !inject_is_for_device(rule, qp->context->device->name) ||
            !inject_count(fault, &point, &strike.match))
            continue;
        faults_note(&strike);
        return rule->what == INJECT_DROP        ? PACKET_LOST
               : rule->what == INJECT_DUPLICATE ? PACKET_TWICE
                                                : PACKET_BROKEN;
    }
    return PACKET_PASSES;
}

void packet_faults_forget(struct qp *qp)
{
    free(route_of(qp)->history);
    route_of(qp)->history = NULL;
}
