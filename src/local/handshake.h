/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The handshake by which two processes set up a link. The helper thread runs all of it and never blocks: a
 * process that is stopped, slow or hostile delays its own handshake only.
 *
 * Each message is one struct handshake_message on a SOCK_SEQPACKET socket:
 *
 *   connector → acceptor   HELLO     carries the descriptor of the link's shared memory
 *   acceptor → connector   WELCOME   result; whether the acceptor can read the connector's memory
 *   connector → acceptor   READY     whether the connector can read the acceptor's memory
 *
 * Result OK: both processes install the link. Result KNOWN: the two processes have a link already, and the
 * connector uses that one. The kernel names the peer (SO_PEERCRED); the instance ID in a message only tells apart
 * processes with the same credentials.
 *
 *   handshake.c          handshakes of both directions: creation, end, dispatch, timeouts
 *   handshake_connect.c  the connector: HELLO out, WELCOME in, READY out
 *   handshake_accept.c   the acceptor: HELLO in, WELCOME out, READY in; requests for the published segment
 *   handshake_message.c  the messages
 */
#ifndef LOCAL_HANDSHAKE_H
#define LOCAL_HANDSHAKE_H

#include "base/event.h"
#include "local/link.h"
#include "local/lookups.h"

/* How long the owner of a block or a name may take to answer. Tests shorten it. */
extern ns_t handshake_timeout;

/* event_source.ready of a listener: accepts its connections. */
void handshake_accept(struct event_source *listener, uint32_t events);
/* The part of handshake_accept() that a caller may run with a lock held. False: out of descriptors or memory; the
 * caller then calls handshake_pause_accepting() without locks. */
bool handshake_accept_some(struct event_source *listener);
void handshake_pause_accepting(void);
/* Connects to the owner of the block or, if search is not NULL, to the holder of that name. Takes over search. */
void handshake_begin(uint32_t block, struct name_search *search);
/* False: OUTGOING_AT_ONCE handshakes are pending; handshake_expire() begins further ones when some have ended. */
bool handshake_can_begin(void);
/* Ends handshakes that timed out, retries connections, begins requested ones. */
void handshake_expire(void);
/* Calls ops->settled() if local_link_is_coming() may have become false. Last in local_dispatch() and without
 * locks, because the callback runs QPs. */
void handshake_report_settled(void);
/* When handshake_expire() is due; NS_NEVER: nothing is pending. */
ns_t handshake_deadline(void);
void handshake_after_fork_in_child(void);

#endif
