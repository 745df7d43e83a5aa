/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Plain requests go a way of their own (docs/design/plain-requests.md). Nothing but its statistics tells it from the
 * other: two QPs get the same random requests, one of them with a completion counter, whose requests are never plain.
 * What the calls return, the completions, the target's memory and the states have to be the same. */
#include "both_ways.h"
#include "plain_count.h"

enum { ROUNDS = 300, LIST = 24, LONG_LIST = 70, SIZE = BOTH_SIZE, OUTCOMES = 4 * LONG_LIST };

/* --- which way they went ------------------------------------------------------------------------------- */

static uint32_t plain_of(const struct end *end)
{
    uint32_t count = 0;

    assert_true(plain_requests_of(end->qp_num, &count));
    return count;
}

/* --- random requests ----------------------------------------------------------------------------------- */

/* The same for both pairs but for their keys and addresses. faulty: may fail. */
static void make(struct send sends[2], struct pair pairs[2], uint64_t id, bool faulty)
{
    uint32_t length = one_in(4) ? 1 + below(300) : one_in(8) ? 0 : one_in(3) ? 1 + below(16) : 8;
    uint32_t from = below(SIZE - 512), to = one_in(2) ? below(64) * 8 : below(SIZE - 512);
    uint32_t flags = (one_in(4) ? 0u : IBV_SEND_SIGNALED) | (one_in(16) ? IBV_SEND_FENCE : 0u) |
                     (one_in(16) ? IBV_SEND_SOLICITED : 0u);
    bool is_inline = one_in(3), read = one_in(5), atomic = !read && one_in(6), two = one_in(12);
    uint32_t fault = faulty && one_in(40) ? 1 + below(6) : 0;
    uint32_t landing = SIZE - 64 + (one_in(4) ? below(48) : 0), word = one_in(2) ? SIZE - 16 : below(64) * 8;
    bool swaps = one_in(2);
    uint64_t seen; /* by an atomic before: the word may still be that */

    memcpy(&seen, pairs[0].a.buf + SIZE - 64, sizeof(seen));

    for (int i = 0; i < 2; i++) {
        struct pair *p = &pairs[i];
        struct send *send = &sends[i];

        if (atomic)
            *send = swaps ? a_cas(&p->a, id, landing, &p->b, word, seen, id)
                          : a_fetch_add(&p->a, id, landing, &p->b, word, id);
        else if (read)
            *send = a_read(&p->a, id, SIZE - 256, length > 200 ? 200 : length, &p->b, to);
        else
            *send = a_write(&p->a, id, from, length, &p->b, to);
        send->wr.send_flags = flags;
        if (!read && !atomic && is_inline && length <= 64)
            send->wr.send_flags |= IBV_SEND_INLINE;
        if (two && send->wr.num_sge == 1 && !atomic && length > 1) {
            send->sge[1] = send->sge[0];
            send->sge[0].length = length / 2;
            send->sge[1].addr += length / 2;
            send->sge[1].length -= length / 2;
            if (!read)
                send->wr.num_sge = 2;
        }
        switch (fault) {
        case 1:
            *(atomic ? &send->wr.wr.atomic.rkey : &send->wr.wr.rdma.rkey) ^= 0x55;
            break;
        case 2:
            send->sge[0].lkey ^= 0x55;
            break;
        case 3:
            send->wr.wr.rdma.remote_addr += SIZE - 4; /* of an atomic, too */
            break;
        case 4: /* inline, it would be no fault, and bytes of another object */
            send->wr.send_flags &= ~(unsigned int)IBV_SEND_INLINE;
            send->sge[0].addr += SIZE;
            break;
        case 5:
            send->wr.num_sge = 9;
            break;
        case 6:
            send->wr.send_flags |= IBV_SEND_IP_CSUM;
            break;
        default:
            break;
        }
    }
}

/* --- both ways ----------------------------------------------------------------------------------------- */

static void *counter; /* of the second pair */

static void open_both(struct pair pairs[2], bool extended)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = SIZE;
    attr.timeout = 14;
    attr.send_ops = extended ? IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
                                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                             : 0;
    for (int i = 0; i < 2; i++) {
        pair_open(&pairs[i], &attr, &attr);
        if (i == 1)
            count_operations(&pairs[i].a, &counter);
        end_connect(&pairs[i].a, &pairs[i].b);
        end_fill(&pairs[i].a, 0, SIZE, 7);
        end_fill(&pairs[i].b, 0, SIZE, 8);
        if (!is_mapped(pairs[i].b.side->pid, pairs[i].b.buf))
            skip_because("memory is not mapped on this machine (softhca doctor says why)");
        pair_marker(&pairs[i].a, &pairs[i].b);
    }
    for (int i = 0; i < 2; i++) { /* the peer's memory is mapped meanwhile */
        struct patience patience = patience_begin("a plain request");
        uint64_t id = 0;

        do {
            end_send(&pairs[i].a, a_write(&pairs[i].a, id, 0, 8, &pairs[i].b, 0));
            end_expect_success(&pairs[i].a, SQ, id++, IBV_WC_RDMA_WRITE);
            if (id % 64 == 0)
                patience_wait(&patience, __FILE__, __LINE__);
        } while (i == 0 ? !plain_of(&pairs[0].a) : id < 64);
        patience_end();
    }
}

static void close_both(struct pair pairs[2])
{
    end_close_qp(&pairs[1].a); /* before its counter */
    destroy_counter(&pairs[1].a, &counter);
    for (int i = 0; i < 2; i++)
        pair_close(&pairs[i]);
}

/* One list for both, a request behind it whose completion is the last, and what came of it. False: the QPs have
 * failed. */
static bool play_round(struct pair pairs[2], uint64_t *id, bool faulty, bool extended)
{
    static struct send sends[2][LONG_LIST];
    unsigned int count = one_in(3) ? 1 : 1 + below(LIST), posted[2];
    static struct outcome outcome[2];
    int error[2];
    uint64_t last;

    if (faulty && one_in(20))
        count = LONG_LIST; /* more than the queue holds */
    for (unsigned int i = 0; i < count; i++) {
        struct send both[2];

        make(both, pairs, *id, faulty);
        if (count == LONG_LIST)
            both[0].wr.send_flags |= IBV_SEND_SIGNALED, both[1].wr.send_flags |= IBV_SEND_SIGNALED;
        sends[0][i] = both[0];
        sends[1][i] = both[1];
        ++*id;
    }
    last = (*id)++;
    for (int i = 0; i < 2; i++) {
        outcome[i].count = 0;
        outcome[i].most = OUTCOMES - 1;
        error[i] = (extended ? post_by_builders : end_try_send)(&pairs[i].a, sends[i], count, &posted[i]);
        if (error[i] == ENOMEM && posted[i])
            outcome_until(&pairs[i].a, sends[i][posted[i] - 1].wr.wr_id, &outcome[i]);
        end_send(&pairs[i].a, a_write(&pairs[i].a, last, 0, 8, &pairs[i].b, SIZE - 8));
        outcome_until(&pairs[i].a, last, &outcome[i]);
    }
    assert_int_equal(error[0], error[1]);
    assert_int_equal(posted[0], posted[1]);
    outcome_compare(&outcome[0], &outcome[1]);
    return outcome[0].wc[outcome[0].count - 1].status == IBV_WC_SUCCESS;
}

static void play(bool faulty, bool extended, uint64_t seed)
{
    struct pair pairs[2];
    uint64_t id = 1000;
    uint32_t before;
    int rounds = 0;

    state_of_random = seed;
    open_both(pairs, extended);
    before = plain_of(&pairs[0].a);
    while (rounds < ROUNDS && play_round(pairs, &id, faulty, extended))
        rounds++;
    compare_memory(pairs);
    assert_int_equal(end_state(&pairs[0].a), end_state(&pairs[1].a));
    assert_int_equal(plain_of(&pairs[1].a), 0);
    if (!faulty)
        assert_true(plain_of(&pairs[0].a) - before > (id - 1000) / 8);
    close_both(pairs);
}

static void requests_that_succeed_do_the_same_both_ways(void **state)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        play(false, false, seed);
}

static void what_wr_builders_post_does_the_same_both_ways(void **state)
{
    for (uint64_t seed = 11; seed <= 14; seed++)
        play(false, true, seed);
}

static void requests_that_fail_do_the_same_both_ways(void **state)
{
    for (uint64_t seed = 21; seed <= 40; seed++)
        play(true, false, seed);
}

/* --- which requests are plain -------------------------------------------------------------------------- */

static void expect_plain(struct pair *p, struct send send, bool plain)
{
    uint32_t before = plain_of(&p->a);

    send.wr.send_flags |= IBV_SEND_SIGNALED;
    end_send(&p->a, send);
    end_expect_status(&p->a, SQ, send.wr.wr_id, IBV_WC_SUCCESS);
    assert_int_equal(plain_of(&p->a) - before, plain);
}

static void small_requests_of_one_piece_are_plain(void **state)
{
    struct pair pairs[2], *p = &pairs[0];
    struct send list[5], pieces;
    uint32_t before;

    open_both(pairs, false);
    expect_plain(p, a_write(&p->a, 1, 0, 8, &p->b, 0), true);
    expect_plain(p, with_flags(a_write(&p->a, 2, 0, 8, &p->b, 0), IBV_SEND_INLINE), true);
    expect_plain(p, a_write(&p->a, 3, 0, 1, &p->b, 3), true);
    expect_plain(p, a_write(&p->a, 4, 0, 256, &p->b, 0), true);
    expect_plain(p, a_write(&p->a, 5, 0, 257, &p->b, 0), false);
    expect_plain(p, a_write(&p->a, 6, 0, 0, &p->b, 0), false);
    expect_plain(p, a_read(&p->a, 7, 0, 8, &p->b, 0), true);
    expect_plain(p, a_read(&p->a, 9, 1, 256, &p->b, 3), true);
    expect_plain(p, a_read(&p->a, 10, 0, 257, &p->b, 0), false);
    expect_plain(p, a_read(&p->a, 11, 0, 0, &p->b, 0), false);
    expect_plain(p, a_fetch_add(&p->a, 12, 0, &p->b, 0, 1), true);
    expect_plain(p, a_cas(&p->a, 13, 0, &p->b, 0, 1, 2), true);
    pieces = a_write(&p->a, 8, 0, 8, &p->b, 0);
    pieces.wr.num_sge = 2;
    pieces.sge[1] = pieces.sge[0];
    expect_plain(p, pieces, false);
    /* Behind a request that is not plain none is. */
    before = plain_of(&p->a);
    for (uint64_t i = 0; i < 5; i++)
        list[i] = i == 1   ? a_read(&p->a, i, 0, 8, &p->b, 0)
                  : i == 2 ? a_fetch_add(&p->a, i, 0, &p->b, 0, 1)
                           : a_write(&p->a, i, 0, i == 3 ? 257 : 8, &p->b, 8 * i);
    end_send_list(&p->a, list, 5);
    for (uint64_t i = 0; i < 5; i++)
        end_expect_status(&p->a, SQ, i, IBV_WC_SUCCESS);
    assert_int_equal(plain_of(&p->a) - before, 3);
    close_both(pairs);
}

int main(int argc, char **argv)
{
#define PLAIN(fn) TEST_WITH(fn, .fars = 1, .needs = NEEDS_TWO_PROCESSES)
    const struct test tests[] = {
        PLAIN(small_requests_of_one_piece_are_plain),
        PLAIN(requests_that_succeed_do_the_same_both_ways),
        PLAIN(what_wr_builders_post_does_the_same_both_ways),
        PLAIN(requests_that_fail_do_the_same_both_ways),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
