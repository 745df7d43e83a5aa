/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Slots of the rings in which work requests are recorded: those of a QP's sends, and of receives. */
#ifndef WATCH_RING_H
#define WATCH_RING_H

#include "watch/watch.h"

static inline struct watched_send *send_slot(const struct watched_qp *qp, uint32_t counter)
{
    return (struct watched_send *)(void *)(qp->send.slots +
                                           (size_t)((counter & qp->send.mask) * qp->send.stride));
}

static inline struct wqe_sge *send_sges(struct watched_send *send)
{
    return (struct wqe_sge *)(void *)(send + 1);
}

static inline struct recv_wqe *recv_slot(const struct watched_ring *ring, uint32_t counter)
{
    return (struct recv_wqe *)(void *)(ring->slots + (size_t)((counter & ring->mask) * ring->stride));
}

static inline bool is_signaled(const struct watched_qp *qp, unsigned send_flags)
{
    return (send_flags | qp->always) & IBV_SEND_SIGNALED;
}

/* Posts are locked, and the work request is not posted yet. */
static inline void send_is_to_be(struct watched_qp *qp, unsigned send_flags)
{
    if (is_signaled(qp, send_flags))
        return;
    qp->unsignaled_is_first = false;
    atomic_store_explicit(&qp->send.counted, false, memory_order_relaxed); /* partner: count_sends() */
}

#endif
