/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Notification pages (base/notify.h), own and of peers, and the messages that carry them; internal to local. */
#ifndef LOCAL_NOTIFY_H
#define LOCAL_NOTIFY_H

#include "base/notify.h"
#include "local/link.h"

/* Messages on the socket of a link, one datagram each: a format between processes. A doorbell is the single byte
 * LINK_RINGS or LINK_CHECK_LATER; an offer is a struct link_offer with a descriptor. */
enum link_message {
    LINK_RINGS = 0,
    LINK_CHECK_LATER,    /* the sender rang a completion channel: check later that its reader came */
    LINK_OFFERS_PAGE,    /* descriptor: the sender's notification page */
    LINK_OFFERS_CHANNEL, /* descriptor: the eventfd of a completion channel */
    LINK_WANTS_MAPPED,   /* the sender accesses memory of the receiver often; a struct link_wish */
    LINK_WANTS_FILE,     /* a struct link_question; channel: enum link_file */
    LINK_ANSWERS_FILE,   /* a struct link_offer; channel: enum link_file; a descriptor, or none: refused */
};
struct link_offer {
    uint8_t type, channel; /* enum link_message; line in the notification page */
    uint16_t reserved;
    uint32_t serial; /* of the channel */
};

/* A struct link_offer by its length. */
struct link_wish {
    uint8_t type, step_high; /* step: 24 bits */
    uint16_t step_low;
    uint32_t slot;
};
_Static_assert(sizeof(struct link_wish) == sizeof(struct link_offer), "one format of messages");
/* secret: of the receiver's segment; all zero: the sender has not read it. */
struct link_question {
    struct link_offer offer;
    uint8_t secret[LINK_SECRET_BYTES];
};

/* What a peer has offered. Written by the helper thread, freed with the link. */
struct notify_peer;

/* Sends a message with a descriptor. False: not sent. */
bool notify_send(const struct link *link, const struct link_offer *offer, int fd);
/* Handles a message of the peer; takes over fd, -1 if none. Helper thread. */
void notify_accept(struct link *link, const struct link_offer *offer, int fd);
void notify_peer_free(struct notify_peer *peer);
/* Wakes the reader of a lane. sleeps: ring_control.reader_sleeps, not READER_POLLS. */
void notify_wake(struct lane *lane, uint32_t sleeps);
/* The ring is full, and the peer, whose channel was rung, may sleep without having read it: rings the helper thread
 * of the peer. */
void notify_full(struct lane *lane);
/* Does the peer have to be rung? A guess, as its attention word says now. */
bool notify_sleeps(const struct link *link);

/* True if the writer of this lane reads our attention word; the lane may then stay in hot[] while this process
 * sleeps. */
bool notify_reads_attention(const struct lane *lane);
/* Our page; NULL: there is none yet. */
extern _Atomic(struct notify_page *) notify_own_page;
/* Have writers marked rings that this process does not look at? Partner: the release in mark(). */
static inline bool notify_has_marks(void)
{
    struct notify_page *page = atomic_load_explicit(&notify_own_page, memory_order_acquire);

    return page && unlikely(atomic_load_explicit(&page->marked, memory_order_acquire) != 0);
}
/* Takes the marks: visit() gets the index of each link. Any thread. */
void notify_take_marks(void (*visit)(unsigned index));
/* Sets our attention word; a full fence follows. DOZES becomes ASLEEP if the helper thread sleeps. No effect without
 * a page. */
void notify_set_attention(enum attention wanted);
void notify_after_fork_in_child(void);

#endif
