/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Receive work queues (verbs.md §7.1-7.2). A WQ's number is taken from the QP numbers, so that completions of WQs
 * and QPs in one CQ can be told apart. */
#include "object/receive/wq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "base/rundown.h"
#include "base/thread.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "object/qp/qp_internal.h"
#include "object/steering/flow.h"
#include "segment/provenance.h"

#define FLAGS_KNOWN                                                                                          \
    (IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS | IBV_WQ_FLAGS_DELAY_DROP |                     \
     IBV_WQ_FLAGS_PCI_WRITE_END_PADDING)
#define FLAGS_CHANGEABLE IBV_WQ_FLAGS_CVLAN_STRIPPING

static struct lock wqs_lock = LOCK_INIT; /* guards the list; above each WQ's lock */
static struct list wqs = {&wqs, &wqs};   /* of struct wq.all */

static struct recv_wqe *wqe_at(const struct wq *wq, uint32_t counter)
{
    return (struct recv_wqe *)(wq->ring + (size_t)(counter & wq->mask) * wq->record->receive.stride);
}

/* How many WQEs are posted and not taken; lock held. */
static uint32_t waiting(const struct wq *wq)
{
    const struct receive_queue *queue = &wq->record->receive;

    return atomic_load_explicit(&queue->posted, memory_order_relaxed) -
           atomic_load_explicit(&queue->taken, memory_order_relaxed);
}

static enum ibv_wq_state wq_state(const struct wq *wq)
{
    return (enum ibv_wq_state)atomic_load_explicit(&wq->record->wq_state, memory_order_relaxed);
}

static void set_state(struct wq *wq, enum ibv_wq_state state)
{
    atomic_store_explicit(&wq->record->wq_state, (uint32_t)state, memory_order_release);
}

/* --- frames --------------------------------------------------------------------------------------------- */

/* DELAY_DROP: a frame without a receive waits for one. Hardware pauses the sender for a bounded time; here a bounded
 * number of frames waits. */
#define PENDING_MAX 64u

struct pending {
    struct list link;
    struct arrival arrival;
    uint8_t bytes[];
};

/* Lock held. */
static void forget_held(struct wq *wq)
{
    struct list *node;

    while ((node = list_pop_front(&wq->pending)))
        free(list_entry(node, struct pending, link));
    wq->pending_count = 0;
}

/* Lock held. */
static void hold(struct wq *wq, const struct arrival *arrival)
{
    struct pending *pending =
        wq->pending_count < PENDING_MAX ? malloc(sizeof(*pending) + arrival->length) : NULL;

    if (!pending)
        return;
    pending->arrival = *arrival;
    pending->arrival.bytes = pending->bytes;
    memcpy(pending->bytes, arrival->bytes, arrival->length);
    list_push_back(&wq->pending, &pending->link);
    wq->pending_count++;
}

/* Copies the frame to the next receive, which is posted. Lock held, inside a rundown section. */
static void place_frame(struct wq *wq, const struct arrival *arrival)
{
    struct receive_queue *queue = &wq->record->receive;
    uint32_t taken = atomic_load_explicit(&queue->taken, memory_order_relaxed);
    const struct recv_wqe *receive = wqe_at(wq, taken);
    enum verdict verdict = raw_place(&wq->reach, wq->pd->number, receive, arrival->bytes, arrival->length);
    const struct cqe cqe = {
        .wr_id = receive->wr_id,
        .qpn = wq->ibv.wq_num,
        .status = (uint8_t)verdict_wc_status(verdict),
        .opcode = (uint8_t)IBV_WC_RECV,
        .byte_len = arrival->length,
        .vendor_err = (uint32_t)verdict,
        .vlan = arrival->vlan,
        .flow_tag = arrival->flow_tag,
    };

    atomic_store_explicit(&queue->taken, taken + 1, memory_order_relaxed);
    cq_push(wq->cq, &cqe, verdict != VERDICT_OK);
}

/* Lock held, inside a rundown section. */
static void place_held(struct wq *wq)
{
    while (!list_empty(&wq->pending) && waiting(wq)) {
        struct pending *pending = list_entry(list_pop_front(&wq->pending), struct pending, link);

        place_frame(wq, &pending->arrival);
        free(pending);
        wq->pending_count--;
    }
}

void wq_receive(struct wq *wq, const struct arrival *arrival)
{
    lock_acquire(&wq->lock);
    if (wq_state(wq) == IBV_WQS_RDY) {
        if (waiting(wq))
            place_frame(wq, arrival);
        else if (wq->record->flags & IBV_WQ_FLAGS_DELAY_DROP)
            hold(wq, arrival);
    }
    lock_release(&wq->lock);
}

/* --- creating and destroying ---------------------------------------------------------------------------- */

static int check_create(struct context *context, const struct ibv_wq_init_attr *attributes)
{
    uint32_t flags = attributes->comp_mask & IBV_WQ_INIT_ATTR_FLAGS ? attributes->create_flags : 0;

    if (attributes->comp_mask & ~(uint32_t)IBV_WQ_INIT_ATTR_FLAGS)
        return refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, IBV_WQ_INIT_ATTR_FLAGS);
    if (attributes->wq_type != IBV_WQT_RQ)
        return refuse_invalid("wq_type", attributes->wq_type);
    if (!attributes->pd || !attributes->cq)
        return refuse_null(attributes->pd ? "cq" : "pd");
    if (attributes->pd->context != &context->verbs.context ||
        attributes->cq->context != &context->verbs.context)
        return refuse_elsewhere(attributes->pd->context != &context->verbs.context ? "pd" : "cq");
    if (attributes->max_wr < 1 || attributes->max_wr > LIMIT_QP_WR)
        return refuse_range("max_wr", attributes->max_wr, 1, LIMIT_QP_WR);
    if (attributes->max_sge > LIMIT_SGE)
        return refuse_range("max_sge", attributes->max_sge, 0, LIMIT_SGE);
    return flags & ~(uint32_t)FLAGS_KNOWN
               ? refuse_bits(-EOPNOTSUPP, "create_flags", BITS_PLAIN, flags, FLAGS_KNOWN)
               : 0;
}

static int use_parts(struct wq *wq)
{
    int error = pd_use(wq->pd, "ibv_create_wq");

    if (error)
        return error;
    error = cq_use(wq->cq, "ibv_create_wq");
    if (error)
        pd_unuse(wq->pd);
    return error;
}

static void unuse_parts(struct wq *wq)
{
    cq_unuse(wq->cq);
    pd_unuse(wq->pd);
}

static void fill_record(struct wq *wq, const struct ibv_wq_init_attr *attributes, uint64_t ring_offset)
{
    struct wq_record *record = wq->record;

    memset(record, 0, sizeof(*record));
    record->context = wq->context->number;
    record->pd = wq->pd->number;
    record->cq = wq->cq->number;
    record->wqn = wq->ibv.wq_num;
    record->flags = attributes->comp_mask & IBV_WQ_INIT_ATTR_FLAGS ? attributes->create_flags : 0;
    record->receive.depth = attributes->max_wr;
    record->receive.max_sge = attributes->max_sge;
    record->receive.stride = (uint32_t)RECV_WQE_SIZE(attributes->max_sge);
    record->receive.offset = ring_offset;
    provenance_created(&record->provenance);
    provenance_in_domain(&record->provenance, wq->pd->record_number);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
}

/* The front fills in post_recv. The inline ibv_create_wq() initialises some of these fields once more. */
static void fill_public(struct wq *wq, const struct ibv_wq_init_attr *attributes)
{
    wq->ibv.context = &wq->context->verbs.context;
    wq->ibv.wq_context = attributes->wq_context;
    wq->ibv.pd = &wq->pd->ibv;
    wq->ibv.cq = &wq->cq->ibv;
    wq->ibv.handle = wq->number;
    wq->ibv.state = IBV_WQS_RESET;
    wq->ibv.wq_type = attributes->wq_type;
    pthread_mutex_init(&wq->ibv.mutex, NULL);
    thread_cond_init(&wq->ibv.cond);
}

static uint32_t slots_for(uint32_t max_wr)
{
    return max_wr <= 1 ? 1 : 1u << (32 - __builtin_clz(max_wr - 1));
}

_Static_assert((LIMIT_QP_WR & (LIMIT_QP_WR - 1)) == 0, "what is granted is a power of two");

int wq_create(struct context *context, struct ibv_wq_init_attr *attributes, struct wq **ret_wq)
{
    int error = context_is_inherited(context) ? destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_create_wq")
                                              : check_create(context, attributes);
    uint32_t slots, max_sge;
    struct wq *wq;

    if (error)
        return error;
    slots = slots_for(attributes->max_wr);
    max_sge = max_of(attributes->max_sge, 1u);
    wq = calloc(1, sizeof(*wq));
    if (!wq)
        return -ENOMEM;
    wq->context = context;
    wq->pd = pd_of(attributes->pd);
    wq->cq = cq_of(attributes->cq);
    error = use_parts(wq);
    if (error)
        goto free_wq;
    error = -ENOMEM;
    wq->number = number_take(&pool_wqs);
    if (wq->number == NO_OBJECT)
        goto drop_parts;
    error = queue_memory_take(wq->pd, QUEUE_WORK, slots * RECV_WQE_SIZE(max_sge), &wq->memory);
    if (error)
        goto return_number;
    error = qp_ports->allocate_number(&wq->ibv.wq_num);
    if (error)
        goto release_ring;
    attributes->max_wr = slots;
    attributes->max_sge = max_sge;
    wq->ring = wq->memory.at;
    wq->mask = slots - 1;
    wq->record = segment_wq(wq->number);
    wq->reach.ports = &qp_transport_ports;
    wq->reach.keys = segment_keys();
    list_init(&wq->pending);
    fill_public(wq, attributes);
    fill_record(wq, attributes, wq->memory.offset);
    ack_account_init(&wq->async_events, &wq->record->events);
    lock_acquire(&wqs_lock);
    list_push_back(&wqs, &wq->all);
    lock_release(&wqs_lock);
    *ret_wq = wq;
    return 0;

release_ring:
    queue_memory_give(wq->pd, QUEUE_WORK, &wq->memory);
return_number:
    number_return(&pool_wqs, wq->number);
drop_parts:
    unuse_parts(wq);
free_wq:
    free(wq);
    return error;
}

/* Moves the WQ to OBJECT_DESTROYING; -EBUSY if an indirection table uses it. */
static int retire(struct wq *wq, struct losses **ret_losses)
{
    int error = 0;

    lock_acquire(&wq->lock);
    if (atomic_load_explicit(&wq->record->users, memory_order_relaxed)) {
        error = -EBUSY;
    } else {
        *ret_losses = note_losses(OBJECT_WQ, wq->number);
        atomic_store_explicit(&wq->record->state, OBJECT_DESTROYING, memory_order_relaxed);
        set_state(wq, IBV_WQS_RESET);
        forget_held(wq);
    }
    lock_release(&wq->lock);
    return error;
}

int wq_destroy(struct wq *wq)
{
    const struct destroying destroying = {OBJECT_WQ, wq->number, &wq->record->provenance};
    struct losses *losses = NULL;

    if (destroyed_has(DESTROYED_WQ, wq, "ibv_destroy_wq"))
        return -EINVAL;
    if (context_is_inherited(wq->context))
        return 0;
    if (retire(wq, &losses))
        return busy_because(OBJECT_WQ, wq->number);
    /* Under wqs_lock: wq_fail_on_overrun() is not visiting the WQ. */
    lock_acquire(&wqs_lock);
    list_remove(&wq->all);
    lock_release(&wqs_lock);
    cq_purge_qp(wq->cq, wq->ibv.wq_num);
    async_purge(&wq->context->events, &wq->async_events);
    ack_account_wait(&wq->async_events, &wq->ibv.mutex, &wq->ibv.cond, &wq->ibv.events_completed,
                     &destroying);

    atomic_store_explicit(&wq->record->state, OBJECT_FREE, memory_order_release);
    queue_memory_give(wq->pd, QUEUE_WORK, &wq->memory);
    unuse_parts(wq);
    qp_ports->release_number(wq->ibv.wq_num);
    number_return(&pool_wqs, wq->number);
    pthread_cond_destroy(&wq->ibv.cond);
    pthread_mutex_destroy(&wq->ibv.mutex);
    wq->context = &destroyed_context;
    destroyed_keep(DESTROYED_WQ, wq, wq->ibv.wq_num);
    report_losses(losses);
    return 0;
}

int wq_use(struct wq *wq)
{
    int error = 0;

    if (context_is_inherited(wq->context))
        return destroyed_refuse(DESTROYED_WQ, wq, "ibv_create_rwq_ind_table");
    lock_acquire(&wq->lock);
    if (atomic_load_explicit(&wq->record->state, memory_order_relaxed) != OBJECT_ALIVE)
        error = -EINVAL;
    else
        atomic_fetch_add_explicit(&wq->record->users, 1, memory_order_relaxed);
    lock_release(&wq->lock);
    return error;
}

void wq_unuse(struct wq *wq)
{
    lock_acquire(&wq->lock);
    atomic_fetch_sub_explicit(&wq->record->users, 1, memory_order_relaxed);
    lock_release(&wq->lock);
}

void wq_after_fork_in_child(void)
{
    lock_init(&wqs_lock);
    list_init(&wqs); /* another thread may have been linking an entry */
}

/* --- states --------------------------------------------------------------------------------------------- */

static bool transition_is_legal(enum ibv_wq_state from, enum ibv_wq_state to)
{
    switch (from) {
    case IBV_WQS_RESET:
        return to == IBV_WQS_RESET || to == IBV_WQS_RDY;
    case IBV_WQS_RDY:
        return to == IBV_WQS_RESET || to == IBV_WQS_ERR;
    case IBV_WQS_ERR:
        return to == IBV_WQS_RESET;
    case IBV_WQS_UNKNOWN:
        break;
    }
    return false;
}

static cold_path int refuse_transition(enum ibv_wq_state from, enum ibv_wq_state to)
{
    uint64_t possible = 0;

    for (unsigned i = IBV_WQS_RESET; i <= IBV_WQS_ERR; i++)
        possible |= transition_is_legal(from, (enum ibv_wq_state)i) ? 1ull << i : 0;
    return refuse(-EINVAL, REFUSAL_WQ_TRANSITION, "wq_state", to, from, possible);
}

static int check_modify(enum ibv_wq_state from, const struct ibv_wq_attr *attributes)
{
    enum ibv_wq_state to = attributes->attr_mask & IBV_WQ_ATTR_STATE ? attributes->wq_state : from;

    if (attributes->attr_mask & ~(uint32_t)(IBV_WQ_ATTR_RESERVED - 1))
        return refuse_bits(-EINVAL, "attr_mask", BITS_PLAIN, attributes->attr_mask, IBV_WQ_ATTR_RESERVED - 1);
    if ((attributes->attr_mask & IBV_WQ_ATTR_CURR_STATE) && attributes->curr_wq_state != from)
        return refuse(-EINVAL, REFUSAL_WQ_CURRENT, "curr_wq_state", attributes->curr_wq_state, from, 0);
    if ((attributes->attr_mask & IBV_WQ_ATTR_STATE) && !transition_is_legal(from, to))
        return refuse_transition(from, to);
    if (!(attributes->attr_mask & IBV_WQ_ATTR_FLAGS))
        return 0;
    if (attributes->flags_mask & ~(uint32_t)FLAGS_KNOWN)
        return refuse_bits(-EINVAL, "flags_mask", BITS_PLAIN, attributes->flags_mask, FLAGS_KNOWN);
    if (to != IBV_WQS_RDY)
        return refuse_because(-EINVAL, "flags of a WQ change only in IBV_WQS_RDY, or on the way to it");
    return attributes->flags_mask & ~(uint32_t)FLAGS_CHANGEABLE
               ? refuse_bits(-EOPNOTSUPP, "flags_mask", BITS_PLAIN, attributes->flags_mask, FLAGS_CHANGEABLE)
               : 0;
}

/* Lock held. */
static void flush(struct wq *wq)
{
    struct receive_queue *queue = &wq->record->receive;

    while (waiting(wq)) {
        uint32_t taken = atomic_load_explicit(&queue->taken, memory_order_relaxed);
        const struct cqe cqe = {
            .wr_id = wqe_at(wq, taken)->wr_id,
            .qpn = wq->ibv.wq_num,
            .status = (uint8_t)verdict_wc_status(VERDICT_FLUSHED),
            .opcode = (uint8_t)IBV_WC_RECV,
            .vendor_err = VERDICT_FLUSHED,
        };

        atomic_store_explicit(&queue->taken, taken + 1, memory_order_relaxed);
        cq_push(wq->cq, &cqe, true);
    }
}

/* Lock held. */
static void enter_state(struct wq *wq, enum ibv_wq_state to)
{
    struct receive_queue *queue = &wq->record->receive;

    set_state(wq, to);
    forget_held(wq);
    switch (to) {
    case IBV_WQS_RESET:
        atomic_store_explicit(&queue->taken, atomic_load_explicit(&queue->posted, memory_order_relaxed),
                              memory_order_relaxed);
        break;
    case IBV_WQS_RDY:
        cq_purge_qp(wq->cq, wq->ibv.wq_num); /* completions from before the RESET */
        break;
    case IBV_WQS_ERR:
        flush(wq);
        break;
    case IBV_WQS_UNKNOWN:
        break;
    }
}

int wq_modify(struct wq *wq, const struct ibv_wq_attr *attributes)
{
    int error;

    if (context_is_inherited(wq->context))
        return destroyed_refuse(DESTROYED_WQ, wq, "ibv_modify_wq");
    lock_acquire(&wq->lock);
    error = refused_of(check_modify(wq_state(wq), attributes), OBJECT_WQ, wq->ibv.wq_num);
    if (!error && (attributes->attr_mask & IBV_WQ_ATTR_FLAGS))
        wq->record->flags =
            (wq->record->flags & ~attributes->flags_mask) | (attributes->flags & attributes->flags_mask);
    if (!error && (attributes->attr_mask & IBV_WQ_ATTR_STATE)) {
        enter_state(wq, attributes->wq_state);
        wq->ibv.state = attributes->wq_state;
    }
    lock_release(&wq->lock);
    return error;
}

static void fail_on_overrun(struct wq *wq)
{
    const struct ibv_async_event event = {.element.wq = &wq->ibv, .event_type = IBV_EVENT_WQ_FATAL};

    lock_acquire(&wq->lock);
    /* The CQ exists as long as the WQ is in the list: the WQ is counted as its user. */
    if (wq_state(wq) != IBV_WQS_ERR && wq->cq->record->failed) {
        async_raise(&wq->context->events, &event, &wq->async_events);
        enter_state(wq, IBV_WQS_ERR);
    }
    lock_release(&wq->lock);
}

void wq_fail_on_overrun(void)
{
    lock_acquire(&wqs_lock);
    list_for_each (node, &wqs)
        fail_on_overrun(list_entry(node, struct wq, all));
    lock_release(&wqs_lock);
}

/* --- receives ------------------------------------------------------------------------------------------- */

static int post_one(struct wq *wq, const struct ibv_recv_wr *wr, uint32_t stamp)
{
    struct receive_queue *queue = &wq->record->receive;
    uint32_t posted = atomic_load_explicit(&queue->posted, memory_order_relaxed);
    struct recv_wqe *wqe = wqe_at(wq, posted);

    if (unlikely(wr->num_sge < 0 || (uint32_t)wr->num_sge > queue->max_sge))
        return refuse_range("num_sge", wr->num_sge, 0, queue->max_sge);
    if (unlikely(waiting(wq) >= queue->depth))
        return refuse(-ENOMEM, REFUSAL_FULL, "WQ", queue->depth, queue->depth, 0);
    recv_wqe_fill(wqe, wr, (uint32_t)wr->num_sge, stamp);
    atomic_store_explicit(&queue->posted, posted + 1, memory_order_release);
    return 0;
}

int wq_post(struct wq *wq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    uint32_t stamp = provenance_stamp();
    int error = 0;

    if (context_is_inherited(wq->context)) {
        *bad_wr = wr;
        return destroyed_refuse(DESTROYED_WQ, wq, "ibv_post_wq_recv");
    }
    rundown_enter();
    lock_acquire(&wq->lock);
    if (wq_state(wq) == IBV_WQS_RESET)
        error = refuse_because(-EINVAL,
                               "the WQ is in IBV_WQS_RESET, but a receive needs IBV_WQS_RDY or IBV_WQS_ERR");
    for (; wr && !error; wr = wr->next) {
        error = post_one(wq, wr, stamp);
        if (unlikely(error))
            break;
    }
    if (unlikely(error))
        *bad_wr = wr;
    if (unlikely(wq_state(wq) == IBV_WQS_ERR))
        flush(wq);
    place_held(wq);
    lock_release(&wq->lock);
    rundown_exit();
    return refused_of(error, OBJECT_WQ, wq->ibv.wq_num);
}
