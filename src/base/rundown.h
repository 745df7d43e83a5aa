/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Rundown (an RCU grace period): wait until no thread can use an object that was withdrawn.
 *
 * A thread uses registered memory, a link, or another object that may be withdrawn, between rundown_enter() and
 * rundown_exit(). A thread that withdraws such an object first makes it unreachable (a new generation, a NULL
 * pointer) and then calls rundown_wait(), which returns when every thread has left the section that it was in.
 * Sections are short and never wait for a peer.
 *
 * Entering is a plain store and fence_light(); fence_heavy() in rundown_wait() is the other half. */
#ifndef BASE_RUNDOWN_H
#define BASE_RUNDOWN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fence.h"
#include "base/types.h"

struct rundown_thread {
    _Atomic uint32_t sections;   /* odd inside a section; written by its thread only */
    uint32_t depth;              /* nested sections; its thread only */
    struct rundown_thread *next; /* never changes once linked */
    _Atomic uint32_t in_use;     /* 0: its thread has ended, another one may take the record */
} cache_aligned;

extern __thread struct rundown_thread *rundown_self __attribute__((tls_model("initial-exec")));

extern _Atomic uint32_t rundown_is_held; /* between rundown_hold() and rundown_release() */

struct rundown_thread *rundown_register_thread(void);
/* The caller has marked itself as inside. */
void rundown_enter_later(struct rundown_thread *self);

static inline void rundown_enter(void)
{
    struct rundown_thread *self = rundown_self;

    if (unlikely(!self))
        self = rundown_register_thread();
    if (self->depth++)
        return;
    atomic_store_explicit(&self->sections, atomic_load_explicit(&self->sections, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    fence_light(); /* partner: fence_heavy() in rundown_wait() */
    if (unlikely(atomic_load_explicit(&rundown_is_held, memory_order_acquire)))
        rundown_enter_later(self);
}

static inline void rundown_exit(void)
{
    struct rundown_thread *self = rundown_self;

    if (--self->depth)
        return;
    /* Release: all accesses inside the section precede the return of rundown_wait(). Partner: its acquire load. */
    atomic_store_explicit(&self->sections, atomic_load_explicit(&self->sections, memory_order_relaxed) + 1,
                          memory_order_release);
}

/* Must not be called inside a section. */
void rundown_wait(void);
/* Waits until all other threads have left their sections, and lets none enter one before rundown_release(): nobody
 * accesses registered memory in between but the caller, who enters no section. One caller at a time, outside of every
 * section. */
void rundown_hold(void);
void rundown_release(void);
/* True if another thread was in a section; it may have left since. */
bool rundown_others_are_inside(void);
/* In the child of a fork: only the calling thread exists. */
void rundown_after_fork_in_child(void);

#endif
