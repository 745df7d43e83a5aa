/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connections whose ends do not fit together, for softhca check: this process has one end, a child the other one.
 *
 * usage: connections NAME        (without one: lists them)
 *
 * Says "hangs" and the child's process ID on stdout once both are connected, and ends when it reads a line.
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

#undef ibv_reg_mr /* the macro of verbs.h looks at the sign of what is no constant */

/* One end: what a situation spoils. */
struct attributes {
    enum ibv_qp_type type;
    uint32_t rq_psn, sq_psn, dest_offset; /* dest_offset: added to the right QP number */
    enum ibv_mtu mtu;
    uint8_t max_rd_atomic, max_dest_rd_atomic, timeout, retry_cnt, rnr_retry;
    unsigned access;
    int mr_access;
    bool stays_in_init;
};

static const struct attributes right = {
    .type = IBV_QPT_RC,
    .rq_psn = 4711,
    .sq_psn = 4711,
    .mtu = IBV_MTU_1024,
    .max_rd_atomic = 4,
    .max_dest_rd_atomic = 4,
    .timeout = 14,
    .retry_cnt = 7,
    .rnr_retry = 7,
    .access = IBV_ACCESS_REMOTE_WRITE,
    .mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
};

struct card {
    uint32_t qpn;
    union ibv_gid gid;
};

static void connect_end(struct ibv_qp *qp, const struct attributes *with, const struct card *to)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = with->access};
    const bool rc = with->type == IBV_QPT_RC;

    REQUIRE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
            0);
    if (with->stays_in_init)
        return;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = with->mtu,
        .rq_psn = with->rq_psn,
        .dest_qp_num = to->qpn + with->dest_offset,
        .max_dest_rd_atomic = with->max_dest_rd_atomic,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .hop_limit = 1}},
    };
    REQUIRE(ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .sq_psn = with->sq_psn,
        .timeout = with->timeout,
        .retry_cnt = with->retry_cnt,
        .rnr_retry = with->rnr_retry,
        .max_rd_atomic = with->max_rd_atomic,
    };
    REQUIRE(
        ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN |
                          (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                              : 0)) == 0);
}

static void transfer(int socket, const struct card *mine, struct card *theirs)
{
    REQUIRE(write(socket, mine, sizeof(*mine)) == sizeof(*mine));
    REQUIRE(recv(socket, theirs, sizeof(*theirs), MSG_WAITALL) == sizeof(*theirs));
}

static void be_end(int socket, const struct attributes *with)
{
    struct ibv_qp_init_attr init = {.qp_type = with->type, .cap = {4, 4, 1, 1, 0}};
    struct card mine = {0}, theirs;
    struct node node;
    struct ibv_qp *qp;

    node_open(&node);
    REQUIRE(ibv_dereg_mr(node.mr) == 0);
    REQUIRE(ibv_reg_mr(node.pd, node.buffer, 4096, with->mr_access));
    init.send_cq = init.recv_cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
    REQUIRE(init.send_cq);
    qp = ibv_create_qp(node.pd, &init);
    REQUIRE(qp);
    mine.qpn = qp->qp_num;
    mine.gid = node.gid;
    transfer(socket, &mine, &theirs);
    connect_end(qp, with, &theirs);
    transfer(socket, &mine, &theirs); /* both are connected */
}

static void with_peer(const struct attributes *here, const struct attributes *there)
{
    int sockets[2];
    pid_t peer;

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    peer = fork();
    REQUIRE(peer >= 0);
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_end(sockets[1], there);
        for (;;)
            pause();
    }
    be_end(sockets[0], here);
    say("hangs %x", (unsigned)peer);
    wait_for_word();
    kill(peer, SIGKILL);
}

static const struct {
    const char *name;
    struct attributes here, there; /* what is not 0 is taken instead of what is right */
    bool zero;                     /* the first one's timeout and rnr_retry */
} situations[] = {
    {.name = "all-well"},
    {.name = "psn", .here = {.sq_psn = 1}},
    {.name = "mtu", .there = {.mtu = IBV_MTU_256}},
    {.name = "dest-qpn", .there = {.dest_offset = 1}},
    {.name = "type", .there = {.type = IBV_QPT_UC}},
    {.name = "init", .there = {.stays_in_init = true}},
    {.name = "read-depth", .here = {.max_rd_atomic = 8}},
    {.name = "many-reads", .here = {.max_rd_atomic = 64}, .there = {.max_dest_rd_atomic = 64}},
    {.name = "no-retries", .zero = true},
    {.name = "qp-rights", .here = {.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ}},
    {.name = "mr-rights",
     .here = {.mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ}},
};

#define TAKE(field)                                                                                          \
    do {                                                                                                     \
        if (from->field)                                                                                     \
            with.field = from->field;                                                                        \
    } while (0)

static struct attributes merged(const struct attributes *from)
{
    struct attributes with = right;

    if (from->type != IBV_QPT_RC && from->type != 0)
        with.type = from->type;
    TAKE(rq_psn);
    TAKE(sq_psn);
    TAKE(dest_offset);
    TAKE(mtu);
    TAKE(max_rd_atomic);
    TAKE(max_dest_rd_atomic);
    TAKE(access);
    TAKE(mr_access);
    TAKE(stays_in_init);
    return with;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(situations) / sizeof(situations[0]); i++) {
        if (argc < 2) {
            puts(situations[i].name);
        } else if (strcmp(argv[1], situations[i].name) == 0) {
            struct attributes here = merged(&situations[i].here), there = merged(&situations[i].there);

            if (situations[i].zero)
                here.timeout = here.rnr_retry = 0;
            with_peer(&here, &there);
            return 0;
        }
    }
    return argc < 2 ? 0 : 1;
}
