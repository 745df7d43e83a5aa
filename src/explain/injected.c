/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asked for: one line for each that struck, and one at exit for each that did not. */
#include <string.h>

#include "explain/explain.h"
#include "inject/plan.h"

static void add_connection(struct words *words, const struct inject_strike *strike)
{
    const struct inject_rule *rule = &strike->fault->rule;
    const char *name = inject_cm_names[rule->what];

    switch ((enum inject_cm)rule->what) {
    case INJECT_ADDR_ERROR:
    case INJECT_ROUTE_ERROR:
        words_add(words, "call %u of %s ends with RDMA_CM_EVENT_%s, status -%s", strike->match,
                  rule->what == INJECT_ADDR_ERROR ? "rdma_resolve_addr" : "rdma_resolve_route", name,
                  inject_errno_name(rule->error));
        return;
    case INJECT_REJECTED:
        words_add(words, "%s (REQ) %u ends with RDMA_CM_EVENT_%s at its sender, reason %u",
                  rule->side == INJECT_PASSIVE ? "incoming connection request" : "connection request",
                  strike->match, name, (unsigned)rule->value);
        if (inject_reason_name(rule->value))
            words_add(words, " (%s)", inject_reason_name(rule->value));
        return;
    case INJECT_UNREACHABLE:
        words_add(words,
                  "connection request (REQ) %u and its retries are lost, so it ends with RDMA_CM_EVENT_%s",
                  strike->match, name);
        return;
    case INJECT_DISCONNECTED:
        if (rule->time)
            words_add(words,
                      "connection %u is disconnected, because the time that the fault names has passed",
                      strike->match);
        else
            words_add(words, "call %u of %s, for QP 0x%06x, raises RDMA_CM_EVENT_%s", strike->match,
                      inject_call_names[rule->at], strike->qpn, name);
        return;
    case INJECT_CMS:
        return;
    }
}

static const char *fate_of(enum inject_packet what)
{
    static const char *const fates[INJECT_PACKETS] = {
        [INJECT_DROP] = "is dropped",
        [INJECT_DUPLICATE] = "is sent twice",
        [INJECT_CORRUPT] = "is sent with a wrong ICRC",
        [INJECT_DELAY] = "is delayed",
        [INJECT_REORDER] = "is sent after later ones",
        [INJECT_RATE] = "is held back to keep to the rate",
        [INJECT_MARK] = "is sent with the mark ECN CE (Congestion Experienced)",
    };

    return what < INJECT_PACKETS ? fates[what] : "?";
}

static void add_what(struct words *words, const struct inject_strike *strike)
{
    const struct inject_rule *rule = &strike->fault->rule;

    switch ((enum inject_kind)rule->kind) {
    case INJECT_CALL:
        words_add(words, "call %u of %s fails with %s", strike->match, inject_call_names[rule->what],
                  inject_errno_name(rule->error));
        return;
    case INJECT_LIMIT:
        words_add(words, "%s is %llu, and %llu were asked for", inject_limit_names[rule->what],
                  (unsigned long long)rule->value, (unsigned long long)strike->value);
        return;
    case INJECT_COMPLETION:
        words_add(words, "%s %u, wr_id ", rule->side == INJECT_RECEIVE ? "receive" : "work request",
                  strike->match);
        words_add_one_wr_id(words, strike->wr_id);
        words_add(words, " of QP 0x%06x, ", strike->qpn);
        if (rule->what == OUTCOME_NEVER)
            words_add(words, "gets no completion if it succeeds");
        else if (rule->what == OUTCOME_DELAYED)
            words_add(words, "gets its completion %llu us later, and so do those after it",
                      (unsigned long long)(rule->time / 1000));
        else
            words_add(words, "ends with %s", inject_outcome_names[rule->what]);
        return;
    case INJECT_PACKET:
        words_add(words, "packet %u (PSN 0x%06x of QP 0x%06x) %s", strike->match, (unsigned)strike->value,
                  strike->qpn, fate_of((enum inject_packet)rule->what));
        return;
    case INJECT_EVENT:
        words_add(words, "%s at call %u of %s", inject_event_names[rule->what], strike->match,
                  inject_call_names[rule->at]);
        if (strike->qpn)
            words_add(words, ", for QP 0x%06x", strike->qpn);
        return;
    case INJECT_CM:
        add_connection(words, strike);
        return;
    case INJECT_KINDS:
        return;
    }
}

static void add_idle(struct words *words, const struct inject_strike *strike)
{
    const struct inject_rule *rule = &strike->fault->rule;

    words_add(words, "was never applied: ");
    if (!strike->match)
        words_add(words, "nothing that the program did matched it");
    else if (rule->kind == INJECT_LIMIT)
        words_add(words, "%u calls stayed within the limit", strike->match);
    else
        words_add(words, "%u matched, but n, count, every or percent chose none of them", strike->match);
}

bool explain_strike(const struct view *view, struct out *out, const struct inject_strike *strike)
{
    bool struck = !strike->left_out && atomic_load_explicit(&strike->fault->struck, memory_order_relaxed);
    struct words words = {.length = 0};

    words_add(&words, "injected fault '%s' ", strike->fault->rule.text);
    if (strike->left_out) {
        words_add(&words, "does not apply to receives of an SRQ, and the program posts such receives");
    } else if (struck) {
        words_add(&words, "applied: ");
        add_what(&words, strike);
    } else {
        add_idle(&words, strike);
    }
    explanation_begin(view, out, "injected", words.text);
    out_string(out, "fault", strike->fault->rule.text);
    out_bool(out, "applied", struck);
    out_number(out, "match", strike->match);
    if (strike->qpn) {
        out_number(out, "qpn", strike->qpn);
        out_number(out, "wr_id", strike->wr_id);
    }
    explanation_end(out);
    return true;
}
