/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What mapping.c (regions and their records) and mapping_grow.c (how much of a region is mapped) have of each other.
 * mapping_lock is held at each call. */
#ifndef OBJECT_MEMORY_MAPPING_INTERNAL_H
#define OBJECT_MEMORY_MAPPING_INTERNAL_H

#include "base/lock.h"
#include "base/verbs.h"
#include "mapped/mapped.h"
#include "object/memory/mapping.h"

/* --- mapping.c ------------------------------------------------------------------------------------------ */

/* Guards the list, what grows, and all mapped records. Held while pages are copied. Above mapped_lock. */
extern struct lock mapping_lock;
extern struct list mapping_regions; /* mr.mapping_node */
extern enum mapping_when mapping_when;

/* Nothing is mapped at registration, but later what peers access often (mapping_want()). So memory that no peer
 * accesses is never switched. No lock needed. */
static inline bool mapping_on_demand(void)
{
    return mapping_when != MAPPING_AT_REGISTRATION;
}

#define REMOTE_WRITES (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* The access that peers get. No lock needed. */
static inline unsigned mapping_peers_access(unsigned access)
{
    return MAPPED_PEERS_READ | (access & REMOTE_WRITES ? MAPPED_PEERS_WRITE : 0);
}

/* The region with the key in that slot, of mapping_regions; NULL: none, or it is being deregistered. Its mapping does
 * not end while mapping_lock is held. */
struct mr *mapping_region_in(uint32_t slot);
/* The largest part of the region in our own arenas. */
struct mapped_piece mapping_largest_piece(const struct mapped_region *region);
/* Writes the records of all regions on these pages anew. */
void mapping_write_records(uint64_t start, uint64_t end);
/* Closes these records. False: a peer's kernel copy by one of them has not ended in time. */
bool mapping_close_records(uint64_t start, uint64_t end);
/* Opens them again as they are, but those of regions that are being deregistered. */
void mapping_open_records(uint64_t start, uint64_t end);

/* --- mapping_grow.c ------------------------------------------------------------------------------------- */

/* In mapping_publish(). */
void mapping_grow_begin(struct mr *mr);
/* In mapping_end(): the region does not grow any more. */
void mapping_grow_end(struct mr *mr);
/* Not under mapping_lock: the child has one thread. */
void mapping_grow_after_fork_in_child(void);

#endif
