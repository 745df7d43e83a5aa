/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Timers in a binary heap; each is embedded in its owner. Not thread-safe: the caller's lock guards the heap. */
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
    uint32_t count, capacity;
};

/* Arms the timer or changes its deadline. 0; -ENOMEM: the timer is not armed. */
int timer_arm(struct timer_heap *heap, struct timer *timer, ns_t at);
void timer_cancel(struct timer_heap *heap, struct timer *timer);
/* The earliest deadline; NS_NEVER: no timer is armed. */
ns_t timer_next(const struct timer_heap *heap);
/* Removes and returns the earliest timer if it is due, else NULL. */
struct timer *timer_take_due(struct timer_heap *heap, ns_t now);

#endif
