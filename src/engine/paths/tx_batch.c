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

#define BEHIND   8u   /* packets on their way */
#define MOST     32u  /* that stay */
#define UNPOLLED 256u /* sent since the program polled */
/* A program that has posted so many between two polls, so often in a row, does so the next time, too: then
 * one packet on its way is enough. If it does not, that was the last time for a while. */
#define BURST           32u
#define BURSTS_TO_TRUST 4u

static _Atomic uint32_t held;     /* lanes (bits) where something stays */
static _Atomic uint32_t releases; /* how often that ended */

/* Does it wait for an acknowledgement, and does nothing of its message follow anyway? */
bool hold_is_whole_request(uint8_t opcode)
{
    uint32_t wanted = OPCODE_REQUEST | OPCODE_ONLY;

    return (opcode_table[opcode].properties & wanted) == wanted &&
           (BTH_SERVICE(opcode) == SERVICE_RC || BTH_SERVICE(opcode) == SERVICE_XRC);
}

static void count_posts(struct qp *qp)
{
    uint32_t polls = atomic_load_explicit(&progress_application_polls, memory_order_relaxed);

    if (route_of(qp)->polls_seen != polls) {
        if (route_of(qp)->unpolled < BURST)
            route_of(qp)->bursts = 0;
        else if (route_of(qp)->bursts < BURSTS_TO_TRUST)
            route_of(qp)->bursts++;
        route_of(qp)->polls_seen = polls;
        route_of(qp)->unpolled = 0;
    }
    if (route_of(qp)->unpolled < UNPOLLED)
        route_of(qp)->unpolled++;
}

static bool may_stay(struct qp *qp, const struct packet *packet)
{
    uint32_t epoch = atomic_load_explicit(&releases, memory_order_relaxed);
    int32_t ahead = psn_diff(packet->psn, qp->record->sender.unacked_psn);
    uint32_t behind;

    count_posts(qp);
    behind = route_of(qp)->bursts < BURSTS_TO_TRUST ? BEHIND : 1;
    if (route_of(qp)->hold_epoch != epoch) {
        route_of(qp)->hold_epoch = epoch;
        route_of(qp)->held = 0;
    }
    return ahead >= (int32_t)(behind + route_of(qp)->held) && route_of(qp)->held < MOST &&
           route_of(qp)->unpolled < UNPOLLED;
}

bool hold_stays(struct qp *qp, const struct packet *packet)
{
    if (!hold_is_whole_request(packet->opcode) || !may_stay(qp, packet)) {
        route_of(qp)->held = 0;
        return false;
    }
    route_of(qp)->held++;
    atomic_fetch_or_explicit(&held, 1u << udp_lane_number(route_of(qp)->wire), memory_order_relaxed);
    return true;
}

uint32_t hold_take(void)
{
    if (likely(!atomic_load_explicit(&held, memory_order_relaxed)))
        return 0;
    atomic_fetch_add_explicit(&releases, 1, memory_order_relaxed);
    return atomic_exchange_explicit(&held, 0, memory_order_relaxed);
}
