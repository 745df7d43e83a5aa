/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion queues: creating and destroying, notification, and the producers' side (verbs.md §5). The consumers'
 * side is cq_poll.c, the ring's memory cq_ring.c. */
#include "object/cq/cq.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/refusal.h"
#include "base/sys.h"
#include "base/thread.h"
#include "object/cq/cq_ring.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "segment/provenance.h"

#define WC_FLAGS_SUPPORTED                                                                                   \
    (IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |          \
     IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS |                               \
     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |                   \
     IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO)
#define WC_FLAGS_STAMPS (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define FLAGS_SUPPORTED (IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)

_Atomic uint32_t cq_armed_count;

/* --- creating and destroying ---------------------------------------------------------------------------- */

static int check_attributes(const struct cq_attributes *attributes)
{
    if (attributes->cqe < 1 || attributes->cqe > LIMIT_CQE)
        return refuse_range("cqe", attributes->cqe, 1, LIMIT_CQE);
    if (attributes->comp_vector >= LIMIT_COMP_VECTORS)
        return refuse_range("comp_vector", attributes->comp_vector, 0, LIMIT_COMP_VECTORS - 1);
    if (attributes->wc_flags & ~(uint64_t)WC_FLAGS_SUPPORTED)
        return refuse_bits(-EOPNOTSUPP, "wc_flags", BITS_WC_FLAGS, attributes->wc_flags, WC_FLAGS_SUPPORTED);
    if (attributes->flags & ~(uint32_t)FLAGS_SUPPORTED)
        return refuse_bits(-EOPNOTSUPP, "flags", BITS_PLAIN, attributes->flags, FLAGS_SUPPORTED);
    return 0;
}

static void publish(struct cq *cq, const struct context *context)
{
    struct cq_record *record = cq->record;

    record->context = context->number;
    record->channel = cq->channel ? cq->channel->number : NO_OBJECT;
    record->entry_size = sizeof(struct cqe);
    provenance_created(&record->provenance);
    if (cq->parent)
        provenance_in_domain(&record->provenance, cq->parent->record_number);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
}

/* Fills the structure and clears the record, which are not published yet. */
static void fill(struct cq *cq, struct context *context, const struct cq_attributes *attributes)
{
    cq->record = segment_cq(cq->number);
    memset(cq->record, 0, sizeof(*cq->record));
    cq->context = context;
    cq->channel = attributes->channel;
    cq->parent = attributes->parent;
    cq->flags = attributes->flags;
    cq->wc_flags = attributes->wc_flags;
    cq->is_extended = attributes->extended;
    ack_account_init(&cq->completion_events, &cq->record->events);
    ack_account_init(&cq->async_events, &cq->record->async_events);
    cq->ibv.context = &context->verbs.context;
    cq->ibv.channel = attributes->channel ? &attributes->channel->ibv : NULL;
    cq->ibv.cq_context = attributes->user_context;
    cq->ibv.handle = cq->number;
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    thread_cond_init(&cq->ibv.cond);
}

int cq_create(struct context *context, const struct cq_attributes *attributes, struct cq **ret_cq)
{
    int error = context_is_inherited(context) ? destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_create_cq")
                                              : check_attributes(attributes);
    struct queue_memory memory;
    uint32_t slots;
    struct cq *cq;

    if (error)
        return error;
    cq = aligned_alloc(CACHE_LINE, sizeof(*cq));
    if (!cq)
        return -ENOMEM;
    memset(cq, 0, sizeof(*cq));
    cq->number = number_take(&pool_cqs);
    if (cq->number == NO_OBJECT) {
        error = refuse_count("CQs", LIMIT_CQ);
        goto free_cq;
    }
    slots = cq_ring_slots(attributes->cqe);
    if (attributes->parent) {
        error = pd_use(attributes->parent, "ibv_create_cq_ex");
        if (error)
            goto return_number;
    }
    error = cq_ring_allocate(attributes->parent, slots, &memory);
    if (error)
        goto unuse_parent;
    if (attributes->channel) {
        error = channel_use(attributes->channel, context);
        if (error)
            goto release_ring;
    }
    fill(cq, context, attributes);
    cq_ring_install(cq, &memory, slots);
    publish(cq, context);
    if (cq->channel)
        channel_allocate_bit(cq->channel, cq);
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    *ret_cq = cq;
    return 0;

release_ring:
    queue_memory_give(attributes->parent, QUEUE_COMPLETION, &memory);
unuse_parent:
    if (attributes->parent)
        pd_unuse(attributes->parent);
return_number:
    number_return(&pool_cqs, cq->number);
free_cq:
    free(cq);
    return error;
}

/* Ends the arming; lock held. False: a peer has already ended it, and delivers the event. */
static bool disarm(struct cq *cq)
{
    cq->record->armed = CQ_UNARMED;
    atomic_fetch_sub_explicit(&cq_armed_count, 1, memory_order_relaxed);
    if (!cq->armed_for_peers)
        return true;
    cq->armed_for_peers = false;
    return notify_take_back(cq->channel->line, cq->bit);
}

/* Moves the CQ to OBJECT_DESTROYING; -EBUSY if QPs or WQs use it. */
static int retire(struct cq *cq, struct losses **ret_losses)
{
    int error = 0;

    lock_acquire(&cq->lock);
    if (atomic_load_explicit(&cq->record->users, memory_order_relaxed)) {
        error = -EBUSY;
    } else {
        *ret_losses = note_losses(OBJECT_CQ, cq->number);
        atomic_store_explicit(&cq->record->state, OBJECT_DESTROYING, memory_order_relaxed);
        if (cq->record->armed != CQ_UNARMED)
            disarm(cq);
    }
    lock_release(&cq->lock);
    return error;
}

int cq_destroy(struct cq *cq)
{
    struct destroying destroying = {.kind = OBJECT_CQ};
    struct losses *losses = NULL;
    struct context *context;

    if (destroyed_has(DESTROYED_CQ, cq, "ibv_destroy_cq"))
        return -EINVAL;
    context = cq->context;
    if (context_is_inherited(context))
        return 0;
    destroying.number = cq->number;
    destroying.provenance = &cq->record->provenance;
    if (retire(cq, &losses) != 0)
        return busy_because(OBJECT_CQ, cq->number);
    /* No completions are added any more, so the timer does not start again; the call waits for a timer that
     * has just expired. After an overrun there is nothing to wait for: cq_overrun() keeps no pointer to the
     * CQ. */
    if (cq->moderation_timer_used || cq->record->failed)
        object_ports->moderation_cancel(cq);
    /* The engine's explanation of the overrun may come after the CQ is gone, so it is also made here. */
    if (explained() && cq->record->failed)
        object_ports->explain(EXPLAIN_OVERRUN, OBJECT_CQ, cq->number);
    if (cq->channel)
        channel_purge(cq->channel, cq);
    async_purge(&context->events, &cq->async_events);
    ack_account_wait(&cq->completion_events, &cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.comp_events_completed,
                     &destroying);
    ack_account_wait(&cq->async_events, &cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.async_events_completed,
                     &destroying);

    if (cq->channel)
        channel_unuse(cq->channel);
    atomic_store_explicit(&cq->record->state, OBJECT_FREE, memory_order_release);
    queue_memory_give(cq->parent, QUEUE_COMPLETION, &cq->memory);
    if (cq->parent)
        pd_unuse(cq->parent);
    number_return(&pool_cqs, cq->number);
    atomic_fetch_sub_explicit(&context->objects, 1, memory_order_release);
    pthread_cond_destroy(&cq->ibv.cond);
    pthread_mutex_destroy(&cq->ibv.mutex);
    cq->context = &destroyed_context;
    destroyed_keep(DESTROYED_CQ, cq, cq->number);
    report_losses(losses);
    return 0;
}

int cq_use(struct cq *cq, const char *verb)
{
    int error = 0;

    if (context_is_inherited(cq->context))
        return destroyed_refuse(DESTROYED_CQ, cq, verb);
    lock_acquire(&cq->lock);
    if (atomic_load_explicit(&cq->record->state, memory_order_relaxed) != OBJECT_ALIVE)
        error = -EINVAL;
    else
        atomic_fetch_add_explicit(&cq->record->users, 1, memory_order_relaxed);
    lock_release(&cq->lock);
    return error;
}

void cq_unuse(struct cq *cq)
{
    lock_acquire(&cq->lock);
    atomic_fetch_sub_explicit(&cq->record->users, 1, memory_order_relaxed);
    lock_release(&cq->lock);
}

void cq_ack_events(struct cq *cq, unsigned count)
{
    if (cq->context == &destroyed_context) {
        (void)destroyed_refuse(DESTROYED_CQ, cq, "ibv_ack_cq_events");
        return;
    }
    ack_account_add(&cq->completion_events, &cq->ibv.mutex, &cq->ibv.cond, &cq->ibv.comp_events_completed,
                    count);
}

/* --- notification --------------------------------------------------------------------------------------- */

static void fire(struct cq *cq)
{
    cq->since_event = 0;
    if (disarm(cq))
        channel_post(cq->channel, cq);
    else
        channel_owe(cq->channel, cq);
}

/* A completion was added to an armed CQ (verbs.md §5.4); lock held. Moderation may delay the event.
 * solicited: the completion is of a solicited message or has an error status. */
static void notify(struct cq *cq, bool solicited)
{
    if (cq->record->armed == CQ_ARMED_SOLICITED && !solicited)
        return;
    cq->since_event++;
    if (cq->moderation_period && (cq->moderation_count == 0 || cq->since_event < cq->moderation_count)) {
        if (!cq->moderation_timer_runs) {
            cq->moderation_timer_runs = cq->moderation_timer_used = true;
            object_ports->moderation_timer(cq, cq->moderation_period * NS_PER_US);
        }
        return;
    }
    fire(cq);
}

int cq_arm(struct cq *cq, bool solicited_only)
{
    uint32_t wanted = solicited_only ? CQ_ARMED_SOLICITED : CQ_ARMED_ANY;

    if (context_is_inherited(cq->context))
        return destroyed_refuse(DESTROYED_CQ, cq, "ibv_req_notify_cq");
    if (!cq->channel)
        return 0; /* a CQ without a channel has no events */
    object_ports->take_arrived();
    lock_acquire(&cq->lock);
    if (cq->record->armed != CQ_UNARMED && cq->armed_for_peers &&
        !notify_is_armed(cq->channel->line, cq->bit) &&
        !disarm(cq)) /* a peer has ended the previous arming and delivers its event */
        channel_owe(cq->channel, cq);
    if (cq->record->armed == CQ_UNARMED) {
        cq->since_event = 0;
        atomic_fetch_add_explicit(&cq_armed_count, 1, memory_order_relaxed);
    }
    cq->record->armed = max_of(cq->record->armed, wanted); /* "any completion" prevails until the event */
    /* `rung` is one bit per CQ: while it holds a peer's event that is not read, only this process may deliver
     * the next event. */
    if (cq->bit < NOTIFY_CQS && !cq->moderation_period && !channel_is_rung(cq->channel, cq)) {
        cq->armed_for_peers = true;
        notify_arm(cq->channel->line, cq->bit, cq->record->armed == CQ_ARMED_SOLICITED);
    }
    lock_release(&cq->lock);
    object_ports->expect_sleep();
    return 0;
}

int cq_moderate(struct cq *cq, uint16_t count, uint16_t period_us)
{
    int error = 0;

    if (context_is_inherited(cq->context))
        return destroyed_refuse(DESTROYED_CQ, cq, "ibv_modify_cq");
    /* Timers are started here because completions are added with locks held. */
    if (period_us)
        error = object_ports->start_timers();
    if (error)
        return error;
    lock_acquire(&cq->lock);
    cq->moderation_count = count;
    cq->moderation_period = period_us;
    if (period_us && cq->armed_for_peers) {
        /* Peers do not moderate: the arming is taken out of the notify page. */
        if (notify_take_back(cq->channel->line, cq->bit))
            cq->armed_for_peers = false;
    }
    /* An event that the old moderation delayed is due at once; the new one applies from the next completion. */
    if (cq->record->armed != CQ_UNARMED && cq->since_event)
        fire(cq);
    lock_release(&cq->lock);
    return 0;
}

void cq_moderation_due(struct cq *cq)
{
    lock_acquire(&cq->lock);
    cq->moderation_timer_runs = false;
    if (cq->record->armed != CQ_UNARMED && cq->since_event)
        fire(cq);
    lock_release(&cq->lock);
}

/* --- producers ------------------------------------------------------------------------------------------ */

/* Makes space for one completion: reads the consumers' counter again, and removes purged completions. False:
 * the ring is full. Lock held. */
static bool cold_path make_space(struct cq *cq, uint32_t produced)
{
    for (;;) {
        /* Acquire: the consumer has read the slots it freed. Partner: the release in take() and load_next()
         * (cq_poll.c). */
        cq->consumed_seen = atomic_load_explicit(&cq->record->consumed, memory_order_acquire);
        if (produced - cq->consumed_seen < cq->capacity)
            return true;
        if (!atomic_load_explicit(&cq->purged, memory_order_relaxed))
            return false;
        if (!cq_ring_try_compact(cq))
            sched_yield(); /* a consumer is reading the ring, which takes microseconds */
    }
}

/* The ring is full, and the completion is lost (verbs.md §5.2). Lock held. */
static void cold_path overrun(struct cq *cq, const struct cqe *lost)
{
    if (cq->record->lost++ == 0) {
        cq->record->lost_qpn = lost->qpn;
        cq->record->lost_wr_id = lost->wr_id;
        cq->record->lost_ns = sys_now();
    }
    if ((cq->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) || cq->record->failed)
        return;
    cq->record->failed = 1;
    if (!explained()) /* else the explanation says it (progress_cq_overrun()) */
        log_warn("CQ %u overrun: all %u entries hold unpolled completions; the completion of wr_id %llu "
                 "(0x%llx) of QP 0x%06x is lost, and the QPs of the CQ go to ERR: create the CQ with more "
                 "entries, or poll more often",
                 cq->number, cq->capacity, (unsigned long long)lost->wr_id, (unsigned long long)lost->wr_id,
                 lost->qpn);
    async_raise(&cq->context->events,
                &(struct ibv_async_event){.element.cq = &cq->ibv, .event_type = IBV_EVENT_CQ_ERR},
                &cq->async_events);
    object_ports->cq_overrun(cq);
}

static void cold_path stamp(const struct cq *cq, struct cqe *cqe)
{
    struct timespec now;

    cqe->timestamp_ns = sys_now();
    if (cq->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
        clock_gettime(CLOCK_REALTIME, &now);
        cqe->wallclock_ns = (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
    }
}

/* Lock held. */
static inline void push(struct cq *cq, const struct cqe *cqe, bool solicited)
{
    struct cq_record *record = cq->record;
    uint32_t produced = atomic_load_explicit(&record->produced, memory_order_relaxed);

    if (likely((produced - cq->consumed_seen < cq->capacity || make_space(cq, produced)) &&
               !record->failed)) {
        struct cqe *slot = &cq->ring[produced & cq->mask];

        *slot = *cqe;
        if (unlikely(cq->wc_flags & WC_FLAGS_STAMPS))
            stamp(cq, slot);
        /* Release: the slot is filled. Partner: the acquire in take() and load_next() (cq_poll.c). */
        atomic_store_explicit(&record->produced, produced + 1, memory_order_release);
    } else {
        overrun(cq, cqe);
    }
    /* Also for a lost completion: a thread that waits for an event finds the ring full. */
    if (unlikely(record->armed != CQ_UNARMED))
        notify(cq, solicited || cqe->status != IBV_WC_SUCCESS);
}

void cq_push(struct cq *cq, const struct cqe *cqe, bool solicited)
{
    lock_acquire(&cq->lock);
    push(cq, cqe, solicited);
    lock_release(&cq->lock);
}

/* In place: a copy of what was just written in smaller pieces would wait for them. */
static inline void fill_success(struct cqe *slot, const struct cq_success *success, enum cqe_kind kind,
                                uint32_t qpn, uint32_t src_qpn)
{
    slot->wr_id = success->wr_id;
    slot->qpn = qpn;
    slot->retires = success->retires;
    slot->status = IBV_WC_SUCCESS;
    slot->opcode = success->opcode;
    slot->kind = (uint8_t)kind;
    slot->service_level = 0;
    slot->byte_len = success->byte_len;
    slot->wc_flags = success->wc_flags;
    slot->imm_or_rkey = success->imm_or_rkey;
    slot->src_qpn = src_qpn;
    slot->vendor_err = 0;
    slot->timestamp_ns = slot->wallclock_ns = slot->tag = 0;
}

/* Lock held. */
static cold_path void push_alone(struct cq *cq, const struct cq_success *success, enum cqe_kind kind,
                                 uint32_t qpn, uint32_t src_qpn)
{
    struct cqe cqe;

    fill_success(&cqe, success, kind, qpn, src_qpn);
    push(cq, &cqe, success->solicited);
}

void cq_push_run(struct cq *cq, const struct cq_success *run, uint32_t count, enum cqe_kind kind,
                 uint32_t qpn, uint32_t src_qpn)
{
    struct cq_record *record = cq->record;
    uint32_t produced;
    bool rare;

    lock_acquire(&cq->lock);
    produced = atomic_load_explicit(&record->produced, memory_order_relaxed);
    /* Of a ring with few entries, which is used up all the time. Acquire: as in make_space(). */
    if (unlikely(produced + count - 1 - cq->consumed_seen >= cq->capacity))
        cq->consumed_seen = atomic_load_explicit(&record->consumed, memory_order_acquire);
    rare = produced + count - 1 - cq->consumed_seen >= cq->capacity || record->failed ||
           record->armed != CQ_UNARMED || (cq->wc_flags & WC_FLAGS_STAMPS);
    for (uint32_t i = 0; i < count; i++) {
        if (unlikely(rare))
            push_alone(cq, &run[i], kind, qpn, src_qpn);
        else
            fill_success(&cq->ring[(produced + i) & cq->mask], &run[i], kind, qpn, src_qpn);
    }
    /* Release: the slots are filled. Partner: the acquire in take() and load_next() (cq_poll.c). */
    if (likely(!rare))
        atomic_store_explicit(&record->produced, produced + count, memory_order_release);
    lock_release(&cq->lock);
}

void cq_purge_qp(struct cq *cq, uint32_t qpn)
{
    uint32_t produced;
    bool any = false;

    /* Completions are marked and not removed, because poll_lock cannot be taken: its holder may post between
     * start and end of extended polling, and wait for the QP lock that our caller may hold. A consumer that
     * reads a completion during the marking has polled it before the QP was destroyed. */
    lock_acquire(&cq->lock);
    lock_acquire(&cq->ring_lock); /* load_next() copies no completion meanwhile */
    produced = atomic_load_explicit(&cq->record->produced, memory_order_relaxed);
    for (uint32_t i = atomic_load_explicit(&cq->record->consumed, memory_order_acquire); i != produced; i++) {
        struct cqe *cqe = &cq->ring[i & cq->mask];

        if (cqe->qpn == qpn && cqe->kind != CQE_TAGGED) {
            __atomic_store_n(&cqe->kind, CQE_PURGED, __ATOMIC_RELAXED);
            any = true;
        }
    }
    lock_release(&cq->ring_lock);
    if (any) {
        atomic_store_explicit(&cq->purged, true, memory_order_relaxed);
        cq_ring_try_compact(cq);
    }
    lock_release(&cq->lock);
}
