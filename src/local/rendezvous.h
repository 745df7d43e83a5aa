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
#ifndef LOCAL_RENDEZVOUS_H
#define LOCAL_RENDEZVOUS_H

#include "base/event.h"
#include "local/link.h"

/* A listener of ours has connections. */
void rendezvous_accept(struct event_source *listener, uint32_t events);
/* Takes up what local_resolve() and local_discover_peers() have asked for. */
void rendezvous_requests(void);
/* Asks for a block, as local_resolve() does. Any thread. */
void rendezvous_want(uint32_t block);
/* Ends what took too long, tries again what could not go on. */
void rendezvous_expire(void);
/* When rendezvous_expire() has something to do; NS_NEVER: nothing is going on. */
ns_t rendezvous_deadline(void);
void rendezvous_after_fork_in_child(void);

/* discover.c: rendezvous_want() for every block on the host that is not ours and has no link. Returns how
 * many. */
unsigned discover_blocks(void);

#endif
