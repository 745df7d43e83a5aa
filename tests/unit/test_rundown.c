/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Sections of threads, and who holds them off: with membarrier(2) and without. */
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/rundown.h"

enum { THREADS = 3, ROUNDS = 2000 };

/* What sections access. Not atomic: ThreadSanitizer and the sums tell when two threads are there at once. */
static uint64_t counter[THREADS], moved[THREADS];
static uint64_t *counters = counter;
static _Atomic bool ends;

static void *enter_and_count(void *argument)
{
    uint64_t *counted = argument, number = *counted;

    *counted = 0;
    while (!atomic_load(&ends)) {
        rundown_enter();
        rundown_enter(); /* nested */
        counters[number]++;
        rundown_exit();
        rundown_exit();
        ++*counted;
    }
    return NULL;
}

/* As pages are switched: copied, and then replaced. */
static void move_counters(void)
{
    uint64_t *to = counters == counter ? moved : counter;

    for (unsigned i = 0; i < THREADS; i++) {
        to[i] = counters[i];
        if (i == 1)
            sched_yield();
    }
    memset(counters, 0, sizeof(counter));
    counters = to;
}

static void hold_off(bool fenced)
{
    pthread_t threads[THREADS];
    uint64_t counted[THREADS];

    rundown_enter(); /* asks for membarrier(2) */
    rundown_exit();
    if (fenced)
        atomic_store(&fence_is_full, 1);
    memset(counter, 0, sizeof(counter));
    memset(moved, 0, sizeof(moved));
    atomic_store(&ends, false);
    for (unsigned i = 0; i < THREADS; i++) {
        counted[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, enter_and_count, &counted[i]), 0);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        rundown_hold();
        move_counters();
        rundown_release();
        if (i % 16 == 0)
            sched_yield();
    }
    atomic_store(&ends, true);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(counters[i], counted[i]);
    }
}

static void nobody_is_inside_while_sections_are_held_off(void **state)
{
    hold_off(false);
}

static void nor_without_membarrier(void **state)
{
    hold_off(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_inside_while_sections_are_held_off),
        cmocka_unit_test(nor_without_membarrier),
    };

    return run_unit_tests("rundown", tests);
}
