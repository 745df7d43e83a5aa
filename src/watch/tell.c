/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Explanations on stderr: SOFTHCA_WATCH=text|json|off, and by SOFTHCA_EXPLAIN_WHAT=wrong|all of what. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/refusal.h"
#include "base/sys.h"
#include "explain/explain.h"
#include "explain/told_once.h"
#include "segment/refused.h"
#include "watch/state.h"

enum form { FORM_OFF, FORM_TEXT, FORM_JSON };

static struct lock lock = LOCK_INIT; /* a leaf; guards all below */
static enum form form;
static bool all;
bool watch_times;
static struct told_once told;
_Static_assert(TOLD_KINDS <= TOLD_KINDS_MAX, "a count for each kind");

void tell_start(void)
{
    const char *wanted = secure_getenv("SOFTHCA_WATCH"), *what = secure_getenv("SOFTHCA_EXPLAIN_WHAT");

    form = !wanted                       ? FORM_OFF
           : strcmp(wanted, "text") == 0 ? FORM_TEXT
           : strcmp(wanted, "json") == 0 ? FORM_JSON
                                         : FORM_OFF;
    all = form == FORM_JSON || (what && strcmp(what, "all") == 0);
    watch_times = all;
    provenance_explain(all); /* stacks are for `softhca why`, too */
}

void tell_after_fork_in_child(void)
{
    lock_init(&lock);
    refused_after_fork_in_child();
    memset(&told, 0, sizeof(told));
}

/* Programs that go on have destroys refused, leave objects to exit, and deregister what is still posted. */
static bool is_wrong(enum told what)
{
    return what != TOLD_BUSY && what != TOLD_IN_USE && what != TOLD_LEAKS;
}

/* Destroys that block are different each time. */
static bool is_new(enum told what, uint64_t topic, bool *ret_last)
{
    bool new;

    *ret_last = false;
    lock_acquire(&lock);
    new = what == TOLD_BLOCKED || what == TOLD_RESUMED || told_once_topic(&told, topic);
    if (new &&form == FORM_TEXT)
        new = told_once_kind(&told, what, ret_last);
    lock_release(&lock);
    return new;
}

static bool begin(enum told what, struct view *view, struct out *out)
{
    const struct segment_header *header;

    if (form == FORM_OFF || !segment_is_open() || !(all || is_wrong(what)))
        return false;
    header = segment_header();
    if (view_open(view, header, header->total_size, segment_fd_intact(SEGMENT_TABLES), getpid()) != 0)
        return false;
    out_init(out, form == FORM_JSON, TOLD_TEXT_LIMIT);
    return true;
}

static void end(enum told what, struct out *out)
{
    bool last;

    if (out->length && is_new(what, out->topic, &last))
        out_print(out, last ? "SOFTHCA_WATCH" : NULL);
    out_fini(out);
}

void tell(enum told what, enum object_kind kind, uint32_t number)
{
    int saved = errno;
    struct view view;
    struct out out;

    if (!begin(what, &view, &out))
        return;
    switch (what) {
    case TOLD_BUSY:
        explain_busy(&view, &out, kind, number);
        break;
    case TOLD_BLOCKED:
        explain_blocked(&view, &out, kind, number);
        break;
    case TOLD_RESUMED:
        explain_resumed(&view, &out, kind, number);
        break;
    case TOLD_IN_USE:
        explain_in_use(&view, &out, number);
        break;
    case TOLD_LEAKS:
        explain_leaks(&view, &out, number);
        break;
    case TOLD_FAILURE:
        if (!explain_fault(&view, &out, number))
            explain_failure(&view, &out, number);
        break;
    case TOLD_UNSEEN:
        explain_unseen(&view, &out, number);
        break;
    case TOLD_REFUSED:
        explain_refusal(&view, &out, number);
        break;
    case TOLD_KINDS:
        break;
    }
    end(what, &out);
    errno = saved;
}

bool tell_reason(const char *call, int error, enum object_kind kind, uint32_t known_as)
{
    struct refusal refusal;
    uint32_t number;

    if (!refusal_take(-error, &refusal))
        return false;
    refusal.kind = (uint32_t)kind;
    refusal.number = known_as;
    number = refused_record(call, &refusal);
    if (number != NO_OBJECT)
        tell(TOLD_REFUSED, kind, number);
    return true;
}

void tell_refused(const char *call, enum object_kind kind, uint32_t number, int error, const char *detail)
{
    int saved = errno;
    struct view view;
    struct out out;

    if (!begin(TOLD_REFUSED, &view, &out))
        return;
    explain_refused(&view, &out, call, kind, number, error, detail);
    end(TOLD_REFUSED, &out);
    errno = saved;
}

/* Behind the program's atexit() handlers and the destructors of libraries that use verbs. */
__attribute__((destructor)) static void tell_leaks_at_exit(void)
{
    if (form != FORM_OFF && segment_is_open())
        tell(TOLD_LEAKS, OBJECT_CONTEXT, NO_OBJECT);
}
