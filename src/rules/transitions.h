/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP state transitions: which are valid, and which attributes each takes (verbs.md §2.2-2.4). */
#ifndef RULES_TRANSITIONS_H
#define RULES_TRANSITIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/verbs.h"

/* What the values of attributes are checked against. */
struct transition_limits {
    uint32_t gid_entries_valid; /* bit i: sgid_index i names a valid GID of the port */
    enum ibv_mtu active_mtu;
    bool draining;         /* SQD with sends begun and not complete: only RESET and ERR are allowed (§2.5) */
    bool controlled_qkeys; /* the process may use Q_Keys with the top bit set (CAP_NET_RAW, §8.5) */
};

/* Complete check of an ibv_modify_qp(): transition, mask, values. 0, -EINVAL, -EPERM or -EOPNOTSUPP; nothing is
 * changed. current: the QP's state; a mask without IBV_QP_STATE means current -> current. */
int transition_check(enum ibv_qp_type type, enum ibv_qp_state current, const struct ibv_qp_attr *attributes,
                     int mask, const struct transition_limits *limits);
/* Is posting possible in this state? 0 or -EINVAL (verbs.md §2.1). */
int transition_check_post_send(enum ibv_qp_type type, enum ibv_qp_state state);
int transition_check_post_recv(enum ibv_qp_type type, enum ibv_qp_state state);

/* Does a connected QP take requests in this state? In all others it drops them (verbs.md §2.1). state: also what
 * another process has written. */
static inline bool transition_takes_requests(uint32_t state)
{
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
}

#endif
