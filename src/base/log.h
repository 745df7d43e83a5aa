/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages for people, on stderr, only if asked for: SOFTHCA_LOG=error|warn|info|debug (softhca run sets it
 * to warn). Silent by default: we are a guest. errno survives. The function that decides an error logs it,
 * nobody above does. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_NONE, LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

bool log_enabled(enum log_level level);
void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_message(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_message(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_message(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                                                       \
    do {                                                                                                     \
        if (log_enabled(LOG_LEVEL_DEBUG))                                                                    \
            log_message(LOG_LEVEL_DEBUG, __VA_ARGS__);                                                       \
    } while (0)

#endif
