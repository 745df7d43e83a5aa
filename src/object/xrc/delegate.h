/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delegates: an XRC_RECV QP of another process has requests for SRQs of this one, and they are executed here
 * (verbs.md §6.4, transport/relay.c). A delegate is a QP that no program has: it has the number of the
 * QP that it executes for, which completions tell, is not found by it, and raises no events. It lives as long
 * as the connection of its QP, the link to that process and the domain do. */
#ifndef OBJECT_XRC_DELEGATE_H
#define OBJECT_XRC_DELEGATE_H

#include "object/qp/qp.h"

/* On what terms requests follow: the payload of PACKET_TERMS, as the other process says. */
struct delegate_terms {
    uint64_t device, inode; /* of the domain's file */
    uint32_t life;          /* of the QP's connection: with another one it begins anew */
    uint32_t epoch;         /* answers carry it (packet.dest_ifindex) */
    uint32_t expected_psn, msn, access_flags, mtu;
    uint8_t min_rnr_timer, max_dest_rd_atomic;
    uint8_t resumes; /* the PSN is that of the delegate, not ours */
    uint8_t ends;    /* no requests follow */
    uint8_t reserved[4];
};

/* Finds and locks that of the QP with this number behind the link; NULL. */
struct qp *delegate_lock(const struct link *origin, uint32_t qpn);
/* Makes one or has it go on by new terms, or ends it. false: it cannot be. Inside a rundown section, without
 * QP locks. */
bool delegate_accept(struct link *origin, uid_t uid, uint32_t qpn, const struct delegate_terms *terms);
/* Ends one that was found; without QP locks. */
void delegate_end(struct qp *qp);
/* The link is down. */
void delegates_leave(const struct link *origin);
void delegates_after_fork_in_child(void);

#endif
