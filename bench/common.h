/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the yardsticks share: a clock, a processor each, a peer, the middle of a sample. */
#ifndef SOFTHCA_BENCH_COMMON_H
#define SOFTHCA_BENCH_COMMON_H

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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

/* A process on its own, started before any verb, and a socket between the two; 0: that is the caller, which ends with
 * its parent: who spins on memory would do so for ever. */
static inline pid_t fork_peer(int *ret_fd)
{
    pid_t parent = getpid(), child;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        perror("socketpair");
        exit(1);
    }
    child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    close(pair[child == 0 ? 0 : 1]);
    *ret_fd = pair[child == 0 ? 1 : 0];
    return child;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef uint64_t touch_words __attribute__((vector_size(16), may_alias));

/* What programs do that use their memory, as plain loops of vectors: memset() of so much is a string
 * instruction, which is slower where the lines are in the other core's cache. `size`: a multiple of 64. */
static inline void rewrite_all(void *memory, size_t size, uint64_t value)
{
    touch_words *to = memory, words = {value, value};

    for (size_t i = 0; i < size / sizeof(*to); i += 4) {
        to[i] = words;
        to[i + 1] = words;
        to[i + 2] = words;
        to[i + 3] = words;
        __asm__ volatile("" : : : "memory"); /* no memset() after all */
    }
}

/* Four sums by name: of an array of them compilers make memory that is loaded and stored with each addition,
 * and then that is measured, at half the speed of the cache. */
static inline uint64_t read_all(const void *memory, size_t size)
{
    const touch_words *from = memory;
    touch_words a = {0}, b = {0}, c = {0}, d = {0};

    for (size_t i = 0; i < size / sizeof(*from); i += 4) {
        a += from[i];
        b += from[i + 1];
        c += from[i + 2];
        d += from[i + 3];
    }
    a += b + c + d;
    return a[0] + a[1];
}

/* How many of these buffers are on the way at once. */
static inline unsigned touched_buffers(size_t size)
{
    return size >= 1u << 20 ? 4 : 16;
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

/* Memory of this process that is its own: what it has mapped from files is not counted. */
static inline uint64_t memory_used(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[128];
    uint64_t kib, bytes = 0;

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %lu", &kib) == 1 || sscanf(line, "RssShmem: %lu", &kib) == 1)
            bytes += kib * 1024;
    if (f)
        fclose(f);
    return bytes;
}

/* A number below that one, in the same order in each run. */
static inline uint32_t draw(uint32_t below)
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 32) * below >> 32);
}

#endif
