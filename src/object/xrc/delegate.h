/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delegates execute requests that arrive for an XRC_RECV QP of another process and address SRQs of this process
 * (verbs.md §6.4, transport/relay.c). A delegate is a QP that the program does not know. It has the number of the QP
 * that it executes for, which is in completions, but it is not found by that number and raises no events. It exists
 * as long as the connection of its QP, the link to that process, and the domain. */
#ifndef OBJECT_XRC_DELEGATE_H
#define OBJECT_XRC_DELEGATE_H

#include "object/qp/qp.h"

/* The attributes of the QP for which a delegate executes: the payload of PACKET_TERMS, a format between processes.
 * Sent by the QP's process before the requests. */
struct delegate_terms {
    uint64_t device, inode; /* of the domain's file */
    uint32_t connection;    /* counts connections of the QP; a new connection needs a new delegate */
    uint32_t epoch;         /* responses carry it (packet.dest_ifindex) */
    uint32_t expected_psn, msn, access_flags, mtu; /* mtu: bytes */
    uint8_t min_rnr_timer, max_dest_rd_atomic;
    uint8_t resumes; /* 1: the delegate continues with its own PSN, and expected_psn and msn are ignored */
    uint8_t ends;    /* 1: the delegate ends, no requests follow */
    uint8_t reserved[4];
};

/* Finds the delegate of the QP with this number, of the process behind the link, and locks it; NULL: none. */
struct qp *delegate_lock(const struct link *origin, uint32_t qpn);
/* Makes a delegate, changes its terms, or ends it. False: it cannot be made. Inside a rundown section, no QP locks
 * held. */
bool delegate_accept(struct link *origin, uid_t uid, uint32_t qpn, const struct delegate_terms *terms);
/* Ends a delegate that was found; no QP locks held. */
void delegate_end(struct qp *qp);
/* Ends all delegates for QPs behind a link that is down. */
void delegates_leave(const struct link *origin);
void delegates_after_fork_in_child(void);

#endif
