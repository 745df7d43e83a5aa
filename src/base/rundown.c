/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/rundown.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/lock.h"
#include "base/sys.h"

__thread struct rundown_thread *rundown_self __attribute__((tls_model("initial-exec")));
bool rundown_needs_fence = true;

static _Atomic(struct rundown_thread *) all_threads; /* push only; records are reused, never freed */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end_key;

static void thread_ended(void *record)
{
    struct rundown_thread *self = record;

    /* Later destructors of the program may call verbs, and register the thread again. */
    rundown_self = NULL;
    atomic_store_explicit(&self->in_use, 0, memory_order_release);
}

static void initialise(void)
{
    pthread_key_create(&thread_end_key, thread_ended);
    /* Registers the whole process; free of cost until the first membarrier. */
    rundown_needs_fence = sys_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
}

struct rundown_thread *cold_path rundown_register_thread(void)
{
    int saved = errno;
    struct rundown_thread *self;

    pthread_once(&once, initialise);
    for (self = atomic_load_explicit(&all_threads, memory_order_acquire); self; self = self->next) {
        uint32_t unused = 0;

        if (atomic_compare_exchange_strong(&self->in_use, &unused, 1))
            break;
    }
    if (!self) {
        self =
            sys_mmap(NULL, sizeof(*self), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, NULL);
        if (!self)
            abort(); /* no page at a thread's first verb: no verb can run without the record */
        atomic_store_explicit(&self->in_use, 1, memory_order_relaxed);
        self->next = atomic_load_explicit(&all_threads, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&all_threads, &self->next, self, memory_order_release,
                                                      memory_order_relaxed)) {
        }
    }
    pthread_setspecific(thread_end_key, self);
    rundown_self = self;
    errno = saved;
    return self;
}

void rundown_wait(void)
{
    pthread_once(&once, initialise);
    if (rundown_needs_fence || sys_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0)
        atomic_thread_fence(memory_order_seq_cst);
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
    /* Linux copies the registration with the address space, but does not document that. */
    if (!rundown_needs_fence)
        rundown_needs_fence = sys_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
    for (struct rundown_thread *thread = atomic_load_explicit(&all_threads, memory_order_acquire); thread;
         thread = thread->next) {
        if (thread == rundown_self)
            continue;
        atomic_store_explicit(&thread->sections, 0, memory_order_relaxed);
        thread->depth = 0;
        atomic_store_explicit(&thread->in_use, 0, memory_order_relaxed);
    }
}
