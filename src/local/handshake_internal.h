/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What handshake.c, handshake_connect.c and handshake_accept.c share. All of it belongs to the helper thread. */
#ifndef LOCAL_HANDSHAKE_INTERNAL_H
#define LOCAL_HANDSHAKE_INTERNAL_H

#include "local/handshake.h"
#include "local/handshake_message.h"

/* Incoming ones at once. */
#define HANDSHAKES_INCOMING_MAX 128u

struct handshake {
    struct event_source socket;
    struct list node; /* in handshakes_outgoing or handshakes_incoming, oldest first */
    bool is_outgoing;
    enum handshake_type awaits; /* the next message from the peer */
    uint32_t block;             /* outgoing: the block whose owner is wanted, if search is NULL */
    struct name_search *search; /* outgoing: the name whose holder is wanted */
    ns_t began;
    ns_t deadline, retry_at; /* retry_at is NS_NEVER while there is a socket */
    struct ucred peer;
    struct link *link; /* not installed yet; NULL before HELLO */
    bool is_coming;    /* counted by local_link_is_coming() */
    bool has_warned;   /* that it is tried again */
};

extern struct list handshakes_outgoing, handshakes_incoming;
extern unsigned handshakes_outgoing_count, handshakes_incoming_count;

/* --- handshake.c ---------------------------------------------------------------------------------------- */

/* NULL: no memory. */
struct handshake *handshake_new(bool is_outgoing, uint32_t block);
/* Ends an outgoing handshake and reports its link for the block or name that was looked up; NULL: no link. */
void handshake_finish(struct handshake *handshake, struct link *link);
/* Ends a handshake of either direction without a link. */
void handshake_fail(struct handshake *handshake);
/* Installs handshake->link, which takes over the socket. 0; -errno: handshake->link and the socket stay here. */
int handshake_install_link(struct handshake *handshake);
/* event_source.ready of a handshake's socket: reads one message and takes the next step. */
void handshake_ready(struct event_source *source, uint32_t events);
/* Reads a message of the peer's that has come. True: the handshake has ended, and is freed, or goes on. */
bool handshake_goes_on(struct handshake *handshake);
/* local_link_is_coming() counts the handshake (true) or no longer does (false). A caller passes true before it
 * sends the message that lets the peer install its link. The lock of a name may be held. */
void handshake_set_coming(struct handshake *handshake, bool is_coming);
/* Copies the peer's identity from the socket and the message to handshake->link. 0 or -errno, which may pass. */
int handshake_set_link_peer(struct handshake *handshake, const struct handshake_message *message);
/* Lets the peer have the kernel copy from and to memory of this process, if it is of the same user and there may be a
 * reason for it. */
void handshake_permit_copies(const struct ucred *peer);
/* Adds what only processes of the same user get to know (handshake_message_add_private()). */
void handshake_tell_own_user(const struct ucred *peer, struct handshake_message *message);
/* True if this process can read the peer's memory: the peer is of the same user, and its nonce is where the message
 * says. */
bool handshake_probe(const struct ucred *peer, const struct handshake_message *message);
/* True if the peer said that it can read the memory of this process, and may. */
bool handshake_peer_may_refer(const struct ucred *peer, const struct handshake_message *message);
/* True if a handshake with that process awaits that message. A peer outside our pid namespace has the number 0: such
 * processes cannot be told apart, and the answer is false. */
bool handshake_is_pending(const struct list *handshakes, enum handshake_type awaits,
                          const struct ucred *peer);

/* May one more outgoing handshake have a connection? */
bool handshake_may_connect(void);
/* The user has as many descriptors under way as he may: fewer handshakes at once, from here on. */
void handshake_is_crowded(void);
/* An outgoing handshake begins to wait for an answer. */
void handshake_wait_from_now(struct handshake *handshake);

/* --- handshake_connect.c -------------------------------------------------------------------------------- */

/* (Re)connects to the owner and sends HELLO. */
void handshake_connect(struct handshake *handshake);
/* Closes the socket; handshake_expire() connects again after RETRY_AFTER. */
void handshake_retry_later(struct handshake *handshake);
/* The same if the error may pass and there is time for it; else the handshake ends without a link. */
void handshake_retry_or_fail(struct handshake *handshake, int error);
/* sender: of handshake_message_receive(). */
void handshake_receive_welcome(struct handshake *handshake, const struct handshake_message *welcome,
                               pid_t sender);
/* What the handshake is looking for, for log messages. */
const char *handshake_target(const struct handshake *handshake, char buffer[static 24]);

/* --- handshake_accept.c --------------------------------------------------------------------------------- */

/* memory_fd stays the caller's. */
void handshake_receive_hello(struct handshake *handshake, const struct handshake_message *hello,
                             int memory_fd);
void handshake_receive_ready(struct handshake *handshake, const struct handshake_message *ready);
/* Sends WELCOME with that result and ends the handshake. */
void handshake_refuse(struct handshake *handshake, enum handshake_result result);
/* Answers a request for the published segment (published/segment_request.h) and ends the handshake. */
void handshake_serve_segment_request(struct handshake *handshake);
/* The end of the pause that handshake_pause_accepting() began; NS_NEVER: no pause. */
ns_t handshake_accept_again_at(void);
/* Ends the pause if it is over. */
void handshake_resume_accepting(ns_t now);
void handshake_accept_after_fork_in_child(void);

#endif
