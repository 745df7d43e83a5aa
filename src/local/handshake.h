/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How two processes that do not know each other come to a link. All of it runs in the helper thread and never
 * waits: a process that is stopped, slow or hostile holds up its own greeting only.
 *
 * Each end says who it is in one message of struct greeting:
 *
 *   connector → acceptor   HELLO    with the descriptor of the link's memory
 *   acceptor → connector   WELCOME  result; whether it can read the connector's memory
 *   connector → acceptor   READY    whether it can read the acceptor's memory
 *
 * After an OK both ends have the link. With KNOWN the acceptor says that the two have one already, which
 * serves for this block too. Who the other end is, the kernel says (SO_PEERCRED); a greeting can only claim
 * to be one more process of those credentials.
 */
#ifndef LOCAL_HANDSHAKE_H
#define LOCAL_HANDSHAKE_H

#include "base/event.h"
#include "local/link.h"
#include "local/lookups.h"

/* How long an owner of a block may stay silent. Tests have less patience. */
extern ns_t rendezvous_patience;

/* A listener of ours has connections. */
void rendezvous_accept(struct event_source *listener, uint32_t events);
/* The half of it that may be done with a lock held: false, descriptors are short, and that calls for the
 * other half. */
bool rendezvous_accept_some(struct event_source *listener);
void rendezvous_pause_accepting(void);
/* Looks for the owner of a block or, if search is not NULL, for the holder of a name, and takes the search
 * over. */
void rendezvous_begin(uint32_t block, struct name_search *search);
/* May one more be begun now? Else rendezvous_expire() goes on. */
bool rendezvous_has_room(void);
/* Ends what took too long, tries again what could not go on. */
void rendezvous_expire(void);
/* Calls ops->settled() if there is a reason; last, and without locks: it runs QPs. */
void rendezvous_tell_settled(void);
/* When rendezvous_expire() has something to do; NS_NEVER: nothing is going on. */
ns_t rendezvous_deadline(void);
void rendezvous_after_fork_in_child(void);

#endif
