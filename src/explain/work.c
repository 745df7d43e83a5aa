/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Where a work request is, and why its completion has not come. */
#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"

/* A segment may claim more entries than anybody wants to wait for. */
#define ENTRIES_LOOKED_AT (64u << 20)
#define PLACES_TOLD       16u

/* --- what a sender waits for
 * ---------------------------------------------------------------------------------------- */

static void add_peer(const struct view *view, struct words *words, const struct qp_record *qp)
{
    words_add(words, "QP 0x%06x", qp->attributes.dest_qpn);
    if (qp->path.kind == PATH_WIRE) {
        words_add(words, " at ");
        words_add_gid(words, qp->attributes.path.destination_gid);
    }
    if (qp->path.peer_pid > 0 && qp->path.kind != PATH_SELF)
        words_add(words, " of process %d", (int)qp->path.peer_pid);
    if (qp->path.kind != PATH_SELF && process_is_stopped(view, qp->path.peer_pid))
        words_add(words, ", which is stopped");
}

/* What the other end says of itself, where we can see it. */
static void add_peer_state(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct view *there = qp->path.kind == PATH_SELF                 ? view
                               : view->find_peer && qp->path.peer_pid > 0 ? view->find_peer(qp->path.peer_pid)
                                                                          : NULL;
    struct object peer;
    uint32_t receives;

    if (!there)
        return;
    if (!object_read_qpn(there, qp->attributes.dest_qpn, &peer)) {
        words_add(words, "; there is no QP 0x%06x there", qp->attributes.dest_qpn);
        return;
    }
    receives = peer.qp.receive.posted - peer.qp.receive.taken;
    words_add(words, "; it is in %s", peer.qp.qpn ? name_qp_state(peer.qp.state) : "destruction");
    if (peer.qp.srq == NO_OBJECT)
        words_add(words, " with %u receive%s", receives, receives == 1 ? "" : "s");
}

static void add_retries(struct words *words, const struct qp_record *qp)
{
    const struct qp_attributes *attributes = &qp->attributes;

    if (!attributes->timeout)
        words_add(words, "; its timeout is 0: it waits for ever");
    else
        words_add(words, "; retry %u of %u",
                  attributes->retry_count - min_of(qp->sender.retries_left, attributes->retry_count),
                  attributes->retry_count);
}

static void add_heard(const struct view *view, struct words *words, const struct sender *sender)
{
    if (!sender->heard)
        return;
    words_add(words, "; last heard of it ");
    words_add_age(words, view_stamp_age(view, sender->heard));
}

/* Who has to acknowledge. On the network silence means little until retries tell; on this host one hears of a
 * death. */
static void add_awaited(const struct view *view, struct words *words, const struct qp_record *qp)
{
    add_peer(view, words, qp);
    if (qp->path.kind == PATH_WIRE &&
        (!qp->attributes.timeout || qp->sender.retries_left < qp->attributes.retry_count))
        add_retries(words, qp);
    add_peer_state(view, words, qp);
}

static void add_rnr(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct qp_attributes *attributes = &qp->attributes;

    add_peer(view, words, qp);
    words_add(words, " has no receive posted (RNR); ");
    if (attributes->rnr_retry == 7)
        words_add(words, "RNR retries without limit, %u so far", qp->sender.rnr_naks);
    else
        words_add(words, "RNR retry %u of %u",
                  attributes->rnr_retry - min_of(qp->sender.rnr_retries_left, attributes->rnr_retry),
                  attributes->rnr_retry);
    add_peer_state(view, words, qp);
}

static void add_silence(const struct view *view, struct words *words, const struct qp_record *qp)
{
    switch ((enum path_kind)qp->path.kind) {
    case PATH_GONE:
        words_add(words, "process %d, to which it was sent, is gone", (int)qp->path.peer_pid);
        break;
    case PATH_NOBODY:
    case PATH_SEARCHED:
        if (qp->path.peer_pid > 0)
            words_add(words, "process %d, to which it was sent, is gone", (int)qp->path.peer_pid);
        else
            words_add(words, "no process of this host has QP 0x%06x", qp->attributes.dest_qpn);
        break;
    case PATH_UNKNOWN:
    case PATH_RING:
    case PATH_CMA:
    case PATH_MAPPED:
    case PATH_SELF:
    case PATH_WIRE:
        words_add(words, "nobody answers: ");
        add_peer(view, words, qp);
        words_add(words, " drops requests, or does not exist");
        add_peer_state(view, words, qp);
        break;
    }
    add_retries(words, qp);
}

static void add_full_link(const struct view *view, struct words *words, const struct qp_record *qp)
{
    switch ((enum path_kind)qp->path.kind) {
    case PATH_SEARCHED:
        words_add(words, "the process that has QP 0x%06x is being looked for", qp->attributes.dest_qpn);
        return;
    case PATH_NOBODY:
    case PATH_GONE:
        words_add(words, "no process of this host has QP 0x%06x", qp->attributes.dest_qpn);
        return;
    case PATH_UNKNOWN:
    case PATH_RING:
    case PATH_CMA:
    case PATH_MAPPED:
    case PATH_SELF:
    case PATH_WIRE:
        break;
    }
    words_add(words, "the way to ");
    add_peer(view, words, qp);
    words_add(words, " is full: it takes no packets");
}

/* Why the WQE that is next does not go on. */
static void add_wait(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct sender *sender = &qp->sender;
    struct send_wqe wqe;

    switch ((enum sender_wait)sender->waiting) {
    case SENDER_RUNS:
        words_add(words, "it is about to be sent");
        return;
    case SENDER_WAITS_FOR_LINK:
        add_full_link(view, words, qp);
        return;
    case SENDER_WAITS_FOR_FENCE:
        words_add(words, "it waits behind a fence for %u RDMA READ%s before it", sender->reads_in_flight,
                  sender->reads_in_flight == 1 ? " or atomic" : "s and atomics");
        return;
    case SENDER_WAITS_FOR_READ_DEPTH:
        words_add(words, "%u RDMA READs and atomics are in flight, and max_rd_atomic is %u",
                  sender->reads_in_flight, qp->attributes.max_rd_atomic);
        return;
    case SENDER_WAITS_FOR_RNR_TIMER:
        add_rnr(view, words, qp);
        return;
    case SENDER_WAITS_FOR_RETRY:
        add_silence(view, words, qp);
        return;
    case SENDER_WAITS_IN_SQD:
        words_add(words, "the QP is in SQD: nothing is begun there");
        return;
    case SENDER_WAITS_FOR_WINDOW:
        words_add(words, "as many packets as the window takes are not acknowledged yet by ");
        add_awaited(view, words, qp);
        return;
    case SENDER_WAITS_TO_FAIL:
        words_add(words, "it has failed on this side (%s), and waits for those before it to end",
                  send_wqe_read(view, qp, sender->next, &wqe)
                      ? name_status((uint32_t)verdict_wc_status((enum verdict)wqe.verdict))
                      : "?");
        return;
    }
    words_add(words, "it waits for something unknown");
}

/* "was sent 3.2 s ago and "; nothing where times were not recorded. */
static void add_stamp(const struct view *view, struct words *words, const char *what, uint32_t stamp)
{
    if (!stamp)
        return;
    words_add(words, "%s ", what);
    words_add_age(words, view_stamp_age(view, stamp));
    words_add(words, " and ");
}

bool words_add_sender(const struct view *view, struct words *words, const struct object *object)
{
    const struct qp_record *qp = &object->qp;
    uint32_t outstanding = qp->sender.posted - qp->sender.completed;
    struct send_wqe oldest;

    if (!outstanding)
        return false;
    words_add(words, "%u send%s not ended", outstanding, outstanding == 1 ? " has" : "s have");
    if (send_wqe_read(view, qp, qp->sender.completed, &oldest) && oldest.stamp) {
        words_add(words, "%s ", outstanding == 1 ? " for" : ", the oldest for");
        words_add_duration(words, view_stamp_age(view, oldest.stamp));
    }
    words_add(words, ": ");
    if (qp->sender.waiting != SENDER_RUNS || qp->sender.next != qp->sender.posted) {
        add_wait(view, words, qp);
    } else {
        words_add(words, "sent, and not acknowledged by ");
        add_awaited(view, words, qp);
    }
    add_heard(view, words, &qp->sender);
    return true;
}

/* --- places
 * ---------------------------------------------------------------------------------------------------------
 */

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
    if (!search->out || search->places > PLACES_TOLD)
        return false;
    out_begin(search->out, NULL);
    out_string(search->out, "place", place);
    out_string(search->out, "text", words->text);
    out_line(search->out, 1, "%s", words->text);
    return true;
}

/* There may be millions: beyond those that are told they are counted, without words. */
static bool is_only_counted(struct search *search)
{
    if (search->places < PLACES_TOLD)
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

static void tell_send_numbers(const struct view *view, struct out *out, const struct object *object,
                              uint32_t counter, const struct send_wqe *wqe, const char *phase)
{
    const struct sender *sender = &object->qp.sender;

    out_number(out, "qpn", object_qpn(object));
    out_number(out, "wr_id", wqe->wr_id);
    out_string(out, "opcode", name_send_opcode(wqe->opcode));
    out_bool(out, "signaled", wqe->flags & WQE_SIGNALED);
    out_string(out, "phase", phase);
    out_number(out, "before_it", counter - sender->completed);
    out_string(out, "waits_for", name_sender_wait(sender->waiting));
    out_number(out, "retries_left", sender->retries_left);
    out_number(out, "rnr_retries_left", sender->rnr_retries_left);
    out_number(out, "rnr_naks", sender->rnr_naks);
    out_number(out, "retransmissions", sender->retransmissions);
    out_string(out, "path", name_path(object->qp.path.kind));
    if (wqe->stamp)
        out_number(out, "ms_ago", view_stamp_age(view, wqe->stamp));
    out_end(out);
}

/* Not begun: it waits in the send queue. */
static void tell_queued(const struct view *view, struct search *search, const struct object *object,
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
    if (ahead && ahead < LIMIT_QP_WR && send_wqe_read(view, qp, qp->sender.next, &next)) {
        words_add(&words, "it is queued behind %u other%s, the first of which is wr_id ", ahead,
                  ahead == 1 ? "" : "s");
        words_add_one_wr_id(&words, next.wr_id);
        words_add(&words, ": ");
    }
    add_wait(view, &words, qp);
    if (place_begin(search, "send_queue", &words))
        tell_send_numbers(view, search->out, object, counter, wqe, "queued");
}

/* Begun, without a verdict. */
static void tell_in_flight(const struct view *view, struct search *search, const struct object *object,
                           uint32_t counter, const struct send_wqe *wqe)
{
    const struct qp_record *qp = &object->qp;
    struct label label = object_label(view, object);
    bool question = wqe->opcode >= IBV_WR_RDMA_READ && wqe->opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD;
    bool waits = qp->sender.waiting == SENDER_WAITS_FOR_RNR_TIMER ||
                 qp->sender.waiting == SENDER_WAITS_FOR_RETRY ||
                 (qp->sender.waiting == SENDER_WAITS_FOR_LINK && counter == qp->sender.next) ||
                 qp->sender.waiting == SENDER_WAITS_TO_FAIL;
    uint32_t before = counter - qp->sender.completed;
    struct words words;

    begin_words(&words, wqe->wr_id, name_send_opcode(wqe->opcode), &label);
    add_stamp(view, &words, "was sent", wqe->stamp);
    if (waits) {
        words_add(&words, "is not acknowledged: ");
        add_wait(view, &words, qp);
    } else {
        words_add(&words, "waits for the %s of ", question ? "response" : "acknowledgement");
        add_awaited(view, &words, qp);
        if (qp->path.kind == PATH_WIRE)
            add_heard(view, &words, &qp->sender);
    }
    if (before && before < LIMIT_QP_WR)
        words_add(&words, ", and %u before it %s not ended either", before, before == 1 ? "has" : "have");
    if (place_begin(search, "send_queue", &words)) {
        if (qp->sender.heard)
            out_number(search->out, "last_heard_ms_ago", view_stamp_age(view, qp->sender.heard));
        tell_send_numbers(view, search->out, object, counter, wqe, "in_flight");
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
        if (cqe.is_send == CQE_SEND && cqe.qpn == qpn && cqe.retires == retires)
            return true;
    }
    return false;
}

/* It has its verdict, and its slot is not free: its completion is unpolled (told where CQs are looked at), or
 * there is none. */
static void tell_ended(const struct view *view, struct search *search, const struct object *object,
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
        words_add(&words, "has ended, and CQ %u had no room for its completion", qp->send_cq);
    else
        words_add(
            &words,
            "has ended well, but was posted unsignaled: it makes no completion, and its place in the send "
            "queue is free when a later one was polled");
    if (place_begin(search, signaled ? "lost" : "unsignaled", &words))
        tell_send_numbers(view, search->out, object, counter, wqe, "ended");
}

static void look_at_sends(const struct view *view, struct search *search, const struct object *object)
{
    const struct qp_record *qp = &object->qp;
    const struct sender *sender = &qp->sender;
    uint32_t from = sender->retired, count;
    struct send_wqe wqe;

    /* What was posted before the last RESET is nobody's, whatever `retired` says. */
    if (sender->posted - from > qp->send_depth)
        from = sender->posted - min_of(qp->send_depth, LIMIT_QP_WR);
    count = sender->posted - from;
    for (uint32_t i = 0; i < count && spend(search); i++) {
        uint32_t counter = from + i;

        if (!send_wqe_read(view, qp, counter, &wqe))
            return;
        if (wqe.wr_id != search->wr_id)
            continue;
        if ((int32_t)(counter - sender->completed) < 0)
            tell_ended(view, search, object, counter, &wqe);
        else if (is_only_counted(search))
            continue;
        else if ((int32_t)(counter - sender->begun) < 0)
            tell_in_flight(view, search, object, counter, &wqe);
        else
            tell_queued(view, search, object, counter, &wqe);
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
    words_add(words, "waits, and its QP takes no message: it is in %s", name_qp_state(qp->state));
}

static void tell_receive(const struct view *view, struct search *search, const char *place,
                         const struct words *words, const struct recv_wqe *wqe, uint32_t before)
{
    if (!place_begin(search, place, words))
        return;
    out_number(search->out, "wr_id", wqe->wr_id);
    out_number(search->out, "before_it", before);
    if (wqe->stamp)
        out_number(search->out, "ms_ago", view_stamp_age(view, wqe->stamp));
    out_end(search->out);
}

static void look_at_receives(const struct view *view, struct search *search, const struct object *object)
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
            words_add(&words, "; the peer was last heard ");
            words_add_age(&words, view_stamp_age(view, object->qp.sender.heard));
        }
        tell_receive(view, search, "receive_queue", &words, &wqe, i);
    }
    if (object->kind == OBJECT_QP && queue->from_srq && queue->srq_wr_id == search->wr_id) {
        wqe = (struct recv_wqe){.wr_id = queue->srq_wr_id};
        begin_words(&words, wqe.wr_id, "a receive", &label);
        words_add(&words, "was taken from SRQ %u for a message whose rest has not come", object->qp.srq);
        tell_receive(view, search, "taken_from_srq", &words, &wqe, 0);
    }
}

static void look_at_srq(const struct view *view, struct search *search, const struct object *object)
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
        words_add(&words, "waits for a message on one of its %u QPs", (uint32_t)srq->users);
        if (i)
            words_add(&words, ", behind %u other%s", i, i == 1 ? "" : "s");
        tell_receive(view, search, "srq", &words, &wqe, i);
    }
}

/* --- completions
 * ---------------------------------------------------------------------------------------------------- */

static void tell_completion(const struct view *view, struct search *search, const struct object *cq,
                            const struct cqe *cqe, uint32_t before, bool polled)
{
    struct label label = object_label(view, cq);
    struct words words = {.length = 0};

    words_add(&words, "wr_id ");
    words_add_one_wr_id(&words, cqe->wr_id);
    words_add(&words, ", a %s of QP 0x%06x, has ended with %s, and its completion ",
              cqe->is_send == CQE_SEND ? "send" : "receive", cqe->qpn, name_status(cqe->status));
    if (polled) {
        words_add(&words, "was polled from %s", label.text);
    } else {
        words_add(&words, "lies in %s unpolled", label.text);
        if (before)
            words_add(&words, ", behind %u other%s", before, before == 1 ? "" : "s");
        if (cq->cq.events.raised != cq->cq.events.reported)
            words_add(&words, "; its channel has an event that nobody has read");
    }
    if (!place_begin(search, polled ? "polled" : "completion_queue", &words))
        return;
    out_number(search->out, "cq", cq->number);
    out_number(search->out, "wr_id", cqe->wr_id);
    out_number(search->out, "qpn", cqe->qpn);
    out_string(search->out, "status", name_status(cqe->status));
    out_number(search->out, "before_it", before);
    out_end(search->out);
}

static void look_at_cq(const struct view *view, struct search *search, const struct object *object)
{
    const struct cq_record *cq = &object->cq;
    uint32_t unpolled = entries_between(cq->consumed, cq->produced, LIMIT_CQE), slots, kept, before = 0;
    struct words words = {.length = 0};
    struct cqe cqe;

    if (!search->history) {
        for (uint32_t i = 0; i < unpolled && spend(search) && cqe_read(view, cq, cq->consumed + i, &cqe);
             i++) {
            if (cqe.is_send == CQE_PURGED)
                continue;
            if (cqe.wr_id == search->wr_id && (!search->qpn || cqe.qpn == search->qpn) &&
                !is_only_counted(search))
                tell_completion(view, search, object, &cqe, before, false);
            before++;
        }
        if (cq->lost && cq->lost_wr_id == search->wr_id && (!search->qpn || cq->lost_qpn == search->qpn)) {
            words_add(&words, "wr_id ");
            words_add_one_wr_id(&words, search->wr_id);
            words_add(&words,
                      " of QP 0x%06x has ended, and its completion was lost: CQ %u was full (%u unpolled) ",
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
        if (cqe.wr_id == search->wr_id && cqe.is_send != CQE_PURGED &&
            (!search->qpn || cqe.qpn == search->qpn))
            tell_completion(view, search, object, &cqe, 0, true);
    }
}

static bool look_at(const struct view *view, const struct object *object, void *argument)
{
    struct search *search = argument;

    if (object->kind == OBJECT_CQ) {
        look_at_cq(view, search, object);
    } else if (object->kind == OBJECT_SRQ) {
        look_at_srq(view, search, object);
    } else if (object->kind == OBJECT_WQ) {
        if (!search->qpn || search->qpn == object->wq.wqn)
            look_at_receives(view, search, object);
    } else if (!search->qpn || search->qpn == object_qpn(object)) {
        look_at_sends(view, search, object);
        look_at_receives(view, search, object);
    }
    return search->budget != 0;
}

static void look_everywhere(const struct view *view, struct search *search)
{
    unsigned now = 1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_CQ | 1u << OBJECT_WQ;

    search->places = 0;
    search->budget = ENTRIES_LOOKED_AT;
    objects_for_each(view, search->history ? 1u << OBJECT_CQ : now, look_at, search);
}

unsigned explain_work(const struct view *view, struct out *out, uint64_t wr_id, uint32_t qpn)
{
    struct search search = {.wr_id = wr_id, .qpn = qpn};
    struct words cause = {.length = 0};

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
            words_add(&cause, " is in %u places", search.places);
        else
            words_add(
                &cause,
                " is unknown: no work request of that number is outstanding, and no completion of it is "
                "unpolled; it was never posted, or its completion was polled long ago");
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
    if (search.places > PLACES_TOLD)
        out_line(out, 1, "and %u more", search.places - PLACES_TOLD);
    explanation_end(out);
    return search.places;
}
