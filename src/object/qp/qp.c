/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Creating, destroying and finding QPs (verbs.md §1.5, §2). */
#include "object/qp/qp.h"
#include "object/qp/late.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rundown.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/memory/memory.h"
#include "object/ports.h"
#include "object/qp/qp_internal.h"
#include "object/qp/qp_table.h"
#include "object/receive/wq.h"
#include "object/steering/flow.h"
#include "object/xrc/delegate.h"
#include "object/xrc/open_qp.h"
#include "object/xrc/xrc.h"
#include "rules/limits.h"
#include "segment/port.h"
#include "segment/provenance.h"
#include "steering/toeplitz.h"

/* --- lookup --------------------------------------------------------------------------------------------- */

struct qp *qp_lock_number(uint32_t qpn)
{
    struct qp *qp = qp_table_find(qpn);

    if (unlikely(!qp))
        return NULL;
    lock_acquire(&qp->lock);
    if (unlikely(atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != qpn)) {
        lock_release(&qp->lock);
        return NULL;
    }
    return qp;
}

/* A completion that frees slots was polled (verbs.md §3.7); its CQ's poll_lock is held. The counter never goes
 * back, not even by RESET, so a completion that was polled during a RESET changes nothing. */
void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
    struct qp *qp = qp_table_find(qpn);
    struct sender *sender;

    if (unlikely(!qp || atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != qpn))
        return;
    sender = &qp->record->sender;
    /* Release: the poller has read the slot before it is reused. Partner: the acquire in send_queue_room(). */
    if (likely((int32_t)(retires - atomic_load_explicit(&sender->retired, memory_order_relaxed)) > 0))
        atomic_store_explicit(&sender->retired, retires, memory_order_release);
}

_Static_assert(sizeof(((struct qp *)0)->hash_key) == TOEPLITZ_KEY_LENGTH, "a whole key");

/* --- creation ------------------------------------------------------------------------------------------- */

/* Clears the attributes that the type ignores. */
static void drop_halves(struct ibv_qp_init_attr_ex *attributes)
{
    if (attributes->qp_type == IBV_QPT_XRC_RECV || qp_spreads(attributes))
        attributes->cap = (struct ibv_qp_cap){0};
    if (qp_spreads(attributes))
        attributes->send_cq = NULL;
    if (attributes->qp_type == IBV_QPT_XRC_SEND) {
        attributes->cap.max_recv_wr = attributes->cap.max_recv_sge = 0;
        attributes->recv_cq = NULL;
    }
}

#define LEAST_INLINE 64u

static uint32_t power_of_two_at_least(uint32_t value)
{
    return value <= 1 ? value : 1u << (32 - __builtin_clz(value - 1));
}

/* Send slots for the adapter's own requests, of the rendezvous protocol (tag matching). */
static uint32_t own_depth(const struct ibv_qp_init_attr_ex *attributes)
{
    return attributes->srq && srq_of(attributes->srq)->tm ? OWN_REQUESTS : 0;
}

static uint32_t send_slots_of(const struct ibv_qp_init_attr_ex *attributes)
{
    return power_of_two_at_least(attributes->cap.max_send_wr + own_depth(attributes));
}

static size_t send_stride(const struct ibv_qp_init_attr_ex *attributes)
{
    size_t body = max_of((size_t)attributes->cap.max_send_sge * sizeof(struct wqe_sge),
                         (size_t)attributes->cap.max_inline_data);

    body = max_of(body, sizeof(struct mw_bind));
    if (own_depth(attributes))
        body = max_of(body, LIMIT_TAG_SGE * sizeof(struct wqe_sge));
    if (attributes->qp_type == IBV_QPT_UD)
        body += sizeof(struct path_address);
    return (sizeof(struct send_wqe) + body + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

static int take_queues(struct pd *pd, const struct ibv_qp_init_attr_ex *attributes,
                       struct qp_queues *ret_queues)
{
    uint32_t receives = attributes->srq ? 0 : power_of_two_at_least(attributes->cap.max_recv_wr);
    int error = queue_memory_take(pd, QUEUE_SEND, send_slots_of(attributes) * send_stride(attributes),
                                  &ret_queues->send);

    if (error)
        return error;
    error = queue_memory_take(pd, QUEUE_RECEIVE, receives * RECV_WQE_SIZE(attributes->cap.max_recv_sge),
                              &ret_queues->receive);
    if (error)
        queue_memory_give(pd, QUEUE_SEND, &ret_queues->send);
    return error;
}

static void give_queues(struct pd *pd, struct qp_queues *queues)
{
    queue_memory_give(pd, QUEUE_SEND, &queues->send);
    queue_memory_give(pd, QUEUE_RECEIVE, &queues->receive);
}

static int install_queues(struct qp *qp, const struct ibv_qp_init_attr_ex *attributes,
                          const struct qp_queues *queues)
{
    struct qp_record *record = qp->record;
    uint32_t send_slots = send_slots_of(attributes);
    uint32_t receive_slots = attributes->srq ? 0 : power_of_two_at_least(attributes->cap.max_recv_wr);

    record->send_depth = attributes->cap.max_send_wr;
    record->own_depth = own_depth(attributes);
    record->max_send_sge = attributes->cap.max_send_sge;
    record->max_inline = attributes->cap.max_inline_data;
    record->send_stride = (uint32_t)send_stride(attributes);
    if (send_slots) {
        record->send_offset = queues->send.offset;
        qp->transport.send_queue = queues->send.at;
        qp->transport.send_mask = send_slots - 1;
    }
    if (attributes->srq || attributes->qp_type == IBV_QPT_XRC_RECV) {
        qp->srq_receive = malloc(RECV_WQE_SIZE(LIMIT_SRQ_SGE));
        if (!qp->srq_receive)
            return -ENOMEM;
    }
    record->receive.depth = attributes->srq ? 0 : attributes->cap.max_recv_wr;
    record->receive.max_sge = attributes->srq ? 0 : attributes->cap.max_recv_sge;
    record->receive.stride = (uint32_t)RECV_WQE_SIZE(record->receive.max_sge);
    if (receive_slots) {
        record->receive.offset = queues->receive.offset;
        qp->receive_ring = queues->receive.at;
        qp->receive_mask = receive_slots - 1;
    }
    qp->queues = *queues;
    return 0;
}

static void remove_queues(struct qp *qp)
{
    struct qp_record *record = qp->record;

    qp_release_resources(qp);
    datagram_copies_end(&qp->transport);
    record->send_offset = record->receive.offset = 0;
    free(qp->srq_receive);
    qp->srq_receive = NULL;
    qp->transport.send_queue = qp->receive_ring = NULL;
}

/* Counts the QP as a user of its PD, CQs and SRQ; -EINVAL, and nothing counted, if one is being destroyed. */
static int use_parts(struct qp *qp)
{
    int error;

    if (qp->xrcd) {
        xrcd_use(qp->xrcd);
        return 0;
    }
    error = pd_use(qp->pd, "ibv_create_qp");

    if (error)
        return error;
    if (qp->spreads_over) {
        ind_table_use(qp->spreads_over);
        return 0;
    }
    error = cq_use(qp->send_cq, "ibv_create_qp");
    if (error)
        goto unuse_pd;
    error = cq_use(qp->recv_cq, "ibv_create_qp");
    if (error)
        goto unuse_send_cq;
    if (qp->srq) {
        error = srq_use(qp->srq);
        if (error)
            goto unuse_recv_cq;
    }
    return 0;

unuse_recv_cq:
    cq_unuse(qp->recv_cq);
unuse_send_cq:
    cq_unuse(qp->send_cq);
unuse_pd:
    pd_unuse(qp->pd);
    return error;
}

static void unuse_parts(struct qp *qp)
{
    if (qp->xrcd) {
        xrcd_unuse(qp->xrcd);
        return;
    }
    if (qp->spreads_over) {
        ind_table_unuse(qp->spreads_over);
        pd_unuse(qp->pd);
        return;
    }
    if (qp->srq)
        srq_unuse(qp->srq);
    cq_unuse(qp->recv_cq);
    cq_unuse(qp->send_cq);
    pd_unuse(qp->pd);
}

static void fill_public(struct qp *qp, const struct ibv_qp_init_attr_ex *attributes, uint32_t qpn)
{
    qp->ibv.context = &qp->context->verbs.context;
    qp->ibv.qp_context = attributes->qp_context;
    qp->ibv.pd = qp->pd ? &qp->pd->ibv : NULL;
    qp->ibv.send_cq = qp->xrcd ? NULL : attributes->send_cq;
    qp->ibv.recv_cq = qp->xrcd ? NULL : attributes->recv_cq;
    qp->ibv.srq = attributes->srq;
    qp->ibv.handle = qp->slot + 1;
    qp->ibv.qp_num = qpn;
    qp->ibv.state = IBV_QPS_RESET;
    qp->ibv.qp_type = attributes->qp_type;
    qp->ibv.events_completed = 0;
    qp->ex.comp_mask = 0;
}

static void fill_record(struct qp *qp, const struct ibv_qp_init_attr_ex *attributes)
{
    struct qp_record *record = qp->record;

    record->type = attributes->qp_type;
    record->pd = qp->pd ? qp->pd->number : NO_OBJECT;
    record->send_cq = qp->send_cq ? qp->send_cq->number : NO_OBJECT;
    record->recv_cq = qp->recv_cq ? qp->recv_cq->number : NO_OBJECT;
    record->srq = qp->srq ? qp->srq->number : NO_OBJECT;
    record->ind_table = qp->spreads_over ? qp->spreads_over->number : NO_OBJECT;
    record->context = qp->context->number;
    provenance_created(&record->provenance);
    if (qp->xrcd)
        record->provenance.xrcd = qp->xrcd->item + 1;
    if (qp->pd)
        provenance_in_domain(&record->provenance, qp->pd->record_number);
    record->attributes.signal_all = attributes->sq_sig_all != 0;
    record->attributes.path_mig_state = IBV_MIG_MIGRATED;
}

static _Atomic uint32_t created; /* QPs of this process so far */

/* Lock held, because threads that visit all QPs, and a timer of the slot's previous QP, may find the slot. */
static int assemble(struct qp *qp, uint32_t slot, struct context *context, struct pd *pd,
                    struct ibv_qp_init_attr_ex *attributes, const struct qp_queues *queues)
{
    uint32_t qpn;
    int error;

    qp_make_blank(qp, slot); /* also post_lock: a batch may have been started and never completed */
    atomic_store_explicit(&qp->reset_at, 0, memory_order_relaxed);
    qp->holders = 1;
    qp->order = atomic_fetch_add_explicit(&created, 1, memory_order_relaxed) + 1;
    qp->injected = qp->packets_struck = false;
    qp->pd = pd;
    qp->context = context;
    qp->xrcd = pd ? NULL : xrcd_of(attributes->xrcd);
    qp->transport.relay.possible = qp->xrcd && xrcd_is_shared(qp->xrcd);
    qp->send_cq = attributes->send_cq && pd ? cq_of(attributes->send_cq) : NULL;
    qp->recv_cq = pd && attributes->recv_cq ? cq_of(attributes->recv_cq) : qp->send_cq;
    qp->srq = attributes->srq ? srq_of(attributes->srq) : NULL;
    qp->spreads_over = qp_spreads(attributes) ? ind_table_of(attributes->rwq_ind_tbl) : NULL;
    if (qp->spreads_over) {
        qp->hash_fields = attributes->rx_hash_conf.rx_hash_fields_mask;
        memcpy(qp->hash_key, attributes->rx_hash_conf.rx_hash_key, sizeof(qp->hash_key));
    }
    qp->is_extended = (attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    qp->send_ops = qp->is_extended ? attributes->send_ops_flags : 0;
    qp->create_flags = attributes->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? attributes->create_flags : 0;
    ack_account_init(&qp->async_events, &qp->record->events);
    qp->transport.counters = &qp->context->device->counters;
    qp->transport.receive_pd = qp->srq ? qp->srq->pd->number : pd ? pd->number : NO_OBJECT;
    qp->transport.tag_matching = qp->srq && qp->srq->tm;
    error = install_queues(qp, attributes, queues);
    if (error)
        goto free_queues;
    error = use_parts(qp);
    if (error)
        goto free_queues;
    error = qp_ports->allocate_number(&qpn);
    if (error)
        goto drop_parts;
    fill_public(qp, attributes, qpn);
    fill_record(qp, attributes);
    attributes->cap.max_recv_wr = qp->record->receive.depth;
    attributes->cap.max_recv_sge = qp->record->receive.max_sge;
    qp_set_state(qp, IBV_QPS_RESET);
    error = qp_table_insert(qpn, qp);
    if (error)
        goto release_number;
    /* Last, with release order: readers of the segment take the record as valid by its number. */
    atomic_store_explicit(&qp->record->qpn, qpn, memory_order_release);
    return 0;

release_number:
    qp_ports->release_number(qpn);
drop_parts:
    unuse_parts(qp);
free_queues:
    remove_queues(qp);
    return error;
}

int qp_create(struct context *context, struct pd *pd, struct ibv_qp_init_attr_ex *attributes,
              struct qp **ret_qp)
{
    int error = context_is_inherited(context) ? destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_create_qp")
                                              : qp_check_create(context, attributes);
    struct qp_queues queues;
    uint32_t slot;
    struct qp *qp;

    if (error)
        return error;
    if (attributes->qp_type != IBV_QPT_UD && attributes->qp_type != IBV_QPT_RAW_PACKET)
        memory_expect_copies();
    drop_halves(attributes);
    /* The space for SGEs in a slot holds this much inline data anyway; rdma_xclient asks for none and posts
     * inline data. */
    if (attributes->cap.max_send_wr)
        attributes->cap.max_inline_data = max_of(attributes->cap.max_inline_data, LEAST_INLINE);
    error = take_queues(pd, attributes, &queues);
    if (error)
        return error;
    qp = qp_take_slot(&slot);
    if (!qp) {
        give_queues(pd, &queues);
        return -ENOMEM;
    }
    lock_acquire(&qp->lock);
    error = assemble(qp, slot, context, pd, attributes, &queues);
    lock_release(&qp->lock);
    if (error) {
        qp_give_slot(qp, false);
        give_queues(pd, &queues);
    } else {
        *ret_qp = qp;
    }
    return error;
}

/* --- destruction ---------------------------------------------------------------------------------------- */

static void log_counts(const struct qp *qp, uint32_t qpn)
{
    log_debug(
        "QP 0x%06x: %u sends and %u receives completed, %u go-back-N retransmissions (%u PSN sequence error "
        "NAKs, "
        "%u RNR NAKs, %u probes, %u timeouts), congestion window %u packets, RTT %u us, %u requests dropped, "
        "%u duplicate requests",
        qpn, qp->record->sender.completed, qp->record->receive.taken, qp->record->sender.retransmissions,
        qp->record->sender.sequence_naks, qp->record->sender.rnr_naks, qp->record->sender.probes_sent,
        qp->record->sender.expirations, qp->record->sender.window, qp->record->sender.rtt / 1000,
        qp->record->responder.drops, qp->record->responder.duplicates);
}

static int destroy(struct qp *qp)
{
    const struct destroying destroying = {OBJECT_QP, qp->slot, &qp->record->provenance};
    struct losses *losses;
    uint32_t qpn;

    qp_ports->flush_before_end(qp);
    rundown_enter();
    qp_take_arrived(qp);
    lock_acquire(&qp->lock);
    if (qp->record->multicast_groups || qp->flows) {
        lock_release(&qp->lock);
        rundown_exit();
        return busy_because(OBJECT_QP, qp->slot);
    }
    qp_answer(qp);
    losses = note_losses(OBJECT_QP, qp->slot);
    /* From here on the QP is not found by number, so no packet, completion or event follows. */
    qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed);
    atomic_store_explicit(&qp->record->destroying_qpn, qpn, memory_order_relaxed);
    qp_note_change(qp);
    port_retire_qp(qp->context->device->name, qp->record, qp->transport.rare);
    qp_table_remove(qpn);
    qp_set_state(qp, IBV_QPS_RESET);
    mapping_settle_qp(qp);
    tagged_forget(&qp->transport);
    late_forget(qp);
    qp->receive_taken = false;
    qp_ports->unlock(qp, false);
    comp_cntr_detach_all(qp);
    rundown_exit();
    if (mapping_must_evict())
        mapping_evict();

    log_counts(qp, qpn);
    qp_ports->forget(qp);
    exposed_forget(qp);
    if (qp->send_cq)
        cq_purge_qp(qp->send_cq, qpn);
    if (qp->recv_cq != qp->send_cq)
        cq_purge_qp(qp->recv_cq, qpn);
    if (!qp->creator_closed) {
        async_purge(&qp->context->events, &qp->async_events);
        ack_account_wait(&qp->async_events, &qp->ibv.mutex, &qp->ibv.cond, &qp->ibv.events_completed,
                         &destroying);
    }
    remove_queues(qp);
    give_queues(qp->pd, &qp->queues);
    unuse_parts(qp);
    qp_forget_openers(qp);
    qp->record->destroyed_qpn = qpn;
    atomic_store_explicit(&qp->record->destroying_qpn, 0, memory_order_relaxed);
    qp_ports->release_number(qpn);
    qp_give_slot(qp, true);
    report_losses(losses);
    return 0;
}

void qp_flush_before_end(struct qp *qp)
{
    qp_ports->flush_before_end(qp);
}

int qp_destroy(struct qp *qp)
{
    if (destroyed_has(DESTROYED_QP, qp, "ibv_destroy_qp") || qp->creator_closed)
        return -EINVAL;
    if (context_is_inherited(qp->context))
        return 0; /* the parent's QP: the child has only a copy */
    if (unlikely(qp->handle))
        return qp_handle_destroy(qp);
    return unlikely(qp->xrcd) && !qp_close_creator(qp) ? 0 : destroy(qp);
}

void qp_end(struct qp *qp)
{
    (void)destroy(qp); /* never -EBUSY: an XRC_RECV QP is in no multicast group and has no flows */
}

/* The child of a fork starts without QPs; inherited ones are not found by number. */
void qp_after_fork_in_child(void)
{
    qp_table_after_fork_in_child();
    xrc_after_fork_in_child();
    delegates_after_fork_in_child();
    multicast_forget_attachments();
    flows_after_fork_in_child();
    exposed_after_fork_in_child();
    qp_slots_after_fork_in_child();
}
