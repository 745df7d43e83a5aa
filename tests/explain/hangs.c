/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs that hang, or fail for good, without an error: what nothing under way will end. Each with public verbs
 * only, and its peer in a process of its own.
 *
 * usage: hangs NAME        (without one: lists them)
 *
 * Says "hangs" on stdout, with the peer's process ID, and ends with status 0 when it reads a line. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

#define DEPTH 8

/* --- a peer that does as it is told ----------------------------------------------------------------------- */

struct card {
    uint32_t qpn;
    union ibv_gid gid;
};

static struct peer {
    pid_t pid;
    int socket;
} peer;

static void transfer(int socket, const void *mine, void *theirs, size_t size)
{
    REQUIRE(write(socket, mine, size) == (ssize_t)size);
    REQUIRE(recv(socket, theirs, size, MSG_WAITALL) == (ssize_t)size);
}

static void connect_by(int socket, const struct node *node, struct ibv_qp *qp)
{
    struct card mine = {qp->qp_num, node->gid}, theirs;

    transfer(socket, &mine, &theirs, sizeof(mine));
    to_init(qp);
    to_rtr(node, qp, theirs.qpn, &theirs.gid);
    to_rts(qp, 14, 7, 7);
    transfer(socket, &mine, &theirs, sizeof(mine)); /* both are connected */
}

/* 's': sends a message. 'S': the same, and waits until it is acknowledged. */
static void obey(int socket)
{
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    char word;

    node_open(&node);
    cq = ibv_create_cq(node.context, 64, NULL, NULL, 0);
    REQUIRE(cq);
    qp = make_qp(&node, cq, NULL, 64);
    connect_by(socket, &node, qp);
    for (int i = 0; i < 64; i++)
        post_receive(&node, qp, 1, 64);
    while (read(socket, &word, 1) == 1) {
        post_send(&node, qp, 4711, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
        if (word == 'S')
            REQUIRE(wait_for_completion(cq).status == IBV_WC_SUCCESS);
        REQUIRE(write(socket, &word, 1) == 1);
    }
}

static void fork_peer(void (*be)(int socket))
{
    int sockets[2];

    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    peer.pid = fork();
    REQUIRE(peer.pid >= 0);
    if (peer.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(sockets[0]);
        be(sockets[1]);
        pause();
        _exit(0);
    }
    close(sockets[1]);
    peer.socket = sockets[0];
}

static void tell_peer(char word)
{
    REQUIRE(write(peer.socket, &word, 1) == 1);
    REQUIRE(recv(peer.socket, &word, 1, MSG_WAITALL) == 1);
}

static void *end_when_told(void *ignored)
{
    wait_for_word();
    if (peer.pid > 0)
        kill(peer.pid, SIGKILL);
    _exit(0);
    return ignored;
}

/* The caller goes on, into what it hangs in. */
static void announce(void)
{
    pthread_t thread;

    REQUIRE(pthread_create(&thread, NULL, end_when_told, NULL) == 0);
    say("hangs %x", (unsigned)peer.pid);
}

static void announce_and_stay(void)
{
    announce();
    for (;;)
        pause();
}

/* --- a program that sleeps on its channel ----------------------------------------------------------------- */

struct sleeper {
    struct node node;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

/* Two messages have come, and the event for the first was read. */
static void sleep_until_two_came(struct sleeper *sleeper)
{
    struct ibv_cq *cq;
    void *context;

    fork_peer(obey);
    node_open(&sleeper->node);
    sleeper->channel = ibv_create_comp_channel(sleeper->node.context);
    REQUIRE(sleeper->channel);
    sleeper->cq = ibv_create_cq(sleeper->node.context, 64, NULL, sleeper->channel, 0);
    REQUIRE(sleeper->cq);
    sleeper->qp = make_qp(&sleeper->node, sleeper->cq, NULL, DEPTH);
    to_init(sleeper->qp);
    for (uint64_t i = 0; i < 4; i++)
        post_receive(&sleeper->node, sleeper->qp, 0x100 + i, 64);
    REQUIRE(ibv_req_notify_cq(sleeper->cq, 0) == 0);
    connect_by(peer.socket, &sleeper->node, sleeper->qp);
    tell_peer('S');
    tell_peer('S');
    REQUIRE(ibv_get_cq_event(sleeper->channel, &cq, &context) == 0);
    ibv_ack_cq_events(cq, 1);
}

static void take_one(struct sleeper *sleeper)
{
    REQUIRE(wait_for_completion(sleeper->cq).status == IBV_WC_SUCCESS);
}

static void sleep_on(struct sleeper *sleeper)
{
    struct ibv_cq *cq;
    void *context;

    announce();
    ibv_get_cq_event(sleeper->channel, &cq, &context);
}

/* The mistake: one completion per event (linux-rdma/perftest#137: a fixed number of them), or no poll after the request
 * (apache/brpc#3415). */
static void lost_wake_up(void)
{
    struct sleeper sleeper;

    sleep_until_two_came(&sleeper);
    take_one(&sleeper);
    REQUIRE(ibv_req_notify_cq(sleeper.cq, 0) == 0);
    sleep_on(&sleeper);
}

/* The mistake: the notification is requested once, and not for each event. */
static void notify_once(void)
{
    struct sleeper sleeper;

    sleep_until_two_came(&sleeper);
    take_one(&sleeper);
    sleep_on(&sleeper);
}

/* ofiwg/libfabric#795: the first event needs a request, too. */
static void notify_never(void)
{
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;
    void *context;

    fork_peer(obey);
    node_open(&node);
    channel = ibv_create_comp_channel(node.context);
    REQUIRE(channel);
    cq = ibv_create_cq(node.context, 64, NULL, channel, 0);
    REQUIRE(cq);
    qp = make_qp(&node, cq, NULL, DEPTH);
    to_init(qp);
    post_receive(&node, qp, 0x100, 64);
    connect_by(peer.socket, &node, qp);
    tell_peer('S');
    announce();
    ibv_get_cq_event(channel, &cq, &context);
}

/* The mistake: no message is sent with IBV_SEND_SOLICITED. */
static void only_solicited(void)
{
    struct sleeper sleeper;

    sleep_until_two_came(&sleeper);
    take_one(&sleeper);
    take_one(&sleeper);
    REQUIRE(ibv_req_notify_cq(sleeper.cq, 1) == 0);
    tell_peer('S');
    sleep_on(&sleeper);
}

/* --- extended polling that is not ended ------------------------------------------------------------------- */

static struct ibv_cq_ex *extended_cq_with_two(void)
{
    static struct node node;
    struct ibv_cq_init_attr_ex attributes = {.cqe = 64};
    struct ibv_cq_ex *cq;
    struct ibv_qp *qp;

    fork_peer(obey);
    node_open(&node);
    cq = ibv_create_cq_ex(node.context, &attributes);
    REQUIRE(cq);
    qp = make_qp(&node, ibv_cq_ex_to_cq(cq), NULL, DEPTH);
    to_init(qp);
    for (uint64_t i = 0; i < 4; i++)
        post_receive(&node, qp, 0x100 + i, 64);
    connect_by(peer.socket, &node, qp);
    tell_peer('S');
    tell_peer('S');
    return cq;
}

static void start_poll(struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attributes = {0};
    int error;

    do {
        error = ibv_start_poll(cq, &attributes);
    } while (error == ENOENT);
    REQUIRE(error == 0);
}

/* The mistake: on the way out of a loop, ibv_end_poll() is forgotten. */
static void poll_not_ended(void)
{
    struct ibv_cq_ex *cq = extended_cq_with_two();

    start_poll(cq);
    announce();
    start_poll(cq);
}

static void *poll_later(void *cq)
{
    struct ibv_wc wc;

    ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc);
    return NULL;
}

/* The mistake: a thread holds the CQ while it works on a message. */
static void poll_held(void)
{
    struct ibv_cq_ex *cq = extended_cq_with_two();
    pthread_t thread;

    start_poll(cq);
    REQUIRE(pthread_create(&thread, NULL, poll_later, cq) == 0);
    announce_and_stay();
}

/* --- queues ----------------------------------------------------------------------------------------------- */

static struct ibv_qp *connected_qp(struct node *node, struct ibv_srq *srq)
{
    struct ibv_cq *cq = ibv_create_cq(node->context, 64, NULL, NULL, 0);
    struct ibv_qp *qp;

    REQUIRE(cq);
    qp = make_qp(node, cq, srq, DEPTH);
    connect_by(peer.socket, node, qp);
    return qp;
}

/* The mistake: nothing is ever signaled. */
static void never_signaled(void)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct node node;
    struct ibv_qp *qp;

    fork_peer(obey);
    node_open(&node);
    qp = connected_qp(&node, NULL);
    sge = (struct ibv_sge){(uintptr_t)node.buffer, 64, node.mr->lkey};
    while (ibv_post_send(qp, &wr, &bad) == 0) {
    }
    announce_and_stay();
}

/* The mistake: the peer sends before a receive is posted. */
static void no_receive_posted(void)
{
    struct node node;

    fork_peer(obey);
    node_open(&node);
    connected_qp(&node, NULL);
    tell_peer('s');
    announce_and_stay();
}

/* The peer is in a debugger, or was suspended by its terminal. */
static void stop_peer(int others)
{
    struct node node;
    struct ibv_qp *qp;
    int status;

    fork_peer(obey);
    node_open(&node);
    qp = connected_qp(&node, NULL);
    for (int i = 0; i < others; i++)
        make_qp(&node, qp->send_cq, NULL, 1);
    /* So that the processes know each other. */
    post_send(&node, qp, 4710, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    REQUIRE(wait_for_completion(qp->send_cq).status == IBV_WC_SUCCESS);
    REQUIRE(kill(peer.pid, SIGSTOP) == 0);
    REQUIRE(waitpid(peer.pid, &status, WUNTRACED) == peer.pid && WIFSTOPPED(status));
    for (int i = 0; i < 2; i++)
        post_send(&node, qp, 4711, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    announce_and_stay();
}

static void peer_stopped(void)
{
    stop_peer(0);
}

/* Among more objects than are looked at in a second. */
static void peer_stopped_of_many(void)
{
    stop_peer(3000);
}

/* spdk/spdk#2180: a receive is posted again when the disk has answered. */
static void srq_ran_dry(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq;
    struct node node;

    fork_peer(obey);
    node_open(&node);
    srq = ibv_create_srq(node.pd, &attributes);
    REQUIRE(srq);
    connected_qp(&node, srq);
    tell_peer('s');
    announce_and_stay();
}

/* --- events that nobody reads ----------------------------------------------------------------------------- */

/* The mistake: no thread reads asynchronous events. */
static void async_event_unread(void)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = ibv_create_cq(node.context, 64, NULL, NULL, 0);
    srq = ibv_create_srq(node.pd, &attributes);
    REQUIRE(cq && srq);
    qp = make_qp(&node, cq, srq, DEPTH);
    to_init(qp);
    to_error(qp); /* IBV_EVENT_QP_LAST_WQE_REACHED */
    announce_and_stay();
}

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    REQUIRE(rdma_get_cm_event(channel, &event) == 0);
    REQUIRE(event->event == type);
    REQUIRE(rdma_ack_cm_event(event) == 0);
}

static void connect_to(struct rdma_event_channel *channel, uint16_t port)
{
    struct ibv_qp_init_attr attributes = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
    struct sockaddr_in address = loopback(port);
    struct rdma_cm_id *id;

    REQUIRE(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id, 5000) == 0);
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    REQUIRE(rdma_create_qp(id, NULL, &attributes) == 0);
    REQUIRE(rdma_connect(id, &param) == 0);
}

/* So often, one after the other, and waits for an answer. */
static void call_times(int socket, unsigned times)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    uint16_t port;
    char word = 0;

    REQUIRE(recv(socket, &port, sizeof(port), MSG_WAITALL) == sizeof(port));
    while (times--)
        connect_to(channel, port);
    REQUIRE(write(socket, &word, 1) == 1);
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
}

static void call(int socket)
{
    call_times(socket, 1);
}

static void call_twice(int socket)
{
    call_times(socket, 2);
}

static struct rdma_event_channel *listen_and_be_called(void (*caller)(int socket))
{
    struct rdma_event_channel *channel;
    struct sockaddr_in address = loopback(0);
    struct rdma_cm_id *id;
    uint16_t port;
    char word;

    fork_peer(caller);
    channel = rdma_create_event_channel();
    REQUIRE(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
    REQUIRE(rdma_listen(id, 1) == 0);
    port = rdma_get_src_port(id);
    REQUIRE(write(peer.socket, &port, sizeof(port)) == sizeof(port));
    REQUIRE(recv(peer.socket, &word, 1, MSG_WAITALL) == 1); /* it has called */
    return channel;
}

/* The mistake: the thread that reads the channel is busy with something else. */
static void request_unread(void)
{
    listen_and_be_called(call);
    announce_and_stay();
}

/* The same, and its backlog is 1: a second request is not taken. */
static void backlog_full(void)
{
    listen_and_be_called(call_twice);
    announce_and_stay();
}

/* The mistake: the request is put aside. */
static void request_put_aside(void)
{
    struct rdma_event_channel *channel = listen_and_be_called(call);
    struct rdma_cm_event *event;

    REQUIRE(rdma_get_cm_event(channel, &event) == 0);
    REQUIRE(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
    REQUIRE(rdma_ack_cm_event(event) == 0);
    announce_and_stay();
}

static const struct situation situations[] = {
    {"lost-wake-up", lost_wake_up},
    {"notify-once", notify_once},
    {"notify-never", notify_never},
    {"only-solicited", only_solicited},
    {"poll-not-ended", poll_not_ended},
    {"poll-held", poll_held},
    {"never-signaled", never_signaled},
    {"no-receive-posted", no_receive_posted},
    {"srq-ran-dry", srq_ran_dry},
    {"peer-stopped", peer_stopped},
    {"peer-stopped-of-many", peer_stopped_of_many},
    {"async-event-unread", async_event_unread},
    {"request-unread", request_unread},
    {"backlog-full", backlog_full},
    {"request-put-aside", request_put_aside},
};

int main(int argc, char **argv)
{
    const struct situation *wanted =
        situation_wanted(argc, argv, situations, sizeof(situations) / sizeof(situations[0]));

    if (!wanted)
        return argc < 2 ? 0 : 1;
    wanted->happen();
    return 0;
}
