/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Notification pages (base/notify.h), inside the room: ours, and those of peers. */
#ifndef LOCAL_NOTIFY_H
#define LOCAL_NOTIFY_H

#include "base/notify.h"
#include "local/link.h"

/* What a message on the socket of a link says. A byte 0 is the doorbell that processes know that know no
 * other messages; each is a datagram. */
enum link_message {
    LINK_RINGS = 0,
    LINK_RINGS_LATER,    /* a channel was rung: look whether somebody comes */
    LINK_OFFERS_PAGE,    /* a descriptor comes along: of a notification page */
    LINK_OFFERS_CHANNEL, /* of the eventfd of a channel */
};
struct link_offer {
    uint8_t type, channel;
    uint16_t reserved;
    uint32_t serial; /* of the channel */
};

/* Of a peer: what it has offered. Written by the helper thread, freed with the link. */
struct notify_peer;

/* A message with a descriptor has come. Helper thread; takes the descriptor over. */
void notify_accept(struct link *link, const struct link_offer *offer, int fd);
void notify_peer_free(struct notify_peer *peer);
/* The reader of a lane is not polling, its control line says (sleeps): rings whoever has to come. */
void notify_wake(struct lane *lane, uint32_t sleeps);
/* The peer may not know yet that we wait for room, or that its records lie here: asks it to look. */
void notify_full(struct lane *lane);

/* Do writers of this lane look at our attention? Then it may lie in hot[] while we sleep. */
bool notify_heeded(const struct lane *lane);
/* Our attention is `wanted` from now on; a full fence follows. DOZES where the helper thread is asleep is
 * ASLEEP. Does nothing without a page. */
void notify_set_attention(enum attention wanted);
void notify_after_fork_in_child(void);

#endif
