/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/explainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/sys.h"
#include "explain/explain.h"
#include "segment/segment.h"

#define TEXT_LIMIT     (256u << 10)
#define TOLD_OF_A_KIND 32u
#define REMEMBERED     64u

enum form { FORM_OFF, FORM_TEXT, FORM_JSON };

static struct lock lock = LOCK_INIT; /* a leaf; guards all below */
static enum form form;
static void (*handler)(const char *text, void *argument);
static void *handler_argument;
/* Topics (hashes of the first line) of texts that were given. Programs retry a destroy that is refused: the same text
 * is given once. */
static uint64_t told[REMEMBERED];
static unsigned told_next;
#define KIND_LOSSES (EXPLAIN_OVERRUN + 1)
static unsigned told_of_kind[KIND_LOSSES + 1]; /* texts given of each enum explanation, and of losses */

/* --- settings ------------------------------------------------------------------------------------------- */

static enum form wanted_form(void)
{
    const char *wanted = secure_getenv("SOFTHCA_EXPLAIN");

    if (!wanted)
        return log_enabled(LOG_LEVEL_WARN) ? FORM_TEXT : FORM_OFF;
    if (strcmp(wanted, "text") == 0)
        return FORM_TEXT;
    if (strcmp(wanted, "json") == 0)
        return FORM_JSON;
    if (strcmp(wanted, "off") != 0)
        log_warn("SOFTHCA_EXPLAIN=%s: invalid (valid: off, text, json); using off", wanted);
    return FORM_OFF;
}

void explainer_start(void)
{
    lock_acquire(&lock);
    if (!handler)
        form = wanted_form();
    lock_release(&lock);
    if (form != FORM_OFF)
        provenance_explain();
}

void explainer_after_fork_in_child(void)
{
    lock_init(&lock);
    told_next = 0;
    memset(told, 0, sizeof(told));
    memset(told_of_kind, 0, sizeof(told_of_kind));
}

void explainer_set_handler(void (*wanted)(const char *text, void *argument), void *argument, bool json)
{
    lock_acquire(&lock);
    handler = wanted;
    handler_argument = argument;
    form = json ? FORM_JSON : FORM_TEXT;
    lock_release(&lock);
    if (segment_is_open())
        provenance_explain();
}

/* --- output --------------------------------------------------------------------------------------------- */

static bool open_view(struct view *ret_view)
{
    const struct segment_header *header = segment_header();

    return view_open(ret_view, header, header->total_size, segment_fd_intact(SEGMENT_TABLES), getpid()) == 0;
}

/* False: the same text was given before, or TOLD_OF_A_KIND of its kind. *ret_last: no text of this kind follows. Lock
 * held. */
static bool is_new(unsigned kind, uint64_t topic, bool *ret_last)
{
    *ret_last = false;
    if (kind == EXPLAIN_BUSY || kind == EXPLAIN_IN_USE || kind == EXPLAIN_OVERRUN) {
        for (unsigned i = 0; i < REMEMBERED; i++) {
            if (told[i] == topic)
                return false;
        }
        told[told_next++ % REMEMBERED] = topic;
    }
    if (form == FORM_JSON)
        return true;
    told_of_kind[kind]++;
    *ret_last = told_of_kind[kind] == TOLD_OF_A_KIND;
    return told_of_kind[kind] <= TOLD_OF_A_KIND;
}

static void write_all(const char *text, size_t length)
{
    while (length) {
        ssize_t written = sys_write(STDERR_FILENO, text, length);

        if (written == -EINTR)
            continue;
        if (written <= 0)
            return; /* stderr is closed, or full */
        text += written;
        length -= (size_t)written;
    }
}

static void print(const struct out *out, bool last)
{
    char *line = NULL;
    int length;

    if (out->json) {
        write_all(out->text, out->length);
        return;
    }
    length = asprintf(
        &line, "softhca[%d]: %s%s", (int)getpid(), out->text,
        last ? "    (further explanations of this kind are suppressed; SOFTHCA_EXPLAIN=json prints all)\n"
             : "");
    if (length > 0)
        write_all(line, (size_t)length);
    free(line);
}

static void tell(unsigned kind, const struct out *out)
{
    void (*to)(const char *text, void *argument);
    void *argument;
    bool wanted, last;

    if (!out->length)
        return;
    lock_acquire(&lock);
    to = handler;
    argument = handler_argument;
    wanted = is_new(kind, out->topic, &last);
    lock_release(&lock);
    if (!wanted)
        return;
    if (to)
        to(out->text, argument);
    else
        print(out, last);
}

static void begin(struct out *out)
{
    out_init(out, form == FORM_JSON, TEXT_LIMIT);
}

/* --- ports ---------------------------------------------------------------------------------------------- */

void explainer_explain(enum explanation what, enum object_kind kind, uint32_t number)
{
    struct view view;
    struct out out;
    int saved = errno;

    if (!open_view(&view))
        return;
    begin(&out);
    switch (what) {
    case EXPLAIN_BUSY:
        explain_busy(&view, &out, kind, number);
        break;
    case EXPLAIN_BLOCKED:
        explain_blocked(&view, &out, kind, number);
        break;
    case EXPLAIN_RESUMED:
        explain_resumed(&view, &out, kind, number);
        break;
    case EXPLAIN_IN_USE:
        explain_in_use(&view, &out, number);
        break;
    case EXPLAIN_LEAKS:
        explain_leaks(&view, &out, number);
        break;
    case EXPLAIN_OVERRUN:
        explain_overrun(&view, &out, number);
        break;
    }
    tell(what, &out);
    out_fini(&out);
    errno = saved;
}

struct losses {
    struct out out;
};

struct losses *explainer_note_losses(enum object_kind kind, uint32_t number)
{
    struct losses *losses = NULL;
    struct view view;
    struct out out;
    int saved = errno;

    if (!open_view(&view))
        return NULL;
    begin(&out);
    if (explain_losses(&view, &out, kind, number))
        losses = malloc(sizeof(*losses));
    if (losses)
        losses->out = out;
    else
        out_fini(&out);
    errno = saved;
    return losses;
}

void explainer_report_losses(struct losses *losses)
{
    int saved = errno;

    tell(KIND_LOSSES, &losses->out);
    out_fini(&losses->out);
    free(losses);
    errno = saved;
}

static bool report_overrun(const struct view *view, const struct object *object, void *argument)
{
    if (object->cq.failed)
        explainer_explain(EXPLAIN_OVERRUN, OBJECT_CQ, object->number);
    return true;
}

void explainer_tell_overruns(void)
{
    struct view view;
    int saved = errno;

    if (explained() && open_view(&view))
        objects_for_each(&view, 1u << OBJECT_CQ, report_overrun, NULL);
    errno = saved;
}

void explainer_tell_leaks(void)
{
    if (!explained() || !segment_is_open())
        return;
    explainer_tell_overruns();
    explainer_explain(EXPLAIN_LEAKS, OBJECT_CONTEXT, NO_OBJECT);
}

/* --- for the program ------------------------------------------------------------------------------------ */

char *explainer_object(enum object_kind kind, uint32_t number, bool json)
{
    struct view view;
    struct out out;

    if (!segment_is_open() || !open_view(&view))
        return NULL;
    out_init(&out, json, TEXT_LIMIT);
    explain_object(&view, &out, kind, number);
    return out.text;
}

char *explainer_work(uint64_t wr_id, uint32_t qpn, bool json)
{
    struct view view;
    struct out out;

    if (!segment_is_open() || !open_view(&view))
        return NULL;
    out_init(&out, json, TEXT_LIMIT);
    explain_work(&view, &out, wr_id, qpn);
    return out.text;
}

char *explainer_list(bool json)
{
    struct view view;
    struct out out;

    if (!segment_is_open() || !open_view(&view))
        return NULL;
    out_init(&out, json, SIZE_MAX);
    explain_list(&view, &out, true);
    out_newline(&out);
    return out.text;
}
