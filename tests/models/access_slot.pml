/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Access slots (engine/direct/access_slot.h, owner.c): a requester that accesses memory of its peer, and the owner that
 * takes the memory back, with store buffers, so that a store is seen after later loads of the same process unless a fence is
 * between (x86; of aarch64's reorderings, this one). The requester may die at any step, with what it had stored seen or not.
 *
 * Invariants:
 *   no_late_access  once the owner has found no slot that names the key, nobody accesses the memory
 *   owner_comes_on  the owner ends, also if the requester dies while it holds a slot (as long as its end is noticed)
 *   one_holder      two threads of the requester never hold one slot
 *
 * -DNO_FENCE leaves the requester's fence away: no_late_access must then fail, or the model shows nothing. */
#define REQUESTERS 2

byte slot = 0;          /* whom the slot names: 0 nobody, else 1 + thread */
bool key_valid = true;  /* the generation that a check looks at */
bool seen_free = false; /* the owner has settled */
bool dead = false;      /* the link is down: the kernel told the owner */
byte accessing = 0;     /* requesters that are in the memory */
bool buffered[REQUESTERS];

proctype requester(byte me)
{
    bool valid;

    do
    :: dead -> break
    :: true ->
        /* access_slot_take(): compare and exchange */
#ifdef NO_FENCE
        atomic { (slot == 0 && !buffered[0] && !buffered[1]) -> buffered[me] = true }
#else
        atomic { (slot == 0 || dead) -> if :: slot == 0 -> slot = 1 + me :: else fi }
        if :: dead -> break :: else fi;
#endif
        valid = key_valid; /* the checks, behind the fence */
        if
        :: valid ->
            atomic { accessing++; assert(!seen_free || dead); assert(accessing == 1) }
            atomic { assert(!seen_free || dead); accessing-- }
        :: else
        fi;
#ifdef NO_FENCE
        atomic { if :: buffered[me] -> buffered[me] = false :: slot == 1 + me -> slot = 0 :: else fi }
#else
        atomic { if :: slot == 1 + me -> slot = 0 :: else fi }
#endif
        if :: !valid -> break :: else fi
    od
}

#ifdef NO_FENCE
proctype store_buffer(byte whose)
{
end:
    do
    :: atomic { buffered[whose] -> buffered[whose] = false; slot = 1 + whose }
    od
}
#endif

proctype death()
{
    if
    :: true -> dead = true /* SIGKILL at any step: its accesses end with it, its slot stays */
    :: true -> skip
    fi
}

proctype owner()
{
    key_valid = false; /* withdraws, then a full fence, then looks at the slots */
    do
    :: slot == 0 -> break
    :: dead -> break   /* link_leaving: the slots of a dead process are nobody's */
    od;
    seen_free = true
}

init
{
    atomic {
        run requester(0);
        run requester(1);
#ifdef NO_FENCE
        run store_buffer(0);
        run store_buffer(1);
#endif
        run death();
        run owner()
    }
}
