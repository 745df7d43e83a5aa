/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca fault: loads faults into a running process, removes them, and says which have struck. */
#include <argp.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach.h"
#include "base/memory_file.h"
#include "commands.h"
#include "control.h"
#include "explain/out.h"
#include "fault.h"
#include "published/fault_request.h"

struct options {
    pid_t pid;
    char *faults; /* specifications, a line each */
    bool clear;
};

enum { OPTION_CLEAR = 256 };

static const struct argp_option option_table[] = {
    {"clear", OPTION_CLEAR, NULL, 0, "Remove all faults of the process, and say how often each was applied",
     0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case OPTION_CLEAR:
        options->clear = true;
        return 0;
    case ARGP_KEY_ARG:
        if (options->pid) {
            if (fault_add("", argument, &options->faults))
                exit(2);
        } else if (!read_pid(argument, &options->pid)) {
            argp_error(state, "'%s' is not a PID", argument);
        }
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "PID is missing");
        return 0;
    case ARGP_KEY_END:
        if (options->clear && options->faults)
            argp_error(state, "--clear takes no fault");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* A memfd with the request, or -errno. */
static int make_file(const struct fault_request *request)
{
    int fd = memory_file_make("softhca-faults", sizeof(*request));

    if (fd >= 0 && pwrite(fd, request, sizeof(*request), 0) != (ssize_t)sizeof(*request)) {
        close(fd);
        return -EIO;
    }
    return fd;
}

/* What the process says, a line each. It may be of any user that the kernel lets this one trace. */
static void show_answer(int fd)
{
    static char answer[FAULT_ANSWER_BYTES + 1];
    ssize_t length = pread(fd, answer, FAULT_ANSWER_BYTES, offsetof(struct fault_request, answer));

    answer[length > 0 ? length : 0] = '\0';
    for (char *line = answer, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        printable(line, line, strlen(line));
        puts(line);
    }
}

static int ask(const struct options *options, const struct fault_request *request)
{
    int fd = make_file(request);
    char why[CONTROL_WHY_MAX];

    if (fd < 0) {
        fprintf(stderr, "softhca: cannot make a file for the request: %s\n", strerror(-fd));
        return 1;
    }
    if (control_ask(options->pid, CONTROL_FAULTS, fd, why, sizeof(why)) < 0) {
        fprintf(stderr, "softhca: process %d: %s\n", (int)options->pid, why);
        close(fd);
        return 1;
    }
    show_answer(fd);
    close(fd);
    return 0;
}

int command_fault(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .args_doc = "PID [SPEC...]",
        .doc =
            "Adds faults (syntax: softhca-fault(7)), given as SPEC or read from @FILE, to a running process. "
            "Without SPEC: lists those that are loaded, and how often each was applied.",
    };
    static struct fault_request request = {.version = FAULT_REQUEST_VERSION};
    struct options options = {0};

    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    request.operation = options.clear ? FAULTS_CLEAR : options.faults ? FAULTS_ADD : FAULTS_LIST;
    if (options.faults && strlen(options.faults) >= sizeof(request.specs)) {
        fprintf(stderr, "softhca: the faults are longer than %zu characters together\n",
                sizeof(request.specs) - 1);
        return 2;
    }
    if (options.faults)
        strcpy(request.specs, options.faults);
    return ask(&options, &request);
}
