/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages for people, on stderr, only if asked for: SOFTHCA_LOG=error|warn|info|debug (softhca run sets it
 * to warn). Silent by default: we are a guest. errno survives. The function that decides an error logs it,
 * nobody above does. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_NONE, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

bool log_enabled(enum log_level level);
void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Of what other processes can make happen as often as they like: told once for each of them. The caller keeps
 * others away. */
#define LOG_CAUSES 32
struct log_once {
    uint64_t cause[LOG_CAUSES]; /* what was told last; 0: nothing */
    unsigned next;
    uint64_t untold; /* since something was told */
};
/* Is that cause, not 0, to be told of? *ret_untold: how many times nothing was said since the last time. */
bool log_first(struct log_once *once, uint64_t cause, uint64_t *ret_untold);

#define log_error(...) log_message(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_message(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_message(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                                                       \
    do {                                                                                                     \
        if (log_enabled(LOG_LEVEL_DEBUG))                                                                    \
            log_message(LOG_LEVEL_DEBUG, __VA_ARGS__);                                                       \
    } while (0)

#endif
