/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What each thread has of its own. Its address stands for the thread (bias.h). */
#ifndef WATCH_THREAD_H
#define WATCH_THREAD_H

#include "base/types.h"

/* What is likely goes straight; what is seldom is kept out of its way, without being cold. */
#define no_inline __attribute__((noinline))
/* The compiler knows what is in the variable, and would make it anew. */
#define keep_register(variable) __asm__("" : "+r"(variable))

struct watched_qp;
struct watched_cq;

struct watch_thread {
    unsigned inside; /* in so many originals: what a provider calls by itself passes */
    /* What the thread posted to and polled last, found without the table; in an original, and of a context that is
     * stale: none. */
    struct watched_qp *sender, *receiver;
    struct watched_cq *poller;
};
extern __thread struct watch_thread watch_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

void watch_enter(void);
void watch_leave(void);

#endif
