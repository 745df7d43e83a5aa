/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Provenance of objects: which thread created or destroys an object, when, and from which call stack. The
 * records are in the published segment, where explanations read them. Threads and times of objects are always
 * recorded; stacks only while explanations are on, and times of work requests only if all is to be told
 * (SOFTHCA_EXPLAIN_WHAT), because they take time. */
#ifndef SEGMENT_PROVENANCE_H
#define SEGMENT_PROVENANCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"
#include "published/record.h"

struct id_record;

extern _Atomic bool provenance_is_explained, provenance_has_times;

/* Are explanations on: are stacks recorded? */
static inline bool explained(void)
{
#ifdef NO_EXPLANATIONS
    return false;
#else
    return unlikely(atomic_load_explicit(&provenance_is_explained, memory_order_relaxed));
#endif
}

/* Are times of work requests and packets recorded, too? That costs the data path a few percent. */
static inline bool times_recorded(void)
{
#ifdef NO_EXPLANATIONS
    return false;
#else
    return unlikely(atomic_load_explicit(&provenance_has_times, memory_order_relaxed));
#endif
}

/* Turns explanations on for the rest of the process; times: those of work requests, too. */
void provenance_explain(bool times);

/* Records that the calling thread creates the object. */
void provenance_created(struct provenance_record *provenance);
/* Records that the calling thread waits in the object's destroy verb. */
void provenance_destroying(struct provenance_record *provenance);
/* The wait in the destroy verb is over. */
void provenance_destroy_unblocked(struct provenance_record *provenance);

/* Records the PD or parent domain that the object belongs to. After provenance_created(), which clears it. */
static inline void provenance_in_domain(struct provenance_record *provenance, uint32_t domain)
{
    provenance->domain = domain + 1;
}

/* The same for an MR or MW, by its slot in the key table; written only while explanations are on. Slots are
 * used cyclically, so writing always would touch all pages of the table over time. */
void provenance_key_created(uint32_t slot, uint32_t domain);
/* The MR was moved to another PD (ibv_rereg_mr()). */
void provenance_key_moved(uint32_t slot, uint32_t domain);

/* The stamp of the present time, never STAMP_NONE. */
uint32_t provenance_stamp_now(void);
/* The same while times are recorded, else STAMP_NONE. */
static inline uint32_t provenance_stamp(void)
{
    return times_recorded() ? provenance_stamp_now() : STAMP_NONE;
}

/* One stamp for a batch of received packets: the clock is read for the first packet only. A thread that
 * begins a batch at the same time resets the stamp, and the clock is read once more. */
extern struct provenance_batch {
    /* Every polling thread writes it: a cache line of its own. */
    _Alignas(128) _Atomic uint32_t stamp;
} provenance_batch;
static inline void provenance_batch_begin(void)
{
    if (times_recorded())
        atomic_store_explicit(&provenance_batch.stamp, STAMP_NONE, memory_order_relaxed);
}
uint32_t provenance_batch_stamp(void);

/* Records that the program reads an event. The lock of the event's queue is held. */
void provenance_event_read(struct event_record *record, uint32_t type, uint32_t reported);
/* An event of that type was acknowledged, and is counted: if it was the oldest, and one is left, that is now the
 * oldest. The lock of the reads is held. */
void provenance_event_acked(struct event_record *record, uint32_t type);

/* Allocates a record for an id of librdmacm.so.1; NULL: the table is full, or no segment is open. */
struct id_record *id_publish(void);
void id_withdraw(struct id_record *record);
uint32_t id_number(const struct id_record *record);

/* Allocates a record for an object whose kind has no table of its own. NO_OBJECT: the table is full; the
 * object works, but ps and why do not show it. detail: the 16 bytes that depend on the kind, or NULL. */
uint32_t item_take(enum object_kind kind, uint32_t number, uint32_t context, uint32_t parent,
                   const void *detail);
/* Adds `users` (may be negative) to the item's count of users. */
void item_use(uint32_t item, int users);
/* The context was closed while it still has objects: its item stays, as OBJECT_DESTROYING. */
void item_orphaned(uint32_t item);
void item_return(uint32_t item);
/* Of a channel: this thread sleeps in ibv_get_cq_event(), or no longer. Of several that do one is recorded. */
void item_wait_begins(uint32_t item);
void item_wait_ends(uint32_t item);

#endif
