/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs that sleep (docs/sleep.md; base/notify.h, local/notify.c, engine/core/helper.c, progress.c, object/cq): two threads,
 * each with a CQ and a channel of its own; the helper thread, which looks sooner or later, or not at all while it looks
 * seldom; a writer of a peer, which publishes records, rings, and with -DDIES may die between any two steps. What lies there is taken in one step, but a
 * thread holds the ring's lock before that; the helper thread takes one record at a time.
 *
 * Invariants:
 *   no_lost_wakeup  where the threads sleep or are away, the helper thread waits without a bell, and the writer is between
 *                   two records, nothing that completes at the CQ of a thread that sleeps lies in the ring or in the CQ
 *   no_empty_event  a channel that is readable has an event, unless the helper thread made one that a writer owed
 *   one_event       each arming has one event at most, with the same exception
 *
 * A sleep counts the attention word up, so the compare-exchange of who has read it before fails: a bit for each that has.
 *
 * Each has to fail: -DNO_FENCE, the writer reads the attention before its record is seen; -DANY_SLEEP, who declares the process
 * awake compares the state only, and not the count; -DOLD_SLEEP, the helper thread does not count up before it looks seldom, so
 * a writer that was stopped after its bell declares the process awake; -DNOT_OWED, it looks seldom though an event is owed;
 * -DNO_LOOK, it does not look into the rings after it has said that it looks seldom. */
#define THREADS 2
#ifndef RECORDS
#define RECORDS 2
#endif
#ifndef SLEEPERS
#define SLEEPERS 1 /* the other thread is away; with -DPOLLS it polls once before that, and finds something */
#endif
#define ARMINGS 1
#define NOTHING THREADS /* a record that completes nothing */

#define AWAKE  0
#define RUNG   1
#define DOZES  2
#define ASLEEP 3

/* The page, and who has read the attention since the last sleep: the writer, the threads. */
byte attention = AWAKE;
bool writer_is_fresh = false, thread_is_fresh[THREADS];
bool shown[THREADS], rung[THREADS];
byte tokens[THREADS]; /* of the writer, in the eventfd */

/* The ring. */
byte kind[RECORDS];
byte published = 0, taken = 0, consumed = 0;
bool is_read = false; /* receive lock */
bool dead = false, between = true;

/* The process. */
bool armed[THREADS], for_peers[THREADS];
byte armings[THREADS], events[THREADS], queued[THREADS];
short debt[THREADS];
byte done[THREADS]; /* completions */
bool made[THREADS]; /* the helper thread has made an event that was owed */
bool sleeps[THREADS], away[THREADS];
bool helper_sleeps = false, seldom = false, waits = false;
bool bell = false, later = false;

#define is_armed()    (armed[0] || armed[1])
#define owes()        (debt[0] > 0 || debt[1] > 0)
#define looks_soon()  (!helper_sleeps && !seldom)
#define is_readable(t) (tokens[t] || queued[t])

#define set_sleep(to)                                                                                                    \
    attention = to; writer_is_fresh = false; thread_is_fresh[0] = false; thread_is_fresh[1] = false

/* cq_push(), with the CQ's lock held: disarm(), then channel_post() or channel_owe(). */
inline complete(c)
{
    if
    :: c < THREADS ->
        done[c]++;
        if
        :: armed[c] ->
            armed[c] = false;
            if
            :: for_peers[c] && !shown[c] ->
                debt[c]++;
#ifdef NOT_OWED
                if :: debt[c] > 0 && helper_sleeps -> bell = true :: else fi
#else
                if :: debt[c] > 0 && !looks_soon() -> bell = true :: else fi
#endif
            :: else -> shown[c] = false; queued[c]++
            fi;
            for_peers[c] = false
        :: else
        fi
    :: else
    fi
}

/* progress_run(): what lies there, or a part of it. The writer sees how far the reader is when that goes to sleep. */
inline take(found)
{
    if
    :: atomic { !is_read && taken < published -> is_read = true };
        atomic {
            do
            :: taken < published -> complete(kind[taken]); taken++; found = true
            :: found -> break
            od;
            is_read = false
        }
    :: else
    fi
}

/* The same in one step, within an atomic one. */
inline take_at_once()
{
    if
    :: !is_read && taken < published -> complete(kind[taken]); taken++
    :: else
    fi
}

/* notify_set_attention(), then is_quiet(). */
inline prepare(wanted, ready)
{
    atomic {
        if
        :: wanted == DOZES && helper_sleeps -> set_sleep(ASLEEP)
        :: else -> set_sleep(wanted)
        fi
    };
    atomic {
        ready = !is_read && taken == published;
        if :: ready -> consumed = taken :: else fi
    }
}

inline go_to_sleep(ready)
{
    prepare(DOZES, ready);
    atomic {
        if :: !ready && !looks_soon() -> bell = true :: else fi;
        ready = false
    }
}

inline update_attention(t, seen, ready)
{
    atomic { seen = attention; thread_is_fresh[t] = true };
    if
    :: !is_armed() ->
        if
        :: seen == DOZES || seen == RUNG ->
            atomic {
#ifdef ANY_SLEEP
                if :: attention == seen -> attention = AWAKE :: else fi
#else
                if :: attention == seen && thread_is_fresh[t] -> attention = AWAKE :: else fi
#endif
            }
        :: else
        fi
    :: else ->
        if :: seen == AWAKE || seen == RUNG -> go_to_sleep(ready) :: else fi
    fi;
    seen = 0
}

inline run_from_application(t)
{
    take(found);
    if :: found -> update_attention(t, seen, ready) :: else fi;
    found = false
}

proctype thread(byte t)
{
    bool found, ready;
    byte seen, credit;

    do
    :: armings[t] == ARMINGS -> break
#ifdef POLLS
    :: t >= SLEEPERS -> run_from_application(t); break
#else
    :: t >= SLEEPERS -> break
#endif
    :: t < SLEEPERS && armings[t] < ARMINGS ->
        /* cq_arm() */
        atomic {
            if
            :: armed[t] && for_peers[t] && !shown[t] -> armed[t] = false; for_peers[t] = false; debt[t]++
            :: else
            fi;
            armed[t] = true;
            if :: debt[t] <= 0 && !rung[t] -> for_peers[t] = true; shown[t] = true :: else fi;
            armings[t]++
        };
        go_to_sleep(ready);
        /* What came meanwhile is found by a poll, and then it does not have to sleep. */
        if :: !done[t] -> run_from_application(t) :: else fi;
        if
        :: done[t] -> done[t] = 0
        :: else ->
            do
            :: sleeps[t] = true;
                end_asleep: atomic { is_readable(t) -> sleeps[t] = false; credit = tokens[t]; tokens[t] = 0 };
                if :: credit -> run_from_application(t) :: else fi;
                atomic { /* collect() */
                    do
                    :: credit && rung[t] ->
                        rung[t] = false;
                        credit--;
                        if
                        :: for_peers[t] && armed[t] && !shown[t] -> armed[t] = false; for_peers[t] = false; debt[t]++
                        :: else
                        fi;
                        debt[t]--;
                        queued[t]++
                    :: else -> break
                    od;
                    credit = 0;
                    if
                    :: queued[t] ->
                        queued[t]--;
                        events[t]++;
                        assert(events[t] <= armings[t] || made[t]); /* one_event */
                        break
                    :: else -> assert(made[t]) /* no_empty_event */
                    fi
                }
            od;
            done[t] = 0
        fi
    od;
    away[t] = true
}

proctype writer()
{
    byte seen, at;

#ifdef DIES
    {
#endif
        do
        :: published == RECORDS -> break
        :: published < RECORDS ->
#ifdef NO_FENCE
            atomic { between = false; seen = attention; writer_is_fresh = true };
#endif
            atomic {
                between = false;
                at = published;
                /* The threads are alike, so the first record is not of the second. */
                if :: kind[at] = 0 :: at && SLEEPERS == 2 -> kind[at] = 1 :: kind[at] = NOTHING fi;
                published++
#ifdef NO_FENCE
            };
            if
#else
            };
            atomic { seen = attention; writer_is_fresh = true };
            if
#endif
            :: seen == AWAKE || consumed == published /* is_taken() */
            :: else ->
                if
                :: atomic { kind[at] < THREADS && shown[kind[at]] -> shown[kind[at]] = false };
                    rung[kind[at]] = true;
                    tokens[kind[at]]++;
                    if :: seen == ASLEEP -> later = true :: else fi;
                    atomic {
                        if :: seen != RUNG && attention == seen && writer_is_fresh -> attention = RUNG :: else fi
                    }
                :: else ->
                    if
                    :: seen != RUNG ->
                        bell = true;
                        atomic {
                            if :: attention == seen && writer_is_fresh -> attention = AWAKE :: else fi
                        }
                    :: else
                    fi
                fi
            fi;
            atomic { writer_is_fresh = false; seen = 0; at = 0; between = true }
        od
#ifdef DIES
    } unless { dead };
    atomic { between = true; writer_is_fresh = false; seen = 0; at = 0 }
#endif
}

#ifdef DIES
/* The kernel closes the writer's socket, and the helper thread reads what is there and takes the link down. */
proctype killer()
{
    atomic { dead = true; bell = true }
}
#endif

#define lies_there() (taken < published || is_read)

proctype helper()
{
    bool ready, watching = true, called = false, was_owed = false;

    do
    :: if
        :: atomic {
                watching ->
                /* wait_watching(); local_renew_sleep() */
                seldom = true;
#ifndef OLD_SLEEP
                if :: attention >= DOZES -> set_sleep(attention) :: else fi
#endif
            };
            atomic {
                if
#ifndef NO_LOOK
                :: attention != RUNG && lies_there()
#endif
#ifndef OLD_SLEEP
                :: attention == AWAKE && is_armed()
#endif
#ifndef NOT_OWED
                :: owes()
#endif
                :: else -> waits = true
                fi
            }
        :: atomic { !watching -> waits = true };
            end_waits: bell || later
        fi;
        /* It looks at some time, rung or not. woken_thread_is_late() */
        atomic {
            waits = false;
            seldom = false;
            helper_sleeps = false;
            ready = later;
            later = false;
            if :: bell -> bell = false; take_at_once() :: else fi;
            if
            :: (attention == RUNG || (attention == AWAKE && is_armed())) && lies_there() ->
                if :: called -> take_at_once() :: else fi;
                called = true
            :: else -> called = false
            fi
        };
        if
        :: watching = true
        :: /* work_until_quiet(), then take_channel_rung() */
            atomic { take_at_once(); helper_sleeps = true; set_sleep(ASLEEP) };
            atomic {
                watching = ready;
                if
                :: !is_read && taken == published -> consumed = taken
                :: else -> set_sleep(AWAKE); helper_sleeps = false; watching = true
                fi
            }
        fi;
        /* deliver_late_events(), rearm_doorbells() */
        atomic {
            ready = false;
            if
            :: owes() ->
                watching = true;
                if
                :: was_owed && debt[0] > 0 -> debt[0] = 0; rung[0] = false; queued[0]++; made[0] = true
                :: was_owed && debt[1] > 0 -> debt[1] = 0; rung[1] = false; queued[1]++; made[1] = true
                :: else
                fi;
                was_owed = true
            :: else -> was_owed = false
            fi
        };
        if
        :: atomic { watching && is_armed() && attention == AWAKE -> set_sleep(DOZES) };
            atomic {
                if :: !is_read && taken == published -> consumed = taken :: else -> take_at_once() fi
            }
        :: else
        fi
    od
}

#define is_at_rest(t) (away[t] || (sleeps[t] && !is_readable(t)))
#define is_lost(t)                                                                                                       \
    (sleeps[t] && (done[t] || (taken < published && kind[taken] == t) ||                                                 \
                   (taken + 1 < published && kind[taken + 1] == t)))

/* no_lost_wakeup */
proctype monitor()
{
    end: atomic {
        is_at_rest(0) && is_at_rest(1) && waits && !bell && !later && between && (is_lost(0) || is_lost(1)) ->
        assert(false)
    }
}

init
{
    atomic {
#ifdef POLLS
        attention = DOZES;
        kind[0] = NOTHING;
        published = 1;
#endif
        run thread(0); run thread(1); run writer(); run helper(); run monitor();
#ifdef DIES
        run killer()
#endif
    }
}
