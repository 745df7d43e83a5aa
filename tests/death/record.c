/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Points that a traced run finds. It single-steps each function of the adapter, with all that it calls, REPEATS
 * times: from a breakpoint at its first instruction until it returns, or until nothing new has come for long. What
 * one thread does between two stores that others see, or a store and a system call, is the same to all of them: there
 * a death is one point, whichever instruction it is at.
 *
 * A trial has one breakpoint, at the point's instruction, so that the victim comes there as fast as without a tracer.
 * Not at the same occurrence as in the traced run, as threads and peers run freely, but at one that stores where
 * others see it, too.
 *
 * A copy is a point before it, behind its first element or vector, and behind each store of the C library's that is
 * another instruction: of a longer part of it the peer finds no more than other numbers of bytes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "code.h"
#include "decode.h"
#include "mappings.h"
#include "tracer.h"

#define REPEATS     2u
#define QUIET       50000u /* instructions without a new point, as of a loop that lasts as long as its thread */
#define STACK_WORDS 96u
#define TRAP        0xccu

struct breakpoint {
    uintptr_t at;
    bool there;
    unsigned hits;
};

/* A thread that is stepped, until its stack is above `base`. */
struct walk {
    bool on;
    uint64_t base, at;         /* `at`: the instruction that it is in front of */
    struct breakpoint *lifted; /* the thread executes what was there */
    uintptr_t until;           /* it runs to there, past the rounds of a string instruction */
    uintptr_t entry;           /* where it began, and which call of that this was */
    unsigned hit;
    unsigned quiet;    /* instructions since the last new point */
    struct point last; /* behind what it stored last, if nothing has followed yet */
    bool has_last;
};

static struct walk walks[THREADS];
static struct breakpoint *breakpoints;
static unsigned breakpoint_count;
static int memory; /* of the victim */

static void poke(uintptr_t at, bool trap)
{
    const uint8_t byte = trap ? TRAP : *(const uint8_t *)at;

    if (pwrite(memory, &byte, 1, (off_t)at) != 1 && errno != EIO && errno != ESRCH)
        perror("/proc/PID/mem");
}

static struct walk *walk_of(const struct thread *thread)
{
    return &walks[thread - threads];
}

static void go(struct thread *thread, enum __ptrace_request how)
{
    if (ptrace(how, thread->tid, NULL, (void *)(uintptr_t)thread->signal) == 0 || errno == ESRCH) {
        thread->stopped = false;
        thread->signal = 0;
    }
}

/* Of a thread behind a breakpoint: in front of what is there. */
static void back(const struct thread *thread, struct user_regs_struct *regs)
{
    regs->rip--;
    ptrace(PTRACE_SETREGS, thread->tid, NULL, regs);
}

/* The adapter's function that has called, as far as the stack tells. */
static uintptr_t caller_of(const struct trace *trace, const struct user_regs_struct *regs)
{
    uint64_t words[STACK_WORDS];
    struct iovec here = {words, sizeof(words)}, there = {(void *)regs->rsp, sizeof(words)};
    ssize_t got = process_vm_readv(trace->pid, &here, 1, &there, 1, 0);

    if (got < 0) { /* the end of the stack is near */
        here.iov_len = there.iov_len = 64;
        got = process_vm_readv(trace->pid, &here, 1, &there, 1, 0);
    }
    for (ssize_t i = 0; i < got / 8; i++)
        if (code_is_ours(words[i]))
            return words[i];
    return 0;
}

void record_name(const struct point *point, char name[static PLACE_MAX])
{
    static const char *const whens[] = {"before", "behind", "within"};
    char at[56], from[56] = "";

    code_place(point->at, at, sizeof(at));
    if (point->entry || point->caller)
        code_place(point->entry ? point->entry : point->caller, from, sizeof(from));
    snprintf(name, PLACE_MAX, "%s %s%s%s", whens[point->when], at, from[0] ? " from " : "", from);
}

/* --- the traced run --------------------------------------------------------------------------------------------- */

static uint64_t key_of(const struct point *point)
{
    return hash(hash(point->at, point->caller), point->when) | 1;
}

/* True: it is new. */
static bool add(struct points *points, const struct point *point)
{
    if (count_key(key_of(point)) != 1)
        return false;
    if (points->count == POINTS_MAX) {
        fprintf(stderr, "more than %u points\n", POINTS_MAX);
        abort();
    }
    points->list[points->count++] = *point;
    return true;
}

/* Nothing that is a point by itself follows the last store. */
static void end_last(const struct trace *trace, struct walk *walk)
{
    if (walk->has_last)
        add(trace->record, &walk->last);
    walk->has_last = false;
}

static struct breakpoint *breakpoint_at(uintptr_t at)
{
    unsigned low = 0, high = breakpoint_count;

    while (low < high) {
        const unsigned middle = (low + high) / 2;

        if (breakpoints[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < breakpoint_count && breakpoints[low].at == at ? &breakpoints[low] : NULL;
}

static void note_step(const struct trace *trace, const struct walk *walk, const struct user_regs_struct *regs)
{
    const struct point point = {.entry = walk->entry, .hit = walk->hit, .at = regs->rip};

    if (code_is_ours(regs->rip))
        add(trace->record, &point);
}

static void note_store(const struct trace *trace, struct walk *walk, const struct user_regs_struct *regs,
                       const struct access_of *access)
{
    struct point point = {.at = regs->rip};

    if (!mappings_others_see(trace->pid, access))
        return;
    if (!code_is_ours(regs->rip) && !(point.caller = caller_of(trace, regs)))
        return;
    if (add(trace->record, &point))
        walk->has_last = false;
    else
        end_last(trace, walk);
    walk->last = point;
    walk->last.when = WHEN_BEHIND;
    walk->has_last = true;
    point.when = WHEN_BETWEEN;
    if (access->repeats)
        add(trace->record, &point);
}

/* The thread is in front of an instruction. */
static void step(const struct trace *trace, struct walk *walk, const struct user_regs_struct *regs)
{
    const uint8_t *const code = (const void *)(uintptr_t)regs->rip;
    const unsigned known = trace->record->count;
    struct breakpoint *b;
    struct access_of access;

    walk->at = regs->rip;
    if (walk->lifted && walk->lifted->there && !over)
        poke(walk->lifted->at, true);
    walk->lifted = NULL;
    if (over || regs->rsp > walk->base || walk->quiet > QUIET) {
        end_last(trace, walk);
        walk->on = false;
        return;
    }
    b = breakpoint_at(regs->rip);
    if (b && b->there) {
        b->there = ++b->hits < REPEATS;
        poke(b->at, false);
        walk->lifted = b;
    }
    if (b && walk->entry == 0) {
        walk->entry = b->at;
        walk->hit = b->hits;
    }
    if (!code_is_known(regs->rip))
        return;
    access = decode(code, regs);
    if (trace->kind == POINTS_STEPS) {
        note_step(trace, walk, regs);
    } else if (code[0] == 0x0f &&
               code[1] == 0x05) { /* syscall: before and after it are points of other kinds */
        end_last(trace, walk);
        mappings_forget();
    } else {
        note_store(trace, walk, regs, &access);
    }
    walk->quiet = trace->record->count == known ? walk->quiet + 1 : 0;
    if (access.access == ACCESS_STRING && access.repeats && regs->rcx > 1) {
        walk->until = regs->rip + access.bytes;
        poke(walk->until, true);
    }
}

static void set_breakpoints(const struct trace *trace)
{
    unsigned count;
    const struct function *const functions = code_functions(&count);

    if (!breakpoints)
        breakpoints = calloc(count, sizeof(*breakpoints));
    for (unsigned i = 0; breakpoints && i < count; i++) {
        if (trace->kind == POINTS_STEPS && !functions[i].watched)
            continue;
        breakpoints[breakpoint_count++] = (struct breakpoint){.at = functions[i].at, .there = true};
        poke(functions[i].at, true);
    }
}

static bool runs_to(uintptr_t at)
{
    for (unsigned i = 0; i < thread_count; i++)
        if (walks[i].until == at)
            return true;
    return false;
}

/* What was stepped was a breakpoint that another thread had put there meanwhile. */
static bool met_another(const struct thread *thread, const struct walk *walk,
                        const struct user_regs_struct *regs)
{
    siginfo_t info;

    if (regs->rip != walk->at + 1 || !(breakpoint_at(walk->at) || runs_to(walk->at)) ||
        ptrace(PTRACE_GETSIGINFO, thread->tid, NULL, &info) || info.si_code != SI_KERNEL)
        return false;
    poke(walk->at, false);
    return true;
}

static void take_trap(const struct trace *trace, struct thread *thread)
{
    struct walk *const walk = walk_of(thread);
    struct user_regs_struct regs;

    if (ptrace(PTRACE_GETREGS, thread->tid, NULL, &regs))
        return;
    if (walk->on && !walk->until) {
        if (met_another(thread, walk, &regs))
            back(thread, &regs);
        else
            step(trace, walk, &regs);
        return;
    }
    if (walk->until || breakpoint_at(regs.rip - 1)) {
        if (regs.rip - 1 == walk->until || breakpoint_at(regs.rip - 1))
            back(thread, &regs);
        if (walk->until)
            poke(walk->until, false);
        else
            *walk = (struct walk){.on = true, .base = regs.rsp};
        walk->until = 0;
        step(trace, walk, &regs);
    } else if (runs_to(regs.rip - 1)) { /* another thread, which is then met at a function that it calls */
        poke(regs.rip - 1, false);
        back(thread, &regs);
    } else if (!begun) {
        begun = true;
        set_breakpoints(trace);
    } else {
        over = true;
        for (unsigned i = 0; i < breakpoint_count; i++)
            if (breakpoints[i].there)
                poke(breakpoints[i].at, false);
    }
}

static bool open_memory(const struct trace *trace)
{
    char name[32];

    snprintf(name, sizeof(name), "/proc/%d/mem", trace->pid);
    memory = open(name, O_RDWR | O_CLOEXEC);
    if (memory < 0)
        perror(name);
    return memory >= 0;
}

/* The next thread that has stopped and is to go on. NULL: it is over, as *ret_traced says. */
static struct thread *next_stop(struct trace *trace, int *ret_status, enum traced *ret_traced)
{
    for (;;) {
        const pid_t tid = waitpid(-1, ret_status, __WALL);

        if (tracer_alarm) {
            stop_all(trace);
            *ret_traced = TRACED_STUCK;
            return NULL;
        }
        *ret_traced = TRACED_ENDED;
        if (tid < 0)
            return NULL;
        take_event(trace, tid, *ret_status);
        if (all_ended(trace))
            return NULL;
        if (WIFSTOPPED(*ret_status))
            return thread_of(tid, trace->pid);
    }
}

enum traced record_run(struct trace *trace)
{
    struct thread *thread;
    enum traced traced;
    int status;

    if (!open_memory(trace))
        return TRACED_STUCK;
    for (unsigned i = 0; i < trace->record->count; i++) /* of a run before */
        count_key(key_of(&trace->record->list[i]));
    while ((thread = next_stop(trace, &status, &traced))) {
        const struct walk *const walk = walk_of(thread);

        if (is_plain_trap(status))
            take_trap(trace, thread);
        go(thread, walk->on && !walk->until ? PTRACE_SINGLESTEP : PTRACE_CONT);
    }
    trace->points = trace->record->count;
    return traced;
}

/* --- to a point ------------------------------------------------------------------------------------------------- */

/* The thread executes the instruction that it is in front of; `whole`: all rounds of a string instruction. Others go
 * on. */
static void execute(struct trace *trace, struct thread *thread, const struct user_regs_struct *regs,
                    bool whole)
{
    const struct access_of access = decode((const void *)(uintptr_t)regs->rip, regs);
    const uintptr_t until =
        whole && access.access == ACCESS_STRING && access.repeats ? regs->rip + access.bytes : 0;
    struct user_regs_struct behind;
    int status;

    if (until)
        poke(until, true);
    go(thread, until ? PTRACE_CONT : PTRACE_SINGLESTEP);
    if (waitpid(thread->tid, &status, __WALL) == thread->tid)
        take_event(trace, thread->tid, status);
    if (!until)
        return;
    poke(until, false);
    if (thread->stopped && !ptrace(PTRACE_GETREGS, thread->tid, NULL, &behind) && behind.rip == until + 1)
        back(thread, &behind);
}

static bool is_there(const struct trace *trace, const struct user_regs_struct *regs)
{
    struct access_of access;

    if (trace->kind == POINTS_STEPS)
        return true;
    if (trace->there->caller && caller_of(trace, regs) != trace->there->caller)
        return false;
    access = decode((const void *)(uintptr_t)regs->rip, regs);
    mappings_forget();
    return mappings_others_see(trace->pid, &access) && (trace->there->when != WHEN_BETWEEN || regs->rcx > 1);
}

static void pass(struct trace *trace, struct thread *thread, const struct user_regs_struct *regs)
{
    const enum when when = trace->there->when;

    poke(regs->rip, false);
    if (when != WHEN_BEFORE)
        execute(trace, thread, regs, when == WHEN_BEHIND);
}

/* A trap of the victim. True: it is at the point. */
static bool meets(struct trace *trace, struct thread *thread, unsigned *calls)
{
    const struct point *const point = trace->there;
    const bool entering = point->entry && *calls < point->hit;
    struct user_regs_struct regs;

    if (ptrace(PTRACE_GETREGS, thread->tid, NULL, &regs))
        return false;
    if (begun && (regs.rip - 1 == point->at || (point->entry && regs.rip - 1 == point->entry))) {
        back(thread, &regs);
        if (entering && regs.rip == point->entry && ++*calls == point->hit) {
            poke(point->entry, false);
            poke(point->at, true);
            return regs.rip == point->at;
        }
        if (over || (regs.rip == point->entry && *calls >= point->hit && regs.rip != point->at))
            return false; /* it is taken away already */
        if (!entering && regs.rip == point->at && is_there(trace, &regs)) {
            pass(trace, thread, &regs);
            return true;
        }
        poke(regs.rip, false);
        execute(trace, thread, &regs, true);
        poke(regs.rip, true);
        return false;
    }
    if (!begun) {
        begun = true;
        poke(point->entry ? point->entry : point->at, true);
    } else {
        over = true;
        poke(point->at, false);
        if (point->entry)
            poke(point->entry, false);
    }
    return false;
}

enum traced record_reach(struct trace *trace)
{
    struct thread *thread;
    enum traced traced;
    unsigned calls = 0;
    int status;

    if (!open_memory(trace))
        return TRACED_STUCK;
    while ((thread = next_stop(trace, &status, &traced))) {
        if (is_plain_trap(status) && meets(trace, thread, &calls)) {
            record_name(trace->there, trace->place);
            stop_all(trace);
            return TRACED_STOPPED;
        }
        if (thread->stopped)
            go(thread, PTRACE_CONT);
    }
    return traced;
}
