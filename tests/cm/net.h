/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A simulated network with two processes, a clock in memory, and the state machine of src/cm at both ends: loss,
 * duplication, reordering, delay and death of processes, reproducible by a seed. A minimal model of rdma_cm and the
 * program responds to requests and events. */
#ifndef TESTS_CM_NET_H
#define TESTS_CM_NET_H

#include "../unit/unit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/timer.h"
#include "cm/cm.h"

enum { SEEN_MAX = 8, RULES_MAX = 8, LOG_MAX = 4096 };

/* What a program does with a request. */
enum program {
    ACCEPTS,
    REJECTS,
    CLOSES,  /* cm_close() instead of a response */
    IGNORES, /* the test responds */
    REFUSES, /* request() returns a reason */
};

/* An event, copied. */
struct seen {
    enum cm_event_type type;
    int status;
    ns_t at;
    struct cm_offer offer;
    bool has_private;
    uint8_t private_length;
    uint8_t private_data[CM_PRIVATE_MAX];
};

/* The user's object with a cm_id. */
struct end {
    struct cm_id id;
    struct list in_side;
    struct list todo;
    struct side *side;
    struct timer timer; /* the program responds */
    bool passive, datagram, closed, released, answered, established;
    uint32_t qpn;
    uint32_t comm_id; /* the last one */
    struct seen seen[SEEN_MAX];
    unsigned seen_count, handled;
    struct cm_request request; /* without its pointers */
    uint8_t private_data[CM_PRIVATE_MAX];
    void *user;
};

/* A process. */
struct side {
    struct cm cm;
    struct net *net;
    unsigned number;
    uint64_t incarnation; /* cm_path.peer */
    bool alive;
    struct cm_path path; /* to the other side */
    struct list ends;
    unsigned created, released;
    uint32_t next_qpn;
    /* behaviour of the program */
    bool listens;
    enum program program;
    int refuse_reason;
    unsigned room;     /* pending requests before request() returns -EAGAIN */
    ns_t takes;        /* time to respond */
    bool establishes;  /* calls cm_establish() on REPLY */
    bool leaves;       /* disconnects on ESTABLISHED */
    bool closes_after; /* closes an id after its last event */
    struct cm_timing timing;
    struct cm_accept accept;
};

enum action { LOSE, DUPLICATE, DELAY };

struct rule {
    uint16_t attribute; /* 0: any */
    int from;           /* number of the side, -1: any */
    unsigned skip, count;
    enum action action;
    ns_t delay;
};

struct logged {
    ns_t at;
    unsigned from;
    struct cm_mad mad;
};

struct net {
    ns_t now;
    uint64_t random;
    ns_t delay, jitter;
    unsigned loss_percent, duplicate_percent, reorder_percent;
    struct side *sides[2];
    struct list flying, todo;
    struct timer_heap flights, answers;
    ns_t last[2];
    struct rule rules[RULES_MAX];
    unsigned rule_count;
    struct logged *log;
    unsigned logged, delivered;
    uint64_t incarnations;
    bool trace;
    bool of_other_hosts; /* nothing is known of the processes at the other end */
    bool misdirected;    /* MADs go to a third host, which does not exist */
    /* Called before each MAD is delivered; false: drop it. */
    bool (*on_delivery)(struct net *net, unsigned to, const struct cm_mad *mad);
    void *user;
};

struct net *net_new(uint64_t seed);
/* Checks that the state machines of live processes are empty, and frees. */
void net_free(struct net *net);
uint64_t net_random(struct net *net);
static inline uint32_t net_below(struct net *net, uint32_t limit)
{
    return (uint32_t)(net_random(net) % limit);
}
void net_rule(struct net *net, struct rule rule);
/* Number of MADs with this attribute that a side sent; -1: both sides. */
unsigned net_sent(const struct net *net, uint16_t attribute, int from);

/* Advances the time, or until no MAD, deadline or response is pending. */
void net_run(struct net *net, ns_t until);
void net_settle(struct net *net);
/* Advances to the next MAD, deadline or response. false: none is pending. */
bool net_step(struct net *net);

/* Kills the process; MADs to it are dropped. */
void side_kill(struct side *side);
/* Replaces it with a new process without state. */
struct side *side_restart(struct net *net, unsigned number);

/* Connects to the other side (service 0x10600aa), with private data of 56 bytes after an IP header. */
struct end *side_connect(struct side *side);
struct end *side_resolve(struct side *side);
struct end *end_new(struct side *side);
struct cm_connect connect_of(const struct end *end);
#define SERVICE_ID 0x10600aaull
/* The other end of a connection, NULL if it is gone or has no such connection. */
struct end *end_peer(const struct end *end);
/* The latest passive end, or NULL. */
struct end *side_passive(struct side *side);
void end_close(struct end *end);
int end_accept(struct end *end);
const struct seen *end_saw(const struct end *end, enum cm_event_type type);
static inline enum cm_state end_state(const struct end *end)
{
    return cm_id_state(&end->id);
}
/* Delivers a MAD to `side` as if the other side had sent it. */
int side_inject(struct side *side, const struct cm_mad *mad);
/* Checks the order of an end's events. */
void end_check(const struct end *end);
/* Checks that tables and heap of the state machine are consistent. */
void side_check(struct side *side);

#define assert_state(end, state) assert_string_equal(cm_state_name(end_state(end)), cm_state_name(state))

#endif
