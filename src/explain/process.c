/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A whole process: what is stuck in it, and what it has. */
#include <string.h>

#include "explain/explain.h"
#include "explain/hangs.h"
#include "explain/names.h"

#define STACK_LINES     12u
#define LISTED_PER_KIND 32u

static void sender_describe(const struct view *view, struct out *out, unsigned level, const struct object *qp)
{
    struct words words = {.length = 0};

    if (!words_add_sender(view, &words, qp))
        return;
    out_string(out, "sender", words.text);
    out_line(out, level, "%s", words.text);
}

static void fault_describe(const struct view *view, struct out *out, unsigned level, const struct object *qp)
{
    struct words words = {.length = 0};

    if (!words_add_fault(view, &words, qp))
        return;
    out_string(out, "first_error", words.text);
    out_line(out, level, "%s", words.text);
}

/* --- one object ----------------------------------------------------------------------------------------- */

bool explain_object(const struct view *view, struct out *out, enum object_kind kind, uint32_t number)
{
    struct words cause = {.length = 0};
    struct listed holders;
    struct object object;

    if (!object_read(view, kind, number, &object))
        return false;
    if (object.provenance.destroying_ns && explain_blocked(view, out, kind, number))
        return true;
    listed_holders(view, &object, &holders);
    words_add(&cause, "%s ", object_label(view, &object).text);
    if (holders.total) {
        words_add(&cause, "is used by ");
        words_add_counts(&cause, &holders);
    } else {
        words_add(&cause, "is not in use: %s would succeed now", object_destroy_verb(kind));
    }
    explanation_begin(view, out, "object", cause.text);
    object_describe_listed(view, out, "object", 1, &object, STACK_LINES);
    if (kind == OBJECT_QP) {
        fault_describe(view, out, 2, &object);
        sender_describe(view, out, 2, &object);
    }
    refusals_describe(view, out, 2, kind, kind == OBJECT_QP ? object_qpn(&object) : number);
    holders_describe(view, out, &holders, STACK_LINES);
    explanation_end(out);
    return true;
}

/* --- what is stuck -------------------------------------------------------------------------------------- */

struct stuck {
    struct out *out;
    unsigned found;
    unsigned in_error; /* QPs that the program has moved there */
};

/* Not by the program itself. */
static bool has_failed(const struct object *qp)
{
    return qp->rare.fault.ns && !fault_is_wanted(&qp->rare.fault);
}

/* An injected fault keeps completions of the QP from the program. */
static bool explain_missing_completions(const struct view *view, struct out *out, const struct object *qp)
{
    const uint32_t held = qp->qp.held_completions, withheld = qp->qp.withheld_completions;
    struct words cause = {.length = 0};

    if (!held && !withheld)
        return false;
    words_add(&cause, "%s: ", object_label(view, qp).text);
    if (held)
        words_add(&cause, "%u completion%s held back by an injected fault (completion=delayed)", held,
                  held == 1 ? " is" : "s are");
    if (withheld)
        words_add(&cause, "%san injected fault leaves %u request%s without a completion (completion=never)",
                  held ? ", and " : "", withheld, withheld == 1 ? "" : "s");
    explanation_begin(view, out, "missing_completions", cause.text);
    object_describe(view, out, "object", 1, qp, 4);
    explanation_end(out);
    return true;
}

static bool look_for_trouble(const struct view *view, const struct object *object, void *argument)
{
    struct stuck *stuck = argument;
    struct words cause = {.length = 0};
    struct hang hang;

    if (stuck->found >= LISTED_PER_KIND)
        return false;
    if (object->provenance.destroying_ns) {
        stuck->found += explain_blocked(view, stuck->out, object->kind, object->number);
    } else if (view->header.watched) {
        stuck->found += explain_watched_trouble(view, stuck->out, object);
    } else if (object->kind == OBJECT_CQ && object->cq.lost) {
        stuck->found += explain_overrun(view, stuck->out, object->number);
    } else if (object->kind == OBJECT_QP && has_failed(object)) {
        stuck->found += explain_fault(view, stuck->out, object->number);
    } else if (object->kind == OBJECT_QP && object->qp.sender.posted != object->qp.sender.completed) {
        words_add(&cause, "%s: ", object_label(view, object).text);
        words_add_sender(view, &cause, object);
        explanation_begin(view, stuck->out, "outstanding", cause.text);
        object_describe(view, stuck->out, "object", 1, object, 4);
        explanation_end(stuck->out);
        stuck->found++;
    }
    if (object->kind == OBJECT_QP && !view->header.watched)
        stuck->found += explain_missing_completions(view, stuck->out, object);
    if (object->kind == OBJECT_QP && object->qp.state == IBV_QPS_ERR)
        stuck->in_error++;
    if (object->kind == OBJECT_QP)
        stuck->found += explain_drops_of(view, stuck->out, object);
    /* Of a stopped peer the outstanding sends tell already. */
    if (!view->header.watched && hang_find(view, object, &hang) && hang.form != HANG_PEER_STOPPED) {
        explain_found_hang(view, stuck->out, object, hang.form);
        stuck->found++;
    }
    return true;
}

/* Behind all else: who looks at a process that hangs may have stopped it for that. */
static unsigned explain_stopped(const struct view *view, struct out *out)
{
    struct words cause = {.length = 0};

    if (!process_is_stopped(view, view->pid))
        return 0;
    words_add(
        &cause,
        "process %d is stopped: until it is continued (kill -CONT %d) it takes no SENDs and no messages of "
        "RDMA CM, and polls nothing",
        (int)view->pid, (int)view->pid);
    explanation_begin(view, out, "stopped", cause.text);
    explanation_end(out);
    return 1;
}

void explain_process(const struct view *view, struct out *out)
{
    struct stuck stuck = {.out = out};
    struct words cause = {.length = 0};
    struct listed all;

    objects_for_each(view, HANG_KINDS | (view->header.watched ? 1u << OBJECT_CHANNEL : 0), look_for_trouble,
                     &stuck);
    stuck.found += explain_strays(view, out);
    stuck.found += explain_far_drops(view, out);
    stuck.found += explain_misuses(view, out);
    stuck.found += explain_refusals(view, out);
    stuck.found += explain_stopped(view, out);
    if (!stuck.found)
        stuck.found += explain_host_drops(view, out);
    if (stuck.found)
        return;
    listed_children(view, NO_OBJECT, &all);
    if (view->header.watched)
        words_add(&cause,
                  "idle, as far as softhca watch can see: no blocked destroy, no send without a polled "
                  "completion; unread events and unpolled completions of a NIC are not visible");
    else if (stuck.in_error)
        words_add(
            &cause,
            "idle: no blocked destroy, %u QP%s in ERR, moved there by the program, no outstanding send, "
            "no unread event",
            stuck.in_error, stuck.in_error == 1 ? "" : "s");
    else
        words_add(&cause, "idle: no blocked destroy, no QP in error, no outstanding send, no unread event");
    explanation_begin(view, out, "idle", cause.text);
    if (all.total) {
        struct words counts = {.length = 0};

        words_add_counts(&counts, &all);
        out_line(out, 1, "objects: %s", counts.text);
    }
    out_number(out, "objects_total", all.total);
    explanation_end(out);
}

/* --- everything ----------------------------------------------------------------------------------------- */

struct listing {
    struct out *out;
    unsigned kind, listed, limit;
    uint64_t total;
};

static bool describe_listed(const struct view *view, const struct object *object, void *argument)
{
    struct listing *listing = argument;
    struct listed holders;

    listing->total++;
    if (listing->listed >= listing->limit)
        return true;
    listing->listed++;
    object_describe_listed(view, listing->out, NULL, 1, object, 0);
    if (object->kind == OBJECT_QP && !listing->out->json) {
        fault_describe(view, listing->out, 2, object);
        sender_describe(view, listing->out, 2, object);
    }
    if (listing->out->json || object->kind == OBJECT_MR || object->kind == OBJECT_AH)
        return true;
    listed_holders(view, object, &holders);
    if (holders.total && object->kind != OBJECT_CONTEXT) {
        struct words words = {.length = 0};

        words_add(&words, "used by ");
        for (unsigned i = 0; i < min_of(holders.count, 4u); i++) {
            struct object holder;

            if (object_read(view, holders.list[i].kind, holders.list[i].number, &holder))
                words_add(&words, "%s%s", i ? ", " : "", object_label(view, &holder).text);
        }
        if (holders.total > 4)
            words_add(&words, " and %llu more", (unsigned long long)(holders.total - 4));
        out_line(listing->out, 2, "%s", words.text);
    }
    return true;
}

/* Nothing of a process that never had to do with the network. */
static void network_describe(const struct view *view, struct out *out)
{
    const struct network_counters *network = &view->header.network;
    uint64_t counts[NETWORK_COUNTERS];
    struct words words = {.length = 0};

    if (!network->packets_sent && !network->packets_received && !network->not_sent && !network->bad_icrc)
        return;
    words_add(&words, "network: %llu packets (%llu bytes) sent, %llu (%llu bytes) received",
              (unsigned long long)network->packets_sent, (unsigned long long)network->bytes_sent,
              (unsigned long long)network->packets_received, (unsigned long long)network->bytes_received);
    memcpy(counts, network, sizeof(counts));
    out_begin(out, "network");
    for (unsigned i = 0; i < NETWORK_COUNTERS; i++) {
        out_number(out, network_names[i].name, counts[i]);
        if (network_names[i].told && counts[i])
            words_add(&words, ", %llu %s", (unsigned long long)counts[i], network_names[i].told);
    }
    out_end(out);
    out_line(out, 1, "%s", words.text);
}

void explain_list(const struct view *view, struct out *out, bool all)
{
    const struct segment_header *header = &view->header;
    char program[sizeof(header->program) + 1];
    struct words words = {.length = 0};
    struct listed children;

    listed_children(view, NO_OBJECT, &children);
    printable(program, header->program, sizeof(header->program));
    out_begin(out, NULL);
    out_signed(out, "pid", view_pid(view));
    out_bool(out, "pid_visible", view->pid != 0);
    out_signed(out, "pid_in_namespace", header->pid);
    out_number(out, "uid", header->uid);
    out_string(out, "program", program);
    out_number(out, "up_ms", view_age(view, header->start_ns));
    out_bool(out, "explains", header->explains != 0);
    if (view->pid)
        words_add(&words, "%d ", (int)view->pid);
    else
        words_add(&words, "PID unknown here (%d in its PID namespace) ", (int)header->pid);
    words_add(&words, "%s, uid %u, up ", program, header->uid);
    words_add_duration(&words, view_age(view, header->start_ns));
    words_add(&words, ": ");
    if (children.total)
        words_add_counts(&words, &children);
    else
        words_add(&words, "no objects");
    out_line(out, 0, "%s", words.text);
    network_describe(view, out);
    out_begin_array(out, "objects");
    for (unsigned kind = 1; kind < OBJECT_KINDS; kind++) {
        struct listing listing = {
            .out = out, .kind = kind, .limit = all || out->json ? UINT32_MAX : LISTED_PER_KIND};

        objects_for_each(view, 1u << kind, describe_listed, &listing);
        if (listing.total > listing.listed)
            out_line(out, 1, "and %llu more %s", (unsigned long long)(listing.total - listing.listed),
                     object_kind_name((enum object_kind)kind, 2));
    }
    out_end_array(out);
    out_end(out);
}
