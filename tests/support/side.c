/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "side.h"
#include "network.h"
#include "runner.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_SECONDS = 60 };
/* Then who waits sleeps between two looks: among many that only yield nobody gets on who has something to do.
 */
enum { TURNS_AWAKE = 1000 };

struct side sides[1 + FARS_MAX];

static unsigned int
    self; /* the side that this process is; the near one is also every far one of its own process */
static unsigned int far_count;
static pthread_t main_thread;
static sigjmp_buf serving;                                     /* where a complaint of a far side goes */
static pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER; /* this process's shared->side[].waits_for */

static const struct {
    const char *name;
    const char *local; /* SOFTHCA_LOCAL */
    const char *path;  /* SOFTHCA_PATH */
    bool two;
} path_table[] = {
    [PATH_PROCESS] = {"process", NULL, NULL, false},
    [PATH_RING] = {"ring", "ring", NULL, true},
    [PATH_CMA] = {"cma", "cma", NULL, true},
    [PATH_AUTO] = {"auto", "auto", NULL, true},
    [PATH_COPY] = {"copy", "copy", NULL, true},
    [PATH_MAPPED] = {"mapped", "mapped", NULL, true},
    [PATH_WIRE] = {"wire", NULL, "wire", true},
    [PATH_WIRE_PROCESS] = {"wire-process", NULL, "wire", false},
};
_Static_assert(sizeof path_table / sizeof *path_table == PATHS, "each path has a row");

const char *path_name(enum path path)
{
    return path_table[path].name;
}

enum path path_under_test(void)
{
    const char *text = getenv("SOFTHCA_TEST_PATH");

    if (!text)
        return PATH_PROCESS;
    for (int i = 0; i < PATHS; i++)
        if (!strcmp(text, path_table[i].name))
            return (enum path)i;
    fprintf(stderr, "SOFTHCA_TEST_PATH=%s names no path\n", text);
    exit(2);
}

bool two_processes(void)
{
    return path_table[path_under_test()].two;
}

bool over_wire(void)
{
    return path_table[path_under_test()].path != NULL;
}

/* UDP port 4791 is the network namespace's: whoever else is on this machine shall not have it. Whoever
 * watches the network has made one for us. */
void sides_prepare(void)
{
    if (over_wire() && !getenv("SOFTHCA_TEST_WATCHED") && !own_network())
        fprintf(stderr, "# in the machine's own network namespace: %s\n", strerror(errno));
}

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct patience patience_begin(const char *format, ...)
{
    struct patience patience = {.until = now_ns() + (uint64_t)PATIENCE_SECONDS * slowness() * 1000000000u};
    va_list args;

    va_start(args, format);
    pthread_mutex_lock(&waits_lock);
    vsnprintf(shared->side[self].waits_for, SIDE_TEXT, format, args);
    pthread_mutex_unlock(&waits_lock);
    va_end(args);
    return patience;
}

void patience_end(void)
{
    pthread_mutex_lock(&waits_lock);
    shared->side[self].waits_for[0] = '\0';
    pthread_mutex_unlock(&waits_lock);
}

void patience_wait(struct patience *patience, const char *file, int line)
{
    if (now_ns() > patience->until)
        complain(file, line, "waited %u s in vain for %s", PATIENCE_SECONDS * slowness(),
                 shared->side[self].waits_for);
    if (++patience->turns < TURNS_AWAKE)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

int patience_left_ms(const struct patience *patience)
{
    const uint64_t now = now_ns();

    return now >= patience->until ? 0 : (int)((patience->until - now) / 1000000u) + 1;
}

void complain(const char *file, int line, const char *format, ...)
{
    char text[SIDE_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!pthread_equal(pthread_self(), main_thread)) {
        fprintf(stderr, "%s:%d: side %u, in a thread: %s\n", file, line, self, text);
        fflush(NULL);
        _exit(1);
    }
    if (self) {
        snprintf(shared->side[self].complaint, SIDE_TEXT, "%s:%d: %.300s", file, line, text);
        siglongjmp(serving, 1);
    }
    print_error("%s\n", text);
    _fail(file, line);
    abort();
}

bool side_is_here(const struct side *side)
{
    return side->index == self || side->sock < 0;
}

/* A far side's life: read a bell, run what the shared page names, ring back. */
static void serve(int sock)
{
    struct shared_side *mine = &shared->side[self];
    char bell;

    while (recv(sock, &bell, 1, 0) == 1) {
        mine->failed = true;
        if (!sigsetjmp(serving, 1)) {
            mine->fn(mine->arg);
            mine->failed = false;
        }
        fflush(NULL);
        if (send(sock, &bell, 1, MSG_NOSIGNAL) != 1)
            break;
    }
}

void sides_begin(unsigned int fars)
{
    const enum path path = path_under_test();

    if (path_table[path].local)
        setenv("SOFTHCA_LOCAL", path_table[path].local, 1);
    if (path_table[path].path)
        setenv("SOFTHCA_PATH", path_table[path].path, 1);
    main_thread = pthread_self();
    far_count = fars;
    sides[0] = (struct side){.index = 0, .pid = getpid(), .sock = -1};
    for (unsigned int i = 1; i <= fars; i++) {
        int pair[2] = {-1, -1};

        sides[i] = (struct side){.index = i, .pid = getpid(), .sock = -1};
        if (!two_processes())
            continue;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
            abort();
        fflush(NULL);
        sides[i].pid = fork();
        if (sides[i].pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            self = i;
            main_thread = pthread_self();
            close(pair[0]);
            for (unsigned int j = 1; j < i; j++)
                close(sides[j].sock);
            serve(pair[1]);
            _exit(0);
        }
        close(pair[1]);
        sides[i].sock = pair[0];
    }
}

void sides_end(void)
{
    for (unsigned int i = 1; i <= far_count; i++) {
        int status;

        if (sides[i].sock < 0)
            continue;
        close(sides[i].sock);
        if (sides[i].dead)
            continue;
        /* it may be stopped, or stuck in a call of a test that failed */
        kill(sides[i].pid, SIGCONT);
        if (shared->side[i].waits_for[0])
            kill(sides[i].pid, SIGKILL);
        waitpid(sides[i].pid, &status, 0);
    }
}

static void *run_in_thread(void *arg)
{
    struct call *call = arg;

    call->fn(call->arg);
    return NULL;
}

void side_start(struct call *call, struct side *side, side_fn *fn, void *arg, size_t length)
{
    struct shared_side *there = &shared->side[side->index];

    *call = (struct call){.side = side, .fn = fn, .arg = arg, .length = length};
    if (side_is_here(side)) {
        if (pthread_create(&call->thread, NULL, run_in_thread, call))
            complain(__FILE__, __LINE__, "pthread_create");
        return;
    }
    CHECK(length <= SIDE_ARG_MAX, "%zu bytes are too many for a call", length);
    there->fn = fn;
    there->length = length;
    if (length)
        memcpy(there->arg, arg, length);
    CHECK(send(side->sock, "!", 1, MSG_NOSIGNAL) == 1, "side %u is gone", side->index);
}

void side_finish(struct call *call)
{
    struct shared_side *there = &shared->side[call->side->index];
    char bell;
    ssize_t got;

    if (side_is_here(call->side)) {
        pthread_join(call->thread, NULL);
        return;
    }
    do {
        got = recv(call->side->sock, &bell, 1, 0);
    } while (got < 0 && errno == EINTR);
    if (got != 1) {
        int status = 0;

        call->side->dead = true;
        waitpid(call->side->pid, &status, 0);
        complain(__FILE__, __LINE__, "side %u died (%s)", call->side->index,
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit");
    }
    if (there->failed)
        complain(__FILE__, __LINE__, "on side %u: %s", call->side->index, there->complaint);
    if (call->length)
        memcpy(call->arg, there->arg, call->length);
}

void side_call(struct side *side, side_fn *fn, void *arg, size_t length)
{
    struct call call;

    if (side_is_here(side)) {
        fn(arg);
        return;
    }
    side_start(&call, side, fn, arg, length);
    side_finish(&call);
}

void side_kill(struct side *side)
{
    int status;

    side->dead = true;
    kill(side->pid, SIGKILL);
    waitpid(side->pid, &status, 0);
}

void side_stop(struct side *side)
{
    int status;

    kill(side->pid, SIGSTOP);
    waitpid(side->pid, &status, WUNTRACED);
}

void side_continue(struct side *side)
{
    kill(side->pid, SIGCONT);
}
