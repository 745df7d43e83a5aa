/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Mistakes that softhca watch tells of over any adapter, and uses of verbs that it has to follow.
 *
 * usage: watched NAME; as situations.c: one that hangs says "hangs" first, and goes on when it reads a line.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

enum { WRS = 8 };

struct pair {
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
};

static void pair_open(struct pair *pair)
{
    node_open(&pair->node);
    pair->cq = ibv_create_cq(pair->node.context, 64, NULL, NULL, 0);
    REQUIRE(pair->cq);
    pair->a = make_qp(&pair->node, pair->cq, NULL, WRS);
    pair->b = make_qp(&pair->node, pair->cq, NULL, WRS);
    connect_qps(&pair->node, pair->a, pair->b, 14, 7, 7);
}

static void pair_close(struct pair *pair)
{
    REQUIRE(ibv_destroy_qp(pair->a) == 0);
    REQUIRE(ibv_destroy_qp(pair->b) == 0);
    REQUIRE(ibv_destroy_cq(pair->cq) == 0);
    node_close(&pair->node);
}

/* --- an event of an SRQ is not acknowledged */

static struct ibv_async_event unacknowledged;

static void *acknowledge_later(void *argument)
{
    wait_for_word();
    ibv_ack_async_event(&unacknowledged);
    return NULL;
}

static void srq_limit(void)
{
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_recv_wr *bad;
    struct ibv_qp *a, *b;
    struct ibv_srq *srq;
    struct ibv_cq *cq;
    struct node node;
    pthread_t thread;

    node_open(&node);
    cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
    srq = ibv_create_srq(node.pd, &srq_attr);
    REQUIRE(cq && srq);
    a = make_qp(&node, cq, NULL, 4);
    b = make_qp(&node, cq, srq, 4);
    connect_qps(&node, a, b, 14, 7, 7);
    struct ibv_sge sge = {(uintptr_t)node.buffer, 64, node.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1};
    REQUIRE(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    REQUIRE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    post_send(&node, a, 4, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    wait_for_completion(cq);
    wait_for_completion(cq);
    REQUIRE(ibv_get_async_event(node.context, &unacknowledged) == 0);
    REQUIRE(unacknowledged.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
    REQUIRE(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    REQUIRE(pthread_create(&thread, NULL, acknowledge_later, NULL) == 0);
    say("hangs");
    REQUIRE(ibv_destroy_srq(srq) == 0);
    pthread_join(thread, NULL);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- work requests */

static void full_of_unsignaled(void)
{
    struct pair pair;
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    int error = 0;

    pair_open(&pair);
    sge = (struct ibv_sge){(uintptr_t)pair.node.buffer, 64, pair.node.mr->lkey};
    wr.wr.rdma.remote_addr = (uintptr_t)pair.node.buffer + BUFFER_BYTES / 2;
    wr.wr.rdma.rkey = pair.node.mr->rkey;
    for (wr.wr_id = 1; wr.wr_id < 4096 && !error; wr.wr_id++)
        error = ibv_post_send(pair.a, &wr, &bad);
    REQUIRE(!error || error == ENOMEM || error == -ENOMEM);
    if (error)
        say("hangs 0x%06x", pair.a->qp_num);
    else /* the adapter frees slots without completions */
        say("accepted 0x%06x", pair.a->qp_num);
    wait_for_word();
    if (!error) {
        post_send(&pair.node, pair.a, 5000, IBV_WR_RDMA_WRITE, 64, IBV_SEND_SIGNALED);
        REQUIRE(wait_for_completion(pair.cq).wr_id == 5000);
    }
    pair_close(&pair);
}

static void wrong_rkey(void)
{
    struct pair pair;
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 0x1267,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    pair_open(&pair);
    sge = (struct ibv_sge){(uintptr_t)pair.node.buffer, 64, pair.node.mr->lkey};
    wr.wr.rdma.remote_addr = 0x1000;
    wr.wr.rdma.rkey = pair.node.mr->rkey;
    REQUIRE(ibv_post_send(pair.a, &wr, &bad) == 0);
    REQUIRE(wait_for_completion(pair.cq).status == IBV_WC_REM_ACCESS_ERR);
    say("hangs 0x%06x", pair.a->qp_num);
    wait_for_word();
    pair_close(&pair);
}

static void refused_modify(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
    qp = make_qp(&node, cq, NULL, 4);
    to_init(qp);
    REQUIRE(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    REQUIRE(ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC) == EINVAL);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* More receives than the CQ has entries. */
static void small_cq(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = ibv_create_cq(node.context, 1, NULL, NULL, 0);
    REQUIRE(cq);
    qp = make_qp(&node, cq, NULL, 64);
    to_init(qp);
    for (int i = 0; i <= cq->cqe && i < 64; i++)
        post_receive(&node, qp, (uint64_t)i, 64);
    say("hangs");
    wait_for_word();
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- a thread waits for an event that nobody asked for */

static void *wait_for_event(void *channel)
{
    struct ibv_cq *cq;
    void *context;

    REQUIRE(ibv_get_cq_event(channel, &cq, &context) == 0);
    ibv_ack_cq_events(cq, 1);
    return NULL;
}

static void unarmed(void)
{
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;
    pthread_t thread;

    node_open(&node);
    channel = ibv_create_comp_channel(node.context);
    REQUIRE(channel);
    cq = ibv_create_cq(node.context, 16, NULL, channel, 0);
    qp = make_qp(&node, cq, NULL, 4);
    to_init(qp);
    post_receive(&node, qp, 1, 64);
    REQUIRE(pthread_create(&thread, NULL, wait_for_event, channel) == 0);
    say("hangs");
    wait_for_word();
    REQUIRE(ibv_req_notify_cq(cq, 0) == 0);
    to_error(qp); /* the receive is flushed */
    pthread_join(thread, NULL);
    wait_for_completion(cq);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_destroy_comp_channel(channel) == 0);
    node_close(&node);
}

/* --- ibv_wr_*() and ibv_start_poll() */

static void extended(void)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_poll_cq_attr poll_attr = {0};
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = WRS, .max_recv_wr = WRS, .max_send_sge = 2, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
    };
    struct ibv_sge sges[2];
    struct ibv_cq_ex *cq;
    struct ibv_qp_ex *ex;
    struct ibv_qp *a, *b;
    struct node node;
    int error;

    node_open(&node);
    cq = ibv_create_cq_ex(node.context, &cq_attr);
    if (!cq) {
        say("not supported");
        node_close(&node);
        return;
    }
    attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
    attr.pd = node.pd;
    a = ibv_create_qp_ex(node.context, &attr);
    b = ibv_create_qp_ex(node.context, &attr);
    REQUIRE(a && b);
    connect_qps(&node, a, b, 14, 7, 7);
    ex = ibv_qp_to_qp_ex(a);
    for (int round = 0; round < 100; round++) {
        ibv_wr_start(ex); /* given up */
        ex->wr_id = 1;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, node.mr->rkey, (uintptr_t)node.buffer + BUFFER_BYTES / 2);
        ibv_wr_set_sge(ex, node.mr->lkey, (uintptr_t)node.buffer, 64);
        ibv_wr_abort(ex);
        ibv_wr_start(ex);
        ex->wr_id = (uint64_t)round;
        ex->wr_flags = 0;
        ibv_wr_rdma_write(ex, node.mr->rkey, (uintptr_t)node.buffer + BUFFER_BYTES / 2);
        ibv_wr_set_sge(ex, node.mr->lkey, (uintptr_t)node.buffer, 64);
        ex->wr_id = (uint64_t)round + 1000;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, node.mr->rkey, (uintptr_t)node.buffer + BUFFER_BYTES / 2);
        sges[0] = sges[1] = (struct ibv_sge){(uintptr_t)node.buffer, 32, node.mr->lkey};
        ibv_wr_set_sge_list(ex, 2, sges);
        REQUIRE(ibv_wr_complete(ex) == 0);
        if (round == 99)
            break; /* this one stays unpolled */
        do {
            error = ibv_start_poll(cq, &poll_attr);
        } while (error == ENOENT);
        REQUIRE(error == 0 && cq->status == IBV_WC_SUCCESS && cq->wr_id == (uint64_t)round + 1000);
        REQUIRE(ibv_next_poll(cq) == ENOENT);
        ibv_end_poll(cq);
    }
    say("hangs 0x%06x", a->qp_num);
    wait_for_word();
    REQUIRE(ibv_destroy_qp(a) == 0);
    REQUIRE(ibv_destroy_qp(b) == 0);
    REQUIRE(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    node_close(&node);
}

/* --- threads that post to their own QPs and poll a CQ that they share, while others come and go */

enum { THREADS = 4, ROUNDS = 3000 };

static struct pair shared[1];
static _Atomic uint32_t owed[THREADS]; /* completions of each thread's QP that nobody has polled */

static void poll_for_all(const struct pair *pair)
{
    struct ibv_wc wc[4];
    int count = ibv_poll_cq(pair->cq, 4, wc);

    REQUIRE(count >= 0);
    for (int i = 0; i < count; i++) {
        REQUIRE(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id < THREADS);
        atomic_fetch_sub(&owed[wc[i].wr_id], 1);
    }
}

struct poster {
    pthread_t thread;
    unsigned number;
    struct ibv_qp *a, *b;
};

static void *post_and_poll(void *argument)
{
    struct poster *poster = argument;
    const struct pair *pair = shared;

    poster->a = make_qp(&pair->node, pair->cq, NULL, WRS);
    poster->b = make_qp(&pair->node, pair->cq, NULL, WRS);
    connect_qps(&pair->node, poster->a, poster->b, 14, 7, 7);
    for (int i = 0; i < ROUNDS; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pair->node.pd, pair->node.buffer, 64, IBV_ACCESS_LOCAL_WRITE);

        REQUIRE(mr);
        while (atomic_load(&owed[poster->number]) >= WRS / 4)
            poll_for_all(pair);
        atomic_fetch_add(&owed[poster->number], 1);
        post_send(&pair->node, poster->a, poster->number, IBV_WR_RDMA_WRITE, 8, 0);
        post_send(&pair->node, poster->a, poster->number, IBV_WR_RDMA_WRITE, 8, IBV_SEND_SIGNALED);
        REQUIRE(ibv_dereg_mr(mr) == 0);
    }
    while (atomic_load(&owed[poster->number]))
        poll_for_all(pair);
    return NULL;
}

static void threads(void)
{
    struct poster posters[THREADS];

    pair_open(shared);
    for (unsigned i = 0; i < THREADS; i++) {
        posters[i].number = i;
        REQUIRE(pthread_create(&posters[i].thread, NULL, post_and_poll, &posters[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(posters[i].thread, NULL) == 0);
    say("hangs");
    wait_for_word();
    for (unsigned i = 0; i < THREADS; i++)
        REQUIRE(ibv_destroy_qp(posters[i].a) == 0 && ibv_destroy_qp(posters[i].b) == 0);
    pair_close(shared);
}

/* --- fork: parent and child go on, each with its own */

static void forks(void)
{
    struct pair pair;
    struct ibv_wc wc;
    int status;
    pid_t child;

    REQUIRE(ibv_fork_init() == 0);
    pair_open(&pair);
    post_receive(&pair.node, pair.b, 1, 64);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        struct node node;
        struct ibv_cq *cq;

        node_open(&node); /* its own */
        cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
        REQUIRE(cq && ibv_poll_cq(cq, 1, &wc) == 0);
        REQUIRE(make_qp(&node, cq, NULL, 4));
        REQUIRE(ibv_destroy_cq(cq) == EBUSY);
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    post_send(&pair.node, pair.a, 2, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    wait_for_completion(pair.cq);
    wait_for_completion(pair.cq);
    REQUIRE(ibv_destroy_cq(pair.cq) == EBUSY);
    pair_close(&pair);
}

static const struct {
    const char *name;
    void (*happen)(void);
} situations[] = {
    {"srq-limit", srq_limit},   {"full-of-unsignaled", full_of_unsignaled},
    {"wrong-rkey", wrong_rkey}, {"refused-modify", refused_modify},
    {"small-cq", small_cq},     {"unarmed", unarmed},
    {"extended", extended},     {"threads", threads},
    {"forks", forks},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof(situations) / sizeof(situations[0]); i++) {
        if (strcmp(argv[1], situations[i].name) == 0) {
            situations[i].happen();
            return 0;
        }
    }
    return 1;
}
