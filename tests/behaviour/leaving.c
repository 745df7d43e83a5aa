/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A request that an adapter has been given is on the wire within microseconds. So the first message to a
 * process, to which a way has to be found yet, is no other than all that follow: a datagram has the payload
 * of the time when it was posted, and what was posted before its QP, its device or its program ended has
 * left. */
#include "work.h"

#include <stdio_ext.h>
#include <stdlib.h>

enum { GRH = 40, LENGTH = 32, WORD_AT = 2048, LARGE = 1024 }; /* the last: of any device */

/* --- payload -------------------------------------------------------------------------------------------- */

/* Of a near end and a far one, which nothing has been sent between. */
static void open_datagrams(struct pair *p, uint32_t depth, size_t size)
{
    struct end_attr attr = attr_of(IBV_QPT_UD);

    attr.cap.max_send_wr = attr.cap.max_recv_wr = depth;
    attr.send_cqe = attr.recv_cqe = (int)depth;
    attr.size = size;
    pair_connect_as(p, &attr);
}

static struct send in_two_parts(struct send send)
{
    const uint32_t length = send.sge[0].length / 2;

    send.sge[1] = send.sge[0];
    send.sge[0].length = length;
    send.sge[1].addr += length;
    send.sge[1].length -= length;
    send.wr.num_sge = 2;
    return send;
}

static void a_datagram_that_waits_for_its_way_is_that_of_the_post(void **state)
{
    enum { DATAGRAMS = 100 };
    struct pair p;

    open_datagrams(&p, DATAGRAMS, DATAGRAMS * 1024);
    for (unsigned int i = 0; i < DATAGRAMS; i++)
        end_recv(&p.b, a_recv(&p.b, i, (size_t)i * 512, 512));
    side_stop(FAR);
    for (unsigned int i = 0; i < DATAGRAMS; i++) {
        const struct send send = a_datagram(&p.a, i, 0, 300, &p.b);

        end_fill(&p.a, 0, 300, i);
        end_send(&p.a, i % 3 ? send : in_two_parts(send));
    }
    end_fill(&p.a, 0, 300, 1000);
    side_continue(FAR);
    for (unsigned int i = 0; i < DATAGRAMS; i++) {
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        assert_int_equal(end_expect_success(&p.b, RQ, i, IBV_WC_RECV).byte_len, GRH + 300);
        end_expect_data(&p.b, (size_t)i * 512 + GRH, 300, i);
    }
    pair_close(&p);
}

static void a_datagram_that_waits_for_room_is_that_of_the_post(void **state)
{
    enum { DATAGRAMS = 512, PLACE = LARGE + 64 };
    struct pair p;

    if (over_wire())
        skip_because("the network does not wait for a peer that is stopped");
    open_datagrams(&p, DATAGRAMS, (size_t)DATAGRAMS * PLACE);
    end_recv(&p.b, a_recv(&p.b, 1000, 0, PLACE));
    end_send(&p.a, a_datagram(&p.a, 1000, 0, 8, &p.b));
    end_expect_success(&p.a, SQ, 1000, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 1000, IBV_WC_RECV);
    for (unsigned int i = 0; i < DATAGRAMS; i++)
        end_recv(&p.b, a_recv(&p.b, i, (size_t)i * PLACE, PLACE));
    side_stop(FAR);
    for (unsigned int i = 0; i < DATAGRAMS; i++) {
        end_fill(&p.a, 0, LARGE, i);
        end_send(&p.a, a_datagram(&p.a, i, 0, LARGE, &p.b));
    }
    end_fill(&p.a, 0, LARGE, 1000);
    side_continue(FAR);
    for (unsigned int i = 0; i < DATAGRAMS; i++) {
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        end_expect_data(&p.b, (size_t)i * PLACE + GRH, LARGE, i);
    }
    pair_close(&p);
}

static void attach_here(struct end *end, void *arg)
{
    const union ibv_gid *group = arg;

    CHECK_ZERO(ibv_attach_mcast(end->qp, group, 0));
}

static void detach_here(struct end *end, void *arg)
{
    const union ibv_gid *group = arg;

    CHECK_ZERO(ibv_detach_mcast(end->qp, group, 0));
}

/* The first one waits until all processes of the host are found, here for one that is stopped. */
static void a_multicast_datagram_that_waits_is_that_of_the_post(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_UD);
    union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, 1, 2, 3}};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = TEST_PORT, .grh = {.dgid = group, .hop_limit = 1}};
    struct send send;
    struct end other;
    struct pair p;

    if (over_wire())
        skip_because("the network does not wait for a process that is stopped");
    pair_connect(&p, IBV_QPT_UD);
    AT(&p.b, attach_here, &group);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 512));
    end_open(&other, &sides[2], &attr);
    side_stop(&sides[2]);
    end_fill(&p.a, 0, 300, 1);
    to.grh.sgid_index = (uint8_t)p.a.attr.gid_index;
    send = a_datagram(&p.a, 1, 0, 300, &p.b);
    send.wr.wr.ud.ah = ibv_create_ah(p.a.pd, &to);
    assert_non_null(send.wr.wr.ud.ah);
    send.wr.wr.ud.remote_qpn = 0xffffff;
    end_send(&p.a, send);
    end_fill(&p.a, 0, 300, 1000);
    CHECK_ZERO(ibv_destroy_ah(send.wr.wr.ud.ah));
    side_continue(&sides[2]);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    end_expect_data(&p.b, GRH, 300, 1);
    AT(&p.b, detach_here, &group);
    end_close(&other);
    pair_close(&p);
}

/* --- departure ------------------------------------------------------------------------------------------ */

enum leaving { BY_DESTROY, BY_ERROR, BY_RESET, BY_CLOSE, BY_EXIT };

struct departure {
    struct end to;
    enum leaving leaving;
};

static void leave(struct end *end, enum leaving leaving)
{
    switch (leaving) {
    case BY_DESTROY:
        CHECK_ZERO(ibv_destroy_qp(end->qp));
        end->qp = NULL;
        break;
    case BY_ERROR:
        CHECK_ZERO(end_to_state(end, IBV_QPS_ERR));
        break;
    case BY_RESET:
        CHECK_ZERO(end_to_state(end, IBV_QPS_RESET));
        break;
    case BY_CLOSE:
        CHECK_ZERO(ibv_close_device(end->context));
        break;
    case BY_EXIT:
        __fpurge(stdout); /* what is in the buffer is the other process's */
        exit(0);
    }
}

static void address(struct end *end, const struct end *to)
{
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = end->port,
        .grh = {.dgid = to->gid, .sgid_index = (uint8_t)end->attr.gid_index, .hop_limit = 64},
    };

    end->ah = ibv_create_ah(end->pd, &attr);
    CHECK(end->ah, "ibv_create_ah: %s", strerror(errno));
}

static void connect_send_and_leave(struct end *end, void *arg)
{
    const struct departure *departure = arg;
    const struct end *to = &departure->to;
    struct send sends[2] = {a_write(end, 0, 8, 8, to, WORD_AT), a_send(end, 1, 16, LENGTH)};
    const bool datagram = end->attr.type == IBV_QPT_UD;

    end_to_rtr(end, to);
    end_to_rts(end);
    if (datagram) {
        address(end, to);
        sends[1] = a_datagram(end, 1, 16, LENGTH, to);
    }
    for (unsigned int i = 0; i < 2; i++)
        sends[i] = with_flags(unsignaled(sends[i]), IBV_SEND_INLINE);
    end_send_list(end, sends + datagram, datagram ? 1 : 2);
    leave(end, departure->leaving);
}

/* The near end is ready, its process has begun to look for the other, and nothing is between the two: the
 * other process is stopped. */
static void send_and_leave(struct side *side, enum ibv_qp_type type, enum leaving leaving)
{
    const struct end_attr attr = attr_of(type);
    struct departure departure = {.leaving = leaving};
    const uint64_t word = 0x1122334455667788;
    struct end_call call;
    struct end near, far;

    end_open(&near, NEAR, &attr);
    end_open(&far, side, &attr);
    end_to_init(&near);
    end_to_init(&far);
    end_poke64(&far, 8, word);
    end_fill(&far, 16, LENGTH, type);
    end_recv(&near, a_recv(&near, 7, 0, 512));
    side_stop(side);
    end_to_rtr(&near, &far);
    end_to_rts(&near);
    departure.to = near;
    end_start(&call, &far, connect_send_and_leave, &departure, sizeof(departure));
    side_continue(side);
    end_expect_success(&near, RQ, 7, IBV_WC_RECV);
    end_expect_data(&near, type == IBV_QPT_UD ? GRH : 0, LENGTH, type);
    if (type != IBV_QPT_UD)
        assert_int_equal(end_peek64(&near, WORD_AT), word);
    if (leaving != BY_EXIT)
        end_finish(&call);
    side_kill(side);
    end_close(&near);
}

enum { TRIES = 2, TYPES = 3, SENDERS = TRIES * TYPES };

static void all_send_and_leave(enum leaving leaving)
{
    static const enum ibv_qp_type types[TYPES] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    if (is_emulated())
        skip_because("what is posted has 0.1 s to leave, which does not always do here");
    for (unsigned int i = 0; i < SENDERS; i++)
        send_and_leave(&sides[1 + i], types[i % TYPES], leaving);
}

static void what_was_posted_before_a_destroy_arrives(void **state)
{
    all_send_and_leave(BY_DESTROY);
}

static void what_was_posted_before_an_error_arrives(void **state)
{
    all_send_and_leave(BY_ERROR);
}

static void what_was_posted_before_a_reset_arrives(void **state)
{
    all_send_and_leave(BY_RESET);
}

static void what_was_posted_before_its_device_was_closed_arrives(void **state)
{
    all_send_and_leave(BY_CLOSE);
}

static void what_was_posted_before_an_exit_arrives(void **state)
{
    all_send_and_leave(BY_EXIT);
}

/* The peer is stopped until there is no room for the last of them. */
static void what_waits_for_room_before_a_destroy_arrives(void **state)
{
    enum { MESSAGES = 400, PLACE = 1024 + 64 };
    static const enum ibv_qp_type types[TYPES] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    if (over_wire())
        skip_because("the network does not wait for a peer that is stopped");
    for (unsigned int k = 0; k < TYPES; k++) {
        struct end_attr attr = attr_of(types[k]);
        const size_t at = types[k] == IBV_QPT_UD ? GRH : 0;
        struct side *side = &sides[1 + k];
        struct send send;
        struct end near, far;

        attr.cap.max_send_wr = attr.cap.max_recv_wr = MESSAGES + 1;
        attr.recv_cqe = MESSAGES + 1;
        attr.cap.max_inline_data = 1024;
        attr.size = (size_t)MESSAGES * PLACE;
        end_open(&near, NEAR, &attr);
        end_open(&far, side, &attr);
        end_connect(&near, &far);
        for (unsigned int i = 0; i <= MESSAGES; i++) {
            end_recv(&far, a_recv(&far, i, (size_t)(i + MESSAGES - 1) % MESSAGES * PLACE, PLACE));
            if (i)
                continue;
            end_send(&near, at ? a_datagram(&near, 0, 0, 8, &far) : a_send(&near, 0, 0, 8));
            end_expect_success(&far, RQ, 0, IBV_WC_RECV);
        }
        side_stop(side);
        for (unsigned int i = 0; i < MESSAGES; i++) {
            end_fill(&near, 0, 1024, i);
            send = at ? a_datagram(&near, i, 0, 1024, &far) : a_send(&near, i, 0, 1024);
            end_send(&near, with_flags(unsignaled(send), IBV_SEND_INLINE));
        }
        side_continue(side);
        end_close(&near);
        for (unsigned int i = 0; i < MESSAGES; i++) {
            end_expect_success(&far, RQ, i + 1, IBV_WC_RECV);
            end_expect_data(&far, (size_t)i * PLACE + at, 1024, i);
        }
        end_close(&far);
    }
}

/* --- a peer that does not answer ------------------------------------------------------------------------ */

static void a_destroy_does_not_wait_for_ever_for_a_peer_that_is_stopped(void **state)
{
    static const enum ibv_qp_type types[TYPES] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    for (unsigned int i = 0; i < TYPES; i++) {
        const struct end_attr attr = attr_of(types[i]);
        struct side *side = &sides[1 + i];
        struct end near, far;

        end_open(&near, NEAR, &attr);
        end_open(&far, side, &attr);
        end_to_init(&near);
        side_stop(side);
        end_to_rtr(&near, &far);
        end_to_rts(&near);
        if (types[i] == IBV_QPT_UD) {
            address(&near, &far);
            end_send(&near, a_datagram(&near, 1, 0, 8, &far));
        } else {
            end_send(&near, a_send(&near, 1, 0, 8));
        }
        end_close(&near); /* the test's time limit says whether it returns */
        side_continue(side);
        end_close(&far);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_datagram_that_waits_for_its_way_is_that_of_the_post, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_datagram_that_waits_for_room_is_that_of_the_post, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_multicast_datagram_that_waits_is_that_of_the_post, .fars = 2,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_was_posted_before_a_destroy_arrives, .fars = SENDERS, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_was_posted_before_an_error_arrives, .fars = SENDERS, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_was_posted_before_a_reset_arrives, .fars = SENDERS, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_was_posted_before_its_device_was_closed_arrives, .fars = SENDERS,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_was_posted_before_an_exit_arrives, .fars = SENDERS, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_waits_for_room_before_a_destroy_arrives, .fars = TYPES, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_destroy_does_not_wait_for_ever_for_a_peer_that_is_stopped, .fars = TYPES,
                  .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
