/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Locks that threads sleep on: with membarrier(2), without it, and where it is forbidden meanwhile. A wake-up that is
 * lost leaves a thread asleep, and the test with it. All interleavings: tests/models/lock.pml. */
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../bench/filter.h"
#include "base/lock.h"

enum { THREADS = 4, ROUNDS = 20000 };

static struct lock lock = LOCK_INIT;
static uint64_t counted; /* not atomic: ThreadSanitizer and the sum tell when two threads hold the lock */
static _Atomic uint32_t slept;

/* Whoever waits for a holder that gives its processor away is asleep. */
static void *count(void *unused)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        lock_acquire(&lock);
        if (i % 4 == 0)
            sched_yield();
        if (lock_is_awaited(lock_sleepers_of(&lock)))
            atomic_fetch_add_explicit(&slept, 1, memory_order_relaxed);
        counted++;
        lock_release(&lock);
    }
    return NULL;
}

static void nobody_else_has_the_lock_and_nobody_sleeps_on(void)
{
    pthread_t threads[THREADS];

    counted = 0;
    slept = 0;
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(counted, (uint64_t)THREADS * ROUNDS);
    assert_int_not_equal(slept, 0);
    for (unsigned i = 0; i < LOCK_SLEEPERS; i++)
        assert_null(lock_sleepers[i].first);
}

static void with_light_fences(void **state)
{
    fence_ask();
    nobody_else_has_the_lock_and_nobody_sleeps_on();
}

static void with_full_fences(void **state)
{
    atomic_store(&fence_is_full, 1);
    nobody_else_has_the_lock_and_nobody_sleeps_on();
}

/* A program may forbid membarrier(2) behind its first verb. In a process of its own: a filter stays. */
static void where_membarrier_is_forbidden_since(void **state)
{
    pid_t child;
    int status;

    if (prctl(PR_GET_SECCOMP) < 0) /* an emulator, or a kernel without */
        skip();
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        fence_ask();
        if (fence_is_full)
            _exit(0); /* it never was allowed */
        filter_install("membarrier");
        nobody_else_has_the_lock_and_nobody_sleeps_on();
        _exit(!fence_is_full || fence_heavy() != true);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_light_fences),
        cmocka_unit_test(with_full_fences),
        cmocka_unit_test(where_membarrier_is_forbidden_since),
    };

    return run_unit_tests("lock", tests);
}
