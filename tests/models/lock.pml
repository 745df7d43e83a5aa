/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A lock whose release is a plain store (docs/design/fences.md; base/lock.h, lock.c, fence.h): threads take it in turns, the last one
 * frees its memory. The store of a release stays in the processor's store buffer as long as it likes; an atomic instruction, a system call and
 * membarrier(2), which reaches all threads, empty it. Who finds the lock held goes to sleep without a spin; who wakes a sleeper may take any.
 * With -DTWO there are two locks whose sleepers share a list, each of two threads, and none is freed.
 *
 * Invariants:
 *   exclusion       one thread at a time holds the lock
 *   no_lost_wakeup  nobody sleeps at the end
 *   no_access       nobody accesses the lock's memory when it is freed
 *   no_stack        nobody accesses what a sleeper has on its stack when that has returned
 *
 * Each has to fail: -DNO_FENCE, who goes to sleep runs no membarrier(2); -DFENCE_FIRST, it runs membarrier(2) before it enters the
 * list; -DSTAYS_SEEN, who finds the list seen relies on it though the list was empty since; -DSEEN_EARLY, the list is seen before the fence; -DIN_LOCK, the list is in the lock's memory; -DNO_LEAVE, a thread returns as soon as it has the lock. */
#define THREADS 4
#ifdef TWO
#define ROUNDS   1
#define LOCKS    2
#define LOCK(t)  (t / 2)
#else
#define ROUNDS   2
#define LOCKS    1
#define LOCK(t)  0
#endif

bool held[LOCKS], freed = false;
bool stored[THREADS];   /* `held` = 0, in the store buffer */
bool listed[THREADS];
bool woken[THREADS];
bool on_stack[THREADS]; /* what the list has of a thread */
bool is_seen = false;
byte holders[LOCKS], left = 3;

inline drain(t)
{
    if :: stored[t] -> stored[t] = false; held[LOCK(t)] = false :: else fi
}

inline membarrier()
{
    drain(0);
    drain(1);
    drain(2);
    drain(3)
}

#define any_listed() (listed[0] || listed[1] || listed[2] || listed[3])

inline forget_if_empty()
{
#ifdef STAYS_SEEN
    skip
#else
    if :: !any_listed() -> is_seen = false :: else fi
#endif
}

inline try(t)
{
    atomic {
        drain(t);
        assert(!freed); /* no_access */
        if :: !held[LOCK(t)] -> held[LOCK(t)] = true; got = true :: else fi
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
        atomic { /* add() */
            drain(t);
            woken[t] = false;
            listed[t] = true;
            knows = is_seen;
#ifdef SEEN_EARLY
            is_seen = true
#endif
        };
#if !defined(NO_FENCE) && !defined(FENCE_FIRST)
        if
        :: knows
        :: else ->
            atomic { membarrier() };
            atomic { if :: listed[t] -> is_seen = true :: else fi } /* note_seen() */
        fi;
#endif
        knows = false;
        try(t);
        if
        :: got
        :: else -> woken[t]; try(t) /* FUTEX_WAIT */
        fi;
#ifndef NO_LEAVE
        if
        :: atomic { listed[t] -> listed[t] = false; forget_if_empty() }
        :: atomic { !listed[t] && woken[t] }
        fi;
#endif
        on_stack[t] = false
    od;
    got = false;
    holders[LOCK(t)]++;
    assert(holders[LOCK(t)] == 1) /* exclusion */
}

inline release(t)
{
    holders[LOCK(t)]--;
    stored[t] = true;
#ifdef IN_LOCK
    atomic { assert(!freed); seen = any_listed() }; /* no_access */
#else
    seen = any_listed();
#endif
    if
    :: seen ->
        atomic {
            drain(t);
            if
            :: listed[0] && LOCK(0) == LOCK(t) -> listed[0] = false; sleeper = 0; forget_if_empty()
            :: listed[1] && LOCK(1) == LOCK(t) -> listed[1] = false; sleeper = 1; forget_if_empty()
            :: listed[2] && LOCK(2) == LOCK(t) -> listed[2] = false; sleeper = 2; forget_if_empty()
            :: listed[3] && LOCK(3) == LOCK(t) -> listed[3] = false; sleeper = 3; forget_if_empty()
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
    bool got = false, seen = false, knows = false;
    byte rounds = 0, sleeper = 0;

    do
    :: rounds < ROUNDS ->
        acquire(t);
        rounds++;
        if :: rounds == ROUNDS -> left-- :: else fi;
        if
        :: left == 0 && LOCKS == 1 -> freed = true; break
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
    :: atomic { stored[3] -> drain(3) }
    od
}

init
{
    atomic {
        run thread(0); run thread(1); run thread(2); run processors();
#ifdef TWO
        run thread(3)
#endif
    }
}
