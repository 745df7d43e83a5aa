/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Each state receives each message: a valid one, and ones with a wrong comm id, transaction id or address. */
#include "net.h"

#define FOREIGN 0x0bad0001u

struct situation {
    const char *name;
    enum cm_state state;
    struct end *(*reach)(struct net *net);
    struct reaction {
        uint16_t to;
        enum cm_state state; /* afterwards */
        int events[2];       /* -1: none */
        uint16_t answer;     /* 0: none */
        unsigned reason;     /* of a REJ */
    } reactions[11];         /* other messages change nothing and get no response */
};

#define NONE                                                                                                 \
    {                                                                                                        \
        -1, -1                                                                                               \
    }
#define ONE(e)                                                                                               \
    {                                                                                                        \
        CM_EVENT_##e, -1                                                                                     \
    }

/* --- reaching a state -------------------------------------------------------------------------------- */

static void soon(struct net *net)
{
    net_run(net, net->now + NS_PER_MS);
}

static struct end *req_sent(struct net *net)
{
    struct end *end;

    net_rule(net, (struct rule){CM_REQ, 0, 0, 1, LOSE});
    net->sides[1]->program = net->sides[0]->program = IGNORES;
    end = side_connect(net->sides[0]);
    soon(net);
    return end;
}

static struct end *req_rcvd(struct net *net)
{
    net->sides[1]->program = IGNORES;
    side_connect(net->sides[0]);
    soon(net);
    return side_passive(net->sides[1]);
}

static struct end *mra_req_sent(struct net *net)
{
    struct end *end = req_rcvd(net);

    assert_int_equal(cm_delay(&end->side->cm, &end->id, 20, net->now), 0);
    soon(net);
    return end;
}

static struct end *mra_req_rcvd(struct net *net)
{
    return end_peer(mra_req_sent(net));
}

static struct end *rep_sent(struct net *net)
{
    net->sides[0]->establishes = false;
    side_connect(net->sides[0]);
    soon(net);
    return side_passive(net->sides[1]);
}

static struct end *rep_rcvd(struct net *net)
{
    return end_peer(rep_sent(net));
}

static struct end *mra_rep_sent(struct net *net)
{
    struct end *end = rep_rcvd(net);

    assert_int_equal(cm_delay(&end->side->cm, &end->id, 20, net->now), 0);
    soon(net);
    return end;
}

static struct end *mra_rep_rcvd(struct net *net)
{
    return end_peer(mra_rep_sent(net));
}

static struct end *established_active(struct net *net)
{
    struct end *end = side_connect(net->sides[0]);

    soon(net);
    return end;
}

static struct end *established_passive(struct net *net)
{
    return end_peer(established_active(net));
}

static struct end *dreq_sent(struct net *net)
{
    struct end *end = established_passive(net);

    net_rule(net, (struct rule){CM_DREQ, 1, 0, 1, LOSE});
    assert_int_equal(cm_disconnect(&end->side->cm, &end->id, net->now), 0);
    return end;
}

static struct end *timewait_active(struct net *net)
{
    struct end *end = established_active(net);

    assert_int_equal(cm_disconnect(&end->side->cm, &end->id, net->now), 0);
    soon(net);
    return end;
}

static struct end *timewait_passive(struct net *net)
{
    struct end *end = established_passive(net);

    assert_int_equal(cm_disconnect(&end->side->cm, &end->id, net->now), 0);
    soon(net);
    return end;
}

static struct end *rejected_by_passive(struct net *net)
{
    struct end *end = req_rcvd(net);

    assert_int_equal(cm_reject(&end->side->cm, &end->id, CM_REASON_CONSUMER, NULL, 0, net->now), 0);
    soon(net);
    return end;
}

static struct end *rejected_by_active(struct net *net)
{
    struct end *end = rep_rcvd(net);

    assert_int_equal(cm_reject(&end->side->cm, &end->id, CM_REASON_CONSUMER, NULL, 0, net->now), 0);
    soon(net);
    return end;
}

static struct end *sidr_req_sent(struct net *net)
{
    net_rule(net, (struct rule){CM_SIDR_REQ, 0, 0, 1, LOSE});
    net->sides[0]->program = IGNORES;
    return side_resolve(net->sides[0]);
}

static struct end *sidr_req_rcvd(struct net *net)
{
    net->sides[1]->program = IGNORES;
    side_resolve(net->sides[0]);
    soon(net);
    return side_passive(net->sides[1]);
}

static struct end *sidr_rep_sent(struct net *net)
{
    side_resolve(net->sides[0]);
    soon(net);
    return side_passive(net->sides[1]);
}

/* --- the table --------------------------------------------------------------------------------------- */

#define REJECTED                                                                                             \
    {                                                                                                        \
        CM_REJ, CM_STATE_IDLE, ONE(REJECTED)                                                                 \
    }
#define LEFT                                                                                                 \
    {                                                                                                        \
        CM_DREQ, CM_STATE_TIMEWAIT, ONE(DISCONNECTED), CM_DREP                                               \
    }
#define LEFT_EARLY                                                                                           \
    {                                                                                                        \
        CM_DREQ, CM_STATE_TIMEWAIT, {CM_EVENT_ESTABLISHED, CM_EVENT_DISCONNECTED}, CM_DREP                   \
    }
#define BROKEN                                                                                               \
    {                                                                                                        \
        CM_REJ, CM_STATE_TIMEWAIT, ONE(DISCONNECTED)                                                         \
    }
/* A comm id of the peer that is in use. */
#define TAKEN(state)                                                                                         \
    {                                                                                                        \
        CM_REQ, state, NONE, CM_REJ, CM_REASON_DUPLICATE_COMM_ID                                             \
    }
#define UNSUPPORTED(state)                                                                                   \
    {                                                                                                        \
        CM_LAP, state, NONE, CM_APR                                                                          \
    }

static const struct situation situations[] = {
    {"REQ sent",
     CM_STATE_REQ_SENT,
     req_sent,
     {{CM_MRA, CM_STATE_MRA_REQ_RCVD, NONE}, REJECTED, {CM_REP, CM_STATE_REP_RCVD, ONE(REPLY)}}},
    {"REQ received", CM_STATE_REQ_RCVD, req_rcvd, {{CM_REQ, CM_STATE_MRA_REQ_SENT, NONE, CM_MRA}, REJECTED}},
    {"MRA(REQ) sent",
     CM_STATE_MRA_REQ_SENT,
     mra_req_sent,
     {{CM_REQ, CM_STATE_MRA_REQ_SENT, NONE, CM_MRA}, REJECTED}},
    {"MRA(REQ) received",
     CM_STATE_MRA_REQ_RCVD,
     mra_req_rcvd,
     {REJECTED, {CM_REP, CM_STATE_REP_RCVD, ONE(REPLY)}}},
    {"REP sent",
     CM_STATE_REP_SENT,
     rep_sent,
     {{CM_REQ, CM_STATE_REP_SENT, NONE, CM_REP},
      {CM_MRA, CM_STATE_MRA_REP_RCVD, NONE},
      REJECTED,
      {CM_RTU, CM_STATE_ESTABLISHED, ONE(ESTABLISHED)},
      LEFT_EARLY}},
    {"REP received",
     CM_STATE_REP_RCVD,
     rep_rcvd,
     {TAKEN(CM_STATE_REP_RCVD), {CM_REP, CM_STATE_MRA_REP_SENT, NONE, CM_MRA}, REJECTED, LEFT}},
    {"MRA(REP) sent",
     CM_STATE_MRA_REP_SENT,
     mra_rep_sent,
     {TAKEN(CM_STATE_MRA_REP_SENT), {CM_REP, CM_STATE_MRA_REP_SENT, NONE, CM_MRA}, REJECTED, LEFT}},
    {"MRA(REP) received",
     CM_STATE_MRA_REP_RCVD,
     mra_rep_rcvd,
     {REJECTED, {CM_RTU, CM_STATE_ESTABLISHED, ONE(ESTABLISHED)}, LEFT_EARLY}},
    {"established, active",
     CM_STATE_ESTABLISHED,
     established_active,
     {TAKEN(CM_STATE_ESTABLISHED),
      {CM_REP, CM_STATE_ESTABLISHED, NONE, CM_RTU},
      BROKEN,
      LEFT,
      UNSUPPORTED(CM_STATE_ESTABLISHED)}},
    {"established, passive",
     CM_STATE_ESTABLISHED,
     established_passive,
     {BROKEN, LEFT, UNSUPPORTED(CM_STATE_ESTABLISHED)}},
    {"DREQ sent",
     CM_STATE_DREQ_SENT,
     dreq_sent,
     {BROKEN, LEFT, {CM_DREP, CM_STATE_TIMEWAIT, ONE(DISCONNECTED)}}},
    {"timewait, active",
     CM_STATE_TIMEWAIT,
     timewait_active,
     {TAKEN(CM_STATE_TIMEWAIT), {CM_DREQ, CM_STATE_TIMEWAIT, NONE, CM_DREP}}},
    {"timewait, passive",
     CM_STATE_TIMEWAIT,
     timewait_passive,
     {{CM_REQ, CM_STATE_TIMEWAIT, NONE, CM_REJ, CM_REASON_STALE_CONNECTION},
      {CM_DREQ, CM_STATE_TIMEWAIT, NONE, CM_DREP}}},
    {"REQ rejected",
     CM_STATE_TIMEWAIT,
     rejected_by_passive,
     {{CM_REQ, CM_STATE_TIMEWAIT, NONE, CM_REJ, CM_REASON_CONSUMER},
      {CM_RTU, CM_STATE_TIMEWAIT, NONE, CM_REJ, CM_REASON_CONSUMER},
      {CM_DREQ, CM_STATE_TIMEWAIT, NONE, CM_DREP}}},
    {"REP rejected",
     CM_STATE_TIMEWAIT,
     rejected_by_active,
     {TAKEN(CM_STATE_TIMEWAIT),
      {CM_REP, CM_STATE_TIMEWAIT, NONE, CM_REJ, CM_REASON_CONSUMER},
      {CM_DREQ, CM_STATE_TIMEWAIT, NONE, CM_DREP}}},
    {"SIDR_REQ sent", CM_STATE_SIDR_REQ_SENT, sidr_req_sent, {{CM_SIDR_REP, CM_STATE_IDLE, ONE(RESOLVED)}}},
    {"SIDR_REQ received", CM_STATE_SIDR_REQ_RCVD, sidr_req_rcvd, {{0}}},
    {"SIDR_REP sent",
     CM_STATE_SIDR_REP_SENT,
     sidr_rep_sent,
     {{CM_SIDR_REQ, CM_STATE_SIDR_REP_SENT, NONE, CM_SIDR_REP}}},
};

/* --- messages ---------------------------------------------------------------------------------------- */

static uint8_t message_of_state(enum cm_state state)
{
    if (state == CM_STATE_REQ_SENT || state == CM_STATE_MRA_REQ_RCVD)
        return CM_MESSAGE_REQ;
    if (state == CM_STATE_REP_SENT || state == CM_STATE_MRA_REP_RCVD)
        return CM_MESSAGE_REP;
    return CM_MESSAGE_OTHER;
}

/* A valid message from the peer of this id. */
static struct cm_mad proper(const struct end *end, uint16_t attribute)
{
    const struct cm_id *id = &end->id;
    struct side *side = end->side;
    struct cm_mad mad = {
        .attribute = attribute,
        .transaction_id = attribute == CM_DREP ? id->disconnect_transaction : id->transaction_id,
        .local_comm_id = id->remote_comm_id ? id->remote_comm_id : FOREIGN,
        .remote_comm_id = id->local_comm_id,
    };

    switch ((enum cm_attribute)attribute) {
    case CM_REQ:
        mad.req = (struct cm_req){.service_id = SERVICE_ID, .pkey = 0xffff, .path_mtu = 3, .qpn = 0x777};
        memcpy(mad.req.primary.local_gid, side->path.remote_gid, 16);
        memcpy(mad.req.primary.remote_gid, side->path.local_gid, 16);
        break;
    case CM_MRA:
        mad.mra = (struct cm_mra){message_of_state(id->state), 20};
        break;
    case CM_REJ:
        mad.rej = (struct cm_rej){.message = message_of_state(id->state), .reason = CM_REASON_CONSUMER};
        break;
    case CM_REP:
        mad.rep = (struct cm_rep){.qpn = 0x778, .starting_psn = 9};
        break;
    case CM_DREQ:
        mad.dreq.remote_qpn = id->local_qpn;
        break;
    case CM_SIDR_REQ:
        mad.sidr_req = (struct cm_sidr_req){.service_id = SERVICE_ID, .pkey = 0xffff};
        break;
    case CM_SIDR_REP:
        mad.sidr_rep = (struct cm_sidr_rep){.service_id = SERVICE_ID, .qpn = 0x779};
        break;
    case CM_LAP:
        mad.lap.remote_qpn = id->local_qpn;
        break;
    case CM_RTU:
    case CM_DREP:
    case CM_APR:
        break;
    }
    return mad;
}

static const struct reaction *expected(const struct situation *row, uint16_t attribute)
{
    for (size_t i = 0; i < array_size(row->reactions); i++)
        if (row->reactions[i].to == attribute)
            return &row->reactions[i];
    return NULL;
}

static struct end *arrange(const struct situation *row, struct net **ret_net)
{
    struct net *net = *ret_net = net_new(3);
    struct end *end = row->reach(net);

    assert_state(end, row->state);
    net->logged = 0;
    /* Requests for other ids are ignored. */
    net->sides[0]->program = net->sides[1]->program = IGNORES;
    net->sides[0]->establishes = net->sides[1]->establishes = false;
    return end;
}

static void meet(const struct situation *row, uint16_t attribute)
{
    const struct reaction *reaction = expected(row, attribute);
    struct net *net;
    struct end *end = arrange(row, &net);
    const unsigned seen = end->seen_count;
    const struct cm_mad mad = proper(end, attribute);
    unsigned events = 0;

    if (!end->id.local_comm_id && attribute != CM_SIDR_REQ) {
        /* Only this message can refer to the id. */
        net_free(net);
        return;
    }
    side_inject(end->side, &mad);
    if (end_state(end) != (reaction ? reaction->state : row->state))
        fail_msg("%s, %s: is in state %s", row->name, cm_mad_name(attribute), cm_state_name(end_state(end)));
    if (reaction)
        while (events < 2 && reaction->events[events] >= 0) {
            if (end->seen_count <= seen + events ||
                (int)end->seen[seen + events].type != reaction->events[events])
                fail_msg("%s, %s: event %d did not come", row->name, cm_mad_name(attribute),
                         reaction->events[events]);
            events++;
        }
    if (end->seen_count != seen + events)
        fail_msg("%s, %s: event %d", row->name, cm_mad_name(attribute), end->seen[seen + events].type);
    if (net->logged != (reaction && reaction->answer ? 1 : 0))
        fail_msg("%s, %s: %u answers, the first is %s", row->name, cm_mad_name(attribute), net->logged,
                 net->logged ? cm_mad_name(net->log[0].mad.attribute) : "none");
    if (net->logged) {
        assert_int_equal(net->log[0].mad.attribute, reaction->answer);
        assert_int_equal(net->log[0].mad.remote_comm_id, mad.local_comm_id);
        assert_int_equal(net->log[0].mad.transaction_id, mad.transaction_id);
        if (reaction->reason)
            assert_int_equal(net->log[0].mad.rej.reason, reaction->reason);
    }
    side_check(end->side);
    net_settle(net);
    net_free(net);
}

static void each_state_meets_each_message(void **state)
{
    for (size_t i = 0; i < array_size(situations); i++)
        for (uint16_t attribute = CM_REQ; attribute <= CM_APR; attribute++)
            meet(&situations[i], attribute);
}

/* --- invalid messages --------------------------------------------------------------------------------- */

enum wrong { WRONG_COMM_ID, WRONG_TRANSACTION, WRONG_ADDRESS, WRONG_QPN, WRONGS };

/* Can the receiver detect this fault by the specification? */
static bool is_told_apart(const struct end *end, uint16_t attribute, enum wrong wrong)
{
    switch (wrong) {
    case WRONG_COMM_ID:
        /* Before the REP the active side has no comm id of the peer. */
        return end->id.remote_comm_id && end_state(end) != CM_STATE_MRA_REQ_RCVD;
    case WRONG_TRANSACTION:
        return attribute != CM_RTU && attribute != CM_DREQ && attribute != CM_LAP &&
               attribute != CM_SIDR_REQ; /* a request id may be reused */
    case WRONG_ADDRESS:
        return true;
    case WRONG_QPN:
        return attribute == CM_DREQ;
    case WRONGS:
        break;
    }
    return false;
}

static void meet_wrong(const struct situation *row, uint16_t attribute, enum wrong wrong)
{
    struct net *net;
    struct end *end = arrange(row, &net);
    const unsigned seen = end->seen_count;
    struct cm_mad mad = proper(end, attribute);
    struct cm_path from = end->side->path;
    uint8_t bytes[MAD_LENGTH];

    if (is_told_apart(end, attribute, wrong)) {
        if (wrong == WRONG_COMM_ID)
            mad.local_comm_id ^= 1;
        if (wrong == WRONG_TRANSACTION)
            mad.transaction_id ^= 1;
        if (wrong == WRONG_QPN)
            mad.dreq.remote_qpn ^= 1;
        cm_mad_encode(&mad, bytes);
        /* The test's network checks the destination of responses; a third host cannot get any. */
        if (wrong == WRONG_ADDRESS && (attribute == CM_REQ || attribute == CM_SIDR_REQ)) {
            net_free(net);
            return;
        }
        if (wrong == WRONG_ADDRESS)
            from.remote_gid[7] ^= 1;
        net->misdirected = wrong == WRONG_ADDRESS;
        cm_receive(&end->side->cm, &from, bytes, sizeof(bytes), net->now);
        if (end_state(end) != row->state)
            fail_msg("%s, %s, wrong %d: is in state %s", row->name, cm_mad_name(attribute), wrong,
                     cm_state_name(end_state(end)));
        if (end->seen_count != seen)
            fail_msg("%s, %s, wrong %d: event %d", row->name, cm_mad_name(attribute), wrong,
                     end->seen[seen].type);
        side_check(end->side);
    }
    net_free(net);
}

static void what_is_not_the_peers_changes_nothing(void **state)
{
    for (size_t i = 0; i < array_size(situations); i++)
        for (uint16_t attribute = CM_REQ; attribute <= CM_APR; attribute++)
            for (enum wrong wrong = 0; wrong < WRONGS; wrong++)
                meet_wrong(&situations[i], attribute, wrong);
}

/* --- calls in each state ------------------------------------------------------------------------------ */

static void each_state_can_be_closed(void **state)
{
    for (size_t i = 0; i < array_size(situations); i++) {
        struct net *net;
        struct end *end = arrange(&situations[i], &net);
        struct side *side = end->side;
        const bool told =
            situations[i].state != CM_STATE_SIDR_REQ_SENT && situations[i].state != CM_STATE_SIDR_REP_SENT &&
            situations[i].state != CM_STATE_TIMEWAIT && situations[i].state != CM_STATE_DREQ_SENT;
        struct end *other = end_peer(end);
        const unsigned seen = other ? other->seen_count : 0;

        end_close(end);
        assert_int_equal(net->logged, told ? 1 : 0);
        net_settle(net);
        if (side->released != 1)
            fail_msg("%s: storage is not given back", situations[i].name);
        /* The other side has been notified and is not waiting. */
        if (other && told && other->seen_count == seen)
            fail_msg("%s: the other side does not know", situations[i].name);
        net_free(net);
    }
}

static void calls_that_do_not_fit_the_state_are_refused(void **state)
{
    for (size_t i = 0; i < array_size(situations); i++) {
        const struct situation *row = &situations[i];
        struct net *net;
        struct end *end = arrange(row, &net);
        struct cm *cm = &end->side->cm;
        const struct cm_connect connect = connect_of(end);
        const struct cm_resolve resolve = {.path = connect.path, .timing = connect.timing};
        const struct cm_accept accept = {.qpn = 5};
        const enum cm_state s = row->state;
        const bool asked = s == CM_STATE_REQ_RCVD || s == CM_STATE_MRA_REQ_SENT;
        const bool replied = s == CM_STATE_REP_RCVD || s == CM_STATE_MRA_REP_SENT;
        const bool waits = s == CM_STATE_REP_SENT || s == CM_STATE_MRA_REP_RCVD;

        assert_int_equal(cm_connect(cm, &end->id, &connect, net->now), -EINVAL);
        assert_int_equal(cm_resolve(cm, &end->id, &resolve, net->now), -EINVAL);
        if (!asked)
            assert_int_equal(cm_accept(cm, &end->id, &accept, net->now), -EINVAL);
        if (!replied)
            assert_int_equal(cm_establish(cm, &end->id, net->now), -EINVAL);
        if (!waits && s != CM_STATE_ESTABLISHED)
            assert_int_equal(cm_communication_established(cm, &end->id, net->now), -EINVAL);
        if (!asked && !replied && !waits)
            assert_int_equal(cm_reject(cm, &end->id, CM_REASON_CONSUMER, NULL, 0, net->now), -EINVAL);
        if (!asked && !replied)
            assert_int_equal(cm_delay(cm, &end->id, 20, net->now), -EINVAL);
        if (s != CM_STATE_ESTABLISHED)
            assert_int_equal(cm_disconnect(cm, &end->id, net->now), -EINVAL);
        if (s != CM_STATE_SIDR_REQ_RCVD) {
            assert_int_equal(cm_resolve_accept(cm, &end->id, 5, 0, NULL, 0, net->now), -EINVAL);
            assert_int_equal(cm_resolve_reject(cm, &end->id, CM_SIDR_NO_QP, NULL, 0, net->now), -EINVAL);
        }
        assert_state(end, s);
        assert_int_equal(net->logged, 0);
        net_free(net);
    }
}

/* --- the peer's process dies --------------------------------------------------------------------------- */

static void a_death_that_is_noticed_ends_each_state(void **state)
{
    for (size_t i = 0; i < array_size(situations); i++) {
        const struct situation *row = &situations[i];
        struct net *net;
        struct end *end = arrange(row, &net);
        struct side *side = end->side;
        const unsigned seen = end->seen_count;
        const struct side *other = net->sides[!side->number];
        const uint64_t peer = other->incarnation;

        side_kill(net->sides[!side->number]);
        cm_peer_gone(&side->cm, 0, net->now);
        assert_state(end, row->state);
        cm_peer_gone(&side->cm, peer, net->now);
        side_check(side);
        switch (row->state) {
        case CM_STATE_REQ_RCVD:
        case CM_STATE_MRA_REQ_SENT:
        case CM_STATE_REP_RCVD:
        case CM_STATE_MRA_REP_SENT:
            assert_int_equal(end->seen[seen].type, CM_EVENT_REJECTED);
            assert_int_equal(end->seen[seen].status, CM_REASON_TIMEOUT);
            break;
        case CM_STATE_REP_SENT:
        case CM_STATE_MRA_REP_RCVD:
            assert_int_equal(end->seen[seen].type, CM_EVENT_UNREACHABLE);
            break;
        case CM_STATE_ESTABLISHED:
            assert_int_equal(end->seen[seen].type, CM_EVENT_DISCONNECTED);
            assert_int_equal(end->seen[seen].status, -ECONNRESET);
            break;
        case CM_STATE_DREQ_SENT:
            assert_int_equal(end->seen[seen].type, CM_EVENT_DISCONNECTED);
            assert_int_equal(end->seen[seen].status, 0);
            break;
        case CM_STATE_MRA_REQ_RCVD:
            /* The REQ is repeated at once. */
            assert_state(end, CM_STATE_REQ_SENT);
            assert_int_equal(cm_next(&side->cm), net->now);
            break;
        case CM_STATE_IDLE:
        case CM_STATE_REQ_SENT:
        case CM_STATE_TIMEWAIT:
        case CM_STATE_SIDR_REQ_SENT:
        case CM_STATE_SIDR_REQ_RCVD:
        case CM_STATE_SIDR_REP_SENT:
        case CM_STATES:
            assert_int_equal(end->seen_count, seen);
            assert_state(end, row->state);
            break;
        }
        net_free(net);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_meets_each_message),
        cmocka_unit_test(what_is_not_the_peers_changes_nothing),
        cmocka_unit_test(each_state_can_be_closed),
        cmocka_unit_test(calls_that_do_not_fit_the_state_are_refused),
        cmocka_unit_test(a_death_that_is_noticed_ends_each_state),
    };

    return run_unit_tests("cm states", tests);
}
