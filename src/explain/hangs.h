/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* States of an object that nothing under way will end: the program has to do something, and may not know. */
#ifndef EXPLAIN_HANGS_H
#define EXPLAIN_HANGS_H

#include <stdbool.h>
#include <stdint.h>

#include "explain/objects.h"
#include "explain/out.h"
#include "explain/view.h"

enum hang_form {
    HANG_NONE,
    HANG_WINDOW,       /* CQ: a thread waits for the end of another's, or its own, extended polling */
    HANG_NO_EVENT,     /* CQ with a channel: unpolled completions, and no event to come */
    HANG_SEND_QUEUE,   /* QP: the send queue is full of ended requests of which none generates a completion */
    HANG_NOT_READY,    /* QP: the peer's SEND was refused, because no receive is posted */
    HANG_PEER_STOPPED, /* QP: requests are under way to a process of this host that is stopped */
    HANG_REQUEST,      /* id that listens: a connection request is unread */
    HANG_UNANSWERED,   /* id: the program has read a connection request and does not answer it */
    HANG_CONNECTING,   /* id: its connection request is not answered */
    HANG_EVENT_UNREAD, /* any: an event is unread */
};

struct hang {
    enum hang_form form;
    bool watched;  /* programs that work do not stay in it for seconds */
    uint64_t mark; /* differs as soon as anything has moved; HANG_PEER_STOPPED: the process */
};

/* The kinds of objects that can be in such a state. */
#define HANG_KINDS                                                                                           \
    (1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_CQ | 1u << OBJECT_WQ | 1u << OBJECT_CM_ID)

/* The first such state of the object; false: none. */
bool hang_find(const struct view *view, const struct object *object, struct hang *ret);
/* Says it; false: it has ended. */
bool explain_hang(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);
/* The same of an object that hang_find() was asked about. */
void explain_found_hang(const struct view *view, struct out *out, const struct object *object,
                        enum hang_form form);

/* Events of the CQ that are not read, also those that a peer has announced. */
uint32_t cq_unread_events(const struct cq_record *cq);

#endif
