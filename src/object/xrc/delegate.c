/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delegates. A delegate ends when its QP's process says so, with the link, or when this process closes the domain. The
 * thread that removes it from the table ends it. Other threads may still have a pointer to it, and see under its lock
 * that `origin` is NULL. */
#include "object/xrc/delegate.h"

#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/rundown.h"
#include "object/device/device.h"
#include "object/ports.h"
#include "object/qp/qp_internal.h"
#include "object/xrc/xrc.h"
#include "rules/limits.h"
#include "segment/port.h"

#define BUCKETS 64u
/* For processes of our own user, and for those of all others together: each takes a slot of the table of QPs. */
#define DELEGATES_MAX 4096u
#define MTU_MAX       8192u

static struct budget delegates =
    BUDGET_INIT(delegates, "XRC_RECV QPs of other processes whose requests are executed here",
                "Its processes have to destroy XRC_RECV QPs that they do not use");

static struct lock table_lock = LOCK_INIT; /* guards the table; a leaf */
static struct list table[BUCKETS];

void delegates_after_fork_in_child(void)
{
    lock_init(&table_lock);
    memset(table, 0, sizeof(table));
    budget_after_fork_in_child(&delegates);
}

/* table_lock held. */
static struct list *bucket_of(uint32_t qpn)
{
    struct list *bucket = &table[qpn % BUCKETS];

    if (!bucket->next)
        list_init(bucket);
    return bucket;
}

static struct qp *find(const struct link *origin, uint32_t qpn)
{
    struct qp *found = NULL;

    lock_acquire(&table_lock);
    list_for_each (node, bucket_of(qpn)) {
        struct qp *qp = list_entry(node, struct qp, by_origin);

        if (qp->origin == origin && qp->ibv.qp_num == qpn) {
            found = qp;
            break;
        }
    }
    lock_release(&table_lock);
    return found;
}

struct qp *delegate_lock(const struct link *origin, uint32_t qpn)
{
    struct qp *qp = find(origin, qpn);

    if (!qp)
        return NULL;
    lock_acquire(&qp->lock);
    if (qp->origin == origin && atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) == qpn)
        return qp;
    lock_release(&qp->lock);
    return NULL;
}

/* QP lock held. False: there are too many. */
static bool enter(struct qp *qp, uid_t uid)
{
    if (!budget_charge(&delegates, uid, DELEGATES_MAX, &qp->charge))
        return false;
    lock_acquire(&table_lock);
    list_push_back(bucket_of(qp->ibv.qp_num), &qp->by_origin);
    lock_release(&table_lock);
    return true;
}

/* Removes the delegate from the table. True: the caller has to end it; false: another thread does. */
static bool take_out(struct qp *qp)
{
    bool taken;

    lock_acquire(&table_lock);
    taken = list_linked(&qp->by_origin);
    if (taken)
        list_remove(&qp->by_origin);
    lock_release(&table_lock);
    if (taken)
        budget_discharge(&delegates, &qp->charge);
    return taken;
}

/* --- creating and ending -------------------------------------------------------------------------------- */

/* Applies terms, which may be hostile: values are limited to their range. Lock held. */
static void agree(struct qp *qp, const struct delegate_terms *terms)
{
    struct qp_attributes *attributes = &qp->record->attributes;
    struct responder *responder = &qp->record->responder;

    attributes->access_flags = terms->access_flags;
    attributes->min_rnr_timer = terms->min_rnr_timer & 0x1f;
    attributes->path.destination_ifindex = terms->epoch;
    qp->transport.link.mtu = terms->mtu && terms->mtu <= MTU_MAX ? terms->mtu : MTU_MAX;
    if (terms->resumes)
        return;
    responder->expected_psn = psn_make(terms->expected_psn);
    responder->msn = terms->msn & PSN_MASK;
    responder->message = MESSAGE_NONE;
    responder->nak_sent = NAK_NONE;
    responder->owed_syndrome = 0;
}

/* As assemble() in qp.c, for the parts that a delegate has. Lock held. */
static int assemble(struct qp *qp, uint32_t slot, struct link *origin, uint32_t qpn,
                    const struct delegate_terms *terms)
{
    struct qp_record *record = qp->record;
    int error;

    qp_make_blank(qp, slot);
    qp->origin = origin;
    qp->origin_connection = terms->connection;
    qp->ibv.qp_num = qpn;
    qp->ibv.qp_type = IBV_QPT_XRC_RECV;
    qp->transport.link.reliable = qp->transport.link.local = true;
    qp->transport.link.reference_from = qp->transport.link.read_reference_from = UINT32_MAX;
    qp->srq_receive = malloc(RECV_WQE_SIZE(LIMIT_SRQ_SGE));
    if (!qp->srq_receive)
        return -ENOMEM;
    error = qp_allocate_resources(qp, min_of((uint32_t)terms->max_dest_rd_atomic, LIMIT_RD_ATOMIC));
    if (error)
        return error;
    record->context = qp->context->number;
    record->attributes.dest_qpn = qpn; /* the delegate's peer is the QP that it executes for */
    record->responder.established = true;
    provenance_created(&record->provenance);
    record->provenance.xrcd = qp->xrcd->item + 1;
    agree(qp, terms);
    return 0;
}

static void free_parts(struct qp *qp)
{
    qp_release_resources(qp);
    free(qp->srq_receive);
    qp->srq_receive = NULL;
    qp->origin = NULL;
}

static bool make(struct link *origin, uid_t uid, uint32_t qpn, const struct delegate_terms *terms)
{
    struct delegate_terms first = *terms;
    uint32_t slot;
    struct qp *qp = qp_take_slot(&slot);
    bool made;

    if (!qp)
        return false;
    first.resumes = false;
    lock_acquire(&qp->lock);
    made = xrc_adopt(qp, delegate_end, terms->device, terms->inode, uid);
    if (made && (assemble(qp, slot, origin, qpn, &first) != 0 || !enter(qp, uid))) {
        free_parts(qp);
        made = false;
    }
    if (made) {
        qp_set_state(qp, IBV_QPS_RTS);
        atomic_store_explicit(&qp->record->qpn, qpn, memory_order_release);
    }
    lock_release(&qp->lock);
    if (!made) {
        xrc_abandon(qp);
        qp_give_slot(qp, false);
    }
    return made;
}

/* The receive of a message that is incomplete completes with an error (verbs.md §2.7). */
static void end(struct qp *qp)
{
    xrc_abandon(qp);
    rundown_enter();
    lock_acquire(&qp->lock);
    qp_enter_error(qp);
    port_retire_qp(NULL, qp->record, qp->transport.rare);
    qp_set_state(qp, IBV_QPS_RESET);
    lock_release(&qp->lock);
    rundown_exit();
    qp_ports->forget(qp);
    exposed_forget(qp);
    lock_acquire(&qp->lock);
    free_parts(qp);
    lock_release(&qp->lock);
    qp_give_slot(qp, false);
}

void delegate_end(struct qp *qp)
{
    if (take_out(qp))
        end(qp);
}

bool delegate_accept(struct link *origin, uid_t uid, uint32_t qpn, const struct delegate_terms *terms)
{
    struct qp *qp = delegate_lock(origin, qpn);
    bool goes_on;

    if (qp) {
        goes_on = !terms->ends && qp->origin_connection == terms->connection && qp_state(qp) != IBV_QPS_ERR;
        if (goes_on)
            agree(qp, terms);
        lock_release(&qp->lock);
        if (goes_on)
            return true;
        delegate_end(qp);
    }
    return terms->ends || make(origin, uid, qpn, terms);
}

static struct qp *next_of(const struct link *origin)
{
    lock_acquire(&table_lock);
    for (uint32_t i = 0; i < BUCKETS; i++) {
        if (!table[i].next)
            continue;
        list_for_each (node, &table[i]) {
            struct qp *qp = list_entry(node, struct qp, by_origin);

            if (qp->origin == origin) {
                lock_release(&table_lock);
                return qp;
            }
        }
    }
    lock_release(&table_lock);
    return NULL;
}

void delegates_leave(const struct link *origin)
{
    struct qp *qp;

    while ((qp = next_of(origin)))
        delegate_end(qp);
}
