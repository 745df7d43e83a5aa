/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A thread that makes one call which may block, and how to tell from outside that it does. */
#ifndef TESTS_SUPPORT_THREADS_H
#define TESTS_SUPPORT_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct caller {
    int (*fn)(void *arg);
    void *arg;
    int result;
    _Atomic pid_t tid;
    atomic_bool done;
    pthread_t thread;
};

void caller_start(struct caller *caller, int (*fn)(void *arg), void *arg);
/* Waits until the thread sleeps in the kernel, or is through. True: it sleeps. */
bool caller_is_blocked(struct caller *caller);
/* Waits for its end with a deadline; what it returned. */
int caller_finish(struct caller *caller);

#endif
