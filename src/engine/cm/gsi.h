/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP1, the port's general services interface (IBA 16.1), which the processes of a host share: how a MAD comes
 * to the process that it is for.
 *
 * On this host MADs are packets for QPN 1 on the links between processes. A REQ or SIDR_REQ goes to whoever
 * holds the service (engine/cm/services.h): the name of the service leads to its process. All others go to the
 * process that the peer's last MAD came from.
 *
 * To another host MADs go over the network at once. What comes from there comes to the process that reads
 * for QPN 1 (udp/port.c), which hands it on over its links: the names of services and of QPN blocks, of
 * which comm ids are made, lead to whoever it is for. A process believes that only of its own user, and of
 * the user who has the port.
 */
#ifndef ENGINE_CM_GSI_H
#define ENGINE_CM_GSI_H

#include "cm/cm.h"
#include "wire/packet.h"

struct lane;
struct lane_state;
struct link;

/* Puts a copy aside; communication management's lock held. Gets lost where memory does. */
void gsi_post(const struct cm_path *to, const uint8_t mad[MAD_LENGTH]);
/* Sends what was put aside, in order. Without that lock. */
void gsi_flush(void);
/* A packet for QP1; the lane's receive lock held. */
void gsi_receive(struct lane *lane, const struct packet *packet);

/* One from the network, in the process that reads it; gsi_flush() passes it on. The udp room's receive lock
 * held. */
void gsi_receive_from_network(const struct packet *packet);

/* The time has come that timers_set_gsi() was told. */
void gsi_due(void);
/* local_ops.found */
void gsi_found(uint64_t cookie, struct link *link);
/* The lane has room again; and: its link is gone. */
void gsi_lane_writable(struct lane *lane, struct lane_state *state);
void gsi_lane_down(struct lane_state *state);

void gsi_after_fork_in_child(void);

#endif
