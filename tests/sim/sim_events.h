/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Between sim.c, owner.c and link.c. */
#ifndef TESTS_SIM_SIM_EVENTS_H
#define TESTS_SIM_SIM_EVENTS_H

#include "sim.h"

enum event_kind { EVENT_PACKET, EVENT_TIMER, EVENT_KICK, EVENT_CALL, EVENT_CONGESTION };

struct sim_event {
    ns_t at;
    uint64_t sequence;
    enum event_kind kind;
    struct sim_qp *qp; /* PACKET: who sent it */
    uint64_t generation;
    struct sim_node *from, *to;
    struct packet packet;
    unsigned char *bytes; /* payload; if the link encodes: all that UDP carries */
    uint32_t length;
    uint16_t identification;
    bool marked; /* congestion experienced */
    struct packet_reference *reference;
    void (*call)(struct sim *sim, void *argument);
    void *argument;
};

void sim_push_event(struct sim *sim, ns_t delay, struct sim_event event);
struct sim_event sim_pop_event(struct sim *sim);

extern const struct transport_ports sim_ports, sim_wire_ports;
extern const struct transport_xrc_ports sim_xrc_ports;
void sim_receives_push(struct sim_receives *receives, uint64_t wr_id, const struct wqe_sge *sge,
                       unsigned num_sge);
/* The end of a batch. */
void sim_settle(struct sim_qp *qp, bool lazy);
void sim_kick_later(struct sim_qp *qp);

struct sim_qp *sim_find_qp(struct sim *sim, uint32_t qpn);
bool sim_chance(struct sim *sim, unsigned percent);
void sim_free_event(struct sim_event *event);
struct sim_event sim_copy_of_event(const struct sim_event *event);
void sim_put_on_link(struct sim *sim, struct sim_event event, ns_t delay);
/* May a random fault hit this packet? A sender that is hit too often would exceed its retries, as it should. */
bool sim_may_hit(struct sim_qp *from, const struct packet *packet);
/* Of a QP that loses packets on a link that is reliable otherwise (lossy.c). */
void sim_send_losing(struct sim_qp *qp, struct sim_event event);
/* A packet has arrived. true: it is a word for the link alone. */
bool sim_is_word(struct sim_qp *qp, const struct packet *packet);
/* It has been received. */
void sim_received_losing(struct sim_qp *qp);
void sim_port_send_notice(struct transport_qp *transport, const struct packet *packet);
int sim_port_send(struct transport_qp *transport, const struct packet *packet, const struct iovec *gather,
                  unsigned count, const struct path_address *to);
void sim_deliver(struct sim *sim, struct sim_event *event);
void sim_congestion(struct sim_event *event);
/* Each process has two SRQs, which share their receives. */
static inline bool sim_has_srq(const struct sim_qp *qp, uint32_t srqn)
{
    return (srqn & ~(uint32_t)SIM_OTHER_SRQ) == qp->srqn;
}
void sim_forget_delegates(struct sim_qp *qp);

#endif
