/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <errno.h>
#include <pthread.h>

#include "base/sys.h"
#include "segment/stack.h"
#include "watch/state.h"

__thread struct watch_thread watch_thread = {0, &no_qp, &no_qp, &no_cq};

/* What is posted and polled now takes the longer way, which asks whether the thread is inside. */
void watch_enter(void)
{
    watch_thread = (struct watch_thread){watch_thread.inside + 1, &no_qp, &no_qp, &no_cq};
}

void watch_leave(void)
{
    watch_thread.inside--;
}

enum started { NOT_STARTED, STARTED, FAILED };
static struct lock lock = LOCK_INIT; /* guards starting */
static _Atomic uint32_t started;     /* enum started */

/* What the child inherits is its parent's: the segment becomes a private copy, and calls for inherited objects pass. */
static void after_fork_in_child(void)
{
    fence_after_fork_in_child();
    lock_after_fork_in_child();
    lock_init(&lock);
    watch_thread = (struct watch_thread){0, &no_qp, &no_qp, &no_cq};
    sys_forget_thread();
    objects_after_fork_in_child();
    work_after_fork_in_child();
    events_after_fork_in_child();
    tell_after_fork_in_child();
    stacks_after_fork_in_child();
    segment_after_fork_in_child();
    atomic_store_explicit(&started, NOT_STARTED, memory_order_relaxed);
}

static enum started start_locked(void)
{
    static bool handles_fork;

    if (!handles_fork && pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
        return FAILED;
    handles_fork = true;
    fence_ask();
    if (segment_open_watched() != 0)
        return FAILED;
    tell_start();
    return STARTED;
}

bool watch_start(void)
{
    uint32_t state = atomic_load_explicit(&started, memory_order_acquire);
    int saved = errno;

    if (likely(state != NOT_STARTED))
        return state == STARTED;
    lock_acquire(&lock);
    state = atomic_load_explicit(&started, memory_order_relaxed);
    if (state == NOT_STARTED) {
        state = start_locked();
        atomic_store_explicit(&started, state, memory_order_release);
    }
    lock_release(&lock);
    errno = saved;
    return state == STARTED;
}
