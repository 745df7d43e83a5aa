/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int launch_set(const char *name, const char *value)
{
    if (setenv(name, value, 1) == 0)
        return 0;
    fprintf(stderr, "softhca: cannot set %s: %s\n", name, strerror(errno));
    return -errno;
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
