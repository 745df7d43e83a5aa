/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "runner.h"
#include "side.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEFAULT_SECONDS = 180 }; /* more than one PATIENCE_SECONDS: what is waited for is told */

struct shared *shared;

unsigned int slowness(void)
{
    const char *text = getenv("SOFTHCA_TEST_SLOW");
    const int factor = text ? atoi(text) : 1;

    return factor > 1 ? (unsigned int)factor : 1;
}

bool is_emulated(void)
{
    return slowness() >= 10;
}

bool long_tests(void)
{
    return getenv("SOFTHCA_TEST_LONG") != NULL;
}

void skip_because(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(shared->skip, sizeof shared->skip, format, args);
    va_end(args);
    skip();
    abort();
}

/* In the test's process: cmocka runs the one test, its words go to output. */
static void be_the_test(const struct test *test, int output)
{
    const struct CMUnitTest unit = {.name = test->name, .test_func = test->body};
    const struct CMUnitTest only[] = {unit};
    int failed;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    cmocka_set_message_output(CM_OUTPUT_STDOUT);
    sides_begin(test->fars);
    failed = _cmocka_run_group_tests(test->name, only, 1, NULL, NULL);
    sides_end();
    fflush(NULL);
    _exit(failed ? 1 : 0);
}

static bool wait_until_ended(pid_t pid, unsigned int seconds, int *ret_status)
{
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    const bool ended = fd < 0 || poll(&wait, 1, (int)(seconds * 1000)) == 1;

    if (!ended)
        kill(-pid, SIGKILL);
    while (waitpid(pid, ret_status, 0) < 0 && errno == EINTR)
        ;
    if (fd >= 0)
        close(fd);
    /* far sides die with the near one, but not before they noticed */
    kill(-pid, SIGKILL);
    return ended;
}

/* cmocka frames its words with lines that say what TAP says again. */
static bool is_frame(const char *line)
{
    static const char *const frames[] = {"[====",      "[ RUN",          "[  FAILED", "[  PASSED",
                                         "[  SKIPPED", " 1 FAILED TEST", "\n"};

    for (size_t i = 0; i < COUNT(frames); i++)
        if (!strncmp(line, frames[i], strlen(frames[i])))
            return true;
    return false;
}

static void print_as_comment(int output)
{
    FILE *file;
    char *line = NULL;
    size_t room = 0;

    lseek(output, 0, SEEK_SET);
    file = fdopen(dup(output), "r");
    while (file && getline(&line, &room, file) > 0)
        if (!is_frame(line))
            printf("# %s%s", line, strchr(line, '\n') ? "" : "\n");
    free(line);
    if (file)
        fclose(file);
}

/* What tests print, also when they pass: for whoever wants to read it (tests/explain/behaviour.py). */
static void keep(int output)
{
    const char *path = getenv("SOFTHCA_TEST_OUTPUT");
    const int to = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    char part[65536];
    off_t at = 0;
    ssize_t length;

    if (to < 0)
        return;
    while ((length = pread(output, part, sizeof part, at)) > 0 && write(to, part, (size_t)length) == length)
        at += length;
    close(to);
}

static bool run_one(const struct test *test, size_t number)
{
    const unsigned int seconds = (test->seconds ? test->seconds : DEFAULT_SECONDS) * slowness();
    const int output = memfd_create("output", MFD_CLOEXEC);
    int status = 0;
    bool ended, good;
    pid_t pid;

    memset(shared, 0, offsetof(struct shared, side));
    for (size_t i = 0; i <= test->fars; i++) {
        shared->side[i].waits_for[0] = '\0';
        shared->side[i].complaint[0] = '\0';
        shared->side[i].failed = false;
    }
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        be_the_test(test, output);
    ended = wait_until_ended(pid, seconds, &status);
    keep(output);
    good = ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;

    if (good && shared->skip[0])
        printf("ok %zu - %s # SKIP %s\n", number, test->name, shared->skip);
    else
        printf("%sok %zu - %s\n", good ? "" : "not ", number, test->name);
    if (!good) {
        print_as_comment(output);
        if (!ended)
            printf("# still running after %u s\n", seconds);
        else if (WIFSIGNALED(status))
            printf("# ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
        for (size_t i = 0; i <= test->fars; i++)
            if (shared->side[i].waits_for[0])
                printf("# side %zu was waiting for %s\n", i, shared->side[i].waits_for);
    }
    fflush(stdout);
    close(output);
    return good;
}

static bool selected(const struct test *test, int argc, char **argv)
{
    bool wanted = argc < 2;

    for (int i = 1; i < argc; i++)
        wanted = wanted || strstr(test->name, argv[i]);
    if ((test->needs & NEEDS_TWO_PROCESSES) && !two_processes())
        return false;
    if ((test->needs & NEEDS_LONG) && !long_tests())
        return false;
    return wanted;
}

int run_topic(const struct test *tests, size_t count, int argc, char **argv)
{
    size_t number = 0, failed = 0;

    sides_prepare();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        number += selected(&tests[i], argc, argv);
    printf("1..%zu%s\n", number, number ? "" : " # SKIP nothing here needs this path");
    number = 0;
    for (size_t i = 0; i < count; i++)
        if (selected(&tests[i], argc, argv))
            failed += !run_one(&tests[i], ++number);
    return failed ? 1 : 0;
}
