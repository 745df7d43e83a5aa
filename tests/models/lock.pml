/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A lock whose release is a plain store (docs/design/fences.md; base/lock.h, lock.c, fence.h): threads take it in turns, the last one
 * frees its memory. The store of a release stays in the processor's store buffer as long as it likes; an atomic instruction, a system call and
 * membarrier(2), which reaches all threads, empty it. Who finds the lock held goes to sleep without a spin; who wakes a sleeper may take any.
 *
 * Invariants:
 *   exclusion       one thread at a time holds the lock
 *   no_lost_wakeup  nobody sleeps at the end
 *   no_access       nobody accesses the lock's memory when it is freed
 *   no_stack        nobody accesses what a sleeper has on its stack when that has returned
 *
 * Each has to fail: -DNO_FENCE, who goes to sleep runs no membarrier(2); -DFENCE_FIRST, it runs membarrier(2) before it enters the
 * list; -DIN_LOCK, the list is in the lock's memory; -DNO_LEAVE, a thread returns as soon as it has the lock. */
#define THREADS 3
#define ROUNDS  2

bool held = false, freed = false;
bool stored[THREADS];   /* `held` = 0, in the store buffer */
bool listed[THREADS];
bool woken[THREADS];
bool on_stack[THREADS]; /* what the list has of a thread */
byte holders = 0, left = THREADS;

inline drain(t)
{
    if :: stored[t] -> stored[t] = false; held = false :: else fi
}

inline membarrier()
{
    drain(0);
    drain(1);
    drain(2)
}

inline try(t)
{
    atomic {
        drain(t);
        assert(!freed); /* no_access */
        if :: !held -> held = true; got = true :: else fi
    }
}

inline acquire(t)
{
    try(t);
    do
    :: got -> break
    :: else ->
        on_stack[t] = true;
#ifdef FENCE_FIRST
        atomic { membarrier() };
#endif
        atomic { drain(t); woken[t] = false; listed[t] = true }; /* add() */
#if !defined(NO_FENCE) && !defined(FENCE_FIRST)
        atomic { membarrier() };
#endif
        try(t);
        if
        :: got
        :: else -> woken[t]; try(t) /* FUTEX_WAIT */
        fi;
#ifndef NO_LEAVE
        if
        :: atomic { listed[t] -> listed[t] = false }
        :: atomic { !listed[t] && woken[t] }
        fi;
#endif
        on_stack[t] = false
    od;
    got = false;
    holders++;
    assert(holders == 1) /* exclusion */
}

inline release(t)
{
    holders--;
    stored[t] = true;
#ifdef IN_LOCK
    atomic { assert(!freed); seen = listed[0] || listed[1] || listed[2] }; /* no_access */
#else
    seen = listed[0] || listed[1] || listed[2];
#endif
    if
    :: seen ->
        atomic {
            drain(t);
            if
            :: listed[0] -> listed[0] = false; sleeper = 0
            :: listed[1] -> listed[1] = false; sleeper = 1
            :: listed[2] -> listed[2] = false; sleeper = 2
            :: else -> sleeper = THREADS
            fi
        };
        atomic { /* FUTEX_WAKE */
            if
            :: sleeper < THREADS -> assert(on_stack[sleeper]); woken[sleeper] = true /* no_stack */
            :: else
            fi;
            sleeper = 0
        }
    :: else
    fi;
    seen = false
}

proctype thread(byte t)
{
    bool got = false, seen = false;
    byte rounds = 0, sleeper = 0;

    do
    :: rounds < ROUNDS ->
        acquire(t);
        rounds++;
        if :: rounds == ROUNDS -> left-- :: else fi;
        if
        :: left == 0 -> freed = true; break
        :: else -> release(t)
        fi
    :: else -> break
    od
}

/* The processors write what is in their store buffers. */
proctype processors()
{
    end: do
    :: atomic { stored[0] -> drain(0) }
    :: atomic { stored[1] -> drain(1) }
    :: atomic { stored[2] -> drain(2) }
    od
}

init
{
    atomic { run thread(0); run thread(1); run thread(2); run processors() }
}
