/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* An opened device. Objects belong to one context; mixing is -EINVAL. */
#ifndef OBJECT_CONTEXT_H
#define OBJECT_CONTEXT_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "object/event.h"

struct device;

struct context {
    struct device *device;
    uint32_t number;
    struct async_queue events; /* its fd is verbs.context.async_fd */
    struct list all;           /* link in the list of contexts, under contexts_lock */
    struct verbs_context verbs; /* last: applications step back from its end (compat: verbs_context grows in front) */
};

extern struct lock contexts_lock;
extern struct list contexts; /* of struct context.all: for port events and the fork child */

static inline struct context *context_of(struct ibv_context *context)
{
    return container_of(context, struct context, verbs.context);
}

/* True in a forked child for contexts that it inherited: verbs on them must not touch anything shared. */
bool context_is_inherited(const struct context *context);

#endif
