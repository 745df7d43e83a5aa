/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Plain SENDs go a way of their own, at both ends (docs/design/plain-requests.md). Nothing but its statistics tells
 * it from the other: two pairs of QPs get the same random requests and receives; those of the second pair have
 * completion counters, and so nothing plain. What the calls return, all completions, the memory and the states have
 * to be the same. */
#include "both_ways.h"
#include "plain_count.h"

enum { ROUNDS = 200, LIST = 24, SIZE = BOTH_SIZE, PLAIN_SIZE = 256, MTU = 1024 };

/* --- which way they went ------------------------------------------------------------------------------- */

static uint32_t sent_plain(const struct end *end)
{
    uint32_t count = 0;

    assert_true(plain_requests_of(end->qp_num, &count));
    return count;
}

static void ask_received(struct end *end, void *arg)
{
    uint32_t *count = arg;

    assert_true(plain_receives_of(end->qp_num, count));
}

static uint32_t received_plain(struct end *end)
{
    uint32_t count = 0;

    AT(end, ask_received, &count);
    return count;
}

/* --- random requests ----------------------------------------------------------------------------------- */

static uint32_t random_length(void)
{
    return one_in(4) ? 1 + below(300) : one_in(12) ? 0 : one_in(3) ? 1 + below(48) : 8;
}

static void split(struct ibv_sge *sge, int *num_sge)
{
    sge[1] = sge[0];
    sge[0].length /= 2;
    sge[1].addr += sge[0].length;
    sge[1].length -= sge[0].length;
    *num_sge = 2;
}

/* What a round plays: the same for both pairs but for their keys and addresses. */
struct play {
    struct send sends[2][LIST + 1];
    struct recv recvs[2][LIST + 1];
    unsigned int count, messages; /* requests; of those, SENDs */
};

static void add_send(struct play *play, struct pair pairs[2], uint64_t id, uint32_t length, bool faulty)
{
    uint32_t from = below(SIZE / 2 - 512), imm = below(1000);
    uint32_t flags = (one_in(4) ? 0u : IBV_SEND_SIGNALED) | (one_in(16) ? IBV_SEND_FENCE : 0u) |
                     (one_in(8) ? IBV_SEND_SOLICITED : 0u);
    bool with_imm = one_in(4), is_inline = one_in(3) && length <= 64, two = one_in(12) && length > 1;
    uint32_t fault = faulty && one_in(60) ? 1 + below(3) : 0;

    for (int i = 0; i < 2; i++) {
        const struct end *end = &pairs[i].a;
        struct send *send = &play->sends[i][play->count];

        *send = with_imm ? a_send_imm(end, id, from, length, imm) : a_send(end, id, from, length);
        send->wr.send_flags = flags | (is_inline ? IBV_SEND_INLINE : 0u);
        if (two)
            split(send->sge, &send->wr.num_sge);
        if (fault == 1 && !is_inline && length)
            send->sge[0].lkey ^= 0x55;
        else if (fault == 2 && !is_inline && length)
            send->sge[0].addr += SIZE;
        else if (fault == 3)
            send->wr.num_sge = 9;
    }
    play->count++;
}

/* The receive that the SEND takes. */
static void add_recv(struct play *play, struct pair pairs[2], uint64_t id, uint32_t length, bool faulty)
{
    uint32_t to = SIZE / 2 + below(SIZE / 2 - 512), room = one_in(2) ? length : length + below(64);
    uint32_t fault = faulty && one_in(60) ? 1 + below(2) : 0;
    bool two = one_in(12) && room > 1;

    for (int i = 0; i < 2; i++) {
        struct recv *recv = &play->recvs[i][play->messages];

        *recv = a_recv(&pairs[i].b, id, to, fault == 1 && room ? room / 2 : room);
        if (fault == 2 && room)
            recv->sge[0].lkey ^= 0x55;
        if (two && recv->sge[0].length > 1)
            split(recv->sge, &recv->wr.num_sge);
    }
    play->messages++;
}

/* A WRITE may overtake a READ of the same memory unless it has a fence (verbs.md §3.6 rule 4). */
static void add_other(struct play *play, struct pair pairs[2], uint64_t id)
{
    uint32_t length = random_length(), to = 8 * below(64);
    bool read = one_in(2);

    for (int i = 0; i < 2; i++)
        play->sends[i][play->count] = read ? a_read(&pairs[i].a, id, SIZE - 512, length, &pairs[i].b, to)
                                           : with_flags(a_write(&pairs[i].a, id, 0, length, &pairs[i].b, to),
                                                        IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    play->count++;
}

static void make_play(struct play *play, struct pair pairs[2], uint64_t *id, bool faulty)
{
    unsigned int count = one_in(3) ? 1 : 1 + below(LIST);

    play->count = play->messages = 0;
    for (unsigned int i = 0; i < count; i++) {
        uint32_t length = random_length();

        if (one_in(16)) {
            add_other(play, pairs, (*id)++);
            continue;
        }
        add_recv(play, pairs, *id, length, faulty);
        add_send(play, pairs, (*id)++, length, faulty);
    }
    add_recv(play, pairs, *id, 8, false);
    add_send(play, pairs, (*id)++, 8, false);
    for (int i = 0; i < 2; i++)
        play->sends[i][play->count - 1].wr.send_flags = IBV_SEND_SIGNALED;
}

/* --- completions --------------------------------------------------------------------------------------- */

static void collect_receives(struct end *end, unsigned int count, struct outcome *ret)
{
    struct patience patience = patience_begin("receives");

    while (ret->count < count)
        outcome_poll(end, RQ, ret, &patience);
    patience_end();
    assert_int_equal(ret->count, count);
}

/* --- both ways ----------------------------------------------------------------------------------------- */

static void *counters[2]; /* of the second pair: of a, b */

static struct end_attr attributes(bool srq, bool extended)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = SIZE;
    attr.timeout = 14;
    attr.rnr_retry = 7;
    attr.min_rnr_timer = 1;
    attr.srq_wr = srq ? 256 : 0;
    attr.send_ops = extended ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                   IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ
                             : 0;
    return attr;
}

static void open_both(struct pair pairs[2], bool srq, bool extended)
{
    const struct end_attr attr = attributes(srq, extended);

    for (int i = 0; i < 2; i++) {
        pair_open(&pairs[i], &attr, &attr);
        if (i == 1) {
            AT(&pairs[i].a, count_operations, &counters[0]);
            AT(&pairs[i].b, count_operations, &counters[1]);
        }
        end_connect(&pairs[i].a, &pairs[i].b);
        end_fill(&pairs[i].a, 0, SIZE, 7);
        end_fill(&pairs[i].b, 0, SIZE, 8);
        pair_marker(&pairs[i].a, &pairs[i].b); /* the lane is known, and the communication established */
    }
}

static void close_both(struct pair pairs[2])
{
    end_close_qp(&pairs[1].a); /* before its counter */
    end_close_qp(&pairs[1].b);
    AT(&pairs[1].a, destroy_counter, &counters[0]);
    AT(&pairs[1].b, destroy_counter, &counters[1]);
    for (int i = 0; i < 2; i++)
        pair_close(&pairs[i]);
}

struct way {
    bool srq, extended, faulty;
    bool late; /* receives are posted behind the SENDs, which the receiver refuses until then (RNR) */
};

static void post_recvs(struct end *end, const struct recv *recvs, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++)
        end_recv(end, recvs[i]);
}

/* False: the QPs have failed. */
static bool play_round(struct pair pairs[2], uint64_t *id, const struct way *way, unsigned int *receives)
{
    static struct play play;
    static struct outcome sent[2], received[2];
    unsigned int posted[2];
    bool ok;
    int error[2];

    make_play(&play, pairs, id, way->faulty);
    for (int i = 0; i < 2; i++) {
        struct end *a = &pairs[i].a, *b = &pairs[i].b;

        sent[i].count = received[i].count = 0;
        sent[i].most = received[i].most = BOTH_OUTCOMES;
        if (!way->late)
            post_recvs(b, play.recvs[i], play.messages);
        error[i] =
            (way->extended ? post_by_builders : end_try_send)(a, play.sends[i], play.count, &posted[i]);
        if (error[i]) /* the rest is not posted: the last request, whose completion ends the round, is */
            end_send(a, play.sends[i][play.count - 1]);
        if (way->late)
            post_recvs(b, play.recvs[i], play.messages);
        outcome_until(a, play.sends[i][play.count - 1].wr.wr_id, &sent[i]);
    }
    *receives += play.messages;
    assert_int_equal(error[0], error[1]);
    assert_int_equal(posted[0], posted[1]);
    outcome_compare(&sent[0], &sent[1]);
    ok = sent[0].wc[sent[0].count - 1].status == IBV_WC_SUCCESS;
    if (error[0] || !ok)
        return false;
    for (int i = 0; i < 2; i++)
        collect_receives(&pairs[i].b, play.messages, &received[i]);
    *receives -= play.messages;
    outcome_compare(&received[0], &received[1]);
    return true;
}

static void play(const struct way *way, uint64_t seed)
{
    static struct outcome rest[2];
    struct pair pairs[2];
    uint64_t id = 1000;
    unsigned int receives = 0; /* without completion */
    int rounds = 0;
    uint32_t sends, taken;

    state_of_random = seed;
    open_both(pairs, way->srq, way->extended);
    sends = sent_plain(&pairs[0].a);
    taken = received_plain(&pairs[0].b);
    while (rounds < ROUNDS && play_round(pairs, &id, way, &receives))
        rounds++;
    compare_memory(pairs);
    assert_int_equal(end_state(&pairs[0].a), end_state(&pairs[1].a));
    assert_int_equal(end_state(&pairs[0].b), end_state(&pairs[1].b));
    assert_int_equal(sent_plain(&pairs[1].a), 0);
    assert_int_equal(received_plain(&pairs[1].b), 0);
    if (!way->faulty && !way->late && path_under_test() != PATH_CMA) {
        assert_true(sent_plain(&pairs[0].a) - sends > (id - 1000) / 8);
        if (!over_wire()) /* there only the sender has such a way */
            assert_true(received_plain(&pairs[0].b) - taken > (id - 1000) / 8);
    }
    for (int i = 0; i < 2 && !way->srq; i++) {
        rest[i].count = 0;
        rest[i].most = BOTH_OUTCOMES;
        end_to_state(&pairs[i].b, IBV_QPS_ERR); /* flushes the receives that are left */
        collect_receives(&pairs[i].b, receives, &rest[i]);
    }
    if (!way->srq)
        outcome_compare(&rest[0], &rest[1]);
    close_both(pairs);
}

static void requests_that_succeed_do_the_same_both_ways(void **state)
{
    for (uint64_t seed = 1; seed <= 2; seed++)
        play(&(struct way){.srq = false}, seed);
}

static void receives_of_an_srq_do_the_same_both_ways(void **state)
{
    play(&(struct way){.srq = true}, 11);
}

static void what_wr_builders_post_does_the_same_both_ways(void **state)
{
    play(&(struct way){.extended = true}, 21);
}

static void requests_that_are_refused_first_do_the_same_both_ways(void **state)
{
    play(&(struct way){.late = true}, 31);
}

static void requests_that_fail_do_the_same_both_ways(void **state)
{
    for (uint64_t seed = 41; seed <= 60; seed++)
        play(&(struct way){.faulty = true}, seed);
}

/* --- which are plain ----------------------------------------------------------------------------------- */

static void expect_plain(struct pair *p, struct send send, bool sent, bool received)
{
    uint32_t sends = sent_plain(&p->a), receives = received_plain(&p->b);
    struct recv recv = a_recv(&p->b, send.wr.wr_id, SIZE / 2, 1024);

    end_recv(&p->b, recv);
    end_send(&p->a, send);
    end_expect_success(&p->b, RQ, send.wr.wr_id, IBV_WC_RECV);
    end_expect_success(&p->a, SQ, send.wr.wr_id, IBV_WC_SEND);
    assert_int_equal(sent_plain(&p->a) - sends, sent);
    assert_int_equal(received_plain(&p->b) - receives, received && !over_wire());
}

static void small_sends_of_one_piece_are_plain(void **state)
{
    struct pair pairs[2], *p = &pairs[0];
    struct send pieces;
    bool copies = path_under_test() != PATH_CMA; /* there all that is not inline goes by reference */

    open_both(pairs, false, false);
    expect_plain(p, a_send(&p->a, 1, 0, 8), copies, copies);
    expect_plain(p, with_flags(a_send(&p->a, 2, 0, 8), IBV_SEND_INLINE | IBV_SEND_SOLICITED), copies, true);
    expect_plain(p, a_send_imm(&p->a, 3, 0, 1, 77), copies, copies);
    expect_plain(p, a_send(&p->a, 4, 0, PLAIN_SIZE), copies, copies);
    expect_plain(p, a_send(&p->a, 5, 0, PLAIN_SIZE + 1), over_wire(), false);
    expect_plain(p, a_send(&p->a, 6, 0, 0), false, false);
    expect_plain(p, a_send(&p->a, 8, 0, MTU), over_wire(), false);
    /* Of two pieces it is gathered on the general way, and a packet like others. */
    pieces = a_send(&p->a, 7, 0, 8);
    split(pieces.sge, &pieces.wr.num_sge);
    expect_plain(p, pieces, false, copies);
    close_both(pairs);
}

static void only_what_is_one_packet_is_plain_over_the_network(void **state)
{
    struct pair pairs[2], *p = &pairs[0];
    uint32_t sends;

    if (!over_wire())
        skip_because("a matter of SOFTHCA_PATH=wire");
    open_both(pairs, false, false);
    sends = sent_plain(&p->a);
    end_send(&p->a, a_write(&p->a, 1, 0, MTU, &p->b, 0));
    end_expect_success(&p->a, SQ, 1, IBV_WC_RDMA_WRITE);
    assert_int_equal(sent_plain(&p->a) - sends, 1);
    end_send(&p->a, a_write(&p->a, 2, 0, MTU + 1, &p->b, 0));
    end_expect_success(&p->a, SQ, 2, IBV_WC_RDMA_WRITE);
    end_send(&p->a, a_read(&p->a, 3, SIZE / 2, 8, &p->b, 0));
    end_expect_success(&p->a, SQ, 3, IBV_WC_RDMA_READ);
    assert_int_equal(sent_plain(&p->a) - sends, 1);
    close_both(pairs);
}

/* Behind SENDs that come alone, for which the program waits, nobody looks after a while; what comes all at once then is
 * received like that, in order. */
static void many_at_once_come_in_order_behind_sends_that_came_alone(void **state)
{
    enum { ALONE = 24, TOGETHER = 12 };
    struct send sends[TOGETHER];
    struct pair pairs[2], *p = &pairs[0];
    uint64_t id = 0;
    struct ibv_wc wc;

    open_both(pairs, false, false);
    for (int round = 0; round < 3; round++) {
        for (unsigned int i = 0; i < ALONE; i++, id++) {
            end_recv(&p->a, a_recv(&p->a, id, SIZE / 2, 8));
            assert_int_equal(ibv_poll_cq(p->a.recv_cq, 1, &wc), 0);
            end_send(&p->b, a_send(&p->b, id, 0, 8));
            end_expect_success(&p->a, RQ, id, IBV_WC_RECV);
            end_expect_success(&p->b, SQ, id, IBV_WC_SEND);
        }
        for (unsigned int i = 0; i < TOGETHER; i++) {
            end_recv(&p->a, a_recv(&p->a, id + i, SIZE / 2, 8));
            sends[i] = a_send(&p->b, id + i, 0, 8);
        }
        assert_int_equal(ibv_poll_cq(p->a.recv_cq, 1, &wc), 0);
        end_send_list(&p->b, sends, TOGETHER);
        for (unsigned int i = 0; i < TOGETHER; i++)
            end_expect_success(&p->a, RQ, id + i, IBV_WC_RECV);
        for (unsigned int i = 0; i < TOGETHER; i++, id++)
            end_expect_success(&p->b, SQ, id, IBV_WC_SEND);
    }
    close_both(pairs);
}

/* --- what a QP remembers ------------------------------------------------------------------------------- */

enum { TRIES = 4096 };

/* The library keeps the structures of QPs. A QP of another PD that gets the structure of a destroyed one does not get
 * what that one knew: the region is not of its PD. */
static void a_qp_forgets_the_regions_of_the_one_before(void **state)
{
    const struct end_attr attr = attributes(false, false);
    struct pair p;
    struct end other, far;
    const struct ibv_qp *before;
    struct ibv_pd *pd;
    struct send send;
    unsigned int tries = 0;

    pair_open(&p, &attr, &attr);
    end_connect(&p.a, &p.b);
    pair_marker(&p.a, &p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 8));
    end_send(&p.a, a_send(&p.a, 1, 0, 8));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    before = p.a.qp;
    end_close_qp(&p.a);
    pd = ibv_alloc_pd(p.a.context);
    assert_non_null(pd);
    for (;;) {
        end_open_in(&other, NEAR, &attr, pd, p.a.context);
        if (other.qp == before)
            break;
        assert_true(++tries < TRIES);
        end_close_objects(&other);
    }
    end_share(&far, &p.b);
    end_connect(&other, &far); /* no request before, which would make it look for a region of its own */
    end_recv(&far, a_recv(&far, 2, 0, 8));
    send = a_send(&other, 2, 0, 8);
    send.sge[0].addr = (uintptr_t)p.a.buf;
    send.sge[0].lkey = p.a.lkey;
    end_send(&other, send);
    end_expect_status(&other, SQ, 2, IBV_WC_LOC_PROT_ERR);
    end_close_objects(&other);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    end_close_qp(&far);
    pair_close(&p);
}

int main(int argc, char **argv)
{
#define PLAIN(fn) TEST_WITH(fn, .fars = 1)
    const struct test tests[] = {
        PLAIN(small_sends_of_one_piece_are_plain),
        PLAIN(only_what_is_one_packet_is_plain_over_the_network),
        PLAIN(many_at_once_come_in_order_behind_sends_that_came_alone),
        PLAIN(a_qp_forgets_the_regions_of_the_one_before),
        PLAIN(requests_that_succeed_do_the_same_both_ways),
        PLAIN(receives_of_an_srq_do_the_same_both_ways),
        PLAIN(what_wr_builders_post_does_the_same_both_ways),
        PLAIN(requests_that_are_refused_first_do_the_same_both_ways),
        PLAIN(requests_that_fail_do_the_same_both_ways),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
