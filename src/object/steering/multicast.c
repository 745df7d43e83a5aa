/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* UD multicast groups of this process (verbs.md §8.3). The engine of a sender offers each multicast packet to every
 * process of the host that may have members; this table decides which QPs of this process get a copy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/refusal.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/qp/qp_internal.h"
#include "rules/limits.h"
#include "segment/provenance.h"

struct attachment {
    struct list link;
    uint8_t gid[16];
    uint16_t lid; /* ibv_detach_mcast() must name the same; has no meaning on Ethernet */
    uint32_t qpn, item;
};

/* Guards the list. A leaf; released before QPs are locked for delivery. */
static struct lock attachments_lock = LOCK_INIT;
static struct list attachments = {&attachments, &attachments};

static struct attachment *find(const uint8_t gid[16], uint16_t lid, uint32_t qpn)
{
    list_for_each (node, &attachments) {
        struct attachment *attachment = list_entry(node, struct attachment, link);

        if (attachment->qpn == qpn && attachment->lid == lid && memcmp(attachment->gid, gid, 16) == 0)
            return attachment;
    }
    return NULL;
}

static uint32_t members(const uint8_t gid[16])
{
    uint32_t count = 0;

    list_for_each (node, &attachments)
        count += memcmp(list_entry(node, struct attachment, link)->gid, gid, 16) == 0;
    return count;
}

int multicast_attach(struct qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    struct attachment *attachment;
    int error = 0;

    if (context_is_inherited(qp->context))
        return destroyed_refuse(DESTROYED_QP, qp, "ibv_attach_mcast");
    if (qp->record->type != IBV_QPT_UD)
        return refused_of(
            refuse(-EINVAL, REFUSAL_TYPE, "a multicast group", qp->record->type, 1u << IBV_QPT_UD, 0),
            OBJECT_QP, qp->ibv.qp_num);
    if (!gid_is_multicast(gid->raw))
        return refused_of(refuse(-EINVAL, REFUSAL_UNICAST, "gid", 0, 0, 0), OBJECT_QP, qp->ibv.qp_num);
    attachment = malloc(sizeof(*attachment));
    if (!attachment)
        return -ENOMEM;
    memcpy(attachment->gid, gid->raw, 16);
    attachment->lid = lid;
    attachment->qpn = qp->ibv.qp_num;
    lock_acquire(&qp->lock); /* qp_destroy() reads multicast_groups under it */
    lock_acquire(&attachments_lock);
    if (find(gid->raw, lid, qp->ibv.qp_num)) {
        lock_release(&attachments_lock);
        lock_release(&qp->lock);
        free(attachment);
        return 0; /* attached already: no error, and still one copy per message */
    }
    if (members(gid->raw) >= LIMIT_MULTICAST_ATTACH) {
        error = refuse_because(-ENOMEM,
                               "the group already has max_mcast_qp_attach (ibv_query_device) QPs attached");
    } else {
        attachment->item =
            item_take(OBJECT_ATTACHMENT, qp->slot, qp->context->number, qp->ibv.qp_num, gid->raw);
        list_push_back(&attachments, &attachment->link);
        qp->record->multicast_groups++;
    }
    lock_release(&attachments_lock);
    lock_release(&qp->lock);
    if (error)
        free(attachment);
    else
        qp_ports->attached(qp, gid->raw);
    return error;
}

int multicast_detach(struct qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    struct attachment *attachment;

    lock_acquire(&qp->lock);
    lock_acquire(&attachments_lock);
    attachment = find(gid->raw, lid, qp->ibv.qp_num);
    if (attachment) {
        list_remove(&attachment->link);
        item_return(attachment->item);
        qp->record->multicast_groups--;
    }
    lock_release(&attachments_lock);
    lock_release(&qp->lock);
    if (!attachment)
        return refused_of(refuse_because(-EINVAL, "the QP is not attached to this gid and lid"), OBJECT_QP,
                          qp->ibv.qp_num);
    qp_ports->detached(qp, attachment->gid);
    free(attachment);
    return 0;
}

bool multicast_deliver(const uint8_t gid[16], void (*visit)(struct qp *qp, void *argument), void *argument)
{
    uint32_t qpns[LIMIT_MULTICAST_ATTACH];
    unsigned count = 0;

    lock_acquire(&attachments_lock);
    list_for_each (node, &attachments) {
        const struct attachment *attachment = list_entry(node, struct attachment, link);
        bool seen = false;

        if (memcmp(attachment->gid, gid, 16) != 0)
            continue;
        /* One copy per QP, even if the QP is attached with several LIDs. */
        for (unsigned i = 0; i < count; i++)
            seen = seen || qpns[i] == attachment->qpn;
        if (!seen && count < array_size(qpns))
            qpns[count++] = attachment->qpn;
    }
    lock_release(&attachments_lock);
    for (unsigned i = 0; i < count; i++) {
        struct qp *qp = qp_lock_number(qpns[i]);

        if (!qp)
            continue;
        visit(qp, argument);
        lock_release(&qp->lock);
    }
    return count != 0;
}

void multicast_forget_attachments(void)
{
    lock_init(&attachments_lock);
    list_init(&attachments); /* another thread may have been linking an entry */
}
