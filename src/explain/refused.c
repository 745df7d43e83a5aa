/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls that were refused (segment/refused.h): which argument, its value, what is allowed. */
#include <errno.h>

#include "base/refusal.h"
#include "explain/explain.h"
#include "explain/names.h"
#include "explain/refused.h"

#define STACK_LINES 12u
#define PRESENT_MS  100u /* what is told as it happens has no age */

/* What programs try in order to learn whether it is possible, or until it is, and the disconnect of what is not
 * connected, at the end: counted, and told by default only if the program fails. */
static bool may_be_meant(const struct refused_record *record)
{
    return record->error == EOPNOTSUPP || record->form == REFUSAL_UNSAID || record->form == REFUSAL_TRIED ||
           record->form == REFUSAL_UNSUPPORTED || record->form == REFUSAL_UNCONNECTED ||
           record->form == REFUSAL_NO_ADAPTER || (record->form == REFUSAL_FULL && record->value);
}

static void add_object(struct words *words, const struct refused_record *record)
{
    uint32_t number = record->number;

    switch (record->kind) {
    case OBJECT_QP:
        words_add(words, "QP 0x%06x", number);
        break;
    case OBJECT_MR:
        words_add(words, "MR with lkey 0x%08x", number);
        break;
    case OBJECT_WQ:
        words_add(words, "WQ 0x%06x", number);
        break;
    case 0:
        break;
    default:
        words_add(words, "%s %u", object_kind_name((enum object_kind)record->kind, 1), number);
        break;
    }
}

/* "ibv_post_send(QP 0x000012) fails with EINVAL: num_sge is 4, but may be at most 2" */
static void add_cause(struct words *words, const struct refused_record *record, const char *call,
                      const char *object, const char *argument)
{
    struct words reason = {.length = 0};

    words_add(words, "%s(%s) fails with %s", call, object, name_errno(record->error));
    if (words_add_refused(&reason, record, argument))
        words_add(words, ": %s", reason.text);
}

/* Of the other forms the numbers mean something only to this folder. */
static void describe_limits(struct out *out, const struct refused_record *record)
{
    if (record->form != REFUSAL_RANGE && record->form != REFUSAL_TRIED)
        return;
    out_signed(out, "value", record->value);
    out_number(out, "low", record->low);
    out_number(out, "high", record->high);
}

static bool describe(const struct view *view, struct out *out, const struct refused_record *record)
{
    struct words cause = {.length = 0}, reason = {.length = 0}, object = {.length = 0};
    char call[sizeof(record->call)], argument[sizeof(record->argument)];

    printable(call, record->call, sizeof(call) - 1);
    printable(argument, record->argument, sizeof(argument) - 1);
    if (record->kind < OBJECT_KINDS)
        add_object(&object, record);
    add_cause(&cause, record, call, object.text, argument);
    out->wrong = !may_be_meant(record);
    out->remarks[REMARK_REFUSED] = 1;
    explanation_begin(view, out, "refused", cause.text);
    out_string(out, "call", call);
    out_string(out, "errno", name_errno(record->error));
    out_string(out, "label", object.text);
    out_string(out, "argument", argument);
    describe_limits(out, record);
    out_number(out, "times", record->count);
    out_number(out, "ms_ago", view_age(view, record->last_ns));
    words_add(&reason, "called by ");
    words_add_thread(view, &reason, record->called_by);
    if (record->count > 1)
        words_add(&reason, ", %u times from there", record->count);
    if (view_age(view, record->first_ns) > PRESENT_MS) {
        words_add(&reason, record->count > 1 ? ", the first time " : ", ");
        words_add_age(&reason, view_age(view, record->first_ns));
    }
    out_line(out, 1, "%s", reason.text);
    stack_describe(view, out, "stack", 2, record->called_stack, STACK_LINES);
    if (record->form == REFUSAL_SILENT)
        out_line(out, 1,
                 "slots become free once the completion of a later, signaled work request is polled: signal "
                 "at least one "
                 "in every %llu",
                 (unsigned long long)record->value);
    explanation_end(out);
    return true;
}

bool explain_refusal(const struct view *view, struct out *out, uint32_t number)
{
    struct refused_record record;

    return view_record(view, &view->header.refusals, number, &record) && record.state == 1 &&
           describe(view, out, &record);
}

void refusals_describe(const struct view *view, struct out *out, unsigned level, enum object_kind kind,
                       uint32_t number)
{
    out_begin_array(out, "refused");
    for (uint32_t i = 0; i < SEGMENT_REFUSALS; i++) {
        struct words cause = {.length = 0}, object = {.length = 0};
        struct refused_record record;
        char call[sizeof(record.call)], argument[sizeof(record.argument)];

        if (!view_record(view, &view->header.refusals, i, &record) || record.state != 1 ||
            record.kind != (uint32_t)kind || record.number != number)
            continue;
        printable(call, record.call, sizeof(call) - 1);
        printable(argument, record.argument, sizeof(argument) - 1);
        add_object(&object, &record);
        add_cause(&cause, &record, call, object.text, argument);
        out_string(out, NULL, cause.text);
        out_line(out, level, "%s, %u time%s", cause.text, record.count, record.count == 1 ? "" : "s");
    }
    out_end_array(out);
}

unsigned explain_refusals(const struct view *view, struct out *out)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < SEGMENT_REFUSALS; i++)
        count += explain_refusal(view, out, i);
    return count;
}
