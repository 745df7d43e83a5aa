/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions of libibverbs.so.1 that create, change or destroy what is recorded, and its events. Each calls the original
 * and has its results; a call that comes from inside an original passes. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/refusal.h"
#include "base/sys.h"
#include "watch/calls.h"
#include "watch/modify.h"

enum call {
    CREATE_COMP_CHANNEL,
    DESTROY_COMP_CHANNEL,
    ACK_ASYNC_EVENT,
    ACK_CQ_EVENTS,
    ATTACH_MCAST,
    CLOSE_DEVICE,
    CREATE_AH,
    CREATE_AH_FROM_WC,
    CREATE_CQ,
    CREATE_QP,
    CREATE_SRQ,
    DESTROY_AH,
    DESTROY_CQ,
    DESTROY_QP,
    DESTROY_SRQ,
    DETACH_MCAST,
    GET_ASYNC_EVENT,
    GET_CQ_EVENT,
    MODIFY_QP,
    MODIFY_SRQ,
    OPEN_DEVICE,
    RESIZE_CQ,
    QP_TO_QP_EX,
    IMPORT_DEVICE,
    CALLS
};

struct original verbs_originals[CALLS] = {
    [CREATE_COMP_CHANNEL] = VERBS(ibv_create_comp_channel, "1.0"),
    [DESTROY_COMP_CHANNEL] = VERBS(ibv_destroy_comp_channel, "1.0"),
    [ACK_ASYNC_EVENT] = VERBS(ibv_ack_async_event, "1.1"),
    [ACK_CQ_EVENTS] = VERBS(ibv_ack_cq_events, "1.1"),
    [ATTACH_MCAST] = VERBS(ibv_attach_mcast, "1.1"),
    [CLOSE_DEVICE] = VERBS(ibv_close_device, "1.1"),
    [CREATE_AH] = VERBS(ibv_create_ah, "1.1"),
    [CREATE_AH_FROM_WC] = VERBS(ibv_create_ah_from_wc, "1.1"),
    [CREATE_CQ] = VERBS(ibv_create_cq, "1.1"),
    [CREATE_QP] = VERBS(ibv_create_qp, "1.1"),
    [CREATE_SRQ] = VERBS(ibv_create_srq, "1.1"),
    [DESTROY_AH] = VERBS(ibv_destroy_ah, "1.1"),
    [DESTROY_CQ] = VERBS(ibv_destroy_cq, "1.1"),
    [DESTROY_QP] = VERBS(ibv_destroy_qp, "1.1"),
    [DESTROY_SRQ] = VERBS(ibv_destroy_srq, "1.1"),
    [DETACH_MCAST] = VERBS(ibv_detach_mcast, "1.1"),
    [GET_ASYNC_EVENT] = VERBS(ibv_get_async_event, "1.1"),
    [GET_CQ_EVENT] = VERBS(ibv_get_cq_event, "1.1"),
    [MODIFY_QP] = VERBS(ibv_modify_qp, "1.1"),
    [MODIFY_SRQ] = VERBS(ibv_modify_srq, "1.1"),
    [OPEN_DEVICE] = VERBS(ibv_open_device, "1.1"),
    [RESIZE_CQ] = VERBS(ibv_resize_cq, "1.1"),
    [QP_TO_QP_EX] = VERBS(ibv_qp_to_qp_ex, "1.6"),
    [IMPORT_DEVICE] = VERBS(ibv_import_device, "1.10"),
};
const size_t verbs_originals_count = CALLS;

/* --- devices and events --------------------------------------------------------------------------------- */

WATCH_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *context;
    FIND(verbs_originals[OPEN_DEVICE], ibv_open_device, NULL);

    if (watch_thread.inside)
        return original(device);
    context = INSIDE(original(device));
    if (context)
        adopt_context(context);
    return context;
}

WATCH_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct ibv_context *context;
    FIND(verbs_originals[IMPORT_DEVICE], ibv_import_device, NULL);

    if (watch_thread.inside)
        return original(cmd_fd);
    context = INSIDE(original(cmd_fd));
    if (context)
        adopt_context(context);
    return context;
}

WATCH_EXPORT int ibv_close_device(struct ibv_context *ibv)
{
    struct watched_context *context =
        watch_thread.inside ? NULL : (struct watched_context *)watched_find(ibv, OBJECT_CONTEXT);
    int result;
    FIND(verbs_originals[CLOSE_DEVICE], ibv_close_device, -1);

    if (!context)
        return original(ibv);
    tell(TOLD_LEAKS, OBJECT_CONTEXT, context->base.number);
    result = INSIDE(original(ibv));
    if (!result)
        watched_context_closed(context);
    return result;
}

WATCH_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    struct event_record *record;
    int result;
    FIND(verbs_originals[GET_ASYNC_EVENT], ibv_get_async_event, -1);

    if (watch_thread.inside)
        return original(context, event);
    result = INSIDE(original(context, event));
    record = result == 0 ? watched_async_record(event) : NULL;
    if (record)
        watched_event_read(record, event->event_type);
    return result;
}

WATCH_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    struct event_record *record = watch_thread.inside ? NULL : watched_async_record(event);
    __typeof__(&ibv_ack_async_event) original =
        (__typeof__(&ibv_ack_async_event))original_find(&verbs_originals[ACK_ASYNC_EVENT]);

    if (record)
        watched_events_acked(record, 1,
                             event->event_type); /* before the destroy that waits for it frees the object */
    if (original)
        original(event);
}

/* The thread was cancelled in it. */
static void no_longer_waits(void *channel)
{
    const struct watched *waited = channel;

    item_wait_ends(waited->item);
}

static int get_cq_event(__typeof__(&ibv_get_cq_event) original, struct watched *waited,
                        struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    int result;

    item_wait_begins(waited->item);
    pthread_cleanup_push(no_longer_waits, waited);
    result = INSIDE(original(channel, cq, cq_context));
    pthread_cleanup_pop(1);
    return result;
}

WATCH_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    struct watched *waited = watch_thread.inside ? NULL : watched_find(channel, OBJECT_CHANNEL), *ready;
    int result;
    FIND(verbs_originals[GET_CQ_EVENT], ibv_get_cq_event, -1);

    result = waited && waited->item != NO_OBJECT ? get_cq_event(original, waited, channel, cq, cq_context)
                                                 : original(channel, cq, cq_context);
    ready = result == 0 && !watch_thread.inside ? watched_find(*cq, OBJECT_CQ) : NULL;
    if (ready) {
        segment_cq(ready->number)->armed = CQ_UNARMED;
        watched_event_read(&segment_cq(ready->number)->events, 0);
    }
    return result;
}

WATCH_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    struct watched *acked = watch_thread.inside ? NULL : watched_find(cq, OBJECT_CQ);
    __typeof__(&ibv_ack_cq_events) original =
        (__typeof__(&ibv_ack_cq_events))original_find(&verbs_originals[ACK_CQ_EVENTS]);

    if (acked)
        watched_events_acked(&segment_cq(acked->number)->events, count, 0);
    if (original)
        original(cq, count);
}

WATCH_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel;
    FIND(verbs_originals[CREATE_COMP_CHANNEL], ibv_create_comp_channel, NULL);

    if (watch_thread.inside)
        return original(context);
    channel = INSIDE(original(context));
    if (channel)
        watched_new_item(channel, OBJECT_CHANNEL, context, NO_OBJECT, NULL);
    return channel;
}

WATCH_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    DESTROY(verbs_originals[DESTROY_COMP_CHANNEL], ibv_destroy_comp_channel, OBJECT_CHANNEL, channel);
}

/* --- CQ, SRQ -------------------------------------------------------------------------------------------- */

WATCH_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
                                          struct ibv_comp_channel *channel, int vector)
{
    struct ibv_cq *cq;
    FIND(verbs_originals[CREATE_CQ], ibv_create_cq, NULL);

    if (watch_thread.inside)
        return original(context, entries, cq_context, channel, vector);
    cq = INSIDE(original(context, entries, cq_context, channel, vector));
    if (cq)
        watched_new_cq(cq, NULL);
    return cq;
}

WATCH_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int entries)
{
    struct watched *known = watch_thread.inside ? NULL : watched_find(cq, OBJECT_CQ);
    int result;
    FIND(verbs_originals[RESIZE_CQ], ibv_resize_cq, ENOSYS);

    result = watch_thread.inside ? original(cq, entries) : INSIDE(original(cq, entries));
    if (known && result == 0)
        segment_cq(known->number)->capacity = (uint32_t)cq->cqe;
    return result;
}

WATCH_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    DESTROY(verbs_originals[DESTROY_CQ], ibv_destroy_cq, OBJECT_CQ, cq);
}

WATCH_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct ibv_srq *srq;
    FIND(verbs_originals[CREATE_SRQ], ibv_create_srq, NULL);

    if (watch_thread.inside)
        return original(pd, attr);
    srq = INSIDE(original(pd, attr));
    if (srq)
        watched_new_srq(srq, pd, NULL, NULL, attr->attr.max_wr, attr->attr.max_sge);
    return srq;
}

WATCH_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
    struct watched *known = watch_thread.inside ? NULL : watched_find(srq, OBJECT_SRQ);
    int result;
    FIND(verbs_originals[MODIFY_SRQ], ibv_modify_srq, ENOSYS);

    if (!known)
        return original(srq, attr, mask);
    result = INSIDE(original(srq, attr, mask));
    if (result)
        tell_refused("ibv_modify_srq", OBJECT_SRQ, known->number, result, NULL);
    return result;
}

WATCH_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
    DESTROY(verbs_originals[DESTROY_SRQ], ibv_destroy_srq, OBJECT_SRQ, srq);
}

/* --- QP ------------------------------------------------------------------------------------------------- */

struct ibv_qp_ex *original_qp_to_qp_ex(struct ibv_qp *qp)
{
    FIND(verbs_originals[QP_TO_QP_EX], ibv_qp_to_qp_ex, NULL);
    return original(qp);
}

WATCH_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return original_qp_to_qp_ex(qp);
}

WATCH_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp *qp;
    FIND(verbs_originals[CREATE_QP], ibv_create_qp, NULL);

    if (watch_thread.inside)
        return original(pd, attr);
    qp = INSIDE(original(pd, attr));
    if (qp)
        watched_new_qp(qp, &(struct watched_qp_attr){.pd = pd,
                                                     .send_cq = attr->send_cq,
                                                     .recv_cq = attr->recv_cq,
                                                     .srq = attr->srq,
                                                     .cap = attr->cap,
                                                     .signal_all = attr->sq_sig_all});
    return qp;
}

WATCH_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    struct watched_qp *known = watch_thread.inside ? NULL : (struct watched_qp *)watched_find(qp, OBJECT_QP);
    int result, error, saved;
    FIND(verbs_originals[MODIFY_QP], ibv_modify_qp, ENOSYS);

    if (!known)
        return original(qp, attr, mask);
    result = INSIDE(original(qp, attr, mask));
    replace_qp_ex(known);
    if (result == 0) {
        watched_qp_modified(known, attr, mask);
        return 0;
    }
    saved = errno;
    error = result < 0 ? errno : result;
    modify_breaks_rules(known->record, qp, attr, mask);
    if (!tell_reason("ibv_modify_qp", error, OBJECT_QP, known->qpn))
        tell_refused("ibv_modify_qp", OBJECT_QP, known->base.number, error,
                     "attr_mask and values break no rule that softhca watch can check: the driver or the NIC "
                     "refused them (dmesg may say why)");
    errno = saved;
    return result;
}

WATCH_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    DESTROY(verbs_originals[DESTROY_QP], ibv_destroy_qp, OBJECT_QP, qp);
}

static bool is_group(const uint8_t gid[16])
{
    static const uint8_t ipv4_mapped[12] = {[10] = 0xff, [11] = 0xff};

    return gid[0] == 0xff || (!memcmp(gid, ipv4_mapped, sizeof(ipv4_mapped)) && gid[12] >> 4 == 0xe);
}

static void refused_attachment(const struct ibv_qp *qp, const union ibv_gid *gid, int error)
{
    int saved = errno;

    if (error == EINVAL && !is_group(gid->raw))
        refuse(-EINVAL, REFUSAL_UNICAST, "gid", 0, 0, 0);
    else if (error == EINVAL && qp->qp_type != IBV_QPT_UD)
        refuse(-EINVAL, REFUSAL_TYPE, "a multicast group", qp->qp_type, 1u << IBV_QPT_UD, 0);
    tell_reason("ibv_attach_mcast", error, OBJECT_QP, qp->qp_num);
    errno = saved;
}

WATCH_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    int result;
    FIND(verbs_originals[ATTACH_MCAST], ibv_attach_mcast, ENOSYS);

    if (watch_thread.inside)
        return original(qp, gid, lid);
    result = INSIDE(original(qp, gid, lid));
    if (result == 0)
        watched_attached(qp, gid, true);
    else
        refused_attachment(qp, gid, result);
    return result;
}

WATCH_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
    int result;
    FIND(verbs_originals[DETACH_MCAST], ibv_detach_mcast, ENOSYS);

    if (watch_thread.inside)
        return original(qp, gid, lid);
    result = INSIDE(original(qp, gid, lid));
    if (result == 0)
        watched_attached(qp, gid, false);
    return result;
}

/* --- AH ------------------------------------------------------------------------------------------------- */

WATCH_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct ibv_ah *ah;
    FIND(verbs_originals[CREATE_AH], ibv_create_ah, NULL);

    if (watch_thread.inside)
        return original(pd, attr);
    ah = INSIDE(original(pd, attr));
    if (ah)
        watched_new_ah(ah, pd, &attr->grh.dgid);
    return ah;
}

WATCH_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                                  uint8_t port)
{
    struct ibv_ah *ah;
    FIND(verbs_originals[CREATE_AH_FROM_WC], ibv_create_ah_from_wc, NULL);

    if (watch_thread.inside)
        return original(pd, wc, grh, port);
    ah = INSIDE(original(pd, wc, grh, port));
    if (ah)
        watched_new_ah(ah, pd, &grh->sgid);
    return ah;
}

WATCH_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
    DESTROY(verbs_originals[DESTROY_AH], ibv_destroy_ah, OBJECT_AH, ah);
}
