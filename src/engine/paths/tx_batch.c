/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Small requests that wait for others. A datagram costs the same with one small packet or with many. So where
 * a program goes on posting while much of what it has posted is on its way, packets stay in the lane for
 * those that follow: until these are so many, the program polls or ends, or the helper thread does anything,
 * which it is woken to by the acknowledgement of what is on its way, if nobody polls. Whoever posts and does
 * not poll is not made to wait for that. */
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"
#include "wire/opcode.h"

#define BATCH_MIN_INFLIGHT 8u   /* packets on their way */
#define BATCH_MAX          32u  /* that stay */
#define BATCH_MAX_UNPOLLED 256u /* sent since the program polled */
/* A program that has posted so many between two polls, so often in a row, does so the next time, too: then
 * one packet on its way is enough. If it does not, that was the last time for a while. */
#define BATCH_BURST           32u
#define BATCH_BURSTS_TO_TRUST 4u

static _Atomic uint32_t batched_lanes; /* lanes (bits) where something stays */
static _Atomic uint32_t flushes;       /* how often that ended */

/* Does it wait for an acknowledgement, and does nothing of its message follow anyway? */
bool tx_batch_is_single_request(uint8_t opcode)
{
    uint32_t wanted = OPCODE_REQUEST | OPCODE_ONLY;

    return (opcode_table[opcode].properties & wanted) == wanted &&
           (BTH_SERVICE(opcode) == SERVICE_RC || BTH_SERVICE(opcode) == SERVICE_XRC);
}

static void count_posts(struct qp *qp)
{
    uint32_t polls = atomic_load_explicit(&progress_application_polls, memory_order_relaxed);

    if (route_of(qp)->polls_seen != polls) {
        if (route_of(qp)->unpolled < BATCH_BURST)
            route_of(qp)->bursts = 0;
        else if (route_of(qp)->bursts < BATCH_BURSTS_TO_TRUST)
            route_of(qp)->bursts++;
        route_of(qp)->polls_seen = polls;
        route_of(qp)->unpolled = 0;
    }
    if (route_of(qp)->unpolled < BATCH_MAX_UNPOLLED)
        route_of(qp)->unpolled++;
}

static bool may_batch(struct qp *qp, const struct packet *packet)
{
    uint32_t epoch = atomic_load_explicit(&flushes, memory_order_relaxed);
    int32_t ahead = psn_diff(packet->psn, qp->record->sender.unacked_psn);
    uint32_t min_inflight;

    count_posts(qp);
    min_inflight = route_of(qp)->bursts < BATCH_BURSTS_TO_TRUST ? BATCH_MIN_INFLIGHT : 1;
    if (route_of(qp)->batch_epoch != epoch) {
        route_of(qp)->batch_epoch = epoch;
        route_of(qp)->batched = 0;
    }
    return ahead >= (int32_t)(min_inflight + route_of(qp)->batched) && route_of(qp)->batched < BATCH_MAX &&
           route_of(qp)->unpolled < BATCH_MAX_UNPOLLED;
}

bool tx_batch_add(struct qp *qp, const struct packet *packet)
{
    if (!tx_batch_is_single_request(packet->opcode) || !may_batch(qp, packet)) {
        route_of(qp)->batched = 0;
        return false;
    }
    route_of(qp)->batched++;
    atomic_fetch_or_explicit(&batched_lanes, 1u << udp_lane_number(route_of(qp)->network_lane),
                             memory_order_relaxed);
    return true;
}

uint32_t tx_batch_take(void)
{
    if (likely(!atomic_load_explicit(&batched_lanes, memory_order_relaxed)))
        return 0;
    atomic_fetch_add_explicit(&flushes, 1, memory_order_relaxed);
    return atomic_exchange_explicit(&batched_lanes, 0, memory_order_relaxed);
}
