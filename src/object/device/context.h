/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Contexts: opened devices. An object belongs to one context; using objects of two contexts together is
 * -EINVAL. */
#ifndef OBJECT_DEVICE_CONTEXT_H
#define OBJECT_DEVICE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/verbs.h"
#include "object/event/event.h"

struct device;
struct share;

/* Bytes of struct verbs_context in front of its member `context` in rdma-core 64: older headers define less. Programs
 * read operations there after they have checked verbs_context.sz. */
#define VERBS_HEAD    ((size_t)368)
#define HEADER_S_HEAD offsetof(struct verbs_context, context)

struct context {
    struct device *device;
    uint32_t number;
    uint32_t item;             /* its record in the published segment */
    uint32_t generation;       /* process_generation() when opened */
    _Atomic uint32_t objects;  /* how many objects it has: PDs, CQs, channels, ... */
    struct share *share;       /* the device file of verbs.context.cmd_fd (object/memory/share.h) */
    struct async_queue events; /* its descriptor is verbs.context.async_fd */
    struct list all;           /* in `contexts`; under contexts_lock */
    _Atomic bool fatal;        /* an injected fault has ended the device: calls return EIO */
    /* Last: applications compute the start of verbs_context from its end, and it grows at the start. */
    void (*newer[(VERBS_HEAD > HEADER_S_HEAD ? VERBS_HEAD - HEADER_S_HEAD : 0) / sizeof(void (*)(void))])(
        void);
    struct verbs_context verbs;
};
_Static_assert(offsetof(struct context, verbs.context) - offsetof(struct context, newer) >= VERBS_HEAD,
               "there is nothing between the two");

extern struct lock contexts_lock;
extern struct list contexts; /* of struct context.all; for port events and the child of a fork */

static inline struct context *context_of(struct ibv_context *context)
{
    return container_of(context, struct context, verbs.context);
}

/* Opens the published segment with the first context. Fills async_fd, num_comp_vectors and mutex of the public
 * struct; the caller fills the rest, and holds and drops the reference on the device. */
int context_open(struct device *device, struct context **ret_context);
/* The context stays open until the process ends, and is not reported as a leak of the program. */
void context_keep(struct context *context);
/* The memory is not freed if the context still has objects, because the program may use them (verbs.md §1.2
 * leaves that undefined). */
void context_close(struct context *context);

/* Raises an event of the port in each context of the device. No lock held. */
void context_raise_port_event(const struct device *device, enum ibv_event_type type);

/* Counts the forks between the first process and this one. */
extern _Atomic uint32_t process_generation_counter;

static inline uint32_t process_generation(void)
{
    return atomic_load_explicit(&process_generation_counter, memory_order_relaxed);
}

/* Was the context opened by the parent of this forked process? Verbs on it must not change shared state. */
static inline bool context_is_inherited(const struct context *context)
{
    return unlikely(context->generation != process_generation());
}

/* In the child of a fork, where only the calling thread exists: inherited objects become private and unusable,
 * locks are free, tables are empty. */
void object_after_fork_in_child(void);

#endif
