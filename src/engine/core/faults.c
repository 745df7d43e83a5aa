/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/faults.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/types.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/core/explainer.h"
#include "engine/paths/paths.h"
#include "published/control_request.h"

#define STRIKES      64u
#define TOLD_STRIKES 32u /* of one fault */

static struct lock lock = LOCK_INIT; /* a leaf; guards all below */
static struct inject_strike strikes[STRIKES];
static unsigned strike_count;

/* Threads that tell strikes: who ends the process waits for them. No lock, because a handler of the program may call
 * verbs. */
static _Atomic unsigned tellers;
static __thread unsigned tells; /* this thread is so many of them */

/* One change of the plan at a time; contexts_lock and QP locks are below it. */
static struct lock change_lock = LOCK_INIT;
static void (*_Atomic changed)(void);

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

/* The next specification of the list, parsed; NULL: none is left, or `why` has what is wrong with it. In `text`, as far
 * as it is not longer than one may be. */
static struct inject_fault *read_next(const char **list, char text[INJECT_TEXT_MAX], char *why, size_t size)
{
    size_t length = inject_next(list);
    struct inject_fault *fault;

    why[0] = '\0';
    if (!length)
        return NULL;
    snprintf(text, INJECT_TEXT_MAX, "%.*s", (int)min_of(length, (size_t)INJECT_TEXT_MAX), *list);
    *list += length;
    fault = calloc(1, sizeof(*fault));
    if (!fault)
        snprintf(why, size, "out of memory");
    else if (length >= INJECT_TEXT_MAX)
        snprintf(why, size, "longer than %u characters", INJECT_TEXT_MAX - 1);
    else if (inject_parse(text, &fault->rule, why, size))
        return fault;
    free(fault);
    return NULL;
}

static void add(struct inject_plan *plan, struct inject_fault *fault)
{
    plan->kinds |= 1u << fault->rule.kind;
    plan->faults[plan->count++] = fault;
}

/* The rules of the list that are for this process; NULL: none, or no memory. */
static struct inject_plan *read_plan(const char *list)
{
    struct inject_plan *plan = calloc(1, sizeof(*plan));
    char text[INJECT_TEXT_MAX], room[INJECT_NAME_MAX], why[256];
    const char *exe = exe_name(room);
    struct inject_fault *fault;

    while (plan && ((fault = read_next(&list, text, why, sizeof(why))) || why[0])) {
        if (!fault) {
            log_warn("SOFTHCA_FAULT: '%s': %s; ignored", text, why);
            continue;
        }
        if (plan->count == INJECT_RULES_MAX) {
            log_warn("SOFTHCA_FAULT: more than %u faults; the rest is ignored", INJECT_RULES_MAX);
            free(fault);
            break;
        }
        if (inject_is_for_process(&fault->rule, exe, getpid()))
            add(plan, fault);
        else
            free(fault);
    }
    if (plan && plan->count)
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
    lock_init(&change_lock);
    atomic_store_explicit(&tellers, 0, memory_order_relaxed);
    tells = 0;
    strike_count = 0;
    atomic_store_explicit(&inject_plan, NULL, memory_order_release);
}

/* --- while the process runs ------------------------------------------------------------------------------- */

/* Adds the list to the plan, or nothing of it. */
static int read_added(const char *list, struct inject_plan *plan, char *why, size_t size)
{
    char text[INJECT_TEXT_MAX], room[INJECT_NAME_MAX], wrong[CONTROL_WHY_MAX / 2];
    const char *exe = exe_name(room);
    struct inject_fault *fault;
    uint32_t before = plan->count;

    while ((fault = read_next(&list, text, wrong, sizeof(wrong)))) {
        if (plan->count == INJECT_RULES_MAX)
            snprintf(wrong, sizeof(wrong),
                     "%u faults are loaded, which is the limit: remove them (softhca fault --clear)",
                     plan->count);
        else if (!inject_is_for_process(&fault->rule, exe, getpid()))
            snprintf(wrong, sizeof(wrong), "its exe= or pid= names another program or process");
        if (wrong[0]) {
            free(fault);
            break;
        }
        add(plan, fault);
    }
    if (!wrong[0])
        return 0;
    while (plan->count > before)
        free(plan->faults[--plan->count]);
    snprintf(why, size, "'%.80s': %s", text, wrong);
    return -EINVAL;
}

/* Threads that are in a post or a packet may look at the old plan for a while. change_lock held. */
static void replace(struct inject_plan *plan)
{
    void (*function)(void) = atomic_load_explicit(&changed, memory_order_relaxed);

    atomic_store_explicit(&inject_plan, plan, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* partners: front_fill_wr_ops(), open_with() */
    if (function)
        function();
}

int faults_add(const char *list, char *why, size_t size)
{
    struct inject_plan *plan = calloc(1, sizeof(*plan)), *old;
    int error;

    if (!plan) {
        snprintf(why, size, "out of memory");
        return -ENOMEM;
    }
    lock_acquire(&change_lock);
    old = inject_loaded();
    if (old)
        *plan = *old;
    error = read_added(list, plan, why, size);
    if (!error)
        replace(plan);
    lock_release(&change_lock);
    if (error)
        free(plan);
    else
        by_packets_choose_all();
    return error;
}

void faults_clear(void)
{
    lock_acquire(&change_lock);
    replace(NULL);
    lock_release(&change_lock);
    by_packets_choose_all();
    engine_restore_ports();
    faults_tell();
}

void faults_list(char *text, size_t size)
{
    const struct inject_plan *plan = inject_loaded();
    size_t length = 0;

    text[0] = '\0';
    for (uint32_t i = 0; plan && i < plan->count && length < size; i++) {
        const struct inject_fault *fault = plan->faults[i];
        uint32_t struck = atomic_load_explicit(&fault->struck, memory_order_relaxed);
        uint32_t matched = atomic_load_explicit(&fault->matched, memory_order_relaxed);

        length += (size_t)snprintf(text + length, size - length, "'%s': applied %u times; matched %u times\n",
                                   fault->rule.text, struck, matched);
    }
}

void faults_on_change(void (*function)(void))
{
    atomic_store_explicit(&changed, function, memory_order_relaxed);
}

/* --- rdma_cm ----------------------------------------------------------------------------------------------- */

/* cm=DISCONNECTED counts calls of the QP (front/verbs/injected.c) unless it has a time. */
static bool counts_here(const struct inject_rule *rule)
{
    return rule->what != INJECT_DISCONNECTED || rule->time;
}

const struct inject_rule *faults_meet_cm(enum inject_cm what, enum inject_end end)
{
    struct inject_plan *plan = inject_loaded();

    for (uint32_t i = 0; plan && i < plan->count; i++) {
        struct inject_fault *fault = plan->faults[i];
        struct inject_strike strike = {.fault = fault};

        if (fault->rule.kind != INJECT_CM || fault->rule.what != what || fault->rule.side != end ||
            !counts_here(&fault->rule) || !inject_select(fault, &(struct inject_point){0}, &strike.match))
            continue;
        faults_note(&strike);
        return &fault->rule;
    }
    return NULL;
}

/* --- telling ---------------------------------------------------------------------------------------------- */

static void tell_later(const struct inject_strike *strike)
{
    bool room;

    lock_acquire(&lock);
    room = strike_count < STRIKES;
    if (room)
        strikes[strike_count++] = *strike;
    lock_release(&lock);
    if (room)
        helper_kick();
}

void faults_note(const struct inject_strike *strike)
{
    if (atomic_fetch_add_explicit(&strike->fault->struck, 1, memory_order_relaxed) < TOLD_STRIKES)
        tell_later(strike);
}

void faults_leave_out(struct inject_fault *fault)
{
    if (!atomic_exchange_explicit(&fault->left_out, true, memory_order_relaxed))
        tell_later(&(struct inject_strike){.fault = fault, .left_out = true});
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
    tells++;
    atomic_fetch_add(&tellers, 1); /* before a strike leaves the list; partner: faults_tell_idle() */
    while (next(&strike))
        explainer_tell_strike(&strike);
    atomic_fetch_sub(&tellers, 1);
    tells--;
    errno = saved;
}

void faults_tell_idle(void)
{
    struct inject_plan *plan = inject_loaded();

    faults_tell();
    while (atomic_load(&tellers) > tells)
        sched_yield();
    for (uint32_t i = 0; plan && i < plan->count; i++) {
        if (!atomic_load_explicit(&plan->faults[i]->struck, memory_order_relaxed))
            explainer_tell_strike(&(struct inject_strike){
                .fault = plan->faults[i],
                .match = atomic_load_explicit(&plan->faults[i]->matched, memory_order_relaxed)});
    }
}
