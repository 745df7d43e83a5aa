/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A program that meets faults and says what it got, with public verbs only.
 *
 * usage: victim calls                     makes each kind of call three times: the errors
 *        victim posts [extended]          posts five times on one QP, receives and sends: the errors
 *        victim fatal                     posts a send, then calls whatever there is, and destroys all
 *        victim srq                       posts three receives to an SRQ: the events
 *        victim datagrams                 sends five datagrams to a QP of its own: the order in which they arrive
 *        victim marks COMMAND             five WRITEs of 1 KiB to itself, its process id, and what COMMAND says
 *        victim port OPCODE [back] [same] the peer's port goes down at its 9th receive, up at its 10th if it comes back:
 *                                         statuses, states, events, and whether the last request reached memory
 *        victim obey [KIND] [same]        its process id and the peer's, then what each word on stdin makes it do: write,
 *                                         read, atomic, send (ibv_wr_*), register, port, burst (of WRITEs), sum (of atomics so far),
 *                                         message (a SEND with its number), last (number 0, and which messages the peer got).
 *                                         KIND: of the QPs, RC (default), UC or XRC; SRQ: RC, and the peer has an SRQ
 *        victim pair OPCODE [same]        five requests to a peer in a child, or in this process: statuses, states, events */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../explain/node.h"

#define REQUESTS 5u
#define RECEIVES 8u
#define LENGTH   64u
#define SUM      1024u /* in the buffer: what atomics add to */
#define BURST    8u
#define ALL                                                                                                  \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static const char *error_name(int error)
{
    switch (error) {
    case 0:
        return "ok";
    case EIO:
        return "EIO";
    case ENOMEM:
        return "ENOMEM";
    case EINVAL:
        return "EINVAL";
    case EMFILE:
        return "EMFILE";
    default:
        return strerror(error);
    }
}

static void tell_result(const char *what, unsigned number, int error)
{
    say("%s %u %s", what, number, error_name(error));
}

/* --- calls -------------------------------------------------------------------------------------------------- */

static void calls(void)
{
    struct node node;

    node_open(&node);
    for (unsigned i = 1; i <= 3; i++) {
        struct ibv_qp_init_attr attributes = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
        struct ibv_pd *pd = ibv_alloc_pd(node.context);
        struct ibv_mr *mr;
        struct ibv_cq *cq;
        struct ibv_qp *qp = NULL;

        tell_result("ibv_alloc_pd", i, pd ? 0 : errno);
        mr = ibv_reg_mr(node.pd, node.buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
        tell_result("ibv_reg_mr", i, mr ? 0 : errno);
        cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
        tell_result("ibv_create_cq", i, cq ? 0 : errno);
        if (cq) {
            attributes.send_cq = attributes.recv_cq = cq;
            qp = ibv_create_qp(node.pd, &attributes);
            tell_result("ibv_create_qp", i, qp ? 0 : errno);
        }
        if (qp) {
            struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};

            tell_result("ibv_modify_qp", i,
                        ibv_modify_qp(qp, &init,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
            REQUIRE(ibv_destroy_qp(qp) == 0);
        }
        REQUIRE(!cq || ibv_destroy_cq(cq) == 0);
        REQUIRE(!mr || ibv_dereg_mr(mr) == 0);
        REQUIRE(!pd || ibv_dealloc_pd(pd) == 0);
    }
    node_close(&node);
}

/* --- a pair ------------------------------------------------------------------------------------------------- */

struct card {
    uint32_t qpn, rkey, srqn;
    uint64_t address;
    union ibv_gid gid;
};

struct end {
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    enum ibv_qp_type type;
    struct ibv_xrcd *xrcd; /* of an XRC_RECV QP */
    struct ibv_srq *srq;
    const char *name;
};

static void open_srq(struct end *end)
{
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_srq_init_attr_ex attributes = {.attr = {.max_wr = 16, .max_sge = 1},
                                              .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD |
                                                           IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
                                              .srq_type = IBV_SRQT_XRC,
                                              .pd = end->node.pd,
                                              .cq = end->cq};

    REQUIRE((end->xrcd = ibv_open_xrcd(end->node.context, &domain)));
    attributes.xrcd = end->xrcd;
    REQUIRE((end->srq = ibv_create_srq_ex(end->node.context, &attributes)));
}

static bool shares; /* the far end has an SRQ */

static void open_end_of(struct end *end, const char *name, enum ibv_qp_type type, bool extended)
{
    struct ibv_qp_init_attr_ex attributes = {
        .cap = {16, 16, 2, 2, 0}, .qp_type = type, .comp_mask = IBV_QP_INIT_ATTR_PD};

    *end = (struct end){.name = name, .type = type};
    node_open(&end->node);
    REQUIRE((end->cq = ibv_create_cq(end->node.context, 64, NULL, NULL, 0)));
    attributes.send_cq = attributes.recv_cq = end->cq;
    attributes.pd = end->node.pd;
    if (type == IBV_QPT_XRC_RECV) {
        open_srq(end);
        attributes.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        attributes.xrcd = end->xrcd;
    }
    if (shares && strcmp(name, "far") == 0) {
        struct ibv_srq_init_attr shared = {.attr = {.max_wr = 16, .max_sge = 1}};

        REQUIRE((end->srq = ibv_create_srq(end->node.pd, &shared)));
        attributes.srq = end->srq;
    }
    if (extended) {
        attributes.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.send_ops_flags = IBV_QP_EX_WITH_SEND;
    }
    REQUIRE((end->qp = ibv_create_qp_ex(end->node.context, &attributes)));
    REQUIRE(fcntl(end->node.context->async_fd, F_SETFL, O_NONBLOCK) == 0);
}

static void open_end(struct end *end, const char *name, bool extended)
{
    open_end_of(end, name, IBV_QPT_RC, extended);
}

static void fill_card(const struct end *end, struct card *card)
{
    *card = (struct card){.qpn = end->qp->qp_num,
                          .rkey = end->node.mr->rkey,
                          .address = (uintptr_t)end->node.buffer,
                          .gid = end->node.gid};
    if (end->xrcd)
        REQUIRE(ibv_get_srq_num(end->srq, &card->srqn) == 0);
}

/* A UC or XRC QP, which has fewer attributes than an RC QP. */
static void connect_other(struct end *end, const struct card *peer, uint8_t timeout)
{
    const bool responds = end->type == IBV_QPT_XRC_RECV, requests = end->type == IBV_QPT_XRC_SEND;
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qpn,
        .max_dest_rd_atomic = 4,
        .max_rd_atomic = 4,
        .min_rnr_timer = 12,
        .timeout = timeout,
        .retry_cnt = 7,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 1}},
    };

    to_init(end->qp);
    REQUIRE(ibv_modify_qp(end->qp, &attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              (responds ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    attributes.qp_state = IBV_QPS_RTS;
    REQUIRE(ibv_modify_qp(
                end->qp, &attributes,
                IBV_QP_STATE | IBV_QP_SQ_PSN | (responds || requests ? IBV_QP_TIMEOUT : 0) |
                    (requests ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
}

static void connect_within(struct end *end, const struct card *peer, uint8_t timeout)
{
    if (end->type != IBV_QPT_RC) {
        connect_other(end, peer, timeout);
        return;
    }
    to_init(end->qp);
    to_rtr(&end->node, end->qp, peer->qpn, &peer->gid);
    to_rts(end->qp, timeout, 7, 0);
}

static void connect_end(struct end *end, const struct card *peer)
{
    connect_within(end, peer, 12);
}

static void post_receives(const struct end *end)
{
    struct ibv_sge sge = {(uintptr_t)end->node.buffer, LENGTH, end->node.mr->lkey};

    for (unsigned i = 1; i <= RECEIVES; i++) {
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

        if (end->srq)
            REQUIRE(ibv_post_srq_recv(end->srq, &wr, &bad) == 0);
        else
            REQUIRE(ibv_post_recv(end->qp, &wr, &bad) == 0);
    }
}

static const char *state_of(struct ibv_qp *qp)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    struct ibv_qp_init_attr ignored;
    struct ibv_qp_attr attributes;

    REQUIRE(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &ignored) == 0);
    return names[attributes.qp_state];
}

static void tell_state(const struct end *end)
{
    struct ibv_async_event event;

    say("%s state %s", end->name, state_of(end->qp));
    while (ibv_get_async_event(end->node.context, &event) == 0) {
        if (event.event_type != IBV_EVENT_COMM_EST)
            say("%s event %d", end->name, (int)event.event_type);
        ibv_ack_async_event(&event);
    }
}

static void tell_completion(const struct end *end, const struct ibv_wc *wc)
{
    say("%s wr %u status %d", end->name, (unsigned)wc->wr_id, (int)wc->status);
}

/* Each time another window of type 2, over an MR of its own. */
static void bind_window(const struct end *end, struct ibv_send_wr *wr)
{
    struct ibv_mr *mr = ibv_reg_mr(end->node.pd, end->node.buffer, LENGTH, ALL | IBV_ACCESS_MW_BIND);
    struct ibv_mw *mw = ibv_alloc_mw(end->node.pd, IBV_MW_TYPE_2);

    REQUIRE(mr && mw);
    wr->num_sge = 0;
    wr->bind_mw.mw = mw;
    wr->bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr->bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = mr, .addr = (uintptr_t)mr->addr, .length = LENGTH, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
}

static int post_request(struct end *end, const struct card *peer, enum ibv_wr_opcode opcode, unsigned wr_id)
{
    struct ibv_sge sge = {(uintptr_t)end->node.buffer, LENGTH, end->node.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = wr_id},
                       *bad;

    if (end->type == IBV_QPT_XRC_SEND)
        wr.qp_type.xrc.remote_srqn = peer->srqn;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        sge.length = 8;
        wr.wr.atomic.remote_addr = peer->address + SUM;
        wr.wr.atomic.compare_add = 1;
        wr.wr.atomic.rkey = peer->rkey;
    } else if (opcode == IBV_WR_BIND_MW) {
        bind_window(end, &wr);
    } else {
        wr.wr.rdma.remote_addr = peer->address + 4096;
        wr.wr.rdma.rkey = peer->rkey;
    }
    return ibv_post_send(end->qp, &wr, &bad);
}

static void request(struct end *end, const struct card *peer, enum ibv_wr_opcode opcode, unsigned wr_id)
{
    REQUIRE(post_request(end, peer, opcode, wr_id) == 0);
}

/* Each request after the completion of the one before it; those behind an error are flushed. Returns how many
 * succeeded. A request without completion is known by the next one's. */
static unsigned requests(struct end *end, const struct card *peer, enum ibv_wr_opcode opcode)
{
    unsigned succeeded = 0;

    for (unsigned i = 1; i <= REQUESTS; i += 2) {
        struct ibv_wc wc = {0};

        request(end, peer, opcode, i);
        if (i < REQUESTS)
            request(end, peer, opcode, i + 1);
        do {
            wc = wait_for_completion(end->cq);
            tell_completion(end, &wc);
            succeeded += wc.status == IBV_WC_SUCCESS;
        } while (wc.wr_id != i + (i < REQUESTS));
    }
    tell_state(end);
    return succeeded;
}

/* The peer of requests that take receives, of which `succeeded` have. */
static void receives(struct end *end, unsigned succeeded)
{
    unsigned count = 0;

    while (count < (strcmp(state_of(end->qp), "ERR") == 0 ? RECEIVES : succeeded)) {
        struct ibv_wc wc;

        if (ibv_poll_cq(end->cq, 1, &wc) == 1) {
            tell_completion(end, &wc);
            count++;
        }
    }
    tell_state(end);
}

static void give(int fd, const void *data, size_t size)
{
    REQUIRE(write(fd, data, size) == (ssize_t)size);
}

static void take(int fd, void *data, size_t size)
{
    REQUIRE(recv(fd, data, size, MSG_WAITALL) == (ssize_t)size);
}

/* The far end, which is connected when this returns. */
static void open_far_end(struct end *end, enum ibv_qp_type type, int fd)
{
    struct card card, peer;

    open_end_of(end, "far", type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : type, false);
    fill_card(end, &card);
    give(fd, &card, sizeof(card));
    take(fd, &peer, sizeof(peer));
    connect_end(end, &peer);
    post_receives(end);
    give(fd, "c", 1);
}

static void far_process(int fd)
{
    struct end end;
    unsigned succeeded;

    open_far_end(&end, IBV_QPT_RC, fd);
    take(fd, &succeeded, sizeof(succeeded));
    receives(&end, succeeded);
    exit(0);
}

static void pair(enum ibv_wr_opcode opcode, bool same)
{
    bool takes_receives = opcode == IBV_WR_SEND || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    struct card card, peer;
    struct end end, far;
    unsigned succeeded;
    int fds[2], status;
    pid_t child = 0;
    char byte;

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    if (!same) {
        child = fork();
        if (child == 0) {
            close(fds[0]);
            far_process(fds[1]);
        }
    }
    open_end(&end, "near", false);
    fill_card(&end, &card);
    if (same) {
        open_end(&far, "far", false);
        fill_card(&far, &peer);
        connect_end(&far, &card);
        post_receives(&far);
        connect_end(&end, &peer);
    } else {
        take(fds[0], &peer, sizeof(peer));
        connect_end(&end, &peer);
        give(fds[0], &card, sizeof(card));
        take(fds[0], &byte, 1);
    }
    succeeded = requests(&end, &peer, opcode);
    if (!takes_receives)
        succeeded = 0;
    if (same) {
        receives(&far, succeeded);
    } else {
        give(fds[0], &succeeded, sizeof(succeeded));
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* --- a port that goes down ------------------------------------------------------------------------------------ */

#define WARM_UP 400u /* requests after which the quickest way is in use */

static void tell_port(const struct end *end)
{
    struct ibv_port_attr port;

    REQUIRE(ibv_query_port(end->node.context, 1, &port) == 0);
    say("%s port %s", end->name,
        port.state == IBV_PORT_ACTIVE ? "ACTIVE"
        : port.state == IBV_PORT_DOWN ? "DOWN"
                                      : "?");
}

/* The messages that arrived, up to the last one. */
static void tell_messages(const struct end *end)
{
    struct ibv_wc wc;

    do {
        wc = wait_for_completion(end->cq);
        say("%s message %u status %d", end->name, (unsigned)wc.imm_data, (int)wc.status);
    } while (wc.imm_data);
}

/* What the far end does when it is told to. */
static void obey(const struct end *end, char command)
{
    if (command == 'r') /* a fault may strike here */
        post_receive(&end->node, end->qp, 99, LENGTH);
    else if (command == 'p')
        tell_port(end);
    else if (command == 'l')
        tell_messages(end);
    else
        say("%s memory %d", end->name, end->node.buffer[4096]);
    if (command == 'm' || command == 'l')
        tell_state(end);
}

static void obeying_process(enum ibv_qp_type type, int fd)
{
    struct end end;
    char command;

    open_far_end(&end, type, fd);
    while (read(fd, &command, 1) == 1) {
        obey(&end, command);
        give(fd, "d", 1);
    }
    exit(0);
}

/* A pair whose far end obeys. */
struct obeyed {
    struct end end, far_end, *far; /* far: NULL: in the child */
    struct card peer;
    pid_t child;
    int fd;
};

static void obeyed_open(struct obeyed *obeyed, enum ibv_qp_type type, bool same, bool extended,
                        uint8_t timeout)
{
    struct end *end = &obeyed->end;
    struct card card;
    int fds[2];
    char byte;

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    obeyed->far = same ? &obeyed->far_end : NULL;
    if (!same && (obeyed->child = fork()) == 0) {
        close(fds[0]);
        obeying_process(type, fds[1]);
    }
    close(fds[1]);
    obeyed->fd = fds[0];
    open_end_of(end, "near", type, extended);
    fill_card(end, &card);
    if (same) {
        open_end_of(obeyed->far, "far", type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : type, false);
        fill_card(obeyed->far, &obeyed->peer);
        connect_end(obeyed->far, &card);
        post_receives(obeyed->far);
    } else {
        take(obeyed->fd, &obeyed->peer, sizeof(obeyed->peer));
    }
    connect_within(end, &obeyed->peer, timeout);
    if (!same) {
        give(obeyed->fd, &card, sizeof(card));
        take(obeyed->fd, &byte, 1);
    }
}

static void obeyed_close(const struct obeyed *obeyed)
{
    int status;

    close(obeyed->fd);
    REQUIRE(obeyed->far || (waitpid(obeyed->child, &status, 0) == obeyed->child && status == 0));
}

static void tell_far(const struct obeyed *obeyed, char command)
{
    char done;

    if (obeyed->far) {
        obey(obeyed->far, command);
        return;
    }
    give(obeyed->fd, &command, 1);
    take(obeyed->fd, &done, 1);
}

static void port(enum ibv_wr_opcode opcode, bool back, bool same)
{
    struct obeyed obeyed;
    struct end *end = &obeyed.end;
    struct ibv_wc wc;

    obeyed_open(&obeyed, IBV_QPT_RC, same, false, back ? 18 : 12); /* one second, or 17 ms */
    for (unsigned i = 0; i < (opcode == IBV_WR_SEND ? 1 : WARM_UP); i++) {
        request(end, &obeyed.peer, opcode, 1);
        REQUIRE(wait_for_completion(end->cq).status == IBV_WC_SUCCESS);
    }
    tell_far(&obeyed, 'p');
    tell_far(&obeyed, 'r');
    tell_far(&obeyed, 'p');
    memset(end->node.buffer, 7, LENGTH);
    request(end, &obeyed.peer, opcode, 2);
    if (back) {
        tell_far(&obeyed, 'r');
        tell_far(&obeyed, 'p');
    }
    wc = wait_for_completion(end->cq);
    tell_completion(end, &wc);
    tell_far(&obeyed, 'm');
    tell_state(end);
    obeyed_close(&obeyed);
}

/* --- posts -------------------------------------------------------------------------------------------------- */

static int post_extended(const struct end *end, unsigned wr_id)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);

    ibv_wr_start(qp);
    qp->wr_id = wr_id;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, end->node.mr->lkey, (uintptr_t)end->node.buffer, 8);
    return ibv_wr_complete(qp);
}

/* Five of each as one list, or a batch each: what is refused, and how much completes. */
static void posts(bool extended)
{
    struct ibv_send_wr sends[REQUESTS], *bad_send = NULL;
    struct ibv_recv_wr recvs[REQUESTS], *bad_recv = NULL;
    struct ibv_sge sge;
    struct end end;
    struct card card;
    int error;

    open_end(&end, "near", extended);
    fill_card(&end, &card);
    connect_end(&end, &card);
    sge = (struct ibv_sge){(uintptr_t)end.node.buffer, 8, end.node.mr->lkey};
    for (unsigned i = 0; i < REQUESTS; i++) {
        recvs[i] = (struct ibv_recv_wr){
            .wr_id = 100 + i, .sg_list = &sge, .num_sge = 1, .next = i + 1 < REQUESTS ? &recvs[i + 1] : NULL};
        sends[i] = (struct ibv_send_wr){.wr_id = 1 + i,
                                        .sg_list = &sge,
                                        .num_sge = 1,
                                        .opcode = IBV_WR_SEND,
                                        .send_flags = IBV_SEND_SIGNALED,
                                        .next = i + 1 < REQUESTS ? &sends[i + 1] : NULL};
    }
    error = ibv_post_recv(end.qp, recvs, &bad_recv);
    tell_result("ibv_post_recv", error ? (unsigned)bad_recv->wr_id : 0, error);
    if (error) /* the rest */
        REQUIRE(ibv_post_recv(end.qp, bad_recv, &bad_recv) == 0);
    if (extended) {
        for (unsigned i = 1; i <= 3; i++)
            tell_result("ibv_wr_complete", i, post_extended(&end, i));
    } else {
        error = ibv_post_send(end.qp, sends, &bad_send);
        tell_result("ibv_post_send", error ? (unsigned)bad_send->wr_id : 0, error);
    }
    for (unsigned i = 0; i < 4; i++) { /* of two sends, and their receives */
        struct ibv_wc wc = wait_for_completion(end.cq);

        REQUIRE(wc.status == IBV_WC_SUCCESS);
    }
    say("end");
}

static enum ibv_wr_opcode opcode_of(const char *word)
{
    if (strcmp(word, "read") == 0)
        return IBV_WR_RDMA_READ;
    if (strcmp(word, "atomic") == 0 || strcmp(word, "sum") == 0)
        return IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (strcmp(word, "message") == 0 || strcmp(word, "last") == 0)
        return IBV_WR_SEND_WITH_IMM;
    REQUIRE(strcmp(word, "write") == 0);
    return IBV_WR_RDMA_WRITE;
}

/* Posted before any of them is complete; the completion of the last one. */
static struct ibv_wc burst(struct end *end, const struct card *peer, unsigned wr_id)
{
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};

    for (unsigned i = 0; i < BURST; i++)
        request(end, peer, IBV_WR_RDMA_WRITE, wr_id);
    for (unsigned i = 0; i < BURST && wc.status == IBV_WC_SUCCESS; i++)
        wc = wait_for_completion(end->cq);
    return wc;
}

static void obey_words(enum ibv_qp_type type, bool same)
{
    struct obeyed obeyed;
    struct end *end = &obeyed.end;
    char word[100];

    obeyed_open(&obeyed, type, same, true, 14); /* 67 ms */
    say("pid %d far %d", (int)getpid(), same ? (int)getpid() : (int)obeyed.child);
    for (unsigned i = 1; scanf("%99s", word) == 1; i++) {
        struct ibv_mr *mr;
        struct ibv_wc wc;
        int error = 0;

        if (strcmp(word, "register") == 0) {
            mr = ibv_reg_mr(end->node.pd, end->node.buffer, 4096, 0);
            error = mr ? 0 : errno;
        } else if (strcmp(word, "port") == 0) {
            tell_port(end);
        } else if (strcmp(word, "burst") == 0) {
            wc = burst(end, &obeyed.peer, i);
            tell_completion(end, &wc);
        } else {
            bool last = strcmp(word, "last") == 0;

            error = strcmp(word, "send") == 0
                        ? post_extended(end, i)
                        : post_request(end, &obeyed.peer, opcode_of(word), last ? 0 : i);
            if (!error) {
                wc = wait_for_completion(end->cq);
                tell_completion(end, &wc);
            }
            if (last) {
                tell_far(&obeyed, 'l');
                tell_state(end);
            }
            if (strcmp(word, "sum") == 0)
                say("near sum %llu", *(unsigned long long *)(void *)end->node.buffer);
        }
        tell_result(word, i, error);
    }
    obeyed_close(&obeyed);
}

/* --- a device that ends --------------------------------------------------------------------------------------- */

static void fatal(void)
{
    struct ibv_qp_init_attr attributes = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    struct ibv_recv_wr recv = {.wr_id = 9}, *bad_recv;
    struct ibv_send_wr send = {.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct end end;
    struct card card;
    struct ibv_wc wc;

    open_end(&end, "near", false);
    fill_card(&end, &card);
    connect_end(&end, &card);
    post_receives(&end);
    tell_result("ibv_post_send", 1, ibv_post_send(end.qp, &send, &bad_send));
    for (unsigned i = 0; i < RECEIVES; i++) {
        wc = wait_for_completion(end.cq);
        tell_completion(&end, &wc);
    }
    tell_state(&end);
    tell_result("ibv_post_recv", 1, ibv_post_recv(end.qp, &recv, &bad_recv));
    tell_result("ibv_modify_qp", 1, ibv_modify_qp(end.qp, &error, IBV_QP_STATE));
    tell_result("ibv_req_notify_cq", 1, ibv_req_notify_cq(end.cq, 0));
    mr = ibv_reg_mr(end.node.pd, end.node.buffer, 4096, 0);
    tell_result("ibv_reg_mr", 1, mr ? 0 : errno);
    cq = ibv_create_cq(end.node.context, 16, NULL, NULL, 0);
    tell_result("ibv_create_cq", 1, cq ? 0 : errno);
    attributes.send_cq = attributes.recv_cq = end.cq;
    qp = ibv_create_qp(end.node.pd, &attributes);
    tell_result("ibv_create_qp", 1, qp ? 0 : errno);
    tell_result("ibv_destroy_qp", 1, ibv_destroy_qp(end.qp));
    tell_result("ibv_destroy_cq", 1, ibv_destroy_cq(end.cq));
    node_close(&end.node);
    say("closed");
}

static void shared_receives(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_recv_wr recv = {.wr_id = 9}, *bad;
    struct ibv_async_event event;
    struct ibv_srq *srq;
    struct node node;

    node_open(&node);
    REQUIRE((srq = ibv_create_srq(node.pd, &attributes)));
    for (unsigned i = 1; i <= 2; i++)
        tell_result("ibv_post_srq_recv", i, ibv_post_srq_recv(srq, &recv, &bad));
    REQUIRE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    tell_result("ibv_post_srq_recv", 3, ibv_post_srq_recv(srq, &recv, &bad));
    REQUIRE(ibv_get_async_event(node.context, &event) == 0);
    REQUIRE(event.element.srq == srq);
    say("event %d", (int)event.event_type);
    ibv_ack_async_event(&event);
    REQUIRE(ibv_query_srq(srq, &limit) == 0);
    say("limit %u", limit.srq_limit);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    node_close(&node);
}

/* --- one process that talks to itself ------------------------------------------------------------------------- */

#define DATAGRAMS 5u
#define QKEY      7u

static void datagrams(void)
{
    struct ibv_qp_init_attr attributes = {.cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    struct ibv_qp_attr change = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
    struct node node;
    struct ibv_cq *sent, *received;
    struct ibv_ah *ah;
    struct ibv_qp *qp;

    node_open(&node);
    REQUIRE((sent = ibv_create_cq(node.context, 16, NULL, NULL, 0)));
    REQUIRE((received = ibv_create_cq(node.context, 16, NULL, NULL, 0)));
    attributes.send_cq = sent;
    attributes.recv_cq = received;
    REQUIRE((qp = ibv_create_qp(node.pd, &attributes)));
    REQUIRE(ibv_modify_qp(qp, &change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    change.qp_state = IBV_QPS_RTR;
    REQUIRE(ibv_modify_qp(qp, &change, IBV_QP_STATE) == 0);
    change.qp_state = IBV_QPS_RTS;
    REQUIRE(ibv_modify_qp(qp, &change, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    to.grh.dgid = node.gid;
    REQUIRE((ah = ibv_create_ah(node.pd, &to)));
    for (unsigned i = 1; i <= DATAGRAMS; i++)
        post_receive(&node, qp, i, 40 + LENGTH);
    for (unsigned i = 1; i <= DATAGRAMS; i++) {
        struct ibv_sge sge = {(uintptr_t)node.buffer, LENGTH, node.mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND_WITH_IMM,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .imm_data = i,
                                 .wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = QKEY}},
                           *bad;

        REQUIRE(ibv_post_send(qp, &wr, &bad) == 0);
        REQUIRE(wait_for_completion(sent).status == IBV_WC_SUCCESS);
    }
    for (unsigned i = 1; i <= DATAGRAMS; i++)
        say("datagram %u", (unsigned)wait_for_completion(received).imm_data);
}

static void marks(const char *command)
{
    struct end end;
    struct card card;
    open_end(&end, "near", false);
    fill_card(&end, &card);
    connect_end(&end, &card);
    for (unsigned i = 1; i <= REQUESTS; i++) {
        struct ibv_sge sge = {(uintptr_t)end.node.buffer, 1024, end.node.mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.rdma = {card.address + 4096, card.rkey}},
                           *bad;
        struct ibv_wc wc;

        REQUIRE(ibv_post_send(end.qp, &wr, &bad) == 0);
        wc = wait_for_completion(end.cq);
        tell_completion(&end, &wc);
    }
    say("pid %d", (int)getpid());
    REQUIRE(system(command) == 0);
}

static enum ibv_qp_type type_of(const char *word)
{
    shares = word && strcmp(word, "SRQ") == 0;
    if (word && strcmp(word, "UC") == 0)
        return IBV_QPT_UC;
    return word && strcmp(word, "XRC") == 0 ? IBV_QPT_XRC_SEND : IBV_QPT_RC;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum ibv_wr_opcode opcode;
    } opcodes[] = {
        {"SEND", IBV_WR_SEND},           {"RDMA_WRITE", IBV_WR_RDMA_WRITE},
        {"RDMA_READ", IBV_WR_RDMA_READ}, {"ATOMIC", IBV_WR_ATOMIC_FETCH_AND_ADD},
        {"BIND_MW", IBV_WR_BIND_MW},
    };

    if (argc > 1 && strcmp(argv[1], "calls") == 0)
        calls();
    else if (argc > 1 && strcmp(argv[1], "posts") == 0)
        posts(argc > 2);
    else if (argc > 1 && strcmp(argv[1], "fatal") == 0)
        fatal();
    else if (argc > 1 && strcmp(argv[1], "srq") == 0)
        shared_receives();
    else if (argc > 1 && strcmp(argv[1], "datagrams") == 0)
        datagrams();
    else if (argc > 1 && strcmp(argv[1], "obey") == 0)
        obey_words(type_of(argv[2]), strcmp(argv[argc - 1], "same") == 0);
    else if (argc > 2 && strcmp(argv[1], "marks") == 0)
        marks(argv[2]);
    for (size_t i = 0; argc > 2 && i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
        if (strcmp(argv[1], "pair") == 0 && strcmp(argv[2], opcodes[i].name) == 0)
            pair(opcodes[i].opcode, argc > 3);
        if (strcmp(argv[1], "port") == 0 && strcmp(argv[2], opcodes[i].name) == 0)
            port(opcodes[i].opcode, argc > 3 && strcmp(argv[3], "back") == 0,
                 strcmp(argv[argc - 1], "same") == 0);
    }
    return argc < 2;
}
