/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A receive may name more than its region has: what a message uses of it is what is checked. Programs post
 * receives of one size throughout, also at the end of their memory. */
#include "work.h"

/* In one packet; in several over the network; large enough to be fetched or deposited by reference. */
static const uint32_t lengths[] = {1, 64, 4096, 70000, 1 << 20};
enum { GRH = 40, DATAGRAM = 1024 };

static struct end_attr large(enum ibv_qp_type type, bool srq)
{
    struct end_attr attr = attr_of(type);

    attr.size = 4 << 20;
    attr.srq_wr = srq ? 16 : 0;
    return attr;
}

static void open_as(struct pair *p, enum ibv_qp_type type, bool srq)
{
    const struct end_attr attr_a = large(type, false), attr_b = large(type, srq);

    pair_open(p, &attr_a, &attr_b);
    end_connect(&p->a, &p->b);
}

/* The last `room` bytes of b's region, in a receive that goes on behind it. */
static struct recv behind(const struct end *end, uint64_t id, uint32_t room)
{
    struct recv recv = a_recv(end, id, end->attr.size - room, room);

    recv.sge[0].length = room + 3 * 1024 * 1024;
    return recv;
}

static void check_use(struct pair *p, uint64_t id, uint32_t length, struct recv recv, size_t at)
{
    end_fill(&p->a, 0, length, id);
    end_recv(&p->b, recv);
    end_send(&p->a, a_send(&p->a, 1, 0, length));
    assert_int_equal(end_expect_success(&p->b, RQ, id, IBV_WC_RECV).byte_len, length);
    end_expect_success(&p->a, SQ, 1, IBV_WC_SEND);
    end_expect_data(&p->b, at, length, id);
}

static void a_message_that_fits_is_good(void **state)
{
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC};

    for (unsigned int t = 0; t < 2 * COUNT(types); t++) {
        struct pair p;

        open_as(&p, types[t / 2], t % 2);
        for (unsigned int i = 0; i < COUNT(lengths); i++) {
            struct recv recv = behind(&p.b, 10 + i, lengths[i]);

            check_use(&p, 10 + i, lengths[i], recv, p.b.attr.size - lengths[i]);
            /* and shorter than what there is */
            recv = behind(&p.b, 20 + i, lengths[i] + 100);
            check_use(&p, 20 + i, lengths[i], recv, p.b.attr.size - lengths[i] - 100);
        }
        pair_close(&p);
    }
}

/* A message has to come again and again before its sender knows which receive it takes. */
static void so_it_is_of_each_of_many(void **state)
{
    const uint32_t length = 1 << 20;
    struct pair p;

    open_as(&p, IBV_QPT_RC, false);
    for (unsigned int i = 0; i < 30; i++)
        check_use(&p, 100 + i, length, behind(&p.b, 100 + i, length), p.b.attr.size - length);
    pair_close(&p);
}

static void the_last_of_several_pieces_may_go_on_behind_its_region(void **state)
{
    const uint32_t length = 70000;
    struct pair p;

    open_as(&p, IBV_QPT_RC, false);
    for (unsigned int parts = 2; parts <= 4; parts++) {
        size_t from = p.b.attr.size - length;
        struct recv recv = behind(&p.b, parts, length);
        uint32_t piece = length / parts;

        recv.wr.num_sge = (int)parts;
        for (unsigned int i = 0; i + 1 < parts; i++)
            recv.sge[i] = (struct ibv_sge){(uintptr_t)p.b.buf + from + (size_t)i * piece, piece, p.b.lkey};
        recv.sge[parts - 1] =
            (struct ibv_sge){(uintptr_t)p.b.buf + from + (size_t)(parts - 1) * piece, 2 * length, p.b.lkey};
        check_use(&p, parts, length, recv, from);
    }
    pair_close(&p);
}

static void what_no_byte_reaches_is_not_looked_at(void **state)
{
    struct pair p;
    struct recv recv;

    open_as(&p, IBV_QPT_RC, false);
    recv = a_recv(&p.b, 1, 0, 64);
    recv.wr.num_sge = 2;
    recv.sge[1] = (struct ibv_sge){1, 64, p.b.lkey ^ 0x5a5a00};
    check_use(&p, 1, 64, recv, 0);
    /* of an empty message, all of it */
    recv = behind(&p.b, 2, 0);
    recv.sge[0].lkey ^= 0x5a5a00;
    recv.wr.num_sge = 1;
    check_use(&p, 2, 0, recv, 0);
    pair_close(&p);
}

static void a_byte_too_far_is_a_local_protection_error(void **state)
{
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC};

    for (unsigned int t = 0; t < 2 * COUNT(types); t++) {
        for (unsigned int i = 0; i < COUNT(lengths); i++) {
            struct pair p;

            open_as(&p, types[t / 2], t % 2);
            end_fill(&p.a, 0, lengths[i] + 1, 1);
            end_recv(&p.b, behind(&p.b, 1, lengths[i]));
            end_send(&p.a, a_send(&p.a, 2, 0, lengths[i] + 1));
            end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_PROT_ERR);
            if (types[t / 2] == IBV_QPT_RC)
                end_expect_status(&p.a, SQ, 2, IBV_WC_REM_OP_ERR);
            else
                end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
            pair_close(&p);
        }
    }
}

/* The first is used to its end, so it has to be good to its end. */
static void a_piece_that_the_message_goes_past_is_checked_to_its_end(void **state)
{
    struct recv recv;
    struct pair p;

    open_as(&p, IBV_QPT_RC, false);
    recv = behind(&p.b, 1, 64);
    recv.sge[0].length = 65;
    recv.sge[1] = (struct ibv_sge){(uintptr_t)p.b.buf, 4096, p.b.lkey};
    recv.wr.num_sge = 2;
    end_recv(&p.b, recv);
    end_send(&p.a, a_send(&p.a, 2, 0, 66));
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_PROT_ERR);
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_OP_ERR);
    pair_close(&p);
}

static void a_datagram_that_fits_is_good(void **state)
{
    for (unsigned int srq = 0; srq < 2; srq++) {
        struct pair p;

        open_as(&p, IBV_QPT_UD, srq);
        for (uint32_t length = 0; length <= DATAGRAM; length += DATAGRAM / 2) {
            end_fill(&p.a, 0, DATAGRAM, length + 1);
            end_recv(&p.b, behind(&p.b, 1, GRH + length));
            end_send(&p.a, a_datagram(&p.a, 2, 0, length, &p.b));
            assert_int_equal(end_expect_success(&p.b, RQ, 1, IBV_WC_RECV).byte_len, GRH + length);
            end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
            end_expect_data(&p.b, p.b.attr.size - length, length, length + 1);
        }
        end_recv(&p.b, behind(&p.b, 3, GRH + DATAGRAM - 1));
        end_send(&p.a, a_datagram(&p.a, 4, 0, DATAGRAM, &p.b));
        end_expect_status(&p.b, RQ, 3, IBV_WC_LOC_PROT_ERR);
        end_expect_success(&p.a, SQ, 4, IBV_WC_SEND);
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_message_that_fits_is_good),
        TEST(so_it_is_of_each_of_many),
        TEST(the_last_of_several_pieces_may_go_on_behind_its_region),
        TEST(what_no_byte_reaches_is_not_looked_at),
        TEST(a_byte_too_far_is_a_local_protection_error),
        TEST(a_piece_that_the_message_goes_past_is_checked_to_its_end),
        TEST(a_datagram_that_fits_is_good),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
