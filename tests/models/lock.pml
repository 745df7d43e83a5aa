/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A lock whose release is a plain store (docs/design/fences.md; base/lock.h, lock.c, fence.h): threads take it in turns, the last one
 * frees its memory. The store of a release stays in the processor's store buffer as long as it likes; an atomic instruction, a system call and
 * membarrier(2), which reaches all threads, empty it. Who finds the lock held goes to sleep without a spin.
 *
 * Invariants:
 *   exclusion       one thread at a time holds the lock
 *   no_lost_wakeup  nobody sleeps at the end
 *   no_access       nobody accesses the lock's memory when it is freed
 *
 * Each has to fail: -DNO_FENCE, who goes to sleep runs no membarrier(2); -DFENCE_FIRST, it runs membarrier(2) before it counts
 * itself; -DIN_LOCK, the counter of sleepers is in the lock's memory. */
#define THREADS 3
#define ROUNDS  2

bool held = false, freed = false;
bool stored[THREADS]; /* `held` = 0, in the store buffer */
bool asleep[THREADS];
byte sleepers = 0, holders = 0, left = THREADS;

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

inline acquire(t)
{
    atomic {
        drain(t);
        assert(!freed); /* no_access */
        if :: !held -> held = true; got = true :: else fi
    };
    if
    :: got
    :: else ->
#ifdef FENCE_FIRST
        atomic { membarrier() };
#endif
        atomic { drain(t); sleepers++ };
#if !defined(NO_FENCE) && !defined(FENCE_FIRST)
        atomic { membarrier() };
#endif
        do
        :: got -> break
        :: else ->
            atomic { if :: held -> asleep[t] = true :: else fi }; /* FUTEX_WAIT */
            !asleep[t];
            atomic { if :: !held -> held = true; got = true :: else fi }
        od;
        sleepers--
    fi;
    got = false;
    holders++;
    assert(holders == 1) /* exclusion */
}

inline release(t)
{
    holders--;
    stored[t] = true;
#ifdef IN_LOCK
    atomic { assert(!freed); seen = sleepers }; /* no_access */
#else
    seen = sleepers;
#endif
    if
    :: seen ->
        atomic { /* FUTEX_WAKE, of one */
            drain(t);
            if
            :: asleep[0] -> asleep[0] = false
            :: asleep[1] -> asleep[1] = false
            :: asleep[2] -> asleep[2] = false
            :: else
            fi
        }
    :: else
    fi;
    seen = 0
}

proctype thread(byte t)
{
    bool got = false;
    byte seen = 0, rounds = 0;

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
