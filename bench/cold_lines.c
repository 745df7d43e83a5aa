/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a WRITE over one of many QPs costs without any library: nothing but the touches. As many objects of the sizes
 * that a QP has (docs/design/many-qps.md), one drawn at random each time; five lines of its structure, two of its
 * record, one of its queue and one of the peer's table are read or written. In how many steps the addresses become
 * known decides: each waits for the line before it. "waits=3" is what a verb has to do: the program's handle, the
 * structure that it names, the record that this names; "waits=1" has all addresses from the beginning, which no
 * interface of handles can. Two locked instructions, as a post has at least. Each touch begins when the one before it
 * has ended: between those of two posts there are some 700 instructions and four locked ones, which no processor looks
 * behind; "alongside" is what they cost where it can, as these few instructions are all that there is. Prints ns for
 * each, over two objects and over all, least of nine turns, in processor time.
 *
 * usage: bench_cold_lines CPU OBJECTS */
#include "common.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum {
    STRUCTURE = 1792,
    RECORD = 1280,
    QUEUE = 256,
    DIRECT = 32,
    LINE = 64,
    TURNS = 9,
    TOUCHES = 200000,
    FEW = 2
};

struct object {
    char *structure, *record, *queue, *direct;
};

static struct object *objects;
static char **handles;

static void *populated(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(at, 1, size);
    return at;
}

static uint64_t thread_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void ask_structure(const char *structure)
{
    for (unsigned line = 1; line < 5; line++)
        __builtin_prefetch(structure + line * LINE, 1);
}

static void ask_record(const struct object *of)
{
    __builtin_prefetch(of->record, 1);
    __builtin_prefetch(of->record + 5 * LINE, 1);
    __builtin_prefetch(of->queue, 1);
    __builtin_prefetch(of->direct, 0);
}

/* A line of the structure tells where the record is, so this load has to be waited for. */
static const struct object *follow(const char *structure)
{
    const struct object *of;

    memcpy(&of, structure, sizeof(of));
    return of;
}

/* Returns a value that is known when all is done. */
static uint32_t touch(uint32_t i, int waits)
{
    const struct object *of;
    char *structure;

    if (waits == 1) {
        structure = objects[i].structure; /* by arithmetic: these arrays are dense */
        ask_structure(structure);
        ask_record(&objects[i]);
        of = &objects[i];
    } else {
        memcpy(&structure, handles[i], sizeof(structure)); /* the handle's line */
        ask_structure(structure);
        if (waits == 2) {
            of = &objects[i];
            ask_record(of);
        } else {
            of = follow(structure + LINE);
            ask_record(of);
        }
    }
    __atomic_fetch_add((uint32_t *)(void *)(structure + LINE + 16), 1, __ATOMIC_SEQ_CST);
    for (unsigned line = 2; line < 5; line++)
        *(volatile uint64_t *)(void *)(structure + line * LINE + 8) += 1;
    *(volatile uint64_t *)(void *)of->record += 1;
    *(volatile uint64_t *)(void *)(of->record + 5 * LINE) += 1;
    *(volatile uint64_t *)(void *)of->queue += 1;
    (void)*(volatile uint64_t *)(void *)of->direct;
    return __atomic_fetch_add((uint32_t *)(void *)(structure + LINE + 16), 1, __ATOMIC_SEQ_CST);
}

static double turn(uint32_t among, int waits, bool alongside)
{
    uint64_t began = thread_ns();
    uint32_t zero = 0, last = 0;

    /* The compiler does not know that it is 0, and the processor not before `last` is there. */
    __asm__("" : "+r"(zero));
    for (unsigned i = 0; i < TOUCHES; i++)
        last = touch(draw(among) + (alongside ? 0 : last & zero), waits);
    return (double)(thread_ns() - began) / (double)TOUCHES;
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    char *structures, *records, *queues, *directs;

    if (count < FEW) {
        fprintf(stderr, "usage: %s CPU OBJECTS\n", argv[0]);
        return 2;
    }
    pin(atoi(argv[1]));
    structures = populated((size_t)count * STRUCTURE);
    records = populated((size_t)count * RECORD);
    queues = populated((size_t)count * QUEUE);
    directs = populated((size_t)count * DIRECT);
    objects = populated(count * sizeof(*objects));
    handles = populated(count * sizeof(*handles));
    for (uint32_t i = 0; i < count; i++) {
        const struct object *of = &objects[i];

        objects[i] = (struct object){structures + (size_t)i * STRUCTURE, records + (size_t)i * RECORD,
                                     queues + (size_t)i * QUEUE, directs + (size_t)i * DIRECT};
        handles[i] = of->structure;
        memcpy(of->structure, &handles[i], sizeof(handles[i]));
        memcpy(of->structure + LINE, &of, sizeof(of));
    }
    for (int waits = 1; waits <= 3; waits++) {
        double few[2] = {0}, many[2] = {0};

        for (int i = 0; i < 2 * TURNS; i++) {
            double of_few = turn(FEW, waits, i % 2), of_all = turn(count, waits, i % 2);

            few[i % 2] = i < 2 || of_few < few[i % 2] ? of_few : few[i % 2];
            many[i % 2] = i < 2 || of_all < many[i % 2] ? of_all : many[i % 2];
        }
        printf("objects=%u waits=%d touch_2_ns=%.1f touch_all_ns=%.1f more_ns=%.1f alongside_more_ns=%.1f\n",
               count, waits, few[0], many[0], many[0] - few[0], many[1] - few[1]);
    }
    return 0;
}
