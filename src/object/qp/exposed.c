/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs with exposed buffers: a packet by reference names their memory, and the peer has not acknowledged it yet,
 * so the peer may still read the memory. When a key is withdrawn, each such QP revokes the buffers that the key
 * named. QPs without exposed buffers, which is most of them, are not visited. */
#include "base/rundown.h"
#include "object/qp/qp_internal.h"

static struct lock lenders_lock = LOCK_INIT; /* guards the list; a leaf, below the QP's lock */
static struct list lenders = {&lenders, &lenders};
static _Atomic uint32_t lender_count; /* changes under lenders_lock */
/* One key at a time: a concurrent call would miss the QPs that are in `turn`. */
static struct lock asking_lock = LOCK_INIT;

static void add_unless_there(struct qp *qp)
{
    lock_acquire(&lenders_lock);
    if (!list_linked(&qp->lending)) {
        list_push_back(&lenders, &qp->lending);
        atomic_fetch_add_explicit(&lender_count, 1, memory_order_relaxed);
    }
    lock_release(&lenders_lock);
}

/* transport_reference_ports.exposes */
void lending_begins(struct transport_qp *transport)
{
    add_unless_there(container_of(transport, struct qp, transport));
}

void lending_forget(struct qp *qp)
{
    lock_acquire(&lenders_lock);
    if (list_linked(&qp->lending)) {
        list_remove(&qp->lending);
        atomic_fetch_sub_explicit(&lender_count, 1, memory_order_relaxed);
    }
    lock_release(&lenders_lock);
}

static struct qp *next_in(struct list *turn)
{
    struct list *node;

    lock_acquire(&lenders_lock);
    node = list_pop_front(turn);
    if (node)
        atomic_fetch_sub_explicit(&lender_count, 1, memory_order_relaxed);
    lock_release(&lenders_lock);
    return node ? list_entry(node, struct qp, lending) : NULL;
}

void lending_take_back(uint32_t slot, bool window)
{
    struct list turn, *node;
    struct qp *qp;

    /* The caller has waited for all rundown sections in which the key could be found (rundown_wait()): a QP that
     * has exposed a buffer of the key is in the list. */
    if (!atomic_load_explicit(&lender_count, memory_order_relaxed))
        return;
    lock_acquire(&asking_lock);
    list_init(&turn);
    lock_acquire(&lenders_lock);
    while ((node = list_pop_front(&lenders)))
        list_push_back(&turn, node);
    lock_release(&lenders_lock);
    while ((qp = next_in(&turn))) {
        rundown_enter();
        lock_acquire(&qp->lock);
        if (transport_revoke_key(&qp->transport, slot, window))
            add_unless_there(qp);
        lock_release(&qp->lock);
        rundown_exit();
    }
    lock_release(&asking_lock);
}

void lending_after_fork_in_child(void)
{
    lock_init(&lenders_lock);
    lock_init(&asking_lock);
    list_init(&lenders); /* another thread may have been linking an entry */
    atomic_store_explicit(&lender_count, 0, memory_order_relaxed);
}
