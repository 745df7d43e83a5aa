/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Small messages in slices, one for each line that is read: bench/compare.py runs this program with several builds of
 * the library, a slice of each in turn, so that what disturbs the machine disturbs all alike. */
#include "common.h"
#include "endpoint.h"

#include <errno.h>
#include <string.h>

enum { BYTES = 8, DEPTH = 128, BATCH = 16 };

static struct ibv_qp *near_qp, *far_qp; /* far_qp: NULL where the far end is another process */
static struct ibv_cq *cq;
static struct endpoint ep;
static struct contact far;

static void collect(int count)
{
    struct ibv_wc wc[BATCH];

    while (count) {
        int n = ibv_poll_cq(cq, BATCH < count ? BATCH : count, wc);

        if (n < 0)
            give_up("ibv_poll_cq");
        for (int i = 0; i < n; i++)
            if (wc[i].status != IBV_WC_SUCCESS)
                give_up(ibv_wc_status_str(wc[i].status));
        count -= n;
    }
}

static void round_of(enum ibv_wr_opcode opcode)
{
    struct ibv_sge sge = {(uintptr_t)ep.buffer, BYTES, ep.mr->lkey};
    struct ibv_send_wr wr[BATCH], *bad;
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;

    for (int i = 0; i < BATCH; i++) {
        if (far_qp && opcode == IBV_WR_SEND && (errno = ibv_post_recv(far_qp, &receive, &bad_receive)))
            give_up("ibv_post_recv");
        wr[i] = (struct ibv_send_wr){.sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = opcode,
                                     .send_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0,
                                     .next = i == BATCH - 1 ? NULL : &wr[i + 1]};
        wr[i].wr.rdma.remote_addr = far.address;
        wr[i].wr.rdma.rkey = far.rkey;
    }
    if ((errno = ibv_post_send(near_qp, wr, &bad)))
        give_up("ibv_post_send");
    collect(1 + (far_qp && opcode == IBV_WR_SEND ? BATCH : 0));
}

/* The far end of one-sided requests: lives, and is not asked. */
static _Noreturn void be_target(int fd, int gid_index)
{
    const struct qp_shape shape = {DEPTH, DEPTH, 0};
    struct contact own;
    char byte;

    endpoint_open(&ep, NULL, gid_index, 4096);
    cq = ibv_create_cq(ep.context, DEPTH, NULL, NULL, 0);
    near_qp = endpoint_qp(&ep, cq, cq, shape);
    own = endpoint_contact(&ep, near_qp);
    tell(fd, &own, sizeof(own));
    hear(fd, &far, sizeof(far));
    endpoint_connect(&ep, near_qp, &far);
    tell(fd, "", 1);
    hear(fd, &byte, 1);
    exit(0);
}

static void connect_to_target(int fd, int gid_index)
{
    const struct qp_shape shape = {DEPTH, DEPTH, 0};
    struct contact own;
    char byte;

    endpoint_open(&ep, NULL, gid_index, 4096);
    cq = ibv_create_cq(ep.context, 4 * DEPTH, NULL, NULL, 0);
    near_qp = endpoint_qp(&ep, cq, cq, shape);
    own = endpoint_contact(&ep, near_qp);
    hear(fd, &far, sizeof(far));
    tell(fd, &own, sizeof(own));
    hear(fd, &byte, 1);
    endpoint_connect(&ep, near_qp, &far);
}

static void connect_to_self(int gid_index)
{
    const struct qp_shape shape = {DEPTH, DEPTH, 0};
    struct contact own;

    endpoint_open(&ep, NULL, gid_index, 4096);
    cq = ibv_create_cq(ep.context, 4 * DEPTH, NULL, NULL, 0);
    near_qp = endpoint_qp(&ep, cq, cq, shape);
    far_qp = endpoint_qp(&ep, cq, cq, shape);
    own = endpoint_contact(&ep, near_qp);
    far = endpoint_contact(&ep, far_qp);
    endpoint_connect(&ep, far_qp, &own);
    endpoint_connect(&ep, near_qp, &far);
}

/* usage: verbs_slices write|read|send|self-write MESSAGES CPU */
int main(int argc, char **argv)
{
    enum ibv_wr_opcode opcode;
    char line[64];
    long messages;
    int fd = -1;

    if (argc != 4) {
        fprintf(stderr, "usage: %s write|read|send|self-write MESSAGES CPU\n", argv[0]);
        return 2;
    }
    opcode = strcmp(argv[1], "read") == 0   ? IBV_WR_RDMA_READ
             : strcmp(argv[1], "send") == 0 ? IBV_WR_SEND
                                            : IBV_WR_RDMA_WRITE;
    messages = atol(argv[2]);
    if (opcode == IBV_WR_SEND || strncmp(argv[1], "self", 4) == 0) {
        connect_to_self(0);
    } else {
        if (fork_peer(&fd) == 0)
            be_target(fd, 0);
        connect_to_target(fd, 0);
    }
    pin(atoi(argv[3]));
    while (fgets(line, sizeof(line), stdin)) {
        uint64_t begin = now_ns();

        for (long i = 0; i < messages; i += BATCH)
            round_of(opcode);
        printf("%.2f\n", (double)(now_ns() - begin) / (double)messages);
        fflush(stdout);
    }
    return 0;
}
