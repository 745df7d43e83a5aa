/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A ring (local/ring.c, notify.c): one store publishes a record; the writer rings if the reader sleeps. The reader says that
 * it sleeps, fences, looks once more, and sleeps. The writer may die at any step.
 *
 * Invariants:
 *   whole_records   a record that is taken was written in full
 *   no_lost_wakeup  a reader sleeps only if nothing is there, or a bell is on its way, or the writer is dead
 *                   (whose end wakes the reader)
 *
 * -DNO_FENCE lets the reader look before its word is seen: no_lost_wakeup must then fail. -DPUBLISH_FIRST lets the stamp be
 * seen before the payload, as a release store that is not one: whole_records must then fail. */
#define RECORDS 3

byte payload[RECORDS]; /* 1: written */
byte stamp[RECORDS];
bool asleep = false, bell = false, dead = false, sleeping = false;
byte taken = 0;

proctype writer()
{
    byte i = 0;

    do
    :: i == RECORDS -> break
    :: true -> dead = true; break /* the kernel closes its socket, which stays readable */
    :: i < RECORDS ->
#ifdef PUBLISH_FIRST
        stamp[i] = 1;
        payload[i] = 1;
#else
        payload[i] = 1;
        stamp[i] = 1; /* release */
#endif
        /* a full fence, then the attention word */
        if
        :: asleep -> atomic { asleep = false; bell = true }
        :: else
        fi;
        i++
    od
}

proctype reader()
{
    bool nothing;

    do
    :: taken == RECORDS -> break
    :: taken < RECORDS && stamp[taken] -> atomic { assert(payload[taken] == 1); taken++ }
    :: taken < RECORDS && !stamp[taken] ->
#ifdef NO_FENCE
        nothing = !stamp[taken];
        asleep = true;
#else
        asleep = true;
        nothing = !stamp[taken];
#endif
        if
        :: nothing -> sleeping = true; atomic { (bell || dead) -> bell = false; sleeping = false }
        :: else
        fi;
        asleep = false;
        if :: dead && !stamp[taken] -> break :: else fi
    od
}

init { atomic { run writer(); run reader() } }
