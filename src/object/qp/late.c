/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "object/qp/late.h"

#include <stdlib.h>

#include "base/list.h"
#include "base/sys.h"
#include "object/cq/cq.h"
#include "object/ports.h"
#include "object/qp/qp.h"

struct mark {
    struct list node;
    uint32_t counter;
    ns_t delay;
};

struct held {
    struct list node;
    struct cq *cq;
    struct cqe cqe;
    bool solicited;
    ns_t at;
};

/* Both in the order of posting, and so of completion. */
struct late_completions {
    struct late {
        struct list marks, held;
    } queue[LATE_QUEUES];
};

static struct held *held_of(struct list *node)
{
    return list_entry(node, struct held, node);
}

static struct late *late_of(struct qp *qp, enum late_queue queue)
{
    if (qp->late)
        return &qp->late->queue[queue];
    qp->late = calloc(1, sizeof(*qp->late));
    for (unsigned i = 0; qp->late && i < LATE_QUEUES; i++) {
        list_init(&qp->late->queue[i].marks);
        list_init(&qp->late->queue[i].held);
    }
    return qp->late ? &qp->late->queue[queue] : NULL;
}

void late_mark(struct qp *qp, enum late_queue queue, uint32_t counter, ns_t delay)
{
    struct late *late = late_of(qp, queue);
    struct mark *mark = late ? malloc(sizeof(*mark)) : NULL;

    if (!mark)
        return;
    *mark = (struct mark){.counter = counter, .delay = delay};
    list_push_back(&late->marks, &mark->node);
    qp->counted |= QP_LATE;
}

/* How long the completion waits; marks of work requests that had none go, too. */
static ns_t take_mark(struct late *late, uint32_t counter)
{
    while (!list_empty(&late->marks)) {
        struct mark *mark = list_entry(late->marks.next, struct mark, node);
        bool is_this = mark->counter == counter;
        ns_t delay = mark->delay;

        if ((int32_t)(mark->counter - counter) > 0)
            break;
        list_remove(&mark->node);
        free(mark);
        if (is_this)
            return delay;
    }
    return 0;
}

static bool is_idle(const struct late_completions *late)
{
    for (unsigned i = 0; i < LATE_QUEUES; i++) {
        if (!list_empty(&late->queue[i].marks) || !list_empty(&late->queue[i].held))
            return false;
    }
    return true;
}

bool late_hold(struct qp *qp, enum late_queue queue, uint32_t counter, struct cq *cq, const struct cqe *cqe,
               bool solicited)
{
    struct late *late = &qp->late->queue[queue];
    ns_t delay = take_mark(late, counter), at = delay ? sys_now() + delay : 0;
    struct held *held;

    if (!list_empty(&late->held))
        at = max_of(at, held_of(late->held.prev)->at);
    held = at ? malloc(sizeof(*held)) : NULL;
    if (!held)
        return false;
    *held = (struct held){.cq = cq, .cqe = *cqe, .solicited = solicited, .at = at};
    list_push_back(&late->held, &held->node);
    qp->record->held_completions++;
    object_ports->late_at(at);
    return true;
}

static void end_if_idle(struct qp *qp)
{
    if (!is_idle(qp->late))
        return;
    free(qp->late);
    qp->late = NULL;
    qp->counted &= ~QP_LATE;
}

static void clear(struct list *list)
{
    struct list *first;

    while ((first = list_pop_front(list)))
        free(first); /* `node` is the first member of both */
}

_Static_assert(offsetof(struct held, node) == 0 && offsetof(struct mark, node) == 0, "clear() frees them");

void late_forget(struct qp *qp)
{
    if (!qp->late)
        return;
    for (unsigned i = 0; i < LATE_QUEUES; i++) {
        clear(&qp->late->queue[i].marks);
        clear(&qp->late->queue[i].held);
    }
    qp->record->held_completions = 0;
    end_if_idle(qp);
}

static void push_due(struct qp *qp, void *argument)
{
    ns_t *now = argument;

    lock_acquire(&qp->lock);
    for (unsigned i = 0; qp->late && i < LATE_QUEUES; i++) {
        struct list *list = &qp->late->queue[i].held;

        while (!list_empty(list) && held_of(list->next)->at <= *now) {
            struct held *held = held_of(list_pop_front(list));

            cq_push(held->cq, &held->cqe, held->solicited);
            qp->record->held_completions--;
            free(held);
        }
        if (!list_empty(list))
            object_ports->late_at(held_of(list->next)->at);
    }
    if (qp->late)
        end_if_idle(qp);
    lock_release(&qp->lock);
}

void late_due(void)
{
    ns_t now = sys_now();

    qp_for_each(push_due, &now);
}
