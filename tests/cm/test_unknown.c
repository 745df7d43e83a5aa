/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages for unknown comm ids, messages that a peer must not send, peers that restarted, and limits. */
#include "net.h"

static int set_up(void **state)
{
    *state = net_new(5);
    return 0;
}

static int tear_down(void **state)
{
    net_free(*state);
    return 0;
}

static struct cm_mad req_from(const struct side *side, uint32_t comm_id)
{
    struct cm_mad mad = {.attribute = CM_REQ, .transaction_id = comm_id + 1000ull, .local_comm_id = comm_id};

    mad.req =
        (struct cm_req){.service_id = SERVICE_ID, .pkey = 0xffff, .path_mtu = 3, .qpn = 0x100000 + comm_id};
    memcpy(mad.req.primary.local_gid, side->path.remote_gid, 16);
    memcpy(mad.req.primary.remote_gid, side->path.local_gid, 16);
    return mad;
}

/* --- unknown comm ids ----------------------------------------------------------------------------- */

static void messages_for_unknown_comm_ids_get_responses(void **state)
{
    static const struct {
        uint16_t message, answer;
        unsigned reason;
    } rows[] = {
        {CM_MRA, 0, 0},
        {CM_REJ, 0, 0},
        {CM_REP, CM_REJ, CM_REASON_INVALID_COMM_ID},
        {CM_RTU, CM_REJ, CM_REASON_INVALID_COMM_ID},
        {CM_DREQ, CM_DREP, 0},
        {CM_DREP, 0, 0},
        {CM_SIDR_REP, 0, 0},
        {CM_LAP, CM_APR, 0},
        {CM_APR, 0, 0},
    };
    struct net *net = *state;

    for (size_t i = 0; i < array_size(rows); i++) {
        const struct cm_mad mad = {.attribute = rows[i].message,
                                   .transaction_id = 77,
                                   .local_comm_id = 0x1111,
                                   .remote_comm_id = 0x2222};
        const struct cm_mad *answer = &net->log[0].mad;

        net->logged = 0;
        assert_int_equal(side_inject(net->sides[0], &mad), -ENOENT);
        assert_int_equal(net->logged, rows[i].answer ? 1 : 0);
        if (!rows[i].answer)
            continue;
        assert_int_equal(answer->attribute, rows[i].answer);
        assert_int_equal(answer->transaction_id, 77);
        assert_int_equal(answer->local_comm_id, 0x2222);
        assert_int_equal(answer->remote_comm_id, 0x1111);
        if (rows[i].answer == CM_REJ)
            assert_int_equal(answer->rej.reason, rows[i].reason);
        if (rows[i].answer == CM_APR)
            assert_int_equal(answer->apr.status, CM_APR_INVALID_COMM_ID);
    }
    assert_int_equal(net->sides[0]->cm.counters.unknown, array_size(rows));
}

static void a_request_that_is_wrong_is_refused(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];
    struct cm_mad bad[9];
    static const unsigned reasons[] = {
        CM_REASON_INVALID_SERVICE_TYPE, CM_REASON_INVALID_SERVICE_TYPE, CM_REASON_UNSUPPORTED,
        CM_REASON_UNSUPPORTED,          CM_REASON_INVALID_PATH_MTU,     CM_REASON_INVALID_PATH_MTU,
        CM_REASON_INVALID_GID,          CM_REASON_INVALID_GID,          CM_REASON_INVALID_SERVICE_ID,
    };

    for (size_t i = 0; i < array_size(bad); i++)
        bad[i] = req_from(side, (uint32_t)i + 1);
    bad[0].req.service = CM_SERVICE_RD;
    bad[1].req.service = CM_SERVICE_EXTENDED;
    bad[2].req.qpn = 0;
    bad[3].req.qpn = 0xffffff;
    bad[4].req.path_mtu = 0;
    bad[5].req.path_mtu = 6;
    bad[6].req.primary.local_gid[3] ^= 1; /* a GID that is not the sender's */
    bad[7].req.pkey = 0x8001;
    bad[8].req.service_id++;
    for (size_t i = 0; i < array_size(bad); i++) {
        net->logged = 0;
        assert_true(side_inject(side, &bad[i]) < 0);
        assert_int_equal(net->logged, 1);
        assert_int_equal(net->log[0].mad.attribute, CM_REJ);
        assert_int_equal(net->log[0].mad.rej.message, CM_MESSAGE_REQ);
        assert_int_equal(net->log[0].mad.rej.reason, reasons[i]);
        assert_int_equal(net->log[0].mad.remote_comm_id, i + 1);
    }
    net->logged = 0;
    bad[0] = req_from(side, 0);
    assert_int_equal(side_inject(side, &bad[0]), -EPROTO);
    assert_int_equal(net->logged, 0);
    assert_int_equal(side->created, 0);
}

static void another_class_version_is_refused(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];
    const struct cm_mad mad = req_from(side, 9);
    uint8_t bytes[MAD_LENGTH];

    cm_mad_encode(&mad, bytes);
    bytes[2] = 1;
    assert_int_equal(cm_receive(&side->cm, &side->path, bytes, sizeof(bytes), net->now), -EPROTO);
    assert_int_equal(net->log[0].mad.rej.reason, CM_REASON_INVALID_CLASS_VERSION);
    assert_int_equal(net->log[0].mad.remote_comm_id, 9);
    bytes[2] = 2;
    bytes[17] = CM_RTU;
    bytes[2] = 1;
    assert_int_equal(cm_receive(&side->cm, &side->path, bytes, sizeof(bytes), net->now), -EPROTO);
    assert_int_equal(cm_receive(&side->cm, &side->path, bytes, 12, net->now), -EPROTO);
    assert_int_equal(net->logged, 1);
    assert_int_equal(side->cm.counters.malformed, 3);
}

static void numbers_of_a_request_are_bounded(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];
    struct cm_mad mad = req_from(side, 1);
    const ns_t began = net->now;

    side_kill(net->sides[0]);
    mad.req.local_response_timeout = mad.req.remote_response_timeout = 31;
    mad.req.primary.local_ack_timeout = 31;
    mad.req.max_cm_retries = 15;
    assert_int_equal(side_inject(side, &mad), 0);
    net_settle(net);
    /* REP retries end after two minutes, not two days. */
    assert_int_equal(net_sent(net, CM_REP, 1), 16);
    assert_true(net->now - began < 160 * NS_PER_S);

    mad = req_from(side, 2);
    net->logged = 0;
    mad.req.max_cm_retries = 15; /* with a timeout of 4 us: the interval is bounded */
    assert_int_equal(side_inject(side, &mad), 0);
    net_run(net, net->now + 100 * NS_PER_MS);
    assert_true(net_sent(net, CM_REP, 1) <= 2);
}

static void a_refused_request_is_not_remembered_for_ever(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];
    const struct cm_mad mad = req_from(side, 1);
    const ns_t began = net->now;

    side->program = CLOSES;
    net_rule(net, (struct rule){CM_REJ, 1, 0, 100000, LOSE});
    assert_int_equal(side_inject(side, &mad), 0);
    while (side->released == 0) {
        net_run(net, net->now + 10 * NS_PER_MS);
        if (side->released == 0)
            assert_int_equal(side_inject(side, &mad), -EALREADY);
        assert_true(net->now - began < 300 * NS_PER_S);
    }
    assert_int_equal(side->created, 1);
}

static void a_reply_with_an_impossible_number_is_ignored(void **state)
{
    struct net *net = *state;
    struct end *active;
    struct cm_mad rep = {.attribute = CM_REP, .local_comm_id = 5};

    net_rule(net, (struct rule){CM_REQ, 0, 0, 1, LOSE});
    active = side_connect(net->sides[0]);
    rep.remote_comm_id = active->comm_id;
    rep.transaction_id = net->log[0].mad.transaction_id;
    rep.rep.qpn = 1;
    assert_int_equal(side_inject(net->sides[0], &rep), -EPROTO);
    rep.rep.qpn = 0xffffff;
    assert_int_equal(side_inject(net->sides[0], &rep), -EPROTO);
    rep.rep.qpn = 77;
    rep.local_comm_id = 0;
    assert_int_equal(side_inject(net->sides[0], &rep), -EPROTO);
    assert_state(active, CM_STATE_REQ_SENT);
    assert_int_equal(active->seen_count, 0);
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
}

static void an_answer_with_an_impossible_number_is_ignored(void **state)
{
    struct net *net = *state;
    struct end *active;
    struct cm_mad rep = {.attribute = CM_SIDR_REP};

    net_rule(net, (struct rule){CM_SIDR_REQ, 0, 0, 1, LOSE});
    active = side_resolve(net->sides[0]);
    rep.remote_comm_id = net->log[0].mad.local_comm_id;
    rep.transaction_id = net->log[0].mad.transaction_id;
    rep.sidr_rep.qpn = 1;
    assert_int_equal(side_inject(net->sides[0], &rep), -EPROTO);
    assert_state(active, CM_STATE_SIDR_REQ_SENT);
    net_settle(net);
    assert_int_equal(active->seen[0].type, CM_EVENT_RESOLVED);
}

static void a_request_id_is_used_again(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];
    struct cm_mad mad = {.attribute = CM_SIDR_REQ, .transaction_id = 1, .local_comm_id = 5};

    mad.sidr_req = (struct cm_sidr_req){.service_id = SERVICE_ID, .pkey = 0xffff};
    side->program = IGNORES;
    mad.sidr_req.pkey = 0x8001;
    assert_int_equal(side_inject(side, &mad), -ENOENT);
    assert_int_equal(net->log[0].mad.sidr_rep.status, CM_SIDR_REJECTED);
    mad.sidr_req.pkey = 0xffff;
    assert_int_equal(side_inject(side, &mad), 0);
    mad.transaction_id = 2;
    assert_int_equal(side_inject(side, &mad), -EINVAL); /* the first one is still pending */
    assert_int_equal(end_accept(side_passive(side)), 0);
    assert_int_equal(side_inject(side, &mad), 0);
    assert_int_equal(side->created, 2);
    assert_int_equal(side_inject(side, &mad), -EALREADY);
}

/* --- restarted processes ------------------------------------------------------------------------------- */

/* A new process gets the QPN of its predecessor, on another host. */
static void a_stale_connection_is_found_and_ended(void **state)
{
    struct net *net = *state;
    struct end *active, *passive, *again;
    uint32_t qpn;
    struct cm_connect connect;

    net->of_other_hosts = true;
    active = side_connect(net->sides[0]);
    qpn = active->qpn;
    net_settle(net);
    passive = side_passive(net->sides[1]);
    again = end_new(side_restart(net, 0));
    again->qpn = qpn;
    connect = connect_of(again);
    assert_int_equal(cm_connect(&net->sides[0]->cm, &again->id, &connect, net->now), 0);
    net_settle(net);
    assert_int_equal(again->seen[0].type, CM_EVENT_REJECTED);
    assert_int_equal(again->seen[0].status, CM_REASON_STALE_CONNECTION);
    /* The new process responds to the DREQ for an unknown comm id. */
    assert_int_equal(end_saw(passive, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(net_sent(net, CM_DREP, 0), 1);

    again->seen_count = again->handled = 0;
    assert_int_equal(cm_connect(&net->sides[0]->cm, &again->id, &connect, net->now), 0);
    net_settle(net);
    assert_state(again, CM_STATE_ESTABLISHED);
}

static void a_stale_connection_is_found_on_the_active_side_too(void **state)
{
    struct net *net = *state;
    struct end *old, *active;
    uint32_t qpn;

    net->of_other_hosts = true;
    old = side_connect(net->sides[0]);
    net_settle(net);
    qpn = side_passive(net->sides[1])->qpn;
    side_restart(net, 1)->next_qpn = qpn;
    active = side_connect(net->sides[0]);
    net_settle(net);
    assert_int_equal(active->seen[0].type, CM_EVENT_REJECTED);
    assert_int_equal(active->seen[0].status, CM_REASON_STALE_CONNECTION);
    assert_int_equal(end_saw(old, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(side_passive(net->sides[1])->seen[0].status, CM_REASON_STALE_CONNECTION);
}

/* Of another process of this host, with the same GID, which is not the one with the QP. */
static void a_request_ends_no_connection_of_another_process(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]), *passive;
    struct cm_mad mad = {.attribute = CM_REQ,
                         .transaction_id = 1,
                         .local_comm_id = 0x47110001,
                         .req = {.qpn = active->qpn, .pkey = 0xffff, .path_mtu = 3}};

    memcpy(mad.req.primary.local_gid, net->sides[1]->path.remote_gid, 16);
    net_settle(net);
    passive = side_passive(net->sides[1]);
    net->sides[1]->listens = false;
    net->sides[0]->incarnation += 100;
    assert_int_equal(side_inject(net->sides[1], &mad), -ENOENT);
    net->sides[0]->incarnation -= 100;
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
    assert_state(passive, CM_STATE_ESTABLISHED);
    /* Of the process with the QP, it does. */
    mad.local_comm_id++;
    assert_int_equal(side_inject(net->sides[1], &mad), -EINVAL);
    net_settle(net);
    assert_int_equal(end_saw(active, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(end_saw(passive, CM_EVENT_DISCONNECTED)->status, 0);
}

/* After a request that timed out and whose REJ was lost, its QP is used for the next request. */
static void an_attempt_supersedes_the_one_before(void **state)
{
    struct net *net = *state;
    struct end *first = side_connect(net->sides[0]), *second, *old;
    struct cm_connect connect;
    const uint32_t qpn = first->qpn;

    net->sides[1]->program = IGNORES;
    net_rule(net, (struct rule){CM_REJ, 0, 0, 1, LOSE});
    net_run(net, net->now + NS_PER_MS);
    old = side_passive(net->sides[1]);
    end_close(first);
    second = end_new(net->sides[0]);
    second->qpn = qpn;
    connect = connect_of(second);
    net->sides[1]->program = ACCEPTS;
    assert_int_equal(cm_connect(&net->sides[0]->cm, &second->id, &connect, net->now), 0);
    net_settle(net);
    assert_int_equal(old->seen[0].type, CM_EVENT_REJECTED);
    assert_int_equal(old->seen[0].status, CM_REASON_TIMEOUT);
    assert_state(second, CM_STATE_ESTABLISHED);
}

static void a_request_that_is_given_up_is_taken_back(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]), *passive;
    uint32_t comm_id;
    uint64_t service_id;
    uint8_t bytes[MAD_LENGTH];

    net->sides[1]->program = IGNORES;
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    net->logged = 0;
    end_close(active);
    assert_int_equal(net->log[0].mad.attribute, CM_REJ);
    assert_int_equal(net->log[0].mad.rej.reason, CM_REASON_TIMEOUT);
    /* A REJ without remote comm id, with the sender's comm id. */
    cm_mad_encode(&net->log[0].mad, bytes);
    assert_int_equal(cm_mad_addressee(bytes, sizeof(bytes), &comm_id, &service_id), CM_FOR_REQUEST);
    assert_int_equal(net->log[0].mad.rej.info_length, 8);
    assert_memory_equal(net->log[0].mad.rej.info, "\x02\x00\xff\xfe\0\0\0\0", 8);
    net_settle(net);
    assert_int_equal(passive->seen[0].type, CM_EVENT_REJECTED);
    assert_int_equal(passive->seen[0].status, CM_REASON_TIMEOUT);
    assert_int_equal(end_accept(passive), -EINVAL);
}

/* A restarted peer reuses comm ids. */
static void a_comm_id_that_is_used_twice_is_refused(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];
    struct cm_mad mad = req_from(side, 0x1234);

    side->program = IGNORES;
    assert_int_equal(side_inject(side, &mad), 0);
    assert_int_equal(side_inject(side, &mad), -EALREADY);
    mad.transaction_id++;
    net->logged = 0;
    assert_int_equal(side_inject(side, &mad), -EINVAL);
    assert_int_equal(net->log[0].mad.rej.reason, CM_REASON_DUPLICATE_COMM_ID);
    assert_int_equal(side->created, 1);
}

/* A duplicate REQ was taken for a second request. */
static void a_second_reply_to_one_request_is_refused(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]);
    struct cm_mad rep = {.attribute = CM_REP, .local_comm_id = 0x4711};

    net_settle(net);
    rep.remote_comm_id = active->comm_id;
    rep.transaction_id = net->log[0].mad.transaction_id;
    rep.rep.qpn = 0x999;
    net->logged = 0;
    assert_int_equal(side_inject(net->sides[0], &rep), -EINVAL);
    assert_int_equal(net->log[0].mad.attribute, CM_REJ);
    assert_int_equal(net->log[0].mad.rej.reason, CM_REASON_INVALID_COMM_INSTANCE);
    assert_int_equal(net->log[0].mad.rej.message, CM_MESSAGE_REP);
    assert_int_equal(net->log[0].mad.remote_comm_id, 0x4711);
    assert_state(active, CM_STATE_ESTABLISHED);
}

static void the_peers_process_is_the_one_that_answered(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]);
    struct cm_mad rtu = {.attribute = CM_RTU, .remote_comm_id = active->comm_id};

    assert_int_equal(active->id.path.peer, 0);
    net_settle(net);
    rtu.local_comm_id = cm_id_remote_comm_id(&active->id);
    assert_int_equal(active->id.path.peer, net->sides[1]->incarnation);
    assert_int_equal(side_passive(net->sides[1])->id.path.peer, net->sides[0]->incarnation);
    /* The cookie stays that of cm_connect(), and `peer` that of the first response. */
    assert_int_equal(active->id.path.cookie, 77);
    net->sides[1]->incarnation += 100;
    assert_int_equal(side_inject(net->sides[0], &rtu), -EINVAL);
    assert_int_equal(active->id.path.peer, net->sides[1]->incarnation - 100);
}

/* --- comm ids ----------------------------------------------------------------------------------------- */

static void comm_ids_are_of_the_blocks_that_were_granted(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[0];
    unsigned of_block[2] = {0};

    assert_int_equal(cm_grant_block(&side->cm, 0x100), -EEXIST);
    assert_int_equal(cm_grant_block(&side->cm, 0x4321), 0);
    for (unsigned i = 0; i < 100; i++) {
        struct end *end = side_connect(side);

        assert_true(end->comm_id >> 16 == 0x100 || end->comm_id >> 16 == 0x4321);
        of_block[end->comm_id >> 16 == 0x4321]++;
    }
    assert_int_equal(of_block[0], 50);
    assert_int_equal(of_block[1], 50);
    for (uint16_t i = 2; i < CM_BLOCKS; i++)
        assert_int_equal(cm_grant_block(&side->cm, i), 0);
    assert_int_equal(cm_grant_block(&side->cm, 0x777), -ENOSPC);
}

static void a_process_without_numbers_connects_to_nobody(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[0];
    struct end *end = end_new(side);
    const struct cm_connect connect = connect_of(end);
    const struct cm_resolve resolve = {.path = connect.path, .timing = connect.timing};
    const struct cm_mad mad = req_from(side, 1);

    side->cm.block_count = 0;
    assert_int_equal(cm_connect(&side->cm, &end->id, &connect, net->now), -ENOSPC);
    assert_int_equal(cm_resolve(&side->cm, &end->id, &resolve, net->now), -ENOSPC);
    /* Without a block every request is rejected. */
    assert_int_equal(side_inject(side, &mad), -ENOENT);
    assert_int_equal(net->logged, 1);
    assert_int_equal(net->log[0].mad.rej.reason, CM_REASON_INVALID_SERVICE_ID);
}

static void a_request_that_finds_no_number_free_is_as_if_it_had_not_come(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[0];
    const struct cm_mad mad = req_from(side, 1);

    side->cm.blocks[0].used = UINT16_MAX; /* more than there are */
    assert_int_equal(side_inject(side, &mad), -ENOSPC);
    assert_int_equal(net->logged, 0);
    assert_int_equal(cm_grant_block(&side->cm, 0x4321), 0);
    assert_int_equal(side_inject(side, &mad), 0);
    side->cm.blocks[0].used = 0;
}

static void a_comm_id_rests_before_it_is_used_again(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[0];
    static uint8_t used[65536];
    struct cm_mad rej = {.attribute = CM_REJ, .local_comm_id = 1};

    memset(used, 0, sizeof(used));
    net_rule(net, (struct rule){CM_REQ, 0, 0, UINT32_MAX, LOSE});
    for (unsigned i = 0; i < 60000; i++) {
        struct end *end = side_connect(side);

        assert_int_equal(used[end->comm_id & 0xffff], 0);
        used[end->comm_id & 0xffff] = 1;
        rej.remote_comm_id = end->comm_id;
        rej.transaction_id = end->id.transaction_id;
        assert_int_equal(side_inject(side, &rej), 0);
        end_close(end);
    }
    assert_int_equal(side->created, side->released);
}

/* --- many ---------------------------------------------------------------------------------------------- */

static void two_thousand_connect_at_once(void **state)
{
    struct net *net = *state;
    struct end *ends[2000];

    net->jitter = NS_PER_MS;
    net->sides[1]->takes = 3 * NS_PER_MS;
    for (size_t i = 0; i < array_size(ends); i++)
        ends[i] = side_connect(net->sides[0]);
    net_settle(net);
    for (size_t i = 0; i < array_size(ends); i++)
        assert_state(ends[i], CM_STATE_ESTABLISHED);
    side_check(net->sides[0]);
    side_check(net->sides[1]);
    net->sides[0]->closes_after = net->sides[1]->closes_after = true;
    for (size_t i = 0; i < array_size(ends); i++)
        assert_int_equal(
            cm_disconnect(&net->sides[i % 2]->cm, i % 2 ? &end_peer(ends[i])->id : &ends[i]->id, net->now),
            0);
    net_settle(net);
    assert_int_equal(net->sides[0]->released, 2000);
    assert_int_equal(net->sides[1]->released, 2000);
}

static void ten_thousand_come_and_go(void **state)
{
    struct net *net = *state;

    net->sides[0]->leaves = true;
    net->sides[0]->closes_after = net->sides[1]->closes_after = true;
    for (unsigned i = 0; i < 10000; i++) {
        side_connect(net->sides[0]);
        net_run(net, net->now + 300 * NS_PER_US);
        net->logged = 0;
    }
    net_settle(net);
    assert_int_equal(net->sides[0]->released, 10000);
    assert_int_equal(net->sides[1]->released, 10000);
    assert_true(list_empty(&net->sides[0]->ends) && list_empty(&net->sides[1]->ends));
    assert_int_equal(net->sides[0]->cm.blocks[0].used, 0);
    assert_int_equal(cm_next(&net->sides[0]->cm), NS_NEVER);
}

/* More than CM_LINGER_MAX ids: the number of lingering ids is bounded. */
static void the_number_of_ids_that_linger_is_limited(void **state)
{
    struct net *net = *state;
    struct side *side = net->sides[1];

    side->program = CLOSES;
    for (uint32_t i = 0; i < CM_LINGER_MAX + 1000; i++) {
        const struct cm_mad mad = req_from(side, i + 1);

        assert_int_equal(side_inject(side, &mad), 0);
        net->logged = 0;
        if (i % 100 == 99)
            net_run(net, net->now);
    }
    net_run(net, net->now);
    assert_int_equal(side->cm.lingering, CM_LINGER_MAX);
    assert_int_equal(side->released, 1000);
    side_check(side);
    net_settle(net);
    assert_int_equal(side->released, side->created);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(messages_for_unknown_comm_ids_get_responses),
        TEST(a_request_that_is_wrong_is_refused),
        TEST(another_class_version_is_refused),
        TEST(numbers_of_a_request_are_bounded),
        TEST(a_refused_request_is_not_remembered_for_ever),
        TEST(a_reply_with_an_impossible_number_is_ignored),
        TEST(an_answer_with_an_impossible_number_is_ignored),
        TEST(a_request_id_is_used_again),
        TEST(a_stale_connection_is_found_and_ended),
        TEST(a_stale_connection_is_found_on_the_active_side_too),
        TEST(a_request_ends_no_connection_of_another_process),
        TEST(an_attempt_supersedes_the_one_before),
        TEST(a_request_that_is_given_up_is_taken_back),
        TEST(a_comm_id_that_is_used_twice_is_refused),
        TEST(a_second_reply_to_one_request_is_refused),
        TEST(the_peers_process_is_the_one_that_answered),
        TEST(comm_ids_are_of_the_blocks_that_were_granted),
        TEST(a_process_without_numbers_connects_to_nobody),
        TEST(a_request_that_finds_no_number_free_is_as_if_it_had_not_come),
        TEST(a_comm_id_rests_before_it_is_used_again),
        TEST(two_thousand_connect_at_once),
        TEST(ten_thousand_come_and_go),
        TEST(the_number_of_ids_that_linger_is_limited),
    };

    return run_unit_tests("cm unknown", tests);
}
