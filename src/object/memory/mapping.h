/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner's side of one-sided requests that peers execute by themselves (docs/mapped.md): regions in memory
 * that peers can map, records that tell of them and of the QPs, and taking both back. */
#ifndef OBJECT_MEMORY_MAPPING_H
#define OBJECT_MEMORY_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

struct mr;
struct qp;

/* From now on regions are mapped and QPs published. asked: as far as possible; else mapped_unasked() says
 * that it is, and nothing is tried before mapping_catch_up(). */
void mapping_enable(bool asked);
extern bool mapping_is_enabled;

/* What becomes of a region's memory. No lock held, outside of rundown sections: pages are copied. */
struct mapping {
    bool wanted;                  /* mapped, as far as possible, or put off until mapping_catch_up() */
    struct mapped_region *region; /* NULL: nothing was tried so far */
};
/* Pages in [address, address + length) are switched, as far as peers are to reach them, or to fetch messages
 * from there. Length 0: none. */
void mapping_begin(struct mapping *mapping, uint64_t address, uint64_t length, unsigned access);
/* The slot's record says so, from now on until mapping_end(). */
void mapping_publish(struct mr *mr);
/* Nobody finds the key any more, or with its old meaning, and nobody of this process is in a section in which
 * he found it. When this returns, no peer reaches the memory by the region's mapping any more, and the pages
 * are private unless another region needs them. */
void mapping_end(struct mr *mr);
/* Do peers find the region of that key mapped? */
bool mapping_is_open(uint32_t slot);
/* Undoes mapping_begin(). */
void mapping_drop(struct mapping *mapping);

/* Somebody of this host is about to be connected to: what was put off is mapped now, and other regions when
 * they are registered. No lock held, outside of rundown sections. */
bool mapping_is_behind(void);
void mapping_catch_up(void);

/* QP lock held: the QP's record says what peers may do now. */
void mapping_update_qp(struct qp *qp);
/* If it said more before: until this returns, peers may be at work by that. QP lock held, so memory that one
 * of them may still write to, because it does not come to an end, moves later: */
void mapping_settle_qp(struct qp *qp);
/* which this waits for. No lock held, outside of rundown sections. */
bool mapping_must_evict(void);
/* A peer was given up that may still write to the memory of the region in this slot. Locks may be held. */
void mapping_evict_later(uint32_t slot);
void mapping_evict(void);

/* A link has gone. No lock held, outside of rundown sections. */
void mapping_forget_orphans(void);

void mapping_after_fork_in_child(void);

#endif
