/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Creation, destruction and lookup of QPs, and the object half of the transport ports. */
#include "object/qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "object/device.h"
#include "object/qp_internal.h"
#include "object/qp_table.h"
#include "rules/limits.h"

const struct qp_ports *qp_ports;

/* All slots that were ever used; a slot's struct qp is allocated once and reused (type-stable, see qp.h). */
static _Atomic(struct qp *) slots[LIMIT_QP];
static _Atomic uint32_t slots_used; /* slots from here on were never used */

/* --- lookup ---------------------------------------------------------------------------------------------------- */

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

void qp_for_each(void (*visit)(struct qp *qp, void *argument), void *argument)
{
    uint32_t used = atomic_load_explicit(&slots_used, memory_order_acquire);

    for (uint32_t slot = 0; slot < used; slot++) {
        struct qp *qp = atomic_load_explicit(&slots[slot], memory_order_acquire);

        if (qp)
            visit(qp, argument);
    }
}

/* A completion that frees slots was polled (verbs-contract §3.7); its CQ's poll_lock is held. Counters are never set back, not by RESET either:
 * a completion that was polled while the QP was reset moves nothing. */
void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
    struct qp *qp = qp_table_find(qpn);
    struct sender *sender;

    if (unlikely(!qp || atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != qpn))
        return;
    sender = &qp->record->sender;
    /* Release: partner of the acquire in send_queue_room(); what the poller read of the slot happened before it is reused. */
    if (likely((int32_t)(retires - atomic_load_explicit(&sender->retired, memory_order_relaxed)) > 0))
        atomic_store_explicit(&sender->retired, retires, memory_order_release);
}

/* --- the object half of the transport ports -------------------------------------------------------------------- */

static enum ibv_wc_opcode send_wc_opcode(uint8_t opcode)
{
    switch ((enum ibv_wr_opcode)opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV:
        return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW:
        return IBV_WC_BIND_MW;
    case IBV_WR_TSO:
        return IBV_WC_TSO;
    case IBV_WR_ATOMIC_WRITE:
        return IBV_WC_ATOMIC_WRITE;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_DRIVER1:
        break;
    }
    return IBV_WC_SEND;
}

static void complete_send(struct transport_qp *transport, const struct send_wqe *wqe, uint32_t counter,
                          enum verdict verdict, uint32_t byte_len)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    /* Errors and flushes complete whether signaled or not (verbs-contract §2.6). */
    if (!(wqe->flags & WQE_SIGNALED) && verdict == VERDICT_OK)
        return;
    const struct cqe cqe = {
        .wr_id = wqe->wr_id,
        .qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed),
        .retires = counter + 1,
        .status = (uint8_t)verdict_wc_status(verdict),
        .opcode = (uint8_t)send_wc_opcode(wqe->opcode),
        .is_send = 1,
        .byte_len = byte_len,
        .vendor_err = (uint32_t)verdict,
    };
    cq_push(qp->send_cq, &cqe, verdict != VERDICT_OK);
}

static struct recv_wqe *receive_wqe_at(struct qp *qp, uint32_t counter)
{
    return (struct recv_wqe *)(qp->receive_ring +
                               (size_t)(counter & qp->receive_mask) * qp->record->receive.stride);
}

static int take_receive(struct transport_qp *transport, const struct recv_wqe **ret_wqe)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct receive_queue *queue = &qp->record->receive;

    if (qp->srq) {
        int error = srq_take(qp->srq, qp->srq_receive);

        if (error)
            return error;
        *ret_wqe = qp->srq_receive;
    } else {
        uint32_t taken = atomic_load_explicit(&queue->taken, memory_order_relaxed);

        if (taken == atomic_load_explicit(&queue->posted, memory_order_relaxed))
            return -ENOENT;
        *ret_wqe = receive_wqe_at(qp, taken);
    }
    qp->receive_taken = true;
    return 0;
}

static void push_receive(struct qp *qp, const struct recv_wqe *wqe, const struct receive_completion *completion)
{
    const struct cqe cqe = {
        .wr_id = wqe->wr_id,
        .qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed),
        .status = (uint8_t)verdict_wc_status(completion->verdict),
        .opcode = (uint8_t)completion->opcode,
        .service_level = completion->service_level,
        .byte_len = completion->byte_len,
        .wc_flags = completion->wc_flags,
        .imm_or_rkey = completion->imm_or_rkey,
        .src_qpn = completion->src_qpn,
        .vendor_err = (uint32_t)completion->verdict,
    };

    cq_push(qp->recv_cq, &cqe, completion->solicited || completion->verdict != VERDICT_OK);
}

static void complete_receive(struct transport_qp *transport, const struct receive_completion *completion)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct receive_queue *queue = &qp->record->receive;
    const struct recv_wqe *wqe;

    if (qp->srq) {
        wqe = qp->srq_receive;
    } else {
        uint32_t taken = atomic_load_explicit(&queue->taken, memory_order_relaxed);

        wqe = receive_wqe_at(qp, taken);
        atomic_store_explicit(&queue->taken, taken + 1, memory_order_relaxed);
    }
    qp->receive_taken = false;
    transport->current_receive = NULL;
    push_receive(qp, wqe, completion);
}

void qp_raise(struct qp *qp, enum ibv_event_type type)
{
    const struct ibv_async_event event = { .element.qp = &qp->ibv, .event_type = type };

    async_raise(&qp->context->events, &event, &qp->async_events);
}

static void raise_event(struct transport_qp *transport, enum ibv_event_type type)
{
    qp_raise(container_of(transport, struct qp, transport), type);
}

/* ERR, entered by modify or by a fatal error (verbs-contract §2.6). */
void qp_enter_error(struct qp *qp)
{
    static const struct receive_completion flushed = { .verdict = VERDICT_FLUSHED, .opcode = IBV_WC_RECV };
    struct receive_queue *queue = &qp->record->receive;

    if (qp_state(qp) == IBV_QPS_ERR)
        return;
    qp_set_state(qp, IBV_QPS_ERR);
    qp_ports->transport_link.set_timer(&qp->transport, NS_NEVER);
    sender_flush(&qp->transport);
    if (qp->receive_taken && qp->srq)
        complete_receive(&qp->transport, &flushed);
    qp->receive_taken = false;
    qp->transport.current_receive = NULL;
    while (!qp->srq && atomic_load_explicit(&queue->taken, memory_order_relaxed) !=
                           atomic_load_explicit(&queue->posted, memory_order_relaxed))
        complete_receive(&qp->transport, &flushed);
    /* The responder stopped with this lock held: no WQE of the SRQ is in flight any more (verbs-contract §2.7). */
    if (qp->srq)
        qp_raise(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

static void sender_failed(struct transport_qp *transport)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    if (qp->record->type == IBV_QPT_RC) {
        qp_enter_error(qp);
        return;
    }
    qp_set_state(qp, IBV_QPS_SQE); /* only the send queue stops (verbs-contract §2.6 rule 7) */
    sender_flush(transport);
}

static void responder_failed(struct transport_qp *transport)
{
    qp_enter_error(container_of(transport, struct qp, transport));
}

static void drained(struct transport_qp *transport)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    if (qp->record->attributes.sq_drained_event) {
        qp->record->attributes.sq_drained_event = 0;
        qp_raise(qp, IBV_EVENT_SQ_DRAINED);
    }
}

static void lock_keys(struct transport_qp *transport)
{
    lock_acquire(&keys_lock);
}

static void unlock_keys(struct transport_qp *transport)
{
    lock_release(&keys_lock);
}

static struct transport_ports transport_ports;

void qp_ports_install(const struct qp_ports *ports)
{
    transport_ports = ports->transport_link;
    transport_ports.complete_send = complete_send;
    transport_ports.take_receive = take_receive;
    transport_ports.complete_receive = complete_receive;
    transport_ports.raise_event = raise_event;
    transport_ports.sender_failed = sender_failed;
    transport_ports.responder_failed = responder_failed;
    transport_ports.drained = drained;
    transport_ports.lock_keys = lock_keys;
    transport_ports.unlock_keys = unlock_keys;
    qp_ports = ports;
}

void qp_fail_on_overrun(struct qp *qp)
{
    rundown_enter();
    lock_acquire(&qp->lock);
    /* A live QP keeps its CQs alive. */
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && qp_state(qp) != IBV_QPS_ERR &&
        (qp->send_cq->record->failed || qp->recv_cq->record->failed)) {
        qp_raise(qp, IBV_EVENT_QP_FATAL);
        qp_enter_error(qp);
    }
    lock_release(&qp->lock);
    rundown_exit();
}

bool qp_run_sender(struct qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    switch (qp_state(qp)) {
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
        sender_run(&qp->transport);
        return sender->waiting == SENDER_RUNS &&
               sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed);
    case IBV_QPS_SQE:
    case IBV_QPS_ERR:
        sender_flush(&qp->transport);
        return false;
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_RTR:
    case IBV_QPS_UNKNOWN:
        break;
    }
    return false;
}

/* --- creation ---------------------------------------------------------------------------------------------------- */

static int check_type(const struct ibv_qp_init_attr_ex *attributes)
{
    switch (attributes->qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
        return 0;
    case IBV_QPT_RAW_PACKET:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
        return -EOPNOTSUPP;
    case IBV_QPT_DRIVER:
        break;
    }
    return -EINVAL;
}

/* Operations of ibv_wr_* that each type has (verbs-contract §3.8). */
static int check_send_ops(const struct ibv_qp_init_attr_ex *attributes)
{
    const uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const uint64_t uc = sends | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                        IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    const uint64_t rc = uc | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE;
    uint64_t allowed = attributes->qp_type == IBV_QPT_UD ? sends : attributes->qp_type == IBV_QPT_UC ? uc : rc;

    if (!(attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
        return 0;
    return attributes->send_ops_flags & ~allowed ? -EOPNOTSUPP : 0;
}

static int check_create(const struct pd *pd, const struct ibv_qp_init_attr_ex *attributes)
{
    const uint32_t known_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
                                IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_IND_TABLE |
                                IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const struct ibv_qp_cap *cap = &attributes->cap;
    int error;

    if (attributes->comp_mask & ~known_mask)
        return -EINVAL;
    if (attributes->comp_mask &
        (IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH))
        return -EOPNOTSUPP;
    error = check_type(attributes);
    if (!error)
        error = check_send_ops(attributes);
    if (error)
        return error;
    if ((attributes->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && attributes->create_flags) {
        if (attributes->create_flags & ~(uint32_t)IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
            return -EOPNOTSUPP;
        if (attributes->qp_type != IBV_QPT_UD)
            return -EINVAL;
    }
    if (cap->max_send_wr > LIMIT_QP_WR || cap->max_send_sge > LIMIT_SGE || cap->max_inline_data > LIMIT_INLINE)
        return -EINVAL;
    if (!attributes->srq && (cap->max_recv_wr > LIMIT_QP_WR || cap->max_recv_sge > LIMIT_SGE))
        return -EINVAL;
    if (!attributes->send_cq || cq_of(attributes->send_cq)->ibv.context != pd->ibv.context)
        return -EINVAL;
    /* rdma_create_qp passes no receive CQ when there is nothing to receive (verbs-contract §1.5). */
    if (attributes->recv_cq ? attributes->recv_cq->context != pd->ibv.context
                            : attributes->srq != NULL || cap->max_recv_wr != 0)
        return -EINVAL;
    if (attributes->srq && attributes->srq->context != pd->ibv.context)
        return -EINVAL;
    return 0;
}

static uint32_t power_of_two_at_least(uint32_t value)
{
    return value <= 1 ? value : 1u << (32 - __builtin_clz(value - 1));
}

static void raise_slots_used(uint32_t used)
{
    uint32_t seen = atomic_load_explicit(&slots_used, memory_order_relaxed);

    while (seen < used && !atomic_compare_exchange_weak_explicit(&slots_used, &seen, used, memory_order_release,
                                                                 memory_order_relaxed)) {
    }
}

static struct qp *slot_take(uint32_t *ret_slot)
{
    uint32_t slot = number_take(&pool_qps);
    struct qp *qp;

    if (slot == NO_OBJECT)
        return NULL;
    qp = atomic_load_explicit(&slots[slot], memory_order_relaxed);
    if (!qp) {
        qp = calloc(1, sizeof(*qp));
        if (!qp) {
            number_return(&pool_qps, slot);
            return NULL;
        }
        lock_init(&qp->lock);
        lock_init(&qp->post_lock);
        pthread_mutex_init(&qp->ibv.mutex, NULL);
        pthread_cond_init(&qp->ibv.cond, NULL);
        list_init(&qp->route.owing);
        list_init(&qp->route.blocked);
        list_init(&qp->route.waiting);
        qp->record = segment_qp(slot);
        atomic_store_explicit(&slots[slot], qp, memory_order_release);
        raise_slots_used(slot + 1);
    }
    *ret_slot = slot;
    return qp;
}

static size_t send_stride(const struct ibv_qp_init_attr_ex *attributes)
{
    size_t body = max_of((size_t)attributes->cap.max_send_sge * sizeof(struct wqe_sge),
                         (size_t)attributes->cap.max_inline_data);

    body = max_of(body, sizeof(struct window_bind));
    if (attributes->qp_type == IBV_QPT_UD)
        body += sizeof(struct path_address);
    return (sizeof(struct send_wqe) + body + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

static int allocate_queues(struct qp *qp, const struct ibv_qp_init_attr_ex *attributes)
{
    struct qp_record *record = qp->record;
    uint32_t send_slots = power_of_two_at_least(attributes->cap.max_send_wr);
    uint32_t receive_slots = attributes->srq ? 0 : power_of_two_at_least(attributes->cap.max_recv_wr);

    record->send_depth = attributes->cap.max_send_wr;
    record->max_send_sge = attributes->cap.max_send_sge;
    record->max_inline = attributes->cap.max_inline_data;
    record->send_stride = (uint32_t)send_stride(attributes);
    if (send_slots) {
        record->send_offset = segment_allocate((size_t)send_slots * record->send_stride);
        if (!record->send_offset)
            return -ENOMEM;
        qp->transport.send_queue = segment_at(record->send_offset);
        qp->transport.send_mask = send_slots - 1;
    }
    if (attributes->srq) {
        qp->srq_receive = malloc(RECV_WQE_SIZE(LIMIT_SRQ_SGE));
        if (!qp->srq_receive)
            return -ENOMEM;
    }
    record->receive.depth = attributes->srq ? 0 : attributes->cap.max_recv_wr;
    record->receive.max_sge = attributes->srq ? 0 : attributes->cap.max_recv_sge;
    record->receive.stride = (uint32_t)RECV_WQE_SIZE(record->receive.max_sge);
    if (receive_slots) {
        record->receive.offset = segment_allocate((size_t)receive_slots * record->receive.stride);
        if (!record->receive.offset)
            return -ENOMEM;
        qp->receive_ring = segment_at(record->receive.offset);
        qp->receive_mask = receive_slots - 1;
    }
    return 0;
}

static void release_queues(struct qp *qp)
{
    struct qp_record *record = qp->record;

    qp_release_resources(qp);
    if (record->send_offset)
        segment_release(record->send_offset, ((size_t)qp->transport.send_mask + 1) * record->send_stride);
    if (record->receive.offset)
        segment_release(record->receive.offset, ((size_t)qp->receive_mask + 1) * record->receive.stride);
    record->send_offset = record->receive.offset = 0;
    free(qp->srq_receive);
    qp->srq_receive = NULL;
    qp->transport.send_queue = qp->receive_ring = NULL;
}

/* Counts the QP as a user of what it is made of; undoes what it did when one refuses (being destroyed). */
static int use_parts(struct qp *qp)
{
    int error = pd_use(qp->pd);

    if (error)
        return error;
    error = cq_use(qp->send_cq);
    if (error)
        goto unuse_pd;
    error = cq_use(qp->recv_cq);
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
    if (qp->srq)
        srq_unuse(qp->srq);
    cq_unuse(qp->recv_cq);
    cq_unuse(qp->send_cq);
    pd_unuse(qp->pd);
}

static void fill_public(struct qp *qp, const struct ibv_qp_init_attr_ex *attributes, uint32_t qpn)
{
    qp->ibv.context = qp->pd->ibv.context;
    qp->ibv.qp_context = attributes->qp_context;
    qp->ibv.pd = &qp->pd->ibv;
    qp->ibv.send_cq = attributes->send_cq;
    qp->ibv.recv_cq = attributes->recv_cq;
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
    record->pd = qp->pd->number;
    record->send_cq = qp->send_cq->number;
    record->recv_cq = qp->recv_cq->number;
    record->srq = qp->srq ? qp->srq->number : NO_OBJECT;
    record->context = qp->context->number;
    record->created_ns = sys_now();
    record->created_by = (uint32_t)sys_gettid();
    record->attributes.signal_all = attributes->sq_sig_all != 0;
    record->attributes.path_mig_state = IBV_MIG_MIGRATED;
}

int qp_create(struct pd *pd, struct ibv_qp_init_attr_ex *attributes, struct qp **ret_qp)
{
    uint32_t slot, qpn;
    struct qp *qp;
    int error = check_create(pd, attributes);

    if (error)
        return error;
    qp = slot_take(&slot);
    if (!qp)
        return -ENOMEM;
    memset(qp->record, 0, sizeof(*qp->record));
    memset(&qp->transport, 0, sizeof(qp->transport));
    qp->slot = slot;
    qp->pd = pd;
    qp->context = pd->context;
    qp->send_cq = cq_of(attributes->send_cq);
    qp->recv_cq = attributes->recv_cq ? cq_of(attributes->recv_cq) : qp->send_cq;
    qp->srq = attributes->srq ? srq_of(attributes->srq) : NULL;
    qp->receive_taken = false;
    qp->is_extended = (attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    qp->send_ops = qp->is_extended ? attributes->send_ops_flags : 0;
    qp->create_flags =
        attributes->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? attributes->create_flags : 0;
    ack_account_init(&qp->async_events, &qp->record->events_reported);
    qp->transport.record = qp->record;
    qp->transport.ports = &transport_ports;
    qp->transport.keys = segment_keys();
    qp->transport.counters = &qp->context->device->counters;
    qp->transport.receive_pd = qp->srq ? qp->srq->pd->number : pd->number;
    error = allocate_queues(qp, attributes);
    if (error)
        goto free_slot;
    error = use_parts(qp);
    if (error)
        goto free_slot;
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
    /* The record goes live last: qp_lock_number() and readers of the segment go by it. */
    atomic_store_explicit(&qp->record->qpn, qpn, memory_order_release);
    *ret_qp = qp;
    return 0;

release_number:
    qp_ports->release_number(qpn);
drop_parts:
    unuse_parts(qp);
free_slot:
    release_queues(qp);
    number_return(&pool_qps, slot);
    return error;
}

/* --- destruction --------------------------------------------------------------------------------------------------- */

int qp_destroy(struct qp *qp)
{
    uint32_t qpn;

    if (context_is_inherited(qp->context))
        return 0; /* the parent's: only this process's copy goes, with the process */
    lock_acquire(&qp->lock);
    if (qp->record->multicast_groups) {
        lock_release(&qp->lock);
        return -EBUSY;
    }
    /* Out of service: nobody finds it by number any more, so no packet, completion or event comes after this. */
    qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed);
    atomic_store_explicit(&qp->record->qpn, 0, memory_order_release);
    qp_table_remove(qpn);
    qp_set_state(qp, IBV_QPS_RESET);
    qp->receive_taken = false;
    lock_release(&qp->lock);

    log_debug("QP 0x%06x: %u sent, %u received, went back %u times, %u RNR NAKs, %u requests dropped", qpn,
              qp->record->sender.completed, qp->record->receive.taken, qp->record->sender.retransmissions,
              qp->record->sender.rnr_naks, qp->record->responder.drops);
    qp_ports->forget(qp);
    cq_purge_qp(qp->send_cq, qpn);
    if (qp->recv_cq != qp->send_cq)
        cq_purge_qp(qp->recv_cq, qpn);
    async_purge(&qp->context->events, &qp->async_events);
    ack_account_wait(&qp->async_events, &qp->ibv.mutex, &qp->ibv.cond, &qp->ibv.events_completed);
    unuse_parts(qp);
    release_queues(qp);
    qp_ports->release_number(qpn);
    number_return(&pool_qps, qp->slot);
    return 0;
}

/* The child of a fork starts with no QPs; those it inherited stay as they are, unreachable by number. */
void qp_after_fork_in_child(void)
{
    for (uint32_t slot = 0; slot < atomic_load_explicit(&slots_used, memory_order_relaxed); slot++) {
        struct qp *qp = atomic_exchange_explicit(&slots[slot], NULL, memory_order_relaxed);

        if (qp)
            qp_table_remove(qp->ibv.qp_num);
    }
    atomic_store_explicit(&slots_used, 0, memory_order_relaxed);
}
