/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of another adapter's objects: an adapter that is none, whose functions count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after those */
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/refusal.h"
#include "rules/fault.h"
#include "watch/registration.h"
#include "watch/watch.h"

enum { DEPTH = 8 };

static struct ibv_context context;
static struct ibv_pd pd = {.context = &context};
static struct ibv_cq cq = {.context = &context, .cqe = 31};
static struct ibv_qp qp = {.context = &context, .qp_num = 0x123, .qp_type = IBV_QPT_RC, .state = IBV_QPS_RTS};
static unsigned accepts; /* posts; the next is refused */
static struct ibv_wc ready[DEPTH];
static int ready_count;

static int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    for (; wr; wr = wr->next) {
        if (!accepts) {
            *bad = wr;
            return ENOMEM;
        }
        accepts--;
    }
    return 0;
}

static int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    for (; wr; wr = wr->next) {
        if (!accepts) {
            *bad = wr;
            return ENOMEM;
        }
        accepts--;
    }
    return 0;
}

static int fake_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return 0;
}

static int fake_poll(struct ibv_cq *ibv, int count, struct ibv_wc *wc)
{
    int given = ready_count < count ? ready_count : count;

    memcpy(wc, ready, (size_t)given * sizeof(*wc));
    ready_count = 0;
    return given;
}

static struct watched_qp *known_qp;
static struct watched_cq *known_cq;

static int open_all(void **state)
{
    struct watched_context *known = watched_new_context(&context, "fake0");

    assert_non_null(known);
    known->original.ops.post_send = fake_post_send;
    known->original.ops.post_recv = fake_post_recv;
    known->original.ops.poll_cq = fake_poll;
    assert_non_null(watched_new_pd(&pd, &context, NULL, NULL));
    known_cq = watched_new_cq(&cq, NULL);
    known_qp = watched_new_qp(
        &qp,
        &(struct watched_qp_attr){.pd = &pd, .send_cq = &cq, .recv_cq = &cq, .cap = {DEPTH, DEPTH, 2, 1, 0}});
    assert_non_null(known_qp);
    accepts = 1000;
    ready_count = 0;
    return 0;
}

static int close_all(void **state)
{
    watched_context_closed(watched_context_of(&context));
    assert_null(watched_find(&qp, OBJECT_QP));
    assert_null(watched_context_of(&context));
    return 0;
}

static int send(uint64_t wr_id, unsigned flags)
{
    struct ibv_sge sge = {0x1000, 8, 0x77};
    struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .send_flags = flags}, *bad;

    return watched_post_send(&qp, &wr, &bad, known_qp);
}

static void poll_one(uint64_t wr_id, enum ibv_wc_status status, unsigned opcode, uint32_t qpn)
{
    struct ibv_wc wc;

    ready[0] = (struct ibv_wc){.wr_id = wr_id, .status = status, .opcode = opcode, .qp_num = qpn};
    ready_count = 1;
    assert_int_equal(watched_poll_cq(&cq, 1, &wc, known_cq), 1);
}

static uint32_t outstanding(void)
{
    return known_qp->record->sender.posted - known_qp->record->sender.completed;
}

static void a_signaled_completion_retires_those_before_it(void **state)
{
    assert_int_equal(send(7, 0), 0);
    assert_int_equal(send(7, IBV_SEND_SIGNALED), 0);
    assert_int_equal(send(7, IBV_SEND_SIGNALED), 0);
    assert_int_equal(outstanding(), 3);
    poll_one(7, IBV_WC_SUCCESS, IBV_WC_SEND, 0x123);
    assert_int_equal(outstanding(), 1);
    poll_one(7, IBV_WC_SUCCESS, IBV_WC_SEND, 0x123);
    assert_int_equal(outstanding(), 0);
    assert_int_equal(known_qp->record->unseen, 0);
}

/* The rkey of an atomic is elsewhere in the work request than a WRITE's; a SEND has none. */
static void what_a_work_request_names_is_recorded(void **state)
{
    struct ibv_sge sge = {0x1000, 8, 0x77};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP}, *bad;
    const struct watched_send *first = (void *)known_qp->send.slots;
    const struct watched_rest *rest = (void *)known_qp->rests;
    const struct failure_record *failure = &known_qp->rare->failure;

    wr.wr.atomic.remote_addr = 0x2000;
    wr.wr.atomic.compare_add = 5;
    wr.wr.atomic.rkey = 0x99;
    assert_int_equal(watched_post_send(&qp, &wr, &bad, known_qp), 0);
    assert_int_equal(rest->remote_address, 0x2000);
    assert_int_equal(rest->rkey, 0x99);
    assert_memory_equal(&first->address, &sge, sizeof(sge));
    for (unsigned i = 1; i < known_qp->send.depth; i++) {
        assert_int_equal(send(i, IBV_SEND_SIGNALED), 0);
        poll_one(i, IBV_WC_SUCCESS, IBV_WC_SEND, 0x123);
    }
    wr.opcode = IBV_WR_SEND_WITH_INV;
    wr.wr_id = 4711;
    assert_int_equal(watched_post_send(&qp, &wr, &bad, known_qp), 0);
    poll_one(4711, IBV_WC_REM_INV_REQ_ERR, IBV_WC_SEND, 0x123);
    assert_int_equal(failure->opcode, IBV_WR_SEND_WITH_INV);
    assert_int_equal(failure->length, 8);
    assert_int_equal(failure->remote_address, 0);
    assert_int_equal(failure->rkey, 0);
}

/* Queues that a thread uses often are its own: the same records as before, and of several at once. */
static void the_owner_of_a_queue_posts_and_polls(void **state)
{
    struct ibv_send_wr chain[2] = {{.wr_id = 1, .next = &chain[1]},
                                   {.wr_id = 2, .send_flags = IBV_SEND_SIGNALED}},
                       *bad;
    const struct recv_wqe *receives = (void *)known_qp->receive.slots;
    struct ibv_sge sge = {0x3000, 16, 0x88};
    struct ibv_recv_wr receive = {.wr_id = 70, .sg_list = &sge, .num_sge = 1}, *bad_receive;

    for (unsigned i = 0; i < 200; i++) {
        receive.wr_id = i;
        assert_int_equal(watched_post_recv(&qp, &receive, &bad_receive, known_qp), 0);
        assert_int_equal(receives[0].num_sge, 1);
        assert_int_equal(send(i, i % 2 ? IBV_SEND_SIGNALED : 0), 0);
        if (i % 2)
            poll_one(i, IBV_WC_SUCCESS, IBV_WC_SEND, 0x123);
        poll_one(i, IBV_WC_SUCCESS, IBV_WC_RECV, 0x123);
        assert_int_equal(known_qp->record->receive.posted - known_qp->record->receive.taken, 0);
    }
    assert_int_equal(outstanding(), 0);
    assert_int_equal(watched_post_send(&qp, chain, &bad, known_qp), 0);
    assert_int_equal(outstanding(), 2);
    accepts = 0;
    assert_int_equal(send(3, 0), ENOMEM);
    assert_int_equal(outstanding(), 2);
    accepts = 1000;
    poll_one(2, IBV_WC_SUCCESS, IBV_WC_SEND, 0x123);
    assert_int_equal(outstanding(), 0);
    assert_int_equal(known_qp->record->unseen, 0);
}

/* Successes of several queues in one poll, and an error between them. */
static void a_batch_is_noted(void **state)
{
    static struct ibv_qp other = {
        .context = &context, .qp_num = 0x133, .qp_type = IBV_QPT_RC}; /* recent[] of 0x123 */
    struct watched_qp *known_other = watched_new_qp(
        &other,
        &(struct watched_qp_attr){.pd = &pd, .send_cq = &cq, .recv_cq = &cq, .cap = {DEPTH, DEPTH, 1, 1, 0}});
    struct ibv_sge sge = {0x3000, 16, 0x88};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
    struct ibv_wc wc[DEPTH];

    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < 3; i++) {
            wr.wr_id = receive.wr_id = 10 * round + i;
            assert_int_equal(op_post_send(&qp, &wr, &bad), 0);
            assert_int_equal(op_post_recv(&qp, &receive, &bad_receive), 0);
            if (i < 2)
                assert_int_equal(op_post_send(&other, &wr, &bad), 0);
        }
        for (unsigned i = 0; i < 3; i++) {
            ready[2 * i] = (struct ibv_wc){.wr_id = 10 * round + i, .qp_num = 0x123};
            ready[2 * i + 1] = ready[2 * i];
            ready[2 * i + 1].opcode = IBV_WC_RECV;
        }
        for (unsigned i = 0; i < 2; i++)
            ready[6 + i] = (struct ibv_wc){.wr_id = 10 * round + i, .qp_num = 0x133};
        ready_count = 8;
        assert_int_equal(op_poll_cq(&cq, DEPTH, wc), 8);
        assert_int_equal(outstanding(), 0);
        assert_int_equal(known_qp->record->receive.posted, known_qp->record->receive.taken);
        assert_int_equal(known_other->record->sender.posted, known_other->record->sender.completed);
    }
    assert_int_equal(known_cq->record->produced, 800);
    assert_true(known_qp->send.counted && known_qp->receive.counted);
    /* From here on each completion is compared. */
    wr.send_flags = 0;
    wr.wr_id = 1;
    assert_int_equal(op_post_send(&qp, &wr, &bad), 0);
    wr.send_flags = IBV_SEND_SIGNALED;
    for (wr.wr_id = 2; wr.wr_id < 5; wr.wr_id++)
        assert_int_equal(op_post_send(&qp, &wr, &bad), 0);
    ready[0] = (struct ibv_wc){.wr_id = 2, .qp_num = 0x123};
    ready[1] = (struct ibv_wc){.wr_id = 3, .qp_num = 0x123, .status = IBV_WC_REM_ACCESS_ERR};
    ready[2] = (struct ibv_wc){.wr_id = 4, .qp_num = 0x123, .status = IBV_WC_WR_FLUSH_ERR};
    ready_count = 3;
    assert_int_equal(op_poll_cq(&cq, DEPTH, wc), 3);
    assert_int_equal(outstanding(), 0);
    assert_int_equal(known_qp->rare->failure.wr_id, 3);
    assert_int_equal(known_qp->record->unseen, 0);
    assert_int_equal(known_other->record->unseen, 0);
    assert_int_equal(known_cq->news, NEWS_NONE);
    /* More completions than posts. */
    ready[0] = ready[1] = (struct ibv_wc){.wr_id = 9, .qp_num = 0x133};
    ready_count = 2;
    wr.wr_id = 9;
    assert_int_equal(op_post_send(&other, &wr, &bad), 0);
    assert_int_equal(op_poll_cq(&cq, DEPTH, wc), 2);
    assert_int_equal(known_other->record->unseen, UNSEEN_SENDS);
}

/* What a thread used last is not found by the address of an object that is gone. */
static void another_object_at_the_same_address(void **state)
{
    struct ibv_send_wr wr = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc;

    assert_int_equal(op_post_send(&qp, &wr, &bad), 0);
    assert_int_equal(op_poll_cq(&cq, 1, &wc), 0);
    close_all(NULL);
    open_all(NULL);
    assert_int_equal(op_post_send(&qp, &wr, &bad), 0);
    assert_int_equal(outstanding(), 1);
    ready[0] = (struct ibv_wc){.wr_id = 5, .qp_num = 0x123};
    ready_count = 1;
    assert_int_equal(op_poll_cq(&cq, 1, &wc), 1);
    assert_int_equal(outstanding(), 0);
    /* Nor inside of an original. */
    watch_enter();
    assert_int_equal(op_post_send(&qp, &wr, &bad), 0);
    watch_leave();
    assert_int_equal(outstanding(), 0);
}

static void what_is_refused_is_not_outstanding(void **state)
{
    struct ibv_send_wr chain[3] = {{.next = &chain[1]}, {.next = &chain[2]}, {.next = NULL}}, *bad = NULL;

    accepts = 1;
    assert_int_equal(watched_post_send(&qp, chain, &bad, known_qp), ENOMEM);
    assert_ptr_equal(bad, &chain[1]);
    assert_int_equal(outstanding(), 1);
}

static void an_adapter_that_frees_slots_by_itself(void **state)
{
    for (uint64_t i = 0; i < 3 * DEPTH; i++)
        assert_int_equal(send(i, 0), 0);
    assert_int_equal(outstanding(), DEPTH);
    assert_int_equal(send(100, IBV_SEND_SIGNALED), 0);
    poll_one(100, IBV_WC_SUCCESS, IBV_WC_SEND, 0x123);
    assert_int_equal(outstanding(), 0);
    assert_int_equal(known_qp->record->unseen, 0);
}

static void posts_past_libibverbs_are_unseen(void **state)
{
    assert_int_equal(send(1, IBV_SEND_SIGNALED), 0);
    poll_one(99, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0x123);
    assert_int_equal(known_qp->record->unseen, UNSEEN_SENDS);
    poll_one(98, IBV_WC_SUCCESS, IBV_WC_RECV, 0x123);
    assert_int_equal(known_qp->record->unseen, UNSEEN_SENDS | UNSEEN_RECEIVES);
    poll_one(98, IBV_WC_SUCCESS, IBV_WC_RECV, 0x999); /* of nobody */
}

static void the_first_error_is_kept(void **state)
{
    struct ibv_recv_wr receive = {.wr_id = 5}, *bad;

    assert_int_equal(watched_post_recv(&qp, &receive, &bad, known_qp), 0);
    assert_int_equal(send(6, 0), 0);
    assert_int_equal(send(7, IBV_SEND_SIGNALED), 0);
    /* The opcode of a completion in error says nothing. */
    poll_one(6, IBV_WC_REM_ACCESS_ERR, 0, 0x123);
    poll_one(7, IBV_WC_WR_FLUSH_ERR, 0, 0x123);
    poll_one(5, IBV_WC_WR_FLUSH_ERR, 0, 0x123);
    assert_int_equal(known_qp->rare->failure.status, IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(known_qp->rare->failure.wr_id, 6);
    assert_int_equal(known_qp->record->state, IBV_QPS_ERR);
    assert_int_equal(outstanding(), 0);
    assert_int_equal(known_qp->record->receive.posted, known_qp->record->receive.taken);
}

/* The first error of a QP after a send of one SGE, and of a second one. */
static enum fault_cause cause_after(enum ibv_wc_status status, struct ibv_sge first, struct ibv_sge second)
{
    struct ibv_sge sges[] = {first, second};
    struct ibv_send_wr wr = {
        .wr_id = 5, .sg_list = sges, .num_sge = second.length ? 2 : 1, .opcode = IBV_WR_SEND};
    struct ibv_send_wr *bad;
    enum fault_cause cause;

    wr.send_flags = IBV_SEND_SIGNALED;
    assert_int_equal(watched_post_send(&qp, &wr, &bad, known_qp), 0);
    poll_one(5, status, IBV_WC_SEND, 0x123);
    assert_true(known_qp->rare->failure.ns);
    cause = known_qp->rare->fault.ns ? (enum fault_cause)known_qp->rare->fault.cause : FAULT_NONE;
    work_forget(known_qp);
    return cause;
}

static void what_the_process_knows_of_an_error_is_its_cause(void **state)
{
    static struct ibv_mr mr = {
        .context = &context, .pd = &pd, .addr = (void *)0x1000, .length = 4096, .lkey = 0x77, .rkey = 0x78};
    const struct ibv_sge right = {0x1000, 8, 0x77}, none = {0, 0, 0};
    const struct fault_record *fault = &known_qp->rare->fault;

    watched_new_mr(&mr, &pd, 0x1000, 0, NULL, 0);
    /* Nothing of it is wrong here: why only the adapter knows. */
    assert_int_equal(cause_after(IBV_WC_LOC_PROT_ERR, right, none), FAULT_NONE);
    assert_int_equal(cause_after(IBV_WC_LOC_PROT_ERR, (struct ibv_sge){0x1000, 8, 0x78}, none),
                     FAULT_KEY_IS_RKEY);
    assert_int_equal(cause_after(IBV_WC_LOC_PROT_ERR, (struct ibv_sge){0x1000, 8, 0x99}, none),
                     FAULT_KEY_UNKNOWN);
    assert_int_equal(cause_after(IBV_WC_LOC_PROT_ERR, (struct ibv_sge){0x1ff0, 32, 0x77}, none),
                     FAULT_RANGE_END);
    assert_int_equal(fault->value, 16);
    /* The MR of the first one may not have been seen. */
    assert_int_equal(cause_after(IBV_WC_LOC_PROT_ERR, (struct ibv_sge){0x1000, 8, 0x99},
                                 (struct ibv_sge){0xff0, 32, 0x77}),
                     FAULT_RANGE_BEGIN);
    /* Of the peer nothing is known before the QP is connected. */
    assert_int_equal(cause_after(IBV_WC_REM_ACCESS_ERR, right, none), FAULT_NONE);
    known_qp->record->attributes.dest_qpn = 0x456;
    assert_int_equal(cause_after(IBV_WC_REM_ACCESS_ERR, right, none), FAULT_NAK);
    assert_int_equal(cause_after(IBV_WC_RETRY_EXC_ERR, right, none), FAULT_SILENCE);
    assert_int_equal(cause_after(IBV_WC_GENERAL_ERR, right, none), FAULT_NONE);
}

static void an_srq_is_taken_in_any_order(void **state)
{
    static struct ibv_srq ibv = {.context = &context};
    static struct ibv_qp other = {.context = &context, .qp_num = 0x200, .qp_type = IBV_QPT_RC};
    struct watched_srq *srq = watched_new_srq(&ibv, &pd, NULL, NULL, 4, 1);
    struct srq_record *record;

    assert_non_null(srq);
    srq->post = fake_post_srq_recv;
    watched_new_qp(&other, &(struct watched_qp_attr){.pd = &pd, .send_cq = &cq, .recv_cq = &cq, .srq = &ibv});
    record = segment_srq(srq->base.number);
    for (uint64_t i = 0; i < 3; i++) {
        struct ibv_recv_wr wr = {.wr_id = i}, *bad;

        assert_int_equal(watched_post_srq_recv(&ibv, &wr, &bad, srq), 0);
    }
    poll_one(1, IBV_WC_SUCCESS, IBV_WC_RECV, 0x200);
    poll_one(2, IBV_WC_SUCCESS, IBV_WC_RECV, 0x200);
    assert_int_equal(record->posted - record->taken, 1);
    poll_one(0, IBV_WC_SUCCESS, IBV_WC_RECV, 0x200);
    assert_int_equal(record->posted, record->taken);
    assert_false(srq->unseen);
}

static void reset_forgets_work(void **state)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    assert_int_equal(send(1, IBV_SEND_SIGNALED), 0);
    watched_qp_modified(known_qp, &attr, IBV_QP_STATE);
    assert_int_equal(outstanding(), 0);
}

static void an_object_that_was_destroyed_unseen_makes_room(void **state)
{
    struct watched_qp *again =
        watched_new_qp(&qp, &(struct watched_qp_attr){.pd = &pd, .send_cq = &cq, .recv_cq = &cq});

    assert_non_null(again);
    assert_ptr_equal(watched_find(&qp, OBJECT_QP), again);
    assert_int_equal(known_cq->record->users, 2);
}

/* --- tables */

static void a_table_keeps_what_is_put(void **state)
{
    static struct table table;
    static char values[5000];

    for (uint64_t round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < 5000; i++)
            assert_true(table_put(&table, (i + 1) * 64, &values[i]));
        for (uint64_t i = 0; i < 5000; i += 1 + round % 2)
            table_drop(&table, (i + 1) * 64, &values[i]);
        for (uint64_t i = 0; i < 5000; i++)
            assert_ptr_equal(table_find(&table, (i + 1) * 64), round % 2 && i % 2 ? &values[i] : NULL);
    }
    table_put(&table, 64, &values[0]);
    table_drop(&table, 64, &values[1]); /* another's */
    assert_ptr_equal(table_find(&table, 64), &values[0]);
}

/* --- a lock that one thread owns */

enum { TURNS = 100000 };
static struct bias bias;
static uint64_t counted; /* guarded by it */

static void *count(void *argument)
{
    for (int i = 0; i < TURNS; i++) {
        bool locked = bias_acquire(&bias);

        counted++;
        bias_release(&bias, locked);
    }
    return NULL;
}

static void an_owned_lock_excludes_others(void **state)
{
    pthread_t threads[3];

    assert_true(watch_start());
    count(NULL); /* owns it by now */
    if (!fence_is_full)
        assert_int_equal(bias.owner, (uintptr_t)&watch_thread);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count, NULL), 0);
    count(NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(counted, 5 * TURNS);
}

static const char *no_memory(struct pin_limit pins, uintptr_t address, size_t length)
{
    static struct words words;

    words = (struct words){.length = 0};
    words_add_no_memory(&words, &pins, address, length);
    return words.text;
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* The kernel counts pages, and what is pinned already; not of who may lock memory. */
static void the_limit_of_locked_memory_is_told_where_it_is_the_reason(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct pin_limit pins = {.limit = 64 * page, .pinned = 60 * page, .known = true};

    assert_says(no_memory(pins, 10 * page, 5 * page), "is reached (RLIMIT_MEMLOCK is ");
    assert_says(no_memory(pins, 10 * page, 4 * page), "RLIMIT_MEMLOCK is not reached (");
    assert_says(no_memory(pins, 10 * page + 1, 4 * page), "is reached (RLIMIT_MEMLOCK is ");
    assert_says(no_memory(pins, 10 * page, SIZE_MAX), "is reached (RLIMIT_MEMLOCK is ");
    assert_says(no_memory(pins, 10 * page, 4 * page), "or the NIC has no MRs (max_mr)");
    pins.privileged = true;
    assert_says(no_memory(pins, 10 * page, 5 * page), "RLIMIT_MEMLOCK may be reached (");
    pins = (struct pin_limit){.limit = 64 * page};
    assert_says(no_memory(pins, 10 * page, page), "RLIMIT_MEMLOCK may be reached (");
    pins.limit = UINT64_MAX;
    assert_says(no_memory(pins, 10 * page, 5 * page),
                ": RLIMIT_MEMLOCK is unlimited: memory of the host or its cgroup");
    assert_true(pin_limit_now().known);
}

static void pages_that_cannot_be_pinned_are_told_from_those_that_are_not_there(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct words words = {.length = 0};
    struct refusal why;

    assert_ptr_not_equal(memory, MAP_FAILED);
    words_add_unpinned(&words, (uintptr_t)memory, 2 * page, false);
    assert_false(refusal_take(-EFAULT, &why));
    assert_says(words.text,
                "all its pages are mapped with the permissions that are needed, but the kernel cannot pin");
    words = (struct words){.length = 0};
    words_add_unpinned(&words, (uintptr_t)memory, 2 * page, true);
    assert_int_equal(words.length, 0);
    assert_true(refusal_take(-EFAULT, &why));
    assert_int_equal(why.form, REFUSAL_UNWRITABLE);
    assert_int_equal(munmap(memory + page, page), 0);
    words_add_unpinned(&words, (uintptr_t)memory, 2 * page, false);
    assert_int_equal(words.length, 0);
    assert_true(refusal_take(-EFAULT, &why));
    assert_int_equal(why.form, REFUSAL_UNMAPPED);
    assert_int_equal(why.value, (int64_t)(uintptr_t)(memory + page));
    words_add_unpinned(&words, (uintptr_t)memory, SIZE_MAX, false);
    assert_false(refusal_take(-EFAULT, &why));
    assert_says(words.text, "one of its pages is not mapped");
    munmap(memory, page);
}

int main(void)
{
#define WITH_ALL(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)
    const struct CMUnitTest tests[] = {
        WITH_ALL(a_batch_is_noted),
        WITH_ALL(another_object_at_the_same_address),
        WITH_ALL(a_signaled_completion_retires_those_before_it),
        WITH_ALL(what_a_work_request_names_is_recorded),
        WITH_ALL(the_owner_of_a_queue_posts_and_polls),
        WITH_ALL(what_is_refused_is_not_outstanding),
        WITH_ALL(an_adapter_that_frees_slots_by_itself),
        WITH_ALL(posts_past_libibverbs_are_unseen),
        WITH_ALL(the_first_error_is_kept),
        WITH_ALL(what_the_process_knows_of_an_error_is_its_cause),
        WITH_ALL(an_srq_is_taken_in_any_order),
        WITH_ALL(reset_forgets_work),
        WITH_ALL(an_object_that_was_destroyed_unseen_makes_room),
        cmocka_unit_test(a_table_keeps_what_is_put),
        cmocka_unit_test(the_limit_of_locked_memory_is_told_where_it_is_the_reason),
        cmocka_unit_test(pages_that_cannot_be_pinned_are_told_from_those_that_are_not_there),
        cmocka_unit_test(an_owned_lock_excludes_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
