/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §3.6: what comes before what. */
#include "work.h"

static void completions_come_in_post_order_whatever_the_opcode(void **state)
{
    struct ibv_wc wc[60];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 60; i++) {
        switch (i % 5) {
        case 0:
            end_recv(&p.b, a_recv(&p.b, i, 32768, 4096));
            end_send(&p.a, a_send(&p.a, i, 0, 4096));
            break;
        case 1:
            end_send(&p.a, a_write(&p.a, i, 0, i * 300, &p.b, 0));
            break;
        case 2:
            end_send(&p.a, a_read(&p.a, i, 32768, i * 300, &p.b, 0));
            break;
        case 3:
            end_send(&p.a, a_fetch_add(&p.a, i, 60000, &p.b, 60000, 1));
            break;
        default:
            end_send(&p.a, with_flags(a_write(&p.a, i, 0, 16, &p.b, 0), IBV_SEND_INLINE));
            break;
        }
    }
    end_poll(&p.a, SQ, wc, 60);
    for (unsigned int i = 0; i < 60; i++) {
        assert_int_equal(wc[i].status, IBV_WC_SUCCESS);
        assert_int_equal(wc[i].wr_id, i);
    }
    pair_close(&p);
}

static void receives_are_consumed_in_post_order(void **state)
{
    struct ibv_wc wc[60];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 60; i++) {
        end_recv(&p.b, a_recv(&p.b, i, i * 1024, 1024));
        end_fill(&p.a, i * 1024, 1024, i);
    }
    for (unsigned int i = 0; i < 60; i++)
        end_send(&p.a, a_send(&p.a, i, i * 1024, 1024 - i));
    end_poll(&p.b, RQ, wc, 60);
    for (unsigned int i = 0; i < 60; i++) {
        check_success(&wc[i], i, IBV_WC_RECV);
        assert_int_equal(wc[i].byte_len, 1024 - i);
        end_expect_data(&p.b, i * 1024, 1024 - i, i);
    }
    pair_close(&p);
}

static void a_send_behind_a_write_announces_its_data(void **state)
{
    static const size_t lengths[] = {8, 100, 5000, 40000};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 40; i++) {
        const size_t length = lengths[i % COUNT(lengths)];
        const struct send list[] = {unsignaled(a_write(&p.a, 1, 0, length, &p.b, 0)),
                                    with_flags(a_send(&p.a, i, 60000, 8), IBV_SEND_INLINE)};

        end_recv(&p.b, a_recv(&p.b, i, 60000, 8));
        end_fill(&p.a, 0, length, i);
        end_send_list(&p.a, list, 2);
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        end_expect_data(&p.b, 0, length, i);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    }
    pair_close(&p);
}

static void a_read_behind_a_write_sees_it(void **state)
{
    static const size_t lengths[] = {8, 100, 5000, 20000};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 40; i++) {
        const size_t length = lengths[i % COUNT(lengths)];
        const struct send list[] = {unsignaled(a_write(&p.a, 1, 0, length, &p.b, 0)),
                                    a_read(&p.a, i, 32768, length, &p.b, 0)};

        end_fill(&p.a, 0, length, i);
        end_send_list(&p.a, list, 2);
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 32768, length, i);
    }
    pair_close(&p);
}

/* A write whose source is the target of a read before it: only the fence makes it send what was read. */
static void a_fenced_write_waits_for_earlier_reads(void **state)
{
    static const size_t lengths[] = {8, 100, 5000, 20000};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 40; i++) {
        const size_t length = lengths[i % COUNT(lengths)];
        const struct send list[] = {unsignaled(a_read(&p.a, 1, 0, length, &p.b, 0)),
                                    with_flags(a_write(&p.a, i, 0, length, &p.b, 32768), IBV_SEND_FENCE)};

        end_fill(&p.b, 0, length, i);
        end_send_list(&p.a, list, 2);
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 32768, length, i);
    }
    pair_close(&p);
}

static void a_fenced_send_waits_for_earlier_atomics(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 40; i++) {
        const struct send list[] = {unsignaled(a_fetch_add(&p.a, 1, 0, &p.b, 0, 1)),
                                    with_flags(a_send(&p.a, i, 0, 8), IBV_SEND_FENCE)};

        end_recv(&p.b, a_recv(&p.b, i, 64, 8));
        end_send_list(&p.a, list, 2);
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        assert_int_equal(end_peek64(&p.b, 64), i);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    }
    pair_close(&p);
}

static void reads_and_atomics_execute_in_order(void **state)
{
    struct ibv_wc wc[32];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 16; i++) {
        end_send(&p.a, a_fetch_add(&p.a, i, i * 16, &p.b, 0, 1));
        end_send(&p.a, a_read(&p.a, i, i * 16 + 8, 8, &p.b, 0));
    }
    end_poll(&p.a, SQ, wc, 32);
    for (unsigned int i = 0; i < 16; i++) {
        assert_int_equal(wc[2 * i].status, IBV_WC_SUCCESS);
        assert_int_equal(end_peek64(&p.a, i * 16), i);
        assert_int_equal(end_peek64(&p.a, i * 16 + 8), i + 1);
    }
    pair_close(&p);
}

/* §3.12: more reads than max_rd_atomic wait, they do not fail */
static void reads_beyond_max_rd_atomic_wait_their_turn(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_wc wc[50];
    struct pair p;

    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
    pair_connect_as(&p, &attr);
    end_fill(&p.b, 0, 50 * 512, 3);
    for (unsigned int i = 0; i < 50; i++)
        end_send(&p.a, a_read(&p.a, i, i * 512, 512, &p.b, i * 512));
    end_poll(&p.a, SQ, wc, 50);
    for (unsigned int i = 0; i < 50; i++)
        check_success(&wc[i], i, IBV_WC_RDMA_READ);
    end_expect_data(&p.a, 0, 50 * 512, 3);
    pair_close(&p);
}

struct atomic_storm {
    struct end to;
    unsigned int count;
};

static void storm(struct end *end, void *arg)
{
    const struct atomic_storm *work = arg;

    for (unsigned int i = 0; i < work->count; i += 32) {
        struct ibv_wc wc[32];
        struct send list[32];

        for (unsigned int j = 0; j < 32; j++)
            list[j] = a_fetch_add(end, j, 1024, &work->to, 0, 1);
        end_send_list(end, list, 32);
        end_poll(end, SQ, wc, 32);
        for (unsigned int j = 0; j < 32; j++)
            check_success(&wc[j], j, IBV_WC_FETCH_ADD);
    }
}

static void atomics_of_both_sides_on_one_word_lose_nothing(void **state)
{
    struct atomic_storm of_a, of_b;
    struct end_call call;
    struct end near_target;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    /* the word is b's; b reaches it through a QP of its own that loops back */
    near_target = p.b;
    end_share(&near_target, &p.b);
    end_to_init(&near_target);
    end_to_rtr(&near_target, &near_target);
    end_to_rts(&near_target);
    of_a = (struct atomic_storm){.to = p.b, .count = 3200};
    of_b = (struct atomic_storm){.to = p.b, .count = 3200};
    end_poke64(&p.b, 0, 0);
    end_start(&call, &near_target, storm, &of_b, sizeof of_b);
    storm(&p.a, &of_a);
    end_finish(&call);
    assert_int_equal(end_peek64(&p.b, 0), 6400);
    end_close_qp(&near_target);
    pair_close(&p);
}

static void bump(struct end *end, void *arg)
{
    const unsigned int *count = arg;

    for (unsigned int i = 0; i < *count; i++)
        __atomic_fetch_add((uint64_t *)(void *)end->buf, 1, __ATOMIC_RELAXED);
}

/* verbs.md §3.6: atomics are CPU atomics on every path where the device says IBV_ATOMIC_GLOB */
static void atomics_and_the_cpu_on_one_word_lose_nothing(void **state)
{
    struct ibv_device_attr device;
    struct atomic_storm of_a;
    unsigned int of_cpu = 2000000;
    struct end_call call;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    assert_int_equal(ibv_query_device(p.a.context, &device), 0);
    if (device.atomic_cap != IBV_ATOMIC_GLOB)
        skip_because("atomics are not global");
    of_a = (struct atomic_storm){.to = p.b, .count = 3200};
    end_poke64(&p.b, 0, 0);
    end_start(&call, &p.b, bump, &of_cpu, sizeof of_cpu);
    storm(&p.a, &of_a);
    end_finish(&call);
    assert_int_equal(end_peek64(&p.b, 0), 3200 + of_cpu);
    pair_close(&p);
}

static void an_rnr_of_one_qp_does_not_block_another(void **state)
{
    struct end a2, b2;
    struct ibv_wc wc;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_share(&a2, &p.a);
    end_share(&b2, &p.b);
    end_connect(&a2, &b2);
    for (unsigned int i = 0; i < 32; i++)
        end_send(&p.a, a_send(&p.a, 1000 + i, 0, 1024)); /* no receives */
    for (unsigned int i = 0; i < 100; i++) {
        end_recv(&b2, a_recv(&b2, i, 0, 1024));
        end_send(&a2, a_send(&a2, i, 0, 1024));
        end_expect_success(&b2, RQ, i, IBV_WC_RECV);
        end_expect_success(&a2, SQ, i, IBV_WC_SEND);
    }
    for (unsigned int i = 0; i < 32; i++) {
        end_recv(&p.b, a_recv(&p.b, i, 0, 1024));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        end_poll(&p.a, SQ, &wc, 1);
        check_success(&wc, 1000 + i, IBV_WC_SEND);
    }
    end_close_qp(&a2);
    end_close_qp(&b2);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(completions_come_in_post_order_whatever_the_opcode),
        TEST(receives_are_consumed_in_post_order),
        TEST(a_send_behind_a_write_announces_its_data),
        TEST(a_read_behind_a_write_sees_it),
        TEST(a_fenced_write_waits_for_earlier_reads),
        TEST(a_fenced_send_waits_for_earlier_atomics),
        TEST(reads_and_atomics_execute_in_order),
        TEST(reads_beyond_max_rd_atomic_wait_their_turn),
        TEST(atomics_of_both_sides_on_one_word_lose_nothing),
        TEST(atomics_and_the_cpu_on_one_word_lose_nothing),
        TEST(an_rnr_of_one_qp_does_not_block_another),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
