/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who made an object, where and when, who destroys it: what explanations tell, written into the published
 * segment. Threads and times of objects are always recorded; stacks, and times of work requests, only where
 * explanations are on, for they cost. */
#ifndef SEGMENT_PROVENANCE_H
#define SEGMENT_PROVENANCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"
#include "published/record.h"

struct id_record;

extern _Atomic bool provenance_is_explained;

/* Are stacks and times recorded? */
static inline bool explained(void)
{
#ifdef NO_EXPLANATIONS
    return false;
#else
    return unlikely(atomic_load_explicit(&provenance_is_explained, memory_order_relaxed));
#endif
}

/* From now on they are. */
void provenance_explain(void);

/* The calling thread makes the object now, or begins to destroy it. */
void provenance_created(struct provenance_record *provenance);
void provenance_destroying(struct provenance_record *provenance);
/* What its destroy waited for has come. */
void provenance_destroy_unblocked(struct provenance_record *provenance);

/* It is made in this PD or parent domain: after provenance_created(). */
static inline void provenance_in_domain(struct provenance_record *provenance, uint32_t domain)
{
    provenance->domain = domain + 1;
}

/* The same of an MR or MW, by its slot in the key table: a table that a program walks through as it
 * registers, so nothing is written where nobody is to know. */
void provenance_key_created(uint32_t slot, uint32_t domain);
/* It is of another one from now on. */
void provenance_key_moved(uint32_t slot, uint32_t domain);

/* Now; STAMP_NONE where nobody is to know. */
uint32_t provenance_stamp_now(void);
static inline uint32_t provenance_stamp(void)
{
    return explained() ? provenance_stamp_now() : STAMP_NONE;
}

/* The same for packets that are taken together: the clock is asked for the first of them. A thread that
 * begins a batch meanwhile has it asked once more, which hurts nobody. */
extern struct provenance_batch {
    /* Written by every thread that polls: away from what every thread reads. */
    _Alignas(128) _Atomic uint32_t stamp;
} provenance_batch;
static inline void provenance_batch_begin(void)
{
    if (explained())
        atomic_store_explicit(&provenance_batch.stamp, STAMP_NONE, memory_order_relaxed);
}
uint32_t provenance_batch_stamp(void);

/* An event was read. Under the lock of its queue. */
void provenance_event_read(struct event_record *record, uint32_t type, uint32_t reported);

/* A record for an id of librdmacm.so.1; NULL where there is no room, or no segment. */
struct id_record *id_publish(void);
void id_withdraw(struct id_record *record);
uint32_t id_number(const struct id_record *record);

/* A record for an object that has no table of its own; NO_OBJECT: none is left, which hurts nobody but those
 * who look. detail: the 16 bytes that depend on the kind, or NULL. */
uint32_t item_take(enum object_kind kind, uint32_t number, uint32_t context, uint32_t parent,
                   const void *detail);
void item_use(uint32_t item, int users);
/* A context is closed, and not free, because objects are left in it. */
void item_orphaned(uint32_t item);
void item_return(uint32_t item);

#endif
