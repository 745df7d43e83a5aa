/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One cache line bouncing between two cores: what no message between them can be faster than. */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ROUNDS = 1000, BATCHES = 501 };

static struct {
    _Alignas(128) _Atomic uint32_t turn;
    _Alignas(128) int cpu;
} line;

static void *answer(void *unused)
{
    pin(line.cpu);
    for (uint32_t i = 1; i < 2u * ROUNDS * BATCHES; i += 2) {
        while (atomic_load_explicit(&line.turn, memory_order_acquire) != i)
            relax();
        atomic_store_explicit(&line.turn, i + 1, memory_order_release);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static uint64_t took[BATCHES];
    pthread_t thread;
    uint32_t turn = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: %s CPU CPU\n", argv[0]);
        return 2;
    }
    line.cpu = atoi(argv[2]);
    if (pthread_create(&thread, NULL, answer, NULL))
        return 1;
    pin(atoi(argv[1]));
    for (size_t b = 0; b < BATCHES; b++) {
        uint64_t began = now_ns();

        for (int i = 0; i < ROUNDS; i++) {
            atomic_store_explicit(&line.turn, ++turn, memory_order_release);
            turn++;
            while (atomic_load_explicit(&line.turn, memory_order_acquire) != turn)
                relax();
        }
        took[b] = now_ns() - began;
    }
    pthread_join(thread, NULL);
    printf("one_way_us %.4f\n", (double)median(took, BATCHES) / (2.0 * (double)ROUNDS) / 1000.0);
    return 0;
}
