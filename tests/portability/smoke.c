/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The whole library in one program, for processors that this machine has only in emulation: two RC QPs of one
 * process exchange SENDs, WRITEs, READs and atomics, and every byte is compared. Prints what failed and exits
 * with 1. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER 65536u
#define ROUNDS 50

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                    \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

struct end {
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *buffer;
};

static struct ibv_cq *cq;
static union ibv_gid gid;

static void make_end(struct end *end, struct ibv_pd *pd)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2},
    };

    end->buffer = aligned_alloc(4096, BUFFER);
    REQUIRE(end->buffer);
    end->mr = ibv_reg_mr(pd, end->buffer, BUFFER,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC);
    end->qp = ibv_create_qp(pd, &init);
    REQUIRE(end->mr && end->qp);
}

static void connect_end(struct end *end, const struct end *other)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    struct ibv_qp_attr ready = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = other->qp->qp_num,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh.dgid = gid},
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
    };
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};

    REQUIRE(
        !ibv_modify_qp(end->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    REQUIRE(!ibv_modify_qp(end->qp, &ready,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    REQUIRE(!ibv_modify_qp(end->qp, &send,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void fill(unsigned char *buffer, unsigned length, unsigned seed)
{
    for (unsigned i = 0; i < length; i++)
        buffer[i] = (unsigned char)(i * 31 + seed);
}

static void expect_completions(int count)
{
    while (count) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(cq, 1, &wc);

        REQUIRE(polled >= 0);
        if (polled) {
            REQUIRE(wc.status == IBV_WC_SUCCESS);
            count--;
        }
    }
}

static void run(struct end *from, struct end *to, enum ibv_wr_opcode opcode, unsigned length)
{
    struct ibv_sge source = {(uintptr_t)from->buffer, length, from->mr->lkey};
    struct ibv_sge target = {(uintptr_t)to->buffer, length, to->mr->lkey};
    struct ibv_send_wr send = {
        .sg_list = &source, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_recv_wr receive = {.sg_list = &target, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr *bad_send;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        send.wr.atomic.remote_addr = target.addr;
        send.wr.atomic.rkey = to->mr->rkey;
        send.wr.atomic.compare_add = 1;
    } else {
        send.wr.rdma.remote_addr = target.addr;
        send.wr.rdma.rkey = to->mr->rkey;
    }
    if (opcode == IBV_WR_SEND)
        REQUIRE(!ibv_post_recv(to->qp, &receive, &bad_receive));
    REQUIRE(!ibv_post_send(from->qp, &send, &bad_send));
    expect_completions(opcode == IBV_WR_SEND ? 2 : 1);
}

static void compare_all(struct end *a, struct end *b, unsigned length, unsigned seed)
{
    uint64_t counter = seed, before;

    fill(a->buffer, length, seed);
    run(a, b, IBV_WR_SEND, length);
    REQUIRE(!memcmp(a->buffer, b->buffer, length));
    fill(a->buffer, length, seed + 1);
    run(a, b, IBV_WR_RDMA_WRITE, length);
    REQUIRE(!memcmp(a->buffer, b->buffer, length));
    fill(b->buffer, length, seed + 2);
    run(a, b, IBV_WR_RDMA_READ, length);
    REQUIRE(!memcmp(a->buffer, b->buffer, length));
    memcpy(b->buffer, &counter, sizeof(counter));
    run(a, b, IBV_WR_ATOMIC_FETCH_AND_ADD, sizeof(counter));
    memcpy(&before, a->buffer, sizeof(before));
    memcpy(&counter, b->buffer, sizeof(counter));
    REQUIRE(before == seed && counter == seed + 1);
}

int main(void)
{
    static const unsigned lengths[] = {1, 8, 63, 512, 8192, 8193, BUFFER};
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct end a, b;

    if (!devices || !devices[0]) {
        puts("no interface with an address");
        return 77;
    }
    context = ibv_open_device(devices[0]);
    REQUIRE(context);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    REQUIRE(pd && cq && !ibv_query_gid(context, 1, 0, &gid));
    make_end(&a, pd);
    make_end(&b, pd);
    connect_end(&a, &b);
    connect_end(&b, &a);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            compare_all(&a, &b, lengths[i], round);
            compare_all(&b, &a, lengths[i], round);
        }
    }
    REQUIRE(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp) && !ibv_dereg_mr(a.mr) && !ibv_dereg_mr(b.mr));
    REQUIRE(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(devices);
    return 0;
}
