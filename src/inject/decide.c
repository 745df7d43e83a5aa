/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Whether a fault strikes: functions of their arguments, so that the same seed gives the same decisions. */
#include <string.h>

#include "inject/plan.h"

/* The finalizer of a 64-bit hash: each bit of the value changes about half of the result's. */
static uint64_t mix(uint64_t value)
{
    value ^= value >> 33;
    value *= 0xff51afd7ed558ccdu;
    value ^= value >> 33;
    value *= 0xc4ceb9fe1a85ec53u;
    value ^= value >> 33;
    return value;
}

bool inject_strikes(const struct inject_rule *rule, uint32_t match, const struct inject_point *point)
{
    uint64_t hash;

    if (rule->parts) {
        hash = mix(rule->seed + 0x9e3779b97f4a7c15u);
        hash = mix(hash ^ ((uint64_t)point->qp << 32 | point->direction));
        hash = mix(hash ^ ((uint64_t)point->index << 32 | point->transmission));
        return hash % INJECT_WHOLE < rule->parts;
    }
    if (match < rule->first || (match - rule->first) % rule->every)
        return false;
    return !rule->count || (match - rule->first) / rule->every < rule->count;
}

bool inject_is_for_process(const struct inject_rule *rule, const char *exe, int32_t pid)
{
    return (!rule->exe[0] || strcmp(rule->exe, exe) == 0) && (!rule->pid || rule->pid == pid);
}

struct inject_plan *_Atomic inject_plan;

bool inject_select(struct inject_fault *fault, const struct inject_point *point, uint32_t *ret_match)
{
    uint32_t match = atomic_fetch_add_explicit(&fault->matched, 1, memory_order_relaxed) + 1;
    struct inject_point here = *point;

    if (!here.index)
        here.index = match;
    *ret_match = match;
    return inject_strikes(&fault->rule, match, &here);
}
