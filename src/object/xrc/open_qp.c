/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC_RECV QPs that several handles share (ibv_open_qp()). qp->holders counts the creator's handle, the other handles,
 * and threads that work for a handle of another process. The thread that drops the last one ends the QP. */
#include "object/xrc/open_qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "object/device/device.h"
#include "object/qp/qp_internal.h"
#include "object/xrc/xrc.h"
#include "object/xrc/xrc_domain.h"

/* Limits the memory that a hostile process can make this one use. */
#define OPENERS_MAX 4096u

/* The context and XRCD of a QP whose creator's handle, XRCD and context are gone. Allocated with the first opener, so
 * that qp_close_creator() cannot fail. */
struct qp_keeping {
    struct context context;
    struct xrcd xrcd;
};

/* --- the QP --------------------------------------------------------------------------------------------- */

/* QP lock held. */
static void keep(struct qp *qp, struct qp_keeping *keeping)
{
    keeping->context.device = qp->context->device;
    keeping->context.generation = qp->context->generation;
    keeping->context.number = keeping->context.item = NO_OBJECT;
    keeping->xrcd.context = &keeping->context;
    keeping->xrcd.domain = qp->xrcd->domain;
    keeping->xrcd.select = qp->xrcd->select;
    keeping->xrcd.is_here = qp->xrcd->is_here;
    keeping->xrcd.users = 1;
    list_init(&keeping->xrcd.all);
    list_init(&keeping->xrcd.delegates);
    device_get(&host_devices, qp->context->device);
    xrc_domain_get(qp->xrcd->domain);
    qp->keeping = keeping;
}

/* QP lock held. */
static void publish(struct qp *qp)
{
    qp->record->openers = qp->opener_count;
    qp->record->opener_pid = 0;
    list_for_each (node, &qp->openers) {
        const struct qp_opener *opener = list_entry(node, struct qp_opener, node);

        if (!opener->handle) {
            qp->record->opener_pid = opener->pid;
            break;
        }
    }
}

static struct qp_opener *find_opener(const struct qp *qp, uint64_t serial, uint64_t name)
{
    list_for_each (node, &qp->openers) {
        struct qp_opener *opener = list_entry(node, struct qp_opener, node);

        if (!opener->handle && opener->serial == serial && opener->name == name)
            return opener;
    }
    return NULL;
}

/* Finds and locks an XRC_RECV QP that has holders; NULL: none. */
static struct qp *lock_shared(uint32_t qpn)
{
    struct qp *qp = qp_lock_number(qpn);

    if (qp && (qp->record->type != IBV_QPT_XRC_RECV || !qp->holders)) {
        lock_release(&qp->lock);
        return NULL;
    }
    return qp;
}

/* QP lock held. */
static int add_opener(struct qp *qp, struct qp_opener *opener, struct qp_keeping **keeping)
{
    if (qp->opener_count == OPENERS_MAX)
        return -ENOMEM;
    if (!qp->keeping) {
        keep(qp, *keeping);
        *keeping = NULL;
    }
    list_push_back(&qp->openers, &opener->node);
    qp->opener_count++;
    qp->holders++;
    publish(qp);
    return 0;
}

/* Drops a holder; QP lock held. True: it was the last, and the caller has to end the QP. */
static bool drop(struct qp *qp)
{
    return --qp->holders == 0;
}

/* QP lock held. */
static bool remove_opener(struct qp *qp, struct qp_opener *opener)
{
    list_remove(&opener->node);
    qp->opener_count--;
    publish(qp);
    return drop(qp);
}

bool qp_close_creator(struct qp *qp)
{
    const struct destroying destroying = {OBJECT_QP, qp->slot, &qp->record->provenance};
    struct context *context;
    struct xrcd *xrcd;

    bool ends;

    lock_acquire(&qp->lock);
    if (qp->holders == 1) {
        qp->holders = 0;
        lock_release(&qp->lock);
        return true;
    }
    context = qp->context;
    xrcd = qp->xrcd;
    qp->context = &qp->keeping->context;
    qp->xrcd = &qp->keeping->xrcd;
    qp->creator_closed = true;
    qp->record->context = NO_OBJECT;
    qp->record->provenance.xrcd = 0;
    lock_release(&qp->lock);
    async_purge(&context->events, &qp->async_events);
    ack_account_wait(&qp->async_events, &qp->ibv.mutex, &qp->ibv.cond, &qp->ibv.events_completed,
                     &destroying);
    xrcd_unuse(xrcd);
    /* Only now, so that the slot is not reused before the creator's events are acknowledged. */
    lock_acquire(&qp->lock);
    ends = drop(qp);
    lock_release(&qp->lock);
    return ends;
}

bool qp_is_open_elsewhere(const struct qp *qp, const struct context *context)
{
    list_for_each (node, &qp->openers) {
        const struct qp *handle = list_entry(node, struct qp_opener, node)->handle;

        if (!handle || handle->context != context)
            return true;
    }
    return false;
}

void qp_forget_openers(struct qp *qp)
{
    struct qp_keeping *keeping = qp->keeping;

    if (likely(!keeping))
        return;
    qp->keeping = NULL;
    xrc_domain_drop(keeping->xrcd.domain);
    device_put(&host_devices, keeping->context.device);
    free(keeping);
}

/* --- handles -------------------------------------------------------------------------------------------- */

static struct qp *make_handle(struct context *context, const struct ibv_qp_open_attr *attributes)
{
    struct qp_handle *handle = calloc(1, sizeof(*handle));
    struct qp *qp;
    uint32_t slot;

    if (!handle)
        return NULL;
    qp = qp_take_slot(&slot);
    if (!qp) {
        free(handle);
        return NULL;
    }
    handle->opener.handle = qp;
    list_init(&handle->opener.node);
    list_init(&handle->all);
    lock_acquire(&qp->lock);
    qp_make_blank(qp, slot);
    qp->context = context;
    qp->xrcd = xrcd_of(attributes->xrcd);
    qp->handle = handle;
    ack_account_init(&qp->async_events, &qp->record->events);
    qp->ibv.context = &context->verbs.context;
    qp->ibv.qp_context = attributes->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? attributes->qp_context : NULL;
    qp->ibv.pd = NULL;
    qp->ibv.send_cq = qp->ibv.recv_cq = NULL;
    qp->ibv.srq = NULL;
    qp->ibv.handle = slot + 1;
    qp->ibv.qp_num = attributes->qp_num;
    qp->ibv.state = IBV_QPS_UNKNOWN;
    qp->ibv.qp_type = IBV_QPT_XRC_RECV;
    qp->ibv.events_completed = 0;
    qp->ex.comp_mask = 0;
    qp->record->context = context->number;
    qp->record->opened = true;
    provenance_created(&qp->record->provenance);
    qp->record->provenance.xrcd = qp->xrcd->item + 1;
    atomic_store_explicit(&qp->record->state, IBV_QPS_UNKNOWN, memory_order_relaxed);
    xrcd_use(qp->xrcd);
    lock_release(&qp->lock);
    return qp;
}

static void unmake_handle(struct qp *handle)
{
    struct qp_handle *parts = handle->handle;

    lock_acquire(&handle->lock);
    atomic_store_explicit(&handle->record->destroying_qpn, 0, memory_order_relaxed);
    atomic_store_explicit(&handle->record->qpn, 0, memory_order_relaxed);
    handle->handle = NULL;
    lock_release(&handle->lock);
    free(parts);
    xrcd_unuse(handle->xrcd);
    qp_give_slot(handle, true);
}

/* -ENOENT: this process has no QP with that number. */
static int open_here(struct qp *handle)
{
    struct qp_keeping *keeping = calloc(1, sizeof(*keeping));
    int error = -EINVAL;
    struct qp *qp;

    if (!keeping)
        return -ENOMEM;
    qp = qp_lock_number(handle->ibv.qp_num);
    if (!qp) {
        free(keeping);
        return -ENOENT;
    }
    if (qp->record->type == IBV_QPT_XRC_RECV && qp->holders && qp->xrcd->domain == handle->xrcd->domain &&
        qp->context->device == handle->context->device)
        error = add_opener(qp, &handle->handle->opener, &keeping);
    lock_release(&qp->lock);
    if (!error)
        handle->handle->target = qp;
    free(keeping);
    return error;
}

int qp_open(struct context *context, const struct ibv_qp_open_attr *attributes, struct qp **ret_handle)
{
    const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    struct qp *handle;
    int error;

    if (attributes->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED)
        return -EOPNOTSUPP;
    if ((attributes->comp_mask & needed) != needed || !attributes->xrcd ||
        attributes->xrcd->context != &context->verbs.context || attributes->qp_type != IBV_QPT_XRC_RECV)
        return -EINVAL;
    if (context_is_inherited(context))
        return -EIO;
    handle = make_handle(context, attributes);
    if (!handle)
        return -ENOMEM;
    error = open_here(handle);
    if (error == -ENOENT)
        error = xrcd_is_shared(handle->xrcd) ? qp_ports->open_elsewhere(handle) : -EINVAL;
    if (error) {
        unmake_handle(handle);
        return error;
    }
    atomic_store_explicit(&handle->record->qpn, attributes->qp_num, memory_order_release);
    *ret_handle = handle;
    return 0;
}

/* Stores the QP's state in the handle and its record. */
static void note_state(struct qp *handle, enum ibv_qp_state state)
{
    lock_acquire(&handle->lock);
    handle->ibv.state = state;
    atomic_store_explicit(&handle->record->state, state, memory_order_relaxed);
    lock_release(&handle->lock);
}

int qp_handle_modify(struct qp *handle, const struct ibv_qp_attr *attributes, int mask)
{
    struct qp *target = handle->handle->target;
    struct ibv_qp_attr copy = *attributes;
    int error;

    error = target ? qp_modify_shared(target, attributes, mask)
                   : qp_ports->request_elsewhere(handle, QP_REQUEST_MODIFY, &copy, mask);
    if (!error && (mask & IBV_QP_STATE))
        note_state(handle, attributes->qp_state);
    return error;
}

int qp_handle_query(struct qp *handle, struct ibv_qp_attr *to, int mask, struct ibv_qp_init_attr *init)
{
    struct qp *target = handle->handle->target;
    int error;

    error = target ? qp_query_shared(target, to, mask)
                   : qp_ports->request_elsewhere(handle, QP_REQUEST_QUERY, to, mask);
    if (error)
        return error;
    note_state(handle, to->qp_state);
    if (init)
        *init = (struct ibv_qp_init_attr){
            .qp_context = handle->ibv.qp_context, .cap = to->cap, .qp_type = IBV_QPT_XRC_RECV};
    return 0;
}

int qp_handle_destroy(struct qp *handle)
{
    const struct destroying destroying = {OBJECT_QP, handle->slot, &handle->record->provenance};
    struct qp *target = handle->handle->target;
    bool ends;

    atomic_store_explicit(&handle->record->destroying_qpn, handle->ibv.qp_num, memory_order_relaxed);
    atomic_store_explicit(&handle->record->qpn, 0, memory_order_release);
    if (target) {
        lock_acquire(&target->lock);
        ends = remove_opener(target, &handle->handle->opener);
        lock_release(&target->lock);
        if (ends)
            qp_end(target);
    } else {
        qp_ports->close_elsewhere(handle);
    }
    async_purge(&handle->context->events, &handle->async_events);
    ack_account_wait(&handle->async_events, &handle->ibv.mutex, &handle->ibv.cond,
                     &handle->ibv.events_completed, &destroying);
    unmake_handle(handle);
    return 0;
}

/* --- for other processes -------------------------------------------------------------------------------- */

int qp_open_for(const struct qp_asker *asker, uint32_t ifindex, uint64_t device, uint64_t inode)
{
    struct qp_keeping *keeping = calloc(1, sizeof(*keeping));
    struct qp_opener *opener = calloc(1, sizeof(*opener));
    int error = -ENOMEM;
    struct qp *qp;

    if (!keeping || !opener)
        goto out;
    opener->serial = asker->serial;
    opener->name = asker->name;
    opener->pid = asker->pid;
    error = -EINVAL;
    qp = lock_shared(asker->qpn);
    if (!qp)
        goto out;
    if (!qp->xrcd->domain->is_private && qp->xrcd->domain->device == device &&
        qp->xrcd->domain->inode == inode && xrc_domain_admits(qp->xrcd->domain, asker->uid) &&
        device_ifindex(qp->context->device) == ifindex && !find_opener(qp, asker->serial, asker->name))
        error = add_opener(qp, opener, &keeping);
    if (!error)
        opener = NULL;
    lock_release(&qp->lock);
out:
    free(opener);
    free(keeping);
    return error;
}

/* Finds the QP that the requester has open, and adds a holder, until release(). Not locked. */
static struct qp *hold(const struct qp_asker *asker)
{
    struct qp *qp = lock_shared(asker->qpn);
    bool found;

    if (!qp)
        return NULL;
    found = find_opener(qp, asker->serial, asker->name) != NULL;
    qp->holders += found;
    lock_release(&qp->lock);
    return found ? qp : NULL;
}

static void release(struct qp *qp)
{
    bool ends;

    lock_acquire(&qp->lock);
    ends = drop(qp);
    lock_release(&qp->lock);
    if (ends)
        qp_end(qp);
}

int qp_modify_for(const struct qp_asker *asker, const struct ibv_qp_attr *attributes, int mask)
{
    struct qp *qp = hold(asker);
    int error;

    if (!qp)
        return -EINVAL;
    error = qp_modify_shared(qp, attributes, mask);
    release(qp);
    return error;
}

int qp_query_for(const struct qp_asker *asker, struct ibv_qp_attr *ret_attributes, int mask)
{
    struct qp *qp = hold(asker);
    int error;

    if (!qp)
        return -EINVAL;
    error = qp_query_shared(qp, ret_attributes, mask);
    release(qp);
    return error;
}

void qp_close_for(const struct qp_asker *asker)
{
    struct qp *qp = lock_shared(asker->qpn);
    struct qp_opener *opener;
    bool ends;

    if (!qp)
        return;
    opener = find_opener(qp, asker->serial, asker->name);
    ends = opener && remove_opener(qp, opener);
    lock_release(&qp->lock);
    free(opener);
    if (ends)
        qp_end(qp);
}

/* Adds a holder of its own, so that the QP does not end before release(). */
static void close_all(struct qp *qp, void *argument)
{
    uint64_t serial = *(const uint64_t *)argument;

    lock_acquire(&qp->lock);
    if (!qp->opener_count || !qp->holders) {
        lock_release(&qp->lock);
        return;
    }
    qp->holders++;
    list_for_each_safe (node, following, &qp->openers) {
        struct qp_opener *opener = list_entry(node, struct qp_opener, node);

        if (opener->handle || opener->serial != serial)
            continue;
        remove_opener(qp, opener);
        free(opener);
    }
    lock_release(&qp->lock);
    release(qp);
}

void qp_close_all_for(uint64_t serial)
{
    qp_for_each(close_all, &serial);
}
