/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A thread of ours in a stranger's process: detached, with every signal blocked, because signals are the
 * program's, and a small stack. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

/* 0 or -errno. */
int thread_start(void *(*main)(void *), void *argument);

#endif
