/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links between processes that lose packets for a time: a minimal substitute for engine/paths/by_packets.c and
 * packet_faults.c, with the words of engine/paths/notices.c. */
#include "sim_events.h"

static bool may_lose(const struct sim_qp *qp)
{
    return qp->loses || qp->peer_loses;
}

/* by_packets_choose(), and what route_set_lane() makes of it. */
static void choose(struct sim_qp *qp)
{
    const struct link_properties *properties = &qp->node->sim->link.properties;
    struct transport_qp *transport = &qp->transport;
    struct link_properties *link = &transport->link;

    qp->recovers = false;
    if (may_lose(qp)) {
        transport->holds = false;
        if (link->reliable)
            sender_expect_losses(transport);
    } else if (!link->reliable) {
        qp->recovers = !sender_end_losses(transport);
        qp->held_at = qp->record.sender.begun;
    }
    link->piggyback_acks = properties->piggyback_acks && link->reliable;
    link->reference_from = link->reliable ? properties->reference_from : UINT32_MAX;
    link->read_reference_from = link->reliable ? properties->read_reference_from : UINT32_MAX;
}

void sim_lose(struct sim_qp *qp, bool loses)
{
    if (qp->loses == loses)
        return;
    qp->loses = loses;
    choose(qp);
    sim_kick_later(qp);
}

/* --- sending -------------------------------------------------------------------------------------- */

static void send_word(struct sim *sim, const struct sim_event *lost)
{
    struct sim_event word = {.kind = EVENT_PACKET, .qp = lost->qp, .from = lost->from, .to = lost->to};

    word.packet = (struct packet){
        .opcode = OP_ACKNOWLEDGE,
        .flags = PACKET_DROPPED | PACKET_LOSSY,
        .dest_qpn = lost->packet.dest_qpn,
        .src_qpn = lost->packet.src_qpn,
        .psn = lost->packet.psn,
        .syndrome = LOSSY_LOST,
    };
    sim_put_on_link(sim, word, sim->link.delay);
}

/* A packet that refers to memory is never held: the memory is the program's as soon as it is acknowledged. */
void sim_send_losing(struct sim_qp *qp, struct sim_event event)
{
    struct sim *sim = qp->node->sim;
    const struct sim_link *link = &sim->link;
    const bool by_reference = event.packet.flags & PACKET_BY_REFERENCE;
    ns_t delay = link->delay;

    event.packet.flags |= PACKET_LOSSY;
    if (!by_reference && sim_chance(sim, link->loss_percent) && sim_may_hit(qp, &event.packet)) {
        sim->lost++;
        send_word(sim, &event);
        sim_free_event(&event);
        return;
    }
    if (!by_reference && sim_chance(sim, link->reorder_percent) && sim_may_hit(qp, &event.packet)) {
        sim->reordered++;
        send_word(sim, &event);
        delay += sim_below(sim, 20 * (uint32_t)NS_PER_MS);
    }
    if (!by_reference && sim_chance(sim, link->duplicate_percent)) {
        sim->duplicated++;
        sim_put_on_link(sim, sim_copy_of_event(&event), delay);
    }
    sim_put_on_link(sim, event, delay);
}

/* --- receiving ------------------------------------------------------------------------------------ */

static void note_losses(struct sim_qp *qp, bool loses)
{
    if (qp->peer_loses == loses)
        return;
    qp->peer_loses = loses;
    choose(qp);
}

/* by_packets_is_word() */
bool sim_is_word(struct sim_qp *qp, const struct packet *packet)
{
    if (!qp->transport.link.local || packet->src_qpn != qp->record.attributes.dest_qpn)
        return false;
    if (packet->flags & PACKET_LOSSY || !(packet->flags & PACKET_DROPPED))
        note_losses(qp, packet->flags & PACKET_LOSSY);
    return packet->flags & PACKET_DROPPED && packet->flags & PACKET_LOSSY;
}

/* by_packets_received() */
void sim_received_losing(struct sim_qp *qp)
{
    if (!qp->recovers)
        return;
    assert_int_equal(qp->record.sender.begun, qp->held_at); /* nothing new until all is complete */
    if (!sender_is_drained(&qp->transport))
        return;
    choose(qp);
    sender_run(&qp->transport);
}
