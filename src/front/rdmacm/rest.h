/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delays the reuse of memory of ids and channels, and never uses it for anything else: a program that destroys one
 * twice, or uses it after its destruction, finds one that is marked as destroyed. */
#ifndef FRONT_RDMACM_REST_H
#define FRONT_RDMACM_REST_H

#include "base/list.h"
#include "base/lock.h"

#define REST_COUNT 256 /* how many blocks rest before the oldest is reused */

struct rest {
    struct lock lock; /* leaf lock; guards the list and count */
    struct list nodes;
    unsigned count;
};
#define REST_INIT(rest)                                                                                      \
    {                                                                                                        \
        LOCK_INIT, {&(rest).nodes, &(rest).nodes}, 0                                                         \
    }

/* The block that has rested longest, with its contents; NULL: fewer than REST_COUNT rest. */
static inline struct list *rest_take(struct rest *rest)
{
    struct list *node = NULL;

    lock_acquire(&rest->lock);
    if (rest->count > REST_COUNT) {
        rest->count--;
        node = list_pop_front(&rest->nodes);
    }
    lock_release(&rest->lock);
    return node;
}

static inline void rest_put(struct rest *rest, struct list *node)
{
    lock_acquire(&rest->lock);
    rest->count++;
    list_push_back(&rest->nodes, node);
    lock_release(&rest->lock);
}

/* The resting blocks are leaked: the parent may have been linking one when it forked. */
static inline void rest_after_fork_in_child(struct rest *rest)
{
    lock_init(&rest->lock);
    list_init(&rest->nodes);
    rest->count = 0;
}

#endif
