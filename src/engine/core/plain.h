/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What plain requests have in common (docs/design/plain-requests.md): direct/plain.c executes WRITEs,
 * paths/plain_send.c sends SENDs. Each adds which opcodes it takes, what the QP has to be, and how long a request may
 * be. paths/plain_network.c finds the bytes of both. */
#ifndef ENGINE_CORE_PLAIN_H
#define ENGINE_CORE_PLAIN_H

#include "engine/core/local_key.h"

/* Requests of a call: the QP's lock is held all along, as in sender_run(). */
#define PLAIN_CALL 64u

/* post_check_opcode() and write_payload(): one SGE, or inline, with 1 to `longest` bytes. */
static inline bool plain_wr_fits(const struct qp *qp, const struct ibv_send_wr *wr, uint32_t longest)
{
    const unsigned known = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_FENCE | IBV_SEND_INLINE;

    return wr->num_sge == 1 && qp->record->max_send_sge && !(wr->send_flags & ~known) &&
           wr->sg_list->length - 1 < longest &&
           (!(wr->send_flags & IBV_SEND_INLINE) || wr->sg_list->length <= qp->record->max_inline);
}

/* The same of what ibv_wr_*() has built and checked. */
static inline bool plain_wqe_fits(const struct send_wqe *wqe, uint32_t longest)
{
    return wqe->num_sge == !(wqe->flags & WQE_INLINE) && wqe->length - 1 < longest;
}

/* The bytes of a request that is not inline; NULL: the key is not known to allow it. */
static inline const void *plain_local(const struct qp *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return (const void *)local_key_address(&route_of(qp)->read_key, qp->transport.keys, qp->record->pd, lkey,
                                           address, length, false);
}

#endif
