/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A destroy that blocks: who destroys is inside the original until the events are acknowledged, so another thread
 * tells, a second later. It exists while the destroy blocks only. The rule of blocking: published/record.h. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/sys.h"
#include "watch/state.h"

#define STACK_BYTES (256u << 10)

enum stage { STAGE_WAITS, STAGE_TELLS, STAGE_TOLD, STAGE_OVER };

struct blocked_destroy {
    uint32_t stage;         /* enum stage; a futex */
    _Atomic unsigned users; /* two: who destroys, and who tells */
    enum object_kind kind;
    uint32_t number;
};

static void release(struct blocked_destroy *blocked)
{
    if (atomic_fetch_sub_explicit(&blocked->users, 1, memory_order_acq_rel) == 1)
        free(blocked);
}

/* Moves from one stage to the next; false: it was another. */
static bool step(struct blocked_destroy *blocked, uint32_t from, enum stage to)
{
    bool moved =
        __atomic_compare_exchange_n(&blocked->stage, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);

    if (moved)
        sys_futex(&blocked->stage, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
    return moved;
}

static void *tell_later(void *argument)
{
    struct blocked_destroy *blocked = argument;
    ns_t deadline = sys_now() + NS_PER_S, now;

    while (__atomic_load_n(&blocked->stage, __ATOMIC_ACQUIRE) == STAGE_WAITS && (now = sys_now()) < deadline)
        sys_futex(&blocked->stage, FUTEX_WAIT_PRIVATE, STAGE_WAITS, deadline - now);
    if (step(blocked, STAGE_WAITS, STAGE_TELLS)) {
        tell(TOLD_BLOCKED, blocked->kind, blocked->number);
        step(blocked, STAGE_TELLS, STAGE_TOLD);
    }
    release(blocked);
    return NULL;
}

static bool start_thread(struct blocked_destroy *blocked)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int error = pthread_attr_init(&attributes);

    if (error)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    /* Signals of the program are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attributes, tell_later, blocked);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

/* Also where more was acknowledged than read: not every libibverbs blocks then. */
static bool may_block(const struct event_record *events)
{
    return events_block_destroy(events) || events_are_overpaid(events);
}

static bool blocks(const struct watched *object)
{
    switch (object->kind) {
    case OBJECT_CQ:
        return may_block(&segment_cq(object->number)->events) ||
               may_block(&segment_cq(object->number)->async_events);
    case OBJECT_QP:
        return may_block(&segment_qp(object->number)->events);
    case OBJECT_SRQ:
        return may_block(&segment_srq(object->number)->events);
    case OBJECT_WQ:
        return may_block(&segment_wq(object->number)->events);
    case OBJECT_CM_ID:
        return may_block(&segment_id(object->number)->events);
    case OBJECT_CONTEXT:
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
    case OBJECT_CHANNEL:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        break;
    }
    return false;
}

struct blocked_destroy *destroy_begins(struct watched *object)
{
    struct blocked_destroy *blocked;

    if (!object || !blocks(object))
        return NULL;
    provenance_destroying(watched_provenance(object));
    blocked = calloc(1, sizeof(*blocked));
    if (!blocked)
        return NULL;
    blocked->users = 2;
    blocked->kind = object->kind;
    blocked->number = object->number;
    if (!start_thread(blocked)) {
        free(blocked);
        return NULL;
    }
    return blocked;
}

static bool was_told(struct blocked_destroy *blocked)
{
    uint32_t stage;

    if (step(blocked, STAGE_WAITS, STAGE_OVER))
        return false;
    while ((stage = __atomic_load_n(&blocked->stage, __ATOMIC_ACQUIRE)) == STAGE_TELLS)
        sys_futex(&blocked->stage, FUTEX_WAIT_PRIVATE, stage, NS_NEVER);
    return true;
}

void destroy_waited(struct watched *object, struct blocked_destroy *blocked)
{
    struct provenance_record *provenance = watched_provenance(object);

    if (blocked) {
        if (was_told(blocked))
            tell(TOLD_RESUMED, object->kind, object->number);
        release(blocked);
    }
    if (provenance)
        provenance_destroy_unblocked(provenance);
}

void destroy_ends(struct watched *object, struct blocked_destroy *blocked, int result)
{
    int saved = errno;

    if (!object)
        return;
    destroy_waited(object, blocked);
    if (result == 0) {
        watched_forget(object);
    } else {
        if (result == EBUSY)
            tell(TOLD_BUSY, object->kind, object->number);
        else
            tell_refused(NULL, object->kind, object->number, result, NULL);
    }
    errno = saved;
}
