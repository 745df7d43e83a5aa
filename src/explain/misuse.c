/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls with what the program has destroyed (segment/misuse.h). */
#include <errno.h>
#include <string.h>

#include "explain/explain.h"
#include "segment/misuse.h"

#define STACK_LINES 12u

static const char *error_name(uint32_t error)
{
    switch (error) {
    case EINVAL:
        return " fails with EINVAL";
    case EBADF:
        return " fails with EBADF";
    default:
        return "";
    }
}

static void add_when(const struct view *view, struct words *words, uint64_t ns, uint32_t by)
{
    words_add_age(words, view_age(view, ns));
    words_add(words, " by ");
    words_add_thread(view, words, by);
}

static void describe_call(const struct view *view, struct out *out, const char *key, const char *what,
                          uint64_t ns, uint32_t by, uint32_t stack)
{
    struct words words = {.length = 0};

    words_add(&words, "%s ", what);
    add_when(view, &words, ns, by);
    out_line(out, 1, "%s", words.text);
    out_begin(out, key);
    out_number(out, "ms_ago", view_age(view, ns));
    out_number(out, "thread", by);
    stack_describe(view, out, "stack", 2, stack, STACK_LINES);
    out_end(out);
}

/* What the call should have been, where the words leave that open. */
static const char *advice(enum misuse_form form, const char *object)
{
    if (form == MISUSE_CHANNEL)
        return "destroy all cm_ids of an event channel before the channel; with rdma-core this use of freed "
               "memory may "
               "crash the program";
    if (form == MISUSE_TWICE && strncmp(object, "QP ", 3) == 0)
        return "destroy each QP only once: with rdma_destroy_qp() or rdma_destroy_ep() if rdma_create_qp() "
               "made it, otherwise with ibv_destroy_qp()";
    return "with rdma-core this use of freed memory may crash the program";
}

bool explain_misuse(const struct view *view, struct out *out, uint32_t number)
{
    struct misuse_record record;
    struct words cause = {.length = 0};
    char call[sizeof(record.call)], object[sizeof(record.object)];
    enum misuse_form form;

    if (!view_record(view, &view->header.misuses, number, &record) || record.state != 1)
        return false;
    form = (enum misuse_form)record.form;
    printable(call, record.call, sizeof(call) - 1);
    printable(object, record.object, sizeof(object) - 1);
    words_add(&cause, "%s(%s)%s: ", call, object, error_name(record.error));
    switch (form) {
    case MISUSE_CHANNEL:
        words_add(&cause, "its event channel was destroyed before it, ");
        break;
    case MISUSE_TWICE:
        words_add(&cause, "it was destroyed already, ");
        break;
    case MISUSE_AFTER:
    case MISUSE_NONE:
        words_add(&cause, "it was destroyed ");
        break;
    }
    add_when(view, &cause, record.destroyed_ns, record.destroyed_by);
    out->wrong = true;
    explanation_begin(view, out, "misuse", cause.text);
    out_string(out, "call", call);
    out_string(out, "label", object);
    out_number(out, "times", record.count);
    describe_call(view, out, "destroyed", form == MISUSE_CHANNEL ? "channel destroyed" : "destroyed",
                  record.destroyed_ns, record.destroyed_by, record.destroyed_stack);
    describe_call(view, out, "called", form == MISUSE_TWICE ? "destroyed again" : "used", record.called_ns,
                  record.called_by, record.called_stack);
    if (record.count > 1)
        out_line(out, 1, "from there %u times so far", record.count);
    out_line(out, 1, "%s", advice(form, object));
    explanation_end(out);
    return true;
}

unsigned explain_misuses(const struct view *view, struct out *out)
{
    unsigned count = 0;

    while (count < SEGMENT_MISUSES && explain_misuse(view, out, count))
        count++;
    return count;
}
