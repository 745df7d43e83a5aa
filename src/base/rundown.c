/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/rundown.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/sys.h"

/* Threads that need no memory for their records: no verb can run without one, and most have no error to return. */
#define RESERVED   1024u
#define BLOCK_SIZE 4096u /* bytes: records of further threads */
#define TRY_AGAIN  (100 * NS_PER_MS)

__thread struct rundown_thread *rundown_self __attribute__((tls_model("initial-exec")));
_Atomic uint32_t rundown_is_held;

static _Atomic(struct rundown_thread *) all_threads; /* push only; records are reused, never freed */
static struct rundown_thread reserved[RESERVED];
static _Atomic uint32_t reserved_taken;
static _Atomic uint32_t
    records_freed; /* futex: threads wait for a record; counts the threads that have ended */
static _Atomic uint32_t record_awaiters;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end_key;

static void thread_ended(void *record)
{
    struct rundown_thread *self = record;

    /* Later destructors of the program may call verbs, and register the thread again. */
    rundown_self = NULL;
    atomic_store_explicit(&self->in_use, 0, memory_order_release);
    atomic_fetch_add(&records_freed, 1); /* partner: wait_for_record(), which adds itself first */
    if (unlikely(atomic_load(&record_awaiters)))
        sys_futex((uint32_t *)&records_freed, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

static void initialise(void)
{
    pthread_key_create(&thread_end_key, thread_ended);
    fence_ask();
}

static struct rundown_thread *unused_record(void)
{
    struct rundown_thread *record;

    for (record = atomic_load_explicit(&all_threads, memory_order_acquire); record; record = record->next) {
        uint32_t unused = 0;

        if (atomic_compare_exchange_strong(&record->in_use, &unused, 1))
            break;
    }
    return record;
}

static void add_record(struct rundown_thread *record)
{
    record->next = atomic_load_explicit(&all_threads, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&all_threads, &record->next, record, memory_order_release,
                                                  memory_order_relaxed)) {
    }
}

/* NULL: no memory. */
static struct rundown_thread *new_record(void)
{
    struct rundown_thread *block;
    uint32_t number = RESERVED;

    if (atomic_load_explicit(&reserved_taken, memory_order_relaxed) < RESERVED)
        number = atomic_fetch_add_explicit(&reserved_taken, 1, memory_order_relaxed);
    if (number < RESERVED) {
        block = &reserved[number];
        atomic_store_explicit(&block->in_use, 1, memory_order_relaxed);
        add_record(block);
        return block;
    }
    block = sys_mmap(NULL, BLOCK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, NULL);
    if (!block)
        return NULL;
    atomic_store_explicit(&block->in_use, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < BLOCK_SIZE / sizeof(*block); i++)
        add_record(&block[i]);
    return block;
}

/* Waits for the end of another thread, and tries again to get memory now and then. */
static void wait_for_record(uint32_t freed)
{
    static _Atomic bool told;

    if (!atomic_exchange_explicit(&told, true, memory_order_relaxed))
        log_error("out of memory for the state of more than %u threads that use verbs: a thread is blocked "
                  "in its first "
                  "call of a verb until memory is free or another thread exits",
                  RESERVED);
    sys_futex((uint32_t *)&records_freed, FUTEX_WAIT_PRIVATE, freed, TRY_AGAIN);
}

struct rundown_thread *cold_path rundown_register_thread(void)
{
    int saved = errno;
    struct rundown_thread *self;

    pthread_once(&once, initialise);
    self = unused_record();
    if (!self)
        self = new_record();
    if (unlikely(!self)) {
        atomic_fetch_add(&record_awaiters, 1); /* partner: thread_ended() */
        do {
            uint32_t freed = atomic_load(&records_freed);

            self = unused_record();
            if (!self)
                self = new_record();
            if (!self)
                wait_for_record(freed);
        } while (!self);
        atomic_fetch_sub(&record_awaiters, 1);
    }
    pthread_setspecific(thread_end_key, self);
    rundown_self = self;
    errno = saved;
    return self;
}

void rundown_wait(void)
{
    pthread_once(&once, initialise);
    (void)fence_heavy(); /* partner: fence_light() in rundown_enter() */
    for (struct rundown_thread *thread = atomic_load_explicit(&all_threads, memory_order_acquire); thread;
         thread = thread->next) {
        uint32_t sections = atomic_load_explicit(&thread->sections, memory_order_acquire);

        if (thread == rundown_self)
            continue;
        for (unsigned spins = 0;
             (sections & 1) != 0 && atomic_load_explicit(&thread->sections, memory_order_acquire) == sections;
             spins++) {
            if (spins < 1000)
                cpu_relax();
            else
                sched_yield();
        }
    }
}

/* --- holding ----------------------------------------------------------------------------------------- */

void cold_path rundown_enter_later(struct rundown_thread *self)
{
    uint32_t outside = atomic_load_explicit(&self->sections, memory_order_relaxed) + 1;

    do {
        atomic_store_explicit(&self->sections, outside, memory_order_release);
        while (atomic_load_explicit(&rundown_is_held, memory_order_acquire))
            sys_futex((uint32_t *)&rundown_is_held, FUTEX_WAIT_PRIVATE, 1, NS_NEVER);
        atomic_store_explicit(&self->sections, ++outside, memory_order_relaxed);
        outside++;
        /* Either this load sees rundown_hold(), or rundown_hold() sees this thread inside. */
        fence_light();
    } while (atomic_load_explicit(&rundown_is_held, memory_order_acquire));
}

void rundown_hold(void)
{
    atomic_store_explicit(&rundown_is_held, 1, memory_order_relaxed);
    rundown_wait();
}

void rundown_release(void)
{
    atomic_store_explicit(&rundown_is_held, 0, memory_order_release);
    sys_futex((uint32_t *)&rundown_is_held, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

bool rundown_others_are_inside(void)
{
    for (struct rundown_thread *thread = atomic_load_explicit(&all_threads, memory_order_acquire); thread;
         thread = thread->next)
        if (thread != rundown_self && (atomic_load_explicit(&thread->sections, memory_order_relaxed) & 1))
            return true;
    return false;
}

void rundown_after_fork_in_child(void)
{
    atomic_store_explicit(&record_awaiters, 0, memory_order_relaxed);
    atomic_store_explicit(&rundown_is_held, 0, memory_order_relaxed);
    for (struct rundown_thread *thread = atomic_load_explicit(&all_threads, memory_order_acquire); thread;
         thread = thread->next) {
        if (thread == rundown_self)
            continue;
        atomic_store_explicit(&thread->sections, 0, memory_order_relaxed);
        thread->depth = 0;
        atomic_store_explicit(&thread->in_use, 0, memory_order_relaxed);
    }
}
