/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams and frames that are lost in silence, with public verbs only: what programs get wrong about UD.
 *
 * usage: drops NAME [same]     (without one: lists them; same: both ends in this process)
 *
 * The near end, in this process, sends three datagrams that arrive nowhere; then one that does arrive, if the far end
 * can receive at all. It says "done NEAR FAR" (process numbers), and both go on when they are told to. */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

#define SENT  3u
#define QKEY  0x11111111u
#define BYTES 100u
#define GRH   40u

struct mistake {
    const char *name;
    uint32_t qkey;    /* that the sender names */
    uint32_t receive; /* bytes of each receive of the far end; 0: none are posted */
    bool gone;        /* the far QP is destroyed before */
    bool not_ready;   /* it is left in INIT */
    bool group;       /* sent to a multicast group that the far end is not attached to */
    bool frames;      /* the QPs are RAW_PACKET, and the far end's rule is for another address */
};

static const struct mistake mistakes[] = {
    {"wrong-qkey", 0x22222222u, BYTES + GRH},
    {"no-receive", QKEY, 0},
    /* gpudirect/libgdsync#43: the receiver waits for ever. */
    {"without-grh", QKEY, BYTES},
    {"not-ready", QKEY, BYTES + GRH, .not_ready = true},
    {"qp-is-gone", QKEY, BYTES + GRH, .gone = true},
    {"not-attached", QKEY, BYTES + GRH, .group = true},
    {"no-rule", QKEY, BYTES, .frames = true},
};

struct end {
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *qp, *spare;
};

struct card {
    uint32_t qpn, spare;
    union ibv_gid gid;
    int pid;
};

static struct ibv_qp *make_ud(struct end *end, bool ready)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = end->cq, .recv_cq = end->cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    struct ibv_qp *qp = ibv_create_qp(end->node.pd, &attributes);

    REQUIRE(qp);
    REQUIRE(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    if (!ready)
        return qp;
    state = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
    REQUIRE(ibv_modify_qp(qp, &state, IBV_QP_STATE) == 0);
    state = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    REQUIRE(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}

static struct ibv_qp *make_raw(struct end *end)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = end->cq, .recv_cq = end->cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RAW_PACKET};
    struct ibv_qp_attr state = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_qp *qp = ibv_create_qp(end->node.pd, &attributes);

    REQUIRE(qp);
    REQUIRE(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PORT) == 0);
    state.qp_state = IBV_QPS_RTR;
    REQUIRE(ibv_modify_qp(qp, &state, IBV_QP_STATE) == 0);
    state.qp_state = IBV_QPS_RTS;
    REQUIRE(ibv_modify_qp(qp, &state, IBV_QP_STATE) == 0);
    return qp;
}

/* Frames to 02:00:00:00:00:01. */
static void add_rule(struct ibv_qp *qp)
{
    struct {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
    } rule = {
        .attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = 1},
        .eth = {.type = IBV_FLOW_SPEC_ETH,
                .size = sizeof(rule.eth),
                .val.dst_mac = {2, [5] = 1},
                .mask.dst_mac = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
    };

    REQUIRE(ibv_create_flow(qp, &rule.attr));
}

static void open_end(struct end *end, const struct mistake *mistake, bool far)
{
    node_open(&end->node);
    REQUIRE((end->cq = ibv_create_cq(end->node.context, 64, NULL, NULL, 0)));
    end->qp = mistake->frames ? make_raw(end) : make_ud(end, !far || !mistake->not_ready);
    if (mistake->frames && far)
        add_rule(end->qp);
    end->spare = make_ud(end, true);
}

/* What the far end does wrong; its spare QP is right. */
static void prepare_far(struct end *end, const struct mistake *mistake)
{
    for (unsigned i = 0; i < SENT && mistake->receive; i++)
        post_receive(&end->node, end->qp, 10 + i, mistake->receive);
    post_receive(&end->node, end->spare, 77, BYTES + GRH);
    if (mistake->gone)
        REQUIRE(ibv_destroy_qp(end->qp) == 0);
}

static void send_datagram(struct end *end, struct ibv_qp *qp, const union ibv_gid *gid, uint32_t qpn,
                          uint32_t qkey)
{
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 1}};
    struct ibv_sge sge = {(uintptr_t)end->node.buffer, BYTES, end->node.mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    struct ibv_wc wc;

    REQUIRE((wr.wr.ud.ah = ibv_create_ah(end->node.pd, &to)));
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    REQUIRE(ibv_post_send(qp, &wr, &bad) == 0);
    do
        wc = wait_for_completion(end->cq);
    while (wc.qp_num != qp->qp_num || wc.opcode != IBV_WC_SEND); /* same: receives complete here, too */
    REQUIRE(wc.status == IBV_WC_SUCCESS);
}

/* To 02:00:00:00:00:02, of an experimental type. */
static void send_frame(struct end *end)
{
    struct ibv_sge sge = {(uintptr_t)end->node.buffer, 64, end->node.mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    memcpy(end->node.buffer, (uint8_t[14]){2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0x88, 0xb5}, 14);
    REQUIRE(ibv_post_send(end->qp, &wr, &bad) == 0);
    REQUIRE(wait_for_completion(end->cq).status == IBV_WC_SUCCESS);
}

static void send_all(struct end *end, const struct mistake *mistake, const struct card *peer)
{
    union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, 239, 1, 2, 3}};

    for (unsigned i = 0; i < SENT && mistake->frames; i++)
        send_frame(end);
    for (unsigned i = 0; i < SENT && !mistake->frames; i++)
        send_datagram(end, end->qp, mistake->group ? &group : &peer->gid,
                      mistake->group ? 0xffffff : peer->qpn, mistake->qkey);
}

/* Behind those that are lost. */
static void receive_last(struct end *end)
{
    struct ibv_wc wc;

    do
        wc = wait_for_completion(end->cq);
    while (wc.wr_id != 77);
    REQUIRE(wc.status == IBV_WC_SUCCESS);
}

static void fill_card(const struct end *end, struct card *card)
{
    *card = (struct card){end->qp->qp_num, end->spare->qp_num, end->node.gid, getpid()};
}

static void both_here(const struct mistake *mistake)
{
    struct end near = {0}, far = {0};
    struct card card;

    open_end(&near, mistake, false);
    open_end(&far, mistake, true);
    fill_card(&far, &card);
    prepare_far(&far, mistake);
    send_all(&near, mistake, &card);
    send_datagram(&near, near.spare, &card.gid, card.spare, QKEY);
    receive_last(&far);
    say("done %d %d", (int)getpid(), (int)getpid());
    wait_for_word();
}

static void far_process(const struct mistake *mistake, int fd)
{
    struct end end = {0};
    struct card card;
    char byte;

    open_end(&end, mistake, true);
    fill_card(&end, &card);
    prepare_far(&end, mistake);
    REQUIRE(write(fd, &card, sizeof(card)) == sizeof(card));
    receive_last(&end);
    REQUIRE(write(fd, "r", 1) == 1);
    while (read(fd, &byte, 1) > 0) {
    }
    exit(0); /* what is to be told by another thread is told by then */
}

static void two_processes(const struct mistake *mistake)
{
    struct end end = {0};
    struct card card;
    int fds[2];
    char byte;

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    if (fork() == 0) {
        close(fds[0]);
        far_process(mistake, fds[1]);
    }
    close(fds[1]);
    open_end(&end, mistake, false);
    REQUIRE(recv(fds[0], &card, sizeof(card), MSG_WAITALL) == sizeof(card));
    send_all(&end, mistake, &card);
    send_datagram(&end, end.spare, &card.gid, card.spare, QKEY);
    REQUIRE(read(fds[0], &byte, 1) == 1);
    say("done %d %d", (int)getpid(), card.pid);
    wait_for_word();
    close(fds[0]);
    wait(NULL);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        if (argc < 2) {
            puts(mistakes[i].name);
        } else if (strcmp(argv[1], mistakes[i].name) == 0) {
            if (argc > 2)
                both_here(&mistakes[i]);
            else
                two_processes(&mistakes[i]);
            return 0;
        }
    }
    return argc < 2 ? 0 : 1;
}
