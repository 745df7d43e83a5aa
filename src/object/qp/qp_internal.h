/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions of the QP files for each other. */
#ifndef OBJECT_QP_QP_INTERNAL_H
#define OBJECT_QP_QP_INTERNAL_H

#include <string.h>

#include "base/prefetch.h"
#include "base/sys.h"
#include "object/qp/qp.h"
#include "segment/provenance.h"

/* QP lock held. Release: a reader of the segment that sees ERR also sees the fields written before. */
static inline void qp_set_state(struct qp *qp, enum ibv_qp_state state)
{
    atomic_store_explicit(&qp->record->state, (uint32_t)state, memory_order_release);
    if (unlikely(peers_execute))
        mapping_update_qp(qp);
}

/* This thread has changed the state, or destroys the QP. QP lock held. */
static inline void qp_note_change(struct qp *qp)
{
    qp->record->changed = provenance_stamp_now();
    qp->record->changed_by = (uint32_t)sys_gettid();
}

/* An empty list may be NULL, which memcpy() must not get. */
static inline void copy_if_any(void *to, const void *from, size_t length)
{
    if (likely(length != 0))
        memcpy(to, from, length);
}

/* A receive as the program posts it; num_sge: that of the work request, which fits the queue. */
static inline void recv_wqe_fill(struct recv_wqe *wqe, const struct ibv_recv_wr *wr, uint32_t num_sge,
                                 uint32_t stamp)
{
    wqe->wr_id = wr->wr_id;
    wqe->num_sge = num_sge;
    wqe->stamp = stamp;
    if (likely(num_sge == 1))
        memcpy(wqe->sge, wr->sg_list, sizeof(struct wqe_sge));
    else
        copy_if_any(wqe->sge, wr->sg_list, num_sge * sizeof(struct wqe_sge));
}

/* qp_ports.c: the functions that transport calls, filled in by qp_ports_install(). */
extern struct transport_ports qp_transport_ports;
/* Before a connected QP stops: receives the packets that have arrived. No lock held, inside a rundown
 * section. */
void qp_take_arrived(struct qp *qp);
/* Before a QP stops: sends the acknowledgements that it owes. Lock held. */
void qp_answer(struct qp *qp);
void qp_raise(struct qp *qp, enum ibv_event_type type);
int qp_allocate_resources(struct qp *qp, uint32_t count);
void qp_release_resources(struct qp *qp);
/* qp_modify.c: modify and query on behalf of any process that has the XRC_RECV QP open (xrc/open_qp.c). */
int qp_modify_shared(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
int qp_query_shared(struct qp *qp, struct ibv_qp_attr *ret_attributes, int mask);
/* qp.c: destroys an XRC_RECV QP that no process has open any more. */
void qp_end(struct qp *qp);
/* qp_slots.c: clears what the previous QP left in the structure and its record: an XRC_RECV QP in RESET,
 * without queues or a number. Lock held. */
void qp_make_blank(struct qp *qp, uint32_t slot);
/* qp_slots.c: in the child of a fork. */
void qp_slots_after_fork_in_child(void);
/* qp_slots.c: allocates a slot. The structure and the record may still hold a previous QP's values. */
struct qp *qp_take_slot(uint32_t *ret_slot);
/* destroyed: the program had a pointer to it and may destroy it once more, so it is not reused soon. */
void qp_give_slot(struct qp *qp, bool destroyed);
/* datagram_copies.c */
bool datagram_copies_begin(struct transport_qp *transport);
void datagram_copies_end(struct transport_qp *transport);
/* exposed.c */
void exposed_begin(struct transport_qp *transport);
void exposed_forget(struct qp *qp);
/* In the child of a fork. */
void exposed_after_fork_in_child(void);
void multicast_forget_attachments(void);

/* A QP that was not used lately is in no near cache. Posting asks at once for all lines that a plain request needs,
 * before it takes the first lock, behind which nothing is fetched ahead. */
static inline void qp_prefetch_plain(const struct qp *qp)
{
    const char *private = qp_private(qp);

    __builtin_prefetch(&qp->transport);
    prefetch_for_write(private);
    prefetch_for_write(private + CACHE_LINE);
    prefetch_for_write(qp->record);
    prefetch_for_write(&qp->record->traffic.requested[TRAFFIC_BY_REQUESTER][TRAFFIC_WRITE]);
    prefetch_for_write(atomic_load_explicit(&qp->prefetch_wqe, memory_order_relaxed));
    prefetch_for_write(atomic_load_explicit(&qp->prefetch_at, memory_order_relaxed));
}

/* Prefetches for the next request, after posting and before the sender runs; lock held. */
static inline void qp_prefetch(const struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    if (likely(sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed)))
        qp_ports->prefetch(qp, send_wqe_at(&qp->transport, sender->next));
}

/* RSS: the QP receives by WQs of an indirection table. */
static inline bool qp_spreads(const struct ibv_qp_init_attr_ex *attributes)
{
    return attributes->comp_mask & (IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH);
}

/* qp_check.c: 0 or -errno. */
int qp_check_create(const struct context *context, const struct ibv_qp_init_attr_ex *attributes);
/* The send queue has no room: -ENOMEM, and the reason is noted. posted: counter of the next request. */
int post_refuse_full(const struct qp *qp, uint32_t posted);
/* Checks and WQE fields that ibv_post_send() and ibv_wr_*() have in common. -EINVAL: the QP's type does not
 * have the operation. */
int post_check_opcode(const struct qp *qp, enum ibv_wr_opcode opcode);
void post_write_bind(const struct qp *qp, struct send_wqe *wqe, const struct mw *mw, uint32_t new_rkey,
                     uint32_t random, const struct ibv_mw_bind_info *info);

#endif
