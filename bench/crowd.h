/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Many processes that do the same, and meet at a barrier in memory that was mapped before. */
#ifndef SOFTHCA_BENCH_CROWD_H
#define SOFTHCA_BENCH_CROWD_H

#include "common.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>

static inline uint64_t processor_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* How often a thread of this process has waited. */
static inline uint64_t switches_so_far(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_nvcsw;
}

/* Runs so many processes, which end by themselves. False: one has failed; the others would wait for it, and end with
 * this process. */
static inline bool crowd_run(pthread_barrier_t *barrier, uint32_t processes, void (*run)(uint32_t me))
{
    pthread_barrierattr_t shared;
    pid_t parent = getpid();
    int status;

    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier, &shared, processes);
    for (uint32_t i = 0; i < processes; i++) {
        pid_t child = fork();

        if (child < 0) {
            perror("fork");
            return false;
        }
        if (child == 0) {
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
                _exit(1);
            run(i);
        }
    }
    for (uint32_t i = 0; i < processes; i++) {
        if (waitpid(-1, &status, 0) < 0 || status != 0)
            return false;
    }
    return true;
}

#endif
