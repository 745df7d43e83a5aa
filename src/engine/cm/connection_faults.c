/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/cm/connection_faults.h"

#include "base/sys.h"
#include "engine/core/faults.h"

static struct list connected = {&connected, &connected};
static ns_t next_end = NS_NEVER; /* the earliest of their ends_at */

static struct connection_faults *faults_of(struct list *node)
{
    return list_entry(node, struct connection_faults, linked);
}

void connection_faults_init(struct connection_faults *faults, struct cm_id *id)
{
    faults->id = id;
    faults->ends_at = NS_NEVER;
    list_init(&faults->linked);
}

void connection_faults_begin(struct connection_faults *faults, uint32_t qpn)
{
    faults->qpn = qpn;
    faults->ends_at = NS_NEVER;
    list_remove(&faults->linked);
    list_push_back(&connected, &faults->linked);
}

void connection_faults_leave(struct connection_faults *faults)
{
    list_remove(&faults->linked);
}

void connection_faults_established(struct connection_faults *faults)
{
    const struct inject_rule *rule = faults_meet_cm(INJECT_DISCONNECTED, INJECT_ACTIVE);

    if (!rule)
        return;
    faults->ends_at = sys_now() + rule->time;
    next_end = min_of(next_end, faults->ends_at);
}

ns_t connection_faults_next(void)
{
    return next_end;
}

void connection_faults_due(struct cm *cm, ns_t now)
{
    if (now < next_end)
        return;
    next_end = NS_NEVER;
    list_for_each (node, &connected) {
        struct connection_faults *faults = faults_of(node);

        if (faults->ends_at <= now) {
            faults->ends_at = NS_NEVER;
            (void)cm_disconnect(cm, faults->id, now); /* it may have ended by itself */
        }
        next_end = min_of(next_end, faults->ends_at);
    }
}

void connection_faults_disconnect(struct cm *cm, uint32_t qpn, ns_t now)
{
    list_for_each (node, &connected) {
        struct connection_faults *faults = faults_of(node);

        if (faults->qpn == qpn)
            (void)cm_disconnect(cm, faults->id, now); /* -EINVAL: it was never established */
    }
}

void connection_faults_after_fork_in_child(void)
{
    list_init(&connected);
    next_end = NS_NEVER;
}
