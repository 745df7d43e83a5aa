/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Lists of QPs that wait for space: in the ring of a lane (struct lane_state), or in the socket buffer of a lane to
 * the network (engine/paths/network.c). A QP is in at most one of these lists. qp_route.blocked_in is guarded by the
 * QP's lock, the node by the lock of the list. */
#include "engine/core/core.h"

void blocked_list_init(struct blocked_list *list, struct lane *lane)
{
    lock_init(&list->lock);
    list_init(&list->qps);
    list->lane = lane;
}

void blocked_enter(struct qp *qp, struct blocked_list *list)
{
    struct qp_route *route = route_of(qp);

    if (route->blocked_in)
        return;
    route->blocked_in = list;
    lock_acquire(&list->lock);
    list_push_back(&list->qps, &route->blocked);
    lock_release(&list->lock);
}

void blocked_leave(struct qp *qp)
{
    struct qp_route *route = route_of(qp);
    struct blocked_list *list = route->blocked_in;

    if (!list)
        return;
    lock_acquire(&list->lock);
    list_remove(&route->blocked);
    lock_release(&list->lock);
    route->blocked_in = NULL;
}

static struct qp *pop(struct blocked_list *list)
{
    struct list *node;

    lock_acquire(&list->lock);
    node = list_pop_front(&list->qps);
    lock_release(&list->lock);
    return node ? qp_of_route(list_entry(node, struct qp_route, blocked)) : NULL;
}

/* After pop() and locking the QP: the QP is in no list now, unless another thread put it into one in between. */
static void settle(struct qp *qp)
{
    struct qp_route *route = route_of(qp);
    struct blocked_list *list = route->blocked_in;
    bool linked;

    if (!list)
        return;
    lock_acquire(&list->lock);
    linked = list_linked(&route->blocked);
    lock_release(&list->lock);
    if (!linked)
        route->blocked_in = NULL;
}

enum blocked_run blocked_run_next(struct blocked_list *list)
{
    struct qp *qp = pop(list);
    struct qp_kick kick;
    bool again;

    if (!qp)
        return BLOCKED_NONE;
    lock_acquire(&qp->lock);
    settle(qp);
    if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed))
        route_run(qp);
    again = route_of(qp)->blocked_in == list;
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    route_ring(&kick);
    return again ? BLOCKED_AGAIN : BLOCKED_RAN;
}
