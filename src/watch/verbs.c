/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions of libibverbs.so.1 that create, change or destroy what is recorded, and its events. Each calls the original
 * and has its results; a call that comes from inside an original passes. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/refusal.h"
#include "base/sys.h"
#include "explain/names.h"
#include "explain/out.h"
#include "explain/refused.h"
#include "rules/transitions.h"
#include "watch/calls.h"

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

/* --- devices and events ----------------------------------------------------------------------------------------- */

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

/* --- CQ, SRQ -------------------------------------------------------------------------------------------------------- */

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

/* --- QP ------------------------------------------------------------------------------------------------------------- */

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

/* Is it the specification's rule? Other limits are those of an adapter, and this one may have others than SoftHCA. */
static bool is_rule_of_all(const struct refusal *reason)
{
    static const char *const ranges[] = {"timeout", "retry_cnt", "rnr_retry", "min_rnr_timer"};

    if (reason->form == REFUSAL_RANGE) {
        for (unsigned i = 0; i < array_size(ranges); i++) {
            if (strcmp(reason->argument, ranges[i]) == 0)
                return true;
        }
        return false;
    }
    return reason->form == REFUSAL_TRANSITION || reason->form == REFUSAL_MASK ||
           reason->form == REFUSAL_CURRENT || reason->form == REFUSAL_MTU || reason->form == REFUSAL_ZERO ||
           reason->form == REFUSAL_MULTICAST;
}

/* words: which rule of the specification it is. */
static bool breaks_rules(const struct qp_record *record, struct ibv_qp_attr *attr, int mask,
                         struct words *words)
{
    const struct transition_limits lenient = {
        .gid_entries_valid = UINT32_MAX, .active_mtu = IBV_MTU_4096, .controlled_qkeys = true};
    struct refusal reason;
    int error = transition_check((enum ibv_qp_type)record->type, (enum ibv_qp_state)record->state, attr, mask,
                                 &lenient);

    if (error != -EINVAL || !refusal_take(error, &reason) || !is_rule_of_all(&reason))
        return false;
    return words_add_refused(words,
                             &(struct refused_record){.form = reason.form,
                                                      .error = EINVAL,
                                                      .value = reason.value,
                                                      .low = reason.low,
                                                      .high = reason.high},
                             reason.argument);
}

WATCH_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    struct watched_qp *known = watch_thread.inside ? NULL : (struct watched_qp *)watched_find(qp, OBJECT_QP);
    struct words words = {.length = 0};
    int result;
    FIND(verbs_originals[MODIFY_QP], ibv_modify_qp, ENOSYS);

    if (!known)
        return original(qp, attr, mask);
    result = INSIDE(original(qp, attr, mask));
    replace_qp_ex(known);
    if (result == 0) {
        watched_qp_modified(known, attr, mask);
        return 0;
    }
    if (result > 0 && breaks_rules(segment_qp(known->base.number), attr, mask, &words))
        tell_refused("ibv_modify_qp", OBJECT_QP, known->base.number, result, words.text);
    else
        tell_refused(
            "ibv_modify_qp", OBJECT_QP, known->base.number, result < 0 ? errno : result,
            "attr_mask is valid by the specification: the driver or the NIC refused a value (see dmesg)");
    return result;
}

WATCH_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    DESTROY(verbs_originals[DESTROY_QP], ibv_destroy_qp, OBJECT_QP, qp);
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

/* --- AH ------------------------------------------------------------------------------------------------------------- */

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
