/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams and frames that were lost in silence (published/drops.h): at their receiver, and at a sender of the same
 * user. */
#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"
#include "rules/transitions.h"

#define STACK_LINES 4u

static bool is_known(const uint8_t gid[16])
{
    static const uint8_t zero[16];

    return memcmp(gid, zero, sizeof(zero)) != 0;
}

static void add_sender(struct words *words, const struct drop_record *drop)
{
    if (drop->src_qpn)
        words_add(words, " from QP 0x%06x", drop->src_qpn);
    if (is_known(drop->source)) {
        words_add(words, drop->src_qpn ? " at " : " from ");
        words_add_gid(words, drop->source);
    }
}

/* That the process has no such QP, or no longer. */
static void add_missing(const struct view *view, struct words *words, uint32_t qpn)
{
    struct words destroyed = {.length = 0};

    if (words_add_destroyed_qp(view, &destroyed, qpn))
        words_add(words, "QP 0x%06x %s", qpn, destroyed.text);
    else
        words_add(words, "it has no QP 0x%06x", qpn);
}

/* Why, with the values of the last one. where: "the QP", or its label. */
static void add_reason(struct words *words, enum drop_reason reason, const struct drop_record *drop,
                       const char *where)
{
    switch (reason) {
    case DROP_QKEY:
        words_add(words, "Q_Key 0x%08x, but that of %s is 0x%08x", drop->seen, where, drop->wanted);
        break;
    case DROP_NO_RECEIVE:
        words_add(words, "%s had no receive posted", where);
        break;
    case DROP_TOO_SMALL:
        words_add(words, "a datagram of %u bytes, 40 of them for the GRH, but the receive of %s has %u",
                  drop->seen, where, drop->wanted);
        break;
    case DROP_STATE:
        words_add(words, "%s was in %s, in which it does not receive", where, name_qp_state(drop->seen));
        break;
    case DROP_NOBODY:
        words_add(words, "no process of this host owns QP 0x%06x", drop->seen);
        break;
    }
}

/* "3 datagrams from QP 0x000012, the last 0.4 s ago" */
static void add_count(const struct view *view, struct words *words, const struct drop_record *drop,
                      const char *what, bool with_sender)
{
    words_add(words, "%llu %s%s", (unsigned long long)drop->count, what, drop->count == 1 ? "" : "s");
    if (with_sender)
        add_sender(words, drop);
    if (!drop->ns)
        return;
    words_add(words, drop->count == 1 ? ", " : ", the last ");
    words_add_age(words, view_age(view, drop->ns));
}

static const char *reason_key(enum drop_reason reason)
{
    static const char *const keys[DROP_REASONS] = {[DROP_QKEY] = "qkey",
                                                   [DROP_NO_RECEIVE] = "no_receive",
                                                   [DROP_TOO_SMALL] = "too_small",
                                                   [DROP_STATE] = "state",
                                                   [DROP_NOBODY] = "nobody"};

    return keys[reason];
}

static void describe_sample(const struct view *view, struct out *out, const char *reason,
                            const struct drop_record *drop)
{
    out_string(out, "reason", reason);
    out_number(out, "count", drop->count);
    out_number(out, "seen", drop->seen);
    out_number(out, "wanted", drop->wanted);
    out_number(out, "src_qpn", drop->src_qpn);
    out_number(out, "ms_ago", view_age(view, drop->ns));
}

/* --- at the receiver ------------------------------------------------------------------------------------ */

static void explain_drop(const struct view *view, struct out *out, const struct object *qp,
                         enum drop_reason reason)
{
    const struct drop_record *drop = &qp->rare.drops[reason];
    struct words cause = {.length = 0};

    words_add(&cause, "%s %s ", object_label(view, qp).text, reason == DROP_NOBODY ? "lost" : "dropped");
    add_count(view, &cause, drop, "datagram", reason != DROP_NOBODY);
    words_add(&cause, ": ");
    add_reason(&cause, reason, drop, "the QP");
    /* A datagram without a receive is lost on any network, and programs count on that; a Q_Key is never right later. */
    out->wrong = reason == DROP_QKEY;
    out->remarks[REMARK_DROPPED] = 1;
    explanation_begin(view, out, "drops", cause.text);
    describe_sample(view, out, reason_key(reason), drop);
    if (reason == DROP_QKEY)
        out_line(out, 1,
                 "the sender's wr.ud.remote_qkey has to be the qkey that ibv_modify_qp() gave this QP");
    if (reason == DROP_TOO_SMALL)
        out_line(out, 1,
                 "post receives of at least %u bytes: on a UD QP 40 bytes for the GRH come in front of the "
                 "message",
                 drop->seen);
    object_describe(view, out, "object", 1, qp, STACK_LINES);
    explanation_end(out);
}

/* A connected QP that the program has put, or left, in such a state: one that has failed is told as that. */
static bool explain_dropped_requests(const struct view *view, struct out *out, const struct object *qp)
{
    const struct drop_record *drop = &qp->rare.drops[DROP_STATE];
    const struct fault_record *fault = &qp->rare.fault;
    struct words cause = {.length = 0};

    if (!drop->count || transition_takes_requests(qp->qp.state) || !qp->qp.qpn ||
        (fault->ns && !fault_is_wanted(fault)))
        return false;
    words_add(&cause, "%s ", object_label(view, qp).text);
    if (!words_add_fault(view, &cause, qp)) {
        words_add(&cause, "has been in %s ", name_qp_state(qp->qp.state));
        words_add_since(view, &cause, &qp->qp);
    }
    words_add(&cause, "; it has dropped ");
    add_count(view, &cause, drop, "request", true);
    explanation_begin(view, out, "drops", cause.text);
    describe_sample(view, out, "request_in_state", drop);
    out_line(
        out, 1, "%s",
        qp->qp.state == IBV_QPS_ERR
            ? "a QP in ERR takes nothing until ibv_modify_qp() has moved it to RESET, then INIT, then RTR"
            : "a QP takes requests from RTR on (ibv_modify_qp to INIT, then to RTR)");
    object_describe(view, out, "object", 1, qp, STACK_LINES);
    explanation_end(out);
    return true;
}

bool explain_drops_of(const struct view *view, struct out *out, const struct object *qp)
{
    bool any = false;

    if (is_connected(&qp->qp))
        return explain_dropped_requests(view, out, qp);
    for (unsigned i = 0; i < DROP_REASONS; i++) {
        if (!qp->rare.drops[i].count)
            continue;
        explain_drop(view, out, qp, (enum drop_reason)i);
        any = true;
    }
    return any;
}

bool explain_drops(const struct view *view, struct out *out, uint32_t number, enum drop_reason reason)
{
    struct object qp;

    if ((unsigned)reason >= DROP_REASONS || !object_read(view, OBJECT_QP, number, &qp) ||
        !qp.rare.drops[reason].count)
        return false;
    explain_drop(view, out, &qp, reason);
    return true;
}

/* --- of the process ----------------------------------------------------------------------------------------- */

/* QPs of those types, as bits. */
static bool note_type(const struct view *view, const struct object *object, void *argument)
{
    *(uint32_t *)argument |= object->qp.type < 32 ? 1u << object->qp.type : 0;
    return true;
}

unsigned explain_strays(const struct view *view, struct out *out)
{
    static const struct {
        const char *key, *what;
        uint32_t types; /* of which QPs: a process without was offered such things because others have some */
    } strays[STRAY_REASONS] = {
        [STRAY_QPN] = {"unknown_qpn", "datagram", 1u << IBV_QPT_UD},
        [STRAY_GROUP] = {"no_group", "datagram", 1u << IBV_QPT_UD},
        [STRAY_FRAME] = {"no_rule", "frame", 1u << IBV_QPT_RAW_PACKET},
        [STRAY_REQUEST] = {"request_to_unknown_qpn", "request", UINT32_MAX},
        [STRAY_UNCLAIMED] = {"request_to_nobody", "request", UINT32_MAX},
    };
    uint32_t types = 1u << 31;
    unsigned found = 0;

    objects_for_each(view, 1u << OBJECT_QP, note_type, &types);
    for (unsigned i = 0; i < STRAY_REASONS; i++) {
        const struct drop_record *drop = &view->header.strays[i];
        struct words cause = {.length = 0};

        if (!drop->count || !(types & strays[i].types))
            continue;
        words_add(&cause, "this process dropped ");
        add_count(view, &cause, drop, strays[i].what, true);
        words_add(&cause, ": ");
        if (i == STRAY_QPN || i == STRAY_REQUEST) {
            add_missing(view, &cause, drop->seen);
        } else if (i == STRAY_UNCLAIMED) {
            words_add(&cause, "no process of this host owns QP 0x%06x", drop->seen);
        } else if (i == STRAY_GROUP) {
            words_add(&cause, "none of its QPs is attached to group ");
            words_add_gid(&cause, drop->group);
            words_add(&cause, " (to receive: ibv_attach_mcast)");
        } else {
            words_add(&cause,
                      "none of its flow rules matches a frame of %u bytes (to receive: ibv_create_flow)",
                      drop->seen);
        }
        explanation_begin(view, out, "drops", cause.text);
        describe_sample(view, out, strays[i].key, drop);
        explanation_end(out);
        found++;
    }
    return found;
}

/* --- at the sender ------------------------------------------------------------------------------------------ */

struct search {
    const struct view *sender;
    struct out *out;
    unsigned found;
};

/* The sender's QP, if it is one of this view; where and what: who dropped, and why. */
static void tell_one(struct search *search, const struct view *view, const struct drop_record *drop,
                     const char *reason, uint32_t qpn, const struct words *where, const struct words *why)
{
    const struct view *sender = search->sender;
    struct words cause = {.length = 0};
    struct object from;

    if (!drop->count || !drop->local || !object_read_qpn(sender, drop->src_qpn, &from) ||
        from.qp.type != IBV_QPT_UD)
        return;
    words_add(&cause, "%s: its datagrams are dropped by %s: %s (", object_label(sender, &from).text,
              where->text, why->text);
    add_count(view, &cause, drop, "datagram", false);
    words_add(&cause, ")");
    explanation_begin(sender, search->out, "drops", cause.text);
    describe_sample(view, search->out, reason, drop);
    out_signed(search->out, "dropped_by_pid", view_pid(view));
    out_number(search->out, "dropped_by_qpn", qpn);
    object_describe(sender, search->out, "object", 1, &from, STACK_LINES);
    explanation_end(search->out);
    search->found++;
}

static bool tell_sender(const struct view *view, const struct object *object, void *argument)
{
    struct words where = {.length = 0};

    words_add(&where, "QP 0x%06x of process %d", object_qpn(object), (int)view_pid(view));
    for (unsigned i = 0; i < DROP_REASONS; i++) {
        const struct drop_record *drop = &object->rare.drops[i];
        struct words why = {.length = 0};

        if (i == DROP_NOBODY || !drop->count)
            continue;
        add_reason(&why, (enum drop_reason)i, drop, "that QP");
        tell_one(argument, view, drop, reason_key((enum drop_reason)i), object_qpn(object), &where, &why);
    }
    return true;
}

unsigned explain_host_drops(const struct view *view, struct out *out)
{
    const struct view *there;
    unsigned found = 0;

    for (unsigned i = 0; view->find_process && (there = view->find_process(i)) != NULL; i++) {
        const struct drop_record *drop = &there->header.strays[STRAY_UNCLAIMED];
        struct words cause = {.length = 0};

        if (!drop->count)
            continue;
        words_add(&cause, "this host dropped ");
        add_count(there, &cause, drop, "request", true);
        words_add(&cause, ": no process of it owns QP 0x%06x (seen by process %d)", drop->seen,
                  (int)view_pid(there));
        explanation_begin(view, out, "drops", cause.text);
        describe_sample(there, out, "request_to_nobody", drop);
        explanation_end(out);
        found++;
    }
    return found;
}

unsigned explain_far_drops(const struct view *view, struct out *out)
{
    struct search search = {.sender = view, .out = out};
    const struct view *there;

    for (unsigned i = 0; view->find_process && (there = view->find_process(i)) != NULL; i++) {
        const struct drop_record *unknown = &there->header.strays[STRAY_QPN];
        struct words where = {.length = 0}, why = {.length = 0};

        if (memcmp(there->header.instance, view->header.instance, sizeof(view->header.instance)) == 0)
            continue;
        objects_for_each(there, 1u << OBJECT_QP, tell_sender, &search);
        words_add(&where, "process %d", (int)view_pid(there));
        add_missing(there, &why, unknown->seen);
        tell_one(&search, there, unknown, "unknown_qpn", unknown->seen, &where, &why);
    }
    return search.found;
}
