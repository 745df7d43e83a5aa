/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How long the helper thread stays awake: three pure state machines, without clock or system call.
 *
 * busy_poll: how long it goes on polling when it finds no more packets. To be woken takes from 5 us (real processors)
 * to 25 us (virtual ones), so it pays to wait for the next packet, but only if that comes soon, and if no other
 * thread wants the processor: least of all the one that the packet was for.
 *
 *   BUSY_POLL_SHORT  always
 *   BUSY_POLL_USUAL  unless that found nothing BUSY_POLL_VAIN times in a row; then each BUSY_POLL_TRY-th time
 *   BUSY_POLL_LONG   if the last packets came less than that apart, and a processor is free
 *
 * So whoever gets a packet now and then pays for BUSY_POLL_SHORT.
 *
 * watch: whether it looks for WATCH_FOR, every GLANCE_SHORT, once the program's threads have gone to sleep. Four
 * looks cost more than to be woken once, so it pays only where a message comes within that time.
 *
 * glance: how long it waits between two such looks. Where threads wait for a processor, each look takes one from
 * them, and a thread that was called comes late for that reason alone: with 64 processes on two processors, half of
 * all switches between threads were looks that found nothing. That they wait is seen in how late the looks themselves
 * come: of these, two in three were GLANCE_DELAY late; on a machine that is idle one in a hundred is.
 *
 *   GLANCE_SHORT  as a rule
 *   GLANCE_LONG   where looks come late: each that does doubles it, each that does not halves it
 *   GLANCE_LATE   at most, after a look that finds that a thread which was called has not come since the one before */
#ifndef ENGINE_CORE_BUSY_POLL_H
#define ENGINE_CORE_BUSY_POLL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

#define BUSY_POLL_SHORT (3 * NS_PER_US)
#define BUSY_POLL_USUAL (20 * NS_PER_US)
#define BUSY_POLL_LONG  (200 * NS_PER_US)
#define BUSY_POLL_VAIN  4u
#define BUSY_POLL_TRY   64u
/* So many pauses shorter than BUSY_POLL_LONG, in a row. */
#define BUSY_POLL_CLOSE 2u
/* Between two questions whether a processor is free: each takes some microseconds. */
#define BUSY_POLL_ASK (1 * NS_PER_MS)

/* All zero: nothing was found yet. Of the helper thread. */
struct busy_poll {
    ns_t found_at; /* the last packets */
    ns_t asked_at;
    uint32_t vain;  /* how often in a row nothing was found between SHORT and USUAL, or not looked for */
    uint32_t close; /* pauses that were shorter than LONG, in a row */
    bool found;     /* packets, since the thread was woken */
    bool is_free;   /* the answer at asked_at */
};

/* Packets were found. */
void busy_poll_found(struct busy_poll *poll, ns_t now);
/* None were found since `since`. True: go on. is_free: is a processor free, for which no other thread waits? */
bool busy_poll_goes_on(struct busy_poll *poll, ns_t since, ns_t now, bool (*is_free)(void));
/* The thread is about to sleep. */
void busy_poll_ends(struct busy_poll *poll);

#define GLANCE_SHORT (500 * NS_PER_US)
#define GLANCE_LATE  (4 * NS_PER_MS)
#define GLANCE_LONG  (32 * NS_PER_MS)
#define GLANCE_DELAY (120 * NS_PER_US) /* the timer alone is some 70 us late */

/* All zero: GLANCE_SHORT. */
struct glance {
    ns_t extra; /* beyond GLANCE_SHORT */
};

static inline ns_t glance_pause(const struct glance *glance)
{
    return GLANCE_SHORT + glance->extra;
}
/* A look came so much later than after the pause. */
void glance_came(struct glance *glance, ns_t delay);
/* A thread that was called has not come since the look before. */
void glance_found_late(struct glance *glance);

#define WATCH_FOR (2 * NS_PER_MS)
/* Pauses longer than that before the thread was woken; a shorter one counts twice against them. */
#define WATCH_SELDOM     4u
#define WATCH_SELDOM_MAX 8u

/* All zero: nothing is known yet, and it watches. */
struct watch {
    uint32_t seldom;
};

/* The thread was woken. pause: since it saw the last poll. */
void watch_woken(struct watch *watch, ns_t pause);
bool watch_goes_on(const struct watch *watch);

#endif
