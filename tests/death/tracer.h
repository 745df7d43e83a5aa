/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of the tracer share. */
#ifndef DEATH_TRACER_H
#define DEATH_TRACER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "death.h"

#define THREADS 16u

struct thread {
    pid_t tid;
    bool stopped, in_call, main_thread, ended;
    unsigned yields;
    int signal; /* to be delivered when it goes on */
};

extern struct thread threads[THREADS];
extern unsigned thread_count;
extern bool begun, over; /* the marks of the victim */

struct thread *thread_of(pid_t tid, pid_t pid);
/* Of a thread that has stopped or ended. */
void take_event(struct trace *trace, pid_t tid, int status);
bool all_ended(const struct trace *trace);
/* All threads stop where they are. */
void stop_all(struct trace *trace);
bool is_plain_trap(int status);

uint64_t hash(uint64_t value, uint64_t more);
/* How often that key came; it counts. */
unsigned count_key(uint64_t key);

#endif
