/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs with exposed buffers: a packet by reference names their memory, and the peer has not acknowledged it yet,
 * so the peer may still read the memory. When a key is withdrawn, each such QP revokes the buffers that the key
 * named. QPs without exposed buffers, which is most of them, are not visited. */
#include "base/rundown.h"
#include "object/qp/qp_internal.h"

static struct lock exposing_lock = LOCK_INIT; /* guards the list; a leaf, below the QP's lock */
static struct list exposing = {&exposing, &exposing};
/* QPs in the list or in `to_visit`, and the one that is being visited. Changes under exposing_lock. */
static _Atomic uint32_t exposing_count;
/* One key at a time: a concurrent call would miss the QPs that are in `to_visit`. */
static struct lock revoke_lock = LOCK_INIT;

static void add_unless_there(struct qp *qp)
{
    lock_acquire(&exposing_lock);
    if (!list_linked(&qp->exposing)) {
        list_push_back(&exposing, &qp->exposing);
        atomic_fetch_add_explicit(&exposing_count, 1, memory_order_relaxed);
    }
    lock_release(&exposing_lock);
}

/* transport_reference_ports.exposes */
void exposed_begin(struct transport_qp *transport)
{
    add_unless_there(container_of(transport, struct qp, transport));
}

void exposed_forget(struct qp *qp)
{
    lock_acquire(&exposing_lock);
    if (list_linked(&qp->exposing)) {
        list_remove(&qp->exposing);
        atomic_fetch_sub_explicit(&exposing_count, 1, memory_order_relaxed);
    }
    lock_release(&exposing_lock);
}

static struct qp *next_in(struct list *to_visit)
{
    struct list *node;

    lock_acquire(&exposing_lock);
    node = list_pop_front(to_visit);
    lock_release(&exposing_lock);
    return node ? list_entry(node, struct qp, exposing) : NULL;
}

/* Only now may exposed_revoke() of another key return early: what the QP had exposed is revoked. */
static void visited(void)
{
    lock_acquire(&exposing_lock);
    /* Release: pairs with the acquire in exposed_revoke(). */
    atomic_fetch_sub_explicit(&exposing_count, 1, memory_order_release);
    lock_release(&exposing_lock);
}

void exposed_revoke(uint32_t slot, bool window)
{
    struct list to_visit, *node;
    struct qp *qp;

    /* The caller has waited for all rundown sections in which the key could be found (rundown_wait()): a QP that
     * has exposed a buffer of the key is in the list. */
    if (!atomic_load_explicit(&exposing_count, memory_order_acquire))
        return;
    lock_acquire(&revoke_lock);
    list_init(&to_visit);
    lock_acquire(&exposing_lock);
    while ((node = list_pop_front(&exposing)))
        list_push_back(&to_visit, node);
    lock_release(&exposing_lock);
    while ((qp = next_in(&to_visit))) {
        rundown_enter();
        lock_acquire(&qp->lock);
        if (transport_revoke_key(&qp->transport, slot, window))
            add_unless_there(qp);
        lock_release(&qp->lock);
        rundown_exit();
        visited();
    }
    lock_release(&revoke_lock);
}

void exposed_after_fork_in_child(void)
{
    lock_init(&exposing_lock);
    lock_init(&revoke_lock);
    list_init(&exposing); /* another thread may have been linking an entry */
    atomic_store_explicit(&exposing_count, 0, memory_order_relaxed);
}
