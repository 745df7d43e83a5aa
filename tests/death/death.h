/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Death at any instruction. A victim and a peer play a scenario. A tracer, which uses no verbs, stops the victim at a
 * point, and kills it there or lets it lie for longer than the peer's patience. The peer judges what it sees, and then
 * plays the scenario once more with an heir, a new process in the victim's place.
 *
 *   death.c     the table of scenarios; a trial for each point; counts
 *   tracer.c    points: system calls of the adapter, and instructions of named functions
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
    POINTS_STEPS,   /* each instruction of the named functions, in any thread */
    POINT_KINDS
};

enum traced {
    TRACED_ENDED,   /* the victim came to its end before that point */
    TRACED_STOPPED, /* it is stopped at the point, in all threads */
    TRACED_STUCK,   /* it did not come on: tracer_alarm */
};

struct trace {
    pid_t pid;
    enum point_kind kind;
    unsigned point;  /* stop here, counted from 1; 0: only count */
    unsigned points; /* result: points that the victim passed */
    int exit_status; /* result of TRACED_ENDED, as of waitpid() */
    char place[96];  /* result of TRACED_STOPPED */
};

/* The victim waits, before its first verb, until it is told to go on: its threads are traced from the first. */
void tracer_attach(const struct trace *trace);
enum traced tracer_run(struct trace *trace);
/* The stopped victim goes on, without a tracer. */
void tracer_release(const struct trace *trace);
void tracer_kill(const struct trace *trace);

#endif
