/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* States that nothing under way will end. Some last for a moment in programs that work, too: a reader that looks once
 * sees a state, and one that looks twice, at the same mark, a hang (engine/core/hangs.c). */
#include "explain/hangs.h"

#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"

#define STACK_LINES 8u

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

static bool found(struct hang *ret, enum hang_form form, bool watched, uint64_t mark)
{
    *ret = (struct hang){form, watched, mark};
    return true;
}

/* --- completion queues ------------------------------------------------------------------------------------ */

uint32_t cq_unread_events(const struct cq_record *cq)
{
    return cq->events.raised - cq->events.reported + cq->owed;
}

/* Completions that a poll would return. Bounded: the counters may be another process's lies. */
static uint32_t unpolled(const struct view *view, const struct cq_record *cq, struct cqe *ret_first)
{
    uint32_t all = entries_between(cq->consumed, cq->produced, LIMIT_CQE), count = 0;
    struct cqe cqe;

    for (uint32_t i = 0; i < all && cqe_read(view, cq, cq->consumed + i, &cqe); i++) {
        if (cqe.kind == CQE_PURGED)
            continue;
        if (count++ == 0)
            *ret_first = cqe;
    }
    return count;
}

struct channel_use {
    uint32_t channel;
    bool event_comes; /* of one of its CQs, or is there */
};

static bool look_for_event(const struct view *view, const struct object *object, void *argument)
{
    struct channel_use *use = argument;

    if (object->cq.channel == use->channel)
        use->event_comes |= object->cq.armed != CQ_UNARMED || cq_unread_events(&object->cq);
    return !use->event_comes;
}

/* A thread is in ibv_get_cq_event(), and none of the channel's CQs will end that. */
static bool sleeps_in_vain(const struct view *view, uint32_t channel, uint32_t *ret_thread)
{
    struct channel_use use = {.channel = channel};
    struct object object;

    if (!object_read(view, OBJECT_CHANNEL, channel, &object) || !object.item.waiting_ns)
        return false;
    *ret_thread = object.item.waiting_by;
    objects_for_each(view, 1u << OBJECT_CQ, look_for_event, &use);
    return !use.event_comes;
}

/* A CQ that never raised an event and is not armed is polled as a rule, and its channel not used. */
static bool is_never_armed(const struct cq_record *cq)
{
    return cq->armed == CQ_UNARMED && !cq->events.reported;
}

static bool find_of_cq(const struct view *view, const struct cq_record *cq, struct hang *ret)
{
    uint64_t mark = mix(mix(mix(cq->produced, cq->consumed), cq->events.raised), cq->armed);
    struct cqe first;
    uint32_t thread;

    if (cq->window_waits_ns)
        return found(ret, HANG_WINDOW, true, mix(cq->window_waits_ns, cq->window_by));
    if (cq->channel == NO_OBJECT || cq_unread_events(cq) || !unpolled(view, cq, &first) ||
        (is_never_armed(cq) && !sleeps_in_vain(view, cq->channel, &thread)))
        return false;
    return found(ret, HANG_NO_EVENT, true, mark);
}

static const char *name_poll_call(uint32_t call)
{
    static const char *const names[] = {[CQ_IN_POLL] = "ibv_poll_cq()",
                                        [CQ_IN_START_POLL] = "ibv_start_poll()",
                                        [CQ_IN_RESIZE] = "ibv_resize_cq()"};

    return call && call < array_size(names) ? names[call] : "a poll of the CQ";
}

static void describe_window(const struct view *view, struct out *out, const struct object *object,
                            struct words *words)
{
    const struct cq_record *cq = &object->cq;

    words_add(words, "%s is locked: ", object_label(view, object).text);
    words_add_thread(view, words, cq->window_by);
    words_add(words, " called ibv_start_poll() and has not called ibv_end_poll(); ");
    if (cq->window_waits_by == cq->window_by) {
        words_add(words, "it then called %s and has been deadlocked with itself for ",
                  name_poll_call(cq->window_waits_in));
    } else {
        words_add_thread(view, words, cq->window_waits_by);
        words_add(words, " has waited in %s for ", name_poll_call(cq->window_waits_in));
    }
    words_add_duration(words, view_age(view, cq->window_waits_ns));
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "poll_not_ended");
    out_number(out, "thread", cq->window_by);
    out_number(out, "waiting_thread", cq->window_waits_by);
    out_line(out, 1,
             "between ibv_start_poll(), if it returned 0, and ibv_end_poll() the CQ is locked by the thread "
             "that polls");
}

static void describe_no_event(const struct view *view, struct out *out, const struct object *object,
                              struct words *words)
{
    const struct cq_record *cq = &object->cq;
    struct cqe first = {0};
    uint32_t count = unpolled(view, cq, &first), thread;
    struct words line = {.length = 0};

    words_add(words, "%s has %u unpolled completion%s, and no completion event will be raised for %s: ",
              object_label(view, object).text, count, count == 1 ? "" : "s", count == 1 ? "it" : "them");
    if (is_never_armed(cq) && sleeps_in_vain(view, cq->channel, &thread)) {
        words_add_thread(view, words, thread);
        words_add(words, " sleeps in ibv_get_cq_event(), and ibv_req_notify_cq() was never called");
    } else if (cq->armed == CQ_UNARMED) {
        words_add(words, "ibv_req_notify_cq() was not called again after the last event");
    } else if (cq->armed == CQ_ARMED_SOLICITED) {
        words_add(words, "the last ibv_req_notify_cq() had solicited_only set: only a completion with an "
                         "error, or of a receive whose sender set IBV_SEND_SOLICITED, raises an event");
    } else {
        words_add(
            words,
            "%s there before ibv_req_notify_cq(), which raises events for later ones only (lost wake-up)",
            count == 1 ? "it was" : "they were");
    }
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "no_event");
    out_number(out, "unpolled", count);
    out_number(out, "wr_id", first.wr_id);
    words_add(&line, "the oldest: wr_id ");
    words_add_one_wr_id(&line, first.wr_id);
    words_add(&line, " of QP 0x%06x, %s", first.qpn, name_status(first.status));
    out_line(out, 1, "%s", line.text);
    out_line(out, 1, "a thread that sleeps on channel %u is not woken by %s; %s", cq->channel,
             count == 1 ? "it" : "them",
             cq->armed == CQ_ARMED_SOLICITED
                 ? "pass 0 for solicited_only, or let the peer send with IBV_SEND_SOLICITED"
                 : "poll until the CQ is empty after each ibv_req_notify_cq(), then sleep");
}

/* --- queue pairs ------------------------------------------------------------------------------------------ */

static uint32_t slots_taken(const struct sender *sender)
{
    return sender->posted - sender->own_posted - sender->retired;
}

/* Full, and none of the requests that fill it will ever generate a completion, which alone frees slots. */
static bool is_full_and_silent(const struct view *view, const struct qp_record *qp)
{
    const struct sender *sender = &qp->sender;
    uint32_t slots = qp->send_depth + min_of(qp->own_depth, OWN_REQUESTS);
    uint32_t count = min_of(slots, sender->posted - sender->retired);
    struct send_wqe wqe;

    if (!qp->send_depth || qp->send_depth > LIMIT_QP_WR || slots_taken(sender) != qp->send_depth ||
        (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (!send_wqe_read(view, qp, sender->posted - 1 - i, &wqe))
            return false;
        if (!(wqe.flags & WQE_OWN) && wqe.flags & WQE_SIGNALED)
            return false;
    }
    return true;
}

static bool has_receives(const struct view *view, const struct qp_record *qp)
{
    struct object srq;

    if (qp->receive.from_srq || qp->srq == NO_OBJECT)
        return qp->receive.from_srq || qp->receive.posted != qp->receive.taken;
    return !object_read(view, OBJECT_SRQ, qp->srq, &srq) || srq.srq.posted != srq.srq.taken;
}

/* Its responder has refused a request and waits for it to come again. Apart from a missing receive there are reasons
 * that the requester repairs by itself, at once. */
static bool is_not_ready(const struct view *view, const struct qp_record *qp)
{
    return qp->type == IBV_QPT_RC && !qp->opened &&
           (qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD) &&
           qp->responder.nak_sent == NAK_OF_PACKET && !has_receives(view, qp);
}

static bool waits_for_stopped(const struct view *view, const struct qp_record *qp)
{
    return qp->sender.posted != qp->sender.completed &&
           (qp->path.kind == PATH_RING || qp->path.kind == PATH_CMA || qp->path.kind == PATH_MAPPED) &&
           process_is_stopped(view, qp->path.peer_pid);
}

static bool find_of_qp(const struct view *view, const struct qp_record *qp, struct hang *ret)
{
    if (is_not_ready(view, qp))
        return found(ret, HANG_NOT_READY, true, mix(mix(qp->responder.msn, qp->receive.posted), qp->state));
    if (is_full_and_silent(view, qp))
        return found(ret, HANG_SEND_QUEUE, true, mix(mix(qp->sender.posted, qp->sender.retired), qp->state));
    if (waits_for_stopped(view, qp))
        return found(ret, HANG_PEER_STOPPED, true, (uint64_t)qp->path.peer_pid);
    return false;
}

static void describe_send_queue(const struct view *view, struct out *out, const struct object *object,
                                struct words *words)
{
    const struct sender *sender = &object->qp.sender;
    uint32_t ended =
        object->qp.send_depth - min_of(sender->posted - sender->completed, object->qp.send_depth);

    words_add(words,
              "%s: its send queue is full, and stays so unless a work request fails: all %u slots hold work "
              "requests "
              "without IBV_SEND_SIGNALED",
              object_label(view, object).text, object->qp.send_depth);
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "send_queue_full");
    out_number(out, "slots", object->qp.send_depth);
    out_number(out, "completed", ended);
    out_line(
        out, 1,
        "%u of the %u have completed; their slots become free once the completion of a later, signaled work "
        "request is polled, but none of them is signaled",
        ended, object->qp.send_depth);
    out_line(out, 1, "ibv_post_send() returns ENOMEM from now on; signal at least one in every %u requests",
             object->qp.send_depth);
}

/* Has the QP at the other end given up? False: it may repeat its request, as far as is known here. */
static bool requester_failed(const struct view *view, const struct qp_record *qp)
{
    const struct view *there = peer_view(view, qp);
    struct object peer;

    return there && object_read_qpn(there, qp->attributes.dest_qpn, &peer) && peer.qp.state == IBV_QPS_ERR;
}

static void describe_not_ready(const struct view *view, struct out *out, const struct object *object,
                               struct words *words)
{
    const struct qp_record *qp = &object->qp;

    words_add(words, "%s has no receive posted: ", object_label(view, object).text);
    words_add(words, "%s of QP 0x%06x",
              qp->responder.wanting_write ? "an RDMA WRITE with immediate" : "a SEND",
              qp->attributes.dest_qpn);
    if (qp->path.kind == PATH_WIRE) {
        words_add(words, " at ");
        words_add_gid(words, qp->attributes.path.destination_gid);
    }
    if (qp->path.peer_pid > 0 && qp->path.kind != PATH_SELF)
        words_add(words, " of process %d", (int)qp->path.peer_pid);
    words_add(words, requester_failed(view, qp)
                         ? " was refused (RNR NAK), and that QP has gone to ERR: before a message comes, the "
                           "program has to call "
                         : " was refused (RNR NAK), and will be refused until ");
    if (qp->srq == NO_OBJECT)
        words_add(words, "ibv_post_recv()");
    else
        words_add(words, "ibv_post_srq_recv() to SRQ %u", qp->srq);
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "no_receive");
    out_string(out, "opcode",
               name_send_opcode(qp->responder.wanting_write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND));
    out_number(out, "dest_qpn", qp->attributes.dest_qpn);
    if (qp->srq == NO_OBJECT && !qp->receive.posted)
        out_line(out, 1, "none was ever posted to it");
    else
        out_line(out, 1, "messages have taken all that were posted");
}

static void describe_stopped(const struct view *view, struct out *out, const struct object *object,
                             struct words *words)
{
    words_add(words, "%s: ", object_label(view, object).text);
    words_add_sender(view, words, object);
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "peer_stopped");
    out_signed(out, "peer_pid", object->qp.path.peer_pid);
    out_line(out, 1,
             "it takes nothing until it is continued: by its debugger, fg in its terminal, or kill -CONT %d",
             (int)object->qp.path.peer_pid);
}

/* --- ids -------------------------------------------------------------------------------------------------- */

static bool next_at_port(struct view_walk *walk, uint16_t port, struct id_record *ret)
{
    uint32_t number;

    while (view_next(walk, &number, ret)) {
        if (ret->state != OBJECT_FREE && ret->source_port == port)
            return true;
    }
    return false;
}

/* Requests for a listener that the program has not read; those of ids that it has not got yet. */
static uint32_t unread_requests(const struct view *view, uint16_t port, struct id_record *ret_first)
{
    struct view_walk walk = view_walk(view, &view->header.ids);
    struct id_record record;
    uint32_t count = 0;

    while (next_at_port(&walk, port, &record)) {
        if (!record.given && record.phase == ID_CONNECTING && count++ == 0)
            *ret_first = record;
    }
    return count;
}

static bool find_of_id(const struct view *view, const struct id_record *id, struct hang *ret)
{
    uint64_t mark = mix(mix(id->events.raised, id->events.reported), id->phase);
    struct id_record first;

    if (id->phase == ID_LISTENING && id->events.raised != id->events.reported &&
        unread_requests(view, id->source_port, &first))
        return found(ret, HANG_REQUEST, true, mark);
    if (id->phase != ID_CONNECTING)
        return false;
    return found(ret, id->passive ? HANG_UNANSWERED : HANG_CONNECTING, false, mark);
}

static void add_place(struct words *words, const uint8_t address[16], uint16_t port)
{
    words_add_gid(words, address);
    words_add(words, " port %u", port);
}

static void describe_request(const struct view *view, struct out *out, const struct object *object,
                             struct words *words)
{
    struct id_record first;
    uint32_t count;

    memset(&first, 0, sizeof(first));
    count = unread_requests(view, object->id.source_port, &first);
    words_add(words, "%s listens and has %u unread connection request%s (rdma_get_cm_event): from ",
              object_label(view, object).text, count, count == 1 ? "" : "s");
    add_place(words, first.destination, first.destination_port);
    if (first.provenance.created_ns) {
        words_add(words, ", ");
        words_add_age(words, view_age(view, first.provenance.created_ns));
    }
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "unread_request");
    out_number(out, "requests", count);
    out_line(out, 1,
             "the other side waits in its connect until the request is read, and accepted or rejected");
}

static void describe_unanswered(const struct view *view, struct out *out, const struct object *object,
                                struct words *words)
{
    words_add(words, "%s: its connection request was read", object_label(view, object).text);
    words_add(words, ", and is neither accepted nor rejected (rdma_accept, rdma_reject)");
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "unanswered_request");
}

/* The id of another process that a connection request of this one has made. */
static const struct view *find_answerer(const struct view *view, const struct id_record *id,
                                        struct id_record *ret)
{
    const struct view *there;

    for (unsigned i = 0; view->find_process && (there = view->find_process(i)) != NULL; i++) {
        struct view_walk walk = view_walk(there, &there->header.ids);

        while (next_at_port(&walk, id->destination_port, ret)) {
            if (ret->phase == ID_CONNECTING && ret->destination_port == id->source_port &&
                memcmp(ret->destination, id->source, sizeof(ret->destination)) == 0)
                return there;
        }
    }
    return NULL;
}

/* A process of this host that listens where the request goes, and has others that are unread. Only if both ends have
 * one address: else the request may go to another host. */
static const struct view *find_listener(const struct view *view, const struct id_record *id,
                                        uint32_t *ret_unread)
{
    bool here = memcmp(id->destination, id->source, sizeof(id->source)) == 0;
    const struct view *there;
    struct id_record record;

    for (unsigned i = 0; here && view->find_process && (there = view->find_process(i)) != NULL; i++) {
        struct view_walk walk = view_walk(there, &there->header.ids);

        while (next_at_port(&walk, id->destination_port, &record)) {
            if (record.phase != ID_LISTENING)
                continue;
            *ret_unread = unread_requests(there, id->destination_port, &record);
            if (*ret_unread)
                return there;
            break;
        }
    }
    return NULL;
}

static void describe_connecting(const struct view *view, struct out *out, const struct object *object,
                                struct words *words)
{
    struct id_record answerer;
    const struct view *there = find_answerer(view, &object->id, &answerer), *listener = NULL, *at;
    uint32_t unread = 0;

    if (!there)
        listener = find_listener(view, &object->id, &unread);
    at = there ? there : listener;
    words_add(words, "%s waits for the answer to its connection request: ", object_label(view, object).text);
    if (!at)
        words_add(words, "none has come from ");
    else if (at->header.pid == view->header.pid)
        words_add(words, "this process, which listens at ");
    else
        words_add(words, "process %d, which listens at ", (int)view_pid(at));
    add_place(words, object->id.destination, object->id.destination_port);
    if (listener)
        words_add(words,
                  ", has not taken it: it has %u unread connection request%s, and its backlog (rdma_listen) "
                  "may be full",
                  unread, unread == 1 ? "" : "s");
    if (there)
        words_add(words, ", has %s",
                  answerer.given ? "read it and called neither rdma_accept() nor rdma_reject()"
                                 : "not read it (rdma_get_cm_event)");
    explanation_begin(view, out, "hang", words->text);
    out_string(out, "hang", "connecting");
    if (listener) {
        out_signed(out, "listener_pid", view_pid(listener));
        out_line(out, 1, "it has to read requests (rdma_get_cm_event), and accept or reject them");
    } else if (!there) {
        out_line(out, 1,
                 "check that a process listens there and is not stopped, and, on another host, that "
                 "the network lets UDP port 4791 through");
    } else {
        out_signed(out, "answerer_pid", view_pid(there));
        out_bool(out, "request_read", answerer.given != 0);
    }
}

/* --- events ----------------------------------------------------------------------------------------------- */

/* Events that are not read, and the call that reads them. */
static uint32_t unread_events(const struct object *object, const char **ret_kind, const char **ret_call)
{
    const struct event_record *events = object_async_events(object);

    if (object->kind == OBJECT_CQ && object->cq.channel != NO_OBJECT && cq_unread_events(&object->cq)) {
        *ret_kind = "completion event";
        *ret_call = "ibv_get_cq_event";
        return cq_unread_events(&object->cq);
    }
    *ret_kind = object->kind == OBJECT_CM_ID ? "event" : "asynchronous event";
    *ret_call = object->kind == OBJECT_CM_ID ? "rdma_get_cm_event" : "ibv_get_async_event";
    return events ? events->raised - events->reported : 0;
}

static void describe_unread(const struct view *view, struct out *out, const struct object *object,
                            struct words *words)
{
    const char *kind, *call;
    uint32_t count = unread_events(object, &kind, &call);

    words_add(words, "%s has an unread %s", object_label(view, object).text, kind);
    if (count > 1)
        words_add(words, " and %u more", count - 1);
    words_add(words, " (%s)", call);
    explanation_begin(view, out, "unread", words->text);
    out_number(out, "unread", count);
}

/* --- all of them ------------------------------------------------------------------------------------------ */

bool hang_find(const struct view *view, const struct object *object, struct hang *ret)
{
    const char *kind, *call;
    bool any = false;
    uint32_t unread;

    *ret = (struct hang){HANG_NONE, false, 0};
    if (object->destroying)
        return false;
    if (object->kind == OBJECT_CQ)
        any = find_of_cq(view, &object->cq, ret);
    else if (object->kind == OBJECT_QP)
        any = find_of_qp(view, &object->qp, ret);
    else if (object->kind == OBJECT_CM_ID)
        any = find_of_id(view, &object->id, ret);
    if (any)
        return true;
    unread = unread_events(object, &kind, &call);
    return unread && found(ret, HANG_EVENT_UNREAD, false, unread);
}

void explain_found_hang(const struct view *view, struct out *out, const struct object *object,
                        enum hang_form form)
{
    struct words words = {.length = 0};

    switch (form) {
    case HANG_NONE:
        return;
    case HANG_WINDOW:
        describe_window(view, out, object, &words);
        break;
    case HANG_NO_EVENT:
        describe_no_event(view, out, object, &words);
        break;
    case HANG_SEND_QUEUE:
        describe_send_queue(view, out, object, &words);
        break;
    case HANG_NOT_READY:
        describe_not_ready(view, out, object, &words);
        break;
    case HANG_PEER_STOPPED:
        describe_stopped(view, out, object, &words);
        break;
    case HANG_REQUEST:
        describe_request(view, out, object, &words);
        break;
    case HANG_UNANSWERED:
        describe_unanswered(view, out, object, &words);
        break;
    case HANG_CONNECTING:
        describe_connecting(view, out, object, &words);
        break;
    case HANG_EVENT_UNREAD:
        describe_unread(view, out, object, &words);
        break;
    }
    out->wrong = true;
    object_describe(view, out, "object", 1, object, STACK_LINES);
    explanation_end(out);
}

bool explain_hang(const struct view *view, struct out *out, enum object_kind kind, uint32_t number)
{
    struct object object;
    struct hang hang;

    if (!object_read(view, kind, number, &object) || !hang_find(view, &object, &hang))
        return false;
    explain_found_hang(view, out, &object, hang.form);
    return true;
}
