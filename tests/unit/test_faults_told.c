/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a fault has hit is told before the process ends, also if another thread has begun to tell it
 * (engine/core/faults.c). The plan, and what is told, are the test's. */
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "engine/core/explainer.h"
#include "engine/core/faults.h"

/* So often the thread that tells lets the other one run, which would return meanwhile. */
enum { YIELDS = 1000 };

static sem_t tells, ends;
static _Atomic unsigned told;

void __wrap_explainer_tell_strike(const struct inject_strike *strike);

void __wrap_explainer_tell_strike(const struct inject_strike *strike)
{
    (void)strike;
    faults_tell(); /* as a program may that is told */
    sem_post(&tells);
    while (sem_wait(&ends) != 0) {
    }
    for (unsigned i = 0; i < YIELDS; i++)
        sched_yield();
    atomic_fetch_add(&told, 1);
}

static void *tell(void *argument)
{
    faults_tell();
    return argument;
}

static void who_ends_the_process_waits_for_who_tells(void **state)
{
    static struct inject_plan plan;
    static struct inject_fault fault;
    pthread_t thread;

    (void)state;
    atomic_store(&inject_plan, &plan);
    faults_note(&(struct inject_strike){.fault = &fault});
    assert_int_equal(pthread_create(&thread, NULL, tell, NULL), 0);
    while (sem_wait(&tells) != 0) {
    }
    sem_post(&ends);
    faults_tell_idle();
    assert_int_equal(atomic_load(&told), 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(who_ends_the_process_waits_for_who_tells)};

    if (sem_init(&tells, 0, 0) || sem_init(&ends, 0, 0))
        return 1;
    return run_unit_tests("faults_told", tests);
}
