/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC requests that another process executes (relay.c). */
#ifndef ENGINE_XRC_RELAY_H
#define ENGINE_XRC_RELAY_H

#include <stdbool.h>

#include "local/local.h"
#include "object/qp/qp.h"

/* A packet with PACKET_RELAYED, or a drop notice (PACKET_DROPPED) for an XRC_RECV QP. */
void relay_receive(struct lane *lane, const struct packet *packet);
/* qp_ports.hand_over, end_relay */
int relay_hand_over(struct qp *qp, const struct packet *packet, bool may_move);
void relay_end(struct qp *qp);
/* The link goes down. QP lock held. */
void relay_leave(struct qp *qp, const struct link *link);

#endif
