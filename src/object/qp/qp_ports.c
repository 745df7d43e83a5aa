/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The functions of transport_ports that object implements: completions, receives, events, and the states that a
 * QP enters by an error. */
#include <errno.h>

#include "base/rundown.h"
#include "base/sys.h"
#include "object/device/device.h"
#include "object/memory/memory.h"
#include "object/ports.h"
#include "object/qp/late.h"
#include "object/qp/qp_internal.h"
#include "object/qp/traffic.h"
#include "object/receive/tm.h"
#include "object/xrc/open_qp.h"
#include "object/xrc/xrc.h"
#include "segment/stack.h"

const struct qp_ports *qp_ports;
__thread uint32_t qp_receives_completed;
struct transport_ports qp_transport_ports;

/* Takes an integer and not enum ibv_wr_opcode, whose names depend on the version of verbs.h. */
static enum ibv_wc_opcode send_wc_opcode(uint8_t opcode)
{
    switch (opcode) {
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
    case WR_FLUSH:
        return (enum ibv_wc_opcode)WC_FLUSH;
    default:
        return IBV_WC_SEND;
    }
}

/* Before the completion can be polled, so that who has polled it finds it counted. */
static cold_path void count(struct qp *qp, enum counted_operation operation, enum verdict verdict,
                            uint32_t bytes)
{
    if (qp->counted & COUNTED_BIT(operation))
        comp_cntr_count(qp->comp_cntrs[operation], verdict == VERDICT_OK, bytes);
}

static cold_path void count_send(struct qp *qp, uint8_t opcode, enum verdict verdict, uint32_t bytes)
{
    switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
        count(qp, COUNTED_SEND, verdict, bytes);
        break;
    case IBV_WR_RDMA_READ:
        count(qp, COUNTED_READ, verdict, bytes);
        break;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        count(qp, COUNTED_WRITE, verdict, bytes);
        break;
    default: /* no counter counts atomics, FLUSH, and what stays in this process */
        break;
    }
}

/* transport_counter_ports.executed: a request of the peer */
static void count_executed(struct transport_qp *transport, bool read, uint32_t bytes)
{
    count(container_of(transport, struct qp, transport), read ? COUNTED_REMOTE_READ : COUNTED_REMOTE_WRITE,
          VERDICT_OK, bytes);
}

/* Flushed work requests have the cause of the first error, too. */
static cold_path uint32_t vendor_err_of(const struct qp *qp, enum verdict verdict)
{
    return fault_vendor_err((uint8_t)verdict, qp_fault_cause(&qp->transport));
}

/* Stamps the cause that transport has noted, which stays until RESET, and has it told. Lock held. */
static cold_path void note_fault(struct qp *qp)
{
    struct fault_record *fault = &qp->transport.rare->fault;
    const struct provenance_record *key;

    if (qp_fault_cause(&qp->transport) == FAULT_NONE || fault->ns)
        return;
    fault->injected =
        (qp->injected && (fault->wr_id == qp->injected_wr_id || fault->side == FAULT_OF_RESPONDER)) ||
        ((fault->cause == FAULT_SILENCE || fault->cause == FAULT_PSN) &&
         (qp->packets_struck || fault->value == PATH_PORT_DOWN));
    if (fault->cause == FAULT_KEY_WITHDRAWN && explained()) {
        key = segment_key_provenance(key_slot(fault->key));
        fault->withdrawn_ns = key->destroying_ns;
        fault->withdrawn_by = key->destroying_by;
        fault->withdrawn_stack = key->destroying_stack;
    }
    /* Release: a reader that sees the time also sees the rest. */
    __atomic_store_n(&fault->ns, sys_now(), __ATOMIC_RELEASE);
    if (explained() && !fault_is_wanted(fault))
        object_ports->qp_failed(qp->slot);
}

/* transport_ports.dropped: the first one of each reason is told. */
static cold_path void dropped(struct transport_qp *transport, enum drop_reason reason)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct drop_record *drop = &qp->transport.rare->drops[reason];

    drop->local = gid_is_of_host(drop->source);
    drop->ns = sys_now();
    if (drop->count == 1 && explained())
        object_ports->qp_dropped(qp->slot, reason);
}

static void complete_send(struct transport_qp *transport, const struct send_wqe *wqe, uint32_t counter,
                          enum verdict verdict, uint32_t byte_len)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    if (unlikely(qp->counted))
        count_send(qp, wqe->opcode, verdict, byte_len);
    /* Errors and flushes complete whether signaled or not (verbs.md §2.6). */
    if (!(wqe->flags & WQE_SIGNALED) && verdict == VERDICT_OK)
        return;
    traffic_completed(qp, counter, verdict);
    if (unlikely(verdict != VERDICT_OK) && verdict != VERDICT_FLUSHED)
        note_fault(qp); /* before the completion can be polled */
    const struct cqe cqe = {
        .wr_id = wqe->wr_id,
        .qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed),
        .retires = counter + 1,
        .status = (uint8_t)verdict_wc_status(verdict),
        .opcode = (uint8_t)send_wc_opcode(wqe->opcode),
        .kind = CQE_SEND,
        .byte_len = byte_len,
        .vendor_err = unlikely(verdict != VERDICT_OK) ? vendor_err_of(qp, verdict) : 0,
    };
    if (unlikely(qp->counted & QP_LATE) &&
        late_hold(qp, LATE_SENDS, counter, qp->send_cq, &cqe, verdict != VERDICT_OK))
        return;
    cq_push(qp->send_cq, &cqe, verdict != VERDICT_OK);
}

/* No two completions of a QP whose completions come late are pushed together. */
static cold_path void complete_one_by_one(struct transport_qp *transport, uint32_t counter, uint32_t count)
{
    for (uint32_t end = counter + count; counter != end; counter++) {
        const struct send_wqe *wqe = send_wqe_at(transport, counter);

        complete_send(transport, wqe, counter, VERDICT_OK, wqe->length);
    }
}

/* Completions that take the CQ's lock once. */
#define COMPLETED_TOGETHER 16u

static void complete_sends(struct transport_qp *transport, uint32_t counter, uint32_t count)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct cq_success run[COMPLETED_TOGETHER];
    uint32_t signaled = 0;

    if (unlikely(qp->counted & QP_LATE)) {
        complete_one_by_one(transport, counter, count);
        return;
    }
    for (uint32_t end = counter + count; counter != end; counter++) {
        const struct send_wqe *wqe = send_wqe_at(transport, counter);

        if (unlikely(qp->counted))
            count_send(qp, wqe->opcode, VERDICT_OK, wqe->length);
        if (!(wqe->flags & WQE_SIGNALED))
            continue;
        traffic_completed(qp, counter, VERDICT_OK);
        run[signaled++] = (struct cq_success){.wr_id = wqe->wr_id,
                                              .retires = counter + 1,
                                              .byte_len = wqe->length,
                                              .opcode = (uint8_t)send_wc_opcode(wqe->opcode)};
        if (signaled == COMPLETED_TOGETHER) {
            cq_push_run(qp->send_cq, run, signaled, CQE_SEND, qp->ibv.qp_num, 0);
            signaled = 0;
        }
    }
    if (signaled)
        cq_push_run(qp->send_cq, run, signaled, CQE_SEND, qp->ibv.qp_num, 0);
}

static int take_receive(struct transport_qp *transport, const struct recv_wqe **ret_wqe)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct receive_queue *queue = &qp->record->receive;

    if (qp->srq) {
        int error = srq_take(qp->srq, qp->srq_receive, queue);

        if (error)
            return error;
        *ret_wqe = qp->srq_receive;
    } else {
        uint32_t taken = atomic_load_explicit(&queue->taken, memory_order_relaxed);

        if (taken == atomic_load_explicit(&queue->posted, memory_order_relaxed))
            return -ENOENT;
        *ret_wqe = qp_receive_at(qp, taken);
    }
    qp->receive_taken = true;
    return 0;
}

/* counter: of the receive, in the QP's own queue. */
static void push_receive(struct qp *qp, uint64_t wr_id, uint32_t counter,
                         const struct receive_completion *completion)
{
    struct cqe cqe = {
        .wr_id = wr_id,
        .qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed),
        .status = (uint8_t)verdict_wc_status(completion->verdict),
        .opcode = (uint8_t)completion->opcode,
        .kind = CQE_RECEIVE,
        .service_level = completion->service_level,
        .byte_len = completion->byte_len,
        .wc_flags = completion->wc_flags,
        .imm_or_rkey = completion->imm_or_rkey,
        .src_qpn = completion->src_qpn,
        .vendor_err =
            unlikely(completion->verdict != VERDICT_OK) ? vendor_err_of(qp, completion->verdict) : 0,
        .vlan = completion->vlan,
        .flow_tag = completion->flow_tag,
    };
    bool solicited;

    if (unlikely(qp->counted))
        count(qp, COUNTED_RECV, completion->verdict, completion->byte_len);
    if (unlikely(completion->verdict != VERDICT_OK))
        traffic_count_failure(qp, completion->verdict);
    qp_receives_completed++;
    if (unlikely(qp->transport.tag_matching)) {
        cqe.kind = CQE_TAGGED;
        cqe.app_ctx = completion->app_ctx;
        cqe.tag = completion->tag;
    }
    solicited = completion->solicited || completion->verdict != VERDICT_OK;
    if (unlikely(qp->counted & QP_LATE) && !qp->srq &&
        late_hold(qp, LATE_RECEIVES, counter, qp->recv_cq, &cqe, solicited))
        return;
    cq_push(unlikely(qp->srq && qp->srq->cq) ? qp->srq->cq : qp->recv_cq, &cqe, solicited);
}

/* transport_tag_ports.complete_tagged */
static void complete_tagged(struct transport_qp *transport, uint64_t wr_id,
                            const struct receive_completion *completion)
{
    push_receive(container_of(transport, struct qp, transport), wr_id, 0, completion);
}

void qp_note_owner_fault(struct qp *qp, enum fault_cause cause)
{
    struct fault_record *fault = &qp_rare(&qp->transport)->fault;

    if (fault->ns)
        return;
    if (fault->cause == FAULT_NONE || cause == FAULT_OVERRUN)
        *fault = (struct fault_record){.cause = (uint16_t)cause, .side = FAULT_OF_OWNER};
    if (cause == FAULT_OVERRUN)
        fault->value = qp->send_cq->record->failed ? qp->send_cq->number : qp->recv_cq->number;
    if (fault->cause == FAULT_MODIFIED) {
        fault->by = (uint32_t)sys_gettid();
        fault->stack = explained() ? stack_capture() : NO_STACK;
    }
}

static void complete_receive(struct transport_qp *transport, const struct receive_completion *completion)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct receive_queue *queue = &qp->record->receive;
    const struct recv_wqe *wqe;
    uint32_t taken = 0;

    if (qp->srq) {
        wqe = qp->srq_receive;
        queue->from_srq = false;
    } else {
        taken = atomic_load_explicit(&queue->taken, memory_order_relaxed);
        wqe = qp_receive_at(qp, taken);
        atomic_store_explicit(&queue->taken, taken + 1, memory_order_relaxed);
    }
    qp->receive_taken = false;
    transport->current_receive = NULL;
    if (unlikely(completion->verdict != VERDICT_OK) && completion->verdict != VERDICT_FLUSHED)
        note_fault(qp);
    push_receive(qp, wqe->wr_id, taken, completion);
}

/* Raises the event on every handle that has the QP open. */
static void notify_openers(struct qp *qp, const struct ibv_async_event *event)
{
    list_for_each (node, &qp->openers) {
        const struct qp_opener *opener = list_entry(node, struct qp_opener, node);
        struct qp *handle = opener->handle;

        if (handle) {
            const struct ibv_async_event own = {.element.qp = &handle->ibv, .event_type = event->event_type};

            async_raise(&handle->context->events, &own, &handle->async_events);
        } else {
            qp_ports->send_opener_event(opener, qp->ibv.qp_num, event->event_type);
        }
    }
}

void qp_raise(struct qp *qp, enum ibv_event_type type)
{
    const struct ibv_async_event event = {.element.qp = &qp->ibv, .event_type = type};

    if (unlikely(qp->origin)) /* a delegate: the response carries the error to the QP */
        return;
    if (likely(!qp->creator_closed))
        async_raise(&qp->context->events, &event, &qp->async_events);
    if (unlikely(qp->opener_count))
        notify_openers(qp, &event);
}

static void raise_event(struct transport_qp *transport, enum ibv_event_type type)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    qp_raise(qp, type);
    if (type == IBV_EVENT_COMM_EST && peers_execute)
        mapping_update_qp(qp);
}

/* ERR, entered by modify or by a fatal error (verbs.md §2.6). */
void qp_enter_error(struct qp *qp)
{
    static const struct receive_completion flushed = {.verdict = VERDICT_FLUSHED, .opcode = IBV_WC_RECV};
    struct receive_queue *queue = &qp->record->receive;

    if (qp_state(qp) == IBV_QPS_ERR)
        return;
    if (qp_fault_cause(&qp->transport) == FAULT_NONE)
        qp_note_owner_fault(qp, FAULT_UNSPECIFIED);
    note_fault(qp);
    qp_set_state(qp, IBV_QPS_ERR);
    if (unlikely(qp->transport.relay.used))
        qp_ports->end_relay(qp);
    mapping_settle_qp(qp); /* before the flushed completions, by which memory belongs to the program again */
    qp_ports->transport.set_timer(&qp->transport, NS_NEVER);
    sender_flush(&qp->transport);
    tagged_flush(&qp->transport);
    if (qp->receive_taken && qp->srq)
        complete_receive(&qp->transport, &flushed);
    qp->receive_taken = false;
    qp->transport.current_receive = NULL;
    while (!qp->srq && atomic_load_explicit(&queue->taken, memory_order_relaxed) !=
                           atomic_load_explicit(&queue->posted, memory_order_relaxed))
        complete_receive(&qp->transport, &flushed);
    /* With this lock held the responder takes no WQE of the SRQ any more (verbs.md §2.7). */
    if (qp->srq && !qp->xrcd)
        qp_raise(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

static void sender_failed(struct transport_qp *transport)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    if (is_reliable(qp->record)) {
        qp_enter_error(qp);
        return;
    }
    note_fault(qp);
    qp_set_state(qp, IBV_QPS_SQE); /* only the send queue stops (verbs.md §2.6 rule 7) */
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

static bool select_srq(struct transport_qp *transport, uint32_t srqn)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    return qp->xrcd->select(qp, srqn);
}

static int hand_over(struct transport_qp *transport, const struct packet *packet, bool may_move)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    return qp->xrcd->is_here(qp, packet->srqn) ? -ENOENT : qp_ports->hand_over(qp, packet, may_move);
}

static bool fault_in(uint64_t address, uint32_t length, bool write)
{
    return memory_reach(address, length, write);
}

static void lock_keys(struct transport_qp *transport)
{
    lock_acquire(&keys_lock);
}

static void unlock_keys(struct transport_qp *transport)
{
    lock_release(&keys_lock);
}

static struct transport_reference_ports reference_ports;
static struct transport_direct_ports direct_ports;

static const struct transport_tag_ports tag_ports = {
    .match = tm_match,
    .release = tm_release,
    .discount = tm_discount,
    .complete_tagged = complete_tagged,
};

static const struct transport_counter_ports counter_ports = {.executed = count_executed};

static const struct transport_xrc_ports xrc_ports = {
    .select_srq = select_srq,
    .hand_over = hand_over,
};

/* Tables of which the engine fills one half and object the other. */
static void install_shared_tables(const struct transport_ports *engine)
{
    if (engine->reference) {
        reference_ports = *engine->reference;
        reference_ports.exposes = exposed_begin;
        qp_transport_ports.reference = &reference_ports;
    }
    if (engine->direct) {
        direct_ports = *engine->direct;
        direct_ports.is_mapped = mapping_is_open;
        qp_transport_ports.direct = &direct_ports;
    }
}

void qp_ports_install(const struct qp_ports *ports)
{
    qp_transport_ports = ports->transport;
    install_shared_tables(&ports->transport);
    qp_transport_ports.tag_matching = &tag_ports;
    qp_transport_ports.xrc = &xrc_ports;
    qp_transport_ports.counter = &counter_ports;
    qp_transport_ports.alloc_copies = datagram_copies_begin;
    qp_transport_ports.complete_send = complete_send;
    qp_transport_ports.complete_sends = complete_sends;
    qp_transport_ports.dropped = dropped;
    qp_transport_ports.take_receive = take_receive;
    qp_transport_ports.complete_receive = complete_receive;
    qp_transport_ports.raise_event = raise_event;
    qp_transport_ports.sender_failed = sender_failed;
    qp_transport_ports.responder_failed = responder_failed;
    qp_transport_ports.drained = drained;
    qp_transport_ports.fault_in = fault_in;
    qp_transport_ports.lock_keys = lock_keys;
    qp_transport_ports.unlock_keys = unlock_keys;
    qp_ports = ports;
}

void qp_fail_on_overrun(struct qp *qp)
{
    rundown_enter();
    lock_acquire(&qp->lock);
    /* The CQs exist as long as the QP: it is counted as their user. */
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && qp_state(qp) != IBV_QPS_ERR &&
        qp->send_cq &&
        (qp->send_cq->record->failed || qp->recv_cq->record->failed ||
         (qp->transport.tag_matching && qp->srq->cq->record->failed))) {
        qp_raise(qp, IBV_EVENT_QP_FATAL);
        qp_note_owner_fault(qp, FAULT_OVERRUN);
        qp_enter_error(qp);
    }
    lock_release(&qp->lock);
    rundown_exit();
}

void qp_inject_event(struct qp *qp, int event, bool fails)
{
    rundown_enter();
    lock_acquire(&qp->lock);
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) && !qp->handle && !qp->origin) {
        if (event >= 0)
            qp_raise(qp, (enum ibv_event_type)event);
        if (fails && qp_state(qp) != IBV_QPS_ERR) {
            qp_note_owner_fault(qp, FAULT_INJECTED);
            qp_enter_error(qp);
        }
    }
    qp_ports->unlock(qp, false);
    rundown_exit();
}

void qp_take_arrived(struct qp *qp)
{
    uint32_t qpn, dest_qpn;
    bool receives, by_network;

    lock_acquire(&qp->lock);
    qpn = qp->ibv.qp_num;
    dest_qpn = qp->record->attributes.dest_qpn;
    by_network = !qp->transport.link.local;
    receives = is_connected(qp->record) && (by_network || qp->record->attributes.path.destination_ifindex) &&
               qp_state(qp) >= IBV_QPS_RTR && qp_state(qp) != IBV_QPS_ERR;
    lock_release(&qp->lock);
    if (receives)
        qp_ports->take_arrived(qpn, dest_qpn, !by_network, by_network);
}

/* Acknowledges the requests that were accepted, even if the QP is destroyed next: hardware acknowledges when the
 * packet arrives. A READ whose response does not fit now is not answered, and the peer gets a drop notice. */
void qp_answer(struct qp *qp)
{
    if (responder_owes(&qp->transport))
        (void)responder_run(&qp->transport); /* as far as ring or socket has space */
    if (responder_owes(&qp->transport))
        (void)responder_finish(&qp->transport);
    else
        responder_resend_last_ack(&qp->transport);
}

cold_path void qp_note_times(struct qp *qp, bool heard, uint32_t now)
{
    struct sender *sender = &qp->record->sender;

    if (heard)
        sender->heard = now;
    if (sender->waiting != qp->noted_waiting) {
        qp->noted_waiting = sender->waiting;
        sender->waits_since = now;
    }
    /* Requests that are completed already need no stamp. */
    if ((int32_t)(sender->completed - qp->noted_begun) > 0)
        qp->noted_begun = sender->completed;
    for (; (int32_t)(sender->begun - qp->noted_begun) > 0; qp->noted_begun++)
        send_wqe_at(&qp->transport, qp->noted_begun)->stamp = now;
}

bool qp_run_sender(struct qp *qp, uint32_t stamp)
{
    const struct sender *sender = &qp->record->sender;

    switch (qp_state(qp)) {
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
        /* Another thread may still be receiving the batch that contained a message. Its acknowledgement is sent
         * before the program's reply, so that the peer's request completes before the reply arrives. */
        if (unlikely(qp->ack_due) && qp->transport.link.reliable) {
            qp->ack_due = false;
            responder_run(&qp->transport);
        }
        sender_run(&qp->transport);
        if (times_recorded())
            qp_note_times(qp, false, stamp ? stamp : provenance_stamp_now());
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
