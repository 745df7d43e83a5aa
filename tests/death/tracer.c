/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The victim's threads run one at a time: the one that is looked at runs as long as it can, and the others only while
 * it is blocked in the kernel, or has polled in vain YIELDS times. So the points of a run are the same in the next
 * one, but for what the peer, who runs freely, is early or late with.
 *
 * A point is before and after each system call whose caller is in the adapter's libraries; calls from one place count
 * REPEATS times. Around them all stores that others may see have happened, or not: those between are points of
 * record.c, under which all threads run freely. */
#include "tracer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "code.h"

#define YIELDS      40u
#define REPEATS     2u
#define SEEN        32768u /* a power of two */
#define FRAMES      3u
#define STACK_WORDS 96u

struct thread threads[THREADS];
unsigned thread_count;
bool begun, over;
volatile int tracer_alarm;
static struct {
    uint64_t key;
    unsigned count;
} seen[SEEN];

/* --- threads ----------------------------------------------------------------------------------------------------- */

struct thread *thread_of(pid_t tid, pid_t pid)
{
    for (unsigned i = 0; i < thread_count; i++)
        if (threads[i].tid == tid)
            return &threads[i];
    if (thread_count == THREADS) {
        fprintf(stderr, "too many threads\n");
        abort();
    }
    threads[thread_count] = (struct thread){.tid = tid, .main_thread = tid == pid};
    return &threads[thread_count++];
}

/* In the kernel, and not on its way out: only somebody else can make it go on. */
static bool is_blocked(const struct trace *trace, const struct thread *thread)
{
    char name[64], text[256];
    const char *state;
    ssize_t got;
    int fd;

    snprintf(name, sizeof(name), "/proc/%d/task/%d/stat", trace->pid, thread->tid);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    got = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (got <= 0)
        return true;
    text[got] = '\0';
    state = strrchr(text, ')');
    return state && state[1] && (state[2] == 'S' || state[2] == 'D' || state[2] == 'Z' || state[2] == 'X');
}

static void resume(const struct trace *trace, struct thread *thread)
{
    const enum __ptrace_request how =
        begun && !over && trace->kind != POINTS_NONE ? PTRACE_SYSCALL : PTRACE_CONT;

    if (ptrace(how, thread->tid, NULL, (void *)(uintptr_t)thread->signal) == 0 || errno == ESRCH) {
        thread->stopped = false;
        thread->signal = 0;
    }
}

uint64_t hash(uint64_t value, uint64_t more)
{
    value ^= more + 0x9e3779b97f4a7c15u + (value << 6) + (value >> 2);
    return value * 0xff51afd7ed558ccdu;
}

unsigned count_key(uint64_t key)
{
    for (unsigned i = (unsigned)key, tries = 0; tries < SEEN; i++, tries++) {
        if (!seen[i % SEEN].count)
            seen[i % SEEN].key = key;
        if (seen[i % SEEN].key == key)
            return ++seen[i % SEEN].count;
    }
    return ~0u;
}

/* The adapter's functions on the stack. 0: it was not the adapter who called. */
static uint64_t place_of(const struct trace *trace, const struct user_regs_struct *regs, uint64_t *ret_first)
{
    uint64_t words[STACK_WORDS], key = regs->orig_rax;
    struct iovec here = {words, sizeof(words)}, there = {(void *)regs->rsp, sizeof(words)};
    unsigned frames = 0;
    ssize_t got = process_vm_readv(trace->pid, &here, 1, &there, 1, 0);

    if (got < 0) { /* the end of the stack is near */
        here.iov_len = there.iov_len = 64;
        got = process_vm_readv(trace->pid, &here, 1, &there, 1, 0);
    }
    for (ssize_t i = 0; i < got / 8 && frames < FRAMES; i++)
        if (code_is_ours(words[i])) {
            key = hash(key, words[i]);
            if (!frames++)
                *ret_first = words[i];
        }
    return frames ? key : 0;
}

static bool reached(struct trace *trace, const char *when, uint64_t address, long call)
{
    if (++trace->points != trace->point)
        return false;
    snprintf(trace->place, sizeof(trace->place), "%s call %ld at +0x%lx", when, call,
             (unsigned long)code_offset(address));
    return true;
}

/* A stop of the thread that is looked at, at the entry or the exit of a call. */
static bool passes_call(struct trace *trace, struct thread *thread)
{
    struct user_regs_struct regs;
    struct __ptrace_syscall_info info;
    uint64_t first = 0, key;

    if (ptrace(PTRACE_GETREGS, thread->tid, NULL, &regs))
        return false;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread->tid, (void *)sizeof(info), &info) < 0)
        return false;
    thread->in_call = info.op == PTRACE_SYSCALL_INFO_ENTRY;
    if (regs.orig_rax == SYS_sched_yield) {
        thread->yields += thread->in_call;
        return false;
    }
    key = place_of(trace, &regs, &first);
    if (!key)
        return false;
    key = hash(key, thread->in_call);
    return count_key(key ? key : 1) <= REPEATS &&
           reached(trace, thread->in_call ? "before" : "after", first, (long)regs.orig_rax);
}

/* --- events ---------------------------------------------------------------------------------------------------- */

static bool looked_at(const struct trace *trace, const struct thread *thread)
{
    return thread->main_thread == (trace->kind == POINTS_PROGRAM);
}

void take_event(struct trace *trace, pid_t tid, int status)
{
    struct thread *const thread = thread_of(tid, trace->pid);

    if (!WIFSTOPPED(status)) {
        thread->ended = true;
        thread->stopped = false;
        if (tid == trace->pid)
            trace->exit_status = status;
        return;
    }
    thread->stopped = true;
    if (status >> 16 || WSTOPSIG(status) == (SIGTRAP | 0x80) || WSTOPSIG(status) == SIGTRAP)
        return;
    thread->signal = WSTOPSIG(status);
}

/* The marks of the victim are breakpoints in its own code. */
static void takes_mark(void)
{
    if (begun) {
        over = true;
        return;
    }
    begun = true;
    for (unsigned i = 0; i < thread_count; i++) /* calls that they are in were not seen to begin */
        if (!threads[i].stopped && !threads[i].ended)
            ptrace(PTRACE_INTERRUPT, threads[i].tid, NULL, NULL);
}

void tracer_attach(const struct trace *trace)
{
    memset(seen, 0, sizeof(seen));
    thread_count = 0;
    begun = over = false;
    if (ptrace(PTRACE_SEIZE, trace->pid, NULL,
               (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL))) {
        perror("PTRACE_SEIZE");
        abort();
    }
    thread_of(trace->pid, trace->pid);
}

static bool is_known(pid_t tid)
{
    for (unsigned i = 0; i < thread_count; i++)
        if (threads[i].tid == tid)
            return true;
    return false;
}

/* Of threads that the victim has just created: each is traced, and stops before its first instruction. */
static void await_new_threads(struct trace *trace)
{
    char name[32];
    DIR *tasks;

    snprintf(name, sizeof(name), "/proc/%d/task", trace->pid);
    tasks = opendir(name);
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        const pid_t tid = atoi(entry->d_name);
        int status;

        if (tid > 0 && !is_known(tid) && waitpid(tid, &status, __WALL) == tid)
            take_event(trace, tid, status);
    }
    if (tasks)
        closedir(tasks);
}

void stop_all(struct trace *trace)
{
    for (unsigned i = 0; i < thread_count; i++) {
        struct thread *const thread = &threads[i];

        if (thread->stopped || thread->ended || ptrace(PTRACE_INTERRUPT, thread->tid, NULL, NULL))
            continue;
        while (!thread->stopped && !thread->ended) {
            int status;
            const pid_t tid = waitpid(thread->tid, &status, __WALL);

            if (tid < 0)
                break;
            take_event(trace, tid, status);
        }
    }
    await_new_threads(trace);
}

bool is_plain_trap(int status)
{
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP && !(status >> 16);
}

bool all_ended(const struct trace *trace)
{
    for (unsigned i = 0; i < thread_count; i++)
        if (threads[i].tid == trace->pid)
            return threads[i].ended;
    return true;
}

/* Which thread goes on. NULL: nobody can, or the one that should is at it. *ret_wait: sleep until something happens. */
static struct thread *choose(const struct trace *trace, bool *ret_wait)
{
    struct thread *waits = NULL, *other = NULL;
    bool busy = false;

    *ret_wait = false;
    for (unsigned i = 0; i < thread_count; i++) {
        struct thread *const thread = &threads[i];

        if (thread->ended)
            continue;
        if (!begun || over || trace->kind == POINTS_NONE) {
            if (thread->stopped)
                return thread;
            continue;
        }
        if (looked_at(trace, thread)) {
            if (thread->stopped && thread->yields < YIELDS)
                return thread;
            if (thread->stopped)
                waits = thread;
            else
                busy |= !is_blocked(trace, thread);
        } else if (thread->stopped) {
            other = thread;
        }
    }
    if (!begun || over || trace->kind == POINTS_NONE) {
        *ret_wait = true;
        return NULL;
    }
    if (busy)
        return NULL;
    if (other)
        return other;
    for (unsigned i = 0; i < thread_count; i++)
        if (!threads[i].ended && !threads[i].stopped && !looked_at(trace, &threads[i]) &&
            !is_blocked(trace, &threads[i]))
            return NULL;
    if (waits) {
        waits->yields = 0;
        return waits;
    }
    *ret_wait = true;
    return NULL;
}

enum traced tracer_run(struct trace *trace)
{
    trace->points = 0;
    if (trace->record)
        return record_run(trace);
    if (trace->there)
        return record_reach(trace);
    for (;;) {
        int status;
        bool wait;
        struct thread *const next = choose(trace, &wait);
        pid_t tid;

        if (next)
            resume(trace, next);
        tid = waitpid(-1, &status, __WALL | (wait ? 0 : WNOHANG));
        if (tracer_alarm) {
            stop_all(trace);
            return TRACED_STUCK; /* the alarm of the trial */
        }
        if (tid < 0)
            return TRACED_ENDED;
        if (tid == 0) {
            if (!next)
                sched_yield();
            continue;
        }
        take_event(trace, tid, status);
        if (all_ended(trace))
            return TRACED_ENDED;
        if (!WIFSTOPPED(status))
            continue;
        struct thread *const thread = thread_of(tid, trace->pid);
        bool there = false;

        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            there = looked_at(trace, thread) ? passes_call(trace, thread) && !over : false;
        else if (is_plain_trap(status))
            takes_mark();
        if (there) {
            stop_all(trace);
            return TRACED_STOPPED;
        }
    }
}

void tracer_release(const struct trace *trace)
{
    /* The main thread last: when it ends the process, a thread that is still traced waits for us to reap it. */
    for (unsigned i = thread_count; i-- > 0;)
        if (!threads[i].ended)
            ptrace(PTRACE_DETACH, threads[i].tid, NULL, (void *)(uintptr_t)threads[i].signal);
}

void tracer_kill(const struct trace *trace)
{
    int status;

    kill(trace->pid, SIGKILL);
    /* Also threads that are not known yet: while one is not reaped, the process has not ended. */
    while (waitpid(-1, &status, __WALL) > 0 || errno == EINTR)
        ;
}
