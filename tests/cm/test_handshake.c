/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Every outcome of every handshake, and the same with each message lost, repeated or late. */
#include "net.h"

static const ns_t interval =
    (4096ull << CM_RESPONSE_TIMEOUT_DEFAULT) + 2 * (4096ull << CM_PACKET_LIFETIME_DEFAULT);

static int set_up(void **state)
{
    *state = net_new(1);
    return 0;
}

static int tear_down(void **state)
{
    net_free(*state);
    return 0;
}

static const struct seen *must_have_seen(const struct end *end, enum cm_event_type type)
{
    const struct seen *seen = end_saw(end, type);

    if (!seen)
        fail_msg("event %d did not come", type);
    return seen;
}

/* --- successful connections --- */

static void both_sides_agree_on_a_connection(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;
    struct cm_qp_attributes a, p;

    active = side_connect(net->sides[0]);
    net_settle(net);
    passive = side_passive(net->sides[1]);
    assert_state(active, CM_STATE_ESTABLISHED);
    assert_state(passive, CM_STATE_ESTABLISHED);
    assert_ptr_equal(end_peer(active), passive);
    assert_int_equal(active->seen_count, 1);
    must_have_seen(active, CM_EVENT_REPLY);
    assert_int_equal(passive->seen_count, 1);
    must_have_seen(passive, CM_EVENT_ESTABLISHED);
    assert_int_equal(net_sent(net, CM_REQ, 0), 1);
    assert_int_equal(net_sent(net, CM_REP, 1), 1);
    assert_int_equal(net_sent(net, CM_RTU, 0), 1);
    assert_int_equal(net->logged, 3);

    assert_int_equal(cm_qp_attributes(&active->id, &a), 0);
    assert_int_equal(cm_qp_attributes(&passive->id, &p), 0);
    assert_int_equal(a.dest_qpn, passive->qpn);
    assert_int_equal(p.dest_qpn, active->qpn);
    assert_int_equal(a.rq_psn, p.sq_psn);
    assert_int_equal(a.sq_psn, p.rq_psn);
    assert_true(a.rq_psn <= 0xffffff && a.sq_psn <= 0xffffff && a.rq_psn != a.sq_psn);
    assert_int_equal(a.path_mtu, 3);
    assert_int_equal(p.path_mtu, 3);
    assert_memory_equal(a.path.remote_gid, p.path.local_gid, 16);
    assert_memory_equal(p.path.remote_gid, a.path.local_gid, 16);
    assert_int_equal(p.path.flow_label, 0x12345);
    assert_int_equal(p.path.traffic_class, 0x20);
    /* The passive side's accept: responder resources 3, initiator depth 2. */
    assert_int_equal(p.max_dest_rd_atomic, 3);
    assert_int_equal(p.max_rd_atomic, 2);
    assert_int_equal(a.max_dest_rd_atomic, 2);
    assert_int_equal(a.max_rd_atomic, 3);
    /* 10 retries are 7, and both sides have the active one's; each RNR count is the other's. */
    assert_int_equal(a.retry_count, 7);
    assert_int_equal(p.retry_count, 7);
    assert_int_equal(a.rnr_retry, 6);
    assert_int_equal(p.rnr_retry, 5);
    /* Packet lifetime 14, ACK delay 15: 2^15 + 2^15. */
    assert_int_equal(a.timeout, 16);
    assert_int_equal(p.timeout, 16);
}

static void each_side_is_told_what_the_other_offers(void **state)
{
    struct net *net = *state;
    struct end *active = end_new(net->sides[0]), *passive;
    struct cm_connect connect = connect_of(active);
    struct cma_header header;
    const struct seen *reply;

    connect.flow_control = connect.srq = true;
    connect.ece = (struct cm_ece){0x123456, 0x89abcdef};
    net->sides[1]->accept.private_data = "welcome";
    net->sides[1]->accept.private_length = 8;
    net->sides[1]->accept.ece = (struct cm_ece){0x654321, 7};
    net->sides[1]->accept.srq = true;
    assert_int_equal(cm_connect(&net->sides[0]->cm, &active->id, &connect, net->now), 0);
    net_settle(net);
    passive = side_passive(net->sides[1]);

    /* From the view of the receiver of the event. */
    assert_int_equal(passive->request.offer.responder_resources, 4);
    assert_int_equal(passive->request.offer.initiator_depth, 5);
    assert_int_equal(passive->request.offer.retry_count, 7);
    assert_int_equal(passive->request.offer.rnr_retry_count, 5);
    assert_true(passive->request.offer.flow_control);
    assert_true(passive->request.offer.srq);
    assert_int_equal(passive->request.offer.qpn, active->qpn);
    assert_int_equal(passive->request.offer.ece.vendor_id, 0x123456);
    assert_int_equal(passive->request.offer.ece.options, 0x89abcdef);
    assert_int_equal(passive->request.remote_guid, net->sides[0]->path.local_guid);
    assert_int_equal(passive->request.path_mtu, 3);
    assert_int_equal(passive->request.service, CM_SERVICE_RC);
    assert_int_equal(cma_header_decode(passive->private_data, CM_REQ_PRIVATE, &header), 0);
    assert_int_equal(header.ip_version, 6);
    assert_int_equal(header.source_port, 4321);
    assert_memory_equal(header.destination, net->sides[1]->path.local_gid, 16);
    assert_int_equal(passive->private_data[CMA_HEADER_LENGTH], 0x5a);
    assert_int_equal(passive->private_data[CM_REQ_PRIVATE - 1], 0x5a);

    reply = must_have_seen(active, CM_EVENT_REPLY);
    assert_int_equal(reply->status, 0);
    assert_int_equal(reply->offer.responder_resources, 2);
    assert_int_equal(reply->offer.initiator_depth, 3);
    assert_int_equal(reply->offer.rnr_retry_count, 6);
    assert_false(reply->offer.flow_control);
    assert_true(reply->offer.srq);
    assert_int_equal(reply->offer.qpn, passive->qpn);
    assert_int_equal(reply->offer.ece.vendor_id, 0x654321);
    assert_int_equal(reply->offer.ece.options, 7);
    assert_int_equal(reply->private_length, CM_REP_PRIVATE);
    assert_memory_equal(reply->private_data, "welcome\0\0\0", 10);
}

static void what_linux_expects_in_a_req(void **state)
{
    struct net *net = *state;
    const struct cm_req *req = &net->log[0].mad.req;

    side_connect(net->sides[0]);
    assert_int_equal(net->log[0].mad.attribute, CM_REQ);
    assert_int_equal(req->pkey, 0xffff);
    assert_int_equal(req->primary.local_lid, 0xffff);
    assert_int_equal(req->primary.remote_lid, 0xffff);
    assert_int_equal(req->alternate.local_lid, 0); /* else it is an alternate path */
    assert_false(req->primary.subnet_local);
    assert_int_equal(req->primary.hop_limit, 64);
    assert_int_equal(req->primary.packet_rate, 3);
    assert_int_equal(req->primary.local_ack_timeout, 16);
    assert_int_equal(req->remote_response_timeout, CM_RESPONSE_TIMEOUT_DEFAULT);
    assert_int_equal(req->local_response_timeout, CM_RESPONSE_TIMEOUT_DEFAULT);
    assert_int_equal(req->max_cm_retries, 15);
    assert_int_equal(req->ca_guid, net->sides[0]->path.local_guid);
    assert_memory_equal(req->primary.local_gid, net->sides[0]->path.local_gid, 16);
    assert_memory_equal(req->primary.remote_gid, net->sides[0]->path.remote_gid, 16);
}

static void one_machine_can_be_both_sides(void **state)
{
    struct net *net = *state;
    struct end *crossing = side_connect(net->sides[0]), *other = side_connect(net->sides[1]);

    net_settle(net);
    assert_state(crossing, CM_STATE_ESTABLISHED);
    assert_state(other, CM_STATE_ESTABLISHED);
    assert_state(end_peer(crossing), CM_STATE_ESTABLISHED);
    assert_state(end_peer(other), CM_STATE_ESTABLISHED);
    assert_ptr_not_equal(end_peer(crossing), other);
}

static void data_may_arrive_before_the_rtu(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;

    net_rule(net, (struct rule){CM_RTU, 0, 0, 3, LOSE});
    active = side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    assert_state(passive, CM_STATE_REP_SENT);
    assert_int_equal(cm_communication_established(&net->sides[1]->cm, &passive->id, net->now), 0);
    assert_state(passive, CM_STATE_ESTABLISHED);
    must_have_seen(passive, CM_EVENT_ESTABLISHED);
    assert_int_equal(cm_communication_established(&net->sides[1]->cm, &passive->id, net->now), 0);
    assert_int_equal(cm_communication_established(&net->sides[0]->cm, &active->id, net->now), 0);
    net_settle(net);
    assert_int_equal(passive->seen_count, 1);
    assert_int_equal(net_sent(net, CM_REP, 1), 1);
}

/* cm_communication_established() may be called without reason: a repeated REQ still gets its REP. */
static void a_reply_is_repeated_until_the_rtu(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;

    net_rule(net, (struct rule){CM_REP, 1, 0, 1, LOSE});
    active = side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    assert_int_equal(cm_communication_established(&net->sides[1]->cm, &passive->id, net->now), 0);
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
    assert_int_equal(passive->seen_count, 1);
}

static void a_slow_program_is_waited_for(void **state)
{
    struct net *net = *state;
    struct end *active;

    /* Much longer than all retries without MRA. */
    net->sides[1]->takes = 60 * NS_PER_S;
    active = side_connect(net->sides[0]);
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
    assert_true(net_sent(net, CM_MRA, 1) >= 2);
    assert_true(net_sent(net, CM_REQ, 0) < 10);
}

static void a_program_that_takes_its_time_on_the_active_side_is_waited_for(void **state)
{
    struct net *net = *state;
    struct end *active;

    net->sides[0]->establishes = false;
    active = side_connect(net->sides[0]);
    net_run(net, net->now + 60 * NS_PER_S);
    assert_state(active, CM_STATE_MRA_REP_SENT);
    assert_state(side_passive(net->sides[1]), CM_STATE_MRA_REP_RCVD);
    assert_int_equal(cm_establish(&net->sides[0]->cm, &active->id, net->now), 0);
    net_settle(net);
    assert_state(side_passive(net->sides[1]), CM_STATE_ESTABLISHED);
    assert_true(net_sent(net, CM_MRA, 0) >= 2);
}

static void a_program_may_ask_for_time_itself(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;

    net->sides[1]->program = IGNORES;
    active = side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    assert_int_equal(cm_delay(&net->sides[1]->cm, &passive->id, 32, net->now), -EINVAL);
    assert_int_equal(cm_delay(&net->sides[1]->cm, &passive->id, 22, net->now), 0);
    net_run(net, net->now + 10 * NS_PER_S);
    assert_state(active, CM_STATE_MRA_REQ_RCVD);
    assert_int_equal(net_sent(net, CM_REQ, 0), 1);
    assert_int_equal(end_accept(passive), 0);
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
    assert_int_equal(cm_delay(&net->sides[1]->cm, &passive->id, 22, net->now), -EINVAL);
}

static void a_hostile_delay_is_bounded(void **state)
{
    struct net *net = *state;
    struct end *active;
    struct cm_mad mra = {.attribute = CM_MRA, .mra = {CM_MESSAGE_REQ, 31}};

    net_rule(net, (struct rule){CM_REQ, 0, 0, 1000, LOSE});
    active = side_connect(net->sides[0]);
    mra.remote_comm_id = active->comm_id;
    mra.transaction_id = net->log[0].mad.transaction_id;
    assert_int_equal(side_inject(net->sides[0], &mra), 0);
    assert_true(cm_next(&net->sides[0]->cm) <= net->now + 70 * NS_PER_S);
    for (unsigned i = 1; i < 32; i++)
        assert_int_equal(side_inject(net->sides[0], &mra), 0);
    assert_int_equal(side_inject(net->sides[0], &mra), -EINVAL);
    net_settle(net);
    must_have_seen(active, CM_EVENT_UNREACHABLE);
}

/* --- failed connections --- */

static void nobody_answers(void **state)
{
    struct net *net = *state;
    const ns_t began = net->now;
    struct end *active;
    const struct seen *seen;

    net->sides[0]->timing.retries = 3;
    net_rule(net, (struct rule){0, 0, 0, 1000, LOSE});
    active = side_connect(net->sides[0]);
    net_settle(net);
    assert_int_equal(net_sent(net, CM_REQ, 0), 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(net->log[i].at, began + i * interval);
    seen = must_have_seen(active, CM_EVENT_UNREACHABLE);
    assert_int_equal(seen->status, -ETIMEDOUT);
    assert_int_equal(seen->at, began + 4 * interval);
    assert_false(seen->has_private);
    /* Only the responses may be lost. */
    assert_int_equal(net_sent(net, CM_REJ, 0), 1);
    assert_int_equal(net->log[4].mad.rej.reason, CM_REASON_TIMEOUT);
    assert_state(active, CM_STATE_IDLE);
    assert_int_equal(cm_id_local_comm_id(&active->id), 0);
    assert_int_equal(cm_next(&net->sides[0]->cm), NS_NEVER);
}

static void nobody_listens(void **state)
{
    struct net *net = *state;
    struct end *active;

    net->sides[1]->listens = false;
    active = side_connect(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_REJECTED)->status, CM_REASON_INVALID_SERVICE_ID);
    assert_state(active, CM_STATE_IDLE);
    assert_int_equal(net->sides[1]->created, 0);
}

static void the_owner_refuses_with_a_reason(void **state)
{
    struct net *net = *state;
    struct end *active;

    net->sides[1]->program = REFUSES;
    net->sides[1]->refuse_reason = CM_REASON_INVALID_PATH_MTU;
    active = side_connect(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_REJECTED)->status, CM_REASON_INVALID_PATH_MTU);
}

static void the_program_rejects(void **state)
{
    struct net *net = *state;
    struct end *active;
    const struct seen *seen;

    net->sides[1]->program = REJECTS;
    active = side_connect(net->sides[0]);
    net_settle(net);
    seen = must_have_seen(active, CM_EVENT_REJECTED);
    assert_int_equal(seen->status, CM_REASON_CONSUMER);
    assert_int_equal(seen->private_length, CM_REJ_PRIVATE);
    assert_memory_equal(seen->private_data, "no\0\0", 4);
    assert_int_equal(side_passive(net->sides[1])->seen_count, 0);
    assert_state(side_passive(net->sides[1]), CM_STATE_IDLE);
}

static void the_program_gives_the_request_up(void **state)
{
    struct net *net = *state;
    struct end *active;

    net->sides[1]->program = CLOSES;
    active = side_connect(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_REJECTED)->status, CM_REASON_CONSUMER);
    assert_int_equal(net->sides[1]->released, 1);
}

static void the_active_side_refuses_the_reply(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;
    const struct seen *seen;

    net->sides[0]->establishes = false;
    active = side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    assert_int_equal(cm_reject(&net->sides[0]->cm, &active->id, CM_REASON_VENDOR_OPTION, "ece", 3, net->now),
                     0);
    net_settle(net);
    seen = must_have_seen(passive, CM_EVENT_REJECTED);
    assert_int_equal(seen->status, CM_REASON_VENDOR_OPTION);
    assert_memory_equal(seen->private_data, "ece", 4);
    assert_state(active, CM_STATE_IDLE);
    assert_state(passive, CM_STATE_IDLE);
    assert_int_equal(active->seen_count, 1);
}

static void the_passive_side_refuses_after_its_reply_is_lost(void **state)
{
    struct net *net = *state;
    struct end *active;

    net_rule(net, (struct rule){CM_REP, 1, 0, 1, LOSE});
    active = side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    end_close(side_passive(net->sides[1]));
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_REJECTED)->status, CM_REASON_CONSUMER);
    assert_int_equal(net_sent(net, CM_REQ, 0), 1);
    assert_int_equal(net->sides[1]->released, 1);
}

static void an_owner_without_room_is_asked_again(void **state)
{
    struct net *net = *state;
    struct end *active;

    net->sides[1]->room = 0;
    active = side_connect(net->sides[0]);
    net_run(net, net->now + interval / 2);
    assert_int_equal(net->logged, 1);
    net->sides[1]->room = 1;
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
    assert_int_equal(net_sent(net, CM_REQ, 0), 2);
}

static void a_reply_without_rtu_is_given_up(void **state)
{
    struct net *net = *state;
    struct end *passive;

    net->sides[0]->timing.retries = 2;
    net_rule(net, (struct rule){CM_REP, 1, 0, 1000, LOSE});
    net_rule(net, (struct rule){CM_REQ, 0, 1, 1000, LOSE});
    side_connect(net->sides[0]);
    net_run(net, net->now + 10 * NS_PER_MS);
    passive = side_passive(net->sides[1]);
    net_settle(net);
    assert_int_equal(net_sent(net, CM_REP, 1), 3);
    assert_true(end_saw(passive, CM_EVENT_UNREACHABLE) || end_saw(passive, CM_EVENT_REJECTED));
}

/* --- disconnecting --- */

static void disconnect_and_check(struct net *net, struct end *first, struct end *second)
{
    assert_int_equal(cm_disconnect(&first->side->cm, &first->id, net->now), 0);
    assert_int_equal(cm_disconnect(&first->side->cm, &first->id, net->now), -EINVAL);
    net_settle(net);
    assert_int_equal(must_have_seen(first, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(must_have_seen(second, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(first->seen_count, 3);
    assert_int_equal(second->seen_count, 3);
    must_have_seen(first, CM_EVENT_TIMEWAIT_EXIT);
    must_have_seen(second, CM_EVENT_TIMEWAIT_EXIT);
    assert_state(first, CM_STATE_IDLE);
    assert_state(second, CM_STATE_IDLE);
    /* The passive side may disconnect, too; the active side must not do it again. */
    assert_int_equal(cm_disconnect(&second->side->cm, &second->id, net->now), 0);
    assert_int_equal(cm_disconnect(&first->side->cm, &first->id, net->now), -EINVAL);
}

static void either_side_disconnects(void **state)
{
    struct net *net = *state;

    for (unsigned leaver = 0; leaver < 2; leaver++) {
        struct end *active = side_connect(net->sides[0]), *passive;

        net_settle(net);
        passive = end_peer(active);
        disconnect_and_check(net, leaver ? passive : active, leaver ? active : passive);
        assert_int_equal(net_sent(net, CM_DREQ, (int)leaver), 1);
        assert_int_equal(net_sent(net, CM_DREP, (int)!leaver), 1);
    }
}

static void both_sides_disconnect_at_once(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]), *passive;

    net_settle(net);
    passive = end_peer(active);
    assert_int_equal(cm_disconnect(&net->sides[0]->cm, &active->id, net->now), 0);
    assert_int_equal(cm_disconnect(&net->sides[1]->cm, &passive->id, net->now), 0);
    net_settle(net);
    assert_int_equal(active->seen_count, 3);
    assert_int_equal(passive->seen_count, 3);
    assert_int_equal(must_have_seen(active, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(must_have_seen(passive, CM_EVENT_DISCONNECTED)->status, 0);
}

static void a_dreq_that_nobody_answers_ends_the_connection(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]);

    net_settle(net);
    side_kill(net->sides[1]);
    assert_int_equal(cm_disconnect(&net->sides[0]->cm, &active->id, net->now), 0);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_DISCONNECTED)->status, -ETIMEDOUT);
    must_have_seen(active, CM_EVENT_TIMEWAIT_EXIT);
    assert_int_equal(net_sent(net, CM_DREQ, 0), 16);
}

/* A second DREP at cm_close() goes only to a peer on another host. */
static void a_lost_drep_is_said_again_by_who_goes(void **state)
{
    struct net *net = *state;

    for (unsigned remote = 0; remote < 2; remote++) {
        struct end *active = side_connect(net->sides[0]), *passive;
        unsigned before;

        net_settle(net);
        passive = end_peer(active);
        if (remote)
            passive->id.path.peer = 0;
        before = net_sent(net, CM_DREP, 1);
        if (remote)
            net_rule(net, (struct rule){CM_DREP, 1, 0, 1, LOSE, 0});
        assert_int_equal(cm_disconnect(&net->sides[0]->cm, &active->id, net->now), 0);
        net_run(net, net->now + 20 * NS_PER_MS);
        must_have_seen(passive, CM_EVENT_DISCONNECTED);
        assert_int_equal(net_sent(net, CM_DREP, 1), before + 1);
        end_close(passive);
        net_run(net, net->now + 20 * NS_PER_MS);
        assert_int_equal(net_sent(net, CM_DREP, 1), before + 1 + remote);
        assert_int_equal(must_have_seen(active, CM_EVENT_DISCONNECTED)->status, 0);
        assert_int_equal(net_sent(net, CM_DREQ, 0), 1 + remote);
        net_settle(net);
    }
}

/* disconnected: the program calls cm_disconnect() directly before cm_close(). */
static void closes_and_is_heard(struct net *net, bool disconnected)
{
    struct end *active = side_connect(net->sides[0]), *passive;
    unsigned before = net_sent(net, CM_DREQ, 0);

    net_settle(net);
    passive = end_peer(active);
    active->id.path.peer = 0;
    net_rule(net, (struct rule){CM_DREQ, 0, 0, 1, LOSE, 0});
    if (disconnected)
        assert_int_equal(cm_disconnect(&net->sides[0]->cm, &active->id, net->now), 0);
    end_close(active);
    net_run(net, net->now + 20 * NS_PER_MS);
    assert_int_equal(must_have_seen(passive, CM_EVENT_DISCONNECTED)->status, 0);
    assert_int_equal(net_sent(net, CM_DREQ, 0), before + 2);
    net_settle(net);
}

static void a_lost_dreq_is_said_again_by_who_goes(void **state)
{
    closes_and_is_heard(*state, false);
    closes_and_is_heard(*state, true);
}

static void a_connection_is_over_before_its_rtu_arrives(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;

    net_rule(net, (struct rule){CM_RTU, 0, 0, 1, DELAY, 20 * NS_PER_MS});
    net->sides[0]->leaves = true;
    active = side_connect(net->sides[0]);
    net_run(net, net->now + 10 * NS_PER_MS);
    passive = side_passive(net->sides[1]);
    net_settle(net);
    assert_int_equal(passive->seen_count, 3);
    must_have_seen(passive, CM_EVENT_ESTABLISHED);
    must_have_seen(passive, CM_EVENT_DISCONNECTED);
    must_have_seen(active, CM_EVENT_DISCONNECTED);
}

static void the_peer_leaves_before_our_rtu(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;

    net->sides[0]->establishes = false;
    active = side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    assert_int_equal(cm_communication_established(&net->sides[1]->cm, &passive->id, net->now), 0);
    assert_int_equal(cm_disconnect(&net->sides[1]->cm, &passive->id, net->now), 0);
    net_settle(net);
    must_have_seen(active, CM_EVENT_DISCONNECTED);
    must_have_seen(passive, CM_EVENT_DISCONNECTED);
    assert_int_equal(cm_establish(&net->sides[0]->cm, &active->id, net->now), -EINVAL);
}

static void an_id_can_be_used_again(void **state)
{
    struct net *net = *state;
    struct end *active = side_connect(net->sides[0]);
    const uint32_t first = active->comm_id;
    struct cm_connect connect = connect_of(active);

    net_settle(net);
    assert_int_equal(cm_connect(&net->sides[0]->cm, &active->id, &connect, net->now), -EINVAL);
    assert_int_equal(cm_disconnect(&net->sides[0]->cm, &active->id, net->now), 0);
    net_run(net, net->now + NS_PER_MS);
    assert_state(active, CM_STATE_TIMEWAIT);
    assert_int_equal(cm_connect(&net->sides[0]->cm, &active->id, &connect, net->now), -EINVAL);
    net_settle(net);
    active->seen_count = active->handled = 0;
    assert_int_equal(cm_connect(&net->sides[0]->cm, &active->id, &connect, net->now), 0);
    assert_int_not_equal(cm_id_local_comm_id(&active->id), first);
    net_settle(net);
    assert_state(active, CM_STATE_ESTABLISHED);
}

/* --- each message lost, twice lost, repeated, late --- */

struct disturbance {
    const char *name;
    enum program program;
    bool datagram;
    uint16_t attribute;
    int from;
};

static const struct disturbance disturbances[] = {
    {"REQ", ACCEPTS, false, CM_REQ, 0},
    {"REP", ACCEPTS, false, CM_REP, 1},
    {"RTU", ACCEPTS, false, CM_RTU, 0},
    {"DREQ", ACCEPTS, false, CM_DREQ, 0},
    {"DREP", ACCEPTS, false, CM_DREP, 1},
    {"REQ, rejected", REJECTS, false, CM_REQ, 0},
    {"REJ", REJECTS, false, CM_REJ, 1},
    {"REJ of who closed", CLOSES, false, CM_REJ, 1},
    {"SIDR_REQ", ACCEPTS, true, CM_SIDR_REQ, 0},
    {"SIDR_REP", ACCEPTS, true, CM_SIDR_REP, 1},
    {"SIDR_REP, no", REJECTS, true, CM_SIDR_REP, 1},
};

static void check_outcome(struct net *net, const struct disturbance *row, struct end *active,
                          struct end *passive)
{
    if (row->datagram && row->program == ACCEPTS) {
        assert_int_equal(must_have_seen(active, CM_EVENT_RESOLVED)->offer.qpn, passive->qpn);
    } else if (row->datagram) {
        assert_int_equal(must_have_seen(active, CM_EVENT_UNREACHABLE)->status, CM_SIDR_REJECTED);
    } else if (row->program == ACCEPTS) {
        assert_int_equal(active->seen_count, 3);
        assert_int_equal(passive->seen_count, 3);
        assert_int_equal(must_have_seen(active, CM_EVENT_DISCONNECTED)->status, 0);
        assert_int_equal(must_have_seen(passive, CM_EVENT_DISCONNECTED)->status, 0);
    } else {
        assert_int_equal(must_have_seen(active, CM_EVENT_REJECTED)->status, CM_REASON_CONSUMER);
        assert_int_equal(active->seen_count, 1);
    }
    assert_int_equal(net->sides[1]->created, 1); /* one request() only */
}

static void disturbed(const struct disturbance *row, struct rule rule)
{
    struct net *net = net_new(7);
    struct end *active, *passive;

    print_message("# %s: %s\n", row->name,
                  rule.action == LOSE        ? "lost"
                  : rule.action == DUPLICATE ? "repeated"
                                             : "late");
    net->sides[1]->program = row->program;
    net->sides[0]->leaves = true;
    rule.attribute = row->attribute;
    rule.from = row->from;
    net_rule(net, rule);
    active = row->datagram ? side_resolve(net->sides[0]) : side_connect(net->sides[0]);
    while (!(passive = side_passive(net->sides[1])))
        assert_true(net_step(net));
    if (row->program == CLOSES) {
        /* The storage is released. */
        net_settle(net);
        passive = NULL;
        assert_int_equal(net->sides[1]->released, 1);
    } else {
        net_settle(net);
    }
    check_outcome(net, row, active, passive);
    net_free(net);
}

static void a_lost_message_is_repeated(void **state)
{
    for (size_t i = 0; i < array_size(disturbances); i++)
        for (unsigned count = 1; count <= 2; count++)
            disturbed(&disturbances[i], (struct rule){.action = LOSE, .count = count});
}

static void a_repeated_message_changes_nothing(void **state)
{
    /* After timewait (268 ms) the same REQ is a new request. */
    static const ns_t delays[] = {0, 100 * NS_PER_US, 10 * NS_PER_MS, 200 * NS_PER_MS};

    for (size_t i = 0; i < array_size(disturbances); i++)
        for (size_t delay = 0; delay < array_size(delays); delay++)
            disturbed(&disturbances[i],
                      (struct rule){.action = DUPLICATE, .count = 1, .delay = delays[delay]});
}

static void a_late_message_changes_nothing(void **state)
{
    static const ns_t delays[] = {100 * NS_PER_US, 200 * NS_PER_MS, 1300 * NS_PER_MS};

    for (size_t i = 0; i < array_size(disturbances); i++)
        for (size_t delay = 0; delay < array_size(delays); delay++)
            disturbed(&disturbances[i], (struct rule){.action = DELAY, .count = 1, .delay = delays[delay]});
}

/* --- datagrams --- */

static void a_datagram_service_is_resolved(void **state)
{
    struct net *net = *state;
    struct end *active, *passive;
    const struct seen *seen;

    net->sides[1]->accept.private_data = "here";
    net->sides[1]->accept.private_length = 4;
    active = side_resolve(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    passive = side_passive(net->sides[1]);
    assert_true(passive->request.datagram);
    assert_int_equal(passive->request.private_length, CM_SIDR_REQ_PRIVATE);
    seen = must_have_seen(active, CM_EVENT_RESOLVED);
    assert_int_equal(seen->offer.qpn, passive->qpn);
    assert_int_equal(seen->offer.qkey, 0x11111111);
    assert_int_equal(seen->private_length, CM_SIDR_REP_PRIVATE);
    assert_memory_equal(seen->private_data, "here\0", 5);
    assert_state(active, CM_STATE_IDLE);
    assert_state(passive, CM_STATE_SIDR_REP_SENT);
    end_close(passive);
    assert_int_equal(net->sides[1]->released, 0); /* the SIDR_REQ may be repeated */
    net_settle(net);
    assert_int_equal(net->sides[1]->released, 1);
    assert_int_equal(active->seen_count, 1);
}

static void a_datagram_service_is_not_resolved(void **state)
{
    struct net *net = *state;
    struct end *active;

    net->sides[1]->listens = false;
    active = side_resolve(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_UNREACHABLE)->status, CM_SIDR_INVALID_SERVICE_ID);

    net->sides[1]->listens = true;
    net->sides[1]->program = REFUSES;
    net->sides[1]->refuse_reason = CM_SIDR_NO_QP;
    active = side_resolve(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_UNREACHABLE)->status, CM_SIDR_NO_QP);

    net->sides[1]->program = REJECTS;
    active = side_resolve(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_UNREACHABLE)->status, CM_SIDR_REJECTED);
    assert_memory_equal(active->seen[0].private_data, "no\0", 3);

    net->sides[1]->program = CLOSES;
    active = side_resolve(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_UNREACHABLE)->status, CM_SIDR_REJECTED);

    side_kill(net->sides[1]);
    active = side_resolve(net->sides[0]);
    net_settle(net);
    assert_int_equal(must_have_seen(active, CM_EVENT_UNREACHABLE)->status, -ETIMEDOUT);
}

/* --- arguments --- */

static void wrong_arguments_are_refused(void **state)
{
    struct net *net = *state;
    struct end *end = end_new(net->sides[0]);
    const struct cm_connect good = connect_of(end);
    struct cm_connect bad[12];
    struct cm *cm = &net->sides[0]->cm;
    struct cm_accept accept = {.qpn = 5};
    struct cm_resolve resolve = {.path = good.path, .timing = good.timing};
    struct cm_qp_attributes attributes;
    uint8_t data[256] = {0};

    for (size_t i = 0; i < array_size(bad); i++)
        bad[i] = good;
    bad[0].service = CM_SERVICE_RD;
    bad[1].path_mtu = 0;
    bad[2].path_mtu = 6;
    bad[3].qpn = 1;
    bad[4].qpn = 0xffffff;
    bad[5].qpn = 0x1000002;
    bad[6].private_length = CM_REQ_PRIVATE + 1;
    bad[7].timing.packet_lifetime = 31;
    bad[8].timing.response_timeout = 32;
    bad[9].timing.retries = 16;
    bad[10].timing.ack_timeout = 32;
    bad[11].service = CM_SERVICE_EXTENDED;
    for (size_t i = 0; i < array_size(bad); i++)
        assert_int_equal(cm_connect(cm, &end->id, &bad[i], net->now), -EINVAL);
    resolve.private_length = CM_SIDR_REQ_PRIVATE + 1;
    assert_int_equal(cm_resolve(cm, &end->id, &resolve, net->now), -EINVAL);
    /* All calls fail in this state. */
    assert_int_equal(cm_accept(cm, &end->id, &accept, net->now), -EINVAL);
    assert_int_equal(cm_establish(cm, &end->id, net->now), -EINVAL);
    assert_int_equal(cm_communication_established(cm, &end->id, net->now), -EINVAL);
    assert_int_equal(cm_reject(cm, &end->id, CM_REASON_CONSUMER, NULL, 0, net->now), -EINVAL);
    assert_int_equal(cm_delay(cm, &end->id, 20, net->now), -EINVAL);
    assert_int_equal(cm_disconnect(cm, &end->id, net->now), -EINVAL);
    assert_int_equal(cm_resolve_accept(cm, &end->id, 5, 0, NULL, 0, net->now), -EINVAL);
    assert_int_equal(cm_resolve_reject(cm, &end->id, CM_SIDR_REJECTED, NULL, 0, net->now), -EINVAL);
    assert_int_equal(cm_qp_attributes(&end->id, &attributes), -EINVAL);
    assert_int_equal(net->logged, 0);

    /* Too much private data: the call fails, the request stays pending. */
    net->sides[1]->program = IGNORES;
    side_connect(net->sides[0]);
    net_run(net, net->now + NS_PER_MS);
    end = side_passive(net->sides[1]);
    cm = &net->sides[1]->cm;
    accept = (struct cm_accept){.qpn = 5, .private_data = data, .private_length = CM_REP_PRIVATE + 1};
    assert_int_equal(cm_accept(cm, &end->id, &accept, net->now), -EINVAL);
    assert_int_equal(cm_reject(cm, &end->id, CM_REASON_CONSUMER, data, CM_REJ_PRIVATE + 1, net->now),
                     -EINVAL);
    assert_state(end, CM_STATE_REQ_RCVD);
    accept.private_length = CM_REP_PRIVATE;
    assert_int_equal(cm_accept(cm, &end->id, &accept, net->now), 0);
    assert_string_equal(cm_state_name(CM_STATES), "?");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(both_sides_agree_on_a_connection),
        TEST(each_side_is_told_what_the_other_offers),
        TEST(what_linux_expects_in_a_req),
        TEST(one_machine_can_be_both_sides),
        TEST(data_may_arrive_before_the_rtu),
        TEST(a_reply_is_repeated_until_the_rtu),
        TEST(a_slow_program_is_waited_for),
        TEST(a_program_that_takes_its_time_on_the_active_side_is_waited_for),
        TEST(a_program_may_ask_for_time_itself),
        TEST(a_hostile_delay_is_bounded),
        TEST(nobody_answers),
        TEST(nobody_listens),
        TEST(the_owner_refuses_with_a_reason),
        TEST(the_program_rejects),
        TEST(the_program_gives_the_request_up),
        TEST(the_active_side_refuses_the_reply),
        TEST(the_passive_side_refuses_after_its_reply_is_lost),
        TEST(an_owner_without_room_is_asked_again),
        TEST(a_reply_without_rtu_is_given_up),
        TEST(either_side_disconnects),
        TEST(both_sides_disconnect_at_once),
        TEST(a_dreq_that_nobody_answers_ends_the_connection),
        TEST(a_lost_drep_is_said_again_by_who_goes),
        TEST(a_lost_dreq_is_said_again_by_who_goes),
        TEST(a_connection_is_over_before_its_rtu_arrives),
        TEST(the_peer_leaves_before_our_rtu),
        TEST(an_id_can_be_used_again),
        cmocka_unit_test(a_lost_message_is_repeated),
        cmocka_unit_test(a_repeated_message_changes_nothing),
        cmocka_unit_test(a_late_message_changes_nothing),
        TEST(a_datagram_service_is_resolved),
        TEST(a_datagram_service_is_not_resolved),
        TEST(wrong_arguments_are_refused),
    };

    return run_unit_tests("cm handshake", tests);
}
