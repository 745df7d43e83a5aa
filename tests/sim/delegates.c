/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Other processes with SRQs of an XRC domain: a minimal substitute for engine/xrc/relay.c and object/xrc/delegate.c.
 * Packets between processes are events of the clock. */
#include <errno.h>

#include "sim_events.h"

enum { DELEGATES = 7 };

struct delegate {
    struct sim_delegates *all;
    struct sim_qp *qp;
    uint32_t there, back; /* packets in flight in each direction */
    bool known, asked;    /* the SRQ's process was found; is being looked for */
};

/* Of an XRC_RECV QP; its delegates point here, too. */
struct sim_delegates {
    struct sim_qp *qp;
    struct delegate delegate[DELEGATES];
    unsigned count;
    struct delegate *last; /* that requests went to */
    bool blocked;          /* a ring had no room */
    uint32_t capacity;
    ns_t delay;
};

struct terms {
    uint32_t epoch, msn;
    psn_t expected_psn;
    bool resumes;
};

/* On a ring between processes. */
struct crossing {
    struct delegate *delegate;
    bool back, is_terms;
    struct terms terms;
    struct packet packet;
    unsigned char bytes[];
};

static struct sim_qp *owner(struct transport_qp *transport)
{
    return container_of(transport, struct sim_qp, transport);
}

static struct crossing *crossing_of(struct delegate *delegate, const struct packet *packet,
                                    const struct iovec *gather, unsigned count)
{
    struct crossing *crossing = calloc(1, sizeof(*crossing) + packet->payload_length);
    size_t at = 0;

    assert_false(packet->flags & (PACKET_BY_REFERENCE | PACKET_HAS_ACK));
    for (unsigned i = 0; i < count; i++) {
        memcpy(crossing->bytes + at, gather[i].iov_base, gather[i].iov_len);
        at += gather[i].iov_len;
    }
    assert_int_equal(at, packet->payload_length);
    crossing->delegate = delegate;
    crossing->packet = *packet;
    crossing->packet.payload = crossing->bytes;
    return crossing;
}

/* --- the process that has the SRQ ----------------------------------------------------------------- */

static void agree(struct sim_qp *qp, const struct terms *terms)
{
    struct responder *responder = &qp->record.responder;

    qp->record.attributes.path.destination_ifindex = terms->epoch;
    if (terms->resumes)
        return;
    responder->expected_psn = terms->expected_psn;
    responder->msn = terms->msn;
    responder->message = MESSAGE_NONE;
    responder->nak_sent = NAK_NONE;
    responder->owed_syndrome = 0;
}

static void arrive_there(struct crossing *crossing)
{
    struct sim_qp *qp = crossing->delegate->qp;

    if (crossing->is_terms) {
        agree(qp, &crossing->terms);
    } else if (qp->record.state == IBV_QPS_RTS) {
        transport_receive(&qp->transport, &crossing->packet);
        sim_settle(qp, qp->lazy_ack);
    }
}

static void arrive_back(struct crossing *crossing)
{
    struct sim_delegates *all = crossing->delegate->all;
    struct transport_qp *transport = &all->qp->transport;

    if (all->last != crossing->delegate || crossing->packet.dest_ifindex != transport->relay.epoch)
        return;
    relay_response(transport, &crossing->packet, opcode_table[crossing->packet.opcode].properties);
    if (responder_owes(transport))
        sim_settle(all->qp, all->qp->lazy_ack);
}

static void go_on(struct sim_delegates *all)
{
    relay_again(&all->qp->transport);
    sim_kick_later(all->qp);
}

static void arrive(struct sim *sim, void *argument)
{
    struct crossing *crossing = argument;
    struct delegate *delegate = crossing->delegate;

    if (crossing->back) {
        delegate->back--;
        if (delegate->qp->blocked) {
            delegate->qp->blocked = false;
            sim_kick_later(delegate->qp);
        }
        arrive_back(crossing);
    } else {
        delegate->there--;
        if (delegate->all->blocked) {
            delegate->all->blocked = false;
            go_on(delegate->all);
        }
        arrive_there(crossing);
    }
    free(crossing);
}

static struct delegate *delegate_of(struct sim_qp *qp)
{
    struct delegate *delegate = qp->delegates->delegate;

    while (delegate->qp != qp)
        delegate++;
    return delegate;
}

static void cross_back(struct delegate *delegate, const struct packet *packet, const struct iovec *gather,
                       unsigned count)
{
    struct crossing *crossing = crossing_of(delegate, packet, gather, count);

    delegate->back++;
    crossing->back = true;
    sim_at(delegate->qp->node->sim, delegate->all->delay, arrive, crossing);
}

static int port_send_back(struct transport_qp *transport, const struct packet *packet,
                          const struct iovec *gather, unsigned count, const struct path_address *to)
{
    struct delegate *delegate = delegate_of(owner(transport));

    if (delegate->back >= delegate->all->capacity) {
        delegate->qp->blocked = true;
        return -EAGAIN;
    }
    cross_back(delegate, packet, gather, count);
    return 0;
}

/* The ring between the two processes stores a notice that it has no room for. */
static void port_send_notice_back(struct transport_qp *transport, const struct packet *packet)
{
    cross_back(delegate_of(owner(transport)), packet, NULL, 0);
}

/* --- the process that has the QP ------------------------------------------------------------------ */

static int cross(struct delegate *delegate, const struct packet *packet, const struct terms *terms)
{
    struct sim_delegates *all = delegate->all;
    struct iovec payload = {(void *)(uintptr_t)packet->payload, packet->payload_length};
    struct crossing *crossing;

    if (delegate->there >= all->capacity) {
        all->blocked = true;
        return -EAGAIN;
    }
    delegate->there++;
    crossing = crossing_of(delegate, packet, &payload, packet->payload_length ? 1 : 0);
    if (terms) {
        crossing->is_terms = true;
        crossing->terms = *terms;
    }
    sim_at(all->qp->node->sim, all->delay, arrive, crossing);
    return 0;
}

static int send_terms(struct delegate *delegate)
{
    const struct transport_qp *transport = &delegate->all->qp->transport;
    const struct responder *responder = &transport->record->responder;
    const struct terms terms = {
        .epoch = transport->relay.epoch,
        .msn = responder->msn,
        .expected_psn = responder->expected_psn,
        .resumes = transport->relay.resumes,
    };

    return cross(delegate, &(struct packet){0}, &terms);
}

static void learn(struct sim *sim, void *argument)
{
    struct delegate *delegate = argument;

    delegate->known = true;
    go_on(delegate->all);
}

static struct delegate *find(struct sim_delegates *all, uint32_t srqn)
{
    for (unsigned i = 0; i < all->count; i++) {
        if (sim_has_srq(all->delegate[i].qp, srqn))
            return &all->delegate[i];
    }
    return NULL;
}

static int port_hand_over(struct transport_qp *transport, const struct packet *packet, bool may_move)
{
    struct sim_delegates *all = owner(transport)->delegates;
    struct relay *relay = &transport->relay;
    struct delegate *delegate = find(all, packet->srqn);
    struct packet out = *packet;

    if (!delegate)
        return -ENOENT;
    if (!delegate->known) {
        if (!delegate->asked)
            sim_at(all->qp->node->sim, all->delay * 10, learn, delegate);
        delegate->asked = true;
        return -EAGAIN;
    }
    if (!relay_is_away(relay) || delegate != all->last || relay->resumes) {
        bool elsewhere = !relay_is_away(relay) || delegate != all->last;

        if (elsewhere) {
            if (!may_move)
                return -EAGAIN;
            relay->epoch++;
            relay->resumes = relay->displaced && find(all, relay->srqn) == delegate;
        }
        all->last = delegate;
        if (send_terms(delegate)) {
            relay->resumes = !elsewhere;
            if (elsewhere)
                relay_move_failed(transport);
            return -EAGAIN;
        }
        relay->resumes = false;
    }
    out.src_qpn = all->qp->record.qpn;
    return cross(delegate, &out, NULL);
}

/* --- creation ------------------------------------------------------------------------------------- */

static struct transport_ports here_ports, there_ports;
static struct transport_xrc_ports here_xrc_ports;

static struct sim_delegates *delegates_of(struct sim_qp *qp)
{
    struct sim *sim = qp->node->sim;
    struct sim_delegates *all = qp->delegates;

    if (all)
        return all;
    here_ports = there_ports = sim_ports;
    here_xrc_ports = sim_xrc_ports;
    here_xrc_ports.hand_over = port_hand_over;
    here_ports.xrc = &here_xrc_ports;
    there_ports.send = port_send_back;
    there_ports.send_notice = port_send_notice_back;
    all = calloc(1, sizeof(*all));
    all->qp = qp;
    all->capacity = 2 + sim_below(sim, 30);
    all->delay = 100 + sim_below(sim, 5000);
    qp->delegates = all;
    qp->transport.ports = &here_ports;
    qp->transport.relay.possible = true;
    return all;
}

struct sim_qp *sim_delegate(struct sim_qp *qp, uint32_t srqn)
{
    struct sim *sim = qp->node->sim;
    struct sim_delegates *all = delegates_of(qp);
    struct delegate *delegate = &all->delegate[all->count++];
    struct sim_qp *there;

    assert_true(all->count < DELEGATES);
    there = sim_qp(&sim->node[(qp->node->number + all->count) % SIM_NODES], IBV_QPT_XRC_RECV);
    there->srqn = srqn;
    there->delegates = all;
    there->transport.ports = &there_ports;
    there->transport.link = (struct link_properties){.mtu = qp->transport.link.mtu,
                                                     .reference_from = UINT32_MAX,
                                                     .read_reference_from = UINT32_MAX,
                                                     .reliable = true,
                                                     .local = true};
    there->record.attributes.dest_qpn = qp->record.qpn;
    there->record.responder.established = true;
    sim_set_state(there, IBV_QPS_RTS);
    *delegate = (struct delegate){.all = all, .qp = there};
    return there;
}

void sim_forget_delegates(struct sim_qp *qp)
{
    if (qp->delegates && qp->delegates->qp == qp)
        free(qp->delegates);
}
