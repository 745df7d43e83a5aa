/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A request that an adapter has been given is on the wire within microseconds. So the first message to a
 * process, to which a way has to be found yet, is no other than all that follow: a datagram has the payload
 * of the time when it was posted. */
#include "work.h"

enum { GRH = 40, LARGE = 4096 };

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
    enum { DATAGRAMS = 128, PLACE = LARGE + 64 };
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

int main(int argc, char **argv)
{
#define BETWEEN(fn, count) TEST_WITH(fn, .fars = count, .needs = NEEDS_TWO_PROCESSES)
    static const struct test tests[] = {
        BETWEEN(a_datagram_that_waits_for_its_way_is_that_of_the_post, 1),
        BETWEEN(a_datagram_that_waits_for_room_is_that_of_the_post, 1),
        BETWEEN(a_multicast_datagram_that_waits_is_that_of_the_post, 2),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
