/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §8.3: multicast on the host. a sends, b and others receive, each in its process where the
 * path says so. */
#include "work.h"

enum { GRH = 40, MULTICAST_QPN = 0xffffff };

static const union ibv_gid group_v4 = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, 1, 2, 3}};
static const union ibv_gid group_v6 = {.raw = {0xff, 0x0e, [13] = 7, [15] = 9}};
static const union ibv_gid other_group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, 1, 2, 4}};

struct membership {
    union ibv_gid gid;
    uint16_t lid;
    int result;
};

static void attach_here(struct end *end, void *arg)
{
    struct membership *m = arg;

    m->result = ibv_attach_mcast(end->qp, &m->gid, m->lid);
}

static void detach_here(struct end *end, void *arg)
{
    struct membership *m = arg;

    m->result = ibv_detach_mcast(end->qp, &m->gid, m->lid);
}

static int attach(struct end *end, const union ibv_gid *gid, uint16_t lid)
{
    struct membership m = {.gid = *gid, .lid = lid};

    AT(end, attach_here, &m);
    return m.result;
}

static int detach(struct end *end, const union ibv_gid *gid, uint16_t lid)
{
    struct membership m = {.gid = *gid, .lid = lid};

    AT(end, detach_here, &m);
    return m.result;
}

/* A datagram of a near end to a group */
static void send_to(struct end *from, const union ibv_gid *gid, uint64_t id, size_t length, uint32_t qkey)
{
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = from->port,
        .grh = {.dgid = *gid, .sgid_index = (uint8_t)from->attr.gid_index, .hop_limit = 1},
    };
    struct ibv_ah *ah = ibv_create_ah(from->pd, &attr);
    struct send send = a_datagram(from, id, 0, length, from);

    CHECK(ah, "ibv_create_ah for a group: %s", strerror(errno));
    send.wr.wr.ud.ah = ah;
    send.wr.wr.ud.remote_qpn = MULTICAST_QPN;
    send.wr.wr.ud.remote_qkey = qkey;
    end_send(from, send);
    end_expect_success(from, SQ, id, IBV_WC_SEND);
    CHECK_ZERO(ibv_destroy_ah(ah));
}

static void expect_copy(struct end *end, uint64_t id, size_t length, uint64_t seed, const struct end *from)
{
    const struct ibv_wc wc = end_expect_success(end, RQ, id, IBV_WC_RECV);

    assert_int_equal(wc.byte_len, length + GRH);
    assert_true(wc.wc_flags & IBV_WC_GRH);
    assert_int_equal(wc.src_qp, from->qp_num);
    end_expect_data(end, GRH, length, seed);
}

static void attach_refuses_what_is_no_group_and_no_ud_qp(void **state)
{
    const struct end_attr ud = attr_of(IBV_QPT_UD), rc = attr_of(IBV_QPT_RC);
    struct end end, connected;

    end_open(&end, NEAR, &ud);
    end_open(&connected, NEAR, &rc);
    assert_int_equal(attach(&end, &end.gid, 0), EINVAL);
    assert_int_equal(attach(&end, &(union ibv_gid){0}, 0), EINVAL);
    assert_int_equal(attach(&connected, &group_v4, 0), EINVAL);
    end_close(&connected);
    end_close(&end);
}

static void attach_is_legal_in_reset_and_again_is_no_error(void **state)
{
    const struct end_attr ud = attr_of(IBV_QPT_UD);
    struct end end;

    end_open(&end, NEAR, &ud);
    assert_int_equal(attach(&end, &group_v4, 0), 0);
    assert_int_equal(attach(&end, &group_v4, 0), 0);
    assert_int_equal(detach(&end, &group_v4, 0), 0);
    assert_int_equal(attach(&end, &group_v6, 0xc000), 0);
    assert_int_equal(detach(&end, &group_v6, 0xc000), 0);
    end_close(&end);
}

static void detach_of_what_is_not_attached_is_einval(void **state)
{
    const struct end_attr ud = attr_of(IBV_QPT_UD);
    struct end end;

    end_open(&end, NEAR, &ud);
    assert_int_equal(detach(&end, &group_v4, 0), EINVAL);
    assert_int_equal(attach(&end, &group_v4, 5), 0);
    assert_int_equal(detach(&end, &group_v4, 6), EINVAL); /* the LID is part of the key */
    assert_int_equal(detach(&end, &other_group, 5), EINVAL);
    assert_int_equal(detach(&end, &group_v4, 5), 0);
    assert_int_equal(detach(&end, &group_v4, 5), EINVAL);
    end_close(&end);
}

static void destroy_qp_is_ebusy_while_attached(void **state)
{
    const struct end_attr ud = attr_of(IBV_QPT_UD);
    struct end end;

    end_open(&end, NEAR, &ud);
    assert_int_equal(attach(&end, &group_v4, 0), 0);
    assert_int_equal(ibv_destroy_qp(end.qp), EBUSY);
    assert_int_equal(end_state(&end), IBV_QPS_RESET);
    assert_int_equal(detach(&end, &group_v4, 0), 0);
    end_close(&end);
}

/* Both, or one of them, have a copy. */
static void expect_copies(struct end *from, const union ibv_gid *gid, struct end *here, struct end *there,
                          uint64_t seed)
{
    end_fill(from, 0, 64, seed);
    end_recv(there, a_recv(there, 1, 0, 256));
    if (here)
        end_recv(here, a_recv(here, 2, 4096, 256));
    send_to(from, gid, 3, 64, there->attr.qkey);
    expect_copy(there, 1, 64, seed, from);
    if (here) {
        end_expect_success(here, RQ, 2, IBV_WC_RECV);
        end_expect_data(here, 4096 + GRH, 64, seed);
    }
}

static void a_refused_destroy_of_a_member_changes_nothing_and_its_groups_go_on(void **state)
{
    const union ibv_gid *groups[] = {&group_v4, &group_v6};
    struct end member;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    end_share(&member, &p.a);
    end_to_init(&member);
    end_to_rtr(&member, &p.b);
    end_to_rts(&member);
    for (size_t g = 0; g < COUNT(groups); g++) {
        assert_int_equal(attach(&member, groups[g], 0), 0);
        assert_int_equal(attach(&p.b, groups[g], 0), 0);
    }
    assert_int_equal(ibv_destroy_qp(member.qp), EBUSY);
    assert_int_equal(end_state(&member), IBV_QPS_RTS);
    for (size_t g = 0; g < COUNT(groups); g++)
        expect_copies(&p.a, groups[g], &member, &p.b, g);
    /* of one group is enough */
    assert_int_equal(detach(&member, groups[0], 0), 0);
    assert_int_equal(ibv_destroy_qp(member.qp), EBUSY);
    expect_copies(&p.a, groups[0], NULL, &p.b, 7);
    expect_copies(&p.a, groups[1], &member, &p.b, 8);
    /* and so it is in any state */
    CHECK_ZERO(end_to_state(&member, IBV_QPS_ERR));
    assert_int_equal(ibv_destroy_qp(member.qp), EBUSY);
    CHECK_ZERO(end_to_state(&member, IBV_QPS_RESET));
    assert_int_equal(ibv_destroy_qp(member.qp), EBUSY);
    assert_int_equal(detach(&member, groups[1], 0), 0);
    end_close_qp(&member);
    for (size_t g = 0; g < COUNT(groups); g++) {
        expect_copies(&p.a, groups[g], NULL, &p.b, 9 + g);
        assert_int_equal(detach(&p.b, groups[g], 0), 0);
    }
    pair_close(&p);
}

static void a_group_message_reaches_every_attached_qp_once(void **state)
{
    enum { MEMBERS = 4 };
    const union ibv_gid *groups[] = {&group_v4, &group_v6};
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    struct end from, members[MEMBERS], outsider;

    /* two per far side, and one that is not attached */
    end_open(&from, NEAR, &attr);
    for (unsigned int i = 0; i < MEMBERS; i++) {
        if (i % 2)
            end_share(&members[i], &members[i - 1]);
        else
            end_open(&members[i], &sides[1 + i / 2], &attr);
    }
    end_open(&outsider, FAR, &attr);
    end_connect(&from, &outsider);
    for (unsigned int i = 0; i < MEMBERS; i++) {
        end_to_init(&members[i]);
        end_to_rtr(&members[i], &from); /* RTR is enough to receive */
    }
    for (size_t g = 0; g < COUNT(groups); g++) {
        for (unsigned int i = 0; i < MEMBERS; i++) {
            assert_int_equal(attach(&members[i], groups[g], 0), 0);
            assert_int_equal(attach(&members[i], groups[g], 0), 0);
        }
        for (unsigned int round = 0; round < 5; round++) {
            end_fill(&from, 0, 300, round);
            for (unsigned int i = 0; i < MEMBERS; i += 2) {
                end_recv(&members[i], a_recv(&members[i], 1, 0, 1024));
                end_recv(&members[i + 1], a_recv(&members[i + 1], 2, 0, 1024));
            }
            send_to(&from, groups[g], 9, 300, attr.qkey);
            for (unsigned int i = 0; i < MEMBERS; i += 2) {
                struct ibv_wc wc[2];

                /* the two of a side share a CQ: either may come first */
                end_poll(&members[i], RQ, wc, 2);
                assert_int_equal(wc[0].wr_id + wc[1].wr_id, 3);
                for (unsigned int k = 0; k < 2; k++) {
                    assert_int_equal(wc[k].status, IBV_WC_SUCCESS);
                    assert_int_equal(wc[k].byte_len, 300 + GRH);
                    assert_int_equal(wc[k].src_qp, from.qp_num);
                }
                end_expect_data(&members[i], GRH, 300, round);
            }
        }
        for (unsigned int i = 0; i < MEMBERS; i++)
            assert_int_equal(detach(&members[i], groups[g], 0), 0);
    }
    pair_marker(&from, &outsider); /* the first that it gets */
    end_close(&outsider);
    for (unsigned int i = 1; i < MEMBERS; i += 2)
        end_close_qp(&members[i]);
    for (unsigned int i = 0; i < MEMBERS; i += 2)
        end_close(&members[i]);
    end_close(&from);
}

static void a_detached_qp_gets_nothing_more(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    assert_int_equal(attach(&p.b, &group_v4, 0), 0);
    end_fill(&p.a, 0, 64, 1);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    send_to(&p.a, &group_v4, 2, 64, p.b.attr.qkey);
    expect_copy(&p.b, 1, 64, 1, &p.a);
    assert_int_equal(detach(&p.b, &group_v4, 0), 0);
    send_to(&p.a, &group_v4, 3, 64, p.b.attr.qkey);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void another_group_and_a_wrong_qkey_are_not_received(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    assert_int_equal(attach(&p.b, &group_v4, 0), 0);
    send_to(&p.a, &other_group, 1, 64, p.b.attr.qkey);
    send_to(&p.a, &group_v4, 2, 64, p.b.attr.qkey ^ 1);
    pair_marker(&p.a, &p.b);
    assert_int_equal(detach(&p.b, &group_v4, 0), 0);
    pair_close(&p);
}

static void a_member_without_a_receive_misses_its_copy_and_the_others_do_not(void **state)
{
    struct pair p;
    struct end dry;

    pair_connect(&p, IBV_QPT_UD);
    end_share(&dry, &p.b);
    end_to_init(&dry);
    end_to_rtr(&dry, &p.a);
    assert_int_equal(attach(&dry, &group_v4, 0), 0);
    assert_int_equal(attach(&p.b, &group_v4, 0), 0);
    end_fill(&p.a, 0, 64, 5);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    send_to(&p.a, &group_v4, 2, 64, p.b.attr.qkey);
    expect_copy(&p.b, 1, 64, 5, &p.a);
    assert_int_equal(detach(&dry, &group_v4, 0), 0);
    assert_int_equal(detach(&p.b, &group_v4, 0), 0);
    end_close_qp(&dry);
    pair_close(&p);
}

static void an_attached_sender_gets_a_copy(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    assert_int_equal(attach(&p.a, &group_v4, 0), 0);
    assert_int_equal(attach(&p.b, &group_v4, 0), 0);
    end_fill(&p.a, 0, 64, 5);
    end_recv(&p.a, a_recv(&p.a, 1, 1024, 256));
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    send_to(&p.a, &group_v4, 2, 64, p.b.attr.qkey);
    expect_copy(&p.b, 1, 64, 5, &p.a);
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    end_expect_data(&p.a, 1024 + GRH, 64, 5);
    assert_int_equal(detach(&p.a, &group_v4, 0), 0);
    assert_int_equal(detach(&p.b, &group_v4, 0), 0);
    pair_close(&p);
}

static void block_self_multicast_loopback_keeps_the_own_copy_away(void **state)
{
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_UD,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
                                       .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB};
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    struct pair p;

    pair_open(&p, &attr, &attr);
    init.pd = p.a.pd;
    init.send_cq = p.a.send_cq;
    init.recv_cq = p.a.recv_cq;
    init.cap = p.a.attr.cap;
    assert_int_equal(ibv_destroy_qp(p.a.qp), 0);
    p.a.qp = ibv_create_qp_ex(p.a.context, &init);
    assert_non_null(p.a.qp);
    p.a.qp_num = p.a.qp->qp_num;
    end_connect(&p.a, &p.b);
    assert_int_equal(attach(&p.a, &group_v4, 0), 0);
    assert_int_equal(attach(&p.b, &group_v4, 0), 0);
    end_fill(&p.a, 0, 64, 5);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 256));
    send_to(&p.a, &group_v4, 2, 64, p.b.attr.qkey);
    expect_copy(&p.b, 1, 64, 5, &p.a);
    pair_marker(&p.b, &p.a); /* the first that a gets */
    assert_int_equal(detach(&p.a, &group_v4, 0), 0);
    assert_int_equal(detach(&p.b, &group_v4, 0), 0);
    pair_close(&p);
}

static void a_group_is_left_by_a_process_that_is_killed(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    struct end from, stays, dies;

    end_open(&from, NEAR, &attr);
    end_open(&stays, &sides[1], &attr);
    end_open(&dies, &sides[2], &attr);
    end_connect(&from, &stays);
    end_to_init(&dies);
    end_to_rtr(&dies, &from);
    assert_int_equal(attach(&stays, &group_v4, 0), 0);
    assert_int_equal(attach(&dies, &group_v4, 0), 0);
    for (unsigned int round = 0; round < 10; round++) {
        end_fill(&from, 0, 64, round);
        end_recv(&stays, a_recv(&stays, round, 0, 256));
        send_to(&from, &group_v4, 2, 64, attr.qkey);
        expect_copy(&stays, round, 64, round, &from);
        if (round == 4)
            side_kill(&sides[2]);
    }
    assert_int_equal(detach(&stays, &group_v4, 0), 0);
    end_close(&stays);
    end_close(&from);
}

/* Each of a process that nobody knew of before. */
static void who_has_attached_misses_nothing_that_is_sent_from_then_on(void **state)
{
    enum { MEMBERS = 16 };
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    struct end from, members[MEMBERS];

    end_open(&from, NEAR, &attr);
    end_to_init(&from);
    end_to_rtr(&from, &from);
    end_to_rts(&from);
    for (unsigned int i = 0; i < MEMBERS; i++) {
        struct end *member = &members[i];

        end_open(member, &sides[1 + i], &attr);
        end_to_init(member);
        end_to_rtr(member, &from);
        end_recv(member, a_recv(member, 1, 0, 256));
        end_fill(&from, 0, 64, i);
        assert_int_equal(attach(member, &group_v4, 0), 0);
        send_to(&from, &group_v4, 2, 64, attr.qkey);
        expect_copy(member, 1, 64, i, &from);
        assert_int_equal(detach(member, &group_v4, 0), 0);
    }
    for (unsigned int i = 0; i < MEMBERS; i++)
        end_close(&members[i]);
    end_close(&from);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(attach_refuses_what_is_no_group_and_no_ud_qp),
        TEST(attach_is_legal_in_reset_and_again_is_no_error),
        TEST(detach_of_what_is_not_attached_is_einval),
        TEST(destroy_qp_is_ebusy_while_attached),
        TEST(a_refused_destroy_of_a_member_changes_nothing_and_its_groups_go_on),
        TEST_WITH(a_group_message_reaches_every_attached_qp_once, .fars = 2),
        TEST(a_detached_qp_gets_nothing_more),
        TEST(another_group_and_a_wrong_qkey_are_not_received),
        TEST(a_member_without_a_receive_misses_its_copy_and_the_others_do_not),
        TEST(an_attached_sender_gets_a_copy),
        TEST(block_self_multicast_loopback_keeps_the_own_copy_away),
        TEST_WITH(a_group_is_left_by_a_process_that_is_killed, .fars = 2, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(who_has_attached_misses_nothing_that_is_sent_from_then_on, .fars = 16,
                  .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
