/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes that connect to each other over links and a clock that exist in memory only: the machine of cm/
 * under loss, duplication, reordering, delay and death, the same every time for the same seed. What rdma_cm
 * and the program do with it is played in its simplest form. */
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

/* What a program does with a request that came in. */
enum program {
    ACCEPTS,
    REJECTS,
    CLOSES,  /* gives up the id instead of answering */
    IGNORES, /* the test answers */
    REFUSES, /* request() answers with a reason */
};

struct seen {
    enum cm_event_type type;
    int status;
    ns_t at;
    struct cm_offer offer;
    bool has_private;
    uint8_t private_length;
    uint8_t private_data[CM_PRIVATE_MAX];
};

/* What an owner embeds an id in. */
struct end {
    struct cm_id id;
    struct list in_side;
    struct list todo;
    struct side *side;
    struct timer timer; /* the program answers */
    bool passive, datagram, closed, released, answered, established;
    uint32_t qpn;
    uint32_t comm_id; /* while it had one */
    struct seen seen[SEEN_MAX];
    unsigned seen_count, handled;
    struct cm_request request; /* pointers in it are not valid */
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
    struct cm_path path; /* to the other side; GIDs are of this one and the other */
    struct list ends;
    unsigned created, released;
    uint32_t next_qpn;
    /* the program */
    bool listens;
    enum program program;
    int refuse_reason;
    unsigned room;     /* requests that it takes before it answers -EAGAIN */
    ns_t takes;        /* to answer */
    bool establishes;  /* answers REPLY by itself */
    bool leaves;       /* disconnects as soon as it is connected */
    bool closes_after; /* closes an id when nothing more is to come */
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
    bool stranger; /* answers go to somebody else, who is not there */
    /* Called before each MAD is delivered; false: lose it. */
    bool (*on_delivery)(struct net *net, unsigned to, const struct cm_mad *mad);
    void *user;
};

struct net *net_new(uint64_t seed);
/* Checks that nothing is left behind in machines that live, and frees. */
void net_free(struct net *net);
uint64_t net_random(struct net *net);
static inline uint32_t net_below(struct net *net, uint32_t limit)
{
    return (uint32_t)(net_random(net) % limit);
}
void net_rule(struct net *net, struct rule rule);
/* MADs of this kind that a side sent; -1: both. */
unsigned net_sent(const struct net *net, uint16_t attribute, int from);

/* Lets time pass until then, or until nothing moves any more. */
void net_run(struct net *net, ns_t until);
void net_settle(struct net *net);
/* One thing happens: the next MAD, deadline or answer. false: nothing is to come. */
bool net_step(struct net *net);

/* The process is gone with all it had; MADs to it vanish. */
void side_kill(struct side *side);
/* A new one in its place, which knows nothing. */
struct side *side_restart(struct net *net, unsigned number);

/* Connects to the other side (service 0x10600aa), with private data of 56 bytes behind an IP header. */
struct end *side_connect(struct side *side);
struct end *side_resolve(struct side *side);
struct end *end_new(struct side *side);
struct cm_connect connect_of(const struct end *end);
#define SERVICE_ID 0x10600aaull
/* What the other end of a connection is, if it lives and knows this one. */
struct end *end_peer(const struct end *end);
/* The youngest end that is passive, NULL if there is none. */
struct end *side_passive(struct side *side);
void end_close(struct end *end);
int end_accept(struct end *end);
const struct seen *end_saw(const struct end *end, enum cm_event_type type);
static inline enum cm_state end_state(const struct end *end)
{
    return cm_id_state(&end->id);
}
/* A MAD from nowhere: as if `side` got it from the other side. */
int side_inject(struct side *side, const struct cm_mad *mad);
/* The events of an end are in an order that a program can live with. */
void end_check(const struct end *end);
/* Tables and heap of the machine agree with each other. */
void side_check(struct side *side);

#define assert_state(end, state) assert_string_equal(cm_state_name(end_state(end)), cm_state_name(state))

#endif
