/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner's side of one-sided requests that peers execute themselves (docs/mapped.md): moving regions to
 * memory that peers can map, publishing mapped and direct records of regions and QPs, and withdrawing both. */
#ifndef OBJECT_MEMORY_MAPPING_H
#define OBJECT_MEMORY_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

struct mr;
struct qp;

/* Enables mapping in this process. asked: SOFTHCA_LOCAL asks for it, and regions are mapped when they are
 * registered; else nothing is mapped before mapping_catch_up(). */
void mapping_enable(bool asked);
extern bool mapping_is_enabled;
/* Lets peers execute requests in memory of this process: in mapped memory, or by the kernel's copy where this process
 * maps none. Not both: a copy into pages that are moving to an arena would be lost. After mapping_enable(). */
void mapping_allow_peers(void);
extern bool peers_execute;

/* What is done with a region's memory. */
struct mapping {
    bool wanted;                  /* the region is to be mapped, now or in mapping_catch_up() */
    struct mapped_region *region; /* NULL: not mapped so far */
};
/* Moves the pages in [address, address + length) to memory that peers can map, if `access` lets peers access
 * them, or if messages are sent from them. Length 0: none. No lock held, outside of rundown sections: pages are
 * copied. */
void mapping_begin(struct mapping *mapping, uint64_t address, uint64_t length, unsigned access);
/* Publishes the region's mapped record, which is valid until mapping_end(). */
void mapping_publish(struct mr *mr);
/* Withdraws the record, if there is one. The key must be withdrawn or changed before, and rundown sections that may have found it
 * must be over (rundown_wait()). When the call returns, no peer accesses the memory by the region's key, and the
 * pages are private unless another region needs them. */
void mapping_end(struct mr *mr);
/* Is the mapped record of that key valid? */
bool mapping_is_open(uint32_t slot);
/* Undoes mapping_begin(). */
void mapping_drop(struct mapping *mapping);

/* Is mapping postponed until this process connects to a peer on this host? */
bool mapping_is_behind(void);
/* Maps the regions whose mapping was postponed, and later ones when they are registered. Called before a QP is
 * connected to this host. No lock held, outside of rundown sections. */
void mapping_catch_up(void);

/* Updates the QP's direct record, which tells peers what they may execute. QP lock held. */
void mapping_update_qp(struct qp *qp);
/* Waits for peers that still execute requests by the previous, wider direct record. Memory that a peer may still
 * access because it does not respond is noted for mapping_evict(), since the QP lock is held. */
void mapping_settle_qp(struct qp *qp);
/* Is memory noted that mapping_evict() has to move? */
bool mapping_must_evict(void);
/* Notes that the region in this slot has to move to other pages, because a peer that does not respond may still write
 * to it, or that a peer's kernel copy by this key has to be waited for. Locks may be held. */
void mapping_evict_later(uint32_t slot);
/* Moves the noted regions, and waits for the copies that were noted. No lock held, outside of rundown sections. */
void mapping_evict(void);

/* Forgets access slots of a link that has ended. No lock held, outside of rundown sections. */
void mapping_forget_orphans(void);

void mapping_after_fork_in_child(void);

#endif
