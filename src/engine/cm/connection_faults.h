/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Injected faults of connections: messages that are lost, and a connection that ends by itself. cm_lock (agent.c)
 * guards all of it. */
#ifndef ENGINE_CM_CONNECTION_FAULTS_H
#define ENGINE_CM_CONNECTION_FAULTS_H

#include "base/list.h"
#include "base/types.h"
#include "cm/cm.h"

struct connection_faults {
    struct cm_id *id;
    bool unheard;       /* what the id sends is lost */
    uint32_t qpn;       /* of its connection; 0: none yet */
    ns_t ends_at;       /* when it is disconnected; NS_NEVER: not */
    struct list linked; /* among open ids with a QP */
};

void connection_faults_init(struct connection_faults *faults, struct cm_id *id);
/* The id has a QP, and is linked until connection_faults_leave(). */
void connection_faults_begin(struct connection_faults *faults, uint32_t qpn);
void connection_faults_leave(struct connection_faults *faults);
/* Does a fault end the connection, which is established now, after a time? */
void connection_faults_established(struct connection_faults *faults);
/* When connection_faults_due() has something to do; NS_NEVER: not. */
ns_t connection_faults_next(void);
void connection_faults_due(struct cm *cm, ns_t now);
/* The connection of that QP ends now. */
void connection_faults_disconnect(struct cm *cm, uint32_t qpn, ns_t now);
void connection_faults_after_fork_in_child(void);

#endif
