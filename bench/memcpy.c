/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* memcpy, of data in this core's own cache and of data that another core has just written: a copying path
 * between two processes is bounded by the second. `pipe`: buffers that one thread rewrites while another
 * copies and reads those of before, which is what messages between programs that use their memory come to,
 * without any library; and how quick each of the three is meanwhile. `pipe=50`: the thread that rewrites
 * copies the second half itself. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum {
    SAMPLES = 31,
    CHUNK = 1 << 18,
    HOT_BYTES = 1 << 26,
    PIPE_RUNS = 5,
    PIPE_BYTES = 1 << 28,
    PIPE_TIMED = 17
};

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

/* --- pipe -------------------------------------------------------------------------------------------- */

static struct {
    unsigned char *from;
    unsigned char *to;
    size_t size, buffers, total;
    size_t pushed; /* so many bytes at the end of each the rewriter copies */
    _Alignas(128) _Atomic size_t written;
    _Alignas(128) _Atomic size_t taken;
    _Atomic bool ready;
} flow;

/* What one message in PIPE_TIMED took, in all runs; the clock would slow down the others. */
static uint64_t rewriting_ns, copying_ns, reading_ns, timed;

static void *rewriter(void *unused)
{
    pin(other.cpu);
    atomic_store(&flow.ready, true);
    for (size_t n = 0; n < flow.total; n++) {
        size_t at = n % flow.buffers * flow.size, kept = flow.size - flow.pushed;
        bool is_timed = n % PIPE_TIMED == 0;
        uint64_t began = 0;

        while (n - atomic_load_explicit(&flow.taken, memory_order_acquire) >= flow.buffers)
            relax();
        if (is_timed)
            began = now_ns();
        rewrite_all(flow.from + at, flow.size, n);
        if (is_timed)
            rewriting_ns += now_ns() - began;
        memcpy(flow.to + at + kept, flow.from + at + kept, flow.pushed);
        atomic_store_explicit(&flow.written, n + 1, memory_order_release);
    }
    return NULL;
}

/* GB/s; 0: no memory. */
static double pipe_rate(size_t size, unsigned percent)
{
    uint64_t sum = 0, least = UINT64_MAX;
    unsigned char *to;

    rewriting_ns = copying_ns = reading_ns = timed = 0;
    flow.size = size;
    flow.pushed = size * percent / 100 / 64 * 64;
    flow.buffers = touched_buffers(size);
    flow.total = PIPE_BYTES / size + flow.buffers;
    flow.from = aligned_alloc(4096, (size * flow.buffers + 4095) / 4096 * 4096);
    to = aligned_alloc(4096, (size * flow.buffers + 4095) / 4096 * 4096);
    if (!flow.from || !to)
        return 0;
    memset(flow.from, 1, size * flow.buffers);
    memset(to, 1, size * flow.buffers);
    flow.to = to;
    for (int run = 0; run < PIPE_RUNS; run++) {
        uint64_t began, took;
        pthread_t thread;

        atomic_store(&flow.written, 0);
        atomic_store(&flow.taken, 0);
        atomic_store(&flow.ready, false);
        if (pthread_create(&thread, NULL, rewriter, NULL))
            return 0;
        /* It begins on this thread's processor: until it has moved, it would wait for a turn there. */
        while (!atomic_load(&flow.ready))
            sched_yield();
        began = now_ns();
        for (size_t n = 0; n < flow.total; n++) {
            size_t at = n % flow.buffers * size;
            bool is_timed = n % PIPE_TIMED == 0;
            uint64_t copies = 0, reads = 0;

            while (atomic_load_explicit(&flow.written, memory_order_acquire) <= n)
                relax();
            if (is_timed)
                copies = now_ns();
            memcpy(to + at, flow.from + at, size - flow.pushed);
            if (is_timed)
                reads = now_ns();
            sum += read_all(to + at, size);
            if (is_timed) {
                copying_ns += reads - copies;
                reading_ns += now_ns() - reads;
                timed++;
            }
            atomic_store_explicit(&flow.taken, n + 1, memory_order_release);
        }
        pthread_join(thread, NULL);
        took = now_ns() - began;
        least = took < least ? took : least;
    }
    __asm__ volatile("" : : "r"(sum));
    free(flow.from);
    free(to);
    return (double)(flow.total * size) / (double)least;
}

/* --- a copy ------------------------------------------------------------------------------------------ */

static void copy(unsigned char *to, const unsigned char *from, size_t size)
{
    memcpy(to, from, size);
    __asm__ volatile("" : : "r"(to) : "memory");
}

/* GB/s of messages of one size through a buffer that fits the caches: several small ones per reading of the
 * clock. Within one cache each sample is milliseconds long: what is held against it is the average of a tenth
 * of a second, in which a processor is not always as quick as in its best moment. */
static double rate(unsigned char *to, size_t size, int fresh)
{
    size_t total = size > CHUNK ? size : CHUNK / size * size;
    size_t times = fresh || total > HOT_BYTES ? 1 : HOT_BYTES / total;
    uint64_t took[SAMPLES];

    other.size = total;
    for (size_t s = 0; s < SAMPLES; s++) {
        if (fresh)
            rewrite();

        uint64_t began = now_ns();

        for (size_t i = 0; i < times; i++)
            for (size_t at = 0; at < total; at += size)
                copy(to + at, other.data + at, size);
        took[s] = now_ns() - began;
    }
    return (double)(times * total) / (double)median(took, SAMPLES);
}

int main(int argc, char **argv)
{
    size_t largest = CHUNK;
    unsigned char *to;
    pthread_t thread;

    if (argc < 4) {
        fprintf(stderr, "usage: %s CPU CPU [pipe[=PERCENT]] SIZE...\n", argv[0]);
        return 2;
    }
    other.cpu = atoi(argv[2]);
    if (!strncmp(argv[3], "pipe", 4)) {
        unsigned percent = argv[3][4] == '=' ? (unsigned)strtoul(argv[3] + 5, NULL, 0) : 0;

        if (percent >= 100)
            return 2;
        pin(atoi(argv[1]));
        for (int i = 4; i < argc; i++) {
            size_t size = strtoull(argv[i], NULL, 0);
            double gbps, bytes;

            if (size == 0 || size % 64 || size > PIPE_BYTES)
                return 2;
            gbps = pipe_rate(size, percent);
            bytes = (double)timed * (double)size;
            printf("size %zu pipe_gbps %.3f rewriting_gbps %.3f copying_gbps %.3f reading_gbps %.3f\n", size,
                   gbps, bytes / (double)rewriting_ns,
                   (double)timed * (double)(size - flow.pushed) / (double)copying_ns,
                   bytes / (double)reading_ns);
        }
        return 0;
    }
    for (int i = 3; i < argc; i++) {
        size_t size = strtoull(argv[i], NULL, 0);

        if (size == 0)
            return 2;
        largest = size > largest ? size : largest;
    }
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
