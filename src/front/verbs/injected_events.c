/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Asynchronous events that the user asks for, and the states that come with them (verbs.md §9). */
#include "engine/core/engine.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/cq/cq.h"
#include "object/device/context.h"
#include "object/event/event.h"
#include "object/qp/qp.h"
#include "object/receive/srq.h"

#define NO_EVENT (-1)

static void end_qp_of_device(struct qp *qp, void *device)
{
    bool is_its;

    lock_acquire(&qp->lock);
    is_its = qp->context && qp->context->device == device &&
             atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != 0;
    lock_release(&qp->lock);
    if (is_its)
        qp_inject_event(qp, NO_EVENT, true);
}

/* A call fails from here on, except those that look, poll or destroy; what was posted is flushed. */
static void end_device(const struct device *device)
{
    const struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};

    lock_acquire(&contexts_lock);
    list_for_each (node, &contexts) {
        struct context *context = list_entry(node, struct context, all);

        if (context->device != device)
            continue;
        atomic_store_explicit(&context->fatal, true, memory_order_relaxed);
        async_raise(&context->events, &event, NULL);
    }
    lock_release(&contexts_lock);
    qp_for_each(end_qp_of_device, (void *)(uintptr_t)device);
}

static void fail_user_of_cq(struct qp *qp, void *cq)
{
    bool is_its;

    lock_acquire(&qp->lock);
    is_its = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != 0 &&
             (qp->send_cq == cq || qp->recv_cq == cq);
    lock_release(&qp->lock);
    if (is_its)
        qp_inject_event(qp, IBV_EVENT_QP_FATAL, true);
}

/* As after an overrun, but for the completions that are in the queue: CQ_ERR, and QP_FATAL for each QP of the CQ. */
static void end_cq(struct cq *cq)
{
    const struct ibv_async_event event = {.element.cq = &cq->ibv, .event_type = IBV_EVENT_CQ_ERR};

    async_raise(&cq->context->events, &event, &cq->async_events);
    qp_for_each(fail_user_of_cq, cq);
}

void injected_event(const struct inject_rule *rule, struct context *context, struct qp *qp, struct srq *srq)
{
    switch ((enum inject_event)rule->what) {
    case INJECT_DEVICE_FATAL:
        end_device(context->device);
        return;
    case INJECT_QP_FATAL:
        qp_inject_event(qp, IBV_EVENT_QP_FATAL, true);
        return;
    case INJECT_CQ_ERR:
        if (qp->send_cq)
            end_cq(qp->send_cq);
        return;
    case INJECT_SRQ_LIMIT:
        srq_inject_limit(srq);
        return;
    case INJECT_PATH_MIG_ERR:
        qp_inject_event(qp, IBV_EVENT_PATH_MIG_ERR, false);
        return;
    case INJECT_GID_CHANGE:
        context_raise_port_event(context->device, IBV_EVENT_GID_CHANGE);
        return;
    case INJECT_CLIENT_REREGISTER:
        context_raise_port_event(context->device, IBV_EVENT_CLIENT_REREGISTER);
        return;
    case INJECT_PORT_DOWN:
        engine_change_port(context->device, true, rule->time);
        return;
    case INJECT_PORT_UP:
        engine_change_port(context->device, false, 0);
        return;
    case INJECT_EVENTS:
        return;
    }
}
