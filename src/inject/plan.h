/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The faults of this process: the rules that were loaded, with counters. A plan does not change, except for its
 * counters; another one replaces it. Any thread, no lock. */
#ifndef INJECT_PLAN_H
#define INJECT_PLAN_H

#include <stdatomic.h>
#include <string.h>

#include "inject/rule.h"

struct inject_fault {
    struct inject_rule rule;
    _Atomic uint32_t matched, struck; /* how often the rule selected something, and struck */
    _Atomic bool left_out;            /* a receive of an SRQ was posted, which completion= does not mean */
    _Atomic uint64_t busy_until;      /* packet=rate: when all that it let through has left, in ns */
};

struct inject_plan {
    uint32_t count, kinds; /* kinds: by bit of enum inject_kind */
    struct inject_fault *faults[INJECT_RULES_MAX];
};

/* NULL: no fault is loaded. A plan that was replaced is never freed, because threads may look at it; the next one has
 * its faults, with their counters, and further ones, unless they were cleared. */
extern struct inject_plan *_Atomic inject_plan;

static inline struct inject_plan *inject_loaded(void)
{
    return atomic_load_explicit(&inject_plan, memory_order_acquire);
}

static inline bool inject_has(enum inject_kind kind)
{
    const struct inject_plan *plan = inject_loaded();

    return plan && plan->kinds >> kind & 1;
}

static inline bool inject_is_for_device(const struct inject_rule *rule, const char *device)
{
    return !rule->device[0] || strcmp(rule->device, device) == 0;
}

/* One more of what the rule selects: is it to strike? *ret_match: the how manieth it is. */
bool inject_select(struct inject_fault *fault, const struct inject_point *point, uint32_t *ret_match);

/* What a fault has struck, to be told. */
struct inject_strike {
    struct inject_fault *fault;
    uint32_t match; /* of the rule's, from 1 */
    uint32_t qpn;   /* 0: no QP */
    uint64_t wr_id; /* qpn: of the work request */
    uint64_t value; /* limit: what was asked for */
    bool left_out;  /* it has struck nothing: faults_leave_out() */
};

#endif
