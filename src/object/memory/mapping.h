/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner's side of one-sided requests that peers execute themselves (docs/mapped.md): moving regions to
 * memory that peers can map, publishing mapped and direct records of regions and QPs, and withdrawing both. */
#ifndef OBJECT_MEMORY_MAPPING_H
#define OBJECT_MEMORY_MAPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/types.h"

struct mr;
struct qp;

/* When regions are mapped. */
enum mapping_when {
    MAPPING_AT_REGISTRATION, /* SOFTHCA_LOCAL asks for it */
    MAPPING_IN_BACKGROUND,   /* what peers access often, by the helper thread */
    /* What peers access often, and what was registered before a QP is connected; in calls of the program's single
     * thread, because pages can be switched at no other time without the program's notice (mapped_unasked()). */
    MAPPING_IN_CALLS,
};
/* Enables mapping in this process. */
void mapping_enable(enum mapping_when wanted);
extern bool mapping_is_enabled;
/* Lets peers execute requests in memory of this process: in mapped memory, or, unless SOFTHCA_LOCAL asks for mapping,
 * by the kernel's copy. After mapping_enable(). */
void mapping_allow_peers(void);
extern bool peers_execute;

/* What is done with a region's memory. */
struct mapping {
    bool wanted;        /* the region may be mapped, now or later */
    bool published;     /* between mapping_publish() and mapping_end(); under mapping_lock */
    bool ending;        /* in mapping_end(): its record stays closed */
    bool refused;       /* its window cannot grow (mapped_refusals()) */
    uint32_t hindrance; /* enum mapped_reason: why it could not grow when it was tried last; 0: none */
    bool untried;       /* mapping_connected() has not seen it; under mapping_lock */
    struct mapped_region *region; /* NULL: not mapped so far */
    /* In the background; addresses. Under mapping_lock. */
    uint64_t from, to;               /* the window: what was switched, or refused, so far */
    uint64_t wanted_from, wanted_to; /* what peers have asked for; equal: nothing */
    struct list growing;
};
/* Moves the pages in [address, address + length) to memory that peers can map, if `access` lets peers access
 * them, or if messages are sent from them. Length 0: none. No lock held, outside of rundown sections: pages are
 * copied. */
void mapping_begin(struct mapping *mapping, uint64_t address, uint64_t length, unsigned access);
/* Gives the region, which has none, the mapping. */
void mapping_set(struct mr *mr, const struct mapping *mapping);
/* Publishes the region's mapped record, which is valid until mapping_end(). */
void mapping_publish(struct mr *mr);
/* Withdraws the record, if there is one. The key must be withdrawn or changed before, and rundown sections that may
 * have found it must be over (rundown_wait()). When the call returns, no peer accesses the memory by the region's
 * key, and the pages are private unless another region needs them. */
void mapping_end(struct mr *mr);
/* Is the mapped record of that key valid? */
bool mapping_is_open(uint32_t slot);
/* Undoes mapping_begin(). */
void mapping_drop(struct mapping *mapping);

/* A region is mapped in the background by steps of this length, at multiples of it. Bytes. */
#define MAPPING_STEP ((uint64_t)1 << 20)
/* The address of a step of a region that begins at `address`. */
static inline uint64_t mapping_step_start(uint64_t address, uint32_t step)
{
    return (address & ~(MAPPING_STEP - 1)) + step * MAPPING_STEP;
}
/* A peer accesses that step of the region with the key in this slot often. True: mapping_grow() has to be called. No
 * lock held, outside of rundown sections. */
bool mapping_want(uint32_t slot, uint32_t step);
/* Switches one step in the background, in less than a millisecond. True: call it again. Helper thread, no lock held,
 * outside of rundown sections. */
bool mapping_grow(void);
/* The same with MAPPING_IN_CALLS, by less, if mapping_is_growing(). A thread of the program, no lock held, outside of
 * rundown sections. */
void mapping_grow_in_call(void);
extern _Atomic uint32_t mapping_growing; /* regions of which more is wanted than is mapped */
static inline bool mapping_is_growing(void)
{
    return unlikely(atomic_load_explicit(&mapping_growing, memory_order_relaxed) != 0);
}
/* A QP is connected to one of this host: with MAPPING_IN_CALLS, switches what is registered so far and peers may
 * access, because a program that serves one-sided requests may make no further call. As mapping_grow_in_call(). */
void mapping_connected(void);

/* Updates the QP's direct record, which tells peers what they may execute. QP lock held. */
void mapping_update_qp(struct qp *qp);
/* Waits for peers that still execute requests by the previous, wider direct record. Memory that a peer may still
 * access because it does not respond is noted for mapping_evict(), since the QP lock is held. */
void mapping_settle_qp(struct qp *qp);
/* Notes that the region in this slot has to move to other pages: a peer that does not respond may still store to it.
 * Locks may be held. */
void mapping_evict_later(uint32_t slot);
/* Notes that a peer's kernel copy by the key in this slot has to be waited for. Locks may be held. */
void mapping_wait_later(uint32_t slot);
/* Is memory noted that mapping_evict() has to move or to wait for? */
bool mapping_must_evict(void);
/* Moves the noted regions, and waits for the copies that were noted. Not the helper thread. No lock of a QP held,
 * outside of rundown sections. */
void mapping_evict(void);
/* Moves the noted regions only. No lock held, outside of rundown sections. */
void mapping_move(void);

/* Forgets access slots of a link that has ended. No lock held, outside of rundown sections. */
void mapping_forget_orphans(void);

void mapping_after_fork_in_child(void);

#endif
