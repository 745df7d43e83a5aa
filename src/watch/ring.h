/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Slots of the rings in which work requests are recorded: those of a QP's sends, and of receives. */
#ifndef WATCH_RING_H
#define WATCH_RING_H

#include "watch/watch.h"

static inline struct send_wqe *send_slot(const struct watched_qp *qp, uint32_t counter)
{
    return (struct send_wqe *)(void *)(qp->send.slots + (size_t)(counter & qp->send.mask) * qp->send.stride);
}

static inline struct wqe_sge *send_sges(const struct watched_qp *qp, struct send_wqe *wqe)
{
    return (struct wqe_sge *)(void *)((char *)wqe + qp->sges_at);
}

static inline struct recv_wqe *recv_slot(const struct watched_ring *ring, uint32_t counter)
{
    return (struct recv_wqe *)(void *)(ring->slots + (size_t)(counter & ring->mask) * ring->stride);
}

/* enum send_wqe_flags of a work request with these enum ibv_send_flags: the three lowest of both are rotated. */
static inline uint8_t wqe_flags(const struct watched_qp *qp, unsigned send_flags)
{
    _Static_assert(WQE_SIGNALED == IBV_SEND_SIGNALED >> 1 && WQE_SOLICITED == IBV_SEND_SOLICITED >> 1 &&
                       WQE_FENCE == IBV_SEND_FENCE << 2 && WQE_INLINE == IBV_SEND_INLINE + 0,
                   "one flag for each");
    return (uint8_t)((send_flags >> 1 & (WQE_SIGNALED | WQE_SOLICITED)) | (send_flags & IBV_SEND_FENCE) << 2 |
                     (send_flags & IBV_SEND_INLINE) | qp->always);
}

#endif
