/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

error_t launch_parse(int key, char *argument, struct argp_state *state, struct launch_options *options)
{
    switch (key) {
    case LAUNCH_EXPLAIN:
        if (strcmp(argument, "text") != 0 && strcmp(argument, "json") != 0 && strcmp(argument, "off") != 0)
            argp_error(state, "'%s': not text, json or off", argument);
        options->explain = argument;
        return 0;
    case LAUNCH_ALL:
        options->all = true;
        return 0;
    case ARGP_KEY_ARG:
        options->program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "PROGRAM is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int launch_set(const char *name, const char *value)
{
    if (setenv(name, value, 1) == 0)
        return 0;
    fprintf(stderr, "softhca: cannot set %s: %s\n", name, strerror(errno));
    return -errno;
}

int launch_set_or_keep(const char *name, const char *value, const char *otherwise)
{
    if (!value)
        value = getenv(name);
    return launch_set(name, value ? value : otherwise);
}

int launch_set_in_front(const char *name, const char *first)
{
    const char *rest = getenv(name);
    size_t length = strlen(first);
    char *value;
    int error;

    if (!rest || !*rest)
        return launch_set(name, first);
    if (strncmp(rest, first, length) == 0 && (rest[length] == ':' || rest[length] == '\0'))
        return 0;
    if (asprintf(&value, "%s:%s", first, rest) < 0)
        return -ENOMEM;
    error = launch_set(name, value);
    free(value);
    return error;
}

int launch(char **program)
{
    execvp(program[0], program);
    fprintf(stderr, "softhca: cannot run %s: %s\n", program[0], strerror(errno));
    return errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}
