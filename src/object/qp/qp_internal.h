/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files about QPs share among themselves. */
#ifndef OBJECT_QP_QP_INTERNAL_H
#define OBJECT_QP_QP_INTERNAL_H

#include <string.h>

#include "object/qp/qp.h"

/* Under the QP's lock. Release: a reader of the segment that sees ERR also sees what led there. */
static inline void qp_set_state(struct qp *qp, enum ibv_qp_state state)
{
    atomic_store_explicit(&qp->record->state, (uint32_t)state, memory_order_release);
    if (unlikely(mapping_is_enabled))
        mapping_update_qp(qp);
}

/* Send slots that are free; under the QP's lock or that of posting. Acquire: partner of qp_retire_sends(). */
static inline uint32_t send_queue_room(const struct qp *qp, uint32_t posted)
{
    uint32_t retired = atomic_load_explicit(&qp->record->sender.retired, memory_order_acquire);
    uint32_t reset_at = atomic_load_explicit(&qp->reset_at, memory_order_relaxed);

    if (unlikely((int32_t)(reset_at - retired) > 0))
        retired = reset_at;
    return qp->record->send_depth - (posted - qp->record->sender.own_posted - retired);
}

/* An empty list may be NULL, which memcpy() must not see. */
static inline void copy_if_any(void *to, const void *from, size_t length)
{
    if (likely(length != 0))
        memcpy(to, from, length);
}

/* qp_ports.c: what transport calls, filled in by qp_ports_install(). */
extern struct transport_ports qp_transport_ports;
/* Before a connected QP goes away: takes what has arrived. No lock held, inside a rundown section. */
void qp_take_arrived(struct qp *qp);
void qp_answer(struct qp *qp);
void qp_raise(struct qp *qp, enum ibv_event_type type);
int qp_allocate_resources(struct qp *qp, uint32_t count);
void qp_release_resources(struct qp *qp);
/* qp_modify.c: for one of several that have an XRC_RECV QP open (open_qp.c). */
int qp_modify_shared(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
int qp_query_shared(struct qp *qp, struct ibv_qp_attr *ret_attributes, int mask);
/* qp.c: all that have it open have gone. */
void qp_end(struct qp *qp);
/* qp_slots.c: nothing is left of whom the slot was before: an XRC_RECV QP in RESET, without queues or a
 * number. Its lock is held. */
void qp_make_blank(struct qp *qp, uint32_t slot);
/* qp_slots.c: in the child of a fork. */
void qp_slots_after_fork_in_child(void);
/* qp_slots.c: a slot that nobody has; its QP's record is somebody's old one. */
struct qp *qp_take_slot(uint32_t *ret_slot);
/* destroyed: the program had it, and may destroy it again. */
void qp_give_slot(struct qp *qp, bool destroyed);
/* datagram_copies.c */
bool datagram_copies_begin(struct transport_qp *transport);
void datagram_copies_end(struct transport_qp *transport);
/* exposed.c */
void lending_begins(struct transport_qp *transport);
void lending_forget(struct qp *qp);
/* In the child of a fork. */
void lending_after_fork_in_child(void);
void multicast_forget_attachments(void);

/* After posting, before the sender runs: lock held. */
static inline void qp_prefetch(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    if (likely(sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed)))
        qp_ports->prefetch(qp, send_wqe_at(&qp->transport, sender->next));
}

/* Checks that do not depend on how a WR is posted, and the WQE's opcode and flags: -EINVAL if the type has no
 * such operation. */
int post_check_opcode(const struct qp *qp, enum ibv_wr_opcode opcode);
uint8_t post_wqe_flags(const struct qp *qp, unsigned send_flags);
void post_write_bind(const struct qp *qp, struct send_wqe *wqe, const struct mw *mw, uint32_t new_rkey,
                     uint32_t random, const struct ibv_mw_bind_info *info);

#endif
