/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What tests/hosts/answers.py sends packets to: a process with QPs of every type and a listener, which does
 * nothing by itself. The peer of its connected QPs, at the GID that it is given, is not there: number n has
 * PEER_QPN + n as its destination. Says
 *
 *   card QPN... UD-QPN RKEY ADDRESS LENGTH PORT
 *
 * and waits until its standard input ends. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PEER_QPN = 0x100, RC_QPS = 24, UC_QPS = 2, RECVS = 64, SLOT = 4096, QKEY = 0x11111111, BACKLOG = 8 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t memory[2 * SLOT];

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void open_all(void)
{
    const int all =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_device **list = ibv_get_device_list(NULL);

    if (!list || !list[0])
        fail("no device");
    context = ibv_open_device(list[0]);
    pd = context ? ibv_alloc_pd(context) : NULL;
    cq = pd ? ibv_create_cq(context, (RC_QPS + UC_QPS + 1) * RECVS, NULL, NULL, 0) : NULL;
    mr = cq ? ibv_reg_mr(pd, memory, sizeof(memory), all) : NULL;
    if (!mr)
        fail("objects");
}

static struct ibv_qp *create(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 1, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = SLOT, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qkey = QKEY,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);

    if (!qp || ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                 (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)))
        fail("INIT");
    for (unsigned int i = 0; i < RECVS; i++)
        if (ibv_post_recv(qp, &wr, &bad))
            fail("ibv_post_recv");
    return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t number, const union ibv_gid *gid)
{
    const bool reliable = qp->qp_type == IBV_QPT_RC;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = PEER_QPN + number,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}},
    };

    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)))
        fail("RTR");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    if (ibv_modify_qp(
            qp, &attr,
            IBV_QP_STATE | IBV_QP_SQ_PSN |
                (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                          : 0)))
        fail("RTS");
}

static struct ibv_qp *datagrams(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    struct ibv_qp *qp = create(IBV_QPT_UD);

    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
        fail("RTR");
    attr.qp_state = IBV_QPS_RTS;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
        fail("RTS");
    return qp;
}

/* Nobody takes its events. */
static unsigned int listen_somewhere(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct sockaddr_storage any = {.ss_family = AF_INET};
    struct rdma_cm_id *id;

    if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
        rdma_bind_addr(id, (struct sockaddr *)&any) || rdma_listen(id, BACKLOG))
        fail("listener");
    return ntohs(rdma_get_src_port(id));
}

int main(int argc, char **argv)
{
    union ibv_gid gid;
    char byte;

    if (argc != 2) {
        fprintf(stderr, "usage: %s PEER-GID (32 digits)\n", argv[0]);
        return 2;
    }
    for (unsigned int i = 0; i < sizeof(gid.raw); i++)
        if (sscanf(argv[1] + 2 * i, "%2hhx", &gid.raw[i]) != 1)
            return 2;
    open_all();
    printf("card");
    for (uint32_t i = 0; i < RC_QPS + UC_QPS; i++) {
        struct ibv_qp *qp = create(i < RC_QPS ? IBV_QPT_RC : IBV_QPT_UC);

        connect_to(qp, i, &gid);
        printf(" %u", qp->qp_num);
    }
    printf(" %u", datagrams()->qp_num);
    printf(" %u %llu %zu %u\n", mr->rkey, (unsigned long long)(uintptr_t)memory, sizeof(memory),
           listen_somewhere());
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) < 0;
}
