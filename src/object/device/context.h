/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* An opened device. Objects belong to one context; mixing is -EINVAL. */
#ifndef OBJECT_DEVICE_CONTEXT_H
#define OBJECT_DEVICE_CONTEXT_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "object/event/event.h"

struct device;
struct share;

/* What rdma-core 64 has of verbs_context in front of its context, which is more than older headers know of:
 * programs look there for operations after a look at sz. */
#define VERBS_HEAD 368

struct context {
    struct device *device;
    uint32_t number;
    uint32_t item;             /* its record */
    uint32_t generation;       /* of the process that opened it */
    _Atomic uint32_t objects;  /* PDs, CQs and channels that are alive */
    struct share *share;       /* the file that cmd_fd is of */
    struct async_queue events; /* its fd is verbs.context.async_fd */
    struct list all;           /* link in the list of contexts, under contexts_lock */
    /* Last: applications step back from its end (compat: verbs_context grows in front). */
    void (*newer[(VERBS_HEAD - offsetof(struct verbs_context, context)) / sizeof(void (*)(void))])(void);
    struct verbs_context verbs;
};
_Static_assert(offsetof(struct context, verbs.context) - offsetof(struct context, newer) == VERBS_HEAD,
               "there is nothing between the two");

extern struct lock contexts_lock;
extern struct list contexts; /* of struct context.all: for port events and the fork child */

static inline struct context *context_of(struct ibv_context *context)
{
    return container_of(context, struct context, verbs.context);
}

/* Opens the segment at first use. Fills what the object room knows of the public struct: async_fd,
 * num_comp_vectors, mutex; the caller holds (and later drops) the reference on the device and fills the rest.
 */
int context_open(struct device *device, struct context **ret_context);
/* It stays open as long as the process lives, and that is no mistake of the program's. */
void context_keep(struct context *context);
/* Children that are still alive keep the memory: their owner may be using them (verbs.md §1.2 leaves
 * that undefined; we do not crash). */
void context_close(struct context *context);

/* Counts the forks between the first process and this one. */
extern _Atomic uint32_t process_generation_counter;

static inline uint32_t process_generation(void)
{
    return atomic_load_explicit(&process_generation_counter, memory_order_relaxed);
}

/* True in a forked child for contexts that it inherited: verbs on them must not touch anything shared. */
static inline bool context_is_inherited(const struct context *context)
{
    return unlikely(context->generation != process_generation());
}

/* In the child of a fork, where only the calling thread exists: everything inherited becomes private and
 * dead, locks are free, tables are empty. */
void object_after_fork_in_child(void);

#endif
