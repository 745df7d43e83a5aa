/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is lost without completion: work requests and completions of a destroyed object, the completion that
 * an overrun CQ dropped, objects that were not destroyed. */
#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"

#define STACK_LINES 6u

/* One list of what is lost. */
struct loss {
    const char *key, *what, *whats;
    struct wr_ids ids;
};

static void add_loss(struct words *words, const struct loss *loss, unsigned *reported)
{
    if (loss->ids.total)
        words_add(words, "%s%llu %s", (*reported)++ ? ", " : "", (unsigned long long)loss->ids.total,
                  loss->ids.total == 1 ? loss->what : loss->whats);
}

static void describe_loss(struct out *out, const struct loss *loss)
{
    if (!loss->ids.total)
        return;
    out_begin(out, loss->key);
    out_number(out, "count", loss->ids.total);
    out_string(out, "wr_ids", loss->ids.words.text);
    out_end(out);
    out_line(out, 1, "%s: wr_id %s", loss->whats, loss->ids.words.text);
}

/* Unpolled completions. Of those that are successful nothing was to be learnt but that. */
#define UNPOLLED                                                                                             \
    {                                                                                                        \
        .key = "completions", .what = "unpolled completion", .whats = "unpolled completions"                 \
    }
struct unpolled {
    struct loss loss;
    uint64_t failed; /* also flushed */
};

static void add_completion(struct unpolled *unpolled, const struct cqe *cqe)
{
    wr_ids_add(&unpolled->loss.ids, cqe->wr_id);
    unpolled->failed += cqe->status != IBV_WC_SUCCESS;
}

static void describe_completions(struct out *out, const struct unpolled *unpolled)
{
    uint64_t total = unpolled->loss.ids.total;

    describe_loss(out, &unpolled->loss);
    if (!total)
        return;
    out_number(out, "failed_completions", unpolled->failed);
    if (!unpolled->failed)
        out_line(out, 1, "%s success: harmless, unless the program waits for %s",
                 total == 1 ? "it reports" : "all of them report", total == 1 ? "it" : "one of them");
}

/* --- a QP ----------------------------------------------------------------------------------------------- */

static void collect_sends(const struct view *view, const struct qp_record *qp, struct loss *loss)
{
    uint32_t count = entries_between(qp->sender.completed, qp->sender.posted, LIMIT_QP_WR);
    struct send_wqe wqe;

    for (uint32_t i = 0; i < count && send_wqe_read(view, qp, qp->sender.completed + i, &wqe); i++)
        wr_ids_add(&loss->ids, wqe.wr_id);
    wr_ids_finish(&loss->ids);
}

static void collect_receives(const struct view *view, const struct receive_queue *queue, struct loss *loss)
{
    uint32_t count = entries_between(queue->taken, queue->posted, LIMIT_QP_WR);
    struct recv_wqe wqe;

    for (uint32_t i = 0; i < count && receive_read(view, queue, queue->taken + i, &wqe); i++)
        wr_ids_add(&loss->ids, wqe.wr_id);
    wr_ids_finish(&loss->ids);
}

static void collect_completions(const struct view *view, uint32_t number, uint32_t qpn, struct unpolled *ret)
{
    struct object cq;
    struct cqe cqe;
    uint32_t count;

    if (!object_read(view, OBJECT_CQ, number, &cq))
        return;
    count = entries_between(cq.cq.consumed, cq.cq.produced, LIMIT_CQE);
    for (uint32_t i = 0; i < count && cqe_read(view, &cq.cq, cq.cq.consumed + i, &cqe); i++) {
        if (cqe.qpn == qpn && cqe.kind != CQE_PURGED)
            add_completion(ret, &cqe);
    }
}

static bool losses_of_qp(const struct view *view, struct out *out, const struct object *object)
{
    const struct qp_record *qp = &object->qp;
    struct loss sends = {.key = "sends", .what = "outstanding send", .whats = "outstanding sends"};
    struct loss receives = {.key = "receives", .what = "unused receive", .whats = "unused receives"};
    struct unpolled completions = {UNPOLLED, 0};
    struct loss taken = {.key = "srq_receives",
                         .what = "SRQ receive of a partly received message",
                         .whats = "SRQ receives of partly received messages"};
    uint32_t events = qp->events.raised - qp->events.reported;
    struct words cause = {.length = 0}, waits = {.length = 0};
    unsigned reported = 0;

    collect_sends(view, qp, &sends);
    collect_receives(view, &qp->receive, &receives);
    collect_completions(view, qp->send_cq, object_qpn(object), &completions);
    if (qp->recv_cq != qp->send_cq)
        collect_completions(view, qp->recv_cq, object_qpn(object), &completions);
    wr_ids_finish(&completions.loss.ids);
    if (qp->receive.from_srq) {
        wr_ids_add(&taken.ids, qp->receive.srq_wr_id);
        wr_ids_finish(&taken.ids);
    }
    if (!sends.ids.total && !receives.ids.total && !completions.loss.ids.total && !taken.ids.total && !events)
        return false;
    out->remarks[REMARK_SENDS] = sends.ids.total;
    out->remarks[REMARK_COMPLETIONS] = completions.failed;
    out->remarks[REMARK_RECEIVES] = receives.ids.total + taken.ids.total;
    out->remarks[REMARK_EVENTS] = events;
    words_add(&cause, "ibv_destroy_qp(%s) discarded ", object_label(view, object).text);
    add_loss(&cause, &taken, &reported);
    add_loss(&cause, &sends, &reported);
    add_loss(&cause, &completions.loss, &reported);
    add_loss(&cause, &receives, &reported);
    if (events)
        words_add(&cause, "%s%u unread event%s", reported++ ? ", " : "", events, events == 1 ? "" : "s");
    words_add(&cause, " (QP state %s)", name_qp_state(qp->state));
    explanation_begin(view, out, "losses", cause.text);
    out_string(out, "call", "ibv_destroy_qp");
    describe_loss(out, &taken);
    if (taken.ids.total)
        out_line(out, 1,
                 "to get such receives flushed, move the QP (which uses an SRQ) to ERR first and wait for "
                 "IBV_EVENT_QP_LAST_WQE_REACHED before ibv_destroy_qp");
    describe_loss(out, &sends);
    if (sends.ids.total && words_add_sender(view, &waits, object)) {
        out_string(out, "sends_wait", waits.text);
        out_line(out, 1, "%s", waits.text);
    }
    describe_completions(out, &completions);
    describe_loss(out, &receives);
    out_number(out, "unread_events", events);
    /* Receives are left over wherever a program ends. */
    if (out->json || sends.ids.total || completions.loss.ids.total || taken.ids.total)
        object_describe(view, out, "object", 1, object, STACK_LINES);
    explanation_end(out);
    return true;
}

/* --- a CQ, an SRQ --------------------------------------------------------------------------------------- */

static bool losses_of_cq(const struct view *view, struct out *out, const struct object *object)
{
    const struct cq_record *cq = &object->cq;
    uint32_t count = entries_between(cq->consumed, cq->produced, LIMIT_CQE);
    uint32_t events = cq->events.raised - cq->events.reported;
    struct unpolled completions = {UNPOLLED, 0};
    struct words cause = {.length = 0};
    bool armed = cq->armed != CQ_UNARMED;
    unsigned reported = 0;
    struct cqe cqe;

    for (uint32_t i = 0; i < count && cqe_read(view, cq, cq->consumed + i, &cqe); i++) {
        if (cqe.kind != CQE_PURGED)
            add_completion(&completions, &cqe);
    }
    wr_ids_finish(&completions.loss.ids);
    if (!completions.loss.ids.total && !armed && !events)
        return false;
    out->remarks[REMARK_COMPLETIONS] = completions.failed;
    out->remarks[REMARK_EVENTS] = events;
    out->remarks[REMARK_ARMED] = armed;
    words_add(&cause, "ibv_destroy_cq(%s) discarded ", object_label(view, object).text);
    add_loss(&cause, &completions.loss, &reported);
    if (events)
        words_add(&cause, "%s%u unread completion event%s", reported++ ? ", " : "", events,
                  events == 1 ? "" : "s");
    if (armed)
        words_add(&cause, "%san armed notification (ibv_req_notify_cq)", reported++ ? ", " : "");
    explanation_begin(view, out, "losses", cause.text);
    out_string(out, "call", "ibv_destroy_cq");
    describe_completions(out, &completions);
    out_number(out, "unread_events", events);
    out_bool(out, "armed", armed);
    if (out->json || completions.loss.ids.total)
        object_describe(view, out, "object", 1, object, STACK_LINES);
    explanation_end(out);
    return true;
}

static bool losses_of_srq(const struct view *view, struct out *out, const struct object *object)
{
    const struct srq_record *srq = &object->srq;
    uint32_t count = entries_between(srq->taken, srq->posted, LIMIT_SRQ_WR);
    struct loss receives = {.key = "receives", .what = "unused receive", .whats = "unused receives"};
    struct words cause = {.length = 0};
    struct recv_wqe wqe;
    unsigned reported = 0;

    for (uint32_t i = 0; i < count && srq_receive_read(view, srq, srq->taken + i, &wqe); i++)
        wr_ids_add(&receives.ids, wqe.wr_id);
    wr_ids_finish(&receives.ids);
    if (!receives.ids.total && !srq->limit)
        return false;
    out->remarks[REMARK_RECEIVES] = receives.ids.total;
    out->remarks[REMARK_ARMED] = srq->limit != 0;
    words_add(&cause, "ibv_destroy_srq(%s) discarded ", object_label(view, object).text);
    add_loss(&cause, &receives, &reported);
    if (srq->limit)
        words_add(&cause, "%san armed SRQ limit of %u", reported++ ? ", " : "", srq->limit);
    explanation_begin(view, out, "losses", cause.text);
    out_string(out, "call", "ibv_destroy_srq");
    describe_loss(out, &receives);
    out_number(out, "limit", srq->limit);
    if (out->json)
        object_describe(view, out, "object", 1, object, STACK_LINES);
    explanation_end(out);
    return true;
}

static bool losses_of_wq(const struct view *view, struct out *out, const struct object *object)
{
    struct loss receives = {.key = "receives", .what = "unused receive", .whats = "unused receives"};
    struct unpolled completions = {UNPOLLED, 0};
    struct words cause = {.length = 0};
    unsigned reported = 0;

    collect_receives(view, &object->wq.receive, &receives);
    collect_completions(view, object->wq.cq, object->wq.wqn, &completions);
    wr_ids_finish(&completions.loss.ids);
    if (!receives.ids.total && !completions.loss.ids.total)
        return false;
    out->remarks[REMARK_RECEIVES] = receives.ids.total;
    out->remarks[REMARK_COMPLETIONS] = completions.failed;
    words_add(&cause, "ibv_destroy_wq(%s) discarded ", object_label(view, object).text);
    add_loss(&cause, &completions.loss, &reported);
    add_loss(&cause, &receives, &reported);
    explanation_begin(view, out, "losses", cause.text);
    out_string(out, "call", "ibv_destroy_wq");
    describe_completions(out, &completions);
    describe_loss(out, &receives);
    if (out->json || completions.loss.ids.total)
        object_describe(view, out, "object", 1, object, STACK_LINES);
    explanation_end(out);
    return true;
}

bool explain_losses(const struct view *view, struct out *out, enum object_kind kind, uint32_t number)
{
    struct object object;

    if (!object_read(view, kind, number, &object))
        return false;
    switch (kind) {
    case OBJECT_QP:
        return losses_of_qp(view, out, &object);
    case OBJECT_CQ:
        return losses_of_cq(view, out, &object);
    case OBJECT_SRQ:
        return losses_of_srq(view, out, &object);
    case OBJECT_WQ:
        return losses_of_wq(view, out, &object);
    case OBJECT_CONTEXT:
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
    case OBJECT_CHANNEL:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_CM_ID:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        break;
    }
    return false;
}

/* --- overrun -------------------------------------------------------------------------------------------- */

bool explain_overrun(const struct view *view, struct out *out, uint32_t number)
{
    struct words cause = {.length = 0};
    struct object object;

    if (!object_read(view, OBJECT_CQ, number, &object) || !object.cq.lost)
        return false;
    out->wrong = true;
    words_add(&cause, "%s overrun: the completion of wr_id ", object_label(view, &object).text);
    words_add_one_wr_id(&cause, object.cq.lost_wr_id);
    words_add(&cause, " of QP 0x%06x was lost: all %u entries held unpolled completions", object.cq.lost_qpn,
              object.cq.capacity);
    explanation_begin(view, out, "overrun", cause.text);
    out_number(out, "lost", object.cq.lost);
    out_number(out, "first_lost_wr_id", object.cq.lost_wr_id);
    out_number(out, "first_lost_qpn", object.cq.lost_qpn);
    out_number(out, "ms_ago", view_age(view, object.cq.lost_ns));
    if (object.cq.lost > 1)
        out_line(out, 1, "completions lost since: %u", object.cq.lost - 1);
    if (object.cq.failed)
        out_line(out, 1, "all QPs that use this CQ were moved to ERR (IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL)");
    object_describe(view, out, "object", 1, &object, STACK_LINES);
    explanation_end(out);
    return true;
}

/* --- leaks ---------------------------------------------------------------------------------------------- */

struct leaks {
    struct listed left, contexts;
    uint32_t context; /* NO_OBJECT: all that are open; objects of closed contexts were reported before */
    uint64_t open[65536 / 64];
};

static bool note_context(const struct view *view, const struct object *object, void *argument)
{
    struct leaks *leaks = argument;

    if (object->destroying || object->number >= sizeof(leaks->open) * 8)
        return true;
    leaks->open[object->number / 64] |= 1ull << (object->number % 64);
    if (!object->item.users) /* kept: not the program's */
        listed_add(&leaks->contexts, object);
    return true;
}

static bool note_left(const struct view *view, const struct object *object, void *argument)
{
    struct leaks *leaks = argument;
    uint32_t context = object->context;

    if (object->kind == OBJECT_CM_ID) { /* of no context; it may not even have found one */
        if (leaks->context == NO_OBJECT)
            listed_add(&leaks->left, object);
        return true;
    }
    if (object->kind == OBJECT_ATTACHMENT || (object->kind == OBJECT_PD && object->protection_domain.kept) ||
        context >= sizeof(leaks->open) * 8)
        return true;
    if (leaks->context == NO_OBJECT ? leaks->open[context / 64] >> (context % 64) & 1
                                    : context == leaks->context)
        listed_add(&leaks->left, object);
    return true;
}

bool explain_leaks(const struct view *view, struct out *out, uint32_t context)
{
    struct leaks leaks = {.context = context};
    struct listed *left = &leaks.left, *contexts = &leaks.contexts;
    struct words cause = {.length = 0};
    struct object closed;

    if (context == NO_OBJECT)
        objects_for_each(view, 1u << OBJECT_CONTEXT, note_context, &leaks);
    objects_for_each(view, ALL_KINDS & ~(1u << OBJECT_CONTEXT), note_left, &leaks);
    if (!left->total && !contexts->total)
        return false;
    if (context == NO_OBJECT)
        words_add(&cause, "the process exits with ");
    else if (object_read(view, OBJECT_CONTEXT, context, &closed))
        words_add(&cause, "ibv_close_device(%s) left ", object_label(view, &closed).text);
    if (left->total)
        words_add_counts(&cause, left);
    if (left->total)
        words_add(&cause, " not destroyed");
    if (contexts->total)
        words_add(&cause, "%s%llu device%s not closed", left->total ? ", " : "",
                  (unsigned long long)contexts->total, contexts->total == 1 ? "" : "s");
    explanation_begin(view, out, "leaks", cause.text);
    out_number(out, "objects_total", left->total);
    listed_describe(view, out, "objects", 1, left, STACK_LINES);
    listed_describe(view, out, "contexts", 1, contexts, STACK_LINES);
    explanation_end(out);
    return true;
}
