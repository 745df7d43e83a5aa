/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory of ids and channels is used again only for others of the kind, and not at once: a program that
 * destroys one twice, or uses it afterwards, finds one that is marked as destroyed. */
#ifndef FRONT_RDMACM_REST_H
#define FRONT_RDMACM_REST_H

#include "base/list.h"
#include "base/lock.h"

#define REST_COUNT 256 /* so many rest */

struct rest {
    struct lock lock; /* a leaf; guards the rest */
    struct list nodes;
    unsigned count;
};
#define REST_INIT(rest)                                                                                      \
    {                                                                                                        \
        LOCK_INIT, {&(rest).nodes, &(rest).nodes}, 0                                                         \
    }

/* The one that has rested for longest, as it was left; NULL: there are too few. */
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

/* What rested is lost: the list may have been half linked. */
static inline void rest_after_fork_in_child(struct rest *rest)
{
    lock_init(&rest->lock);
    list_init(&rest->nodes);
    rest->count = 0;
}

#endif
