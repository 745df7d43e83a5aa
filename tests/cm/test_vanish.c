/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One side disappears after each step of each handshake: the other side ends its connection, too, and releases
 * everything. */
#include "net.h"

#include <stdio.h>

enum way {
    SILENT,    /* the host is off */
    NOTICED,   /* the process was killed, and cm_peer_gone() is called */
    RESTARTED, /* killed, and a new process takes its place */
    CLOSED,    /* the program closes all ids */
    HUNG,      /* the program stops responding; its state machine continues */
    WAYS
};

struct story {
    const char *name;
    enum program program;
    bool datagram, active_leaves, passive_leaves;
};

static const struct story stories[] = {
    {"accepted, active side disconnects", ACCEPTS, false, true, false},
    {"accepted, passive side disconnects", ACCEPTS, false, false, true},
    {"accepted, both disconnect", ACCEPTS, false, true, true},
    {"accepted, stays", ACCEPTS, false, false, false},
    {"rejected", REJECTS, false, false, false},
    {"closed", CLOSES, false, false, false},
    {"datagram", ACCEPTS, true, false, false},
    {"datagram, rejected", REJECTS, true, false, false},
};

static struct net *begin(const struct story *story)
{
    struct net *net = net_new(11);

    for (unsigned i = 0; i < 2; i++)
        net->sides[i]->timing.retries = 4;
    net->sides[1]->program = story->program;
    net->sides[1]->takes = 2 * NS_PER_MS;
    net->sides[0]->leaves = story->active_leaves;
    net->sides[1]->leaves = story->passive_leaves;
    if (story->datagram)
        side_resolve(net->sides[0]);
    else
        side_connect(net->sides[0]);
    return net;
}

static unsigned steps_of(const struct story *story)
{
    struct net *net = begin(story);
    unsigned steps = 0;

    while (net_step(net))
        steps++;
    net_free(net);
    return steps;
}

static void close_all(struct side *side)
{
    list_for_each_safe (node, following, &side->ends) {
        struct end *end = container_of(node, struct end, in_side);

        if (!end->closed)
            end_close(end);
    }
}

static void vanish(struct net *net, unsigned number, enum way way)
{
    struct side *side = net->sides[number];
    const uint64_t peer = side->incarnation;

    switch (way) {
    case SILENT:
        side_kill(side);
        break;
    case NOTICED:
        side_kill(side);
        /* As on one host, its last messages arrive before cm_peer_gone(). */
        net_run(net, net->now + NS_PER_MS);
        cm_peer_gone(&net->sides[!number]->cm, peer, net->now);
        break;
    case RESTARTED:
        side_restart(net, number);
        break;
    case CLOSED:
        side->listens = false;
        close_all(side);
        break;
    case HUNG:
        side->program = IGNORES;
        side->establishes = side->leaves = false;
        list_for_each (node, &side->ends)
            timer_cancel(&net->answers, &container_of(node, struct end, in_side)->timer);
        break;
    case WAYS:
        break;
    }
}

/* The protocol has finished with the id; the program may still have to act. */
static bool has_come_to_rest(const struct end *end)
{
    switch (end_state(end)) {
    case CM_STATE_IDLE:
        return end->seen_count || (end->passive && end->answered) || (end->passive && !end->seen_count);
    case CM_STATE_REQ_RCVD:
    case CM_STATE_MRA_REQ_SENT:
    case CM_STATE_SIDR_REQ_RCVD:
    case CM_STATE_REP_RCVD:
    case CM_STATE_MRA_REP_SENT:
    case CM_STATE_ESTABLISHED:
        return true;
    case CM_STATE_REQ_SENT:
    case CM_STATE_MRA_REQ_RCVD:
    case CM_STATE_REP_SENT:
    case CM_STATE_MRA_REP_RCVD:
    case CM_STATE_DREQ_SENT:
    case CM_STATE_TIMEWAIT:
    case CM_STATE_SIDR_REQ_SENT:
    case CM_STATE_SIDR_REP_SENT:
    case CM_STATES:
        break;
    }
    return false;
}

static void check_survivor(struct net *net, struct end *end, enum way way)
{
    assert_true(has_come_to_rest(end));
    if (end_state(end) == CM_STATE_ESTABLISHED && way != HUNG) {
        /* It got no notification, which is right only if none was possible. */
        assert_true(way == SILENT || way == RESTARTED);
        assert_int_equal(cm_disconnect(&end->side->cm, &end->id, net->now), 0);
        net_settle(net);
        assert_int_equal(end_saw(end, CM_EVENT_DISCONNECTED)->status, way == SILENT ? -ETIMEDOUT : 0);
    }
}

static void once(const struct story *story, unsigned step, unsigned number, enum way way)
{
    struct net *net = begin(story);
    struct side *survivor = net->sides[!number];
    const ns_t began = net->now;

    for (unsigned i = 0; i < step; i++)
        assert_true(net_step(net));
    vanish(net, number, way);
    net_settle(net);
    /* Four retries of 1.2 s, MRAs of 17 s. */
    assert_true(net->now - began < 200 * NS_PER_S);
    side_check(survivor);
    list_for_each_safe (node, following, &survivor->ends) {
        struct end *end = container_of(node, struct end, in_side);

        if (!end->closed)
            check_survivor(net, end, way);
    }
    for (unsigned i = 0; i < 2; i++)
        if (net->sides[i]->alive)
            close_all(net->sides[i]);
    net_settle(net);
    for (unsigned i = 0; i < 2; i++) {
        if (!net->sides[i]->alive)
            continue;
        assert_int_equal(net->sides[i]->released, net->sides[i]->created);
        assert_int_equal(cm_next(&net->sides[i]->cm), NS_NEVER);
    }
    net_free(net);
}

static void vanishes_at_each_step(void **state)
{
    const enum way way = *(const enum way *)*state;

    for (size_t i = 0; i < array_size(stories); i++) {
        const unsigned steps = steps_of(&stories[i]);

        assert_true(steps > 3);
        for (unsigned number = 0; number < 2; number++)
            for (unsigned step = 0; step <= steps; step++) {
                print_message("# %s: side %u after step %u\n", stories[i].name, number, step);
                once(&stories[i], step, number, way);
            }
    }
}

int main(void)
{
    static const char *const names[WAYS] = {
        [SILENT] = "a host that is switched off",
        [NOTICED] = "a process that is killed",
        [RESTARTED] = "a process that is replaced",
        [CLOSED] = "a program that gives up",
        [HUNG] = "a program that hangs",
    };
    static enum way ways[WAYS];
    struct CMUnitTest tests[WAYS];

    for (enum way way = 0; way < WAYS; way++) {
        ways[way] = way;
        tests[way] = (struct CMUnitTest){
            .name = names[way], .test_func = vanishes_at_each_step, .initial_state = &ways[way]};
    }
    return run_unit_tests("cm vanish", tests);
}
