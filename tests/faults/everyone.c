/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Sends to whoever is there, with public verbs only, and says what arrives.
 *
 * usage: everyone group    five datagrams to a multicast group with two members, in two processes
 *        everyone frame    five Ethernet frames to an address for which two processes have a flow rule
 *
 * The sixth is number 0: a member says the numbers that have come when it does, in their order. */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../explain/node.h"

#define MESSAGES 5u
#define MEMBERS  2u
#define RECEIVES 32u
#define GRH      40u
#define LENGTH   64u
#define QKEY     7u
#define GROUP    0xffffffu

static const uint8_t address[6] = {0x02, 0, 0, 0, 0, 0x07};

struct side {
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    bool frames;
};

static union ibv_gid group(void)
{
    return (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [13] = 7, [14] = 7, [15] = 7}};
}

static void open_side(struct side *side, bool frames)
{
    struct ibv_qp_init_attr attributes = {.cap = {RECEIVES, RECEIVES, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    struct ibv_qp_attr change = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};

    *side = (struct side){.frames = frames};
    node_open(&side->node);
    REQUIRE((side->cq = ibv_create_cq(side->node.context, 2 * RECEIVES, NULL, NULL, 0)));
    attributes.send_cq = attributes.recv_cq = side->cq;
    if (frames)
        attributes.qp_type = IBV_QPT_RAW_PACKET;
    REQUIRE((side->qp = ibv_create_qp(side->node.pd, &attributes)));
    REQUIRE(ibv_modify_qp(side->qp, &change,
                          IBV_QP_STATE | IBV_QP_PORT | (frames ? 0 : IBV_QP_PKEY_INDEX | IBV_QP_QKEY)) == 0);
    change.qp_state = IBV_QPS_RTR;
    REQUIRE(ibv_modify_qp(side->qp, &change, IBV_QP_STATE) == 0);
    change.qp_state = IBV_QPS_RTS;
    REQUIRE(ibv_modify_qp(side->qp, &change, IBV_QP_STATE | (frames ? 0 : IBV_QP_SQ_PSN)) == 0);
}

static void join(const struct side *side)
{
    struct {
        struct ibv_flow_attr attributes;
        struct ibv_flow_spec_eth eth;
    } rule = {{.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = 1},
              {.type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth)}};
    const union ibv_gid gid = group();

    if (!side->frames) {
        REQUIRE(ibv_attach_mcast(side->qp, &gid, 0) == 0);
        return;
    }
    memcpy(rule.eth.val.dst_mac, address, 6);
    memset(rule.eth.mask.dst_mac, 0xff, 6);
    REQUIRE(ibv_create_flow(side->qp, &rule.attributes));
}

static void be_member(unsigned number, bool frames, int fd)
{
    struct side side;
    unsigned seen;

    open_side(&side, frames);
    for (unsigned i = 0; i < RECEIVES; i++) {
        struct ibv_sge sge = {(uintptr_t)side.node.buffer + i * 256, 256, side.node.mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

        REQUIRE(ibv_post_recv(side.qp, &wr, &bad) == 0);
    }
    join(&side);
    REQUIRE(write(fd, "r", 1) == 1);
    do {
        struct ibv_wc wc = wait_for_completion(side.cq);

        REQUIRE(wc.status == IBV_WC_SUCCESS);
        seen = (unsigned char)side.node.buffer[wc.wr_id * 256 + (frames ? 14 : GRH)];
        say("member %u message %u", number, seen);
    } while (seen);
    exit(0);
}

static void send_one(struct side *side, struct ibv_ah *ah, unsigned number)
{
    char *bytes = side->node.buffer;
    struct ibv_sge sge = {(uintptr_t)bytes, LENGTH, side->node.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = number,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    memset(bytes, 0, LENGTH);
    if (side->frames) {
        memcpy(bytes, address, 6);
        bytes[14] = (char)number;
    } else {
        bytes[0] = (char)number;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = GROUP;
        wr.wr.ud.remote_qkey = QKEY;
    }
    REQUIRE(ibv_post_send(side->qp, &wr, &bad) == 0);
    REQUIRE(wait_for_completion(side->cq).status == IBV_WC_SUCCESS);
}

int main(int argc, char **argv)
{
    const bool frames = argc > 1 && strcmp(argv[1], "frame") == 0;
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = group(), .hop_limit = 1}};
    struct ibv_ah *ah = NULL;
    struct side side;
    int fds[2], status;
    char byte;

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    for (unsigned i = 1; i <= MEMBERS; i++) {
        if (fork() == 0)
            be_member(i, frames, fds[1]);
        REQUIRE(read(fds[0], &byte, 1) == 1);
    }
    open_side(&side, frames);
    if (!frames)
        REQUIRE((ah = ibv_create_ah(side.node.pd, &to)));
    for (unsigned i = 1; i <= MESSAGES + 1; i++)
        send_one(&side, ah, i <= MESSAGES ? i : 0);
    for (unsigned i = 0; i < MEMBERS; i++)
        REQUIRE(wait(&status) > 0 && status == 0);
    return 0;
}
