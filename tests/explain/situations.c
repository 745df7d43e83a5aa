/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Mistakes and accidents that public threads tell of, each as small as it gets, with public verbs only.
 *
 * usage: situations NAME        (without one: lists them)
 *
 * A situation that ends by itself does so with status 0, unless it is about a program that fails. One that hangs says
 * "hangs" on stdout first, and goes on when it reads a line. What is wrong is for the explanation to say:
 * test_explain.py looks at that. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

static struct ibv_cq *make_cq(const struct node *node, int entries, struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq = ibv_create_cq(node->context, entries, NULL, channel, 0);

    REQUIRE(cq);
    return cq;
}

/* --- the wrong CQ was acknowledged (openucx/ucx#1039) --------------------------------------------------- */

struct acknowledgement {
    struct ibv_cq *cq;
    struct ibv_async_event event;
};

static void *acknowledge_cq_later(void *argument)
{
    struct acknowledgement *acknowledgement = argument;

    wait_for_word();
    ibv_ack_cq_events(acknowledgement->cq, 1);
    return NULL;
}

static void wrong_cq_acknowledged(void)
{
    struct acknowledgement acknowledgement;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cqs[2], *ready, *first = NULL;
    struct ibv_qp *qps[2];
    struct node node;
    pthread_t thread;
    void *ignored;

    node_open(&node);
    channel = ibv_create_comp_channel(node.context);
    REQUIRE(channel);
    for (int i = 0; i < 2; i++) {
        cqs[i] = make_cq(&node, 16, channel);
        qps[i] = make_qp(&node, cqs[i], NULL, 4);
        to_init(qps[i]);
        REQUIRE(ibv_req_notify_cq(cqs[i], 0) == 0);
        post_receive(&node, qps[i], 1, 64);
        to_error(qps[i]); /* the receive is flushed: an event */
    }
    for (int i = 0; i < 2; i++) {
        REQUIRE(ibv_get_cq_event(channel, &ready, &ignored) == 0);
        wait_for_completion(ready);
        first = first ? first : ready;
    }
    ibv_ack_cq_events(ready, 2); /* the mistake: each has had one */
    for (int i = 0; i < 2; i++)
        REQUIRE(ibv_destroy_qp(qps[i]) == 0);

    acknowledgement.cq = first;
    REQUIRE(pthread_create(&thread, NULL, acknowledge_cq_later, &acknowledgement) == 0);
    say("hangs");
    REQUIRE(ibv_destroy_cq(first) == 0);
    pthread_join(thread, NULL);
    REQUIRE(ibv_destroy_cq(ready) == 0);
    REQUIRE(ibv_destroy_comp_channel(channel) == 0);
    node_close(&node);
}

/* --- an asynchronous event was not acknowledged, by another thread and by the same ---------------------- */

static struct ibv_async_event event_read;

static void *read_event(void *argument)
{
    REQUIRE(ibv_get_async_event(argument, &event_read) == 0);
    return NULL;
}

static void *acknowledge_event_later(void *argument)
{
    wait_for_word();
    ibv_ack_async_event(argument);
    return NULL;
}

static void unacknowledged_event(void)
{
    struct ibv_srq_init_attr srq_attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;
    pthread_t reader, thread;

    node_open(&node);
    cq = make_cq(&node, 16, NULL);
    srq = ibv_create_srq(node.pd, &srq_attributes);
    REQUIRE(srq);
    qp = make_qp(&node, cq, srq, 4);
    to_init(qp);
    to_error(qp); /* IBV_EVENT_QP_LAST_WQE_REACHED */
    REQUIRE(pthread_create(&reader, NULL, read_event, node.context) == 0);
    pthread_join(reader, NULL);
    REQUIRE(event_read.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
    REQUIRE(pthread_create(&thread, NULL, acknowledge_event_later, &event_read) == 0);
    say("hangs 0x%06x", qp->qp_num);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    pthread_join(thread, NULL);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* §: the thread that reads an event destroys the object before it acknowledges. */
static void own_event(void)
{
    struct ibv_srq_init_attr srq_attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_async_event event;
    struct ibv_srq *srq;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;
    pthread_t thread;

    node_open(&node);
    cq = make_cq(&node, 16, NULL);
    srq = ibv_create_srq(node.pd, &srq_attributes);
    REQUIRE(srq);
    qp = make_qp(&node, cq, srq, 4);
    to_init(qp);
    to_error(qp);
    REQUIRE(ibv_get_async_event(node.context, &event) == 0);
    REQUIRE(pthread_create(&thread, NULL, acknowledge_event_later, &event) == 0);
    say("hangs 0x%06x", qp->qp_num);
    REQUIRE(ibv_destroy_qp(qp) == 0); /* the mistake: ibv_ack_async_event() comes after it */
    pthread_join(thread, NULL);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- an MR was left behind (linux-rdma/perftest#77) ----------------------------------------------------- */

static void mr_left_behind(void)
{
    struct ibv_mr *forgotten;
    struct node node;

    node_open(&node);
    forgotten = ibv_reg_mr(node.pd, node.buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(forgotten);
    REQUIRE(ibv_dereg_mr(node.mr) == 0);
    REQUIRE(ibv_dealloc_pd(node.pd) == EBUSY);
    REQUIRE(ibv_dealloc_pd(node.pd) == EBUSY); /* told once */
    REQUIRE(ibv_dereg_mr(forgotten) == 0);
    REQUIRE(ibv_dealloc_pd(node.pd) == 0);
    REQUIRE(ibv_close_device(node.context) == 0);
}

/* --- an MR was freed before its users (the-tcpdump-group/libpcap#1532) ---------------------------------- */

static void mr_freed_before_users(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 16, NULL);
    qp = make_qp(&node, cq, NULL, 8);
    to_init(qp);
    for (uint64_t i = 0; i < 8; i++)
        post_receive(&node, qp, 100 + i, 64);
    REQUIRE(ibv_dereg_mr(node.mr) == 0); /* the mistake */
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_dealloc_pd(node.pd) == 0);
    REQUIRE(ibv_close_device(node.context) == 0);
}

/* --- everything in the wrong order (ska-sa/spead2#134) -------------------------------------------------- */

static void wrong_order(void)
{
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    channel = ibv_create_comp_channel(node.context);
    REQUIRE(channel);
    cq = make_cq(&node, 16, channel);
    qp = make_qp(&node, cq, NULL, 4);
    to_init(qp);
    /* In the order of creation, without a look at the results. */
    ibv_dealloc_pd(node.pd);
    ibv_destroy_comp_channel(channel);
    ibv_destroy_cq(cq);
    ibv_destroy_qp(qp);
    ibv_dereg_mr(node.mr);
    ibv_close_device(node.context);
}

/* --- a CQ was destroyed before its QP (fio, Valkey, jonhoo/rust-ibverbs#14) ------------------------------ */

static void cq_before_qp(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 16, NULL);
    qp = make_qp(&node, cq, NULL, 4);
    REQUIRE(ibv_destroy_cq(cq) == EBUSY);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- domains and device memory were freed before their users -------------------------------------------- */

static void domain_in_use(void)
{
    struct ibv_td_init_attr td_attr = {.comp_mask = 0};
    struct ibv_parent_domain_init_attr parent_attr = {.comp_mask = 0};
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD};
    struct ibv_pd *parent;
    struct ibv_cq_ex *cq;
    struct ibv_mr *mr;
    struct node node;

    node_open(&node);
    parent_attr.pd = node.pd;
    parent_attr.td = ibv_alloc_td(node.context, &td_attr);
    REQUIRE(parent_attr.td);
    parent = ibv_alloc_parent_domain(node.context, &parent_attr);
    REQUIRE(parent);
    mr = ibv_reg_mr(parent, node.buffer, 64, IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(mr);
    cq_attr.parent_domain = parent;
    cq = ibv_create_cq_ex(node.context, &cq_attr);
    REQUIRE(cq);
    REQUIRE(ibv_dealloc_td(parent_attr.td) == EBUSY);
    REQUIRE(ibv_dealloc_pd(node.pd) == EBUSY);
    REQUIRE(ibv_dealloc_pd(parent) == EBUSY);
    REQUIRE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, node.pd, NULL, 0, 0) == 0);
    REQUIRE(ibv_dealloc_pd(parent) == EBUSY);
    REQUIRE(ibv_dereg_mr(mr) == 0);
    REQUIRE(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    REQUIRE(ibv_dealloc_pd(parent) == 0);
    REQUIRE(ibv_dealloc_td(parent_attr.td) == 0);
    node_close(&node);
}

static void xrcd_in_use(void)
{
    struct ibv_xrcd_init_attr xrcd_attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_srq_init_attr_ex srq_attr = {
        .attr = {.max_wr = 4, .max_sge = 1},
        .comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
        .srq_type = IBV_SRQT_XRC,
    };
    struct ibv_qp_init_attr_ex qp_attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    srq_attr.pd = node.pd;
    srq_attr.cq = make_cq(&node, 16, NULL);
    srq_attr.xrcd = qp_attr.xrcd = ibv_open_xrcd(node.context, &xrcd_attr);
    REQUIRE(srq_attr.xrcd);
    srq = ibv_create_srq_ex(node.context, &srq_attr);
    qp = ibv_create_qp_ex(node.context, &qp_attr);
    REQUIRE(srq && qp);
    REQUIRE(ibv_destroy_cq(srq_attr.cq) == EBUSY);
    REQUIRE(ibv_close_xrcd(srq_attr.xrcd) == EBUSY);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_close_xrcd(srq_attr.xrcd) == EBUSY);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_close_xrcd(srq_attr.xrcd) == 0);
    REQUIRE(ibv_destroy_cq(srq_attr.cq) == 0);
    node_close(&node);
}

static void dm_in_use(void)
{
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_dm *dm, *other;
    struct ibv_mr *mr;
    struct node node;

    node_open(&node);
    other = ibv_alloc_dm(node.context, &attr);
    dm = ibv_alloc_dm(node.context, &attr);
    REQUIRE(dm && other);
    mr = ibv_reg_dm_mr(node.pd, dm, 64, 128, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(mr);
    REQUIRE(ibv_free_dm(dm) == EBUSY);
    REQUIRE(ibv_free_dm(other) == 0);
    REQUIRE(ibv_dereg_mr(mr) == 0);
    REQUIRE(ibv_free_dm(dm) == 0);
    node_close(&node);
}

/* --- a raw packet QP and counters, destroyed before the flow rule that names them ----------------------- */

static void flow_in_use(void)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RAW_PACKET, .cap = {1, 1, 1, 1, 0}};
    struct ibv_counters_init_attr none = {0};
    struct ibv_counter_attach_attr point = {IBV_COUNTER_PACKETS, 0, 0};
    struct __attribute__((packed, aligned(8))) {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
        struct ibv_flow_spec_counter_action count;
    } rule = {
        .attr = {.type = IBV_FLOW_ATTR_NORMAL,
                 .size = sizeof(rule.attr) + sizeof(rule.eth) + sizeof(rule.count),
                 .num_of_specs = 2,
                 .port = 1},
        .eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth)},
        .count = {.type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof(rule.count)},
    };
    struct ibv_flow *flow;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    init.send_cq = init.recv_cq = make_cq(&node, 2, NULL);
    qp = ibv_create_qp(node.pd, &init);
    REQUIRE(qp);
    rule.count.counters = ibv_create_counters(node.context, &none);
    REQUIRE(rule.count.counters && ibv_attach_counters_point_flow(rule.count.counters, &point, NULL) == 0);
    flow = ibv_create_flow(qp, (void *)&rule);
    REQUIRE(flow);
    REQUIRE(ibv_destroy_qp(qp) == EBUSY);
    REQUIRE(ibv_destroy_counters(rule.count.counters) == EBUSY);
    REQUIRE(ibv_destroy_flow(flow) == 0);
    REQUIRE(ibv_destroy_counters(rule.count.counters) == 0);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(init.send_cq) == 0);
    node_close(&node);
}

/* --- a completion was lost to an overrun CQ (ofiwg/libfabric#4913, ROCm/TransferBench#239) -------------- */

static void overrun(void)
{
    struct ibv_async_event event;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;
    uint64_t posted;

    node_open(&node);
    cq = make_cq(&node, 3, NULL); /* too small for the QP */
    qp = make_qp(&node, cq, NULL, 16);
    to_init(qp);
    for (posted = 0; posted <= (uint64_t)cq->cqe; posted++)
        post_receive(&node, qp, 0x700 + posted, 64);
    to_error(qp); /* one completion more than there is room */
    do {
        REQUIRE(ibv_get_async_event(node.context, &event) == 0);
        ibv_ack_async_event(&event);
    } while (event.event_type != IBV_EVENT_CQ_ERR);
    say("hangs");
    wait_for_word();
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- a work request of an SRQ was lost ------------------------------------------------------------------ */

static void lost_srq_receive(void)
{
    struct ibv_srq_init_attr srq_attributes = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_async_event event;
    struct ibv_sge receive_sge, send_sge[2];
    struct ibv_recv_wr receive = {.wr_id = 0x51, .sg_list = &receive_sge, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.wr_id = 0x52,
                               .sg_list = send_sge,
                               .num_sge = 2,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *sender, *receiver;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 16, NULL);
    srq = ibv_create_srq(node.pd, &srq_attributes);
    REQUIRE(srq);
    sender = make_qp(&node, cq, NULL, 4);
    receiver = make_qp(&node, cq, srq, 4);
    connect_qps(&node, sender, receiver, 14, 7, 7);
    receive_sge = (struct ibv_sge){(uintptr_t)node.buffer, BUFFER_BYTES / 2, node.mr->lkey};
    REQUIRE(ibv_post_srq_recv(srq, &receive, &bad_receive) == 0);
    REQUIRE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    /* The sender fails in the middle of a message: its second part is not registered. */
    send_sge[0] = (struct ibv_sge){(uintptr_t)node.buffer, 65536, node.mr->lkey};
    send_sge[1] = (struct ibv_sge){(uintptr_t)node.buffer, 65536, node.mr->lkey ^ 0xf0};
    REQUIRE(ibv_post_send(sender, &send, &bad_send) == 0);
    REQUIRE(wait_for_completion(cq).status == IBV_WC_LOC_PROT_ERR);
    /* The receiver has taken its receive. */
    do {
        struct ibv_wc wc;

        REQUIRE(ibv_poll_cq(cq, 1, &wc) == 0);
    } while (ibv_get_async_event(node.context, &event) != 0);
    REQUIRE(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
    ibv_ack_async_event(&event);
    say("hangs");
    wait_for_word();
    REQUIRE(ibv_destroy_qp(receiver) == 0); /* the mistake: to ERR first, and wait for the last WQE */
    REQUIRE(ibv_destroy_qp(sender) == 0);
    REQUIRE(ibv_destroy_srq(srq) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- completions that do not come ----------------------------------------------------------------------- */

/* wr_ids */
enum { FIRST = 0x100, BEHIND = 0x101, READS = 0x200, QUIET = 0x300, LOUD = 0x301 };

static void no_receive(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
    struct node node;
    struct ibv_wc wc;

    node_open(&node);
    cq = make_cq(&node, 64, NULL);
    a = make_qp(&node, cq, NULL, 8);
    b = make_qp(&node, cq, NULL, 8);
    connect_qps(&node, a, b, 14, 7, 7);
    post_send(&node, a, FIRST, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    post_send(&node, a, BEHIND, IBV_WR_RDMA_WRITE, 64, IBV_SEND_SIGNALED);
    for (int i = 0; i < 1000; i++)
        REQUIRE(ibv_poll_cq(cq, 1, &wc) == 0);
    say("hangs 0x%06x", a->qp_num);
    wait_for_word();
    post_receive(&node, b, 1, 64);
    for (int i = 0; i < 3; i++)
        REQUIRE(wait_for_completion(cq).status == IBV_WC_SUCCESS);
    REQUIRE(ibv_destroy_qp(a) == 0);
    REQUIRE(ibv_destroy_qp(b) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

static void unsignaled(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 64, NULL);
    a = make_qp(&node, cq, NULL, 8);
    b = make_qp(&node, cq, NULL, 8);
    connect_qps(&node, a, b, 14, 7, 7);
    post_send(&node, a, LOUD, IBV_WR_RDMA_WRITE, 64, IBV_SEND_SIGNALED);
    REQUIRE(wait_for_completion(cq).wr_id == LOUD);
    post_send(&node, a, QUIET, IBV_WR_RDMA_WRITE, 64, 0);
    post_send(&node, a, LOUD + 1, IBV_WR_RDMA_WRITE, 64, IBV_SEND_SIGNALED);
    post_receive(&node, a, 0x400, 64);
    post_receive(&node, a, 0x401, 64);
    say("hangs 0x%06x", a->qp_num);
    wait_for_word(); /* LOUD + 1 is not polled */
    REQUIRE(ibv_destroy_qp(a) == 0);
    REQUIRE(ibv_destroy_qp(b) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* Nobody has the destination's number. */
static void nobody_there(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 64, NULL);
    qp = make_qp(&node, cq, NULL, 8);
    to_init(qp);
    to_rtr(&node, qp, qp->qp_num ^ 0x7f0000, &node.gid);
    to_rts(qp, 0, 7, 7); /* waits for ever */
    post_send(&node, qp, FIRST, IBV_WR_RDMA_WRITE, 64, IBV_SEND_SIGNALED);
    say("hangs 0x%06x", qp->qp_num);
    wait_for_word();
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- a peer in another process that does nothing any more ----------------------------------------------- */

struct peer {
    pid_t pid;
    int to, from; /* pipes */
};

/* What each side needs to know of the other. */
struct card {
    uint32_t qpn, rkey;
    uint64_t address;
    union ibv_gid gid;
};

static void exchange(int to, int from, const struct card *mine, struct card *ret_theirs)
{
    REQUIRE(write(to, mine, sizeof(*mine)) == sizeof(*mine));
    REQUIRE(read(from, ret_theirs, sizeof(*ret_theirs)) == sizeof(*ret_theirs));
}

static struct card card_of(const struct node *node, const struct ibv_qp *qp)
{
    return (struct card){qp->qp_num, node->mr->rkey, (uintptr_t)node->buffer, node->gid};
}

static void connect_to_card(const struct node *node, struct ibv_qp *qp, const struct card *card,
                            uint8_t timeout)
{
    to_init(qp);
    post_receive(node, qp, 1, 64);
    to_rtr(node, qp, card->qpn, &card->gid);
    to_rts(qp, timeout, 7, 7);
}

/* The peer connects, says so, and waits until it is killed. */
static void be_peer(int to, int from)
{
    struct card mine, theirs;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 64, NULL);
    qp = make_qp(&node, cq, NULL, 8);
    mine = card_of(&node, qp);
    exchange(to, from, &mine, &theirs);
    connect_to_card(&node, qp, &theirs, 14);
    exchange(to, from, &mine, &theirs);
    for (;;)
        pause();
}

static struct peer start_peer(void)
{
    int there[2], here[2];
    struct peer peer;

    REQUIRE(pipe(there) == 0 && pipe(here) == 0);
    peer.pid = fork();
    REQUIRE(peer.pid >= 0);
    if (peer.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(STDIN_FILENO);
        be_peer(here[1], there[0]);
    }
    peer.to = there[1];
    peer.from = here[0];
    return peer;
}

static void end_peer(const struct peer *peer)
{
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
}

struct with_peer {
    struct peer peer;
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct card card;
};

/* Connected, and one message has been there and acknowledged. With a timeout of 0, nobody ever gives up. */
static void begin_with_peer(struct with_peer *with)
{
    struct card mine;

    with->peer = start_peer(); /* before anything calls a verb here */
    node_open(&with->node);
    with->cq = make_cq(&with->node, 64, NULL);
    with->qp = make_qp(&with->node, with->cq, NULL, 8);
    mine = card_of(&with->node, with->qp);
    exchange(with->peer.to, with->peer.from, &mine, &with->card);
    connect_to_card(&with->node, with->qp, &with->card, 0);
    exchange(with->peer.to, with->peer.from, &mine, &with->card);
    post_send(&with->node, with->qp, 1, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    REQUIRE(wait_for_completion(with->cq).status == IBV_WC_SUCCESS);
}

static void stop_peer(const struct with_peer *with)
{
    int status;

    REQUIRE(kill(with->peer.pid, SIGSTOP) == 0);
    REQUIRE(waitpid(with->peer.pid, &status, WUNTRACED) == with->peer.pid && WIFSTOPPED(status));
}

static void end_with_peer(struct with_peer *with)
{
    end_peer(&with->peer);
    REQUIRE(ibv_destroy_qp(with->qp) == 0);
    REQUIRE(ibv_destroy_cq(with->cq) == 0);
    node_close(&with->node);
}

static void post_to_peer(const struct with_peer *with, uint64_t wr_id, enum ibv_wr_opcode opcode,
                         unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)with->node.buffer, 64, with->node.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = flags},
                       *bad;

    wr.wr.rdma.remote_addr = with->card.address;
    wr.wr.rdma.rkey = with->card.rkey;
    REQUIRE(ibv_post_send(with->qp, &wr, &bad) == 0);
}

static void stopped_peer(void)
{
    struct with_peer with;

    begin_with_peer(&with);
    stop_peer(&with);
    post_to_peer(&with, FIRST, IBV_WR_SEND, IBV_SEND_SIGNALED);
    say("hangs 0x%06x", with.qp->qp_num);
    wait_for_word();
    end_with_peer(&with);
}

static void fence(void)
{
    struct with_peer with;

    begin_with_peer(&with);
    stop_peer(&with);
    post_to_peer(&with, READS, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
    post_to_peer(&with, READS + 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    post_to_peer(&with, READS + 2, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
    say("hangs 0x%06x", with.qp->qp_num);
    wait_for_word();
    end_with_peer(&with);
}

static void read_depth(void)
{
    struct with_peer with;

    begin_with_peer(&with);
    stop_peer(&with);
    for (uint64_t i = 0; i < 5; i++)
        post_to_peer(&with, READS + i, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED);
    say("hangs 0x%06x", with.qp->qp_num);
    wait_for_word();
    end_with_peer(&with);
}

static void dead_peer(void)
{
    struct with_peer with;
    struct ibv_wc wc;

    begin_with_peer(&with);
    stop_peer(&with);
    post_to_peer(&with, FIRST, IBV_WR_SEND, IBV_SEND_SIGNALED);
    end_peer(&with.peer);
    say("hangs 0x%06x", with.qp->qp_num);
    wait_for_word();
    REQUIRE(ibv_poll_cq(with.cq, 1, &wc) == 0);
    end_with_peer(&with);
}

static void sqd(void)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_SQD};
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 64, NULL);
    a = make_qp(&node, cq, NULL, 8);
    b = make_qp(&node, cq, NULL, 8);
    connect_qps(&node, a, b, 14, 7, 7);
    REQUIRE(ibv_modify_qp(a, &attributes, IBV_QP_STATE) == 0);
    post_send(&node, a, FIRST, IBV_WR_RDMA_WRITE, 64, IBV_SEND_SIGNALED);
    say("hangs 0x%06x", a->qp_num);
    wait_for_word();
    REQUIRE(ibv_destroy_qp(a) == 0);
    REQUIRE(ibv_destroy_qp(b) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

/* --- leaks (uccl-project/uccl#690) ---------------------------------------------------------------------- */

static __attribute__((noinline)) struct ibv_qp *make_a_qp_and_forget_it(const struct node *node,
                                                                        struct ibv_cq *cq)
{
    struct ibv_qp *qp = make_qp(node, cq, NULL, 4);

    __asm__ volatile("" ::: "memory"); /* this frame is looked for */
    return qp;
}

static void leak_at_close(void)
{
    struct node node;

    node_open(&node);
    make_a_qp_and_forget_it(&node, make_cq(&node, 16, NULL));
    REQUIRE(ibv_close_device(node.context) == 0);
}

static void leak_at_exit(void)
{
    struct node node;

    node_open(&node);
    make_a_qp_and_forget_it(&node, make_cq(&node, 16, NULL));
}

/* --- what is only counted, and the end of a program that fails ------------------------------------------- */

static void leave_things_behind(void)
{
    struct ibv_cq *cq;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 16, NULL);
    make_a_qp_and_forget_it(&node, cq);
    for (int i = 0; i < 4; i++)
        REQUIRE(ibv_destroy_cq(cq) == EBUSY);
}

static void failing_program(void)
{
    leave_things_behind();
    exit(3);
}

static void failing_quickly(void)
{
    leave_things_behind();
    _exit(3);
}

/* --- nothing is wrong ----------------------------------------------------------------------------------- */

static void all_well(void)
{
    struct ibv_cq *cq;
    struct ibv_qp *a, *b;
    struct node node;

    node_open(&node);
    cq = make_cq(&node, 64, NULL);
    a = make_qp(&node, cq, NULL, 8);
    b = make_qp(&node, cq, NULL, 8);
    connect_qps(&node, a, b, 14, 7, 7);
    post_receive(&node, b, 1, 64);
    post_send(&node, a, 2, IBV_WR_SEND, 64, IBV_SEND_SIGNALED);
    wait_for_completion(cq);
    wait_for_completion(cq);
    say("hangs");
    wait_for_word();
    REQUIRE(ibv_destroy_qp(a) == 0);
    REQUIRE(ibv_destroy_qp(b) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    node_close(&node);
}

static void xrc_qp_opened(void)
{
    struct ibv_xrcd_init_attr xrcd_attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_qp_init_attr_ex qp_attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_qp_open_attr open_attr = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
                                                      IBV_QP_OPEN_ATTR_TYPE,
                                         .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_qp *qp, *opened;
    struct node node;

    node_open(&node);
    open_attr.xrcd = qp_attr.xrcd = ibv_open_xrcd(node.context, &xrcd_attr);
    REQUIRE(qp_attr.xrcd);
    qp = ibv_create_qp_ex(node.context, &qp_attr);
    REQUIRE(qp);
    open_attr.qp_num = qp->qp_num;
    opened = ibv_open_qp(node.context, &open_attr);
    REQUIRE(opened);
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_close_xrcd(qp_attr.xrcd) == EBUSY);
    say("hangs");
    wait_for_word();
    REQUIRE(ibv_destroy_qp(opened) == 0);
    REQUIRE(ibv_close_xrcd(qp_attr.xrcd) == 0);
    node_close(&node);
}

static const struct situation situations[] = {
    {"wrong-cq-acknowledged", wrong_cq_acknowledged},
    {"unacknowledged-event", unacknowledged_event},
    {"own-event", own_event},
    {"mr-left-behind", mr_left_behind},
    {"mr-freed-before-users", mr_freed_before_users},
    {"wrong-order", wrong_order},
    {"cq-before-qp", cq_before_qp},
    {"domain-in-use", domain_in_use},
    {"xrcd-in-use", xrcd_in_use},
    {"dm-in-use", dm_in_use},
    {"flow-in-use", flow_in_use},
    {"overrun", overrun},
    {"lost-srq-receive", lost_srq_receive},
    {"no-receive", no_receive},
    {"unsignaled", unsignaled},
    {"nobody-there", nobody_there},
    {"stopped-peer", stopped_peer},
    {"fence", fence},
    {"read-depth", read_depth},
    {"dead-peer", dead_peer},
    {"sqd", sqd},
    {"leak-at-close", leak_at_close},
    {"leak-at-exit", leak_at_exit},
    {"failing-program", failing_program},
    {"failing-quickly", failing_quickly},
    {"all-well", all_well},
    {"xrc-qp-opened", xrc_qp_opened},
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
