/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.11: what a wire answers with silence ends on every path, and with the same status: a
 * reliable request with RETRY_EXC after the QP's own timeouts, all others as if somebody had heard them. */
#include "work.h"

#include <stdio.h>

static struct end_attr impatient(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.timeout = 8; /* 1 ms */
    attr.retry_cnt = 1;
    return attr;
}

/* Where some of what is sent is answered: over the network a peer that is only slow is suspected, too. */
static struct end_attr less_impatient(void)
{
    struct end_attr attr = impatient();

    attr.timeout = over_wire() ? 13 : 8; /* 34 ms */
    attr.retry_cnt = 3;
    return attr;
}

/* --- requests ------------------------------------------------------------------------------------------- */

static struct send make_send(struct pair *p, uint64_t id)
{
    return a_send(&p->a, id, 0, 64);
}

static struct send make_long_send(struct pair *p, uint64_t id)
{
    return a_send(&p->a, id, 0, 30000);
}

static struct send make_write(struct pair *p, uint64_t id)
{
    return a_write(&p->a, id, 0, 64, &p->b, 0);
}

static struct send make_read(struct pair *p, uint64_t id)
{
    return a_read(&p->a, id, 0, 64, &p->b, 0);
}

static struct send make_long_read(struct pair *p, uint64_t id)
{
    return a_read(&p->a, id, 0, 30000, &p->b, 0);
}

static struct send make_atomic(struct pair *p, uint64_t id)
{
    return a_fetch_add(&p->a, id, 0, &p->b, 0, 1);
}

static const struct request {
    const char *name;
    struct send (*make)(struct pair *, uint64_t);
} requests[] = {
    {"SEND", make_send}, {"long SEND", make_long_send}, {"WRITE", make_write},
    {"READ", make_read}, {"long READ", make_long_read}, {"atomic", make_atomic},
};

/* --- what is wrong with the responder ------------------------------------------------------------------- */

struct scene {
    struct pair pair;  /* a asks */
    struct end others; /* a further QP of b's side */
    bool has_others;
};

/* Both in RTS; each what it makes of the other. */
static void connect_as(struct scene *scene, const struct end *a_sees, const struct end *b_sees)
{
    struct pair *p = &scene->pair;

    end_to_init(&p->a);
    end_to_init(&p->b);
    end_to_rtr(&p->a, a_sees);
    end_to_rtr(&p->b, b_sees);
    end_to_rts(&p->a);
    end_to_rts(&p->b);
}

static void psn_apart(struct scene *scene, uint32_t distance)
{
    struct end a_of_b = scene->pair.a;

    a_of_b.psn = (a_of_b.psn + distance) & 0xffffff;
    connect_as(scene, &scene->pair.b, &a_of_b);
}

static void psn_ahead(struct scene *scene)
{
    psn_apart(scene, -5000u);
}

static void psn_ahead_by_one(struct scene *scene)
{
    psn_apart(scene, -1u);
}

static void psn_behind(struct scene *scene)
{
    psn_apart(scene, 5000);
}

static void psn_half_way_round(struct scene *scene)
{
    psn_apart(scene, 0x7fffff);
}

static void number_of_nobody(struct scene *scene)
{
    struct end nobody = scene->pair.b;

    nobody.qp_num ^= 0x3c0000;
    connect_as(scene, &nobody, &scene->pair.a);
}

static void number_that_nobody_has_of_the_peers_block(struct scene *scene)
{
    struct end nobody = scene->pair.b;

    nobody.qp_num ^= 0x80;
    connect_as(scene, &nobody, &scene->pair.a);
}

static void open_other(struct scene *scene, enum ibv_qp_type type)
{
    struct end_attr attr = attr_of(type);

    end_open(&scene->others, scene->pair.b.side, &attr);
    scene->has_others = true;
    scene->others.psn = scene->pair.b.psn;
}

static void number_of_a_datagram_qp(struct scene *scene)
{
    open_other(scene, IBV_QPT_UD);
    end_to_init(&scene->others);
    end_to_rtr(&scene->others, NULL);
    end_to_rts(&scene->others);
    connect_as(scene, &scene->others, &scene->pair.a);
}

static void number_of_an_unreliable_qp(struct scene *scene)
{
    open_other(scene, IBV_QPT_UC);
    end_to_init(&scene->others);
    end_to_rtr(&scene->others, &scene->pair.a);
    end_to_rts(&scene->others);
    connect_as(scene, &scene->others, &scene->pair.a);
}

static void number_of_a_qp_that_is_connected_to_somebody_else(struct scene *scene)
{
    struct end somebody;

    end_share(&somebody, &scene->pair.a);
    somebody.psn = scene->pair.a.psn + 100000;
    connect_as(scene, &scene->pair.b, &somebody);
    end_close_qp(&somebody);
}

static void address_of_nobody(struct scene *scene)
{
    struct end nobody = scene->pair.b;
    static const uint8_t documentation[16] = {[10] = 0xff, 0xff, 192, 0, 2, 77};

    memcpy(nobody.gid.raw, documentation, 16);
    connect_as(scene, &nobody, &scene->pair.a);
}

static void in_reset(struct scene *scene)
{
    connect_as(scene, &scene->pair.b, &scene->pair.a);
    CHECK_ZERO(end_to_state(&scene->pair.b, IBV_QPS_RESET));
}

static void in_init(struct scene *scene)
{
    in_reset(scene);
    end_to_init(&scene->pair.b);
}

static void in_error(struct scene *scene)
{
    connect_as(scene, &scene->pair.b, &scene->pair.a);
    CHECK_ZERO(end_to_state(&scene->pair.b, IBV_QPS_ERR));
}

static void destroyed(struct scene *scene)
{
    connect_as(scene, &scene->pair.b, &scene->pair.a);
    end_close_qp(&scene->pair.b);
}

static void in_reset_after_traffic(struct scene *scene)
{
    connect_as(scene, &scene->pair.b, &scene->pair.a);
    pair_marker(&scene->pair.a, &scene->pair.b);
    CHECK_ZERO(end_to_state(&scene->pair.b, IBV_QPS_RESET));
}

static void destroyed_after_traffic(struct scene *scene)
{
    connect_as(scene, &scene->pair.b, &scene->pair.a);
    pair_marker(&scene->pair.a, &scene->pair.b);
    end_close_qp(&scene->pair.b);
}

/* The new one has the PSNs of the former, and hears of requests that are further on. */
static void connected_anew_while_the_requester_stays(struct scene *scene)
{
    connect_as(scene, &scene->pair.b, &scene->pair.a);
    pair_marker(&scene->pair.a, &scene->pair.b);
    CHECK_ZERO(end_to_state(&scene->pair.b, IBV_QPS_RESET));
    end_to_init(&scene->pair.b);
    end_to_rtr(&scene->pair.b, &scene->pair.a);
    end_to_rts(&scene->pair.b);
}

static const struct wrong {
    const char *name;
    void (*connect)(struct scene *);
    bool talks; /* first */
} wrongs[] = {
    {"PSN ahead", psn_ahead},
    {"PSN ahead by one", psn_ahead_by_one},
    {"PSN behind", psn_behind},
    {"PSN half way round", psn_half_way_round},
    {"number of nobody", number_of_nobody},
    {"number of nobody in the block of the peer", number_that_nobody_has_of_the_peers_block},
    {"number of a UD QP", number_of_a_datagram_qp},
    {"number of a UC QP", number_of_an_unreliable_qp},
    {"connected to somebody else", number_of_a_qp_that_is_connected_to_somebody_else},
    {"address of nobody", address_of_nobody},
    {"RESET", in_reset},
    {"INIT", in_init},
    {"ERR", in_error},
    {"destroyed", destroyed},
    {"RESET after traffic", in_reset_after_traffic, true},
    {"destroyed after traffic", destroyed_after_traffic, true},
    {"connected anew", connected_anew_while_the_requester_stays, true},
};

static void scene_open(struct scene *scene, const struct end_attr *attr)
{
    *scene = (struct scene){0};
    pair_open(&scene->pair, attr, attr);
}

static void scene_close(struct scene *scene)
{
    if (scene->has_others)
        end_close(&scene->others);
    pair_close(&scene->pair);
}

static void expect_silence(struct scene *scene, const struct wrong *wrong, const struct request *request)
{
    struct pair *p = &scene->pair;
    struct send list[2] = {request->make(p, 1), request->make(p, 2)};
    struct ibv_wc wc[2];

    fprintf(stderr, "# %s, %s\n", wrong->name, request->name);
    end_send_list(&p->a, list, 2);
    end_poll(&p->a, SQ, wc, 2);
    check_status(&wc[0], 1, IBV_WC_RETRY_EXC_ERR);
    check_status(&wc[1], 2, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(end_state(&p->a), IBV_QPS_ERR);
    assert_int_equal(end_poll_once(&p->b, RQ, wc, 1), 0);
}

static void what_nobody_answers_ends_with_retry_exceeded(void **state)
{
    for (size_t i = 0; i < COUNT(wrongs); i++) {
        const struct end_attr attr = wrongs[i].talks ? less_impatient() : impatient();

        for (size_t k = 0; k < COUNT(requests); k++) {
            struct scene scene;

            scene_open(&scene, &attr);
            end_fill(&scene.pair.b, 0, attr.size, 1);
            wrongs[i].connect(&scene);
            if (scene.pair.b.qp && end_state(&scene.pair.b) != IBV_QPS_RESET)
                end_recv(&scene.pair.b, a_recv(&scene.pair.b, 3, 0, 40000));
            if (scene.pair.b.qp && end_state(&scene.pair.b) == IBV_QPS_ERR)
                end_expect_status(&scene.pair.b, RQ, 3, IBV_WC_WR_FLUSH_ERR);
            expect_silence(&scene, &wrongs[i], &requests[k]);
            end_expect_data(&scene.pair.b, 0, attr.size - 64, 1); /* the marker's are the last bytes */
            scene_close(&scene);
        }
    }
}

static void a_wrong_psn_stays_wrong_in_the_next_life_of_the_requester(void **state)
{
    const struct end_attr attr = impatient();

    for (size_t k = 0; k < COUNT(requests); k++) {
        struct scene scene;
        struct pair *p = &scene.pair;

        scene_open(&scene, &attr);
        psn_ahead(&scene);
        for (unsigned int i = 0; i < 3; i++) {
            expect_silence(&scene, &wrongs[0], &requests[k]);
            CHECK_ZERO(end_to_state(&p->a, IBV_QPS_RESET));
            p->a.psn = (p->a.psn + 1000) & 0xffffff;
            end_to_init(&p->a);
            end_to_rtr(&p->a, &p->b);
            end_to_rts(&p->a);
        }
        scene_close(&scene);
    }
}

/* The QPs hear each other in the direction that is right. */
static void a_wrong_psn_of_one_direction_does_not_disturb_the_other(void **state)
{
    const struct end_attr attr = less_impatient();
    struct scene scene;
    struct pair *p = &scene.pair;

    scene_open(&scene, &attr);
    psn_behind(&scene);
    for (unsigned int i = 0; i < 20; i++) {
        end_recv(&p->a, a_recv(&p->a, i, 0, 64));
        end_send(&p->b, a_send(&p->b, i, 0, 64));
        end_expect_success(&p->a, RQ, i, IBV_WC_RECV);
        end_expect_success(&p->b, SQ, i, IBV_WC_SEND);
    }
    scene_close(&scene);
}

static void timeout_0_waits_for_ever(void **state)
{
    for (size_t i = 0; i < COUNT(wrongs); i++) {
        const struct end_attr other_attr = wrongs[i].talks ? less_impatient() : impatient();
        struct end_attr attr = other_attr;
        struct scene scene, other;
        struct pair *p = &scene.pair;
        struct ibv_wc wc;

        attr.timeout = 0;
        scene_open(&scene, &attr);
        scene_open(&other, &other_attr);
        wrongs[i].connect(&scene);
        wrongs[i].connect(&other);
        end_send(&p->a, a_read(&p->a, 1, 0, 64, &p->b, 0));
        expect_silence(&other, &wrongs[i], &requests[3]);
        assert_int_equal(end_poll_once(&p->a, SQ, &wc, 1), 0);
        assert_int_equal(end_state(&p->a), IBV_QPS_RTS);
        CHECK_ZERO(end_to_state(&p->a, IBV_QPS_ERR));
        end_expect_status(&p->a, SQ, 1, IBV_WC_WR_FLUSH_ERR);
        scene_close(&other);
        scene_close(&scene);
    }
}

/* --- responders that go away ---------------------------------------------------------------------------- */

enum { READS = 12, READ_SIZE = 1 << 20 };

/* What is answered is answered in order; then nobody is there. */
static void expect_reads_end(struct end *requester)
{
    enum ibv_wc_status last = IBV_WC_SUCCESS;

    for (unsigned int i = 0; i < READS; i++) {
        struct ibv_wc wc = end_wc(requester, SQ);

        assert_int_equal(wc.wr_id, i);
        if (last == IBV_WC_SUCCESS)
            assert_true(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_RETRY_EXC_ERR);
        else
            assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
        last = wc.status;
    }
}

/* The requester's process stands still, so that there is no room for all of the answers when the responder
 * goes. */
static void a_read_whose_responder_goes_in_mid_answer_ends(void **state)
{
    for (unsigned int round = 0; round < 12; round++) {
        struct end_attr attr = less_impatient();
        struct send list[READS];
        struct pair p;

        attr.size = READ_SIZE;
        attr.max_rd_atomic = attr.max_dest_rd_atomic = READS;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, FAR, &attr);
        end_connect(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        for (unsigned int i = 0; i < READS; i++)
            list[i] = a_read(&p.b, i, 0, READ_SIZE, &p.a, 0);
        end_send_list(&p.b, list, READS);
        if (two_processes())
            side_stop(FAR);
        if (round % 3 == 0)
            end_close_qp(&p.a);
        else
            CHECK_ZERO(end_to_state(&p.a, round % 3 == 1 ? IBV_QPS_RESET : IBV_QPS_ERR));
        if (two_processes())
            side_continue(FAR);
        expect_reads_end(&p.b);
        pair_close(&p);
    }
}

/* Its last acknowledgement, too, finds no room; the message was received. */
static void a_send_that_was_received_is_acknowledged_though_the_receiver_is_gone(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct end_attr attr = less_impatient();
        struct send list[READS];
        struct end busy_a, busy_b;
        struct ibv_wc wc;
        struct pair p;

        attr.size = READ_SIZE;
        attr.max_rd_atomic = attr.max_dest_rd_atomic = READS;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, FAR, &attr);
        end_connect(&p.a, &p.b);
        end_share(&busy_a, &p.a);
        end_share(&busy_b, &p.b);
        end_connect(&busy_a, &busy_b);
        pair_marker(&p.b, &p.a);
        end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
        for (unsigned int i = 0; i < READS; i++)
            list[i] = a_read(&busy_b, i, 0, READ_SIZE, &busy_a, 0);
        end_send_list(&busy_b, list, READS);
        end_send(&p.b, a_send(&p.b, 100, 0, 64));
        if (two_processes())
            side_stop(FAR);
        end_poll(&p.a, RQ, &wc, 1);
        check_success(&wc, 1, IBV_WC_RECV);
        if (round % 2)
            end_close_qp(&p.a);
        else
            CHECK_ZERO(end_to_state(&p.a, IBV_QPS_RESET));
        end_close_qp(&busy_a);
        if (two_processes())
            side_continue(FAR);
        for (unsigned int i = 0; i <= READS; i++) {
            wc = end_wc(&p.b, SQ);
            if (wc.wr_id == 100)
                assert_int_equal(wc.status, IBV_WC_SUCCESS);
        }
        end_close_qp(&busy_b);
        pair_close(&p);
    }
}

/* --- what expects no answer ----------------------------------------------------------------------------- */

static void a_datagram_that_nobody_takes_completes(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    struct end connected;
    struct pair p;
    struct ibv_wc wc;
    struct end_attr rc = attr_of(IBV_QPT_RC);

    pair_connect_as(&p, &attr);
    end_open(&connected, p.b.side, &rc);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 4096));
    for (unsigned int i = 0; i < 5; i++) {
        struct send send = a_datagram(&p.a, 10 + i, 0, 64, &p.b);

        switch (i) {
        case 0:
            send.wr.wr.ud.remote_qkey ^= 1;
            break;
        case 1:
            send.wr.wr.ud.remote_qpn ^= 0x3c0000; /* nobody */
            break;
        case 2:
            send.wr.wr.ud.remote_qpn ^= 0x80; /* nobody in the peer's block */
            break;
        case 3:
            send.wr.wr.ud.remote_qpn = connected.qp_num;
            break;
        default:
            break; /* this one is right */
        }
        end_send(&p.a, send);
        end_expect_success(&p.a, SQ, 10 + i, IBV_WC_SEND);
    }
    wc = end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    assert_int_equal(wc.byte_len, 64 + 40);
    end_close(&connected);
    pair_close(&p);
}

static void an_unreliable_message_that_nobody_takes_completes(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UC);

    for (size_t i = 0; i < COUNT(wrongs); i++) {
        struct scene scene;
        struct pair *p = &scene.pair;

        if (strstr(wrongs[i].name, "PSN") || strstr(wrongs[i].name, "UC") ||
            !strcmp(wrongs[i].name, "connected anew"))
            continue; /* UC takes up any PSN */
        fprintf(stderr, "# %s\n", wrongs[i].name);
        scene_open(&scene, &attr);
        wrongs[i].connect(&scene);
        end_send(&p->a, make_long_send(p, 1));
        end_send(&p->a, make_write(p, 2));
        end_expect_success(&p->a, SQ, 1, IBV_WC_SEND);
        end_expect_success(&p->a, SQ, 2, IBV_WC_RDMA_WRITE);
        scene_close(&scene);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(what_nobody_answers_ends_with_retry_exceeded, .fars = 1, .seconds = 120),
        TEST(a_wrong_psn_stays_wrong_in_the_next_life_of_the_requester),
        TEST(a_wrong_psn_of_one_direction_does_not_disturb_the_other),
        TEST_WITH(timeout_0_waits_for_ever, .fars = 1, .seconds = 120),
        TEST_WITH(a_read_whose_responder_goes_in_mid_answer_ends, .fars = 1, .seconds = 120),
        TEST_WITH(a_send_that_was_received_is_acknowledged_though_the_receiver_is_gone, .fars = 1,
                  .seconds = 120),
        TEST(a_datagram_that_nobody_takes_completes),
        TEST(an_unreliable_message_that_nobody_takes_completes),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
