/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Deadlines in a binary heap, each embedded in what it belongs to. Not thread-safe: the caller's lock guards
 * the heap. */
#ifndef BASE_TIMER_H
#define BASE_TIMER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct timer {
    ns_t at;
    uint32_t index; /* position in the heap, from 1; 0: not armed */
};

struct timer_heap {
    struct timer **entries; /* entries[1..count] */
    uint32_t count, room;
};

/* Arms or moves. 0 or -ENOMEM (then it is as it was). */
int timer_arm(struct timer_heap *heap, struct timer *timer, ns_t at);
void timer_cancel(struct timer_heap *heap, struct timer *timer);
/* Earliest deadline; NS_NEVER if there is none. */
ns_t timer_next(const struct timer_heap *heap);
/* Takes the earliest if it is due; NULL if none is. */
struct timer *timer_take_due(struct timer_heap *heap, ns_t now);

#endif
