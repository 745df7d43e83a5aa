/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random connections over random networks, with deaths of processes and unknown peers. A failing seed prints itself:
 * `cm_random SEED [trace]` repeats it alone (seeds.h). */
#include "net.h"
#include "seeds.h"

enum { SEEDS = 400, SEEDS_LONG = 20000, SEEDS_PER_TEST = 50, ENDS_MAX = 24 };

struct weather {
    bool deaths, forgeries;
    bool refused_late; /* a REJ after the REP, which is not repeated if it and the RTU are lost */
};

static void random_network(struct net *net)
{
    net->delay = 1000 + net_below(net, 300000);
    net->jitter = net_below(net, 2) ? 0 : net_below(net, 500000);
    net->loss_percent = net_below(net, 2) ? 0 : net_below(net, 20);
    net->duplicate_percent = net_below(net, 2) ? 0 : net_below(net, 30);
    net->reorder_percent = net_below(net, 2) ? 0 : net_below(net, 30);
}

static void random_program(struct side *side)
{
    struct net *net = side->net;

    side->program = net_below(net, 3) ? ACCEPTS : (enum program)net_below(net, 4);
    side->takes = net_below(net, 2) ? 0 : net_random(net) % (net_below(net, 4) ? NS_PER_MS : 20 * NS_PER_S);
    side->establishes = net_below(net, 10);
    side->leaves = net_below(net, 2);
    side->room = net_below(net, 5) ? UINT32_MAX : net_below(net, 10);
    side->timing.retries = 15;
}

static struct end *random_end(struct side *side)
{
    unsigned count = 0, wanted;

    list_for_each (node, &side->ends)
        count += !container_of(node, struct end, in_side)->closed;
    if (!count)
        return NULL;
    wanted = net_below(side->net, count);
    list_for_each (node, &side->ends) {
        struct end *end = container_of(node, struct end, in_side);

        if (!end->closed && !wanted--)
            return end;
    }
    return NULL;
}

/* Replays an earlier message with a changed field. */
static void forge(struct net *net, struct side *side)
{
    struct cm_path from = side->path;
    uint8_t bytes[MAD_LENGTH];

    if (!net->logged)
        return;
    cm_mad_encode(&net->log[net_below(net, net->logged)].mad, bytes);
    for (unsigned i = net_below(net, 4); i; i--)
        bytes[MAD_HEADER_LENGTH + net_below(net, 60)] ^= (uint8_t)(1u << net_below(net, 8));
    if (!net_below(net, 4))
        bytes[17] = (uint8_t)(CM_REQ + net_below(net, 11));
    if (!net_below(net, 8))
        from.peer = net_random(net);
    cm_receive(&side->cm, &from, bytes, sizeof(bytes), net->now);
}

static void something_happens(struct net *net, struct weather *weather)
{
    struct side *side = net->sides[net_below(net, 2)];
    struct end *end = random_end(side);
    const bool late = end && (end_state(end) == CM_STATE_REP_SENT || end_state(end) == CM_STATE_MRA_REP_RCVD);

    switch (net_below(net, 8)) {
    case 0:
    case 1:
        if (side->created < ENDS_MAX)
            net_below(net, 5) ? side_connect(side) : side_resolve(side);
        break;
    case 2:
        if (end)
            cm_disconnect(&side->cm, &end->id, net->now);
        break;
    case 3:
        if (end && !net_below(net, 3)) {
            end_close(end);
            weather->refused_late |= late;
        }
        break;
    case 4:
        if (end)
            cm_communication_established(&side->cm, &end->id, net->now);
        break;
    case 5:
        if (end && !net_below(net, 2))
            weather->refused_late |=
                !cm_reject(&side->cm, &end->id, CM_REASON_CONSUMER, "x", 1, net->now) && late;
        else if (end)
            cm_delay(&side->cm, &end->id, (uint8_t)net_below(net, 22), net->now);
        break;
    case 6:
        if (weather->deaths && !net_below(net, 8)) {
            const uint64_t peer = side->incarnation;
            const unsigned number = side->number;
            const bool noticed = net_below(net, 2);

            side_restart(net, number);
            if (noticed)
                cm_peer_gone(&net->sides[!number]->cm, peer, net->now);
        }
        break;
    case 7:
        if (weather->forgeries)
            forge(net, side);
        else if (end && net_below(net, 2) && !end->datagram)
            end_accept(end);
        break;
    }
}

static bool nobody_gave_up(struct net *net)
{
    for (unsigned i = 0; i < 2; i++)
        list_for_each (node, &net->sides[i]->ends)
            for (unsigned at = 0; at < container_of(node, struct end, in_side)->seen_count; at++)
                if (container_of(node, struct end, in_side)->seen[at].status == -ETIMEDOUT)
                    return false;
    return true;
}

/* Without deaths, timeouts and forged messages both sides agree. */
static void check_agreement(struct net *net)
{
    for (unsigned i = 0; i < 2; i++)
        list_for_each (node, &net->sides[i]->ends) {
            const struct end *end = container_of(node, struct end, in_side), *peer = end_peer(end);
            struct cm_qp_attributes a, p;

            if (end_state(end) != CM_STATE_ESTABLISHED)
                continue;
            assert_non_null(peer);
            /* cm_communication_established() may precede cm_establish() of the active side. */
            if (!end->passive ||
                (end_state(peer) != CM_STATE_REP_RCVD && end_state(peer) != CM_STATE_MRA_REP_SENT))
                assert_state(peer, CM_STATE_ESTABLISHED);
            assert_int_equal(cm_qp_attributes(&end->id, &a), 0);
            assert_int_equal(cm_qp_attributes(&peer->id, &p), 0);
            assert_int_equal(a.dest_qpn, peer->qpn);
            assert_int_equal(a.rq_psn, p.sq_psn);
            assert_int_equal(a.sq_psn, p.rq_psn);
            assert_int_equal(a.max_rd_atomic, p.max_dest_rd_atomic);
        }
}

static void run_seed(uint64_t seed, bool traced)
{
    struct net *net = net_new(seed);
    struct weather weather = {.deaths = net_below(net, 4) == 0, .forgeries = net_below(net, 4) == 0};
    unsigned happenings;

    net->trace = traced;
    print_message("# seed %llu%s%s\n", (unsigned long long)seed, weather.deaths ? ", deaths" : "",
                  weather.forgeries ? ", forgeries" : "");
    random_network(net);
    random_program(net->sides[0]);
    random_program(net->sides[1]);
    happenings = 20 + net_below(net, 60);
    while (happenings--) {
        something_happens(net, &weather);
        side_check(net->sides[0]);
        side_check(net->sides[1]);
        if (net_below(net, 3))
            for (unsigned steps = net_below(net, 12); steps; steps--)
                net_step(net);
        else
            net_run(net, net->now + net_random(net) % (net_below(net, 2) ? NS_PER_MS : 3 * NS_PER_S));
    }
    net_settle(net);
    assert_true(net->delivered < 40000);
    if (!weather.deaths && !weather.forgeries && !weather.refused_late && nobody_gave_up(net))
        check_agreement(net);

    for (unsigned i = 0; i < 2; i++)
        for (struct end *end; (end = random_end(net->sides[i]));)
            end_close(end);
    net_settle(net);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(net->sides[i]->released, net->sides[i]->created);
        assert_int_equal(cm_next(&net->sides[i]->cm), NS_NEVER);
    }
    net_free(net);
}

int main(int argc, char **argv)
{
    static const struct seeds seeds = {"cm random", SEEDS, SEEDS_LONG, SEEDS_PER_TEST, run_seed};

    return run_seeds(&seeds, argc, argv);
}
