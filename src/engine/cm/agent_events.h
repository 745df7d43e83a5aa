/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Events that the rest of the engine passes to the CM agent (agent.c). */
#ifndef ENGINE_CM_AGENT_EVENTS_H
#define ENGINE_CM_AGENT_EVENTS_H

#include <stdint.h>

#include "cm/cm.h"

/* A MAD for this process, or one that no process of this host has the service or comm id for. */
void cm_agent_receive(const struct cm_path *from, const uint8_t mad[MAD_LENGTH]);
/* The time of timers_set_late() has come. Helper thread. */
void cm_agent_due(void);
/* The process behind the link with that serial number has ended. */
void cm_agent_peer_gone(uint64_t serial);
/* An injected fault ends the connection of that QP, if it has one: both ends are told that the other has
 * disconnected. */
void cm_agent_disconnect_qp(uint32_t qpn);
void cm_agent_after_fork_in_child(void);

#endif
