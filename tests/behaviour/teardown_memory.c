/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.2: memory that is the program's again while requests that name it are on their way: its
 * MR is deregistered or changed, its window is gone, its QP is in ERR. The program may then do with it what
 * it likes: nothing of that is ever seen at the other end, and what a request was told of is what it had
 * been.
 *
 * Where the path lies between processes, the far one is stopped meanwhile: it can have taken nothing before.
 */
#include "threads.h"
#include "work.h"

#include <sys/mman.h>

/* Long enough to go by reference where the path chooses. */
enum { MESSAGES = 4, LENGTH = 16 * 1024 };

/* Memory of its own, registered, that can be unmapped. */
struct area {
    uint8_t *at;
    size_t length;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    uint32_t rkey; /* of the MR, or of a window in it */
};

static void make_area(struct end *end, void *arg)
{
    const int access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
    struct area *area = arg;

    area->length = 64 * 1024;
    area->at = mmap(NULL, area->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area->at != MAP_FAILED, "mmap: %s", strerror(errno));
    fill_pattern(area->at, area->length, 1);
    area->mr = ibv_reg_mr(end->pd, area->at, area->length, access);
    CHECK(area->mr, "ibv_reg_mr: %s", strerror(errno));
    area->rkey = area->mr->rkey;
}

static void drop_area(struct end *end, void *arg)
{
    struct area *area = arg;

    if (area->mw)
        CHECK_ZERO(ibv_dealloc_mw(area->mw));
    if (area->mr)
        CHECK_ZERO(ibv_dereg_mr(area->mr));
    if (area->at)
        munmap(area->at, area->length);
    *area = (struct area){0};
}

static void unmap(struct area *area)
{
    munmap(area->at, area->length);
    area->at = NULL;
}

/* Either shows a stale look at it. */
static void reuse(struct area *area, unsigned int round)
{
    if (round % 2)
        unmap(area);
    else
        fill_pattern(area->at, area->length, 2);
}

static void hold_far_side(void)
{
    if (two_processes())
        side_stop(FAR);
}

static void let_far_side_go(void)
{
    if (two_processes())
        side_continue(FAR);
}

static struct send from_area(struct send send, const struct area *area)
{
    send.sge[0].addr = (uintptr_t)area->at;
    send.sge[0].lkey = area->mr->lkey;
    return send;
}

/* --- as the source of requests -------------------------------------------------------------------- */

static void post_from(struct pair *p, const struct area *area, unsigned int round)
{
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_recv(&p->b, a_recv(&p->b, i, i * LENGTH, LENGTH));
    hold_far_side();
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_send(&p->a, from_area(a_send(&p->a, i, 0, LENGTH), area));
    for (unsigned int i = 0; i < round; i++) /* where both ends are in this process, some may get through */
        ibv_poll_cq(p->a.recv_cq, 1, &(struct ibv_wc){0});
}

/* Whole and as it was, or not at all. */
static void expect_whole(struct pair *p, enum ibv_wc_status failure)
{
    struct ibv_wc sent[MESSAGES], received[MESSAGES];
    unsigned int good = 0, arrived = 0;

    let_far_side_go();
    end_poll(&p->a, SQ, sent, MESSAGES);
    for (unsigned int i = 0; i < MESSAGES; i++) {
        assert_int_equal(sent[i].wr_id, i);
        if (sent[i].status == IBV_WC_SUCCESS) {
            assert_int_equal(good, i);
            good++;
        } else {
            assert_int_equal(sent[i].status, i == good ? failure : IBV_WC_WR_FLUSH_ERR);
        }
    }
    CHECK_ZERO(end_to_state(&p->b, IBV_QPS_ERR)); /* what has not arrived comes back */
    end_poll(&p->b, RQ, received, MESSAGES);
    for (unsigned int i = 0; i < MESSAGES; i++) {
        assert_int_equal(received[i].wr_id, i);
        if (received[i].status == IBV_WC_SUCCESS) {
            end_expect_data(&p->b, i * LENGTH, LENGTH, 1);
            arrived++;
        }
    }
    if (p->a.attr.type == IBV_QPT_RC)
        assert_true(arrived >= good);
}

static void sends_end_with_the_mr_they_name(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct area area = {0};
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        make_area(&p.a, &area);
        post_from(&p, &area, round);
        CHECK_ZERO(ibv_dereg_mr(area.mr));
        area.mr = NULL;
        reuse(&area, round);
        expect_whole(&p, IBV_WC_LOC_PROT_ERR);
        drop_area(&p.a, &area);
        pair_close(&p);
    }
}

static void sends_of_uc_end_with_the_mr_they_name(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct area area = {0};
        struct pair p;

        pair_connect(&p, IBV_QPT_UC);
        make_area(&p.a, &area);
        post_from(&p, &area, round);
        CHECK_ZERO(ibv_dereg_mr(area.mr));
        area.mr = NULL;
        reuse(&area, round);
        expect_whole(&p, IBV_WC_LOC_PROT_ERR);
        drop_area(&p.a, &area);
        pair_close(&p);
    }
}

static void sends_end_with_the_translation_they_rely_on(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct area area = {0};
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        make_area(&p.a, &area);
        post_from(&p, &area, round);
        CHECK_ZERO(ibv_rereg_mr(area.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p.a.buf, 4096, 0));
        reuse(&area, round);
        expect_whole(&p, IBV_WC_LOC_PROT_ERR);
        drop_area(&p.a, &area);
        pair_close(&p);
    }
}

static void sends_end_with_the_protection_domain_of_their_mr(void **state)
{
    struct area area = {0};
    struct ibv_pd *other;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    make_area(&p.a, &area);
    other = ibv_alloc_pd(p.a.context);
    assert_non_null(other);
    post_from(&p, &area, 0);
    CHECK_ZERO(ibv_rereg_mr(area.mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
    reuse(&area, 0);
    expect_whole(&p, IBV_WC_LOC_PROT_ERR);
    drop_area(&p.a, &area);
    CHECK_ZERO(ibv_dealloc_pd(other));
    pair_close(&p);
}

static void others_go_on_while_an_mr_goes(void **state)
{
    struct area area = {0};
    struct pair p, q[4];

    pair_connect(&p, IBV_QPT_RC);
    make_area(&p.a, &area);
    for (size_t i = 0; i < COUNT(q); i++) {
        end_share(&q[i].a, &p.a);
        end_share(&q[i].b, &p.b);
        end_connect(&q[i].a, &q[i].b);
        end_recv(&q[i].b, a_recv(&q[i].b, 100 + i, 0, LENGTH));
    }
    end_fill(&p.a, 0, LENGTH, 3);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_recv(&p.b, a_recv(&p.b, i, LENGTH, LENGTH));
    hold_far_side();
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_send(&p.a, from_area(a_send(&p.a, i, 0, LENGTH), &area));
    for (size_t i = 0; i < COUNT(q); i++) /* whichever lanes they share */
        end_send(&q[i].a, a_send(&q[i].a, 200 + i, 0, LENGTH));
    CHECK_ZERO(ibv_dereg_mr(area.mr));
    unmap(&area);
    let_far_side_go();
    end_close_qp(&p.a);
    for (unsigned int seen = 0; seen < COUNT(q);) {
        const struct ibv_wc wc = end_wc(&p.b, RQ);

        if (wc.qp_num == p.b.qp_num)
            continue;
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        end_expect_data(&p.b, 0, LENGTH, 3);
        seen++;
    }
    for (unsigned int seen = 0; seen < COUNT(q); seen++)
        assert_int_equal(end_wc(&p.a, SQ).status, IBV_WC_SUCCESS);
    for (size_t i = 0; i < COUNT(q); i++) {
        end_close_qp(&q[i].a);
        end_close_qp(&q[i].b);
    }
    pair_close(&p);
}

static void an_mr_that_was_used_before_goes_without_a_trace(void **state)
{
    struct area area = {0};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (uint64_t i = 0; i < 20; i++) {
        make_area(&p.a, &area);
        end_recv(&p.b, a_recv(&p.b, i, 0, LENGTH));
        end_send(&p.a, from_area(a_send(&p.a, i, 0, LENGTH), &area));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        drop_area(&p.a, &area);
        pair_marker(&p.a, &p.b);
    }
    pair_close(&p);
}

/* --- as the target of READs ----------------------------------------------------------------------- */

struct reading {
    struct end peer;
    struct area area;
};

static void read_here(struct end *end, void *arg)
{
    struct reading *reading = arg;

    for (uint64_t i = 0; i < MESSAGES; i++) {
        struct send read = a_read(end, i, i * LENGTH, LENGTH, &reading->peer, 0);

        read.wr.wr.rdma.remote_addr = (uintptr_t)reading->area.at;
        read.wr.wr.rdma.rkey = reading->area.rkey;
        end_send(end, read);
    }
}

static void expect_answers_of_before(struct pair *p)
{
    struct ibv_wc wc[MESSAGES];
    bool failed = false;

    end_poll(&p->b, SQ, wc, MESSAGES);
    for (unsigned int i = 0; i < MESSAGES; i++) {
        assert_int_equal(wc[i].wr_id, i);
        if (wc[i].status == IBV_WC_SUCCESS) {
            assert_false(failed);
            end_expect_data(&p->b, i * LENGTH, LENGTH, 1);
        } else {
            assert_int_equal(wc[i].status, failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_ACCESS_ERR);
            failed = true;
        }
    }
}

static void let_the_far_side_read(struct pair *p, struct reading *reading, unsigned int round)
{
    reading->peer = p->a;
    AT(&p->b, read_here, reading);
    hold_far_side();
    for (unsigned int i = 0; i < 200 * round; i++) /* the questions are answered, mostly */
        end_poll_once(&p->a, SQ, (struct ibv_wc[1]){0}, 1);
}

static void answers_to_reads_are_those_of_before_the_mr_went(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct reading reading = {0};
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        make_area(&p.a, &reading.area);
        let_the_far_side_read(&p, &reading, round);
        CHECK_ZERO(ibv_dereg_mr(reading.area.mr));
        reading.area.mr = NULL;
        reuse(&reading.area, round);
        let_far_side_go();
        expect_answers_of_before(&p);
        drop_area(&p.a, &reading.area);
        pair_close(&p);
    }
}

static void bind_window(struct end *end, struct area *area, enum ibv_mw_type type)
{
    struct ibv_mw_bind_info info = {.mr = area->mr,
                                    .addr = (uintptr_t)area->at,
                                    .length = area->length,
                                    .mw_access_flags = IBV_ACCESS_REMOTE_READ};

    area->mw = ibv_alloc_mw(end->pd, type);
    CHECK(area->mw, "ibv_alloc_mw: %s", strerror(errno));
    if (type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.wr_id = 77, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};

        CHECK_ZERO(ibv_bind_mw(end->qp, area->mw, &bind));
        area->rkey = area->mw->rkey;
    } else {
        struct send bind = {.wr = {.wr_id = 77, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}};

        area->rkey = ibv_inc_rkey(area->mw->rkey);
        bind.wr.bind_mw.mw = area->mw;
        bind.wr.bind_mw.rkey = area->rkey;
        bind.wr.bind_mw.bind_info = info;
        end_send(end, bind);
    }
    end_expect_success(end, SQ, 77, IBV_WC_BIND_MW);
}

static void answers_to_reads_are_those_of_before_the_window_went(void **state)
{
    for (unsigned int round = 0; round < 8; round++) {
        const enum ibv_mw_type type = round % 2 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
        struct reading reading = {0};
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        make_area(&p.a, &reading.area);
        bind_window(&p.a, &reading.area, type);
        let_the_far_side_read(&p, &reading, round / 2);
        CHECK_ZERO(ibv_dealloc_mw(reading.area.mw));
        reading.area.mw = NULL;
        reuse(&reading.area, 0);
        let_far_side_go();
        expect_answers_of_before(&p);
        drop_area(&p.a, &reading.area);
        pair_close(&p);
    }
}

static void answers_to_reads_are_those_of_before_the_window_was_invalidated(void **state)
{
    for (unsigned int round = 0; round < 6; round++) {
        struct send invalidate = {
            .wr = {.wr_id = 88, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}};
        struct reading reading = {0};
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        make_area(&p.a, &reading.area);
        bind_window(&p.a, &reading.area, IBV_MW_TYPE_2);
        let_the_far_side_read(&p, &reading, round);
        invalidate.wr.invalidate_rkey = reading.area.rkey;
        end_send(&p.a, invalidate);
        end_expect_success(&p.a, SQ, 88, IBV_WC_LOCAL_INV);
        reuse(&reading.area, 0);
        let_far_side_go();
        expect_answers_of_before(&p);
        drop_area(&p.a, &reading.area);
        pair_close(&p);
    }
}

/* --- a QP that is in ERR or gone ------------------------------------------------------------------ */

/* Somebody else polls all the while, and may be at the very bytes. */
struct background {
    struct ibv_cq *cq;
    atomic_bool stop;
};

static int poll_all_along(void *arg)
{
    struct background *background = arg;
    struct ibv_wc wc;

    while (!atomic_load(&background->stop))
        ibv_poll_cq(background->cq, 1, &wc);
    return 0;
}

static void memory_may_be_unmapped_once_its_qp_is_in_error_or_gone(void **state)
{
    static struct background background;
    struct caller poller;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    background.cq = p.a.recv_cq;
    caller_start(&poller, poll_all_along, &background);
    for (unsigned int round = 0; round < 60; round++) {
        struct area area = {0};
        struct pair q;

        end_share(&q.a, &p.a);
        end_share(&q.b, &p.b);
        end_connect(&q.a, &q.b);
        make_area(&q.a, &area);
        for (uint64_t i = 0; i < MESSAGES; i++)
            end_recv(&q.b, a_recv(&q.b, i, 0, 48 * 1024));
        for (uint64_t i = 0; i < MESSAGES; i++)
            end_send(&q.a, from_area(a_send(&q.a, i, 0, 48 * 1024), &area));
        if (round % 2)
            CHECK_ZERO(end_to_state(&q.a, IBV_QPS_ERR));
        else
            end_close_qp(&q.a);
        unmap(&area);
        end_close_qp(&q.a);
        end_close_qp(&q.b);
        drop_area(&p.a, &area);
    }
    atomic_store(&background.stop, true);
    caller_finish(&poller);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(sends_end_with_the_mr_they_name),
        TEST(sends_of_uc_end_with_the_mr_they_name),
        TEST(sends_end_with_the_translation_they_rely_on),
        TEST(sends_end_with_the_protection_domain_of_their_mr),
        TEST(others_go_on_while_an_mr_goes),
        TEST(an_mr_that_was_used_before_goes_without_a_trace),
        TEST(answers_to_reads_are_those_of_before_the_mr_went),
        TEST(answers_to_reads_are_those_of_before_the_window_went),
        TEST(answers_to_reads_are_those_of_before_the_window_was_invalidated),
        TEST(memory_may_be_unmapped_once_its_qp_is_in_error_or_gone),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
