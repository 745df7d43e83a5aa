/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Where a work request is, and why its completion has not come. */
#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"

/* Bounds the search: a segment may claim any number of entries. */
#define ENTRIES_SEARCHED_MAX (64u << 20)
#define PLACES_MAX           16u

/* --- places --------------------------------------------------------------------------------------------- */

/* "was sent 3.2 s ago and "; nothing where times were not recorded. */
static void add_stamp(const struct view *view, struct words *words, const char *what, uint32_t stamp)
{
    if (!stamp)
        return;
    words_add(words, "%s ", what);
    words_add_age(words, view_stamp_age(view, stamp));
    words_add(words, " and ");
}

struct search {
    uint64_t wr_id;
    uint32_t qpn;
    uint64_t budget;
    struct out *out; /* NULL: only count, and keep the first line */
    unsigned places; /* where it is now */
    bool history;    /* look where it was */
    struct words first;
};

static bool spend(struct search *search)
{
    if (!search->budget)
        return false;
    search->budget--;
    return true;
}

/* One place was found. words: "wr_id 7, a SEND of QP 0x000012: ...". Numbers for JSON follow. */
static bool place_begin(struct search *search, const char *place, const struct words *words)
{
    if (search->places++ == 0)
        search->first = *words;
    if (!search->out || search->places > PLACES_MAX)
        return false;
    out_begin(search->out, NULL);
    out_string(search->out, "place", place);
    out_string(search->out, "text", words->text);
    out_line(search->out, 1, "%s", words->text);
    return true;
}

/* There may be millions: those above the limit are counted only. */
static bool is_only_counted(struct search *search)
{
    if (search->places < PLACES_MAX)
        return false;
    search->places++;
    return true;
}

static void begin_words(struct words *words, uint64_t wr_id, const char *what, const struct label *owner)
{
    *words = (struct words){.length = 0};
    words_add(words, "wr_id ");
    words_add_one_wr_id(words, wr_id);
    words_add(words, ", %s of %s, ", what, owner->text);
}

static void describe_send_numbers(const struct view *view, struct out *out, const struct object *object,
                                  uint32_t ahead, const struct send_wqe *wqe, const char *phase)
{
    const struct sender *sender = &object->qp.sender;

    out_number(out, "qpn", object_qpn(object));
    out_number(out, "wr_id", wqe->wr_id);
    out_string(out, "opcode", name_send_opcode(wqe->opcode));
    out_bool(out, "signaled", wqe->flags & WQE_SIGNALED);
    out_string(out, "phase", phase);
    out_number(out, "ahead", ahead);
    out_string(out, "waits_for", name_sender_wait(sender->waiting));
    out_number(out, "retries_left", sender->retries_left);
    out_number(out, "rnr_retries_left", sender->rnr_retries_left);
    out_number(out, "rnr_naks_received", sender->rnr_naks);
    out_number(out, "retransmissions", sender->retransmissions);
    out_string(out, "path", name_path(object->qp.path.kind));
    if (wqe->stamp)
        out_number(out, "ms_ago", view_stamp_age(view, wqe->stamp));
    out_end(out);
}

/* Not begun: it waits in the send queue. */
static void describe_queued(const struct view *view, struct search *search, const struct object *object,
                            uint32_t counter, const struct send_wqe *wqe)
{
    const struct qp_record *qp = &object->qp;
    struct label label = object_label(view, object);
    uint32_t ahead = counter - qp->sender.next;
    struct send_wqe next;
    struct words words;

    begin_words(&words, wqe->wr_id, name_send_opcode(wqe->opcode), &label);
    add_stamp(view, &words, "was posted", wqe->stamp);
    words_add(&words, "has not been sent: ");
    if (ahead >= LIMIT_QP_WR) /* changed while we looked */
        ahead = 0;
    if (ahead && send_wqe_read(view, qp, qp->sender.next, &next)) {
        words_add(&words, "queued behind %u other%s, first wr_id ", ahead, ahead == 1 ? "" : "s");
        words_add_one_wr_id(&words, next.wr_id);
        words_add(&words, ": ");
    }
    words_add_wait(view, &words, qp);
    if (place_begin(search, "send_queue", &words))
        describe_send_numbers(view, search->out, object, ahead, wqe, "queued");
}

/* Posted in a watched process: where it is since only the adapter knows. */
static void describe_watched(const struct view *view, struct search *search, const struct object *object,
                             uint32_t counter, const struct send_wqe *wqe)
{
    struct label label = object_label(view, object);
    struct words words;

    begin_words(&words, wqe->wr_id, name_send_opcode(wqe->opcode), &label);
    add_stamp(view, &words, "was posted", wqe->stamp);
    words_add(&words, wqe->flags & WQE_SIGNALED
                          ? "its completion was not polled: it is in progress in the NIC, or completed "
                            "(softhca watch cannot see which)"
                          : "is unsignaled: it has no completion unless it fails, and no completion of a "
                            "later work request of its QP was polled");
    if (place_begin(search, "posted", &words))
        describe_send_numbers(view, search->out, object, counter - object->qp.sender.completed, wqe,
                              "posted");
}

/* Begun, without a verdict. */
static void describe_in_flight(const struct view *view, struct search *search, const struct object *object,
                               uint32_t counter, const struct send_wqe *wqe)
{
    const struct qp_record *qp = &object->qp;
    struct label label = object_label(view, object);
    bool question = awaits_response(wqe);
    bool waits = qp->sender.waiting == SENDER_WAITS_FOR_RNR_TIMER ||
                 qp->sender.waiting == SENDER_WAITS_FOR_RETRY ||
                 (qp->sender.waiting == SENDER_WAITS_FOR_LINK && counter == qp->sender.next) ||
                 qp->sender.waiting == SENDER_WAITS_TO_FAIL || sender_is_being_refused(qp);
    uint32_t before = counter - qp->sender.completed;
    struct words words;

    begin_words(&words, wqe->wr_id, name_send_opcode(wqe->opcode), &label);
    add_stamp(view, &words, "was sent", wqe->stamp);
    if (waits) {
        words_add(&words, "is not acknowledged yet: ");
        words_add_wait(view, &words, qp);
    } else {
        words_add(&words, "waits for the %s of ", question ? "response" : "acknowledgement");
        words_add_awaited(view, &words, qp);
        if (qp->path.kind == PATH_WIRE)
            words_add_heard(view, &words, &qp->sender);
    }
    if (before && before < LIMIT_QP_WR)
        words_add(&words, ", %u earlier work request%s outstanding, too", before,
                  before == 1 ? " is" : "s are");
    if (place_begin(search, "send_queue", &words)) {
        if (qp->sender.heard)
            out_number(search->out, "last_heard_ms_ago", view_stamp_age(view, qp->sender.heard));
        describe_send_numbers(view, search->out, object, before, wqe, "in_flight");
    }
}

static bool find_completion(const struct view *view, struct search *search, uint32_t cq_number, uint32_t qpn,
                            uint32_t retires)
{
    struct object cq;
    struct cqe cqe;
    uint32_t count;

    if (!object_read(view, OBJECT_CQ, cq_number, &cq))
        return false;
    count = entries_between(cq.cq.consumed, cq.cq.produced, LIMIT_CQE);
    for (uint32_t i = 0; i < count && spend(search) && cqe_read(view, &cq.cq, cq.cq.consumed + i, &cqe);
         i++) {
        if (cqe.kind == CQE_SEND && cqe.qpn == qpn && cqe.retires == retires)
            return true;
    }
    return false;
}

/* It has its verdict, and its slot is not free: its completion is unpolled (reported with the CQ), or
 * there is none. */
static void describe_ended(const struct view *view, struct search *search, const struct object *object,
                           uint32_t counter, const struct send_wqe *wqe)
{
    const struct qp_record *qp = &object->qp;
    bool signaled = wqe->flags & WQE_SIGNALED;
    struct label label;
    struct object cq;
    struct words words;

    if (find_completion(view, search, qp->send_cq, object_qpn(object), counter + 1))
        return;
    if (signaled && !(object_read(view, OBJECT_CQ, qp->send_cq, &cq) && cq.cq.lost))
        return; /* polled while we looked */
    if (is_only_counted(search))
        return;
    label = object_label(view, object);
    begin_words(&words, wqe->wr_id, name_send_opcode(wqe->opcode), &label);
    if (signaled)
        words_add(&words, "has completed, but its completion was lost: CQ %u was full", qp->send_cq);
    else
        words_add(
            &words,
            "has completed successfully, unsignaled: no completion is generated, and its send queue slot "
            "is freed when a later signaled one is polled");
    if (place_begin(search, signaled ? "lost" : "unsignaled", &words))
        describe_send_numbers(view, search->out, object, 0, wqe, "completed");
}

static void search_sends(const struct view *view, struct search *search, const struct object *object)
{
    const struct qp_record *qp = &object->qp;
    const struct sender *sender = &qp->sender;
    uint32_t from = sender->retired, count;
    struct send_wqe wqe;

    /* Work requests posted before the last RESET belong to no operation, whatever `retired` says. */
    if (sender->posted - from > qp->send_depth)
        from = sender->posted - min_of(qp->send_depth, LIMIT_QP_WR);
    count = sender->posted - from;
    for (uint32_t i = 0; i < count && spend(search); i++) {
        uint32_t counter = from + i;

        if (!send_wqe_read(view, qp, counter, &wqe))
            return;
        if (wqe.wr_id != search->wr_id || (wqe.flags & WQE_OWN))
            continue;
        if ((int32_t)(counter - sender->completed) < 0)
            describe_ended(view, search, object, counter, &wqe);
        else if (is_only_counted(search))
            continue;
        else if (view->header.watched)
            describe_watched(view, search, object, counter, &wqe);
        else if ((int32_t)(counter - sender->begun) < 0)
            describe_in_flight(view, search, object, counter, &wqe);
        else
            describe_queued(view, search, object, counter, &wqe);
    }
}

static void add_receive_state(struct words *words, const struct qp_record *qp)
{
    switch ((enum ibv_qp_state)qp->state) {
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
        words_add(words, "waits for a message");
        return;
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_ERR:
    case IBV_QPS_UNKNOWN:
        break;
    }
    words_add(words, "waits, but its QP receives nothing in state %s", name_qp_state(qp->state));
}

static void describe_receive(const struct view *view, struct search *search, const char *place,
                             const struct words *words, const struct recv_wqe *wqe, uint32_t before)
{
    if (!place_begin(search, place, words))
        return;
    out_number(search->out, "wr_id", wqe->wr_id);
    out_number(search->out, "ahead", before);
    if (wqe->stamp)
        out_number(search->out, "ms_ago", view_stamp_age(view, wqe->stamp));
    out_end(search->out);
}

static void search_receives(const struct view *view, struct search *search, const struct object *object)
{
    const struct receive_queue *queue = object->kind == OBJECT_WQ ? &object->wq.receive : &object->qp.receive;
    uint32_t count = entries_between(queue->taken, queue->posted, LIMIT_QP_WR);
    struct label label = object_label(view, object);
    struct recv_wqe wqe;
    struct words words;

    for (uint32_t i = 0; i < count && spend(search) && receive_read(view, queue, queue->taken + i, &wqe);
         i++) {
        if (wqe.wr_id != search->wr_id || is_only_counted(search))
            continue;
        begin_words(&words, wqe.wr_id, "a receive", &label);
        add_stamp(view, &words, "was posted", wqe.stamp);
        if (object->kind == OBJECT_QP)
            add_receive_state(&words, &object->qp);
        else
            words_add(&words, "waits for a message");
        if (i)
            words_add(&words, ", behind %u other%s", i, i == 1 ? "" : "s");
        if (object->kind == OBJECT_QP && object->qp.sender.heard) {
            words_add(&words, "; last packet from the peer ");
            words_add_age(&words, view_stamp_age(view, object->qp.sender.heard));
        }
        describe_receive(view, search, "receive_queue", &words, &wqe, i);
    }
    if (object->kind == OBJECT_QP && queue->from_srq && queue->srq_wr_id == search->wr_id) {
        wqe = (struct recv_wqe){.wr_id = queue->srq_wr_id};
        begin_words(&words, wqe.wr_id, "a receive", &label);
        words_add(&words, "was taken from SRQ %u for a message that has not arrived completely",
                  object->qp.srq);
        describe_receive(view, search, "taken_from_srq", &words, &wqe, 0);
    }
}

static void search_srq(const struct view *view, struct search *search, const struct object *object)
{
    const struct srq_record *srq = &object->srq;
    uint32_t count = entries_between(srq->taken, srq->posted, LIMIT_SRQ_WR);
    struct label label = object_label(view, object);
    struct recv_wqe wqe;
    struct words words;

    for (uint32_t i = 0; i < count && spend(search) && srq_receive_read(view, srq, srq->taken + i, &wqe);
         i++) {
        if (wqe.wr_id != search->wr_id || is_only_counted(search))
            continue;
        begin_words(&words, wqe.wr_id, "a receive", &label);
        add_stamp(view, &words, "was posted", wqe.stamp);
        words_add(&words, "waits for a message on one of the %u QPs of its SRQ", (uint32_t)srq->users);
        if (i)
            words_add(&words, ", behind %u other%s", i, i == 1 ? "" : "s");
        describe_receive(view, search, "srq", &words, &wqe, i);
    }
}

/* --- completions ---------------------------------------------------------------------------------------- */

static void describe_completion(const struct view *view, struct search *search, const struct object *cq,
                                const struct cqe *cqe, uint32_t before, bool polled)
{
    struct label label = object_label(view, cq);
    struct words words = {.length = 0};
    struct object qp;

    words_add(&words, "wr_id ");
    words_add_one_wr_id(&words, cqe->wr_id);
    words_add(&words, ", a %s of QP 0x%06x, has completed with %s; its completion ",
              cqe->kind == CQE_SEND ? "send" : "receive", cqe->qpn, name_status(cqe->status));
    if (polled) {
        words_add(&words, "was polled from %s", label.text);
    } else {
        words_add(&words, "is in %s, not polled yet", label.text);
        if (before)
            words_add(&words, ", behind %u other%s", before, before == 1 ? "" : "s");
        if (cq->cq.events.raised != cq->cq.events.reported)
            words_add(&words, "; its completion channel has an unread event");
    }
    if (cqe->status != IBV_WC_SUCCESS && object_read_qpn(view, cqe->qpn, &qp) && qp.rare.fault.ns) {
        words_add(&words, "; the QP ");
        words_add_fault(view, &words, &qp);
    }
    if (!place_begin(search, polled ? "polled" : "completion_queue", &words))
        return;
    out_number(search->out, "cq", cq->number);
    out_number(search->out, "wr_id", cqe->wr_id);
    out_number(search->out, "qpn", cqe->qpn);
    out_string(search->out, "status", name_status(cqe->status));
    out_number(search->out, "ahead", before);
    out_end(search->out);
}

static void search_cq(const struct view *view, struct search *search, const struct object *object)
{
    const struct cq_record *cq = &object->cq;
    uint32_t unpolled = entries_between(cq->consumed, cq->produced, LIMIT_CQE), slots, kept, before = 0;
    struct words words = {.length = 0};
    struct cqe cqe;

    if (view->header.watched)
        return; /* its entries are the adapter's */
    if (!search->history) {
        for (uint32_t i = 0; i < unpolled && spend(search) && cqe_read(view, cq, cq->consumed + i, &cqe);
             i++) {
            if (cqe.kind == CQE_PURGED)
                continue;
            if (cqe.wr_id == search->wr_id && (!search->qpn || cqe.qpn == search->qpn) &&
                !is_only_counted(search))
                describe_completion(view, search, object, &cqe, before, false);
            before++;
        }
        if (cq->lost && cq->lost_wr_id == search->wr_id && (!search->qpn || cq->lost_qpn == search->qpn)) {
            words_add(&words, "wr_id ");
            words_add_one_wr_id(&words, search->wr_id);
            words_add(&words,
                      " of QP 0x%06x has completed, but the completion was lost: CQ %u was full (%u "
                      "unpolled) ",
                      cq->lost_qpn, object->number, cq->capacity);
            words_add_age(&words, view_age(view, cq->lost_ns));
            if (place_begin(search, "lost", &words)) {
                out_number(search->out, "cq", object->number);
                out_end(search->out);
            }
        }
        return;
    }
    /* What was polled stays in the ring until it is written over. The newest one counts. */
    slots = min_of(cq->capacity, LIMIT_CQE) + 1;
    kept = min_of(cq->produced, slots);
    kept -= min_of(kept, unpolled);
    for (uint32_t i = 1;
         i <= kept && !search->places && spend(search) && cqe_read(view, cq, cq->consumed - i, &cqe); i++) {
        if (cqe.wr_id == search->wr_id && cqe.kind != CQE_PURGED && (!search->qpn || cqe.qpn == search->qpn))
            describe_completion(view, search, object, &cqe, 0, true);
    }
}

static bool look_at(const struct view *view, const struct object *object, void *argument)
{
    struct search *search = argument;

    if (object->kind == OBJECT_CQ) {
        search_cq(view, search, object);
    } else if (object->kind == OBJECT_SRQ) {
        search_srq(view, search, object);
    } else if (object->kind == OBJECT_WQ) {
        if (!search->qpn || search->qpn == object->wq.wqn)
            search_receives(view, search, object);
    } else if (!search->qpn || search->qpn == object_qpn(object)) {
        search_sends(view, search, object);
        search_receives(view, search, object);
    }
    return search->budget != 0;
}

static void look_everywhere(const struct view *view, struct search *search)
{
    unsigned now = 1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_CQ | 1u << OBJECT_WQ;

    search->places = 0;
    search->budget = ENTRIES_SEARCHED_MAX;
    objects_for_each(view, search->history ? 1u << OBJECT_CQ : now, look_at, search);
}

unsigned explain_work(const struct view *view, struct out *out, uint64_t wr_id, uint32_t qpn)
{
    struct search search = {.wr_id = wr_id, .qpn = qpn};
    struct words cause = {.length = 0};

    look_everywhere(view, &search);
    /* It may have gone from a queue that was not looked at yet to a CQ that was: it is there now, or was polled. */
    if (!search.places)
        look_everywhere(view, &search);
    if (!search.places) {
        search.history = true;
        look_everywhere(view, &search);
    }
    if (search.places == 1) {
        cause = search.first;
    } else {
        words_add(&cause, "wr_id ");
        words_add_one_wr_id(&cause, wr_id);
        if (search.places)
            words_add(&cause, " matches %u work requests", search.places);
        else
            words_add(&cause,
                      " was not found: no outstanding work request and no unpolled completion has it; never "
                      "posted, or its completion was polled long ago");
    }
    explanation_begin(view, out, "work", cause.text);
    out_number(out, "wr_id", wr_id);
    out_number(out, "places_total", search.places);
    out_begin_array(out, "places");
    if (search.places && (out->json || search.places > 1)) {
        search.out = out;
        look_everywhere(view, &search);
    }
    out_end_array(out);
    if (search.places > PLACES_MAX)
        out_line(out, 1, "and %u more", search.places - PLACES_MAX);
    explanation_end(out);
    return search.places;
}
