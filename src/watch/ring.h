/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Slots of the rings in which work requests are recorded: those of a QP's sends, and of receives. */
#ifndef WATCH_RING_H
#define WATCH_RING_H

#include "watch/watch.h"

static inline struct watched_send *send_slot(const struct watched_qp *qp, uint32_t counter)
{
    return (struct watched_send *)(void *)qp->send.slots + (counter & qp->send.mask);
}

static inline struct watched_rest *send_rest(const struct watched_qp *qp, const struct watched_send *send)
{
    size_t index = (size_t)(send - (const struct watched_send *)(void *)qp->send.slots);

    return (struct watched_rest *)(void *)(qp->rests + index * qp->send.stride);
}

static inline struct wqe_sge *rest_sges(struct watched_rest *rest)
{
    return (struct wqe_sge *)(void *)(rest + 1);
}

static inline uint32_t watched_rest_stride(uint32_t max_sge)
{
    return (uint32_t)(sizeof(struct watched_rest) + (max_sge - 1) * sizeof(struct wqe_sge));
}

/* There is room for so many. */
static inline void record_sges(struct watched_send *send, struct watched_rest *rest,
                               const struct ibv_sge *sges, uint32_t count)
{
    if (count)
        memcpy(&send->address, sges, sizeof(*sges));
    if (count > 1)
        memcpy(rest_sges(rest), sges + 1, (count - 1) * sizeof(*sges));
    rest->more_sges = (int32_t)count - 1;
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
