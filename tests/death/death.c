/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* usage: death [--every N] [--from K] [--kind program|helper|stores|steps|stop] [--scenario NAME] [--point N] [--at TEXT]
 *              [--journal FILE]
 *
 * A trial for each point of each scenario (death.h), or for every Nth, on the path that SOFTHCA_LOCAL and
 * SOFTHCA_PATH choose: of all kinds but steps, whose points are those of stores to everybody else. Prints TAP: a case
 * for each scenario and kind of points, with the number of points that were died at. --at: only those whose name has
 * the text. A sweep that was interrupted goes on with what the journal has not; the journal is of one path. */
#include "death.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "code.h"
#include "network.h"

#define LIMIT_S        120 /* of a trial, on a machine with much else to do */
#define RECORD_LIMIT_S 600 /* of a traced run */
#define RECORDINGS     2   /* traced runs, because threads and peers run freely in them */
#define RECORD_TRIES   5   /* for so many that end as without a tracer */
#define TRIES          3   /* to reach a point that was found */

static const char *const scenario_names[SCENARIOS] = {"setup", "transfer", "teardown", "listen", "connect"};
static const char *const kind_names[POINT_KINDS + 1] = {"none",   "program", "helper",
                                                        "stores", "steps",   "stop"};
enum { KIND_STOP = POINT_KINDS }; /* at points of POINTS_PROGRAM; of POINTS_HELPER in the transfer */

/* What the tracing process tells. */
struct outcome {
    enum traced traced;
    unsigned points;
    int exit_status;
    char place[PLACE_MAX];
};

struct trial {
    enum scenario scenario;
    unsigned kind, point;
    const struct point *there; /* of stores and steps, which a traced run has found */
    struct points *record;     /* this is such a run */
    struct outcome outcome;
    struct verdict first, second;
    char why[400]; /* what is wrong; empty: nothing */
};

static struct verdict reference[SCENARIOS];
static int names_most[SCENARIOS]; /* of sockets */

static unsigned limit_s; /* of the trials that are made now */

static void passes(int signal)
{
}

static void rings(int signal)
{
    tracer_alarm = 1;
}

__attribute__((format(printf, 2, 3))) static void fails(struct trial *trial, const char *format, ...)
{
    va_list args;

    if (trial->why[0])
        return;
    va_start(args, format);
    vsnprintf(trial->why, sizeof(trial->why), format, args);
    va_end(args);
}

static void pair_of(int ends[2])
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        perror("socketpair");
        exit(1);
    }
}

/* Names of sockets that the adapters hold in this network namespace. */
static int count_names(void)
{
    FILE *const file = fopen("/proc/net/unix", "re");
    char line[512];
    int count = 0;

    while (file && fgets(line, sizeof(line), file))
        count += strstr(line, "@softhca/") != NULL;
    if (file)
        fclose(file);
    return count;
}

/* Traces the victim; a process of its own, so that all that it waits for is the victim. */
static _Noreturn void trace_victim(const struct trial *trial, int other, int told)
{
    struct trace trace = {.kind = trial->kind != KIND_STOP               ? (enum point_kind)trial->kind
                                  : trial->scenario == SCENARIO_TRANSFER ? POINTS_HELPER
                                                                         : POINTS_PROGRAM,
                          .point = trial->point,
                          .there = trial->there,
                          .record = trial->record};
    struct outcome outcome = {0};
    char go = 0;
    int gate[2];

    pair_of(gate);
    trace.pid = fork();
    if (trace.pid == 0) {
        struct party_sockets sockets = {
            .other = other, .heir = -1, .verdict = -1, .recording = trial->record != NULL};

        signal(SIGTRAP, passes);          /* a mark that comes when it is not traced any more */
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* likewise */
        if (read(gate[0], &go, 1) != 1)
            _exit(5);
        close(gate[0]);
        close(gate[1]);
        close(told);
        party_play(trial->scenario, VICTIM, &sockets, false);
    }
    close(other);
    tracer_attach(&trace);
    if (write(gate[1], &go, 1) != 1)
        _exit(6);
    close(gate[0]);
    close(gate[1]);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = rings}, NULL);
    alarm(limit_s - 20);
    outcome.traced = tracer_run(&trace);
    alarm(0); /* The peer's patience is limited by who hears its verdict. */
    outcome.points = trace.points;
    if (outcome.traced != TRACED_STOPPED)
        outcome.exit_status = trace.exit_status;
    if (outcome.traced == TRACED_STOPPED && trial->kind != KIND_STOP)
        tracer_kill(&trace);
    memcpy(outcome.place, trace.place, sizeof(outcome.place));
    if (outcome.traced == TRACED_STUCK)
        tracer_kill(&trace);
    send(told, &outcome, sizeof(outcome), 0);
    if (outcome.traced == TRACED_STOPPED && trial->kind == KIND_STOP) {
        int status = 0;

        if (read(told, &go, 1) == 1) { /* the peer has lost its patience */
            tracer_release(&trace);
            waitpid(trace.pid, &status, 0);
        } else {
            tracer_kill(&trace);
        }
        outcome.exit_status = status;
        send(told, &outcome, sizeof(outcome), 0);
    }
    _exit(0);
}

static pid_t start_party(const struct trial *trial, enum role role, const struct party_sockets *sockets)
{
    const pid_t pid = fork();

    if (pid)
        return pid;
    for (int fd = 3; fd < 64; fd++)
        if (fd != sockets->other && fd != sockets->heir && fd != sockets->verdict)
            close(fd);
    party_play(trial->scenario, role, sockets, trial->kind == KIND_STOP);
}

static bool receive(int fd, void *data, size_t length)
{
    struct pollfd event = {fd, POLLIN, 0};

    return poll(&event, 1, (int)limit_s * 1000) == 1 && recv(fd, data, length, 0) == (ssize_t)length;
}

static void reap(struct trial *trial, const char *who, pid_t pid)
{
    int status = 0;

    if (trial->why[0])
        kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        fails(trial, "the %s ended by signal %d", who, WTERMSIG(status));
    else if (WEXITSTATUS(status))
        fails(trial, "the %s ended with %d", who, WEXITSTATUS(status));
}

static bool hear_verdict(struct trial *trial, int fd, struct verdict *verdict, const char *when)
{
    if (!receive(fd, verdict, sizeof(*verdict)))
        fails(trial, "the peer hangs, or crashed, %s", when);
    else if (!verdict->good)
        fails(trial, "%s: %s", when, verdict->text);
    return !trial->why[0];
}

static void try_point(struct trial *trial)
{
    int other[2], heir[2], verdict[2], told[2], lie = -1;
    struct party_sockets sockets, heir_sockets;
    pid_t tracer, peer, heir_pid;

    limit_s = trial->record ? RECORD_LIMIT_S : LIMIT_S;
    trial->why[0] = '\0';
    memset(&trial->outcome, 0, sizeof(trial->outcome));
    pair_of(other);
    pair_of(heir);
    pair_of(verdict);
    pair_of(told);
    sockets = (struct party_sockets){.other = other[1],
                                     .heir = heir[1],
                                     .verdict = verdict[1],
                                     .recording = trial->record != NULL,
                                     .most = reference[trial->scenario]};
    heir_sockets = (struct party_sockets){.other = heir[0], .heir = -1, .verdict = -1};
    fflush(NULL);
    peer = start_party(trial, PEER, &sockets);
    tracer = fork();
    if (!tracer) {
        close(other[1]);
        close(heir[0]);
        close(heir[1]);
        close(verdict[0]);
        close(verdict[1]);
        close(told[0]);
        trace_victim(trial, other[0], told[1]);
    }
    if (trial->kind == KIND_STOP)
        lie = other[0];
    else
        close(other[0]);
    close(other[1]);
    close(heir[1]);
    close(verdict[1]);
    close(told[1]);
    if (!receive(told[0], &trial->outcome, sizeof(trial->outcome)))
        fails(trial, "the victim is stuck");
    else if (trial->outcome.traced == TRACED_STUCK)
        fails(trial, "the victim is stuck, point %u not reached", trial->point);
    if (lie >= 0) {
        shutdown(lie, SHUT_RDWR); /* both see the other's end */
        close(lie);
    }
    if (!trial->why[0] && hear_verdict(trial, verdict[0], &trial->first, "the victim dead")) {
        int names = count_names();

        /* Names of services are given back in the background. */
        for (unsigned i = 0; i < (trial->kind == POINTS_NONE ? 300 : 5000) && trial->kind != KIND_STOP &&
                             names > names_most[trial->scenario];
             i++) {
            poll(NULL, 0, 2);
            names = count_names();
        }
        if (trial->kind == POINTS_NONE)
            names_most[trial->scenario] = names;
        else if (trial->kind != KIND_STOP && names > names_most[trial->scenario])
            fails(trial, "%d names of sockets are left, not %d", names, names_most[trial->scenario]);
        if (trial->kind == KIND_STOP && trial->outcome.traced == TRACED_STOPPED) {
            if (write(told[0], "", 1) != 1 || !receive(told[0], &trial->outcome, sizeof(trial->outcome)))
                fails(trial, "the victim does not end when it goes on");
        }
        if (trial->outcome.traced != TRACED_STOPPED || trial->kind == KIND_STOP) {
            if (WIFSIGNALED(trial->outcome.exit_status))
                fails(trial, "the victim ended by signal %d", WTERMSIG(trial->outcome.exit_status));
            else if (WEXITSTATUS(trial->outcome.exit_status))
                fails(trial, "the victim ended with %d", WEXITSTATUS(trial->outcome.exit_status));
        }
        heir_pid = start_party(trial, HEIR, &heir_sockets);
        close(heir[0]);
        hear_verdict(trial, verdict[0], &trial->second, "with an heir");
        reap(trial, "heir", heir_pid);
    } else {
        close(heir[0]);
    }
    if (!trial->why[0] && trial->kind != POINTS_NONE) {
        const struct verdict *const most = &reference[trial->scenario];

        /* A stopped process still has its link. */
        if (trial->kind != KIND_STOP && (trial->first.fds > most->fds || trial->first.maps > most->maps))
            fails(trial, "%d descriptors and %d mappings are left, not %d and %d", trial->first.fds,
                  trial->first.maps, most->fds, most->maps);
        if (trial->second.fds_end > most->fds_end || trial->second.maps_end > most->maps_end)
            fails(trial, "behind the heir %d descriptors and %d mappings are left, not %d and %d",
                  trial->second.fds_end, trial->second.maps_end, most->fds_end, most->maps_end);
    }
    reap(trial, "peer", peer);
    close(told[0]);
    close(verdict[0]);
    if (trial->why[0])
        kill(tracer, SIGKILL); /* and its victim with it */
    waitpid(tracer, NULL, 0);
}

struct options {
    unsigned every, from, point;
    int kind, scenario;
    const char *journal, *at;
};

/* What the journal has of a scenario and kind. */
struct done {
    unsigned died, failures, missed, next; /* the point to go on with */
    bool whole;
};

struct result {
    unsigned died, missed; /* not reached again */
    char first[600];       /* that went wrong */
};

static int find(const char *const *names, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(names[i], name))
            return (int)i;
    fprintf(stderr, "there is no %s\n", name);
    exit(2);
}

static struct options read_options(int argc, char **argv)
{
    struct options options = {.every = 1, .from = 1, .kind = -1, .scenario = -1};

    for (int i = 1; i + 1 < argc; i += 2) {
        const char *const value = argv[i + 1];

        if (!strcmp(argv[i], "--every"))
            options.every = (unsigned)atoi(value);
        else if (!strcmp(argv[i], "--from"))
            options.from = (unsigned)atoi(value);
        else if (!strcmp(argv[i], "--point"))
            options.point = (unsigned)atoi(value);
        else if (!strcmp(argv[i], "--at"))
            options.at = value;
        else if (!strcmp(argv[i], "--journal"))
            options.journal = value;
        else if (!strcmp(argv[i], "--kind"))
            options.kind = find(kind_names, POINT_KINDS + 1, value);
        else if (!strcmp(argv[i], "--scenario"))
            options.scenario = find(scenario_names, SCENARIOS, value);
    }
    return options;
}

static bool make_reference(enum scenario scenario)
{
    const char *const path = getenv("SOFTHCA_PATH");
    /* Which shards of the UDP port the peer reads depends on who came first. */
    const int slack = path && !strcmp(path, "wire") ? 4 : 0;
    struct trial trial = {.scenario = scenario, .kind = POINTS_NONE};

    try_point(&trial);
    if (trial.why[0]) {
        printf("# %s without a death: %s\n", scenario_names[scenario], trial.why);
        return false;
    }
    reference[scenario] = (struct verdict){.fds = trial.first.fds + slack,
                                           .maps = trial.first.maps,
                                           .fds_end = trial.second.fds_end + slack,
                                           .maps_end = trial.second.maps_end};
    return true;
}

/* Of the points that end with the peer's patience, a sample. */
static unsigned every_of(unsigned kind)
{
    return kind == KIND_STOP ? 8 : 1;
}

static bool is_found(unsigned kind)
{
    return kind == POINTS_STORES || kind == POINTS_STEPS;
}

/* Of points that were found, also those that `points` has and were died at: they are taken out of it. */
static struct done read_journal(const struct options *options, enum scenario scenario, unsigned kind,
                                struct points *points)
{
    struct done done = {.next = options->from};
    FILE *const file = options->journal ? fopen(options->journal, "re") : NULL;
    char line[600], scenario_name[16], kind_name[16], what[16];
    unsigned point;
    int text;

    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%15s %15s %u %15s %n", scenario_name, kind_name, &point, what, &text) != 4 ||
            strcmp(scenario_name, scenario_names[scenario]) || strcmp(kind_name, kind_names[kind]))
            continue;
        if (!strcmp(what, "end")) {
            done.whole = true;
            continue;
        }
        done.missed += !strcmp(what, "missed");
        done.died += strcmp(what, "missed") != 0;
        done.failures += !strcmp(what, "failed");
        done.next = point + options->every * every_of(kind);
        line[strcspn(line, ":\n")] = '\0';
        for (unsigned i = 0; points && i < points->count; i++) {
            char name[PLACE_MAX];

            record_name(&points->list[i], name);
            if (!strcmp(name, line + text))
                points->list[i].at = 0;
        }
    }
    if (file)
        fclose(file);
    return done;
}

static void write_journal(const struct options *options, const struct trial *trial, const char *what)
{
    FILE *const file = options->journal ? fopen(options->journal, "ae") : NULL;

    if (!file)
        return;
    fprintf(file, "%s %s %u %s%s%s%s%s\n", scenario_names[trial->scenario], kind_names[trial->kind],
            trial->point, what, trial->outcome.place[0] ? " " : "", trial->outcome.place,
            trial->why[0] ? ": " : "", trial->why);
    fclose(file);
}

static void died(const struct options *options, const struct trial *trial, struct result *result)
{
    result->died++;
    write_journal(options, trial, trial->why[0] ? "failed" : "died");
    if (!trial->why[0])
        return;
    printf("# point %u (%s): %s\n", trial->point, trial->outcome.place, trial->why);
    fflush(stdout);
    if (!result->first[0])
        snprintf(result->first, sizeof(result->first), "point %u (%s): %s", trial->point,
                 trial->outcome.place, trial->why);
}

/* True: all points went well. The first that did not is told again in the result, for whoever reads what is behind
 * it. */
static bool sweep_calls(const struct options *options, enum scenario scenario, unsigned kind,
                        struct result *result)
{
    const unsigned every = options->every * every_of(kind);
    struct done done = read_journal(options, scenario, kind, NULL);

    result->died = done.died;
    for (unsigned point = options->point ? options->point : done.next; !done.whole; point += every) {
        struct trial trial = {.scenario = scenario, .kind = kind, .point = point};

        try_point(&trial);
        if (!trial.why[0] && trial.outcome.traced == TRACED_ENDED) {
            printf("# %u points in all\n", trial.outcome.points);
            write_journal(options, &trial, "end");
            break;
        }
        died(options, &trial, result);
        done.failures += trial.why[0] != '\0';
        if (options->point || done.failures >= 20)
            break;
    }
    return !done.failures;
}

/* *ret_whole: RECORDINGS traced runs came to their end, with all that belongs to the scenario. */
static struct points *find_points(enum scenario scenario, unsigned kind, bool *ret_whole)
{
    struct points *const points =
        mmap(NULL, sizeof(*points), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (points == MAP_FAILED)
        return NULL;
    *ret_whole = false;
    for (unsigned i = 0, whole = 0; i < RECORD_TRIES && !*ret_whole; i++) {
        struct trial trial = {.scenario = scenario, .kind = kind, .record = points};

        try_point(&trial);
        whole += !trial.why[0];
        *ret_whole = whole == RECORDINGS;
        printf("# %u points after %u traced runs%s%s\n", points->count, i + 1, trial.why[0] ? ": " : "",
               trial.why);
        fflush(stdout);
    }
    return points;
}

static bool sweep_found(const struct options *options, enum scenario scenario, unsigned kind,
                        struct result *result)
{
    bool whole = false;
    struct points *const points = find_points(scenario, kind, &whole);
    struct done done = {0};

    if (!points || !points->count) /* nothing would be tested */
        return false;
    done = read_journal(options, scenario, kind, points);
    result->died = done.died;
    result->missed = done.missed;
    for (unsigned i = options->point ? options->point : options->from;
         i <= points->count && done.failures < 20; i += options->every) {
        struct trial trial = {.scenario = scenario, .kind = kind, .point = i, .there = &points->list[i - 1]};
        char name[PLACE_MAX];

        record_name(trial.there, name);
        if (!trial.there->at || (options->at && !strstr(name, options->at)))
            continue;
        for (unsigned tries = 0; tries < TRIES; tries++) {
            try_point(&trial);
            if (trial.why[0] || trial.outcome.traced == TRACED_STOPPED)
                break;
        }
        memcpy(trial.outcome.place, name, sizeof(trial.outcome.place));
        if (!trial.why[0] && trial.outcome.traced == TRACED_ENDED) {
            result->missed++;
            write_journal(options, &trial, "missed");
        } else {
            died(options, &trial, result);
            done.failures += trial.why[0] != '\0';
        }
        if (options->point)
            break;
    }
    munmap(points, sizeof(*points));
    if (!whole && !result->first[0])
        snprintf(result->first, sizeof(result->first), "%u traced runs, of which not %u were whole",
                 RECORD_TRIES, RECORDINGS);
    return whole && !done.failures && result->died > result->missed;
}

static bool is_chosen(const struct options *options, unsigned kind)
{
    return options->kind < 0 ? kind != POINTS_STEPS : kind == (unsigned)options->kind;
}

int main(int argc, char **argv)
{
    const struct options options = read_options(argc, argv);
    unsigned number = 0;
    bool all = true;

#if !defined(__x86_64__)
    printf("1..0 # SKIP marks and single steps are those of x86-64\n");
    return 0;
#endif
    if (!own_network()) {
        printf("1..0 # SKIP no network namespace: %s\n", strerror(errno));
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    for (int fd = 3; fd < 64; fd++) /* of who started us */
        close(fd);
    code_note();
    if (code_missing() && options.kind == POINTS_STEPS)
        printf("# no function %s, one of the windows\n", code_missing());
    for (unsigned scenario = 0; scenario < SCENARIOS; scenario++) {
        bool ready;

        if (options.scenario >= 0 && scenario != (unsigned)options.scenario)
            continue;
        ready = make_reference(scenario);
        for (unsigned kind = POINTS_PROGRAM; kind <= KIND_STOP; kind++) {
            struct timespec began, ended;
            struct result result = {0};
            bool good;

            if (!is_chosen(&options, kind))
                continue;
            clock_gettime(CLOCK_MONOTONIC, &began);
            good = ready && (is_found(kind) ? sweep_found : sweep_calls)(&options, scenario, kind, &result);
            clock_gettime(CLOCK_MONOTONIC, &ended);
            all &= good;
            printf("%s %u - %s, %s: %u points", good ? "ok" : "not ok", ++number, scenario_names[scenario],
                   kind_names[kind], result.died);
            if (result.missed)
                printf(", %u not reached again", result.missed);
            printf("\n# %ld s%s%s\n", (long)(ended.tv_sec - began.tv_sec), result.first[0] ? "; first " : "",
                   result.first);
            fflush(stdout);
        }
    }
    printf("1..%u\n", number);
    return all ? 0 : 1;
}
