/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains and XRC SRQs. An XRC_RECV QP caches the SRQ of its last request without a reference: destroying an SRQ
 * clears it in all QPs first. So the data path searches an SRQ only when requests alternate between SRQs. */
#include "object/xrc/xrc.h"

#include <errno.h>
#include <stdlib.h>

#include "base/rundown.h"
#include "object/cq/cq.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "object/xrc/xrc_domain.h"
#include "segment/provenance.h"

/* Guards the lists of SRQs and XRCDs, and the XRCDs' lists of delegates; a leaf. */
static struct lock xrc_lock = LOCK_INIT;
static struct list srqs = {&srqs, &srqs};
static struct list xrcds = {&xrcds, &xrcds};

void xrc_after_fork_in_child(void)
{
    lock_init(&xrc_lock);
    list_init(&srqs);
    list_init(&xrcds);
    xrc_domains_after_fork_in_child();
}

/* --- domains -------------------------------------------------------------------------------------------- */

/* xrc_lock held. */
static struct srq *find_srq(const struct xrc_domain *domain, uint32_t srqn)
{
    list_for_each (node, &srqs) {
        struct srq *srq = list_entry(node, struct srq, by_number);

        if (srq->srqn == srqn && srq->xrcd->domain == domain)
            return srq;
    }
    return NULL;
}

static bool select_srq(struct qp *qp, uint32_t srqn)
{
    const struct responder *responder = &qp->record->responder;
    struct srq *found;

    if (likely(qp->srq && qp->srq->srqn == srqn))
        return true;
    if (responder->message == MESSAGE_SEND || responder->message == MESSAGE_WRITE)
        return false;
    lock_acquire(&xrc_lock);
    found = find_srq(qp->xrcd->domain, srqn);
    lock_release(&xrc_lock);
    if (!found)
        return false;
    qp->srq = found;
    qp->transport.receive_pd = found->pd->number;
    return true;
}

static bool is_here(const struct qp *qp, uint32_t srqn)
{
    bool found;

    if (likely(qp->srq && qp->srq->srqn == srqn))
        return true;
    lock_acquire(&xrc_lock);
    found = find_srq(qp->xrcd->domain, srqn) != NULL;
    lock_release(&xrc_lock);
    return found;
}

bool xrcd_is_shared(const struct xrcd *xrcd)
{
    return !xrcd->domain->is_private;
}

/* --- delegates ------------------------------------------------------------------------------------------ */

bool xrc_adopt(struct qp *delegate, void (*end)(struct qp *delegate), uint64_t device, uint64_t inode,
               uid_t uid)
{
    bool adopted = false;

    lock_acquire(&xrc_lock);
    list_for_each (node, &xrcds) {
        struct xrcd *xrcd = list_entry(node, struct xrcd, all);
        const struct xrc_domain *domain = xrcd->domain;

        if (domain->device != device || domain->inode != inode || !xrc_domain_admits(domain, uid))
            continue;
        xrcd->end_delegate = end;
        delegate->xrcd = xrcd;
        delegate->context = xrcd->context;
        list_push_back(&xrcd->delegates, &delegate->by_xrcd);
        adopted = true;
        break;
    }
    lock_release(&xrc_lock);
    return adopted;
}

void xrc_abandon(struct qp *delegate)
{
    lock_acquire(&xrc_lock);
    if (list_linked(&delegate->by_xrcd))
        list_remove(&delegate->by_xrcd);
    lock_release(&xrc_lock);
}

/* Ends the delegates of an XRCD. If another XRCD of the domain is open the next request makes a delegate there. */
static void end_delegates(struct xrcd *xrcd)
{
    for (;;) {
        struct list *node;
        struct qp *qp;

        lock_acquire(&xrc_lock);
        node = list_pop_front(&xrcd->delegates);
        lock_release(&xrc_lock);
        if (!node)
            return;
        qp = list_entry(node, struct qp, by_xrcd);
        xrcd->end_delegate(qp);
    }
}

int xrcd_open(struct context *context, const struct ibv_xrcd_init_attr *attributes, struct xrcd **ret_xrcd)
{
    const uint32_t needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    struct xrcd *xrcd;
    int error;

    if (attributes->comp_mask & ~needed)
        return -EOPNOTSUPP;
    if (attributes->comp_mask != needed)
        return -EINVAL;
    if (context_is_inherited(context))
        return destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_open_xrcd");
    xrcd = calloc(1, sizeof(*xrcd));
    if (!xrcd)
        return -ENOMEM;
    error = xrc_domain_take(attributes->fd, attributes->oflags, &xrcd->domain);
    if (error) {
        free(xrcd);
        return error;
    }
    xrcd->context = context;
    xrcd->ibv.context = &context->verbs.context;
    xrcd->select = select_srq;
    xrcd->is_here = is_here;
    list_init(&xrcd->delegates);
    lock_acquire(&xrc_lock);
    list_push_back(&xrcds, &xrcd->all);
    lock_release(&xrc_lock);
    xrcd->item = item_take(OBJECT_XRCD, 0, context->number, NO_OBJECT, NULL);
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    *ret_xrcd = xrcd;
    return 0;
}

int xrcd_close(struct xrcd *xrcd)
{
    if (destroyed_has(DESTROYED_XRCD, xrcd, "ibv_close_xrcd"))
        return -EINVAL;
    if (context_is_inherited(xrcd->context))
        return 0;
    if (atomic_load_explicit(&xrcd->users, memory_order_relaxed))
        return busy_because(OBJECT_XRCD, xrcd->item);
    lock_acquire(&xrc_lock);
    list_remove(&xrcd->all);
    lock_release(&xrc_lock);
    end_delegates(xrcd);
    if (xrcd_is_shared(xrcd))
        rundown_wait(); /* a delegate that another thread is ending may still use the XRCD */
    item_return(xrcd->item);
    xrc_domain_drop(xrcd->domain);
    atomic_fetch_sub_explicit(&xrcd->context->objects, 1, memory_order_release);
    xrcd->context = &destroyed_context;
    destroyed_keep(DESTROYED_XRCD, xrcd, xrcd->item);
    return 0;
}

void xrcd_use(struct xrcd *xrcd)
{
    atomic_fetch_add_explicit(&xrcd->users, 1, memory_order_relaxed);
}

void xrcd_unuse(struct xrcd *xrcd)
{
    atomic_fetch_sub_explicit(&xrcd->users, 1, memory_order_relaxed);
}

/* --- SRQs ----------------------------------------------------------------------------------------------- */

static void forget_srq(struct qp *qp, void *argument)
{
    lock_acquire(&qp->lock);
    if (qp->xrcd && qp->srq == argument) {
        qp->srq = NULL;
        qp->receive_taken = false; /* without a completion */
        qp->transport.current_receive = NULL;
        qp->record->receive.from_srq = false;
    }
    lock_release(&qp->lock);
}

static void leave(struct srq *srq)
{
    lock_acquire(&xrc_lock);
    list_remove(&srq->by_number);
    lock_release(&xrc_lock);
    /* A thread that found the SRQ before holds the lock of its QP. */
    qp_for_each(forget_srq, srq);
    qp_ports->release_number(srq->srqn);
    cq_unuse(srq->cq);
    xrcd_unuse(srq->xrcd);
}

int srq_create_xrc(struct pd *pd, struct xrcd *xrcd, struct cq *cq, void *user_context,
                   struct ibv_srq_attr *attributes, bool arm_limit, struct srq **ret_srq)
{
    struct srq *srq;
    uint32_t srqn;
    int error = cq_use(cq, "ibv_create_srq_ex");

    if (error)
        return error;
    error = qp_ports->allocate_number(&srqn);
    if (error)
        goto unuse_cq;
    error = srq_create(pd, user_context, attributes, arm_limit, &srq);
    if (error)
        goto release_number;
    xrcd_use(xrcd);
    srq->xrcd = xrcd;
    srq->cq = cq;
    srq->srqn = srqn;
    srq->leave = leave;
    srq->record->cq = cq->number;
    srq->record->provenance.xrcd = xrcd->item + 1;
    lock_acquire(&xrc_lock);
    list_push_back(&srqs, &srq->by_number);
    lock_release(&xrc_lock);
    *ret_srq = srq;
    return 0;

release_number:
    qp_ports->release_number(srqn);
unuse_cq:
    cq_unuse(cq);
    return error;
}
