/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a destroy waits for: events that were read and not acknowledged (verbs.md §1.3). */
#include "explain/explain.h"
#include "explain/names.h"
#include "rules/event_name.h"

#define STACK_LINES 16u

/* The account that the destroy waits for; NULL: none (any more). */
static const struct event_record *waiting_account(const struct object *object, bool *ret_completion)
{
    const struct event_record *events = object_async_events(object);

    *ret_completion = object->kind == OBJECT_CQ && events_block_destroy(&object->cq.events);
    if (*ret_completion)
        return &object->cq.events;
    return events && events_block_destroy(events) ? events : NULL;
}

/* An object with more acknowledgements than events: they may have been meant for another object. */
struct overpaid {
    const struct object *waiting;
    bool completion;
    struct object found;
    uint32_t surplus;
};

static bool note_overpaid(const struct view *view, const struct object *object, void *argument)
{
    struct overpaid *overpaid = argument;
    const struct event_record *events;

    if (object->context != overpaid->waiting->context ||
        (object->kind == overpaid->waiting->kind && object->number == overpaid->waiting->number))
        return true;
    events = overpaid->completion ? &object->cq.events : object_async_events(object);
    if ((int32_t)(events->acked - events->reported) <= 0)
        return true;
    overpaid->found = *object;
    overpaid->surplus = events->acked - events->reported;
    return false;
}

static void find_overpaid(const struct view *view, struct overpaid *overpaid)
{
    unsigned kinds = overpaid->completion
                         ? 1u << OBJECT_CQ
                         : 1u << OBJECT_CQ | 1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_WQ;

    objects_for_each(view, kinds, note_overpaid, overpaid);
}

static const char *type_of(const struct object *object, const struct event_record *events)
{
    return object->kind == OBJECT_CM_ID ? name_cm_event(events->type) : event_name(events->type);
}

static void add_events(struct words *words, const struct object *object, const struct event_record *events,
                       bool completion)
{
    uint32_t count = events->reported - events->acked;

    if (completion)
        words_add(words, "%u completion event%s", count, count == 1 ? "" : "s");
    else if (count == 1)
        words_add(words, "%s", type_of(object, events));
    else
        words_add(words, "%u events (the first is %s)", count, type_of(object, events));
}

/* The line that a program's author has to see. */
static void add_cause(const struct view *view, struct words *words, const struct object *object,
                      const struct event_record *events, bool completion, const struct overpaid *overpaid)
{
    uint32_t count = events->reported - events->acked;
    const char *of = completion                     ? "ibv_ack_cq_events"
                     : object->kind == OBJECT_CM_ID ? "rdma_ack_cm_event"
                                                    : "ibv_ack_async_event";

    words_add(words, "%s(%s) is blocked: ", object_waiting_verb(object), object_label(view, object).text);
    add_events(words, object, events, completion);
    words_add(words, " %s read and not acknowledged (%s)", count == 1 ? "was" : "were", of);
    if (overpaid->surplus)
        words_add(words,
                  "; %s was acknowledged %u time%s too often: probably the events of this one were "
                  "acknowledged there",
                  object_label(view, &overpaid->found).text, overpaid->surplus,
                  overpaid->surplus == 1 ? "" : "s");
    else if (events->read_by && events->read_by == object->provenance.destroying_by)
        words_add(
            words,
            "; the thread that read %s is the one that is blocked, so only another thread can acknowledge "
            "%s",
            count == 1 ? "it" : "them", count == 1 ? "it" : "them");
}

bool explain_blocked(const struct view *view, struct out *out, enum object_kind kind, uint32_t number)
{
    struct words cause = {.length = 0}, words = {.length = 0};
    const struct event_record *events;
    struct object object;
    struct overpaid overpaid = {.waiting = &object};

    if (!object_read(view, kind, number, &object))
        return false;
    events = waiting_account(&object, &overpaid.completion);
    if (!events)
        return view->header.watched && explain_overpaid(view, out, &object);
    if (kind != OBJECT_CM_ID) /* a CM event knows whose it is */
        find_overpaid(view, &overpaid);
    add_cause(view, &cause, &object, events, overpaid.completion, &overpaid);
    out->wrong = true;
    explanation_begin(view, out, "blocked", cause.text);
    out_string(out, "call", object_waiting_verb(&object));
    out_begin(out, "event");
    out_string(out, "type", overpaid.completion ? "completion" : type_of(&object, events));
    out_number(out, "unacked", events->reported - events->acked);
    out_number(out, "read", events->reported);
    out_number(out, "acknowledged", events->acked);
    if (events->read_ns) {
        out_number(out, "ms_ago", view_age(view, events->read_ns));
        out_number(out, "thread", events->read_by);
        words_add(&words, "read ");
        words_add_age(&words, view_age(view, events->read_ns));
        words_add(&words, " by ");
        words_add_thread(view, &words, events->read_by);
        if (events->reported - events->acked > 1)
            words_add(&words, " (the first of them)");
        out_line(out, 1, "%s", words.text);
        stack_describe(view, out, "stack", 2, events->read_stack, STACK_LINES);
    }
    out_end(out);
    if (object.provenance.destroying_ns) {
        words = (struct words){.length = 0};
        words_add(&words, "called by ");
        words_add_thread(view, &words, object.provenance.destroying_by);
        words_add(&words, ", blocked for ");
        words_add_duration(&words, view_age(view, object.provenance.destroying_ns));
        out_line(out, 1, "%s", words.text);
        out_begin(out, "destroy");
        out_number(out, "thread", object.provenance.destroying_by);
        out_number(out, "ms_ago", view_age(view, object.provenance.destroying_ns));
        stack_describe(view, out, "stack", 2, object.provenance.destroying_stack, STACK_LINES);
        out_end(out);
    }
    if (overpaid.surplus) {
        out_line(out, 1, "object with too many acknowledgements:");
        object_describe(view, out, "acknowledged_instead", 2, &overpaid.found, STACK_LINES);
    }
    object_describe(view, out, "object", 1, &object, STACK_LINES);
    explanation_end(out);
    return true;
}

bool explain_resumed(const struct view *view, struct out *out, enum object_kind kind, uint32_t number)
{
    struct words cause = {.length = 0};
    const struct event_record *events;
    struct object object;

    if (!object_read(view, kind, number, &object) || !object.provenance.destroying_ns)
        return false;
    events =
        kind == OBJECT_CQ && object.cq.events.reported ? &object.cq.events : object_async_events(&object);
    if (!events)
        return false;
    words_add(&cause, "%s(%s) is no longer blocked after ", object_waiting_verb(&object),
              object_label(view, &object).text);
    words_add_duration(&cause, view_age(view, object.provenance.destroying_ns));
    words_add(&cause, ": the events were acknowledged");
    if (events->acked_by) {
        words_add(&cause, " by ");
        words_add_thread(view, &cause, events->acked_by);
    }
    out->wrong = true;
    explanation_begin(view, out, "resumed", cause.text);
    out_string(out, "call", object_waiting_verb(&object));
    out_number(out, "waited_ms", view_age(view, object.provenance.destroying_ns));
    out_number(out, "acknowledged_by", events->acked_by);
    out_string(out, "label", object_label(view, &object).text);
    explanation_end(out);
    return true;
}
