/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What verbs_threads and its yardstick, process_vm, have in common: memory from malloc() of an initiator and a
 * target, alike in both, which target and initiator spin on, and whose bytes are looked at once afterwards. */
#ifndef SOFTHCA_BENCH_SIDES_H
#define SOFTHCA_BENCH_SIDES_H

#include "common.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/* Offsets: two words with a line each, of which the peer changes the one, and buffers behind them. */
enum { LINE = 64, IN = 0, OUT = LINE, BUFFERS = 2 * LINE };

/* In the target's IN it says that the run has ended. */
#define OVER UINT64_MAX

struct memory {
    void *block;
    char *start;
    size_t length;
};

/* Begins and ends at a multiple of `unit`. */
static inline bool memory_allocate(struct memory *memory, size_t length, size_t unit)
{
    memory->length = (length + unit - 1) / unit * unit;
    memory->block = malloc(memory->length + unit);
    memory->start = (char *)(((uintptr_t)memory->block + unit - 1) / unit * unit);
    if (memory->block)
        memset(memory->start, 0, BUFFERS);
    return memory->block;
}

static inline _Atomic uint64_t *word(const struct memory *memory, size_t offset)
{
    return (void *)(memory->start + offset);
}

/* How many buffers take turns, and as many messages are under way at once. */
static inline unsigned buffers_of(size_t size)
{
    return size >= (size_t)1 << 20 ? 4 : 16;
}

static inline uint64_t pattern(unsigned buffer, size_t index)
{
    return (buffer + 1) * 0x9e3779b97f4a7c15u + index;
}

static inline void fill_buffer(void *at, size_t size, unsigned buffer)
{
    uint64_t *words = at;

    for (size_t i = 0; i < size / sizeof(*words); i++)
        words[i] = pattern(buffer, i);
}

static inline bool is_filled(const void *at, size_t size, unsigned buffer)
{
    const uint64_t *words = at;

    for (size_t i = 0; i < size / sizeof(*words); i++)
        if (words[i] != pattern(buffer, i))
            return false;
    return true;
}

static inline void on_end_of_child(int number)
{
    static const char text[] = "the target has ended early\n";

    (void)number;
    _exit(write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 2 : 1);
}

/* Before fork(); with false: from now on the child may end. */
static inline void end_with_child(bool so)
{
    if (signal(SIGCHLD, so ? on_end_of_child : SIG_DFL) == SIG_ERR)
        _exit(1);
}

enum { SAMPLES_MAX = 200000, SAMPLES_MIN = 20, CLOCKS = 10000 };

/* The median is what an exchange takes; the mean has in it how long another thread had the processor. */
struct typical {
    double us, mean_us;
};

/* Without the time of looking at the clock, and with that pause before each exchange. Turns are numbered from
 * *turn on, which says the last one afterwards. */
static inline struct typical typical_us(void (*exchange)(void *arg, uint64_t turn), void *arg, double seconds,
                                        uint64_t pause_ns, uint64_t *turn)
{
    static uint64_t took[SAMPLES_MAX], clock[CLOCKS];
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9), ended = 0, sum = 0;
    double clock_ns;
    size_t count = 0;

    while (count < SAMPLES_MIN || (count < SAMPLES_MAX && ended < until)) {
        uint64_t began = now_ns();

        for (uint64_t pause_end = began + pause_ns; began < pause_end;)
            began = now_ns();
        exchange(arg, ++*turn);
        ended = now_ns();
        took[count++] = ended - began;
        sum += ended - began;
    }
    for (size_t i = 0; i < CLOCKS; i++) {
        uint64_t began = now_ns();

        clock[i] = now_ns() - began;
    }
    clock_ns = (double)median(clock, CLOCKS);
    return (struct typical){.us = ((double)median(took, count) - clock_ns) / 1e3,
                            .mean_us = ((double)sum / (double)count - clock_ns) / 1e3};
}

#endif
