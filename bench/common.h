/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the yardsticks share: a clock, a processor each, the middle of a sample. */
#ifndef SOFTHCA_BENCH_COMMON_H
#define SOFTHCA_BENCH_COMMON_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The calling thread's only processor; below zero: leave it to the scheduler. */
static inline void pin(int cpu)
{
    cpu_set_t set;

    if (cpu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set)) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The typical value: an average would be the scheduler's, not the path's. Sorts the sample. */
static inline uint64_t median(uint64_t *sample, size_t count)
{
    qsort(sample, count, sizeof(*sample), compare_u64);
    return sample[count / 2];
}

#endif
