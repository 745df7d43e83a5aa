/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What switching memory into an arena and back costs (docs/mapped.md): per size, the time of the quickest and
 * of the median round, and how long a thread that writes to the memory all along is held up at most, in the
 * median round. usage: switch [full|user]   (default: the best that is allowed) */
#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mapped/keeper.h"
#include "mapped/mapped.h"

enum { ROUNDS = 15 };

static struct {
    volatile char *memory;
    size_t length;
    atomic_bool run, stop;
    _Atomic uint64_t longest; /* ns between two of its writes */
} writer;

static void *write_all_along(void *unused)
{
    uint64_t before = now_ns(), random = 1;

    while (!atomic_load_explicit(&writer.stop, memory_order_relaxed)) {
        uint64_t after;

        if (!atomic_load_explicit(&writer.run, memory_order_acquire)) {
            before = now_ns();
            continue;
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        writer.memory[(random >> 33) % writer.length]++;
        after = now_ns();
        if (after - before > atomic_load_explicit(&writer.longest, memory_order_relaxed))
            atomic_store_explicit(&writer.longest, after - before, memory_order_relaxed);
        before = after;
    }
    return NULL;
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

struct figure {
    double value[ROUNDS];
};

static double best(struct figure *figure, int count)
{
    qsort(figure->value, (size_t)count, sizeof(double), compare);
    return figure->value[0];
}

static double middle(struct figure *figure, int count)
{
    qsort(figure->value, (size_t)count, sizeof(double), compare);
    return figure->value[count / 2];
}

/* Returns what was held up. */
static double timed(struct mapped_region **region, char *memory, size_t length, double *ret_us)
{
    uint64_t began;

    atomic_store(&writer.longest, 0);
    atomic_store(&writer.run, writer.memory != NULL);
    began = now_ns();
    if (*region) {
        mapped_remove(*region, false);
        *region = NULL;
    } else {
        *region = mapped_add((uintptr_t)memory, length, MAPPED_PEERS_WRITE);
    }
    *ret_us = (double)(now_ns() - began) / 1e3;
    atomic_store(&writer.run, false);
    return (double)atomic_load(&writer.longest) / 1e3;
}

static void measure(size_t length, bool sparse, bool with_writer)
{
    char *memory =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct figure in, out, in_held, out_held;
    int rounds = length >= (size_t)1 << 30 ? 3 : ROUNDS;
    pthread_t thread;

    if (memory == MAP_FAILED)
        return;
    if (sparse)
        memory[length / 2] = 1;
    else
        memset(memory, 1, length);
    writer.memory = with_writer ? memory : NULL;
    writer.length = length;
    atomic_store(&writer.stop, false);
    if (with_writer)
        pthread_create(&thread, NULL, write_all_along, NULL);
    for (int i = 0; i < rounds; i++) {
        struct mapped_region *region = NULL;
        struct mapped_refusal refusal;

        in_held.value[i] = timed(&region, memory, length, &in.value[i]);
        if (mapped_refusals(region, &refusal, 1)) {
            printf("%12zu  %s\n", length, mapped_reason_text(refusal.reason));
            mapped_remove(region, false);
            rounds = 0;
            break;
        }
        out_held.value[i] = timed(&region, memory, length, &out.value[i]);
    }
    atomic_store(&writer.stop, true);
    if (with_writer)
        pthread_join(thread, NULL);
    munmap(memory, length);
    if (!rounds)
        return;
    printf("%12zu %6s %11.1f %11.1f %7.2f %11.1f %11.1f %7.2f", length, sparse ? "sparse" : "",
           best(&in, rounds), middle(&in, rounds), (double)length / best(&in, rounds) / 1e3,
           best(&out, rounds), middle(&out, rounds), (double)length / best(&out, rounds) / 1e3);
    if (with_writer)
        printf(" %9.1f %9.1f", middle(&in_held, rounds), middle(&out_held, rounds));
    printf("\n");
}

int main(int argc, char **argv)
{
    struct mapped_means means;

    if (argc > 1 && strcmp(argv[1], "user") == 0)
        keeper_limits = KEEPER_USER_MODE;
    mapped_probe(&means);
    if (means.reason != MAPPED_YES) {
        printf("memory cannot be switched here: %s\n", mapped_reason_text(means.reason));
        return 1;
    }
    printf("userfaultfd: %s\n", means.system_calls_wait ? "full"
                                : means.single_thread   ? "none"
                                                        : "user mode");
    printf("%12s %6s %11s %11s %7s %11s %11s %7s %9s %9s\n", "bytes", "", "in, us", "median", "GB/s",
           "back, us", "median", "GB/s", "held, us", "back");
    for (int with_writer = 0; with_writer < (means.single_thread ? 1 : 2); with_writer++) {
        static const size_t sizes[] = {4096, 65536, 1 << 20, 16 << 20, (size_t)1 << 30};

        for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            measure(sizes[i], false, with_writer);
    }
    measure((size_t)100 << 30, true, false);
    return 0;
}
