/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP1, the general services interface of the port (IBA 16.1), which all processes of a host share: routes each MAD to
 * the process that it is for.
 *
 * On one host, MADs are packets for QPN 1 on the links between processes. A REQ or SIDR_REQ goes to the process that
 * holds the name of the service (services.h), every other MAD to the process that sent the peer's last MAD.
 *
 * MADs to another host go to the network. MADs from the network arrive at the process that reads the packets for QPN 1
 * (udp/port.c), which forwards them over its links: a request by the name of the service, others by the name of the
 * QPN block in the comm id. A process accepts forwarded MADs only from processes of its own user and of the user of the
 * port owner (udp_trusts()). */
#ifndef ENGINE_CM_GSI_H
#define ENGINE_CM_GSI_H

#include "cm/cm.h"
#include "wire/packet.h"

struct lane;
struct lane_state;
struct link;

/* Queues a copy of the MAD; drops it if memory is short. cm_lock held. */
void gsi_post(const struct cm_path *to, const uint8_t mad[MAD_LENGTH]);
/* Sends the queued MADs, in order. cm_lock not held. */
void gsi_flush(void);
/* A packet for QP1 from a process of this host. The lane's receive lock held. */
void gsi_receive(struct lane *lane, const struct packet *packet);

/* A packet for QP1 from the network, in the process that reads it: queues the MAD for gsi_flush(). The receive lock of
 * udp held. */
void gsi_receive_from_network(const struct packet *packet);

/* The time of timers_set_late() has come. Helper thread. */
void gsi_due(void);
/* local_ops.found */
void gsi_found(uint64_t cookie, struct link *link);
/* The lane has space again; the lane's link is down. */
void gsi_lane_writable(struct lane *lane, struct lane_state *state);
void gsi_lane_down(struct lane_state *state);

void gsi_after_fork_in_child(void);

#endif
