/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How two processes that do not know each other come to a link. All of it runs in the helper thread and never
 * waits: a process that is stopped, slow or hostile holds up its own handshake only.
 *
 * Each end says who it is in one message of struct handshake_message:
 *
 *   connector → acceptor   HELLO    with the descriptor of the link's memory
 *   acceptor → connector   WELCOME  result; whether it can read the connector's memory
 *   connector → acceptor   READY    whether it can read the acceptor's memory
 *
 * After an OK both ends have the link. With KNOWN the acceptor says that the two have one already, which
 * serves for this block too. Who the other end is, the kernel says (SO_PEERCRED); a handshake can only claim
 * to be one more process of those credentials.
 */
#ifndef LOCAL_HANDSHAKE_H
#define LOCAL_HANDSHAKE_H

#include "base/event.h"
#include "local/link.h"
#include "local/lookups.h"

/* How long an owner of a block may stay silent. Tests have less patience. */
extern ns_t handshake_timeout;

/* A listener of ours has connections. */
void handshake_accept(struct event_source *listener, uint32_t events);
/* The half of it that may be done with a lock held: false, descriptors are short, and that calls for the
 * other half. */
bool handshake_accept_some(struct event_source *listener);
void handshake_pause_accepting(void);
/* Looks for the owner of a block or, if search is not NULL, for the holder of a name, and takes the search
 * over. */
void handshake_begin(uint32_t block, struct name_search *search);
/* May one more be begun now? Else handshake_expire() goes on. */
bool handshake_can_begin(void);
/* Ends what took too long, tries again what could not go on. */
void handshake_expire(void);
/* Calls ops->settled() if there is a reason; last, and without locks: it runs QPs. */
void handshake_report_settled(void);
/* When handshake_expire() has something to do; NS_NEVER: nothing is going on. */
ns_t handshake_deadline(void);
void handshake_after_fork_in_child(void);

#endif
