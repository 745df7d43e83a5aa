/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Log messages on stderr, as far as SOFTHCA_LOG=error|warn|info|debug permits (softhca run sets it to warn). Off by
 * default: the process is the program's. errno is preserved. The function that detects an error logs it; its callers
 * do not. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_NONE, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

bool log_enabled(enum log_level level);
void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Rate limit for events that other processes can cause at will: each cause is logged once, until LOG_CAUSES others
 * replace it. The caller serialises. */
#define LOG_CAUSES 32
struct log_once {
    uint64_t cause[LOG_CAUSES]; /* logged most recently; 0: empty */
    unsigned next;
    uint64_t unlogged; /* repetitions since the last logged cause */
};
/* True if the cause, not 0, is to be logged. *ret_unlogged: number of repetitions since the last logged cause. */
bool log_first(struct log_once *once, uint64_t cause, uint64_t *ret_unlogged);

#define log_error(...) log_message(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_message(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_message(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                                                       \
    do {                                                                                                     \
        if (log_enabled(LOG_LEVEL_DEBUG))                                                                    \
            log_message(LOG_LEVEL_DEBUG, __VA_ARGS__);                                                       \
    } while (0)

#endif
