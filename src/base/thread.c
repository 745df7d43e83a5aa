/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define STACK_SIZE ((size_t)256 * 1024)

static size_t default_stack_size(void)
{
    pthread_attr_t attributes;
    size_t size = 8u << 20;

    if (pthread_attr_init(&attributes) == 0) {
        pthread_attr_getstacksize(&attributes, &size);
        pthread_attr_destroy(&attributes);
    }
    return size;
}

void thread_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

int thread_start(void *(*main)(void *), void *argument)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int error;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attributes, main, argument);
    if (error == EINVAL) { /* much thread-local memory, which is part of the stack */
        pthread_attr_setstacksize(&attributes, default_stack_size());
        error = pthread_create(&thread, &attributes, main, argument);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -error;
}
