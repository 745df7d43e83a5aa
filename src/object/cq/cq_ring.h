/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What cq.c and cq_ring.c share. */
#ifndef OBJECT_CQ_CQ_RING_H
#define OBJECT_CQ_CQ_RING_H

#include "object/cq/cq.h"

/* The smallest power of two greater than cqe. ibv_cq.cqe is 2^n - 1, as with hardware providers. */
uint32_t cq_ring_slots(uint32_t cqe);
int cq_ring_allocate(struct pd *parent, uint32_t slots, struct queue_memory *ret_memory);
/* lock and poll_lock held, or the CQ is not published yet. */
void cq_ring_install(struct cq *cq, const struct queue_memory *memory, uint32_t slots);
/* Lock held. poll_lock is above it, so it can only be tried. False: a consumer accesses the ring now, and
 * skips purged completions by itself; the ring may be compacted later. */
bool cq_ring_try_compact(struct cq *cq);

#endif
