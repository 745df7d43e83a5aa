/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/faults.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/types.h"
#include "engine/core/core.h"
#include "engine/core/explainer.h"

#define STRIKES      64u
#define TOLD_STRIKES 32u /* of one fault */

static struct lock lock = LOCK_INIT; /* a leaf; guards all below */
static struct inject_strike strikes[STRIKES];
static unsigned strike_count;

static const char *exe_name(char room[INJECT_NAME_MAX])
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    const char *slash;

    if (length < 0)
        return program_invocation_short_name;
    path[length] = '\0';
    slash = strrchr(path, '/');
    snprintf(room, INJECT_NAME_MAX, "%.*s", (int)INJECT_NAME_MAX - 1, slash ? slash + 1 : path);
    return room;
}

/* The rules of the list that are for this process; NULL: none, or no memory. */
static struct inject_plan *read_plan(const char *list)
{
    struct inject_plan *plan = calloc(1, sizeof(*plan) + INJECT_RULES_MAX * sizeof(plan->faults[0]));
    char text[INJECT_TEXT_MAX], room[INJECT_NAME_MAX], why[256];
    const char *exe = exe_name(room);
    size_t length;

    for (; plan && (length = inject_next(&list)) != 0; list += length) {
        struct inject_rule *rule = &plan->faults[plan->count].rule;

        if (plan->count == INJECT_RULES_MAX) {
            log_warn("SOFTHCA_FAULT: more than %u faults; the rest is left out", INJECT_RULES_MAX);
            break;
        }
        if (length >= sizeof(text)) {
            log_warn("SOFTHCA_FAULT: '%.40s...': longer than %zu characters; left out", list,
                     sizeof(text) - 1);
            continue;
        }
        memcpy(text, list, length);
        text[length] = '\0';
        if (!inject_parse(text, rule, why, sizeof(why))) {
            log_warn("SOFTHCA_FAULT: '%s': %s; left out", text, why);
            continue;
        }
        plan->mentioned |= 1u << rule->kind;
        if (inject_is_for_process(rule, exe, getpid())) {
            plan->kinds |= 1u << rule->kind;
            plan->count++;
        }
    }
    if (plan && plan->mentioned)
        return plan;
    free(plan);
    return NULL;
}

void faults_start(void)
{
    const char *list = secure_getenv("SOFTHCA_FAULT");

    if (list && !inject_loaded())
        atomic_store_explicit(&inject_plan, read_plan(list), memory_order_release);
}

/* The child counts for itself; rules that name a process are its own when it starts. */
void faults_after_fork_in_child(void)
{
    lock_init(&lock);
    strike_count = 0;
    atomic_store_explicit(&inject_plan, NULL, memory_order_release);
}

void faults_note(const struct inject_strike *strike)
{
    bool room;

    lock_acquire(&lock);
    room = strike_count < STRIKES &&
           atomic_load_explicit(&strike->fault->struck, memory_order_relaxed) <= TOLD_STRIKES;
    if (room)
        strikes[strike_count++] = *strike;
    lock_release(&lock);
    if (room)
        helper_kick();
}

static bool next(struct inject_strike *ret)
{
    bool any;

    lock_acquire(&lock);
    any = strike_count != 0;
    if (any) {
        *ret = strikes[0];
        memmove(strikes, strikes + 1, --strike_count * sizeof(strikes[0]));
    }
    lock_release(&lock);
    return any;
}

void faults_tell(void)
{
    struct inject_strike strike;
    int saved = errno;

    if (!inject_loaded())
        return;
    while (next(&strike))
        explainer_tell_strike(&strike);
    errno = saved;
}

void faults_tell_idle(void)
{
    struct inject_plan *plan = inject_loaded();

    faults_tell();
    for (uint32_t i = 0; plan && i < plan->count; i++) {
        if (!atomic_load_explicit(&plan->faults[i].struck, memory_order_relaxed))
            explainer_tell_strike(&(struct inject_strike){
                .fault = &plan->faults[i],
                .match = atomic_load_explicit(&plan->faults[i].matched, memory_order_relaxed)});
    }
}
