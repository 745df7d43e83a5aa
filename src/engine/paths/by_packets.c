/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs whose requests go as packets, one and all: because they are recorded (core/capture.c), or because the user asks
 * that packets of this host get lost (packet_faults.c). A link of two processes loses nothing, so the machine of a
 * lossy link (docs/transport.md) has to run at both ends while it does. The end that loses says so with each packet;
 * in the place of a lost one goes a word without payload. So the peer knows before it can miss anything, in the order
 * of the ring, and neither end waits for the other (docs/design/faults.md). */
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/memory/mapping.h"
#include "segment/segment.h"

/* UC and UD repeat nothing: what is lost is lost on any link. */
static bool may_recover(const struct qp *qp)
{
    return is_connected(qp->record) && is_reliable(qp->record) && qp->transport.link.local;
}

/* Requests that are outstanding stay as they were sent; the next one is sent by the other machine. QP lock held. */
static bool recovers(struct qp *qp, bool loses)
{
    struct transport_qp *transport = &qp->transport;

    if (!may_recover(qp) || (!loses && transport->link.reliable))
        return false;
    if (!loses)
        return !sender_end_losses(transport);
    transport->holds = false;
    if (transport->link.reliable)
        sender_expect_losses(transport);
    return false;
}

/* Faults of packets strike those of the path MTU, as on a wire. What is begun already keeps its packets. */
static bool cuts(const struct qp *qp, uint8_t why)
{
    return (why & (QP_LOSES | QP_PEER_LOSES)) && is_connected(qp->record) && qp->transport.link.local &&
           qp->record->attributes.path_mtu;
}

void by_packets_choose(struct qp *qp)
{
    uint8_t why = qp->by_packets & QP_PEER_LOSES;

    if (capture_wants(qp))
        why |= QP_CAPTURED;
    if (packet_faults_name(qp))
        why |= QP_LOSES;
    qp->transport.link.carriage = cuts(qp, why) ? WQE_BY_PATH_MTU : WQE_BY_BYTES;
    if (recovers(qp, why & (QP_LOSES | QP_PEER_LOSES)))
        why |= QP_RECOVERS;
    qp->by_packets = why;
}

static void choose_now(struct qp *qp)
{
    by_packets_choose(qp);
    route_path_changed(qp);
    mapping_update_qp(qp);
}

static void choose_anew(struct qp *qp, void *argument)
{
    struct qp_kick kick;

    lock_acquire(&qp->lock);
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed))
        choose_now(qp);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    route_ring(&kick);
}

static void settle(struct qp *qp, void *argument)
{
    mapping_settle_qp(qp);
}

void by_packets_choose_all(void)
{
    rundown_enter();
    qp_for_each(choose_anew, NULL);
    rundown_exit();
    qp_for_each(settle, NULL); /* outside of rundown sections: it waits for peers, for a moment */
}

/* --- what the peer says -------------------------------------------------------------------------------------- */

static void note_losses(struct qp *qp, bool loses)
{
    if (!!(qp->by_packets & QP_PEER_LOSES) == loses)
        return;
    qp->by_packets = (uint8_t)(loses ? qp->by_packets | QP_PEER_LOSES : qp->by_packets & ~QP_PEER_LOSES);
    choose_now(qp);
}

static void take_word(struct qp *qp, const struct packet *packet)
{
    struct network_counters *counters = &segment_header()->network;

    switch ((enum lossy_word)packet->syndrome) {
    case LOSSY_BROKEN:
        atomic_fetch_add_explicit(&counters->bad_icrc, 1, memory_order_relaxed);
        break;
    case LOSSY_MARKED:
        atomic_fetch_add_explicit(&counters->congested, 1, memory_order_relaxed);
        congestion_notify_on_host(qp, packet->msn == 1);
        break;
    case LOSSY_CNP:
        atomic_fetch_add_explicit(&counters->cnps_received, 1, memory_order_relaxed);
        if (qp->by_packets & QP_CAPTURED) {
            struct packet_grh path;

            capture_path_of(qp, true, &path);
            capture_cnp_arrived(qp, &path);
        }
        transport_congested(&qp->transport);
        return; /* of a peer that loses nothing itself */
    case LOSSY_LOST:
        break;
    }
    note_losses(qp, true);
}

bool by_packets_is_word(struct qp *qp, const struct packet *packet)
{
    const uint32_t word = PACKET_DROPPED | PACKET_LOSSY;

    /* Packets of another connection are nobody's (transport/receive.c). */
    if (!is_connected(qp->record) || !qp->transport.link.local || qp->origin ||
        packet->src_qpn != qp->record->attributes.dest_qpn)
        return false;
    if ((packet->flags & word) == word) {
        take_word(qp, packet);
        return true;
    }
    /* A drop notice may have been queued when the peer did not lose yet. */
    if (!(packet->flags & PACKET_DROPPED))
        note_losses(qp, packet->flags & PACKET_LOSSY);
    return false;
}

void by_packets_received(struct qp *qp)
{
    if (!(qp->by_packets & QP_RECOVERS) || !sender_is_drained(&qp->transport))
        return;
    choose_now(qp);
    route_run(qp);
}
