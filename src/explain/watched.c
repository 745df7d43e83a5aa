/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is told of a process whose records are kept from outside (src/watch): what only the adapter knows is said to be
 * unknown, and nothing is concluded from it. */
#include <errno.h>
#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"

#define STACK_LINES 6u

static void add_length(struct words *words, uint64_t bytes)
{
    words_add(words, "%llu byte%s", (unsigned long long)bytes, bytes == 1 ? "" : "s");
}

static void add_failure(struct words *words, const struct object *qp)
{
    const struct failure_record *failure = &qp->rare.failure;

    words_add(words, "wr_id ");
    words_add_one_wr_id(words, failure->wr_id);
    if (failure->receive) {
        words_add(words, ", a receive");
    } else {
        words_add(words, ", %s of ", name_send_opcode(failure->opcode));
        add_length(words, failure->length);
        if (failure->rkey)
            words_add(words, " at 0x%llx with rkey 0x%08x", (unsigned long long)failure->remote_address,
                      failure->rkey);
    }
    words_add(words, ": %s", name_status(failure->status));
    if (failure->vendor_err)
        words_add(words, ", vendor_err 0x%x", failure->vendor_err);
}

bool explain_failure(const struct view *view, struct out *out, uint32_t number)
{
    struct words cause = {.length = 0};
    struct object qp;

    if (!object_read(view, OBJECT_QP, number, &qp) || !qp.rare.failure.ns)
        return false;
    words_add(&cause, "%s went to %s: ", object_label(view, &qp).text, name_qp_state(qp.qp.state));
    add_failure(&cause, &qp);
    explanation_begin(view, out, "failure", cause.text);
    out_number(out, "wr_id", qp.rare.failure.wr_id);
    out_string(out, "status", name_status(qp.rare.failure.status));
    out_number(out, "vendor_err", qp.rare.failure.vendor_err);
    out_number(out, "ms_ago", view_age(view, qp.rare.failure.ns));
    object_describe(view, out, "object", 1, &qp, STACK_LINES);
    explanation_end(out);
    return true;
}

bool explain_unseen(const struct view *view, struct out *out, uint32_t number)
{
    struct words cause = {.length = 0};
    struct object qp;

    if (!object_read(view, OBJECT_QP, number, &qp))
        return false;
    words_add(
        &cause,
        "%s: the program posts work requests directly to the NIC (mlx5dv, UCX), not through libibverbs: "
        "softhca watch does not see them, and cannot explain what becomes of them",
        object_label(view, &qp).text);
    explanation_begin(view, out, "unseen", cause.text);
    object_describe(view, out, "object", 1, &qp, STACK_LINES);
    explanation_end(out);
    return true;
}

bool explain_refused(const struct view *view, struct out *out, const char *call, enum object_kind kind,
                     uint32_t number, int error, const char *detail)
{
    struct words cause = {.length = 0};
    struct object object;

    if (number == NO_OBJECT || !object_read(view, kind, number, &object))
        return false;
    words_add(&cause, "%s(%s) fails with %s", call ? call : object_destroy_verb(kind),
              object_label(view, &object).text, name_errno((uint32_t)error));
    if (detail)
        words_add(&cause, ": %s", detail);
    explanation_begin(view, out, "refused", cause.text);
    out_string(out, "call", call ? call : object_destroy_verb(kind));
    out_string(out, "errno", name_errno((uint32_t)error));
    out_string(out, "label", object_label(view, &object).text);
    object_describe(view, out, "object", 1, &object, STACK_LINES);
    explanation_end(out);
    return true;
}

static const struct event_record *overpaid_account(const struct object *object, const char **ret_verb)
{
    *ret_verb = object->kind == OBJECT_CM_ID ? "rdma_ack_cm_event" : "ibv_ack_async_event";
    if (object->kind == OBJECT_CQ && events_are_overpaid(&object->cq.events)) {
        *ret_verb = "ibv_ack_cq_events";
        return &object->cq.events;
    }
    if (object->kind == OBJECT_CQ && events_are_overpaid(&object->cq.async_events))
        return &object->cq.async_events;
    if (object->kind == OBJECT_QP && events_are_overpaid(&object->qp.events))
        return &object->qp.events;
    if (object->kind == OBJECT_SRQ && events_are_overpaid(&object->srq.events))
        return &object->srq.events;
    if (object->kind == OBJECT_WQ && events_are_overpaid(&object->wq.events))
        return &object->wq.events;
    return object->kind == OBJECT_CM_ID && events_are_overpaid(&object->id.events) ? &object->id.events
                                                                                   : NULL;
}

bool explain_overpaid(const struct view *view, struct out *out, const struct object *object)
{
    const char *verb;
    const struct event_record *events = overpaid_account(object, &verb);
    struct words cause = {.length = 0};

    if (!events || !object->provenance.destroying_ns)
        return false;
    words_add(
        &cause,
        "%s(%s) is blocked: %u event%s read, and %u acknowledged (%s), which is too many: libibverbs waits "
        "until both numbers are equal, and they never will be",
        object_waiting_verb(object), object_label(view, object).text, events->reported,
        events->reported == 1 ? " was" : "s were", events->acked, verb);
    explanation_begin(view, out, "blocked", cause.text);
    out_string(out, "call", object_waiting_verb(object));
    out_number(out, "read", events->reported);
    out_number(out, "acknowledged", events->acked);
    object_describe(view, out, "object", 1, object, STACK_LINES);
    explanation_end(out);
    return true;
}

/* --- sends ---------------------------------------------------------------------------------------------------- */

/* What the program has to wait for, as far as it is known. */
static void add_where(struct words *words, const struct object *qp)
{
    const struct qp_attributes *attributes = &qp->qp.attributes;
    static const uint8_t none[16];

    words_add(words, "in progress in the NIC, or completed and not polled (softhca watch cannot see which)");
    if (attributes->dest_qpn && qp->qp.type != IBV_QPT_UD) {
        words_add(words, "; to QP 0x%06x", attributes->dest_qpn);
        if (memcmp(attributes->path.destination_gid, none, sizeof(none)) != 0) {
            words_add(words, " at ");
            words_add_gid(words, attributes->path.destination_gid);
        }
    }
    if (qp->qp.type == IBV_QPT_RC && !attributes->timeout && qp->qp.state == IBV_QPS_RTS)
        words_add(words, "; local ACK timeout is 0: waits forever if the peer is gone");
    if (qp->qp.type == IBV_QPT_RC && attributes->rnr_retry == 7 && qp->qp.state == IBV_QPS_RTS)
        words_add(words, "; rnr_retry is 7: waits forever if the peer posts no receive");
}

bool words_add_watched_sender(const struct view *view, struct words *words, const struct object *qp)
{
    uint32_t outstanding = entries_between(qp->qp.sender.completed, qp->qp.sender.posted, LIMIT_QP_WR),
             signaled = 0;
    struct send_wqe oldest, wqe;

    if (qp->qp.unseen & UNSEEN_SENDS) {
        words_add(
            words,
            "sends are posted directly to the NIC (mlx5dv, UCX), not through libibverbs, and are not seen");
        return true;
    }
    if (!outstanding)
        return false;
    for (uint32_t i = 0; i < outstanding && send_wqe_read(view, &qp->qp, qp->qp.sender.completed + i, &wqe);
         i++)
        signaled += (wqe.flags & WQE_SIGNALED) != 0;
    words_add(words, "%u send%s without a polled completion", outstanding, outstanding == 1 ? "" : "s");
    if (send_wqe_read(view, &qp->qp, qp->qp.sender.completed, &oldest) && oldest.stamp) {
        words_add(words, "%s ", outstanding == 1 ? " for" : ", the oldest for");
        words_add_duration(words, view_stamp_age(view, oldest.stamp));
    }
    if (!signaled && outstanding >= qp->qp.send_depth)
        words_add(words, ": none of them is signaled, and they fill the send queue: no completion will free "
                         "a slot (IBV_SEND_SIGNALED), unless the driver frees them in another way");
    else if (!signaled)
        words_add(words, ": unsignaled, so there will be none unless they fail");
    else
        words_add(words, ", %u signaled: ", signaled);
    if (signaled)
        add_where(words, qp);
    return true;
}

/* --- what waits ------------------------------------------------------------------------------------------------ */

struct channel_cqs {
    uint32_t channel, armed, solicited, unarmed, unpolled;
};

static bool count_cq(const struct view *view, const struct object *cq, void *argument)
{
    struct channel_cqs *cqs = argument;

    if (cq->cq.channel != cqs->channel)
        return true;
    cqs->armed += cq->cq.armed != CQ_UNARMED;
    cqs->solicited += cq->cq.armed == CQ_ARMED_SOLICITED;
    cqs->unarmed += cq->cq.armed == CQ_UNARMED;
    cqs->unpolled += cq->cq.armed != CQ_UNARMED && !cq->cq.polled;
    return true;
}

/* A thread waits for an event, by ibv_get_cq_event(). */
static bool channel_waits(const struct view *view, struct out *out, const struct object *channel)
{
    struct channel_cqs cqs = {.channel = channel->number};
    struct words cause = {.length = 0};

    if (!channel->item.waiting_ns)
        return false;
    objects_for_each(view, 1u << OBJECT_CQ, count_cq, &cqs);
    words_add_thread(view, &cause, channel->item.waiting_by);
    words_add(&cause, " has waited in ibv_get_cq_event(%s) for ", object_label(view, channel).text);
    words_add_duration(&cause, view_age(view, channel->item.waiting_ns));
    if (!cqs.armed)
        words_add(&cause,
                  ": no event comes before one of its %u CQs is armed (ibv_req_notify_cq), and none is",
                  cqs.unarmed);
    else if (cqs.unpolled)
        words_add(
            &cause,
            ": %u of its CQs %s armed and not polled since: a completion that came before ibv_req_notify_cq "
            "raises no event",
            cqs.unpolled, cqs.unpolled == 1 ? "is" : "are");
    else if (cqs.solicited)
        words_add(
            &cause,
            ": no completion that raises an event has come; %u of its %u armed CQs raise%s one only for "
            "solicited completions and errors (solicited_only of ibv_req_notify_cq)",
            cqs.solicited, cqs.armed, cqs.solicited == 1 ? "s" : "");
    else
        words_add(&cause, ": no completion has come");
    explanation_begin(view, out, "waits", cause.text);
    out_number(out, "armed", cqs.armed);
    out_number(out, "armed_for_solicited", cqs.solicited);
    out_number(out, "unpolled_since_armed", cqs.unpolled);
    object_describe(view, out, "object", 1, channel, STACK_LINES);
    explanation_end(out);
    return true;
}

struct owed {
    uint32_t cq;
    uint64_t count;
};

/* Completions that work requests posted so far will give. */
static bool count_owed(const struct view *view, const struct object *qp, void *argument)
{
    struct owed *owed = argument;
    uint32_t sends = entries_between(qp->qp.sender.completed, qp->qp.sender.posted, LIMIT_QP_WR);
    struct send_wqe wqe;

    if (qp->qp.send_cq == owed->cq) {
        for (uint32_t i = 0; i < sends && send_wqe_read(view, &qp->qp, qp->qp.sender.completed + i, &wqe);
             i++)
            owed->count += (wqe.flags & WQE_SIGNALED) != 0;
    }
    if (qp->qp.recv_cq == owed->cq)
        owed->count += entries_between(qp->qp.receive.taken, qp->qp.receive.posted, LIMIT_QP_WR);
    return true;
}

static bool cq_is_small(const struct view *view, struct out *out, const struct object *cq)
{
    struct owed owed = {.cq = cq->number};
    struct words cause = {.length = 0};

    objects_for_each(view, 1u << OBJECT_QP, count_owed, &owed);
    if (owed.count <= cq->cq.capacity)
        return false;
    words_add(&cause,
              "%s can overrun: %llu posted work requests complete into it, and it has %u entries; a "
              "completion that "
              "finds it full is lost",
              object_label(view, cq).text, (unsigned long long)owed.count, cq->cq.capacity);
    explanation_begin(view, out, "overrun_risk", cause.text);
    out_number(out, "work_requests", owed.count);
    object_describe(view, out, "object", 1, cq, STACK_LINES);
    explanation_end(out);
    return true;
}

bool explain_watched_trouble(const struct view *view, struct out *out, const struct object *object)
{
    struct words cause = {.length = 0};

    if (object->kind == OBJECT_CHANNEL)
        return channel_waits(view, out, object);
    if (object->kind == OBJECT_CQ)
        return cq_is_small(view, out, object);
    if (object->kind != OBJECT_QP)
        return false;
    if (explain_fault(view, out, object->number) || explain_failure(view, out, object->number))
        return true;
    if (!words_add_watched_sender(view, &cause, object))
        return false;
    cause = (struct words){.length = 0};
    words_add(&cause, "%s: ", object_label(view, object).text);
    words_add_watched_sender(view, &cause, object);
    explanation_begin(view, out, object->qp.unseen ? "unseen" : "outstanding", cause.text);
    object_describe(view, out, "object", 1, object, 4);
    explanation_end(out);
    return true;
}
