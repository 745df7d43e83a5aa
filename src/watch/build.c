/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_wr_*(): work requests are recorded in the slots behind those that are posted, and are posted by wr_complete(). */
#include "base/sys.h"
#include "watch/ring.h"

void build_begin(struct watched_qp *qp)
{
    /* Again without a wr_complete(): the thread has the lock. */
    if (!qp->building)
        qp->build_locked = bias_acquire(&qp->send.lock);
    qp->building = true;
    qp->built = 0;
}

static struct watched_send *last_built(struct watched_qp *qp, const struct qp_record *record)
{
    return qp->built ? send_slot(qp, record->sender.posted + qp->built - 1) : NULL;
}

struct watched_send *build_send(struct watched_qp *qp, uint64_t wr_id, unsigned flags, uint8_t opcode)
{
    struct qp_record *record = qp->record;
    struct watched_send *send;

    if (!qp->send.slots ||
        record->sender.posted + qp->built - __atomic_load_n(&record->sender.completed, __ATOMIC_ACQUIRE) >
            qp->send.mask)
        return NULL;
    qp->built++;
    send = last_built(qp, record);
    send_is_to_be(qp, flags);
    *send = (struct watched_send){.wr_id = wr_id, .opcode = opcode | WATCHED_REST, .send_flags = flags};
    *send_rest(qp, send) = (struct watched_rest){.stamp = STAMP_NONE, .more_sges = -1};
    return send;
}

void build_sge(struct watched_qp *qp, const struct ibv_sge *from, size_t count)
{
    struct watched_send *send = last_built(qp, qp->record);
    uint32_t kept = (uint32_t)min_of(count, (size_t)qp->send.max_sge);

    if (!send)
        return;
    record_sges(send, send_rest(qp, send), from, kept);
}

void build_inline(struct watched_qp *qp, size_t length)
{
    struct watched_send *send = last_built(qp, qp->record);

    if (!send)
        return;
    send->send_flags |= IBV_SEND_INLINE;
    send->length = (uint32_t)length;
}

uint32_t build_publish(struct watched_qp *qp)
{
    struct qp_record *record = qp->record;
    uint32_t built = qp->built, stamp = built ? provenance_stamp_now() : STAMP_NONE;

    for (uint32_t i = 0; i < built; i++)
        send_rest(qp, send_slot(qp, record->sender.posted + i))->stamp = stamp;
    qp->built = 0;
    atomic_store_explicit(&record->sender.posted, record->sender.posted + built, memory_order_release);
    return built;
}

void build_end(struct watched_qp *qp, uint32_t published, bool failed)
{
    struct qp_record *record = qp->record;

    if (failed)
        atomic_store_explicit(&record->sender.posted, record->sender.posted - published,
                              memory_order_release);
    qp->built = 0;
    if (qp->building) {
        qp->building = false;
        bias_release(&qp->send.lock, qp->build_locked);
    }
}
