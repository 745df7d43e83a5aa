/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/explainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/refusal.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/faults.h"
#include "explain/explain.h"
#include "explain/hangs.h"
#include "explain/neighbour.h"
#include "explain/told_once.h"
#include "segment/refused.h"
#include "segment/segment.h"
#include "segment/stack.h"

enum form { FORM_OFF, FORM_TEXT, FORM_JSON };

static struct lock lock = LOCK_INIT; /* a leaf; guards all below */
static enum form form;
/* Only what failed or hangs is told, when it does. The rest is counted (explain/remarks.h). */
static bool only_wrong;
static void (*handler)(const char *text, void *argument);
static void *handler_argument;
static struct told_once told;
static uint64_t remarks[REMARKS];
static uint32_t untold_refusal = NO_OBJECT; /* record of the last refused call that was only counted */
static int exit_status;                     /* 0: also if it is not known */
#define KIND_LOSSES (EXPLAIN_REFUSED + 1)
#define KIND_FAULT  (EXPLAIN_REFUSED + 2)
#define KIND_DROPS  (EXPLAIN_REFUSED + 3)
#define KIND_STRIKE (EXPLAIN_REFUSED + 4)
/* Texts given of each enum explanation, of losses, of faults, of drops, of injected faults. */
_Static_assert(KIND_STRIKE < TOLD_KINDS_MAX, "a count for each kind");

#define FAULTS 64u
static struct lock faults_lock = LOCK_INIT; /* a leaf; guards both below */
/* Slots of QPs whose first error is not told yet; the upper bits: 0, or 1 and a reason for which it drops datagrams. */
static uint32_t faults[FAULTS];
static _Atomic unsigned fault_count; /* also read without the lock */
/* Held while faults are written to stderr, so that a thread which polls their completions goes on afterwards. Not
 * while a handler of the program gets them, which may call verbs or wait for a thread that polls. Above `lock`. */
static struct lock telling = LOCK_INIT;
static _Atomic bool is_telling;

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

static bool wants_only_wrong(void)
{
    const char *wanted = secure_getenv("SOFTHCA_EXPLAIN_WHAT");

    if (!wanted || strcmp(wanted, "wrong") == 0)
        return true;
    if (strcmp(wanted, "all") != 0)
        log_warn("SOFTHCA_EXPLAIN_WHAT=%s: invalid (valid: wrong, all); using wrong", wanted);
    return strcmp(wanted, "all") != 0;
}

/* Called by exit(), before the destructors: of this library, that prints (explainer_tell_at_exit()). */
static void note_exit_status(int status, void *argument)
{
    exit_status = status;
}

void explainer_start(void)
{
    static bool notes_exit_status; /* engine_start() serialises; a forked child inherits the registration */

    lock_acquire(&lock);
    if (!handler) {
        form = wanted_form();
        only_wrong = form == FORM_TEXT && wants_only_wrong();
    }
    lock_release(&lock);
    if (form == FORM_OFF)
        return;
    provenance_explain(!only_wrong);
    hangs_start();
    if (form == FORM_TEXT && !handler && !notes_exit_status)
        notes_exit_status = on_exit(note_exit_status, NULL) == 0;
}

void explainer_after_fork_in_child(void)
{
    lock_init(&lock);
    lock_init(&faults_lock);
    lock_init(&telling);
    atomic_store_explicit(&is_telling, false, memory_order_relaxed);
    atomic_store_explicit(&fault_count, 0, memory_order_relaxed);
    memset(&told, 0, sizeof(told));
    memset(remarks, 0, sizeof(remarks));
    untold_refusal = NO_OBJECT;
}

void explainer_set_handler(void (*wanted)(const char *text, void *argument), void *argument, bool json)
{
    lock_acquire(&telling); /* whoever began without a handler ends without */
    lock_acquire(&lock);
    handler = wanted;
    handler_argument = argument;
    form = json ? FORM_JSON : FORM_TEXT;
    only_wrong = false;
    lock_release(&lock);
    lock_release(&telling);
    if (segment_is_open()) {
        provenance_explain(true);
        hangs_start();
    }
}

/* --- output --------------------------------------------------------------------------------------------- */

static bool open_view(struct view *ret_view)
{
    const struct segment_header *header = segment_header();

    return view_open(ret_view, header, header->total_size, segment_fd_intact(SEGMENT_TABLES), getpid()) == 0;
}

/* Is it told of once only? Destroys that block are different each time. */
static bool has_topic(unsigned kind)
{
    return kind == EXPLAIN_BUSY || kind == EXPLAIN_IN_USE || kind == EXPLAIN_OVERRUN ||
           kind == EXPLAIN_REFUSED || (form == FORM_TEXT && kind == KIND_LOSSES);
}

/* False: the same was told before, or TOLD_OF_A_KIND of its kind. *ret_last: no text of this kind follows. Lock
 * held. */
static bool is_new(unsigned kind, uint64_t topic, bool *ret_last)
{
    *ret_last = false;
    if (has_topic(kind) && !told_once_topic(&told, topic))
        return false;
    return form == FORM_JSON || told_once_kind(&told, kind, ret_last);
}

/* What the text is about: in JSON its first line, else the place in the program, if it is known. */
static uint64_t topic_of(unsigned kind, const struct out *out, uint32_t stack)
{
    if (form == FORM_JSON || stack == NO_STACK)
        return out->topic;
    return (segment_stack(stack)->frame[0] * 16 + kind) | 1;
}

static void tell(unsigned kind, const struct out *out, uint32_t stack)
{
    void (*to)(const char *text, void *argument);
    void *argument;
    bool wanted, last;

    if (!out->length)
        return;
    lock_acquire(&lock);
    to = handler;
    argument = handler_argument;
    wanted = is_new(kind, topic_of(kind, out, stack), &last);
    lock_release(&lock);
    if (!wanted)
        return;
    if (to)
        to(out->text, argument);
    else
        out_print(out, last ? "SOFTHCA_EXPLAIN" : NULL);
}

static void begin(struct out *out, bool counting)
{
    out_init(out, form == FORM_JSON, TOLD_TEXT_LIMIT);
    out->counting = counting;
}

/* Has the explanation that was counted to be written? */
static bool is_told(const struct out *out, unsigned what, uint32_t number)
{
    if (!only_wrong || out->wrong)
        return true;
    lock_acquire(&lock);
    if (what == EXPLAIN_REFUSED)
        untold_refusal = number;
    for (unsigned i = 0; i < REMARKS; i++)
        remarks[i] += out->remarks[i];
    lock_release(&lock);
    return false;
}

/* --- ports ---------------------------------------------------------------------------------------------- */

static bool explain(const struct view *view, struct out *out, enum explanation what, enum object_kind kind,
                    uint32_t number)
{
    switch (what) {
    case EXPLAIN_BUSY:
        return explain_busy(view, out, kind, number);
    case EXPLAIN_BLOCKED:
        return explain_blocked(view, out, kind, number);
    case EXPLAIN_RESUMED:
        return explain_resumed(view, out, kind, number);
    case EXPLAIN_IN_USE:
        return explain_in_use(view, out, number);
    case EXPLAIN_LEAKS:
        return explain_leaks(view, out, number);
    case EXPLAIN_OVERRUN:
        return explain_overrun(view, out, number);
    case EXPLAIN_HANG:
        return explain_hang(view, out, kind, number);
    case EXPLAIN_MISUSE:
        return explain_misuse(view, out, number);
    case EXPLAIN_REFUSED:
        return explain_refusal(view, out, number);
    }
    return false;
}

/* Is it the place in the program that makes two of them the same? */
static bool is_of_a_place(enum explanation what)
{
    return what == EXPLAIN_BUSY || what == EXPLAIN_IN_USE || what == EXPLAIN_REFUSED;
}

void explainer_explain(enum explanation what, enum object_kind kind, uint32_t number)
{
    struct view view;
    struct out out;
    int saved = errno;

    if (!open_view(&view))
        return;
    begin(&out, only_wrong);
    if (explain(&view, &out, what, kind, number) && is_told(&out, what, number)) {
        out_fini(&out);
        begin(&out, false);
        explain(&view, &out, what, kind, number);
        tell(what, &out, is_of_a_place(what) ? stack_capture() : NO_STACK);
    }
    out_fini(&out);
    errno = saved;
}

/* --- refused calls ---------------------------------------------------------------------------------------- */

/* Is it a refusal? Other errors are a state that the program waits for (EAGAIN, ENOENT), are explained as EBUSY is,
 * or come from the kernel. */
static bool is_refusal(int error)
{
    return error == -EINVAL || error == -ENOMEM || error == -EFAULT || error == -EOPNOTSUPP ||
           error == -EPERM || error == -ENOSPC || error == -ENOSYS;
}

void explainer_refused(const char *call, const struct refusal *refusal)
{
    uint32_t record;
    int saved = errno;

    if (refusal->form == REFUSAL_TOLD || (refusal->form == REFUSAL_UNSAID && !is_refusal(refusal->error)))
        return;
    record = refused_record(call, refusal);
    if (record != NO_OBJECT && explained())
        explainer_explain(EXPLAIN_REFUSED, OBJECT_CONTEXT, record);
    errno = saved;
}

/* --- first errors of QPs ---------------------------------------------------------------------------------- */

#define OF_DROP(reason) (((uint32_t)(reason) + 1) << 24)
_Static_assert(LIMIT_QP <= 1u << 24, "slot and reason");

static void note_to_tell(uint32_t entry)
{
    unsigned count;

    lock_acquire(&faults_lock);
    count = atomic_load_explicit(&fault_count, memory_order_relaxed);
    if (count < FAULTS) {
        faults[count] = entry;
        atomic_store_explicit(&fault_count, count + 1, memory_order_seq_cst);
    }
    lock_release(&faults_lock);
    helper_kick();
}

void explainer_qp_failed(uint32_t slot)
{
    note_to_tell(slot);
}

void explainer_qp_dropped(uint32_t slot, enum drop_reason reason)
{
    note_to_tell(slot | OF_DROP(reason));
}

static bool next_fault(uint32_t *ret_slot)
{
    unsigned count;

    lock_acquire(&faults_lock);
    count = atomic_load_explicit(&fault_count, memory_order_relaxed);
    if (count) {
        *ret_slot = faults[0];
        memmove(faults, faults + 1, (count - 1) * sizeof(faults[0]));
        atomic_store_explicit(&fault_count, count - 1, memory_order_seq_cst);
    }
    lock_release(&faults_lock);
    return count != 0;
}

/* The process of the peer, as long as an error is told of. */
static __thread struct neighbour *peer;

static const struct view *find_peer(int32_t pid)
{
    if (!peer)
        return NULL;
    if (peer->files[SEGMENT_TABLES] >= 0 && peer->view.pid == pid)
        return &peer->view;
    neighbour_close(peer);
    return neighbour_open(pid, OWN_SEGMENT, peer) == 1 ? &peer->view : NULL;
}

static void tell_drop(uint32_t slot, enum drop_reason reason)
{
    struct view view;
    struct out out;

    if (!open_view(&view))
        return;
    begin(&out, only_wrong);
    if (explain_drops(&view, &out, slot, reason) && is_told(&out, KIND_DROPS, slot)) {
        out_fini(&out);
        begin(&out, false);
        explain_drops(&view, &out, slot, reason);
        tell(KIND_DROPS, &out, NO_STACK);
    }
    out_fini(&out);
}

static void tell_fault(uint32_t slot)
{
    struct neighbour neighbour = {.files = {-1, -1}};
    struct view view;
    struct out out;

    if (!open_view(&view))
        return;
    if (view.same_pids)
        view.find_peer = find_peer;
    peer = &neighbour;
    begin(&out, false);
    if (explain_fault(&view, &out, slot))
        tell(KIND_FAULT, &out, NO_STACK);
    out_fini(&out);
    neighbour_close(&neighbour);
    peer = NULL;
}

static void tell_all(void)
{
    uint32_t slot;

    while (next_fault(&slot)) {
        if (slot >> 24)
            tell_drop(slot & 0xffffff, (enum drop_reason)((slot >> 24) - 1));
        else
            tell_fault(slot);
    }
}

/* To stderr. False: there is a handler. */
static bool write_all(void)
{
    bool handled;

    lock_acquire(&telling);
    handled = handler != NULL; /* set with this lock held */
    if (!handled) {
        atomic_store_explicit(&is_telling, true, memory_order_seq_cst); /* before the count falls */
        tell_all();
        atomic_store_explicit(&is_telling, false, memory_order_seq_cst);
    }
    lock_release(&telling);
    return !handled;
}

void explainer_tell_faults(void)
{
    int saved = errno;

    faults_tell(); /* the cause before what it led to */
    if (!atomic_load_explicit(&fault_count, memory_order_seq_cst) &&
        !atomic_load_explicit(&is_telling, memory_order_seq_cst))
        return;
    if (!write_all())
        tell_all();
    errno = saved;
}

/* --- injected faults ---------------------------------------------------------------------------------------- */

void explainer_tell_strike(const struct inject_strike *strike)
{
    struct view view;
    struct out out;

    if (!explained() || !segment_is_open() || !open_view(&view))
        return;
    begin(&out, false);
    if (explain_strike(&view, &out, strike))
        tell(KIND_STRIKE, &out, NO_STACK);
    out_fini(&out);
}

/* --- losses ----------------------------------------------------------------------------------------------- */

struct losses {
    struct out out;
    uint32_t stack;
};

struct losses *explainer_note_losses(enum object_kind kind, uint32_t number)
{
    struct losses *losses = NULL;
    struct view view;
    struct out out;
    int saved = errno;

    if (!open_view(&view))
        return NULL;
    begin(&out, only_wrong);
    if (explain_losses(&view, &out, kind, number) && is_told(&out, KIND_LOSSES, number)) {
        losses = malloc(sizeof(*losses));
        out_fini(&out);
        begin(&out, false);
        explain_losses(&view, &out, kind, number);
    }
    if (losses)
        *losses = (struct losses){out, stack_capture()};
    else
        out_fini(&out);
    errno = saved;
    return losses;
}

void explainer_report_losses(struct losses *losses)
{
    int saved = errno;

    tell(KIND_LOSSES, &losses->out, losses->stack);
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

/* The last call that was refused before the program gave up, of those that may be trials: it may be why. */
static void tell_untold_refusal(void)
{
    struct refused_record record;
    struct view view;
    struct out out;

    if (untold_refusal == NO_OBJECT || !open_view(&view))
        return;
    begin(&out, false);
    if (explain_refusal(&view, &out, untold_refusal) &&
        view_record(&view, &view.header.refusals, untold_refusal, &record)) {
        out_print(&out, NULL);
        lock_acquire(&lock);
        remarks[REMARK_REFUSED] -= min_of(remarks[REMARK_REFUSED], record.count);
        lock_release(&lock);
    }
    out_fini(&out);
}

/* What was counted and not told, if the program failed: it may be part of the reason. Objects that are left are not. */
static void tell_remarks(void)
{
    struct words words = {.length = 0};
    struct out out;
    bool any;

    words_add(&words,
              "the program exits with status %d. What may have contributed (details: softhca run --all, "
              "SOFTHCA_EXPLAIN_WHAT=all): ",
              exit_status);
    lock_acquire(&lock);
    any = words_add_remarks(&words, remarks);
    memset(remarks, 0, sizeof(remarks));
    lock_release(&lock);
    if (!any)
        return;
    begin(&out, false);
    out_line(&out, 0, "%s", words.text);
    if (out.length)
        out_print(&out, NULL);
    out_fini(&out);
}

void explainer_tell_at_exit(void)
{
    if (!explained() || !segment_is_open())
        return;
    explainer_tell_overruns();
    explainer_tell_faults();
    faults_tell_idle();
    explainer_explain(EXPLAIN_LEAKS, OBJECT_CONTEXT, NO_OBJECT);
    if (form != FORM_TEXT || handler || exit_status == 0)
        return;
    tell_untold_refusal();
    tell_remarks();
}

/* --- for the program ------------------------------------------------------------------------------------ */

char *explainer_object(enum object_kind kind, uint32_t number, bool json)
{
    struct view view;
    struct out out;

    if (!segment_is_open() || !open_view(&view))
        return NULL;
    out_init(&out, json, TOLD_TEXT_LIMIT);
    explain_object(&view, &out, kind, number);
    return out.text;
}

char *explainer_work(uint64_t wr_id, uint32_t qpn, bool json)
{
    struct view view;
    struct out out;

    if (!segment_is_open() || !open_view(&view))
        return NULL;
    out_init(&out, json, TOLD_TEXT_LIMIT);
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
