/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Death at any instruction. A victim and a peer play a scenario. A tracer, which uses no verbs, stops the victim at a
 * point, and kills it there or lets it lie for longer than the peer's patience. The peer judges what it sees, and then
 * plays the scenario once more with an heir, a new process in the victim's place.
 *
 *   death.c     the table of scenarios; a trial for each point; counts
 *   tracer.c    points: system calls of the adapter; threads that run one at a time
 *   record.c    points: stores that others see, and instructions of named functions, found by a traced run
 *   decode.c    where an instruction stores; mappings.c: who sees that; code.c: the adapter's functions
 *   party.c     what victim, peer and heir do */
#ifndef TESTS_DEATH_DEATH_H
#define TESTS_DEATH_DEATH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum scenario {
    SCENARIO_SETUP, /* open, register, create, connect, first contact */
    SCENARIO_TRANSFER, /* SEND, WRITE, READ, atomics of all sizes, both ways; what is accessed often is switched */
    SCENARIO_TEARDOWN, /* destroy, deregister, close after traffic */
    SCENARIO_LISTEN,   /* rdma_cm, as the passive side */
    SCENARIO_CONNECT,  /* rdma_cm, as the active side */
    SCENARIOS
};

enum role { VICTIM, PEER, HEIR };

/* What the peer reports of a trial, one message. */
struct verdict {
    bool good;
    bool connected;        /* it had a connected QP when the victim ended */
    int fds, maps;         /* when all is closed again, before the heir comes */
    int fds_end, maps_end; /* behind the heir */
    char text[200];        /* of what is wrong */
};

/* Sockets of a party: `other` (SOCK_SEQPACKET) to the other party, whose end it notices there. */
struct party_sockets {
    int other, heir, verdict;
    bool recording; /* the victim is slow: nobody loses patience */
    struct verdict
        most; /* what is left of it at most: that of a trial without a death. All 0: not known yet */
};

/* What the tracer is told by a trap of the victim. */
void party_mark(void);

_Noreturn void party_play(enum scenario scenario, enum role role, const struct party_sockets *sockets,
                          bool lying);

/* --- tracer.c --- */

/* Set by a signal handler: the trial has lasted too long. */
extern volatile int tracer_alarm;

enum point_kind {
    POINTS_NONE,    /* nobody dies */
    POINTS_PROGRAM, /* system calls of the program's thread; the helper thread is held while it can go on */
    POINTS_HELPER,  /* the other way round */
    POINTS_STORES,  /* before and behind each store to memory that others may map, in any thread */
    POINTS_STEPS,   /* each instruction of the named functions, in any thread */
    POINT_KINDS
};

enum when {
    WHEN_BEFORE,
    WHEN_BEHIND,
    WHEN_BETWEEN /* of a string instruction, behind the first of its rounds */
};

/* One of POINTS_STORES or POINTS_STEPS, which a traced run has found. */
struct point {
    uintptr_t
        entry;    /* of the function that is watched; 0: the instruction is waited for from the beginning */
    unsigned hit; /* this call of it, counted from 1 */
    uintptr_t at; /* the instruction */
    uintptr_t caller; /* the adapter's function that called, of an instruction elsewhere; 0: any */
    enum when when;
};

#define POINTS_MAX 16384u
struct points {
    unsigned count;
    struct point list[POINTS_MAX];
};

enum traced {
    TRACED_ENDED,   /* the victim came to its end before that point */
    TRACED_STOPPED, /* it is stopped at the point, in all threads */
    TRACED_STUCK,   /* it did not come on: tracer_alarm */
};

#define PLACE_MAX 128u
struct trace {
    pid_t pid;
    enum point_kind kind;
    unsigned point;            /* stop here, counted from 1; 0: only count. Of system calls */
    const struct point *there; /* stop here. Of the other kinds */
    struct points *record;     /* add what is found. Of the other kinds */
    unsigned points;           /* result: points that the victim passed */
    int exit_status;           /* result of TRACED_ENDED, as of waitpid() */
    char place[PLACE_MAX];     /* result of TRACED_STOPPED */
};

/* The victim waits, before its first verb, until it is told to go on: its threads are traced from the first. */
void tracer_attach(const struct trace *trace);
enum traced tracer_run(struct trace *trace);
/* The stopped victim goes on, without a tracer; not with breakpoints in it. */
void tracer_release(const struct trace *trace);
void tracer_kill(const struct trace *trace);

/* --- record.c --- */

/* Runs the victim from its beginning to its end, and notes points. */
enum traced record_run(struct trace *trace);
/* Runs it to such a point. */
enum traced record_reach(struct trace *trace);
/* What the point is called in journals, which are of other runs. */
void record_name(const struct point *point, char name[static PLACE_MAX]);

#endif
