/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One-sided requests that their initiator executes itself, in mapped memory (docs/mapped.md) or by the kernel's copy:
 * that it does, what the target may rely on when it takes the memory back, and what death and standstill at any moment
 * do. */
#include "taking.h"
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { CHUNK = 1 << 20, MAPPED_PLACES = 16 };

static bool by_copy(void)
{
    return path_under_test() == PATH_COPY;
}

static void need_direct(const struct end *end)
{
    if (by_copy())
        need_copies();
    else if (!is_mapped(end->side->pid, end->buf))
        skip_because("memory is not mapped on this machine (softhca doctor says why)");
}

static void connect_direct(struct pair *p, size_t size)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = size;
    attr.timeout = 14; /* 67 ms: some requests below are never answered */
    attr.retry_cnt = 2;
    pair_connect_as(p, &attr);
    need_direct(&p->a);
    need_direct(&p->b);
    pair_marker(&p->a, &p->b);
}

/* --- what is executed -------------------------------------------------------------------------------- */

static void requests_need_nothing_of_a_target_that_is_stopped(void **state)
{
    struct pair p;

    connect_direct(&p, 2 * CHUNK);
    end_fill(&p.a, 0, CHUNK, 1);
    /* The first request may be the one by which they come to know each other. */
    end_send(&p.a, a_write(&p.a, 0, 0, 8, &p.b, 0));
    end_expect_success(&p.a, SQ, 0, IBV_WC_RDMA_WRITE);
    side_stop(FAR);
    end_send(&p.a, a_write(&p.a, 1, 0, CHUNK, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_send(&p.a, a_read(&p.a, 2, CHUNK, CHUNK, &p.b, 0));
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
    end_expect_data(&p.a, CHUNK, CHUNK, 1);
    side_continue(FAR);
    end_expect_data(&p.b, 0, CHUNK, 1);
    pair_close(&p);
}

static void atomics_need_nothing_of_a_target_that_is_stopped(void **state)
{
    uint64_t value;
    struct pair p;

    connect_direct(&p, CHUNK);
    end_poke64(&p.b, 0, 40);
    end_send(&p.a, a_write(&p.a, 0, 0, 8, &p.b, 8));
    end_expect_success(&p.a, SQ, 0, IBV_WC_RDMA_WRITE);
    side_stop(FAR);
    end_send(&p.a, a_fetch_add(&p.a, 3, 0, &p.b, 0, 2));
    end_expect_success(&p.a, SQ, 3, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(&p.a, 0), 40);
    end_send(&p.a, a_cas(&p.a, 4, 0, &p.b, 0, 41, 7));
    end_expect_success(&p.a, SQ, 4, IBV_WC_COMP_SWAP);
    end_send(&p.a, a_cas(&p.a, 5, 0, &p.b, 0, 42, 43));
    end_expect_success(&p.a, SQ, 5, IBV_WC_COMP_SWAP);
    assert_int_equal(end_peek64(&p.a, 0), 42);
    side_continue(FAR);
    end_peek(&p.b, 0, &value, sizeof(value));
    assert_int_equal(value, 43);
    pair_close(&p);
}

static void what_the_target_forbids_is_judged_by_it(void **state)
{
    struct pair p;

    connect_direct(&p, CHUNK);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_send(&p.a, a_write(&p.a, 2, 0, 64, &p.b, CHUNK - 63));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    end_expect_event(&p.b, IBV_EVENT_QP_ACCESS_ERR);
    end_wait_state(&p.b, IBV_QPS_ERR);
    pair_close(&p);
}

/* The pages are where peers may only read. */
static void who_may_write_can_where_others_may_only_read(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_mr *more;
    struct end to;
    struct pair p;

    attr.size = CHUNK;
    attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
    pair_connect_as(&p, &attr);
    need_direct(&p.a);
    more = ibv_reg_mr(p.a.pd, p.a.buf, CHUNK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(more);
    to = p.a;
    to.rkey = more->rkey;
    end_fill(&p.b, 0, CHUNK, 1);
    for (unsigned int i = 0; i < 70; i++) { /* also when it is asked for again */
        end_send(&p.b, a_write(&p.b, i, 0, CHUNK, &to, 0));
        end_expect_success(&p.b, SQ, i, IBV_WC_RDMA_WRITE);
    }
    end_expect_data(&p.a, 0, CHUNK, 1);
    CHECK_ZERO(ibv_dereg_mr(more));
    pair_close(&p);
}

static void a_dead_target_takes_nothing_more(void **state)
{
    struct pair p;

    connect_direct(&p, CHUNK);
    end_send(&p.a, a_write(&p.a, 1, 0, 8, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    side_kill(FAR);
    end_send(&p.a, a_write(&p.a, 2, 0, 8, &p.b, 0));
    end_expect_status(&p.a, SQ, 2, IBV_WC_RETRY_EXC_ERR);
    end_close(&p.a);
}

static void a_region_that_comes_and_goes_disturbs_no_other_on_its_pages(void **state)
{
    enum { CYCLES = 300 };
    struct pair p;

    connect_direct(&p, CHUNK);
    for (unsigned int i = 0; i < CYCLES; i++) {
        struct ibv_mr *mr = ibv_reg_mr(p.a.pd, p.a.buf, CHUNK / 2, p.a.attr.mr_access);

        CHECK(mr, "reg_mr: %s", strerror(errno));
        end_poke64(&p.b, 4096, i);
        end_send(&p.b, a_write(&p.b, i, 4096, 8, &p.a, 4096));
        end_expect_success(&p.b, SQ, i, IBV_WC_RDMA_WRITE);
        assert_int_equal(end_peek64(&p.a, 4096), i);
        CHECK_ZERO(ibv_dereg_mr(mr));
        assert_int_equal(end_peek64(&p.a, 4096), i);
    }
    pair_close(&p);
}

/* The word's upper half counts what goes through the window, and so through the ring, because windows are not
 * executed directly; the lower half what the other process executes itself. */
#define BY_RING ((uint64_t)1 << 32)
enum { RING_ATOMICS = 3000 };

struct adding {
    struct end to;
    uint64_t count;
};

static uint64_t add(struct end *end, const struct end *to, uint64_t what)
{
    uint64_t before;

    end_send(end, a_fetch_add(end, 1, 0, to, 0, what));
    end_expect_success(end, SQ, 1, IBV_WC_FETCH_ADD);
    memcpy(&before, end->buf, sizeof(before));
    return before;
}

static void add_by_ring(struct end *end, void *arg)
{
    struct adding *adding = arg;

    for (; adding->count < RING_ATOMICS; adding->count++)
        add(end, &adding->to, BY_RING);
}

static void add_until_the_ring_has(struct end *end, void *arg)
{
    struct adding *adding = arg;

    while (add(end, &adding->to, 1) / BY_RING < RING_ATOMICS)
        adding->count++;
    adding->count++;
}

static void atomics_of_both_ways_are_atomic_to_each_other(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct adding direct = {0}, by_ring = {0};
    struct ibv_mw_bind bind = {.wr_id = 7, .send_flags = IBV_SEND_SIGNALED};
    struct end_call calls[2];
    struct end target, ring;
    struct ibv_mw *window;
    struct pair p;

    attr.mr_access |= IBV_ACCESS_MW_BIND;
    pair_connect_as(&p, &attr);
    need_direct(&p.a);
    end_share(&target, &p.a);
    end_open(&ring, &sides[2], &attr);
    end_connect(&target, &ring);
    window = ibv_alloc_mw(p.a.pd, IBV_MW_TYPE_1);
    CHECK(window, "ibv_alloc_mw: %s", strerror(errno));
    bind.bind_info = (struct ibv_mw_bind_info){
        .mr = p.a.mr, .addr = (uintptr_t)p.a.buf, .length = 8, .mw_access_flags = IBV_ACCESS_REMOTE_ATOMIC};
    CHECK_ZERO(ibv_bind_mw(p.a.qp, window, &bind));
    end_expect_success(&p.a, SQ, 7, IBV_WC_BIND_MW);
    direct.to = p.a;
    by_ring.to = target;
    by_ring.to.rkey = window->rkey;
    end_poke64(&p.a, 0, 0);
    end_start(&calls[0], &p.b, add_until_the_ring_has, &direct, sizeof(direct));
    end_start(&calls[1], &ring, add_by_ring, &by_ring, sizeof(by_ring));
    end_finish(&calls[1]);
    end_finish(&calls[0]);
    assert_int_equal(end_peek64(&p.a, 0), RING_ATOMICS * BY_RING + direct.count);
    CHECK_ZERO(ibv_dealloc_mw(window));
    end_close_qp(&target);
    end_close(&ring);
    pair_close(&p);
}

/* --- what is taken back ------------------------------------------------------------------------------ */

enum kind { WRITES, READS, ATOMICS };

struct stream {
    struct end to;
    enum kind kind;
    uint64_t last; /* what READs end with */
};

static struct send request_of(const struct stream *what, const struct end *end, uint64_t id)
{
    switch (what->kind) {
    case READS: /* the second tells that there was one */
        return id == 1 ? a_write(end, id, 0, 8, &what->to, CHUNK + 8)
                       : a_read(end, id, 0, CHUNK, &what->to, 0);
    case ATOMICS:
        return a_fetch_add(end, id, 0, &what->to, 0, 1);
    case WRITES:
        break;
    }
    return a_write(end, id, 0, CHUNK, &what->to, 0);
}

/* Until one fails. The first may go as packets, or is the one by which the two come to know each other. */
static void stream(struct end *end, void *arg)
{
    const struct stream *what = arg;
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};

    for (unsigned int i = 0; i < 3; i++) {
        end_send(end, a_write(end, i, 0, 8, &what->to, CHUNK));
        end_expect_success(end, SQ, i, IBV_WC_RDMA_WRITE);
    }
    for (unsigned int i = 0; wc.status == IBV_WC_SUCCESS; i++) {
        end_send(end, request_of(what, end, i));
        /* What waits with patience gives the processor away, and would be stopped there. */
        while (ibv_poll_cq(end->send_cq, 1, &wc) == 0) {
        }
        CHECK(what->kind != READS || wc.status != IBV_WC_SUCCESS || end_peek64(end, CHUNK - 8) == what->last,
              "read what was written after the memory was given back");
    }
}

/* Until the first of them are executed. The stream is written to when the call ends. */
static void start_stream(struct end_call *call, struct pair *p, struct stream *traffic, unsigned int seed)
{
    enum kind kind = traffic->kind;

    traffic->to = p->a;
    if (kind == READS)
        end_fill(&p->a, 0, CHUNK, seed);
    traffic->last = end_peek64(&p->a, CHUNK - sizeof(uint64_t));
    end_fill(&p->b, 0, CHUNK, seed);
    end_start(call, &p->b, stream, traffic, sizeof(*traffic));
    EVENTUALLY(end_peek64(&p->a, kind == READS ? CHUNK + 8 : 0) > 100 * (kind == ATOMICS), "the first bytes");
}

/* Most of the time the initiator is in the middle of a copy, so that is mostly where it is stopped. */
static void a_stopped_initiator_changes_nothing(enum taking how, enum kind kind)
{
    /* Sometimes more than an address has places in an arena. */
    unsigned int rounds = long_tests() ? 200 : how == ENTERS_ERR && kind == WRITES ? MAPPED_PLACES + 4 : 4;

    for (unsigned int round = 1; round <= rounds; round++) {
        struct stream traffic = {.kind = kind};
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct end_call call;
        struct pair p;

        attr.size = 2 * CHUNK;
        attr.timeout = 10;
        attr.retry_cnt = 1;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, FAR, &attr);
        end_connect(&p.a, &p.b);
        need_direct(&p.a);
        start_stream(&call, &p, &traffic, round);
        side_stop(FAR);
        take_back(&p.a, how);
        end_fill(&p.a, 0, 2 * CHUNK, 1000 + round);
        side_continue(FAR);
        end_finish(&call);
        end_expect_data(&p.a, 0, 2 * CHUNK, 1000 + round);
        end_close(&p.a);
        end_close(&p.b);
    }
}

#define STOPPED(name, how, kind)                                                                             \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        a_stopped_initiator_changes_nothing(how, kind);                                                      \
    }
STOPPED(a_stopped_initiator_changes_nothing_after_dereg, DEREGISTERS, WRITES)
STOPPED(a_stopped_initiator_changes_nothing_after_rereg, REREGISTERS, WRITES)
STOPPED(a_stopped_initiator_changes_nothing_after_err, ENTERS_ERR, WRITES)
STOPPED(a_stopped_initiator_changes_nothing_after_reset, ENTERS_RESET, WRITES)
STOPPED(a_stopped_initiator_changes_nothing_after_destroy, DESTROYS_QP, WRITES)
STOPPED(a_stopped_initiator_of_atomics_changes_nothing_after_dereg, DEREGISTERS, ATOMICS)
STOPPED(a_stopped_initiator_of_atomics_changes_nothing_after_err, ENTERS_ERR, ATOMICS)
STOPPED(a_stopped_initiator_of_atomics_changes_nothing_after_destroy, DESTROYS_QP, ATOMICS)
STOPPED(a_stopped_reader_reads_nothing_new_after_dereg, DEREGISTERS, READS)
STOPPED(a_stopped_reader_reads_nothing_new_after_err, ENTERS_ERR, READS)
STOPPED(a_stopped_reader_reads_nothing_new_after_destroy, DESTROYS_QP, READS)

static void a_killed_initiator_holds_nothing_up(void **state)
{
    for (unsigned int i = 1; i <= (long_tests() ? 60 : 9); i++) {
        struct stream traffic = {.kind = (enum kind)(i % 3)};
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct end_call call;
        struct pair p;

        attr.size = 2 * CHUNK;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, &sides[i], &attr);
        end_connect(&p.a, &p.b);
        start_stream(&call, &p, &traffic, i);
        side_kill(&sides[i]);
        take_back(&p.a, (enum taking)(i % TAKINGS));
        end_fill(&p.a, 0, 2 * CHUNK, 1000 + i);
        end_expect_data(&p.a, 0, 2 * CHUNK, 1000 + i);
        free(call.box);
        end_close(&p.a);
    }
}

/* --- messages that are fetched ----------------------------------------------------------------------- */

/* The first 8 bytes that arrive. */
static uint64_t sent_bytes(struct pair *p, size_t length)
{
    static uint64_t id;

    id++;
    end_recv(&p->b, a_recv(&p->b, id, 0, length));
    end_send(&p->a, a_send(&p->a, id, 0, length));
    end_expect_success(&p->a, SQ, id, IBV_WC_SEND);
    end_expect_success(&p->b, RQ, id, IBV_WC_RECV);
    return end_peek64(&p->b, 0);
}

/* The kernel would copy what is in the program's address space now. As with an adapter, what was registered
 * is what is sent. */
static void large_sends_are_fetched_from_mapped_memory(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    uint64_t first;
    struct pair p;

    attr.size = CHUNK;
    attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
    pair_connect_as(&p, &attr);
    need_direct(&p.a);
    end_fill(&p.a, 0, CHUNK, 1);
    first = end_peek64(&p.a, 0);
    assert_true(first != 0);
    assert_int_equal(sent_bytes(&p, CHUNK), first);
    CHECK(mmap(p.a.buf, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              p.a.buf,
          "mmap: %s", strerror(errno));
    EVENTUALLY(sent_bytes(&p, CHUNK) == first, "mapped memory of the sender");
    end_expect_data(&p.b, 0, CHUNK, 1);
    pair_close(&p);
}

/* A message is a single packet, and little is done with it but copying. */
enum { MESSAGE = CHUNK / 4, RECEIVES = 12, LAST = 1000 };

/* Until the message on the other QP; everything before ends with that word. */
static void receive_all(struct end *end, void *arg)
{
    const uint64_t *word = arg;
    struct ibv_wc wc = {0};

    for (unsigned int i = 0; i < RECEIVES; i++)
        end_recv(end, a_recv(end, i, i * (size_t)MESSAGE, MESSAGE));
    for (;;) {
        end_poll(end, RQ, &wc, 1);
        CHECK(wc.status == IBV_WC_SUCCESS, "receive %llu: %s", (unsigned long long)wc.wr_id,
              ibv_wc_status_str(wc.status));
        if (wc.wr_id == LAST)
            return;
        CHECK(memcmp(end->buf + (wc.wr_id + 1) * MESSAGE - sizeof(*word), word, sizeof(*word)) == 0,
              "received what was written after the buffer was given back");
        end_recv(end, a_recv(end, wc.wr_id, wc.wr_id * (size_t)MESSAGE, MESSAGE));
    }
}

/* Mostly it is stopped in the middle of a copy. */
static void a_stopped_receiver_takes_nothing_for_good(enum taking how)
{
    enum { SENDS = 60 };

    for (uint64_t round = 1; round <= (long_tests() ? 200 : 8); round++) {
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct pair p, other;
        struct end_call call;
        uint64_t word;

        attr.size = (RECEIVES + 1) * MESSAGE;
        attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
        pair_connect_as(&p, &attr);
        need_direct(&p.a);
        end_open(&other.a, NEAR, &attr);
        end_share(&other.b, &p.b);
        end_connect(&other.a, &other.b);
        end_fill(&p.a, 0, MESSAGE, round);
        word = end_peek64(&p.a, MESSAGE - sizeof(word));
        sent_bytes(&p, MESSAGE);
        end_recv(&other.b, a_recv(&other.b, LAST, RECEIVES * (size_t)MESSAGE, 8));
        end_start(&call, &p.b, receive_all, &word, sizeof(word));
        for (unsigned int i = 0; i < SENDS; i++)
            end_send(&p.a, a_send(&p.a, i, 0, MESSAGE));
        for (unsigned int i = 0; i < 2 * (round % 16); i++)
            end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        side_stop(FAR);
        take_back(&p.a, how);
        end_fill(&p.a, 0, MESSAGE, 1000 + round);
        side_continue(FAR);
        end_send(&other.a, a_send(&other.a, LAST, 0, 8));
        end_finish(&call);
        end_close_qp(&other.b);
        end_close(&other.a);
        pair_close(&p);
    }
}

#define FETCHED(name, how)                                                                                   \
    static void name(void **state)                                                                           \
    {                                                                                                        \
        a_stopped_receiver_takes_nothing_for_good(how);                                                      \
    }
FETCHED(a_stopped_receiver_takes_nothing_for_good_after_dereg, DEREGISTERS)
FETCHED(a_stopped_receiver_takes_nothing_for_good_after_rereg, REREGISTERS)
FETCHED(a_stopped_receiver_takes_nothing_for_good_after_err, ENTERS_ERR)
FETCHED(a_stopped_receiver_takes_nothing_for_good_after_destroy, DESTROYS_QP)

static void a_killed_receiver_holds_nothing_up(void **state)
{
    enum { SENDS = 60 };

    for (unsigned int i = 1; i <= (long_tests() ? 20 : 4); i++) {
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct end_call call;
        struct pair p;
        uint64_t word;

        attr.size = (RECEIVES + 1) * MESSAGE;
        attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
        end_open(&p.a, NEAR, &attr);
        end_open(&p.b, &sides[i], &attr);
        end_connect(&p.a, &p.b);
        end_fill(&p.a, 0, MESSAGE, i);
        word = end_peek64(&p.a, MESSAGE - sizeof(word));
        sent_bytes(&p, MESSAGE);
        end_start(&call, &p.b, receive_all, &word, sizeof(word));
        for (unsigned int k = 0; k < SENDS; k++)
            end_send(&p.a, a_send(&p.a, k, 0, MESSAGE));
        for (unsigned int k = 0; k < 4 * (i % 4); k++)
            end_expect_success(&p.a, SQ, k, IBV_WC_SEND);
        side_kill(&sides[i]);
        take_back(&p.a, (enum taking)(i % TAKINGS));
        end_fill(&p.a, 0, MESSAGE, 1000 + i);
        end_expect_data(&p.a, 0, MESSAGE, 1000 + i);
        free(call.box);
        end_close(&p.a);
    }
}

int main(int argc, char **argv)
{
#define DIRECT(fn, count)                                                                                    \
    TEST_WITH(fn, .fars = count, .needs = NEEDS_TWO_PROCESSES, .seconds = long_tests() ? 600 : 0)
    const struct test tests[] = {
        DIRECT(requests_need_nothing_of_a_target_that_is_stopped, 1),
        DIRECT(what_the_target_forbids_is_judged_by_it, 1),
        DIRECT(who_may_write_can_where_others_may_only_read, 1),
        DIRECT(a_dead_target_takes_nothing_more, 1),
        DIRECT(a_region_that_comes_and_goes_disturbs_no_other_on_its_pages, 1),
        DIRECT(a_stopped_initiator_changes_nothing_after_dereg, 1),
        DIRECT(a_stopped_initiator_changes_nothing_after_rereg, 1),
        DIRECT(a_stopped_initiator_changes_nothing_after_err, 1),
        DIRECT(a_stopped_initiator_changes_nothing_after_reset, 1),
        DIRECT(a_stopped_initiator_changes_nothing_after_destroy, 1),
        DIRECT(a_stopped_reader_reads_nothing_new_after_dereg, 1),
        DIRECT(a_stopped_reader_reads_nothing_new_after_err, 1),
        DIRECT(a_stopped_reader_reads_nothing_new_after_destroy, 1),
        DIRECT(a_killed_initiator_holds_nothing_up, long_tests() ? 60 : 9),
        /* The rest: atomics, which the kernel cannot copy, and messages that are fetched from mapped memory. */
        DIRECT(atomics_need_nothing_of_a_target_that_is_stopped, 1),
        DIRECT(atomics_of_both_ways_are_atomic_to_each_other, 2),
        DIRECT(a_stopped_initiator_of_atomics_changes_nothing_after_dereg, 1),
        DIRECT(a_stopped_initiator_of_atomics_changes_nothing_after_err, 1),
        DIRECT(a_stopped_initiator_of_atomics_changes_nothing_after_destroy, 1),
        DIRECT(a_killed_receiver_holds_nothing_up, long_tests() ? 20 : 4),
        DIRECT(large_sends_are_fetched_from_mapped_memory, 1),
        DIRECT(a_stopped_receiver_takes_nothing_for_good_after_dereg, 1),
        DIRECT(a_stopped_receiver_takes_nothing_for_good_after_rereg, 1),
        DIRECT(a_stopped_receiver_takes_nothing_for_good_after_err, 1),
        DIRECT(a_stopped_receiver_takes_nothing_for_good_after_destroy, 1),
    };
    const unsigned int of_mapped_memory = 11;

    return run_topic(tests, COUNT(tests) - (by_copy() ? of_mapped_memory : 0), argc, argv);
}
