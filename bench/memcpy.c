/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* memcpy, of data in this core's own cache and of data that another core has just written: a copying path
 * between two processes is bounded by the second. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { SAMPLES = 31, CHUNK = 1 << 18 };

static struct {
    int cpu;
    unsigned char *data;
    size_t size;
    _Alignas(
        128) _Atomic uint32_t asked; /* one line per direction, or the copy would pay for the hand-over too */
    _Alignas(128) _Atomic uint32_t written;
} other;

static void *writer(void *unused)
{
    uint32_t seen = 0;

    pin(other.cpu);
    for (;;) {
        uint32_t asked;

        while ((asked = atomic_load_explicit(&other.asked, memory_order_acquire)) == seen)
            relax();
        if (other.size == 0)
            return NULL;
        memset(other.data, (int)asked, other.size);
        seen = asked;
        atomic_store_explicit(&other.written, seen, memory_order_release);
    }
}

static void rewrite(void)
{
    uint32_t next = atomic_load_explicit(&other.asked, memory_order_relaxed) + 1;

    atomic_store_explicit(&other.asked, next, memory_order_release);
    while (atomic_load_explicit(&other.written, memory_order_acquire) != next)
        relax();
}

static void copy(unsigned char *to, const unsigned char *from, size_t size)
{
    memcpy(to, from, size);
    __asm__ volatile("" : : "r"(to) : "memory");
}

/* GB/s of messages of one size through a buffer that fits the caches: several small ones per reading of the
 * clock. */
static double rate(unsigned char *to, size_t size, int fresh)
{
    size_t total = size > CHUNK ? size : CHUNK / size * size;
    uint64_t took[SAMPLES];

    other.size = total;
    for (size_t s = 0; s < SAMPLES; s++) {
        if (fresh)
            rewrite();

        uint64_t began = now_ns();

        for (size_t at = 0; at < total; at += size)
            copy(to + at, other.data + at, size);
        took[s] = now_ns() - began;
    }
    return (double)total / (double)median(took, SAMPLES);
}

int main(int argc, char **argv)
{
    size_t largest = CHUNK;
    unsigned char *to;
    pthread_t thread;

    if (argc < 4) {
        fprintf(stderr, "usage: %s CPU CPU SIZE...\n", argv[0]);
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        size_t size = strtoull(argv[i], NULL, 0);

        if (size == 0)
            return 2;
        largest = size > largest ? size : largest;
    }
    other.cpu = atoi(argv[2]);
    other.data = malloc(largest);
    to = malloc(largest);
    if (!other.data || !to)
        return 1;
    memset(other.data, 1, largest);
    memset(to, 1, largest);
    if (pthread_create(&thread, NULL, writer, NULL))
        return 1;
    pin(atoi(argv[1]));
    for (int i = 3; i < argc; i++) {
        size_t size = strtoull(argv[i], NULL, 0);
        double hot = rate(to, size, 0), fresh = rate(to, size, 1);

        printf("size %zu hot_gbps %.3f fresh_gbps %.3f\n", size, hot, fresh);
    }
    other.size = 0;
    atomic_fetch_add_explicit(&other.asked, 1, memory_order_release);
    pthread_join(thread, NULL);
    free(other.data);
    free(to);
    return 0;
}
