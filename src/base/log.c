/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/types.h"

static const char *const level_names[] = {"none", "error", "warn", "info", "debug"};
static _Atomic int threshold = -1; /* -1: SOFTHCA_LOG was not read yet */

static int read_threshold(void)
{
    const char *wanted = secure_getenv("SOFTHCA_LOG");
    int level = LOG_LEVEL_NONE;

    for (int i = 0; wanted && i < (int)array_size(level_names); i++) {
        if (strcmp(wanted, level_names[i]) == 0)
            level = i;
    }
    atomic_store_explicit(&threshold, level, memory_order_relaxed);
    return level;
}

bool log_enabled(enum log_level level)
{
    int limit = atomic_load_explicit(&threshold, memory_order_relaxed);

    if (unlikely(limit < 0))
        limit = read_threshold();
    return (int)level <= limit;
}

void log_message(enum log_level level, const char *format, ...)
{
    int saved = errno;
    char line[1024];
    int length;
    va_list arguments;

    if (!log_enabled(level))
        return;
    length = snprintf(line, sizeof(line), "softhca[%d] %s: ", (int)getpid(), level_names[level]);
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
    va_end(arguments);
    length = min_of(length, (int)sizeof(line) - 2);
    line[length++] = '\n';
    /* One write, so that lines of several processes do not mix. An error is ignored: stderr may be closed. */
    (void)sys_write(STDERR_FILENO, line, (size_t)length);
    errno = saved;
}

bool log_first(struct log_once *once, uint64_t cause, uint64_t *ret_unlogged)
{
    for (unsigned i = 0; i < LOG_CAUSES; i++) {
        if (once->cause[i] == cause) {
            once->unlogged++;
            return false;
        }
    }
    once->cause[once->next++ % LOG_CAUSES] = cause;
    *ret_unlogged = once->unlogged;
    once->unlogged = 0;
    return true;
}
