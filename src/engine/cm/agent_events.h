/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Events that the rest of the engine passes to the CM agent (agent.c). */
#ifndef ENGINE_CM_AGENT_EVENTS_H
#define ENGINE_CM_AGENT_EVENTS_H

#include <stdint.h>

#include "cm/cm.h"

/* A MAD for this process, or for nobody on this host. */
void cm_agent_receive(const struct cm_path *from, const uint8_t mad[MAD_LENGTH]);
/* The time has come that timers_set_cm_agent() was told. */
void cm_agent_due(void);
/* The process behind the link of that serial number is gone. */
void cm_agent_peer_gone(uint64_t serial);
void cm_agent_after_fork_in_child(void);

#endif
