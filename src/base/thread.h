/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Threads of SoftHCA in the program's process: detached, with a small stack, and with all signals blocked so that the
 * program's own threads receive them. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

/* Its timed waits are pthread_cond_timedwait() by CLOCK_MONOTONIC; pthread_cond_clockwait() came with glibc 2.30. */
void thread_cond_init(pthread_cond_t *cond);
/* 0 or -errno. */
int thread_start(void *(*main)(void *), void *argument);

#endif
