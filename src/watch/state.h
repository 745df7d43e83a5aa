/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of src/watch share among themselves. */
#ifndef WATCH_STATE_H
#define WATCH_STATE_H

#include "watch/table.h"
#include "watch/watch.h"

/* NULL: a kind whose destroy does not block. */
struct provenance_record *watched_provenance(const struct watched *object);

/* objects.c: of an object that was created; NULL: nothing can be recorded. Published when its record is filled in. */
void *object_make(enum object_kind kind, size_t size, const void *key, const struct ibv_context *ibv);
void object_discard(struct watched *object);
void *object_publish(void *made);

/* The records of an object of domains.c, queues.c. */
void free_domain_record(struct watched *object);
void free_queue_record(struct watched *object);

static inline uint32_t context_number(const struct watched *object)
{
    return object->context ? object->context->base.number : NO_OBJECT;
}

static inline uint32_t number_of(const void *object)
{
    return object ? ((const struct watched *)object)->number : NO_OBJECT;
}

static inline void pd_use(struct watched_pd *pd, int users)
{
    if (pd)
        atomic_fetch_add_explicit(&segment_pd(pd->base.number)->users, (uint32_t)users, memory_order_relaxed);
}

/* The PD that keys and QPs name: that of a parent domain. */
static inline uint32_t pd_number(const struct watched_pd *pd)
{
    const struct pd_record *record;

    if (!pd)
        return NO_OBJECT;
    record = segment_pd(pd->base.number);
    return record->protects != NO_OBJECT ? record->protects : pd->base.number;
}

static inline void created_in(struct provenance_record *provenance, const struct watched_pd *pd)
{
    if (pd)
        provenance_in_domain(provenance, pd->base.number);
}

void objects_after_fork_in_child(void);
void work_after_fork_in_child(void);
void destroy_after_fork_in_child(void);
void events_after_fork_in_child(void);

#endif
